// Builds the project's own agent: one static binary where the musl target can be had, else one for this machine's libc.
// `npm run --silent agent` prints where the binary is.
//
// FARHAND_PROFILE=quick builds a larger agent in seconds, for development only; as scripts/build.mjs does the Worker.
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { output, root, run, say } from "./lib.mjs";
import { checkRust } from "./toolchain.mjs";

/** The target of a static binary for this machine, or null where it cannot be had. */
function staticTarget() {
  if (process.platform !== "linux") return null;
  const target = `${process.arch === "arm64" ? "aarch64" : "x86_64"}-unknown-linux-musl`;
  const has = () => output("rustup", ["target", "list", "--installed"])?.split("\n").includes(target) ?? false;
  return has() || (output("rustup", ["target", "add", target], { timeout: 120_000 }) !== null && has()) ? target : null;
}

/** Builds the agent and returns the binary's path. cargo does nothing when nothing changed. */
export function buildAgent() {
  checkRust();
  const target = staticTarget();
  say(`agent: ${target ? `static, for ${target}` : "for this machine's libc (no musl target here)"}`);
  // Build scripts look at what cargo says of the package they are built for. A caller that cargo runs, such as a test, has
  // those of its own package: with them cargo would build the cryptography again.
  const isOfCaller = (name) => /^CARGO_(MANIFEST|PKG)_/.test(name);
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !isOfCaller(name)));
  if (target && output("musl-gcc", ["--version"]) === null) {
    // The cryptography has some C, which needs no libc: any C compiler will do, without the fortified calls into glibc
    // that some distributions turn on.
    const name = target.replaceAll("-", "_");
    env[`CC_${name}`] ??= "cc";
    env[`CFLAGS_${name}`] ??= "-U_FORTIFY_SOURCE";
  }
  // Both are the profile and the folder that cargo builds it in.
  const profile = process.env.FARHAND_PROFILE === "quick" ? "quick" : "release";
  const where = target ? ["--target", target] : [];
  run("cargo", ["build", "--quiet", "--profile", profile, "-p", "farhand-agent", ...where], { env });
  return join(root, "target", ...(target ? [target] : []), profile, "farhand-agent");
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) console.log(buildAgent());
