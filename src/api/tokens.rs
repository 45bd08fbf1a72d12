//! API tokens (spec.md, API token).

use farhand_domain::api_token::{NewToken, TokenChanges, TokenFilter, TokenReplacement};
use farhand_domain::error::Error;
use farhand_domain::fields::Fields;
use farhand_domain::secret::Purpose;
use farhand_domain::time::Timestamp;
use serde_json::{Value, json};

use super::{Listing, anybody, changed, list_of};
use crate::caller::Credential;
use crate::platform::{self, internal};
use crate::request::Call;
use crate::response::Reply;
use crate::store::api_tokens::{self, FILTERS, OBJECT, OWN};
use crate::store::audit::after_change_by;

/// `POST /api/auth/tokens/`: the one answer that has the key.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let now = call.now;
    let fields = call.fields_of_user().await?;
    let credential = Credential::of(call)?;
    let new = credential.checked(fields.and_then(|fields| NewToken::read(fields, now))).await?;
    let key = platform::new_secret()?;
    let key_hash = platform::pepper(&call.env)?.hash(Purpose::Token, &key);
    let id = platform::new_id(now)?;
    let event = call.event("api_token.create")?.on(Some(id.to_string()), Some(&new.name));
    let event = event.details(json!({"expires_at": new.expires_at, "has_acl": new.acl.is_some()}));
    let insert = api_tokens::insert(&credential, id, &new, &key_hash, now)?;
    let (_, bodies) = credential.write_audited(vec![insert], 1, after_change_by(&credential, &event)?).await?;
    let body = bodies.into_iter().flatten().next().ok_or_else(Error::invalid_token)?;
    let mut token: Value = serde_json::from_str(&body).map_err(internal)?;
    token["key"] = json!(key.expose());
    Reply::created(&token)
}

/// `GET /api/auth/tokens/`: the caller's own, newest first; with `name` and `enabled` as filters.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    let listing = Listing {
        object: OBJECT,
        from: "api_tokens t",
        condition: &format!("{OWN} AND {FILTERS}"),
        order: "t.id DESC",
    };
    list_of(call, anybody, listing, |query| {
        let TokenFilter { name, enabled } = TokenFilter::of(query)?;
        Ok(vec![name.into(), enabled.into()])
    })
    .await
}

/// `GET /api/auth/tokens/<id>/`.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::of(call)?;
    let id = credential.checked(call.path_id(Error::not_found)).await?;
    let sql = format!("(SELECT {OBJECT} FROM api_tokens t WHERE t.id = ?5 AND {OWN})");
    let (_, token) = credential.read(&sql, vec![id.into()]).await?;
    token.map(Reply::ok_text).ok_or_else(Error::not_found)
}

/// `PUT /api/auth/tokens/<id>/`: everything but the key; what is left out is as in a new token.
pub async fn replace(call: &mut Call) -> Result<Reply, Error> {
    change(call, |fields, now| TokenReplacement::read(fields, now).map(TokenChanges::from)).await
}

/// `PATCH /api/auth/tokens/<id>/`: the given fields.
pub async fn update(call: &mut Call) -> Result<Reply, Error> {
    change(call, TokenChanges::read).await
}

/// Changes a token. Whether there is such a one is told before what is wrong with the input (contract 3).
async fn change(
    call: &mut Call,
    read: impl FnOnce(Fields, Timestamp) -> Result<TokenChanges, Error>,
) -> Result<Reply, Error> {
    let now = call.now;
    let fields = call.fields_of_user().await?;
    let credential = Credential::of(call)?;
    let id = credential.checked(call.path_id(Error::not_found)).await?;
    let changes = match fields.and_then(|fields| read(fields, now)) {
        Ok(changes) => changes,
        Err(error) => {
            retrieve(call).await?;
            return Err(error);
        }
    };
    let update = api_tokens::update(&credential, id, &changes, now)?;
    let event = call.event("api_token.update")?.on(Some(id.to_string()), None).details(changed(&[
        ("name", changes.name.is_some()),
        ("enabled", changes.enabled.is_some()),
        ("expires_at", changes.expires_at.is_some()),
        ("acl", changes.acl.is_some()),
    ]));
    let event = api_tokens::before_change(&credential, &event)?;
    let (_, bodies) = credential.write_audited(vec![update], 0, event).await?;
    bodies.into_iter().flatten().next().map(Reply::ok_text).ok_or_else(Error::not_found)
}

/// `DELETE /api/auth/tokens/<id>/`.
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::of(call)?;
    let id = credential.checked(call.path_id(Error::not_found)).await?;
    let event = call.event("api_token.delete")?.on(Some(id.to_string()), None);
    let event = api_tokens::before_change(&credential, &event)?;
    let (_, bodies) = credential.write_audited(vec![api_tokens::delete(&credential, id)], 0, event).await?;
    let deleted = bodies.into_iter().flatten().next().is_some();
    if deleted { Ok(Reply::no_content()) } else { Err(Error::not_found()) }
}
