// A peer: the list of commands for callers with full access. It runs the same statement as the
// service, and does the same work around it. The bench has observed the statement and passes its
// text and parameters in `statement.mjs`.
import { statement } from "./statement.mjs";
import { begin, json } from "./request.js";

/** How long a login token remains valid after its expiry, in milliseconds. */
const SLACK = 600_000;

const encoder = new TextEncoder();

async function hashOf(token) {
  const digest = await crypto.subtle.digest("SHA-256", encoder.encode(`farhand token 1\0${token}`));
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const moment = (millis) => new Date(millis).toISOString().replace("Z", "000+00:00");

// The later of the two times is the time of the request.
const observedHash = statement.parameters.find((value) => /^[0-9a-f]{64}$/.test(value));
const [observedEnd, observedNow] = statement.parameters.filter((value) => /^\d{4}-.*\+00:00$/.test(value)).sort();

/** Replaces the observed parameters that depend on the request by the values of this request. */
function parametersFor(hash, now) {
  const values = new Map([[observedHash, hash], [observedEnd, moment(now - SLACK)], [observedNow, moment(now)]]);
  return statement.parameters.map((value) => values.get(value) ?? value);
}

export default {
  async fetch(request, { DB }) {
    const call = begin(request);
    if (call.pathname === "/healthz") return json(call, "{}");
    const token = /^token="([A-Za-z0-9]{128})"$/.exec(call.authorization ?? "")?.[1];
    if (token === undefined) return new Response(null, { status: 403 });
    const page = Number(new URLSearchParams(call.query).get("page") ?? 1);
    const { meta, results } = await DB.prepare(statement.text).bind(...parametersFor(await hashOf(token), call.now)).all();
    const [{ me, total, body }] = results;
    if (me === null || JSON.parse(me).acl !== null) return new Response(null, { status: 403 });
    const next = page * 15 < total ? JSON.stringify(`${call.base}${call.pathname}?page=${page + 1}`) : null;
    const previous = page > 1 ? JSON.stringify(`${call.base}${call.pathname}?page=${page - 1}`) : null;
    const response = json(call, `{"count":${total},"next":${next},"previous":${previous},"results":[${body ?? ""}]}`);
    console.log(JSON.stringify({
      event: "request", request_id: call.id, workspace: "demo", route: call.pathname, method: call.method, status: 200,
      duration_ms: Date.now() - call.now, d1_calls: 1, rows_read: meta.rows_read, rows_written: meta.rows_written, kv_reads: 0,
    }));
    return response;
  },
};
