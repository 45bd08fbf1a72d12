//! One run: what happens to a schedule that is due, and the transaction that writes it.

use farhand_domain::access::caller::Caller;
use farhand_domain::audit::event::{AuditEvent, AuditOutcome, Source};
use farhand_domain::batch::request::{BatchPlan, BatchSpec, Candidates, authorize};
use farhand_domain::command::end::Denial;
use farhand_domain::command::lifecycle::DEFAULT_EXPIRY;
use farhand_domain::command::request::Origin;
use farhand_domain::error::Error;
use farhand_domain::http::endpoints::Growth;
use farhand_domain::limits::fullness::Fullness;
use farhand_domain::schedule::decision::Decision;
use farhand_domain::time::Timestamp;
use farhand_sql::statement::Statement;
use serde_json::json;
use uuid::Uuid;
use worker::Env;

use crate::platform::time_zone::due_times;
use crate::platform::{self, Config, Quotas, d1_size};
use crate::store::audit::service_event;
use crate::store::batches::{self, NewBatchRow};
use crate::store::database::Database;
use crate::store::db::{self, Failure};
use crate::store::schedule_runs::{self, Claim, Start, StoredSchedule};
use crate::store::stored_requester::StoredScope;

/// Why a run does not start.
struct Refusal {
    reason: String,
    /// The API token of the schedule has expired: the schedule is disabled.
    disables: bool,
}

impl From<Denial> for Refusal {
    fn from(denial: Denial) -> Self {
        Self { reason: format!("Refused, as {denial}."), disables: denial == Denial::Token }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let fields =
            error.fields.iter().map(|(name, messages)| format!("{name}: {}", messages.join(" ")));
        let fields: Vec<_> = fields.collect();
        let reason = if fields.is_empty() { error.detail.into_owned() } else { fields.join(" ") };
        Self { reason, disables: false }
    }
}

/// A run that may start.
struct PlannedRun {
    batch: Uuid,
    caller: Caller,
    origin: Origin,
    plan: BatchPlan,
}

/// A schedule that is due, and what happens to it.
pub struct DueSchedule {
    schedule: StoredSchedule,
    decision: Decision,
    /// The due times after the decision.
    next_runs: Vec<Timestamp>,
    /// The run of `decision.start`. `None`: no run starts.
    run: Option<Result<PlannedRun, Refusal>>,
}

/// Decides about a schedule. Returns `None` if there is nothing to decide.
fn decide(schedule: &StoredSchedule, now: Timestamp) -> Option<DueSchedule> {
    let schedule = schedule.clone();
    let Some(next) = due_times(&schedule.cron, &schedule.timezone) else {
        // The runtime's time zones have changed.
        let decision =
            Decision { start: schedule.next_due, skipped: vec![], next_due: None, queued: None };
        let reason = "The time zone is not known any more.".to_owned();
        let run = Some(Err(Refusal { reason, disables: true }));
        return Some(DueSchedule { schedule, decision, next_runs: vec![], run });
    };
    let decision = schedule.progress().decide(&next, now)?;
    let next_runs = schedule.timing.next_runs(&next, now);
    Some(DueSchedule { schedule, decision, next_runs, run: None })
}

impl DueSchedule {
    /// Decides what happens to schedules that are due. Reads the permissions of their owners and
    /// their targets, in one round trip for all runs that start.
    ///
    /// # Errors
    /// D1 failed.
    pub async fn decide(
        database: &Database,
        env: &Env,
        workspace_id: i64,
        schedules: &[StoredSchedule],
        now: Timestamp,
    ) -> Result<Vec<Self>, Error> {
        let key = platform::secret_key(env)?;
        let mut all: Vec<_> =
            schedules.iter().filter_map(|schedule| decide(schedule, now)).collect();
        let (mut starting, mut reads) = (Vec::new(), Vec::new());
        for due in &mut all {
            if due.decision.start.is_none() || due.run.is_some() {
                continue;
            }
            match due.schedule.spec(&key) {
                // The session was revoked.
                _ if due.schedule.api_token.is_none() && due.schedule.session.is_none() => {
                    due.run = Some(Err(Denial::Session.into()));
                }
                Ok(spec) => {
                    let scope = scope(workspace_id, &due.schedule);
                    reads.push(scope.read(batches::candidates(&spec.batch)));
                    starting.push((due, spec.batch));
                }
                Err(error) => due.run = Some(Err(error.into())),
            }
        }
        let results = if reads.is_empty() { vec![] } else { db::batch(database, reads).await? };
        for ((due, spec), result) in starting.into_iter().zip(&results) {
            due.run = match StoredScope::result(result)? {
                // The workspace was deleted. Then nothing is written.
                None => Some(Err(Denial::Requester.into())),
                Some(Err(denial)) => Some(Err(denial.into())),
                // Nothing is written into the history, which would fill the database as well.
                Some(Ok(read)) if !has_room(env, &read.caller) => {
                    due.decision.start = None;
                    None
                }
                Some(Ok(read)) => {
                    let found = read.body.ok_or_else(|| Error::internal("D1 returned no row"))?;
                    let found: Candidates = serde_json::from_str(&found)?;
                    Some(plan(&due.schedule, read.caller, &spec, &found)?)
                }
            };
        }
        Ok(all)
    }

    /// The batch that starts.
    pub fn batch(&self) -> Option<Uuid> {
        self.run.as_ref()?.as_ref().ok().map(|run| run.batch)
    }

    /// Writes the decision, and the batch of a run that starts. Writes nothing if the schedule has
    /// changed since it was read.
    ///
    /// # Errors
    /// D1 failed. The decision may be written nevertheless.
    pub async fn write(
        &self,
        database: &Database,
        env: &Env,
        workspace_id: i64,
    ) -> Result<(), Error> {
        match &self.run {
            None => {
                let statements = self.claim(workspace_id, &self.decision, None, false)?;
                outcome(db::batch(database, statements).await)
            }
            Some(Err(refusal)) => self.write_refusal(database, workspace_id, refusal).await,
            Some(Ok(run)) => match self.write_start(database, env, workspace_id, run).await? {
                Ok(()) => Ok(()),
                Err(refusal) => self.write_refusal(database, workspace_id, &refusal).await,
            },
        }
    }

    /// The first statements of the transaction.
    fn claim(
        &self,
        workspace_id: i64,
        decision: &Decision,
        start: Option<Start>,
        disables: bool,
    ) -> Result<Vec<Statement>, Error> {
        let now = platform::now();
        let ids = decision.skipped.iter().map(|_| platform::new_id(now));
        let ids = ids.collect::<Result<Vec<_>, _>>()?;
        let (schedule, next_runs) = (&self.schedule, &self.next_runs[..]);
        let claim = Claim { schedule, decision, ids: &ids, next_runs, start, disables, now };
        Ok(schedule_runs::claim(workspace_id, claim))
    }

    /// Writes a decision whose run is refused, with an audit event unless the run before it was
    /// refused for the same reason.
    async fn write_refusal(
        &self,
        database: &Database,
        workspace_id: i64,
        refusal: &Refusal,
    ) -> Result<(), Error> {
        let Self { schedule, decision, .. } = self;
        let event = service_event("schedule.run")?
            .with_object(Some(schedule.id.to_string()), Some(&schedule.name))
            .with_outcome(AuditOutcome::Denied)
            .details(json!({
                "due_at": decision.start, "reason": refusal.reason, "owner": schedule.owner,
                "disabled": refusal.disables,
            }));
        let refused = decision.clone().refused(&refusal.reason);
        let mut statements = self.claim(workspace_id, &refused, None, refusal.disables)?;
        statements.push(schedule_runs::audit_refusal(workspace_id, &event)?);
        outcome(db::batch(database, statements).await)
    }

    /// Writes a decision with the batch of its run. The inner error is the refusal of the batch.
    /// Then nothing was written.
    async fn write_start(
        &self,
        database: &Database,
        env: &Env,
        workspace_id: i64,
        run: &PlannedRun,
    ) -> Result<Result<(), Refusal>, Error> {
        let Some(due_at) = self.decision.start else { return Ok(Ok(())) };
        let now = platform::now();
        let key = platform::secret_key(env)?;
        let scope = scope(workspace_id, &self.schedule);
        let quotas = Config::from_env(env).quotas;
        // The number of a user's schedules is limited, and many may be due at the same time.
        let quotas = Quotas { batches_of_user: quotas.batches_of_workspace, ..quotas };
        let inputs = batches::encrypt_inputs(&key, run.batch, &run.plan)?;
        let row = NewBatchRow {
            id: run.batch,
            name: &self.schedule.name,
            plan: &run.plan,
            origin: &run.origin,
            inputs: inputs.as_deref(),
            schedule: Some(self.schedule.id),
            retry_of: None,
            added_at: now,
            scheduled_at: now,
            expires_at: now.plus(DEFAULT_EXPIRY),
        };
        let mut details = run.plan.spec.audit_details(run.plan.targets.len(), &key)?;
        details["schedule"] = json!(self.schedule.id);
        details["due_at"] = json!(due_at);
        let id = platform::new_id(now)?;
        let event =
            run.caller.attribute(AuditEvent::new(id, now, Source::default(), "batch.create"));
        let event = event.with_object(Some(run.batch.to_string()), Some(&self.schedule.name));
        let event = event.details(details);
        let start = Start { run: platform::new_id(now)?, due_at, batch: run.batch };
        let mut statements = self.claim(workspace_id, &self.decision, Some(start), false)?;
        let (_, insertion) = batches::insertion(&scope, &row, quotas, &event)?.into_parts();
        statements.extend(insertion);
        statements.push(schedule_runs::require_batch(workspace_id, start));
        match db::batch(database, statements).await {
            Err(failure) if schedule_runs::is_batch_refused(&failure) => {
                let quota = scope.read(batches::find_exceeded_quota(&row, quotas));
                let read = StoredScope::result(&db::run(database, quota).await?)?;
                Ok(Err(match read {
                    Some(Err(denial)) => denial.into(),
                    Some(Ok(read)) => batches::refusal(read.body.as_deref()).into(),
                    None => return Ok(Ok(())),
                }))
            }
            result => outcome(result).map(Ok),
        }
    }
}

/// Whether the cell has room for a batch of the schedule's owner (contract 11.7).
fn has_room(env: &Env, owner: &Caller) -> bool {
    let fullness = d1_size::fullness(env).unwrap_or(Fullness::Ok);
    fullness.require_room(Growth::Creates, owner.rank()).is_ok()
}

/// The scope of the schedule's owner.
fn scope(workspace_id: i64, schedule: &StoredSchedule) -> StoredScope {
    StoredScope { workspace_id, requester: schedule.requester(), now: platform::now() }
}

/// Checks whether the owner may run the batch on the targets that the schedule selects now.
///
/// # Errors
/// The random number generator failed. The inner error is a refusal.
fn plan(
    schedule: &StoredSchedule,
    caller: Caller,
    spec: &BatchSpec,
    found: &Candidates,
) -> Result<Result<PlannedRun, Refusal>, Error> {
    let origin = caller.origin(schedule.remote_ip.clone(), spec.command.has_inputs());
    let batch = platform::new_id(platform::now())?;
    Ok(match authorize(spec, &caller, &origin, found, true) {
        Ok(plan) => Ok(PlannedRun { batch, caller, origin, plan }),
        Err(error) => Err(error.into()),
    })
}

/// The result of a transaction. If the schedule has changed, nothing was written. That is no error:
/// the next step of the pass reads the schedule again.
fn outcome(result: Result<Vec<db::StatementResult>, Failure>) -> Result<(), Error> {
    match result {
        Err(failure) if !schedule_runs::is_outdated(&failure) => Err(failure.into()),
        _ => Ok(()),
    }
}
