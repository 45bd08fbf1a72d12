// The npm package, installed into an empty folder on a machine without Rust.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { chownSync, statSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { api, installPackage, run, start, temporary, version, withoutRust } from "./support.mjs";

const MAX_START_SECONDS = 20;
let folder;
let instance;

before(async () => {
  folder = installPackage();
  instance = await start(folder);
});
after(() => instance?.stop());

const farhand = (args, options = {}) => spawnSync("npx", ["farhand", ...args], { cwd: folder, env: withoutRust(), encoding: "utf8", ...options });

test("it serves within 20 seconds and a user can log in", async () => {
  assert.ok(instance.seconds < MAX_START_SECONDS, `${instance.seconds} s`);
  console.log(`first start: ${instance.seconds.toFixed(1)} s`);
  const { token } = await api(instance.url, "POST", "/api/auth/login/", null, { username: instance.username, password: instance.password });
  assert.equal((await api(instance.url, "GET", "/api/auth/is-authenticated/", `token="${token}"`)).authenticated, true);
  for (const fact of [instance.url, instance.username, instance.password]) assert.ok(instance.printed.includes(fact), instance.printed);
});

test("service and programs show version and commit of the release", async () => {
  const { commit } = JSON.parse(run("cat", [join(folder, "node_modules", "farhand", "release.json")]));
  const health = await api(instance.url, "GET", "/healthz");
  assert.deepEqual([health.version, health.commit], [version, commit]);
  assert.equal(farhand(["--version"]).stdout, `farhand ${version} (${commit})\n`);
  const servers = await api(instance.url, "GET", "/api/servers/", instance.authorization);
  assert.deepEqual([servers.results[0].agent_version, servers.results[0].is_connected], [version, true]);
});

test("the command line of the package runs commands and passes on their exit codes", () => {
  const env = { ...withoutRust(), FARHAND_URL: instance.url, FARHAND_TOKEN: instance.api_token };
  const done = farhand(["run", instance.server, "--", "echo to-out; echo to-err >&2; exit 7"], { env });
  assert.equal(done.status, 7, done.stderr);
  assert.ok(done.stdout.includes("to-out"), done.stdout);
});

test("the service offers the agents of the release", async () => {
  for (const architecture of ["x86_64", "aarch64"]) {
    const path = `/agent/${version}/farhand-agent-${architecture}`;
    const response = await fetch(`${instance.url}${path}.sha256`);
    assert.equal(response.status, 200, path);
    assert.match(await response.text(), new RegExp(`^[0-9a-f]{64}  farhand-agent-${architecture}\n$`));
  }
});

test("a second start uses the same state", async () => {
  await instance.stop();
  const { username, password } = instance;
  instance = await start(folder);
  console.log(`second start: ${instance.seconds.toFixed(1)} s`);
  assert.deepEqual([instance.username, instance.password], [username, password]);
});

test("a user who cannot write the package can start it", { skip: process.getuid() !== 0 }, async () => {
  const [own, uid] = [temporary(), 65534];
  const modules = join(own, "node_modules");
  run("cp", ["-a", join(folder, "node_modules"), modules]);
  run("cp", ["-a", join(folder, "package.json"), own]);
  const home = temporary();
  for (const path of [own, home]) chownSync(path, uid, uid);
  assert.equal(statSync(modules).uid, 0);
  const other = await start(own, { as: ["setpriv", `--reuid=${uid}`, `--regid=${uid}`, "--clear-groups"], home });
  try {
    assert.equal((await api(other.url, "GET", "/api/status/", other.authorization)).status, "ok");
  } finally {
    await other.stop();
  }
});
