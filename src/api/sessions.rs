//! Login sessions: logging in and out, and the list of them (contract 4.4; contract 4.7).

use farhand_domain::audit::{ActorType, CredentialType, Event};
use farhand_domain::error::{Code, Error, Kind, NON_FIELD};
use farhand_domain::fields::Fields;
use farhand_domain::hashing_gate::Rank;
use farhand_domain::page::boolean_parameter;
use farhand_domain::password::Checked;
use farhand_domain::secret::{Purpose, credential_hash};
use farhand_domain::session;
use serde_json::{Value, json};
use uuid::Uuid;

use super::passwords::forbidden_without_header;
use super::{anybody, one_of, page_of};
use crate::auth::audit::count_failed_login;
use crate::auth::credential::{self, Credential};
use crate::auth::guesses::{self, Guesser};
use crate::auth::hashing;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::platform;
use crate::platform::log;
use crate::store::login_tokens::{self, Entry};
use crate::store::{sessions, users};

/// The one answer to an unknown username, a wrong password and a user who may not log in.
const WRONG_CREDENTIALS: &str = "Unable to log in with the provided credentials.";
/// The most characters of a User-Agent header that a session keeps.
const MAX_USER_AGENT: usize = 512;

/// `POST /api/auth/login/`.
///
/// 1. Reads the fields from JSON or either kind of form; missing ones are 403 with the field arrays
///    (contract 4.4).
/// 2. Refuses whoever guessed too often lately.
/// 3. Looks the user up, and checks the password; for a user who is unknown or inactive the same
///    work is done.
/// 4. Makes the session in D1, on the condition that the user and the password are still the same.
/// 5. Puts the token into KV and answers with it.
pub async fn login(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.login_fields().await?;
    let (username, password) = read(fields)?;
    let workspace = call.workspace()?;

    let check = async |rank: &Rank| log_in(call, workspace, (&username, &password), rank).await;
    let reply = guesses::check_throttled(call, (Guesser::Anonymous, &username), check).await?;
    reply.ok_or_else(|| Error {
        kind: Kind::Forbidden,
        ..Error::field(NON_FIELD, WRONG_CREDENTIALS)
    })
}

/// The name of the user whom a login's name means: users' names are in lower case.
fn name_of_user(username: &str) -> String {
    username.to_lowercase()
}

/// Logs a user in, if that is their password.
async fn log_in(
    call: &Call,
    workspace: &str,
    (username, password): (&str, &str),
    rank: &Rank,
) -> Result<Option<Reply>, Error> {
    let mut failed = None;
    // Another login of the same user may renew the hash between the look and the session: then all
    // is done once more.
    for _ in 0..2 {
        let found =
            users::for_login(&call.env, workspace, username).await?.ok_or_else(Error::not_found)?;
        let checked = hashing::check(call, rank, password, found.password.as_deref()).await?;
        failed = Some((found.workspace_id, found.user_id.map(|id| (id, name_of_user(username)))));
        let (Some(user_id), Some(stored), true) =
            (found.user_id, &found.password, checked.is_right)
        else {
            break;
        };
        let id = platform::new_id(call.now)?;
        let event = call.audit_event()?.on(Some(id.to_string()), None);
        let event =
            event.by(ActorType::User, Some(user_id.to_string()), Some(name_of_user(username)));
        let event = event.with(CredentialType::Session, Some(id.to_string()));
        if let Some(reply) = begin_session(
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
            return Ok(Some(reply));
        }
    }
    if let Some((workspace_id, user)) = failed {
        count_failed_login(call, workspace_id, user)?;
    }
    Ok(None)
}

/// Makes a session for a user whose password was checked against `stored`; `None` where that is not
/// the user's any more.
async fn begin_session(
    call: &Call,
    workspace: &str,
    (id, user_id): (Uuid, i64),
    (username, password): (&str, &str),
    stored: &str,
    checked: Checked,
    event: &Event,
) -> Result<Option<Reply>, Error> {
    let token = platform::new_secret()?;
    let token_hash = credential_hash(Purpose::Token, &token);
    let renewed = if checked.is_outdated {
        Some(hashing::hash(call, username, password).await?)
    } else {
        None
    };
    let user_agent: String =
        call.header("User-Agent").unwrap_or_default().chars().take(MAX_USER_AGENT).collect();
    let new = sessions::New {
        id,
        user_id,
        checked_password: stored,
        password: renewed.as_deref().unwrap_or(stored),
        token_hash: &token_hash,
        user_agent: &user_agent,
        remote_ip: &call.remote_ip(),
        expires_at: session::expires_at(call.now),
        most: call.config.quotas.sessions_of_user,
    };
    let entry = Entry { session: new.id, expires_at: new.expires_at };
    let made = sessions::insert(&call.env, workspace, new, event, call.now).await?;
    let Some(workspace_id) = made else { return Ok(None) };
    call.audited_chains.borrow_mut().push(workspace_id);
    // Without the entry the token is as good: KV only remembers, and the next request writes it.
    if let Err(error) = login_tokens::put(&call.env, workspace, &token_hash, entry).await {
        log::trouble("kv_not_written", json!({"request_id": call.id}), &error.detail);
    }
    Reply::ok(&json!({"token": token.expose(), "expires_at": entry.expires_at})).map(Some)
}

/// A login's fields. Missing or blank ones are 403 and not 400 (contract 4.4: 403 on failure);
/// unknown ones are 400.
fn read(mut fields: Fields) -> Result<(String, String), Error> {
    let username = fields.text("username", 1..=usize::MAX);
    let password = fields.text("password", 1..=usize::MAX);
    let kind = if fields.has_unknown() { Kind::Invalid } else { Kind::Forbidden };
    let refused =
        |error: Error| if error.kind == Kind::Invalid { Error { kind, ..error } } else { error };
    fields.finish_with(username.zip(password)).map_err(refused)
}

/// `GET /api/auth/is-authenticated/`: 200 whatever the header holds (contract 4.4).
pub async fn is_authenticated(call: &Call) -> Result<Reply, Error> {
    let outcome = match Credential::from_request(call) {
        Ok(credential) => credential.check().await.map(drop),
        Err(error) => Err(error),
    };
    let authenticated = match outcome {
        Ok(()) => true,
        Err(error) if matches!(error.kind, Kind::Unauthenticated | Kind::Forbidden) => false,
        Err(error) => return Err(error),
    };
    Reply::ok(&json!({"authenticated": authenticated}))
}

/// `GET` or `POST /api/auth/logout/`: ends the session of a login token. Without a header it is
/// 403, not 401 (contract 4.4); with an API token it is 403, and the token stays (contract 4.4).
pub async fn logout(call: &mut Call) -> Result<Reply, Error> {
    let input = call.no_fields().await;
    let credential = Credential::from_request(call).map_err(forbidden_without_header)?;
    credential.require_input(input).await?;
    let event = call.audit_event()?.on(None, None);
    let (caller, _) = credential.write(sessions::delete_own(&credential.scope, &event)?).await?;
    if caller.kind == farhand_domain::caller::Kind::ApiToken {
        return Err(Error::new(Kind::Forbidden, "Only a login token can log out.")
            .code(Code::PermissionDenied));
    }
    Reply::ok(&Value::Null)
}

/// `GET /api/auth/sessions/`: the caller's live ones, newest first.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    page_of(call, anybody, |_, _| Ok(sessions::list())).await
}

/// `GET /api/auth/sessions/<id>/`.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    one_of(call, anybody, call.path_id(Error::not_found), sessions::one).await
}

/// `DELETE /api/auth/sessions/<id>/`: refuses the session's token from the next request on. The
/// waiting commands that it created are cancelled, unless `keep_scheduled` says otherwise.
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let keep_scheduled = match boolean_parameter(&call.query(), "keep_scheduled") {
        Ok(keep_scheduled) => keep_scheduled.unwrap_or(false),
        // That there is no such session comes before the input (contract 3.4).
        Err(error) => {
            retrieve(call).await?;
            return Err(error);
        }
    };
    let event = call
        .audit_event()?
        .on(Some(id.to_string()), None)
        .details(json!({"keep_scheduled": keep_scheduled}));
    let batch = sessions::delete(&credential.scope, id, keep_scheduled, &event)?;
    let (_, ended) = credential.write(batch).await?;
    ended.ok_or_else(Error::not_found)?;
    if !keep_scheduled {
        credential::cancel_revoked(call);
    }
    Ok(Reply::no_content())
}
