// Miniflare without open ports. By default Miniflare and workerd call each other on two TCP ports of
// 127.0.0.1 that ask for no credential. Every account of the machine could use them: Miniflare's
// loopback server writes files as the user who runs it, and workerd's entry reaches every Worker.
// Miniflare has no setting for this. So this module replaces both ports by Unix sockets in a folder
// that only this account can enter. A process that imports it can listen on nothing else, and its
// working directory is that folder.
import childProcess from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { request } from "node:http";
import { Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Miniflare } from "miniflare";

// mkdtemp gives the folder the mode 0700. The names of the sockets are relative to it, because the
// path of a Unix socket can have only 107 bytes.
const folder = mkdtempSync(join(tmpdir(), "sockets-"));
process.chdir(folder);
process.on("exit", () => rmSync(folder, { recursive: true, force: true }));

const LOOPBACK = "loopback";
const ENTRY = "entry";
/** The options of workerd that name the two ports, and the sockets in their place. */
const PRIVATE_OPTIONS = new Map([
  ["--external-addr=loopback", LOOPBACK],
  ["--socket-addr=entry", ENTRY],
]);
/** The other options of workerd that Miniflare may set. None of them opens a port. */
const HARMLESS_OPTIONS = ["serve", "--binary", "--experimental", "--control-fd=3", "-", "--verbose"];

function withPrivateSockets(args) {
  const replaced = new Set();
  const privateArgs = args.map((argument) => {
    if (HARMLESS_OPTIONS.includes(argument)) return argument;
    const option = argument.slice(0, argument.lastIndexOf("="));
    const socket = PRIVATE_OPTIONS.get(option);
    if (socket === undefined) throw new Error(`Miniflare starts workerd with ${argument}, which may open a port`);
    replaced.add(option);
    return `${option}=unix:${socket}`;
  });
  if (replaced.size !== PRIVATE_OPTIONS.size) throw new Error(`Miniflare starts workerd with ${args.join(" ")}, whose ports are unknown`);
  return privateArgs;
}

/**
 * The host name that makes every TCP port of workerd a Cap'n Proto session with its Worker, by the
 * method CONNECT. Miniflare uses it for other Miniflares, and has no setting for it.
 */
const SESSION_HOST = "miniflare-unsafe-internal-capnp-connect";
/** A name of the same length that nobody knows. */
const secretHost = randomBytes(SESSION_HOST.length).toString("hex").slice(0, SESSION_HOST.length);

/** Whether a Worker has a direct socket. Then workerd's configuration has the host name. */
let hasTcpPort = false;

/** Replaces the host name in workerd's configuration, which is binary and has texts as they are. */
function withSecretHost(config) {
  const text = config.toString("latin1");
  if (hasTcpPort && !text.includes(SESSION_HOST)) throw new Error(`Miniflare's configuration of workerd has no ${SESSION_HOST}, so its sessions have another host name`);
  return Buffer.from(text.replaceAll(SESSION_HOST, secretHost), "latin1");
}

const { spawn } = childProcess;
// Miniflare starts nothing but workerd, and writes the configuration into its standard input.
childProcess.spawn = /** @type {typeof spawn} */ ((program, args, options) => {
  const child = spawn(program, withPrivateSockets(args), options);
  const write = child.stdin.write.bind(child.stdin);
  child.stdin.write = (config) => write(withSecretHost(config));
  return child;
});

const { listen } = Server.prototype;
// Miniflare's loopback server is the only server of this process.
Server.prototype.listen = function (port, _host, onListening) {
  if (port !== 0 || typeof onListening !== "function") throw new Error(`a server wants to listen on ${port}`);
  // Miniflare asks for the port to pass it to workerd, where `withPrivateSockets` replaces it.
  this.address = () => /** @type {import("node:net").AddressInfo} */ ({ port });
  return listen.call(this, LOOPBACK, onListening);
};

/** Starts Miniflare with these options. Only the direct sockets of its Workers are TCP ports. */
export function privateMiniflare(options) {
  hasTcpPort = options.workers.some(({ unsafeDirectSockets }) => unsafeDirectSockets?.length > 0);
  return new Miniflare({ ...options, host: "127.0.0.1", port: 0, cf: false });
}

/**
 * Sends a request to the entry, which obeys the MF-* headers.
 * @param {{path: string, method?: string, headers?: Record<string, string>, body?: string}} request
 * @returns {Promise<{status: number, text: string}>}
 */
export const callEntry = ({ path, method = "GET", headers = {}, body }) =>
  new Promise((resolved, failed) => {
    const options = { socketPath: ENTRY, path, method, headers: { Host: "127.0.0.1", ...headers } };
    const call = request(options, (response) => {
      response.toArray().then((chunks) => resolved({ status: response.statusCode, text: Buffer.concat(chunks).toString() }), failed);
    });
    call.once("error", failed);
    call.end(body);
  });
