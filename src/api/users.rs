//! Users (contract 5.1): under `/api/iam/users/` by id, with `-` for the caller, and under
//! `/api/users/users/` by name.

use farhand_domain::error::{Error, FieldErrors};
use farhand_domain::user::{self, Account, Changes, Filter, Proof};
use serde_json::{Value, json};

use super::change::{Extent, changed_fields, find, retry};
use super::idempotency::{self, Kept, Once, Written};
use super::{anybody, location_of, one_of, page_of, staff_only};
use crate::auth::credential::Credential;
use crate::auth::guesses;
use crate::auth::hashing;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::janitor;
use crate::store::db::Failure;
use crate::store::users::{self, Found, Target};

/// The user that the path names.
///
/// # Errors
/// A malformed id is a 404 (contract 3.6).
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
    one_of(call, anybody, target(call), users::one).await
}

/// `GET` the list: the workspace's users, oldest first.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    page_of(call, anybody, |query, _| Filter::of(query).map(|filter| users::list(&filter))).await
}

/// What a replay of a creation shows.
const KEPT: Kept = Kept { collection: "/api/iam/users/", source: users::REPLAY, hidden: &[] };

/// `POST`: makes a user. Staff make ordinary users, superusers all.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let credential = Credential::from_request(call)?;
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
    if let Some((_, reply)) = once.replay(&credential).await? {
        return Ok(reply);
    }
    let hash = hashing::hash(call, &caller.username, &new.password).await?;
    let event = call.audit_event()?.on(None, Some(&new.username)).details(json!({
        "email": new.email,
        "is_staff": rest.is_staff.unwrap_or(false),
        "is_superuser": rest.is_superuser.unwrap_or(false),
    }));
    let batch = users::insert(&credential.scope, rank, &new, &rest, &hash, &event)?;
    match once.write(&credential, &new.username, batch).await {
        Ok(Written::Created(_, user)) => {
            let location = location_of(call, KEPT.collection, &user)?;
            Ok(Reply::created_text(user, location))
        }
        Ok(Written::Refused(_)) => Err(staff_only()),
        Ok(Written::Replayed(reply)) => Ok(reply),
        Err(failure) => {
            Err(taken(&credential, failure, Some(&new.username), Some(&new.email), None).await)
        }
    }
}

/// What a broken uniqueness rule is to the client: messages for all the fields that somebody has
/// already.
async fn taken(
    credential: &Credential<'_>,
    failure: Failure,
    username: Option<&String>,
    email: Option<&String>,
    own_id: Option<i64>,
) -> Error {
    let Failure::NotUnique(_) = failure else { return failure.into() };
    let fields = match credential.find::<Vec<String>>(users::taken(username, email, own_id)).await {
        Ok((_, fields)) => fields.unwrap_or_default(),
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

/// The details of a change's audit event: the fields, and the permissions before and after it.
fn details(account: &Account, changes: &Changes) -> Value {
    let mut details = changed_fields(&[
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
            details[name] = json!(new);
            details["old"][name] = json!(old);
        }
    }
    if let Some(email) = &changes.email {
        details["email"] = json!(email);
        details["old"]["email"] = json!(account.email);
    }
    details
}

/// `PUT` and `PATCH`: everything but the password.
///
/// 1. Finds caller and user. A user whom the caller may not change at all is refused before the
///    input is looked at.
/// 2. Decides by contract 5.2, and checks the caller's password if the change needs it.
/// 3. Writes, if caller and user are still what was decided on.
pub async fn change(call: &mut Call, extent: Extent) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let credential = Credential::from_request(call)?;
    let target = credential.require_input(target(call)).await?;
    let input = fields.and_then(|fields| extent.read(fields, Changes::read_all, Changes::read));
    let attempt = async || {
        let (caller, found) = find::<Found>(&credential, users::find(&target)).await?;
        let (rank, account) = (caller.rank(), &found.account);
        if !(rank.manages(account.rank()) || caller.user_id == account.id) {
            return Err(Error::permission_denied(user::MANAGES));
        }
        let changes = input.clone()?.of(account);
        let proof = user::may_change((caller.user_id, rank), account, &changes, found.has_other)?;
        let proved = match (proof, &changes.password) {
            (Proof::Password, Some(password)) => {
                guesses::require_current_password(
                    call,
                    &caller.username,
                    password.expose(),
                    &found.password,
                )
                .await?;
                Some(found.password.as_str())
            }
            _ => None,
        };
        let event = caller
            .sign(call.audit_event()?)
            .on(Some(account.id.to_string()), Some(&account.username));
        let event = event.details(details(account, &changes));
        let batch = users::update(&credential.scope, &caller, account, &changes, proved, &event)?;
        match credential.write(batch).await {
            Ok((_, user)) => Ok(user.map(Reply::ok_text)),
            Err(failure) => {
                let (username, email) = (changes.username.as_ref(), changes.email.as_ref());
                Err(taken(&credential, failure, username, email, Some(account.id)).await)
            }
        }
    };
    retry("user", attempt).await
}

/// `DELETE`: the user's credentials end immediately, their commands stay.
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let target = credential.require_input(target(call)).await?;
    let attempt = async || {
        let (caller, found) = find::<Found>(&credential, users::find(&target)).await?;
        user::may_delete(caller.rank(), &found.account, found.has_other, found.is_only_owner)?;
        // The janitor takes the user off their commands. It is woken before the deletion too, in
        // case this request is cut off.
        janitor::wake(&call.env).await?;
        let account = &found.account;
        let event = caller
            .sign(call.audit_event()?)
            .on(Some(account.id.to_string()), Some(&account.username));
        let batch = users::delete(&credential.scope, &caller, account, &event)?;
        let (_, deleted) = credential.write(batch).await?;
        if deleted.is_some() {
            janitor::wake(&call.env).await?;
        }
        Ok(deleted.map(|_| Reply::no_content()))
    };
    retry("user", attempt).await
}
