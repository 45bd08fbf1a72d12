//! The Worker of Farhand. `ARCHITECTURE.md` draws the map; this file holds the entry points only.

mod api;
mod auth;
mod http;
mod mail;
mod objects;
mod platform;
#[cfg(test)]
mod rooms;
mod store;

use std::task::{self, Poll, Waker};

use js_sys::futures::future_to_promise;
use serde_json::json;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;
use worker::{Context, Env, ScheduleContext, ScheduledEvent, event, web_sys, worker_sys};

use crate::api::dispatch;
use crate::auth::audit;
use crate::http::request::Call;
use crate::objects::janitor;
use crate::platform::log;
use crate::store::idempotency_keys;

/// Runs once for each instance of the Worker.
#[event(start)]
fn start() {
    console_error_panic_hook::set_once();
}

/// Answers a request. Every refusal is a response: an `Err` would show the platform's own text.
///
/// A response that waits for nothing is returned as it is; others are promised. The macro of the
/// `worker` crate promises all.
#[wasm_bindgen]
pub fn fetch(
    request: web_sys::Request,
    env: Env,
    context: worker_sys::Context,
) -> Result<JsValue, JsValue> {
    let call = Call::new(request, env, Context::new(context));
    let mut response =
        Box::pin(async { dispatch::respond(call).await.map(JsValue::from).map_err(JsValue::from) });
    // The next poll brings a waker.
    match response.as_mut().poll(&mut task::Context::from_waker(Waker::noop())) {
        Poll::Ready(response) => response,
        Poll::Pending => Ok(future_to_promise(response).into()),
    }
}

/// Cron trigger (wrangler.toml): purges idempotency keys, starts the janitor's pass, and writes
/// pending audit events.
#[event(scheduled)]
async fn scheduled(_: ScheduledEvent, env: Env, _: ScheduleContext) {
    if let Err(error) = idempotency_keys::purge(&env).await {
        log::trouble("keys_not_purged", json!({}), &error.detail);
    }
    if let Err(error) = janitor::begin_pass(&env).await {
        log::trouble("retention_not_begun", json!({}), &error.detail);
    }
    if let Err(error) = audit::write_overdue(&env).await {
        log::trouble("audit_event_lost", json!({}), &error.detail);
    }
}
