// npm run bench [-- NAME...] [-- --OPTION...]
//
// Measures the service and writes the tables of docs/contributing/performance.md. Without names and
// options, all benches run. Each named bench gets the options. Options without names go to
// `requests` only.
import { join } from "node:path";
import { root, run } from "../scripts/lib.mjs";
import { BENCHES } from "./report.mjs";

const given = process.argv.slice(2);
const from = given.findIndex((argument) => argument.startsWith("--"));
const [names, options] = from < 0 ? [given, []] : [given.slice(0, from), given.slice(from)];
const byDefault = options.length > 0 ? ["requests"] : BENCHES;
for (const name of names.length > 0 ? names : byDefault) run(process.execPath, [join(root, "bench", `${name}.mjs`), ...options]);
