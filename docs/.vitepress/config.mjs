// The documentation site. `npm run docs` (scripts/docs.mjs) writes its pages to target/site/pages
// and builds it.
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { defineConfig } from "vitepress";
import { diagrams } from "./diagrams.mjs";

const site = join(dirname(fileURLToPath(import.meta.url)), "../../target/site");
const pages = join(site, "pages");
const { version } = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8"));

/**
 * The sidebar. `pages` come first, in this order, if they exist. `folder` adds all other pages of a
 * folder; without a folder of its own, the section "Guides" takes the other pages of the top
 * folder.
 */
const SECTIONS = [
  { text: "Start", pages: ["index", "tutorial", "concepts", "readme"] },
  {
    text: "Guides", folder: ".",
    pages: [
      "console", "agents", "commands", "authentication", "api", "examples", "audit", "security", "deploying", "configuration", "operations",
      "reliability", "limits-and-prices",
    ],
  },
  { text: "How-to", folder: "how-to", pages: ["how-to/index"] },
  { text: "Help", pages: ["troubleshooting", "faq", "comparison", "changelog", "vulnerabilities"] },
  { text: "API reference", folder: "reference", isCollapsed: true },
  { text: "Contributing", folder: "contributing", pages: ["contributing/index", "contributing/architecture"], isCollapsed: true },
  { text: "Specification", folder: "spec", pages: ["spec/index", "spec/contract"], isCollapsed: true },
  { text: "Decisions", folder: "decisions", pages: ["decisions/index"], isCollapsed: true },
];
/** Shorter than the headings of the pages. */
const NAMES = { readme: "Install and run", index: "Overview" };

/**
 * A page's entry in the sidebar: its first heading, and what its front matter says about its place.
 */
function entry(name) {
  const text = readFileSync(join(pages, `${name}.md`), "utf8");
  const field = (key) => new RegExp(`^${key}: (.*)$`, "m").exec(text.startsWith("---\n") ? text.split("---\n")[1] : "")?.[1];
  const heading = /^# (.*)$/m.exec(text)?.[1].replaceAll("`", "");
  if (heading === undefined) throw new Error(`${name}.md has no heading`);
  const item = { text: NAMES[name] ?? (name.endsWith("/index") ? "Overview" : heading), link: `/${name.replace(/(^|\/)index$/, "$1")}` };
  return { item, order: Number(field("order") ?? Infinity), part: field("part") };
}

/** The pages of a folder, without those of its subfolders. */
function pagesOf(folder) {
  if (!existsSync(join(pages, folder))) return [];
  const names = readdirSync(join(pages, folder)).filter((file) => file.endsWith(".md")).map((file) => file.slice(0, -".md".length));
  return names.sort().map((name) => (folder === "." ? name : `${folder}/${name}`));
}

const listed = new Set(SECTIONS.flatMap((section) => section.pages ?? []));

/**
 * A section of the sidebar.
 * @param {{text: string, folder?: string, pages?: string[], isCollapsed?: boolean}} section
 */
function section({ text, folder, pages: first = [], isCollapsed }) {
  const names = first.filter((name) => existsSync(join(pages, `${name}.md`)));
  const rest = folder === undefined ? [] : pagesOf(folder).filter((name) => !listed.has(name));
  const entries = [...names.map(entry), ...rest.map(entry).sort((one, other) => (one.order === other.order ? 0 : one.order - other.order))];
  const parts = [...new Set(entries.map(({ part }) => part).filter((part) => part))];
  const items = [
    ...entries.filter(({ part }) => !part).map(({ item }) => item),
    ...parts.map((part) => ({ text: part, items: entries.filter((one) => one.part === part).map(({ item }) => item) })),
  ];
  return { text, items, ...(isCollapsed ? { collapsed: true } : {}) };
}

/** The anchor of a heading, as GitHub writes it: links between pages work in both places. */
const anchor = (heading) =>
  [...heading.toLowerCase()].filter((letter) => /[\p{L}\p{N} _-]/u.test(letter)).join("").replaceAll(" ", "-");

const icon = "data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 24 24'><rect width='24' height='24' rx='6' fill='%231d5fb8'/><path d='M7 7.5 11.5 12 7 16.5M13 17h5' fill='none' stroke='%23fff' stroke-width='2'/></svg>";

export default defineConfig({
  title: "Farhand",
  description: "Run commands on your servers through one REST API, hosted at the edge",
  lang: "en",
  srcDir: pages,
  outDir: join(site, "html"),
  cacheDir: join(site, "cache"),
  cleanUrls: true,
  // Addresses of this machine in examples.
  ignoreDeadLinks: "localhostLinks",
  // The index of the search is one file.
  vite: { build: { chunkSizeWarningLimit: 4000 } },
  head: [["link", { rel: "icon", href: icon }]],
  markdown: { html: false, anchor: { slugify: anchor }, config: diagrams },
  themeConfig: {
    nav: [
      { text: "Documentation", link: "/", activeMatch: "^/(?!reference/)" },
      { text: "API reference", link: "/reference/", activeMatch: "^/reference/" },
      { text: `v${version}`, link: "/changelog" },
    ],
    sidebar: SECTIONS.map(section).filter(({ items }) => items.length > 0),
    outline: [2, 3],
    search: { provider: "local" },
    docFooter: { prev: false, next: false },
    footer: { message: `Farhand ${version}. Apache-2.0.` },
  },
});
