// Runs the program that make.mjs created: `node run.mjs FOLDER ADDRESS BASE_URL USERNAME PASSWORD
// SERVER LINE`. Resolves every host to ADDRESS, because the workspaces of tests have no DNS names.
import { isIP } from "node:net";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { Agent, setGlobalDispatcher } from "undici";

const [folder, address, ...args] = process.argv.slice(2);
/** @type {import("node:net").LookupFunction} */
const lookup = (_host, { all }, callback) => (all ? callback(null, [{ address, family: isIP(address) }]) : callback(null, address, isIP(address)));
setGlobalDispatcher(new Agent({ connect: { lookup } }));
const { run } = await import(pathToFileURL(join(folder, "program.mjs")).href);
console.log(JSON.stringify(await run(...args)));
