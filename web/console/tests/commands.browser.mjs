// @ts-check
// Commands: run, watch live, kill, cut and resume, harmless output.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { launch, Visit } from "./browser.mjs";
import { eventually, Proxy, Workspace } from "./service.mjs";

/** @type {import("playwright-core").Browser} */
let browser;
/** @type {Workspace} */
let workspace;
/** @type {any} */
let server;
before(async () => {
  browser = await launch();
  workspace = await Workspace.create();
  server = await workspace.server("web-1", { labels: { env: "prod" } });
});
after(() => browser?.close());

const start = (line) => workspace.admin.post("/api/events/commands/", { server: server.id, line });
const lines = (page) => page.locator(".output-text");

test("sign in, run a command with live output, kill it", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await visit.signIn();
  await page.getByRole("link", { name: "Servers" }).click();
  await page.getByRole("link", { name: "web-1" }).click();
  await page.getByLabel("Command for web-1").fill("echo begun; sleep 600");
  await page.keyboard.press("Enter");
  await lines(page).getByText("begun").waitFor();
  await page.getByText("running").first().waitFor();
  await page.getByRole("button", { name: "Kill" }).click();
  const dialog = page.getByRole("dialog", { name: "Kill the command on web-1?" });
  await dialog.getByText("sleep 600").waitFor();
  await dialog.getByRole("button", { name: "Kill" }).click();
  await page
    .getByText(/^failed with exit code/)
    .first()
    .waitFor();
  // The arrow key brings the line back.
  await page.getByLabel("Command for web-1").press("ArrowUp");
  assert.equal(await page.getByLabel("Command for web-1").inputValue(), "echo begun; sleep 600");
  await visit.end();
});

test("a run from the form shows its plan first, and its command after", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/run?servers=web-1");
  await visit.signIn();
  await page.getByLabel("Command", { exact: true }).fill("echo hello from the console");
  await page.getByText(/^Runs now on web-1 as/).waitFor();
  await page.getByRole("button", { name: "Run on 1 server" }).click();
  await lines(page).getByText("hello from the console").waitFor();
  await page.getByText("success").waitFor();
  assert.match(page.url(), /\/commands\/[0-9a-f-]{36}$/);
  await page.getByRole("link", { name: "Run again" }).click();
  assert.equal(await page.getByLabel("Command", { exact: true }).inputValue(), "echo hello from the console");
  await visit.end();
});

test("a refused run says why, and keeps what was typed", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/run");
  await visit.signIn();
  await page.getByLabel("Command", { exact: true }).fill("uptime");
  await page.getByLabel("Selector of labels").fill("env=prod,,");
  await page
    .getByRole("group")
    .getByText(/position/)
    .first()
    .waitFor();
  await page.getByLabel("Selector of labels").fill("env=nowhere");
  await page
    .getByRole("alert")
    .getByText(/No server/)
    .waitFor();
  assert.ok(await page.getByRole("button", { name: "Run", exact: true }).isDisabled());
  await page.getByLabel("Selector of labels").fill("");
  await page.getByLabel("Servers", { exact: true }).fill("no-such-server,");
  await page
    .getByText(/no-such-server/)
    .nth(1)
    .waitFor();
  assert.equal(await page.getByLabel("Command", { exact: true }).inputValue(), "uptime");
  await visit.end();
});

test("a stream that is cut continues where it stopped", async () => {
  const { id } = await start("for i in $(seq 1 80); do echo line $i; sleep 0.2; done");
  const proxy = await Proxy.start(workspace.url);
  const visit = await Visit.start(browser, { url: proxy.url });
  const { page } = visit;
  await page.goto(`/commands/${id}`);
  await visit.signIn();
  await lines(page).getByText("line 10", { exact: true }).waitFor();
  proxy.cut();
  await page.getByText("Connection lost. It continues").waitFor();
  await page.getByText("No connection to the service").waitFor();
  proxy.mend();
  await lines(page).getByText("line 80", { exact: true }).waitFor();
  await page.getByText("success").waitFor();
  assert.equal(await page.getByText("No connection to the service").count(), 0);
  await page.getByRole("button", { name: "Copy" }).click();
  await page.getByText("Copied").waitFor();
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  assert.equal(copied, Array.from({ length: 80 }, (_, index) => `line ${index + 1}`).join("\n"));
  await visit.end();
  proxy.end();
});

test("two tabs follow the same command", async () => {
  const { id } = await start("for i in $(seq 1 30); do echo tick $i; sleep 0.1; done");
  const visit = await Visit.start(browser, workspace);
  await visit.page.goto(`/commands/${id}`);
  await visit.signIn();
  const other = await visit.tab();
  await other.goto(`/commands/${id}`);
  await visit.signIn("boss", other);
  for (const page of [visit.page, other]) {
    await lines(page).getByText("tick 30", { exact: true }).waitFor();
    await page.getByText("success").waitFor();
  }
  await visit.end();
});

test("search, follow, wrap and download", async () => {
  const { id } = await workspace.run(server, "seq 1 5000; echo the needle; seq 1 5000");
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto(`/commands/${id}`);
  await visit.signIn();
  await lines(page).getByText("5000", { exact: true }).waitFor();
  await page.getByLabel("Search the output").fill("needle");
  await page.keyboard.press("Enter");
  await page.locator(".output-line.current").getByText("the needle").waitFor();
  await page.getByText("1 of 1").waitFor();
  await page.getByRole("button", { name: "Follow" }).click();
  await lines(page).getByText("5000", { exact: true }).waitFor();
  // A line has an address, which opens the page at this line.
  await page.locator(".output-number").getByText("9990", { exact: true }).click();
  await page.waitForURL(/#L9990$/);
  await page.goto(`/commands/${id}#L2500`);
  await page.reload();
  await page.locator(".output-line.current").getByText("2500", { exact: true }).first().waitFor();
  await page.getByRole("button", { name: "Follow" }).click();
  // Only visible lines are in the page.
  assert.ok((await lines(page).count()) < 200);
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download" }).click()]);
  assert.match(download.suggestedFilename(), /^web-1-.*\.txt$/);
  const text = readFileSync(await download.path(), "utf8");
  assert.equal(text.split("\n").length, 10_002);
  await visit.end();
});

test("hostile output is shown harmless", async () => {
  const ATTACKS = await compiledAttacks();
  const script = `printf '%s' '${Buffer.from(ATTACKS.map(({ output }) => `${output}\n`).join("")).toString("base64")}' | base64 -d`;
  const { id } = await workspace.run(server, script);
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  let dialogs = 0;
  page.on("dialog", (dialog) => {
    dialogs += 1;
    void dialog.dismiss();
  });
  await page.goto(`/commands/${id}`);
  await visit.signIn();
  await lines(page).first().waitFor();
  const shown = new Map();
  // The view has visible lines only.
  await page.locator(".output-area").evaluate((area) => (area.scrollTop = 0));
  await eventually("all lines", async () => {
    for (const [number, text] of await page
      .locator(".output-line")
      .evaluateAll((rows) => rows.map((row) => [Number(row.dataset.index), row.querySelector(".output-text")?.textContent])))
      shown.set(number, text);
    await page.locator(".output-area").evaluate((area) => (area.scrollTop += 200));
    return shown.size >= ATTACKS.length;
  });
  const wrong = ATTACKS.flatMap(({ name, shown: wanted }, index) =>
    shown.get(index) === wanted ? [] : [`${name}: ${JSON.stringify(shown.get(index))} is not ${JSON.stringify(wanted)}`],
  );
  assert.deepEqual(wrong, []);
  assert.equal(await page.locator(".output-text a, .output img, .output script, .output svg, .output style").count(), 0);
  assert.equal(dialogs, 0);
  await visit.end();
});

/** The table of attacks, which is TypeScript. */
async function compiledAttacks() {
  const { transform } = await import("esbuild");
  const { code } = await transform(readFileSync(new URL("attacks.ts", import.meta.url), "utf8"), { loader: "ts", format: "esm" });
  return (await import(`data:text/javascript;base64,${Buffer.from(code).toString("base64")}`)).ATTACKS;
}
