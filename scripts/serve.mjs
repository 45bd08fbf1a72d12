// node serve.mjs STATE_DIR PORT VARIABLES PROJECT
//
// Runs the built Worker of a project folder in workerd, with D1, KV and Durable Objects in a state
// folder. VARIABLES is a JSON file whose variables override those of the project's wrangler.toml.
// The Worker's log goes to standard output.
//
// `wrangler dev` is not used. It would put a proxy in front of the Worker, on connections that both
// ends close after five idle seconds. Sometimes a request used a connection that was just being
// closed, and got a 503.
//
// Requests arrive at the worker `edge`, on its own socket. Miniflare's own entry obeys the MF-*
// headers of a request and trusts its CF-Connecting-IP, so it listens on another port that only
// this process uses.
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Log, LogLevel, Miniflare } from "miniflare";
import { parse } from "smol-toml";

const [stateDir, port, variables, project] = process.argv.slice(2);
// Files that the runtime creates are private.
process.umask(0o077);

/** Writes Miniflare's log lines unchanged. */
class PlainLog extends Log {
  logWithLevel(level, message) {
    if (level <= this.level) this.log(message);
  }
}

/**
 * Reads the Worker's options from a wrangler.toml. wrangler could do that too, but takes half a
 * second to load.
 */
function workerOptionsOf(file) {
  const config = parse(readFileSync(file, "utf8"));
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
    // The folder itself: Miniflare would put its router for static assets in front of the Worker, which takes a tenth of the speed.
    serviceBindings: config.assets ? { [config.assets.binding]: { disk: { path: join(project, config.assets.directory), writable: false } } } : {},
  };
}

const workerOptions = workerOptionsOf(join(project, "wrangler.toml"));
// Miniflare has no clock for Cron Triggers. Its own triggers are open to every client, or block
// this process until the Worker has responded, while the Worker may wait for this process to read
// its log. So a separate Worker with a secret key triggers them.
const key = randomUUID();
const clock = {
  name: "clock",
  modules: true,
  script: `export default {
    async fetch(request, { FARHAND, KEY }) {
      if (request.headers.get("Authorization") !== KEY) return new Response(null, { status: 404 });
      const { outcome } = await FARHAND.scheduled();
      return new Response(outcome);
    },
  };`,
  compatibilityDate: workerOptions.compatibilityDate,
  compatibilityFlags: ["service_binding_extra_handlers"],
  bindings: { KEY: key },
  serviceBindings: { FARHAND: "farhand" },
};
// The service listens on loopback only, so every peer is this machine. The Worker trusts only the
// header with this key, and no other header about the client's address.
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
  // Module names are relative to this folder. workerd accepts no name that leads out of it.
  modulesRoot: ".",
  modules: true,
  modulesRules: [{ type: "CompiledWasm", include: ["**/*.wasm"], fallthrough: true }],
};
const miniflare = new Miniflare({
  workers: [edge, farhand, clock],
  host,
  port: 0,
  defaultPersistRoot: join(stateDir, "v3"),
  cf: false,
  log: new PlainLog(LogLevel.INFO),
  // A path can contain the key of a password reset.
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
const entry = await miniflare.ready;

const tick = async () => {
  const headers = { Authorization: key, "MF-Route-Override": clock.name };
  const outcome = await miniflare.dispatchFetch(entry, { headers }).then((response) => response.text(), (error) => error.message);
  if (outcome !== "ok" && !isEnding) console.log(`error: the scheduled event: ${outcome}`);
};
void tick();
setInterval(tick, 3_600_000).unref();

// Miniflare does not report when workerd exits.
let misses = 0;
const watch = setInterval(async () => {
  const isRunning = await fetch(`http://${host}:${port}/healthz`).then(() => true, (error) => error.cause?.code !== "ECONNREFUSED");
  misses = isRunning ? 0 : misses + 1;
  if (misses < 2 || isEnding) return;
  console.log("error: workerd ended");
  process.exit(1);
}, 5_000);
watch.unref();
