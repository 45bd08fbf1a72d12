// `npm test`: runs all checks of CI in stages, and prints the duration of each stage.
//
//   npm test                             lints, supply chain, unit tests, and all end-to-end tests
//   npm test -- lint                     documents, formatting, lints and supply chain
//   npm test -- unit                     the unit tests of domain, SQL, Worker, agent and command line,
//                                        and of the signing of releases
//   npm test -- e2e [NAME]               the end-to-end tests whose names contain NAME
//   npm test -- e2e --keep NAME          the same, on an instance that stays up for the next run
//   npm test -- bench                    whether each bench runs with its peers
//   npm test -- web [NAME]               the console: types, unit tests, size, and tests in Chromium
//   npm test -- stop                     stops that instance
//
// The end-to-end tests use the built Worker in workerd, with its own port and state folder. After a
// run of all end-to-end tests, the state and the logs of all instances are searched for every
// credential that the tests used.
//
// If FARHAND_URL and FARHAND_OPERATOR_TOKEN are set, the end-to-end tests run against that service
// instead.
import { mkdtempSync, rmSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { placeOwnAgent } from "./agent-files.mjs";
import { buildAgent } from "./agent.mjs";
import { browser } from "./browser.mjs";
import { build } from "./build.mjs";
import { freePort, startInstance } from "./instance.mjs";
import { interpreters } from "./interpreters.mjs";
import { keptInstance, stopKeptInstance } from "./kept-instance.mjs";
import { fail, output, root, run, say } from "./lib.mjs";
import { buildTestPrograms, examples, ofPackage, start } from "./test-programs.mjs";
import { browserTests, checkFirstLoad, testCounts, unitTests, webLints } from "./web.mjs";
import { cargoDeny, checkRust, prepare, programs } from "./toolchain.mjs";

const MODES = ["lint", "unit", "e2e", "bench", "web", "stop"];
const [mode, ...rest] = process.argv.slice(2);
const isKept = rest.includes("--keep");
/** The arguments for libtest: parts of test names, and options. */
const filter = rest.filter((argument) => argument !== "--keep");
// Arguments that are not options are parts of test names.
const names = filter.filter((argument) => !argument.startsWith("-"));
/**
 * The number of instances. An instance hashes one password at a time, so a run of all tests uses
 * several instances. A run of a few tests needs only one.
 */
const INSTANCES = names.length === 0 ? Math.min(2 * availableParallelism(), 4) : 1;
/**
 * End-to-end tests wait most of their time. With more threads for each instance, logins wait too long
 * for their hashes, and are refused.
 */
const THREADS = `--test-threads=${INSTANCES === 1 ? 6 : 2 * INSTANCES}`;
const SLOWEST = 20;
const PROGRESS_EVERY_MS = 30_000;

/**
 * The variables of the test instances.
 *
 * The tests log in hundreds of times, so the Worker hashes with the minimum number of rounds. The
 * tests are a trusted proxy, so that a test can choose its client address. ALLOW_HTTP allows plain
 * HTTP for host names of other machines. One user of a test may open many streams.
 */
const VARIABLES = { PBKDF2_ITERATIONS: "100000", TRUSTED_PROXIES: "127.0.0.1", ALLOW_HTTP: "1", QUOTA_STREAMS_PER_USER: "200" };

const counts = { passed: 0, failed: 0 };
/** The name and the seconds of each stage, in order. */
const stages = [];
const instances = [];
/** The programs that run now. */
const running = new Set();

const secondsSince = (began) => (Date.now() - began) / 1000;

/** Runs a stage and prints its duration. */
async function stage(name, work) {
  say(`> ${name}`);
  const began = Date.now();
  try {
    return await work();
  } finally {
    const seconds = secondsSince(began);
    stages.push([name, seconds]);
    say(`  ${name}: ${seconds.toFixed(1)} s`);
  }
}

/** Prints rows, each with a name and seconds. */
function printTimes(title, rows) {
  console.log(`\n${title}`);
  for (const [name, seconds] of rows) console.log(`${seconds.toFixed(1).padStart(9)} s  ${name}`);
}

/** @type {(line: string) => boolean} */
const isNever = () => false;

/**
 * Runs a program. Prints its standard output, except lines for which `isHidden` returns true.
 * Returns whether the program succeeded, and its standard output.
 */
async function tee(program, args, { env = process.env, cwd = root, isHidden = isNever } = {}) {
  const onLine = (line) => {
    if (!isHidden(line)) console.log(line);
  };
  const { child, ended } = start(program, args, { env, cwd, onLine });
  running.add(child);
  try {
    return await ended;
  } finally {
    running.delete(child);
  }
}

/** Runs works concurrently. Throws the first error after the end of all of them. */
async function together(...works) {
  const results = await Promise.allSettled(works.map((work) => work()));
  const failure = results.find((result) => result.status === "rejected");
  if (failure) throw failure.reason;
}

/** Like `run` of lib.mjs, but other work continues while the program runs. */
async function runBeside(program, args, { env = process.env } = {}) {
  const { ok } = await tee(program, args, { env });
  if (!ok) throw new Error(`${program} ${args.join(" ")} failed`);
}

/** Counts the tests of a test program. */
function count({ ok, text }) {
  let failed = 0;
  for (const [, passed, failures] of text.matchAll(/^test result: .*?(\d+) passed; (\d+) failed/gm)) {
    counts.passed += Number(passed);
    failed += Number(failures);
  }
  // If a test program crashes, this counts as one failure.
  counts.failed += ok ? failed : Math.max(failed, 1);
}

let built = null;
/** Builds all test programs, at most once. */
const testPrograms = () => (built ??= stage("build of the tests", buildTestPrograms));

/** libtest prints times only with a nightly compiler or with the variable RUSTC_BOOTSTRAP. */
const WITH_TIMES = ["-Z", "unstable-options", "--report-time", "--format=pretty"];

/** Runs the end-to-end tests, counts them, and prints the slowest tests. */
async function testsWithTimes(program, total, env) {
  const times = [];
  const began = Date.now();
  let saidAt = began;
  const isHidden = (line) => {
    const test = /^test (.*) \.\.\. (\w+).*<([\d.]+)s>$/.exec(line);
    if (test) times.push([test[1], Number(test[3])]);
    if (test && Date.now() - saidAt > PROGRESS_EVERY_MS) {
      saidAt = Date.now();
      say(`  ${times.length} of ${total} tests after ${Math.round(secondsSince(began))} s`);
    }
    return test?.[2] === "ok";
  };
  count(await tee(program.path, [...WITH_TIMES, THREADS, ...filter], { env: { ...env, RUSTC_BOOTSTRAP: "1" }, cwd: program.folder, isHidden }));
  const slowest = times.sort(([, one], [, other]) => other - one).slice(0, SLOWEST);
  if (slowest.length > 1) printTimes(`The slowest of ${times.length} end-to-end tests:`, slowest);
}

async function lint() {
  const env = await stage("tools", prepare);
  await together(() => documents().then(pages).then(scripts), () => code(env));
  await stage("supply chain", supplyChain);
}

/** Checks the documents and the install script. */
async function documents() {
  // The variable turns off redocly's search for updates. Its configuration turns off telemetry.
  const quiet = { env: { ...process.env, REDOCLY_SUPPRESS_UPDATE_NOTICE: "true" } };
  await stage("documents: the OpenAPI bundle", () => runBeside("node", ["scripts/openapi.mjs", "check"]));
  await stage("documents: redocly lint", () => runBeside("node_modules/.bin/redocly", ["lint", "docs/openapi.yaml"], quiet));
  // The build of the site fails on a dead link.
  await stage("documents: the documentation site", () => runBeside("node", ["scripts/docs.mjs", "build"]));
  await stage("the install script", async () => {
    const script = join(root, "web", "install", "install.sh");
    const [dash, shellcheck] = await programs(["dash", "shellcheck"], ["dash", "shellcheck"], "the check of the install script needs dash and shellcheck");
    await runBeside(dash, ["-n", script]);
    await runBeside(shellcheck, ["--shell=sh", script]);
  });
}

/** Checks the format and the lints of web/. */
async function pages() {
  for (const [name, program, args] of webLints) await stage(name, () => runBeside(program, args));
}

/** Checks the types of all .mjs files outside web/console. */
const scripts = () => stage("types of scripts, benches and tests", () => runBeside(join(root, "node_modules", ".bin", "tsc"), ["--project", "scripts"]));

/** Checks the format of the code, its lints and its documentation. `env` is the environment for wasm. */
async function code(env) {
  await stage("formatting", async () => {
    const { ok, text } = await tee("cargo", ["fmt", "--all", "--check"]);
    if (!ok || text !== "") throw new Error("cargo fmt --check found differences");
  });
  const wasm = ["-p", "farhand", "-p", "farhand-domain", "-p", "farhand-sql", "--target", "wasm32-unknown-unknown"];
  await stage("clippy, for the host", () => runBeside("cargo", ["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]));
  await stage("documentation of the code", () =>
    runBeside("cargo", ["doc", "--quiet", "--no-deps", "--workspace"], { env: { ...process.env, RUSTDOCFLAGS: "-D warnings" } }));
  await stage("clippy, for wasm", () => runBeside("cargo", ["clippy", "--quiet", ...wasm, "--", "-D", "warnings"], { env }));
}

/**
 * Checks licences, sources and bans of all crates (deny.toml). Also checks for known
 * vulnerabilities, if their list can be downloaded.
 */
async function supplyChain() {
  const env = await cargoDeny();
  const deny = ["deny", "--workspace", "--locked", "--log-level", "error"];
  say("> cargo deny check licenses bans sources");
  run("cargo", [...deny, "check", "licenses", "bans", "sources"], { env });
  say("> cargo deny fetch");
  // Has a timeout, because the network may hang.
  const isFetched = output("cargo", [...deny, "fetch", "db"], { env, timeout: 60_000 }) !== null;
  if (!isFetched) return say("advisories: NOT CHECKED, because RustSec's database could not be downloaded from GitHub");
  run("cargo", [...deny, "--offline", "check", "advisories"], { env });
}

async function unit() {
  const { tests } = await testPrograms();
  const packageTests = (name, folder) => stage(`unit tests: ${name}`, async () => {
    for (const { path, folder: cwd } of ofPackage(tests, folder)) count(await tee(path, ["--quiet"], { cwd }));
  });
  // The agent's tests wait for processes and connections, so they run beside the others.
  await together(
    () => packageTests("agent", "agent"),
    async () => {
      await packageTests("domain", "domain");
      await packageTests("SQL", "sql");
      await packageTests("Worker", ".");
      await packageTests("command line", "cli");
    },
  );
  await stage("unit tests: examples in comments", async () => count(await tee(examples.program, examples.args, { env: examples.env })));
  await stage("unit tests: signing of releases", () => run("node", ["--test", "tests/release/sign.test.mjs"]));
}

/** The names of the end-to-end tests that the filter selects. */
async function selectedTests(program) {
  const { ok, text } = await tee(program.path, ["--list", ...filter], { cwd: program.folder, isHidden: () => true });
  if (!ok) throw new Error("the end-to-end tests cannot be listed");
  const names = [...text.matchAll(/^(.*): test$/gm)].map(([, name]) => name);
  if (names.length === 0) throw new Error(`no end-to-end test matches ${filter.join(" ")}`);
  return names;
}

let service = null;
/**
 * Builds the Worker with the console, and the agent, at most once. Returns the path of the agent.
 * Link-time optimisation uses one core, so the builds run concurrently.
 */
function builtService() {
  const builds = async () => {
    let agent = "";
    await together(
      () => stage("build of the Worker and the console", () => build(runBeside)),
      async () => (agent = await stage("build of the agent", () => buildAgent(runBeside))),
    );
    return agent;
  };
  return (service ??= builds());
}

/**
 * Finds the programs that the selected tests need, and installs missing ones. Returns variables for
 * the tests.
 */
async function neededPrograms(tests) {
  const has = (module) => tests.some((name) => name.startsWith(`${module}::`));
  // Only root can create network namespaces, for which the test needs `ip`. As another account, the
  // test interrupts the network without `ip`.
  if (has("agent::connection") && process.getuid() === 0) await programs(["ip"], ["iproute2"], "the test of a cut network needs the command ip");
  if (has("cost::bench")) await programs(["sqlite3"], ["sqlite3"], "the test of the benches' data needs sqlite3");
  if (has("docs::documents")) await programs(["jq"], ["jq"], "the examples of the documents need jq");
  return { ...(has("docs::examples") ? await interpreters() : {}), ...(has("api::reset_page") || has("api::docs_page") ? await browserPrograms() : {}) };
}

async function browserPrograms() {
  const { chromium, chromedriver } = await browser();
  return { FARHAND_CHROMIUM: chromium, FARHAND_CHROMEDRIVER: chromedriver };
}

let isInterrupted = false;

const stopInstances = () => Promise.all(instances.map((instance) => instance.stop()));

/** Stops the tests and their instances. */
async function interrupted() {
  isInterrupted = true;
  for (const child of running) child.kill();
  await stopInstances();
  process.exit(1);
}

/**
 * Instances have their own process groups, so a signal to this process's group does not stop them.
 */
function stopOnSignals() {
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.once(signal, () => void interrupted());
}

/**
 * Starts the tests' instances in a folder of this run. Returns variables for the tests. Each test
 * chooses an instance by its name.
 */
async function startTestInstances(folder) {
  const onExit = (how) => say(`error: the service ended with ${how}`);
  stopOnSignals();
  const stateDirs = Array.from({ length: INSTANCES }, (_, number) => join(folder, `state-${number}`));
  for (const stateDir of stateDirs) {
    instances.push(await startInstance({ stateDir, port: await freePort(), environment: VARIABLES, onExit }));
  }
  return {
    FARHAND_URL: instances.map(({ url }) => url).join(),
    FARHAND_OPERATOR_TOKEN: instances.map(({ operatorToken }) => operatorToken).join(),
    FARHAND_STATE_DIR: stateDirs.join(),
    FARHAND_INSTANCES: mkdtempSync(join(folder, "instances-")),
    FARHAND_SECRETS_SEEN: join(folder, "secrets-seen"),
  };
}

async function endToEnd() {
  const isOwn = !process.env.FARHAND_URL && !isKept;
  const programs = await testPrograms();
  const [e2e, leaks] = ["e2e", "leaks"].map((name) => programs.tests.find((test) => test.name === name));
  const tests = await selectedTests(e2e);
  const agent = await builtService();
  placeOwnAgent(agent);
  const environment = {
    ...process.env,
    ...(await neededPrograms(tests)),
    FARHAND_AGENT: agent,
    FARHAND_AGENT_WITH_KEY: programs.agent,
    FARHAND_CLI: programs.commandLine,
  };
  const folder = isOwn ? mkdtempSync(join(tmpdir(), "farhand-test-")) : null;
  let isComplete = false;
  try {
    if (isOwn) Object.assign(environment, await stage("e2e: start of the service", () => startTestInstances(folder)));
    else if (isKept) Object.assign(environment, await stage("e2e: the kept service", () => keptInstance(VARIABLES)));
    await stage("e2e: tests", () => testsWithTimes(e2e, tests.length, environment));
    if (isOwn && names.length === 0 && !isInterrupted) {
      await stopInstances();
      const env = { ...environment, FARHAND_SEARCHED: folder };
      await stage("e2e: search for credentials", async () => count(await tee(leaks.path, ["--quiet"], { env, cwd: leaks.folder })));
    }
    isComplete = true;
  } finally {
    await stopInstances();
    if (folder && isComplete && counts.failed === 0) rmSync(folder, { recursive: true, force: true });
    else if (folder) say(`the services' states and logs are in ${folder}`);
  }
}

/** Runs a test program of Node, and counts its tests. */
async function countNodeTests({ program, args }, env = process.env) {
  const { ok, text } = await tee(program, args, { env });
  const { passed, failed } = testCounts(text);
  counts.passed += passed;
  counts.failed += ok ? failed : Math.max(failed, 1);
}

/** Checks that the benches run. The Worker is built. */
async function benches() {
  const args = ["--test", "--test-reporter=spec", join(root, "bench", "check.test.mjs")];
  await stage("benches: each runs with its peers", () => countNodeTests({ program: process.execPath, args }));
}

/** Checks the console: types, unit tests, the size of the first load, and tests in Chromium. */
async function web() {
  const agent = await builtService();
  await stage("web: unit tests", () => countNodeTests(unitTests));
  await stage("web: size", () => say(checkFirstLoad()));
  const environment = { ...process.env, FARHAND_CHROMIUM: (await browser()).chromium, FARHAND_AGENT: agent };
  const isOwn = !process.env.FARHAND_URL && !isKept;
  const folder = isOwn ? mkdtempSync(join(tmpdir(), "farhand-web-")) : null;
  try {
    if (isOwn) {
      stopOnSignals();
      const onExit = (how) => say(`error: the service ended with ${how}`);
      const instance = await stage("web: start of the service", async () => startInstance({ stateDir: join(folder, "state"), port: await freePort(), environment: VARIABLES, onExit }));
      instances.push(instance);
      Object.assign(environment, { FARHAND_URL: instance.url, FARHAND_OPERATOR_TOKEN: instance.operatorToken });
    } else if (isKept) {
      Object.assign(environment, await stage("web: the kept service", () => keptInstance(VARIABLES)));
    }
    await stage("web: tests in Chromium", async () => {
      for (const tests of browserTests(names[0])) await countNodeTests(tests, environment);
    });
  } finally {
    await stopInstances();
    if (folder) rmSync(folder, { recursive: true, force: true });
  }
}

if (mode !== undefined && !MODES.includes(mode)) fail("usage: npm test [-- lint | unit | e2e [--keep] [NAME] | bench | web [--keep] [NAME] | stop]");
if (isKept && ((mode === "e2e" && names.length === 0) || process.env.FARHAND_URL)) fail("--keep needs the name of a test, and no FARHAND_URL");
if (mode === "stop") {
  await stopKeptInstance();
  process.exit(0);
}

checkRust();
const began = Date.now();
try {
  if (mode === undefined || mode === "lint") await lint();
  // Link-time optimisation of the service uses one core, and some unit tests wait.
  if (mode === undefined) await testPrograms().then(() => together(unit, builtService));
  if (mode === "unit") await unit();
  if (mode === undefined || mode === "e2e") await endToEnd();
  // A bench waits for its minute to begin. The tests of the console's speed come last.
  if (mode === undefined) await together(benches, web);
  if (mode === "bench") await builtService().then(benches);
  if (mode === "web") await web();
} catch (error) {
  say(`error: ${error.message}`);
  counts.failed += 1;
}
printTimes("Stages:", [...stages, ["all", secondsSince(began)]]);
const isRun = counts.passed > 0 || mode === "lint";
if (mode !== "lint") console.log(`\n${counts.passed} passed, ${counts.failed} failed`);
process.exit(counts.failed === 0 && isRun ? 0 : 1);
