// node logged.mjs LOG PROGRAM ARGUMENT...: runs a program with its output at the end of a log, less what is secret in it:
// wrangler writes down the path of every request, and that of a password reset holds the key.
import { spawn } from "node:child_process";
import { openSync, writeSync } from "node:fs";
import { createInterface } from "node:readline";

const [file, program, ...args] = process.argv.slice(2);
const log = openSync(file, "a", 0o600);
const redact = (line) => line.replace(/(reset-password\/confirm\/|reset-password\/?\?key=)[^\s/&"]+/g, "$1…");
// What the program writes is for its owner only.
process.umask(0o077);

const child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"] });
const streams = [child.stdout, child.stderr].map((input) => createInterface({ input, crlfDelay: Infinity }));
for (const lines of streams) lines.on("line", (line) => writeSync(log, `${redact(line)}\n`));
// A signal to the group reaches the program as well; this ends when that has, and has written its last line.
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => {});
child.once("error", (error) => {
  writeSync(log, `${program}: ${error.message}\n`);
  process.exit(1);
});
child.once("close", (status) => process.exit(status ?? 1));
