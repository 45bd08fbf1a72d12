// node bench/lists.mjs [FOLDER [made]]
//
// Measures lists of commands in a workspace with 1,000,000 commands, relative to a workspace with
// 1,000 commands (docs/contributing/performance.md, What lists cost). Two instances of the service
// are measured alternately, in short time windows. `shared` has three workspaces: 1,000,000
// commands, 1,000 commands, and 10,000 commands with long lines. `alone` has one workspace with
// 1,000 commands. The data takes 2 GB and a minute or two to create. If FOLDER is given, the data
// is kept there for the next run. With `made`, the bench only creates the data. Uses loopback only.
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { build } from "../scripts/build.mjs";
import { freePort, startInstance } from "../scripts/instance.mjs";
import { digest, say } from "../scripts/lib.mjs";
import { compare, rowsOf } from "./compare.mjs";
import { BEHIND, OFTEN, ONCE_OFTEN, SELDOM, d1File, fill, select, serverOf } from "./data.mjs";
import { Client } from "./load.mjs";
import { isCheck, judged, publish, ratio, table } from "./report.mjs";
import { makeWorkspace, person, tokensOf, userToken } from "./workspace.mjs";

const PATH = "/api/events/commands/";
const SIZE = 15;
const [LARGE, SMALL, LONG] = isCheck ? [2_000, 1_000, 1_000] : [1_000_000, 1_000, 10_000];
/**
 * The instances and their workspaces: the slug, the number of commands, and the number of servers
 * that have commands.
 */
const INSTANCES = {
  shared: [{ slug: "large", count: LARGE }, { slug: "small", count: SMALL, busy: 40 }, { slug: "long", count: LONG, isLong: true }],
  alone: [{ slug: "small", count: SMALL, busy: 40 }],
};

/**
 * Creates a workspace with a superuser and a user who will have access to some servers. Returns the
 * workspace's host, the tokens of both users, and the id of the restricted user.
 */
async function people({ url, operatorToken }, slug) {
  const client = new Client(url, 1);
  const host = `${slug}.local.localhost`;
  const { apiToken: superuser } = await makeWorkspace(client, operatorToken, slug, { Host: host });
  const headers = { Host: host, ...userToken(superuser) };
  const { id: user } = await client.json("POST", "/api/iam/users/", { headers, body: person("restricted"), expected: 201 });
  const { apiToken: restricted } = await tokensOf(client, "restricted", { Host: host });
  await client.close();
  return { host, superuser, restricted, user };
}

/** Starts an instance. Creates its data if the folder does not contain current data. */
async function start(folder, name) {
  const stateDir = join(folder, name);
  const factsFile = join(stateDir, "facts.json");
  // With a retention of 0 days, the service keeps old commands.
  const environment = { ...process.env, PBKDF2_ITERATIONS: "100000", COMMAND_RETENTION_DAYS: "0", QUOTA_BYTES_PER_DAY: "1000000000000" };
  const serve = async () => {
    const instance = await startInstance({ stateDir, port: await freePort(), environment });
    return { ...instance, client: new Client(instance.url, 1) };
  };
  const dataDigest = digest(["migrations", "bench/data.mjs"]);
  if (existsSync(factsFile)) {
    const facts = JSON.parse(readFileSync(factsFile, "utf8"));
    if (facts.dataDigest === dataDigest) return { ...(await serve()), workspaces: facts.workspaces };
    rmSync(stateDir, { recursive: true });
  }
  const first = await serve();
  const workspaces = {};
  for (const { slug } of INSTANCES[name]) workspaces[slug] = await people(first, slug);
  await first.client.close();
  await first.stop();
  const file = d1File(stateDir);
  const ids = new Map(select(file, "SELECT slug, id FROM workspaces").map(({ slug, id }) => [slug, id]));
  for (const { slug } of INSTANCES[name]) workspaces[slug].id = ids.get(slug);
  const began = performance.now();
  fill(file, INSTANCES[name].map((set) => ({ ...set, workspace: workspaces[set.slug].id, user: workspaces[set.slug].user })));
  say(`${name}: data created in ${Math.round((performance.now() - began) / 1000)} s`);
  writeFileSync(factsFile, JSON.stringify({ dataDigest, workspaces }), { mode: 0o600 });
  return { ...(await serve()), workspaces };
}

/**
 * A request for a list by the user `who`. `query` is the query string, or a function that returns
 * it for the workspace's id.
 */
const listRequest = ({ client, logFile, workspaces }, slug, who, query) => {
  const { host, id, [who]: key } = workspaces[slug];
  const path = `${PATH}?${typeof query === "function" ? query(id) : query}`;
  const send = (headers) => client.json("GET", path, { headers: { Host: host, ...userToken(key), ...headers } });
  return { send, logFile };
};

/** The lists that read a bounded number of rows for callers with full access. */
const BOUNDED = [
  ["without parameters", ""],
  ["`server`", (id) => `server=${serverOf(id, 2)}`],
  ["`requested_by`", (id) => `requested_by=${id * 100_000 + 7}`],
  ["`state=queued`", "state=queued"],
  ["`success=true`", "success=true"],
  ["`success=false`", "success=false"],
  ["`ordering=scheduled_at`", "ordering=scheduled_at"],
  ["`ordering=-scheduled_at`", "ordering=-scheduled_at"],
];
/** The lists that read what they match. */
const OTHERS = [
  ["`shell=system`", "shell=system"],
  ["`shell=internal`", "shell=internal"],
  ["`requested_by_isnull=true`", "requested_by_isnull=true"],
  ["`requested_by_isnull=false`", "requested_by_isnull=false"],
  ["`is_scheduled=true`", "is_scheduled=true"],
  ["`is_scheduled=false`", "is_scheduled=false"],
];
const ORDERINGS = ["added_at", "-added_at", "-delivered_at", "-acked_at", "-handled_at"].map((name) => [`\`ordering=${name}\``, `ordering=${name}`]);
/** The goal for lists that read what they match. */
const MAX_MS = 200;

/** Prints a figure and returns it. */
const printFigure = (name, found) => {
  say(`${name.padEnd(46)} ${ratio(found.ratio).padStart(7)}  ${found.time.toFixed(2)} ms / ${found.against.toFixed(2)} ms, rows ${found.rows} / ${found.base.rows}, of ${found.count}`);
  return found;
};

async function firstPages(shared, alone) {
  const measured = (name, who, query, label) =>
    compare(listRequest(shared, "large", who, query), listRequest(alone, "small", who, query)).then((found) => printFigure(`${name}, ${label}`, found));
  const rows = [];
  for (const [name, query] of [...BOUNDED, ...OTHERS, ...ORDERINGS]) {
    const isBounded = BOUNDED.some(([bounded]) => bounded === name);
    const cells = [name];
    for (const [who, label] of [["superuser", "all servers"], ["restricted", "some servers"]]) {
      const found = await measured(name, who, query, label);
      const goal = isBounded && (who === "superuser" || query === "")
        ? judged(found.ratio, { most: 1.25 })
        : judged(found.time, { most: MAX_MS, unit: " ms" });
      cells.push(`${ratio(found.ratio)} (${found.time.toFixed(0)} ms)`, goal, `${found.rows} / ${found.base.rows}`);
    }
    rows.push(cells);
  }
  publish("lists", table(
    ["first page, at 1,000,000 / at 1,000", "all servers", "must reach", "rows read", "10 of 1,000 servers", "must reach", "rows read"],
    rows,
  ));
}

/**
 * Compares other pages and searches with the plain first page of the workspace with 1,000,000
 * commands.
 */
async function farAndFound(shared, alone) {
  const rows = [];
  const row = (name, found, bound) => {
    printFigure(name, found);
    rows.push([name, ratio(found.ratio), bound ? judged(found.ratio, bound) : "as low as it gets", `${found.rows} / ${found.base.rows}`]);
  };
  const large = (query, who = "superuser") => listRequest(shared, "large", who, query);
  for (const [name, query] of [["", ""], [", `shell=system`", "&shell=system"], [", `ordering=handled_at`", "&ordering=handled_at"]]) {
    const { count } = await rowsOf(large(query));
    const last = Math.ceil(count / SIZE);
    row(`last page / first${name}`, await compare(large(`${query}&page=${last}`), large(query)), { most: 20 });
    row(`page in the middle / first${name}`, await compare(large(`${query}&page=${last >> 1}`), large(query)));
  }
  const plain = large("");
  row(`\`search\`, a word that occurs 20 times / plain first page`, await compare(large(`search=${SELDOM}`), plain), { most: 3 });
  row(`one that occurs 200,000 times / plain first page`, await compare(large(`search=${OFTEN}`), plain));
  row(`the same, in the oldest commands only / plain first page`, await compare(large(`search=${ONCE_OFTEN}`), plain));
  for (const word of [SELDOM, OFTEN, ONCE_OFTEN, "nginx"]) {
    const [beside, own] = [shared, alone].map((instance) => listRequest(instance, "small", "superuser", `search=${word}`));
    row(`\`search=${word}\` among 1,000 beside 1,000,000 / alone`, await compare(beside, own), { most: 2 });
  }
  const long = (query) => listRequest(shared, "long", "superuser", query);
  for (const [name, words] of [["a word", BEHIND], ["two words", `${BEHIND} deploy`], ["a word that is not all ASCII", "ömega"]]) {
    const found = await compare(long(`search=${encodeURIComponent(words)}`), plain);
    printFigure(`search among long lines, ${name}`, found);
    rows.push([`\`search\` among 10,000 long lines, ${name} / plain first page`, `${ratio(found.ratio)} (${Math.round(found.time)} ms)`,
      judged(found.time, { most: 200, unit: " ms" }), `${found.rows} / ${found.base.rows}`]);
  }
  publish("lists-far", table(["what", "time", "must reach", "rows read"], rows));
}

const [, , named, only] = process.argv;
const folder = named ? resolve(named) : mkdtempSync(join(tmpdir(), "farhand-lists-"));
const running = [];
try {
  await build();
  for (const name of Object.keys(INSTANCES)) running.push(await start(folder, name));
  if (only !== "made") {
    await firstPages(...running);
    await farAndFound(...running);
  }
} finally {
  for (const { client, stop } of running) {
    await client.close();
    await stop();
  }
  if (!named) rmSync(folder, { recursive: true, force: true });
}
