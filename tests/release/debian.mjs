// A clean Debian in a folder, with or without systemd. Needs root, and a Debian mirror for
// debootstrap.
import { spawn, spawnSync } from "node:child_process";
import { rmdirSync } from "node:fs";
import { join } from "node:path";
import { run, temporary, until } from "./support.mjs";

const ENVIRONMENT = ["/usr/bin/env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive"];

/** Installs a minimal Debian with packages. Returns its folder. */
export function installDebian(packages) {
  const folder = join(temporary(), "debian");
  run("debootstrap", ["--variant=minbase", `--include=${packages.join(",")}`, "bookworm", folder]);
  return folder;
}

/** A Debian whose systemd runs. */
export class Booted {
  #unshare;
  #cgroup;
  /** The process id of its systemd. */
  #init = null;

  constructor(folder) {
    const mounted = run("findmnt", ["-n", "-t", "cgroup2", "-o", "TARGET"]).split("\n")[0];
    this.#cgroup = join(mounted, `farhand-release-${process.pid}`);
    this.#unshare = spawn("sh", [join(import.meta.dirname, "boot.sh"), folder, this.#cgroup], { stdio: ["ignore", "ignore", "inherit"] });
  }

  async boot() {
    this.#init = await until("the start of systemd", () => spawnSync("pgrep", ["-P", `${this.#unshare.pid}`], { encoding: "utf8" }).stdout.trim() || null);
    await until("the end of the start", () => this.attempt("systemctl", "is-system-running").stdout === "running\n");
  }

  /** Runs a program to its end. */
  attempt(...command) {
    return spawnSync("nsenter", ["--target", this.#init, "--all", "--root", "--wd", ...ENVIRONMENT, ...command], { encoding: "utf8" });
  }

  /** Runs a program to its end. Fails unless it succeeds. Returns its standard output. */
  run(...command) {
    return run("nsenter", ["--target", this.#init, "--all", "--root", "--wd", ...ENVIRONMENT, ...command]);
  }

  async stop() {
    // The kernel then ends all processes of the namespace.
    if (this.#init !== null) process.kill(Number(this.#init), "SIGKILL");
    await until("the end of systemd", () => this.#unshare.exitCode !== null || this.#unshare.signalCode !== null);
    const groups = run("find", [this.#cgroup, "-depth", "-type", "d"]).trim().split("\n");
    for (const group of groups) await until(`the end of ${group}`, () => removed(group));
  }
}

/** Removes a control group, if no process is in it any more. */
function removed(group) {
  try {
    rmdirSync(group);
    return true;
  } catch (error) {
    if (error.code !== "EBUSY") throw error;
    return false;
  }
}
