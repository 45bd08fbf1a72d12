// npm run bench -- logins [--seconds N]
//
// Measures how a flood of anonymous logins affects other requests. Sixteen logins a second have
// wrong passwords, each from another of the 65,536 networks of one IPv6 site. At the same time, the
// bench sends authenticated reads with pauses of 20 ms, one login a second from a known address,
// and one command a second. The agent reports each command. Uses loopback only.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";
import { build } from "../scripts/build.mjs";
import { freePort, startInstance } from "../scripts/instance.mjs";
import { fail, say } from "../scripts/lib.mjs";
import { connectAgent } from "./agent.mjs";
import { Client, steadily } from "./load.mjs";
import { isCheck, judged, percentile, publish, ratio, table } from "./report.mjs";
import { makeWorkspace, userToken } from "./workspace.mjs";

const { values } = parseArgs({ options: { seconds: { type: "string", default: isCheck ? "1" : "20" } } });
const SECONDS = Number(values.seconds);
const QUIET_SECONDS = isCheck ? 1 : 5;
const LOGINS_PER_SECOND = 16;
const READ_EVERY_MS = 20;
const HOME = "192.0.2.1";
const LOGIN = "/api/auth/login/";
const COMMANDS = "/api/events/commands/";

/** The header with the client's address. The instance trusts this header from loopback. */
const from = (address) => ({ "x-forwarded-for": address });

/** Sends one read after the other for some seconds, with pauses. Returns the times in ms. */
async function read(client, headers, seconds) {
  const times = [];
  const until = performance.now() + seconds * 1000;
  while (performance.now() < until) {
    const start = performance.now();
    await client.call("GET", "/api/status/", { headers });
    times.push(performance.now() - start);
    await pause(READ_EVERY_MS);
  }
  return times;
}

await build();
const folder = mkdtempSync(join(tmpdir(), "farhand-logins-"));
const environment = { TRUSTED_PROXIES: "127.0.0.1/32" };
const instance = await startInstance({ stateDir: folder, port: await freePort(), environment, onExit: (how) => fail(`the service ended with ${how}`) });
const clients = [1, 64, 4, 2].map((connections) => new Client(instance.url, connections));
const [reader, strangers, known, worker] = clients;
try {
  const { apiToken, login } = await makeWorkspace(known, instance.operatorToken, "demo");
  const headers = userToken(apiToken);
  const server = await worker.json("POST", "/api/servers/", { headers, body: { name: "bench" }, expected: 201 });
  const agent = await connectAgent(instance.url, server);
  const logIn = async () => {
    const start = performance.now();
    await known.call("POST", LOGIN, { headers: from(HOME), body: login });
    return performance.now() - start;
  };
  /** Runs a command. Returns the time to its result, which includes two reports of the agent. */
  const run = async () => {
    const start = performance.now();
    const body = { server: server.id, line: "echo done", username: "bench" };
    const command = await worker.json("POST", COMMANDS, { headers: { ...headers, prefer: "wait=30" }, body, expected: 201 });
    if (command.success !== true) throw new Error("a command did not succeed in time");
    return performance.now() - start;
  };
  const quietLogin = await logIn();
  await run();

  say("logins: quiet");
  await read(reader, headers, 1);
  const quiet = await read(reader, headers, QUIET_SECONDS);

  say(`logins: ${LOGINS_PER_SECOND} a second for ${SECONDS} s`);
  const statuses = {};
  const attack = async (number) => {
    const address = `2001:db8:0:${((number * 40_503) % 65_536).toString(16)}::1`;
    const body = { username: `stranger${number}`, password: "not the right one" };
    try {
      await strangers.call("POST", LOGIN, { headers: from(address), body, expected: 429 });
      statuses[429] = (statuses[429] ?? 0) + 1;
    } catch (error) {
      const status = /: (\d+) /.exec(error.message)?.[1];
      if (status !== "403") throw error;
      statuses[403] = (statuses[403] ?? 0) + 1;
    }
  };
  const [, reads, logins, commands] = await Promise.all([
    steadily(LOGINS_PER_SECOND, SECONDS, attack),
    read(reader, headers, SECONDS),
    steadily(1, SECONDS, logIn),
    steadily(1, SECONDS, run),
  ]);
  await agent.close();
  const [quietP95, p95] = [percentile(quiet, 0.95), percentile(reads, 0.95)];
  const [slowestLogin, slowestCommand] = [Math.max(...logins), Math.max(...commands)];
  say(
    `logins: read p95 ${quietP95.toFixed(1)} ms quiet, ${p95.toFixed(1)} ms (max ${Math.max(...reads).toFixed(0)} ms); known login ${quietLogin.toFixed(0)} ms quiet, ` +
      `median ${percentile(logins, 0.5).toFixed(0)} ms, max ${slowestLogin.toFixed(0)} ms; command max ${slowestCommand.toFixed(0)} ms; strangers ${JSON.stringify(statuses)}`,
  );
  publish(
    "logins",
    table(
      [`${LOGINS_PER_SECOND} anonymous logins a second for ${SECONDS} s`, "reached", "must reach"],
      [
        ["an authenticated read, 95 of 100, in relation to the same without them", ratio(p95 / quietP95), judged(p95 / quietP95, { most: 5 })],
        ["a command with two reports of its agent, slowest", `${(slowestCommand / 1000).toFixed(1)} s`, judged(slowestCommand / 1000, { most: 5, unit: " s" })],
        ["logins from a known address that succeeded, one a second", `${logins.length} of ${SECONDS}`, judged(logins.length, { least: SECONDS })],
        ["the slowest of these", `${(slowestLogin / 1000).toFixed(1)} s`, ""],
        ["logins of strangers: checked, and refused before any hashing", `${statuses[403] ?? 0} and ${statuses[429] ?? 0}`, ""],
      ],
    ),
  );
} finally {
  await Promise.all(clients.map((client) => client.close()));
  await instance.stop();
  rmSync(folder, { recursive: true, force: true });
}
process.exit();
