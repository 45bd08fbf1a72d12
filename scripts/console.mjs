// The console: types of the API for its sources, and its files for the Worker.
//
//   npm run web                      Vite's server with hot reload, for a running service
//   node scripts/console.mjs build   builds the files into build/assets/console/, if needed
//   node scripts/console.mjs types   only writes the types of the API
//
// FARHAND_URL is the address of the service for `npm run web`, by default that of `npm start`.
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";
import { digest, once, root, run as show, say } from "./lib.mjs";
import { npmPackages } from "./toolchain.mjs";

const folder = join(root, "web", "console");
const files = join(root, "build", "assets", "console");
const types = join(root, "build", "console", "schema.d.ts");
const stamp = join(root, "build", ".console-digest");
const SOURCES = [
  "docs/openapi.yaml", "package-lock.json", "scripts/console.mjs",
  ...["src", "index.html", "tsconfig.json", "vite.config.ts"].map((name) => `web/console/${name}`),
];
const bin = (name) => join(root, "node_modules", ".bin", name);

/**
 * Writes the types of docs/openapi.yaml. A use of the API that the document does not allow does not
 * compile.
 */
export async function writeTypes() {
  const { default: openapi, astToString } = await import("openapi-typescript");
  const { createConfig } = await import("@redocly/openapi-core");
  const { load } = await import("js-yaml");
  // Without the rules of redocly.yaml, which `npm test -- lint` checks.
  const redocly = await createConfig({ extends: [] });
  const document = load(readFileSync(join(root, "docs", "openapi.yaml"), "utf8"));
  mkdirSync(dirname(types), { recursive: true });
  writeFileSync(types, astToString(await openapi(document, { redocly, defaultNonNullable: false })));
}

/**
 * Builds the console, unless its sources are unchanged. `run` runs a program like `run` of lib.mjs.
 */
export async function buildConsole(run = show) {
  if (!existsSync(join(files, "index.html"))) rmSync(stamp, { force: true });
  await once(stamp, digest(SOURCES), async () => {
    say("console: building");
    await writeTypes();
    rmSync(files, { recursive: true, force: true });
    await run(bin("tsc"), ["--project", folder]);
    await run(bin("vite"), ["build", folder, "--logLevel", "warn"]);
    // Vite writes the page beside the folder of its files.
    renameSync(join(root, "build", "assets", "index.html"), join(files, "index.html"));
    renameSync(join(root, "build", "assets", ".vite", "manifest.json"), join(dirname(types), "manifest.json"));
    rmSync(join(root, "build", "assets", ".vite"), { recursive: true });
  });
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [what] = process.argv.slice(2);
  await npmPackages();
  if (what === "build") await buildConsole();
  else await writeTypes();
  if (what === undefined) show(bin("vite"), ["dev", folder]);
}
