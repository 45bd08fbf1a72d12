// @ts-check
// Texts that users choose: names, labels, descriptions and command lines with HTML, with control
// characters and with characters that change the order of others.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, Visit } from "./browser.mjs";
import { Workspace } from "./service.mjs";

const HTML = "<img src=x onerror=alert(1)><script>alert(2)</script>";
const LINE = `echo '${HTML}'; echo \u202etxt.exe\u202c \u001b[2J\u200b; exit 3`;
const LINE_SHOWN = "⟨U+202E⟩txt.exe⟨U+202C⟩ ␛[2J⟨U+200B⟩";

/** @type {import("playwright-core").Browser} */
let browser;
/** @type {Workspace} */
let workspace;
/** @type {any} */
let facts;
before(async () => {
  browser = await launch();
  workspace = await Workspace.create();
  const { admin } = workspace;
  const server = await workspace.server("web-1", { labels: { env: "prod" } });
  const group = await admin.post("/api/iam/groups/", { name: "hostile", display_name: HTML, description: HTML, servers: [server.id] });
  const command = await workspace.run(server, LINE);
  const batch = await admin.post("/api/events/batches/", { name: HTML, line: LINE, targets: { all: true } });
  const schedule = await admin.post("/api/events/schedules/", { name: HTML, cron: "0 0 1 1 *", timezone: "UTC", line: LINE, targets: { all: true } });
  const script = await admin.post("/api/events/scripts/", { name: HTML, description: HTML, interpreter: "/bin/sh", body: `echo '${HTML}'\n`, params: [] });
  await admin.post("/api/auth/tokens/", { name: HTML, expires_at: null });
  await admin.post("/api/servers/registration-tokens/", { name: HTML, uses: 1 });
  await admin.post("/api/iam/users/", {
    username: "mallory",
    email: "mallory@example.com",
    password: "correct-horse-battery-9",
    first_name: HTML.slice(0, 30),
    last_name: "<b>x</b>",
  });
  facts = { server, group, command, batch, schedule, script };
});
after(() => browser?.close());

/** The pages with these texts, and a text that each must show. @type {[(facts: any) => string, string][]} */
const PAGES = [
  [() => "/", LINE_SHOWN],
  [() => "/servers", HTML],
  [({ server }) => `/servers/${server.id}`, LINE_SHOWN],
  [() => "/run", HTML],
  [() => "/history", LINE_SHOWN],
  [({ command }) => `/commands/${command.id}`, LINE_SHOWN],
  [() => "/batches", HTML],
  [({ batch }) => `/batches/${batch.id}`, LINE_SHOWN],
  [() => "/schedules", HTML],
  [({ schedule }) => `/schedules/${schedule.id}`, HTML],
  [() => "/scripts", HTML],
  [({ script }) => `/scripts/${script.id}`, HTML],
  [() => "/tokens", HTML],
  [() => "/registration", HTML],
  [() => "/users", "mallory"],
  [() => "/groups", HTML],
  [({ group }) => `/groups/${group.id}`, HTML],
  [() => "/audit", "mallory"],
];

test("hostile names, labels and lines are shown harmless on every page", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  let dialogs = 0;
  page.on("dialog", (dialog) => {
    dialogs += 1;
    void dialog.dismiss();
  });
  await visit.signIn();
  const broken = [];
  for (const [address, text] of PAGES) {
    const path = address(facts);
    await page.goto(path);
    await page
      .getByRole("main")
      .getByText(text)
      .first()
      .waitFor({ state: "attached" })
      .catch(() => broken.push(`${path} does not show ${text}`));
    const injected = await page.locator("#root img, #root script, #root b").count();
    const hidden = await page.evaluate(() => /[\u202a-\u202e\u2066-\u2069\u200b\u001b]/.exec(document.querySelector("main")?.innerText + document.title)?.[0]);
    if (injected > 0) broken.push(`${path} has an element from a text`);
    if (hidden) broken.push(`${path} shows U+${hidden.codePointAt(0)?.toString(16)} as it is`);
  }
  assert.deepEqual(broken, []);
  assert.equal(dialogs, 0);
  await visit.end();
});

test("hostile addresses are only texts", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto(`/servers?search=${encodeURIComponent(HTML)}&label=${encodeURIComponent(HTML)}&state=${encodeURIComponent(HTML)}`);
  await visit.signIn();
  await page.getByText("No server matches").or(page.getByText("position")).first().waitFor();
  await page.goto(`/run?line=${encodeURIComponent(LINE)}&servers=${encodeURIComponent(HTML)}&script=`);
  await page.getByLabel("Command", { exact: true }).waitFor();
  assert.equal(await page.getByLabel("Command", { exact: true }).inputValue(), LINE);
  await page.getByText("in line 1: ⟨U+202E⟩").waitFor();
  await page.goto(`/servers/${encodeURIComponent("../../api/status")}`);
  await page.getByRole("heading", { name: "Not found" }).waitFor();
  assert.equal(await page.locator("#root img, #root script").count(), 0);
  await visit.end();
});

test("a line that came with a link runs with the button only", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  const total = async () => (await workspace.admin.get("/api/events/commands/?page_size=1")).count;
  const before = await total();
  await page.goto("/run?servers=web-1&line=true");
  await visit.signIn();
  await page.getByText(/^Runs now on web-1/).waitFor();
  await page.getByText("This command came with the address of the page.").waitFor();
  await page.getByLabel("Command", { exact: true }).press("Enter");
  // The page is still there, so Enter ran nothing.
  await page.getByRole("button", { name: "Run on 1 server" }).click();
  await page.waitForURL(/\/commands\//);
  assert.equal(await total(), before + 1);
  // What the user typed in the console is run with Enter.
  await page.getByRole("link", { name: "Run again" }).click();
  await page.getByText(/^Runs now on web-1/).waitFor();
  await page.getByRole("button", { name: "Run on 1 server", disabled: false }).waitFor();
  await page.getByLabel("Command", { exact: true }).press("Enter");
  await page.waitForURL(/\/commands\//);
  assert.equal(await total(), before + 2);
  await visit.end();
});
