//! Passwords: change-password, setting another user's password, and resets by mail (contract 4.9
//! to 4.11).

use farhand_domain::access::caller::Caller;
use farhand_domain::audit::event::{ActorType, CredentialType};
use farhand_domain::error::{Code, Error, ErrorKind};
use farhand_domain::http::fields::Fields;
use farhand_domain::mail::notice::NoticeKind;
use farhand_domain::people::password::{self, PersonalTexts};
use farhand_domain::people::user::{self, Account};
use farhand_domain::secret::{Guessable, Secret};
use serde_json::{Value, json};
use uuid::Uuid;

use super::notices::{Audience, notice_of, notify_later};
use super::users::target_from_path;
use crate::auth::credential::{self, Credential};
use crate::auth::guesses;
use crate::auth::hashing;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::mailer;
use crate::platform;
use crate::store::reset_requests::{self, ResetOutcome};
use crate::store::users::{self, NewPassword, UserForChange, UserRef};

/// Turns 401 into 403, as contract 4.1 requires for logout and change-password.
pub fn forbidden_without_header(error: Error) -> Error {
    match error.kind {
        ErrorKind::Unauthenticated => {
            Error { kind: ErrorKind::Forbidden, ..error }.with_code(Code::InvalidAuthorization)
        }
        _ => error,
    }
}

/// Reports all password rules that a new password violates, under the field `name`.
fn reject_violations(
    fields: &mut Fields,
    name: &'static str,
    password: Option<&String>,
    personal: PersonalTexts<'_>,
) {
    let violations =
        password.map(|password| password::violations(password, personal)).unwrap_or_default();
    for message in violations {
        fields.reject(name, message);
    }
}

/// Reads `keep_scheduled`, which is false by default (contract 11.5).
fn read_keep_scheduled(fields: &mut Fields) -> bool {
    fields.optional_boolean("keep_scheduled").unwrap_or(false)
}

/// Reads the fields of a new password: the password and `keep_scheduled`.
fn read_new_password(
    mut fields: Fields,
    name: &'static str,
    personal: PersonalTexts<'_>,
) -> Result<(String, bool), Error> {
    let new = user::read_password(&mut fields, name);
    let keep_scheduled = read_keep_scheduled(&mut fields);
    reject_violations(&mut fields, name, new.as_ref(), personal);
    Ok((fields.finish_with(new)?, keep_scheduled))
}

/// Sets the password of a user and ends the user's sessions. Returns the user object. Returns
/// `None` if the conditions of [`users::set_password`] no longer hold, because another request
/// changed the caller or the password.
async fn set_password(
    call: &Call,
    credential: &Credential<'_>,
    (caller, account): (&Caller, &Account),
    stored: Option<&str>,
    (password, keep_scheduled): (&str, bool),
) -> Result<Option<String>, Error> {
    let hash = hashing::hash(call, &caller.username, password).await?;
    let event = caller
        .attribute(call.audit_event()?)
        .with_object(Some(account.id.to_string()), Some(&account.username));
    let event = event.details(json!({"keep_scheduled": keep_scheduled}));
    let new = NewPassword { hash: &hash, keep_scheduled };
    let transaction =
        users::set_password(&credential.scope, caller, account.id, stored, &new, &event)?;
    let (_, user) = credential.write(transaction).await?;
    if user.is_some() && !keep_scheduled {
        credential::cancel_revoked(call);
    }
    Ok(user)
}

/// `POST /api/auth/change-password/` (contract 4.9).
///
/// 1. Looks up the caller, with the hash of the current password.
/// 2. Checks both fields, and reports all errors together. A wrong current password counts as a
///    guess (contract 4.5).
/// 3. Sets the new password, if the checked password is still the current one. All sessions end.
///    API tokens remain valid.
pub async fn change(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.user_fields().await.map_err(forbidden_without_header)?;
    let credential = Credential::from_request(call)?;
    let (caller, found) =
        credential.find::<UserForChange>(users::for_change(&UserRef::Caller)).await?;
    let UserForChange { account, password: stored, .. } = found.ok_or_else(Error::invalid_token)?;

    let mut fields = fields?;
    let current = user::read_password(&mut fields, "password");
    let new = user::read_password(&mut fields, "new_password");
    let keep_scheduled = read_keep_scheduled(&mut fields);
    reject_violations(&mut fields, "new_password", new.as_ref(), account.personal());
    if let Some(current) = current
        && !guesses::is_current_password(call, &caller.username, &current, &stored).await?
    {
        fields.reject("password", guesses::WRONG_PASSWORD);
    }
    let new = fields.finish_with(new)?;
    set_password(call, &credential, (&caller, &account), Some(&stored), (&new, keep_scheduled))
        .await?
        .ok_or_else(|| Error::field("password", guesses::WRONG_PASSWORD))?;
    Reply::ok(&Value::Null)
}

/// `PUT` and `PATCH /api/users/users/<username>/`: a superuser sets the password of a user
/// (contract 4.9). The current password is not checked.
pub async fn set(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let credential = Credential::from_request(call)?;
    let (caller, found) =
        credential.find::<UserForChange>(users::for_change(&target_from_path(call)?)).await?;
    if !caller.is_superuser {
        return Err(Error::permission_denied("Only superusers may set another user's password."));
    }
    let UserForChange { account, .. } = found.ok_or_else(Error::not_found)?;
    let mut fields = fields?;
    fields.ignore(user::READ_ONLY);
    let (new, keep_scheduled) = read_new_password(fields, "password", account.personal())?;
    let user =
        set_password(call, &credential, (&caller, &account), None, (&new, keep_scheduled)).await?;
    let user = user.ok_or_else(Error::not_found)?;
    let (kind, account) = (NoticeKind::PasswordSet, &account);
    let notice = notice_of(call, &caller, kind, &account.username, &[&account.email]);
    notify_later(call, notice, Audience::of_act(&caller));
    Ok(Reply::ok_text(user))
}

/// `POST /api/auth/reset-password/`. Its errors have the body `null` (contract 3.9), except 404 and
/// 500.
pub async fn request_reset(call: &mut Call) -> Result<Reply, Error> {
    match store_reset_request(call).await {
        Ok(()) => Reply::ok(&Value::Null),
        Err(error) if matches!(error.kind, ErrorKind::Internal | ErrorKind::NotFound) => Err(error),
        Err(error) => Err(error.silent()),
    }
}

/// Stores a request for a reset (contract 4.10). The work is the same for registered and
/// unregistered addresses.
///
/// 1. Counts the request for the client's address.
/// 2. Stores it, unless too many requests are pending for the e-mail address. A malformed address
///    is ignored without an error.
/// 3. Notifies the mailer. The mailer sends the mail, or drops the request if the address is not
///    registered.
async fn store_reset_request(call: &mut Call) -> Result<(), Error> {
    let fields = call.fields().await;
    guesses::count_reset(call).await?;
    let address = fields?.value("email").and_then(Value::as_str).and_then(user::normalized_email);
    let Some(address) = address else { return Ok(()) };
    let address_hash = platform::secret_key(&call.env)?.hash(Guessable::Address, &address);
    let id = platform::new_id(call.now)?;
    let event = call.audit_event()?.with_object(None, None);
    let new = reset_requests::NewResetRequest {
        id,
        address: &address,
        address_hash: &address_hash,
        event: &event,
    };
    match reset_requests::insert(&call.database, call.workspace()?, new, call.now).await? {
        ResetOutcome::Stored(workspace_id) => {
            call.audited_chains.borrow_mut().push(workspace_id);
            mailer::send_reset(&call.env, id).await
        }
        ResetOutcome::TooMany => {
            Err(Error::new(ErrorKind::Forbidden, "Too many requests are pending."))
        }
        ResetOutcome::NoWorkspace => Err(Error::not_found()),
    }
}

/// The id of the reset request in the key of the path, if the key is signed correctly.
fn reset_id_from_key(call: &Call) -> Result<Option<Uuid>, Error> {
    let key = Secret::new(call.parameter("key"));
    Ok(platform::secret_key(&call.env)?.reset_request(&key))
}

/// `GET /api/auth/reset-password/confirm/<key>/` (contract 4.10): redirects the browser to the
/// page for a new password.
pub async fn open_reset(call: &Call) -> Result<Reply, Error> {
    let workspace = call.workspace()?;
    let found = match reset_id_from_key(call)? {
        Some(id) => reset_requests::find(&call.database, workspace, id, call.now).await?,
        None => None,
    };
    // The characters of a valid key need no escaping in a URL.
    let query =
        found.map_or("error=invalid".to_owned(), |_| format!("key={}", call.parameter("key")));
    let page = format!("{}/reset-password/?{query}", call.config.web_client_of(workspace));
    Ok(Reply::redirect(page).header("Referrer-Policy", "no-referrer"))
}

/// `POST /api/auth/reset-password/confirm/<key>/` (contract 4.10).
///
/// 1. Responds with 404 for an unknown, used, invalidated or expired key, before the input is
///    checked.
/// 2. Checks the new password.
/// 3. Sets it, if the key is still valid. Of two concurrent requests with the same key, one
///    succeeds.
pub async fn confirm_reset(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.fields().await;
    let workspace = call.workspace()?;
    let id = reset_id_from_key(call)?.ok_or_else(Error::not_found)?;
    let account = reset_requests::find(&call.database, workspace, id, call.now)
        .await?
        .ok_or_else(Error::not_found)?;
    let (new, keep_scheduled) = read_new_password(fields?, "new_password", account.personal())?;
    let hash = hashing::hash(call, &account.username, &new).await?;
    let event =
        call.audit_event()?.with_object(Some(account.id.to_string()), Some(&account.username));
    let event =
        event.with_actor(ActorType::User, Some(account.id.to_string()), Some(account.username));
    let event = event.with_credential(CredentialType::ResetKey, Some(id.to_string()));
    let event = event.details(json!({"keep_scheduled": keep_scheduled}));
    let new = NewPassword { hash: &hash, keep_scheduled };
    let done =
        reset_requests::consume(&call.database, workspace, id, &new, &event, call.now).await?;
    let (workspace_id, hashes) = done.ok_or_else(Error::not_found)?;
    call.audited_chains.borrow_mut().push(workspace_id);
    credential::forget_login_tokens(call, workspace, hashes);
    if !keep_scheduled {
        credential::cancel_revoked(call);
    }
    Reply::ok(&Value::Null)
}
