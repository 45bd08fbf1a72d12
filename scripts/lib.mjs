// Small helpers that every script here shares. Node built-ins only: this file runs before `npm ci`.
import { spawn, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";

/** The folder of the checkout. */
export const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
/** Where everything that the scripts install goes; git ignores it, and removing it undoes the set-up. */
export const tools = join(root, ".tools");

// The end-to-end tests run with this variable (test.mjs), and so do the scripts that they start. cargo would build all over again.
delete process.env.RUSTC_BOOTSTRAP;

/** Prints one line of progress to standard error, so that standard output stays for results. */
export const say = (line) => process.stderr.write(`${line}\n`);

/** Ends the script with a message for a person. */
export function fail(message) {
  say(`error: ${message}`);
  process.exit(1);
}

/** Runs a program to its end with its output on ours; a status other than 0 ends the script. */
export function run(program, args, options = {}) {
  const done = spawnSync(program, args, { stdio: ["ignore", 2, 2], cwd: root, ...options });
  if (done.error) fail(`${program}: ${done.error.message}`);
  if (done.status !== 0) fail(`${program} ${args.join(" ")} ended with ${done.status ?? done.signal}`);
}

/** Runs a program quietly. Returns its standard output, or null where it could not run or failed. */
export function output(program, args, options = {}) {
  const done = spawnSync(program, args, { encoding: "utf8", cwd: root, ...options });
  return done.status === 0 ? done.stdout.trim() : null;
}

/** The commit of the checkout, marked if files differ from it; empty outside of a checkout. */
export const commit = () => output("git", ["describe", "--always", "--dirty", "--abbrev=10", "--exclude", "*"]) ?? "";

/** Every file below the given paths (files or folders, relative to the checkout), sorted. */
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

/** A digest of the names and contents of files, and of any further strings that matter. */
export function digest(paths, ...extra) {
  const hash = createHash("sha256");
  for (const file of filesBelow(paths)) hash.update(relative(root, file)).update("\0").update(readFileSync(file));
  for (const text of extra) hash.update("\0").update(text);
  return hash.digest("hex");
}

/** Does `work` only when `stampFile` does not already hold `value`, and writes it there afterwards. */
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

/** Does `work` while no other process does work under the same lock; waits for it, unless it is dead. */
export async function locked(lockFile, work) {
  mkdirSync(dirname(lockFile), { recursive: true });
  for (let isSaid = false; ; isSaid = true) {
    try {
      writeFileSync(lockFile, `${process.pid}`, { flag: "wx" });
      break;
    } catch (error) {
      if (error.code !== "EEXIST") throw error;
    }
    const owner = Number(readFileSync(lockFile, "utf8") || NaN);
    if (owner && !isAlive(owner)) rmSync(lockFile, { force: true });
    else if (!isSaid) say(`waiting for process ${owner}, which builds here`);
    await new Promise((go) => setTimeout(go, 200));
  }
  try {
    return await work();
  } finally {
    rmSync(lockFile, { force: true });
  }
}

/** Starts a program in a process group of its own, so that `endGroup` reaches its children too. */
export const startGroup = (program, args, options) => spawn(program, args, { detached: true, cwd: root, ...options });

const alive = (pid) => {
  try {
    process.kill(-pid, 0);
    return true;
  } catch {
    return false;
  }
};

/** Ends a process group: TERM, and KILL for what is left after `graceMs`. */
export async function endGroup(child, graceMs = 5000) {
  const pid = child?.pid;
  if (!pid || !alive(pid)) return;
  const signal = (name) => {
    try {
      process.kill(-pid, name);
    } catch {
      // The group ended between the look and the signal.
    }
  };
  signal("SIGTERM");
  const until = Date.now() + graceMs;
  while (alive(pid) && Date.now() < until) await new Promise((go) => setTimeout(go, 50));
  if (alive(pid)) signal("SIGKILL");
}
