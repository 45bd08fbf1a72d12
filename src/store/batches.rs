//! The D1 tables of batches and their targets (contract 13). A batch's object changes the states,
//! and inserts the commands.

use farhand_domain::audit::event::AuditEvent;
use farhand_domain::batch::request::{BatchPlan, BatchSpec};
use farhand_domain::command::request::MAX_TARGETS;
use farhand_domain::command::request::Origin;
use farhand_domain::error::{Error, ErrorKind};
use farhand_domain::limits::quota::{BATCH_BYTES, DAY_SECONDS, TARGET_BYTES};
use farhand_domain::link::call::Refusal;
use farhand_domain::secret::SecretKey;
use farhand_domain::time::Timestamp;
use farhand_sql::batches::{exceeded_quota, explained_quota};
use farhand_sql::quotas::add_bytes;
use farhand_sql::statement::{Parameters, Value};
use farhand_sql::{batch_counts, labels_match, selector};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::audit::{self, Insert};
use super::db::params;
use super::idempotency_keys::ReplaySource;
use super::scope::{CallerTable, Query, Scope};
use super::scripts;
use super::servers::{IS_ACCESSIBLE, MAY_USE_ANY_ACCOUNT};
use super::transaction::Transaction;
use crate::platform::{self, Quotas};

/// SQL for the batch object (contract 13.5) of a row of `batches b`, as JSON.
pub(super) const OBJECT: &str = concat!(
    "json_object('id', b.id, 'name', b.name, 'state', b.state, 'shell', b.shell, 'line', b.line,
    'username', b.username, 'groupname', b.groupname, 'timeout', b.timeout,
    'max_concurrency', b.max_concurrency, 'max_errors', b.max_errors, 'ramp', json(iif(b.ramp, 'true', 'false')),
    'on_offline', b.on_offline,
    'requested_by', (SELECT json_object('id', u.id, 'username', u.username, 'email', u.email) FROM users u
        WHERE u.id = b.requested_by AND u.workspace_id = b.workspace_id),
    'schedule', b.schedule_id, 'retry_of', b.retry_of,
    'added_at', b.added_at, 'scheduled_at', b.scheduled_at, 'expires_at', b.expires_at, 'finished_at', b.finished_at,
    'counts', ",
    batch_counts!(),
    ", 'stopped_by', b.stopped_by)"
);

/// Reads the response to a creation.
pub const REPLAY: ReplaySource = ReplaySource {
    object: OBJECT,
    row: "batches b ON b.id = :resource AND b.workspace_id = me.workspace_id",
};

/// Reads what a selection selects, as the JSON of
/// [`Candidates`](farhand_domain::batch::request::Candidates), and the script that it names. Pending
/// servers are selected only by the field `servers`.
pub fn candidates(spec: &BatchSpec) -> Query {
    let selection = &spec.targets;
    let (ids, names) = selection.ids_and_names();
    let (script, mut parameters) = scripts::for_use(spec.command.script.as_ref());
    let matches_selector = labels_match!("s.labels", ":selector");
    let limit = MAX_TARGETS + 1;
    let sql = format!(
        "json_object('script', json({script}), 'servers', (SELECT json_group_array(json_array(id, name, default_username, any_account,
                is_pending, is_connected))
            FROM (SELECT s.id, s.name, coalesce(s.default_username, s.reported_username) AS default_username,
                    {MAY_USE_ANY_ACCOUNT} AS any_account, s.registration = 'pending' AS is_pending, s.is_connected
                FROM (
                    SELECT s.id FROM json_each(:ids) n
                    CROSS JOIN servers s ON s.id = n.value AND s.workspace_id = me.workspace_id
                    UNION SELECT s.id FROM json_each(:names) n
                    CROSS JOIN servers s ON s.workspace_id = me.workspace_id AND s.name = n.value
                    UNION SELECT s.id FROM json_each(:groups) n
                    CROSS JOIN server_groups i ON i.workspace_id = me.workspace_id AND i.group_id = n.value
                    CROSS JOIN servers s ON s.id = i.server_id AND s.workspace_id = me.workspace_id
                    WHERE s.registration = 'active'
                    UNION SELECT s.id FROM servers s
                    WHERE (:all OR :selector IS NOT NULL) AND s.workspace_id = me.workspace_id
                        AND s.registration = 'active' AND (:all OR {matches_selector})
                ) selected CROSS JOIN servers s ON s.id = selected.id
                WHERE {IS_ACCESSIBLE} ORDER BY s.name LIMIT {limit})),
        'unknown_servers', (SELECT json_group_array(unknown.value) FROM (
            SELECT n.value FROM json_each(:ids) n
            WHERE NOT EXISTS (SELECT 1 FROM servers s WHERE s.id = n.value AND {IS_ACCESSIBLE})
            UNION ALL SELECT n.value FROM json_each(:names) n
            WHERE NOT EXISTS (SELECT 1 FROM servers s WHERE s.name = n.value AND {IS_ACCESSIBLE})) unknown),
        'unknown_groups', (SELECT json_group_array(n.value) FROM json_each(:groups) n
            WHERE NOT EXISTS (SELECT 1 FROM groups g WHERE g.workspace_id = me.workspace_id AND g.id = n.value
                AND (me.is_staff OR me.is_superuser OR EXISTS (SELECT 1 FROM memberships m
                    WHERE m.workspace_id = me.workspace_id AND m.user_id = me.user_id AND m.group_id = g.id)))))"
    );
    parameters.extend(params! {
        ids: Value::list(ids), names: Value::list(names), groups: Value::list(&selection.groups),
        selector: selection.selector.as_ref().map(selector::terms), all: selection.all,
    });
    Query::new(sql, parameters)
}

/// A batch to be created. Its permissions are checked.
#[derive(Clone, Copy, Debug)]
pub struct NewBatchRow<'a> {
    pub id: Uuid,
    pub name: &'a str,
    pub plan: &'a BatchPlan,
    /// The credential for the permission checks of its commands.
    pub origin: &'a Origin,
    /// The inputs as JSON, encrypted for the batch's id.
    pub inputs: Option<&'a str>,
    /// The schedule that creates the batch.
    pub schedule: Option<Uuid>,
    /// The batch whose targets without success this one repeats.
    pub retry_of: Option<Uuid>,
    pub added_at: Timestamp,
    pub scheduled_at: Timestamp,
    pub expires_at: Timestamp,
}

impl NewBatchRow<'_> {
    /// The bytes that the batch counts for the quotas of bytes, without its commands.
    fn stored_bytes(&self) -> u64 {
        let targets = self.plan.targets.len() as u64 * TARGET_BYTES;
        BATCH_BYTES + self.plan.spec.command.text_bytes() + targets
    }
}

/// The parameters of [`exceeded_quota`].
fn quota_parameters(new: &NewBatchRow<'_>, quotas: Quotas) -> Parameters {
    let total = new.plan.targets.len() as u64;
    let of_commands = new.plan.spec.command.stored_bytes().saturating_mul(total);
    params! {
        batches_of_user: quotas.batches_of_user, batches_of_workspace: quotas.batches_of_workspace,
        waiting_of_workspace: quotas.waiting_of_workspace, bytes_of_day: quotas.bytes_of_day,
        bytes_of_user: quotas.bytes_of_user, total, bytes: of_commands.saturating_add(new.stored_bytes()),
    }
}

/// Reads the quota that a batch exceeds, as an [`ExceededQuota`].
pub fn find_exceeded_quota(new: &NewBatchRow<'_>, quotas: Quotas) -> Query {
    Query::new(explained_quota(), quota_parameters(new, quotas))
}

/// The quota that a batch exceeds.
#[derive(Default, Deserialize)]
struct ExceededQuota {
    /// See [`exceeded_quota`].
    quota: Option<String>,
    /// The seconds until the batch fits into the quota of bytes.
    retry_after: Option<u64>,
}

/// The header Retry-After, in seconds, if a quota of batches is used up.
const BATCHES_RETRY_AFTER: u64 = 60;

/// The error if a batch was not inserted. `found` is the JSON of [`find_exceeded_quota`].
pub fn refusal(found: Option<&str>) -> Error {
    let found = found.and_then(|found| serde_json::from_str(found).ok());
    let ExceededQuota { quota, retry_after } = found.unwrap_or_default();
    match quota.as_deref() {
        Some("never") => Error::field(
            "targets",
            "The commands of these targets are more than the quota of bytes for 24 hours. Select fewer targets, or shorten the command.",
        ),
        Some("batches") => Error::quota_exceeded(
            "Too many batches have not finished, of yours or of the workspace. Wait until some have.",
            BATCHES_RETRY_AFTER,
        ),
        Some("waiting") => Refusal::TooManyWaiting.into(),
        Some(_) => {
            let retry_after = retry_after.unwrap_or(DAY_SECONDS);
            Refusal::TooManyBytes { retry_after }.into()
        }
        // Another request finished a batch in the meantime.
        None => Error::new(ErrorKind::Conflict, "A quota was used up a moment ago. Try again."),
    }
}

/// The inputs of a new batch, encrypted for its id.
pub fn encrypt_inputs(
    key: &SecretKey,
    batch: Uuid,
    plan: &BatchPlan,
) -> Result<Option<String>, Error> {
    let inputs = plan.spec.command.inputs.as_ref();
    inputs.map(|inputs| encrypt(key, batch, inputs)).transpose()
}

/// Inputs as JSON, encrypted for the batch or the schedule that has them.
pub fn encrypt(key: &SecretKey, id: Uuid, inputs: &impl Serialize) -> Result<String, Error> {
    let text = serde_json::to_string(inputs)?;
    let encrypted = key.encrypt_inputs(id, &text, platform::random()?);
    encrypted.map_err(|_| Error::internal("the inputs are too long to be encrypted"))
}

/// Creates a batch of the caller with its targets, unless it exceeds a quota. The reply is the
/// batch. `event` has its actor.
pub fn insertion(
    me: &impl CallerTable,
    new: &NewBatchRow<'_>,
    quotas: Quotas,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let NewBatchRow { id, plan, origin, .. } = *new;
    let (spec, command) = (&plan.spec, &plan.spec.command);
    let has_params = command.inputs.as_ref().is_some_and(|inputs| !inputs.params.is_empty());
    let insert = me.statement(&format!(
        "INSERT INTO batches (id, workspace_id, name, requested_by, api_token, session, remote_ip, schedule_id, retry_of,
            shell, line, argv, username, groupname, timeout, inputs, has_inputs, max_concurrency, max_errors, ramp,
            on_offline, added_at, scheduled_at, expires_at, state, total, pending, script, has_params)
         SELECT :id, me.workspace_id, :name, me.user_id, :api_token, :session, :remote_ip, :schedule, :retry_of,
            :shell, :line, :argv, :username, :groupname, :timeout, :inputs, :has_inputs, :max_concurrency, :max_errors,
            :ramp, :on_offline, :added_at, :scheduled_at, :expires_at, iif(:scheduled_at > :added_at, 'scheduled', 'running'),
            :total, :total, :script, :has_params
         FROM me WHERE {} IS NULL RETURNING id AS body",
        exceeded_quota()
    ));
    let insert = insert.bind_all(quota_parameters(new, quotas)).bind_all(params! {
        id, name: new.name, api_token: origin.api_token, session: origin.session, remote_ip: &origin.remote_ip,
        schedule: new.schedule, retry_of: new.retry_of, shell: command.shell.as_str(), line: &command.line,
        argv: command.argv.as_ref().map(|words| json!(words).to_string()), username: command.username.as_ref(),
        groupname: &command.groupname, timeout: command.timeout, inputs: new.inputs, has_inputs: origin.has_inputs,
        max_concurrency: plan.max_concurrency, max_errors: plan.max_errors, ramp: spec.ramp,
        on_offline: spec.on_offline.as_str(), added_at: new.added_at, scheduled_at: new.scheduled_at,
        expires_at: new.expires_at, script: command.script_ref().map(|script| script.to_string()), has_params,
    });
    let event_sql =
        Insert::from_event("me.workspace_id", ":event", "FROM me WHERE changes() > 0").sql();
    let event = me.statement(&event_sql).bind("event", audit::text(event)?);
    let targets = plan.targets.iter().map(|target| (target.server, &target.server_name));
    let insert_targets = me
        .statement(
            "INSERT INTO batch_targets (workspace_id, batch_id, position, server_id, server_name)
             SELECT me.workspace_id, :id, t.key, t.value ->> 0, t.value ->> 1 FROM me CROSS JOIN json_each(:targets) t
             WHERE EXISTS (SELECT 1 FROM batches b WHERE b.id = :id AND b.workspace_id = me.workspace_id)",
        )
        .bind_all(params! { id, targets: Value::list(targets) });
    let count_bytes = me.statement(&add_bytes()).bind("stored_bytes", new.stored_bytes());
    let reply = me
        .statement(&format!(
            "SELECT {OBJECT} AS body FROM me JOIN batches b ON b.id = :id AND b.workspace_id = me.workspace_id"
        ))
        .bind("id", id);
    let transaction =
        Transaction::default().change(insert, event).then(insert_targets).then(count_bytes);
    Ok(transaction.returning(reply))
}

/// How a user stops a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// No further command starts. A batch that is stopping already does not change.
    Cancel,
    /// Running commands are killed, too.
    Kill,
}

/// Stops a batch of the caller, or any batch if the caller is staff, unless it has ended. The reply
/// is its id.
pub fn stop(
    scope: &Scope<'_>,
    id: Uuid,
    stop: Stop,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let is_changed = match stop {
        Stop::Cancel => "b.state IN ('scheduled', 'running')",
        Stop::Kill => "true",
    };
    let update = scope
        .statement(&format!(
            "UPDATE batches AS b SET state = 'stopping', stopped_by = coalesce(b.stopped_by, 'cancel')
             WHERE b.id = :id AND b.finished_at IS NULL AND {is_changed}
                AND b.workspace_id = (SELECT me.workspace_id FROM me
                    WHERE me.is_staff OR me.is_superuser OR b.requested_by = me.user_id)
             RETURNING id AS body"
        ))
        .bind("id", id);
    Ok(Transaction::default().change(update, audit::after_change_by(scope, event)?))
}
