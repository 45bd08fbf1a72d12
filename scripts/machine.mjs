// What a machine must have to serve Farhand.
import { readFileSync, statfsSync } from "node:fs";
import { join } from "node:path";
import { checkSecrets, isTaken } from "./instance.mjs";
import { root } from "./lib.mjs";

export const GB = 1e9;

/** The parts of a version, as numbers. */
const parts = (version) => version.split(".").map((part) => parseInt(part, 10) || 0);

/** Whether `version` is at least `least`. */
export function isAtLeast(version, least) {
  const [have, want] = [parts(version), parts(least)];
  const at = want.findIndex((part, index) => part !== (have[index] ?? 0));
  return at === -1 || (have[at] ?? 0) > want[at];
}

/** Throws an error if a disk lacks space for `bytes`. */
export function checkDisk(folder, bytes) {
  const { bavail, bsize } = statfsSync(folder);
  const free = bavail * bsize;
  if (free < bytes) {
    throw new Error(`${folder} has ${(free / GB).toFixed(1)} GB of free disk space; Farhand needs ${(bytes / GB).toFixed(1)} GB`);
  }
}

/** Checks the platform, the port, the secrets and Node. Throws an error with what to do. */
export async function checkMachine(port) {
  if (process.platform !== "linux") {
    throw new Error(`the service and its agent run on Linux only, not on ${process.platform}; use a virtual machine or a container`);
  }
  if (!Number.isInteger(port) || port < 1 || port > 65535) throw new Error(`PORT is ${process.env.PORT}, which is not a port number`);
  if (await isTaken(port)) throw new Error(`port ${port} of 127.0.0.1 is in use; set PORT to another one`);
  checkSecrets(process.env);
  const { engines } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  const node = engines.node.replace(">=", "");
  if (!isAtLeast(process.versions.node, node)) throw new Error(`Node ${process.versions.node} is too old; Farhand needs ${node} or later`);
}
