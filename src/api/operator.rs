//! The operator API (contract 2): creates, lists, deletes and repairs workspaces.

use farhand_domain::audit::event::{ActorType, AuditEvent, CELL, CredentialType};
use farhand_domain::command::request::IDEMPOTENCY_KEY_TTL;
use farhand_domain::error::{Error, ErrorKind};
use farhand_domain::http::fields::Fields;
use farhand_domain::http::host::Host;
use farhand_domain::http::page::{Page, boolean_parameter, last_value};
use farhand_domain::people::user::{self, NewUser};
use farhand_domain::secret::Secret;
use farhand_domain::workspace;
use serde_json::{Value, json};

use super::idempotency::{self, Hashes};
use super::{envelope, location};
use crate::auth::audit::{record_later, record_refused_operator_token};
use crate::auth::guesses;
use crate::auth::hashing;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::janitor;
use crate::platform;
use crate::store::workspaces::Deletion;
use crate::store::{idempotency_keys, workspaces};

/// The username that stands for the operator in the queue for hashing.
const HASHING_USER: &str = "operator";
/// The path of the collection of workspaces.
const WORKSPACES: &str = "/operator/workspaces/";
/// A workspace can be purged before its grace period ends if it was deleted this long ago.
const MIN_DELETED_SECONDS: i64 = 600;

/// The accepted operator tokens. Returns `None` if the operator API is not visible to this request:
/// the host belongs to a workspace, or the secret `OPERATOR_TOKEN` is missing (contract 2.1).
fn tokens(call: &Call) -> Option<Vec<Secret>> {
    platform::operator_tokens(&call.env).filter(|_| matches!(call.host, Host::Bare(_)))
}

/// Refuses callers that are not the operator (contract 2.1).
///
/// The correct token is accepted after any number of wrong tokens. Otherwise strangers could lock
/// the operator out by guessing. The minimum length of the token
/// ([`MIN_SECRET_LENGTH`](farhand_domain::secret::MIN_SECRET_LENGTH)) protects it from guesses. The
/// rate limit only bounds the work and the audit events that guesses cause.
///
/// # Errors
/// 404 if the operator API is not visible, 401 without a header, 403 for a wrong token, 429 after
/// ten wrong tokens in a minute.
pub async fn authorize(call: &Call) -> Result<(), Error> {
    let expected = tokens(call).ok_or_else(Error::not_found)?;
    let token = call.operator_token()?;
    if expected.iter().any(|expected| token.equals(expected)) {
        return Ok(());
    }
    let refusal =
        guesses::count_operator_guess(call).await.err().unwrap_or_else(Error::invalid_token);
    record_refused_operator_token(call, &refusal);
    Err(refusal)
}

/// Whether the operator API is visible to this request.
pub fn is_visible(call: &Call) -> bool {
    tokens(call).is_some()
}

/// The audit event of the operator about a workspace. Its object has the slug as the name.
fn workspace_event(call: &Call, slug: &str) -> Result<AuditEvent, Error> {
    let event = call
        .audit_event()?
        .with_actor(ActorType::Operator, None, None)
        .with_credential(CredentialType::OperatorToken, None);
    Ok(event.with_object(None, Some(slug)))
}

struct NewWorkspace {
    slug: String,
    name: String,
    admin: NewUser,
}

fn read_new_workspace(mut fields: Fields) -> Result<NewWorkspace, Error> {
    let slug = fields.text("slug", 1..=63).filter(|slug| {
        let good = workspace::is_slug(slug);
        if !good {
            fields.reject("slug", "Enter a lower-case letter, then letters, digits and hyphens; no hyphen at the end.");
        } else if workspace::is_reserved(slug) {
            fields.reject("slug", "This slug is reserved. Choose another one.");
            return false;
        }
        good
    });
    let name = fields.optional_text("name", 1..=128);
    let mut admin_fields = fields.object("admin");
    let admin = user::read_account(&mut admin_fields);
    fields.absorb("admin", admin_fields);
    let (slug, admin) = fields.finish_with(slug.zip(admin))?;
    Ok(NewWorkspace { name: name.unwrap_or_else(|| slug.clone()), slug, admin })
}

/// `POST /operator/workspaces/` (contract 2.2): creates a workspace and its first superuser.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    if let Err(error) = authorize(call).await {
        call.discard().await;
        return Err(error);
    }
    let fields = call.fields().await;
    let hashes = Hashes::from_request(call, idempotency::canonical_body(&fields));
    let (NewWorkspace { slug, name, admin }, hashes) =
        fields.and_then(read_new_workspace).and_then(|new| Ok((new, hashes?)))?;
    if let Some(reply) = replay(call, hashes.as_ref()).await? {
        return Ok(reply);
    }
    let hash = hashing::hash(call, HASHING_USER, &admin.password).await?;
    // One event is for the chain of the cell, and one event is for the chain of the new workspace.
    let creation_event = || {
        Ok::<_, Error>(
            workspace_event(call, &slug)?.details(json!({"name": name, "admin": admin.username})),
        )
    };
    let (event, own_event) = (creation_event()?, creation_event()?);
    let mut answer = json!({
        "slug": slug,
        "name": name,
        "region": call.config.names().region,
        "base_url": call.config.base_url_of(&slug),
        "admin": {"id": null, "username": admin.username, "email": admin.email},
    });
    let store = |hashes: &Hashes| {
        idempotency_keys::insert_of_operator(
            (&hashes.key, &hashes.request),
            &answer.to_string(),
            &slug,
            call.now,
        )
    };
    let new = workspaces::NewWorkspace {
        slug: &slug,
        name: &name,
        admin: &admin,
        password: &hash,
        event: &event,
        own_event: &own_event,
        answer: hashes.as_ref().map(store),
    };
    let Some(created) = workspaces::insert(&call.database, new, call.now).await? else {
        // A concurrent request with the same key may have created the workspace.
        let duplicate_slug_error =
            || Error::field("slug", "A workspace with this slug already exists.");
        return replay(call, hashes.as_ref()).await?.ok_or_else(duplicate_slug_error);
    };
    call.audited_chains.borrow_mut().extend([CELL, created.workspace]);
    answer["admin"]["id"] = json!(created.admin);
    Reply::created(&answer, location(call, WORKSPACES, &slug))
}

/// The stored response for the Idempotency-Key of a request, if the key was used.
async fn replay(call: &Call, hashes: Option<&Hashes>) -> Result<Option<Reply>, Error> {
    let Some(hashes) = hashes else { return Ok(None) };
    let since = call.now.plus_seconds(-IDEMPOTENCY_KEY_TTL);
    let Some(earlier) =
        idempotency_keys::earlier_of_operator(&call.database, &hashes.key, since).await?
    else {
        return Ok(None);
    };
    let answer = hashes.answer(&earlier)?;
    let slug = answer.get("slug").and_then(Value::as_str).unwrap_or_default();
    idempotency::replay_reply(&answer, location(call, WORKSPACES, slug)).map(Some)
}

/// `GET /operator/workspaces/`: live and deleted workspaces.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    authorize(call).await?;
    let query = call.query();
    let page = Page::from_query(&query)?;
    let (items, count) = workspaces::list(&call.database, call.config.names().region, page).await?;
    envelope(call, &query, page, items, count)
}

/// `DELETE /operator/workspaces/<slug>/` (contract 2.3). From the response on, every request to the
/// workspace is refused. The purge starts after the grace period. With `?now=true`, it starts
/// immediately, if the workspace was deleted at least [`MIN_DELETED_SECONDS`] ago.
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    authorize(call).await?;
    let (query, slug) = (call.query(), call.parameter("slug"));
    let is_now = boolean_parameter(&query, "now")?.unwrap_or(false);
    if is_now && last_value(&query, "confirm") != Some(slug) {
        let message = "To purge the workspace now, repeat its slug here.";
        return Err(Error::field("confirm", message));
    }
    let purge_at = if is_now { call.now } else { platform::purge_at(&call.env, call.now) };
    let deletion = Deletion {
        purge_at,
        purges_now: purge_at <= call.now,
        deleted_by: is_now.then(|| call.now.plus_seconds(-MIN_DELETED_SECONDS)),
    };
    let event = workspace_event(call, slug)?.details(json!({"purge_at": purge_at}));
    let is_changed = janitor::delete_workspace(&call.env, slug, deletion, event).await?;
    call.audited_chains.borrow_mut().push(CELL);
    workspaces::forget(slug);
    if is_changed {
        return Ok(Reply::no_content());
    }
    if is_now && workspaces::slug_holder(&call.database, slug).await?.is_some() {
        let minutes = MIN_DELETED_SECONDS / 60;
        let detail = format!(
            "Only a workspace that was deleted at least {minutes} minutes ago can be purged now. Delete it without `now` first."
        );
        return Err(Error::new(ErrorKind::Conflict, detail));
    }
    Err(no_workspace_error())
}

/// `POST /operator/workspaces/<slug>/undelete/`: restores a deleted workspace whose purge has not
/// begun.
pub async fn undelete(call: &mut Call) -> Result<Reply, Error> {
    let input = call.no_fields().await;
    authorize(call).await?;
    input?;
    let slug = call.parameter("slug");
    let event = workspace_event(call, slug)?;
    if !janitor::undelete_workspace(&call.env, slug, event).await? {
        return Err(Error::new(
            ErrorKind::NotFound,
            "No such deleted workspace, or its purge has begun.",
        ));
    }
    call.audited_chains.borrow_mut().push(CELL);
    Reply::ok(&json!({"slug": slug}))
}

fn no_workspace_error() -> Error {
    Error::new(ErrorKind::NotFound, "No such workspace.")
}

/// `POST /operator/workspaces/<slug>/resync/`: the objects of the workspace's servers write their
/// state to D1 again, in the background. The operator calls this after D1 was restored to an
/// earlier time (`docs/operations.md`, Restore).
pub async fn resync(call: &mut Call) -> Result<Reply, Error> {
    let input = call.no_fields().await;
    authorize(call).await?;
    input?;
    let slug = call.parameter("slug");
    if !janitor::resync(&call.env, slug).await? {
        return Err(no_workspace_error());
    }
    record_later(call, CELL, workspace_event(call, slug)?);
    Reply::accepted(&json!({"slug": slug}))
}
