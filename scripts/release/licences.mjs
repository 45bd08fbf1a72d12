// The licences of the crates in a program, as the crates state them.
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { output } from "../lib.mjs";
import { PARTS, stage } from "./files.mjs";

const LICENCE_FILE = /^(licen[cs]e|copying|copyright|notice|unlicense)/i;

/** The folder of the licences, and the file for the crates of a program. */
export const licencesFolder = join(stage, "licences");
export const licences = (name) => join(licencesFolder, `${name}.txt`);

/** The crates from registries in a program, sorted by name. */
function cratesOf(crate, target) {
  const text = output("cargo", ["metadata", "--locked", "--format-version", "1", "--filter-platform", target], { maxBuffer: 1e9 });
  const { packages, resolve } = JSON.parse(text);
  const byId = new Map(packages.map((item) => [item.id, item]));
  const nodes = new Map(resolve.nodes.map((node) => [node.id, node]));
  const found = new Set();
  const walk = (id) => {
    if (found.has(id)) return;
    found.add(id);
    // A kind of null is a dependency that ships: neither of tests nor of a build script.
    for (const { pkg, dep_kinds: kinds } of nodes.get(id).deps) if (kinds.some(({ kind }) => kind === null)) walk(pkg);
  };
  walk(packages.find(({ name, source }) => name === crate && source === null).id);
  return [...found].map((id) => byId.get(id)).filter(({ source }) => source !== null).sort((one, other) => (one.name < other.name ? -1 : 1));
}

/** Writes the licences of all programs. */
export function writeLicences() {
  mkdirSync(licencesFolder, { recursive: true });
  for (const { name, crate, target } of PARTS) {
    /** The crates whose text was written, by text. */
    const written = new Map();
    const parts = cratesOf(crate, target).map((item) => {
      const title = `${item.name} ${item.version}`;
      const folder = dirname(item.manifest_path);
      const files = readdirSync(folder, { withFileTypes: true }).filter((file) => file.isFile() && LICENCE_FILE.test(file.name));
      const texts = files.map((file) => {
        const text = readFileSync(join(folder, file.name), "utf8").trim();
        if (written.has(text)) return `${file.name}: as that of ${written.get(text)}`;
        written.set(text, title);
        return text;
      });
      return [`${title}: ${item.license ?? "see below"}`, item.authors.join(", "), item.repository ?? "", ...texts].filter((text) => text !== "").join("\n\n");
    });
    writeFileSync(licences(name), `Licences of the third-party code in ${name}.\n\n${parts.join(`\n\n${"=".repeat(80)}\n`)}\n`);
  }
}
