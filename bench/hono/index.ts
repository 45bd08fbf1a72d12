// A peer: the list of commands for callers with full access, written as the documentation of Hono
// and D1 suggests. A middleware checks the credential, the handler reads the page and the count in
// one batch, and TypeScript code builds the response from the rows.
import { Hono } from "hono";
import { createMiddleware } from "hono/factory";
import { HTTPException } from "hono/http-exception";
import { requestId } from "hono/request-id";

type User = { id: number; workspace_id: number; is_staff: number; is_superuser: number };
type Environment = { Bindings: { DB: D1Database; DEFAULT_WORKSPACE: string }; Variables: { user: User } };

const PAGE_SIZE = 15;
const MAX_PAGE_SIZE = 100;

/** The SHA-256 of the service's prefix and a token, in hexadecimal. */
async function hashOf(token: string): Promise<string> {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(`farhand token 1\0${token}`));
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Requires a valid API token. */
const authenticated = createMiddleware<Environment>(async (c, next) => {
  const token = c.req.header("Authorization")?.match(/^token="([^"]+)"$/)?.[1];
  if (!token) throw new HTTPException(401, { message: "Authentication credentials were not provided." });
  const user = await c.env.DB.prepare(
    `SELECT u.id, u.workspace_id, u.is_staff, u.is_superuser
     FROM workspaces w
     JOIN api_tokens t ON t.workspace_id = w.id
     JOIN users u ON u.id = t.user_id AND u.workspace_id = w.id
     WHERE w.slug = ? AND w.deleted_at IS NULL AND t.key_hash = ? AND t.enabled = 1 AND u.is_active = 1
       AND (t.expires_at IS NULL OR t.expires_at > ?) AND t.acl IS NULL`,
  )
    .bind(c.env.DEFAULT_WORKSPACE, await hashOf(token), new Date().toISOString())
    .first<User>();
  if (!user) throw new HTTPException(403, { message: "Invalid token." });
  c.set("user", user);
  await next();
});

type Row = {
  id: string;
  shell: string;
  line: string;
  username: string;
  groupname: string;
  server_id: string;
  server_name: string;
  requester_id: number | null;
  requester_username: string | null;
  requester_email: string | null;
  batch_id: string | null;
  success: number | null;
  exit_code: number | null;
  result: string | null;
  result_truncated: number;
  is_longer: number;
  output_bytes: number;
  output_skipped: number;
  state: string;
  status_message: string;
  response_delay: number | null;
  elapsed_time: number | null;
  added_at: string;
  scheduled_at: string;
  expires_at: string;
  timeout: number;
  delivered_at: string | null;
  acked_at: string | null;
  handled_at: string | null;
};

const STATUSES: Record<string, { text: string; color: string }> = {
  sent: { text: "Sent", color: "warning" },
  acked: { text: "Acked", color: "warning" },
  stuck: { text: "Stuck", color: "danger" },
  success: { text: "Success", color: "success" },
  failed: { text: "Failed", color: "danger" },
  cancelled: { text: "Cancelled", color: "secondary" },
  expired: { text: "Expired", color: "danger" },
};

function statusOf(row: Row) {
  const status = STATUSES[row.state];
  if (status) return { ...status, cancellable: false, message: row.status_message };
  const isLater = row.scheduled_at > new Date().toISOString();
  return isLater
    ? { text: "Scheduled", color: "secondary", cancellable: true, message: `Scheduled for ${row.scheduled_at}.` }
    : { text: "Queued", color: "warning", cancellable: true, message: `Waiting for the agent since ${row.scheduled_at}.` };
}

const commandOf = (row: Row) => ({
  id: row.id,
  shell: row.shell,
  line: row.line,
  username: row.username,
  groupname: row.groupname,
  server: row.server_id,
  server_name: row.server_name,
  requested_by:
    row.requester_id === null
      ? null
      : { id: row.requester_id, username: row.requester_username, email: row.requester_email },
  batch: row.batch_id,
  success: row.success === null ? null : row.success === 1,
  exit_code: row.exit_code,
  result: row.result,
  result_truncated: row.result_truncated === 1 || row.is_longer === 1,
  output_bytes: row.output_bytes,
  output_truncated: row.output_skipped > 0,
  output_skipped: row.output_skipped,
  state: row.state !== "waiting" ? row.state : row.scheduled_at > new Date().toISOString() ? "scheduled" : "queued",
  status: statusOf(row),
  response_delay: row.response_delay,
  elapsed_time: row.elapsed_time,
  added_at: row.added_at,
  scheduled_at: row.scheduled_at,
  expires_at: row.expires_at,
  timeout: row.timeout,
  delivered_at: row.delivered_at,
  acked_at: row.acked_at,
  handled_at: row.handled_at,
});

/** Parses an integer of at least 1. */
function positive(text: string | undefined, otherwise: number, name: string): number {
  if (text === undefined) return otherwise;
  if (!/^[1-9]\d*$/.test(text)) throw new HTTPException(400, { message: `${name}: enter a whole number of at least 1.` });
  return Number(text);
}

const app = new Hono<Environment>();

app.use(requestId());
app.use(async (c, next) => {
  await next();
  c.header("Cache-Control", "no-store");
  c.header("X-Content-Type-Options", "nosniff");
});
app.onError((error, c) =>
  error instanceof HTTPException
    ? c.json({ detail: error.message }, error.status)
    : c.json({ detail: "Internal server error." }, 500),
);

app.get("/healthz", (c) => c.json({ status: "ok" }));

app.get("/api/events/commands/", authenticated, async (c) => {
  const user = c.get("user");
  if (!user.is_superuser && !user.is_staff) throw new HTTPException(403, { message: "Permission denied." });
  const page = positive(c.req.query("page"), 1, "page");
  const size = Math.min(positive(c.req.query("page_size"), PAGE_SIZE, "page_size"), MAX_PAGE_SIZE);
  const [counted, rows] = await c.env.DB.batch([
    c.env.DB.prepare(
      "SELECT coalesce(sum(total), 0) AS total FROM counted_commands WHERE workspace_id = ?",
    ).bind(user.workspace_id),
    c.env.DB.prepare(
      `SELECT c.id, c.shell, c.line, c.username, c.groupname, c.server_id, coalesce(s.name, c.server_name) AS server_name,
         u.id AS requester_id, u.username AS requester_username, u.email AS requester_email, c.batch_id, c.success,
         c.exit_code, c.result, c.result_truncated, c.full_result IS NOT NULL AS is_longer, c.output_bytes, c.output_skipped, c.state, c.status_message,
         c.response_delay, c.elapsed_time, c.added_at, c.scheduled_at, c.expires_at, c.timeout, c.delivered_at, c.acked_at,
         c.handled_at
       FROM commands c
       LEFT JOIN servers s ON s.id = c.server_id AND s.workspace_id = c.workspace_id
       LEFT JOIN users u ON u.id = c.requested_by AND u.workspace_id = c.workspace_id
       WHERE c.workspace_id = ?
       ORDER BY c.scheduled_at DESC, c.id DESC LIMIT ? OFFSET ?`,
    ).bind(user.workspace_id, size, (page - 1) * size),
  ]);
  const count = (counted.results[0] as { total: number }).total;
  if (page > 1 && (page - 1) * size >= count) throw new HTTPException(404, { message: "Invalid page." });
  const link = (number: number) => {
    const url = new URL(c.req.url);
    url.searchParams.set("page", String(number));
    return url.toString();
  };
  return c.json({
    count,
    next: page * size < count ? link(page + 1) : null,
    previous: page > 1 ? link(page - 1) : null,
    results: (rows.results as Row[]).map(commandOf),
  });
});

export default app;
