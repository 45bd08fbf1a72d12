//! Reads the D1 table of commands. The objects of servers write commands. Retention and the janitor
//! delete or change old commands.

use farhand_domain::command::object;
use farhand_domain::command::request::ServerRef;
use farhand_domain::command::script::ScriptCall;
use farhand_domain::time::Timestamp;
use farhand_sql::labels_match;
use uuid::Uuid;

use super::db::params;
use super::scope::{Query, Readers};
use super::within_acl::{line_patterns, within, word_lists};
use super::{scripts, servers};

/// SQL for the command object (contract 7.1) of a row of `commands c`, as JSON. `result` is SQL for
/// the result, and `truncated` for whether the result is cut. `:now` is the current time.
fn object(result: &str, truncated: &str) -> String {
    let (state, status) = (object::state_sql(":now"), object::status_sql(":now"));
    let boolean = |column: &str| {
        format!("json(CASE {column} WHEN 1 THEN 'true' WHEN 0 THEN 'false' ELSE 'null' END)")
    };
    let success = boolean("c.success");
    let truncated = boolean(truncated);
    format!(
        "json_object('id', c.id, 'shell', c.shell, 'line', c.line, 'username', c.username, 'groupname', c.groupname,
        'server', c.server_id, 'server_name', coalesce((SELECT s.name FROM servers s
            WHERE s.id = c.server_id AND s.workspace_id = c.workspace_id), c.server_name),
        'requested_by', (SELECT json_object('id', u.id, 'username', u.username, 'email', u.email) FROM users u
            WHERE u.id = c.requested_by AND u.workspace_id = c.workspace_id), 'batch', c.batch_id,
        'success', {success}, 'exit_code', c.exit_code, 'result', {result}, 'result_truncated', {truncated},
        'output_bytes', c.output_bytes, 'output_truncated', json(iif(c.output_skipped > 0, 'true', 'false')),
        'output_skipped', c.output_skipped, 'state', {state}, 'status', {status},
        'response_delay', c.response_delay, 'elapsed_time', c.elapsed_time,
        'added_at', c.added_at, 'scheduled_at', c.scheduled_at, 'expires_at', c.expires_at, 'timeout', c.timeout,
        'delivered_at', c.delivered_at, 'acked_at', c.acked_at, 'handled_at', c.handled_at)"
    )
}

/// SQL for the command object with the complete result.
fn detail_object() -> String {
    object("coalesce(c.full_result, c.result)", "c.result_truncated")
}

/// SQL for the command object in a list, where results have a lower length limit.
pub(super) fn list_object() -> String {
    object("c.result", "(c.result_truncated OR c.full_result IS NOT NULL)")
}

/// SQL for whether the access control list of the caller's API token allows a row of `commands c`.
/// True if the token has no list.
pub(super) fn is_within_acl() -> String {
    within(
        "me.acl",
        &format!("({})", line_patterns("me.acl")),
        &format!("({})", word_lists("me.acl")),
    )
}

/// SQL for the data that a cancellation or kill of a row of `commands c` checks, as `{is_within,
/// command}`: whether the API token's access control list allows the command, and the command
/// object.
fn endable_object() -> String {
    let (is_within, object) = (is_within_acl(), detail_object());
    format!(
        "json_object('is_within', json(iif({is_within}, 'true', 'false')), 'command', {object})"
    )
}

/// SQL for the condition that the caller can read a row of `commands c`. Three conditions must
/// hold:
///
/// - The caller can access the server, or the server was deleted and the caller requested the
///   command.
/// - The server's labels match the selector of the API token, if it has one. A deleted server has
///   no labels, and matches no selector.
/// - The API token's access control list allows this command, or the token can also read commands
///   that the list does not allow.
fn readable(by: Readers) -> String {
    let is_within_acl = match by {
        Readers::All => format!("(NOT me.reads_narrowly OR {})", is_within_acl()),
        Readers::Unlimited => "NOT me.reads_narrowly".to_owned(),
    };
    format!(
        "c.workspace_id = me.workspace_id AND {is_within_acl}
         AND (me.acl_servers IS NULL OR c.server_id IN (SELECT value FROM json_each(me.acl_servers)))
         AND (me.acl_selector IS NULL OR EXISTS (SELECT 1 FROM servers s
            WHERE s.id = c.server_id AND s.workspace_id = c.workspace_id AND {}))
         AND (me.is_superuser OR me.is_staff
            OR EXISTS (SELECT 1 FROM servers s WHERE s.id = c.server_id AND {})
            OR (c.requested_by = me.user_id AND NOT EXISTS (
                SELECT 1 FROM servers s WHERE s.id = c.server_id AND s.workspace_id = c.workspace_id)))",
        labels_match!("s.labels", "me.acl_selector"),
        servers::IS_ACCESSIBLE
    )
}

/// Reads a part of a command that the caller can read. `part` is SQL on a row of `commands c`.
fn readable_part(part: &str, id: Uuid, by: Readers) -> Query {
    Query::new(
        format!("(SELECT {part} FROM commands c WHERE c.id = :id AND {})", readable(by)),
        params! { id },
    )
}

/// Reads the command object of a command that the caller can read.
pub fn by_id(id: Uuid, by: Readers) -> Query {
    readable_part(&detail_object(), id, by)
}

/// Reads the data that a cancellation or kill checks: see [`endable_object`].
pub fn endable(id: Uuid) -> Query {
    readable_part(&endable_object(), id, Readers::All)
}

/// Reads a value that is not null, for a check of the credential alone.
pub fn any() -> Query {
    Query::new("'valid'", params! {})
}

/// Maximum number of a server's latest commands that [`ended_since`] reads.
const MAX_LATEST: u32 = 100;

/// Reads the ids of commands of a server that the caller can read and that ended after `since`, as
/// a JSON array: among the [`MAX_LATEST`] that were due last.
///
/// Only those that ended after `since` are compared with the caller's access control list, because
/// a comparison can take more than a millisecond.
pub fn ended_since(server: Uuid, since: Timestamp, now: Timestamp) -> Query {
    let readable = readable(Readers::All);
    let sql = format!(
        "(SELECT json_group_array(c.id) FROM (
            SELECT ended.seq FROM (SELECT c.seq, c.handled_at FROM commands c
                WHERE c.workspace_id = me.workspace_id AND c.server_id = :server
                    AND c.scheduled_at <= :now
                ORDER BY c.scheduled_at DESC, c.id DESC LIMIT {MAX_LATEST}) ended
            WHERE ended.handled_at > :since LIMIT {MAX_LATEST}) latest
          CROSS JOIN commands c ON c.seq = latest.seq WHERE {readable})"
    );
    Query::new(sql, params! { server, since, now })
}

/// Reads a value that is not null if the caller can read the command.
pub fn is_readable(id: Uuid) -> Query {
    readable_part("c.id", id, Readers::All)
}

/// Reads what the creation of a command needs, as `{target, script, used}`: the server as
/// [`servers::for_command`] returns it, the version of the script as [`scripts::for_use`] returns
/// it, and the caller's earlier command with the same Idempotency-Key that was created after
/// `since`, as `{id, server, body}`.
pub fn for_creation(
    server: &ServerRef,
    call: Option<&ScriptCall>,
    key_hash: Option<&String>,
    since: Timestamp,
) -> Query {
    let (target, server) = servers::for_command(server);
    let (script, mut parameters) = scripts::for_use(call);
    parameters.extend(params! { server, key_hash, since });
    let sql = format!(
        "json_object('target', json({target}), 'script', json({script}), 'earlier', json((
            SELECT json_object('id', c.id, 'server', c.server_id, 'body', c.idempotency_body)
            FROM commands c WHERE c.workspace_id = me.workspace_id AND c.requested_by = me.user_id
                AND c.idempotency_key = me.user_id || '/' || :key_hash AND c.added_at > :since)))"
    );
    Query::new(sql, parameters)
}
