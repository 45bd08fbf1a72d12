// A peer: one command with `Prefer: wait`, from the request to the agent's result. It takes the
// same way as the service: a check in D1, the server's object, an insertion with its audit event,
// the agent's WebSocket, two reports over HTTP, an update with its audit event. It leaves out
// everything else: quotas, Idempotency-Key, timers, retries, the checks of input.
import { DurableObject } from "cloudflare:workers";
import { begin, json } from "./request.js";

const encoder = new TextEncoder();

async function hashOf(kind, secret) {
  const digest = await crypto.subtle.digest("SHA-256", encoder.encode(`farhand ${kind} 1\0${secret}`));
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const moment = () => new Date().toISOString().replace("Z", "000+00:00");

const CHECK = `SELECT u.id AS user, u.username, s.id AS server, s.name, s.workspace_id AS workspace FROM api_tokens t
  JOIN users u ON u.workspace_id = t.workspace_id AND u.id = t.user_id
  JOIN servers s ON s.workspace_id = t.workspace_id AND s.name = ?2
  WHERE t.key_hash = ?1 AND t.enabled AND u.is_active`;
const INSERT = `INSERT INTO commands (seq, workspace_id, id, server_id, server_name, requested_by, shell, line, username, groupname,
    timeout, added_at, scheduled_at, expires_at, state, status_message, delivered_at, stored_bytes)
  SELECT 1 + max(seq), ?1, ?2, ?3, ?4, ?5, 'system', ?6, ?7, '', 1800, ?8, ?8, ?8, 'sent', '', ?8, 50 FROM commands`;
const UPDATE = `UPDATE commands SET state = 'success', acked_at = ?3, handled_at = ?4, success = 1, exit_code = 0, result = ?5, revision = 3
  WHERE workspace_id = ?1 AND id = ?2`;
const EVENT = `INSERT INTO audit_events (seq, id, workspace_id, occurred_at, actor_type, actor_id, action, object_type, object_id, outcome, details)
  SELECT 1 + max(seq), ?2, ?1, ?3, 'user', ?4, ?5, 'command', ?6, 'success', ?7 FROM audit_events`;

export class Server extends DurableObject {
  waiting = new Map();

  constructor(state, env) {
    super(state, env);
    this.sql = state.storage.sql;
    this.sql.exec("CREATE TABLE IF NOT EXISTS commands (id TEXT PRIMARY KEY, body TEXT NOT NULL, delivered_at TEXT, acked_at TEXT)");
  }

  async fetch(request) {
    if (request.headers.get("Upgrade") === "websocket") {
      const [client, server] = Object.values(new WebSocketPair());
      this.ctx.acceptWebSocket(server);
      return new Response(null, { status: 101, webSocket: client });
    }
    const { create, ack, fin, result } = await request.json();
    if (create) return Response.json(await this.create(create));
    if (ack) this.sql.exec("UPDATE commands SET acked_at = ? WHERE id = ?", moment(), ack);
    if (fin) {
      this.sql.exec("UPDATE commands SET body = json_set(body, '$.result', ?) WHERE id = ?", result, fin);
      this.waiting.get(fin)?.();
    }
    return new Response("{}");
  }

  event = (command, action) =>
    this.env.DB.prepare(EVENT).bind(command.workspace, crypto.randomUUID(), moment(), String(command.user), action, command.id, JSON.stringify(command));

  async create(command) {
    const { id, workspace, server, name, user, username, line } = command;
    this.sql.exec("INSERT INTO commands (id, body) VALUES (?, ?)", id, JSON.stringify(command));
    const insert = this.env.DB.prepare(INSERT).bind(workspace, id, server, name, user, line, username, moment());
    await this.env.DB.batch([insert, this.event(command, "command.created")]);
    const delivered = moment();
    const ended = new Promise((end) => this.waiting.set(id, end));
    this.sql.exec("UPDATE commands SET delivered_at = ? WHERE id = ?", delivered, id);
    this.ctx.getWebSockets()[0].send(JSON.stringify({ query: "command", command: { id, line } }));
    await ended;
    this.waiting.delete(id);
    const [row] = this.sql.exec("SELECT body, acked_at FROM commands WHERE id = ?", id);
    const { result } = JSON.parse(row.body);
    const update = this.env.DB.prepare(UPDATE).bind(workspace, id, row.acked_at, moment(), result);
    await this.env.DB.batch([update, this.event(command, "command.finished")]);
    return { ...command, success: true, exit_code: 0, result, delivered_at: delivered, acked_at: row.acked_at };
  }
}

export default {
  async fetch(request, { DB, SERVERS }) {
    const call = begin(request);
    if (call.pathname === "/healthz") return json(call, "{}");
    const stub = (server) => SERVERS.get(SERVERS.idFromName(server));
    const send = (server, message) => stub(server).fetch("https://object.invalid", { method: "POST", body: JSON.stringify(message) });
    const agent = /^id="([^"]+)", key="([^"]+)"$/.exec(call.authorization ?? "");
    if (agent) {
      await hashOf("agent", agent[2]);
      if (call.pathname.startsWith("/ws/")) return stub(agent[1]).fetch(request);
      const [, id, report] = /commands\/([^/]+)\/(ack|fin)\/$/.exec(call.pathname);
      const body = await request.text();
      await send(agent[1], report === "ack" ? { ack: id } : { fin: id, result: JSON.parse(body).result });
      return new Response(null, { status: 204 });
    }
    const token = /^token="([A-Za-z0-9]{128})"$/.exec(call.authorization ?? "")?.[1];
    const { server, line } = await request.json();
    const found = await DB.prepare(CHECK).bind(await hashOf("token", token), server).first();
    if (!found) return new Response(null, { status: 403 });
    const create = { ...found, id: crypto.randomUUID(), line, added_at: moment() };
    const created = await (await send(found.server, { create })).text();
    console.log(JSON.stringify({ event: "request", request_id: call.id, route: call.pathname, method: call.method, status: 201, duration_ms: Date.now() - call.now }));
    return new Response(created, { status: 201, headers: { "Content-Type": "application/json", "X-Request-Id": call.id, "Cache-Control": "no-store" } });
  },
};
