//! Calls from the Worker to a server's object. `farhand_domain::link::call` has the types of the
//! messages.

use farhand_domain::error::Error;
pub use farhand_domain::link::call::*;
use serde::de::DeserializeOwned;
use uuid::Uuid;
use worker::{Env, Headers, Method, Request, RequestInit, Response};

use crate::http::request::Call;
use crate::objects;
use crate::platform::{self, internal};

/// The header in which [`connect`] passes the agent's identity to the object.
pub const IDENTITY_HEADER: &str = "X-Farhand-Agent";

/// The header in which [`connect`] passes the request's id to the object.
pub const REQUEST_ID_HEADER: &str = "X-Request-Id";

/// Calls the object of a server. The inner `Err` is a refusal of the object, for callers that
/// handle refusals themselves.
///
/// # Errors
/// The object did not respond, or it failed.
pub async fn call_or_refusal<T: DeserializeOwned>(
    env: &Env,
    server: Uuid,
    message: &LinkRequest,
) -> Result<Result<T, Refusal>, Error> {
    let answer: LinkResponse =
        objects::call(env, platform::SERVER_LINK, &server.to_string(), message).await?;
    match answer {
        LinkResponse::Done(value) => serde_json::from_value(value).map(Ok).map_err(internal),
        LinkResponse::Refused(refusal) => Ok(Err(refusal)),
        LinkResponse::Failed(cause) => Err(Error::internal(cause)),
    }
}

/// Calls the object of a server. If the object refuses, returns the error for the client.
///
/// # Errors
/// The object did not respond, it failed, or it refused.
pub async fn call<T: DeserializeOwned>(
    env: &Env,
    server: Uuid,
    message: &LinkRequest,
) -> Result<T, Error> {
    Ok(call_or_refusal(env, server, message).await??)
}

/// Passes an agent's WebSocket request to the object of its server. If the object refuses the
/// agent, the response has a status of 4xx or 5xx and no WebSocket.
///
/// # Errors
/// The object did not respond.
pub async fn connect(
    call: &Call,
    identity: &ClaimedIdentity,
    path: &str,
) -> Result<Response, Error> {
    let headers = Headers::new();
    headers.set("Upgrade", "websocket")?;
    let text = serde_json::to_string(identity)?;
    headers.set(IDENTITY_HEADER, &text)?;
    headers.set(REQUEST_ID_HEADER, &call.id)?;
    let mut init = RequestInit::new();
    init.with_method(Method::Get).with_headers(headers);
    let request = Request::new_with_init(&format!("{}{path}", objects::ORIGIN), &init)?;
    let stub = objects::stub(&call.env, platform::SERVER_LINK, &identity.server.to_string())?;
    objects::fetch(&stub, request).await
}
