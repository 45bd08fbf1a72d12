//! `Idempotency-Key` of requests that create a resource (contract 3.11). Commands have their own
//! implementation, in `command_creation.rs` and the server's object.
//!
//! The response, without its secrets, is stored in the transaction of the creation. So a key has a
//! stored response if and only if its resource was created.

use farhand_domain::access::caller::Caller;
use farhand_domain::command::request::IDEMPOTENCY_KEY_TTL;
use farhand_domain::error::{Error, NON_FIELD};
use farhand_domain::http::fields::Fields;
use farhand_domain::secret::{Guessable, Secret};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::location;
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::server_link::calls::Refusal;
use crate::platform;
use crate::store::db::Failure;
use crate::store::idempotency_keys::{self, ReplaySource};
use crate::store::transaction::Transaction;

/// The maximum length of an Idempotency-Key, in bytes.
const MAX_KEY_BYTES: usize = 128;

/// A kind of resource that requests create, and how a repeated response shows the resource.
pub struct ResourceKind {
    /// The path of the collection, which precedes the id in `Location`.
    pub collection: &'static str,
    /// The SQL that reads the response to be stored.
    pub source: ReplaySource,
    /// The fields that only the first response contains. In a replay they are null.
    pub hidden: &'static [&'static str],
}

/// The keyed hashes of an Idempotency-Key and of its request.
pub struct Hashes {
    pub key: String,
    /// The hash of the endpoint and the body. Requests with equal hashes are the same request.
    pub request: String,
}

impl Hashes {
    /// Reads the Idempotency-Key. Returns `None` if the request has no key, or if its body is not
    /// readable.
    ///
    /// # Errors
    /// 400 if the key is malformed.
    pub fn from_request(call: &Call, body: Option<Secret>) -> Result<Option<Self>, Error> {
        let (Some(key), Some(body)) = (read_key(call)?, body) else { return Ok(None) };
        let secret_key = platform::secret_key(&call.env)?;
        let request = format!("{} {}", call.audit_action().unwrap_or_default(), body.expose());
        Ok(Some(Self {
            key: secret_key.hash(Guessable::IdempotencyKey, key.expose()),
            request: secret_key.hash(Guessable::Body, &request),
        }))
    }

    /// Returns the stored response to the earlier request. `earlier` is the JSON of
    /// [`idempotency_keys::earlier`].
    ///
    /// # Errors
    /// 422 `IDEMPOTENCY_KEY_REUSED` if the earlier request was different.
    pub fn answer(&self, earlier: &str) -> Result<Map<String, Value>, Error> {
        #[derive(Deserialize)]
        struct EarlierAnswer {
            request: String,
            answer: Map<String, Value>,
        }
        let EarlierAnswer { request, answer } = serde_json::from_str(earlier)?;
        if request == self.request { Ok(answer) } else { Err(Refusal::KeyReused.into()) }
    }
}

/// The response that repeats a stored response.
///
/// # Errors
/// The stored response cannot be written as JSON.
pub fn replay_reply(answer: &Map<String, Value>, location: String) -> Result<Reply, Error> {
    Ok(Reply::created(answer, location)?.header("Idempotent-Replayed", "true"))
}

/// The creation of a resource, with or without an Idempotency-Key.
pub struct Creation<'a> {
    call: &'a Call,
    kind: &'static ResourceKind,
    /// `None` if the request has no key.
    hashes: Option<Hashes>,
}

/// The outcome of [`Creation::write`].
pub enum CreationOutcome {
    /// The resource was created. The text is the resource as JSON.
    Created(Caller, String),
    /// The conditions of the statements failed. Nothing was written.
    Refused(Caller),
    /// A concurrent request with the same key created the resource. This reply repeats its
    /// response.
    Replayed(Reply),
}

/// Reads the Idempotency-Key of a request.
///
/// # Errors
/// 400 if the key is malformed.
pub fn read_key(call: &Call) -> Result<Option<Secret>, Error> {
    let Some(key) = call.header("Idempotency-Key") else { return Ok(None) };
    if (1..=MAX_KEY_BYTES).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(Some(Secret::new(key)));
    }
    let message =
        format!("The header Idempotency-Key takes 1 to {MAX_KEY_BYTES} visible ASCII characters.");
    Err(Error::field(NON_FIELD, message))
}

/// The canonical body of a request, if it is readable. Readers consume the fields, so call this
/// first.
pub fn canonical_body(fields: &Result<Fields, Error>) -> Option<Secret> {
    fields.as_ref().ok().map(Fields::canonical)
}

impl<'a> Creation<'a> {
    /// Reads the Idempotency-Key of a request.
    ///
    /// # Errors
    /// 400 if the key is malformed.
    pub fn from_request(
        call: &'a Call,
        kind: &'static ResourceKind,
        body: Option<Secret>,
    ) -> Result<Self, Error> {
        Ok(Self { call, kind, hashes: Hashes::from_request(call, body)? })
    }

    /// Returns the caller and the stored response for the key, if the key was used.
    ///
    /// # Errors
    /// The credential is not valid; 422 `IDEMPOTENCY_KEY_REUSED`.
    pub async fn replay(
        &self,
        credential: &Credential<'_>,
    ) -> Result<Option<(Caller, Reply)>, Error> {
        let Some(hashes) = &self.hashes else { return Ok(None) };
        let since = self.call.now.plus_seconds(-IDEMPOTENCY_KEY_TTL);
        let (caller, found) =
            credential.read(idempotency_keys::earlier(&hashes.key, since)).await?;
        let Some(found) = found else { return Ok(None) };
        let mut answer = hashes.answer(&found)?;
        answer.extend(self.kind.hidden.iter().map(|name| ((*name).to_owned(), Value::Null)));
        let id =
            answer.get("id").map(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned));
        let location = location(self.call, self.kind.collection, id.unwrap_or_default());
        Ok(Some((caller, replay_reply(&answer, location)?)))
    }

    /// Writes the creation, and the response for the key, in one transaction. `resource` is the id
    /// or the name of the new resource.
    ///
    /// # Errors
    /// See [`Credential::write`].
    pub async fn write(
        &self,
        credential: &Credential<'_>,
        resource: &str,
        transaction: Transaction,
    ) -> Result<CreationOutcome, Failure> {
        let transaction = match &self.hashes {
            Some(Hashes { key, request }) => idempotency_keys::insert(
                transaction,
                &credential.scope,
                (key, request),
                &self.kind.source,
                resource,
            ),
            None => transaction,
        };
        match credential.write(transaction).await {
            Ok((caller, Some(created))) => Ok(CreationOutcome::Created(caller, created)),
            Ok((caller, None)) => Ok(CreationOutcome::Refused(caller)),
            // A concurrent request used the same key or the same name first.
            Err(Failure::NotUnique(rule)) => match self.replay(credential).await? {
                Some((_, reply)) => Ok(CreationOutcome::Replayed(reply)),
                None => Err(Failure::NotUnique(rule)),
            },
            Err(failure) => Err(failure),
        }
    }
}
