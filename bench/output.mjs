// npm run bench -- output [--megabytes N] [--runs N]
//
// Measures how fast the output of one command is transferred from the agent to the service, and
// from the service to a reader. Farhand's agent and the service run on this machine. Writes the
// table `output` of docs/contributing/performance.md.
import { openSync, writeFileSync } from "node:fs";
import { userInfo } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { buildAgent } from "../scripts/agent.mjs";
import { build } from "../scripts/build.mjs";
import { endGroup, say, startGroup } from "../scripts/lib.mjs";
import { Client, cpuTime } from "./load.mjs";
import { runBench, startService } from "./peers.mjs";
import { isCheck, judged, median, publish, table } from "./report.mjs";
import { makeWorkspace, userToken } from "./workspace.mjs";

const { values: options } = parseArgs({
  options: { megabytes: { type: "string", default: isCheck ? "1" : "16" }, runs: { type: "string", default: isCheck ? "1" : "3" } },
});
const BYTES = Number(options.megabytes) * 1_000_000;
const COMMANDS = "/api/events/commands/";
const TIMEOUT_MS = 120_000;

/** Waits until a server is connected. */
async function connected(client, headers, { id }) {
  const until = Date.now() + TIMEOUT_MS;
  while (!(await client.json("GET", `/api/servers/${id}/`, { headers })).is_connected) {
    if (Date.now() > until) throw new Error("the agent did not connect");
    await new Promise((go) => setTimeout(go, 100));
  }
}

/**
 * Runs a command and reads its output. Returns the speed of the transfer to the service (`write`)
 * and from the service (`read`), in megabytes per second.
 */
async function runOnce(client, headers, pid) {
  const line = `seq 1 100000000 | head -c ${BYTES}`;
  const [began, cpu] = [performance.now(), cpuTime(pid)];
  const body = { server: "bench", line, username: userInfo().username, timeout: 300 };
  const { id } = await client.json("POST", COMMANDS, { headers, body, expected: 201 });
  for (let state; state !== "success"; ) {
    ({ state } = await client.json("GET", `${COMMANDS}${id}/?wait=60`, { headers }));
    if (!["sent", "acked", "success"].includes(state)) throw new Error(`the command is ${state}`);
  }
  const [ended, cpuOfEnd] = [performance.now(), cpuTime(pid)];
  const text = await client.call("GET", `${COMMANDS}${id}/output/`, { headers });
  if (text.length !== BYTES) throw new Error(`the output has ${text.length} bytes`);
  const speed = (milliseconds) => BYTES / 1000 / milliseconds;
  const [write, read] = [speed(ended - began), speed(performance.now() - ended)];
  const milliseconds = (from, to) => ((to - from) / 1000).toFixed(0);
  say(`written ${write.toFixed(1)} MB/s, read ${read.toFixed(1)} MB/s; CPU ${milliseconds(cpu, cpuOfEnd)} and ${milliseconds(cpuOfEnd, cpuTime(pid))} ms`);
  return { write, read };
}

async function bench(folder) {
  await build();
  const program = await buildAgent();
  const service = await startService(folder);
  const client = new Client(service.url, 2, {}, { headersTimeout: TIMEOUT_MS });
  const { apiToken } = await makeWorkspace(client, service.operatorToken, "demo");
  const headers = userToken(apiToken);
  const server = await client.json("POST", "/api/servers/", { headers, body: { name: "bench" }, expected: 201 });
  const file = join(folder, "agent.toml");
  writeFileSync(file, `url = "${service.url}"\nid = "${server.id}"\nkey = "${server.key}"\n`, { mode: 0o600 });
  const log = openSync(join(folder, "agent.log"), "a");
  const agent = startGroup(program, ["run", "--config", file], { stdio: ["ignore", log, log] });
  try {
    await connected(client, headers, server);
    const runs = [];
    for (let number = 0; number < Number(options.runs); number += 1) runs.push(await runOnce(client, headers, service.pid));
    const of = (name) => median(runs.map((run) => run[name]));
    const row = (what, speed) => [what, `${speed.toFixed(1)} MB/s`, judged(speed, { least: 10, unit: " MB/s" })];
    const rows = [row("from the command to the service, to its end", of("write")), row("from the service to a reader", of("read"))];
    publish("output", table([`${options.megabytes} MB of output of one command`, "reached", "must reach"], rows));
  } finally {
    await endGroup(agent);
    await client.close();
  }
}

await runBench(bench);
