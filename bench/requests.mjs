// node bench/requests.mjs [--windows N] [--milliseconds N] [--against CHECKOUT] [--only TEXT]
//
// Measures the cost of requests relative to peers (bench/peers.mjs), the size of the Worker, and
// its start-up time. The service and the peers are measured in alternating time windows. Writes the
// table `requests` of docs/contributing/performance.md. With --against, also compares the service
// with the service of another checkout. With --only, measures only requests whose description
// contains TEXT. With --against or --only, only prints the table.
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { build } from "../scripts/build.mjs";
import { say } from "../scripts/lib.mjs";
import { sizes } from "../scripts/size.mjs";
import { connectAgent } from "./agent.mjs";
import { Client, alternate, timesAsMuch } from "./load.mjs";
import { observe } from "./observe.mjs";
import { buildCrate, buildOther, copyDatabase, runBench, startOther, startPeer, startService, stopAll } from "./peers.mjs";
import { isCheck, judged, publish, ratio, table } from "./report.mjs";
import { startUp } from "./startup.mjs";
import { makeWorkspace, userToken } from "./workspace.mjs";

const { values: options } = parseArgs({
  options: {
    windows: { type: "string", default: isCheck ? "1" : "30" },
    milliseconds: { type: "string", default: isCheck ? "50" : "250" },
    against: { type: "string" },
    only: { type: "string", default: "" },
  },
});
const turns = { windows: Number(options.windows), milliseconds: Number(options.milliseconds) };
const CONNECTIONS = 8;
/** The number of commands in the database. */
const COMMANDS = 200;
const ROUNDS = 600_000;
const LAUNCHES = isCheck ? 1 : 21;
const OUTBOX_TIMEOUT_MS = 10_000;
const LIST = "/api/events/commands/";
const STATUS = "/api/status/";
const IS_AUTHENTICATED = "/api/auth/is-authenticated/";
const LOGIN = "/api/auth/login/";
/** The object of the peer that runs commands. */
const SERVER_OBJECTS = {
  durable_objects: { bindings: [{ name: "SERVERS", class_name: "Server" }] },
  migrations: [{ tag: "v1", new_sqlite_classes: ["Server"] }],
};

/**
 * Creates a workspace with a superuser, tokens, and a server whose agent has run `COMMANDS`
 * commands.
 */
async function fill({ url, operatorToken }) {
  const client = new Client(url, CONNECTIONS);
  const tokens = await makeWorkspace(client, operatorToken, "demo");
  const headers = userToken(tokens.apiToken);
  const server = await client.json("POST", "/api/servers/", { headers, body: { name: "bench" }, expected: 201 });
  const facts = { ...tokens, server };

  const agent = await connectAgent(url, server);
  const run = runsCommands(client, facts);
  for (let ran = 0; ran < COMMANDS; ran += 1) await run();
  // The last results reach D1 a little later.
  const latest = async () => (await client.json("GET", LIST, { headers })).results;
  const until = Date.now() + OUTBOX_TIMEOUT_MS;
  while (!(await latest()).every(({ success }) => success)) {
    if (Date.now() > until) throw new Error("the last results did not reach D1");
  }
  const command = (await latest()).at(-1).id;
  await agent.close();
  await client.close();
  return { ...facts, command };
}

/** Returns a function that runs a command and waits for its result. */
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

/** Returns the list of commands from a service or peer, without its own URL. */
async function listed({ url }, apiToken) {
  const client = new Client(url, 1);
  const text = await client.call("GET", LIST, { headers: userToken(apiToken) });
  await client.close();
  return JSON.stringify(JSON.parse(text.replaceAll(url, "")));
}

/**
 * Starts the service and all peers. The peers that read commands get a copy of the service's
 * database.
 */
async function startAll(folder) {
  const filling = await startService(folder);
  const facts = await fill(filling);
  await filling.stop();
  const statement = (await observe(folder, ({ get }) => get(LIST, facts.apiToken))).statements.at(-1);
  for (const name of ["hono", "list", "command"]) copyDatabase(folder, name);
  const all = {
    service: { ...(await startService(folder)), facts },
    hono: await startPeer(folder, "hono", "hono/index.ts"),
    list: await startPeer(folder, "list", "javascript/list.js", { statement }),
    isAuthenticated: await startPeer(folder, "is-authenticated", "javascript/is-authenticated.js"),
    command: await startPeer(folder, "command", "javascript/command.js", {}, SERVER_OBJECTS),
    d1: await startPeer(folder, "floor-d1", "floor/d1.js"),
    empty: await startPeer(folder, "floor-empty", "floor/empty.js"),
    crate: await startPeer(folder, "crate", "crate/worker.js"),
  };
  for (const name of ["service", "command"]) await connectAgent(all[name].url, facts.server);
  if (options.against) {
    const other = await startOther(folder, options.against);
    all.other = { ...other, facts: await fill(other) };
    await connectAgent(other.url, all.other.facts.server);
  }
  const own = await listed(all.service, facts.apiToken);
  for (const name of ["hono", "list"]) {
    const theirs = await listed(all[name], facts.apiToken);
    if (theirs !== own) throw new Error(`the peer ${name} does not return the same list: ${theirs.slice(0, 1500)}, not ${own.slice(0, 1500)}`);
  }
  return all;
}

/**
 * Measures the requests. Returns the rows of the table, and the client's maximum CPU time as a
 * share of the elapsed time.
 */
async function measureRequests(folder) {
  const { service, other, hono, list, isAuthenticated, command: commandPeer, d1, empty, crate } = await startAll(folder);
  const rows = [];
  let busiest = 0;
  const chosen = (what) => what.includes(options.only);
  /** The same work for the service and, with --against, for the other checkout. */
  const both = (work) => ({ service: work(service), ...(other && { other: work(other) }) });
  const addRow = (what, of, figure, bounds, against) => {
    const row = [what, of, ratio(figure), bounds ? judged(figure, bounds) : ""];
    rows.push(other ? [...row, ratio(against)] : row);
    say(rows.at(-1).join(" | "));
  };
  /** Adds a row for each peer: its CPU time per request, divided by the service's CPU time. */
  const cheapness = async (what, work, peers) => {
    if (!chosen(what)) return;
    const works = Object.entries(peers).map(([name, { work }]) => [name, work]);
    const figures = await alternate({ ...both(work), ...Object.fromEntries(works) }, { ...turns, width: CONNECTIONS });
    busiest = Math.max(busiest, ...Object.values(figures).flat().map(({ busy }) => busy));
    const against = other && timesAsMuch(figures.other, figures.service, "cpu");
    for (const [name, { of, bounds }] of Object.entries(peers)) {
      addRow(what, of, timesAsMuch(figures[name], figures.service, "cpu"), bounds, against);
    }
  };
  /** Adds a row: the service's latency of single requests, divided by a peer's latency. */
  const latency = async (what, work, { of, work: peer, bounds = null }) => {
    if (!chosen(what)) return;
    const figures = await alternate({ ...both(work), peer }, { ...turns, width: 1 });
    const against = other && timesAsMuch(figures.service, figures.other, "latency");
    addRow(what, of, timesAsMuch(figures.service, figures.peer, "latency"), bounds, against);
  };
  const getting = ({ url, pid }, path, token) => {
    const client = new Client(url, CONNECTIONS, token && userToken(token));
    return { pid, work: () => client.call("GET", path) };
  };

  const floor = { of: "one call to D1", work: getting(d1, "/") };
  await cheapness(`\`GET ${LIST}\`, 15 commands`, (ours) => getting(ours, LIST, ours.facts.apiToken), {
    list: { of: "JavaScript, the same work", work: getting(list, LIST, service.facts.apiToken), bounds: { least: 0.93 } },
    floor: { ...floor, bounds: { least: 0.63 } },
    hono: { of: "Hono, the same list", work: getting(hono, LIST, service.facts.apiToken), bounds: { least: 1 } },
  });
  await cheapness(`\`GET ${LIST}\`, login token`, (ours) => getting(ours, LIST, ours.facts.loginToken), {
    floor: { ...floor, bounds: { least: 0.6 } },
  });
  await cheapness(`\`GET ${IS_AUTHENTICATED}\`, no header`, (ours) => getting(ours, IS_AUTHENTICATED), {
    peer: { of: "JavaScript, the same work", work: getting(isAuthenticated, IS_AUTHENTICATED), bounds: { least: 0.88 } },
    empty: { of: "a Worker that only answers", work: getting(empty, "/") },
  });
  await cheapness(`\`GET ${STATUS}\`, API token`, (ours) => getting(ours, STATUS, ours.facts.apiToken), { floor });
  await cheapness(`\`GET ${STATUS}\`, login token`, (ours) => getting(ours, STATUS, ours.facts.loginToken), { floor });
  const command = ({ facts }) => `${LIST}${facts.command}/`;
  await cheapness(`\`GET ${LIST}<id>/\``, (ours) => getting(ours, command(ours), ours.facts.apiToken), { floor });
  const running = ({ url, pid, facts }) => ({ pid, work: runsCommands(new Client(url, CONNECTIONS), facts) });
  const toResult = `\`POST ${LIST}\` with \`Prefer: wait\`: time to the result`;
  await latency(toResult, running, { of: "one call to D1", work: getting(d1, "/"), bounds: { most: 8 } });
  const runningThere = running({ ...commandPeer, facts: service.facts });
  await latency(toResult, running, { of: "JavaScript, the same way", work: runningThere });
  await cheapness(`\`POST ${LIST}\` with \`Prefer: wait\`: CPU`, running, { peer: { of: "JavaScript, the same way", work: runningThere } });
  const loggingIn = ({ url, pid, facts }) => {
    const client = new Client(url, 1);
    return { pid, work: () => client.call("POST", LOGIN, { body: facts.login }) };
  };
  await latency(`\`POST ${LOGIN}\`, ${ROUNDS} rounds: time`, loggingIn, {
    of: "the bare `pbkdf2` crate in wasm, without SIMD",
    work: getting(crate, `/?rounds=${ROUNDS}`),
    bounds: { most: 0.95 },
  });
  return { rows, busiest };
}

/** The size of the Worker, and its start-up time. */
async function weigh(folder) {
  const kilobytes = sizes().reduce((sum, { zipped }) => sum + zipped, 0) / 1000;
  const launched = join(folder, "launched");
  mkdirSync(launched);
  const milliseconds = await startUp(launched, LAUNCHES);
  return [
    ["bundle, gzipped", "", `${kilobytes.toFixed(0)} KB`, judged(kilobytes, { most: 1300, unit: " KB" })],
    ["from the launch to the first answer, over an empty Worker", "", `${milliseconds.toFixed(0)} ms`, judged(milliseconds, { most: 35, unit: " ms" })],
  ];
}

async function bench(folder) {
  // The builds come first, because a failed build ends this process immediately.
  await build();
  await buildCrate(folder);
  if (options.against) buildOther(options.against);
  const { rows, busiest } = await measureRequests(folder);
  await stopAll();
  if (options.only === "") rows.push(...(await weigh(folder)));
  const columns = ["what", "in relation to", "reached", "must reach", ...(options.against ? ["now / other"] : [])];
  const how = `How many times as much of workerd's CPU the peer takes for a request, with ${CONNECTIONS} connections; or the time of \
one, one at a time.\nMedians of ${turns.windows} pairs of windows of ${turns.milliseconds} ms in turn.\nThe client was busy for ${(100 * busiest).toFixed(0)} % of the time at most.`;
  const text = `${table(columns, rows)}\n\n${how}`;
  if (options.against || options.only) console.log(`\n${text}`);
  else publish("requests", text);
}

await runBench(bench);
