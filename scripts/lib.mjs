// Helpers for all scripts. This module uses only Node's built-in modules, because it runs before
// `npm ci`.
import { spawn, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";

/** The folder of the checkout. */
export const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
/**
 * The folder for programs that the scripts install. git ignores it. Delete it to remove these
 * programs.
 */
export const tools = join(root, ".tools");

// test.mjs sets this variable for the end-to-end tests. Scripts that the tests start inherit it,
// and cargo would then rebuild everything.
delete process.env.RUSTC_BOOTSTRAP;

const print = (line) => void process.stderr.write(`${line}\n`);
let receiver = print;

/** Prints one line of progress to standard error, because standard output is for results. */
export const say = (line) => receiver(line);

/** Prints a line that a person must see, even if `say` writes into a log. */
export const announce = (line) => {
  print(`${process.stderr.isTTY ? "\r\x1b[K" : ""}${line}`);
  if (receiver !== print) receiver(line);
};

/** Passes the lines of `say` to a function from now on. */
export const sendProgressTo = (newReceiver) => void (receiver = newReceiver);

/**
 * Ends the script with a message for a person.
 * @returns {never}
 */
export function fail(message) {
  print(`error: ${message}`);
  process.exit(1);
}

/** Runs a program to its end. Its output goes to standard error. A failure ends the script. */
export function run(program, args, options = {}) {
  const done = spawnSync(program, args, { stdio: ["ignore", 2, 2], cwd: root, ...options });
  if (done.error) fail(`${program}: ${done.error.message}`);
  if (done.status !== 0) fail(`${program} ${args.join(" ")} ended with ${done.status ?? done.signal}`);
}

/** Runs a program without showing its output. Returns its standard output, or null if it failed. */
export function output(program, args, options = {}) {
  const done = spawnSync(program, args, { encoding: "utf8", cwd: root, ...options });
  return done.status === 0 ? done.stdout.trim() : null;
}

const releaseFile = join(root, "release.json");
/**
 * The version and the commit of a release (scripts/release), which contains everything in built form.
 * Null in a checkout.
 * @type {{version: string, commit: string} | null}
 */
export const release = existsSync(releaseFile) ? JSON.parse(readFileSync(releaseFile, "utf8")) : null;

/**
 * The commit of the checkout, with a suffix if files differ from the commit. Empty outside a git
 * checkout.
 */
export const commit = () => release?.commit ?? output("git", ["describe", "--always", "--dirty", "--abbrev=10", "--exclude", "*"]) ?? "";

/**
 * All files at or below the given paths (files or folders, relative to the checkout), sorted within
 * each path.
 */
export function filesBelow(paths) {
  const found = [];
  const walk = (path) => {
    if (!existsSync(path)) return;
    if (statSync(path).isDirectory()) for (const name of readdirSync(path).sort()) walk(join(path, name));
    else found.push(path);
  };
  for (const path of paths) walk(join(root, path));
  return found;
}

/** Computes a digest of the names and contents of files, and of additional strings. */
export function digest(paths, ...extra) {
  const hash = createHash("sha256");
  for (const file of filesBelow(paths)) hash.update(relative(root, file)).update("\0").update(readFileSync(file));
  for (const text of extra) hash.update("\0").update(text);
  return hash.digest("hex");
}

/**
 * Calls `work` and writes `value` into `stampFile`, unless the file already contains `value`.
 * Returns whether `work` was called.
 */
export async function once(stampFile, value, work) {
  if (existsSync(stampFile) && readFileSync(stampFile, "utf8") === value) return false;
  await work();
  mkdirSync(dirname(stampFile), { recursive: true });
  writeFileSync(stampFile, value);
  return true;
}

const isAlive = (pid) => {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === "EPERM";
  }
};

/**
 * The process that holds a lock file, or null if the file was deleted since, or has no content yet.
 */
function lockOwner(lockFile) {
  try {
    return Number(readFileSync(lockFile, "utf8")) || null;
  } catch (error) {
    if (error.code === "ENOENT") return null;
    throw error;
  }
}

/**
 * Calls `work` while holding a lock file. Waits while another process holds the lock. Takes the
 * lock over if that process is dead.
 */
export async function locked(lockFile, work) {
  mkdirSync(dirname(lockFile), { recursive: true });
  for (let isPrinted = false; ; isPrinted = true) {
    try {
      writeFileSync(lockFile, `${process.pid}`, { flag: "wx" });
      break;
    } catch (error) {
      if (error.code !== "EEXIST") throw error;
    }
    const owner = lockOwner(lockFile);
    if (owner && !isAlive(owner)) rmSync(lockFile, { force: true });
    else if (owner && !isPrinted) say(`waiting for process ${owner}, which holds the lock`);
    await new Promise((go) => setTimeout(go, 200));
  }
  try {
    return await work();
  } finally {
    rmSync(lockFile, { force: true });
  }
}

/** Starts a program in its own process group, so that `endGroup` ends its children too. */
export const startGroup = (program, args, options) => spawn(program, args, { detached: true, cwd: root, ...options });

const groupIsAlive = (pid) => {
  try {
    process.kill(-pid, 0);
    return true;
  } catch {
    return false;
  }
};

/** Ends a process group: sends TERM, and KILL if processes remain after `graceMs`. */
export async function endGroup(child, graceMs = 5000) {
  const pid = child?.pid;
  if (!pid || !groupIsAlive(pid)) return;
  const signal = (name) => {
    try {
      process.kill(-pid, name);
    } catch {
      // The group ended between the check and the signal.
    }
  };
  signal("SIGTERM");
  const until = Date.now() + graceMs;
  while (groupIsAlive(pid) && Date.now() < until) await new Promise((go) => setTimeout(go, 50));
  if (groupIsAlive(pid)) signal("SIGKILL");
}
