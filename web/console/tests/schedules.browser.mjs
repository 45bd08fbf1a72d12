// @ts-check
// Schedules and scripts: create, change, run, pause, delete, and what two users change at once.
import assert from "node:assert/strict";
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
  await workspace.server("web-1", { labels: { env: "prod" } });
});
after(() => browser?.close());

const idIn = (page) => new URL(page.url()).pathname.split("/")[2];
const schedules = async () => (await workspace.admin.get("/api/events/schedules/")).results;

test("a schedule is created, paused, changed, run and deleted", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/schedules");
  await visit.signIn();
  await page.getByRole("heading", { name: "There is no schedule" }).waitFor();
  await page.getByRole("button", { name: "Create a schedule" }).click();
  await page.getByLabel("Name", { exact: true }).fill("nightly backup");
  await page.getByLabel("When").fill("61 2 * * *");
  await page.getByLabel("Command", { exact: true }).fill("echo backed up");
  await page.getByLabel("Selector of labels").fill("env=prod");
  await page.getByRole("button", { name: "Create the schedule" }).click();
  await page.locator(".field .error").first().waitFor();
  assert.equal((await schedules()).length, 0);
  await page.getByLabel("When").fill("30 2 * * mon-fri");
  await page.getByText("At 02:30, Monday through Friday").waitFor();
  assert.equal(await page.getByLabel("Time zone").inputValue(), "Asia/Seoul");
  await visit.isAccessible("form of a schedule");
  await page.getByRole("button", { name: "Create the schedule" }).click();
  await page.getByRole("heading", { level: 1, name: "nightly backup" }).waitFor();
  const [created] = await schedules();
  assert.deepEqual([created.cron, created.timezone, created.targets.selector, created.enabled], ["30 2 * * mon-fri", "Asia/Seoul", "env=prod", true]);
  assert.equal(await page.getByRole("table", { name: "Next runs" }).getByRole("link").count(), 5);

  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByRole("heading", { level: 1 }).getByText("paused").waitFor();
  assert.equal((await schedules())[0].enabled, false);
  await page.getByText("It is paused, so it has no next run.").waitFor();
  await page.getByRole("button", { name: "Change" }).click();
  await page.getByLabel("Name", { exact: true }).fill("weekly backup");
  await page.getByLabel("When").fill("0 4 * * sun");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("heading", { level: 1, name: "weekly backup" }).waitFor();
  // A change of a paused schedule does not start it.
  const [changed] = await schedules();
  assert.deepEqual([changed.name, changed.cron, changed.enabled], ["weekly backup", "0 4 * * sun", false]);
  await page.getByRole("button", { name: "Resume" }).click();
  await page.getByRole("heading", { level: 1 }).getByText("active").waitFor();

  await page.getByRole("button", { name: "Run now" }).click();
  await page.waitForURL(/\/batches\//);
  await page.getByText("backed up").nth(1).waitFor();
  await page.getByRole("link", { name: "schedule", exact: true }).click();
  await page.getByRole("table", { name: "Runs" }).getByText("started").waitFor();
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("button", { name: "Delete weekly backup" }).click();
  await page.getByRole("heading", { name: "There is no schedule" }).waitFor();
  assert.equal((await schedules()).length, 0);
  await visit.end();
});

test("a change that another user made first is not overwritten unseen", async () => {
  const schedule = await workspace.admin.post("/api/events/schedules/", { name: "rotation", cron: "@daily", targets: { all: true }, line: "true" });
  const script = await workspace.admin.post("/api/events/scripts/", { name: "shared", body: "echo one\n" });
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto(`/schedules/${schedule.id}?edit=true`);
  await visit.signIn();
  await page.getByLabel("Name", { exact: true }).fill("mine");
  await workspace.admin.patch(`/api/events/schedules/${schedule.id}/`, { cron: "@hourly" });
  await page.getByRole("button", { name: "Save" }).click();
  await page
    .getByRole("alert")
    .getByText(/was changed .*while this form was open/)
    .waitFor();
  assert.equal((await schedules()).find(({ id }) => id === schedule.id).name, "rotation");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("heading", { level: 1, name: "mine" }).waitFor();

  await page.goto(`/scripts/${script.id}?edit=true`);
  await page.getByLabel("Text").fill("echo mine\n");
  await workspace.admin.patch(`/api/events/scripts/${script.id}/`, { body: "echo theirs\n" });
  await page.getByRole("button", { name: /^Save as version/ }).click();
  await page
    .getByRole("alert")
    .getByText(/Version 2 was saved while this form was open/)
    .waitFor();
  assert.equal((await workspace.admin.get(`/api/events/scripts/${script.id}/`)).body, "echo theirs\n");
  await page.getByRole("button", { name: "Save as version 3" }).click();
  await page.getByRole("heading", { name: "Version 3" }).waitFor();
  await page.getByRole("link", { name: "Version 2" }).click();
  await page.getByText("echo theirs").waitFor();
  await visit.end();
});

test("a script is created, changed, run with parameters and deleted", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/scripts/new");
  await visit.signIn();
  await page.getByLabel("Name", { exact: true }).fill("greet");
  await page.getByLabel("Text").fill("echo hello $PARAM_WHO\n");
  await page.getByRole("button", { name: "Add a parameter" }).click();
  await page.getByLabel("Name of parameter 1").fill("who");
  await page.getByLabel("Type of WHO").selectOption("whole number");
  await page.getByLabel("Default of WHO").fill("three");
  await page.getByRole("button", { name: "Create the script" }).click();
  await page.locator(".params .error").waitFor();
  await page.getByLabel("Type of WHO").selectOption("text");
  await page.getByLabel("Default of WHO").fill("");
  await page.getByLabel("required").check();
  await visit.isAccessible("form of a script");
  await page.getByRole("button", { name: "Create the script" }).click();
  await page.getByRole("heading", { level: 1, name: "greet" }).waitFor();
  const id = idIn(page);
  assert.deepEqual(
    (await workspace.admin.get(`/api/events/scripts/${id}/`)).params.map(({ name, type, required }) => [name, type, required]),
    [["WHO", "string", true]],
  );

  await page.getByRole("button", { name: "Change" }).click();
  await page.getByLabel("Text").fill("echo good evening $PARAM_WHO\n");
  await page.getByRole("button", { name: "Save as version 2" }).click();
  await page.getByRole("heading", { name: "Version 2" }).waitFor();
  await page.getByRole("link", { name: "Version 1" }).click();
  await page.getByText("echo hello $PARAM_WHO").waitFor();
  await page.getByRole("link", { name: "Show the latest" }).click();

  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.getByLabel("Servers", { exact: true }).fill("web-1,");
  const run = page.getByRole("button", { name: "Run on 1 server" });
  await run.click();
  assert.ok(await page.getByLabel("WHO").evaluate((input) => input.matches(":invalid:focus")), "a required parameter");
  await page.getByLabel("WHO").fill("ada");
  await run.click();
  await page.waitForURL(/\/commands\//);
  await page.locator(".output-text").getByText("good evening ada").waitFor();

  await page.goto(`/scripts/${id}`);
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("button", { name: "Delete greet" }).click();
  await page.getByText("greet is deleted.").waitFor();
  await eventually("the script is deleted", async () => !(await workspace.admin.get("/api/events/scripts/")).results.some(({ name }) => name === "greet"));
  await visit.end();
});

test("a user reads scripts, changes none, and sees no foreign schedule", async () => {
  const script = await workspace.admin.post("/api/events/scripts/", { name: "of staff", body: "true\n" });
  const schedule = await workspace.admin.post("/api/events/schedules/", { name: "of boss", cron: "@daily", targets: { all: true }, line: "true" });
  await workspace.user("ann");
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto(`/scripts/${script.id}`);
  await visit.signIn("ann");
  await page.getByRole("heading", { level: 1, name: "of staff" }).waitFor();
  await page.getByText("You cannot read the text").waitFor();
  assert.equal(await page.getByText("true", { exact: true }).count(), 0);
  assert.equal(await page.getByRole("button", { name: /^(?:Change|Delete)$/ }).count(), 0);
  await page.goto("/scripts/new");
  await page.getByRole("heading", { name: "Only staff write scripts" }).waitFor();
  await page.goto(`/schedules/${schedule.id}`);
  await page.getByRole("heading", { name: "Not found" }).waitFor();
  await page.goto("/schedules?new=true&servers=web-1&line=uptime");
  await page.getByLabel("Name", { exact: true }).fill("mine");
  await page.getByLabel("When").fill("@daily");
  await page.getByRole("button", { name: "Create the schedule" }).click();
  await page.locator(".field .error").getByText(/web-1/).waitFor();
  const token = await page.evaluate(() => JSON.parse(sessionStorage.getItem("farhand.session") ?? "null").token);
  const headers = { Authorization: `token="${token}"`, "Content-Type": "application/json" };
  const forced = await fetch(`${workspace.url}/api/events/scripts/${script.id}/`, { method: "PATCH", headers, body: JSON.stringify({ body: "false\n" }) });
  assert.equal(forced.status, 403);
  await visit.end();
});

test("names and texts of others hide nothing", async () => {
  const hostile = "safe\u202egpj.hs";
  const script = await workspace.admin.post("/api/events/scripts/", { name: hostile, description: "a\u200bb", body: "echo one\u202e\necho two\n" });
  await workspace.admin.post("/api/events/schedules/", { name: hostile, cron: "@daily", targets: { all: true }, line: "echo \u2066x" });
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/scripts");
  await visit.signIn();
  await page.getByText("a⟨U+200B⟩b").waitFor();
  await page.getByRole("link", { name: "safe⟨U+202E⟩gpj.hs" }).click();
  await page.getByText("echo one⟨U+202E⟩").waitFor();
  await page.getByRole("button", { name: "Change" }).click();
  await page.getByText("in line 1: ⟨U+202E⟩.").waitFor();
  await page.goto("/schedules");
  await page.getByRole("table", { name: "Schedules" }).getByRole("link", { name: "safe⟨U+202E⟩gpj.hs" }).click();
  await page.getByText("echo ⟨U+2066⟩x").waitFor();
  await page.goto(`/audit?object=${script.id}`);
  await page.getByText("script safe⟨U+202E⟩gpj.hs").waitFor();
  await page.getByRole("button", { name: "script.create" }).click();
  await page.getByRole("complementary", { name: "Event" }).getByText("script safe⟨U+202E⟩gpj.hs").waitFor();
  for (const address of ["/scripts", "/schedules", `/scripts/${script.id}`]) {
    await page.goto(address);
    await page.getByText("⟨U+202E⟩").first().waitFor();
    assert.ok(!/[\u202e\u200b\u2066]/.test(await page.getByRole("main").innerText()), address);
    assert.ok(!/[\u202e\u200b\u2066]/.test(await page.title()), address);
  }
  await visit.end();
});
