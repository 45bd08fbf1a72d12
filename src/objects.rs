//! Calls into Durable Objects: JSON there and back over `fetch`, in one place.

use farhand_domain::error::Error;
use serde::Serialize;
use serde::de::DeserializeOwned;
use worker::{Env, Method, Request, RequestInit, Response, Stub};

use crate::platform::internal;

/// A name that no request leaves the Worker under.
pub const ORIGIN: &str = "https://object.invalid";

/// The object of that name in a namespace.
///
/// # Errors
/// There is no such binding.
pub fn stub(env: &Env, namespace: &str, name: &str) -> Result<Stub, Error> {
    env.durable_object(namespace).and_then(|objects| objects.get_by_name(name)).map_err(internal)
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
    let body = serde_json::to_string(question).map_err(internal)?;
    let mut init = RequestInit::new();
    init.with_method(Method::Post).with_body(Some(body.into()));
    let request = Request::new_with_init(ORIGIN, &init).map_err(internal)?;
    let mut response = stub(env, namespace, name)?.fetch_with_request(request).await.map_err(internal)?;
    serde_json::from_slice(&response.bytes().await.map_err(internal)?).map_err(internal)
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
    let answer = answer(question).await.map_err(|error| worker::Error::RustError(error.detail.into_owned()))?;
    Response::from_json(&answer)
}
