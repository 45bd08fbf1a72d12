// Builds the Worker into build/, unless its sources are unchanged. This script is the build command
// in wrangler.toml, so `wrangler deploy` and `wrangler dev` run it too.
//
// FARHAND_PROFILE=quick builds without link-time optimisation and wasm-opt, for development only.
// The Worker is larger and slower, but a rebuild takes seconds. FARHAND_PROFILE=dev does the same,
// but accepts an up-to-date release build. It is the default of `wrangler dev`.
import { copyFileSync, existsSync, mkdirSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { buildConsole } from "./console.mjs";
import { digest, locked, once, root, run as show, say, tools } from "./lib.mjs";
import { npmPackages, prepare } from "./toolchain.mjs";

const SOURCES = [
  "Cargo.lock", "Cargo.toml", "build.rs", "docs/openapi.yaml", "src", "domain/Cargo.toml", "domain/src", "domain/data", "sql/Cargo.toml", "sql/src",
  "web/install", "web/reset-password", "package-lock.json", "scripts/bindgen", "scripts/build.mjs", "scripts/toolchain.mjs",
];
/** The sources of the static assets, besides the console. They are not part of the WebAssembly. */
const ASSET_SOURCES = ["web/docs", "package-lock.json", "scripts/build.mjs"];

const RELEASE = "release";
const QUICK = "quick";
const DEVELOPMENT = "dev";
/**
 * scripts/dev.mjs sets FARHAND_PROFILE=dev. wrangler sets WRANGLER_COMMAND for the build command.
 */
const chosen = process.env.FARHAND_PROFILE || (process.env.WRANGLER_COMMAND === DEVELOPMENT ? DEVELOPMENT : RELEASE);
const profile = chosen === RELEASE ? RELEASE : QUICK;

// The wasm features that rustc and wasm-bindgen use. With --all-features, binaryen would write
// encodings that workerd cannot read yet.
const FEATURES = [
  "mutable-globals", "sign-ext", "nontrapping-float-to-int", "bulk-memory", "multivalue", "reference-types", "exception-handling",
  "simd",
];

const folder = join(root, "build");
const stamp = join(folder, ".source-digest");
const assets = join(folder, "assets", "api", "docs");
const built = (name) => join(root, "target", "worker", "wasm32-unknown-unknown", name, "farhand.wasm");

/** The classes of Durable Objects in wrangler.toml, which the Worker must export. */
const configured = [...readFileSync(join(root, "wrangler.toml"), "utf8").matchAll(/^class_name = "(.*)"$/gm)].map(([, name]) => name);
// Environments repeat the bindings of the top level.
const classes = [...new Set(configured)];

const digestOf = (name) => digest(SOURCES, name, ...classes);

/** Whether build/ is what `build` would write. */
export function isBuilt() {
  if (!existsSync(join(folder, "index.js")) || !existsSync(stamp)) return false;
  return (chosen === DEVELOPMENT ? [QUICK, RELEASE] : [profile]).map(digestOf).includes(readFileSync(stamp, "utf8"));
}

/** Whether the crates that the Worker depends on were compiled before. */
export const isCompiled = () => existsSync(built(profile));

/**
 * Installs the tools and builds the Worker, if needed. `run` runs a program like `run` of lib.mjs,
 * and may be asynchronous. `runForTool` does the same for the tool of the build.
 */
export const build = (run = show, runForTool = run) => locked(join(tools, "build.lock"), () => buildAlone(run, runForTool));

async function buildAlone(run, runForTool) {
  await npmPackages(run);
  if (!isBuilt()) {
    const env = await prepare(run);
    // Deletes the stamp first, so that an interrupted build is repeated.
    rmSync(stamp, { force: true });
    say("worker: building");
    const [bindgen] = await Promise.all([compileBindgen(runForTool), compileWorker(run, env)]);
    await bundle(run, bindgen, env);
    writeFileSync(stamp, digestOf(profile));
  }
  const assetsStamp = join(folder, ".assets-digest");
  if (!existsSync(assets)) rmSync(assetsStamp, { force: true });
  await once(assetsStamp, digest(ASSET_SOURCES), writeAssets);
  await buildConsole(run);
}

/** Compiles the tool that runs wasm-bindgen. Returns its path. */
async function compileBindgen(run) {
  await run("cargo", ["build", "--locked", "--profile", "tool", "-p", "farhand-bindgen"]);
  return join(root, "target", "tool", "farhand-bindgen");
}

const compileWorker = (run, env) =>
  run("cargo", ["build", "--locked", "--lib", "-p", "farhand", "--profile", profile, "--target", "wasm32-unknown-unknown"], { env });

/** Writes build/index.js and build/index_bg.wasm. */
async function bundle(run, bindgen, env) {
  const parts = join(root, "target", "worker", "bindgen");
  rmSync(parts, { recursive: true, force: true });
  await run(bindgen, [built(profile), parts]);

  const exports = classes.map((name) => `export const ${name} = restartable(wasm.${name});\n`);
  writeFileSync(join(parts, "entry.js"), [readFileSync(join(root, "src", "entry.js"), "utf8"), ...exports].join(""));
  const options = ["--bundle", "--format=esm", "--external:./index_bg.wasm", "--external:cloudflare:*", "--log-level=warning"];
  const script = join(parts, "bundle.js");
  await run(env.ESBUILD_BIN, [join(parts, "entry.js"), ...options, `--outfile=${script}`]);
  // wrangler and Miniflare support imports of compiled modules, but not with the new keyword.
  writeFileSync(script, readFileSync(script, "utf8").replaceAll("import source ", "import "));
  await run(env.ESBUILD_BIN, [script, "--minify", "--format=esm", "--log-level=warning", `--outfile=${join(parts, "minified.js")}`]);

  const wasm = join(parts, "index_bg.wasm");
  if (profile === RELEASE) {
    const enable = FEATURES.map((feature) => `--enable-${feature}`);
    // Does not inline functions with one caller into large functions: V8 compiles a function when
    // it is first called. Function names would be an eighth of the bundle. Panic messages contain
    // their location without these names.
    const optimize = ["-O", "--inline-max-combined-binary-size=20000", "--strip-debug", "--strip-producers"];
    await run(env.WASM_OPT_BIN, [...enable, ...optimize, wasm, "-o", wasm]);
  }
  mkdirSync(folder, { recursive: true });
  renameSync(wasm, join(folder, "index_bg.wasm"));
  renameSync(join(parts, "minified.js"), join(folder, "index.js"));
}

/** Writes the files of /api/docs/: the page, and Swagger UI with the licences of its parts. */
function writeAssets() {
  mkdirSync(assets, { recursive: true });
  const [page, swagger] = [join(root, "web", "docs"), join(root, "node_modules", "swagger-ui-dist")];
  for (const name of readdirSync(page)) copyFileSync(join(page, name), join(assets, name));
  const text = (name) => readFileSync(join(swagger, name), "utf8");
  // Removes the link to the source map, which is not served.
  writeFileSync(join(assets, "swagger-ui.css"), text("swagger-ui.css").replace(/\/\*# sourceMappingURL=.*\*\//, ""));
  const licences = `/*!\n${text("NOTICE")}${text("LICENSE")}*/\n${text("swagger-ui-bundle.js.LICENSE.txt")}`;
  writeFileSync(join(assets, "swagger-ui.js"), `${licences}\n${text("swagger-ui-bundle.js")}`);
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) await build();
