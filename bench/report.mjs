// Shared by all benches: turns figures into tables, and writes the tables into
// docs/contributing/performance.md. The long tests (scripts/faults.mjs, scripts/fuzz.mjs) also use
// `publish`, to write into other documents.
//
// A bench is a file bench/NAME.mjs, which `npm run bench -- NAME` runs in its own process.
// BENCHES lists the benches. docs/contributing/performance.md must contain two lines for each
// bench. The table is written between them:
//
//     <!-- bench:NAME -->
//     <!-- /bench:NAME -->
//
//     import { isCheck, judged, publish, ratio, table } from "./report.mjs";
//     const COUNT = isCheck ? 10 : 1_000; // `npm test` only checks that the bench runs
//     const rows = [["`server`", ratio(1.034), judged(1.034, { most: 1.25 })]];
//     publish("lists", table(["first page", "reached", "must reach"], rows));
//
// A bench can have several tables: publish("NAME-more", ...) writes between lines with the name
// NAME-more.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { root } from "../scripts/lib.mjs";

/** The benches. Each is a file in this folder, and runs in its own process. */
export const BENCHES = ["requests", "lists", "batches", "schedules", "fleet", "logins", "output"];

/**
 * Whether `npm test` checks that the benches still run. Then each has the smallest sizes, and its
 * figures mean nothing: no table is written.
 */
export const isCheck = process.env.FARHAND_BENCH_CHECK === "1";

/** The median of some numbers. */
export function median(numbers) {
  const sorted = numbers.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** The smallest of the numbers that a share of the numbers, such as 0.95, does not exceed. */
export const percentile = (numbers, share) => numbers.toSorted((a, b) => a - b)[Math.ceil(numbers.length * share) - 1];

/** Formats a ratio for a table: with two decimals below 10, otherwise with one decimal. */
export const ratio = (number) => number.toFixed(number < 10 ? 2 : 1);

/**
 * The goal for a figure, at least `least` or at most `most`, and whether the figure meets the goal.
 * @param {number} figure
 * @param {{least?: number, most?: number, unit?: string}} goal
 */
export function judged(figure, { least, most, unit = "" }) {
  const isMet = least === undefined ? figure <= most : figure >= least;
  const bound = least === undefined ? `≤ ${most}` : `≥ ${least}`;
  return `${bound}${unit}: ${isMet ? "met" : "**not met**"}`;
}

/** Creates a Markdown table from the names of its columns and the cells of its rows. */
export function table(columns, rows) {
  const line = (cells) => `| ${cells.join(" | ")} |`;
  return [line(columns), line(columns.map(() => "---")).replaceAll(" ", ""), ...rows.map(line)].join("\n");
}

/**
 * Prints a table, and replaces the table with the same name in a document.
 * @param {string} name in the two marker lines
 * @param {string} text lines of Markdown
 * @param {string} document path from the root of the checkout
 */
export function publish(name, text, document = "docs/contributing/performance.md") {
  console.log(`\n${text}\n`);
  if (isCheck) return;
  const [start, end] = [`<!-- bench:${name} -->`, `<!-- /bench:${name} -->`];
  const file = join(root, document);
  const page = readFileSync(file, "utf8");
  const [from, to] = [page.indexOf(start), page.indexOf(end)];
  if (from < 0 || to < from) throw new Error(`${document} has no lines ${start} and ${end}`);
  writeFileSync(file, `${page.slice(0, from)}${start}\n${text}\n${page.slice(to)}`);
}
