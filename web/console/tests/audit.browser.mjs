// @ts-check
// The audit log and registration tokens.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { launch, Visit } from "./browser.mjs";
import { eventually, fetch, Workspace } from "./service.mjs";

/** @type {import("playwright-core").Browser} */
let browser;
/** @type {Workspace} */
let workspace;
before(async () => {
  browser = await launch();
  workspace = await Workspace.create();
});
after(() => browser?.close());

test("what a user does is in the audit log, which is filtered, verified and saved", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/tokens?new=true");
  await visit.signIn();
  await page.getByLabel("Name", { exact: true }).fill("for the log");
  await page.getByRole("button", { name: "Create the token" }).click();
  await page.getByRole("button", { name: "I have copied the key" }).click();
  await page.getByRole("link", { name: "Audit" }).click();
  const rows = page.getByRole("table", { name: "Audit events" }).getByRole("row");
  await page.getByLabel("Action").fill("api_token.create");
  await page.waitForURL(/action=api_token.create/);
  await rows.filter({ hasText: "for the log" }).getByRole("button", { name: "api_token.create" }).click();
  const event = page.getByRole("complementary", { name: "Event" });
  await event.getByText("boss (user)").waitFor();
  assert.ok(await event.evaluate((element) => element === document.activeElement), "the event has the focus");
  await visit.isAccessible("an open event");
  await event.getByRole("button", { name: "Only this object" }).click();
  await page.waitForURL(/object=/);
  await eventually("one event", async () => (await rows.count()) === 2);
  const saving = page.waitForEvent("download");
  await page.getByRole("button", { name: "Download" }).click();
  const download = await saving;
  assert.match(download.suggestedFilename(), /^audit-\d{4}-\d\d-\d\d\.jsonl$/);
  const events = readFileSync(await download.path(), "utf8")
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line));
  assert.deepEqual(
    events.map(({ action, outcome, object }) => [action, outcome, object.name]),
    [["api_token.create", "success", "for the log"]],
  );

  await page.getByRole("button", { name: "Clear the filters" }).click();
  await page.getByLabel("Outcome").selectOption("Denied");
  await page.getByRole("heading", { name: "No event matches" }).waitFor();
  assert.ok(await page.getByRole("button", { name: "Download" }).isDisabled());
  await page.getByRole("button", { name: "Clear the filters" }).click();
  await page.getByLabel("Actor").fill("no-such-actor");
  await page.getByRole("heading", { name: "No event matches" }).waitFor();
  await page.getByLabel("Actor").fill("boss");
  await rows.nth(1).waitFor();
  await page.getByRole("button", { name: "Verify the chain" }).click();
  await page.getByText(/are as they were sealed\./).waitFor();
  const verified = await workspace.admin.post("/api/audit/verify/", {});
  assert.equal(verified.valid, true);
  await visit.end();
});

test("an event that is opened from the end of a long list comes into view on a phone", async () => {
  for (let number = 0; number < 24; number += 1) await workspace.server(`node-${number}`, { isOffline: true });
  const visit = await Visit.start(browser, workspace, { width: 390, height: 844 });
  const { page } = visit;
  await page.goto("/audit?action=server.create");
  await visit.signIn();
  const last = page.getByRole("row").filter({ hasText: "node-0" });
  await eventually("the last event is in view", async () => {
    await page.mouse.wheel(0, 2_000);
    return (await last.count()) > 0;
  });
  await last.getByRole("button").click();
  const event = page.getByRole("complementary", { name: "Event" });
  await event.getByText("server node-0").waitFor();
  await eventually("the event is visible", () =>
    event.evaluate((element) => element.getBoundingClientRect().top >= 0 && element.getBoundingClientRect().top < innerHeight),
  );
  await visit.end();
});

test("a registration token is listed with its limits, and revoked", async () => {
  const token = await workspace.admin.post("/api/servers/registration-tokens/", {
    name: "rollout",
    uses: 3,
    name_pattern: "web-*",
    networks: ["192.0.2.0/24"],
    approval: true,
    labels: { env: "prod" },
    expires_at: null,
  });
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/registration");
  await visit.signIn();
  await page.getByText("3 further servers; named web-*; from 192.0.2.0/24; each awaits approval; with env=prod").waitFor();
  await visit.isAccessible("registration tokens");
  await page.getByRole("button", { name: "Revoke rollout" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Revoke rollout" }).click();
  await page.getByRole("heading", { name: "There is no registration token" }).waitFor();
  assert.equal((await workspace.admin.get("/api/servers/registration-tokens/")).count, 0);
  await assert.rejects(workspace.admin.get(`/api/servers/registration-tokens/${token.id}/`));
  await visit.end();
});

test("other users than staff read neither", async () => {
  await workspace.user("ann");
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/audit");
  await visit.signIn("ann");
  await page.getByRole("heading", { name: "Only staff read the audit log" }).waitFor();
  await page.goto("/registration");
  await page.getByRole("heading", { name: "Only staff see registration tokens" }).waitFor();
  const rail = page.getByRole("navigation", { name: "Pages" });
  assert.equal(await rail.getByRole("link", { name: /^(?:Audit|Registration tokens)$/ }).count(), 0);
  const token = await page.evaluate(() => JSON.parse(sessionStorage.getItem("farhand.session") ?? "null").token);
  const statuses = await Promise.all(
    ["/api/audit/events/", "/api/servers/registration-tokens/"].map(
      async (path) => (await fetch(`${workspace.url}${path}`, { headers: { Authorization: `token="${token}"` } })).status,
    ),
  );
  assert.deepEqual(statuses, [403, 403]);
  await visit.end();
});
