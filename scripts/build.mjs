// Builds the Worker into build/, unless nothing that it is made of has changed. wrangler.toml names this as its build
// command, so `wrangler deploy` runs it too.
//
// FARHAND_PROFILE=quick builds without link-time optimisation and wasm-opt: a larger and slower Worker, rebuilt in seconds
// after a change. For development only.
import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { digest, locked, once, root, run, say, tools } from "./lib.mjs";
import { prepare } from "./toolchain.mjs";

const SOURCES = ["Cargo.lock", "Cargo.toml", "build.rs", "docs/openapi.yaml", "src", "domain/Cargo.toml", "domain/src", "domain/data", "sql/Cargo.toml", "sql/src", "web", "scripts/build.mjs", "scripts/toolchain.mjs"];

// What rustc and wasm-bindgen use. Not --all-features: binaryen would write encodings that workerd does not read yet.
const FEATURES = [
  "mutable-globals", "sign-ext", "nontrapping-float-to-int", "bulk-memory", "multivalue", "reference-types", "exception-handling",
];

const isQuick = process.env.FARHAND_PROFILE === "quick";

/** Gets the tools and builds the Worker where that is needed. */
export async function build() {
  await locked(join(tools, "build.lock"), buildAlone);
}

async function buildAlone() {
  const stamp = join(root, "build", ".made-of");
  if (!existsSync(join(root, "build", "index.js"))) rmSync(stamp, { force: true });
  await once(stamp, digest(SOURCES, isQuick ? "quick" : "release"), async () => {
    // What is cut off from here on is not taken for a build.
    rmSync(stamp, { force: true });
    const env = await prepare();
    say("worker: building");
    run(env.WORKER_BUILD, isQuick ? ["--profile", "quick", "--no-opt"] : ["--release"], { env });
    if (isQuick) return;
    // worker-build keeps the names of functions, an eighth of the bundle; a panic tells its place without them.
    const wasm = join(root, "build", "index_bg.wasm");
    const enable = FEATURES.map((feature) => `--enable-${feature}`);
    run(env.WASM_OPT_BIN, [...enable, "--strip-debug", "--strip-producers", wasm, "-o", wasm]);
  });
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) await build();
