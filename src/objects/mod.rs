//! Calls into Durable Objects: JSON there and back over `fetch`, in one place. What an object
//! spends on an answer counts as the asking request's.

mod alarm;
pub mod audit_sealer;
pub mod janitor;
pub mod mailer;
pub mod server_link;
pub mod throttle;

use farhand_domain::error::Error;
use serde::Serialize;
use serde::de::DeserializeOwned;
use worker::{Env, Method, Request, RequestInit, Response, Stub};

use crate::platform::cost::{self, Cost};
use crate::platform::internal;

/// A name that no request leaves the Worker under.
pub const ORIGIN: &str = "https://object.invalid";

/// The header in which an object tells what its answer cost, where that is not nothing.
const COST_HEADER: &str = "X-Farhand-Cost";

/// The object of that name in a namespace.
///
/// # Errors
/// There is no such binding.
pub fn stub(env: &Env, namespace: &str, name: &str) -> Result<Stub, Error> {
    Ok(env.durable_object(namespace)?.get_by_name(name)?)
}

/// Asks an object.
///
/// # Errors
/// It could not be reached, or did not answer in this form.
pub async fn ask<T: DeserializeOwned>(
    env: &Env,
    namespace: &str,
    name: &str,
    question: &impl Serialize,
) -> Result<T, Error> {
    let body = serde_json::to_string(question)?;
    let mut init = RequestInit::new();
    init.with_method(Method::Post).with_body(Some(body.into()));
    let request = Request::new_with_init(ORIGIN, &init)?;
    let mut response = fetch(&stub(env, namespace, name)?, request).await?;
    serde_json::from_str(&response.text().await?).map_err(internal)
}

/// Sends an object a request.
///
/// # Errors
/// It could not be reached.
pub async fn fetch(stub: &Stub, request: Request) -> Result<Response, Error> {
    let response = stub.fetch_with_request(request).await?;
    let told = response.headers().get(COST_HEADER).ok().flatten();
    cost::add(told.and_then(|told| serde_json::from_str(&told).ok()).unwrap_or_default());
    Ok(response)
}

/// In an object: answers a request, and tells what that cost.
///
/// # Errors
/// Those of the work.
pub async fn with_cost_header(
    work: impl Future<Output = worker::Result<Response>>,
) -> worker::Result<Response> {
    let (response, cost) = cost::of(work).await;
    let mut response = response?;
    if cost != Cost::default() {
        response.headers_mut().set(COST_HEADER, &serde_json::to_string(&cost)?)?;
    }
    Ok(response)
}

/// In an object: takes a question, and answers it.
///
/// # Errors
/// The question or the answer is of another form, which is our own fault.
pub async fn answer<Q: DeserializeOwned, A: Serialize>(
    request: &mut Request,
    answer: impl AsyncFnOnce(Q) -> Result<A, Error>,
) -> worker::Result<Response> {
    let question = serde_json::from_slice(&request.bytes().await?)?;
    let answer = answer(question)
        .await
        .map_err(|error| worker::Error::RustError(error.detail.into_owned()))?;
    Response::from_json(&answer)
}
