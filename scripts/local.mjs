// Serves an instance on this machine until a signal ends it, with a demo workspace and an agent
// that runs commands here. `npm start` does this after a build, and `npx farhand start` with the
// prebuilt programs of a release.
//
// Environment: PORT, STATE_DIR, DEMO=0 (no workspace, no agent here), OPERATOR_TOKEN, SECRET_KEY,
// the same two with _PREVIOUS, SMTP_PASSWORD, and any variable of wrangler.toml. Ctrl-C or SIGTERM
// stops everything.
import { mkdirSync, openSync } from "node:fs";
import { userInfo } from "node:os";
import { join, relative, resolve } from "node:path";
import { Demo } from "./demo.mjs";
import { startInstance } from "./instance.mjs";
import { endGroup, say, sendProgressTo, startGroup } from "./lib.mjs";
import { Steps, clock } from "./steps.mjs";

const port = Number(process.env.PORT || 8787);
const wantsDemo = process.env.DEMO !== "0";
const CONNECT_TIMEOUT_MS = 30_000;
const isRoot = process.getuid?.() === 0;
const began = Date.now();
/** A path as the user can type it in the current folder. */
export const shown = (path) => (path.startsWith(`${process.cwd()}/`) ? relative(process.cwd(), path) : path);

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

function startAgent(binary, agentFile, stateDir) {
  const log = openSync(join(stateDir, "agent.log"), "a", 0o600);
  agent = startGroup(binary, ["run", "--config", agentFile], { stdio: ["ignore", log, log] });
  agent.once("exit", (status, signal) => {
    if (ending) return;
    process.stderr.write(`error: the agent ended with ${status ?? signal}; see ${join(stateDir, "agent.log")}\n`);
    void end(1);
  });
}

async function agentConnected(demo, facts, stateDir) {
  const until = Date.now() + CONNECT_TIMEOUT_MS;
  while (Date.now() < until) {
    if (await demo.isConnected(facts)) return;
    await new Promise((go) => setTimeout(go, 100));
  }
  throw new Error(`the agent did not connect; see ${join(stateDir, "agent.log")}`);
}

function print(facts, stateDir, commandLine) {
  const body = JSON.stringify({ server: facts.server, line: "echo hello from $(hostname)" });
  console.log(`
Farhand is ready after ${clock(Date.now() - began)}: ${facts.url}

  console   ${facts.url}/
  user      ${facts.username}
  password  ${facts.password}
  server    ${facts.server}; its agent runs commands as ${userInfo().username}${isRoot ? " (anyone with the token is root on this machine)" : ""}
  API       ${facts.url}/api/docs/
  files     ${shown(join(stateDir, "demo.json"))} has these facts; worker.log and agent.log are beside it

Next, in another terminal, run a command on this machine:

curl -s ${facts.url}/api/events/commands/ -H 'Authorization: token="${facts.api_token}"' -H 'Content-Type: application/json' -H 'Prefer: wait=10' -d '${body}'

Or with the command line farhand:

${commandLine(facts)}

Ctrl-C ends everything.`);
}

/**
 * Serves an instance until a signal.
 *
 * - `stateDir` is the state folder, unless STATE_DIR is set.
 * - `check` throws an error if this machine cannot serve.
 * - `build` does the `buildSteps` steps before the start. Returns the path of the agent.
 * - `started` is called with the instance.
 * - `commandLine` returns the lines that run a command with the command line.
 * @param {{stateDir: string, check: (port: number) => Promise<void>, buildSteps: number, build: (steps: Steps)
 * => Promise<string>, started?: (instance: object) => void, commandLine: (facts: object) => string}}
 * options
 */
export async function serveLocally({ stateDir: defaultStateDir, check, buildSteps, build, started, commandLine }) {
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => void end(0));
  const stateDir = process.env.STATE_DIR ? resolve(process.env.STATE_DIR) : defaultStateDir;
  try {
    await check(port);
    if (isRoot && wantsDemo) {
      say("warning: you are root, so the demo's agent runs commands as root. Anyone with the demo's token is root on this machine.");
    }
    mkdirSync(stateDir, { recursive: true, mode: 0o700 });
    steps = new Steps(buildSteps + (wantsDemo ? 2 : 1), join(stateDir, "build.log"));
    sendProgressTo(steps.log);
    const binary = await build(steps);
    const onExit = (how) => {
      process.stderr.write(`error: the service ended with ${how}; see ${join(stateDir, "worker.log")}\n`);
      void end(1);
    };
    instance = await steps.step("the service", null, () =>
      startInstance({ stateDir, port, onExit, run: steps.runner("migrations") }),
    );
    started?.(instance);
    if (wantsDemo && !ending) {
      const demo = new Demo(instance, stateDir);
      const facts = await steps.step("the demo's workspace and agent", null, async () => {
        const facts = await demo.prepare();
        startAgent(binary, demo.agentFile, stateDir);
        await agentConnected(demo, facts, stateDir);
        return facts;
      });
      print(facts, stateDir, commandLine);
    } else if (!ending) {
      console.log(`\nFarhand is ready after ${clock(Date.now() - began)}, without a workspace (DEMO=0): ${instance.url}\nCtrl-C ends it.\n`);
    }
  } catch (error) {
    if (ending) return;
    steps?.explainFailure();
    process.stderr.write(`error: ${error.message}\n`);
    await end(1);
  }
}
