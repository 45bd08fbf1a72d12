// @ts-check
// Signing in and out, ended sessions, two tabs, where the token is kept.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, Visit } from "./browser.mjs";
import { fetch, Workspace } from "./service.mjs";

/** @type {import("playwright-core").Browser} */
let browser;
/** @type {Workspace} */
let workspace;
before(async () => {
  browser = await launch();
  workspace = await Workspace.create();
});
after(() => browser?.close());

test("a wrong password is refused in place", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/");
  await page.getByLabel("Username").fill("boss");
  await page.getByLabel("Password").fill("wrong");
  await page.keyboard.press("Enter");
  await page.getByRole("alert").getByText("Unable to log in").waitFor();
  assert.equal(await page.getByLabel("Username").inputValue(), "boss");
  await visit.end();
});

test("an ended session leads to sign-in and back to the same page", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/servers?search=web");
  await visit.signIn();
  await page.getByRole("heading", { name: "Servers" }).waitFor();
  const { results } = await workspace.admin.get("/api/auth/sessions/");
  const session = results.find(({ current }) => !current);
  await workspace.admin.call("DELETE", `/api/auth/sessions/${session.id}/`);
  await page.getByText("Your session has ended").waitFor();
  await visit.signIn();
  await page.getByRole("heading", { name: "Servers" }).waitFor();
  assert.equal(new URL(page.url()).search, "?search=web");
  await visit.end();
});

test("the token is in sessionStorage only, and a tab of its own is signed out", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await visit.signIn();
  const stored = await page.evaluate(() => [Object.keys(sessionStorage), Object.keys(localStorage), document.cookie]);
  assert.deepEqual(stored, [["farhand.session"], [], ""]);
  const other = await visit.tab();
  await other.goto("/");
  await other.getByLabel("Username").waitFor();
  await visit.signIn("boss", other);
  // Reloading keeps the session of a tab.
  await page.reload();
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await visit.end();
});

test("signing out ends the session on the service, everywhere ends all", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await visit.signIn();
  const token = await page.evaluate(() => JSON.parse(sessionStorage.getItem("farhand.session") ?? "null").token);
  await page.getByRole("button", { name: "boss" }).click();
  await page.getByRole("button", { name: "Sign out", exact: true }).click();
  await page.getByLabel("Username").waitFor();
  const reply = await fetch(`${workspace.url}/api/status/`, { headers: { Authorization: `token="${token}"` } });
  assert.equal(reply.status, 403);
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);

  await visit.signIn();
  const other = await visit.tab();
  await other.goto("/");
  await visit.signIn("boss", other);
  await page.getByRole("button", { name: "boss" }).click();
  await page.getByRole("button", { name: "Sign out everywhere" }).click();
  await page.getByLabel("Username").waitFor();
  await other.getByText("Your session has ended").waitFor();
  workspace.admin = await workspace.loggedIn("boss");
  await visit.end();
});

test("an API token signs in, and a wrong one is refused", async () => {
  const { key } = await workspace.admin.post("/api/auth/tokens/", { name: "console", expires_at: null });
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/");
  await page.getByRole("button", { name: "Use an API token" }).click();
  await page.getByLabel("API token").fill("x".repeat(128));
  await page.keyboard.press("Enter");
  await page.getByRole("alert").waitFor();
  await page.getByLabel("API token").fill(key);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await page.getByRole("button", { name: "boss" }).click();
  assert.equal(await page.getByRole("button", { name: "Sign out everywhere" }).count(), 0);
  await visit.end();
});

test("a forgotten password asks for a mail and tells nothing", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/");
  await page.getByRole("button", { name: "Forgotten password" }).click();
  await page.getByLabel("E-mail address").fill("nobody@example.com");
  await page.keyboard.press("Enter");
  await page.getByText("a mail with a link is on its way").waitFor();
  await visit.end();
});

test("what a user may not do is not offered, and is refused if forced", async () => {
  await workspace.user("ann");
  const { id } = await workspace.server("db-9", { isOffline: true });
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await visit.signIn("ann");
  await page.getByText("You have no servers").waitFor();
  await page.goto("/servers");
  await page.getByText("You have no servers").waitFor();
  assert.equal(await page.getByRole("button", { name: "Add servers" }).count(), 0);
  await page.goto(`/servers/${id}`);
  await page.getByRole("heading", { name: "Not found" }).waitFor();
  const token = await page.evaluate(() => JSON.parse(sessionStorage.getItem("farhand.session") ?? "null").token);
  const forced = await fetch(`${workspace.url}/api/servers/`, {
    method: "POST",
    headers: { Authorization: `token="${token}"`, "Content-Type": "application/json" },
    body: JSON.stringify({ name: "mine" }),
  });
  assert.equal(forced.status, 403);
  await visit.end();
});
