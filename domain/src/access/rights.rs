//! Permissions: which commands a user may run on a server (contract 5.6).

use serde::Deserialize;
use uuid::Uuid;

use crate::access::acl::{Acl, AclLimit};
use crate::agent::account::read_account;
use crate::command::end::Denial;
use crate::command::request::{
    Command, Origin, ServerRef, Shell, WhatToRun, read_server, read_what_to_run,
};
use crate::command::script::ScriptCall;
use crate::error::Error;
use crate::fleet::labels::Labels;
use crate::http::fields::{Fields, UNKNOWN};
use crate::id;

/// The permissions of a user on a server that matter to a command there.
#[derive(Clone, Debug, Deserialize)]
pub struct CommandPermissions {
    /// The user's name.
    pub username: String,
    /// Whether the user is staff or a superuser, and may use the agent's built-in commands.
    pub is_staff: bool,
    /// Whether the user may run commands as any remote account on the server (contract 5.6).
    pub any_account: bool,
    /// The labels of the server.
    pub labels: Labels,
    /// The access control list of the request's API token, if it has one.
    pub acl: Option<Acl>,
}

/// The account for a command without `username` (contract 7.2): the server's default account if the
/// caller may name that account, otherwise the caller's own username. `any_account`: the caller may
/// name any account on the server.
pub fn default_account<'a>(
    server_default: Option<&'a str>,
    any_account: bool,
    own_username: &'a str,
) -> &'a str {
    server_default.filter(|name| any_account || *name == own_username).unwrap_or(own_username)
}

/// The rule that refuses a command, as a sentence that names who may run it (contract 5.6).
pub fn run_as_rule(denial: Denial) -> &'static str {
    match denial {
        Denial::Builtin => "Only staff and superusers may use the shell internal.",
        _ => {
            "Only staff, the server's owner and managers and owners of its groups may name another account or a group."
        }
    }
}

impl CommandPermissions {
    /// Checks whether the user may run a command (contract 5.6; contract 4.12).
    ///
    /// # Errors
    /// The rule that does not allow it.
    pub fn allow(&self, command: &Command, origin: &Origin) -> Result<(), Denial> {
        self.allow_account(command)?;
        let is_near = |acl: &Acl| acl.allows_address(&origin.remote_ip);
        let is_allowed = self.refusal(command, origin.has_inputs).is_none()
            && self.acl.as_ref().is_none_or(is_near);
        if is_allowed { Ok(()) } else { Err(Denial::Acl) }
    }

    /// Checks whether the user may run a command as its account, group and shell (contract 5.6).
    ///
    /// # Errors
    /// The rule that does not allow it.
    pub fn allow_account(&self, command: &Command) -> Result<(), Denial> {
        let as_self = command.username == self.username && command.groupname.is_empty();
        if !self.any_account && !as_self {
            return Err(Denial::Account);
        }
        if command.shell == Shell::Builtin && !self.is_staff {
            return Err(Denial::Builtin);
        }
        Ok(())
    }

    /// The limit of the API token's list that does not allow a command on the server. Returns
    /// `None` if the list allows it, or there is no list. See [`Acl::refusal`].
    pub fn refusal(&self, command: &Command, has_inputs: bool) -> Option<AclLimit> {
        let acl = self.acl.as_ref()?;
        if acl.allows_labels(&self.labels) {
            acl.refusal(command, has_inputs)
        } else {
            Some(AclLimit::Selector)
        }
    }
}

/// Which access control list to check (contract 4.14).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CheckedAcl {
    /// The list of the API token that the request came with.
    Own,
    /// A list in the request's body.
    Sent(Box<Acl>),
    /// The list of the caller's API token with this id.
    Token(Uuid),
}

/// A request to check whether an access control list allows a command (contract 4.14).
#[derive(Clone, Debug)]
pub struct AclCheck {
    /// The list to check.
    pub tried: CheckedAcl,
    /// Where the command would run.
    pub server: ServerRef,
    /// The line that would run. With `argv`: its words, quoted so that a shell reads the same
    /// words.
    pub line: String,
    /// The program and its arguments, without a shell.
    pub argv: Option<Vec<String>>,
    /// The script that would run.
    pub script: Option<ScriptCall>,
    /// The remote account; `None`: the caller's username.
    pub username: Option<String>,
}

impl AclCheck {
    /// Reads the body of the request.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read(mut fields: Fields) -> Result<Self, Error> {
        let acl = fields.value("acl").map(Acl::read);
        let token = fields.optional_text("token", 1..=64).map(|text| id::parse(&text));
        let tried = match (acl, token) {
            (None, None) => Some(CheckedAcl::Own),
            (Some(Ok(acl)), None) => Some(CheckedAcl::Sent(Box::new(acl))),
            (None, Some(Some(token))) => Some(CheckedAcl::Token(token)),
            (Some(Err(problems)), _) => {
                problems.into_iter().for_each(|problem| fields.reject("acl", problem));
                None
            }
            (None, Some(None)) => {
                fields.reject("token", "Not a valid UUID.");
                None
            }
            (Some(Ok(_)), Some(_)) => {
                fields.reject("token", "Give either acl or token.");
                None
            }
        };
        let server = read_server(&mut fields);
        let run = read_what_to_run(&mut fields);
        let username = read_account(&mut fields, "username", 1);
        if fields.value("params").is_some() {
            fields.reject("params", UNKNOWN);
        }
        let ((tried, server), run) = fields.finish_with(tried.zip(server).zip(run))?;
        let WhatToRun { line, argv, script } = run;
        Ok(Self { tried, server, line, argv, script, username })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const SERVER: &str = "01936d3e-7a00-7000-8000-000000000000";

    #[test]
    fn a_check_names_one_list() {
        let read =
            |body: Value| AclCheck::read(Fields::from_json(body.to_string().as_bytes()).unwrap());
        let check = read(json!({"server": "a", "line": "id"})).unwrap();
        assert_eq!((check.tried, check.username, check.argv), (CheckedAcl::Own, None, None));
        let check =
            read(json!({"server": SERVER, "argv": ["id"], "token": SERVER, "acl": null})).unwrap();
        assert_eq!(
            (check.tried, check.line.as_str()),
            (CheckedAcl::Token(id::parse(SERVER).unwrap()), "id")
        );
        let check = read(
            json!({"server": "a", "command": "id", "acl": {"commands": ["id"]}, "username": "x"}),
        )
        .unwrap();
        assert!(matches!(check.tried, CheckedAcl::Sent(acl) if acl.allows_line("id")));
        for (body, bad) in [
            (json!({}), vec!["line", "server"]),
            (json!({"server": "a", "line": "id", "token": "x"}), vec!["token"]),
            (json!({"server": "a", "line": "id", "token": SERVER, "acl": {}}), vec!["token"]),
            (json!({"server": "a", "line": "id", "acl": {"x": 1}}), vec!["acl"]),
            (json!({"server": "a", "line": "id", "acl": []}), vec!["acl"]),
            (
                json!({"server": "a", "line": "", "argv": [], "username": "a b"}),
                vec!["argv", "username"],
            ),
        ] {
            let error = read(body.clone()).expect_err(&body.to_string());
            assert_eq!(error.fields.keys().map(AsRef::as_ref).collect::<Vec<_>>(), bad, "{body}");
        }
    }

    #[test]
    fn rank_account_and_list_decide_what_a_user_may_run() {
        let command = Command {
            id: Uuid::nil(),
            shell: Shell::System,
            line: "id".into(),
            argv: None,
            script: None,
            username: "alice".into(),
            groupname: String::new(),
            server: id::parse(SERVER).unwrap(),
            server_name: "web-1".into(),
            requested_by: None,
            batch: None,
        };
        let origin = Origin {
            api_token: None,
            session: None,
            remote_ip: "192.0.2.1".into(),
            has_inputs: false,
        };
        let rights = CommandPermissions {
            username: "alice".into(),
            is_staff: false,
            any_account: false,
            labels: Labels::from_iter([("env".to_owned(), "prod".to_owned())]),
            acl: None,
        };
        assert_eq!(rights.allow(&command, &origin), Ok(()));
        let as_other = Command { username: "root".into(), ..command.clone() };
        let as_group = Command { groupname: "www".into(), ..command.clone() };
        let internal = Command { shell: Shell::Builtin, ..command.clone() };
        assert_eq!(rights.allow(&as_other, &origin), Err(Denial::Account));
        assert_eq!(rights.allow(&as_group, &origin), Err(Denial::Account));
        assert_eq!(rights.allow(&internal, &origin), Err(Denial::Builtin));
        let free = CommandPermissions { any_account: true, is_staff: true, ..rights.clone() };
        for command in [&as_other, &as_group, &internal] {
            assert_eq!(free.allow(command, &origin), Ok(()));
        }
        let limited =
            |acl: Value| CommandPermissions { acl: Some(Acl::read(&acl).unwrap()), ..free.clone() };
        let denied = |acl: Value, command: &Command, origin: &Origin| {
            assert_eq!(limited(acl.clone()).allow(command, origin), Err(Denial::Acl), "{acl}");
        };
        assert_eq!(
            limited(json!({"usernames": ["alice"], "networks": ["192.0.2.0/24"]}))
                .allow(&command, &origin),
            Ok(())
        );
        denied(json!({"usernames": ["bob"]}), &command, &origin);
        denied(json!({"usernames": ["alice"]}), &as_group, &origin);
        denied(json!({"networks": ["198.51.100.0/24"]}), &command, &origin);
        denied(
            json!({"commands": ["id"]}),
            &command,
            &Origin { has_inputs: true, ..origin.clone() },
        );
        denied(json!({"commands": ["ls"]}), &command, &origin);
        denied(json!({"servers": []}), &command, &origin);
        denied(json!({"selector": "env=test"}), &command, &origin);
        // A server must match both limits.
        let both =
            |servers: Value, selector: &str| json!({"servers": servers, "selector": selector});
        let within = limited(both(json!([SERVER]), "env"));
        assert_eq!(within.allow(&command, &origin), Ok(()));
        assert_eq!(within.refusal(&command, false), None);
        denied(both(json!([SERVER]), "!env"), &command, &origin);
        denied(both(json!([]), "env"), &command, &origin);
        let limit = |acl: Value| limited(acl).refusal(&command, false);
        assert_eq!(limit(both(json!([SERVER]), "!env")), Some(AclLimit::Selector));
        assert_eq!(limit(both(json!([]), "env")), Some(AclLimit::Servers));
        denied(json!({"read_only": true}), &command, &origin);
    }
}
