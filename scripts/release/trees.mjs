// The files that the deb and rpm packages of a program install, as a folder tree.
import { chmodSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { output, root, run } from "../lib.mjs";
import { thisArchitecture } from "../native.mjs";
import { copy, stage } from "./files.mjs";
import { program } from "./programs.mjs";
import { licences } from "./reports.mjs";

const CONFIG = "/etc/farhand/agent.toml";

/** The tree of a package. */
export const tree = (name, architecture) => join(stage, "trees", `${name}-${architecture}`);

/** Writes the tree of a package. */
export function writeTree(name, architecture) {
  const folder = tree(name, architecture);
  rmSync(folder, { recursive: true, force: true });
  copy(program(name, architecture), join(folder, "usr", "bin", name));
  const documents = join(folder, "usr", "share", "doc", name);
  copy(join(root, "LICENSE"), join(documents, "copyright"));
  copy(licences(name), join(documents, "third-party-licenses.txt"));
  if (name === "farhand-agent") writeUnit(join(folder, "usr", "lib", "systemd", "system"));
  else writeManual(folder);
  // Only the owner may write. The umask of the builder does not count.
  run("chmod", ["-R", "u+rwX,go=rX", folder]);
  chmodSync(join(folder, "usr", "bin", name), 0o755);
}

/** The unit of an agent that runs as root. It starts only if the config file exists. */
function writeUnit(folder) {
  const template = readFileSync(join(root, "agent", "systemd", "farhand-agent.service"), "utf8");
  const unit = template
    .replace(/^# Written by[^]*?\n\n/, "# Installed by the package. Make changes with `systemctl edit farhand-agent.service`.\n\n")
    .replaceAll("@CONFIG@", CONFIG)
    .replaceAll("/usr/local/bin/farhand-agent", "/usr/bin/farhand-agent");
  if (unit.includes("@") || unit.includes("/usr/local")) throw new Error("farhand-agent.service has a placeholder that the release does not fill in");
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "farhand-agent.service"), unit);
}

/** The manual pages and completions of the command line. */
function writeManual(folder) {
  const farhand = program("farhand", thisArchitecture);
  const pages = join(folder, "usr", "share", "man", "man1");
  mkdirSync(pages, { recursive: true });
  run(farhand, ["man", "--dir", pages]);
  run("gzip", ["-9nr", pages]);
  const completions = {
    bash: join(folder, "usr", "share", "bash-completion", "completions", "farhand"),
    zsh: join(folder, "usr", "share", "zsh", "site-functions", "_farhand"),
    fish: join(folder, "usr", "share", "fish", "vendor_completions.d", "farhand.fish"),
  };
  for (const [shell, file] of Object.entries(completions)) {
    mkdirSync(join(file, ".."), { recursive: true });
    writeFileSync(file, `${output(farhand, ["completions", shell])}\n`);
  }
}
