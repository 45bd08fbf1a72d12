// @ts-check
// The keyboard alone: run a command, kill it, and find a line of its output; the order of focus.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, Visit } from "./browser.mjs";
import { eventually, PASSWORD, Workspace } from "./service.mjs";

/** @type {import("playwright-core").Browser} */
let browser;
/** @type {Workspace} */
let workspace;
before(async () => {
  browser = await launch();
  workspace = await Workspace.create();
  await workspace.server("web-1", { labels: { env: "prod" } });
});
after(() => browser?.close());

/** The role and the name of the focused element, as a screen reader would say it. */
const focused = (page) =>
  page.evaluate(() => {
    const element = /** @type {(Element & { labels?: NodeListOf<HTMLLabelElement> }) | null} */ (document.activeElement);
    return element?.getAttribute("aria-label") ?? element?.labels?.[0]?.textContent ?? element?.textContent.trim();
  });

/** Presses Tab until an element with this name has the focus. */
async function tabTo(page, name) {
  const passed = [];
  for (let step = 0; step < 60; step += 1) {
    await page.keyboard.press("Tab");
    const at = await focused(page);
    if (name instanceof RegExp ? name.test(at) : at === name) return;
    passed.push(at);
  }
  assert.fail(`Tab does not reach ${name}, only ${passed.join(", ")}`);
}

test("sign in, run, watch, kill and search without a mouse", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/");
  await page.getByLabel("Username").waitFor();
  await page.keyboard.type("boss");
  await page.keyboard.press("Tab");
  await page.keyboard.type(PASSWORD);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await page.keyboard.press("g");
  await page.keyboard.press("r");
  await page.getByRole("heading", { name: "Run" }).waitFor();
  await eventually("the line has the focus", async () => (await focused(page)) === "Command");
  await page.keyboard.type("seq 1 500; echo the needle; sleep 600");
  await tabTo(page, "Servers");
  await page.keyboard.type("web-1,");
  await page.getByText(/^Runs now on web-1/).waitFor();
  await tabTo(page, "Run on 1 server");
  await page.keyboard.press("Enter");
  await page.locator(".output-text").getByText("the needle").waitFor();
  await tabTo(page, "Kill");
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor();
  // The focus stays in the dialog, and comes back when it is closed.
  for (let step = 0; step < 6; step += 1) {
    await page.keyboard.press("Tab");
    await eventually("the focus is in the dialog", () => page.evaluate(() => Boolean(document.activeElement?.closest("[role=dialog]"))));
  }
  await page.keyboard.press("Escape");
  await eventually("the focus is back", async () => (await focused(page)) === "Kill");
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor();
  await tabTo(page, "Kill");
  await page.keyboard.press("Enter");
  await page
    .getByText(/^failed with exit code/)
    .first()
    .waitFor();
  await tabTo(page, "Search the output");
  await page.keyboard.type("needle");
  await page.locator(".output-line.current").getByText("the needle").waitFor();
  await visit.end();
});

test("the focus goes through the page in reading order", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/servers");
  await visit.signIn();
  await page.getByRole("link", { name: "web-1" }).waitFor();
  await page.reload();
  await page.getByRole("link", { name: "web-1" }).waitFor();
  const order = [];
  for (let step = 0; step < 30; step += 1) {
    await page.keyboard.press("Tab");
    order.push(await focused(page));
  }
  const wanted = [
    "Skip to the page",
    "Go to…Ctrl K",
    "Overview",
    "Run",
    "Settings",
    "boss⌄",
    "Add servers",
    "Search",
    "Selector of labels",
    "State",
    "Select web-1",
    "web-1",
  ];
  const places = wanted.map((name) => order.findIndex((at) => at === name || (name === "boss⌄" && at.startsWith("boss"))));
  assert.deepEqual(
    places,
    [...places].sort((one, other) => one - other),
    order.join(" → "),
  );
  assert.ok(!places.includes(-1), `${wanted[places.indexOf(-1)]} is not in ${order.join(" → ")}`);
  // The skip link leads behind the rail.
  await page.reload();
  await page.getByRole("link", { name: "web-1" }).waitFor();
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  assert.equal(await focused(page), "Deleted");
  await visit.end();
});

test("a page that is opened gets the focus and its name is announced", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await visit.signIn();
  await page.getByRole("link", { name: "History" }).click();
  await page.getByRole("heading", { level: 1, name: "History" }).waitFor();
  await eventually("the page has the focus", () => page.evaluate(() => document.activeElement?.id === "main"));
  assert.match(await page.title(), /^History/);
  await visit.end();
});

test("reduced motion is respected", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await visit.signIn();
  const moving = () => page.evaluate(() => document.getAnimations().length);
  await page.getByRole("link", { name: "Servers" }).click();
  await page.getByRole("link", { name: "web-1" }).waitFor();
  assert.equal(await moving(), 0);
  await visit.end();
});
