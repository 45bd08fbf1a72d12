// `npm test`: everything that CI runs. Formatting and lints, unit tests, and the end-to-end tests against the built Worker in
// workerd, with a port and a state folder of their own.
//
// When the end-to-end tests are through, the state and the logs of all instances are searched for every credential that they
// had to do with.
//
// `npm test -- e2e [filter]` runs only the end-to-end tests, those whose names hold the filter. With FARHAND_URL and
// FARHAND_OPERATOR_TOKEN set, they run against that service instead.
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { buildAgent } from "./agent.mjs";
import { browser } from "./browser.mjs";
import { build } from "./build.mjs";
import { freePort, startInstance } from "./instance.mjs";
import { output, root, run, say } from "./lib.mjs";
import { cargoDeny, prepare, programs } from "./toolchain.mjs";

const [only, ...filter] = process.argv.slice(2);
const counts = { passed: 0, failed: 0 };

/** Runs a program with its output on ours, and returns that output. */
function tee(program, args, env) {
  const done = spawnSync(program, args, { cwd: root, env, encoding: "utf8", stdio: ["ignore", "pipe", "inherit"], maxBuffer: 1 << 28 });
  process.stdout.write(done.stdout ?? "");
  return { ok: done.status === 0, text: done.stdout ?? "" };
}

/** Runs `cargo test` and counts what it ran. */
function cargoTest(args, env = process.env) {
  say(`> cargo test ${args.join(" ")}`);
  const { ok, text } = tee("cargo", ["test", "--quiet", ...args], env);
  let failed = 0;
  for (const [, passed, failures] of text.matchAll(/^test result: .*?(\d+) passed; (\d+) failed/gm)) {
    counts.passed += Number(passed);
    failed += Number(failures);
  }
  // A test program that did not build, or did not end by itself, counts as one failure.
  counts.failed += ok ? failed : Math.max(failed, 1);
}

async function lints() {
  const env = await prepare();
  say("> redocly lint, and whether docs/reference.md is made of docs/openapi.yaml");
  // Its configuration keeps it from telling anybody what it does; this, from asking for news.
  run("node_modules/.bin/redocly", ["lint", "docs/openapi.yaml"], { env: { ...process.env, REDOCLY_SUPPRESS_UPDATE_NOTICE: "true" } });
  run("node", ["scripts/reference.mjs", "--check"]);
  const { text } = tee("cargo", ["fmt", "--all", "--check"], process.env);
  if (text !== "") throw new Error("cargo fmt --check found differences");
  say("> cargo clippy, for the host");
  run("cargo", ["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]);
  say("> cargo clippy, for wasm");
  run("cargo", ["clippy", "--quiet", "-p", "farhand", "-p", "farhand-domain", "--target", "wasm32-unknown-unknown", "--", "-D", "warnings"], { env });
}

/** The licences and sources of all crates, and what is banned (deny.toml); and known vulnerabilities, where their list can be had. */
async function supplyChain() {
  const env = await cargoDeny();
  const deny = ["deny", "--workspace", "--locked", "--log-level", "error"];
  say("> cargo deny check licenses bans sources");
  run("cargo", [...deny, "check", "licenses", "bans", "sources"], { env });
  say("> cargo deny fetch");
  // A network that only hangs must not hang us.
  const isFetched = output("cargo", [...deny, "fetch", "db"], { env, timeout: 60_000 }) !== null;
  if (!isFetched) return say("advisories: NOT CHECKED, as RustSec's database could not be had from GitHub");
  run("cargo", [...deny, "--offline", "check", "advisories"], { env });
}

async function endToEnd() {
  const environment = { ...process.env };
  let instance = null;
  let folder = null;
  await build();
  environment.FARHAND_AGENT = buildAgent();
  const { chromium, chromedriver } = browser();
  // Another account has no networks of its own; there the test cuts in its own way.
  if (process.getuid() === 0) programs(["ip"], ["iproute2"], "the test of a cut network needs ip");
  programs(["sqlite3"], ["sqlite3"], "the test of the benches' data needs sqlite3");
  environment.FARHAND_CHROMIUM = chromium;
  environment.FARHAND_CHROMEDRIVER = chromedriver;
  try {
    if (!environment.FARHAND_URL) {
      folder = mkdtempSync(join(tmpdir(), "farhand-test-"));
      const stateDir = join(folder, "state");
      // The least rounds that the Worker takes: the tests log in some hundred times.
      // They also stand for proxies of clients everywhere, so that a test can choose the address that it comes from.
      // Names that are not this machine's are asked for over plain http as well.
      const variables = { PBKDF2_ITERATIONS: "100000", TRUSTED_PROXIES: "127.0.0.1", ALLOW_HTTP: "1" };
      instance = await startInstance({ stateDir, port: await freePort(), environment: variables, onExit: (how) => say(`error: the service ended with ${how}`) });
      environment.FARHAND_URL = instance.url;
      environment.FARHAND_OPERATOR_TOKEN = instance.operatorToken;
      environment.FARHAND_STATE_DIR = stateDir;
      environment.FARHAND_INSTANCES = mkdtempSync(join(folder, "instances-"));
      environment.FARHAND_SECRETS_SEEN = join(folder, "secrets-seen");
    }
    // Many of them wait for a minute of the contract's to be over.
    const threads = `--test-threads=${2 * availableParallelism()}`;
    cargoTest(["-p", "farhand-tests", "--test", "e2e", "--", threads, ...filter], environment);
    if (folder && filter.length === 0) {
      await instance.stop();
      cargoTest(["-p", "farhand-tests", "--test", "leaks"], { ...environment, FARHAND_SEARCHED: folder });
    }
  } finally {
    await instance?.stop();
    if (folder && counts.failed === 0) rmSync(folder, { recursive: true, force: true });
    else if (folder) say(`the services' states and logs are in ${folder}`);
  }
}

try {
  if (only === undefined) {
    await lints();
    await supplyChain();
    cargoTest(["-p", "farhand-domain"]);
    cargoTest(["-p", "farhand"]);
    cargoTest(["-p", "farhand-agent"]);
  }
  await endToEnd();
} catch (error) {
  say(`error: ${error.message}`);
  counts.failed += 1;
}
console.log(`\n${counts.passed} passed, ${counts.failed} failed`);
process.exit(counts.failed === 0 && counts.passed > 0 ? 0 : 1);
