//! Checks whether an access control list allows a command (contract 4.14). It runs no command.

use farhand_domain::access::acl::{Acl, AclLimit, explain_line, explain_words};
use farhand_domain::access::caller::Caller;
use farhand_domain::access::rights::{AclCheck, CheckedAcl, CommandPermissions};
use farhand_domain::command::end::Denial;
use farhand_domain::command::request::{Command, Origin, Shell};
use farhand_domain::command::script::{ScriptRef, ScriptVersion};
use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::command_creation::TargetServer;
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::store::api_tokens;

/// The access control list of one of the caller's API tokens, and whether the token is accepted.
#[derive(Deserialize)]
struct CheckedToken {
    enabled: bool,
    expires_at: Option<Timestamp>,
    acl: Option<Acl>,
}

/// The JSON of [`api_tokens::for_check`].
#[derive(Deserialize)]
struct CheckLookup {
    target: Option<TargetServer>,
    script: Option<ScriptVersion>,
    token: Option<CheckedToken>,
}

/// Refuses a limited API token that checks a list other than its own.
fn require_own_list(caller: &Caller, tried: &CheckedAcl) -> Result<(), Error> {
    let Some(acl) = &caller.acl else { return Ok(()) };
    let is_own = match tried {
        CheckedAcl::Own => true,
        CheckedAcl::Sent(sent) => **sent == *acl,
        CheckedAcl::Token(id) => *id == caller.credential_id,
    };
    if is_own { Ok(()) } else { Err(Error::acl_not_allowed()) }
}

/// Returns why the command is not allowed, or `None` if it is allowed. New commands are checked
/// with the same [`CommandPermissions::allow`].
///
/// Ignores the list's `networks`, because the client may later send the command from another
/// address.
fn refusal_reason(
    check: &AclCheck,
    caller: &Caller,
    target: Option<TargetServer>,
    script: Option<&ScriptVersion>,
    acl: Option<Acl>,
) -> Option<String> {
    let acl = acl.map(|acl| Acl { networks: None, ..acl });
    let Some(target) = target else {
        return Some("There is no such server, or the caller cannot access it.".to_owned());
    };
    // An unknown script is compared, too: a limited token does not learn whether a script that its
    // list does not name exists. No version has the number 0.
    let unknown = check.script.as_ref().filter(|_| script.is_none());
    let unknown_reference =
        unknown.map(|call| ScriptRef { id: call.script, version: call.version.unwrap_or(0) });
    let rights = target.rights(caller);
    let command = Command {
        id: Uuid::nil(),
        shell: Shell::System,
        line: script.map_or_else(|| check.line.clone(), ScriptVersion::line),
        argv: check.argv.clone(),
        script: script.map(ScriptVersion::reference).or(unknown_reference),
        username: check.username.clone().unwrap_or_else(|| target.username_for(caller)),
        groupname: String::new(),
        server: target.id,
        server_name: target.name,
        requested_by: None,
        batch: None,
    };
    let rights = CommandPermissions { acl, ..rights };
    let origin =
        Origin { api_token: None, session: None, remote_ip: String::new(), has_inputs: false };
    let Err(denial) = rights.allow(&command, &origin) else {
        let reason = "There is no such script, or no such version of it.";
        return unknown.map(|_| reason.to_owned());
    };
    let limit = rights.refusal(&command, false);
    Some(match (denial, limit) {
        (Denial::Acl, Some(limit)) => {
            let rules = rights.acl.as_ref().and_then(|acl| broken_rules(acl, limit, &command));
            let rules = rules.map(|rules| format!(" ({rules})")).unwrap_or_default();
            format!("The access control list does not allow this: {limit}{rules}.")
        }
        (Denial::Account, _) => {
            "The caller cannot run commands as this account on the server.".to_owned()
        }
        (denial, _) => format!("It is not allowed: {denial}."),
    })
}

/// The rules of `*` because of which no pattern allows a command.
fn broken_rules(acl: &Acl, limit: AclLimit, command: &Command) -> Option<String> {
    match limit {
        AclLimit::Commands => explain_line(acl.commands.as_ref()?, &command.line),
        AclLimit::Argv => explain_words(acl.argv.as_ref()?, command.argv.as_ref()?),
        _ => None,
    }
}

/// `POST /api/auth/acl-check/`.
pub async fn check(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let credential = Credential::from_request(call)?;
    let check = credential.require_input(fields.and_then(AclCheck::read)).await?;
    let token = match check.tried {
        CheckedAcl::Token(id) => Some(id),
        CheckedAcl::Own | CheckedAcl::Sent(_) => None,
    };
    let (caller, found) =
        credential.find(api_tokens::for_check(&check.server, check.script.as_ref(), token)).await?;
    require_own_list(&caller, &check.tried)?;
    let CheckLookup { target, script, token } =
        found.ok_or_else(|| Error::internal("D1 returned no row"))?;
    let acl = match &check.tried {
        CheckedAcl::Own
            if caller.kind == farhand_domain::access::caller::CredentialKind::Session
                || caller.acl.is_none() =>
        {
            return Err(Error::field(
                "acl",
                "Give acl or token: the request's own credential has no list.",
            ));
        }
        CheckedAcl::Own => caller.acl.clone(),
        CheckedAcl::Sent(acl) => Some((**acl).clone()),
        CheckedAcl::Token(_) => {
            let token = token.ok_or_else(|| Error::field("token", "No such token."))?;
            if !token.enabled || token.expires_at.is_some_and(|expires| expires <= call.now) {
                let reason = "The token is disabled or has expired.";
                return Reply::ok(&json!({"allowed": false, "reason": reason}));
            }
            token.acl
        }
    };
    let reason = refusal_reason(&check, &caller, target, script.as_ref(), acl);
    Reply::ok(&json!({"allowed": reason.is_none(), "reason": reason}))
}
