// Draws blocks of the language `mermaid` while the site is built.
import { renderMermaidSVG } from "beautiful-mermaid";

/** Lines without nodes, or with names that are not nodes. */
const OTHER_LINES = /^.*\b(flowchart|graph|subgraph|direction|style|classDef|class|end)\b.*$/gm;
/** The colours of the site. */
const COLOURS = {
  bg: "var(--vp-c-bg)", fg: "var(--vp-c-text-1)", muted: "var(--vp-c-text-2)", line: "var(--vp-c-text-3)", accent: "var(--vp-c-brand-1)",
};

const blank = (text) => text.replace(/[^\n]/g, " ");

/**
 * Moves the label of each node of a flowchart to the node's first mention. The library ignores
 * labels of later mentions, and a node on a line of its own in a subgraph; Mermaid, and so GitHub,
 * accepts both.
 */
function withEarlyLabels(source) {
  if (!/^\s*(flowchart|graph)\s/.test(source)) return source;
  // The names of nodes and the brackets of their labels, at their places in the source. Everything
  // else is blank.
  let shown = source.replace(/"[^"]*"/g, (text) => `"${blank(text.slice(2))}"`).replace(/\|[^|\n]*\|/g, blank).replace(OTHER_LINES, blank);
  const labels = new Map();
  for (const { 0: whole, 1: id, 2: label, index } of shown.matchAll(/([A-Za-z_][\w-]*)([[({]+[^\])}\n]*[\])}]+)/g)) {
    const at = index + id.length;
    labels.set(id, labels.get(id) ?? { at, text: source.slice(at, at + label.length) });
    shown = shown.slice(0, at) + blank(label) + shown.slice(index + whole.length);
  }
  const insertions = [];
  for (const [id, { at, text }] of labels) {
    const mention = new RegExp(`(?<![\\w-])${id}(?![\\w]|-\\w)`, "g");
    for (const { index } of shown.matchAll(mention)) {
      const end = index + id.length;
      const [before, after] = [shown.slice(0, index).split("\n").at(-1), shown.slice(end).split("\n")[0]];
      const isAlone = before.trim() === "" && after.trim() === "";
      if (end < at || (isAlone && end !== at)) insertions.push({ end, text });
    }
  }
  insertions.sort((one, other) => other.end - one.end);
  return insertions.reduce((result, { end, text }) => result.slice(0, end) + text + result.slice(end), source);
}

/** A plugin of markdown-it. */
export function diagrams(markdown) {
  const { fence } = markdown.renderer.rules;
  markdown.renderer.rules.fence = (tokens, index, options, environment, self) => {
    const { info, content } = tokens[index];
    if (info.trim() !== "mermaid") return fence(tokens, index, options, environment, self);
    const drawn = renderMermaidSVG(withEarlyLabels(content), { ...COLOURS, font: "system-ui", transparent: true });
    // The style in the SVG would load a font from another origin.
    const svg = drawn.replace(/@import url\([^)]*\);?/g, "");
    // Vue drops <style> from templates. It leaves the text of v-html alone.
    return `<div class="diagram" v-html="${markdown.utils.escapeHtml(JSON.stringify(svg))}"></div>\n`;
  };
}
