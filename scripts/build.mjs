// Builds the Worker into build/, unless its sources are unchanged. This script is the build command
// in wrangler.toml, so `wrangler deploy` runs it too.
//
// FARHAND_PROFILE=quick builds without link-time optimisation and wasm-opt, for development only.
// The Worker is larger and slower, but a rebuild takes seconds.
import { copyFileSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { digest, fail, locked, once, root, run, say, tools } from "./lib.mjs";
import { prepare } from "./toolchain.mjs";

const SOURCES = ["Cargo.lock", "Cargo.toml", "build.rs", "docs/openapi.yaml", "src", "domain/Cargo.toml", "domain/src", "domain/data", "sql/Cargo.toml", "sql/src", "web", "package-lock.json", "scripts/build.mjs", "scripts/toolchain.mjs"];

// The wasm features that rustc and wasm-bindgen use. With --all-features, binaryen would write
// encodings that workerd cannot read yet.
const FEATURES = [
  "mutable-globals", "sign-ext", "nontrapping-float-to-int", "bulk-memory", "multivalue", "reference-types", "exception-handling",
  "simd",
];

// The export of worker-build's `index.js`, and its replacement. worker-build's class creates an
// object and three proxies for each request. The replacement creates no proxies, but keeps their
// recovery from panics.
const ENTRY_POINT = "new Proxy(Entrypoint, classProxyHooks)";
const HANDLER = `Object.fromEntries(["fetch", "scheduled"].map((name) => [name, async (event, env, ctx) => {
  checkReinitialize();
  try {
    return await Entrypoint.prototype[name].call({ env, ctx }, event);
  } catch (error) {
    handleMaybeCritical(error);
    throw error;
  }
}]))`;

const isQuick = process.env.FARHAND_PROFILE === "quick";

/** Installs the tools and builds the Worker, if needed. */
export async function build() {
  await locked(join(tools, "build.lock"), buildAlone);
}

async function buildAlone() {
  const stamp = join(root, "build", ".source-digest");
  if (!existsSync(join(root, "build", "index.js"))) rmSync(stamp, { force: true });
  await once(stamp, digest(SOURCES, isQuick ? "quick" : "release"), async () => {
    // Deletes the stamp first, so that an interrupted build is repeated.
    rmSync(stamp, { force: true });
    const env = await prepare();
    say("worker: building");
    const written = { env: { ...env, NO_MINIFY: "1" } };
    run(env.WORKER_BUILD, isQuick ? ["--profile", "quick", "--no-opt"] : ["--release"], written);
    const script = join(root, "build", "index.js");
    replaceEntryPoint(script);
    writeAssets();
    run(env.ESBUILD_BIN, [script, "--minify", "--format=esm", `--outfile=${script}`, "--allow-overwrite", "--log-level=warning"]);
    if (isQuick) return;
    // worker-build keeps function names, which are an eighth of the bundle. Panic messages contain
    // their location without these names.
    const wasm = join(root, "build", "index_bg.wasm");
    const enable = FEATURES.map((feature) => `--enable-${feature}`);
    run(env.WASM_OPT_BIN, [...enable, "--strip-debug", "--strip-producers", wasm, "-o", wasm]);
  });
}

/** Writes the files of /api/docs/: the page, and Swagger UI with the licences of its parts. */
function writeAssets() {
  const folder = join(root, "build", "assets", "api", "docs");
  mkdirSync(folder, { recursive: true });
  const [page, swagger] = [join(root, "web", "docs"), join(root, "node_modules", "swagger-ui-dist")];
  for (const name of readdirSync(page)) copyFileSync(join(page, name), join(folder, name));
  const text = (name) => readFileSync(join(swagger, name), "utf8");
  // Removes the link to the source map, which is not served.
  writeFileSync(join(folder, "swagger-ui.css"), text("swagger-ui.css").replace(/\/\*# sourceMappingURL=.*\*\//, ""));
  const licences = `/*!\n${text("NOTICE")}${text("LICENSE")}*/\n${text("swagger-ui-bundle.js.LICENSE.txt")}`;
  writeFileSync(join(folder, "swagger-ui.js"), `${licences}\n${text("swagger-ui-bundle.js")}`);
}

/** Replaces the entry point in worker-build's script. */
function replaceEntryPoint(script) {
  const parts = readFileSync(script, "utf8").split(ENTRY_POINT);
  if (parts.length !== 2) fail(`worker-build wrote no script with one \`${ENTRY_POINT}\``);
  writeFileSync(script, parts.join(HANDLER));
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) await build();
