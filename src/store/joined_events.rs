//! The D1 table that counts refusals, and reads beyond 20 a minute (`docs/audit.md`). For each
//! credential, action and code, and for the reads of each user, at most one audit event per minute is
//! written. It is the first refusal or read, with their number since the last event.
//!
//! An event is never changed after it was written, because it may be sealed. Refusals that follow
//! an event within its minute are counted, and the next event has their number.

use farhand_domain::audit::event::AuditEvent;
use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use farhand_sql::statement::Statement;
use serde::Deserialize;
use serde_json::json;

use super::audit::{Insert, text};
use super::database::Database;
use super::db::{self, params};
use crate::platform::log;

/// The minimum seconds between two events of a key.
pub const MIN_INTERVAL_SECONDS: i64 = 60;
/// How long a row without pending refusals is kept, in seconds.
const KEEP_SECONDS: i64 = 3_600;
/// The maximum number of keys whose events one transaction writes.
const BATCH: usize = 50;
/// The maximum number of overdue keys that one cron trigger writes.
const MAX_OVERDUE: u64 = 5_000;
/// SQL for the event of a row `j`.
const EVENT: &str = "json_set(j.event, '$.details.count', j.pending)";

/// Counts refusals of a key. If no event of the key was written within the last minute, also writes
/// one event for all counted refusals. `event` is the first of them.
///
/// # Errors
/// D1 failed.
pub async fn add(
    database: &Database,
    workspace_id: i64,
    key: &str,
    event: &AuditEvent,
    count: u64,
    now: Timestamp,
) -> Result<(), Error> {
    let sql = "INSERT INTO joined_events AS j (workspace_id, key, pending, written_at, event)
        SELECT w.id, :key, :count, '', :event FROM workspaces w WHERE w.id = :workspace_id AND w.deleted_at IS NULL
        ON CONFLICT (workspace_id, key) DO UPDATE SET
            event = iif(j.pending = 0, excluded.event, j.event), pending = j.pending + excluded.pending";
    let add = Statement::new(sql).bind_all(params! {
        workspace_id, key, count, event: text(event)?,
    });
    let [insert, reset] = write_pending(workspace_id, key, now);
    db::execute_all(database, vec![add, insert, reset]).await
}

/// The statements that write an event for the counted refusals of a key, if it is due.
fn write_pending(workspace_id: i64, key: &str, now: Timestamp) -> [Statement; 2] {
    let rest = "FROM joined_events j
        WHERE j.workspace_id = :workspace_id AND j.key = :key AND j.pending > 0 AND j.written_at <= :until";
    let until = now.plus_seconds(-MIN_INTERVAL_SECONDS);
    let insert = Insert::from_event(":workspace_id", EVENT, rest).sql();
    let reset = "UPDATE joined_events SET pending = 0, written_at = :now, event = ''
        WHERE changes() > 0 AND workspace_id = :workspace_id AND key = :key";
    [
        Statement::new(insert).bind_all(params! { workspace_id, key, until }),
        Statement::new(reset).bind_all(params! { workspace_id, key, now }),
    ]
}

/// A key with counted refusals.
#[derive(Deserialize)]
struct Overdue {
    workspace_id: i64,
    key: String,
}

/// Writes the events of keys in a transaction each, and logs the keys that cannot be written.
async fn write_singly(database: &Database, keys: &[Overdue], now: Timestamp) {
    for Overdue { workspace_id, key } in keys {
        let statements = write_pending(*workspace_id, key, now).into();
        if let Err(error) = db::execute_all(database, statements).await {
            let fields = json!({"workspace": workspace_id});
            log::error("joined_events_not_written", fields, &error.detail);
        }
    }
}

/// Writes events for refusals that were counted but not written, because no further refusal of the
/// key followed. Deletes old rows. Returns the workspaces of these events.
///
/// Events that could not be written stay counted. They do not stop those of other keys.
///
/// # Errors
/// D1 failed.
pub async fn write_overdue(database: &Database, now: Timestamp) -> Result<Vec<i64>, Error> {
    let delete =
        Statement::new("DELETE FROM joined_events WHERE pending = 0 AND written_at < :until")
            .bind("until", now.plus_seconds(-KEEP_SECONDS));
    let select = Statement::new(
        "SELECT workspace_id, key FROM joined_events WHERE pending > 0 AND written_at <= :until LIMIT :limit + 0",
    );
    let select = select.bind_all(params! {
        until: now.plus_seconds(-MIN_INTERVAL_SECONDS), limit: MAX_OVERDUE,
    });
    let results = db::batch(database, vec![delete, select]).await?;
    let overdue: Vec<Overdue> = results.last().map(db::rows).transpose()?.unwrap_or_default();
    for keys in overdue.chunks(BATCH) {
        let statements = keys.iter().flat_map(|of| write_pending(of.workspace_id, &of.key, now));
        if db::execute_all(database, statements.collect()).await.is_err() {
            write_singly(database, keys, now).await;
        }
    }
    let mut workspaces: Vec<_> = overdue.into_iter().map(|of| of.workspace_id).collect();
    workspaces.dedup();
    Ok(workspaces)
}
