// `npm run release`: builds all files of a release into dist/ (docs/contributing/releasing.md).
//
// Environment: FARHAND_RELEASE_KEY_FILE, the Ed25519 private key that signs the agents. Without it
// they are not signed, and cannot replace themselves by later releases.
import { mkdirSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { build } from "./build.mjs";
import { say } from "./lib.mjs";
import { packProgram, packWorker } from "./release/archives.mjs";
import { writeComponents } from "./release/components.mjs";
import { buildDeb } from "./release/deb.mjs";
import { ARCHITECTURES, PROGRAMS, dist, sha256, stage, version } from "./release/files.mjs";
import { writeLicences } from "./release/licences.mjs";
import { packNpm } from "./release/npm.mjs";
import { compilePrograms } from "./release/programs.mjs";
import { buildRpm } from "./release/rpm.mjs";
import { publicKey, releaseKey } from "./release/signing.mjs";
import { writeTree } from "./release/trees.mjs";
import { debianPackages } from "./toolchain.mjs";

function writeSums() {
  const lines = readdirSync(dist).sort().map((name) => `${sha256(join(dist, name))}  ${name}\n`);
  writeFileSync(join(dist, "SHA256SUMS"), lines.join(""));
}

// The files of packages have these modes. dpkg-deb refuses others.
process.umask(0o022);
const key = releaseKey();
if (key === null) say("release: NOT SIGNED, because FARHAND_RELEASE_KEY_FILE is not set");
await debianPackages(["dpkg", "rpm"], "deb and rpm are built with dpkg-deb and rpmbuild");
rmSync(dist, { recursive: true, force: true });
mkdirSync(dist);
mkdirSync(stage, { recursive: true });
await build();
await compilePrograms(key === null ? null : publicKey(key));
writeLicences();
await writeComponents();
for (const architecture of ARCHITECTURES) {
  for (const about of PROGRAMS) {
    writeTree(about.name, architecture);
    buildDeb(about, architecture);
    buildRpm(about, architecture);
    packProgram(about.name, architecture);
  }
}
packWorker(key);
packNpm(key);
writeSums();
say(`release: ${version} is in dist/`);
