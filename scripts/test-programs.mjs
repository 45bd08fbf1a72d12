// Builds all test programs with one call of cargo, and runs them.
//
// One call compiles each crate once. A call for each package would compile many crates again,
// because cargo enables different features of a crate for different selections of packages.
import { spawn } from "node:child_process";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { root } from "./lib.mjs";

/**
 * The public key of releases for tests, whose private key is in `tests/support/releases.rs`. Only
 * the debug build of the agent has it, which no user gets.
 */
const RELEASE_KEY = "6kpsY+KcUgq+9VB7Ey7F+ZVHdq6+vnuSQh7qaRRG0iw=";
/** All packages but the tool of the build, which has a profile of its own. */
const SELECTION = ["--workspace", "--exclude", "farhand-bindgen"];
const environment = { ...process.env, FARHAND_RELEASE_KEY: RELEASE_KEY };

/**
 * @typedef {{name: string, folder: string, path: string}} TestProgram
 * A test program: the name of its target, the folder of its package, and its binary.
 */

/**
 * Builds all test programs, and the debug builds of the agent and the command line that they run.
 * Throws an error if one does not compile.
 * @returns {Promise<{tests: TestProgram[], agent: string, commandLine: string}>}
 */
export async function buildTestPrograms() {
  const args = ["build", "--quiet", ...SELECTION, "--tests", "--bins", "--message-format=json-render-diagnostics"];
  const built = { tests: [], agent: "", commandLine: "" };
  const onLine = (line) => {
    const { reason, executable, profile, target, manifest_path: manifest } = JSON.parse(line);
    if (reason !== "compiler-artifact" || !executable) return;
    if (profile.test) built.tests.push({ name: target.name, folder: dirname(manifest), path: executable });
    else if (target.name === "farhand-agent") built.agent = executable;
    else if (target.name === "farhand") built.commandLine = executable;
  };
  const { ok } = await start("cargo", args, { env: environment, onLine }).ended;
  if (!ok) throw new Error("the tests did not build");
  return built;
}

/**
 * Runs a program in the background. Returns the running process, and a promise of its success and
 * its standard output. `onLine` gets each line of it.
 */
export function start(program, args, { cwd = root, env = process.env, onLine = (_line) => {} } = {}) {
  const lines = [];
  const child = spawn(program, args, { cwd, env, stdio: ["ignore", "pipe", "inherit"] });
  createInterface({ input: child.stdout }).on("line", (line) => {
    lines.push(line);
    onLine(line);
  });
  const ended = new Promise((done, failed) => {
    child.once("error", failed);
    child.once("close", (status) => done({ ok: status === 0, text: lines.join("\n") }));
  });
  return { child, ended };
}

/** The program, the arguments and the environment of the examples in comments, with the same features. */
export const examples = { program: "cargo", args: ["test", "--quiet", "--doc", ...SELECTION], env: environment };

/** The test programs of a package's folder. */
export const ofPackage = (tests, folder) => tests.filter((test) => test.folder === join(root, folder));
