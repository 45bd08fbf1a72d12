//! Whether the caller may run a batch on the selected servers (contract 13.2).

use std::collections::HashMap;

use serde::Deserialize;
use uuid::Uuid;

use super::{BatchSpec, OfflineTargets, too_many_targets};
use crate::access::acl::{Acl, AclLimit};
use crate::access::caller::Caller;
use crate::access::rights::{CommandPermissions, default_account, run_as_rule};
use crate::command::request::{Command, MAX_TARGETS, Origin};
use crate::command::script::ScriptVersion;
use crate::error::{Code, Error, ErrorKind, combine};
use crate::fleet::labels::Labels;

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
    /// Whether the caller may name any account on the server (contract 5.6).
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
pub struct BatchPlan {
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
        number if number > MAX_TARGETS => Err(too_many_targets()),
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
) -> Result<BatchPlan, Error> {
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
    Ok(BatchPlan {
        targets: found.servers.iter().map(target).collect(),
        max_concurrency: spec.max_concurrency.rounded_up(total).max(1),
        max_errors: spec.max_errors.map(|max| max.rounded_down(total)),
        spec,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::access::acl::Acl;
    use crate::access::caller::CredentialKind;
    use crate::batch::request::NewBatch;
    use crate::http::fields::Fields;
    use crate::time::Timestamp;

    fn spec(more: &Value) -> BatchSpec {
        let mut body = json!({"targets": {"all": true}, "line": "id"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let fields = Fields::from_json(body.to_string().as_bytes()).unwrap();
        NewBatch::read(fields, Timestamp::from_millis(0), 400).unwrap().spec
    }

    fn caller(acl: Option<Value>) -> Caller {
        Caller {
            workspace_id: 1,
            user_id: 7,
            username: "mia".into(),
            email: "mia@example.com".into(),
            is_staff: false,
            is_superuser: false,
            kind: CredentialKind::ApiToken,
            credential_id: Uuid::nil(),
            moved_at: None,
            expires_at: None,
            acl: acl.map(|acl| Acl::read(&acl).unwrap()),
        }
    }

    /// Servers `a`, `b` and so on. The caller may name any account on the first ones.
    fn found(number: u8, any_account: u8) -> Candidates {
        let server = |n: u8| Candidate {
            id: Uuid::from_u128(n.into()),
            name: char::from(b'a' + n).to_string(),
            default_username: Some("web".into()).filter(|_| n == 0),
            any_account: u8::from(n < any_account),
            is_pending: 0,
            is_connected: 1,
        };
        let servers = (0..number).map(server).collect();
        Candidates { servers, unknown_servers: vec![], unknown_groups: vec![], script: None }
    }

    fn check(spec: &BatchSpec, caller: &Caller, found: &Candidates) -> Result<BatchPlan, Error> {
        let origin = caller.origin("192.0.2.1".into(), spec.command.inputs.is_some());
        authorize(spec, caller, &origin, found, true)
    }

    #[test]
    fn a_plan_has_an_account_for_each_server_and_rounded_limits() {
        let spec = spec(&json!({"max_concurrency": "50%", "max_errors": "50%"}));
        let plan = check(&spec, &caller(None), &found(3, 1)).unwrap();
        let accounts: Vec<&str> =
            plan.targets.iter().map(|target| target.username.as_str()).collect();
        assert_eq!(accounts, ["web", "mia", "mia"]);
        assert_eq!((plan.max_concurrency, plan.max_errors), (2, Some(1)));
    }

    #[test]
    fn one_refused_server_refuses_the_batch() {
        let refused = |more: Value, found: &Candidates| {
            let error = check(&spec(&more), &caller(None), found).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Forbidden);
            error.detail.into_owned()
        };
        assert!(refused(json!({"username": "root"}), &found(3, 2)).ends_with("The server is c."));
        assert!(refused(json!({"groupname": "www"}), &found(1, 0)).ends_with("The server is a."));
        assert!(refused(json!({"shell": "internal"}), &found(1, 1)).contains("internal"));
        assert!(check(&spec(&json!({"username": "root"})), &caller(None), &found(3, 3)).is_ok());
    }

    #[test]
    fn the_list_of_the_token_limits_accounts_servers_and_their_number() {
        let code = |acl: Value, more: Value| {
            check(&spec(&more), &caller(Some(acl)), &found(3, 3)).err().and_then(|error| error.code)
        };
        let denied = Some(Code::ApiTokenAclNotAllowed);
        let servers = [0, 1].map(Uuid::from_u128);
        for acl in [
            json!({"commands": ["ls"]}),
            json!({"usernames": ["mia"]}),
            json!({"usernames": ["web"]}),
            json!({"servers": servers}),
            json!({"max_targets": 2}),
            json!({"networks": ["198.51.100.0/24"]}),
            json!({"read_only": true}),
        ] {
            assert_eq!(code(acl.clone(), json!({})), denied, "{acl}");
        }
        for acl in [
            json!({}),
            json!({"commands": ["i*"]}),
            json!({"usernames": ["web", "mia"]}),
            json!({"max_targets": 3}),
            json!({"networks": ["192.0.2.0/24"]}),
        ] {
            assert_eq!(code(acl.clone(), json!({})), None, "{acl}");
        }
        assert_eq!(code(json!({"commands": ["id"]}), json!({"env": {}})), denied);
    }

    #[test]
    fn refusals_have_an_order() {
        let all = |found: &Candidates, more: Value| {
            check(&spec(&more), &caller(None), found).map(drop).map_err(|error| error.kind)
        };
        let reject = json!({"on_offline": "reject"});
        let mut bad = found(2, 0);
        bad.servers[1].is_connected = 0;
        assert_eq!(all(&bad, json!({})), Ok(()));
        assert_eq!(all(&bad, reject.clone()), Err(ErrorKind::NotConnected));
        let later = authorize(
            &spec(&reject),
            &caller(None),
            &caller(None).origin(String::new(), false),
            &bad,
            false,
        );
        assert!(later.is_ok(), "a later start ignores which servers are offline now");
        bad.servers[0].is_pending = 1;
        assert_eq!(all(&bad, reject.clone()), Err(ErrorKind::Conflict));
        bad.unknown_groups = vec![3];
        bad.unknown_servers = vec!["x".into()];
        assert_eq!(all(&bad, reject), Err(ErrorKind::Invalid));
        assert_eq!(all(&bad, json!({"username": "root"})), Err(ErrorKind::Forbidden));
        let error = check(&spec(&json!({})), &caller(None), &bad).unwrap_err();
        assert_eq!(error.fields.keys().collect::<Vec<_>>(), ["groups", "servers"]);
    }

    #[test]
    fn a_batch_has_one_to_five_thousand_targets() {
        let empty = check(&spec(&json!({})), &caller(None), &found(0, 0)).unwrap_err();
        assert!(empty.fields.contains_key("targets"));
        let mut many = found(1, 0);
        many.servers = vec![many.servers[0].clone(); MAX_TARGETS];
        assert!(check(&spec(&json!({})), &caller(None), &many).is_ok());
        many.servers.push(many.servers[0].clone());
        let error = check(&spec(&json!({})), &caller(None), &many).unwrap_err();
        assert!(error.fields.contains_key("targets"));
    }

    #[test]
    fn a_message_lists_some_names() {
        let names = (0..12).map(|n| n.to_string()).collect::<Vec<_>>();
        assert_eq!(listed(names.into_iter()), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more");
    }
}
