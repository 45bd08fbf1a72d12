// Places the agent's program among the Worker's assets, where the installer and upgrades download it
// (contract 17).
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { root } from "./lib.mjs";
import { thisArchitecture } from "./native.mjs";

/** Cloudflare's limit for an asset. */
const MAX_BYTES = 25 * 1024 * 1024;
const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));

/** The text that a release signs. `sha256` is in lower-case hexadecimal. */
export const signedText = (version, architecture, sha256) => `farhand-agent ${version} ${architecture} ${sha256}\n`;

/** Copies an agent and its SHA-256 into a folder of assets. Returns the path of the copy. */
export function placeAgent(binary, architecture = thisArchitecture, assets = join(root, "build", "assets")) {
  const { size } = statSync(binary);
  if (size > MAX_BYTES) throw new Error(`${binary} has ${size} bytes; an asset has at most ${MAX_BYTES}`);
  const name = `farhand-agent-${architecture}`;
  const folder = join(assets, "agent", version);
  mkdirSync(folder, { recursive: true });
  copyFileSync(binary, join(folder, name));
  const sha256 = createHash("sha256").update(readFileSync(binary)).digest("hex");
  writeFileSync(join(folder, `${name}.sha256`), `${sha256}  ${name}\n`);
  return join(folder, name);
}
