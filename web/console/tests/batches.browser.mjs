// @ts-check
// Batches and the history: outcomes side by side, stop, retry, filters in the address.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, Visit } from "./browser.mjs";
import { eventually, fetch, Workspace } from "./service.mjs";

let browser, workspace, web1, web2;
before(async () => {
  browser = await launch();
  workspace = await Workspace.create();
  [web1, web2] = await Promise.all(["web-1", "web-2"].map((name) => workspace.server(name, { labels: { env: "prod" } })));
});
after(() => browser?.close());

const batchOf = (id) => workspace.admin.get(`/api/events/batches/${id}/`);
const idIn = (page) => new URL(page.url()).pathname.split("/")[2];

/** Starts a batch on both servers. */
const start = (line, fields = {}) => workspace.admin.post("/api/events/batches/", { targets: { selector: "env=prod" }, line, ...fields });

/** Runs a batch that fails on exactly one of the two servers, because the agents share a machine. */
async function divided(name) {
  const folder = `/tmp/farhand-${workspace.slug}-${name.replaceAll(" ", "-")}`;
  const { id } = await start(
    `sleep 0.2; if mkdir ${folder} 2>/dev/null; then sleep 1; rmdir ${folder}; printf 'disk 30%%\\nfine\\n'; else printf 'disk 98%%\\nfine\\n'; exit 2; fi`,
    { name },
  );
  return eventually("the end of the batch", async () => {
    const batch = await batchOf(id);
    return batch.finished_at && batch;
  });
}

test("outcomes are compared, one server is opened, what failed is retried", async () => {
  const batch = await divided("check disks");
  assert.deepEqual([batch.counts.success, batch.counts.failed], [1, 1]);
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/batches");
  await visit.signIn();
  await page.getByRole("row").filter({ hasText: "1 of 2 servers failed" }).getByRole("link", { name: "check disks" }).click();
  await page.getByRole("heading", { name: "2 different outcomes" }).waitFor();
  for (const box of await page.getByRole("checkbox", { name: /^Compare the output/ }).all()) await box.check();
  const difference = page.getByRole("region", { name: "Lines that differ" });
  await difference.getByText("disk 98%").waitFor();
  await difference.getByText("disk 30%").waitFor();
  assert.equal(await difference.locator(".difference-same").count(), 1);
  await page.getByRole("button", { name: "1 failed" }).click();
  await page.waitForURL(/only=failed/);
  const squares = page.getByRole("listbox", { name: "Servers of the batch" });
  assert.equal(await squares.getByRole("option").count(), 1);
  await squares.focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("Enter");
  const output = page.getByRole("region", { name: /^Server web-/ });
  await output.getByText("disk 98%").waitFor();
  await page.waitForURL(/server=/);
  await visit.isAccessible("batch with a comparison");
  // The address has all of it.
  await page.reload();
  await difference.getByText("disk 98%").waitFor();
  await output.getByText("failed with exit code 2").waitFor();
  await page.getByRole("button", { name: "Retry on 1 server" }).click();
  await page.waitForURL((url) => url.pathname !== `/batches/${batch.id}`);
  await page.getByRole("link", { name: "an earlier batch" }).waitFor();
  await page.getByText("One output").waitFor();
  const retry = await batchOf(idIn(page));
  assert.deepEqual([retry.retry_of, retry.counts.total, retry.counts.success], [batch.id, 1, 1]);
  await visit.end();
});

test("a running batch is watched live, stopped and killed", async () => {
  const { id } = await start("echo begun; sleep 600", { name: "slow rollout", max_concurrency: 1 });
  const visit = await Visit.start(browser, workspace, { width: 390, height: 844 });
  const { page } = visit;
  await page.goto(`/batches/${id}`);
  await visit.signIn();
  await page.getByRole("button", { name: "1 running" }).waitFor();
  await page.getByRole("option", { name: /running$/ }).click();
  await page.locator(".output-text").getByText("begun").waitFor();
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  const dialog = page.getByRole("dialog", { name: "Stop slow rollout?" });
  await dialog.getByText("It does not start on 1 further server.").waitFor();
  await dialog.getByRole("button", { name: "Stop the batch" }).click();
  await page.getByRole("heading", { level: 1 }).getByText("stopping").waitFor();
  assert.equal(await page.getByRole("button", { name: "Stop", exact: true }).count(), 0);
  await page.locator(".page-actions").getByRole("button", { name: "Kill" }).click();
  await page.getByRole("button", { name: "Kill the batch" }).click();
  await page.getByRole("heading", { level: 1 }).getByText("cancelled").waitFor();
  const { state, counts } = await batchOf(id);
  assert.deepEqual([state, counts.running], ["cancelled", 0]);
  await visit.end();
});

test("a batch of other users is not shown, an own one without servers that are lost", async () => {
  const ann = await workspace.user("ann");
  const group = await workspace.admin.post("/api/iam/groups/", { name: "web", servers: [web1.id, web2.id] });
  await workspace.admin.post("/api/iam/memberships/", { group: group.id, user: ann.id, role: "manager" });
  const api = await workspace.loggedIn("ann");
  const own = await api.post("/api/events/batches/", { targets: { all: true }, line: "sleep 600", name: "of ann" });
  const foreign = await start("true", { name: "of boss" });
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto(`/batches/${foreign.id}`);
  await visit.signIn("ann");
  await page.getByRole("heading", { name: "Not found" }).waitFor();
  const forced = await fetch(`${workspace.url}/api/events/batches/${foreign.id}/kill/`, { method: "POST", headers: { Authorization: api.authorization } });
  assert.equal(forced.status, 404);
  await page.getByRole("link", { name: "Batches" }).click();
  await page.getByRole("link", { name: "of ann" }).click();
  await page.getByRole("option", { name: "web-2: running" }).waitFor();
  await workspace.admin.patch(`/api/iam/groups/${group.id}/`, { servers: [web1.id] });
  await page.reload();
  await page.getByText("You cannot access 1 further server of it.").waitFor();
  assert.equal(await page.getByRole("option").count(), 1);
  // Staff may stop what others started.
  await workspace.admin.post(`/api/events/batches/${own.id}/kill/`);
  await page.getByRole("heading", { level: 1 }).getByText("cancelled").waitFor();
  assert.equal(await page.locator(".page-actions").getByRole("button", { name: "Kill" }).count(), 0);
  await visit.end();
});

test("the filters of the history are in the address", async () => {
  await workspace.run(web1, "echo one; exit 3");
  await workspace.run(web2, "echo two");
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/history");
  await visit.signIn();
  const rows = page.getByRole("table", { name: "Commands" }).getByRole("row");
  const shows = (...lines) =>
    eventually(
      `the history shows ${lines}`,
      async () => (await page.getByRole("table", { name: "Commands" }).locator("a.mono").allInnerTexts()).join() === lines.join(),
    );
  await rows.getByText("echo two").waitFor();
  await page.getByLabel("Search").fill("echo");
  await page.getByLabel("Exit code").fill("3");
  await page.getByLabel("State", { exact: true }).selectOption("Without success");
  await shows("echo one; exit 3");
  await page.waitForURL((url) => ["search=echo", "exit=3", "state=failed"].every((part) => url.search.includes(part)));
  const other = await visit.tab();
  await other.goto(page.url());
  await visit.signIn("boss", other);
  await other.getByRole("link", { name: "echo one; exit 3" }).waitFor();
  assert.equal(await other.getByLabel("Exit code").inputValue(), "3");
  await page.getByRole("button", { name: "Clear the filters" }).click();
  await page.getByLabel("Server", { exact: true }).fill("web-2");
  await page.getByLabel("Server", { exact: true }).press("Enter");
  await page.getByText("on web-2").waitFor();
  await page.getByLabel("Search").fill("echo");
  await page.getByLabel("Account").fill("nobody-here");
  await page.getByRole("heading", { name: "No command matches" }).waitFor();
  await page.getByLabel("Account").fill("");
  await page.getByLabel("Requested by").fill("no-such-user");
  await page.getByRole("heading", { name: "There is no user no-such-user" }).waitFor();
  await page.getByLabel("Requested by").fill("boss");
  await rows.getByText("echo two").waitFor();
  await page.getByRole("button", { name: "Due" }).click();
  await page.waitForURL(/ordering=scheduled_at/);
  // A time of the viewer's zone, which is ahead of UTC.
  await page.getByLabel("Since").fill("2026-01-01T09:00");
  await page.waitForURL(/since=2026-01-01T00%3A00/);
  await rows.getByText("echo two").waitFor();
  await page.getByLabel("Until").fill("2026-01-02T09:00");
  await page.getByRole("heading", { name: "No command matches" }).waitFor();
  await visit.isAccessible("history with filters");
  await visit.end();
});

test("a user sees the history of no foreign server", async () => {
  await workspace.user("tom");
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/history");
  await visit.signIn("tom");
  await page.getByRole("heading", { name: "No command has run" }).waitFor();
  await page.goto("/batches");
  await page.getByRole("heading", { name: "No batch has run" }).waitFor();
  await visit.end();
});
