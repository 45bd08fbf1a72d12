// Generates load: requests on kept-alive connections, in windows that alternate between the peers.
// Uses undici's client, because autocannon reports latencies in whole milliseconds only. The load
// of the client itself is printed under the table.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { Pool } from "undici";
import { say } from "../scripts/lib.mjs";
import { median } from "./report.mjs";

/**
 * Starts `work` at a steady rate for some seconds, without waiting for earlier calls. Returns all
 * results. `work` gets its number and its due time in terms of performance.now().
 */
export async function steadily(rate, seconds, work) {
  const start = performance.now();
  const all = [];
  for (let number = 0; number < rate * seconds; number += 1) {
    const due = start + (number * 1000) / rate;
    const early = due - performance.now();
    if (early > 0) await pause(early);
    const one = work(number, due);
    // A failure is reported by Promise.all below, after all calls were started.
    one.catch(() => {});
    all.push(one);
  }
  return Promise.all(all);
}

/** A client of one peer on loopback. `connections` limits its concurrent requests. */
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
   * Sends a request and returns the response's text. Any status but `expected` ends the run,
   * because a refused request is fast and would distort the figures.
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

/** The number of rounds that warm up and do not count. */
const WARM_UP = 6;

/**
 * The CPU time of an instance's workerd, in microseconds. workerd is the only child of the serving
 * process.
 */
export function cpuTime(pid) {
  const [workerd] = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").split(" ");
  const tasks = `/proc/${workerd}/task`;
  const nanoseconds = (task) => Number(readFileSync(join(tasks, task, "schedstat"), "utf8").split(" ")[0]);
  return readdirSync(tasks).reduce((sum, task) => sum + nanoseconds(task), 0) / 1000;
}

/**
 * Calls `work` for some time, `width` calls concurrently. Returns the CPU time of workerd per call
 * in microseconds, the median latency in milliseconds, and the share of time that this process was
 * busy.
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
 * Measures peers in alternating windows. The order is reversed in every second round.
 * @param {Record<string, {work: () => Promise<unknown>, pid: number}>} peers for each peer, one
 * unit of work and the process that serves it
 * @param {{width: number, windows: number, milliseconds: number}} options
 * @returns {Promise<Record<string, {cpu: number, latency: number, busy: number}[]>>} for each peer,
 * the figures of its windows
 */
export async function alternate(peers, { width, windows, milliseconds }) {
  const measured = Object.fromEntries(Object.keys(peers).map((name) => [name, []]));
  // The first rounds warm up: V8 optimises functions that are called often.
  for (let round = -WARM_UP; round < windows; round += 1) {
    const order = Object.entries(peers);
    for (const [name, peer] of round % 2 === 0 ? order : order.reverse()) {
      const figures = await measure(peer, width, milliseconds);
      if (round >= 0) measured[name].push(figures);
    }
  }
  return measured;
}

/** The ratio of a figure of one peer to that of another: the median over the pairs of windows. */
export function timesAsMuch(one, other, what) {
  const all = (windows) => windows.map((figures) => figures[what]).sort((a, b) => a - b);
  const tenth = (windows) => all(windows)[Math.floor(windows.length / 10)];
  // The table has the median only. The lowest tenth shows the windows that other programs disturbed
  // least.
  say(`${what}: ${tenth(one).toFixed(1)} / ${tenth(other).toFixed(1)} = ${(tenth(one) / tenth(other)).toFixed(3)} in the lowest tenth`);
  return median(one.map((figures, round) => figures[what] / other[round][what]));
}
