// Builds Farhand's agent: a static binary if the musl target is available, otherwise a binary for
// this machine's libc. `npm run --silent agent` prints the path of the binary.
//
// FARHAND_PROFILE=quick builds a larger agent in seconds, for development only. scripts/build.mjs
// does the same for the Worker.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { output, root, run as show, say } from "./lib.mjs";
import { checkRust } from "./toolchain.mjs";

const MUSL = `${process.arch === "arm64" ? "aarch64" : "x86_64"}-unknown-linux-musl`;
/** The name of the profile, which is also the name of cargo's folder for it. */
export const agentProfile = ["quick", "dev"].includes(process.env.FARHAND_PROFILE) ? "quick" : "release";
const binary = (target) => join(root, "target", ...(target ? [target] : []), agentProfile, "farhand-agent");

/** Whether the agent was built before. Its sources may have changed since. */
export const hasAgent = () => [MUSL, null].some((target) => existsSync(binary(target)));

/**
 * The target of a static binary for this machine, or null if it is not available. Adds the target
 * to rustup if needed.
 */
export function staticTarget() {
  if (process.platform !== "linux") return null;
  const target = MUSL;
  const has = () => output("rustup", ["target", "list", "--installed"])?.split("\n").includes(target) ?? false;
  return has() || (output("rustup", ["target", "add", target], { timeout: 120_000 }) !== null && has()) ? target : null;
}

/**
 * Builds the agent. Returns the path of the binary. cargo does nothing if no source changed. `run`
 * runs a program like `run` of lib.mjs, and may be asynchronous.
 */
export async function buildAgent(run = show) {
  checkRust();
  const target = staticTarget();
  say(`agent: ${target ? `static, for ${target}` : "for this machine's libc (no musl target here)"}`);
  // Build scripts read cargo's variables about their package. If cargo runs the caller, such as a
  // test, the environment contains the variables of the caller's package. With them, cargo would
  // build the cryptography again, so they are removed.
  const isOfCaller = (name) => /^CARGO_(MANIFEST|PKG)_/.test(name);
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !isOfCaller(name)));
  if (target && output("musl-gcc", ["--version"]) === null) {
    // The cryptography has some C code that needs no libc, so any C compiler works. Some
    // distributions enable fortified calls into glibc, which must be disabled.
    const name = target.replaceAll("-", "_");
    env[`CC_${name}`] ??= "cc";
    env[`CFLAGS_${name}`] ??= "-U_FORTIFY_SOURCE";
  }
  const where = target ? ["--target", target] : [];
  await run("cargo", ["build", "--locked", "--profile", agentProfile, "-p", "farhand-agent", ...where], { env });
  return binary(target);
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) console.log(await buildAgent());
