// @ts-check
// A phone: the bar and its menu, cards, and a command that can be killed from the end of its output.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, Visit } from "./browser.mjs";
import { Workspace } from "./service.mjs";

/** @type {import("playwright-core").Browser} */
let browser;
/** @type {Workspace} */
let workspace;
/** @type {any} */
let server;
const PHONE = { width: 390, height: 844, hasTouch: true, isMobile: true };
before(async () => {
  browser = await launch();
  workspace = await Workspace.create();
  server = await workspace.server("web-1", { labels: { env: "prod" } });
  await workspace.admin.post("/api/iam/groups/", { name: "web", display_name: "Web team", servers: [server.id] });
});
after(() => browser?.close());

test("every page is reachable from the bar and its menu", async () => {
  const visit = await Visit.start(browser, workspace, PHONE);
  const { page } = visit;
  await visit.signIn();
  await page.getByRole("link", { name: "Servers" }).tap();
  const card = page.getByRole("row").filter({ hasText: "web-1" });
  await card.getByText("env=prod").waitFor();
  await card.getByText("Web team").waitFor();
  for (const name of ["Batches", "Schedules", "Scripts", "Tokens", "Users", "Groups", "Registration tokens", "Audit", "Sessions", "Settings"]) {
    await page.getByRole("button", { name: "More" }).tap();
    await page.getByRole("link", { name, exact: true }).tap();
    await page.getByRole("heading", { level: 1, name }).waitFor();
    await page.locator(".menu").waitFor({ state: "hidden" });
  }
  await page.getByRole("button", { name: "More" }).tap();
  await page.getByRole("button", { name: "Go to…" }).tap();
  await page.getByRole("combobox").fill("web-1");
  await page.getByRole("option", { name: /^web-1 server/ }).tap();
  await page.getByRole("heading", { name: "web-1" }).waitFor();
  await visit.end();
});

test("a command can be killed from the end of a long output", async () => {
  const { id } = await workspace.admin.post("/api/events/commands/", { server: server.id, line: "seq 1 3000; sleep 600" });
  const visit = await Visit.start(browser, workspace, PHONE);
  const { page } = visit;
  await page.goto(`/commands/${id}`);
  await visit.signIn();
  await page.locator(".output-text").getByText("3000", { exact: true }).waitFor();
  await page.evaluate(() => window.scrollTo(0, document.documentElement.scrollHeight));
  const kill = page.getByRole("button", { name: "Kill" });
  const box = await kill.boundingBox();
  assert.ok(box && box.y >= 0 && box.y + box.height < 844, JSON.stringify(box));
  await kill.tap();
  await page.getByRole("dialog").getByRole("button", { name: "Kill" }).tap();
  await page
    .getByText(/^failed with exit code/)
    .first()
    .waitFor();
  await visit.end();
});

test("selected servers are run on from the bar at the bottom", async () => {
  const visit = await Visit.start(browser, workspace, PHONE);
  const { page } = visit;
  await page.goto("/servers");
  await visit.signIn();
  await page.getByLabel("Select web-1").tap();
  await page.getByRole("button", { name: "Run on 1 server" }).tap();
  await page.getByText(/^Runs now on web-1 as|^Choose/).waitFor();
  assert.match(page.url(), /servers=web-1/);
  await visit.end();
});
