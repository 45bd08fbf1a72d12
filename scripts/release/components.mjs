// The components of the programs (SBOM), in CycloneDX's format.
import { renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { filesBelow, root, run } from "../lib.mjs";
import { cargoCyclonedx } from "../toolchain.mjs";
import { PARTS, dist, version } from "./files.mjs";

/** Writes the lists of components. */
export async function writeComponents() {
  const env = await cargoCyclonedx();
  for (const { name, folder, target } of PARTS) {
    const manifest = join(root, folder, "Cargo.toml");
    // cargo-cyclonedx writes a file beside the manifest of every member of the workspace.
    const file = `release-${name}.cdx`;
    const options = ["--quiet", "--format", "json", "--spec-version", "1.5", "--target", target, "--override-filename", file, "--manifest-path", manifest];
    run("cargo", ["cyclonedx", ...options], { env });
    renameSync(join(root, folder, `${file}.json`), join(dist, `${name}-${version}.cdx.json`));
    for (const other of filesBelow(["domain", "sql", "agent", "cli", "tests", "scripts", `${file}.json`])) if (other.endsWith(`/${file}.json`)) rmSync(other);
  }
}
