//! The table `commands`: the stored commands of a server.
//!
//! Queries for commands have the columns `document`, `result`, `phase`, `revision` and
//! `is_flushed`.

use farhand_domain::link::stored_command::{Phase, Stage, StoredCommand};
use farhand_domain::time::Timestamp;
use uuid::Uuid;

use crate::statement::{Statement, Value, fixed};

/// A query for commands, with the rest of the statement after WHERE.
macro_rules! select_commands {
    ($($rest:expr),+) => {
        fixed!(concat!(
            "SELECT document, result, phase, revision, flushed >= revision AS is_flushed FROM commands WHERE ",
            $($rest),+
        ))
    };
}

/// SQL for the time of the last report on a command that has not ended: `acked_at`, or if that is
/// null `delivered_at`.
macro_rules! last_report {
    () => {
        "coalesce(document ->> '$.life.acked_at', document ->> '$.life.delivered_at')"
    };
}

/// A query that returns the number of rows, in the column `number`.
macro_rules! count {
    ($from:expr) => {
        fixed!(concat!("SELECT count(*) AS number FROM ", $from))
    };
}

/// The value of the column `stage`.
fn stage(stored: &StoredCommand) -> Value {
    stored.stage().map(Stage::as_str).into()
}

/// Inserts a new command, which D1 gets by another way than an update. `document` is its document.
pub fn insert(new: &StoredCommand, document: String, timer_at: Timestamp) -> Statement {
    fixed!(
        "INSERT INTO commands (id, phase, scheduled_at, due_at, revision, flushed, is_active, document)
            VALUES (:id, :phase, :scheduled_at, :due_at, 1, 1, 1, :document)"
    )
    .bind("id", new.command.id)
    .bind("phase", new.phase.as_str())
    .bind("scheduled_at", new.life.scheduled_at)
    .bind("due_at", timer_at)
    .bind("document", document)
}

/// Stores a command as accepted. An accepted command only waits in the queue, so it is not active.
pub fn accept(accepted: &StoredCommand, now: Timestamp) -> Statement {
    fixed!(
        "UPDATE commands SET phase = :phase, stage = :stage, due_at = :due_at, is_active = 0 WHERE id = :id"
    )
    .bind("id", accepted.command.id)
    .bind("phase", accepted.phase.as_str())
    .bind("stage", stage(accepted))
    .bind("due_at", accepted.timer_at(now))
}

/// Marks a command as active. The table's CHECK rejects an update that leaves work for a command
/// that is not active.
pub fn activate(id: Uuid) -> Statement {
    fixed!("UPDATE commands SET is_active = 1 WHERE id = :id AND is_active = 0").bind("id", id)
}

/// Stores an active command as its next revision.
pub fn save(changed: &StoredCommand, document: String, now: Timestamp) -> Statement {
    fixed!(
        "UPDATE commands SET phase = :phase, stage = :stage, due_at = :due_at, revision = revision + 1,
            document = :document, result = :result WHERE id = :id"
    )
    .bind("id", changed.command.id)
    .bind("phase", changed.phase.as_str())
    .bind("stage", stage(changed))
    .bind("due_at", changed.timer_at(now))
    .bind("document", document)
    .bind("result", changed.result.as_deref())
}

/// Stores a command's document. If `is_change`, increments the revision, and the command must be
/// active.
pub fn set_document(id: Uuid, document: String, is_change: bool) -> Statement {
    fixed!(
        "UPDATE commands SET document = :document, revision = revision + :changes WHERE id = :id"
    )
    .bind("id", id)
    .bind("document", document)
    .bind("changes", is_change)
}

/// Sets the time of a command's timer.
pub fn set_timer(id: Uuid, at: Option<Timestamp>) -> Statement {
    fixed!("UPDATE commands SET due_at = :due_at WHERE id = :id").bind("id", id).bind("due_at", at)
}

/// Stores that D1 may have lost a command.
pub fn mark_unflushed(id: Uuid) -> Statement {
    fixed!("UPDATE commands SET flushed = 0, is_active = 1 WHERE id = :id").bind("id", id)
}

/// SQL that stores that D1 has a revision of a command, and sets `is_active`.
macro_rules! mark_flushed {
    ($more:expr) => {
        fixed!(concat!(
            "UPDATE commands SET flushed = max(flushed, :revision), is_active = phase <> 'accepted' OR stage IS 'open'
                OR max(flushed, :revision) < revision OR due_at IS NOT NULL AND stage IS NOT 'waiting' ",
            $more,
            " WHERE id = :id"
        ))
    };
}

/// Stores that D1 has a revision of a command. `has_events`: also deletes the audit events up to
/// this revision.
pub fn mark_flushed(id: Uuid, revision: i64, has_events: bool) -> Statement {
    let statement = if has_events {
        mark_flushed!(
            ", document = json_set(document, '$.events', json((
                SELECT json_group_array(json(value)) FROM json_each(document, '$.events') WHERE value ->> 'revision' > :revision)))"
        )
    } else {
        mark_flushed!("")
    };
    statement.bind("id", id).bind("revision", revision)
}

/// Deletes a command.
pub fn delete(id: Uuid) -> Statement {
    fixed!("DELETE FROM commands WHERE id = :id").bind("id", id)
}

/// A command.
pub fn find(id: Uuid) -> Statement {
    select_commands!("id = :id").bind("id", id)
}

/// Waiting commands that are due, in the order of delivery.
pub fn due_waiting(now: Timestamp, limit: u64) -> Statement {
    select_commands!(
        "stage = 'waiting' AND scheduled_at <= :now ORDER BY scheduled_at, id LIMIT :limit + 0"
    )
    .bind("now", now)
    .bind("limit", limit)
}

/// All waiting commands.
pub fn waiting() -> Statement {
    select_commands!("stage = 'waiting'")
}

/// All commands that were delivered and have not ended.
pub fn open() -> Statement {
    select_commands!("is_active = 1 AND stage = 'open'")
}

/// The number of commands that were delivered and have not ended.
pub fn count_open() -> Statement {
    count!("commands WHERE is_active = 1 AND stage = 'open'")
}

/// The number 1 if there is any command, or else 0.
pub fn count_any() -> Statement {
    count!("(SELECT 1 FROM commands LIMIT 1)")
}

/// Commands whose timer is due, the earliest first.
pub fn with_due_timer(now: Timestamp, limit: u32) -> Statement {
    select_commands!(
        "id IN (SELECT id FROM commands WHERE stage = 'waiting' AND due_at <= :now
                UNION ALL SELECT id FROM commands WHERE is_active = 1 AND due_at <= :now)
            ORDER BY due_at, id LIMIT :limit + 0"
    )
    .bind("now", now)
    .bind("limit", limit)
}

/// The time of the next timer of a command, in the column `due_at`, which may be null.
pub fn next_timer() -> Statement {
    fixed!(
        "SELECT min(due_at) AS due_at FROM (
            SELECT min(due_at) AS due_at FROM commands WHERE stage = 'waiting'
            UNION ALL SELECT min(due_at) FROM commands WHERE is_active = 1)"
    )
}

/// Commands whose latest revision D1 does not have. Open commands are returned only if their last
/// report is not later than `reported_by`.
pub fn unflushed(reported_by: Timestamp, limit: u32) -> Statement {
    select_commands!(
        "is_active = 1 AND flushed < revision AND (stage IS NOT 'open' OR ",
        last_report!(),
        " <= :reported_by) LIMIT :limit + 0"
    )
    .bind("reported_by", reported_by)
    .bind("limit", limit)
}

/// One row on the commands whose latest revision D1 does not have. `are_all_open`: 1 if all of them
/// are open, 0 if not, null if there are none. `earliest_report`: the earliest last report of the
/// open ones.
pub fn next_unflushed() -> Statement {
    fixed!(concat!(
        "SELECT min(stage IS 'open') AS are_all_open,
                min(iif(stage IS 'open', ",
        last_report!(),
        ", NULL)) AS earliest_report
             FROM commands WHERE is_active = 1 AND flushed < revision"
    ))
}

/// Accepted commands with ids above `after`, ordered by id.
pub fn accepted_after(after: &str, limit: u32) -> Statement {
    select_commands!("phase = :phase AND id > :after ORDER BY id LIMIT :limit + 0")
        .bind("phase", Phase::Accepted.as_str())
        .bind("after", after)
        .bind("limit", limit)
}

/// The commands among `ids`: `id`, the bytes of its kept output `kept_bytes`, and `is_deletable`, 1
/// if it ended by `until` and D1 has its latest revision, or else 0.
pub fn deletable(ids: &[Uuid], until: Timestamp) -> Statement {
    fixed!(
        "SELECT id,
                (SELECT coalesce(sum(kept), 0) FROM chunks c
                    WHERE c.command = commands.id) AS kept_bytes,
                phase = 'accepted' AND flushed >= revision
                    AND coalesce(document ->> '$.life.handled_at' <= :until, 0) AS is_deletable
            FROM commands WHERE id IN (SELECT value FROM json_each(:ids))"
    )
    .bind("ids", Value::list(ids))
    .bind("until", until)
}
