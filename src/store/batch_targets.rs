//! Reads of the targets of a batch: their list, and their outputs (contract 13.7 and 13.8).

use std::collections::HashSet;

use farhand_sql::command_list::HAS_FULL_ACCESS;
use farhand_sql::statement::Value;
use farhand_sql::{join_command, target_state};
use serde::Deserialize;
use uuid::Uuid;

use super::batch_reads::is_readable;
use super::db::params;
use super::list::{List, Select};
use super::scope::Query;
use super::servers::IS_ACCESSIBLE;

/// The maximum number of targets that a group of equal outputs lists.
const MAX_TARGETS_OF_OUTPUT: u32 = 100;

/// SQL for the condition that the caller can see a row of `batch_targets t` with the command
/// `commands c`, in a batch that the caller can read:
///
/// - The caller can access the server. A deleted server has no labels, and matches no selector.
/// - If the API token reads only what its access control list allows: the list has the account. The
///   other fields of the command are those of the batch.
/// - Retention has not deleted the command.
fn is_visible() -> String {
    format!(
        "((me.is_staff OR me.is_superuser) AND me.acl_servers IS NULL AND me.acl_selector IS NULL
            OR EXISTS (SELECT 1 FROM servers s WHERE s.id = t.server_id AND {IS_ACCESSIBLE})
            OR me.acl_selector IS NULL
                AND (me.acl_servers IS NULL OR t.server_id IN (SELECT value FROM json_each(me.acl_servers)))
                AND NOT EXISTS (SELECT 1 FROM servers s WHERE s.id = t.server_id AND s.workspace_id = me.workspace_id))
         AND (NOT me.reads_narrowly OR me.acl ->> '$.usernames' IS NULL OR c.id IS NULL
            OR c.username IN (SELECT value FROM json_each(me.acl, '$.usernames')))
         AND (b.finished_at IS NULL OR c.id IS NOT NULL OR t.state IS NOT NULL)"
    )
}

/// SQL for the text after FROM of a query for the visible targets of a row of `batches b`, which
/// the caller can read.
fn visible_targets_of_row() -> String {
    let (join_command, is_visible) = (join_command!(), is_visible());
    format!(
        "batch_targets t {join_command}
         WHERE t.workspace_id = b.workspace_id AND t.batch_id = b.id AND {is_visible}"
    )
}

/// SQL for the text after FROM of a query for the visible targets of the batch `:id`, with `me`.
fn visible_targets() -> String {
    let (join_command, is_visible, is_readable) = (join_command!(), is_visible(), is_readable());
    format!(
        "batches b
         CROSS JOIN batch_targets t ON t.workspace_id = b.workspace_id AND t.batch_id = b.id {join_command}
         WHERE b.id = :id AND {is_readable} AND {is_visible}"
    )
}

/// SQL for the name of the server of a row of `batch_targets t`. A deleted server has the name that
/// it had when the batch was created.
const SERVER_NAME: &str = "coalesce((SELECT s.name FROM servers s WHERE s.id = t.server_id AND s.workspace_id = t.workspace_id), t.server_name)";

/// The targets of a batch in the order in which they start, optionally only those with one of some
/// states. A caller who sees all targets reads only those of the page, if the list has no filter.
///
/// D1 limits the depth of an expression. So the targets are counted in a subquery in FROM, and the
/// deepest condition is the last one.
pub fn list(batch: Uuid, states: Option<&Vec<&'static str>>) -> List {
    let (state, join_command) = (target_state!(), join_command!());
    let (is_visible, is_readable) = (is_visible(), is_readable());
    let (is_wanted, knows_total) = match states {
        None => ("true".to_owned(), format!("({} AND NOT b.lost_commands)", sees_all())),
        Some(_) => {
            (format!("{state} IN (SELECT value FROM json_each(:states))"), "false".to_owned())
        }
    };
    let mut parameters = params! { id: batch };
    if let Some(states) = states {
        parameters.add("states", Value::list(states));
    }
    let tables = format!(
        ", batch AS MATERIALIZED (SELECT b.workspace_id, b.id, b.total, b.finished_at, b.lost_commands
            FROM me CROSS JOIN batches b WHERE b.id = :id AND {is_readable}),
         total AS (SELECT coalesce(sum(n), 0) AS total FROM (
            SELECT b.total AS n FROM me CROSS JOIN batch b WHERE {knows_total}
            UNION ALL SELECT count(*) FROM me CROSS JOIN batch b
            CROSS JOIN batch_targets t ON t.workspace_id = b.workspace_id AND t.batch_id = b.id {join_command}
            WHERE NOT {knows_total} AND {is_wanted} AND ({is_visible})))"
    );
    // The targets come first, so that SQLite reads them in the order of their positions.
    let items = format!(
        "SELECT json_object('server', t.server_id, 'server_name', {SERVER_NAME}, 'command', c.id, 'state', {state},
            'exit_code', c.exit_code, 'elapsed_time', c.elapsed_time, 'started_at', c.added_at,
            'handled_at', c.handled_at,
            'reason', coalesce(t.reason, iif(c.state IN ('failed', 'cancelled', 'expired', 'stuck'), c.status_message, NULL))) AS body
         FROM batch_targets t CROSS JOIN batch b CROSS JOIN me {join_command}
         WHERE t.workspace_id = (SELECT workspace_id FROM batch) AND t.batch_id = (SELECT id FROM batch)
            AND (:page_offset = 0 OR (SELECT total FROM total) > :page_offset) AND {is_wanted} AND ({is_visible})
         ORDER BY t.position LIMIT :page_size + 0 OFFSET :page_offset"
    );
    let select = Select { tables, items, max_in_one_text: 0, parameters };
    List { select, full_access: None, narrow: None }
}

/// The targets of a batch that ended, grouped by equal state, exit code and output. The largest
/// group is first.
pub fn outputs(batch: Uuid) -> List {
    let (state, visible_targets) = (target_state!(), visible_targets());
    let tables = format!(
        ", ended AS MATERIALIZED (SELECT t.position, t.server_id, {SERVER_NAME} AS server_name, c.id AS command, c.seq,
                {state} AS state, c.exit_code, c.result_sha256
            FROM me CROSS JOIN {visible_targets}
                AND (c.handled_at IS NOT NULL OR c.id IS NULL AND t.state IN ('skipped', 'cancelled', 'expired'))),
         outputs AS MATERIALIZED (SELECT state, exit_code, result_sha256, count(*) AS n, min(position) AS first,
                min(seq) AS seq
            FROM ended GROUP BY state, exit_code, result_sha256),
         total AS (SELECT count(*) AS total FROM outputs)"
    );
    let items = format!(
        "SELECT json_object('count', o.n, 'state', o.state, 'exit_code', o.exit_code, 'output_sha256', o.result_sha256,
            'result', c.result,
            'result_truncated', json(iif(c.result_truncated OR c.full_result IS NOT NULL, 'true', 'false')),
            'targets', json((SELECT json_group_array(json_object('server', server_id, 'server_name', server_name,
                'command', command)) FROM (SELECT server_id, server_name, command FROM ended e
                WHERE e.state = o.state AND e.exit_code IS o.exit_code AND e.result_sha256 IS o.result_sha256
                ORDER BY position LIMIT {MAX_TARGETS_OF_OUTPUT})))) AS body
         FROM outputs o LEFT JOIN commands c ON c.seq = o.seq
         ORDER BY o.n DESC, o.first LIMIT :page_size + 0 OFFSET :page_offset"
    );
    let select = Select { tables, items, max_in_one_text: 0, parameters: params! { id: batch } };
    List { select, full_access: None, narrow: None }
}

/// SQL for whether the caller can see all targets of a batch that the caller can read.
fn sees_all() -> String {
    format!("({HAS_FULL_ACCESS} AND NOT me.reads_narrowly)")
}

/// Reads which targets of a batch the caller can see, as the JSON of [`VisibleTargets`], if the
/// caller can read the batch.
///
/// D1 limits the depth of an expression, so the servers are in a subquery in FROM.
pub fn visible(batch: Uuid) -> Query {
    let (readable, targets, sees_all) = (is_readable(), visible_targets_of_row(), sees_all());
    let sql = format!(
        "(SELECT json_object('sees_all', json(iif({sees_all}, 'true', 'false')), 'servers', json((
            SELECT json_group_array(server_id) FROM (SELECT t.server_id FROM {targets} AND NOT {sees_all}))))
          FROM batches b WHERE b.id = :id AND {readable})"
    );
    Query::new(sql, params! { id: batch })
}

/// The targets of a batch that a caller can see.
#[derive(Debug, Deserialize)]
pub struct VisibleTargets {
    sees_all: bool,
    /// The ids of the visible targets' servers, unless all are visible.
    servers: HashSet<Uuid>,
}

impl VisibleTargets {
    /// Whether the caller can see the target with this server.
    pub fn contains(&self, server: Uuid) -> bool {
        self.sees_all || self.servers.contains(&server)
    }
}

/// SQL for the ids of the visible targets of a row of `batches b` that did not succeed, in the
/// order of their start, as a JSON array.
fn unsuccessful() -> String {
    let (state, targets) = (target_state!(), visible_targets_of_row());
    format!(
        "(SELECT json_group_array(server_id) FROM (SELECT t.server_id FROM {targets}
            AND {state} <> 'success'
            AND EXISTS (SELECT 1 FROM servers s WHERE s.id = t.server_id AND {IS_ACCESSIBLE}) ORDER BY t.position))"
    )
}

/// Reads what a retry of a batch needs, as JSON. Servers that were deleted, or that the caller
/// cannot access, are left out.
pub fn for_retry(batch: Uuid) -> Query {
    let (readable, unsuccessful) = (is_readable(), unsuccessful());
    let sql = format!(
        "(SELECT json_object('is_finished', json(iif(b.finished_at IS NULL, 'false', 'true')),
            'has_inputs', json(iif(b.has_inputs OR b.has_params, 'true', 'false')), 'script', b.script, 'name', b.name, 'shell', b.shell, 'line', b.line,
            'argv', json(b.argv), 'username', b.username, 'groupname', b.groupname, 'timeout', b.timeout,
            'max_concurrency', b.max_concurrency, 'max_errors', b.max_errors, 'ramp', json(iif(b.ramp, 'true', 'false')),
            'on_offline', b.on_offline, 'servers', json({unsuccessful}))
          FROM batches b WHERE b.id = :id AND {readable})"
    );
    Query::new(sql, params! { id: batch })
}
