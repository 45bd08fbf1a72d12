// What every bench here shares: how figures become tables, and where these stand in docs/contributing/performance.md. The long forms of tests
// (scripts/faults.mjs, scripts/fuzz.mjs) have documents of their own.
//
// A bench is a file bench/NAME.mjs that `npm run bench -- NAME` runs in a process of its own; bench/run.mjs has the list of them.
// Its table stands between two lines of docs/contributing/performance.md, which are there already:
//
//     <!-- bench:NAME -->
//     <!-- /bench:NAME -->
//
//     import { judged, median, publish, ratio, table } from "./report.mjs";
//     publish("lists", table(["first page", "reached", "must reach"], [["`server`", ratio(1.034), judged(1.034, { most: 1.25 })]]));
//
// A bench may have several tables: publish("NAME-more", ...) between lines of that name.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { root } from "../scripts/lib.mjs";

/** The middle one of some numbers; of an even count, the mean of the two in the middle. */
export function median(numbers) {
  const sorted = numbers.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** The number that a share of all, such as 0.95, is not above. */
export const percentile = (numbers, share) => numbers.toSorted((a, b) => a - b)[Math.ceil(numbers.length * share) - 1];

/** A ratio as it stands in a table: two decimals, and one from 10 on. */
export const ratio = (number) => number.toFixed(number < 10 ? 2 : 1);

/** What a figure must reach, `least` or `most`, and whether it does. */
export function judged(figure, { least, most, unit = "" }) {
  const isMet = least === undefined ? figure <= most : figure >= least;
  const bound = least === undefined ? `≤ ${most}` : `≥ ${least}`;
  return `${bound}${unit}: ${isMet ? "met" : "**not met**"}`;
}

/** A table in Markdown, of the names of the columns and rows of cells. */
export function table(columns, rows) {
  const line = (cells) => `| ${cells.join(" | ")} |`;
  return [line(columns), line(columns.map(() => "---")).replaceAll(" ", ""), ...rows.map(line)].join("\n");
}

/**
 * Prints a table, and puts it into a document in place of the one that is there under that name.
 * @param {string} name of the two markers
 * @param {string} text lines of Markdown
 * @param {string} document from the folder of the checkout
 */
export function publish(name, text, document = "docs/contributing/performance.md") {
  console.log(`\n${text}\n`);
  const [start, end] = [`<!-- bench:${name} -->`, `<!-- /bench:${name} -->`];
  const file = join(root, document);
  const page = readFileSync(file, "utf8");
  const [from, to] = [page.indexOf(start), page.indexOf(end)];
  if (from < 0 || to < from) throw new Error(`${document} has no lines ${start} and ${end}`);
  writeFileSync(file, `${page.slice(0, from)}${start}\n${text}\n${page.slice(to)}`);
}
