// How long a Worker takes to start: workerd is launched with our Worker and with an empty one in turn, until it has answered its
// first request. The difference is what ours takes, on this machine.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { copyFileSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { parse } from "smol-toml";
import { request } from "undici";
import workerd from "workerd";
import { root } from "../scripts/lib.mjs";
import { median } from "./report.mjs";

/** Writes workerd's own configuration for a Worker of some modules; returns the file. */
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

/** Launches workerd; returns after how many milliseconds it had answered. */
async function launch(config) {
  const start = performance.now();
  const child = spawn(workerd.default, ["serve", config, "--control-fd=3"], { stdio: ["ignore", "ignore", "inherit", "pipe"] });
  const ended = once(child, "exit");
  try {
    const told = await Promise.race([once(child.stdio[3], "data"), ended.then(() => [""])]);
    const { port } = JSON.parse(`${told[0]}`.split("\n")[0] || "{}");
    if (port === undefined) throw new Error("workerd ended, and never listened");
    const { statusCode, body } = await request(`http://127.0.0.1:${port}/healthz`);
    await body.dump();
    if (statusCode !== 200) throw new Error(`the first answer was ${statusCode}`);
    return performance.now() - start;
  } finally {
    child.kill("SIGKILL");
    await ended;
  }
}

/**
 * Launches both Workers in turn, so many times each.
 * @returns {Promise<number>} milliseconds
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
    // The first of each brings the files into memory.
    if (round > 0) (times.ours.push(one), times.empty.push(other));
  }
  return median(times.ours) - median(times.empty);
}
