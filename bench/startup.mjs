// Measures the start-up time of the Worker. Launches workerd alternately with the service's Worker
// and with an empty Worker, and measures the time to the first response. The difference is the
// Worker's start-up time on this machine.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { copyFileSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { parse } from "smol-toml";
import { request } from "undici";
import workerd from "workerd";
import { root } from "../scripts/lib.mjs";
import { median } from "./report.mjs";

/** Writes workerd's configuration for a Worker with some modules. Returns the path of the file. */
function configure(folder, name, modules) {
  const { compatibility_date } = parse(readFileSync(join(root, "wrangler.toml"), "utf8"));
  const text = `using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [(name = "main", worker = .main)],
  sockets = [(name = "http", address = "127.0.0.1:0", http = (), service = "main")],
);
const main :Workerd.Worker = (modules = [${modules.join(", ")}], compatibilityDate = "${compatibility_date}");
`;
  const file = join(folder, `${name}.capnp`);
  writeFileSync(file, text);
  return file;
}

/** Launches workerd. Returns the time to its first response in milliseconds. */
async function launch(config) {
  const start = performance.now();
  const child = spawn(workerd.default, ["serve", config, "--control-fd=3"], { stdio: ["ignore", "ignore", "inherit", "pipe"] });
  const ended = once(child, "exit");
  try {
    const line = await Promise.race([once(child.stdio[3], "data"), ended.then(() => [""])]);
    const { port } = JSON.parse(`${line[0]}`.split("\n")[0] || "{}");
    if (port === undefined) throw new Error("workerd exited before it listened");
    const { statusCode, body } = await request(`http://127.0.0.1:${port}/healthz`);
    await body.dump();
    if (statusCode !== 200) throw new Error(`the first response was ${statusCode}`);
    return performance.now() - start;
  } finally {
    child.kill("SIGKILL");
    await ended;
  }
}

/**
 * Launches both Workers alternately, `launches` times each, after one launch that is not measured.
 * @returns {Promise<number>} the difference of the medians in milliseconds
 */
export async function startUp(folder, launches) {
  const embedded = (name, kind) => {
    copyFileSync(join(root, "build", name), join(folder, name));
    return `(name = "${name}", ${kind} = embed "${name}")`;
  };
  const ours = configure(folder, "ours", [embedded("index.js", "esModule"), embedded("index_bg.wasm", "wasm")]);
  const empty = configure(folder, "empty", ['(name = "index.js", esModule = "export default { fetch() { return new Response(); } }")']);
  const times = { ours: [], empty: [] };
  for (let round = 0; round <= launches; round += 1) {
    const [one, other] = [await launch(ours), await launch(empty)];
    // The first launch of each loads the files into the page cache.
    if (round > 0) (times.ours.push(one), times.empty.push(other));
  }
  return median(times.ours) - median(times.empty);
}
