// The built service as a folder that needs no compiler: the Worker with its assets, migrations,
// wrangler.toml, the scripts that serve and deploy it, and the versions of the npm packages.
import { readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { placeAgent } from "../agent-files.mjs";
import { root, run } from "../lib.mjs";
import { ARCHITECTURES, copy, release, version } from "./files.mjs";
import { program } from "./programs.mjs";
import { releaseKey } from "./signing.mjs";

const manifest = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
/** The packages that serve and deploy. */
const DEPENDENCIES = ["miniflare", "smol-toml", "wrangler"];

/**
 * Writes the folder. `scripts` are the names of scripts, `additions` the parts of package.json that
 * differ between releases.
 */
export function writeServer(folder, { scripts, additions }) {
  rmSync(folder, { recursive: true, force: true });
  const build = join(folder, "build");
  for (const name of ["index.js", "index_bg.wasm", "assets"]) copy(join(root, "build", name), join(build, name));
  placeAgents(join(build, "assets"));
  copy(join(root, "migrations"), join(folder, "migrations"));
  copy(join(root, "LICENSE"), join(folder, "LICENSE"));
  for (const name of scripts) copy(join(root, "scripts", name), join(folder, "scripts", name));
  writeFileSync(join(folder, "wrangler.toml"), wranglerToml());
  writeFileSync(join(folder, "release.json"), `${JSON.stringify(release)}\n`);
  writeManifest(folder, additions);
}

/** Replaces the agent that a build placed in the assets by the agents of the release. */
function placeAgents(assets) {
  rmSync(join(assets, "agent"), { recursive: true, force: true });
  for (const architecture of ARCHITECTURES) placeAgent(program("farhand-agent", architecture), architecture, assets);
}

/** wrangler.toml without its build, and with the public key of the agents. */
function wranglerToml() {
  const text = readFileSync(join(root, "wrangler.toml"), "utf8");
  const replace = (text, pattern, replacement) => {
    if (!pattern.test(text)) throw new Error(`wrangler.toml has no ${pattern}`);
    return text.replace(pattern, replacement);
  };
  const built = replace(text, /# Builds build\/index\.js[^]*?\n\n/, "");
  return replace(built, /^FARHAND_RELEASE_KEY = ""$/m, `FARHAND_RELEASE_KEY = "${releaseKey()}"`);
}

/** Writes package.json, and the exact versions of all packages below it. */
function writeManifest(folder, additions) {
  const { name, description, license, type, engines, devDependencies } = manifest;
  const dependencies = Object.fromEntries(DEPENDENCIES.map((name) => [name, devDependencies[name]]));
  writeFileSync(join(folder, "package.json"), `${JSON.stringify({ name, version, description, license, type, engines, ...additions, dependencies }, null, 2)}\n`);
  copy(join(root, "package-lock.json"), join(folder, "package-lock.json"));
  run("npm", ["install", "--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund"], { cwd: folder });
  // npm publishes and obeys a lock file with this name only.
  renameSync(join(folder, "package-lock.json"), join(folder, "npm-shrinkwrap.json"));
}

/** The folder of an agent's files in a written server. */
export const agentsOf = (folder) => join(folder, "build", "assets", "agent", version);
