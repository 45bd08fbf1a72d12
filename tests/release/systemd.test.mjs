// The install line and the deb on a Debian with a running systemd. Needs root, control groups v2,
// and a Debian mirror for debootstrap.
import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Booted, installDebian } from "./debian.mjs";
import { api, connected, createServerFor, dist, installPackage, run, runOn, start, until, version } from "./support.mjs";

const UNIT = "farhand-agent.service";
let folder;
let debian;
let instance;

before(async () => {
  folder = installDebian(["curl", "openssl", "systemd-sysv", "dbus", "libpam-systemd"]);
  instance = await start(installPackage());
  debian = new Booted(folder);
  await debian.boot();
});
after(async () => {
  await instance?.stop();
  await debian?.stop();
});

const property = (name) => debian.run("systemctl", "show", "--value", "--property", name, UNIT).trim();
const installLine = async (name) => (await createServerFor(instance, name, () => {})).install;

/** Returns a server after it was found by its name. */
const serverNamed = (name) =>
  until(`the server ${name}`, async () => (await api(instance.url, "GET", `/api/servers/?name=${name}`, instance.authorization)).results[0]);

/** Runs a command on a connected server, and asserts that it ran in the control group of a unit. */
async function assertRunsBelow(unit, server, username) {
  await connected(instance, server);
  const ran = await runOn(instance, server, "cat /proc/self/cgroup", username);
  assert.equal(ran.state, "success", JSON.stringify(ran));
  assert.ok(ran.result.includes(`/${unit}/`), ran.result);
}

test("the install line starts a service that survives", async () => {
  const line = await installLine("by-line");
  const printed = debian.run("sh", "-c", line);
  assert.ok(printed.includes("the agent runs"), printed);
  assert.deepEqual([property("ActiveState"), property("UnitFileState")], ["active", "enabled"]);
  const server = await serverNamed("by-line");
  await assertRunsBelow(UNIT, server, "root");
  // Again: the agent that runs is left alone.
  const pid = property("MainPID");
  const again = debian.run("sh", "-c", line.replace(/\| .* sh$/, "| sh"));
  assert.ok(again.includes("already runs"), again);
  assert.equal(property("MainPID"), pid);
  // systemd starts an agent that died.
  debian.run("systemctl", "kill", "--signal=KILL", "--kill-whom=main", UNIT);
  await until("another agent", () => !["0", pid].includes(property("MainPID")));
  await assertRunsBelow(UNIT, server, "root");
});

test("unregistering and uninstalling leave no service", () => {
  debian.run("farhand-agent", "uninstall");
  debian.run("farhand-agent", "unregister");
  assert.deepEqual([property("ActiveState"), property("LoadState")], ["inactive", "not-found"]);
  debian.run("rm", "/usr/local/bin/farhand-agent");
});

test("an account installs an agent that its own systemd runs", async () => {
  debian.run("useradd", "--create-home", "ann");
  debian.run("loginctl", "enable-linger", "ann");
  const uid = debian.run("id", "-u", "ann").trim();
  const asAnn = (script) =>
    debian.attempt("setpriv", `--reuid=${uid}`, `--regid=${uid}`, "--init-groups", "env", "HOME=/home/ann", `XDG_RUNTIME_DIR=/run/user/${uid}`, "sh", "-c", script);
  await until("the systemd of ann", () => asAnn("systemctl --user is-system-running").stdout === "running\n");
  const installed = asAnn(`cd && ${await installLine("by-ann")} -s -- --user`);
  assert.equal(installed.status, 0, installed.stdout + installed.stderr);
  assert.equal(asAnn(`systemctl --user is-enabled ${UNIT}`).stdout, "enabled\n");
  await assertRunsBelow(UNIT, await serverNamed("by-ann"), "ann");
});

test("systemd runs the agent of the deb, and a removal stops it", async () => {
  const deb = `farhand-agent_${version}_amd64.deb`;
  run("cp", [join(dist, deb), join(folder, "root")]);
  debian.run("dpkg", "-i", `/root/${deb}`);
  const server = await createServerFor(instance, "by-deb", () => {});
  debian.run("env", `FARHAND_AGENT_KEY=${server.key}`, "farhand-agent", "configure", "--url", instance.url, "--id", server.id);
  debian.run("systemctl", "enable", "--now", UNIT);
  await assertRunsBelow(UNIT, server, "root");
  // An upgrade of the package does not restart the agent.
  const pid = property("MainPID");
  debian.run("dpkg", "-i", `/root/${deb}`);
  assert.deepEqual([property("ActiveState"), property("MainPID")], ["active", pid]);
  debian.run("dpkg", "--purge", "farhand-agent");
  await until("the end of the agent", () => property("ActiveState") === "inactive");
});
