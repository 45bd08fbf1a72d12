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
import { copyDatabase, startOther, startPeer, startService, stopAll } from "./peers.mjs";
import { judged, publish, ratio, table } from "./report.mjs";
import { startUp } from "./startup.mjs";

const { values: options } = parseArgs({
  options: {
    windows: { type: "string", default: "5" },
    milliseconds: { type: "string", default: "2000" },
    against: { type: "string" },
  },
});
const WINDOWS = Number(options.windows);
const MILLISECONDS = Number(options.milliseconds);
const CONNECTIONS = 8;
const COMMANDS = 200;
const ROUNDS = 600_000;
const LAUNCHES = 21;
const SETTLES_WITHIN_MS = 10_000;
const LIST = "/api/events/commands/";

const userToken = (token) => ({ Authorization: `token="${token}"` });

/** Makes a workspace with a superuser, an API token and a server, whose agent has run commands. */
async function fill({ url, operatorToken }) {
  const client = new Client(url, CONNECTIONS);
  const call = async (path, headers, body, expected = 201) =>
    JSON.parse(await client.call("POST", path, { headers, body, expected }));
  const admin = { username: "admin", email: "admin@example.com", password: "a long one, for the bench" };
  await call("/operator/workspaces/", { Authorization: `Bearer ${operatorToken}` }, { slug: "demo", admin });
  const login = { username: admin.username, password: admin.password };
  const { token: loginToken } = await call("/api/auth/login/", {}, login, 200);
  const { key: apiToken } = await call("/api/auth/tokens/", userToken(loginToken), { name: "bench", expires_at: null });
  const server = await call("/api/servers/", userToken(apiToken), { name: "bench" });
  const facts = { login, loginToken, apiToken, server };
  const agent = await connectAgent(url, server);
  const run = runsCommands(client, facts);
  for (let ran = 0; ran < COMMANDS; ran += 1) await run();
  // D1 is told of the last ones a little later.
  const until = Date.now() + SETTLES_WITHIN_MS;
  const isSettled = async () => {
    const { results } = JSON.parse(await client.call("GET", LIST, { headers: userToken(apiToken) }));
    return results.every(({ success }) => success);
  };
  while (!(await isSettled())) if (Date.now() > until) throw new Error("D1 was not told of the last commands");
  facts.command = JSON.parse(await client.call("GET", LIST, { headers: userToken(apiToken) })).results.at(-1).id;
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
    const { success } = JSON.parse(await client.call("POST", LIST, { headers, body, expected: 201 }));
    if (success !== true) throw new Error(`command ${number} did not succeed in time`);
  };
}

/** The list as one answers it, without its own address in it. */
async function listed(url, apiToken) {
  const client = new Client(url, 1);
  const text = await client.call("GET", LIST, { headers: userToken(apiToken) });
  await client.close();
  return JSON.stringify(JSON.parse(text.replaceAll(url, "")));
}

/** Has all of these do the same in turn, one or more at a time. */
const inTurn = (width, peers) => alternate(peers, { width, windows: WINDOWS, milliseconds: MILLISECONDS });

async function bench(folder) {
  await build();
  let service = await startService(folder);
  const other = options.against && (await startOther(folder, options.against));
  const facts = await fill(service);
  const otherFacts = other && (await fill(other));
  await service.stop();
  copyDatabase(folder, "hono");
  service = await startService(folder);
  const hono = await startPeer(folder, "hono", "hono/index.ts");
  if ((await listed(hono.url, facts.apiToken)) !== (await listed(service.url, facts.apiToken))) {
    throw new Error("the peer hono does not answer the same list");
  }
  const d1 = await startPeer(folder, "floor-d1", "floor/d1.js");
  const empty = await startPeer(folder, "floor-empty", "floor/empty.js");
  const crate = await startPeer(folder, "crate", "crate/worker.js");
  await connectAgent(service.url, facts.server);
  if (other) await connectAgent(other.url, otherFacts.server);

  const clients = {};
  const client = ({ url }, width) => (clients[`${url} ${width}`] ??= new Client(url, width));
  const get = (instance, path, token) => {
    const headers = token ? userToken(token) : {};
    return () => client(instance, CONNECTIONS).call("GET", path, { headers });
  };
  /** The same of the service and, where it is asked for, of the other checkout's. */
  const ours = (make) => ({ service: make(service, facts), ...(other && { other: make(other, otherFacts) }) });
  const rows = [];
  let busiest = 0;
  const told = (what, of, figure, against, bounds) => {
    const cells = [what, of, ratio(figure), bounds ? judged(figure, bounds) : ""];
    rows.push(other ? [...cells, against === undefined ? "" : ratio(against)] : cells);
    say(rows.at(-1).join(" | "));
  };
  /** Requests a second: of each peer, whose bounds are given, how often the service answers for each answer of it. */
  const throughput = async (what, make, peers) => {
    const workers = Object.fromEntries(Object.entries(peers).map(([name, { work }]) => [name, work]));
    const figures = await inTurn(CONNECTIONS, { ...ours(make), ...workers });
    busiest = Math.max(busiest, ...Object.values(figures).map(({ busy }) => busy));
    const { service: own, other: its } = figures;
    for (const [name, { of, bounds }] of Object.entries(peers)) {
      told(what, of, own.rate / figures[name].rate, its && own.rate / its.rate, bounds);
    }
  };
  /** Time of one, one at a time. */
  const latency = async (what, make, { of, work, bounds }) => {
    const { service: own, other: its, peer } = await inTurn(1, { ...ours(make), peer: work });
    told(what, of, own.latency / peer.latency, its && own.latency / its.latency, bounds);
  };

  const floor = { of: "one call to D1", work: get(d1, "/") };
  await throughput(`\`GET ${LIST}\`, 15 commands`, (instance, { apiToken }) => get(instance, LIST, apiToken), {
    floor: { ...floor, bounds: { least: 0.9 } },
    hono: { of: "Hono, the same list", work: get(hono, LIST, facts.apiToken), bounds: { least: 1 } },
  });
  await throughput(
    "`GET /api/auth/is-authenticated/`, no header",
    (instance) => get(instance, "/api/auth/is-authenticated/"),
    { empty: { of: "a Worker that only answers", work: get(empty, "/"), bounds: { least: 0.8 } } },
  );
  const status = "/api/status/";
  await throughput(`\`GET ${status}\`, API token`, (instance, { apiToken }) => get(instance, status, apiToken), { floor });
  await throughput(`\`GET ${status}\`, login token`, (instance, { loginToken }) => get(instance, status, loginToken), { floor });
  await throughput(
    `\`GET ${LIST}<id>/\``,
    (instance, { apiToken, command }) => get(instance, `${LIST}${command}/`, apiToken),
    { floor },
  );
  const one = () => client(d1, 1).call("GET", "/");
  await latency(
    `\`POST ${LIST}\` with \`Prefer: wait\`: time to the result`,
    (instance, its) => runsCommands(client(instance, 1), its),
    { of: "one call to D1", work: one, bounds: { most: 10 } },
  );
  await latency(
    "`POST /api/auth/login/`, 600,000 rounds: time",
    (instance, { login }) => () => client(instance, 1).call("POST", "/api/auth/login/", { body: login }),
    {
      of: "the bare `pbkdf2` crate in wasm",
      work: () => client(crate, 1).call("GET", `/?rounds=${ROUNDS}`),
      bounds: { most: 1.1 },
    },
  );
  await stopAll();

  const kilobytes = sizes().reduce((sum, { zipped }) => sum + zipped, 0) / 1000;
  const launched = join(folder, "launched");
  mkdirSync(launched);
  const milliseconds = await startUp(launched, LAUNCHES);
  rows.push(["bundle, gzipped", "", `${kilobytes.toFixed(0)} KB`, judged(kilobytes, { most: 300, unit: " KB" })]);
  rows.push(["start-up of the global scope", "", `${milliseconds.toFixed(0)} ms`, judged(milliseconds, { most: 50, unit: " ms" })]);
  const text = [
    table(["what", "in relation to", "reached", "must reach", ...(other ? ["now / other"] : [])], rows),
    "",
    `Requests a second with ${CONNECTIONS} connections, or the time of one, one at a time; medians of ${WINDOWS} windows of ${MILLISECONDS / 1000} s in turn. The client was busy for ${(100 * busiest).toFixed(0)} % of the time at most.`,
  ].join("\n");
  if (other) console.log(`\n${text}`);
  else publish("requests", text);
}

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
