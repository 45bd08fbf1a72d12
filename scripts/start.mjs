// `npm start`: builds the service and its agent, and serves on this machine (local.mjs has the
// environment variables).
import { join, resolve } from "node:path";
import { placeOwnAgent } from "./agent-files.mjs";
import { buildAgent, hasAgent } from "./agent.mjs";
import { build, isBuilt, isCompiled } from "./build.mjs";
import { check } from "./checks.mjs";
import { DEFAULT_STATE_DIR, writeDevVars } from "./instance.mjs";
import { root, say } from "./lib.mjs";
import { serveLocally, shown } from "./local.mjs";
import { staticTarget } from "./native.mjs";
import { onThisMachine } from "./steps.mjs";
import { hasNpmPackages, npmPackages, prepare } from "./toolchain.mjs";

// STATE_DIR is relative to the checkout.
process.chdir(root);
const stateDir = resolve(process.env.STATE_DIR || DEFAULT_STATE_DIR);

/** The seconds that compiling takes on this machine, or null if it was done before. */
function estimate() {
  const [worker, agent] = [isBuilt() ? 0 : isCompiled() ? 75 : 145, hasAgent() ? 0 : 65];
  return worker + agent === 0 ? null : onThisMachine(worker + agent);
}

const compiling = estimate();

await serveLocally({
  stateDir,
  check: async (port) => {
    await check(port, compiling !== null);
    if (compiling !== null) say(`Farhand is built first. The output of the compilers is in ${shown(join(stateDir, "build.log"))}.`);
  },
  buildSteps: 3,
  build: async (steps) => {
    await steps.step("npm packages", hasNpmPackages() ? null : 15, () => npmPackages(steps.runner("npm")));
    await steps.step("Rust targets", null, async () => {
      if (!isBuilt()) await prepare(steps.runner("Debian"));
      staticTarget();
    });
    const [binary] = await steps.step("the Worker and the agent", compiling, () =>
      Promise.all([buildAgent(steps.runner("agent")), build(steps.runner("Worker"), steps.runner("wasm-bindgen"))]),
    );
    placeOwnAgent(binary);
    return binary;
  },
  started: (instance) => {
    if (stateDir === DEFAULT_STATE_DIR) writeDevVars(instance.variables);
  },
  commandLine: ({ url, server }) => `cargo install --path cli && farhand login --url ${url} && farhand run ${server} -- uptime`,
});
