//! Audit events that belong to no change in D1: refusals, failures and reads (`docs/audit.md`,
//! contract 18). They are written after the response, which does not wait for them.
//!
//! The event of a change is written in the transaction of the change: see [`crate::store::audit`].

use std::time::Duration;

use farhand_domain::access::caller::Caller;
use farhand_domain::audit::event::{AuditEvent, AuditObject, AuditOutcome, CELL, shorten_denial};
use farhand_domain::error::{Code, Error, ErrorKind};
use serde_json::json;
use uuid::Uuid;
use worker::{Delay, Env};

use crate::auth::joined::{JoinKey, JoinedEvents, SingleReads};
use crate::http::request::{Call, DenialDetails};
use crate::objects::audit_sealer;
use crate::platform;
use crate::platform::hints::Hints;
use crate::platform::log;
use crate::store::anonymous_events;
use crate::store::audit as store;
use crate::store::database::Database;
use crate::store::joined_events;

/// The maximum recorded length of an id or username from a path, in characters.
const MAX_PATH_ID_CHARS: usize = 64;
/// How long the same isolate does not record an identical read again.
const REPEAT_WINDOW: Duration = Duration::from_secs(60);

/// How often counted refusals are written before they wait for the next refusal of their key.
const WRITE_TRIES: u32 = 3;
/// The pause between two of these tries.
const WRITE_PAUSE: Duration = Duration::from_secs(3);

thread_local! {
    /// Counted refusals and reads that D1 does not have yet.
    static JOINED_EVENTS: JoinedEvents = JoinedEvents::default();
    /// Recorded reads: the ids of the credential and of the command.
    static RECENT_READS: Hints<(Uuid, Uuid)> = Hints::new(REPEAT_WINDOW);
    /// The reads with an event of their own.
    static SINGLE_READS: SingleReads = SingleReads::default();
    /// Whether a wrong operator token beyond the limit was recorded.
    static RECENT_OPERATOR_THROTTLE: Hints<()> = Hints::new(REPEAT_WINDOW);
}

/// Creates the audit event of the request. If the caller is known, it is the actor.
fn signed_event(call: &Call) -> Result<AuditEvent, Error> {
    let event = call.audit_event()?;
    let caller = call.caller.borrow();
    Ok(caller.as_ref().map_or(event.clone(), |caller| caller.attribute(event)))
}

/// Writes an event after the response, and notifies the sealer.
pub fn record_later(call: &Call, workspace_id: i64, event: AuditEvent) {
    let (env, database) = (call.env.clone(), call.database.clone());
    call.context.wait_until(async move {
        match store::record(&database, workspace_id, &event).await {
            Ok(()) => audit_sealer::notify(&env, workspace_id).await,
            Err(error) => log::error(
                "audit_event_lost",
                json!({"action": event.action, "id": event.id}),
                &error.detail,
            ),
        }
    });
}

/// Like [`record_later`]. If the event could not be created, logs that it is lost.
fn record_or_log(call: &Call, workspace_id: i64, event: Result<AuditEvent, Error>) {
    match event {
        Ok(event) => record_later(call, workspace_id, event),
        Err(error) => log::error("audit_event_lost", json!({"request_id": call.id}), &error.detail),
    }
}

/// After the response: notifies the sealers of the chains that the request wrote events to.
pub fn seal_later(call: &Call) {
    for workspace in call.audited_chains.take() {
        let env = call.env.clone();
        call.context.wait_until(async move { audit_sealer::notify(&env, workspace).await });
    }
}

/// Records a 403 for a valid credential, after the response.
///
/// Refusals of invalid credentials are not recorded, because guesses would flood the log. The
/// refusals of a user with the same action and code are one event per minute: see
/// [`joined_events`]. The credential does not matter, because a user can have a hundred.
pub fn record_denial(call: &Call, error: &Error) {
    let is_denial = error.kind == ErrorKind::Forbidden
        && matches!(error.code, Some(Code::PermissionDenied | Code::ApiTokenAclNotAllowed));
    let caller = call.caller.borrow().as_ref().map(|caller| (caller.workspace_id, caller.user_id));
    let (true, Some((workspace_id, user))) = (is_denial, caller) else { return };
    match denial_event(call, error) {
        Ok(event) => {
            let code = error.code.map_or("", Code::as_str);
            let text = format!("{user} {} {code}", event.action);
            join_event(call, JoinKey { workspace_id, text }, event);
        }
        Err(error) => log::error("audit_event_lost", json!({"request_id": call.id}), &error.detail),
    }
}

/// Counts a refusal or a read, and writes the counted ones of its key after the response, unless
/// this isolate does so soon anyway.
fn join_event(call: &Call, key: JoinKey, event: AuditEvent) {
    let Some(delay) = JOINED_EVENTS.with(|joined| joined.count(&key, event, call.now)) else {
        return;
    };
    let (env, database) = (call.env.clone(), call.database.clone());
    call.context.wait_until(async move {
        if !delay.is_zero() {
            Delay::from(delay).await;
        }
        for _ in 0..WRITE_TRIES {
            if write_joined(&database, &env, &key).await {
                return;
            }
            Delay::from(WRITE_PAUSE).await;
        }
    });
}

/// Writes the counted events of a key. If D1 fails, they are counted again. Returns whether all
/// are written.
async fn write_joined(database: &Database, env: &Env, key: &JoinKey) -> bool {
    let taken = JOINED_EVENTS.with(|joined| joined.take(key));
    let Some((first, number)) = taken else { return true };
    let JoinKey { workspace_id, text } = key;
    match joined_events::add(database, *workspace_id, text, &first, number, platform::now()).await {
        Ok(()) => {
            audit_sealer::notify(env, *workspace_id).await;
            true
        }
        Err(error) => {
            let fields = json!({"action": first.action, "id": first.id, "number": number});
            log::error("joined_events_not_written", fields, &error.detail);
            JOINED_EVENTS.with(|joined| joined.put_back(key, first, number));
            false
        }
    }
}

/// The event of a refusal. Its object is the object that the handler named, or else the id or
/// username in the path. If the endpoint has no audit action, the object is the path.
fn denial_event(call: &Call, error: &Error) -> Result<AuditEvent, Error> {
    let code = error.code.map(Code::as_str);
    let event = signed_event(call)?.with_outcome(AuditOutcome::Denied);
    if call.audit_action().is_none() {
        let path = call.route.map(|route| route.path.to_owned());
        return Ok(event
            .with_object(path, None)
            .details(shorten_denial(json!({"method": call.method, "code": code}))));
    }
    let mut event = match call.denial_details.take() {
        Some(DenialDetails { object, details }) => AuditEvent { object, details, ..event },
        None => {
            let (id, username) = (call.parameter("id"), call.parameter("username"));
            let cut = |text: &str| {
                (!text.is_empty()).then(|| text.chars().take(MAX_PATH_ID_CHARS).collect::<String>())
            };
            event.with_object(cut(id), cut(username).as_deref())
        }
    };
    event.details["code"] = json!(code);
    event.details = shorten_denial(event.details);
    Ok(event)
}

/// Records that a command or its output was read, after the response. For [`REPEAT_WINDOW`],
/// further reads of the command with the same credential are not recorded. Beyond
/// [`SingleReads`] a minute, the reads of a user are one event.
pub fn record_read(call: &Call, caller: &Caller, command: Uuid) {
    if !RECENT_READS.with(|read| read.is_new((caller.credential_id, command), call.now)) {
        return;
    }
    let event = call.audit_event().map(|event| {
        let event = AuditEvent { action: "command.read".to_owned(), ..caller.attribute(event) };
        event.with_object(Some(command.to_string()), None)
    });
    let (workspace_id, user) = (caller.workspace_id, caller.user_id);
    let is_single = SINGLE_READS.with(|reads| reads.admits((workspace_id, user), call.now));
    match event {
        Ok(event) if !is_single => {
            let text = format!("{user} {}", event.action);
            join_event(call, JoinKey { workspace_id, text }, event);
        }
        event => record_or_log(call, workspace_id, event),
    }
}

/// Records a wrong operator token in the chain of the cell, after the response.
///
/// Each counted wrong token causes an event. Beyond the limit, each isolate records one event per
/// [`REPEAT_WINDOW`], so that guesses do not flood the log (contract 18).
pub fn record_refused_operator_token(call: &Call, refusal: &Error) {
    let is_throttled = refusal.kind == ErrorKind::Throttled;
    if is_throttled && !RECENT_OPERATOR_THROTTLE.with(|recorded| recorded.is_new((), call.now)) {
        return;
    }
    let path = call.route.map_or("", |route| route.path);
    let details =
        json!({"method": call.method, "path": path, "code": refusal.code.map(Code::as_str)});
    let event = platform::new_id(call.now).map(|id| {
        AuditEvent::new(id, call.now, call.source(), "operator.refuse")
            .with_outcome(AuditOutcome::Denied)
            .details(details)
    });
    record_or_log(call, CELL, event);
}

/// Records that the caller sent a wrong current password, after the response.
pub fn record_wrong_password(call: &Call) {
    let caller = call.caller.borrow();
    let Some(caller) = caller.as_ref() else { return };
    let event = call.audit_event().map(|event| {
        let event = caller
            .attribute(event)
            .with_object(Some(caller.user_id.to_string()), Some(&caller.username));
        event.with_outcome(AuditOutcome::Failure)
    });
    record_or_log(call, caller.workspace_id, event);
}

/// Counts a failed login, after the response. At most one event per minute is written for each
/// user, and at most one for all unknown usernames together. The event contains the number of
/// failures.
///
/// `user` is the id and the name of the user, or `None` for an unknown username. An unknown
/// username is not recorded, because it may be a password that was typed into the wrong field.
///
/// # Errors
/// The platform has no random bytes for the event's id.
pub fn count_failed_login(
    call: &Call,
    workspace_id: i64,
    user: Option<(i64, String)>,
) -> Result<(), Error> {
    let event = call.audit_event()?.with_outcome(AuditOutcome::Failure);
    let object = user.map(|(id, name)| AuditObject::new("user", Some(id.to_string()), Some(name)));
    let statements =
        anonymous_events::count_event(workspace_id, &AuditEvent { object, ..event }, call.now)?;
    let (env, database) = (call.env.clone(), call.database.clone());
    call.context.wait_until(async move {
        match anonymous_events::write_anonymous(&database, statements).await {
            Ok(()) => audit_sealer::notify(&env, workspace_id).await,
            Err(error) => {
                log::error("audit_event_lost", json!({"action": "session.login"}), &error.detail);
            }
        }
    });
    Ok(())
}

/// Writes the counted anonymous events and refusals that are overdue. The cron trigger calls this.
///
/// # Errors
/// D1 failed.
pub async fn write_overdue(env: &Env) -> Result<(), Error> {
    let (cell, now) = (Database::cell(env), platform::now());
    let anonymous = anonymous_events::write_overdue(&cell, now).await?;
    let joined = joined_events::write_overdue(&cell, now).await?;
    for workspace in anonymous.into_iter().chain(joined) {
        audit_sealer::notify(env, workspace).await;
    }
    Ok(())
}
