// Names, folders and helpers of a release.
import { createHash } from "node:crypto";
import { cpSync, mkdirSync, readFileSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { commit, output, root } from "../lib.mjs";

/** The folder of the finished files. */
export const dist = join(root, "dist");
/** The folder for what the files are made of. */
export const stage = join(root, "target", "dist");

export const ARCHITECTURES = ["x86_64", "aarch64"];
export const version = JSON.parse(readFileSync(join(root, "package.json"), "utf8")).version;
/** The version and commit that the scripts of a release show (`release` of lib.mjs). */
export const release = { version, commit: commit() || "unknown" };

/** The time of the commit in seconds. All files get this time, so that a release can be repeated. */
export const sourceDate = output("git", ["log", "-1", "--format=%ct"]) ?? `${Math.floor(Date.now() / 1000)}`;

/** The packages with a program: their name is the name of the program. */
export const PROGRAMS = [
  {
    name: "farhand-agent",
    crate: "farhand-agent",
    folder: "agent",
    summary: "Agent of Farhand: runs commands on this server for a workspace",
    description: "The agent dials out to a Farhand workspace, runs commands that users of the workspace send, and reports their output. It does nothing until it is registered.",
  },
  {
    name: "farhand",
    crate: "farhand-cli",
    folder: "cli",
    summary: "Command line of Farhand: runs commands on servers",
    description: "A client of Farhand's API: runs commands on one or many servers with live output and exit codes, and manages a workspace.",
  },
];

/** All compiled parts. The crate of the Worker is the root of the workspace. */
export const PARTS = [
  { name: "farhand-worker", crate: "farhand", folder: ".", target: "wasm32-unknown-unknown" },
  ...PROGRAMS.map((program) => ({ ...program, target: "x86_64-unknown-linux-musl" })),
];

/** The options with which tar adds files, so that a release can be repeated. */
export const tarOptions = ["--owner=0", "--group=0", "--numeric-owner", `--mtime=@${sourceDate}`, "--mode=u+rw,go=rX"];

export const sha256 = (file) => createHash("sha256").update(readFileSync(file)).digest("hex");

/** The file with the sums of all others in dist/. */
export const SUMS = "SHA256SUMS";

/** Computes the content of the file with the sums. */
export function sums() {
  const names = readdirSync(dist).filter((name) => name !== SUMS).sort();
  return names.map((name) => `${sha256(join(dist, name))}  ${name}\n`).join("");
}

/** Copies a file or a folder. Creates the folder above it. */
export function copy(from, to) {
  mkdirSync(dirname(to), { recursive: true });
  cpSync(from, to, { recursive: true });
}
