// Builds an rpm from the tree of a package, with rpmbuild.
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { filesBelow, root, run } from "../lib.mjs";
import { packageVersion } from "./deb.mjs";
import { copy, dist, sourceDate, stage } from "./files.mjs";
import { tree } from "./trees.mjs";

// As for the deb: an upgrade does not restart the agent.
const RELOAD = "if [ -d /run/systemd/system ]; then systemctl daemon-reload || :; fi";
const SCRIPTS = {
  "farhand-agent": `
%post
${RELOAD}
%preun
if [ "$1" = 0 ] && [ -d /run/systemd/system ]; then systemctl --no-block disable --now farhand-agent.service || :; fi
%postun
${RELOAD}
`,
  farhand: "",
};

const spec = ({ name, summary, description }, folder, files) => `
Name: ${name}
Version: ${packageVersion}
Release: 1
Summary: ${summary}
License: Apache-2.0
Recommends: ca-certificates
AutoReqProv: no

%description
${description}

%install
cp -a ${folder}/. %{buildroot}/

%files
%defattr(-,root,root)
${files.join("\n")}
${SCRIPTS[name]}`;

/** The macros: nothing processes the binaries, older systems can read the file, and it is repeatable. */
const MACROS = {
  debug_package: "%{nil}",
  __os_install_post: "%{nil}",
  _build_id_links: "none",
  _binary_payload: "w9.gzdio",
  _buildhost: "localhost",
  use_source_date_epoch_as_buildtime: "1",
  clamp_mtime_to_source_date_epoch: "1",
};

export function buildRpm(program, architecture) {
  const folder = join(stage, "rpm", `${program.name}-${architecture}`);
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  const source = tree(program.name, architecture);
  const files = filesBelow([relative(root, source)]).map((file) => `/${relative(source, file)}`);
  const specFile = join(folder, `${program.name}.spec`);
  writeFileSync(specFile, spec(program, source, files));
  const macros = Object.entries({ ...MACROS, _topdir: folder }).flatMap(([name, value]) => ["--define", `${name} ${value}`]);
  run("rpmbuild", ["--quiet", "-bb", "--target", `${architecture}-linux`, ...macros, specFile], { env: { ...process.env, SOURCE_DATE_EPOCH: sourceDate } });
  const file = `${program.name}-${packageVersion}-1.${architecture}.rpm`;
  copy(join(folder, "RPMS", architecture, file), join(dist, file));
}
