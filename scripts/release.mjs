// `npm run release`: builds all files of a release into dist/ (docs/contributing/releasing.md).
//
// Environment: FARHAND_RELEASE_KEY_FILE, the Ed25519 private key that signs the agents. Without it
// they are not signed, and cannot replace themselves by later releases.
import { chmodSync, mkdirSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { build } from "./build.mjs";
import { output, root, run, say } from "./lib.mjs";
import { buildDeb } from "./release/deb.mjs";
import { ARCHITECTURES, PROGRAMS, archive, copy, dist, sha256, stage, version } from "./release/files.mjs";
import { compilePrograms, program } from "./release/programs.mjs";
import { licences, licencesFolder, writeReports } from "./release/reports.mjs";
import { buildRpm } from "./release/rpm.mjs";
import { agentsOf, emptyFolder, writeServer } from "./release/server.mjs";
import { publicKey, releaseKey } from "./release/signing.mjs";
import { tree, writeTree } from "./release/trees.mjs";
import { debianPackages } from "./toolchain.mjs";

/** The scripts with which an operator serves and deploys. */
const OF_OPERATORS = ["deploy.mjs", "export.mjs", "instance.mjs", "lib.mjs", "setup.mjs"];
/** The scripts of the npm package. */
const OF_NPM = ["demo.mjs", "farhand.mjs", "instance.mjs", "lib.mjs", "local.mjs", "machine.mjs", "serve.mjs", "steps.mjs"];

/** tar.gz, deb and rpm of a program. */
function packProgram(about, architecture) {
  const { name } = about;
  writeTree(name, architecture);
  buildDeb(about, architecture);
  buildRpm(about, architecture);
  const folder = `${name}-${version}-${architecture}-linux`;
  const files = join(stage, "archives", folder);
  rmSync(files, { recursive: true, force: true });
  copy(program(name, architecture), join(files, name));
  copy(join(root, "LICENSE"), join(files, "LICENSE"));
  copy(licences(name), join(files, "third-party-licenses.txt"));
  if (name === "farhand") copy(join(tree(name, architecture), "usr", "share"), join(files, "share"));
  archive(join(stage, "archives"), folder, join(dist, `${folder}.tar.gz`));
}

/** The Worker with what an operator needs to deploy it. */
function packWorker(key) {
  const name = `farhand-worker-${version}`;
  const folder = join(stage, name);
  const scripts = { setup: "node scripts/setup.mjs", deploy: "node scripts/deploy.mjs", export: "node scripts/export.mjs" };
  writeServer(folder, { scripts: OF_OPERATORS, additions: { private: true, scripts }, key });
  copy(licencesFolder, join(folder, "licenses"));
  archive(stage, name, join(dist, `${name}.tar.gz`));
  // The agent as the installer and upgrades download it.
  copy(agentsOf(folder), dist);
}

/** The npm package, which serves on one machine. */
function packNpm(key) {
  const folder = join(stage, "npm");
  const files = ["build", "licenses", "migrations", "programs", "scripts", "npm-shrinkwrap.json", "release.json", "wrangler.toml"];
  writeServer(folder, { scripts: OF_NPM, additions: { bin: { farhand: "scripts/farhand.mjs" }, files }, key });
  for (const architecture of ARCHITECTURES) copy(program("farhand", architecture), join(folder, "programs", architecture, "farhand"));
  copy(join(root, "scripts", "release", "npm-readme.md"), join(folder, "README.md"));
  copy(licencesFolder, join(folder, "licenses"));
  for (const name of readdirSync(agentsOf(folder))) if (!name.includes(".")) chmodSync(join(agentsOf(folder), name), 0o755);
  run("npm", ["pack", "--silent", "--pack-destination", dist], { cwd: folder });
  const bom = output("npm", ["sbom", "--sbom-format", "cyclonedx", "--package-lock-only", "--omit", "dev"], { cwd: folder, maxBuffer: 1e8 });
  writeFileSync(join(dist, `farhand-npm-${version}.cdx.json`), `${bom}\n`);
}

function writeSums() {
  const lines = readdirSync(dist).sort().map((name) => `${sha256(join(dist, name))}  ${name}\n`);
  writeFileSync(join(dist, "SHA256SUMS"), lines.join(""));
}

const key = releaseKey();
if (key === null) say("release: NOT SIGNED, because FARHAND_RELEASE_KEY_FILE is not set");
await debianPackages(["dpkg", "rpm"], "deb and rpm are built with dpkg-deb and rpmbuild");
emptyFolder(dist);
mkdirSync(stage, { recursive: true });
await build();
await compilePrograms(key === null ? null : publicKey(key));
await writeReports();
for (const architecture of ARCHITECTURES) for (const about of PROGRAMS) packProgram(about, architecture);
packWorker(key);
packNpm(key);
writeSums();
say(`release: ${version} is in dist/`);
