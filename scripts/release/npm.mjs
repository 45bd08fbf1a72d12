// The npm package, which serves on one machine and has the command line.
import { chmodSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { output, root, run } from "../lib.mjs";
import { ARCHITECTURES, copy, dist, stage, version } from "./files.mjs";
import { program } from "./programs.mjs";
import { licencesFolder } from "./licences.mjs";
import { agentsOf, writeServer } from "./server.mjs";

const SCRIPTS = ["demo.mjs", "farhand.mjs", "instance.mjs", "lib.mjs", "local.mjs", "machine.mjs", "migrate.mjs", "private-miniflare.mjs", "serve.mjs", "steps.mjs"];
/** What the package contains, besides its README, LICENSE and package.json. */
const FILES = ["build", "licenses", "migrations", "npm-shrinkwrap.json", "programs", "release.json", "scripts", "wrangler.toml"];

/** Packs the package, and writes the list of its components and of those that npm installs. */
export function packNpm() {
  const folder = join(stage, "npm");
  writeServer(folder, { scripts: SCRIPTS, additions: { bin: { farhand: "scripts/farhand.mjs" }, files: FILES } });
  for (const architecture of ARCHITECTURES) copy(program("farhand", architecture), join(folder, "programs", architecture, "farhand"));
  copy(join(root, "scripts", "release", "npm-readme.md"), join(folder, "README.md"));
  copy(licencesFolder, join(folder, "licenses"));
  // The package runs the agents that the service offers for download.
  for (const name of readdirSync(agentsOf(folder))) if (!name.includes(".")) chmodSync(join(agentsOf(folder), name), 0o755);
  run("npm", ["pack", "--silent", "--pack-destination", dist], { cwd: folder });
  const components = output("npm", ["sbom", "--sbom-format", "cyclonedx", "--package-lock-only", "--omit", "dev"], { cwd: folder, maxBuffer: 1e8 });
  if (components === null) throw new Error("npm sbom failed");
  writeFileSync(join(dist, `farhand-npm-${version}.cdx.json`), `${components}\n`);
}
