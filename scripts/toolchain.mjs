// Installs the tools of the build: npm packages, the wasm target, and the tools of the tests.
//
// There are two ways to get the wasm target. Usually rustup downloads it. If rustup cannot, for
// example on an offline or mirrored network, Debian's packages provide a compiler with the source
// of std, and this script compiles std once into a sysroot of the project. Everything is installed
// into .tools/ and node_modules/, except Debian's packages and rustup's target.
import { spawnSync } from "node:child_process";
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync, copyFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { announce, digest, fail, once, output, root, run as show, say, tools } from "./lib.mjs";
import { isAtLeast } from "./machine.mjs";

const TARGET = "wasm32-unknown-unknown";
const CARGO_DENY = "0.20.2";
const CARGO_FUZZ = "0.13.2";
const CARGO_CYCLONEDX = "0.5.9";
const CARGO_ABOUT = "0.9.3";
/** The folder for cargo programs (`cargo install --root`). */
const cargoRoot = join(tools, "cargo");
const debianRust = join(tools, "debian-rust");
const DEBIAN_PACKAGES = ["rustc-web", "cargo-web", "rust-web-src", "rust-web-clippy", "lld-19"];

const npmStamp = join(root, "node_modules", ".farhand-lock");
const npmDigest = () => digest(["package-lock.json"]);

/** Whether the npm packages of the lock file are installed. */
export const hasNpmPackages = () => existsSync(npmStamp) && readFileSync(npmStamp, "utf8") === npmDigest();

/** Installs the npm packages of the lock file, unless they are installed. */
export async function npmPackages(run = show) {
  await once(npmStamp, npmDigest(), async () => {
    say("npm: installing the packages of package-lock.json");
    await run("npm", ["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
  });
}

/**
 * Returns the reason why a compiler cannot build Farhand, or null if it can. The compiler's version
 * must be at least `rust-version` in Cargo.toml.
 */
export function rustProblem(rustc = "rustc") {
  const oldest = readFileSync(join(root, "Cargo.toml"), "utf8").match(/^rust-version = "(.*)"$/m)[1];
  const { error, status, stdout, stderr } = spawnSync(rustc, ["--version"], { encoding: "utf8", cwd: root });
  if (error) return `no rustc on PATH; install Rust ${oldest} or later with rustup (https://rustup.rs)`;
  if (status !== 0) return `${rustc} --version failed: ${stderr.trim()}`;
  const version = stdout.split(" ")[1];
  return isAtLeast(version, oldest) ? null : `${rustc} ${version} is too old; Farhand needs ${oldest} or later (rustup update stable)`;
}

/** Ends the script if the Rust compiler on PATH is missing or too old. */
export function checkRust() {
  const problem = rustProblem();
  if (problem !== null) fail(problem);
}

const hasStd = (libdir) => libdir !== null && existsSync(libdir) && readdirSync(libdir).some((name) => name.startsWith("libstd-"));

/**
 * Returns the environment for `cargo ... --target wasm32-unknown-unknown`, and a line that
 * describes the toolchain.
 */
async function wasmToolchain(run) {
  checkRust();
  const rustc = output("rustc", ["--version"]);
  const installed = () => hasStd(output("rustc", ["--print", "target-libdir", "--target", TARGET]));
  if (installed()) return { line: `${rustc}, its own ${TARGET}`, env: {} };
  // If its server is unreachable, rustup fails immediately. The timeout is for networks that hang.
  if (output("rustup", ["target", "add", TARGET], { timeout: 120_000 }) !== null && installed()) {
    return { line: `${rustc}, ${TARGET} added by rustup`, env: {} };
  }
  return debianToolchain(run);
}

/**
 * Installs the missing packages of `names` from Debian. `why` says why they are needed. It is part
 * of the progress line, and of the error if they cannot be installed. Never asks for a password.
 */
export async function debianPackages(names, why, run = show) {
  const missing = names.filter((name) => !output("dpkg-query", ["-W", "-f=${Status}", name])?.includes("ok installed"));
  if (missing.length === 0) return;
  if (output("apt-get", ["--version"]) === null) fail(`${why}, and there is no apt-get here to install Debian's ${missing.join(", ")}`);
  const isRoot = process.getuid() === 0;
  if (!isRoot && output("sudo", ["-n", "true"]) === null) fail(`${why}. Run this, and try again: sudo apt-get install ${missing.join(" ")}`);
  const [program, ...args] = [...(isRoot ? [] : ["sudo", "-n"]), "apt-get"];
  announce(`${why}: installing Debian's ${missing.join(", ")}`);
  await run(program, [...args, "update", "-q"]);
  await run(program, [...args, "install", "-yq", "--no-install-recommends", ...missing]);
}

/** Returns the paths of programs. Installs Debian's packages if a program is not on PATH. */
export async function programs(names, packages, why) {
  const find = (name) => output("sh", ["-c", `command -v ${name}`]);
  const missing = () => names.filter((name) => find(name) === null);
  if (missing().length > 0) await debianPackages(packages, why);
  if (missing().length > 0) fail(`${why}; not found: ${missing().join(", ")}`);
  return names.map(find);
}

async function debianToolchain(run) {
  await debianPackages(DEBIAN_PACKAGES, `rustup could not add ${TARGET}`, run);
  const problem = rustProblem("/usr/bin/rustc");
  if (problem !== null) fail(`rustup could not add ${TARGET}, and Debian's compiler cannot replace it: ${problem}`);
  const version = output("/usr/bin/rustc", ["--version"]);
  const bin = join(debianRust, "bin");
  const stamp = join(debianRust, "version");
  if (!existsSync(stamp) || readFileSync(stamp, "utf8") !== version) {
    say(`wasm target: compiling std for ${TARGET} with Debian's ${version} (once, about half a minute)`);
    await buildSysroot(run, bin);
    writeFileSync(stamp, version);
  }
  return {
    line: `Debian's ${version}, std compiled into .tools/debian-rust`,
    env: {
      PATH: `${bin}:${process.env.PATH}`,
      RUSTC: join(bin, "rustc"),
      // clippy-driver is a separate compiler, and takes the sysroot from this variable.
      SYSROOT: join(debianRust, "sysroot"),
      CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER: "wasm-ld-19",
    },
  };
}

/**
 * Creates a sysroot with links to Debian's sysroot and a std for wasm, and a `rustc` wrapper that
 * uses the sysroot.
 */
async function buildSysroot(run, bin) {
  rmSync(debianRust, { recursive: true, force: true });
  const rustlib = join(debianRust, "sysroot", "lib", "rustlib");
  const wasmLib = join(rustlib, TARGET, "lib");
  mkdirSync(wasmLib, { recursive: true });
  mkdirSync(bin, { recursive: true });
  const debianLib = join(output("/usr/bin/rustc", ["--print", "sysroot"]), "lib", "rustlib");
  for (const name of readdirSync(debianLib)) {
    if (name !== TARGET) symlinkSync(join(debianLib, name), join(rustlib, name));
  }

  const crate = mkdtempSync(join(tmpdir(), "farhand-std-"));
  mkdirSync(join(crate, "src"));
  writeFileSync(join(crate, "Cargo.toml"), '[package]\nname = "empty"\nversion = "0.0.0"\nedition = "2021"\n[profile.release]\npanic = "abort"\n');
  writeFileSync(join(crate, "src", "lib.rs"), "");
  // Embeds bitcode, because link-time optimisation of the Worker includes std.
  await run("/usr/bin/cargo", ["build", "--release", "--target", TARGET, "-Zbuild-std=std,panic_abort"], {
    cwd: crate,
    env: { ...process.env, RUSTC: "/usr/bin/rustc", RUSTC_BOOTSTRAP: "1", CARGO_TARGET_DIR: join(crate, "target"), RUSTFLAGS: "-Cembed-bitcode=yes" },
  });
  const deps = join(crate, "target", TARGET, "release", "deps");
  for (const name of readdirSync(deps)) {
    if (name.endsWith(".rlib") && !name.startsWith("libempty")) copyFileSync(join(deps, name), join(wasmLib, name));
  }
  rmSync(crate, { recursive: true, force: true });

  const wrapper = join(bin, "rustc");
  writeFileSync(wrapper, `#!/bin/sh\nexec /usr/bin/rustc --sysroot '${join(debianRust, "sysroot")}' "$@"\n`);
  chmodSync(wrapper, 0o755);
  for (const name of ["cargo", "cargo-clippy", "clippy-driver"]) symlinkSync(join("/usr/bin", name), join(bin, name));
}

/**
 * Installs a version of a cargo program into .tools, unless it is installed.
 *
 * The programs only start other programs or read a few files, so they are compiled without
 * optimisation (`--debug`), which takes half the time.
 */
async function cargoProgram(crate, version, features = []) {
  await once(join(cargoRoot, `${crate}.version`), version, () => {
    say(`${crate} ${version}: compiling into .tools (once, some minutes)`);
    const env = { ...process.env, CARGO_PROFILE_DEV_DEBUG: "0", CARGO_TARGET_DIR: join(tools, "target") };
    show("cargo", ["install", "--quiet", "--locked", "--debug", "--root", cargoRoot, "--features", features.join(), `${crate}@${version}`], { env });
    rmSync(join(tools, "target"), { recursive: true, force: true });
  });
}

/** Returns the environment in which `cargo` finds the programs in .tools. */
const withCargoPrograms = () => ({ ...process.env, PATH: `${join(cargoRoot, "bin")}:${process.env.PATH}` });

/** Installs cargo-deny. Returns the environment for it. */
export async function cargoDeny() {
  await cargoProgram("cargo-deny", CARGO_DENY);
  return withCargoPrograms();
}

/** Installs cargo-cyclonedx and cargo-about. Returns the environment for them. */
export async function cargoReports() {
  await cargoProgram("cargo-cyclonedx", CARGO_CYCLONEDX);
  await cargoProgram("cargo-about", CARGO_ABOUT, ["cli"]);
  return withCargoPrograms();
}

/** Installs cargo-fuzz. Returns the environment for it. */
export async function cargoFuzz() {
  await cargoProgram("cargo-fuzz", CARGO_FUZZ);
  return withCargoPrograms();
}

/**
 * Installs everything that a build of the Worker needs.
 * @returns the environment for cargo, with the paths of esbuild and wasm-opt.
 */
export async function prepare(run = show) {
  await npmPackages(run);
  const wasm = await wasmToolchain(run);
  say(`wasm target: ${wasm.line}`);
  const npmBin = (name) => join(root, "node_modules", ".bin", name);
  return {
    ...process.env,
    ...wasm.env,
    // A separate folder, because the host's cargo may use another compiler. In one folder, each
    // compiler would invalidate the other compiler's cache.
    CARGO_TARGET_DIR: join(root, "target", "worker"),
    // Hashing is a tenth faster with SIMD.
    CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS: "-Ctarget-feature=+simd128",
    WASM_OPT_BIN: npmBin("wasm-opt"),
    ESBUILD_BIN: npmBin("esbuild"),
  };
}
