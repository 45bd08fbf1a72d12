// The other files of a release: sums, signatures, lists of components, and the Worker.
import assert from "node:assert/strict";
import { createPublicKey, verify } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { ARCHITECTURES, dist, isSigned, run, temporary, version, withoutRust } from "./support.mjs";

const names = () => readdirSync(dist).sort();

test("all files are there, and their sums are right", () => {
  const programs = ["farhand-agent", "farhand"].flatMap((name) => [
    ...ARCHITECTURES.map((architecture) => `${name}-${version}-${architecture}-linux.tar.gz`),
    ...ARCHITECTURES.map((architecture) => `${name}-${version}-1.${architecture}.rpm`),
    ...["amd64", "arm64"].map((architecture) => `${name}_${version}_${architecture}.deb`),
  ]);
  const lists = ["farhand", "farhand-agent", "farhand-npm", "farhand-worker"].map((name) => `${name}-${version}.cdx.json`);
  const agents = ARCHITECTURES.flatMap((architecture) => [`farhand-agent-${architecture}`, `farhand-agent-${architecture}.sha256`]);
  const expected = ["SHA256SUMS", `farhand-${version}.tgz`, `farhand-worker-${version}.tar.gz`, ...programs, ...lists, ...agents].sort();
  // A draft of the workflow has files for other systems.
  assert.deepEqual(names().filter((name) => !name.endsWith(".sig") && !name.endsWith("-untested.tar.gz")), expected);
  run("sha256sum", ["--check", "--strict", "--quiet", "SHA256SUMS"], { cwd: dist });
  assert.equal(readFileSync(join(dist, "SHA256SUMS"), "utf8").trim().split("\n").length, names().length - 1);
  for (const architecture of ARCHITECTURES) run("sha256sum", ["--check", "--strict", "--quiet", `farhand-agent-${architecture}.sha256`], { cwd: dist });
});

/** Unpacks the Worker. Returns its folder. */
function worker() {
  const folder = temporary();
  run("tar", ["-xzf", join(dist, `farhand-worker-${version}.tar.gz`), "-C", folder]);
  return join(folder, `farhand-worker-${version}`);
}

test("the agents are signed with the key that installers get", { skip: !isSigned && "the release is not signed" }, () => {
  const [, x] = readFileSync(join(worker(), "wrangler.toml"), "utf8").match(/^FARHAND_RELEASE_KEY = "(.{44})"$/m);
  const key = createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x: Buffer.from(x, "base64").toString("base64url") }, format: "jwk" });
  for (const architecture of ARCHITECTURES) {
    const [sha256] = readFileSync(join(dist, `farhand-agent-${architecture}.sha256`), "utf8").split(" ");
    const text = readFileSync(join(dist, `farhand-agent-${architecture}.sig`), "utf8");
    const signature = Buffer.from(text, "base64");
    assert.deepEqual([signature.length, text], [64, `${signature.toString("base64")}\n`]);
    const signed = (version) => verify(null, Buffer.from(`farhand-agent ${version} ${architecture} ${sha256}\n`), key, signature);
    assert.ok(signed(version) && !signed("9.9.9"));
    assert.ok(readFileSync(join(dist, `farhand-agent-${architecture}`)).includes(x), "the agent has another key");
  }
});

test("the lists of components name what the parts are made of", () => {
  const parts = { farhand: "clap", "farhand-agent": "rustls", "farhand-worker": "worker", "farhand-npm": "miniflare" };
  for (const [name, component] of Object.entries(parts)) {
    const bom = JSON.parse(readFileSync(join(dist, `${name}-${version}.cdx.json`), "utf8"));
    assert.equal(bom.bomFormat, "CycloneDX");
    assert.ok(bom.components.some((item) => item.name === component && item.version && item.purl), name);
    assert.ok(!bom.components.some((item) => ["proptest", "vitepress"].includes(item.name)), `${name} lists what does not ship`);
  }
});

test("wrangler accepts the Worker without a compiler", () => {
  const folder = worker();
  run("npm", ["ci", "--no-audit", "--no-fund"], { cwd: folder, env: withoutRust() });
  const printed = run("npx", ["wrangler", "deploy", "--dry-run"], { cwd: folder, env: { ...withoutRust(), WRANGLER_SEND_METRICS: "false", CI: "true" } });
  assert.ok(printed.includes("env.DB") && printed.includes("--dry-run: exiting now."), printed);
  const setup = run("npm", ["run", "setup", "--", "--env", "eu1", "--domain", "example.com", "--workspace", "acme", "--email", "admin@acme.example", "--dry-run"], { cwd: folder, env: withoutRust() });
  assert.ok(setup.includes("[env.eu1"), setup);
});
