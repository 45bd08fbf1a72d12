//! Schedules (contract 14).

use farhand_domain::access::caller::Caller;
use farhand_domain::batch::request::{BatchSpec, Candidates, authorize};
use farhand_domain::command::lifecycle::DEFAULT_EXPIRY;
use farhand_domain::error::{Error, ErrorKind};
use farhand_domain::http::fields::Fields;
use farhand_domain::http::page::Page;
use farhand_domain::schedule::request::{ScheduleFilter, ScheduleSpec, StoredBatch};
use farhand_domain::secret::{Secret, SecretKey};
use farhand_domain::time::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::batch_creation::{self, Submission};
use super::change::{Extent, find, retry};
use super::idempotency::{self, Creation, CreationOutcome, ResourceKind};
use super::{any_caller, envelope, list_page, location, retrieve_one};
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::scheduler;
use crate::platform;
use crate::platform::log;
use crate::platform::time_zone::{TimeZone, due_times};
use crate::store::batches;
use crate::store::schedule_runs::StoredSchedule;
use crate::store::schedules::{self, ScheduleRow};

/// The `Retry-After` if there are too many schedules.
const QUOTA_RETRY_AFTER: u64 = 60;

/// The path and the replay source of new schedules.
const RESOURCE: ResourceKind =
    ResourceKind { collection: "/api/events/schedules/", source: schedules::REPLAY, hidden: &[] };

fn is_zone(name: &str) -> bool {
    TimeZone::find(name).is_some()
}

/// `GET /api/events/schedules/`: the schedules that the caller can see, newest first.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    list_page(call, any_caller, |query, _| {
        ScheduleFilter::from_query(query).map(|filter| schedules::list(&filter))
    })
    .await
}

/// `GET /api/events/schedules/<id>/`.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    retrieve_one(call, any_caller, call.path_id(Error::not_found), schedules::by_id).await
}

/// `GET /api/events/schedules/<id>/runs/`: the run history, newest first.
pub async fn runs(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let query = call.query();
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let page = match Page::from_query(&query) {
        Ok(page) => page,
        // A missing schedule is refused before the input (contract 3.4).
        Err(error) => {
            retrieve(call).await?;
            return Err(error);
        }
    };
    let list = credential.cached_list();
    let list = list.unwrap_or_else(|| credential.cache_list(schedules::runs(id), page));
    let (_, items, count) = credential.list(&list).await?;
    if count == 0 {
        retrieve(call).await?;
    }
    envelope(call, &query, page, items, count)
}

/// The columns of a schedule that follow from its fields.
struct DerivedColumns {
    definition: Map<String, Value>,
    /// The inputs, encrypted for the schedule's id.
    inputs: Option<String>,
    next_runs: Vec<Timestamp>,
}

impl DerivedColumns {
    fn new(id: Uuid, spec: &ScheduleSpec, key: &SecretKey, now: Timestamp) -> Result<Self, Error> {
        let StoredBatch { definition, hidden } = StoredBatch::new(&spec.batch);
        let inputs = Some(&hidden).filter(|hidden| !hidden.is_empty());
        let inputs = inputs.map(|hidden| batches::encrypt(key, id, hidden)).transpose()?;
        let next = due_times(&spec.cron, &spec.timezone);
        let next_runs = next.map_or_else(Vec::new, |next| spec.timing.next_runs(next, now));
        Ok(Self { definition, inputs, next_runs })
    }
}

/// `POST /api/events/schedules/`.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let now = call.now;
    let fields = call.user_fields().await?;
    let body = idempotency::canonical_body(&fields);
    let credential = Credential::from_request(call)?;
    let input = fields.and_then(|fields| {
        let spec = ScheduleSpec::read(fields, false, is_zone)?;
        Ok((spec, Creation::from_request(call, &RESOURCE, body)?))
    });
    let (mut spec, creation) = credential.require_input(input).await?;
    let (caller, found) = find::<Candidates>(&credential, batches::candidates(&spec.batch)).await?;
    check_targets(call, &caller, &mut spec.batch, &found)?;
    if let Some((_, reply)) = creation.replay(&credential).await? {
        return Ok(reply);
    }
    scheduler::announce_change(&call.env, caller.workspace_id).await?;
    let (id, key) = (platform::new_id(now)?, platform::secret_key(&call.env)?);
    let derived = DerivedColumns::new(id, &spec, &key, now)?;
    let next_due = derived.next_runs.first().copied();
    let row = ScheduleRow {
        id,
        spec: &spec,
        definition: &derived.definition,
        inputs: derived.inputs.as_deref(),
        next_due,
        next_runs: &derived.next_runs,
        remote_ip: &call.remote_ip(),
    };
    let event = call.audit_event()?.with_object(Some(id.to_string()), Some(&spec.name));
    let event = event.details(audit_details(&spec, found.servers.len(), &key)?);
    let transaction = schedules::insert(&credential.scope, &row, call.config.quotas, &event)?;
    match creation.write(&credential, &id.to_string(), transaction).await? {
        CreationOutcome::Created(caller, schedule) => {
            wake(call, &caller, next_due).await;
            Ok(Reply::created_text(schedule, location(call, RESOURCE.collection, id)))
        }
        CreationOutcome::Refused(_) => {
            let quotas = call.config.quotas;
            let (user, workspace) = (quotas.schedules_of_user, quotas.schedules_of_workspace);
            let detail = format!(
                "You have {user} schedules, or the workspace has {workspace}. Delete one first."
            );
            Err(Error::quota_exceeded(detail, QUOTA_RETRY_AFTER))
        }
        CreationOutcome::Replayed(reply) => Ok(reply),
    }
}

/// Checks the permission on the servers that a schedule selects now. It may select none: targets
/// are resolved again at each run. Named servers, groups and scripts must exist. Replaces the names
/// of servers by ids.
fn check_targets(
    call: &Call,
    caller: &Caller,
    batch: &mut BatchSpec,
    found: &Candidates,
) -> Result<(), Error> {
    let origin = caller.origin(call.remote_ip(), batch.command.has_inputs());
    match authorize(batch, caller, &origin, found, false) {
        Err(error) if error.kind == ErrorKind::Forbidden => Err(error),
        Err(error)
            if ["servers", "groups", "script", "params"]
                .iter()
                .any(|name| error.fields.contains_key(*name)) =>
        {
            Err(error)
        }
        _ => batch.targets.replace_names(&found.servers),
    }
}

/// Sets the alarm of the workspace's scheduler, after D1 has the schedule. If this call fails, the
/// alarm of [`scheduler::announce_change`] goes off a little later.
async fn wake(call: &Call, caller: &Caller, next_due: Option<Timestamp>) {
    let Some(at) = next_due else { return };
    if let Err(error) = scheduler::wake(&call.env, caller.workspace_id, at).await {
        log::error("scheduler_not_woken", json!({"request_id": call.id}), &error.detail);
    }
}

/// The JSON of [`schedules::for_change`].
#[derive(Deserialize)]
struct ScheduleForChange {
    stored: StoredSchedule,
    has_credential: bool,
}

/// `PUT` and `PATCH /api/events/schedules/<id>/`. In a `PUT`, omitted fields get the defaults of a
/// new schedule. A missing schedule is refused before the input (contract 3.4).
pub async fn change(call: &mut Call, extent: Extent) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let call = &*call;
    retry("schedule", async || {
        let (caller, found) =
            find::<ScheduleForChange>(&credential, schedules::for_change(id)).await?;
        let fields = fields.as_ref().map_err(Clone::clone)?.clone();
        change_once(call, &credential, &caller, found, extent, fields).await
    })
    .await
}

/// One attempt to change a schedule. Returns `None` if another request interfered.
async fn change_once(
    call: &Call,
    credential: &Credential<'_>,
    caller: &Caller,
    ScheduleForChange { stored, has_credential }: ScheduleForChange,
    extent: Extent,
    fields: Fields,
) -> Result<Option<Reply>, Error> {
    let (id, now, key) = (stored.id, call.now, platform::secret_key(&call.env)?);
    let mut old = stored.spec(&key)?;
    // The schedule is disabled, even if its row does not say so yet: its API token has expired.
    old.timing.enabled &= has_credential;
    let mut spec = extent.read(
        fields,
        |fields| ScheduleSpec::read(fields, true, is_zone),
        |fields| old.changed(fields, is_zone),
    )?;
    let mut details = json!({});
    if !spec.keeps_owner(&old) {
        let targets = batches::candidates(&spec.batch);
        let (caller, found) = find::<Candidates>(credential, targets).await?;
        check_targets(call, &caller, &mut spec.batch, &found)?;
        details = audit_details(&spec, found.servers.len(), &key)?;
    }
    // The request may have the names of the servers whose ids are stored.
    let takes_over = !spec.keeps_owner(&old);
    if !takes_over && spec.timing.enabled && !has_credential {
        return Err(Error::field(
            "enabled",
            "The API token or login session that the schedule runs with is not valid any more. Change another field to run it with yours.",
        ));
    }
    scheduler::announce_change(&call.env, caller.workspace_id).await?;
    let derived = DerivedColumns::new(id, &spec, &key, now)?;
    let next_due = due_times(&spec.cron, &spec.timezone).and_then(|next| {
        spec.timing.next_due_after_change(next, &old.timing, stored.next_due, now)
    });
    let row = ScheduleRow {
        id,
        spec: &spec,
        definition: &derived.definition,
        inputs: derived.inputs.as_deref(),
        next_due,
        next_runs: &derived.next_runs,
        remote_ip: &call.remote_ip(),
    };
    details["fields"] = json!(spec.changed_fields(&old)?);
    if takes_over && stored.owner != Some(caller.user_id) {
        details["previous_owner"] = json!(stored.owner);
    }
    let event = call.audit_event()?.with_object(Some(id.to_string()), Some(&spec.name));
    let event = event.details(details);
    let transaction =
        schedules::update(&credential.scope, &row, stored.revision, takes_over, &event)?;
    let (caller, schedule) = credential.write(transaction).await?;
    if schedule.is_some() {
        wake(call, &caller, next_due).await;
    }
    Ok(schedule.map(Reply::ok_text))
}

/// The details of the audit event of a schedule: when it runs, and what. `total`: the number of
/// servers that it selects now.
fn audit_details(spec: &ScheduleSpec, total: usize, key: &SecretKey) -> Result<Value, Error> {
    let ScheduleSpec { cron, timezone, timing, batch, .. } = spec;
    let mut details = batch.audit_details(total, key)?;
    details["cron"] = json!(cron);
    details["timezone"] = json!(timezone);
    details["timing"] = json!(timing);
    Ok(details)
}

/// `DELETE /api/events/schedules/<id>/`. Runs that have started go on.
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let event = call.audit_event()?.with_object(Some(id.to_string()), None);
    let (_, deleted) = credential.write(schedules::delete(&credential.scope, id, &event)?).await?;
    deleted.map(|_| Reply::no_content()).ok_or_else(Error::not_found)
}

/// `POST /api/events/schedules/<id>/run/`: starts a run now, as a batch of the caller.
pub async fn run(call: &mut Call) -> Result<Reply, Error> {
    let input = call.no_fields().await;
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let (_, found) = find::<ScheduleForChange>(&credential, schedules::for_change(id)).await?;
    input?;
    // The same key for another schedule is another request.
    let body = Some(Secret::new(id.to_string()));
    let creation = Creation::from_request(call, &batch_creation::RESOURCE, body)?;
    let spec = found.stored.spec(&platform::secret_key(&call.env)?)?;
    let submission = Submission {
        spec: &spec.batch,
        name: &spec.name,
        schedule: Some(id),
        retry_of: None,
        scheduled_at: call.now,
        expires_at: call.now.plus(DEFAULT_EXPIRY),
    };
    let planned = batch_creation::plan(call, &credential, &submission).await;
    batch_creation::write_or_replay(call, &credential, &creation, &submission, planned).await
}
