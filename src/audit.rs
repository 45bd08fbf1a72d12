//! Events of the request at hand, for the audit log (`docs/audit.md`), that are in no batch with a change: what was refused or
//! failed. They are written after the response, which does not wait for them.

use std::cell::RefCell;

use farhand_domain::audit::{ActorType, Event, Object, Outcome};
use farhand_domain::error::{Code, Error, Kind};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::lately::Lately;
use crate::log;
use crate::request::Call;
use crate::store::audit as store;
use crate::{platform, sealer};

/// The longest that an id from a path is kept, in characters.
const MAX_ID: usize = 64;
/// How often the same refusal is told of where nothing was to be changed, in milliseconds.
const TELL_EVERY: i64 = 60_000;

/// A refusal: of which credential, at which endpoint, with which code.
type Refusal = (Uuid, &'static str, String, Option<&'static str>);

thread_local! {
    /// When this isolate last told of a refusal.
    static TOLD: RefCell<Lately<Refusal>> = RefCell::default();
}

/// What was refused, where a handler knows more of it than the path tells.
pub struct Refused {
    /// What it was to be done to.
    pub object: Option<Object>,
    /// What else is worth knowing.
    pub details: Value,
}

/// The action of the request's endpoint, where the log has one for it.
fn action(call: &Call) -> Option<&'static str> {
    call.route?.endpoint(&call.method)?.action()
}

/// An event of the request's, signed by its caller if one is known.
fn event_of(call: &Call, action: &str) -> Result<Event, Error> {
    let event = call.event(action)?;
    let caller = call.caller.borrow();
    Ok(caller.as_ref().map_or(event.clone(), |caller| caller.sign(event)))
}

/// Writes an event after the response, and has it sealed.
pub fn record_later(call: &Call, workspace_id: i64, event: Event) {
    let env = call.env.clone();
    call.context.wait_until(async move {
        match store::record(&env, workspace_id, &event).await {
            Ok(()) => sealer::tell(&env, workspace_id).await,
            Err(error) => {
                log::trouble("audit_event_lost", json!({"action": event.action, "id": event.id}), &error.detail)
            }
        }
    });
}

/// After the response: has what the request wrote sealed.
pub fn seal_later(call: &Call) {
    for workspace in call.audited.take() {
        let env = call.env.clone();
        call.context.wait_until(async move { sealer::tell(&env, workspace).await });
    }
}

/// Notes that a request was refused for want of a right, where its credential is good. What a credential that is not is refused
/// leaves nothing: guessing would fill the log. Where nothing was to be changed, the same refusal once more within a minute leaves
/// nothing either.
pub fn note_refusal(call: &Call, error: &Error) {
    let is_denial = error.kind == Kind::Forbidden
        && matches!(error.code, Some(Code::PermissionDenied | Code::ApiTokenAclNotAllowed));
    let known = call.caller.borrow().as_ref().map(|caller| (caller.workspace_id, caller.credential_id));
    let (true, Some((workspace_id, credential))) = (is_denial, known) else { return };
    if action(call).is_none() {
        let path = call.route.map_or("", |route| route.path);
        let refusal = (credential, path, call.method.clone(), error.code.map(Code::as_str));
        if !TOLD.with_borrow_mut(|told| told.is_due(refusal, call.now, TELL_EVERY)) {
            return;
        }
    }
    match denied(call, error) {
        Ok(event) => record_later(call, workspace_id, event),
        Err(error) => log::trouble("audit_event_lost", json!({"request_id": call.id}), &error.detail),
    }
}

fn denied(call: &Call, error: &Error) -> Result<Event, Error> {
    let code = error.code.map(Code::as_str);
    let Some(action) = action(call) else {
        let path = call.route.map(|route| route.path.to_owned());
        let event = event_of(call, "endpoint.access")?.on(path, None).that(Outcome::Denied);
        return Ok(event.details(json!({"method": call.method, "code": code})));
    };
    let event = event_of(call, action)?.that(Outcome::Denied);
    let mut event = match call.refused.take() {
        Some(Refused { object, details }) => Event { object, details, ..event },
        None => {
            let (id, username) = (call.parameter("id"), call.parameter("username"));
            let kept = |text: &str| (!text.is_empty()).then(|| text.chars().take(MAX_ID).collect::<String>());
            event.on(kept(id), kept(username).as_deref())
        }
    };
    event.details["code"] = json!(code);
    Ok(event)
}

/// Notes that a caller gave a wrong current password.
pub fn note_wrong_password(call: &Call) {
    let noted = || {
        let caller = call.caller.borrow();
        let (Some(caller), Some(action)) = (caller.as_ref(), action(call)) else { return Ok(None) };
        let event = event_of(call, action)?.on(Some(caller.user_id.to_string()), Some(&caller.username));
        Ok::<_, Error>(Some((caller.workspace_id, event.that(Outcome::Failure))))
    };
    match noted() {
        Ok(Some((workspace_id, event))) => record_later(call, workspace_id, event),
        Ok(None) => {}
        Err(error) => log::trouble("audit_event_lost", json!({"request_id": call.id}), &error.detail),
    }
}

/// Notes that somebody tried to log in in vain. The name that they gave stays untold unless it is a user's: it may be a password
/// that was typed in the wrong place.
///
/// # Errors
/// The event could not be made.
pub fn note_failed_login(call: &Call, workspace_id: i64, user: Option<(i64, String)>) -> Result<(), Error> {
    let event = call.event("session.login")?.that(Outcome::Failure);
    let object = user.map(|(id, name)| Object::new("user", Some(id.to_string()), Some(name)));
    record_later(call, workspace_id, Event { object, ..event });
    Ok(())
}

/// An event of Farhand's own, that no request is the cause of.
///
/// # Errors
/// There are no random bytes for its id.
pub fn of_service(action: &str) -> Result<Event, Error> {
    let now = platform::now();
    Ok(Event::new(platform::new_id(now)?, now, Default::default(), action).by(ActorType::Service, None, None))
}
