// The stages of `npm test` that only web/ has: its lints, and of the console its unit tests, the size
// of its first load, and its tests in Chromium.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { root } from "./lib.mjs";

const tests = join(root, "web", "console", "tests");
/** The limit for the JavaScript of the first page, compressed. */
export const FIRST_LOAD_BYTES = 180 * 1024;
/** The page that a user sees first. */
const FIRST_PAGE = "src/pages/overview/page.tsx";

const bin = (name) => join(root, "node_modules", ".bin", name);
/** The lints: a name, a program and its arguments. The checks of types and ESLint need the types of the API. */
export const webLints = [
  ["formatting of web/", bin("prettier"), ["--check", "--log-level", "warn", "web"]],
  ["types of the API", process.execPath, [join(root, "scripts", "console.mjs"), "types"]],
  ["types of the tests of the console", bin("tsc"), ["--project", tests]],
  ["ESLint for web/", bin("eslint"), ["--max-warnings", "0", "web"]],
];

/** The program and the arguments of the unit tests. */
export const unitTests = { program: bin("vitest"), args: ["run", "--root", join(root, "web", "console"), "--reporter=dot"] };

/** The tests of speed, which run alone. */
const SPEED = "speed.browser.mjs";

/**
 * The programs and the arguments of the tests in Chromium whose names contain `name`. They run one
 * after the other: first two files at a time, because the tests often wait, then the tests of speed.
 */
export function browserTests(name) {
  const files = readdirSync(tests).filter((file) => file.endsWith(".browser.mjs") && file !== SPEED).sort();
  const program = (files, concurrency) => {
    const options = ["--test", "--test-force-exit", `--test-concurrency=${concurrency}`, "--test-reporter=spec"];
    const args = [...options, ...(name ? [`--test-name-pattern=${name}`] : []), ...files.map((file) => join(tests, file))];
    return { program: process.execPath, args };
  };
  return [program(files, 2), program([SPEED], 1)];
}

/** The number of passed and failed tests in the output of vitest, or of Node.js's test runner. */
export function testCounts(text) {
  // vitest colours its output if it detects a terminal or a CI job.
  const plain = text.replace(/\u001b\[[0-9;]*m/g, "");
  const number = (...patterns) => Number(patterns.map((pattern) => pattern.exec(plain)?.[1]).find(Boolean) ?? 0);
  return { passed: number(/^ℹ pass (\d+)$/m, /^ *Tests .*?(\d+) passed/m), failed: number(/^ℹ fail (\d+)$/m, /^ *Tests +(\d+) failed/m) };
}

/** The compressed size of the scripts that the first page loads, in bytes. */
export function firstLoad() {
  const assets = join(root, "build", "assets");
  const manifest = JSON.parse(readFileSync(join(root, "build", "console", "manifest.json"), "utf8"));
  const files = new Set();
  const visit = (name) => {
    const { file, imports = [] } = manifest[name];
    if (files.has(file)) return;
    files.add(file);
    imports.forEach(visit);
  };
  ["index.html", FIRST_PAGE].forEach(visit);
  return [...files].reduce((sum, file) => sum + gzipSync(readFileSync(join(assets, file))).length, 0);
}

/** Throws an error if the first load is too large. Returns its size in words. */
export function checkFirstLoad() {
  const size = firstLoad();
  const text = `the first load has ${(size / 1024).toFixed(1)} KB of compressed JavaScript, of at most ${FIRST_LOAD_BYTES / 1024} KB`;
  if (size > FIRST_LOAD_BYTES) throw new Error(text);
  return text;
}
