// Builds the project's own agent: one static binary where the musl target can be had, else one for this machine's libc.
// `npm run --silent agent` prints where the binary is.
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { output, root, run, say } from "./lib.mjs";

/** Builds the agent and returns the binary's path. cargo does nothing when nothing changed. */
export function buildAgent() {
  const musl = `${process.arch === "arm64" ? "aarch64" : "x86_64"}-unknown-linux-musl`;
  const has = () => output("rustup", ["target", "list", "--installed"])?.split("\n").includes(musl) ?? false;
  const isStatic = process.platform === "linux" && (has() || (output("rustup", ["target", "add", musl], { timeout: 120_000 }) !== null && has()));
  say(`agent: ${isStatic ? `static, for ${musl}` : "for this machine's libc (no musl target here)"}`);
  run("cargo", ["build", "--quiet", "--release", "-p", "farhand-agent", ...(isStatic ? ["--target", musl] : [])]);
  return join(root, "target", ...(isStatic ? [musl] : []), "release", "farhand-agent");
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) console.log(buildAgent());
