//! The entry points of the Worker: the start of an isolate, requests, and the cron trigger.
//! `ARCHITECTURE.md` has a map of the code.

mod api;
mod auth;
mod dialect;
mod http;
mod mail;
mod objects;
mod platform;
mod store;
#[cfg(test)]
mod structure_tests;

use std::task::{self, Poll, Waker};

use js_sys::futures::future_to_promise;
use serde_json::json;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;
use worker::{Context, Env, ScheduleContext, ScheduledEvent, event, web_sys, worker_sys};

use crate::auth::audit;
use crate::http::request::Call;
use crate::objects::{janitor, scheduler};
use crate::platform::{d1_size, log};
use crate::store::database::Database;
use crate::store::idempotency_keys;

/// Runs once for each isolate.
#[event(start)]
fn start() {
    console_error_panic_hook::set_once();
}

/// Responds to a request. Refusals are responses, too: for an `Err` the runtime would send its own
/// error page.
///
/// If the response is ready immediately, it is returned without a promise, which saves a turn of
/// the event loop. The `fetch` macro of the `worker` crate always returns a promise.
///
/// # Errors
/// The response cannot be converted into one of the runtime.
#[wasm_bindgen]
pub fn fetch(
    request: web_sys::Request,
    env: Env,
    context: worker_sys::Context,
) -> Result<JsValue, JsValue> {
    let call = Call::new(request, env, Context::new(context));
    let mut response =
        Box::pin(async { dialect::respond(call).await.map(JsValue::from).map_err(JsValue::from) });
    // This poll has no waker, so it cannot resume the future. The promise polls the future again
    // with a waker.
    match response.as_mut().poll(&mut task::Context::from_waker(Waker::noop())) {
        Poll::Ready(response) => response,
        Poll::Pending => Ok(future_to_promise(response).into()),
    }
}

/// The cron trigger (`wrangler.toml`): purges expired idempotency keys, starts a pass of the
/// janitor, wakes schedulers that lost their alarm, writes overdue anonymous audit events and refusals, and
/// logs whether D1 is nearly full.
#[event(scheduled)]
async fn scheduled(_: ScheduledEvent, env: Env, _: ScheduleContext) {
    if let Err(error) = idempotency_keys::purge(&Database::cell(&env)).await {
        log::error("keys_not_purged", json!({}), &error.detail);
    }
    if let Err(error) = janitor::begin_pass(&env).await {
        log::error("retention_not_begun", json!({}), &error.detail);
    }
    if let Err(error) = scheduler::wake_overdue(&env).await {
        log::error("schedulers_not_woken", json!({}), &error.detail);
    }
    if let Err(error) = audit::write_overdue(&env).await {
        log::error("audit_event_lost", json!({}), &error.detail);
    }
    d1_size::log_if_filling(&env);
}
