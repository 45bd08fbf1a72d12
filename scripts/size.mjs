// `npm run size`: prints the size of the deployed Worker and of the console. Fails if a function of
// the Worker or the console's first page is too large.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "./build.mjs";
import { fail, root } from "./lib.mjs";
import { functionSizes } from "./wasm.mjs";
import { checkFirstLoad } from "./web.mjs";

/**
 * The maximum size of a function, in bytes. V8 compiles a whole function at its first call, so a
 * large function delays the first request of an isolate.
 */
const MAX_FUNCTION_BYTES = 42_000;

/** The files of the built Worker, with their sizes in bytes. */
export const sizes = () =>
  ["index.js", "index_bg.wasm"].map((name) => {
    const bytes = readFileSync(join(root, "build", name));
    return { name, plain: bytes.length, zipped: gzipSync(bytes, { level: 9 }).length };
  });

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  await build();
  const all = sizes();
  for (const { name, plain, zipped } of all) console.log(`${name.padEnd(14)} ${plain} bytes, ${zipped} gzipped`);
  console.log(`together       ${all.reduce((sum, { zipped }) => sum + zipped, 0)} gzipped`);
  const largest = Math.max(...functionSizes(readFileSync(join(root, "build", "index_bg.wasm"))));
  console.log(`largest function ${largest} bytes`);
  if (largest > MAX_FUNCTION_BYTES) fail(`a function has more than ${MAX_FUNCTION_BYTES} bytes`);
  try {
    console.log(checkFirstLoad());
  } catch (error) {
    fail(error.message);
  }
}
