// What `npm start` and `npm run dev` check before they download or build anything.
import { output, root } from "./lib.mjs";
import { GB, checkDisk, checkMachine } from "./machine.mjs";
import { rustProblem } from "./toolchain.mjs";

/**
 * Checks the machine and the compilers. Throws an error that says what to do. `needsBuild`: whether
 * the start will download and compile much.
 */
export async function check(port, needsBuild) {
  await checkMachine(port);
  const problem = rustProblem();
  if (problem !== null) throw new Error(problem);
  if (output("cc", ["--version"]) === null) throw new Error("no C compiler on PATH (cc); install gcc or clang");
  checkDisk(root, needsBuild ? 2 * GB : 0.2 * GB);
}
