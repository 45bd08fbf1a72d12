// The load: requests on kept-alive connections, in windows that alternate between peers. By undici's client, as autocannon would
// tell latencies in whole milliseconds only; how busy it is stands under the table.
import { setTimeout as pause } from "node:timers/promises";
import { Pool } from "undici";
import { median } from "./report.mjs";

/**
 * Starts `work` at a steady rate for some seconds, whether or not earlier ones have ended; returns what each gave. `work` gets
 * its number and the time at which it is due, as of performance.now().
 */
export async function steadily(rate, seconds, work) {
  const start = performance.now();
  const all = [];
  for (let number = 0; number < rate * seconds; number += 1) {
    const due = start + (number * 1000) / rate;
    const early = due - performance.now();
    if (early > 0) await pause(early);
    const one = work(number, due);
    // A failure is reported when all were started.
    one.catch(() => {});
    all.push(one);
  }
  return Promise.all(all);
}

/** A client of one peer, on the loopback, with as many connections as requests at once. */
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

  /** Makes one request; returns its body's text. Any status but `expected` ends the run: a refusal is fast, and no figure. */
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

  /** The same, of which the body is JSON. */
  async json(method, path, options) {
    return JSON.parse(await this.call(method, path, options));
  }

  close() {
    return this.#pool.close();
  }
}

/** Does `work` for a while, `width` at a time. Returns how often a second, the median of how long, and how busy this process was. */
async function measure(work, width, milliseconds) {
  const times = [];
  const start = performance.now();
  const cpu = process.cpuUsage();
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
  const { user, system } = process.cpuUsage(cpu);
  return { rate: (times.length * 1000) / elapsed, latency: median(times), busy: (user + system) / 1000 / elapsed };
}

/**
 * Measures what peers do in alternating windows.
 * @param {Record<string, () => Promise<unknown>>} peers what each does once
 * @param {{width: number, windows: number, milliseconds: number}} options
 * @returns {Promise<Record<string, {rate: number, latency: number, busy: number}>>} of each, the medians of its windows
 */
export async function alternate(peers, { width, windows, milliseconds }) {
  const measured = Object.fromEntries(Object.keys(peers).map((name) => [name, []]));
  // The first round warms up.
  for (let round = 0; round <= windows; round += 1) {
    for (const [name, work] of Object.entries(peers)) {
      const figures = await measure(work, width, milliseconds);
      if (round > 0) measured[name].push(figures);
    }
  }
  const middle = (all, figure) => median(all.map((one) => one[figure]));
  return Object.fromEntries(
    Object.entries(measured).map(([name, all]) => [
      name,
      { rate: middle(all, "rate"), latency: middle(all, "latency"), busy: middle(all, "busy") },
    ]),
  );
}
