//! The operator API (contract 2): workspaces, on the bare service domain only.

use farhand_domain::audit::{ActorType, CELL, CredentialType, Event};
use farhand_domain::error::{Error, Kind};
use farhand_domain::fields::Fields;
use farhand_domain::host::Host;
use farhand_domain::page::Page;
use farhand_domain::password;
use farhand_domain::user::{self, NewUser};
use farhand_domain::workspace;
use serde_json::json;

use super::envelope;
use crate::audit::record_later;
use crate::janitor;
use crate::platform;
use crate::request::Call;
use crate::response::Reply;
use crate::store::workspaces;

/// Refuses whoever is not the operator.
///
/// # Errors
/// 404 on a workspace's own name or without the secret `OPERATOR_TOKEN`, 401 without a header, 403 with a wrong one.
pub fn authorize(call: &Call) -> Result<(), Error> {
    let expected = platform::operator_tokens(&call.env).filter(|_| matches!(call.host, Host::Bare(_)));
    let expected = expected.ok_or_else(Error::not_found)?;
    let token = call.operator_token()?;
    if expected.iter().any(|expected| token.equals(expected)) { Ok(()) } else { Err(Error::invalid_token()) }
}

/// Tells whether the operator API can be seen at all by this request.
pub fn is_visible(call: &Call) -> bool {
    !matches!(authorize(call), Err(Error { kind: Kind::NotFound, .. }))
}

/// The operator's event about a workspace, which is known by its slug.
fn event_of(call: &Call, action: &str, slug: &str) -> Result<Event, Error> {
    let event = call.event(action)?.by(ActorType::Operator, None, None).with(CredentialType::OperatorToken, None);
    Ok(event.on(None, Some(slug)))
}

struct NewWorkspace {
    slug: String,
    name: String,
    admin: NewUser,
}

fn read(mut fields: Fields) -> Result<NewWorkspace, Error> {
    let slug = fields.text("slug", 1..=63).filter(|slug| {
        let good = workspace::is_slug(slug);
        if !good {
            fields.reject("slug", "Enter a lower-case letter, then letters, digits and hyphens; no hyphen at the end.");
        }
        good
    });
    let name = fields.optional_text("name", 1..=128);
    let mut admin_fields = fields.object("admin");
    let admin = user::read_new(&mut admin_fields);
    fields.absorb("admin", admin_fields);
    let (slug, admin) = fields.finish_with(slug.zip(admin))?;
    Ok(NewWorkspace { name: name.unwrap_or_else(|| slug.clone()), slug, admin })
}

/// `POST /operator/workspaces/`.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    if let Err(error) = authorize(call) {
        call.discard().await;
        return Err(error);
    }
    let NewWorkspace { slug, name, admin } = call.fields().await.and_then(read)?;
    let hash = password::hash(&admin.password, platform::random()?, call.config.pbkdf2_rounds);
    let (event, own_event) = (event_of(call, "workspace.create", &slug)?, event_of(call, "workspace.create", &slug)?);
    let details = json!({"name": name, "admin": admin.username});
    let (event, own_event) = (event.details(details.clone()), own_event.details(details));
    let new = workspaces::New {
        slug: &slug,
        name: &name,
        admin: &admin,
        password: &hash,
        event: &event,
        own_event: &own_event,
    };
    let made = workspaces::insert(&call.env, new, call.now).await?;
    let made = made.ok_or_else(|| Error::field("slug", "A workspace with this slug already exists."))?;
    call.audited.borrow_mut().extend([CELL, made.workspace]);
    Reply::created(&json!({
        "slug": slug,
        "name": name,
        "region": call.config.names().region,
        "base_url": call.config.base_url_of(&slug),
        "admin": {"id": made.admin, "username": admin.username, "email": admin.email},
    }))
}

/// `GET /operator/workspaces/`.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    authorize(call)?;
    let query = call.query();
    let page = Page::of(&query)?;
    let (items, count) = workspaces::list(&call.env, call.config.names().region, page).await?;
    envelope(call, &query, page, items, count)
}

/// `DELETE /operator/workspaces/<slug>/`: everything in it is refused when this answers; the rest is purged after.
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    authorize(call)?;
    let slug = call.parameter("slug");
    let event = event_of(call, "workspace.delete", slug)?;
    let existed = janitor::delete_workspace(&call.env, slug, event).await?;
    call.audited.borrow_mut().push(CELL);
    workspaces::forget(slug);
    if existed { Ok(Reply::no_content()) } else { Err(Error::new(Kind::NotFound, "No such workspace.")) }
}

/// `POST /operator/workspaces/<slug>/resync/`: begins to have all objects of servers tell D1 everything again, for when D1 was
/// taken back to an earlier moment (docs/operations.md, Restore).
pub async fn resync(call: &Call) -> Result<Reply, Error> {
    authorize(call)?;
    let slug = call.parameter("slug");
    if !janitor::resync(&call.env, slug).await? {
        return Err(Error::new(Kind::NotFound, "No such workspace."));
    }
    record_later(call, CELL, event_of(call, "workspace.resync", slug)?);
    Reply::accepted(&json!({"slug": slug}))
}
