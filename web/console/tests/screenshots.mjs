// `npm run screenshots`: takes pictures of the console for the documents, in docs/images.
//
//   npm run screenshots -- all FOLDER   takes every page in both themes and widths, to look at them
//
// Starts an instance with agents of its own. Compresses the pictures with `convert` of ImageMagick.
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildAgent } from "../../../scripts/agent.mjs";
import { browser as findBrowser } from "../../../scripts/browser.mjs";
import { build } from "../../../scripts/build.mjs";
import { freePort, startInstance } from "../../../scripts/instance.mjs";
import { root, run, say } from "../../../scripts/lib.mjs";

const [mode, target = "target/screenshots"] = process.argv.slice(2);
const isAll = mode === "all";
const folder = join(root, isAll ? target : "docs/images");
/** The pages in the documents. */
const SHOWN = ["servers", "command", "batch", "schedules", "tokens"];
const VARIANTS = isAll ? ["light", "dark"].flatMap((scheme) => [1440, 390].map((width) => ({ scheme, width }))) : [{ scheme: "light", width: 1200 }];
/** Pictures have few colours, so a palette is enough. */
const PALETTE = ["-strip", "-colors", "64", "-define", "png:compression-level=9"];

await build();
process.env.FARHAND_AGENT = await buildAgent();
process.env.FARHAND_CHROMIUM = (await findBrowser()).chromium;
const state = mkdtempSync(join(tmpdir(), "farhand-screenshots-"));
const instance = await startInstance({ stateDir: join(state, "state"), port: await freePort(), environment: { PBKDF2_ITERATIONS: "100000" } });
process.env.FARHAND_URL = instance.url;
process.env.FARHAND_OPERATOR_TOKEN = instance.operatorToken;
// These read the variables above.
const { launch, Visit } = await import("./browser.mjs");
const { fill, PAGES } = await import("./pages.mjs");
const { Workspace } = await import("./service.mjs");

mkdirSync(folder, { recursive: true });
const browser = await launch();
const workspace = await Workspace.create("acme");
try {
  const facts = await fill(workspace);
  for (const { scheme, width } of VARIANTS) {
    const visit = await Visit.start(browser, workspace, { scheme, width, height: width < 500 ? 844 : 800 });
    const { page } = visit;
    await page.goto("/");
    if (isAll) await page.screenshot({ path: join(folder, `sign-in-${width}-${scheme}.png`) });
    await visit.signIn();
    for (const [name, address, { text }] of PAGES.filter(([name]) => isAll || SHOWN.includes(name))) {
      await page.goto(address(facts));
      await page.getByRole("main").getByText(text).first().waitFor();
      const file = join(folder, isAll ? `${name}-${width}-${scheme}.png` : `${name}.png`);
      // Without the hint of a pointer or of a focused field.
      await page.evaluate(() => document.activeElement?.blur());
      await page.screenshot({ path: file });
      if (!isAll) run("convert", [file, ...PALETTE, file]);
      say(file);
    }
    await visit.context.close();
  }
} finally {
  await browser.close();
  await workspace.end();
  await instance.stop();
  rmSync(state, { recursive: true, force: true });
}
