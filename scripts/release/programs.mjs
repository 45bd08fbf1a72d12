// Compiles the agent and the command line as static binaries for all architectures.
import { chmodSync, rmSync } from "node:fs";
import { join } from "node:path";
import { fail, say } from "../lib.mjs";
import { compile, staticTarget } from "../native.mjs";
import { checkRust } from "../toolchain.mjs";
import { ARCHITECTURES, PROGRAMS, copy, release, stage } from "./files.mjs";

/** The path of a compiled program. */
export const program = (name, architecture) => join(stage, "programs", architecture, name);

/** Compiles all programs. The agent reads FARHAND_RELEASE_KEY when it is compiled. */
export async function compilePrograms() {
  checkRust();
  rmSync(join(stage, "programs"), { recursive: true, force: true });
  const variables = { FARHAND_COMMIT: release.commit };
  for (const architecture of ARCHITECTURES) {
    const target = staticTarget(architecture) ?? fail(`rustup cannot add ${architecture}-unknown-linux-musl`);
    for (const { name, crate } of PROGRAMS) {
      say(`release: compiling ${name} for ${architecture}`);
      const binary = await compile({ program: name, package: crate, target, profile: "release", variables });
      copy(binary, program(name, architecture));
      chmodSync(program(name, architecture), 0o755);
    }
  }
}
