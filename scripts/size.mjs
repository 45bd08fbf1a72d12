// `npm run size`: how large the Worker is, as it is deployed.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { build } from "./build.mjs";
import { root } from "./lib.mjs";

await build();
let total = 0;
for (const name of ["index.js", "index_bg.wasm"]) {
  const bytes = readFileSync(join(root, "build", name));
  const zipped = gzipSync(bytes, { level: 9 }).length;
  total += zipped;
  console.log(`${name.padEnd(14)} ${bytes.length} bytes, ${zipped} gzipped`);
}
console.log(`together       ${total} gzipped`);
