//! Creation of batches (contract 13.1 to 13.4).

use std::time::Duration;

use farhand_domain::access::caller::Caller;
use farhand_domain::audit::event::AuditObject;
use farhand_domain::batch::request::{
    Amount, BatchPlan, BatchSpec, Candidates, NewBatch, OfflineTargets, TargetSelection, authorize,
};
use farhand_domain::command::audit::denial_details;
use farhand_domain::command::lifecycle::DEFAULT_EXPIRY;
use farhand_domain::command::request::{CommandSpec, Shell};
use farhand_domain::command::script::{ScriptCall, ScriptRef};
use farhand_domain::error::{Code, Error, ErrorKind, NON_FIELD};
use farhand_domain::secret::{Secret, SecretKey};
use farhand_domain::time::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::batches::find;
use super::idempotency::{self, Creation, CreationOutcome, ResourceKind};
use super::location;
use super::wait::preferred_wait;
use crate::auth::credential::Credential;
use crate::http::request::{Call, DenialDetails};
use crate::http::response::Reply;
use crate::objects::batch::calls;
use crate::platform;
use crate::platform::log;
use crate::store::batch_targets;
use crate::store::batches::{self, NewBatchRow};
use crate::store::schedule_runs::{self, Start};

/// The path and the replay source of new batches.
pub const RESOURCE: ResourceKind =
    ResourceKind { collection: "/api/events/batches/", source: batches::REPLAY, hidden: &[] };

/// The maximum time for which one call waits for the next events of a batch.
pub const MAX_FOLLOW_WAIT: Duration = Duration::from_secs(15);

/// What a new batch needs in addition to its plan.
pub struct Submission<'a> {
    pub spec: &'a BatchSpec,
    pub name: &'a str,
    /// The schedule that the caller runs.
    pub schedule: Option<Uuid>,
    /// The batch whose targets without success this one repeats.
    pub retry_of: Option<Uuid>,
    pub scheduled_at: Timestamp,
    pub expires_at: Timestamp,
}

/// `POST /api/events/batches/`.
///
/// 1. Reads the fields. Input errors are reported after the credential check (contract 3.4).
/// 2. Reads the caller and the selected servers, in one round trip, and checks the permission on
///    each server.
/// 3. Writes the batch, its targets, its audit event and the response for the Idempotency-Key in
///    one transaction.
/// 4. Calls the batch's object, which starts the commands.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let (now, max_days) = (call.now, call.config.schedule_max_days);
    let fields = call.user_fields().await?;
    let body = idempotency::canonical_body(&fields);
    let credential = Credential::from_request(call)?;
    let input = fields.and_then(|fields| {
        let new = NewBatch::read(fields, now, max_days)?;
        Ok((new, Creation::from_request(call, &RESOURCE, body)?))
    });
    let (new, creation) = credential.require_input(input).await?;
    let (scheduled_at, expires_at) = new.times(now);
    let submission = Submission {
        spec: &new.spec,
        name: &new.name,
        schedule: None,
        retry_of: None,
        scheduled_at,
        expires_at,
    };
    let planned = plan(call, &credential, &submission).await;
    if new.dry_run {
        let (_, plan) = planned?;
        return Reply::ok(&dry_run_object(&plan));
    }
    write_or_replay(call, &credential, &creation, &submission, planned).await
}

/// Writes a planned batch, or replays the response to the first request with the same
/// Idempotency-Key.
///
/// A replay needs the permission, but neither the servers nor their connections of the first
/// request.
pub async fn write_or_replay(
    call: &Call,
    credential: &Credential<'_>,
    creation: &Creation<'_>,
    submission: &Submission<'_>,
    planned: Result<(Caller, BatchPlan), Error>,
) -> Result<Reply, Error> {
    let planned = match planned {
        Err(error) if error.kind == ErrorKind::Forbidden => return Err(error),
        planned => planned,
    };
    if let Some((_, reply)) = creation.replay(credential).await? {
        return Ok(reply);
    }
    let (caller, plan) = planned?;
    write(call, credential, creation, &caller, submission, &plan).await
}

/// The response to a dry run: the targets on which the batch would run.
fn dry_run_object(plan: &BatchPlan) -> Value {
    let targets = plan.targets.iter().map(|target| {
        json!({
            "server": target.server,
            "server_name": target.server_name,
            "username": target.username,
            "is_connected": target.is_connected,
        })
    });
    json!({
        "dry_run": true,
        "total": plan.targets.len(),
        "max_concurrency": plan.max_concurrency,
        "max_errors": plan.max_errors,
        "targets": targets.collect::<Vec<_>>(),
    })
}

/// Reads the caller and the selected servers, and checks the batch. If it is refused, stores
/// details for the audit event in `call`.
pub async fn plan(
    call: &Call,
    credential: &Credential<'_>,
    new: &Submission<'_>,
) -> Result<(Caller, BatchPlan), Error> {
    let (caller, found) = credential.find::<Candidates>(batches::candidates(new.spec)).await?;
    let found = found.ok_or_else(|| Error::internal("D1 returned no row"))?;
    let origin = caller.origin(call.remote_ip(), new.spec.command.has_inputs());
    let is_immediate = new.scheduled_at <= call.now;
    match authorize(new.spec, &caller, &origin, &found, is_immediate) {
        Ok(plan) => Ok((caller, plan)),
        Err(error) => {
            let key = platform::secret_key(&call.env)?;
            let details = denial_details(audit_details(new, found.servers.len(), &key)?, &key);
            let object = AuditObject::new("batch", None, None);
            call.denial_details.set(Some(DenialDetails { object: Some(object), details }));
            Err(error)
        }
    }
}

/// Writes a planned batch, and calls its object. Returns the response: 201 with the batch.
async fn write(
    call: &Call,
    credential: &Credential<'_>,
    creation: &Creation<'_>,
    caller: &Caller,
    new: &Submission<'_>,
    plan: &BatchPlan,
) -> Result<Reply, Error> {
    let id = platform::new_id(call.now)?;
    let key = platform::secret_key(&call.env)?;
    let inputs = batches::encrypt_inputs(&key, id, plan)?;
    let origin = caller.origin(call.remote_ip(), plan.spec.command.has_inputs());
    let row = NewBatchRow {
        id,
        name: new.name,
        plan,
        origin: &origin,
        inputs: inputs.as_deref(),
        schedule: new.schedule,
        retry_of: new.retry_of,
        added_at: call.now,
        scheduled_at: new.scheduled_at,
        expires_at: new.expires_at,
    };
    let event =
        caller.attribute(call.audit_event()?).with_object(Some(id.to_string()), Some(new.name));
    let submission = Submission { spec: &plan.spec, ..*new };
    let event = event.details(audit_details(&submission, plan.targets.len(), &key)?);
    let quotas = call.config.quotas;
    let mut batch = batches::insertion(&credential.scope, &row, quotas, &event)?;
    if let Some(schedule) = new.schedule {
        let start = Start { run: platform::new_id(call.now)?, due_at: call.now, batch: id };
        batch = batch.then(schedule_runs::insert_manual(&credential.scope, schedule, start));
    }
    match creation.write(credential, &id.to_string(), batch).await? {
        CreationOutcome::Created(caller, mut batch) => {
            begin(call, caller.workspace_id, id).await;
            let wait = preferred_wait(&call.header("Prefer").unwrap_or_default());
            if let Some(seconds) = wait.filter(|seconds| *seconds > 0) {
                wait_for_end(call, caller.workspace_id, id, seconds).await;
                batch = find(&credential.after_wait(), id).await?;
            }
            let reply = Reply::created_text(batch, location(call, RESOURCE.collection, id));
            Ok(match wait {
                Some(seconds) => reply.header("Preference-Applied", format!("wait={seconds}")),
                None => reply,
            })
        }
        CreationOutcome::Refused(_) => {
            let (_, quota) = credential.read(batches::find_exceeded_quota(&row, quotas)).await?;
            Err(batches::refusal(quota.as_deref()))
        }
        CreationOutcome::Replayed(reply) => Ok(reply),
    }
}

/// Calls the object of a new batch. If the call fails, a later call or the hourly look for batches
/// begins it: D1 has the batch.
async fn begin(call: &Call, workspace_id: i64, batch: Uuid) {
    if let Err(error) = calls::begin(&call.env, workspace_id, batch).await {
        log::error("batch_not_begun", json!({"batch": batch}), &error.detail);
    }
}

/// Waits until a batch has ended, at most for some seconds. If the object does not answer, returns
/// immediately: the batch itself was created.
async fn wait_for_end(call: &Call, workspace_id: i64, batch: Uuid, seconds: u32) {
    let until = platform::now().plus_seconds(seconds.into());
    let mut after = 0;
    loop {
        let left = until.seconds_since(platform::now());
        if left <= 0.0 {
            return;
        }
        let wait_millis = ((left * 1_000.0) as u64).min(MAX_FOLLOW_WAIT.as_millis() as u64);
        match calls::follow(&call.env, workspace_id, batch, after, wait_millis).await {
            Ok(followed) if followed.is_finished => return,
            Ok(followed) => after = followed.events.last().map_or(after, |event| event.seq),
            Err(error) => {
                log::error("batch_silent", json!({"batch": batch}), &error.detail);
                return;
            }
        }
    }
}

/// The JSON of [`batch_targets::for_retry`].
#[derive(Deserialize)]
struct FormerBatch {
    is_finished: bool,
    has_inputs: bool,
    name: String,
    shell: Shell,
    line: String,
    argv: Option<Vec<String>>,
    script: Option<ScriptRef>,
    username: Option<String>,
    groupname: String,
    timeout: i64,
    max_concurrency: u32,
    max_errors: Option<u32>,
    ramp: bool,
    on_offline: OfflineTargets,
    /// The servers of the targets that did not succeed.
    servers: Vec<Uuid>,
}

impl FormerBatch {
    /// Why the batch cannot be retried, apart from the caller's permission.
    fn obstacle(&self) -> Option<Error> {
        let conflict = |detail, code| Some(Error::new(ErrorKind::Conflict, detail).with_code(code));
        if self.servers.is_empty() && self.is_finished {
            let message = "No target is without success, on a server that you can access.";
            return Some(Error::field(NON_FIELD, message));
        }
        if !self.is_finished {
            return conflict("The batch has not ended.", Code::BatchNotEnded);
        }
        if self.has_inputs {
            let detail = "The batch had env, stdin, cwd or params, which were deleted when it ended. Create a new batch.";
            return conflict(detail, Code::InputsDeleted);
        }
        None
    }

    /// What the retry runs, and where.
    fn spec(self) -> BatchSpec {
        BatchSpec {
            command: CommandSpec {
                shell: self.shell,
                line: self.line,
                argv: self.argv,
                script: self.script.map(ScriptCall::from),
                username: self.username,
                groupname: self.groupname,
                timeout: self.timeout,
                inputs: None,
            },
            targets: TargetSelection::of_servers(self.servers),
            max_concurrency: Amount::Targets(self.max_concurrency),
            max_errors: self.max_errors.map(Amount::Targets),
            ramp: self.ramp,
            on_offline: self.on_offline,
        }
    }
}

/// `POST /api/events/batches/<id>/retry-failed/`: creates a batch of the targets that did not
/// succeed, which belongs to the caller (contract 13.10).
pub async fn retry_failed(call: &mut Call) -> Result<Reply, Error> {
    let input = call.no_fields().await;
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    // The id is the only input. With it, one key does not repeat two batches.
    let body = Some(Secret::new(id.to_string()));
    let input = input.and_then(|()| Creation::from_request(call, &RESOURCE, body));
    let (_, found) = credential.find::<FormerBatch>(batch_targets::for_retry(id)).await?;
    let former = found.ok_or_else(Error::not_found)?;
    let creation = input?;
    let obstacle = former.obstacle();
    let name = former.name.clone();
    let spec = former.spec();
    let submission = Submission {
        spec: &spec,
        name: &name,
        schedule: None,
        retry_of: Some(id),
        scheduled_at: call.now,
        expires_at: call.now.plus(DEFAULT_EXPIRY),
    };
    let planned = match (plan(call, &credential, &submission).await, obstacle) {
        (Err(error), _) if error.kind == ErrorKind::Forbidden => Err(error),
        (_, Some(obstacle)) => Err(obstacle),
        (planned, None) => planned,
    };
    write_or_replay(call, &credential, &creation, &submission, planned).await
}

/// The details of the audit event of a batch.
fn audit_details(new: &Submission<'_>, total: usize, key: &SecretKey) -> Result<Value, Error> {
    let mut details = new.spec.audit_details(total, key)?;
    details["scheduled_at"] = json!(new.scheduled_at);
    if let Some(schedule) = new.schedule {
        details["schedule"] = json!(schedule);
    }
    if let Some(retry_of) = new.retry_of {
        details["retry_of"] = json!(retry_of);
    }
    Ok(details)
}
