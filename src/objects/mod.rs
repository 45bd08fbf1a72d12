//! The Durable Objects. This file has the calls between the Worker and any object: JSON request and
//! response messages over `fetch`. The cost of an object's work is added to the cost of the request
//! that called the object.

mod alarm;
pub mod audit_sealer;
pub mod batch;
pub mod janitor;
pub mod mailer;
pub mod scheduler;
pub mod server_link;
pub mod sqlite;
pub mod throttle;

use farhand_domain::error::Error;
use serde::Serialize;
use serde::de::DeserializeOwned;
use worker::{Env, Method, Request, RequestInit, Response, Stub};

use crate::platform::cost::{self, Cost};
use crate::platform::internal;

/// The origin of requests to objects. The runtime routes them by the object's stub, so the host
/// name need not exist.
pub const ORIGIN: &str = "https://object.invalid";

/// The header of an object's response that contains the [`Cost`] of the call as JSON. Absent if the
/// call cost nothing.
const COST_HEADER: &str = "X-Farhand-Cost";

/// A stub of the object `name` in a namespace.
///
/// # Errors
/// The deployment has no such binding.
pub fn stub(env: &Env, namespace: &str, name: &str) -> Result<Stub, Error> {
    Ok(env.durable_object(namespace)?.get_by_name(name)?)
}

/// Sends an object a request message and returns its response message.
///
/// # Errors
/// The object did not respond, it failed, or its response has another type.
pub async fn call<T: DeserializeOwned>(
    env: &Env,
    namespace: &str,
    name: &str,
    message: &impl Serialize,
) -> Result<T, Error> {
    let body = serde_json::to_string(message)?;
    let mut init = RequestInit::new();
    init.with_method(Method::Post).with_body(Some(body.into()));
    let request = Request::new_with_init(ORIGIN, &init)?;
    let mut response = fetch(&stub(env, namespace, name)?, request).await?;
    serde_json::from_str(&response.text().await?).map_err(internal)
}

/// Sends an object an HTTP request, and adds the cost of the object's work to the current cost.
///
/// # Errors
/// The object did not respond.
pub async fn fetch(stub: &Stub, request: Request) -> Result<Response, Error> {
    let response = stub.fetch_with_request(request).await?;
    let header = response.headers().get(COST_HEADER).ok().flatten();
    cost::add(header.and_then(|cost| serde_json::from_str(&cost).ok()).unwrap_or_default());
    Ok(response)
}

/// In an object: runs the work for a request, and adds its cost to the response as a header.
///
/// # Errors
/// The work failed.
pub async fn with_cost_header(
    work: impl Future<Output = worker::Result<Response>>,
) -> worker::Result<Response> {
    let (response, cost) = cost::measure(work).await;
    let mut response = response?;
    if cost != Cost::default() {
        response.headers_mut().set(COST_HEADER, &serde_json::to_string(&cost)?)?;
    }
    Ok(response)
}

/// In an object: parses a request message, passes it to `handler`, and responds with the message
/// that `handler` returns.
///
/// # Errors
/// The handler failed, or a message could not be parsed or serialized.
pub async fn respond<Q: DeserializeOwned, A: Serialize>(
    request: &mut Request,
    handler: impl AsyncFnOnce(Q) -> Result<A, Error>,
) -> worker::Result<Response> {
    let message = serde_json::from_slice(&request.bytes().await?)?;
    let answer = handler(message)
        .await
        .map_err(|error| worker::Error::RustError(error.detail.into_owned()))?;
    Response::from_json(&answer)
}
