// `npm run docs`: builds the documentation site from docs/ and a few other files into
// target/site/html, and serves it on this machine.
//
//   npm run docs               builds the site, serves it and prints the address
//   npm run docs -- build      only builds it; `npm test` does this, and fails on a dead link
//   npm run docs -- watch      shows changes in the browser as soon as a page is saved
//
// Pages are first copied to target/site/pages. The copies have adapted links. The pages of the API
// reference and the images are added there.
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, watch, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { basename, dirname, extname, join, posix, relative } from "node:path";
import { fail, filesBelow, root, say } from "./lib.mjs";
import { npmPackages } from "./toolchain.mjs";

const site = join(root, "target", "site");
const pagesFolder = join(site, "pages");
const html = join(site, "html");
/** Pages outside docs/, with their paths in the site. */
const OTHER_PAGES = {
  "README.md": "readme.md",
  "CHANGELOG.md": "changelog.md",
  "SECURITY.md": "vulnerabilities.md",
  "ARCHITECTURE.md": "contributing/architecture.md",
  "CONTRIBUTING.md": "contributing/index.md",
  "examples/README.md": "examples.md",
};
/**
 * Returns the page of the API reference that replaces a file of the OpenAPI document. A file of
 * docs/openapi/ has the name of its tag's page.
 */
function replacement(path) {
  if (path === "docs/openapi.yaml") return "reference/index.md";
  return path.startsWith("docs/openapi/") ? path.replace("docs/openapi/", "reference/").replace(/yaml$/, "md") : undefined;
}
/** Images of pages, and the folder of the site with files that VitePress serves as they are. */
const IMAGES = "docs/images";
const servedFolder = join(pagesFolder, "public");
/** A port that `npm start` does not use. */
const PORT = 8790;
/** An editor saves a file in several steps. */
const WATCH_DELAY_MS = 100;

/** Returns the path in the site for each file that is a page. */
function sitePaths() {
  const docs = filesBelow(["docs"]).map((file) => relative(root, file)).filter((path) => path.endsWith(".md"));
  return { ...Object.fromEntries(docs.map((path) => [path, path.slice("docs/".length).replace(/README\.md$/, "index.md")])), ...OTHER_PAGES };
}

/**
 * Adapts the links of a page. A link to a page or an image gets its path in the site. A link to
 * another file of the repository becomes plain text. A link to a missing file is unchanged, so that
 * VitePress reports it.
 */
function adapted(text, path, pages) {
  const isCode = /^(```|~~~)/;
  let inCode = false;
  return text.split("\n").map((line) => {
    if (isCode.test(line)) inCode = !inCode;
    if (inCode) return line;
    // Text between backticks is matched too, so that it is not changed.
    return line.replace(/`[^`]*`|\[((?:[^\]`]|`[^`]*`)*)\]\(([^()\s]+)\)/g, (whole, label, target) => {
      if (target === undefined || /^[a-z]+:|^#/.test(target)) return whole;
      const [file, anchor] = target.split("#");
      const linked = posix.join(posix.dirname(path), file);
      if (linked.startsWith(`${IMAGES}/`) && existsSync(join(root, linked))) return `[${label}](/images/${posix.basename(linked)})`;
      const page = pages[linked] ?? replacement(linked);
      if (page === undefined) return existsSync(join(root, linked)) ? label : whole;
      return `[${label}](/${page}${anchor === undefined ? "" : `#${anchor}`})`;
    });
  }).join("\n").replace(/^<!--.*-->\n/gm, "");
}

/** Writes the changed pages of the site, and deletes pages that no longer exist. */
async function writePages() {
  // Imported only now, because the module needs npm packages.
  const { referencePages } = await import("./docs-reference.mjs");
  const pages = sitePaths();
  const texts = Object.entries(pages)
    .filter(([path]) => existsSync(join(root, path)))
    .map(([path, page]) => ({ path: page, text: adapted(readFileSync(join(root, path), "utf8"), path, pages) }));
  const written = new Map([...texts, ...referencePages()].map(({ path, text }) => [join(pagesFolder, path), Buffer.from(text)]));
  for (const image of filesBelow([IMAGES])) written.set(join(servedFolder, "images", basename(image)), readFileSync(image));
  for (const file of filesBelow([relative(root, pagesFolder)])) if (!written.has(file)) rmSync(file);
  for (const [file, content] of written) {
    if (existsSync(file) && readFileSync(file).equals(content)) continue;
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, content);
  }
}

/** Serves the pages with VitePress's server, which updates the browser, and keeps them current. */
async function watchPages(port) {
  const { createServer: createVitePress } = await import("vitepress");
  const server = await createVitePress(join(root, "docs"), { host: "127.0.0.1", port, strictPort: true });
  await server.listen();
  say(`the documentation is on http://127.0.0.1:${port}; Ctrl-C ends it`);
  let timer = null;
  const isPage = (path) => path.startsWith("docs/") ? !path.startsWith("docs/.vitepress/") : path in OTHER_PAGES;
  const changed = (path) => {
    if (!isPage(path)) return;
    clearTimeout(timer);
    timer = setTimeout(() => writePages().catch((error) => say(`error: ${error.message}`)), WATCH_DELAY_MS);
  };
  // Folders, because editors replace files.
  for (const folder of ["docs", ...new Set(Object.keys(OTHER_PAGES).map(dirname))]) {
    watch(join(root, folder), { recursive: folder === "docs" }, (_, name) => changed(posix.join(folder, name)));
  }
}

/** Fails if a page or a style sheet loads anything from another origin. */
function checkOrigins(folder) {
  const loads = /<(?:script|link|img|iframe)\b[^>]*\s(?:src|href)="(?:https?:)?\/\/[^>]*>|(?:url\(|@import )["']?(?:https?:)?\/\/[^)"']*/;
  for (const file of filesBelow([relative(root, folder)]).filter((name) => /\.(html|css)$/.test(name))) {
    const found = loads.exec(readFileSync(file, "utf8"));
    if (found) fail(`${relative(root, file)} loads from another origin: ${found[0]}`);
  }
}

const MEDIA_TYPES = {
  ".css": "text/css", ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".json": "application/json", ".webp": "image/webp", ".woff2": "font/woff2",
};

/** Serves the site on loopback only. VitePress's own server would listen on all addresses. */
function serve(folder, port) {
  const isFile = (path) => existsSync(path) && statSync(path).isFile();
  const server = createServer((request, response) => {
    // The URL has resolved every `..` in the path. Escapes are not decoded, so an escaped `..` has
    // no effect.
    const url = `http://localhost${request.url}`;
    const pathname = URL.canParse(url) ? new URL(url).pathname : "/404";
    const file = [pathname, `${pathname}.html`, `${pathname}index.html`].map((name) => join(folder, name)).find(isFile);
    const shown = file ?? join(folder, "404.html");
    response.writeHead(file ? 200 : 404, { "Content-Type": MEDIA_TYPES[extname(shown)] ?? "application/octet-stream" });
    response.end(readFileSync(shown));
  });
  server.on("error", (error) => fail(`${error.message}; set PORT to another port`));
  server.listen(port, "127.0.0.1", () => say(`the documentation is on http://127.0.0.1:${port}`));
}

/** Builds the site. Fails if a page is not valid. */
async function buildSite() {
  const { build } = await import("vitepress");
  // If a page is invalid, VitePress prints the reason and throws an error.
  await build(join(root, "docs")).catch((error) => fail(`the site was not built: ${error.message}${error.id ? ` (${error.id})` : ""}`));
  checkOrigins(html);
  say(`the site is in ${relative(root, html)}`);
  if (mode === undefined) serve(html, port);
}

const [mode, ...rest] = process.argv.slice(2);
if (![undefined, "build", "watch"].includes(mode) || rest.length > 0) fail("usage: npm run docs [-- build | watch]");
const port = Number(process.env.PORT || PORT);
await npmPackages();
await writePages();
if (mode === "watch") await watchPages(port);
else await buildSite();
