// @ts-check
// Workspaces and agents for the tests of the console, on the instance that scripts/web.mjs started.
//
// FARHAND_URL and FARHAND_OPERATOR_TOKEN name the instance, FARHAND_AGENT is the agent's binary.
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { connect, createServer } from "node:net";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir, userInfo } from "node:os";
import { join } from "node:path";
import { after } from "node:test";
import { Agent, fetch as fetchWith } from "undici";

const instance = new URL(process.env.FARHAND_URL ?? "http://127.0.0.1:8787");
const operatorToken = process.env.FARHAND_OPERATOR_TOKEN ?? "";
export const PASSWORD = "correct-horse-battery-9";
const PATIENCE_MS = 30_000;

/** Waits until `look` returns something other than undefined, null and false. */
export async function eventually(what, look, ms = PATIENCE_MS) {
  for (const until = Date.now() + ms; Date.now() < until;) {
    const found = await look();
    if (found) return found;
    await new Promise((go) => setTimeout(go, 50));
  }
  throw new Error(`not within ${ms / 1_000} s: ${what}`);
}

/** Node.js does not resolve names below localhost, Chromium and the agent do. */
const local = new Agent({
  connect: { lookup: (_name, { all }, found) => (all ? found(null, [{ address: "127.0.0.1", family: 4 }]) : found(null, "127.0.0.1", 4)) },
});

/** Like the global `fetch`, on this machine. */
export const fetch = (url, options) => fetchWith(url, { ...options, dispatcher: local });

/** A client of the API. Throws for an error response. */
class Api {
  constructor(url, authorization) {
    this.url = url;
    this.authorization = authorization;
  }

  async call(method, path, body) {
    const response = await fetch(`${this.url}${path}`, {
      method,
      headers: { ...(this.authorization && { Authorization: this.authorization }), "Content-Type": "application/json" },
      body: body && JSON.stringify(body),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return text === "" ? null : JSON.parse(text);
  }

  get = (path) => this.call("GET", path);
  post = (path, body) => this.call("POST", path, body);
  patch = (path, body) => this.call("PATCH", path, body);
}

const workspaces = new Set();
/** Ends all workspaces, also those of failed tests, whose agents would keep this process running. */
const endAll = () => Promise.all([...workspaces].map((workspace) => workspace.end()));
if (process.env.NODE_TEST_CONTEXT) after(endAll);

/** A workspace of its own, with the superuser `boss`. It ends with the file of its tests. */
export class Workspace {
  /** The address of the workspace. */
  url = "";
  slug = "";
  /** @type {Api} */
  operator;
  /** A client with the session of `boss`. @type {Api} */
  admin;
  /** @type {{ child: import("node:child_process").ChildProcess, folder: string }[]} */
  agents = [];

  static async create(slug = `web-${randomBytes(5).toString("hex")}`) {
    const operator = new Api(instance.origin, `Bearer ${operatorToken}`);
    await operator.post("/operator/workspaces/", { slug, admin: { username: "boss", email: "boss@example.com", password: PASSWORD } });
    const workspace = new Workspace();
    workspace.url = `http://${slug}.local.localhost:${instance.port}`;
    workspace.operator = operator;
    workspace.slug = slug;
    workspaces.add(workspace);
    workspace.admin = await workspace.loggedIn("boss");
    return workspace;
  }

  async loggedIn(username) {
    const { token } = await new Api(this.url).post("/api/auth/login/", { username, password: PASSWORD });
    return new Api(this.url, `token="${token}"`);
  }

  /** An ordinary user, or one with the given rank. */
  async user(username, rank = {}) {
    return this.admin.post("/api/iam/users/", { username, email: `${username}@example.com`, password: PASSWORD, ...rank });
  }

  /**
   * A server, with a real agent unless `isOffline`.
   * @param {string} name
   * @param {{ labels?: Record<string, string>, isOffline?: boolean }} [options]
   */
  async server(name, { labels, isOffline = false } = {}) {
    const server = await this.admin.post("/api/servers/", { name, default_username: userInfo().username, ...(labels && { labels }) });
    if (isOffline) return server;
    await this.connect(server);
    return server;
  }

  /** Starts an agent for a server, and waits until it is connected. */
  async connect({ id, key }) {
    const folder = mkdtempSync(join(tmpdir(), "farhand-web-agent-"));
    const config = join(folder, "agent.toml");
    writeFileSync(config, `url = "${this.url}"\nid = "${id}"\nkey = "${key}"\n`, { mode: 0o600 });
    const child = spawn(process.env.FARHAND_AGENT ?? "farhand-agent", ["run", "--config", config], { stdio: "ignore" });
    this.agents.push({ child, folder });
    await eventually("the agent is connected", async () => (await this.admin.get(`/api/servers/servers/${id}/`)).is_connected);
    return child;
  }

  /** Runs a line and waits for its end. */
  async run(server, line, fields = {}) {
    const { id } = await this.admin.post("/api/events/commands/", { server: server.id, line, ...fields });
    return eventually(`the end of ${line}`, async () => {
      const command = await this.admin.get(`/api/events/commands/${id}/`);
      return command.handled_at && command;
    });
  }

  async end() {
    workspaces.delete(this);
    for (const { child, folder } of this.agents) {
      if (child.exitCode === null) {
        const exit = new Promise((resolve) => child.once("exit", resolve));
        child.kill();
        await exit;
      }
      rmSync(folder, { recursive: true, force: true });
    }
    await this.operator.call("DELETE", `/operator/workspaces/${this.slug}/`).catch(() => null);
  }
}

/** A connection between a browser and the service that a test can cut. */
export class Proxy {
  url = "";
  isCut = false;
  /** @type {Set<import("node:net").Socket>} */
  sockets = new Set();
  /** @type {import("node:net").Server} */
  server;

  static async start(url) {
    const { hostname, port } = new URL(url);
    const proxy = new Proxy();
    proxy.server = createServer((socket) => {
      if (proxy.isCut) return socket.destroy();
      const service = connect(Number(port), "127.0.0.1");
      for (const [from, to] of [
        [socket, service],
        [service, socket],
      ]) {
        proxy.sockets.add(from);
        from
          .on("error", () => to.destroy())
          .on("close", () => to.destroy())
          .pipe(to);
      }
    });
    await new Promise((listening) => proxy.server.listen(0, "127.0.0.1", () => listening(undefined)));
    proxy.url = `http://${hostname}:${/** @type {import("node:net").AddressInfo} */ (proxy.server.address()).port}`;
    return proxy;
  }

  /** Closes all connections, and refuses new ones. */
  cut() {
    this.isCut = true;
    this.sockets.forEach((socket) => socket.destroy());
    this.sockets.clear();
  }

  mend() {
    this.isCut = false;
  }

  end() {
    this.cut();
    this.server.close();
  }
}
