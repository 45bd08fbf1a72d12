// `npm run dev`: prepares what `wrangler dev` needs, and runs it. wrangler builds the Worker again
// when a source changes. Arguments are passed to wrangler.
//
// Environment: PORT, OPERATOR_TOKEN, SECRET_KEY and any var of wrangler.toml. Further secrets can
// be lines of .dev.vars. The state folder is the one of `npm start` and of `npx wrangler dev`.
import { spawn } from "node:child_process";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { hasOwnAgent, offerOwnAgent } from "./agent-files.mjs";
import { build, isBuilt, isCompiled } from "./build.mjs";
import { check } from "./checks.mjs";
import { Demo } from "./demo.mjs";
import { DEFAULT_STATE_DIR as stateDir, prepareState, varsOfWranglerToml, wrangler, wranglerEnvironment, writeDevVars } from "./instance.mjs";
import { commit, root, sendProgressTo } from "./lib.mjs";
import { Steps, onThisMachine } from "./steps.mjs";
import { hasNpmPackages, npmPackages } from "./toolchain.mjs";

const port = Number(process.env.PORT || 8787);
const url = `http://127.0.0.1:${port}`;
const START_TIMEOUT_MS = 180_000;

/** @type {Steps | null} */
let steps = null;
let server = null;

async function end(status) {
  await steps?.stop();
  if (server === null || server.exitCode !== null) process.exit(status);
  server.once("exit", () => process.exit(status));
  server.kill();
}
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => void end(0));

/**
 * Prepares packages, the Worker, the agent, the state folder and .dev.vars. Returns the variables.
 */
async function prepare() {
  const isCurrent = isBuilt() && hasOwnAgent();
  await check(port, !isCurrent);
  mkdirSync(stateDir, { recursive: true, mode: 0o700 });
  steps = new Steps(3, join(stateDir, "build.log"));
  sendProgressTo(steps.log);
  await steps.step("npm packages", hasNpmPackages() ? null : 15, () => npmPackages(steps.runner("npm")));
  const estimate = isCurrent ? null : onThisMachine((isCompiled() ? 30 : 90) + (hasOwnAgent() ? 0 : 40));
  await steps.step("the Worker and the agent", estimate, () =>
    Promise.all([offerOwnAgent(steps.runner("agent")), build(steps.runner("Worker"), steps.runner("wasm-bindgen"))]),
  );
  return await steps.step("the state folder", null, async () => {
    const { values } = await prepareState(stateDir, port, process.env, steps.runner("migrations"));
    writeDevVars(values);
    return values;
  });
}

/** Starts `wrangler dev` on this terminal, with the vars of the environment. */
async function startWrangler() {
  const names = Object.keys(await varsOfWranglerToml()).filter((name) => name !== "BASE_URL" && process.env[name] !== undefined);
  const vars = [["COMMIT", commit()], ...names.map((name) => [name, process.env[name]])].flatMap(([name, value]) => ["--var", `${name}:${value}`]);
  const { CI, ...env } = wranglerEnvironment(stateDir);
  // Without CI, wrangler reads keys from the terminal.
  const settings = process.stdin.isTTY ? env : { ...env, CI };
  server = spawn(wrangler, ["dev", "--ip", "127.0.0.1", "--port", `${port}`, ...vars, ...process.argv.slice(2)], { cwd: root, env: settings, stdio: "inherit" });
  server.once("error", (error) => {
    process.stderr.write(`error: wrangler: ${error.message}\n`);
    process.exit(1);
  });
  server.once("exit", (status) => process.exit(status ?? 1));
}

async function untilReady() {
  const until = Date.now() + START_TIMEOUT_MS;
  while (Date.now() < until) {
    const health = await fetch(`${url}/healthz`, { signal: AbortSignal.timeout(2000) }).catch(() => null);
    if (health?.ok) return;
    await new Promise((go) => setTimeout(go, 200));
  }
  throw new Error(`wrangler did not answer within ${START_TIMEOUT_MS / 1000} s`);
}

try {
  const { OPERATOR_TOKEN: operatorToken } = await prepare();
  await startWrangler();
  await untilReady();
  const facts = await new Demo({ url, operatorToken }, stateDir).prepare();
  console.log(`
Farhand is ready: ${url}

  console   ${url}/
  user      ${facts.username}
  password  ${facts.password}
  API       ${url}/api/docs/
  secrets   .dev.vars, also for \`npx wrangler dev\`

The Worker is built again when a source changes. In another terminal, this starts an agent on this machine:

$(npm run --silent agent) run --config .wrangler/state/agent.toml

Ctrl-C ends everything.`);
} catch (error) {
  steps?.explainFailure();
  process.stderr.write(`error: ${error.message}\n`);
  await end(1);
}
