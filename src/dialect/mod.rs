//! The dialect of `alpacon-cli` and `alpacon-mcp` (contract 21). It rewrites a request, sends
//! native requests through the ordinary dispatch, and rewrites the response. Handlers do not depend
//! on it.
//!
//! `farhand_domain::dialect::table` has one row for each endpoint.

mod access_lists;
pub mod channel;
mod exchange;
mod live;
mod names;
mod steps;

use farhand_domain::dialect::body;
use farhand_domain::dialect::pages;
use farhand_domain::dialect::reply::{self, Names, Shape};
use farhand_domain::dialect::table::{self, DialectRow, Handling, Steps};
use farhand_domain::dialect::{Client, body::Rules};
use serde_json::Value;
use worker::web_sys;

use self::exchange::Exchange;
use crate::api::dispatch;
use crate::http::request::Call;
use crate::http::response::Reply;

/// Responds to a request. The `User-Agent` header alone selects the dialect.
///
/// # Errors
/// The runtime cannot create the response.
pub async fn respond(call: Call) -> worker::Result<web_sys::Response> {
    let user_agent = call.header("User-Agent").unwrap_or_default();
    match Client::from_user_agent(&user_agent) {
        // Boxed, so that requests of other clients do not carry this future.
        Some(client) => Box::pin(respond_to(client, call)).await,
        None => dispatch::respond(call).await,
    }
}

/// Responds to a request of one of the dialect's clients.
async fn respond_to(client: Client, mut call: Call) -> worker::Result<web_sys::Response> {
    let authorization = call.header("Authorization").unwrap_or_default();
    call.overrides.authorization = client.quote_token(&authorization, call.config.alpacon_mcp);
    let (id, without_body) = (call.id.clone(), call.method == "HEAD");
    let reply = match table::find(&call.method, &call.path) {
        Some((row, parameters)) => {
            call.overrides.refuses_limited_tokens = row.refuses_limited_tokens;
            let mut exchange = Exchange::new(call, client, parameters);
            // An error is a reply, too: a native refusal, or one of the dialect.
            answer(&mut exchange, row).await.unwrap_or_else(|refusal| refusal)
        }
        None => dispatch::answer(&mut call, dispatch::native).await,
    };
    reply.into_response(&id, without_body)
}

/// Serves a row of the table.
async fn answer(exchange: &mut Exchange, row: &'static DialectRow) -> Result<Reply, Reply> {
    match row.plan {
        Handling::Same => {
            rewrite_body(exchange, row.body).await;
            let sent = exchange.forward().await;
            converted(exchange, row.reply, sent).await
        }
        Handling::Native(method, path) => {
            let sent = exchange.send(method, path, "", None).await.map(|(reply, _)| reply);
            converted(exchange, row.reply, sent).await
        }
        Handling::Steps(steps) => run(exchange, steps, row.reply).await,
    }
}

/// Runs the code of a row. The futures are boxed, because they are large and rarely needed.
async fn run(exchange: &mut Exchange, steps: Steps, shape: Shape) -> Result<Reply, Reply> {
    match steps {
        Steps::Action => Box::pin(steps::action(exchange)).await,
        Steps::CommandOrList => Box::pin(steps::command_or_list(exchange, shape)).await,
        Steps::CommandList => Box::pin(steps::command_list(exchange, shape)).await,
        Steps::Chunks => Box::pin(steps::chunks(exchange)).await,
        Steps::Memberships => Box::pin(steps::memberships(exchange, shape)).await,
        Steps::DuplicateToken => Box::pin(steps::duplicate_token(exchange)).await,
        Steps::RegistrationGuide => Box::pin(steps::registration_guide(exchange)).await,
        Steps::Activity => Box::pin(steps::activity(exchange, shape)).await,
        Steps::CommandAclList => Box::pin(access_lists::list_commands(exchange)).await,
        Steps::CommandAclAdd => Box::pin(access_lists::add_command(exchange)).await,
        Steps::CommandAclDelete => Box::pin(access_lists::delete_entry(exchange, "commands")).await,
        Steps::ServerAclList => Box::pin(access_lists::list_servers(exchange)).await,
        Steps::ServerAclAdd => Box::pin(access_lists::add_server(exchange)).await,
        Steps::ServerAclAddMany => Box::pin(access_lists::add_servers(exchange)).await,
        Steps::ServerAclDelete => Box::pin(access_lists::delete_entry(exchange, "servers")).await,
        Steps::ServerAclDeleteMany => Box::pin(access_lists::delete_servers(exchange)).await,
        Steps::OpenChannel => Box::pin(live::open_channel(exchange)).await,
        Steps::Subscribe => Box::pin(live::subscribe(exchange)).await,
        Steps::ChannelSocket => Box::pin(live::connect(exchange)).await,
    }
}

/// Rewrites the fields of the body. The native endpoint refuses a body that is not a JSON object.
async fn rewrite_body(exchange: &mut Exchange, rules: Rules) {
    if rules.is_empty() {
        return;
    }
    let client = exchange.client;
    exchange.call.keep_body().await;
    let Some(kept) = &mut exchange.call.overrides.body else { return };
    if kept.media_type != "application/json" {
        return;
    }
    if let Ok(bytes) = &mut kept.bytes
        && let Some(rewritten) = body::rewrite(bytes, rules, client)
    {
        *bytes = rewritten;
    }
}

/// Converts the response to a native request. Responses without JSON stay as they are.
async fn converted(
    exchange: &mut Exchange,
    shape: Shape,
    sent: Result<Reply, Reply>,
) -> Result<Reply, Reply> {
    let reply = match sent {
        // An API token cannot log out. After a refusal, the client would keep its configuration
        // forever.
        Err(refusal) if shape == Shape::Logout && exchange::is_for_valid_credential(&refusal) => {
            return Ok(refusal.with_json(200, &Value::Null));
        }
        sent => sent?,
    };
    if let Shape::Fixed(status, text) = shape {
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        return Ok(reply.with_json(status, &value));
    }
    let (status, Some(value)) = (reply.status(), reply.json_value()) else { return Ok(reply) };
    let value = convert_value(exchange, shape, value).await;
    Ok(reply.with_json(status, &value))
}

/// Converts a native resource, or a native list of resources.
async fn convert_value(exchange: &mut Exchange, shape: Shape, value: Value) -> Value {
    let mut value = value;
    let page = pages::requested_page(&exchange.query, shape == Shape::Server);
    let list = value.as_object_mut().and_then(|list| pages::convert(list, page));
    match list {
        Some(mut list) => {
            let items = list["results"].take();
            list["results"] = convert_items(exchange, shape, items).await;
            list
        }
        None => {
            let items = convert_items(exchange, shape, Value::Array(vec![value])).await;
            items.as_array().and_then(|items| items.first()).cloned().unwrap_or_default()
        }
    }
}

/// Converts an array of native resources.
async fn convert_items(exchange: &mut Exchange, shape: Shape, items: Value) -> Value {
    let Value::Array(items) = items else { return items };
    let names: Names = names::look_up(exchange, shape, &items).await;
    let now = exchange.call.now;
    items.into_iter().map(|item| reply::convert(shape, item, &names, now)).collect()
}
