//! Finds commands that ended long ago, and deletes them together with the rows that exist only for
//! commands (contract 7.13; docs/contributing/retention.md).
//!
//! A command's id begins with the time of its creation, and a command ends after its creation. So
//! old commands are among the first ids of a workspace. The search also reads commands that were
//! created long ago but are not old: they have not ended, or ended recently.

use std::collections::BTreeSet;

use farhand_domain::error::Error;
use farhand_domain::id;
use farhand_domain::time::Timestamp;
use farhand_sql::command_counts;
use farhand_sql::statement::{Statement, Value};
use serde::Deserialize;

use super::Progress;
use super::database::Database;
use super::db::{self, params};

/// The maximum number of workspaces that one statement searches.
const WORKSPACES_PER_SCAN: u64 = 500;

/// SQL for the condition that a row of `commands c` belongs to no batch that still starts commands.
/// Without its command, a target would start again.
const OF_NO_OPEN_BATCH: &str = "(c.batch_id IS NULL OR NOT EXISTS (
    SELECT 1 FROM batches b WHERE b.id = c.batch_id AND b.finished_at IS NULL))";

/// SQL for the condition that a row of `batches b` ended by `:until` and has no command any more.
const IS_OLD_BATCH: &str = "b.added_at <= :until AND b.finished_at <= :until AND NOT EXISTS (
    SELECT 1 FROM commands c INDEXED BY commands_by_batch
    WHERE c.workspace_id = b.workspace_id AND c.batch_id = b.id)";
/// The maximum number of batches that [`delete_batches`] deletes. Each has up to 5,000 targets.
const BATCHES_PER_STEP: u64 = 5;

/// A command that is old enough to be deleted.
#[derive(Clone, Debug, Deserialize)]
pub struct OldCommand {
    pub id: String,
    pub server_id: String,
    pub requested_by: Option<i64>,
}

/// The outcome of a search through some workspaces.
#[derive(Debug, Deserialize)]
pub struct WorkspaceScan {
    /// The first workspace that has old commands or batches.
    pub found: Option<i64>,
    /// The last workspace that was searched, or `None` if no workspaces are left.
    pub last: Option<i64>,
}

/// Searches the next workspaces for commands and batches that ended by `until`, in the order of the
/// workspaces' ids after `after`.
pub async fn scan_workspaces(
    database: &Database,
    after: i64,
    until: Timestamp,
) -> Result<WorkspaceScan, Error> {
    let sql = format!(
        "WITH next AS (SELECT id FROM workspaces WHERE id > :after AND deleted_at IS NULL ORDER BY id LIMIT {WORKSPACES_PER_SCAN})
         SELECT (SELECT n.id FROM next n WHERE EXISTS (
                SELECT 1 FROM commands c INDEXED BY commands_by_id
                WHERE c.workspace_id = n.id AND c.id < :created_before AND c.handled_at <= :until AND {OF_NO_OPEN_BATCH})
                OR EXISTS (SELECT 1 FROM batches b INDEXED BY batches_by_time WHERE b.workspace_id = n.id AND {IS_OLD_BATCH})
            ORDER BY n.id LIMIT 1) AS found, (SELECT max(id) FROM next) AS last"
    );
    let result = db::run(
        database,
        Statement::new(sql)
            .bind_all(params! { after, until, created_before: created_before(until) }),
    )
    .await?;
    db::first(&result)?.ok_or_else(|| Error::internal("D1 gave no row"))
}

/// An id for the time `until`. All commands that were created before that time have lower ids.
fn created_before(until: Timestamp) -> String {
    id::new(until, [0; 10]).to_string()
}

/// Finds the next commands of a workspace that ended by `until`, in the order of their ids after
/// `after`.
pub async fn find(
    database: &Database,
    workspace_id: i64,
    after: &str,
    until: Timestamp,
    limit: u64,
) -> Result<Vec<OldCommand>, Error> {
    let sql = format!(
        "SELECT c.id, c.server_id, c.requested_by FROM commands c INDEXED BY commands_by_id
        WHERE c.workspace_id = :workspace_id AND c.id > :after AND c.id < :created_before AND c.handled_at <= :until
            AND {OF_NO_OPEN_BATCH}
        ORDER BY c.id LIMIT :limit + 0"
    );
    let statement = Statement::new(sql).bind_all(params! {
        workspace_id, after, until, created_before: created_before(until), limit,
    });
    db::rows(&db::run(database, statement).await?)
}

/// Deletes the next batches of a workspace that ended by `until`, with their targets. Batches that
/// still have commands are kept.
pub async fn delete_batches(
    database: &Database,
    workspace_id: i64,
    until: Timestamp,
) -> Result<Progress, Error> {
    let old = format!(
        "SELECT b.id FROM batches b INDEXED BY batches_by_time
         WHERE b.workspace_id = :workspace_id AND {IS_OLD_BATCH}
         ORDER BY b.added_at, b.id LIMIT {BATCHES_PER_STEP}"
    );
    let statements = [
        format!(
            "DELETE FROM batch_targets WHERE workspace_id = :workspace_id AND batch_id IN ({old})"
        ),
        format!(
            "DELETE FROM batches WHERE workspace_id = :workspace_id AND id IN ({old}) RETURNING id AS body"
        ),
    ];
    let statements =
        statements.map(|sql| Statement::new(sql).bind_all(params! { workspace_id, until }));
    let results = db::batch(database, statements.to_vec()).await?;
    let deleted = results.last().map(db::column::<String>).transpose()?.unwrap_or_default();
    Ok(if deleted.is_empty() { Progress::Done } else { Progress::More })
}

/// Deletes commands that their servers' objects have already deleted, all in one transaction. This
/// function corrects the counters of lists; triggers correct the search index.
///
/// Also deletes rows that no command needs any more: counters that are 0, and, for a server without
/// commands, its names, its requesters, and its row as a deleted server. The object of such a
/// deleted server has already wiped itself.
pub async fn delete(
    database: &Database,
    workspace_id: i64,
    commands: &[&OldCommand],
    until: Timestamp,
) -> Result<(), Error> {
    let distinct = |value: &dyn Fn(&OldCommand) -> Option<String>| {
        Value::list(commands.iter().filter_map(|command| value(command)).collect::<BTreeSet<_>>())
    };
    let ids = distinct(&|command| Some(command.id.clone()));
    let servers = distinct(&|command| Some(command.server_id.clone()));
    let requesters = distinct(&|command| command.requested_by.map(|id| id.to_string()));
    let delete = |rows: String, list: &Value| {
        Statement::new(format!("DELETE FROM {rows}"))
            .bind_all(params! { workspace_id, list: list.clone() })
    };
    let empty_counters = |kind: &str, keys: &Value| {
        let rows = format!(
            "command_counts WHERE workspace_id = :workspace_id AND kind = '{kind}'
             AND key IN (SELECT value FROM json_each(:list)) AND total = 0"
        );
        delete(rows, keys)
    };
    let of_server_without_commands = |rows: &str, server: &str| {
        let rows = format!(
            "{rows} WHERE workspace_id = :workspace_id
             AND {server} IN (SELECT s.value FROM json_each(:list) s WHERE NOT EXISTS (
                SELECT 1 FROM commands c INDEXED BY commands_by_server
                WHERE c.workspace_id = :workspace_id AND c.server_id = s.value))"
        );
        delete(rows, &servers)
    };
    let condition = "c.id IN (SELECT value FROM json_each(:ids)) AND c.handled_at <= :until";
    let mut statements = command_counts::delete(condition)
        .map(|sql| Statement::new(sql).bind_all(params! { workspace_id, ids: ids.clone(), until }))
        .to_vec();
    statements.extend([
        empty_counters("server", &servers),
        empty_counters("requester", &requesters),
        of_server_without_commands(
            "command_servers INDEXED BY command_servers_by_server",
            "server_id",
        ),
        of_server_without_commands(
            "command_requesters INDEXED BY command_requesters_by_server",
            "server_id",
        ),
        of_server_without_commands("deleted_servers_with_commands", "id"),
    ]);
    db::execute_all(database, statements).await
}
