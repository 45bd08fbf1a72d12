//! The D1 table that counts anonymous audit events (`docs/audit.md`). For each action and object,
//! at most one audit event per minute is written. It contains the number of occurrences.

use farhand_domain::audit::event::{AuditEvent, AuditObject, AuditOutcome, Source};
use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use farhand_sql::statement::Statement;
use serde::Deserialize;
use uuid::Uuid;

use super::audit::{Insert, text};
use super::database::Database;
use super::db::{self, params};
use crate::platform;

/// The action of a failed login.
const FAILED_LOGIN: &str = "session.login";
/// The minimum seconds between two events of the same action and object.
const MIN_INTERVAL_SECONDS: i64 = 60;
/// The maximum number of overdue events that one cron trigger writes.
const MAX_OVERDUE: u64 = 100;

/// SQL for the ids of the users whose reset requests were counted since the last event of
/// `anonymous_events a`, as a JSON array. A request expires 24 hours after its creation, so
/// `expires_at` shows when it was created.
const RESET_USERS: &str = "(SELECT json_group_array(DISTINCT CAST(p.user_id AS TEXT)) FROM reset_requests p
    WHERE p.workspace_id = a.workspace_id AND p.user_id IS NOT NULL
    AND p.expires_at > iif(a.written_at = '', '', strftime('%Y-%m-%dT%H:%M:%f000+00:00', a.written_at, '+1 day')))";

/// SQL for the event `:event`, with the number of occurrences from `anonymous_events a` added.
fn event_with_count(action: &str) -> String {
    if action == FAILED_LOGIN {
        "json_set(:event, '$.details.count', a.pending)".to_owned()
    } else {
        format!(
            "json_set(:event, '$.details.count', a.pending, '$.details.users', json({RESET_USERS}))"
        )
    }
}

/// The statements that count an anonymous event. If no event of the same action and object was
/// written within the last minute, they also write one event for all counted occurrences.
pub fn count_event(
    workspace_id: i64,
    event: &AuditEvent,
    now: Timestamp,
) -> Result<Vec<Statement>, Error> {
    let object = event.object.as_ref().and_then(|object| object.id.clone()).unwrap_or_default();
    let count = "INSERT INTO anonymous_events (workspace_id, action, object_id, pending, written_at)
        SELECT w.id, :action, :object, 1, '' FROM workspaces w WHERE w.id = :workspace_id AND w.deleted_at IS NULL
        ON CONFLICT (workspace_id, action, object_id) DO UPDATE SET pending = pending + 1";
    let count = Statement::new(count).bind_all(params! {
        workspace_id, action: &event.action, object: &object,
    });
    Ok([vec![count], write_pending(workspace_id, &object, event, now)?].concat())
}

/// The statements that write an event for the counted occurrences, if it is due.
fn write_pending(
    workspace_id: i64,
    object: &str,
    event: &AuditEvent,
    now: Timestamp,
) -> Result<Vec<Statement>, Error> {
    let event_sql = event_with_count(&event.action);
    let rest =
        "FROM anonymous_events a WHERE a.workspace_id = :workspace_id AND a.action = :action AND a.object_id = :object
        AND a.pending > 0 AND a.written_at <= :until";
    let insert =
        Insert { event: &event_sql, ..Insert::from_event(":workspace_id", ":event", rest) };
    let insert = Statement::new(insert.sql()).bind_all(params! {
        workspace_id, event: text(event)?, action: &event.action, object,
        until: now.plus_seconds(-MIN_INTERVAL_SECONDS),
    });
    let reset_count = "UPDATE anonymous_events SET pending = 0, written_at = :now
        WHERE changes() > 0 AND workspace_id = :workspace_id AND action = :action AND object_id = :object";
    let reset_count = Statement::new(reset_count)
        .bind_all(params! { workspace_id, action: &event.action, object, now });
    Ok(vec![insert, reset_count])
}

/// The statements that count a reset request, and write an event under the same condition as
/// [`count_event`]. They must directly follow the insertion of the request. All requests of a
/// workspace share one counter, so the work is the same for every address. The event's object is
/// the user of this request. `users` in its details are the users of all counted requests.
pub fn after_reset_request(
    id: Uuid,
    event: &AuditEvent,
    now: Timestamp,
) -> Result<Vec<Statement>, Error> {
    let count = "INSERT INTO anonymous_events (workspace_id, action, object_id, pending, written_at)
        SELECT r.workspace_id, :action, '', 1, '' FROM reset_requests r WHERE r.id = :id AND changes() > 0
        ON CONFLICT (workspace_id, action, object_id) DO UPDATE SET pending = pending + 1";
    let event_sql = event_with_count(&event.action);
    let rest = "FROM reset_requests r JOIN anonymous_events a
            ON a.workspace_id = r.workspace_id AND a.action = :action AND a.object_id = ''
        WHERE r.id = :id AND changes() > 0 AND a.written_at <= :until";
    // Without the user's name: its lookup would be extra work for registered addresses.
    let user = Some("CAST(r.user_id AS TEXT)");
    let insert = Insert {
        object_id: user,
        event: &event_sql,
        ..Insert::from_event("r.workspace_id", ":event", rest)
    };
    let reset_count = "UPDATE anonymous_events SET pending = 0, written_at = :now
        WHERE changes() > 0 AND action = :action AND object_id = ''
        AND workspace_id = (SELECT workspace_id FROM reset_requests WHERE id = :id)";
    Ok(vec![
        Statement::new(count).bind_all(params! { id, action: &event.action }),
        Statement::new(insert.sql()).bind_all(params! {
            id, event: text(event)?, action: &event.action,
            until: now.plus_seconds(-MIN_INTERVAL_SECONDS),
        }),
        Statement::new(reset_count).bind_all(params! { id, action: &event.action, now }),
    ])
}

/// Runs the statements of [`count_event`].
pub async fn write_anonymous(database: &Database, statements: Vec<Statement>) -> Result<(), Error> {
    db::execute_all(database, statements).await
}

/// Writes events for occurrences that were counted but not written, because no further event of the
/// same action and object followed. Returns the workspaces of these events.
pub async fn write_overdue(database: &Database, now: Timestamp) -> Result<Vec<i64>, Error> {
    #[derive(Deserialize)]
    struct Overdue {
        workspace_id: i64,
        action: String,
        object_id: String,
    }
    let sql = "SELECT a.workspace_id, a.action, a.object_id FROM anonymous_events a
        WHERE a.pending > 0 AND a.written_at <= :until LIMIT :limit + 0";
    let select = Statement::new(sql).bind_all(params! {
        until: now.plus_seconds(-MIN_INTERVAL_SECONDS), limit: MAX_OVERDUE,
    });
    let mut workspaces = Vec::new();
    for Overdue { workspace_id, action, object_id } in
        db::rows::<Overdue>(&db::run(database, select).await?)?
    {
        let event = AuditEvent::new(platform::new_id(now)?, now, Source::default(), &action);
        let object = (!object_id.is_empty())
            .then(|| AuditObject::new("user", Some(object_id.clone()), None));
        let outcome =
            if action == FAILED_LOGIN { AuditOutcome::Failure } else { AuditOutcome::Success };
        let event = AuditEvent { object, outcome, ..event };
        db::batch(database, write_pending(workspace_id, &object_id, &event, now)?).await?;
        workspaces.push(workspace_id);
    }
    Ok(workspaces)
}
