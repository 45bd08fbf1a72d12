// @ts-check
// Servers: the list, selection, adding, changing, deleting; the palette and the keyboard.
import assert from "node:assert/strict";
import { userInfo } from "node:os";
import { after, before, test } from "node:test";
import { launch, Visit } from "./browser.mjs";
import { eventually, Workspace } from "./service.mjs";

/** @type {import("playwright-core").Browser} */
let browser;
/** @type {Workspace} */
let workspace;
before(async () => {
  browser = await launch();
  workspace = await Workspace.create();
  await workspace.server("web-1", { labels: { env: "prod", role: "web" } });
  await workspace.server("web-2", { labels: { env: "prod", role: "web" } });
  await workspace.server("db-1", { labels: { env: "prod", role: "db" }, isOffline: true });
});
after(() => browser?.close());

/** Waits until the list shows these servers, in this order. */
const shows = (page, ...names) =>
  eventually(
    `the list shows ${names}`,
    async () => (await page.getByRole("table", { name: "Servers" }).getByRole("link").allInnerTexts()).join() === names.join(),
  );

test("the list is filtered, sorted, and in the address", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/servers");
  await visit.signIn();
  await page.getByRole("link", { name: "web-2" }).waitFor();
  await shows(page, "db-1", "web-1", "web-2");
  await page.getByRole("button", { name: "Name" }).click();
  await page.waitForURL(/ordering=-name/);
  await page.getByLabel("Selector of labels").fill("role in (web)");
  await page.waitForURL(/label=/);
  await page.getByRole("link", { name: "db-1" }).waitFor({ state: "detached" });
  await page.getByRole("link", { name: "web-1" }).waitFor();
  await shows(page, "web-2", "web-1");
  const address = page.url();
  const other = await visit.tab();
  await other.goto(address);
  await visit.signIn("boss", other);
  await other.getByRole("link", { name: "web-2" }).waitFor();
  await shows(other, "web-2", "web-1");
  await page.getByLabel("Selector of labels").fill("role=");
  await page.getByText("No server matches").waitFor();
  await page.getByRole("button", { name: "Show all servers" }).click();
  await page.getByRole("link", { name: "db-1" }).waitFor();
  await page.getByLabel("Selector of labels").fill("role==web=");
  await page
    .locator(".toolbar .error")
    .getByText(/position/)
    .waitFor();
  await page.getByLabel("Selector of labels").fill("");
  await page.getByLabel("State", { exact: true }).selectOption("offline");
  await page.getByRole("link", { name: "web-1" }).waitFor({ state: "detached" });
  await shows(page, "db-1");
  await visit.end();
});

test("selected servers are run on", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/servers");
  await visit.signIn();
  await page.getByLabel("Select web-1").click();
  await page.getByLabel("Select web-2").click({ modifiers: ["Shift"] });
  await page.getByText("2 selected").waitFor();
  await page.getByRole("button", { name: "Select all 3" }).click();
  await page.getByText("3 selected").waitFor();
  await page.getByRole("button", { name: "Run on 3 servers" }).click();
  await page.getByLabel("Command", { exact: true }).fill("uptime");
  await page.getByText(/Runs now on 3 servers as .* 1 server is offline and is skipped\./).waitFor();
  await page.getByRole("button", { name: "Run on 3 servers" }).click();
  await page.waitForURL(/\/batches\//);
  await visit.end();
});

test("more than 20 servers need their number typed", async () => {
  const crowd = await Workspace.create();
  for (let number = 1; number <= 21; number += 1) await crowd.server(`node-${number}`, { isOffline: true });
  const visit = await Visit.start(browser, crowd);
  const { page } = visit;
  await page.goto("/run?all=true&line=uptime");
  await visit.signIn();
  const run = page.getByRole("button", { name: "Run on 21 servers" });
  await page.getByLabel(/^This runs on 21 servers/).fill("20");
  assert.ok(await run.isDisabled());
  await page.getByLabel(/^This runs on 21 servers/).fill("21");
  await run.click();
  await page.waitForURL(/\/batches\//);
  await visit.end();
});

test("the first server: install line, wait, greeting", async () => {
  const fresh = await Workspace.create();
  const visit = await Visit.start(browser, fresh);
  const { page } = visit;
  await visit.signIn();
  await page.getByRole("heading", { name: "Connect your first server" }).waitFor();
  await page.getByLabel("Name", { exact: true }).fill("Bad name");
  await page.keyboard.press("Enter");
  await page.locator(".field .error").waitFor();
  await page.getByLabel("Name", { exact: true }).fill("first-1");
  await page.getByLabel("Account for commands").fill(userInfo().username);
  await page.keyboard.press("Enter");
  await page.getByText("Waiting for first-1 to connect").waitFor();
  const install = await page.getByLabel("Install line").innerText();
  assert.match(install, /\| FARHAND_POLICY=accounts FARHAND_SERVER=/);
  const { results } = await fresh.admin.get("/api/servers/?name=first-1");
  const key = /\b[A-Za-z0-9]{128}\b/.exec(install)?.[0];
  assert.ok(key, install);
  await fresh.connect({ id: results[0].id, key });
  await page.getByText("first-1 is connected").waitFor();
  await page.getByRole("link", { name: "Run uptime on it" }).click();
  assert.equal(await page.getByLabel("Command for first-1").inputValue(), "uptime");
  await page.getByLabel("Command for first-1").press("Enter");
  await page.locator(".output-text").getByText("load average").waitFor();
  await visit.end();
});

test("a server is changed, gets a new key, and is deleted", async () => {
  const server = await workspace.server("old-1", { isOffline: true });
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto(`/servers/${server.id}`);
  await visit.signIn();
  await page.getByRole("button", { name: "Edit" }).click();
  await page.getByRole("dialog").getByLabel("Name", { exact: true }).fill("new-1");
  await page.getByLabel("Labels").fill("env=test\nspare");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("heading", { name: "new-1" }).waitFor();
  await page.getByText("env=test").waitFor();
  await page.getByRole("button", { name: "Rotate key" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Rotate the key" }).click();
  const install = page.getByLabel("Install line");
  assert.match(await install.innerText(), /\b[A-Za-z0-9]{128}\b/);
  await page.getByText(/The old key works until new-1 connects with the new one, at the latest until .*\d/).waitFor();
  await page.keyboard.press("Escape");
  await install.waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Delete" }).click();
  const confirm = page.getByRole("button", { name: "Delete new-1" });
  assert.ok(await confirm.isDisabled());
  await page.getByLabel(/to confirm/).fill("new-1");
  await confirm.click();
  await page.getByText("new-1 is deleted.").waitFor();
  await page.waitForURL(/\/servers$/);
  await page.getByRole("link", { name: "Deleted", exact: true }).click();
  await page.getByRole("button", { name: "Undelete new-1" }).click();
  await page.getByRole("dialog").getByLabel("Name", { exact: true }).fill("web-1");
  await page.getByRole("dialog").getByRole("button", { name: "Undelete" }).click();
  await page.getByText("A server with the name web-1 exists. Send another name.").waitFor();
  await page.getByRole("dialog").getByLabel("Name", { exact: true }).fill("back-1");
  await page.getByRole("dialog").getByRole("button", { name: "Undelete" }).click();
  await page.getByText("back-1 is undeleted.").waitFor();
  await page.getByRole("heading", { name: "There is no deleted server" }).waitFor();
  await visit.end();
});

test("selected servers are deleted, after the limit was shown", async () => {
  const old = await Workspace.create();
  for (const name of ["old-1", "old-2", "old-3"]) await old.server(name, { isOffline: true });
  const visit = await Visit.start(browser, old);
  const { page } = visit;
  await page.goto("/servers");
  await visit.signIn();
  await page.getByLabel("Select old-1").click();
  await page.getByLabel("Select old-2").click();
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await page.getByText(/You may delete 200 servers an hour/).waitFor();
  const confirm = page.getByRole("button", { name: "Delete 2 servers" });
  assert.ok(await confirm.isDisabled());
  await page.getByLabel(/to confirm/).fill("2");
  await confirm.click();
  await page.getByText("2 servers deleted.").waitFor();
  await shows(page, "old-3");
  await visit.end();
});

test("a registration token for many servers", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/servers");
  await visit.signIn();
  await page.getByRole("button", { name: "Add servers" }).click();
  await page.getByRole("tab", { name: "Many servers" }).click();
  await page.getByLabel("Name of the token").fill("rollout");
  await page.getByLabel("Servers that may register").fill("3");
  await page.getByRole("button", { name: "Create the token" }).click();
  assert.match(await page.getByLabel("Install line").innerText(), /^ curl .*FARHAND_REGISTRATION_TOKEN=[A-Za-z0-9]{128} sh/);
  const { results } = await workspace.admin.get("/api/servers/registration-tokens/");
  assert.deepEqual(
    results.map(({ name, uses }) => [name, uses]),
    [["rollout", 3]],
  );
  await visit.end();
});

test("everything is reachable with the keyboard", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await visit.signIn();
  await page.keyboard.press("g");
  await page.keyboard.press("s");
  await page.getByRole("heading", { name: "Servers" }).waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("db");
  await page.getByRole("link", { name: "web-1" }).waitFor({ state: "detached" });
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox").fill("web-2");
  await page.getByRole("option", { name: /web-2 server, connected/ }).waitFor();
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "web-2" }).waitFor();
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox").fill("systemctl status");
  await page.getByRole("option", { name: /^Run: systemctl status/ }).waitFor();
  await page.keyboard.press("Enter");
  assert.equal(await page.getByLabel("Command", { exact: true }).inputValue(), "systemctl status");
  // The first stop is the link that skips the rail.
  await page.goto("/servers");
  await page.getByRole("link", { name: "web-1" }).waitFor();
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement?.textContent), "Skip to the page");
  await visit.end();
});

test("a server that is lost and comes back changes its row by itself", async () => {
  const visit = await Visit.start(browser, workspace, { width: 390, height: 844 });
  const { page } = visit;
  await page.goto("/servers");
  await visit.signIn();
  const row = page.getByRole("row").filter({ hasText: "web-2" });
  await row.getByText("connected").waitFor({ state: "attached" });
  const { results } = await workspace.admin.get("/api/servers/?name=web-2");
  await workspace.admin.post(`/api/servers/servers/${results[0].id}/rotate-key/`, { now: true });
  await row.getByText("offline").waitFor({ state: "attached" });
  await visit.end();
});
