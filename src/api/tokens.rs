//! API tokens (spec.md, API token).

use farhand_domain::api_token::{self, NewToken, TokenChanges, TokenFilter, TokenReplacement};
use farhand_domain::error::Error;
use farhand_domain::fields::Fields;
use farhand_domain::secret::{Purpose, credential_hash};
use farhand_domain::time::Timestamp;
use serde_json::{Value, json};

use super::idempotency::{self, Kept, Once, Written};
use super::{Listing, anybody, changed, list_of, location};
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::platform::{self, internal};
use crate::store::api_tokens::{self, FILTERS, OBJECT, OWN};
use crate::store::audit::after_change_by;

/// The Retry-After of a used-up quota, in seconds.
const QUOTA_RETRY_AFTER: u64 = 60;

/// What a replay of a creation shows.
const KEPT: Kept = Kept {
    collection: "/api/auth/tokens/",
    object: OBJECT,
    made: "api_tokens t ON t.id = ?7 AND t.workspace_id = me.workspace_id AND t.user_id = me.user_id",
    hidden: &["key"],
};

/// `POST /api/auth/tokens/`: the one answer that has the key.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let now = call.now;
    let fields = call.fields_of_user().await?;
    let body = idempotency::body_of(&fields);
    let credential = Credential::of(call)?;
    let new = credential.checked(fields.and_then(|fields| NewToken::read(fields, now))).await?;
    let once = credential.checked(Once::of(call, &KEPT, body)).await?;
    if let Some(once) = &once
        && let Some((_, reply)) = once.replay(&credential).await?
    {
        return Ok(reply);
    }
    let key = platform::new_secret()?;
    let key_hash = credential_hash(Purpose::Token, &key);
    let id = platform::new_id(now)?;
    let event = call.event()?.on(Some(id.to_string()), Some(&new.name));
    let mut event = event.details(json!({"expires_at": new.expires_at, "has_acl": new.acl.is_some()}));
    api_tokens::tell_acl(&mut event, new.acl.as_ref())?;
    let most = call.config.quotas.tokens_of_user;
    let insert = api_tokens::insert(&credential.scope, id, &new, &key_hash, most, now)?;
    let event = (1, after_change_by(&credential.scope, &event)?);
    let written = idempotency::write(&credential, once.as_ref(), &id.to_string(), vec![insert], event).await?;
    let (caller, bodies) = match written {
        Written::Done(caller, bodies) => (caller, bodies),
        Written::Replayed(reply) => return Ok(reply),
    };
    let Some(body) = bodies.into_iter().flatten().next() else {
        let limit = caller.token_expires_at().filter(|limit| new.expires_at.is_none_or(|end| end > *limit));
        return Err(match limit {
            Some(limit) => api_token::outlives("expires_at", limit),
            None => Error::quota_exceeded(format!("You have {most} API tokens. Delete one first."), QUOTA_RETRY_AFTER),
        });
    };
    let mut token: Value = serde_json::from_str(&body).map_err(internal)?;
    token["key"] = json!(key.expose());
    Reply::created(&token, location(call, "/api/auth/tokens/", id))
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
    let update = api_tokens::update(&credential.scope, id, &changes, now)?;
    let event = call.event()?.on(Some(id.to_string()), None).details(changed(&[
        ("name", changes.name.is_some()),
        ("enabled", changes.enabled.is_some()),
        ("expires_at", changes.expires_at.is_some()),
        ("acl", changes.acl.is_some()),
    ]));
    let event = api_tokens::before_update(&credential.scope, event, &changes)?;
    let (caller, bodies) = credential.write_audited(vec![update], 0, event).await?;
    if let Some(token) = bodies.into_iter().flatten().next() {
        return Ok(Reply::ok_text(token));
    }
    let Some(limit) = caller.token_expires_at() else { return Err(Error::not_found()) };
    retrieve(call).await?;
    Err(api_token::outlives(changes.field_that_outlives(limit), limit))
}

/// `DELETE /api/auth/tokens/<id>/`.
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::of(call)?;
    let id = credential.checked(call.path_id(Error::not_found)).await?;
    let event = call.event()?.on(Some(id.to_string()), None);
    let event = api_tokens::before_delete(&credential.scope, &event)?;
    let (_, bodies) = credential.write_audited(vec![api_tokens::delete(&credential.scope, id)], 0, event).await?;
    let deleted = bodies.into_iter().flatten().next().is_some();
    if deleted { Ok(Reply::no_content()) } else { Err(Error::not_found()) }
}
