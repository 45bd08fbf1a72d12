// `npm run release:sign`, for a small made-up release in a folder that has nothing else of the
// checkout. Needs no built release.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { createHash, createPublicKey, generateKeyPairSync, verify } from "node:crypto";
import { cpSync, existsSync, mkdirSync, readFileSync, readdirSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { ARCHITECTURES, root, run, temporary, version } from "./support.mjs";

const WORKER = `farhand-worker-${version}.tar.gz`;
const PACKAGE = `farhand-${version}.tgz`;
/** The script with everything that it imports. */
const SCRIPTS = ["lib.mjs", "release-sign.mjs", "release/files.mjs", "release/signing.mjs"];

const keyPair = ({ publicKey, privateKey } = generateKeyPairSync("ed25519")) => {
  return { publicKey, pem: privateKey.export({ type: "pkcs8", format: "pem" }).toString() };
};
const base64 = ({ publicKey }) => Buffer.from(publicKey.export({ format: "jwk" }).x, "base64url").toString("base64");

function write(file, text) {
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
  return file;
}

/** The SHA-256 of each file in a folder. */
const sums = (folder) => Object.fromEntries(readdirSync(folder).sort().map((name) => [name, createHash("sha256").update(readFileSync(join(folder, name))).digest("hex")]));

/** Writes SHA256SUMS. The last file is first, because the workflow adds files later. */
function writeSums(dist) {
  const others = Object.entries(sums(dist)).filter(([name]) => name !== "SHA256SUMS");
  writeFileSync(join(dist, "SHA256SUMS"), others.reverse().map(([name, sum]) => `${sum}  ${name}\n`).join(""));
}

/** Makes a release of small files, whose agents have a public key. Returns the folder above dist/. */
function makeRelease({ key, archivedKey = key, archivedAgent = (text) => text }) {
  const folder = temporary();
  for (const name of SCRIPTS) cpSync(join(root, "scripts", name), join(folder, "scripts", name));
  cpSync(join(root, "package.json"), join(folder, "package.json"));
  const dist = join(folder, "dist");
  const agents = ARCHITECTURES.map((architecture) => [`farhand-agent-${architecture}`, `a program for ${architecture} with ${base64(key)}\n`]);
  for (const [name, text] of agents) write(join(dist, name), text);
  write(join(dist, "farhand-0.0.0-other-untested.tar.gz"), "not touched\n");
  const packed = temporary();
  for (const server of [`farhand-worker-${version}`, "package"]) {
    write(join(packed, server, "wrangler.toml"), `name = "farhand"\n[vars]\nFARHAND_RELEASE_KEY = "${base64(archivedKey)}"\n`);
    write(join(packed, server, "package.json"), JSON.stringify({ name: "farhand", version }));
    for (const [name, text] of agents) write(join(packed, server, "build", "assets", "agent", version, name), archivedAgent(text));
  }
  run("tar", ["-czf", join(dist, WORKER), "-C", packed, `farhand-worker-${version}`]);
  run("npm", ["pack", "--silent", "--pack-destination", dist], { cwd: join(packed, "package") });
  writeSums(dist);
  return folder;
}

/** Signs on a machine whose only programs are node and tar. */
function sign(folder, ...args) {
  const bin = temporary();
  symlinkSync(run("sh", ["-c", "command -v tar"]).trim(), join(bin, "tar"));
  return spawnSync(process.execPath, [join(folder, "scripts", "release-sign.mjs"), ...args], { cwd: folder, encoding: "utf8", env: { PATH: bin }, timeout: 30_000 });
}

/** Asserts that a release is not signed, for a reason, and not changed. */
function assertRefused(folder, args, reason) {
  const before = sums(join(folder, "dist"));
  const done = sign(folder, ...args);
  assert.deepEqual([done.status, done.stderr.split("\n").length], [1, 2], done.stderr);
  assert.match(done.stderr, reason);
  assert.deepEqual(sums(join(folder, "dist")), before);
}

const pemFile = ({ pem }) => write(join(temporary(), "key.pem"), pem);

test("a signed release has signatures beside the agents and in both archives", () => {
  const key = keyPair();
  const folder = makeRelease({ key });
  const dist = join(folder, "dist");
  const before = sums(dist);
  const contents = () => [WORKER, PACKAGE].map((name) => run("tar", ["-tzf", join(dist, name)]).trim().split("\n").filter((path) => !path.endsWith("/")));
  const contentsBefore = contents();
  const done = sign(folder, pemFile(key));
  assert.equal(done.status, 0, done.stderr);
  run("sha256sum", ["--check", "--strict", "--quiet", "SHA256SUMS"], { cwd: dist });
  const after = sums(dist);
  const changed = Object.keys(after).filter((name) => after[name] !== before[name]);
  const signatures = ARCHITECTURES.map((architecture) => `farhand-agent-${architecture}.sig`);
  assert.deepEqual(changed, ["SHA256SUMS", PACKAGE, WORKER, ...signatures].sort());
  assert.equal(readFileSync(join(dist, "SHA256SUMS"), "utf8").trim().split("\n").length, Object.keys(after).length - 1);
  for (const architecture of ARCHITECTURES) {
    const text = readFileSync(join(dist, `farhand-agent-${architecture}.sig`), "utf8");
    const signed = `farhand-agent ${version} ${architecture} ${before[`farhand-agent-${architecture}`]}\n`;
    assert.ok(verify(null, Buffer.from(signed), createPublicKey(key.publicKey.export({ type: "spki", format: "pem" })), Buffer.from(text, "base64")));
    assert.match(text, /^[A-Za-z0-9+/]{86}==\n$/);
  }
  const below = (server) => signatures.map((name) => `${server}/build/assets/agent/${version}/${name}`);
  assert.deepEqual(contents(), [[...contentsBefore[0], ...below(`farhand-worker-${version}`)], [...contentsBefore[1], ...below("package")]]);
  // npm and tar read what was added.
  const installed = temporary();
  run("npm", ["install", "--offline", "--no-audit", "--no-fund", join(dist, PACKAGE)], { cwd: installed });
  run("tar", ["-xzf", join(dist, WORKER), "-C", installed]);
  for (const server of [join(installed, "node_modules", "farhand"), join(installed, `farhand-worker-${version}`)]) {
    for (const name of signatures) assert.deepEqual(readFileSync(join(server, "build", "assets", "agent", version, name)), readFileSync(join(dist, name)));
  }
  assertRefused(folder, [pemFile(key)], /the release is signed: dist\/ has farhand-agent-aarch64\.sig/);
});

test("another key changes nothing", () => {
  const [key, other] = [keyPair(), keyPair()];
  const folder = makeRelease({ key });
  assertRefused(folder, [pemFile(other)], /does not have the release key/);
  assertRefused(folder, [pemFile(keyPair(generateKeyPairSync("rsa", { modulusLength: 1024 })))], /is a key of rsa/);
  assertRefused(folder, [write(join(temporary(), "key"), base64(key))], /is not a private key/);
  assertRefused(folder, [join(folder, "missing.pem")], /is not a private key: ENOENT/);
  assertRefused(folder, [], /usage: npm run release:sign -- KEY_FILE/);
  // Only the archives have the key, or only the agents.
  assertRefused(makeRelease({ key: other, archivedKey: key }), [pemFile(key)], /was not built with the release key/);
  assertRefused(makeRelease({ key, archivedKey: other }), [pemFile(key)], /does not have the release key/);
});

test("a release whose files do not belong together is not signed", () => {
  const key = keyPair();
  const folder = makeRelease({ key });
  const changed = join(folder, "dist", "farhand-0.0.0-other-untested.tar.gz");
  writeFileSync(changed, "touched\n");
  assertRefused(folder, [pemFile(key)], /the files in dist\/ are not those of SHA256SUMS/);
  writeFileSync(changed, "not touched\n");
  const added = write(join(folder, "dist", "added"), "");
  assertRefused(folder, [pemFile(key)], /the files in dist\/ are not those of SHA256SUMS/);
  assert.ok(existsSync(added));
  assertRefused(makeRelease({ key, archivedAgent: (text) => `${text}and more\n` }), [pemFile(key)], /has another farhand-agent-x86_64 than dist\//);
});

test("a build refuses a private key, and the workflow has none", () => {
  const folder = temporary();
  cpSync(join(root, "scripts"), join(folder, "scripts"), { recursive: true });
  for (const name of ["package.json", "wrangler.toml"]) cpSync(join(root, name), join(folder, name));
  const built = write(join(folder, "dist", "SHA256SUMS"), "");
  const { pem } = keyPair();
  const oneLine = pem.split("\n").slice(1, -2).join("");
  for (const wrong of [pem, oneLine, "x", `${base64(keyPair())}\n`]) {
    const env = { PATH: temporary(), FARHAND_RELEASE_KEY: wrong };
    const done = spawnSync(process.execPath, [join(folder, "scripts", "release.mjs")], { cwd: folder, encoding: "utf8", env, timeout: 30_000 });
    assert.deepEqual([done.status, done.stderr], [1, "error: FARHAND_RELEASE_KEY is not a public key: 32 bytes in base64\n"]);
    assert.ok(existsSync(built), "the last release was removed");
  }
  const workflow = readFileSync(join(root, ".github", "workflows", "release.yml"), "utf8");
  assert.ok(workflow.includes("FARHAND_RELEASE_KEY: ${{ vars.FARHAND_RELEASE_KEY }}"));
  assert.ok(!/secrets|cache/.test(workflow), "a secret or a cache");
  // Only the script that signs reads a private key.
  const scripts = readdirSync(join(root, "scripts"), { recursive: true, encoding: "utf8" }).filter((name) => name.endsWith(".mjs"));
  const readers = scripts.filter((name) => /\bprivateKey\(/.test(readFileSync(join(root, "scripts", name), "utf8")));
  assert.deepEqual(readers.sort(), ["release/signing.mjs", "release-sign.mjs"].sort());
});
