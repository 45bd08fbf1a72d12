// `npm run release:test [NAME…]`: tests the files in dist/ as users install them. NAMEs are those
// of tests/release/: sign, files, npm, packages, systemd, aarch64. Needs root for debootstrap, and
// the network.
import { spawnSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { fail, root } from "./lib.mjs";
import { debianPackages } from "./toolchain.mjs";

if (!existsSync(join(root, "dist", "SHA256SUMS"))) fail("dist/ is not complete; run `npm run release`");
await debianPackages(["cpio", "debootstrap", "file", "qemu-user-static", "rpm"], "the tests of a release install packages and emulate aarch64");
const folder = join(root, "tests", "release");
const chosen = process.argv.slice(2);
const tests = readdirSync(folder).filter((name) => name.endsWith(".test.mjs") && (chosen.length === 0 || chosen.includes(name.replace(".test.mjs", ""))));
if (tests.length === 0) fail(`there is no such test: ${chosen.join(", ")}`);
const args = ["--test", "--test-concurrency=1", "--test-reporter=spec", ...tests.map((name) => join(folder, name))];
process.exit(spawnSync(process.execPath, args, { stdio: "inherit" }).status ?? 1);
