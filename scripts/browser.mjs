// Gets the browser of the end-to-end tests: Chromium and its driver from PATH, else Debian's packages of them.
import { pathToFileURL } from "node:url";
import { say } from "./lib.mjs";
import { programs } from "./toolchain.mjs";

/** Gets Chromium and its driver where they are not there, and returns where they are. */
export function browser() {
  const needs = "the tests of pages need chromium and chromedriver, of one version, on PATH";
  const [chromium, chromedriver] = programs(["chromium", "chromedriver"], ["chromium", "chromium-driver"], needs);
  say(`browser: ${chromium}, driven by ${chromedriver}`);
  return { chromium, chromedriver };
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) browser();
