// Builds Farhand's agent: a static binary if the musl target is available, otherwise a binary for
// this machine's libc. `npm run --silent agent` prints the path of the binary.
//
// FARHAND_PROFILE=quick builds a larger agent in seconds, for development only. scripts/build.mjs
// does the same for the Worker.
import { pathToFileURL } from "node:url";
import { run as show, say } from "./lib.mjs";
import { compile, isCompiled, staticTarget } from "./native.mjs";
import { checkRust } from "./toolchain.mjs";

const program = "farhand-agent";
export const agentProfile = ["quick", "dev"].includes(process.env.FARHAND_PROFILE) ? "quick" : "release";

/** Whether the agent was built before. Its sources may have changed since. */
export const hasAgent = () => isCompiled(program, agentProfile);

/** Builds the agent, as `compile` of native.mjs does. Returns the path of the binary. */
export async function buildAgent(run = show) {
  checkRust();
  const target = staticTarget();
  say(`agent: ${target ? `static, for ${target}` : "for this machine's libc (no musl target here)"}`);
  return compile({ program, target, profile: agentProfile, run });
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) console.log(await buildAgent());
