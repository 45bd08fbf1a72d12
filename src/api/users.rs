//! Users (contract 5): under `/api/iam/users/` by id, with `-` for the caller, and under `/api/users/users/` by name.

use farhand_domain::error::{Error, FieldErrors};
use farhand_domain::fields::Fields;
use farhand_domain::user::{self, Account, Changes, Filter, Proof};
use serde_json::{Value, from_str, json};

use super::idempotency::{self, Kept, Once, Written};
use super::{Listing, TRIES, anybody, changed, conflict, list_of, location_of, staff_only};
use crate::auth::credential::{self, Credential};
use crate::auth::guesses;
use crate::auth::hashing;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::janitor;
use crate::platform::internal;
use crate::store::audit::{Numbered, after_change, after_insert_by};
use crate::store::db::Failure;
use crate::store::sessions::read_token_hashes;
use crate::store::users::{self, Found, Target};
use farhand_domain::caller::Caller;

/// The user that the path names.
///
/// # Errors
/// A malformed id is a 404 (contract 3).
pub fn target(call: &Call) -> Result<Target, Error> {
    let (id, username) = (call.parameter("id"), call.parameter("username"));
    if !username.is_empty() {
        return Ok(Target::Username(username.to_owned()));
    }
    if id.is_empty() {
        return Ok(Target::Caller);
    }
    call.path_number(Error::not_found).map(Target::Id)
}

/// `GET` one: everyone reads all users of their workspace.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::of(call)?;
    let (condition, parameter) = credential.checked(target(call)).await?.condition();
    let sql = format!("(SELECT {} FROM users u WHERE {condition})", users::OBJECT);
    let (_, user) = credential.read(&sql, vec![parameter]).await?;
    user.map(Reply::ok_text).ok_or_else(Error::not_found)
}

/// `GET` the list: the workspace's users, oldest first.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    let listing = Listing { object: users::OBJECT, from: "users u", condition: users::LISTED, order: "u.id" };
    list_of(call, anybody, listing, |query| Filter::of(query).map(users::filters)).await
}

/// What a replay of a creation shows.
const KEPT: Kept = Kept {
    collection: "/api/iam/users/",
    object: users::OBJECT,
    made: "users u ON u.workspace_id = me.workspace_id AND u.username = ?7 AND u.date_joined = ?3",
    hidden: &[],
};

/// `POST`: makes a user. Staff make ordinary users, superusers all.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.fields_of_user().await?;
    let credential = Credential::of(call)?;
    let caller = credential.check().await?;
    let rank = caller.rank();
    if !rank.is_staff_or_superuser() {
        return Err(staff_only());
    }
    let body = idempotency::body_of(&fields);
    let (new, rest) = fields.and_then(user::read_creation)?;
    if (rest.is_staff == Some(true) || rest.is_superuser == Some(true)) && !rank.is_superuser {
        return Err(Error::permission_denied(user::RANKS));
    }
    let once = Once::of(call, &KEPT, body)?;
    if let Some(once) = &once
        && let Some((_, reply)) = once.replay(&credential).await?
    {
        return Ok(reply);
    }
    let hash = hashing::hash(call, &caller.username, &new.password).await?;
    let insert = users::insert(&credential.scope, rank, &new, &rest, &hash, call.now);
    let event = call.event()?.on(None, Some(&new.username)).details(json!({
        "email": new.email,
        "is_staff": rest.is_staff.unwrap_or(false),
        "is_superuser": rest.is_superuser.unwrap_or(false),
    }));
    let event = (1, after_insert_by(&credential.scope, Numbered::User, &event)?);
    match idempotency::write(&credential, once.as_ref(), &new.username, vec![insert], event).await {
        Ok(Written::Replayed(reply)) => Ok(reply),
        Ok(Written::Done(_, bodies)) => {
            let body = bodies.into_iter().flatten().next().ok_or_else(staff_only)?;
            let location = location_of(call, "/api/iam/users/", &body)?;
            Ok(Reply::created_text(body, location))
        }
        Err(failure) => Err(taken(&credential, failure, Some(&new.username), Some(&new.email), None).await),
    }
}

/// What a broken uniqueness rule is to the client: messages for all the fields that somebody has already.
async fn taken(
    credential: &Credential<'_>,
    failure: Failure,
    username: Option<&String>,
    email: Option<&String>,
    own_id: Option<i64>,
) -> Error {
    let Failure::NotUnique(_) = failure else { return failure.into() };
    let fields = match credential.read(users::TAKEN, vec![username.into(), email.into(), own_id.into()]).await {
        Ok((_, array)) => array.and_then(|array| from_str::<Vec<String>>(&array).ok()).unwrap_or_default(),
        Err(error) => return error,
    };
    let mut errors = FieldErrors::new();
    for (field, message) in [
        ("username", "A user with this username already exists."),
        ("email", "A user with this email address already exists."),
    ] {
        if fields.iter().any(|name| name == field) {
            errors.insert(field.into(), vec![message.into()]);
        }
    }
    Error::fields(errors)
}

/// Looks the caller and a user up together.
pub async fn find(credential: &Credential<'_>, target: &Target) -> Result<(Caller, Option<Found>), Error> {
    let (sql, parameter) = users::find(target);
    let (caller, found) = credential.read(&sql, vec![parameter]).await?;
    let found = found.map(|found| from_str(&found).map_err(internal)).transpose()?;
    Ok((caller, found))
}

/// Returns what the statement at `place` returned, which changed a user and may have ended their sessions. If it changed
/// something, the KV entries of the login tokens are deleted whose hashes are the first body.
pub fn end_sessions(call: &Call, bodies: Vec<Option<String>>, place: usize) -> Result<Option<String>, Error> {
    let mut bodies = bodies.into_iter();
    let hashes = bodies.next().flatten();
    let changed = bodies.nth(place - 1).flatten();
    if changed.is_some() {
        credential::forget_login_tokens(call, call.workspace()?, read_token_hashes(hashes)?);
    }
    Ok(changed)
}

/// The details of a change's audit event: the fields, and the permissions before and after it.
fn told(account: &Account, changes: &Changes) -> Value {
    let mut told = changed(&[
        ("username", changes.username.is_some()),
        ("email", changes.email.is_some()),
        ("first_name", changes.first_name.is_some()),
        ("last_name", changes.last_name.is_some()),
        ("is_active", changes.is_active.is_some()),
        ("is_staff", changes.is_staff.is_some()),
        ("is_superuser", changes.is_superuser.is_some()),
    ]);
    for (name, old, new) in [
        ("is_active", account.is_active, changes.is_active),
        ("is_staff", account.is_staff, changes.is_staff),
        ("is_superuser", account.is_superuser, changes.is_superuser),
    ] {
        if let Some(new) = new {
            told[name] = json!(new);
            told["old"][name] = json!(old);
        }
    }
    if let Some(email) = &changes.email {
        told["email"] = json!(email);
        told["old"]["email"] = json!(account.email);
    }
    told
}

/// `PUT`: everything but the password.
pub async fn replace(call: &mut Call) -> Result<Reply, Error> {
    change(call, Changes::read_all).await
}

/// `PATCH`: the given fields.
pub async fn update(call: &mut Call) -> Result<Reply, Error> {
    change(call, Changes::read).await
}

/// Changes a user.
///
/// 1. Looks caller and user up; a user whom the caller may not touch at all is refused before the input is looked at.
/// 2. Decides by contract 5, and checks the caller's password where that is asked for.
/// 3. Writes, on the condition that what was decided on still stands; else all is done once more.
async fn change(call: &mut Call, read: impl FnOnce(Fields) -> Result<Changes, Error>) -> Result<Reply, Error> {
    let fields = call.fields_of_user().await?;
    let credential = Credential::of(call)?;
    let target = credential.checked(target(call)).await?;
    let input = fields.and_then(read);
    for _ in 0..TRIES {
        let (caller, found) = find(&credential, &target).await?;
        let found = found.ok_or_else(Error::not_found)?;
        let (rank, account) = (caller.rank(), &found.account);
        if !(rank.manages(account.rank()) || caller.user_id == account.id) {
            return Err(Error::permission_denied(user::MANAGES));
        }
        let changes = input.clone()?.of(account);
        let proof = user::may_change((caller.user_id, rank), account, &changes, found.has_other)?;
        let proved = match (proof, &changes.password) {
            (Proof::Password, Some(password)) => {
                guesses::prove_password(call, &caller.username, password.expose(), &found.password).await?;
                Some(found.password.as_str())
            }
            _ => None,
        };
        let event = caller.sign(call.event()?).on(Some(account.id.to_string()), Some(&account.username));
        let event = event.details(told(account, &changes));
        let event = users::update_event(caller.workspace_id, account, &changes, &event)?;
        let mut statements = users::update(&credential.scope, rank, account, &changes, proved);
        if changes.release_servers(account) {
            statements.push(users::release_servers(caller.workspace_id, account, call.now));
        }
        match credential.write_audited(statements, 2, event).await {
            Ok((_, bodies)) => {
                if let Some(user) = end_sessions(call, bodies, 1)? {
                    return Ok(Reply::ok_text(user));
                }
            }
            Err(failure) => {
                let (username, email) = (changes.username.as_ref(), changes.email.as_ref());
                return Err(taken(&credential, failure, username, email, Some(account.id)).await);
            }
        }
    }
    Err(conflict("user"))
}

/// `DELETE`: the user's credentials are gone at once, their commands stay.
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::of(call)?;
    let target = credential.checked(target(call)).await?;
    for _ in 0..TRIES {
        let (caller, found) = find(&credential, &target).await?;
        let found = found.ok_or_else(Error::not_found)?;
        user::may_delete(caller.rank(), &found.account, found.has_other, found.is_only_owner)?;
        // It looks after the commands; asked before, so that nothing that is cut off can be forgotten.
        janitor::wake(&call.env).await?;
        let account = &found.account;
        let event = caller.sign(call.event()?).on(Some(account.id.to_string()), Some(&account.username));
        let statements = users::delete(&credential.scope, caller.rank(), account);
        let event = after_change(caller.workspace_id, &event)?;
        let (_, bodies) = credential.write_audited(statements, 3, event).await?;
        if end_sessions(call, bodies, 2)?.is_some() {
            // That look may have come before the deletion.
            janitor::wake(&call.env).await?;
            return Ok(Reply::no_content());
        }
    }
    Err(conflict("user"))
}
