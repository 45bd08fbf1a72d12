// What `npm start` and `npm run dev` check before they download or build anything.
import { readFileSync, statfsSync } from "node:fs";
import { join } from "node:path";
import { checkSecrets, isTaken } from "./instance.mjs";
import { output, root } from "./lib.mjs";
import { isAtLeast, rustProblem } from "./toolchain.mjs";

const GB = 1e9;

/** Throws an error if a disk lacks space for `bytes`. */
export function checkDisk(folder, bytes) {
  const { bavail, bsize } = statfsSync(folder);
  const free = bavail * bsize;
  if (free < bytes) {
    throw new Error(`${folder} has ${(free / GB).toFixed(1)} GB of free disk space; Farhand needs ${(bytes / GB).toFixed(1)} GB to build`);
  }
}

/**
 * Checks the platform, the port, the secrets, the disk and the compilers. Throws an error with what
 * to do. `needsBuild` says whether much is to be downloaded and compiled.
 */
export async function check(port, needsBuild) {
  if (process.platform !== "linux") {
    throw new Error(`the service and its agent run on Linux only, not on ${process.platform}; use a virtual machine or a container`);
  }
  if (!Number.isInteger(port) || port < 1 || port > 65535) throw new Error(`PORT is ${process.env.PORT}, which is not a port number`);
  if (await isTaken(port)) throw new Error(`port ${port} of 127.0.0.1 is in use; set PORT to another one`);
  checkSecrets(process.env);
  const { engines } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  const node = engines.node.replace(">=", "");
  if (!isAtLeast(process.versions.node, node)) throw new Error(`Node ${process.versions.node} is too old; Farhand needs ${node} or later`);
  const problem = rustProblem();
  if (problem !== null) throw new Error(problem);
  if (output("cc", ["--version"]) === null) throw new Error("no C compiler on PATH (cc); install gcc or clang");
  checkDisk(root, needsBuild ? 2 * GB : 0.2 * GB);
}
