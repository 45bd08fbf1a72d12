// `npm run faults`: runs the long form of the fault tests (tests/faults/mod.rs) against the built
// Worker and the real agent, and writes their figures into docs/reliability.md. It takes 10 to 15
// minutes, and is stopped after 40 minutes.
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { publish, table } from "../bench/report.mjs";
import { buildAgent } from "./agent.mjs";
import { build } from "./build.mjs";
import { fail, output, root, say } from "./lib.mjs";

const TIMEOUT_MS = 2_400_000;
/** All kinds of faults run concurrently, because their tests mostly wait. */
const KINDS = 16;

/** Formats the figures as Markdown. */
function markdown(figures, seconds) {
  const ends = (row) => Object.entries(row.ends).map(([how, many]) => `${many} ${how}`).join(", ");
  const sum = (name) => figures.reduce((all, row) => all + row[name], 0);
  const cells = (row) => [row.faults, row.accepted, row.refused, row.unanswered, row.ran, row.losses, row.repeats];
  const names = ["faults", "accepted", "refused", "unanswered", "ran", "losses", "repeats"];
  const all = Object.fromEntries(names.map((name) => [name, sum(name)]));
  const commit = output("git", ["rev-parse", "--short", "HEAD"]) ?? "unknown";
  return [
    `Taken by \`npm run faults\` on ${new Date().toISOString().slice(0, 10)}, at commit ${commit}, in ${Math.round(seconds / 60)} minutes on ${availableParallelism()} cores.`,
    "",
    table(["kind", ...names, "how they ended"], [...figures.map((row) => [row.kind, ...cells(row), ends(row)]), ["**all**", ...cells(all), ""]]),
  ].join("\n");
}

await build();
const folder = mkdtempSync(join(tmpdir(), "farhand-faults-"));
const file = join(folder, "figures");
writeFileSync(file, "");
const env = { ...process.env, FARHAND_FAULTS: "long", FARHAND_FAULTS_FIGURES: file, FARHAND_AGENT: await buildAgent() };
const args = ["test", "--quiet", "-p", "farhand-tests", "--test", "e2e", "--", "faults::", `--test-threads=${KINDS}`];
say(`> cargo ${args.join(" ")}`);
const began = Date.now();
const done = spawnSync("cargo", args, { cwd: root, env, stdio: "inherit", timeout: TIMEOUT_MS });
const seconds = (Date.now() - began) / 1000;
const lines = readFileSync(file, "utf8").split("\n").filter(Boolean);
const figures = lines.map((line) => JSON.parse(line)).sort((one, other) => (one.kind < other.kind ? -1 : 1));
rmSync(folder, { recursive: true, force: true });
// The figures of a failed run are printed, but not written into the document.
if (done.status !== 0) fail(`the fault tests failed\n${markdown(figures, seconds)}`);
publish("faults", markdown(figures, seconds), "docs/reliability.md");
