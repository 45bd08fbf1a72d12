//! The D1 table of schedules (contract 14). `schedule_runs` has the statements of the scheduler.

use farhand_domain::audit::event::AuditEvent;
use farhand_domain::error::Error;
use farhand_domain::schedule::request::{ScheduleFilter, ScheduleSpec};
use farhand_domain::time::Timestamp;
use farhand_sql::statement::{Parameters, Value};
use serde_json::{Map, json};
use uuid::Uuid;

use super::audit::{self, Insert};
use super::db::params;
use super::idempotency_keys::ReplaySource;
use super::list::{Filters, List};
use super::scope::{Query, Scope};
use super::servers::is_accessible;
use super::transaction::Transaction;
use crate::platform::Quotas;

/// SQL for whether a row of `schedules s` is enabled. An expired API token disables the schedules
/// that it created, although `enabled` itself changes only when the next run is due.
macro_rules! is_enabled {
    () => {
        "(s.enabled AND NOT EXISTS (SELECT 1 FROM api_tokens t WHERE t.workspace_id = s.workspace_id
            AND t.id = s.api_token AND t.expires_at <= :now))"
    };
}

/// SQL for the servers that a row of `schedules s` selects, as a JSON array of their names. A server
/// that was deleted, or that the caller cannot access, has its id instead.
macro_rules! server_names {
    () => {
        concat!(
            "(SELECT json_group_array(coalesce((SELECT s.name FROM servers s WHERE s.id = selected.value AND ",
            is_accessible!(),
            "), selected.value)) FROM json_each(s.definition, '$.targets.servers') selected)"
        )
    };
}

/// SQL for the run object (contract 14.6) of a row of `schedule_runs r`, as JSON.
macro_rules! run_object {
    () => {
        "json_object('id', r.id, 'due_at', r.due_at, 'started_at', r.started_at, 'batch', r.batch_id,
            'outcome', r.outcome, 'reason', r.reason)"
    };
}

/// SQL for the schedule object (contract 14.1) of a row of `schedules s`, as JSON.
const OBJECT: &str = concat!(
    "json_object('id', s.id, 'name', s.name, 'cron', s.cron, 'timezone', s.timezone,
    'targets', json_set(s.definition -> '$.targets', '$.servers', json(",
    server_names!(),
    ")), 'shell', s.definition -> '$.shell', 'line', s.definition -> '$.line',
    'argv', s.definition -> '$.argv', 'script', s.definition -> '$.script',
    'script_version', s.definition -> '$.script_version', 'username', s.definition -> '$.username',
    'groupname', s.definition -> '$.groupname', 'timeout', s.definition -> '$.timeout',
    'max_concurrency', s.definition -> '$.max_concurrency', 'max_errors', s.definition -> '$.max_errors',
    'ramp', s.definition -> '$.ramp', 'on_offline', s.definition -> '$.on_offline',
    'enabled', json(iif(",
    is_enabled!(),
    ", 'true', 'false')), 'starts_at', s.starts_at, 'ends_at', s.ends_at, 'misfire', s.misfire, 'overlap', s.overlap,
    'owner', (SELECT json_object('id', u.id, 'username', u.username, 'email', u.email) FROM users u
        WHERE u.id = s.owner_id AND u.workspace_id = s.workspace_id),
    'next_runs', json((SELECT json_group_array(n.value) FROM (SELECT value FROM json_each(s.next_runs)
        WHERE value > :now AND ",
    is_enabled!(),
    " LIMIT 5) n)),
    'last_run', (SELECT ",
    run_object!(),
    " FROM schedule_runs r WHERE r.workspace_id = s.workspace_id AND r.schedule_id = s.id
        ORDER BY r.due_at DESC, r.id DESC LIMIT 1),
    'added_at', s.added_at, 'updated_at', s.updated_at)"
);

/// Reads the response to a creation.
pub const REPLAY: ReplaySource = ReplaySource {
    object: OBJECT,
    row: "schedules s ON s.id = :resource AND s.workspace_id = me.workspace_id",
};

/// SQL for the condition that the caller may see and change a row of `schedules s`.
const IS_VISIBLE: &str = "s.workspace_id = me.workspace_id AND (me.is_staff OR me.is_superuser OR s.owner_id = me.user_id)";

/// The schedules that the caller can see, newest first.
pub fn list(filter: &ScheduleFilter) -> List {
    let Filters { sql, parameters } = Filters::default()
        .with("s.name = :name", "name", filter.name.as_ref())
        .with(concat!(is_enabled!(), " = :enabled"), "enabled", filter.enabled);
    let staff = format!(
        "schedules s WHERE (me.is_staff OR me.is_superuser) AND s.workspace_id = me.workspace_id{sql}"
    );
    let own = format!(
        "schedules s WHERE NOT (me.is_staff OR me.is_superuser) AND s.workspace_id = me.workspace_id
            AND s.owner_id = me.user_id{sql}"
    );
    List::new("", ("schedules s", OBJECT), &[staff, own], "s.id DESC", parameters)
}

/// SQL for the schedule object of the schedule `:id`.
fn by_id_sql() -> String {
    format!("(SELECT {OBJECT} FROM schedules s WHERE s.id = :id AND {IS_VISIBLE})")
}

/// The schedule object of a schedule.
pub fn by_id(id: Uuid) -> Query {
    Query::new(by_id_sql(), params! { id })
}

/// SQL for a row of `schedules s` as JSON, for [`StoredSchedule`](super::schedule_runs).
pub(super) const STORED: &str = "json_object('id', s.id, 'name', s.name, 'revision', s.revision, 'owner', s.owner_id,
    'api_token', s.api_token, 'session', s.session, 'remote_ip', s.remote_ip, 'cron', s.cron, 'timezone', s.timezone,
    'timing', json_object('enabled', json(iif(s.enabled, 'true', 'false')), 'starts_at', s.starts_at,
        'ends_at', s.ends_at, 'misfire', s.misfire, 'overlap', s.overlap),
    'definition', json(s.definition), 'inputs', s.inputs, 'next_due', s.next_due, 'queued', s.queued,
    'is_running', json(iif(EXISTS (SELECT 1 FROM batches b WHERE b.workspace_id = s.workspace_id
        AND b.schedule_id = s.id AND b.finished_at IS NULL), 'true', 'false')))";

/// Reads what a change of a schedule needs: `stored`, and whether its credential is valid
/// (`has_credential`).
pub fn for_change(id: Uuid) -> Query {
    let sql = format!(
        "(SELECT json_object('stored', {STORED}, 'has_credential', json(iif(s.session IS NOT NULL
            OR EXISTS (SELECT 1 FROM api_tokens t WHERE t.workspace_id = s.workspace_id AND t.id = s.api_token
                AND t.enabled AND (t.expires_at IS NULL OR t.expires_at > :now)), 'true', 'false')))
          FROM schedules s WHERE s.id = :id AND {IS_VISIBLE})"
    );
    Query::new(sql, params! { id })
}

/// What to write into the row of a schedule.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleRow<'a> {
    pub id: Uuid,
    pub spec: &'a ScheduleSpec,
    /// The fields of the batch that responses show.
    pub definition: &'a Map<String, serde_json::Value>,
    /// The other fields of the batch, encrypted.
    pub inputs: Option<&'a str>,
    /// The first due time about which nothing is decided.
    pub next_due: Option<Timestamp>,
    /// The next due times, which responses show.
    pub next_runs: &'a [Timestamp],
    /// The caller's address.
    pub remote_ip: &'a str,
}

impl ScheduleRow<'_> {
    fn parameters(&self) -> Parameters {
        let ScheduleSpec { name, cron, timezone, timing, .. } = self.spec;
        let text = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        params! {
            id: self.id, name, cron, timezone, enabled: timing.enabled, starts_at: timing.starts_at,
            ends_at: timing.ends_at, misfire: text(json!(timing.misfire)), overlap: text(json!(timing.overlap)),
            definition: json!(self.definition).to_string(), inputs: self.inputs, next_due: self.next_due,
            next_runs: Value::list(self.next_runs), remote_ip: self.remote_ip,
        }
    }
}

/// Creates a schedule of the caller, unless it exceeds a quota. The reply is the schedule.
pub fn insert(
    scope: &Scope<'_>,
    row: &ScheduleRow<'_>,
    quotas: Quotas,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let sql = "INSERT INTO schedules (id, workspace_id, name, owner_id, api_token, session, remote_ip, cron, timezone,
            enabled, starts_at, ends_at, misfire, overlap, definition, inputs, next_due, next_runs, added_at, updated_at)
         SELECT :id, workspace_id, :name, user_id, iif(kind = 'api_token', credential_id, NULL),
            iif(kind = 'session', credential_id, NULL), :remote_ip, :cron, :timezone, :enabled, :starts_at, :ends_at,
            :misfire, :overlap, :definition, :inputs, :next_due, :next_runs, :now, :now
         FROM me
         WHERE :of_user > (SELECT count(*) FROM schedules s WHERE s.workspace_id = me.workspace_id AND s.owner_id = me.user_id)
            AND :of_workspace > (SELECT count(*) FROM schedules s WHERE s.workspace_id = me.workspace_id)
         RETURNING id AS body";
    let insert = scope.statement(sql).bind_all(row.parameters()).bind_all(params! {
        of_user: quotas.schedules_of_user, of_workspace: quotas.schedules_of_workspace,
    });
    let reply =
        scope.statement(&format!("SELECT {} AS body FROM me", by_id_sql())).bind("id", row.id);
    Ok(Transaction::default()
        .change(insert, audit::after_change_by(scope, event)?)
        .returning(reply))
}

/// Changes a schedule, if it still has the `revision` that was read. `takes_over`: the caller
/// becomes the owner. The reply is the schedule.
pub fn update(
    scope: &Scope<'_>,
    row: &ScheduleRow<'_>,
    revision: i64,
    takes_over: bool,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let sql = format!(
        "UPDATE schedules AS s SET name = :name, cron = :cron, timezone = :timezone, enabled = :enabled,
            starts_at = :starts_at, ends_at = :ends_at, misfire = :misfire, overlap = :overlap, definition = :definition,
            inputs = :inputs, next_due = :next_due, next_runs = :next_runs, revision = s.revision + 1, updated_at = :now,
            owner_id = iif(:takes_over, me.user_id, s.owner_id),
            api_token = iif(:takes_over, iif(me.kind = 'api_token', me.credential_id, NULL), s.api_token),
            session = iif(:takes_over, iif(me.kind = 'session', me.credential_id, NULL), s.session),
            remote_ip = iif(:takes_over, :remote_ip, s.remote_ip)
         FROM me WHERE s.id = :id AND s.revision = :revision AND {IS_VISIBLE}
         RETURNING id AS body"
    );
    let update =
        scope.statement(&sql).bind_all(row.parameters()).bind_all(params! { revision, takes_over });
    let reply =
        scope.statement(&format!("SELECT {} AS body FROM me", by_id_sql())).bind("id", row.id);
    Ok(Transaction::default()
        .change(update, audit::after_change_by(scope, event)?)
        .returning(reply))
}

/// Deletes a schedule. The audit event is written first: it reads the schedule's name.
pub fn delete(scope: &Scope<'_>, id: Uuid, event: &AuditEvent) -> Result<Transaction, Error> {
    let rest = format!(
        "FROM me CROSS JOIN schedules s ON s.id = :event ->> '$.object.id' AND {IS_VISIBLE}"
    );
    let insert = Insert { object_name: Some("s.name"), rest: &rest, ..Insert::by_me() };
    let event = insert.statement(scope, event)?;
    let delete = scope
        .statement(&format!(
            "DELETE FROM schedules WHERE id IN (SELECT s.id FROM me CROSS JOIN schedules s ON s.id = :id AND {IS_VISIBLE})
             RETURNING id AS body"
        ))
        .bind("id", id);
    Ok(Transaction::default().change_after_event(event, delete))
}

/// The run history of a schedule, newest first.
pub fn runs(id: Uuid) -> List {
    let rows = format!(
        "schedules s CROSS JOIN schedule_runs r ON r.workspace_id = s.workspace_id AND r.schedule_id = s.id
         WHERE s.id = :id AND {IS_VISIBLE}"
    );
    let order = "r.due_at DESC, r.id DESC";
    List::new("", ("schedule_runs r", run_object!()), &[rows], order, params! { id })
}
