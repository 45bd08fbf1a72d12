// Compares two reads in alternating time windows, and says how many rows D1 reads for each.
import { readFileSync } from "node:fs";
import { isCheck, median } from "./report.mjs";

/**
 * The number of time windows for each of the two requests that are compared, and the length of a
 * window.
 */
const WINDOWS = isCheck ? 1 : 7;
const WINDOW_MS = isCheck ? 1 : 250;

/** The number of rows that D1 reads for a request, and the `count` of the list. */
export async function rowsOf({ send, logFile }) {
  const id = `bench-${Math.random().toString(36).slice(2)}`;
  const { count } = await send({ "X-Request-Id": id });
  for (;;) {
    const line = readFileSync(logFile, "utf8").split("\n").find((line) => line.includes(id) && line.includes("rows_read"));
    if (line) return { count, rows: JSON.parse(line.slice(line.indexOf("{"))).rows_read };
    await new Promise((go) => setTimeout(go, 20));
  }
}

/** The median time of a request in one window of at least three requests. */
async function window({ send }) {
  const times = [];
  for (const until = performance.now() + WINDOW_MS; times.length < 3 || performance.now() < until; ) {
    const began = performance.now();
    await send();
    times.push(performance.now() - began);
  }
  return median(times);
}

/** Compares two requests in alternating time windows. The result is relative to `other`. */
export async function compare(one, other) {
  const [costs, base] = [await rowsOf(one), await rowsOf(other)];
  const [ones, others] = [[], []];
  for (let round = 0; round < WINDOWS; round += 1) {
    ones.push(await window(one));
    others.push(await window(other));
  }
  const [time, against] = [median(ones), median(others)];
  return { ...costs, base, time, against, ratio: time / against };
}
