// @ts-check
// Lists of more than one page: every item can be chosen, and every name is found.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, Visit } from "./browser.mjs";
import { Workspace } from "./service.mjs";

/** More than two pages of 100. */
const MANY = 230;
const SCRIPT = "01936d3e-7a00-7000-8000-000000000000";

/** @type {import("playwright-core").Browser} */
let browser;
/** @type {Workspace} */
let workspace;
before(async () => {
  browser = await launch();
  workspace = await Workspace.create();
  await workspace.server("web-1", { isOffline: true });
});
after(() => browser?.close());

/** Answers requests for a list from `MANY` items, in pages as the service does (contract 3.7). */
async function withMany(page, path, itemAt, count = MANY) {
  await page.route(new RegExp(`${path}\\?`), (route) => {
    const parameters = new URL(route.request().url()).searchParams;
    const size = Math.min(Number(parameters.get("page_size") ?? 15), 100);
    const first = (Number(parameters.get("page") ?? 1) - 1) * size;
    const results = Array.from({ length: Math.max(0, Math.min(size, count - first)) }, (_, index) => itemAt(first + index + 1));
    return route.fulfill({ json: { count, next: null, previous: null, results } });
  });
}

const groupAt = (id) => ({ id, name: `group-${id}`, display_name: "", description: "", servers: [], num_members: 1 });
const scriptAt = (index) => ({
  id: SCRIPT.slice(0, -3) + String(index).padStart(3, "0"),
  name: `script-${String(index).padStart(4, "0")}`,
  description: "",
  version: 1,
  params: [],
});
const tokenAt = (index) => ({
  id: SCRIPT.slice(0, -3) + String(index).padStart(3, "0"),
  name: `token-${index}`,
  enabled: true,
  acl: null,
  expires_at: null,
  last_used_at: null,
  added_at: "2026-11-01T00:00:00+00:00",
});

test("every script and group can be chosen, and every name is found", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await visit.signIn();
  await withMany(page, "/api/iam/groups/", groupAt);
  await withMany(page, "/api/events/scripts/", scriptAt);
  await withMany(page, "/api/auth/tokens/", tokenAt);
  const servers = await workspace.admin.get("/api/servers/");
  const results = servers.results.map((server) => ({ ...server, groups: [MANY] }));
  await page.route(/\/api\/servers\/\?/, (route) => route.fulfill({ json: { ...servers, results } }));

  await page.goto("/schedules?new=true");
  await page.getByRole("checkbox", { name: `group-${MANY}`, exact: true }).waitFor();
  await page.getByRole("radio", { name: "A script" }).check();
  // The first option asks to choose.
  assert.equal(await page.getByLabel("Script", { exact: true }).locator("option").count(), MANY + 1);

  await page.goto("/run");
  await page.getByRole("checkbox", { name: `group-${MANY}`, exact: true }).waitFor();

  await page.goto("/tokens?new=true");
  await page
    .getByRole("group", { name: "Scripts" })
    .getByRole("checkbox")
    .nth(MANY - 1)
    .waitFor();
  assert.equal(await page.getByRole("list", { name: "Tokens" }).getByRole("listitem").count(), MANY);

  await page.goto("/servers");
  await page.getByRole("table", { name: "Servers" }).getByText(`group-${MANY}`).waitFor();
  assert.equal(await page.getByText("are listed.").count(), 0);
  await visit.end();
});

test("a list that is too long to be read says so", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await visit.signIn();
  await withMany(page, "/api/iam/groups/", groupAt, 2_345);
  await page.goto("/run");
  await page.getByText("Only 2,000 of 2,345 groups are listed.").waitFor();
  await visit.end();
});
