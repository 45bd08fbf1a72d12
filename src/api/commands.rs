//! Commands: list, read, cancel and kill (contract 7.6 to 7.8, and 7.10).

use std::collections::BTreeMap;
use std::time::Duration;

use farhand_domain::access::caller::Caller;
use farhand_domain::command::list::CommandList;
use farhand_domain::command::object::OrderedCommand;
use farhand_domain::command::request::Command;
use farhand_domain::error::{Code, Error, ErrorKind};
use farhand_domain::time::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::wait::{needs_recheck, requested_wait};
use super::{any_caller, list_page};
use crate::auth::audit;
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::server_link::calls::{self, LinkRequest, ReadLiveFields, Refusal, UserAction};
use crate::platform::log;
use crate::store::command_list;
use crate::store::commands;

/// How long after the end of a command the Worker still calls its object. During that time, late
/// chunks can change `result` and the other fields about the output.
const LATE_CHUNK_WINDOW: Duration = Duration::from_secs(10);

/// `GET /api/events/commands/`: the commands of the servers that the caller can access, with the
/// latest `scheduled_at` first.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    list_page(call, any_caller, |query, page| {
        CommandList::from_query(query).map(|list| command_list::list(&list, page.offset()))
    })
    .await
}

/// The 404 if the command does not exist, or if the caller cannot read it.
pub fn command_not_found() -> Error {
    Error::new(ErrorKind::NotFound, "No such command.").with_code(Code::CommandNotFound)
}

/// The fields of a command object that decide how the command can be read, cancelled or killed.
#[derive(Deserialize)]
struct CommandSummary {
    server: Uuid,
    delivered_at: Option<Timestamp>,
    handled_at: Option<Timestamp>,
    status: BTreeMap<String, Value>,
}

impl CommandSummary {
    /// Whether the server's object may have newer fields than D1. The object accepts late chunks
    /// for some time after the end, and a late result replaces Stuck (contract 7.12).
    fn may_change(&self, now: Timestamp) -> bool {
        let is_final = self.handled_at.is_some_and(|handled| handled.plus(LATE_CHUNK_WINDOW) < now);
        !is_final || self.status.get("text").is_some_and(|text| text == "Stuck")
    }
}

/// Checks that the caller may cancel or kill a command: only the command's requester and staff may
/// (contract 7.7).
fn require_may_end(command: &Command, caller: &Caller) -> Result<(), Error> {
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

/// The JSON of a command that the caller can read, from D1.
///
/// # Errors
/// The credential is not valid; 404 `COMMAND_NOT_FOUND`.
pub async fn find(credential: &Credential<'_>, id: Uuid) -> Result<(Caller, String), Error> {
    let (caller, body) = credential.read_history(|by| commands::by_id(id, by)).await?;
    Ok((caller, body.ok_or_else(command_not_found)?))
}

/// Like [`find`], for a command that the caller wants to change. The access control list of the API
/// token must allow the command (contract 4.12).
///
/// # Errors
/// See [`find`]. 403 if the list does not allow the command.
pub async fn find_endable(
    credential: &Credential<'_>,
    id: Uuid,
) -> Result<(Caller, String), Error> {
    #[derive(Deserialize)]
    struct EndableCommand {
        is_within: bool,
        command: Box<RawValue>,
    }
    let (caller, found) = credential.find::<EndableCommand>(commands::endable(id)).await?;
    let found = found.ok_or_else(command_not_found)?;
    if found.is_within {
        Ok((caller, found.command.get().to_owned()))
    } else {
        Err(Error::acl_not_allowed())
    }
}

/// The command object from D1, with the newer fields from the server's object.
fn with_live_fields(body: &str, live: Map<String, Value>) -> Result<Map<String, Value>, Error> {
    let mut object: Map<String, Value> = serde_json::from_str(body)?;
    object.extend(live);
    Ok(object)
}

/// `GET /api/events/commands/<id>/`. With `?wait=N` it responds when the command has ended, or
/// after N seconds.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(command_not_found)).await?;
    let (caller, mut body) = find(&credential, id).await?;
    let wait = requested_wait(call)?;
    audit::record_read(call, &caller, id);
    let summary: CommandSummary = serde_json::from_str(&body)?;
    if !summary.may_change(call.now) {
        return Ok(Reply::ok_text(body));
    }
    let live = calls::call_or_refusal(
        &call.env,
        summary.server,
        &LinkRequest::ReadLiveFields(ReadLiveFields { id, wait }),
    )
    .await;
    if needs_recheck(call, wait) {
        (_, body) = find(&credential.after_wait(), id).await?;
    }
    match live {
        Ok(Ok(live)) => Reply::ok(&OrderedCommand(&with_live_fields(&body, live)?)),
        // The object no longer has the command, so the state in D1 is final.
        Ok(Err(_)) => Ok(Reply::ok_text(body)),
        // The state in D1 is correct, but may not be current.
        Err(error) => {
            log::error(
                "object_silent",
                json!({"server": summary.server, "command": id}),
                &error.detail,
            );
            Ok(Reply::ok_text(body))
        }
    }
}

/// Cancels or kills a command with a request message to the server's object. Returns the resulting
/// command object.
async fn end_command(
    call: &Call,
    input: Result<(), Error>,
    message: fn(UserAction) -> LinkRequest,
) -> Result<Map<String, Value>, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(command_not_found)).await?;
    let (caller, body) = find_endable(&credential, id).await?;
    let summary: CommandSummary = serde_json::from_str(&body)?;
    require_may_end(&serde_json::from_str(&body)?, &caller)?;
    input?;
    let event = caller.attribute(call.audit_event()?).with_object(Some(id.to_string()), None);
    let message = message(UserAction { id, username: caller.username, event });
    match calls::call_or_refusal(&call.env, summary.server, &message).await? {
        Ok(live) => with_live_fields(&body, live),
        // The object was wiped. D1 has the last known state of the command.
        Err(Refusal::NotFound)
            if summary.handled_at.is_none() && summary.delivered_at.is_some() =>
        {
            Err(Refusal::AlreadySent.into())
        }
        Err(Refusal::NotFound) => Err(Refusal::AlreadyHandled.into()),
        Err(refusal) => Err(refusal.into()),
    }
}

/// `POST /api/events/commands/<id>/cancel/` (contract 7.7).
pub async fn cancel(call: &mut Call) -> Result<Reply, Error> {
    let input = call.no_fields().await;
    Reply::ok(&OrderedCommand(&end_command(call, input, LinkRequest::Cancel).await?))
}

/// `DELETE /api/events/commands/<id>/`: cancels the command (contract 7.7).
pub async fn delete(call: &mut Call) -> Result<Reply, Error> {
    call.discard().await;
    end_command(call, Ok(()), LinkRequest::Cancel).await?;
    Ok(Reply::no_content())
}

/// `POST /api/events/commands/<id>/kill/`: 202 if the command was delivered, 200 if it was
/// cancelled instead (contract 7.8).
pub async fn kill(call: &mut Call) -> Result<Reply, Error> {
    let input = call.no_fields().await;
    let command = end_command(call, input, LinkRequest::Kill).await?;
    if command.get("delivered_at").is_some_and(Value::is_null) {
        Reply::ok(&OrderedCommand(&command))
    } else {
        Reply::accepted(&OrderedCommand(&command))
    }
}
