//! API tokens (contract 4.8).

use std::time::Duration;

use farhand_domain::access::api_token::{
    self, NewToken, TokenChanges, TokenFilter, TokenReplacement,
};
use farhand_domain::access::caller::Caller;
use farhand_domain::error::Error;
use farhand_domain::mail::notice::NoticeKind;
use farhand_domain::secret::{Purpose, credential_hash};
use serde_json::{Value, json};

use super::change::{Extent, changed_fields, conflict_error};
use super::idempotency::{self, Creation, CreationOutcome, ResourceKind};
use super::notices::{Audience, notice_of, notify_later};
use super::{any_caller, list_page, location, retrieve_one};
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::platform;
use crate::store::api_tokens;

/// The `Retry-After` if the user has too many tokens (contract 11.4).
const QUOTA_RETRY_AFTER: Duration = Duration::from_secs(60);

/// The path and the replay source of new API tokens.
const RESOURCE: ResourceKind =
    ResourceKind { collection: "/api/auth/tokens/", source: api_tokens::REPLAY, hidden: &["key"] };

/// After the response: a mail about a token of the caller without an access control list.
fn notify_of_unlimited_token(call: &Call, caller: &Caller) {
    let (name, address) = (&caller.username, caller.email.as_str());
    let notice = notice_of(call, caller, NoticeKind::UnlimitedToken, name, &[address]);
    notify_later(call, notice, Audience::Named);
}

/// `POST /api/auth/tokens/`. Only this response contains the key.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let now = call.now;
    let fields = call.user_fields().await?;
    let body = idempotency::canonical_body(&fields);
    let credential = Credential::from_request(call)?;
    let new =
        credential.require_input(fields.and_then(|fields| NewToken::read(fields, now))).await?;
    let creation = credential.require_input(Creation::from_request(call, &RESOURCE, body)).await?;
    if let Some((_, reply)) = creation.replay(&credential).await? {
        return Ok(reply);
    }
    let key = platform::new_secret()?;
    let key_hash = credential_hash(Purpose::Token, &key);
    let id = platform::new_id(now)?;
    let event = call.audit_event()?.with_object(Some(id.to_string()), Some(&new.name));
    let mut event =
        event.details(json!({"expires_at": new.expires_at, "has_acl": new.acl.is_some()}));
    api_tokens::add_acl_to_event(&mut event, new.acl.as_ref())?;
    let max_tokens = call.config.quotas.tokens_of_user;
    let transaction =
        api_tokens::insert(&credential.scope, id, &new, &key_hash, max_tokens, &event)?;
    match creation.write(&credential, &id.to_string(), transaction).await? {
        CreationOutcome::Created(caller, token) => {
            if new.acl.is_none() {
                notify_of_unlimited_token(call, &caller);
            }
            let mut token: Value = serde_json::from_str(&token)?;
            token["key"] = json!(key.expose());
            Reply::created(&token, location(call, RESOURCE.collection, id))
        }
        CreationOutcome::Refused(caller) => {
            let limit = caller
                .token_expires_at()
                .filter(|limit| new.expires_at.is_none_or(|end| end > *limit));
            let detail = format!("You have {max_tokens} API tokens. Delete one first.");
            Err(limit.map_or_else(
                || Error::quota_exceeded(detail, QUOTA_RETRY_AFTER.as_secs()),
                |limit| api_token::outlives("expires_at", limit),
            ))
        }
        CreationOutcome::Replayed(reply) => Ok(reply),
    }
}

/// `GET /api/auth/tokens/`: the caller's tokens, newest first.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    list_page(call, any_caller, |query, _| {
        TokenFilter::from_query(query).map(|filter| api_tokens::list(&filter))
    })
    .await
}

/// `GET /api/auth/tokens/<id>/`.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    retrieve_one(call, any_caller, call.path_id(Error::not_found), api_tokens::by_id).await
}

/// `PUT` and `PATCH /api/auth/tokens/<id>/`: changes everything except the key. In a `PUT`, omitted
/// fields get the defaults of a new token. A missing token is refused before the input (contract
/// 3.4).
pub async fn change(call: &mut Call, extent: Extent) -> Result<Reply, Error> {
    let now = call.now;
    let whole = |fields| TokenReplacement::read(fields, now).map(TokenChanges::from);
    let partial = |fields| TokenChanges::read(fields, now);
    let fields = call.user_fields().await?;
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let changes = match fields.and_then(|fields| extent.read(fields, whole, partial)) {
        Ok(changes) => changes,
        Err(error) => {
            retrieve(call).await?;
            return Err(error);
        }
    };
    let event =
        call.audit_event()?.with_object(Some(id.to_string()), None).details(changed_fields(&[
            ("name", changes.name.is_some()),
            ("enabled", changes.enabled.is_some()),
            ("expires_at", changes.expires_at.is_some()),
            ("acl", changes.acl.is_some()),
        ]));
    let expected_acl = call.overrides.expected_acl.as_deref();
    let (caller, token) = credential
        .write(api_tokens::update(&credential.scope, id, &changes, expected_acl, event)?)
        .await?;
    if let Some(token) = token {
        if changes.acl == Some(None) {
            notify_of_unlimited_token(call, &caller);
        }
        return Ok(Reply::ok_text(token));
    }
    if call.overrides.expected_acl.is_some() {
        retrieve(call).await?;
        return Err(conflict_error("token"));
    }
    let Some(limit) = caller.token_expires_at() else { return Err(Error::not_found()) };
    retrieve(call).await?;
    Err(api_token::outlives(changes.field_that_outlives(limit), limit))
}

/// `DELETE /api/auth/tokens/<id>/`.
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let event = call.audit_event()?.with_object(Some(id.to_string()), None);
    let (_, deleted) = credential.write(api_tokens::delete(&credential.scope, id, &event)?).await?;
    deleted.map(|_| Reply::no_content()).ok_or_else(Error::not_found)
}
