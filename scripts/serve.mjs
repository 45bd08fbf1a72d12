// node serve.mjs STATE_DIR PORT VARIABLES PROJECT: the Worker that is built in a project's folder in workerd, with D1, KV and
// Durable Objects in a state folder and the variables of a file, as JSON, over those of its wrangler.toml. What the Worker logs
// goes to standard output.
//
// `wrangler dev` would put a proxy in front of it, over connections that both ends close after five idle seconds: now and then a
// request was answered with 503 because it took one that was just being closed.
//
// Requests come in through the worker `edge`, on a socket of its own. Miniflare's own entry, which obeys the caller's MF-*
// headers and believes its CF-Connecting-IP, listens on another port and is for this process only.
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Log, LogLevel, Miniflare } from "miniflare";
import { parse } from "smol-toml";

const [stateDir, port, variables, project] = process.argv.slice(2);
// What the platform writes here is for its owner only.
process.umask(0o077);

/** What Miniflare says, a line as it is. */
class Lines extends Log {
  logWithLevel(level, message) {
    if (level <= this.level) this.log(message);
  }
}

/** What a wrangler.toml says of the Worker. wrangler can tell, too, but takes half a second to load. */
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
// Miniflare has no clock for Cron Triggers, and its own ways to set them off are everybody's, or hold this process up until the
// Worker has answered, which may be waiting for what it logs to be read here. So a Worker does it that has a key.
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
// The service listens on loopback only, so every peer is this machine. The Worker believes what this key vouches for, and
// nothing else of what a request says about where it comes from.
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
  // What the modules are called is told from here; workerd takes no name that leads out of the folder.
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
  log: new Lines(LogLevel.INFO),
  // A path may hold the key of a password reset.
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
  const outcome = await miniflare.dispatchFetch(entry, { headers }).then((told) => told.text(), (error) => error.message);
  if (outcome !== "ok" && !isEnding) console.log(`error: the scheduled event: ${outcome}`);
};
void tick();
setInterval(tick, 3_600_000).unref();

// Miniflare does not tell when workerd ends.
let misses = 0;
const watch = setInterval(async () => {
  const isThere = await fetch(`http://${host}:${port}/healthz`).then(() => true, (error) => error.cause?.code !== "ECONNREFUSED");
  misses = isThere ? 0 : misses + 1;
  if (misses < 2 || isEnding) return;
  console.log("error: workerd ended");
  process.exit(1);
}, 5_000);
watch.unref();
