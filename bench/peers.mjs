// Starts the Workers that are measured: the Worker of this checkout, the Worker of another
// checkout, and the peers. A peer is a small Worker in this folder that the service is compared
// with. Each Worker runs in workerd as with `npm start` (scripts/serve.mjs), in its own process,
// with its own state folder and the settings of wrangler.toml.
import { copyFileSync, cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { build as bundle } from "esbuild";
import { parse, stringify } from "smol-toml";
import { freePort, startInstance } from "../scripts/instance.mjs";
import { root, run, say } from "../scripts/lib.mjs";
import { prepare } from "../scripts/toolchain.mjs";

const here = join(root, "bench");
const TARGET = "wasm32-unknown-unknown";
const crateBuilt = join(root, "target", "bench", TARGET, "release", "farhand_bench_crate.wasm");

/** The running instances. */
const running = new Set();

/** Starts an instance on a free port. */
async function start(name, options, starter = startInstance) {
  const onExit = (how) => say(`error: ${name} ended with ${how}`);
  const environment = { SERVICE_DOMAIN: "localhost", QUOTA_BYTES_PER_DAY: "1000000000000" };
  const instance = await starter({ ...options, port: await freePort(), environment, onExit });
  running.add(instance);
  return {
    ...instance,
    stop: () => {
      running.delete(instance);
      return instance.stop();
    },
  };
}

/** Stops all running instances. */
export async function stopAll() {
  await Promise.all([...running].map((instance) => instance.stop()));
  running.clear();
}

/** Starts the service. Its Worker must already be built. */
export const startService = (folder) => start("the service", { stateDir: join(folder, "service") });

/**
 * Starts the service with its existing state, and with an observer around its Worker
 * (observer/index.js).
 */
export function startObserved(folder) {
  const project = join(folder, "observed.project");
  cpSync(join(here, "observer"), join(project, "build"), { recursive: true });
  copyFileSync(join(root, "wrangler.toml"), join(project, "wrangler.toml"));
  copyFileSync(join(root, "build", "index.js"), join(project, "build", "service.mjs"));
  copyFileSync(join(root, "build", "index_bg.wasm"), join(project, "build", "index_bg.wasm"));
  cpSync(join(root, "build", "assets"), join(project, "build", "assets"), { recursive: true });
  return start("the observed service", { stateDir: join(folder, "service"), project });
}

/** Builds the service of another checkout with its own build script. */
export const buildOther = (checkout) =>
  run(process.execPath, [join(resolve(checkout), "scripts", "build.mjs")], { cwd: resolve(checkout) });

/**
 * Starts the service of another checkout with that checkout's script. Its Worker must already be
 * built.
 */
export async function startOther(folder, checkout) {
  checkout = resolve(checkout);
  const { startInstance: starter } = await import(pathToFileURL(join(checkout, "scripts", "instance.mjs")).href);
  return start(checkout, { stateDir: join(folder, "other") }, starter);
}

/** Copies the database of the service for a peer. The service must not run. */
export function copyDatabase(folder, name) {
  cpSync(join(folder, "service", "v3", "d1"), join(folder, name, "v3", "d1"), { recursive: true });
}

/**
 * Bundles a script of this folder and starts it as a peer. The script can import `values` from the
 * module `statement.mjs`. `objects` is the configuration of its Durable Objects.
 */
export async function startPeer(folder, name, script, values = {}, objects = {}) {
  const project = join(folder, `${name}.project`);
  mkdirSync(join(project, "build"), { recursive: true });
  const { compatibility_date, vars, d1_databases } = parse(readFileSync(join(root, "wrangler.toml"), "utf8"));
  const config = { name, main: "build/index.js", compatibility_date, vars, d1_databases, ...objects };
  writeFileSync(join(project, "wrangler.toml"), stringify(config));
  await bundle({
    entryPoints: [join(here, script)],
    outfile: join(project, "build", "index.js"),
    bundle: true,
    minify: true,
    format: "esm",
    conditions: ["workerd", "worker"],
    external: ["*.wasm", "./statement.mjs", "cloudflare:workers"],
    logLevel: "error",
  });
  const exported = Object.entries(values).map(([name, value]) => `export const ${name} = ${JSON.stringify(value)};\n`);
  writeFileSync(join(project, "build", "statement.mjs"), exported.join(""));
  if (script.startsWith("crate/")) copyFileSync(crateBuilt, join(project, "build", "derive.wasm"));
  return start(name, { stateDir: join(folder, name), project });
}

/**
 * Builds the bare crate with the same versions of dependencies as the service, and without SIMD,
 * which is the default of a build.
 */
export async function buildCrate(folder) {
  const crate = join(folder, "crate.source");
  cpSync(join(here, "crate"), crate, { recursive: true });
  copyFileSync(join(root, "Cargo.lock"), join(crate, "Cargo.lock"));
  const env = { ...(await prepare()), CARGO_TARGET_DIR: join(root, "target", "bench"), CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS: "" };
  run("cargo", ["build", "--quiet", "--release", "--target", TARGET], { cwd: crate, env });
}

/**
 * Runs a bench with a temporary folder, stops all instances that it started, and ends the process.
 */
export async function runBench(bench) {
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.once(signal, () => void stopAll().then(() => process.exit(1)));
  const folder = mkdtempSync(join(tmpdir(), "farhand-bench-"));
  try {
    await bench(folder);
  } catch (error) {
    say(error.stack);
    process.exitCode = 1;
  } finally {
    await stopAll();
    rmSync(folder, { recursive: true, force: true });
  }
  process.exit();
}
