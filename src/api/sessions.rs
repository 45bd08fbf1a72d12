//! Login sessions: login, logout, and the list of sessions (contract 4.4 and 4.7).

use farhand_domain::audit::event::{ActorType, AuditEvent, CredentialType};
use farhand_domain::error::{Code, Error, ErrorKind, NON_FIELD};
use farhand_domain::http::fields::Fields;
use farhand_domain::http::page::boolean_parameter;
use farhand_domain::mail::notice::{Notice, NoticeKind};
use farhand_domain::people::password::PasswordCheck;
use farhand_domain::people::session;
use farhand_domain::secret::{Purpose, credential_hash};
use serde_json::{Value, json};
use uuid::Uuid;

use super::notices::{Audience, notify_later};
use super::passwords::forbidden_without_header;
use super::{any_caller, list_page, retrieve_one};
use crate::auth::audit::count_failed_login;
use crate::auth::credential::{self, Credential};
use crate::auth::guesses::{self, Guess, Guesser};
use crate::auth::hashing;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::platform;
use crate::platform::log;
use crate::store::login_tokens::{self, Entry};
use crate::store::users::UserForLogin;
use crate::store::{sessions, users};

/// The same message for an unknown user, an inactive user and a wrong password (contract 4.4).
const WRONG_CREDENTIALS: &str = "Unable to log in with the provided credentials.";
/// The maximum stored length of a User-Agent (contract 4.7).
const MAX_USER_AGENT_CHARS: usize = 512;

/// `POST /api/auth/login/` (contract 4.4).
///
/// 1. Reads the fields, from JSON or a form. If fields are missing, responds with 403 and field
///    arrays.
/// 2. Refuses the request if too many guesses were wrong (contract 4.5).
/// 3. Looks up the user and checks the password. The work is the same for an unknown or inactive
///    user.
/// 4. Creates the session in D1, if the user is active and the password has not changed since step
/// 3.
/// 5. Writes the token to KV, and responds with it.
pub async fn login(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.login_fields().await?;
    let (username, password) = read_login(fields)?;
    let workspace = call.workspace()?;

    let check = async |guess: &Guess| log_in(call, workspace, (&username, &password), guess).await;
    let reply = guesses::check_throttled(call, (Guesser::Anonymous, &username), check).await?;
    reply.ok_or_else(|| Error {
        kind: ErrorKind::Forbidden,
        ..Error::field(NON_FIELD, WRONG_CREDENTIALS)
    })
}

/// The stored form of a username.
fn normalized_username(username: &str) -> String {
    username.to_lowercase()
}

/// Creates a session if the password is correct. Returns `None` if it is wrong.
async fn log_in(
    call: &Call,
    workspace: &str,
    (username, password): (&str, &str),
    guess: &Guess,
) -> Result<Option<Reply>, Error> {
    let mut failed = None;
    // A concurrent login of the same user may store a new hash of the same password after the
    // lookup. Then the session is not created, and one more attempt is made.
    for _ in 0..2 {
        let found = users::for_login(&call.database, workspace, username)
            .await?
            .ok_or_else(Error::not_found)?;
        let checked =
            hashing::check(call, &guess.rank, password, found.password.as_deref()).await?;
        failed =
            Some((found.workspace_id, found.user_id.map(|id| (id, normalized_username(username)))));
        let (Some(user_id), Some(stored), true) =
            (found.user_id, &found.password, checked.is_correct)
        else {
            break;
        };
        let id = platform::new_id(call.now)?;
        let event = call.audit_event()?.with_object(Some(id.to_string()), None);
        let event = event.with_actor(
            ActorType::User,
            Some(user_id.to_string()),
            Some(normalized_username(username)),
        );
        let event = event.with_credential(CredentialType::Session, Some(id.to_string()));
        if let Some(reply) = create_session(
            call,
            workspace,
            (id, user_id),
            (username, password),
            stored,
            checked,
            &event,
        )
        .await?
        {
            // A user's first login comes from a new network, too, and causes no mail.
            if guess.is_new_network && found.last_login.is_some() {
                notify_of_new_network(call, workspace, username, found);
            }
            return Ok(Some(reply));
        }
    }
    if let Some((workspace_id, user)) = failed {
        count_failed_login(call, workspace_id, user)?;
    }
    Ok(None)
}

/// After the response: a mail to a user about a login from a new network.
fn notify_of_new_network(call: &Call, workspace: &str, username: &str, found: UserForLogin) {
    let account = normalized_username(username);
    let notice = Notice {
        kind: NoticeKind::NewNetwork,
        workspace_id: found.workspace_id,
        workspace: workspace.to_owned(),
        actor: account.clone(),
        account,
        remote_ip: call.remote_ip(),
        at: call.now,
        recipients: found.email.into_iter().collect(),
    };
    notify_later(call, notice, Audience::Named);
}

/// Creates a session for a user whose password was checked against `stored`. Returns `None` if the
/// user's hash is no longer `stored`, or if the user is no longer active.
async fn create_session(
    call: &Call,
    workspace: &str,
    (id, user_id): (Uuid, i64),
    (username, password): (&str, &str),
    stored: &str,
    checked: PasswordCheck,
    event: &AuditEvent,
) -> Result<Option<Reply>, Error> {
    let token = platform::new_secret()?;
    let token_hash = credential_hash(Purpose::Token, &token);
    let renewed = if checked.is_outdated {
        Some(hashing::hash(call, username, password).await?)
    } else {
        None
    };
    let user_agent: String =
        call.header("User-Agent").unwrap_or_default().chars().take(MAX_USER_AGENT_CHARS).collect();
    let new = sessions::NewSession {
        id,
        user_id,
        checked_password: stored,
        password: renewed.as_deref().unwrap_or(stored),
        token_hash: &token_hash,
        user_agent: &user_agent,
        remote_ip: &call.remote_ip(),
        expires_at: session::expires_at(call.now),
        max_sessions: call.config.quotas.sessions_of_user,
    };
    let entry = Entry { session: new.id, expires_at: new.expires_at };
    let created = sessions::insert(&call.database, workspace, new, event, call.now).await?;
    let Some(workspace_id) = created else { return Ok(None) };
    call.audited_chains.borrow_mut().push(workspace_id);
    // The token also works without its KV entry. The next request writes the entry.
    if let Err(error) = login_tokens::put(&call.env, workspace, &token_hash, entry).await {
        log::error("kv_not_written", json!({"request_id": call.id}), &error.detail);
    }
    Reply::ok(&json!({"token": token.expose(), "expires_at": entry.expires_at})).map(Some)
}

/// Reads the username and the password of a login. Missing or blank fields cause 403, and unknown
/// fields cause 400 (contract 4.4).
fn read_login(mut fields: Fields) -> Result<(String, String), Error> {
    let username = fields.text("username", 1..=usize::MAX);
    let password = fields.text("password", 1..=usize::MAX);
    let kind = if fields.has_unknown() { ErrorKind::Invalid } else { ErrorKind::Forbidden };
    let refused = |error: Error| {
        if error.kind == ErrorKind::Invalid { Error { kind, ..error } } else { error }
    };
    fields.finish_with(username.zip(password)).map_err(refused)
}

/// `GET /api/auth/is-authenticated/`: responds with 200 for every request, even without a valid
/// credential (contract 4.4).
pub async fn is_authenticated(call: &Call) -> Result<Reply, Error> {
    let outcome = match Credential::from_request(call) {
        Ok(credential) => credential.check().await.map(drop),
        Err(error) => Err(error),
    };
    let authenticated = match outcome {
        Ok(()) => true,
        Err(error) if matches!(error.kind, ErrorKind::Unauthenticated | ErrorKind::Forbidden) => {
            false
        }
        Err(error) => return Err(error),
    };
    Reply::ok(&json!({"authenticated": authenticated}))
}

/// `GET` and `POST /api/auth/logout/`: ends the session of a login token (contract 4.4). Responds
/// with 403 without an Authorization header, and for an API token.
pub async fn logout(call: &mut Call) -> Result<Reply, Error> {
    let input = call.no_fields().await;
    let credential = Credential::from_request(call).map_err(forbidden_without_header)?;
    credential.require_input(input).await?;
    let event = call.audit_event()?.with_object(None, None);
    let (caller, _) = credential.write(sessions::delete_own(&credential.scope, &event)?).await?;
    if caller.kind == farhand_domain::access::caller::CredentialKind::ApiToken {
        return Err(Error::new(ErrorKind::Forbidden, "Only a login token can log out.")
            .with_code(Code::PermissionDenied));
    }
    Reply::ok(&Value::Null)
}

/// `GET /api/auth/sessions/`: the caller's live sessions, newest first.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    list_page(call, any_caller, |_, _| Ok(sessions::list())).await
}

/// `GET /api/auth/sessions/<id>/`.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    retrieve_one(call, any_caller, call.path_id(Error::not_found), sessions::by_id).await
}

/// `DELETE /api/auth/sessions/<id>/`: revokes a session of the caller. Its waiting commands are
/// cancelled, unless `keep_scheduled` is true (contract 11.5).
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let keep_scheduled = match boolean_parameter(&call.query(), "keep_scheduled") {
        Ok(keep_scheduled) => keep_scheduled.unwrap_or(false),
        // A missing session is refused before the input (contract 3.4).
        Err(error) => {
            retrieve(call).await?;
            return Err(error);
        }
    };
    let event = call
        .audit_event()?
        .with_object(Some(id.to_string()), None)
        .details(json!({"keep_scheduled": keep_scheduled}));
    let transaction = sessions::delete(&credential.scope, id, keep_scheduled, &event)?;
    let (_, ended) = credential.write(transaction).await?;
    ended.ok_or_else(Error::not_found)?;
    if !keep_scheduled {
        credential::cancel_revoked(call);
    }
    Ok(Reply::no_content())
}
