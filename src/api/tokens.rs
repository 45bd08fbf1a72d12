//! API tokens (spec.md, API token).

use farhand_domain::api_token::NewToken;
use farhand_domain::error::Error;
use farhand_domain::secret::Purpose;
use serde_json::{Value, json};

use super::list_of;
use crate::caller::Credential;
use crate::platform::{self, internal};
use crate::request::Call;
use crate::response::Reply;
use crate::store::api_tokens::{self, OBJECT, OWN};

/// `POST /api/auth/tokens/`: the one answer that has the key.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let now = call.now;
    let fields = call.fields_of_user().await?;
    let credential = Credential::of(call)?;
    let new = credential.checked(fields.and_then(|fields| NewToken::read(fields, now))).await?;
    let key = platform::new_secret()?;
    let key_hash = platform::pepper(&call.env)?.hash(Purpose::Token, &key);
    let insert = api_tokens::insert(&credential, platform::new_id(now)?, &new.name, &key_hash, new.expires_at, now);
    let (_, bodies) = credential.write(vec![insert]).await?;
    let body = bodies.into_iter().flatten().next().ok_or_else(Error::invalid_token)?;
    let mut token: Value = serde_json::from_str(&body).map_err(internal)?;
    token["key"] = json!(key.expose());
    Reply::created(&token)
}

/// `GET /api/auth/tokens/`: the caller's own, newest first.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    let items = format!(
        "(SELECT json_group_array(json(item)) FROM (
            SELECT {OBJECT} AS item FROM api_tokens t WHERE {OWN} ORDER BY t.id DESC LIMIT ?5 OFFSET ?6))"
    );
    let count = format!("(SELECT count(*) FROM api_tokens t WHERE {OWN})");
    list_of(call, &items, &count, &["name", "enabled"]).await
}

/// `DELETE /api/auth/tokens/<id>/`.
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::of(call)?;
    let id = credential.checked(call.path_id(Error::not_found)).await?;
    let (_, bodies) = credential.write(vec![api_tokens::delete(&credential, id)]).await?;
    let deleted = bodies.into_iter().flatten().next().is_some();
    if deleted { Ok(Reply::no_content()) } else { Err(Error::not_found()) }
}
