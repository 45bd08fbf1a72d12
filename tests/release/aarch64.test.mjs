// The programs for aarch64, emulated by qemu.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { connected, createServerFor, dist, installPackage, run, runOn, start, temporary, version } from "./support.mjs";

const QEMU = "qemu-aarch64-static";
let folder;
let instance;

before(async () => {
  folder = temporary();
  for (const name of ["farhand-agent", "farhand"]) run("tar", ["-xzf", join(dist, `${name}-${version}-aarch64-linux.tar.gz`), "-C", folder]);
  instance = await start(installPackage());
});
after(() => instance?.stop());

const program = (name) => join(folder, `${name}-${version}-aarch64-linux`, name);

test("the programs are static and show their version", () => {
  for (const name of ["farhand-agent", "farhand"]) {
    assert.match(run("file", ["-b", program(name)]), /ARM aarch64.*static/);
    assert.ok(run(QEMU, [program(name), "--version"]).startsWith(`${name} ${version} (`));
  }
});

test("deb and rpm contain the same programs", () => {
  for (const name of ["farhand-agent", "farhand"]) {
    const [deb, rpm] = [temporary(), temporary()];
    const file = join(dist, `${name}_${version}_arm64.deb`);
    assert.equal(run("dpkg-deb", ["-f", file, "Architecture"]), "arm64\n");
    run("dpkg-deb", ["-x", file, deb]);
    run("sh", ["-c", 'rpm2cpio "$1" | cpio -idm --quiet', "sh", join(dist, `${name}-${version}-1.aarch64.rpm`)], { cwd: rpm });
    const expected = readFileSync(program(name));
    for (const tree of [deb, rpm]) assert.ok(readFileSync(join(tree, "usr", "bin", name)).equals(expected), tree);
  }
});

test("the agent connects and runs a command", async () => {
  const config = join(folder, "agent.toml");
  const server = await createServerFor(instance, "aarch64", (text) => writeFileSync(config, text, { mode: 0o600 }));
  const agent = spawn(QEMU, [program("farhand-agent"), "run", "--config", config, "--state-dir", join(folder, "state")], { stdio: ["ignore", "ignore", "inherit"] });
  const ended = new Promise((resolve) => agent.once("exit", resolve));
  try {
    await connected(instance, server);
    const command = await runOn(instance, server, "echo from qemu");
    assert.deepEqual([command.state, command.result], ["success", "from qemu\n"], JSON.stringify(command));
  } finally {
    agent.kill();
    await ended;
  }
});

test("the command line runs a command", () => {
  const env = { ...process.env, FARHAND_URL: instance.url, FARHAND_TOKEN: instance.api_token };
  const printed = run(QEMU, [program("farhand"), "run", instance.server, "--", "echo from the command line"], { env });
  assert.ok(printed.includes("from the command line"), printed);
});
