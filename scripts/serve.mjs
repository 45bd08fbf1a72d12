// node serve.mjs STATE_DIR PORT VARIABLES PROJECT
//
// Runs the built Worker of a project folder in workerd, with D1, KV and Durable Objects in a state
// folder. VARIABLES is a JSON file whose variables override those of the project's wrangler.toml.
// Writes the Worker's log to standard output.
//
// `wrangler dev` is not used, because it puts a proxy in front of the Worker. Both ends of the
// proxy's connections close them after five idle seconds. Sometimes a request used a connection
// that was being closed, and got a 503.
//
// Requests arrive at the Worker `edge`, on its own port, the only one that is open. Miniflare's entry
// is not used for requests, because it obeys the MF-* headers of a request and trusts its
// CF-Connecting-IP. Only this process can reach it (private-miniflare.mjs).
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Log, LogLevel } from "miniflare";
import { parse } from "smol-toml";
import { callEntry, privateMiniflare } from "./private-miniflare.mjs";

const [stateDir, port, variables, project] = process.argv.slice(2);
// Makes files that the runtime creates private.
process.umask(0o077);

/** Writes Miniflare's log lines unchanged. */
class PlainLog extends Log {
  logWithLevel(level, message) {
    if (level <= this.level) this.log(message);
  }
}

/**
 * Reads the Worker's options from a wrangler.toml. wrangler has a function for this, but takes half
 * a second to load.
 */
function workerOptionsOf(file) {
  const config = /** @type {any} */ (parse(readFileSync(file, "utf8")));
  const named = (list = [], value) => Object.fromEntries(list.map((item) => [item.binding ?? item.name, value(item)]));
  const useSQLite = (name) => (config.migrations ?? []).some(({ new_sqlite_classes }) => new_sqlite_classes?.includes(name));
  return {
    compatibilityDate: config.compatibility_date,
    compatibilityFlags: config.compatibility_flags ?? [],
    bindings: config.vars,
    d1Databases: named(config.d1_databases, (item) => ({ id: item.database_id })),
    kvNamespaces: named(config.kv_namespaces, ({ id }) => ({ id })),
    durableObjects: named(config.durable_objects?.bindings, (item) => ({ className: item.class_name, useSQLite: useSQLite(item.class_name) })),
    email: { send_email: config.send_email ?? [] },
    // Binds the folder itself, because Miniflare's router for static assets in front of the Worker
    // would reduce the speed by a tenth.
    serviceBindings: config.assets ? { [config.assets.binding]: { disk: { path: join(project, config.assets.directory), writable: false } } } : {},
  };
}

const workerOptions = workerOptionsOf(join(project, "wrangler.toml"));
// The service listens on loopback only, so every client is on this machine. The Worker trusts the
// header Farhand-Peer if it contains this key.
const host = "127.0.0.1";
const peerKey = randomUUID();
const edge = {
  name: "edge",
  modules: true,
  script: `export default {
    fetch(request, { FARHAND, PEER }) {
      const forwarded = new Request(request);
      const { headers } = forwarded;
      for (const name of [...headers.keys()]) if (name.startsWith("mf-")) headers.delete(name);
      headers.delete("CF-Connecting-IP");
      headers.set("Farhand-Peer", PEER);
      return FARHAND.fetch(forwarded);
    },
  };`,
  compatibilityDate: workerOptions.compatibilityDate,
  bindings: { PEER: `${peerKey} ${host}` },
  serviceBindings: { FARHAND: "farhand" },
  unsafeDirectSockets: [{ host, port: Number(port) }],
};
const farhand = {
  ...workerOptions,
  bindings: { ...workerOptions.bindings, ...JSON.parse(readFileSync(variables, "utf8")), PEER_KEY: peerKey },
  name: "farhand",
  rootPath: join(project, "build"),
  scriptPath: "index.js",
  // Module names are relative to this folder. workerd accepts no name outside it.
  modulesRoot: ".",
  modules: true,
  modulesRules: [{ type: "CompiledWasm", include: ["**/*.wasm"], fallthrough: true }],
};
const miniflare = privateMiniflare({
  workers: [edge, farhand],
  defaultPersistRoot: join(stateDir, "v3"),
  unsafeTriggerHandlers: true,
  log: new PlainLog(LogLevel.INFO),
  // Off, because a path can contain the key of a password reset.
  logRequests: false,
  handleStructuredLogs: ({ level, message }) => console.log(level === "log" ? message : `${level}: ${message}`),
});

let isEnding = false;
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
  process.on(signal, () => {
    if (isEnding) return;
    isEnding = true;
    void miniflare.dispose().then(() => process.exit(0));
  });
}
await miniflare.ready;

// Miniflare does not run Cron Triggers by itself.
const tick = async () => {
  const trigger = { path: "/cdn-cgi/handler/scheduled", headers: { "MF-Route-Override": farhand.name } };
  const outcome = await callEntry(trigger).then(({ text }) => text, (error) => error.message);
  if (outcome !== "ok" && !isEnding) console.log(`error: the scheduled event: ${outcome}`);
};
void tick();
setInterval(tick, 3_600_000).unref();

// Miniflare does not report that workerd has exited, so this process checks it every few seconds.
let misses = 0;
const watch = setInterval(async () => {
  const isRunning = await fetch(`http://${host}:${port}/healthz`).then(() => true, (error) => error.cause?.code !== "ECONNREFUSED");
  misses = isRunning ? 0 : misses + 1;
  if (misses < 2 || isEnding) return;
  console.log("error: workerd ended");
  process.exit(1);
}, 5_000);
watch.unref();
