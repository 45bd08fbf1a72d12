// Finds the browser for the end-to-end tests: Chromium and its driver on PATH. Installs Debian's
// packages if a program is missing.
import { pathToFileURL } from "node:url";
import { say } from "./lib.mjs";
import { programs } from "./toolchain.mjs";

/** Installs Chromium and its driver if they are missing. Returns their paths. */
export async function browser() {
  const needs = "the tests of pages need chromium and chromedriver, of one version, on PATH";
  const [chromium, chromedriver] = await programs(["chromium", "chromedriver"], ["chromium", "chromium-driver"], needs);
  say(`browser: ${chromium}, driven by ${chromedriver}`);
  return { chromium, chromedriver };
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) await browser();
