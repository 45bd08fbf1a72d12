// npm run bench -- fleet [--agents N] [--rate N] [--seconds N]
//
// Runs the service with N scripted agents, each on its own WebSocket, and posts commands at a fixed
// rate to random servers, with `Prefer: wait`. An agent reports the ack of a command and then,
// after the response, its fin. For each command, the bench measures the time between its due time
// and its result. It shows how many commands succeeded and how many were delivered twice. It also
// measures workerd's memory per idle agent. Uses loopback only.
import { existsSync, mkdtempSync, readFileSync, readdirSync, readlinkSync, rmSync, statfsSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";
import { WebSocket } from "ws";
import { build } from "../scripts/build.mjs";
import { freePort, startInstance } from "../scripts/instance.mjs";
import { fail, say } from "../scripts/lib.mjs";
import { Client, steadily } from "./load.mjs";
import { isCheck, judged, percentile, publish, table } from "./report.mjs";
import { makeWorkspace, userToken } from "./workspace.mjs";

const { values } = parseArgs({ options: Object.fromEntries(["agents", "rate", "seconds"].map((name) => [name, { type: "string" }])) });
const { agents, rate, seconds } = { ...(isCheck ? { agents: 10, rate: 5, seconds: 1 } : { agents: 1000, rate: 100, seconds: 60 }), ...Object.fromEntries(Object.entries(values).map(([name, value]) => [name, Number(value)])) };
/** How long a request waits for the result of its command, in seconds. */
const RESULT_TIMEOUT_S = 30;
/** The duration of the load that warms up the service before the measurement, in seconds. */
const WARM_UP_S = isCheck ? 1 : 5;
/** The number of agents that connect, or of servers that are created, concurrently. */
const AT_ONCE = 8;
/**
 * The maximum wait until idle objects are evicted from memory, in seconds. workerd evicts them
 * after ten seconds.
 */
const EVICTION_TIMEOUT_S = 60;
/**
 * Limits of the clients. workerd closes a connection after five idle seconds. The clients close
 * idle connections earlier, so that no request uses a connection that workerd is closing.
 */
const LIMITS = { keepAliveTimeout: 1000, headersTimeout: 2 * RESULT_TIMEOUT_S * 1000 };
/** The maximum size of the service's state, in bytes. */
const STATE_BYTES = 6 * 2 ** 30;
const COMMANDS = "/api/events/commands/";
const BATCHES = "/api/events/batches/";
/** The maximum duration of a batch, in seconds. */
const BATCH_TIMEOUT_S = 300;
/** The limit of the batch that has one. */
const CONCURRENCY = 50;

/** Calls `work` for each item, `AT_ONCE` items concurrently. */
async function each(things, work) {
  const left = things.values();
  await Promise.all(
    Array.from({ length: AT_ONCE }, async () => {
      for (const thing of left) await work(thing);
    }),
  );
}

/**
 * Connects an agent. `deliveries` counts how often each command was delivered, and collects the
 * errors of reports that were retried.
 */
function connect(url, reports, server, deliveries, failed) {
  const headers = { authorization: `id="${server.id}", key="${server.key}"` };
  const report = async (id, kind, body) => {
    for (const seconds of [1, 3, 7, null]) {
      try {
        return await reports.call("POST", `${COMMANDS}${id}/${kind}/`, { headers, body, expected: 204 });
      } catch (error) {
        // Retried as agent-protocol 4.1 requires. The errors are printed at the end.
        if (seconds === null) throw error;
        deliveries.retries.push(error.message);
        await pause(seconds * 1000);
      }
    }
  };
  // Like Alpamon and Farhand's agent, this agent does not offer compression, which would take a
  // quarter of a megabyte of memory per agent.
  const socket = new WebSocket(`${url.replace("http", "ws")}/ws/servers/backhaul/`, {
    perMessageDeflate: false,
    headers: { ...headers, origin: url, "user-agent": "alpamon/2.0.0" },
  });
  const run = async ({ id }) => {
    deliveries.times.set(id, (deliveries.times.get(id) ?? 0) + 1);
    deliveries.open += 1;
    deliveries.most = Math.max(deliveries.most, deliveries.open);
    await report(id, "ack");
    // The fin ends the command when the service gets it, which is before the response.
    deliveries.open -= 1;
    await report(id, "fin", { success: true, result: "done\n", elapsed_time: 0.001, exit_code: 0, chunks: 0 });
  };
  socket.on("message", (data) => {
    const message = JSON.parse(data);
    if (message.query === "ping") socket.send(JSON.stringify({ query: "pong", timestamp: new Date().toISOString() }));
    if (message.query === "command") run(message.command).catch(failed);
  });
  return new Promise((opened, refused) => {
    socket.once("open", () => opened(socket));
    socket.on("error", (error) => (refused(error), failed(error)));
  });
}

/** Finds the workerd process whose files are in a folder. */
function workerd(folder) {
  const pid = readdirSync("/proc").find((name) => {
    try {
      const command = readFileSync(`/proc/${name}/cmdline`, "utf8");
      return /(^|\/)workerd\0/.test(command) && readFileSync(`/proc/${name}/environ`, "utf8").includes(folder);
    } catch {
      // Not a process, or a process that has exited.
      return false;
    }
  });
  if (pid === undefined) fail("no workerd process was found");
  return {
    /** The resident memory, in KB. */
    memory: () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))[1]),
    /** The number of server objects in memory: the number of their open databases. */
    awake: () => {
      const open = new Set();
      for (const fd of readdirSync(`/proc/${pid}/fd`)) {
        try {
          open.add(readlinkSync(`/proc/${pid}/fd/${fd}`));
        } catch {
          // The file was closed after it was listed.
        }
      }
      // Skips metadata.sqlite, which belongs to the runtime.
      return [...open].filter((file) => /farhand-ServerLink\/[0-9a-f]+\.sqlite$/.test(file)).length;
    },
    /** The CPU time so far, in seconds. */
    busy: () => {
      const [user, system] = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ").slice(11, 13).map(Number);
      return (user + system) / 100;
    },
  };
}

/**
 * Waits until the objects of idle servers are evicted. Returns the number of objects that remain in
 * memory.
 */
async function waitForEviction(process) {
  const until = Date.now() + EVICTION_TIMEOUT_S * 1000;
  while (process.awake() > 0 && Date.now() < until) await pause(500);
  return process.awake();
}

/**
 * Posts commands at a steady rate, without waiting for earlier responses. Returns the commands, and
 * the times from each due time to the result in ms.
 */
async function load(post, servers, length) {
  const times = [];
  const commands = await steadily(rate, length, async (_, due) => {
    const command = await post(servers[Math.floor(Math.random() * servers.length)]);
    times.push(performance.now() - due);
    return command;
  });
  return { times, commands };
}

/** Runs a batch on all servers. Returns its duration, its result, and its cost in D1 calls. */
async function runBatch({ users, headers, deliveries, logFile }, limits) {
  deliveries.times.clear();
  deliveries.most = deliveries.open;
  const began = performance.now();
  const body = { targets: { all: true }, line: "true", username: "worker", ...limits };
  const requestId = `bench-${limits.name}`;
  const { id } = await users.json("POST", BATCHES, { headers: { ...headers, "x-request-id": requestId }, body, expected: 201 });
  let batch;
  do {
    if (performance.now() - began > BATCH_TIMEOUT_S * 1000) fail(`the batch ${limits.name} does not end`);
    await pause(100);
    batch = await users.json("GET", `${BATCHES}${id}/`, { headers });
  } while (batch.finished_at === null);
  const seconds = (Date.parse(batch.finished_at) - Date.parse(batch.added_at)) / 1000;
  const once = [...deliveries.times.values()].filter((times) => times === 1).length;
  const isOurs = (line) => line.includes('"batch_finished"') ? line.includes(id) : line.includes(requestId);
  const lines = () => readFileSync(logFile, "utf8").split("\n").filter((line) => line.includes('"d1_calls"') && isOurs(line));
  while (lines().length < 2) await pause(100);
  const calls = lines().reduce((sum, line) => sum + JSON.parse(line.slice(line.indexOf("{"))).d1_calls, 0);
  say(`fleet: batch ${limits.name}: ${seconds.toFixed(1)} s, ${JSON.stringify(batch.counts)}, ${once} once, at most ${deliveries.most} open, ${calls} calls to D1`);
  return { seconds, once, calls, success: batch.counts.success, most: deliveries.most };
}

await build();
// Keeps the state in memory if it fits, because a thousand databases are written concurrently and
// the bench should not measure the disk.
const memory = existsSync("/dev/shm") ? statfsSync("/dev/shm") : { bavail: 0, bsize: 0 };
const fitsInMemory = memory.bavail * memory.bsize > STATE_BYTES;
const folder = mkdtempSync(join(fitsInMemory ? "/dev/shm" : tmpdir(), "farhand-fleet-"));
say(`fleet: the state is in ${folder}`);
const environment = { ...process.env, QUOTA_BYTES_PER_DAY: "1000000000000" };
const instance = await startInstance({ stateDir: folder, port: await freePort(), environment, onExit: (how) => fail(`the service ended with ${how}`) });
const [users, reports] = [256, 64].map((connections) => new Client(instance.url, connections, {}, LIMITS));
try {
  const headers = userToken((await makeWorkspace(users, instance.operatorToken, "demo")).apiToken);

  const runtime = workerd(folder);
  const fresh = runtime.memory();
  say(`fleet: creating ${agents} servers`);
  const servers = [];
  await each([...Array(agents).keys()], async (number) => {
    servers.push(await users.json("POST", "/api/servers/", { headers, body: { name: `server-${number}` }, expected: 201 }));
  });
  await waitForEviction(runtime);
  const before = runtime.memory();

  say("fleet: connecting the agents");
  const deliveries = { times: new Map(), retries: [], open: 0, most: 0 };
  const sockets = [];
  const failures = [];
  const failed = (error) => failures.push(error);
  await each(servers, async (server) => sockets.push(await connect(instance.url, reports, server, deliveries, failed)));
  const connected = runtime.memory();
  const stillAwake = await waitForEviction(runtime);
  const hibernated = runtime.memory();
  say(`fleet: ${fresh} KB fresh, ${before} KB before, ${connected} KB connected, ${hibernated} KB with ${stillAwake} objects awake`);

  const post = (server) =>
    users.json("POST", COMMANDS, {
      headers: { ...headers, prefer: `wait=${RESULT_TIMEOUT_S}` },
      body: { server: server.id, line: "true", username: "worker" },
      expected: 201,
    });
  say(`fleet: ${rate} commands a second for ${seconds} s`);
  await load(post, servers, WARM_UP_S);
  const busy = runtime.busy();
  const own = process.cpuUsage();
  const { times, commands } = await load(post, servers, seconds);
  const ownBusy = process.cpuUsage(own);
  if (failures.length > 0) throw failures[0];
  for (const message of new Set(deliveries.retries)) say(`fleet: a report was repeated: ${message}`);
  const succeeded = commands.filter((command) => command.status.text === "Success").length;
  const twice = [...deliveries.times.values()].filter((times) => times > 1).length;
  const lost = commands.filter((command) => !deliveries.times.has(command.id)).length;
  const [middle, slowest] = [percentile(times, 0.5), percentile(times, 0.99)];
  const cpu = (runtime.busy() - busy) / commands.length;
  say(
    `fleet: ${succeeded} of ${commands.length} succeeded, ${twice} delivered twice, ${lost} never, ${deliveries.retries.length} reports repeated; ` +
      `p50 ${middle.toFixed(0)} ms, p99 ${slowest.toFixed(0)} ms, max ${Math.max(...times).toFixed(0)} ms; of a core, workerd took ` +
      `${(cpu * 1000).toFixed(1)} ms for each command, and this ${((100 * (ownBusy.user + ownBusy.system)) / 1e6 / seconds).toFixed(0)} %`,
  );
  const perAgent = (after) => `${((after - before) / agents).toFixed(0)} KB`;
  publish(
    "fleet",
    table(
      [`${agents} agents, ${rate} commands a second for ${seconds} s`, "reached", "must reach"],
      [
        ["commands that ended in Success", `${succeeded} of ${commands.length}`, judged(succeeded, { least: commands.length })],
        ["delivered to an agent twice", `${twice}`, judged(twice, { most: 0 })],
        ["from the moment at which a command was due to be posted to its result, median", `${middle.toFixed(0)} ms`, ""],
        ["the same, 99 of 100", `${slowest.toFixed(0)} ms`, judged(slowest, { most: 1000, unit: " ms" })],
        ["of one core, workerd for each command", `${(cpu * 1000).toFixed(1)} ms`, ""],
        ["workerd's memory for each agent that has just connected", perAgent(connected), ""],
        ["the same when all are idle and their objects out of memory", perAgent(hibernated), ""],
        ["workerd's memory before any server was created, and with as many servers before any agent connected", `${(fresh / 1024).toFixed(0)} and ${(before / 1024).toFixed(0)} MB`, ""],
      ],
    ),
  );
  const context = { users, headers, deliveries, logFile: instance.logFile };
  const [free, limited] = [await runBatch(context, { name: "free", max_concurrency: 5000 }), await runBatch(context, { name: "limited", max_concurrency: CONCURRENCY, ramp: true })];
  if (failures.length > 0) throw failures[0];
  publish(
    "batch",
    table(
      [`a batch on ${agents} agents`, "no limit", "must reach", `\`max_concurrency: ${CONCURRENCY}\`, \`ramp\``, "must reach"],
      [
        ["until all have ended", `${free.seconds.toFixed(1)} s`, judged(free.seconds, { most: 15, unit: " s" }), `${limited.seconds.toFixed(1)} s`, ""],
        ["targets that succeeded", `${free.success}`, judged(free.success, { least: agents }), `${limited.success}`, judged(limited.success, { least: agents })],
        ["targets whose agent got the command once", `${free.once}`, judged(free.once, { least: agents }), `${limited.once}`, judged(limited.once, { least: agents })],
        ["most commands at a time", `${free.most}`, "", `${limited.most}`, judged(limited.most, { most: CONCURRENCY })],
        ["calls to D1, without those of the agents' reports", `${free.calls}`, judged(free.calls, { most: 60 }), `${limited.calls}`, ""],
      ],
    ),
  );
  sockets.forEach((socket) => socket.close());
} finally {
  await Promise.all([users.close(), reports.close()]);
  await instance.stop();
  rmSync(folder, { recursive: true, force: true });
}
