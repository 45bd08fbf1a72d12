// Gets the browser of the end-to-end tests: Chromium and its driver from PATH, else Debian's packages of them.
import { pathToFileURL } from "node:url";
import { fail, output, say } from "./lib.mjs";
import { debianPackages } from "./toolchain.mjs";

const PROGRAMS = ["chromium", "chromedriver"];

/** Where a program is on PATH, or null. */
const find = (program) => output("sh", ["-c", `command -v ${program}`]);

/** Gets Chromium and its driver where they are not there, and returns where they are. */
export function browser() {
  const missing = () => PROGRAMS.filter((program) => find(program) === null);
  if (missing().length > 0) {
    const needs = "the tests of the reset page need chromium and chromedriver, of one version, on PATH";
    debianPackages(["chromium", "chromium-driver"], needs);
    if (missing().length > 0) fail(`${needs}; there is no ${missing().join(" and no ")}`);
  }
  const [chromium, chromedriver] = PROGRAMS.map(find);
  say(`browser: ${chromium}, driven by ${chromedriver}`);
  return { chromium, chromedriver };
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) browser();
