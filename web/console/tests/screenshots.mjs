// @ts-check
// `npm run screenshots`: takes pictures of the console for the documents, in docs/images.
//
//   npm run screenshots -- all FOLDER   takes every page in both themes and widths, to look at them
//
// Starts an instance with agents of its own.
import { mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildAgent } from "../../../scripts/agent.mjs";
import { browser as findBrowser } from "../../../scripts/browser.mjs";
import { build } from "../../../scripts/build.mjs";
import { freePort, startInstance } from "../../../scripts/instance.mjs";
import { root, say } from "../../../scripts/lib.mjs";

const [mode, target = "target/screenshots"] = process.argv.slice(2);
const isAll = mode === "all";
const folder = join(root, isAll ? target : "docs/images");
/** The pages in the documents. */
const SHOWN = ["servers", "command", "batch", "schedules", "tokens"];
/** @type {{ scheme: "light" | "dark", width: number }[]} */
const VARIANTS = isAll
  ? /** @type {const} */ (["light", "dark"]).flatMap((scheme) => [1440, 390].map((width) => ({ scheme, width })))
  : [{ scheme: "light", width: 1200 }];
/** A larger picture would make clones of the repository slow. */
const MAX_BYTES = 150 * 1024;

await build();
process.env.FARHAND_AGENT = await buildAgent();
process.env.FARHAND_CHROMIUM = (await findBrowser()).chromium;
const state = mkdtempSync(join(tmpdir(), "farhand-screenshots-"));
const instance = await startInstance({
  stateDir: join(state, "state"),
  port: await freePort(),
  environment: { PBKDF2_ITERATIONS: "100000" },
  onExit: (how) => console.error(`error: the service ended with ${how}`),
});
process.env.FARHAND_URL = instance.url;
process.env.FARHAND_OPERATOR_TOKEN = instance.operatorToken;
// These read the variables above.
const { launch, Visit } = await import("./browser.mjs");
const { fill, PAGES } = await import("./pages.mjs");
const { Workspace } = await import("./service.mjs");

/** A picture as WebP, which the browser can write. */
async function compressed(png) {
  const page = await browser.newPage();
  const text = await page.evaluate(
    async (address) => {
      const image = await createImageBitmap(await (await fetch(address)).blob());
      const canvas = new OffscreenCanvas(image.width, image.height);
      canvas.getContext("2d")?.drawImage(image, 0, 0);
      const blob = await canvas.convertToBlob({ type: "image/webp", quality: 0.92 });
      return new Promise((done) => Object.assign(new FileReader(), { onload: ({ target }) => done(target.result.split(",")[1]) }).readAsDataURL(blob));
    },
    `data:image/png;base64,${png.toString("base64")}`,
  );
  await page.close();
  return Buffer.from(text, "base64");
}

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
      const file = join(folder, isAll ? `${name}-${width}-${scheme}.png` : `${name}.webp`);
      await page.locator(".loading").first().waitFor({ state: "detached" });
      // Without the hint of a pointer or of a focused field.
      await page.evaluate(() => /** @type {HTMLElement | null} */ (document.activeElement)?.blur());
      const picture = await page.screenshot();
      writeFileSync(file, isAll ? picture : await compressed(picture));
      const { size } = statSync(file);
      if (!isAll && size > MAX_BYTES) throw new Error(`${file} has ${size} bytes, of at most ${MAX_BYTES}`);
      say(`${file}: ${Math.round(size / 1024)} KB`);
    }
    await visit.context.close();
  }
} finally {
  await browser.close();
  await workspace.end();
  await instance.stop();
  rmSync(state, { recursive: true, force: true });
}
