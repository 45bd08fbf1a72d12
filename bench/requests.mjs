// node bench/requests.mjs [SECONDS] [CONNECTIONS]: requests a second, and the median time of one, against the demo of a service that
// `npm start` runs (STATE_DIR tells which). To compare two versions, run both at once, on two ports and state folders, and this
// on each in turn: only the ratio of figures from one machine and one hour means anything. Loopback only.
import { readFileSync } from "node:fs";
import { Agent, request } from "node:http";
import { userInfo } from "node:os";
import { join, resolve } from "node:path";
import { root } from "../scripts/lib.mjs";

const [seconds = 5, connections = 8] = process.argv.slice(2).map(Number);
const { url, username, password, api_token: apiToken, server } = JSON.parse(
  readFileSync(join(resolve(root, process.env.STATE_DIR || ".wrangler/state"), "demo.json"), "utf8"),
);
if (new URL(url).hostname !== "127.0.0.1") throw new Error(`${url} is not on this machine`);
const agent = new Agent({ keepAlive: true, maxSockets: connections });

/** Makes one request; gives its answer. Any status but `expected` ends the run: a refusal is fast, and no figure. */
const call = (method, path, { token, body, prefer, expected = 200 } = {}) =>
  new Promise((answer, failed) => {
    const headers = { ...(token && { Authorization: `token="${token}"` }), ...(body && { "Content-Type": "application/json" }), ...(prefer && { Prefer: prefer }) };
    const sent = request(`${url}${path}`, { method, headers, agent }, (response) => {
      let text = "";
      response.setEncoding("utf8");
      response.on("data", (piece) => (text += piece));
      response.on("end", () => (response.statusCode === expected ? answer(JSON.parse(text)) : failed(new Error(`${path}: ${response.statusCode} ${text}`))));
    });
    sent.on("error", failed);
    sent.end(body && JSON.stringify(body));
  });

async function measure(name, work, width = connections) {
  const times = [];
  const run = async (until, keep) => {
    while (performance.now() < until) {
      const start = performance.now();
      await work();
      if (keep) times.push(performance.now() - start);
    }
  };
  const all = (length, keep) => Promise.all(Array.from({ length: width }, () => run(performance.now() + length, keep)));
  await all(1000, false);
  await all(seconds * 1000, true);
  times.sort((a, b) => a - b);
  console.log(`${name.padEnd(44)} ${(times.length / seconds).toFixed(1).padStart(8)} /s   median ${times[times.length >> 1].toFixed(2)} ms`);
}

const login = { username, password };
const { token } = await call("POST", "/api/auth/login/", { body: login });
await measure("GET status, API token", () => call("GET", "/api/status/", { token: apiToken }));
await measure("GET status, login token", () => call("GET", "/api/status/", { token }));
await measure("GET current user, API token", () => call("GET", "/api/iam/users/-/", { token: apiToken }));
await measure("GET tokens, API token", () => call("GET", "/api/auth/tokens/", { token: apiToken }));
await measure("GET commands, API token", () => call("GET", "/api/events/commands/", { token: apiToken }));
const command = { server, line: "true", username: userInfo().username };
const run = () => call("POST", "/api/events/commands/", { token: apiToken, body: command, prefer: "wait=20", expected: 201 });
await measure("POST command with its result, one at a time", run, 1);
await measure("POST command with its result", run);
await measure("POST login, one at a time", () => call("POST", "/api/auth/login/", { body: login }), 1);
agent.destroy();
