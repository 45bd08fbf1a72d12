// Checks that each bench still runs with its peers, and that a peer returns what the service
// returns. Otherwise a bench that did not run for weeks may not even start. The benches run
// concurrently and with the smallest sizes, because their figures do not matter here.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { join } from "node:path";
import { describe, test } from "node:test";
import { root } from "../scripts/lib.mjs";
import { BENCHES } from "./report.mjs";

/** Runs a bench. Returns its exit status, and what it printed. */
function runBench(name) {
  const env = { ...process.env, FARHAND_BENCH_CHECK: "1" };
  const child = spawn(process.execPath, [join(root, "bench", `${name}.mjs`)], { env, stdio: ["ignore", "pipe", "pipe"] });
  let text = "";
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (part) => (text += part));
  return new Promise((done, failed) => {
    child.once("error", failed);
    child.once("close", (status) => done({ status, text }));
  });
}

describe("benches", { concurrency: true }, () => {
  for (const name of BENCHES) {
    test(`the bench ${name} runs`, async () => {
      const { status, text } = await runBench(name);
      assert.equal(status, 0, text);
      assert.match(text, /^\|---\|/m, text);
    });
  }
});
