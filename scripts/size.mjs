// `npm run size`: how large the Worker is, as it is deployed.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "./build.mjs";
import { root } from "./lib.mjs";

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
}
