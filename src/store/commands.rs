//! The table of commands, as the Worker reads it. Only the servers' objects write it.

use farhand_domain::command;
use farhand_domain::command_list::CommandList;
use farhand_domain::secret::Hashes;

use super::command_list::{self, Value};
use super::db::{Parameter, Selection};
use super::servers;

/// SQL for the command object (spec.md, Command; contract 7) of a row of `commands c`, as JSON, with the given SQL for
/// its result and for whether that is cut. `?3` is the time.
fn object(result: &str, truncated: &str) -> String {
    let status = command::status_sql("?3");
    let boolean = |column: &str| format!("json(CASE {column} WHEN 1 THEN 'true' WHEN 0 THEN 'false' ELSE 'null' END)");
    let success = boolean("c.success");
    let truncated = boolean(truncated);
    format!(
        "json_object('id', c.id, 'shell', c.shell, 'line', c.line, 'username', c.username, 'groupname', c.groupname,
        'server', c.server_id, 'server_name', coalesce((SELECT s.name FROM servers s
            WHERE s.id = c.server_id AND s.workspace_id = c.workspace_id), c.server_name),
        'requested_by', (SELECT json_object('id', u.id, 'username', u.username, 'email', u.email) FROM users u
            WHERE u.id = c.requested_by AND u.workspace_id = c.workspace_id),
        'success', {success}, 'exit_code', c.exit_code, 'result', {result}, 'result_truncated', {truncated},
        'output_bytes', c.output_bytes, 'status', {status},
        'response_delay', c.response_delay, 'elapsed_time', c.elapsed_time,
        'added_at', c.added_at, 'scheduled_at', c.scheduled_at, 'expires_at', c.expires_at, 'timeout', c.timeout,
        'delivered_at', c.delivered_at, 'acked_at', c.acked_at, 'handled_at', c.handled_at)"
    )
}

/// SQL for the whole command object.
pub fn whole_object() -> String {
    object("coalesce(c.full_result, c.result)", "c.result_truncated")
}

/// SQL for the command object of a list, whose result is cut shorter.
pub fn list_object() -> String {
    object("c.result", "(c.result_truncated OR c.full_result IS NOT NULL)")
}

/// SQL for the condition that a row of `commands c` is of a server that the caller reaches, or their own on one that is gone.
pub fn reachable() -> String {
    format!(
        "c.workspace_id = me.workspace_id
         AND (me.acl_servers IS NULL OR c.server_id IN (SELECT value FROM json_each(me.acl_servers)))
         AND (me.is_superuser OR me.is_staff
            OR EXISTS (SELECT 1 FROM servers s WHERE s.id = c.server_id AND {})
            OR (c.requested_by = me.user_id AND NOT EXISTS (
                SELECT 1 FROM servers s WHERE s.id = c.server_id AND s.workspace_id = c.workspace_id)))",
        servers::REACHABLE
    )
}

/// SQL for the caller's command that was made after `?7` with the Idempotency-Key of the hash `?6`, or of one of the hashes, as
/// `{id, server, key, body}`.
pub fn made_with_key(hashes: Option<&Hashes>) -> String {
    let key = match hashes.and_then(|hashes| hashes.previous.as_ref()) {
        None => "c.idempotency_key = me.user_id || '/' || ?6",
        Some(_) => "c.idempotency_key IN (me.user_id || '/' || (?6 ->> 0), me.user_id || '/' || (?6 ->> 1))",
    };
    format!(
        "(SELECT json_object('id', c.id, 'server', c.server_id, 'key', c.idempotency_key, 'body', c.idempotency_body)
    FROM commands c WHERE c.workspace_id = me.workspace_id AND c.requested_by = me.user_id
    AND {key} AND c.added_at > ?7)"
    )
}

impl From<Value> for Parameter {
    fn from(value: Value) -> Self {
        match value {
            Value::Text(text) => text.into(),
            Value::Integer(number) => number.into(),
        }
    }
}

/// What a page of a list of commands with that offset is read with: those of servers that the caller reaches.
pub fn list(list: &CommandList, offset: u64) -> Selection {
    let command_list::Sql { tables, items, of_all, parameters } = command_list::sql(list, offset, &list_object());
    Selection { tables, items, of_all, parameters: parameters.into_iter().map(Parameter::from).collect() }
}
