// node bench/requests.mjs [--windows N] [--milliseconds N] [--against CHECKOUT]: what requests cost, each in relation to a peer that
// runs beside the service and takes its turn with it, and what the Worker weighs. Writes the table `requests` of
// docs/performance.md; with another checkout, whose service is one more peer, it only prints it.
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { build } from "../scripts/build.mjs";
import { say } from "../scripts/lib.mjs";
import { sizes } from "../scripts/size.mjs";
import { connectAgent } from "./agent.mjs";
import { Client, alternate } from "./load.mjs";
import { buildCrate, buildOther, copyDatabase, startOther, startPeer, startService, stopAll } from "./peers.mjs";
import { judged, publish, ratio, table } from "./report.mjs";
import { startUp } from "./startup.mjs";
import { makeWorkspace, userToken } from "./workspace.mjs";

const { values: options } = parseArgs({
  options: {
    windows: { type: "string", default: "5" },
    milliseconds: { type: "string", default: "2000" },
    against: { type: "string" },
  },
});
const turns = { windows: Number(options.windows), milliseconds: Number(options.milliseconds) };
const CONNECTIONS = 8;
/** How many commands the lists are of. */
const COMMANDS = 200;
const ROUNDS = 600_000;
const LAUNCHES = 21;
const SETTLES_WITHIN_MS = 10_000;
const LIST = "/api/events/commands/";
const STATUS = "/api/status/";
const IS_AUTHENTICATED = "/api/auth/is-authenticated/";
const LOGIN = "/api/auth/login/";

/** Makes a workspace with a superuser, tokens and a server, whose agent has run commands. */
async function fill({ url, operatorToken }) {
  const client = new Client(url, CONNECTIONS);
  const tokens = await makeWorkspace(client, operatorToken, "demo");
  const headers = userToken(tokens.apiToken);
  const server = await client.json("POST", "/api/servers/", { headers, body: { name: "bench" }, expected: 201 });
  const facts = { ...tokens, server };

  const agent = await connectAgent(url, server);
  const run = runsCommands(client, facts);
  for (let ran = 0; ran < COMMANDS; ran += 1) await run();
  // D1 is told of the last ones a little later.
  const latest = async () => (await client.json("GET", LIST, { headers })).results;
  const until = Date.now() + SETTLES_WITHIN_MS;
  while (!(await latest()).every(({ success }) => success)) {
    if (Date.now() > until) throw new Error("D1 was not told of the last commands");
  }
  facts.command = (await latest()).at(-1).id;
  await agent.close();
  await client.close();
  return facts;
}

/** What runs a command and waits for its result. */
function runsCommands(client, { apiToken, server }) {
  const headers = { ...userToken(apiToken), Prefer: "wait=20" };
  let number = 0;
  return async () => {
    number += 1;
    const body = { server: server.name, line: `echo the bench runs its command ${number}`, username: "bench" };
    const { success } = await client.json("POST", LIST, { headers, body, expected: 201 });
    if (success !== true) throw new Error(`command ${number} did not succeed in time`);
  };
}

/** The list as one answers it, without its own address in it. */
async function listed({ url }, apiToken) {
  const client = new Client(url, 1);
  const text = await client.call("GET", LIST, { headers: userToken(apiToken) });
  await client.close();
  return JSON.stringify(JSON.parse(text.replaceAll(url, "")));
}

/** Starts everything that is measured, with the same commands in each database. */
async function startAll(folder) {
  const filling = await startService(folder);
  const facts = await fill(filling);
  await filling.stop();
  copyDatabase(folder, "hono");
  const all = {
    service: { ...(await startService(folder)), facts },
    hono: await startPeer(folder, "hono", "hono/index.ts"),
    d1: await startPeer(folder, "floor-d1", "floor/d1.js"),
    empty: await startPeer(folder, "floor-empty", "floor/empty.js"),
    crate: await startPeer(folder, "crate", "crate/worker.js"),
  };
  await connectAgent(all.service.url, facts.server);
  if (options.against) {
    const other = await startOther(folder, options.against);
    all.other = { ...other, facts: await fill(other) };
    await connectAgent(other.url, all.other.facts.server);
  }
  const [own, its] = [await listed(all.service, facts.apiToken), await listed(all.hono, facts.apiToken)];
  if (own !== its) throw new Error("the peer hono does not answer the same list");
  return all;
}

/** Measures the requests; returns rows of the table, and how busy the client was at most, from 0 to 1. */
async function measureRequests(folder) {
  const { service, other, hono, d1, empty, crate } = await startAll(folder);
  const rows = [];
  let busiest = 0;
  /** The same work of the service and, where that is asked for, of the other checkout's. */
  const both = (work) => ({ service: work(service), ...(other && { other: work(other) }) });
  const told = (what, of, figure, bounds, against) => {
    const row = [what, of, ratio(figure), bounds ? judged(figure, bounds) : ""];
    rows.push(other ? [...row, ratio(against)] : row);
    say(rows.at(-1).join(" | "));
  };
  /** Requests a second: how many the service answers for each that a peer does. */
  const throughput = async (what, work, peers) => {
    const works = Object.entries(peers).map(([name, { work }]) => [name, work]);
    const figures = await alternate({ ...both(work), ...Object.fromEntries(works) }, { ...turns, width: CONNECTIONS });
    busiest = Math.max(busiest, ...Object.values(figures).map(({ busy }) => busy));
    const against = figures.service.rate / figures.other?.rate;
    for (const [name, { of, bounds }] of Object.entries(peers)) {
      told(what, of, figures.service.rate / figures[name].rate, bounds, against);
    }
  };
  /** The time of one, one at a time. */
  const latency = async (what, work, { of, work: peer, bounds }) => {
    const figures = await alternate({ ...both(work), peer }, { ...turns, width: 1 });
    const against = figures.service.latency / figures.other?.latency;
    told(what, of, figures.service.latency / figures.peer.latency, bounds, against);
  };
  const getting = ({ url }, path, token) => {
    const client = new Client(url, CONNECTIONS, token && userToken(token));
    return () => client.call("GET", path);
  };

  const floor = { of: "one call to D1", work: getting(d1, "/") };
  await throughput(`\`GET ${LIST}\`, 15 commands`, (ours) => getting(ours, LIST, ours.facts.apiToken), {
    floor: { ...floor, bounds: { least: 0.9 } },
    hono: { of: "Hono, the same list", work: getting(hono, LIST, service.facts.apiToken), bounds: { least: 1 } },
  });
  await throughput(`\`GET ${IS_AUTHENTICATED}\`, no header`, (ours) => getting(ours, IS_AUTHENTICATED), {
    empty: { of: "a Worker that only answers", work: getting(empty, "/"), bounds: { least: 0.8 } },
  });
  await throughput(`\`GET ${STATUS}\`, API token`, (ours) => getting(ours, STATUS, ours.facts.apiToken), { floor });
  await throughput(`\`GET ${STATUS}\`, login token`, (ours) => getting(ours, STATUS, ours.facts.loginToken), { floor });
  const command = ({ facts }) => `${LIST}${facts.command}/`;
  await throughput(`\`GET ${LIST}<id>/\``, (ours) => getting(ours, command(ours), ours.facts.apiToken), { floor });
  await latency(
    `\`POST ${LIST}\` with \`Prefer: wait\`: time to the result`,
    ({ url, facts }) => runsCommands(new Client(url, 1), facts),
    { of: "one call to D1", work: getting(d1, "/"), bounds: { most: 10 } },
  );
  const loggingIn = ({ url, facts }) => {
    const client = new Client(url, 1);
    return () => client.call("POST", LOGIN, { body: facts.login });
  };
  const hashing = getting(crate, `/?rounds=${ROUNDS}`);
  await latency(`\`POST ${LOGIN}\`, ${ROUNDS} rounds: time`, loggingIn, {
    of: "the bare `pbkdf2` crate in wasm",
    work: hashing,
    bounds: { most: 1.1 },
  });
  return { rows, busiest };
}

/** What the Worker weighs, and how long it takes to start. */
async function weigh(folder) {
  const kilobytes = sizes().reduce((sum, { zipped }) => sum + zipped, 0) / 1000;
  const launched = join(folder, "launched");
  mkdirSync(launched);
  const milliseconds = await startUp(launched, LAUNCHES);
  return [
    ["bundle, gzipped", "", `${kilobytes.toFixed(0)} KB`, judged(kilobytes, { most: 300, unit: " KB" })],
    ["start-up of the global scope", "", `${milliseconds.toFixed(0)} ms`, judged(milliseconds, { most: 50, unit: " ms" })],
  ];
}

async function bench(folder) {
  // A build that fails ends this process at once, so they come before anything is started.
  await build();
  await buildCrate(folder);
  if (options.against) buildOther(options.against);
  const { rows, busiest } = await measureRequests(folder);
  await stopAll();
  rows.push(...(await weigh(folder)));
  const columns = ["what", "in relation to", "reached", "must reach", ...(options.against ? ["now / other"] : [])];
  const how = `Requests a second with ${CONNECTIONS} connections, or the time of one, one at a time; medians of ${turns.windows} windows of \
${turns.milliseconds / 1000} s in turn. The client was busy for ${(100 * busiest).toFixed(0)} % of the time at most.`;
  const text = `${table(columns, rows)}\n\n${how}`;
  if (options.against) console.log(`\n${text}`);
  else publish("requests", text);
}

for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.once(signal, () => void stopAll().then(() => process.exit(1)));
const folder = mkdtempSync(join(tmpdir(), "farhand-bench-"));
try {
  await bench(folder);
} catch (error) {
  say(error.stack);
  process.exitCode = 1;
} finally {
  await stopAll();
  rmSync(folder, { recursive: true, force: true });
}
process.exit();
