// Generates load: requests on keep-alive connections, at a steady rate or in time windows that
// alternate between the compared services. Uses undici, because autocannon reports latencies in
// whole milliseconds only. The CPU share of this client is printed under the table.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { Pool } from "undici";
import { say } from "../scripts/lib.mjs";
import { median } from "./report.mjs";

/**
 * Calls `work` at a steady rate for some seconds, without waiting for earlier calls. Returns all
 * results. `work` receives the number of the call and its due time (on the clock of
 * performance.now()).
 */
export async function steadily(rate, seconds, work) {
  const start = performance.now();
  const all = [];
  for (let number = 0; number < rate * seconds; number += 1) {
    const due = start + (number * 1000) / rate;
    const early = due - performance.now();
    if (early > 0) await pause(early);
    const one = work(number, due);
    // Prevents an unhandled rejection. Promise.all below reports the failure after all calls have
    // started.
    one.catch(() => {});
    all.push(one);
  }
  return Promise.all(all);
}

/** A client of one service on loopback. `connections` limits its concurrent requests. */
export class Client {
  #pool;

  /**
   * @param {string} url of the peer
   * @param {number} connections
   * @param {object} headers of each request
   * @param {object} options of undici's pool
   */
  constructor(url, connections, headers = {}, options = {}) {
    if (new URL(url).hostname !== "127.0.0.1") throw new Error(`${url} is not on this machine`);
    this.headers = headers;
    this.#pool = new Pool(url, { connections, ...options });
  }

  /**
   * Sends a request and returns the response's text. Throws if the status is not `expected`,
   * because a refused request is fast and would distort the figures.
   * @param {string} method
   * @param {string} path
   * @param {{headers?: object, body?: unknown, expected?: number}} [options]
   */
  async call(method, path, { headers, body, expected = 200 } = {}) {
    const json = body === undefined ? undefined : JSON.stringify(body);
    const response = await this.#pool.request({
      method,
      path,
      body: json,
      headers: { ...this.headers, ...(json && { "content-type": "application/json" }), ...headers },
    });
    const text = await response.body.text();
    if (response.statusCode !== expected) throw new Error(`${method} ${path}: ${response.statusCode} ${text}`);
    return text;
  }

  /** Sends a request and returns the response's JSON. */
  async json(method, path, options) {
    return JSON.parse(await this.call(method, path, options));
  }

  close() {
    return this.#pool.close();
  }
}

/** The number of warm-up rounds, which are not measured. */
const WARM_UP = 6;

/**
 * The CPU time of an instance's workerd so far, in microseconds. workerd is the only child of the
 * process `pid`.
 */
export function cpuTime(pid) {
  const [workerd] = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").split(" ");
  const tasks = `/proc/${workerd}/task`;
  const nanoseconds = (task) => Number(readFileSync(join(tasks, task, "schedstat"), "utf8").split(" ")[0]);
  return readdirSync(tasks).reduce((sum, task) => sum + nanoseconds(task), 0) / 1000;
}

/**
 * Calls `work` for some time, with `width` concurrent calls. Returns workerd's CPU time per call in
 * microseconds, the median latency in milliseconds, and this process's CPU time as a share of the
 * elapsed time.
 */
async function measure({ work, pid }, width, milliseconds) {
  const times = [];
  const start = performance.now();
  const [cpu, ours] = [cpuTime(pid), process.cpuUsage()];
  const one = async () => {
    for (let now = performance.now(); now < start + milliseconds; ) {
      await work();
      const end = performance.now();
      times.push(end - now);
      now = end;
    }
  };
  await Promise.all(Array.from({ length: width }, one));
  const elapsed = performance.now() - start;
  const { user, system } = process.cpuUsage(ours);
  return { cpu: (cpuTime(pid) - cpu) / times.length, latency: median(times), busy: (user + system) / 1000 / elapsed };
}

/**
 * Measures services in alternating time windows. The order is reversed in every second round.
 * @param {Record<string, {work: () => Promise<unknown>, pid: number}>} peers for each service, one
 * unit of work and the process that serves it
 * @param {{width: number, windows: number, milliseconds: number}} options
 * @returns {Promise<Record<string, {cpu: number, latency: number, busy: number}[]>>} for each
 * service, the figures of its windows
 */
export async function alternate(peers, { width, windows, milliseconds }) {
  const measured = Object.fromEntries(Object.keys(peers).map((name) => [name, []]));
  // The first rounds are not measured, because V8 optimises functions only after many calls.
  for (let round = -WARM_UP; round < windows; round += 1) {
    const order = Object.entries(peers);
    for (const [name, peer] of round % 2 === 0 ? order : order.reverse()) {
      const figures = await measure(peer, width, milliseconds);
      if (round >= 0) measured[name].push(figures);
    }
  }
  return measured;
}

/**
 * Divides the figure `what` of `one` by the same figure of `other` for each round. Returns the
 * median of these ratios.
 */
export function timesAsMuch(one, other, what) {
  const all = (windows) => windows.map((figures) => figures[what]).sort((a, b) => a - b);
  const tenth = (windows) => all(windows)[Math.floor(windows.length / 10)];
  // The table has the median only. The 10th percentile shows the windows that other programs
  // disturbed least.
  say(`${what}: ${tenth(one).toFixed(1)} / ${tenth(other).toFixed(1)} = ${(tenth(one) / tenth(other)).toFixed(3)} in the lowest tenth`);
  return median(one.map((figures, round) => figures[what] / other[round][what]));
}
