// Compiles the native programs, the agent and the command line: static binaries for Linux if the
// musl target is available, otherwise for this machine's libc.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { output, root, run as show } from "./lib.mjs";
import { debianPackages } from "./toolchain.mjs";

/** The architecture of this machine, in rustc's words. */
export const thisArchitecture = process.arch === "arm64" ? "aarch64" : "x86_64";
const muslTarget = (architecture) => `${architecture}-unknown-linux-musl`;

/** Debian's packages with the C headers for cross compilers. */
const HEADERS = { x86_64: "libc6-dev-amd64-cross", aarch64: "libc6-dev-arm64-cross" };

/** The path of a compiled program. The folder has the name of the profile. */
const binary = (program, profile, target) => join(root, "target", ...(target ? [target] : []), profile, program);

/** Whether a program was compiled for this machine before. Its sources may have changed since. */
export const isCompiled = (program, profile) =>
  [muslTarget(thisArchitecture), null].some((target) => existsSync(binary(program, profile, target)));

/**
 * The target of static binaries, or null if it is not available. Adds the target to rustup if
 * needed.
 */
export function staticTarget(architecture = thisArchitecture) {
  if (process.platform !== "linux") return null;
  const target = muslTarget(architecture);
  const has = () => output("rustup", ["target", "list", "--installed"])?.split("\n").includes(target) ?? false;
  return has() || (output("rustup", ["target", "add", target], { timeout: 120_000 }) !== null && has()) ? target : null;
}

/** The variables with which cargo compiles and links C code for a static target. */
async function compilers(target, run) {
  const name = target.replaceAll("-", "_");
  const architecture = target.split("-")[0];
  if (architecture !== thisArchitecture) {
    const compiler = `${architecture}-linux-gnu-gcc`;
    if (!process.env[`CC_${name}`]) await debianPackages([`gcc-${architecture.replace("_", "-")}-linux-gnu`, HEADERS[architecture]], `${target} needs a C compiler`, run);
    // rustc's linker links for all architectures, and the target contains musl.
    return { [`CC_${name}`]: compiler, [`CFLAGS_${name}`]: "-U_FORTIFY_SOURCE", [`CARGO_TARGET_${name.toUpperCase()}_LINKER`]: "rust-lld" };
  }
  if (output("musl-gcc", ["--version"]) !== null) return {};
  // The cryptography has some C code that needs no libc, so any C compiler works. Some
  // distributions enable fortified calls into glibc, which must be disabled.
  return { [`CC_${name}`]: "cc", [`CFLAGS_${name}`]: "-U_FORTIFY_SOURCE" };
}

/**
 * Compiles a program of a package. Returns the path of the binary. cargo does nothing if no source
 * changed. `target` is null for this machine's libc. `run` runs a program like `run` of lib.mjs,
 * and may be asynchronous. `variables` are added to the environment.
 */
export async function compile({ program, package: name = program, target, profile, run = show, variables = {} }) {
  // Build scripts read cargo's variables about their package. If cargo runs the caller, such as a
  // test, the environment contains the variables of the caller's package. With them, cargo would
  // build the cryptography again, so they are removed.
  const isOfCaller = (name) => /^CARGO_(MANIFEST|PKG)_/.test(name);
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !isOfCaller(name)));
  const chosen = target ? await compilers(target, run) : {};
  const where = target ? ["--target", target] : [];
  await run("cargo", ["build", "--locked", "--profile", profile, "-p", name, ...where], { env: { ...chosen, ...env, ...variables } });
  return binary(program, profile, target);
}
