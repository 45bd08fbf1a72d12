// `npm run fuzz [SECONDS [TARGET]]`
//
// Runs each target of domain/fuzz with libFuzzer for SECONDS (default: 60). Runs 10^7 sequences of
// events on the state machine of the server's object (`link`), and random requests from the OpenAPI
// document for ten times SECONDS. Writes the figures into docs/contributing/fuzzing.md. With
// TARGET, runs only that target and writes nothing into the document.
//
// Uses no sanitizer, because libFuzzer then works with a stable compiler. The parsers are safe
// Rust, so an invalid access is a panic anyway.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { publish, table } from "../bench/report.mjs";
import { fail, output, root, run, say } from "./lib.mjs";
import { cargoFuzz } from "./toolchain.mjs";

const [duration = "60", only] = process.argv.slice(2);
if (!/^[1-9][0-9]*$/.test(duration)) fail("usage: npm run fuzz [SECONDS [TARGET]]");
const seconds = Number(duration);
const folder = join(root, "domain", "fuzz");
const targets = readdirSync(join(folder, "checks")).map((name) => name.replace(/\.rs$/, "")).sort();
const LINK = "link";
const LINK_SEQUENCES = 10_000_000;
if (only !== undefined && ![...targets, LINK].includes(only)) fail(`unknown target ${only}; the targets are ${[...targets, LINK].join(", ")}`);

/**
 * Runs sequences of events on the state machine of the server's object: the same property tests as
 * in `npm test`, with more sequences.
 */
function link() {
  const sequences = process.env.FARHAND_LINK_SEQUENCES ?? `${LINK_SEQUENCES}`;
  say(`fuzz: ${LINK}, ${Number(sequences).toLocaleString("en")} sequences`);
  const test = ["test", "--release", "-p", "farhand-domain", "--test", LINK, "from_"];
  const linkEnvironment = { ...process.env, FARHAND_LINK_SEQUENCES: sequences };
  return spawnSync("cargo", test, { cwd: root, env: linkEnvironment, stdio: "inherit" }).status === 0;
}

if (only === LINK) process.exit(link() ? 0 : 1);

const env = await cargoFuzz();
const options = ["--sanitizer", "none", "--fuzz-dir", folder];
say("fuzz: building the targets");
run("cargo", ["fuzz", "build", ...options], { env });

/** The inputs of a target's corpus, as lines with escapes (docs/contributing/fuzzing.md). */
const corpus = (target) => readFileSync(join(folder, "corpus", `${target}.txt`), "utf8").split("\n").slice(0, -1);

const ESCAPES = { n: 10, r: 13, t: 9, "\\": 92 };
/** The bytes of a line of a corpus. */
const unescaped = (line) =>
  Buffer.from([...line.matchAll(/\\x([0-9a-f]{2})|\\([nrt\\])|([^\\])/g)].map(([, hex, escape, plain]) => (hex ? Number.parseInt(hex, 16) : escape ? ESCAPES[escape] : plain.charCodeAt(0))));
/** The line of a corpus for an input. */
function escaped(bytes) {
  const names = Object.fromEntries(Object.entries(ESCAPES).map(([name, code]) => [code, `\\${name}`]));
  const plain = (code) => (code >= 0x20 && code < 0x7f ? String.fromCharCode(code) : `\\x${code.toString(16).padStart(2, "0")}`);
  return [...bytes].map((code) => names[code] ?? plain(code)).join("");
}

/** Prints the inputs that failed, as lines for the corpus. */
function sayFailures(target) {
  const artifacts = join(folder, "artifacts", target);
  const names = existsSync(artifacts) ? readdirSync(artifacts) : [];
  for (const name of names) say(`fuzz: the line for domain/fuzz/corpus/${target}.txt: ${escaped(readFileSync(join(artifacts, name)))}`);
}

/** Runs a target and returns a row of figures. */
function fuzz(target) {
  // libFuzzer reads files and writes new ones. The corpus in git has a line for each input.
  const found = join(folder, "found", target);
  mkdirSync(found, { recursive: true });
  const kept = corpus(target);
  kept.forEach((line, number) => writeFileSync(join(found, `corpus-${number}`), unescaped(line)));
  say(`fuzz: ${target}, ${seconds} s`);
  const args = ["fuzz", "run", ...options, target, found, "--"];
  const limits = [`-max_total_time=${seconds}`, "-max_len=4096", "-timeout=10", "-print_final_stats=1"];
  const done = spawnSync("cargo", [...args, ...limits], { cwd: root, env, encoding: "utf8", maxBuffer: 1 << 28 });
  const figure = (pattern) => done.stderr.match(pattern)?.at(-1) ?? "?";
  const runs = figure(/stat::number_of_executed_units: +(\d+)/);
  const [features] = [...done.stderr.matchAll(/ ft: (\d+)/g)].at(-1)?.slice(1) ?? ["?"];
  if (done.status !== 0) {
    say(done.stderr.slice(-4000));
    sayFailures(target);
  }
  return { target, runs, features, inputs: kept.length, crashes: done.status === 0 ? 0 : 1 };
}

const rows = (only === undefined ? targets : [only]).map(fuzz);
const count = (text) => Number(text).toLocaleString("en");
const figures = table(
  ["target", "executions", "features", "inputs that are kept", "failures"],
  rows.map(({ target, runs, features, inputs, crashes }) => [target, count(runs), count(features), inputs, crashes]),
);
console.log(figures);
let areOthersGood = true;
if (only === undefined) {
  areOthersGood = link();
  say(`fuzz: requests from the OpenAPI document, ${10 * seconds} s`);
  const environment = { ...process.env, FARHAND_PROPERTIES_SECONDS: `${10 * seconds}` };
  const test = ["scripts/test.mjs", "e2e", "every_response_conforms"];
  areOthersGood = spawnSync(process.execPath, test, { cwd: root, env: environment, stdio: "inherit" }).status === 0 && areOthersGood;
  const commit = output("git", ["rev-parse", "--short", "HEAD"]) ?? "?";
  const day = new Date().toISOString().slice(0, 10);
  const how = `${seconds} s for each target, on ${day}, at ${commit}, with ${output("rustc", ["--version"])}.`;
  publish("fuzz", `${how}\n\n${figures}`, "docs/contributing/fuzzing.md");
}
process.exit(areOthersGood && rows.every(({ crashes }) => crashes === 0) ? 0 : 1);
