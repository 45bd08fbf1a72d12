//! Commands (contract 7).

use std::collections::BTreeMap;

use farhand_domain::caller::Caller;
use farhand_domain::command::Command;
use farhand_domain::command_list::CommandList;
use farhand_domain::command_object::Shown;
use farhand_domain::error::{Code, Error, Kind};
use farhand_domain::time::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::wait::{asked_wait, has_waited};
use super::{anybody, page_of};
use crate::auth::audit;
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::server_link::calls::{self, Ask, ByUser, Live, Refusal};
use crate::platform::log;
use crate::store::command_list;
use crate::store::commands;

/// For how long after its end a command's object is still asked: late chunks may change what it
/// says of the output.
const SETTLES_WITHIN: i64 = 10;

/// `GET /api/events/commands/`: the commands of servers that the caller reaches, the latest first.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    page_of(call, anybody, |query, page| {
        CommandList::of(query).map(|list| command_list::list(&list, page.offset()))
    })
    .await
}

/// The refusal where there is no such command, or none that the caller can see.
pub fn command_not_found() -> Error {
    Error::new(Kind::NotFound, "No such command.").code(Code::CommandNotFound)
}

/// The parts of a command object that matter to what is done with it.
#[derive(Deserialize)]
struct Known {
    server: Uuid,
    delivered_at: Option<Timestamp>,
    handled_at: Option<Timestamp>,
    status: BTreeMap<String, Value>,
}

impl Known {
    /// D1 has what the object last reported; until a command is well over, the object may be ahead
    /// of that.
    fn may_change(&self, now: Timestamp) -> bool {
        let over =
            self.handled_at.is_some_and(|handled| handled.plus_seconds(SETTLES_WITHIN) < now);
        !over || self.status.get("text").is_some_and(|text| text == "Stuck")
    }
}

/// Only its requester, staff and superusers cancel or kill a command (contract 7.7).
fn may_be_ended(command: &Command, caller: &Caller) -> Result<(), Error> {
    let is_own =
        command.requested_by.as_ref().is_some_and(|requester| requester.id == caller.user_id);
    if is_own || caller.is_staff_or_superuser() {
        Ok(())
    } else {
        Err(Error::permission_denied(
            "Only the command's requester and staff may cancel or kill it.",
        ))
    }
}

/// The command object of a command that the caller can read, as D1 knows it.
///
/// # Errors
/// The credential is not alive, or there is no such command.
pub async fn find(credential: &Credential<'_>, id: Uuid) -> Result<(Caller, String), Error> {
    let (caller, body) = credential.read(commands::one(id)).await?;
    Ok((caller, body.ok_or_else(command_not_found)?))
}

/// The same of a command that the API token's list allows: with a limited token, a command is
/// touched only if it could have been created with it.
pub async fn find_endable(
    credential: &Credential<'_>,
    id: Uuid,
) -> Result<(Caller, String), Error> {
    #[derive(Deserialize)]
    struct Endable {
        is_within: bool,
        command: Box<RawValue>,
    }
    let (caller, found) = credential.find::<Endable>(commands::endable(id)).await?;
    let found = found.ok_or_else(command_not_found)?;
    if found.is_within {
        Ok((caller, found.command.get().to_owned()))
    } else {
        Err(Error::acl_not_allowed())
    }
}

/// Lays what the object tells of a command over what D1 does.
fn updated(body: &str, live: Map<String, Value>) -> Result<Map<String, Value>, Error> {
    let mut object: Map<String, Value> = serde_json::from_str(body)?;
    object.extend(live);
    Ok(object)
}

/// `GET /api/events/commands/<id>/`, with `?wait=N` when the command is handled or after N seconds.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(command_not_found)).await?;
    let (caller, mut body) = find(&credential, id).await?;
    let wait = asked_wait(call)?;
    audit::record_read(call, &caller, id);
    let known: Known = serde_json::from_str(&body)?;
    if !known.may_change(call.now) {
        return Ok(Reply::ok_text(body));
    }
    let live = calls::try_ask(&call.env, known.server, &Ask::Live(Live { id, wait })).await;
    if has_waited(call, wait) {
        (_, body) = find(&credential.after_wait(), id).await?;
    }
    match live {
        Ok(Ok(live)) => Reply::ok(&Shown(&updated(&body, live)?)),
        // What D1 knows is all there is.
        Ok(Err(_)) => Ok(Reply::ok_text(body)),
        // What D1 knows is true, if not the latest.
        Err(error) => {
            log::trouble(
                "object_silent",
                json!({"server": known.server, "command": id}),
                &error.detail,
            );
            Ok(Reply::ok_text(body))
        }
    }
}

/// Asks the object of a command's server to end it, and returns the command object that comes of
/// it.
async fn end(
    call: &Call,
    input: Result<(), Error>,
    ask: fn(ByUser) -> Ask,
) -> Result<Map<String, Value>, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(command_not_found)).await?;
    let (caller, body) = find_endable(&credential, id).await?;
    let known: Known = serde_json::from_str(&body)?;
    may_be_ended(&serde_json::from_str(&body)?, &caller)?;
    input?;
    let event = caller.sign(call.audit_event()?).on(Some(id.to_string()), None);
    let ask = ask(ByUser { id, username: caller.username, event });
    match calls::try_ask(&call.env, known.server, &ask).await? {
        Ok(live) => updated(&body, live),
        // The server's object was wiped: what D1 knows is all there is.
        Err(Refusal::NotFound) if known.handled_at.is_none() && known.delivered_at.is_some() => {
            Err(Refusal::AlreadySent.into())
        }
        Err(Refusal::NotFound) => Err(Refusal::AlreadyHandled.into()),
        Err(refusal) => Err(refusal.into()),
    }
}

/// `POST /api/events/commands/<id>/cancel/`.
pub async fn cancel(call: &mut Call) -> Result<Reply, Error> {
    let input = call.no_fields().await;
    Reply::ok(&Shown(&end(call, input, Ask::Cancel).await?))
}

/// `DELETE /api/events/commands/<id>/`: the same as cancelling.
pub async fn delete(call: &mut Call) -> Result<Reply, Error> {
    call.discard().await;
    end(call, Ok(()), Ask::Cancel).await?;
    Ok(Reply::no_content())
}

/// `POST /api/events/commands/<id>/kill/`: 202 where the agent was asked, 200 where it never went
/// out.
pub async fn kill(call: &mut Call) -> Result<Reply, Error> {
    let input = call.no_fields().await;
    let command = end(call, input, Ask::Kill).await?;
    if command.get("delivered_at").is_some_and(Value::is_null) {
        Reply::ok(&Shown(&command))
    } else {
        Reply::accepted(&Shown(&command))
    }
}
