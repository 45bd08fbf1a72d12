// `npm run release`: builds all files of a release into dist/ (docs/contributing/releasing.md).
//
// Environment: FARHAND_RELEASE_KEY, the public release key. Without it agents cannot replace
// themselves by later releases. `npm run release:sign` signs the agents afterwards, because the code
// of packages runs here and could read a private key.
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { build } from "./build.mjs";
import { say } from "./lib.mjs";
import { packProgram, packWorker } from "./release/archives.mjs";
import { writeComponents } from "./release/components.mjs";
import { buildDeb } from "./release/deb.mjs";
import { ARCHITECTURES, PROGRAMS, SUMS, dist, stage, sums, version } from "./release/files.mjs";
import { writeLicences } from "./release/licences.mjs";
import { packNpm } from "./release/npm.mjs";
import { compilePrograms } from "./release/programs.mjs";
import { buildRpm } from "./release/rpm.mjs";
import { releaseKey } from "./release/signing.mjs";
import { writeTree } from "./release/trees.mjs";
import { debianPackages } from "./toolchain.mjs";

// The files of packages have these modes. dpkg-deb refuses others.
process.umask(0o022);
if (releaseKey() === "") say("release: CANNOT BE SIGNED, because FARHAND_RELEASE_KEY is not set");
await debianPackages(["dpkg", "rpm"], "deb and rpm are built with dpkg-deb and rpmbuild");
rmSync(dist, { recursive: true, force: true });
mkdirSync(dist);
mkdirSync(stage, { recursive: true });
await build();
await compilePrograms();
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
packWorker();
packNpm();
writeFileSync(join(dist, SUMS), sums());
say(`release: ${version} is in dist/`);
