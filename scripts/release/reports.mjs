// What the programs of a release contain: lists of components (SBOM) in CycloneDX's format, and the
// licences of the crates.
import { mkdirSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { root, run } from "../lib.mjs";
import { cargoReports } from "../toolchain.mjs";
import { PROGRAMS, dist, stage, version } from "./files.mjs";

/** The Worker, whose crate is the root of the workspace, and the programs. */
const CRATES = [
  { name: "farhand-worker", crate: "farhand", folder: ".", target: "wasm32-unknown-unknown" },
  ...PROGRAMS.map((program) => ({ ...program, target: "x86_64-unknown-linux-musl" })),
];

/** The folder of the licences, and the file for the crates of a program. */
export const licencesFolder = join(stage, "licences");
export const licences = (name) => join(licencesFolder, `${name}.txt`);

/** Writes the lists and the licences of all crates. */
export async function writeReports() {
  const env = await cargoReports();
  mkdirSync(licencesFolder, { recursive: true });
  for (const { name, folder, target } of CRATES) {
    const manifest = join(root, folder, "Cargo.toml");
    // cargo-cyclonedx writes a file beside the manifest of every member of the workspace.
    const file = `release-${name}.cdx`;
    run("cargo", ["cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5", "--target", target, "--override-filename", file, "--manifest-path", manifest], { env });
    renameSync(join(root, folder, `${file}.json`), join(dist, `${name}-${version}.cdx.json`));
    for (const member of ["domain", "sql", "agent", "cli", "tests", "scripts/bindgen", "."]) rmSync(join(root, member, `${file}.json`), { force: true });
    const about = ["about", "generate", "--locked", "--fail", "--config", "scripts/release/about.toml", "--target", target, "--manifest-path", manifest];
    run("cargo", [...about, "scripts/release/licences.hbs", "--output-file", licences(name)], { env });
  }
}
