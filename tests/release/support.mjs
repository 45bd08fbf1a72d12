// Helpers for the tests of the files in dist/: an environment without Rust, and an instance that the
// npm package serves.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { chmodSync, existsSync, mkdtempSync, readFileSync, readdirSync, symlinkSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";

export const root = resolve(import.meta.dirname, "..", "..");
export const dist = join(root, "dist");
export const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
export const ARCHITECTURES = ["x86_64", "aarch64"];

/** Whether the release is signed. */
export const isSigned = existsSync(join(dist, "farhand-agent-x86_64.sig"));

const temporaries = [];
// Not beyond a mount that a failed test left in a folder.
process.once("exit", () => spawnSync("rm", ["-rf", "--one-file-system", ...temporaries]));

/** Creates a folder, which is removed at the end of the test file. */
export function temporary() {
  const folder = mkdtempSync(join(tmpdir(), "farhand-release-"));
  temporaries.push(folder);
  return folder;
}

/** Runs a program to its end. Fails unless it succeeds. Returns its standard output. */
export function run(program, args, options = {}) {
  const done = spawnSync(program, args, { encoding: "utf8", maxBuffer: 1e8, ...options });
  assert.equal(done.status, 0, `${program} ${args.join(" ")}: ${done.error ?? ""}\n${done.stdout}\n${done.stderr}`);
  return done.stdout;
}

/** The environment of a machine without Rust and without this checkout. */
export const withoutRust = (() => {
  let environment = null;
  return () => {
    if (environment !== null) return environment;
    const [home, bin] = [temporary(), temporary()];
    // Also for tests that run as another user.
    chmodSync(bin, 0o755);
    for (const folder of ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]) {
      for (const name of existsSync(folder) ? readdirSync(folder) : []) {
        if (!/^(cargo|rust|clippy)/.test(name) && !existsSync(join(bin, name))) symlinkSync(join(folder, name), join(bin, name));
      }
    }
    if (!existsSync(join(bin, "node"))) for (const name of ["node", "npm", "npx"]) symlinkSync(join(process.execPath, "..", name), join(bin, name));
    environment = { PATH: bin, HOME: home, LANG: "C.UTF-8", npm_config_update_notifier: "false" };
    for (const name of ["http_proxy", "https_proxy", "no_proxy", "npm_config_registry"]) if (process.env[name]) environment[name] = process.env[name];
    for (const program of ["cargo", "rustc"]) assert.notEqual(spawnSync("sh", ["-c", `command -v ${program}`], { env: environment }).status, 0);
    return environment;
  };
})();

/** Installs the npm package into an empty folder. Returns the folder. */
export function installPackage() {
  const folder = temporary();
  run("npm", ["install", "--no-audit", "--no-fund", join(dist, `farhand-${version}.tgz`)], { cwd: folder, env: withoutRust() });
  return folder;
}

export const freePort = () =>
  new Promise((found) => {
    const probe = createServer().listen(0, "127.0.0.1", () => {
      const { port } = /** @type {import("node:net").AddressInfo} */ (probe.address());
      probe.close(() => found(port));
    });
  });

/** Calls a workspace's API. Fails for an error response. */
export async function api(url, method, path, authorization, body) {
  const headers = { ...(authorization && { Authorization: authorization }), ...(body && { "Content-Type": "application/json" }), Prefer: "wait=30" };
  const response = await fetch(`${url}${path}`, { method, headers, body: body && JSON.stringify(body) });
  const text = await response.text();
  assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`);
  return text === "" ? null : JSON.parse(text);
}

/** Waits until `check` returns a value. */
export async function until(what, check, seconds = 60) {
  const end = Date.now() + seconds * 1000;
  while (Date.now() < end) {
    const value = await check();
    if (value) return value;
    await new Promise((go) => setTimeout(go, 100));
  }
  assert.fail(`${what} did not happen within ${seconds} s`);
}

/**
 * Runs `npx farhand start` in a folder with the package. `as` is a command in front, which changes
 * the user. Returns the facts of the demo, and how many seconds the start took.
 */
export async function start(folder, { as = [], home = withoutRust().HOME } = {}) {
  const port = await freePort();
  const began = Date.now();
  const [program, ...args] = [...as, "npx", "farhand", "start"];
  // The install script of a release installs only signed agents.
  const unsigned = isSigned ? {} : { FARHAND_RELEASE_KEY: "" };
  const env = { ...withoutRust(), HOME: home, PORT: `${port}`, BASE_URL: `http://127.0.0.1:${port}`, ...unsigned };
  const child = spawn(program, args, { cwd: folder, env, stdio: ["ignore", "pipe", "pipe"], detached: true });
  const printed = [];
  for (const stream of [child.stdout, child.stderr]) createInterface({ input: stream }).on("line", (line) => printed.push(line));
  let [ended, closed] = [false, false];
  child.once("exit", () => (ended = true));
  // npx ends before the service, which holds the pipes.
  child.once("close", () => (closed = true));
  const stop = async () => {
    if (!ended) process.kill(-child.pid, "SIGTERM");
    await until("the end of the service", () => closed);
  };
  try {
    await until("the start", () => {
      assert.ok(!ended, printed.join("\n"));
      return printed.some((line) => line.startsWith("Ctrl-C"));
    }, 120);
  } catch (error) {
    if (!ended) process.kill(-child.pid, "SIGKILL");
    throw error;
  }
  const seconds = (Date.now() - began) / 1000;
  const facts = JSON.parse(readFileSync(join(folder, ".farhand", "demo.json"), "utf8"));
  return { ...facts, seconds, printed: printed.join("\n"), authorization: `token="${facts.api_token}"`, stop };
}

/** Creates a server and writes the config file of its agent. Returns the server. */
export async function createServerFor(instance, name, write) {
  const server = await api(instance.url, "POST", "/api/servers/", instance.authorization, { name });
  write(`url = "${instance.url}"\nid = "${server.id}"\nkey = "${server.key}"\n`);
  return server;
}

/** Waits until a server's agent is connected. */
export const connected = (instance, server) =>
  until(`${server.name} is connected`, async () => (await api(instance.url, "GET", `/api/servers/${server.id}/`, instance.authorization)).is_connected);

/** Runs a command on a server. Returns the ended command. */
export const runOn = (instance, server, line, username = "root") =>
  api(instance.url, "POST", "/api/events/commands/", instance.authorization, { server: server.id, line, username });
