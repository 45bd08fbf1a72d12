// `npm run release:sign -- KEY_FILE`: signs the agents of the release in dist/ with the private
// release key in KEY_FILE (docs/contributing/releasing.md).
//
// Runs no compiler and no code of packages, because such code could read the key. So this module
// and what it imports use only Node's built-in modules, and the only program that runs is tar,
// besides git for the time of the commit.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { gunzipSync, gzipSync } from "node:zlib";
import { fail, run, say } from "./lib.mjs";
import { ARCHITECTURES, SUMS, dist, sha256, stage, sums, tarOptions, version } from "./release/files.mjs";
import { privateKey, publicKey, signature } from "./release/signing.mjs";

/** The archives with the agents, and the folder in each. */
const ARCHIVES = { [`farhand-worker-${version}.tar.gz`]: `farhand-worker-${version}`, [`farhand-${version}.tgz`]: "package" };
const agent = (architecture) => `farhand-agent-${architecture}`;
/** The path of a file of an agent in an archive. */
const member = (folder, name) => join(folder, "build", "assets", "agent", version, name);
/** The new files, until all are complete. */
const work = join(stage, "signed");

/** Checks that dist/ has an unsigned release of this version, whose files are complete. */
function checkFiles() {
  if (!existsSync(join(dist, SUMS))) fail(`dist/ has no ${SUMS}`);
  const names = [...Object.keys(ARCHIVES), ...ARCHITECTURES.map(agent)];
  for (const name of names) if (!existsSync(join(dist, name))) fail(`dist/ has no ${name}`);
  for (const name of readdirSync(dist)) if (name.endsWith(".sig")) fail(`the release is signed: dist/ has ${name}`);
  const sorted = (text) => text.trim().split("\n").sort().join("\n");
  if (sorted(readFileSync(join(dist, SUMS), "utf8")) !== sorted(sums())) fail(`the files in dist/ are not those of ${SUMS}`);
}

/** Reads a file in a tar. */
function read(tar, path) {
  const { status, stdout } = spawnSync("tar", ["-xOf", tar, path], { maxBuffer: 1e8 });
  return status === 0 ? stdout : fail(`${tar} has no ${path}`);
}

/** Writes an archive of dist/ with signatures. Checks first that it has this key and these agents. */
function writeArchive(name, folder, signatures) {
  const tar = join(work, "tar");
  writeFileSync(tar, gunzipSync(readFileSync(join(dist, name))));
  const settings = read(tar, join(folder, "wrangler.toml")).toString();
  if (!settings.split("\n").includes(`FARHAND_RELEASE_KEY = "${publicKey(key)}"`)) fail(`${name} does not have the release key ${publicKey(key)}`);
  const additions = join(work, "additions");
  for (const [architecture, text] of signatures) {
    const program = readFileSync(join(dist, agent(architecture)));
    if (!program.includes(publicKey(key))) fail(`${agent(architecture)} was not built with the release key ${publicKey(key)}`);
    if (!read(tar, member(folder, agent(architecture))).equals(program)) fail(`${name} has another ${agent(architecture)} than dist/`);
    const file = join(additions, member(folder, `${agent(architecture)}.sig`));
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, text);
  }
  const paths = signatures.map(([architecture]) => member(folder, `${agent(architecture)}.sig`));
  run("tar", [...tarOptions, "-rf", tar, "-C", additions, ...paths]);
  writeFileSync(join(work, "new", name), gzipSync(readFileSync(tar), { level: 9 }));
}

const [keyFile] = process.argv.slice(2);
if (keyFile === undefined) fail("usage: npm run release:sign -- KEY_FILE");
const key = privateKey(keyFile);
checkFiles();
rmSync(work, { recursive: true, force: true });
mkdirSync(join(work, "new"), { recursive: true });
const signatures = ARCHITECTURES.map((architecture) => [architecture, signature(key, version, architecture, sha256(join(dist, agent(architecture))))]);
for (const [architecture, text] of signatures) writeFileSync(join(work, "new", `${agent(architecture)}.sig`), text);
for (const [name, folder] of Object.entries(ARCHIVES)) writeArchive(name, folder, signatures);
const changed = readdirSync(join(work, "new"));
for (const name of changed) renameSync(join(work, "new", name), join(dist, name));
writeFileSync(join(dist, SUMS), sums());
rmSync(work, { recursive: true });
say(`release: ${version} is signed. New in dist/: ${[...changed, SUMS].join(" ")}`);
