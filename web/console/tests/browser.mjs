// @ts-check
// Chromium for the tests of the console, and what every test does with it.
//
// FARHAND_CHROMIUM is the path of the browser.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";
import { PASSWORD } from "./service.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
/** The rules of WCAG 2.2 AA, and axe's best practices. */
const TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
/** Chromium reports every error response here. The tests cause some on purpose. */
const EXPECTED = /^Failed to load resource: /;

export const launch = () => chromium.launch({ executablePath: process.env.FARHAND_CHROMIUM ?? "chromium", args: ["--no-sandbox"] });

/** A window of a browser, whose console must stay empty: it would show violations of the policy. */
export class Visit {
  /** @type {import("playwright-core").BrowserContext} */
  context;
  /** @type {{ url: string }} */
  workspace;
  /** @type {import("playwright-core").Page} */
  page;
  /** What the page reported. @type {string[]} */
  messages = [];
  /** The addresses that were requested. @type {string[]} */
  requests = [];

  /**
   * @param {import("playwright-core").Browser} browser
   * @param {{ url: string }} workspace
   * @param {import("playwright-core").BrowserContextOptions & { width?: number, height?: number, scheme?: "light" | "dark" }} [options]
   */
  static async start(browser, workspace, { width = 1440, height = 900, scheme = "light", ...options } = {}) {
    const context = await browser.newContext({
      baseURL: workspace.url,
      viewport: { width, height },
      colorScheme: scheme,
      reducedMotion: "reduce",
      locale: "en-GB",
      timezoneId: "Asia/Seoul",
      ...options,
    });
    await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: workspace.url });
    const visit = new Visit();
    visit.context = context;
    visit.workspace = workspace;
    visit.page = await visit.tab();
    return visit;
  }

  /** Another tab of the same window. */
  async tab() {
    const page = await this.context.newPage();
    page.setDefaultTimeout(15_000);
    page.on("console", (message) => ["error", "warning"].includes(message.type()) && !EXPECTED.test(message.text()) && this.messages.push(message.text()));
    page.on("pageerror", (error) => this.messages.push(error.message));
    page.on("request", (request) => this.requests.push(request.url()));
    return page;
  }

  async signIn(username = "boss", page = this.page) {
    if (page.url() === "about:blank") await page.goto("/");
    await page.getByLabel("Username").fill(username);
    await page.getByLabel("Password").fill(PASSWORD);
    await page.getByRole("button", { name: "Sign in", exact: true }).click();
    await page.getByRole("navigation", { name: "Pages" }).waitFor();
  }

  /** Asserts that axe finds nothing. */
  async isAccessible(what) {
    // Through the debugger, which the policy of the page does not concern.
    await this.page.evaluate(axe);
    const { violations } = await this.page.evaluate((tags) => globalThis.axe.run({ runOnly: tags, resultTypes: ["violations"] }), TAGS);
    const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 160)).join(" | ")}`);
    assert.deepEqual(found, [], what);
  }

  /** Ends the visit. Asserts that nothing was reported, and that nothing left the own origin. */
  async end() {
    await this.context.close();
    assert.deepEqual(this.messages, []);
    const foreign = this.requests.filter((url) => !url.startsWith(this.workspace.url) && !/^(?:data|blob):/.test(url));
    assert.deepEqual(foreign, []);
  }
}
