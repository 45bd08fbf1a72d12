// The agents that the service offers to hosts: files in build/assets, which /install.sh and the
// agent's upgrade download (contract 17.2).
import { createHash } from "node:crypto";
import { copyFileSync, existsSync, mkdirSync, readFileSync, readdirSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { agentProfile, buildAgent } from "./agent.mjs";
import { digest, root, say } from "./lib.mjs";
import { thisArchitecture } from "./native.mjs";

/** The version of this checkout. */
const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
/** The limit of Cloudflare for one static asset. */
const MAX_BYTES = 25 * 1024 * 1024;
/** The static assets of the Worker in this checkout. */
const ownAssets = join(root, "build", "assets");

/**
 * Copies an agent for Linux to where the service serves it, with its SHA-256. Agents of other
 * versions are removed. Returns the path of the copy.
 */
export function placeAgent(binary, architecture = thisArchitecture, assets = ownAssets) {
  const folder = join(assets, "agent");
  const size = statSync(binary).size;
  if (size > MAX_BYTES) throw new Error(`${binary} has ${size} bytes; an asset has at most ${MAX_BYTES}`);
  mkdirSync(join(folder, version), { recursive: true });
  for (const other of readdirSync(folder)) if (other !== version) rmSync(join(folder, other), { recursive: true });
  const name = `farhand-agent-${architecture}`;
  const [file, checksum, signature] = [name, `${name}.sha256`, `${name}.sig`].map((name) => join(folder, version, name));
  const sha256 = createHash("sha256").update(readFileSync(binary)).digest("hex");
  const line = `${sha256}  ${name}\n`;
  // A signed agent of a release has the same checksum, and keeps its signature.
  if (existsSync(file) && existsSync(checksum) && readFileSync(checksum, "utf8") === line) return file;
  rmSync(signature, { force: true });
  // A host that downloads at this moment must not get half a file.
  copyFileSync(binary, `${file}.${process.pid}`);
  renameSync(`${file}.${process.pid}`, file);
  writeFileSync(checksum, line);
  return file;
}

/** The sources of the agent. */
const SOURCES = ["Cargo.lock", "Cargo.toml", "agent/Cargo.toml", "agent/src", "agent/systemd", "domain/Cargo.toml", "domain/src", "domain/data"];
const stamp = join(root, "build", ".agent-digest");
const digestOf = (profile) => digest(SOURCES, profile, version, process.env.FARHAND_RELEASE_KEY ?? "");

/** Places the agent of this machine that was just built, if it is one for Linux hosts. */
export function placeOwnAgent(binary) {
  if (process.platform !== "linux") return say("agent: not offered to hosts, because it is not for Linux");
  placeAgent(binary);
  writeFileSync(stamp, digestOf(agentProfile));
}

/** Whether the placed agent is up to date. `npm run dev` accepts any profile. */
export function hasOwnAgent() {
  const profiles = process.env.FARHAND_PROFILE === "dev" ? ["quick", "release"] : [agentProfile];
  return existsSync(stamp) && existsSync(join(ownAssets, "agent", version)) && profiles.map(digestOf).includes(readFileSync(stamp, "utf8"));
}

/** Builds and places the agent of this machine, unless it is up to date. */
export async function offerOwnAgent(run) {
  if (!hasOwnAgent()) placeOwnAgent(await buildAgent(run));
}
