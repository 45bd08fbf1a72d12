// npm run bench [-- NAME...] [-- --OPTION...]: measures the service and writes the tables of docs/contributing/performance.md. Without names,
// everything; options go to each bench that is named, or else to `requests`.
import { join } from "node:path";
import { root, run } from "../scripts/lib.mjs";

/** Each is a file of this folder, which is run in a process of its own. */
const BENCHES = ["requests", "lists", "fleet", "logins", "output"];

const given = process.argv.slice(2);
const from = given.findIndex((argument) => argument.startsWith("--"));
const [names, options] = from < 0 ? [given, []] : [given.slice(0, from), given.slice(from)];
const byDefault = options.length > 0 ? ["requests"] : BENCHES;
for (const name of names.length > 0 ? names : byDefault) run(process.execPath, [join(root, "bench", `${name}.mjs`), ...options]);
