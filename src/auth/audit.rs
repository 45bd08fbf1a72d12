//! Events of the request at hand, for the audit log (`docs/audit.md`), that are in no batch with a
//! change: what was refused or failed. They are written after the response, which does not wait for
//! them.

use std::time::Duration;

use farhand_domain::audit::{CELL, Event, Object, Outcome};
use farhand_domain::caller::Caller;
use farhand_domain::error::{Code, Error, Kind};
use serde_json::json;
use uuid::Uuid;
use worker::Env;

use crate::http::request::{Call, Refused};
use crate::objects::audit_sealer;
use crate::platform;
use crate::platform::hints::Hints;
use crate::platform::log;
use crate::store::anonymous_events;
use crate::store::audit as store;

/// The longest that an id from a path is kept, in characters.
const MAX_ID: usize = 64;
/// For how long an event that is like one of before is not recorded again.
const SAME_WITHIN: Duration = Duration::from_secs(60);

/// A refusal: of which credential, at which endpoint, with which code.
type Refusal = (Uuid, &'static str, String, Option<&'static str>);

thread_local! {
    /// Refusals that were recorded where nothing was to be changed.
    static REFUSED: Hints<Refusal> = Hints::new(SAME_WITHIN);
    /// Credentials, and the commands that they were recorded to have read.
    static READ: Hints<(Uuid, Uuid)> = Hints::new(SAME_WITHIN);
    /// Whether an operator token beyond the limit was recorded.
    static THROTTLED_OPERATOR: Hints<()> = Hints::new(SAME_WITHIN);
}

/// An event of the request's, signed by its caller if one is known.
fn event_of(call: &Call) -> Result<Event, Error> {
    let event = call.event()?;
    let caller = call.caller.borrow();
    Ok(caller.as_ref().map_or(event.clone(), |caller| caller.sign(event)))
}

/// Writes an event after the response, and has it sealed.
pub fn record_later(call: &Call, workspace_id: i64, event: Event) {
    let env = call.env.clone();
    call.context.wait_until(async move {
        match store::record(&env, workspace_id, &event).await {
            Ok(()) => audit_sealer::tell(&env, workspace_id).await,
            Err(error) => log::trouble(
                "audit_event_lost",
                json!({"action": event.action, "id": event.id}),
                &error.detail,
            ),
        }
    });
}

/// Writes an event after the response; an event that could not be created is logged as lost.
fn record_or_log(call: &Call, workspace_id: i64, event: Result<Event, Error>) {
    match event {
        Ok(event) => record_later(call, workspace_id, event),
        Err(error) => {
            log::trouble("audit_event_lost", json!({"request_id": call.id}), &error.detail)
        }
    }
}

/// After the response: has what the request wrote sealed.
pub fn seal_later(call: &Call) {
    for workspace in call.audited.take() {
        let env = call.env.clone();
        call.context.wait_until(async move { audit_sealer::tell(&env, workspace).await });
    }
}

/// Notes that a request was refused for want of a right, where its credential is good. What a
/// credential that is not is refused leaves nothing: guessing would fill the log. Where nothing was
/// to be changed, the same refusal once more within a minute leaves nothing either.
pub fn note_refusal(call: &Call, error: &Error) {
    let is_denial = error.kind == Kind::Forbidden
        && matches!(error.code, Some(Code::PermissionDenied | Code::ApiTokenAclNotAllowed));
    let known =
        call.caller.borrow().as_ref().map(|caller| (caller.workspace_id, caller.credential_id));
    let (true, Some((workspace_id, credential))) = (is_denial, known) else { return };
    if call.action().is_none() {
        let path = call.route.map_or("", |route| route.path);
        let refusal = (credential, path, call.method.clone(), error.code.map(Code::as_str));
        if !REFUSED.with(|refused| refused.is_new(refusal, call.now)) {
            return;
        }
    }
    record_or_log(call, workspace_id, denied(call, error));
}

fn denied(call: &Call, error: &Error) -> Result<Event, Error> {
    let code = error.code.map(Code::as_str);
    let event = event_of(call)?.that(Outcome::Denied);
    if call.action().is_none() {
        let path = call.route.map(|route| route.path.to_owned());
        return Ok(event.on(path, None).details(json!({"method": call.method, "code": code})));
    }
    let mut event = match call.refused.take() {
        Some(Refused { object, details }) => Event { object, details, ..event },
        None => {
            let (id, username) = (call.parameter("id"), call.parameter("username"));
            let kept = |text: &str| {
                (!text.is_empty()).then(|| text.chars().take(MAX_ID).collect::<String>())
            };
            event.on(kept(id), kept(username).as_deref())
        }
    };
    event.details["code"] = json!(code);
    Ok(event)
}

/// Records that a command or its output was read: after the response, and not again within a
/// minute.
pub fn note_read(call: &Call, caller: &Caller, command: Uuid) {
    if !READ.with(|read| read.is_new((caller.credential_id, command), call.now)) {
        return;
    }
    let event = call.event().map(|event| {
        let event = Event { action: "command.read".to_owned(), ..caller.sign(event) };
        event.on(Some(command.to_string()), None)
    });
    record_or_log(call, caller.workspace_id, event);
}

/// Records that a wrong operator token was refused, in the cell's chain. Those that are counted
/// leave an event each, the ones beyond the limit one event a minute and isolate: guesses must not
/// fill the log.
pub fn note_refused_operator(call: &Call, refusal: &Error) {
    let is_throttled = refusal.kind == Kind::Throttled;
    if is_throttled && !THROTTLED_OPERATOR.with(|recorded| recorded.is_new((), call.now)) {
        return;
    }
    let path = call.route.map_or("", |route| route.path);
    let details =
        json!({"method": call.method, "path": path, "code": refusal.code.map(Code::as_str)});
    let event = platform::new_id(call.now).map(|id| {
        Event::new(id, call.now, call.source(), "operator.refuse")
            .that(Outcome::Denied)
            .details(details)
    });
    record_or_log(call, CELL, event);
}

/// Notes that a caller gave a wrong current password.
pub fn note_wrong_password(call: &Call) {
    let caller = call.caller.borrow();
    let Some(caller) = caller.as_ref() else { return };
    let event = call.event().map(|event| {
        let event = caller.sign(event).on(Some(caller.user_id.to_string()), Some(&caller.username));
        event.that(Outcome::Failure)
    });
    record_or_log(call, caller.workspace_id, event);
}

/// Counts a failed login; one event a minute says how many there were, for each user and for all
/// unknown names together. The name that was sent is not recorded unless it is a user's: it may be
/// a password that was typed in the wrong place.
///
/// # Errors
/// The event could not be made.
pub fn note_failed_login(
    call: &Call,
    workspace_id: i64,
    user: Option<(i64, String)>,
) -> Result<(), Error> {
    let event = call.event()?.that(Outcome::Failure);
    let object = user.map(|(id, name)| Object::new("user", Some(id.to_string()), Some(name)));
    let statements =
        anonymous_events::anonymous(workspace_id, &Event { object, ..event }, call.now)?;
    let env = call.env.clone();
    call.context.wait_until(async move {
        match anonymous_events::write_anonymous(&env, statements).await {
            Ok(()) => audit_sealer::tell(&env, workspace_id).await,
            Err(error) => {
                log::trouble("audit_event_lost", json!({"action": "session.login"}), &error.detail)
            }
        }
    });
    Ok(())
}

/// Writes the anonymous events that were counted and are overdue.
///
/// # Errors
/// D1 did not do it.
pub async fn write_overdue(env: &Env) -> Result<(), Error> {
    for workspace in anonymous_events::write_overdue(env, platform::now()).await? {
        audit_sealer::tell(env, workspace).await;
    }
    Ok(())
}
