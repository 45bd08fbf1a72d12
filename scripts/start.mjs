// `npm start`: runs the service on this machine, with a demo workspace and an agent that runs
// commands here.
//
// Environment: PORT, STATE_DIR, DEMO=0 (no workspace, no agent), OPERATOR_TOKEN, SECRET_KEY, the
// same two with _PREVIOUS, SMTP_PASSWORD, and any variable of wrangler.toml. Ctrl-C or SIGTERM
// stops everything.
import { randomBytes } from "node:crypto";
import { chmodSync, existsSync, openSync, readFileSync, writeFileSync } from "node:fs";
import { userInfo } from "node:os";
import { join, resolve } from "node:path";
import { buildAgent } from "./agent.mjs";
import { build } from "./build.mjs";
import { checkSecrets, isTaken, startInstance } from "./instance.mjs";
import { endGroup, output, root, say, startGroup } from "./lib.mjs";
import { isAtLeast, npmPackages, rustProblem } from "./toolchain.mjs";

const port = Number(process.env.PORT || 8787);
const stateDir = resolve(root, process.env.STATE_DIR || ".wrangler/state");
const wantsDemo = process.env.DEMO !== "0";
const CONNECT_TIMEOUT_MS = 30_000;
const isRoot = process.getuid?.() === 0;

let instance = null;
let agent = null;
let ending = false;

async function end(status) {
  if (ending) return;
  ending = true;
  await endGroup(agent, 30_000);
  await instance?.stop();
  process.exit(status);
}
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => void end(0));

/** Calls the API. An error response ends the script. */
async function api(method, path, authorization, body) {
  const response = await fetch(`${instance.url}${path}`, {
    method,
    headers: { Authorization: authorization, ...(body && { "Content-Type": "application/json" }) },
    body: body && JSON.stringify(body),
  });
  const text = await response.text();
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
  return text === "" ? null : JSON.parse(text);
}

const userToken = (token) => `token="${token}"`;

function writePrivate(file, text) {
  writeFileSync(file, text, { mode: 0o600 });
  chmodSync(file, 0o600);
}

/**
 * Creates a workspace with a superuser, an API token and a server, or uses the workspace of an
 * earlier start.
 */
async function demo() {
  const factsFile = join(stateDir, "demo.json");
  const agentFile = join(stateDir, "agent.toml");
  const exists = existsSync(factsFile) && existsSync(agentFile);
  const facts = exists ? JSON.parse(readFileSync(factsFile, "utf8")) : await createDemo(agentFile);
  facts.url = instance.url;
  // The port may have changed since the last start.
  const config = readFileSync(agentFile, "utf8").replace(/^url = .*$/m, `url = "${instance.url}"`);
  writePrivate(agentFile, config);
  facts.server = await serverOfAgent(config) ?? (await renewKey(config, agentFile, facts));
  writePrivate(factsFile, `${JSON.stringify(facts, null, 2)}\n`);
  return { facts, agentFile };
}

/** Returns the value of a key in the agent's config file. */
const setting = (config, name) => config.match(new RegExp(`^${name} = "(.*)"$`, "m"))?.[1];

/** Returns the name of the agent's server, or null if the agent's key is no longer valid. */
async function serverOfAgent(config) {
  const Authorization = `id="${setting(config, "id")}", key="${setting(config, "key")}"`;
  const response = await fetch(`${instance.url}/api/servers/servers/-/`, { headers: { Authorization } });
  return response.status === 200 ? (await response.json()).name : null;
}

/**
 * Gets a new key for the demo's agent after the user has rotated its key. If the user has deleted
 * the server, creates a new server. Returns the server's name.
 */
async function renewKey(config, agentFile, facts) {
  const [path, token] = [`/api/servers/servers/${setting(config, "id")}/`, userToken(facts.api_token)];
  const rotated = await api("POST", `${path}rotate-key/`, token).catch(() => null);
  const create = () => api("POST", "/api/servers/", token, { name: facts.server, default_username: userInfo().username });
  const lost = (error) => {
    throw new Error(`the demo has lost its server (${error.message}); delete ${stateDir} to start over`);
  };
  const server = rotated ?? (await create().catch(lost));
  writeAgentFile(agentFile, server);
  return server.name;
}

function writeAgentFile(agentFile, server) {
  writePrivate(agentFile, `url = "${instance.url}"\nid = "${server.id}"\nkey = "${server.key}"\n`);
}

async function createDemo(agentFile) {
  const slug = process.env.DEFAULT_WORKSPACE || "demo";
  const admin = { username: "admin", email: "admin@example.com", password: randomBytes(12).toString("base64url") };
  const operator = `Bearer ${instance.operatorToken}`;
  // Deletes the workspace of an interrupted first start, if it exists, because its password is
  // lost.
  await api("DELETE", `/operator/workspaces/${slug}/?now=true`, operator).catch(() => null);
  await api("POST", "/operator/workspaces/", operator, { slug, name: "Demo", admin });
  const { token } = await api("POST", "/api/auth/login/", "", { username: admin.username, password: admin.password });
  const { key } = await api("POST", "/api/auth/tokens/", userToken(token), { name: "demo", expires_at: null });
  const server = await api("POST", "/api/servers/", userToken(key), { name: "this-machine", default_username: userInfo().username });
  writeAgentFile(agentFile, server);
  return { url: instance.url, username: admin.username, password: admin.password, api_token: key, server: server.name };
}

function startAgent(binary, agentFile) {
  const log = openSync(join(stateDir, "agent.log"), "a", 0o600);
  agent = startGroup(binary, ["run", "--config", agentFile], { stdio: ["ignore", log, log] });
  agent.once("exit", (status, signal) => {
    if (ending) return;
    say(`error: the agent ended with ${status ?? signal}; see ${join(stateDir, "agent.log")}`);
    void end(1);
  });
}

async function agentConnected(facts) {
  const until = Date.now() + CONNECT_TIMEOUT_MS;
  while (Date.now() < until) {
    const { results } = await api("GET", "/api/servers/?page_size=100", userToken(facts.api_token));
    if (results.some((server) => server.name === facts.server && server.is_connected)) return;
    await new Promise((go) => setTimeout(go, 100));
  }
  throw new Error(`the agent did not connect; see ${join(stateDir, "agent.log")}`);
}

function print(facts) {
  const body = JSON.stringify({ server: facts.server, line: "echo hello from $(hostname)" });
  console.log(`
Farhand serves ${facts.url}

  user      ${facts.username}
  password  ${facts.password}
  server    ${facts.server}, with an agent that runs commands as ${userInfo().username}${isRoot ? " (anyone with the token is root on this machine)" : ""}

Run a command on this machine:

curl -s ${facts.url}/api/events/commands/ -H 'Authorization: token="${facts.api_token}"' -H 'Content-Type: application/json' -H 'Prefer: wait=10' -d '${body}'

The same facts are in ${join(stateDir, "demo.json")}. Ctrl-C ends everything.
`);
}

/** Checks the requirements before anything is downloaded or built. */
async function check() {
  if (process.platform !== "linux") {
    throw new Error(`the service and its agent run on Linux only, not on ${process.platform}; use a virtual machine or a container`);
  }
  if (!Number.isInteger(port) || port < 1 || port > 65535) throw new Error(`PORT is ${process.env.PORT}, which is not a port number`);
  if (await isTaken(port)) throw new Error(`port ${port} of 127.0.0.1 is in use; set PORT to another one`);
  checkSecrets(process.env);
  const { engines } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  const node = engines.node.replace(">=", "");
  if (!isAtLeast(process.versions.node, node)) throw new Error(`Node ${process.versions.node} is too old; Farhand needs ${node} or later`);
  const problem = rustProblem();
  if (problem !== null) throw new Error(problem);
  if (output("cc", ["--version"]) === null) throw new Error("no C compiler on PATH (cc); install gcc or clang");
  if (isRoot && wantsDemo) {
    say("warning: you are root, so the demo's agent runs commands as root. Anyone with the demo's token is root on this machine.");
  }
}

/** Runs one step of the start and prints its time. */
async function step(number, what, work) {
  if (ending) return null;
  const steps = wantsDemo ? 5 : 3;
  say(`[${number}/${steps}] ${what}`);
  const began = Date.now();
  const done = await work();
  say(`[${number}/${steps}] done in ${Math.round((Date.now() - began) / 1000)} s`);
  return done;
}

try {
  await check();
  await step(1, "npm packages", npmPackages);
  await step(2, "the Worker; the first time this compiles its tools too, which takes about ten minutes on two cores", build);
  const agentBinary = wantsDemo ? await step(3, "the agent", buildAgent) : null;
  const onExit = (how) => void (say(`error: the service ended with ${how}`), end(1));
  instance = await step(wantsDemo ? 4 : 3, "the service", () => startInstance({ stateDir, port, onExit }));
  if (wantsDemo && !ending) {
    const facts = await step(5, "the demo's workspace and agent", async () => {
      const { facts, agentFile } = await demo();
      startAgent(agentBinary, agentFile);
      await agentConnected(facts);
      return facts;
    });
    print(facts);
  } else if (!ending) {
    console.log(`\nFarhand serves ${instance.url}, without a workspace (DEMO=0). Ctrl-C ends it.\n`);
  }
} catch (error) {
  if (!ending) {
    say(`error: ${error.message}`);
    await end(1);
  }
}
