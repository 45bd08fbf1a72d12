//! The D1 statements of the scheduler, and the run history of schedules (contract 14).
//!
//! A decision is one transaction. A statement aborts it by writing null into a column that allows
//! none:
//!
//! - into `schedule_runs.outcome`, if the schedule has changed since it was read ([`is_outdated`]),
//! - into `schedule_runs.due_at`, if the batch exceeds a quota ([`is_batch_refused`]).

use farhand_domain::audit::event::AuditEvent;
use farhand_domain::error::Error;
use farhand_domain::schedule::Timing;
use farhand_domain::schedule::claim::MISSED_AFTER_SECONDS;
use farhand_domain::schedule::decision::{Decision, ScheduleProgress, Skipped};
use farhand_domain::schedule::request::{ScheduleSpec, StoredBatch};
use farhand_domain::secret::SecretKey;
use farhand_domain::time::Timestamp;
use farhand_sql::statement::{Statement, Value};
use serde::Deserialize;
use serde_json::{Map, json};
use uuid::Uuid;

use super::audit::{Insert, text};
use super::database::Database;
use super::db::{self, Failure, params};
use super::schedules::STORED;
use super::scope::CallerTable;
use super::stored_requester::StoredRequester;

/// A schedule as D1 has it.
#[derive(Clone, Debug, Deserialize)]
pub struct StoredSchedule {
    pub id: Uuid,
    pub name: String,
    pub revision: i64,
    /// The owner's id. `None`: the user was deleted.
    pub owner: Option<i64>,
    pub api_token: Option<Uuid>,
    pub session: Option<Uuid>,
    pub remote_ip: String,
    pub cron: String,
    pub timezone: String,
    pub timing: Timing,
    definition: Map<String, serde_json::Value>,
    /// Encrypted.
    inputs: Option<String>,
    /// The first due time about which nothing was decided.
    pub next_due: Option<Timestamp>,
    queued: Option<Timestamp>,
    is_running: bool,
}

impl StoredSchedule {
    /// The fields that requests set.
    ///
    /// # Errors
    /// The inputs cannot be decrypted: the secret key was replaced. Or a field is not valid any
    /// more.
    pub fn spec(&self, key: &SecretKey) -> Result<ScheduleSpec, Error> {
        let decrypt = |sealed: &String| -> Result<Map<String, serde_json::Value>, Error> {
            let text = key.decrypt_inputs(self.id, sealed).ok_or_else(|| {
                Error::internal("the inputs of a schedule cannot be decrypted with SECRET_KEY")
            })?;
            Ok(serde_json::from_str(&text)?)
        };
        let hidden = self.inputs.as_ref().map(decrypt).transpose()?.unwrap_or_default();
        Ok(ScheduleSpec {
            name: self.name.clone(),
            cron: self.cron.clone(),
            timezone: self.timezone.clone(),
            timing: self.timing.clone(),
            batch: StoredBatch { definition: self.definition.clone(), hidden }.read()?,
        })
    }

    /// What a decision needs.
    pub fn progress(&self) -> ScheduleProgress {
        let Self { timing, next_due, queued, is_running, .. } = self;
        let timing = timing.clone();
        ScheduleProgress { timing, next_due: *next_due, queued: *queued, is_running: *is_running }
    }

    /// The owner, as whom the runs start.
    pub fn requester(&self) -> StoredRequester {
        let Self { owner, api_token, session, .. } = *self;
        StoredRequester { user: owner, api_token, session }
    }
}

/// What the scheduler has to do.
#[derive(Debug)]
pub struct Due {
    /// The schedules that are due, in the order of their due times.
    pub schedules: Vec<StoredSchedule>,
    /// The first due time after now.
    pub next_due: Option<Timestamp>,
    /// The due time of the first run that waits for the previous run.
    pub queued: Option<Timestamp>,
}

/// Reads the schedules of a workspace that are due, at most `limit`. Finds nothing if the workspace
/// is deleted.
pub async fn due(
    database: &Database,
    workspace_id: i64,
    now: Timestamp,
    limit: u64,
) -> Result<Due, Error> {
    #[derive(Deserialize)]
    struct Next {
        next_due: Option<Timestamp>,
        queued: Option<Timestamp>,
    }
    let is_live =
        "EXISTS (SELECT 1 FROM workspaces w WHERE w.id = :workspace_id AND w.deleted_at IS NULL)";
    // A queued run is due if the previous run has ended, or if it may not start any more.
    let due = format!(
        "WITH due AS (
            SELECT id, next_due AS at FROM schedules
            WHERE workspace_id = :workspace_id AND enabled = 1 AND next_due IS NOT NULL AND next_due <= :now
            UNION
            SELECT s.id, s.queued FROM schedules s WHERE s.workspace_id = :workspace_id AND s.queued IS NOT NULL
                AND (s.enabled = 0 OR s.ends_at < :ended OR s.ends_at < s.queued OR s.starts_at > s.queued
                    OR NOT EXISTS (SELECT 1 FROM batches b WHERE b.workspace_id = s.workspace_id
                        AND b.schedule_id = s.id AND b.finished_at IS NULL))),
         first AS (SELECT id, min(at) AS at FROM due GROUP BY id ORDER BY min(at), id LIMIT :limit + 0)
         SELECT {STORED} AS body FROM first CROSS JOIN schedules s ON s.id = first.id
         WHERE {is_live} ORDER BY first.at, first.id"
    );
    let next = format!(
        "SELECT (SELECT min(next_due) FROM schedules WHERE workspace_id = :workspace_id AND enabled = 1
                AND next_due IS NOT NULL AND next_due > :now) AS next_due,
            (SELECT min(queued) FROM schedules WHERE workspace_id = :workspace_id AND queued IS NOT NULL) AS queued
         WHERE {is_live}"
    );
    let ended = now.plus_seconds(-MISSED_AFTER_SECONDS);
    let due = Statement::new(due).bind_all(params! { workspace_id, now, ended, limit });
    let next = Statement::new(next).bind_all(params! { workspace_id, now });
    let results = db::batch(database, vec![due, next]).await?;
    let [due, next] = &results[..] else { return Err(Error::internal("D1: no result")) };
    let schedules = db::column::<String>(due)?;
    let schedules =
        schedules.iter().map(|row| serde_json::from_str(row)).collect::<Result<_, _>>()?;
    let next = db::first::<Next>(next)?;
    let (next_due, queued) = next.map_or((None, None), |next| (next.next_due, next.queued));
    Ok(Due { schedules, next_due, queued })
}

/// A run that starts now.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The id of the history entry.
    pub run: Uuid,
    pub due_at: Timestamp,
    pub batch: Uuid,
}

/// What the transaction writes besides the batch.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    pub schedule: &'a StoredSchedule,
    pub decision: &'a Decision,
    /// The ids of the history entries for `decision.skipped`.
    pub ids: &'a [Uuid],
    /// The due times from `decision.next_due` on.
    pub next_runs: &'a [Timestamp],
    pub start: Option<Start>,
    /// Whether the schedule becomes disabled, because its API token has expired.
    pub disables: bool,
    pub now: Timestamp,
}

/// The seconds for which history entries are kept: a year.
const KEEP_RUNS: i64 = 365 * 24 * 60 * 60;

/// The first statements of the transaction that writes a decision: the schedule's row and the
/// history. Directly after them, `changes()` is the number of new history entries. For a run that
/// starts, the statements that insert the batch follow, and then [`require_batch`].
pub fn claim(workspace_id: i64, claim: Claim<'_>) -> Vec<Statement> {
    let Claim { schedule, decision, ids, next_runs, start, disables, now } = claim;
    let delete_old = Statement::new(
        "DELETE FROM schedule_runs WHERE workspace_id = :workspace_id AND schedule_id = :id AND due_at < :until",
    )
    .bind_all(params! { workspace_id, id: schedule.id, until: now.plus_seconds(-KEEP_RUNS) });
    let update = Statement::new(
        "UPDATE schedules SET next_due = :next_due, queued = :queued, next_runs = :next_runs, revision = revision + 1,
            enabled = iif(:disables, 0, enabled)
         WHERE workspace_id = :workspace_id AND id = :id AND revision = :revision
            AND EXISTS (SELECT 1 FROM workspaces w WHERE w.id = :workspace_id AND w.deleted_at IS NULL)",
    )
    .bind_all(params! {
        workspace_id, id: schedule.id, revision: schedule.revision, next_due: decision.next_due,
        queued: decision.queued, next_runs: Value::list(next_runs), disables,
    });
    let skipped = decision.skipped.iter().zip(ids);
    let skipped = skipped.map(|(Skipped { due_at, outcome, reason }, id)| {
        json!({"id": id, "due_at": due_at, "outcome": outcome, "reason": reason})
    });
    let started = start.map(|Start { run, due_at, batch }| {
        json!({"id": run, "due_at": due_at, "outcome": "started", "batch": batch, "started_at": now})
    });
    let insert = Statement::new(
        "INSERT INTO schedule_runs (id, workspace_id, schedule_id, due_at, started_at, batch_id, outcome, reason)
         SELECT r.value ->> 'id', :workspace_id, :id, r.value ->> 'due_at', r.value ->> 'started_at',
            r.value ->> 'batch', iif(changes() > 0, r.value ->> 'outcome', NULL), r.value ->> 'reason'
         FROM json_each(:rows) r",
    )
    .bind_all(params! { workspace_id, id: schedule.id, rows: Value::list(skipped.chain(started)) });
    vec![delete_old, update, insert]
}

/// The last statement of the transaction that starts a run: aborts it if the batch was not
/// inserted.
pub fn require_batch(workspace_id: i64, start: Start) -> Statement {
    let sql = "UPDATE schedule_runs SET due_at = iif(EXISTS (SELECT 1 FROM batches b
            WHERE b.workspace_id = :workspace_id AND b.id = :batch), due_at, NULL)
         WHERE workspace_id = :workspace_id AND id = :run";
    Statement::new(sql).bind_all(params! { workspace_id, run: start.run, batch: start.batch })
}

/// The statement that inserts the audit event of a refused run, unless the run before it was refused
/// for the same reason: a schedule that is due every minute could fill the audit log. An event that
/// disables the schedule is always inserted. The statement follows the insertion of the history
/// entries. The event has the schedule as its object, and `due_at`, `reason` and `disabled` in its
/// details.
pub fn audit_refusal(workspace_id: i64, event: &AuditEvent) -> Result<Statement, Error> {
    let rest =
        "WHERE changes() > 0 AND (:event ->> '$.details.disabled' OR NOT EXISTS (SELECT 1 FROM (
            SELECT outcome, reason FROM schedule_runs
            WHERE workspace_id = :workspace_id AND schedule_id = :event ->> '$.object.id'
                AND due_at < :event ->> '$.details.due_at'
            ORDER BY due_at DESC, id DESC LIMIT 1) r
        WHERE r.outcome = 'refused' AND r.reason = :event ->> '$.details.reason'))";
    let insert = Insert::from_event(":workspace_id", ":event", rest);
    Ok(Statement::new(insert.sql()).bind_all(params! { workspace_id, event: text(event)? }))
}

/// Whether the transaction was aborted because another decision or a change came first.
pub fn is_outdated(failure: &Failure) -> bool {
    match failure {
        Failure::NotNull(column) => column == "schedule_runs.outcome",
        Failure::NotUnique(column) => column == "schedule_runs.due_at",
        Failure::Other(_) => false,
    }
}

/// Whether the transaction was aborted because the batch was not inserted.
pub fn is_batch_refused(failure: &Failure) -> bool {
    matches!(failure, Failure::NotNull(column) if column == "schedule_runs.due_at")
}

/// The statement that adds a run on request to the history, if its batch was inserted before it.
pub fn insert_manual(
    scope: &impl CallerTable,
    schedule: Uuid,
    Start { run, due_at, batch }: Start,
) -> Statement {
    let sql = "INSERT INTO schedule_runs (id, workspace_id, schedule_id, due_at, started_at, batch_id, outcome, is_manual)
        SELECT :run, me.workspace_id, :schedule, :due_at, :due_at, b.id, 'started', 1
        FROM me CROSS JOIN batches b ON b.id = :batch AND b.workspace_id = me.workspace_id";
    scope.statement(sql).bind_all(params! { run, schedule, due_at, batch })
}

/// The workspaces with a schedule that was due before `until`: their alarm was lost. At most
/// `limit`, in the order of their ids after `after`.
pub async fn overdue_workspaces(
    database: &Database,
    after: i64,
    until: Timestamp,
    limit: u64,
) -> Result<Vec<i64>, Error> {
    let sql = "SELECT w.id FROM workspaces w WHERE w.id > :after AND w.deleted_at IS NULL
            AND (EXISTS (SELECT 1 FROM schedules s WHERE s.workspace_id = w.id AND s.enabled = 1
                    AND s.next_due IS NOT NULL AND s.next_due < :until)
                OR EXISTS (SELECT 1 FROM schedules s WHERE s.workspace_id = w.id AND s.queued IS NOT NULL))
        ORDER BY w.id LIMIT :limit + 0";
    db::column(
        &db::run(database, Statement::new(sql).bind_all(params! { after, until, limit })).await?,
    )
}
