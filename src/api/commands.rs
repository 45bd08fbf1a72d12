//! Commands (spec.md, Commands; contract 7).

use std::collections::BTreeMap;

use farhand_domain::acl::Acl;
use farhand_domain::command::{self, Command, NewCommand, Requester, Shell};
use farhand_domain::command_list::CommandList;
use farhand_domain::error::{Code, Error, Kind, NON_FIELD};
use farhand_domain::page::parameter;
use farhand_domain::time::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};
use uuid::Uuid;
use worker::console_error;

use super::page_of;
use crate::caller::{Caller, Credential};
use crate::link_calls::{self, Ask, Create, Live};
use crate::platform::{self, internal};
use crate::request::Call;
use crate::response::Reply;
use crate::store::{commands, servers};

/// The longest time that an answer may be waited for, in seconds (contract 7).
const MAX_WAIT: u32 = 60;

/// For how long after its end a command's object is still asked: late chunks may change what it says of the output.
const SETTLES_WITHIN: i64 = 10;

/// `GET /api/events/commands/`: the commands of servers that the caller reaches, the latest first.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    page_of(call, |query, page| CommandList::of(query).map(|list| commands::list(&list, page.offset()))).await
}

/// A server that a new command names, as far as the caller may use it.
#[derive(Deserialize)]
struct Target {
    id: Uuid,
    name: String,
    any_account: bool,
}

/// `POST /api/events/commands/`.
///
/// 1. Reads the fields; what is wrong with them is told after the credential's own refusal.
/// 2. Looks up the caller and the server in one round trip.
/// 3. Checks the run-as rule (contract 5), and the API token's access control list (contract 4).
/// 4. Asks the server's object, which records the command in D1 and hands it to the agent, or refuses.
/// 5. With `Prefer: wait=N`, the answer comes when the command is handled, or after N seconds.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.fields_of_user().await?;
    let credential = Credential::of(call)?;
    let wait = preferred_wait(&call.header("Prefer").unwrap_or_default());
    let input = fields.and_then(NewCommand::read).and_then(|new| {
        // A client that sends it relies on it: better no command than two.
        match call.header("Idempotency-Key") {
            None => Ok(new),
            Some(_) => Err(Error::field(NON_FIELD, "The header Idempotency-Key is not supported yet.")),
        }
    });
    let new = credential.checked(input).await?;

    let (sql, server) = servers::for_command(&new.server);
    let (caller, target) = credential.read(&sql, vec![server]).await?;
    // What a token's list does not name is refused alike, whether or not there is such a server.
    let is_limited = caller.acl.as_ref().is_some_and(|acl| acl.servers.is_some());
    let missing = || if is_limited { Error::acl_not_allowed() } else { Error::field("server", "No such server.") };
    let target = target.ok_or_else(missing)?;
    let target: Target = serde_json::from_str(&target).map_err(internal)?;
    let command = authorize(new, &caller, target, platform::new_id(call.now)?)?;

    let (id, server) = (command.0.id, command.0.server);
    let ask = Ask::Create(Create { workspace_id: caller.workspace_id, command: command.0.clone(), timeout: command.1 });
    let mut live: Map<String, Value> = link_calls::ask(&call.env, server, &ask).await?;
    if let Some(seconds) = wait {
        match link_calls::ask(&call.env, server, &Ask::Live(Live { id, wait: Some(seconds) })).await {
            Ok(later) => live = later,
            // It runs: an error now would make the client send it again.
            Err(error) => console_error!("the wait for command {id} was cut off: {}", error.detail),
        }
    }
    Reply::created(&command::object(&command.0, live))
}

/// The command that a request asks for, with its timeout, if the caller may run it on that server (contract 5, Run-as;
/// contract 4, Token ACL).
fn authorize(new: NewCommand, caller: &Caller, target: Target, id: Uuid) -> Result<(Command, i64), Error> {
    let username = new.username.unwrap_or_else(|| caller.username.clone());
    let as_self = username == caller.username && new.groupname.is_empty();
    if !(target.any_account || as_self) || (new.shell == Shell::Internal && !caller.is_staff_or_superuser()) {
        return Err(Error::permission_denied());
    }
    // `env` is not served yet, so no command has one. A list of accounts says nothing of groups: none but their own.
    let allows = |acl: &Acl| {
        acl.allows_command(&new.line, &username, target.id, new.shell, false)
            && (acl.usernames.is_none() || new.groupname.is_empty())
    };
    if !caller.acl.as_ref().is_none_or(allows) {
        return Err(Error::acl_not_allowed());
    }
    let requester = Requester { id: caller.user_id, username: caller.username.clone(), email: caller.email.clone() };
    let command = Command {
        id,
        shell: new.shell,
        line: new.line,
        username,
        groupname: new.groupname,
        server: target.id,
        server_name: target.name,
        requested_by: Some(requester),
    };
    Ok((command, new.timeout))
}

/// N of `Prefer: wait=N` (RFC 7240). A preference that is malformed is as good as none.
fn preferred_wait(header: &str) -> Option<u32> {
    let preference = header.split(',').find_map(|part| {
        let (name, value) = part.split(';').next()?.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then_some(value)
    })?;
    let seconds: Option<u32> = preference.trim().trim_matches('"').parse().ok();
    seconds.map(|seconds| seconds.min(MAX_WAIT))
}

/// N of `?wait=N`.
fn asked_wait(call: &Call) -> Result<Option<u32>, Error> {
    let query = call.query();
    let Some(text) = parameter(&query, "wait") else { return Ok(None) };
    let seconds = text.parse().ok().filter(|seconds| *seconds <= MAX_WAIT);
    seconds.map(Some).ok_or_else(|| Error::field("wait", format!("Enter whole seconds from 0 to {MAX_WAIT}.")))
}

fn command_not_found() -> Error {
    Error::new(Kind::NotFound, "No such command.").code(Code::CommandNotFound)
}

/// The parts of a command object that tell whether its server's object may know more.
#[derive(Deserialize)]
struct Known {
    server: Uuid,
    handled_at: Option<Timestamp>,
    status: BTreeMap<String, Value>,
}

impl Known {
    /// D1 has what the object last reported; until a command is well over, the object may be ahead of that.
    fn may_change(&self, now: Timestamp) -> bool {
        let over = self.handled_at.is_some_and(|handled| handled.plus_seconds(SETTLES_WITHIN) < now);
        !over || self.status.get("text").is_some_and(|text| text == "Stuck")
    }
}

/// `GET /api/events/commands/<id>/`, with `?wait=N` when the command is handled or after N seconds.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::of(call)?;
    let input = call.path_id(command_not_found).and_then(|id| Ok((id, asked_wait(call)?)));
    let (id, wait) = credential.checked(input).await?;
    let (object, reachable) = (commands::whole_object(), commands::reachable());
    let sql = format!("(SELECT {object} FROM commands c WHERE c.id = ?5 AND {reachable})");
    let (_, body) = credential.read(&sql, vec![id.into()]).await?;
    let body = body.ok_or_else(command_not_found)?;
    let known: Known = serde_json::from_str(&body).map_err(internal)?;
    if !known.may_change(call.now) {
        return Ok(Reply::ok_text(body));
    }
    let live: Result<Map<String, Value>, Error> =
        link_calls::ask(&call.env, known.server, &Ask::Live(Live { id, wait })).await;
    match live {
        Ok(live) => {
            let mut object: Map<String, Value> = serde_json::from_str(&body).map_err(internal)?;
            object.extend(live);
            Reply::ok(&object)
        }
        // What D1 knows is true, if not the latest.
        Err(error) => {
            console_error!("the object of server {} does not tell of command {id}: {}", known.server, error.detail);
            Ok(Reply::ok_text(body))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::preferred_wait;

    #[test]
    fn preferences() {
        assert_eq!(preferred_wait("wait=5"), Some(5));
        assert_eq!(preferred_wait("respond-async, wait=5; x=y"), Some(5));
        assert_eq!(preferred_wait("wait=600"), Some(60));
        assert_eq!(preferred_wait("Wait = \"7\""), Some(7));
        for none in ["", "wait", "wait=", "wait=x", "wait=-1", "return=minimal"] {
            assert_eq!(preferred_wait(none), None, "{none}");
        }
    }
}
