//! Whether the caller may run a batch on the selected servers (contract 13.2).

use std::collections::HashMap;

use serde::Deserialize;
use uuid::Uuid;

use super::{BatchSpec, MAX_TARGETS, OfflineTargets};
use crate::acl::Acl;
use crate::acl_limit::AclLimit;
use crate::caller::Caller;
use crate::command::{Command, Origin};
use crate::error::{Code, Error, ErrorKind, combine};
use crate::labels::Labels;
use crate::rights::{CommandPermissions, default_account, run_as_rule};
use crate::script::ScriptVersion;

/// Maximum number of servers or groups that an error message lists.
const MAX_LISTED: usize = 10;

/// A selected server that the caller can access.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Candidate {
    /// The server's id.
    pub id: Uuid,
    /// The server's name.
    pub name: String,
    /// The account for commands without `username`, if the server has a default.
    pub default_username: Option<String>,
    /// Whether the caller may name any account there (contract 5.6).
    pub any_account: u8,
    /// Whether the server waits for approval. Only the field `servers` selects such a server.
    pub is_pending: u8,
    /// Whether its agent is connected.
    pub is_connected: u8,
}

impl Candidate {
    /// The account of the batch's command on this server.
    fn account(&self, spec: &BatchSpec, caller: &Caller) -> String {
        spec.command.username.clone().unwrap_or_else(|| {
            let server_default = self.default_username.as_deref();
            default_account(server_default, self.any_account != 0, &caller.username).to_owned()
        })
    }
}

/// What a selection selects.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Candidates {
    /// The servers, each once, in the order of their names. At most [`MAX_TARGETS`] and one.
    pub servers: Vec<Candidate>,
    /// Servers by id or name that do not exist, or that the caller cannot access.
    pub unknown_servers: Vec<String>,
    /// Groups that do not exist, or that the caller cannot see.
    pub unknown_groups: Vec<i64>,
    /// The version of the script that the request names, if it exists.
    #[serde(default)]
    pub script: Option<ScriptVersion>,
}

/// A server on which the batch runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedTarget {
    /// The server's id.
    pub server: Uuid,
    /// The server's name.
    pub server_name: String,
    /// The account.
    pub username: String,
    /// Whether its agent is connected.
    pub is_connected: bool,
}

/// A batch that the caller may run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// What to run, where and how. The version of the script is frozen.
    pub spec: BatchSpec,
    /// At least one target, in the order in which they start.
    pub targets: Vec<PlannedTarget>,
    /// Maximum number of commands that run concurrently.
    pub max_concurrency: u32,
    /// Maximum number of failures; `None`: no limit.
    pub max_errors: Option<u32>,
}

/// The first items of a list as text.
fn listed(items: impl ExactSizeIterator<Item = String>) -> String {
    let more = items.len().saturating_sub(MAX_LISTED);
    let listed = items.take(MAX_LISTED).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{listed} and {more} more") } else { listed }
}

/// The refusal of a batch, with the server that caused it.
fn refused_on(error: Error, server: &str) -> Error {
    Error { detail: format!("{} The server is {server}.", error.detail).into(), ..error }
}

/// Checks that the caller may run the command as its account on each server, and that the access
/// control list of the API token allows it.
fn check_permissions(
    spec: &BatchSpec,
    caller: &Caller,
    origin: &Origin,
    servers: &[Candidate],
) -> Result<(), Error> {
    let acl = caller.acl.as_ref();
    if acl.is_some_and(|acl| !acl.allows_address(&origin.remote_ip)) {
        return Err(Error::acl_not_allowed());
    }
    if acl.is_some_and(|acl| !acl.allows_targets(servers.len())) {
        return Err(Error::acl_refusal(AclLimit::MaxTargets));
    }
    // Only the account differs between the servers, so each account is compared with the list once.
    // SQL compared the labels with the list's selector (`Candidates`).
    let mut limits: HashMap<String, Option<AclLimit>> = HashMap::new();
    for server in servers {
        let command = Command {
            id: Uuid::nil(),
            shell: spec.command.shell,
            line: String::new(),
            argv: None,
            script: spec.command.script_ref(),
            username: server.account(spec, caller),
            groupname: spec.command.groupname.clone(),
            server: server.id,
            server_name: String::new(),
            requested_by: None,
            batch: None,
        };
        let permissions = CommandPermissions {
            username: caller.username.clone(),
            is_staff: caller.is_staff_or_superuser(),
            any_account: server.any_account != 0,
            labels: Labels::default(),
            acl: None,
        };
        permissions.allow_account(&command).map_err(|denial| {
            refused_on(Error::permission_denied(run_as_rule(denial)), &server.name)
        })?;
        let Some(acl) = acl else { continue };
        let limit = match limits.get(&command.username) {
            Some(limit) => *limit,
            None => {
                let (line, argv) = (spec.command.line.clone(), spec.command.argv.clone());
                let limit =
                    acl.refusal(&Command { line, argv, ..command.clone() }, origin.has_inputs);
                *limits.entry(command.username).or_insert(limit)
            }
        };
        let limit = limit.or((!acl.allows_server(server.id)).then_some(AclLimit::Servers));
        if let Some(limit) = limit {
            return Err(refused_on(Error::acl_refusal(limit), &server.name));
        }
    }
    Ok(())
}

/// Checks that the selection selects servers, and only existing ones.
fn check_selection(found: &Candidates) -> Result<(), Error> {
    let message = |items: String| format!("Unknown, or you cannot access them: {items}.");
    let servers = if found.unknown_servers.is_empty() {
        Ok(())
    } else {
        let unknown = listed(found.unknown_servers.iter().cloned());
        Err(Error::field("servers", message(unknown)))
    };
    let groups = if found.unknown_groups.is_empty() {
        Ok(())
    } else {
        let unknown = listed(found.unknown_groups.iter().map(ToString::to_string));
        Err(Error::field("groups", message(unknown)))
    };
    let number = match found.servers.len() {
        0 if servers.is_ok() && groups.is_ok() => {
            Err(Error::field("targets", "No server that you can access is selected."))
        }
        number if number > MAX_TARGETS => {
            let message = format!("A batch has at most {MAX_TARGETS} targets.");
            Err(Error::field("targets", message))
        }
        _ => Ok(()),
    };
    combine(combine(servers, groups), number).map(drop)
}

/// The names of the servers for which a condition is true, as text. Returns `None` if there are
/// none.
fn names_of(servers: &[Candidate], is_named: impl Fn(&Candidate) -> bool) -> Option<String> {
    let names: Vec<String> = servers
        .iter()
        .filter(|server| is_named(server))
        .map(|server| server.name.clone())
        .collect();
    (!names.is_empty()).then(|| listed(names.into_iter()))
}

/// Checks a batch for the servers that its selection selects. `is_immediate`: it starts now.
///
/// The order of refusals is that of contract 3.4.
///
/// # Errors
/// - 403 if the caller may not run the command on one of the servers.
/// - 400 if the selection names an unknown server or group, no server, or too many.
/// - 409 `SERVER_PENDING` if a server waits for approval.
/// - 503 if the request refuses offline targets and there is one.
pub fn authorize(
    spec: &BatchSpec,
    caller: &Caller,
    origin: &Origin,
    found: &Candidates,
    is_immediate: bool,
) -> Result<Plan, Error> {
    let (command, valid_script) = spec.command.frozen(found.script.as_ref());
    let spec = BatchSpec { command, ..spec.clone() };
    let is_unknown = spec.command.script.is_some() && found.script.is_none();
    // As with single commands: an unknown script gets the refusal of a script that is not listed.
    if is_unknown && caller.acl.as_ref().is_some_and(Acl::limits_scripts) {
        return Err(Error::acl_not_allowed());
    }
    check_permissions(&spec, caller, origin, &found.servers)?;
    combine(check_selection(found), valid_script)?;
    if let Some(names) = names_of(&found.servers, |server| server.is_pending != 0) {
        let detail = format!("Servers wait for approval by staff: {names}.");
        return Err(Error::new(ErrorKind::Conflict, detail).with_code(Code::ServerPending));
    }
    if spec.on_offline == OfflineTargets::Reject
        && is_immediate
        && let Some(names) = names_of(&found.servers, |server| server.is_connected == 0)
    {
        let detail = format!("Servers are not connected: {names}.");
        return Err(Error::new(ErrorKind::NotConnected, detail).with_code(Code::ServerNotConnected));
    }
    let total = found.servers.len();
    let target = |server: &Candidate| PlannedTarget {
        server: server.id,
        server_name: server.name.clone(),
        username: server.account(&spec, caller),
        is_connected: server.is_connected != 0,
    };
    Ok(Plan {
        targets: found.servers.iter().map(target).collect(),
        max_concurrency: spec.max_concurrency.rounded_up(total).max(1),
        max_errors: spec.max_errors.map(|max| max.rounded_down(total)),
        spec,
    })
}
