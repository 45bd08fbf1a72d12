// npm run bench -- schedules
//
// Measures how late the runs of schedules start that are due in the same minute, and so in the same
// second: first of 50 schedules, then of 500. Each run is a batch on a server that is not
// connected. Reads the lag where users see it, in `runs/` of each schedule. Uses loopback only.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { build } from "../scripts/build.mjs";
import { freePort, startInstance } from "../scripts/instance.mjs";
import { fail, say } from "../scripts/lib.mjs";
import { Client } from "./load.mjs";
import { isCheck, judged, percentile, publish, table } from "./report.mjs";
import { makeWorkspace, userToken } from "./workspace.mjs";

const PATH = "/api/events/schedules/";
const MINUTE_MS = 60_000;
/** The contract bounds the lag of this many runs that are due in the same second. */
const BOUNDED = isCheck ? 1 : 50;
const COUNTS = isCheck ? [1] : [BOUNDED, 500];
const MAX_LAG_S = 2;
const TIMEOUT_MS = 120_000;

/** Creates schedules with one due time, which is the same for all. Returns their runs. */
async function measure({ url }, headers, count) {
  const client = new Client(url, 8);
  // Late enough for all schedules to be created before it.
  const dueAt = new Date(Math.ceil((Date.now() + MINUTE_MS + count * 100) / MINUTE_MS) * MINUTE_MS).toISOString();
  const endsAt = new Date(Date.parse(dueAt) + 1_000).toISOString();
  const body = { name: "bench", cron: "* * * * *", starts_at: dueAt, ends_at: endsAt, targets: { all: true }, line: "true", username: "worker" };
  const schedules = await each(count, () => client.json("POST", PATH, { headers, body, expected: 201 }));
  if (Date.now() > Date.parse(dueAt)) fail("the schedules were not created before they were due");
  say(`schedules: ${count} are due at ${dueAt}`);
  await pause(Date.parse(dueAt) - Date.now());
  // Does not ask the service before most runs have started: a request would delay them.
  await pause(MAX_LAG_S * 1_000 + count * 20);
  const began = Date.now();
  const runs = await each(count, async (number) => {
    for (;;) {
      const [run] = (await client.json("GET", `${PATH}${schedules[number].id}/runs/`, { headers })).results;
      if (run) return { ...run, schedule: schedules[number].id };
      if (Date.now() - began > TIMEOUT_MS) fail("a run did not start");
      await pause(200);
    }
  });
  await client.close();
  return runs;
}

/** Does some work for each number below `count`, eight at a time. */
async function each(count, work) {
  const results = [];
  for (let from = 0; from < count; from += 8) {
    results.push(...(await Promise.all(Array.from({ length: Math.min(8, count - from) }, (_, number) => work(from + number)))));
  }
  return results;
}

/** The lag of a run, in seconds. */
const lagOf = (run) => (Date.parse(run.started_at) - Date.parse(run.due_at)) / 1_000;

await build();
const folder = mkdtempSync(join(tmpdir(), "farhand-schedules-"));
const quotas = { QUOTA_SCHEDULES_PER_USER: "1000", QUOTA_BATCHES_PER_WORKSPACE: "1000", QUOTA_BYTES_PER_DAY: "1000000000000" };
const instance = await startInstance({ stateDir: folder, port: await freePort(), environment: quotas, onExit: (how) => fail(`the service ended with ${how}`) });
const client = new Client(instance.url, 1);
try {
  const { apiToken } = await makeWorkspace(client, instance.operatorToken, "demo");
  const headers = userToken(apiToken);
  await client.json("POST", "/api/servers/", { headers, body: { name: "bench" }, expected: 201 });
  const rows = [];
  for (const count of COUNTS) {
    const runs = await measure(instance, headers, count);
    const started = runs.filter((run) => run.outcome === "started" && run.started_at !== null);
    const lags = started.map(lagOf);
    // Schedules with the same due time start in the order of their ids, 50 at a time.
    const inOrder = started.toSorted((one, other) => (one.schedule < other.schedule ? -1 : 1));
    const steps = Array.from({ length: count / BOUNDED }, (_, step) => inOrder.slice(step * BOUNDED, (step + 1) * BOUNDED).map(lagOf));
    const isOrdered = steps.every((step, number) => number === 0 || Math.min(...step) >= Math.max(...steps[number - 1]));
    const worst = Math.max(...lags);
    const first = Math.max(...steps[0]);
    const within = lags.filter((lag) => lag <= MAX_LAG_S).length;
    say(`schedules: ${count}: ${started.length} started, the first ${BOUNDED} within ${first.toFixed(2)} s, median ${percentile(lags, 0.5).toFixed(2)} s, worst ${worst.toFixed(2)} s`);
    rows.push([
      `${count}`, judged(started.length, { least: count }), `${first.toFixed(1)} s`, judged(first, { most: MAX_LAG_S, unit: " s" }),
      `${worst.toFixed(1)} s`, `${within}`, isOrdered ? "yes" : "**no**",
    ]);
  }
  publish("schedules", table(
    ["schedules due in the same second", "runs that `runs/` shows as started", `last of the first ${BOUNDED}`, "must reach", "last of all", `within ${MAX_LAG_S} s`, `in order, ${BOUNDED} at a time`],
    rows,
  ));
} finally {
  await client.close();
  await instance.stop();
  rmSync(folder, { recursive: true, force: true });
}
