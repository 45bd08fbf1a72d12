#!/usr/bin/env node
// The program of the npm package `farhand`. `farhand start` serves Farhand on this machine. With
// other arguments it runs the command line.
import { spawn } from "node:child_process";
import { constants } from "node:os";
import { join, resolve } from "node:path";
import { release, root } from "./lib.mjs";

const architecture = { x64: "x86_64", arm64: "aarch64" }[process.arch];
if (process.platform !== "linux" || architecture === undefined) {
  process.stderr.write(`error: farhand has programs for Linux on x64 and arm64 only, not for ${process.platform} on ${process.arch}\n`);
  process.exit(1);
}
const agent = join(root, "build", "assets", "agent", release.version, `farhand-agent-${architecture}`);
const commandLine = join(root, "programs", architecture, "farhand");

async function start() {
  const { serveLocally } = await import("./local.mjs");
  const { GB, checkDisk, checkMachine } = await import("./machine.mjs");
  await serveLocally({
    stateDir: resolve(".farhand"),
    check: async (port) => {
      await checkMachine(port);
      checkDisk(".", 0.1 * GB);
    },
    buildSteps: 0,
    build: async () => agent,
    commandLine: ({ url, server }) => `npx farhand login --url ${url} && npx farhand run ${server} -- uptime`,
  });
}

/** Runs the command line on this terminal, and exits with its status. */
function run(args) {
  const child = spawn(commandLine, args, { stdio: "inherit" });
  // The terminal sends SIGINT to both processes. The command line decides what it means.
  process.on("SIGINT", () => {});
  for (const signal of /** @type {const} */ (["SIGTERM", "SIGHUP"])) process.on(signal, () => child.kill(signal));
  child.once("error", (error) => {
    process.stderr.write(`error: ${commandLine}: ${error.message}\n`);
    process.exit(1);
  });
  child.once("exit", (status, signal) => process.exit(status ?? 128 + constants.signals[signal]));
}

const args = process.argv.slice(2);
if (args[0] !== "start") run(args);
else if (args.length === 1) await start();
else {
  process.stderr.write("usage: farhand start\nThe environment variables PORT, STATE_DIR and DEMO configure it.\n");
  process.exit(1);
}
