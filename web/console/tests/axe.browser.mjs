// @ts-check
// Every page in both themes and at two widths: axe finds nothing, nothing sticks out at the side.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, Visit } from "./browser.mjs";
import { fill, PAGES } from "./pages.mjs";
import { Workspace } from "./service.mjs";

/** @type {import("playwright-core").Browser} */
let browser;
/** @type {Workspace} */
let workspace;
/** @type {any} */
let facts;
before(async () => {
  browser = await launch();
  workspace = await Workspace.create();
  facts = await fill(workspace);
});
after(() => browser?.close());

for (const scheme of /** @type {const} */ (["light", "dark"])) {
  for (const width of [1440, 390]) {
    test(`pages in ${scheme} at ${width} pixels`, async () => {
      const visit = await Visit.start(browser, workspace, { scheme, width });
      const { page } = visit;
      await page.goto("/");
      await page.getByLabel("Username").waitFor();
      await visit.isAccessible("sign-in");
      await visit.signIn();
      for (const [name, address, { text }] of PAGES) {
        await page.goto(address(facts));
        await page.getByRole("main").getByText(text).first().waitFor();
        await visit.isAccessible(`${name}, ${scheme}, ${width}`);
        const [shown, whole] = await page.evaluate(() => [document.documentElement.clientWidth, document.documentElement.scrollWidth]);
        assert.ok(whole <= shown, `${name} is ${whole} pixels wide`);
      }
      await page.keyboard.press("Control+k");
      await page.getByRole("combobox").fill("web");
      await page.getByRole("option", { name: "web-1" }).waitFor();
      await visit.isAccessible("palette");
      await page.keyboard.press("Escape");
      await page.getByRole("button", { name: width < 700 ? "More" : "boss" }).click();
      await page.getByRole("button", { name: "Sign out", exact: true }).waitFor();
      await visit.isAccessible("menu");
      await visit.end();
    });
  }
}
