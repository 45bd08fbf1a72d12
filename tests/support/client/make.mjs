// Generates a client from docs/openapi.yaml with a common generator, checks the types of a program
// that uses it (program.ts), and bundles both into FOLDER/program.mjs. Usage: `node make.mjs
// FOLDER`.
import { copyFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { createClient } from "@hey-api/openapi-ts";
import { build } from "esbuild";
import ts from "typescript";

const [folder] = process.argv.slice(2);
const path = (relative) => fileURLToPath(new URL(relative, import.meta.url));

await createClient({
  input: path("../../../docs/openapi.yaml"),
  output: join(folder, "client"),
  plugins: ["@hey-api/typescript", "@hey-api/sdk", "@hey-api/client-fetch"],
  logs: { level: "silent", file: false },
});

const program = join(folder, "program.ts");
copyFileSync(path("program.ts"), program);
const options = {
  strict: true,
  noEmit: true,
  types: [],
  lib: ["lib.es2022.d.ts", "lib.dom.d.ts", "lib.dom.iterable.d.ts"],
  target: ts.ScriptTarget.ES2022,
  module: ts.ModuleKind.ESNext,
  moduleResolution: ts.ModuleResolutionKind.Bundler,
};
const problems = ts.getPreEmitDiagnostics(ts.createProgram([program], options));
if (problems.length > 0) {
  console.error(ts.formatDiagnostics(problems, { getCanonicalFileName: (name) => name, getCurrentDirectory: () => folder, getNewLine: () => "\n" }));
  process.exit(1);
}
await build({ entryPoints: [program], bundle: true, platform: "node", format: "esm", outfile: join(folder, "program.mjs"), logLevel: "error" });
