//! `Idempotency-Key` on requests that create something (contract 3.11). Commands have their own
//! way, in `commands.rs`.
//!
//! The answer, without its secrets, is stored in the transaction of the change. So a key has an
//! answer exactly if its change was made.

use farhand_domain::caller::Caller;
use farhand_domain::command::KEY_LASTS;
use farhand_domain::error::{Error, NON_FIELD};
use farhand_domain::fields::Fields;
use farhand_domain::secret::{Guessable, Secret};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::location;
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::server_link::calls::Refusal;
use crate::platform;
use crate::store::batch::Batch;
use crate::store::db::Failure;
use crate::store::idempotency_keys::{self, ReplaySource};

/// The longest Idempotency-Key, in bytes (contract 3.11).
const MAX_KEY: usize = 128;

/// A kind of resource that requests create.
pub struct Kept {
    /// The collection, where the resource has its address.
    pub collection: &'static str,
    /// Where the answer is read.
    pub source: ReplaySource,
    /// The fields that only the first answer shows. A replay has null.
    pub hidden: &'static [&'static str],
}

/// The keyed hashes of an Idempotency-Key and of its request.
pub struct Hashes {
    /// Of the key.
    pub key: String,
    /// Of the endpoint and the body. Requests with equal hashes are the same request.
    pub request: String,
}

impl Hashes {
    /// Reads the key of a request with a body; `None` if the request has none.
    ///
    /// # Errors
    /// The key is malformed.
    pub fn of(call: &Call, body: Option<Secret>) -> Result<Option<Self>, Error> {
        let (Some(key), Some(body)) = (key_of(call)?, body) else { return Ok(None) };
        let secret_key = platform::secret_key(&call.env)?;
        let request = format!("{} {}", call.audit_action().unwrap_or_default(), body.expose());
        Ok(Some(Self {
            key: secret_key.hash(Guessable::IdempotencyKey, key.expose()),
            request: secret_key.hash(Guessable::Body, &request),
        }))
    }

    /// The answer to the earlier request with the key, `{request, answer}` as [`idempotency_keys`]
    /// gives it.
    ///
    /// # Errors
    /// The earlier request was another one.
    pub fn answer(&self, earlier: &str) -> Result<Map<String, Value>, Error> {
        #[derive(Deserialize)]
        struct Earlier {
            request: String,
            answer: Map<String, Value>,
        }
        let Earlier { request, answer } = serde_json::from_str(earlier)?;
        if request == self.request { Ok(answer) } else { Err(Refusal::KeyReused.into()) }
    }
}

/// The answer to a request whose key was used before.
///
/// # Errors
/// None that such an answer can have.
pub fn replayed(answer: &Map<String, Value>, location: String) -> Result<Reply, Error> {
    Ok(Reply::created(answer, location)?.header("Idempotent-Replayed", "true"))
}

/// A request that creates something, with or without an Idempotency-Key.
pub struct Once<'a> {
    call: &'a Call,
    kept: &'static Kept,
    /// `None`: the request has no key.
    hashes: Option<Hashes>,
}

/// The outcome of a creation.
pub enum Written {
    /// The resource was created. This is its JSON.
    Created(Caller, String),
    /// The conditions of the statements failed, and nothing was written.
    Refused(Caller),
    /// A concurrent request with the same key created the resource. This is its answer.
    Replayed(Reply),
}

/// The Idempotency-Key of a request.
///
/// # Errors
/// It is malformed.
pub fn key_of(call: &Call) -> Result<Option<Secret>, Error> {
    let Some(key) = call.header("Idempotency-Key") else { return Ok(None) };
    if (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(Some(Secret::new(key)));
    }
    let message =
        format!("The header Idempotency-Key takes 1 to {MAX_KEY} visible ASCII characters.");
    Err(Error::field(NON_FIELD, message))
}

/// The canonical body of a request, if it could be read: it is taken before the fields are.
pub fn body_of(fields: &Result<Fields, Error>) -> Option<Secret> {
    fields.as_ref().ok().map(Fields::canonical)
}

impl<'a> Once<'a> {
    /// Reads the request's key.
    ///
    /// # Errors
    /// The key is malformed.
    pub fn of(call: &'a Call, kept: &'static Kept, body: Option<Secret>) -> Result<Self, Error> {
        Ok(Self { call, kept, hashes: Hashes::of(call, body)? })
    }

    /// The first answer to the key, if there is one, with the caller.
    ///
    /// # Errors
    /// The credential is not alive, or the key was used for another request.
    pub async fn replay(
        &self,
        credential: &Credential<'_>,
    ) -> Result<Option<(Caller, Reply)>, Error> {
        let Some(hashes) = &self.hashes else { return Ok(None) };
        let since = self.call.now.plus_seconds(-KEY_LASTS);
        let (caller, found) =
            credential.read(idempotency_keys::earlier(&hashes.key, since)).await?;
        let Some(found) = found else { return Ok(None) };
        let mut answer = hashes.answer(&found)?;
        answer.extend(self.kept.hidden.iter().map(|name| ((*name).to_owned(), Value::Null)));
        let id =
            answer.get("id").map(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned));
        let location = location(self.call, self.kept.collection, id.unwrap_or_default());
        Ok(Some((caller, replayed(&answer, location)?)))
    }

    /// Writes a creation, and with it the answer to a request with a key. `resource` is the new
    /// resource's id or name.
    ///
    /// # Errors
    /// As [`Credential::write`].
    pub async fn write(
        &self,
        credential: &Credential<'_>,
        resource: &str,
        batch: Batch,
    ) -> Result<Written, Failure> {
        let batch = match &self.hashes {
            Some(Hashes { key, request }) => idempotency_keys::insert(
                batch,
                &credential.scope,
                (key, request),
                &self.kept.source,
                resource,
            ),
            None => batch,
        };
        match credential.write(batch).await {
            Ok((caller, Some(created))) => Ok(Written::Created(caller, created)),
            Ok((caller, None)) => Ok(Written::Refused(caller)),
            // A concurrent request with the same key took the key, or a name, first.
            Err(Failure::NotUnique(rule)) => match self.replay(credential).await? {
                Some((_, reply)) => Ok(Written::Replayed(reply)),
                None => Err(Failure::NotUnique(rule)),
            },
            Err(failure) => Err(failure),
        }
    }
}
