// The deb and rpm packages, installed into a clean Debian. Needs root, and a Debian mirror for
// debootstrap.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { installDebian } from "./debian.mjs";
import { connected, createServerFor, dist, installPackage, run, runOn, start, temporary, version } from "./support.mjs";

const UNIT = "/usr/lib/systemd/system/farhand-agent.service";
const CONFIG = "/etc/farhand/agent.toml";
let debian;
let instance;

/** Runs a program in the clean Debian. */
const inDebian = (...args) => run("chroot", [debian, ...args], { env: { PATH: "/usr/sbin:/usr/bin:/sbin:/bin", DEBIAN_FRONTEND: "noninteractive" } });

before(async () => {
  debian = installDebian(["curl", "openssl"]);
  for (const name of ["proc", "dev"]) run("mount", ["--bind", `/${name}`, join(debian, name)]);
  instance = await start(installPackage());
});
after(async () => {
  await instance?.stop();
  for (const name of ["proc", "dev"]) spawnSync("umount", ["--lazy", join(debian, name)]);
});

/** Starts an agent with a command in the clean Debian, until it has run a command of the service. */
async function agentRuns(server, ...command) {
  const agent = spawn("chroot", [debian, ...command], { env: { PATH: "/usr/sbin:/usr/bin:/sbin:/bin" }, stdio: ["ignore", "ignore", "inherit"], detached: true });
  const ended = new Promise((resolve) => agent.once("exit", resolve));
  try {
    await connected(instance, server);
    const ran = await runOn(instance, server, "cat /etc/debian_version");
    assert.equal(ran.state, "success", JSON.stringify(ran));
    assert.match(ran.result, /^12/);
  } finally {
    process.kill(-agent.pid);
    await ended;
  }
}

/** Creates a server, and runs the agent of a package for it. */
async function packagedAgentRuns(name) {
  const config = join(debian, CONFIG);
  mkdirSync(join(config, ".."), { recursive: true });
  const server = await createServerFor(instance, name, (text) => writeFileSync(config, text, { mode: 0o600 }));
  await agentRuns(server, "/usr/bin/farhand-agent", "run", "--config", CONFIG, "--state-dir", `/var/lib/${name}`);
}

test("the deb brings agent and unit, runs nothing, and the agent works", async () => {
  run("cp", [join(dist, `farhand-agent_${version}_amd64.deb`), join(dist, `farhand_${version}_amd64.deb`), join(debian, "tmp")]);
  inDebian("sh", "-c", "dpkg -i /tmp/*.deb");
  assert.ok(inDebian("farhand-agent", "--version").startsWith(`farhand-agent ${version} (`));
  assert.ok(inDebian("farhand", "--version").startsWith(`farhand ${version} (`));
  const unit = readFileSync(join(debian, UNIT), "utf8");
  for (const line of [`ConditionPathExists=${CONFIG}`, `ExecStart=/usr/bin/farhand-agent run --config ${CONFIG}`]) assert.ok(unit.includes(`\n${line}\n`), unit);
  // Not enabled: it starts when an administrator enables it after the registration.
  assert.ok(!existsSync(join(debian, "etc/systemd/system/multi-user.target.wants/farhand-agent.service")));
  assert.equal(spawnSync("pgrep", ["-f", "^/usr/bin/farhand-agent"]).status, 1, "an agent runs");
  await packagedAgentRuns("from-deb");
});

test("the files of the deb belong to root, and purging deletes the agent's key", () => {
  for (const line of run("dpkg-deb", ["--contents", join(dist, `farhand-agent_${version}_amd64.deb`)]).trim().split("\n")) {
    assert.match(line, /^[-d]rw[-x]r-[-x]r-[-x] root\/root /);
  }
  inDebian("dpkg", "--purge", "farhand-agent", "farhand");
  for (const path of ["/usr/bin/farhand-agent", "/usr/bin/farhand", UNIT, CONFIG]) assert.ok(!existsSync(join(debian, path)), path);
});

test("the rpm installs the same files, and the agent works", async () => {
  const rpm = (...args) => run("rpm", ["--root", debian, ...args]);
  const files = ["farhand-agent", "farhand"].map((name) => join(dist, `${name}-${version}-1.x86_64.rpm`));
  const listed = run("rpm", ["-qpl", ...files]).trim().split("\n");
  for (const path of ["/usr/bin/farhand-agent", UNIT, "/usr/bin/farhand", "/usr/share/man/man1/farhand.1.gz"]) assert.ok(listed.includes(path), `${path}: ${listed}`);
  // The database of rpm does not know what dpkg installed, such as /bin/sh.
  rpm("--initdb");
  rpm("-i", "--nodeps", ...files);
  assert.equal(rpm("-q", "--qf", "%{VERSION}", "farhand-agent"), version);
  await packagedAgentRuns("from-rpm");
  run("rm", [join(debian, CONFIG)]);
  rpm("-e", "--nodeps", "farhand-agent", "farhand");
  assert.ok(!existsSync(join(debian, "usr/bin/farhand-agent")));
});

test("the line that the service gives installs the agent of the release", async () => {
  const server = await createServerFor(instance, "from-line", () => {});
  assert.match(server.install, /\| .* sh$/);
  await agentRuns(server, "sh", "-c", `${server.install} -s -- --foreground`);
  assert.ok(inDebian("/usr/local/bin/farhand-agent", "--version").startsWith(`farhand-agent ${version} (`));
});

test("systemd accepts the unit", () => {
  const deb = temporary();
  run("dpkg-deb", ["-x", join(dist, `farhand-agent_${version}_amd64.deb`), deb]);
  // The unit names the installed program, which this machine does not have.
  const unit = join(deb, "farhand-agent.service");
  writeFileSync(unit, readFileSync(join(deb, UNIT), "utf8").replaceAll("/usr/bin/farhand-agent", join(deb, "usr/bin/farhand-agent")));
  run("systemd-analyze", ["verify", "--man=no", unit]);
});
