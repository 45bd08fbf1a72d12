// `npm start`: runs the service on this machine, with a demo workspace and an agent that runs
// commands here.
//
// Environment: PORT, STATE_DIR, DEMO=0 (no workspace, no agent on this machine), OPERATOR_TOKEN, SECRET_KEY, the
// same two with _PREVIOUS, SMTP_PASSWORD, and any variable of wrangler.toml. Ctrl-C or SIGTERM
// stops everything.
import { mkdirSync, openSync } from "node:fs";
import { userInfo } from "node:os";
import { join, relative, resolve } from "node:path";
import { placeOwnAgent } from "./agent-files.mjs";
import { buildAgent, hasAgent, staticTarget } from "./agent.mjs";
import { build, isBuilt, isCompiled } from "./build.mjs";
import { check } from "./checks.mjs";
import { Demo } from "./demo.mjs";
import { DEFAULT_STATE_DIR, isMigrated, startInstance, writeDevVars } from "./instance.mjs";
import { endGroup, root, say, sendProgressTo, startGroup } from "./lib.mjs";
import { Steps, clock, onThisMachine } from "./steps.mjs";
import { hasNpmPackages, npmPackages, prepare } from "./toolchain.mjs";

const port = Number(process.env.PORT || 8787);
const stateDir = resolve(root, process.env.STATE_DIR || DEFAULT_STATE_DIR);
const wantsDemo = process.env.DEMO !== "0";
const CONNECT_TIMEOUT_MS = 30_000;
const isRoot = process.getuid?.() === 0;
const began = Date.now();
/** A path as the user can type it in the checkout. */
const shown = (path) => (path.startsWith(`${root}/`) ? relative(root, path) : path);

let steps = null;
let instance = null;
let agent = null;
let ending = false;

async function end(status) {
  if (ending) return;
  ending = true;
  await steps?.stop();
  await endGroup(agent, 30_000);
  await instance?.stop();
  process.exit(status);
}
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => void end(0));

function startAgent(binary, agentFile) {
  const log = openSync(join(stateDir, "agent.log"), "a", 0o600);
  agent = startGroup(binary, ["run", "--config", agentFile], { stdio: ["ignore", log, log] });
  agent.once("exit", (status, signal) => {
    if (ending) return;
    process.stderr.write(`error: the agent ended with ${status ?? signal}; see ${join(stateDir, "agent.log")}\n`);
    void end(1);
  });
}

async function agentConnected(demo, facts) {
  const until = Date.now() + CONNECT_TIMEOUT_MS;
  while (Date.now() < until) {
    if (await demo.isConnected(facts)) return;
    await new Promise((go) => setTimeout(go, 100));
  }
  throw new Error(`the agent did not connect; see ${join(stateDir, "agent.log")}`);
}

function print(facts) {
  const body = JSON.stringify({ server: facts.server, line: "echo hello from $(hostname)" });
  console.log(`
Farhand is ready after ${clock(Date.now() - began)}: ${facts.url}

  user      ${facts.username}
  password  ${facts.password}
  server    ${facts.server}; its agent runs commands as ${userInfo().username}${isRoot ? " (anyone with the token is root on this machine)" : ""}
  API       ${facts.url}/api/docs/
  files     ${shown(join(stateDir, "demo.json"))} has these facts; worker.log and agent.log are beside it

Next, in another terminal, run a command on this machine:

curl -s ${facts.url}/api/events/commands/ -H 'Authorization: token="${facts.api_token}"' -H 'Content-Type: application/json' -H 'Prefer: wait=10' -d '${body}'

Or with the command line farhand (docs/cli.md):

cargo install --path cli && farhand login --url ${facts.url} && farhand run ${facts.server} -- uptime

Ctrl-C ends everything.`);
}

/** The seconds that compiling takes on this machine, or null if it was done before. */
function estimate() {
  const [worker, agent] = [isBuilt() ? 0 : isCompiled() ? 75 : 145, hasAgent() ? 0 : 65];
  return worker + agent === 0 ? null : onThisMachine(worker + agent);
}

const runner = (label) => steps.runner(label);

try {
  const compiling = estimate();
  await check(port, compiling !== null);
  if (isRoot && wantsDemo) {
    say("warning: you are root, so the demo's agent runs commands as root. Anyone with the demo's token is root on this machine.");
  }
  mkdirSync(stateDir, { recursive: true, mode: 0o700 });
  const log = join(stateDir, "build.log");
  if (compiling !== null) say(`Farhand is built first. The output of the compilers is in ${shown(log)}.`);
  steps = new Steps(wantsDemo ? 5 : 4, log);
  sendProgressTo(steps.log);
  await steps.step("npm packages", hasNpmPackages() ? null : 15, () => npmPackages(runner("npm")));
  await steps.step("Rust targets", null, async () => {
    if (!isBuilt()) await prepare(runner("Debian"));
    staticTarget();
  });
  const [binary] = await steps.step("the Worker and the agent", compiling, () =>
    Promise.all([buildAgent(runner("agent")), build(runner("Worker"), runner("wasm-bindgen"))]),
  );
  placeOwnAgent(binary);
  const onExit = (how) => {
    process.stderr.write(`error: the service ended with ${how}; see ${join(stateDir, "worker.log")}\n`);
    void end(1);
  };
  instance = await steps.step("the service", isMigrated(stateDir) ? null : 10, () => startInstance({ stateDir, port, onExit, run: runner("wrangler") }));
  if (stateDir === DEFAULT_STATE_DIR) writeDevVars(instance.variables);
  if (wantsDemo && !ending) {
    const demo = new Demo(instance, stateDir);
    const facts = await steps.step("the demo's workspace and agent", null, async () => {
      const facts = await demo.prepare();
      startAgent(binary, demo.agentFile);
      await agentConnected(demo, facts);
      return facts;
    });
    print(facts);
  } else if (!ending) {
    console.log(`\nFarhand is ready after ${clock(Date.now() - began)}, without a workspace (DEMO=0): ${instance.url}\nCtrl-C ends it.\n`);
  }
} catch (error) {
  if (!ending) {
    steps?.explainFailure();
    process.stderr.write(`error: ${error.message}\n`);
    await end(1);
  }
}
