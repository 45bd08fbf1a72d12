// npm run bench -- batches
//
// Measures reads of batches in a workspace with 1,000 batches of 1,000 targets, relative to a
// workspace with 10 batches of 10 (docs/contributing/performance.md, Batches). Two instances of the
// service are measured alternately. The newest batches are open: half of their targets run, the
// others have not started. The data takes about 2 GB, in memory if there is room. Uses loopback
// only.
import { existsSync, mkdtempSync, rmSync, statfsSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { build } from "../scripts/build.mjs";
import { freePort, startInstance } from "../scripts/instance.mjs";
import { say } from "../scripts/lib.mjs";
import { compare } from "./compare.mjs";
import { counted, d1File, execute, moment, select, serverId } from "./data.mjs";
import { Client } from "./load.mjs";
import { isCheck, judged, publish, ratio, table } from "./report.mjs";
import { makeWorkspace, userToken } from "./workspace.mjs";

const PATH = "/api/events/batches/";
/** The instances, with the number of batches and the number of targets of each. */
const SIZES = { large: isCheck ? [30, 20] : [1_000, 1_000], small: [10, 10] };
/** The newest batches are open: as many as a user may have by default. */
const OPEN = 20;
const PAGE = "page_size=10";
const STATE_BYTES = 4e9;

/** SQL for the numbers from 1 to `count`, as a table with the column `i`. */
const numbers = (count) => `(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${count}) SELECT i FROM n)`;

/**
 * SQL that creates batches of the user `user`. The rows are the same as if the service had created
 * them. An open batch has as many running commands as it may have, so it starts no others.
 */
const batches = (workspace, user, count, targets) => {
  const id = `printf('%08x-0000-7000-9000-%012x', ${workspace}, b.i)`;
  const server = serverId(workspace, "t.i");
  const isOpen = `b.i > ${count - OPEN}`;
  const half = targets / 2;
  const states = ["pending", "queued", "sent", "running", "success", "failed", "cancelled", "expired", "stuck", "skipped"];
  const counts = states.map((state) => `'${state}', ${state === "success" ? targets : 0}`).join(", ");
  const [begun, ended] = [moment("b.i * 60"), moment("b.i * 60 + 10")];
  return `
INSERT INTO servers (id, workspace_id, name, agent_key_hash, added_at, updated_at)
SELECT ${server}, ${workspace}, printf('server-%04d', t.i), '', '', '' FROM ${numbers(targets)} t;
INSERT INTO batches (id, workspace_id, name, requested_by, shell, line, username, groupname, timeout, max_concurrency, on_offline,
  added_at, scheduled_at, expires_at, finished_at, state, total, pending, counts)
SELECT ${id}, ${workspace}, 'bench', ${user}, 'system', 'uptime', 'root', '', 60, ${half}, 'queue', ${begun}, ${begun},
  '2999-12-31T00:00:00.000000+00:00', iif(${isOpen}, NULL, ${ended}), iif(${isOpen}, 'running', 'finished'), ${targets},
  iif(${isOpen}, ${half}, 0), iif(${isOpen}, NULL, json_object('total', ${targets}, ${counts})) FROM ${numbers(count)} b;
INSERT INTO batch_counts (workspace_id, batch_id, running) SELECT ${workspace}, ${id}, ${half} FROM ${numbers(count)} b WHERE ${isOpen};
INSERT INTO batch_targets (workspace_id, batch_id, position, server_id, server_name)
SELECT ${workspace}, ${id}, t.i - 1, ${server}, printf('server-%04d', t.i) FROM ${numbers(count)} b CROSS JOIN ${numbers(targets)} t;
INSERT INTO commands (seq, workspace_id, id, server_id, server_name, requested_by, shell, line, username, groupname, timeout,
  added_at, scheduled_at, expires_at, delivered_at, acked_at, handled_at, state, status_message, success, exit_code, result,
  result_sha256, revision, batch_id)
SELECT (${workspace} << 40) + (b.i - 1) * ${targets} + t.i, ${workspace}, printf('%08x-0000-7000-a000-%06x%06x', ${workspace}, b.i, t.i),
  ${server}, printf('server-%04d', t.i), ${user}, 'system', 'uptime', 'root', '', 60, ${begun}, ${begun},
  '2999-12-31T00:00:00.000000+00:00', ${begun}, ${begun}, iif(${isOpen}, NULL, ${ended}), iif(${isOpen}, 'acked', 'success'), '',
  iif(${isOpen}, NULL, 1), iif(${isOpen}, NULL, 0), iif(${isOpen}, NULL, 'up ' || t.i % 3 || ' days'),
  iif(${isOpen}, NULL, printf('%064x', t.i % 3)), 2, ${id}
FROM ${numbers(count)} b CROSS JOIN ${numbers(targets)} t WHERE NOT ${isOpen} OR t.i <= ${half};
${counted({ workspace })}`;
};

/** Creates the data of an instance, and starts it. */
async function start(folder, name) {
  const stateDir = join(folder, name);
  // With a retention of 0 days, the service keeps old commands.
  const environment = { ...process.env, PBKDF2_ITERATIONS: "100000", COMMAND_RETENTION_DAYS: "0", QUOTA_BYTES_PER_DAY: "1000000000000" };
  const serve = async () => startInstance({ stateDir, port: await freePort(), environment });
  const first = await serve();
  const client = new Client(first.url, 1);
  const { apiToken } = await makeWorkspace(client, first.operatorToken, "demo");
  await client.close();
  await first.stop();
  const file = d1File(stateDir);
  const [{ id: workspace, user }] = select(file, "SELECT w.id, u.id AS user FROM workspaces w JOIN users u ON u.workspace_id = w.id WHERE u.username = 'boss'");
  const triggers = select(file, "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN ('commands', 'batches', 'batch_targets')");
  const began = performance.now();
  execute(file, `PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -1000000; BEGIN;
    ${triggers.map((trigger) => `DROP TRIGGER ${trigger.name};`).join("\n")}
    ${batches(workspace, user, ...SIZES[name])}
    ${triggers.map((trigger) => `${trigger.sql};`).join("\n")}
    COMMIT; PRAGMA journal_mode = WAL;`);
  say(`batches: ${name}: data created in ${Math.round((performance.now() - began) / 1000)} s`);
  const instance = await serve();
  return { ...instance, client: new Client(instance.url, 1), headers: userToken(apiToken), workspace, count: SIZES[name][0] };
}

/** A request that `compare` can send. `path` is the part after the path of batches. */
const read = ({ client, headers, logFile }, path) => ({ logFile, send: (more) => client.json("GET", PATH + path, { headers: { ...headers, ...more } }) });

/** The path of the batch with a number. */
const batch = ({ workspace }, number) => `${workspace.toString(16).padStart(8, "0")}-0000-7000-9000-${number.toString(16).padStart(12, "0")}/`;

/**
 * What is read: its name, the path, and whether its cost must not depend on the size.
 * @type {[string, (instance: {workspace: number, count: number}) => string, boolean][]}
 */
const READS = [
  ["first page of batches, all of them open", () => `?${PAGE}`, true],
  ["an open batch", (instance) => batch(instance, instance.count), true],
  ["first page of targets of an open batch", (instance) => `${batch(instance, instance.count)}targets/?${PAGE}`, true],
  ["first page of targets of the oldest batch", (instance) => `${batch(instance, 1)}targets/?${PAGE}`, true],
  ["targets with `state=running` of an open batch", (instance) => `${batch(instance, instance.count)}targets/?state=running&${PAGE}`, false],
  ["first page of outputs of the oldest batch", (instance) => `${batch(instance, 1)}outputs/?${PAGE}`, false],
];

await build();
const memory = existsSync("/dev/shm") ? statfsSync("/dev/shm") : { bavail: 0, bsize: 0 };
const folder = mkdtempSync(join(memory.bavail * memory.bsize > STATE_BYTES ? "/dev/shm" : tmpdir(), "farhand-batches-"));
const running = [];
try {
  for (const name of Object.keys(SIZES)) running.push(await start(folder, name));
  const [large, small] = running;
  const rows = [];
  for (const [name, path, isBounded] of READS) {
    const found = await compare(read(large, path(large)), read(small, path(small)));
    say(`${name}: ${ratio(found.ratio)}, ${found.time.toFixed(2)} ms / ${found.against.toFixed(2)} ms, rows ${found.rows} / ${found.base.rows}`);
    rows.push([name, `${ratio(found.ratio)} (${found.time.toFixed(1)} ms)`, isBounded ? judged(found.ratio, { most: 1.25 }) : "", `${found.rows} / ${found.base.rows}`]);
  }
  publish("batches", table(["at 1,000 batches of 1,000 / at 10 of 10", "reached", "must reach", "rows read"], rows));
} finally {
  for (const { client, stop } of running) {
    await client.close();
    await stop();
  }
  rmSync(folder, { recursive: true, force: true });
}
