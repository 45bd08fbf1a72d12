// The tar.gz of a program, and of the Worker.
import { rmSync } from "node:fs";
import { join } from "node:path";
import { root, run } from "../lib.mjs";
import { copy, dist, stage, tarOptions, version } from "./files.mjs";
import { program } from "./programs.mjs";
import { licences, licencesFolder } from "./licences.mjs";
import { agentsOf, writeServer } from "./server.mjs";
import { tree } from "./trees.mjs";

/** The scripts with which an operator deploys. */
const SCRIPTS = ["deploy.mjs", "export.mjs", "instance.mjs", "lib.mjs", "setup.mjs"];

/** Packs a folder with its name in front. */
function archive(parent, folder) {
  run("tar", [...tarOptions, "--sort=name", "--use-compress-program=gzip -9n", "-cf", join(dist, `${folder}.tar.gz`), "-C", parent, folder]);
}

/** Packs a program with its licences, manual pages and completions. Its tree must be written. */
export function packProgram(name, architecture) {
  const folder = `${name}-${version}-${architecture}-linux`;
  const files = join(stage, "archives", folder);
  rmSync(files, { recursive: true, force: true });
  copy(program(name, architecture), join(files, name));
  copy(join(root, "LICENSE"), join(files, "LICENSE"));
  copy(licences(name), join(files, "third-party-licenses.txt"));
  if (name === "farhand") copy(join(tree(name, architecture), "usr", "share"), join(files, "share"));
  archive(join(stage, "archives"), folder);
}

/** Packs the Worker with what an operator needs to deploy it, and the agents that it serves. */
export function packWorker() {
  const name = `farhand-worker-${version}`;
  const folder = join(stage, name);
  const scripts = { setup: "node scripts/setup.mjs", deploy: "node scripts/deploy.mjs", export: "node scripts/export.mjs" };
  writeServer(folder, { scripts: SCRIPTS, additions: { private: true, scripts } });
  copy(licencesFolder, join(folder, "licenses"));
  archive(stage, name);
  copy(agentsOf(folder), dist);
}
