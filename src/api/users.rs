//! Users (contract 5.1 to 5.3): below `/api/iam/users/` by id, with `-` for the caller, and below
//! `/api/users/users/` by username.

use farhand_domain::access::caller::{Caller, CredentialKind};
use farhand_domain::error::{Error, FieldErrors};
use farhand_domain::mail::notice::NoticeKind;
use farhand_domain::people::user::{self, Account, Proof, UserChanges, UserFilter};
use serde_json::{Value, json};

use super::change::{Extent, changed_fields, find, retry};
use super::idempotency::{self, Creation, CreationOutcome, ResourceKind};
use super::notices::{Audience, notice_of, notify_later};
use super::{any_caller, list_page, location_from_json, retrieve_one, staff_only_error};
use crate::auth::credential::Credential;
use crate::auth::guesses;
use crate::auth::hashing;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::janitor;
use crate::store::db::Failure;
use crate::store::users::{self, UserForChange, UserRef};

/// The user in the path.
///
/// # Errors
/// 404 for a malformed id (contract 3.6).
pub fn target_from_path(call: &Call) -> Result<UserRef, Error> {
    let (id, username) = (call.parameter("id"), call.parameter("username"));
    if !username.is_empty() {
        return Ok(UserRef::Username(username.to_owned()));
    }
    if id.is_empty() {
        return Ok(UserRef::Caller);
    }
    call.path_number(Error::not_found).map(UserRef::Id)
}

/// `GET` of one user. Every user can read all users of the workspace.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    retrieve_one(call, any_caller, target_from_path(call), users::by_ref).await
}

/// `GET` of the list: the users of the workspace, oldest first.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    list_page(call, any_caller, |query, _| {
        UserFilter::from_query(query).map(|filter| users::list(&filter))
    })
    .await
}

/// The path and the replay source of new users.
const RESOURCE: ResourceKind =
    ResourceKind { collection: "/api/iam/users/", source: users::REPLAY, hidden: &[] };

/// `POST`: staff create ordinary users, superusers create all users (contract 5.2).
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let credential = Credential::from_request(call)?;
    let caller = credential.check().await?;
    let rank = caller.rank();
    if !rank.is_staff_or_superuser() {
        return Err(staff_only_error());
    }
    let body = idempotency::canonical_body(&fields);
    let (new, rest) = fields.and_then(user::read_new_user)?;
    if (rest.is_staff == Some(true) || rest.is_superuser == Some(true)) && !rank.is_superuser {
        return Err(Error::permission_denied(user::MAY_CHANGE_RANK_RULE));
    }
    let creation = Creation::from_request(call, &RESOURCE, body)?;
    if let Some((_, reply)) = creation.replay(&credential).await? {
        return Ok(reply);
    }
    let hash = hashing::hash(call, &caller.username, &new.password).await?;
    let event = call.audit_event()?.with_object(None, Some(&new.username)).details(json!({
        "email": new.email,
        "is_staff": rest.is_staff.unwrap_or(false),
        "is_superuser": rest.is_superuser.unwrap_or(false),
    }));
    let transaction = users::insert(&credential.scope, rank, &new, &rest, &hash, &event)?;
    match creation.write(&credential, &new.username, transaction).await {
        Ok(CreationOutcome::Created(caller, user)) => {
            let kind = if rest.is_superuser == Some(true) && rest.is_active != Some(false) {
                Some((NoticeKind::NewSuperuser, vec![new.email.as_str()]))
            } else if caller.kind == CredentialKind::ApiToken {
                Some((NoticeKind::UserCreated, vec![]))
            } else {
                None
            };
            if let Some((kind, recipients)) = kind {
                let notice = notice_of(call, &caller, kind, &new.username, &recipients);
                notify_later(call, notice, Audience::Superusers);
            }
            let location = location_from_json(call, RESOURCE.collection, &user)?;
            Ok(Reply::created_text(user, location))
        }
        Ok(CreationOutcome::Refused(_)) => Err(staff_only_error()),
        Ok(CreationOutcome::Replayed(reply)) => Ok(reply),
        Err(failure) => Err(duplicate_field_errors(
            &credential,
            failure,
            Some(&new.username),
            Some(&new.email),
            None,
        )
        .await),
    }
}

/// Maps a violated uniqueness rule to errors for all fields whose values another user already has.
async fn duplicate_field_errors(
    credential: &Credential<'_>,
    failure: Failure,
    username: Option<&String>,
    email: Option<&String>,
    own_id: Option<i64>,
) -> Error {
    let Failure::NotUnique(_) = failure else { return failure.into() };
    let fields = match credential
        .find::<Vec<String>>(users::duplicate_fields(username, email, own_id))
        .await
    {
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

/// The details of the audit event of a user change: the changed fields, and the old and new values
/// of permissions and e-mail address.
fn audit_details(account: &Account, changes: &UserChanges) -> Value {
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

/// After the response: mails about a new e-mail address, and about a new superuser.
fn notify_of_change(call: &Call, caller: &Caller, account: &Account, changes: &UserChanges) {
    let username = changes.username.as_ref().unwrap_or(&account.username);
    let email = changes.email.as_ref().unwrap_or(&account.email);
    if changes.email.is_some() {
        let recipients = [account.email.as_str(), email];
        let notice = notice_of(call, caller, NoticeKind::EmailChanged, username, &recipients);
        notify_later(call, notice, Audience::Named);
    }
    if changes.adds_superuser(account) {
        let notice = notice_of(call, caller, NoticeKind::NewSuperuser, username, &[email]);
        notify_later(call, notice, Audience::Superusers);
    }
}

/// `PUT` and `PATCH`: changes everything except the password.
///
/// 1. Finds the caller and the user. A caller who may not change the user at all is refused before
///    the input is checked.
/// 2. Decides by contract 5.2, and checks the caller's password if the change needs it.
/// 3. Writes, if the caller and the user have not changed since step 1.
pub async fn change(call: &mut Call, extent: Extent) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let credential = Credential::from_request(call)?;
    let target = credential.require_input(target_from_path(call)).await?;
    let input =
        fields.and_then(|fields| extent.read(fields, UserChanges::read_all, UserChanges::read));
    let attempt = async || {
        let (caller, found) =
            find::<UserForChange>(&credential, users::for_change(&target)).await?;
        let (rank, account) = (caller.rank(), &found.account);
        if !(rank.manages(account.rank()) || caller.user_id == account.id) {
            return Err(Error::permission_denied(user::MAY_CHANGE_USER_RULE));
        }
        let changes = input.clone()?.without_unchanged(account);
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
            .attribute(call.audit_event()?)
            .with_object(Some(account.id.to_string()), Some(&account.username));
        let event = event.details(audit_details(account, &changes));
        let transaction =
            users::update(&credential.scope, &caller, account, &changes, proved, &event)?;
        match credential.write(transaction).await {
            Ok((_, user)) => {
                if user.is_some() {
                    notify_of_change(call, &caller, account, &changes);
                }
                Ok(user.map(Reply::ok_text))
            }
            Err(failure) => {
                let (username, email) = (changes.username.as_ref(), changes.email.as_ref());
                Err(duplicate_field_errors(&credential, failure, username, email, Some(account.id))
                    .await)
            }
        }
    };
    retry("user", attempt).await
}

/// `DELETE`: deletes the user and all credentials of the user. The user's commands are kept
/// (contract 5.3).
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let target = credential.require_input(target_from_path(call)).await?;
    let attempt = async || {
        let (caller, found) =
            find::<UserForChange>(&credential, users::for_change(&target)).await?;
        user::may_delete(caller.rank(), &found.account, found.has_other, found.is_only_owner)?;
        // The janitor removes the user from commands. It is also notified before the deletion, in
        // case this request is terminated directly after the deletion.
        janitor::wake(&call.env).await?;
        let account = &found.account;
        let event = caller
            .attribute(call.audit_event()?)
            .with_object(Some(account.id.to_string()), Some(&account.username));
        let transaction = users::delete(&credential.scope, &caller, account, &event)?;
        let (_, deleted) = credential.write(transaction).await?;
        if deleted.is_some() {
            janitor::wake(&call.env).await?;
        }
        Ok(deleted.map(|_| Reply::no_content()))
    };
    retry("user", attempt).await
}
