// Numbered steps for a script that a person starts and waits for. Each step prints its name with an
// estimate, and then its duration. Programs write into a log file, not to the terminal.
import { appendFileSync, chmodSync, readFileSync, writeFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { basename } from "node:path";
import { createInterface } from "node:readline";
import { endGroup, root, startGroup } from "./lib.mjs";

const ON_TERMINAL_EVERY_MS = 1_000;
const IN_LOG_EVERY_MS = 30_000;
/** The number of lines of the log that are shown after a failure. */
const SHOWN_LINES = 20;
const isTerminal = process.stderr.isTTY === true;
const write = (text) => void process.stderr.write(text);

/** Formats a duration as minutes and seconds. */
export const clock = (ms) => {
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
};

/**
 * Estimates how long work takes on this machine that takes `seconds` on two cores. The last part of
 * a build uses one core only, so more than four cores do not help.
 */
export const onThisMachine = (seconds) => (seconds * 2) / Math.min(Math.max(availableParallelism(), 1), 4);

export class Steps {
  #total;
  #logFile;
  #number = 0;
  /** What the programs of this step last reported, by their labels. */
  #progress = new Map();
  #children = new Set();
  #hasFailed = false;

  /** Creates the log file, or empties it. */
  constructor(total, logFile) {
    this.#total = total;
    this.#logFile = logFile;
    writeFileSync(logFile, "", { mode: 0o600 });
    chmodSync(logFile, 0o600);
  }

  /** Writes a line into the log. */
  log = (line) => appendFileSync(this.#logFile, `${line}\n`);

  /**
   * Does the work of a step. `seconds` is an estimate on this machine, or null if the step has
   * little to do.
   */
  async step(name, seconds, work) {
    this.#number += 1;
    this.#progress.clear();
    const prefix = `[${this.#number}/${this.#total}]`;
    const about = seconds === null ? "" : ` (about ${clock(seconds * 1000)})`;
    this.log(`${prefix} ${name}`);
    const began = Date.now();
    const state = () => {
      const parts = [...this.#progress].map(([label, text]) => `${label} ${text}`);
      return [`${clock(Date.now() - began)}${seconds === null ? "" : ` of about ${clock(seconds * 1000)}`}`, ...parts].join(", ");
    };
    const line = () => `\r\x1b[K${`${prefix} ${name}: ${state()}`.slice(0, process.stderr.columns - 1)}`;
    write(isTerminal ? line() : `${prefix} ${name}${about}\n`);
    const timer = setInterval(() => write(isTerminal ? line() : `      ${state()}\n`), isTerminal ? ON_TERMINAL_EVERY_MS : IN_LOG_EVERY_MS);
    try {
      const result = await work();
      const took = clock(Date.now() - began);
      this.log(`${prefix} done in ${took}`);
      write(`${isTerminal ? "\r\x1b[K" : ""}${prefix} ${name}: done in ${took}\n`);
      return result;
    } catch (error) {
      if (isTerminal) write("\n");
      throw error;
    } finally {
      clearInterval(timer);
    }
  }

  /**
   * Returns a function that runs a program to its end. Its output goes into the log. `label` names
   * the program in the progress of the step.
   */
  runner = (label) => async (program, args, { env = process.env, ...options } = {}) => {
    this.log(`$ ${program} ${args.join(" ")}`);
    const cargo = { CARGO_TERM_COLOR: "never", CARGO_TERM_PROGRESS_WHEN: "always", CARGO_TERM_PROGRESS_WIDTH: "80" };
    const child = startGroup(program, args, { ...options, env: { ...env, ...cargo }, stdio: ["ignore", "pipe", "pipe"] });
    this.#children.add(child);
    if (label !== basename(program) && program !== "cargo") this.#progress.set(label, basename(program));
    for (const stream of [child.stdout, child.stderr]) {
      createInterface({ input: stream }).on("line", (line) => {
        const crates = /^\s*Building \[.*\] (\d+\/\d+)/.exec(line);
        if (crates) this.#progress.set(label, `${crates[1]} crates`);
        else if (line.trim() !== "") this.log(line);
      });
    }
    const ended = await new Promise((resolve, reject) => {
      child.once("error", (error) => reject(new Error(`${program}: ${error.message}`)));
      child.once("close", (status, signal) => resolve(status ?? signal));
    }).finally(() => this.#children.delete(child));
    this.#progress.delete(label);
    if (ended === 0) return;
    this.#hasFailed = true;
    throw new Error(`${[program.replace(`${root}/`, ""), ...args].join(" ").slice(0, 100)} ended with ${ended}`);
  };

  /** If a program failed, prints the last lines of the log. */
  explainFailure() {
    if (!this.#hasFailed) return;
    const lines = readFileSync(this.#logFile, "utf8").trimEnd().split("\n").slice(-SHOWN_LINES);
    write(`${lines.join("\n")}\n\nThe whole output is in ${this.#logFile}.\n`);
  }

  /** Ends the programs that are running. */
  stop = () => Promise.all([...this.#children].map((child) => endGroup(child)));
}
