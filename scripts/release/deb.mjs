// Builds a deb from the tree of a package, with dpkg-deb.
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { output, run } from "../lib.mjs";
import { copy, dist, sourceDate, stage, version } from "./files.mjs";
import { tree } from "./trees.mjs";

const ARCHITECTURE = { x86_64: "amd64", aarch64: "arm64" };

// An upgrade does not restart the agent: the upgrade may be a command of this agent, which a restart
// would stop. Removal stops it without waiting, for the same reason.
const RELOAD = "if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi";
const SCRIPTS = {
  "farhand-agent": {
    postinst: RELOAD,
    prerm: 'if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl --no-block disable --now farhand-agent.service || true; fi',
    postrm: `${RELOAD}\nif [ "$1" = purge ]; then rm -rf /var/lib/farhand-agent /etc/farhand/agent.toml; fi`,
  },
  farhand: {},
};

/** A pre-release sorts before its release: 0.3.0-rc.1 is 0.3.0~rc.1. */
export const packageVersion = version.replace("-", "~");

export function buildDeb({ name, summary, description }, architecture) {
  const folder = join(stage, "deb", `${name}-${architecture}`);
  rmSync(folder, { recursive: true, force: true });
  copy(tree(name, architecture), folder);
  const size = output("du", ["-sk", "--apparent-size", folder]).split("\t")[0];
  mkdirSync(join(folder, "DEBIAN"), { mode: 0o755 });
  const control = {
    Package: name,
    Version: packageVersion,
    Architecture: ARCHITECTURE[architecture],
    Maintainer: "Farhand maintainers <noreply@farhand.invalid>",
    "Installed-Size": size,
    Section: "admin",
    Priority: "optional",
    Recommends: "ca-certificates",
    Description: `${summary}\n ${description}`,
  };
  const text = Object.entries(control).map(([key, value]) => `${key}: ${value}\n`);
  writeFileSync(join(folder, "DEBIAN", "control"), text.join(""), { mode: 0o644 });
  for (const [script, body] of Object.entries(SCRIPTS[name])) {
    writeFileSync(join(folder, "DEBIAN", script), `#!/bin/sh\nset -e\n${body}\n`, { mode: 0o755 });
  }
  const file = join(dist, `${name}_${packageVersion}_${ARCHITECTURE[architecture]}.deb`);
  // xz, because older systems cannot read dpkg-deb's other default, zstd.
  run("dpkg-deb", ["--root-owner-group", "-Zxz", "--build", folder, file], { env: { ...process.env, SOURCE_DATE_EPOCH: sourceDate } });
}
