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

use farhand_domain::cors;
use farhand_domain::error::{Error, Kind};
use serde::Serialize;
use serde_json::json;
use worker::{Context, Env, Response, ScheduleContext, ScheduledEvent, console_log, event, web_sys};

use crate::auth::audit;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::http::routes::{Access, Route};
use crate::http::{routes, setup};
use crate::objects::{audit_sealer, janitor};
use crate::platform::cost::Cost;
use crate::platform::{cost, log};
use crate::store::workspaces;

/// Where the paths of the command endpoints begin.
const COMMANDS: &str = "/api/events/commands/";
/// Browsers use https only for a year. Without subdomains: the service's domain may have others of its owner's.
const HSTS: &str = "max-age=31536000";

/// Runs once for each instance of the Worker.
#[event(start)]
fn start() {
    console_error_panic_hook::set_once();
}

/// Answers a request: the one place where an error becomes JSON. It never returns `Err`, which would show the platform's
/// own text.
#[event(fetch)]
async fn fetch(request: web_sys::Request, env: Env, context: Context) -> worker::Result<Response> {
    let mut call = Call::new(request, env, context);
    let (outcome, cost) = cost::of(async {
        // Before the host is mapped: over plain http nothing is said about which workspaces exist.
        call.require_https()?;
        setup::require_secrets(&call)?;
        match answer(&mut call).await {
            // A workspace that does not exist is 404 before anything else about the request (contract 3).
            Err(error) => Err(of_command(&call, workspace_missing(&call).await.unwrap_or(error))),
            reply => reply,
        }
    })
    .await;
    let outcome = setup::explain(&call, outcome, cost.d1_calls > 0).await;
    if let Err(error) = &outcome {
        audit::note_refusal(&call, error);
    }
    audit::seal_later(&call);
    let reply = outcome.unwrap_or_else(|error| {
        let reply = Reply::refusal(&error, &call.id);
        match (error.kind, routes::find(&call.path)) {
            (Kind::Unauthenticated, Some((route, _))) => reply.header("WWW-Authenticate", challenge(route.access)),
            (Kind::MethodNotAllowed, Some((route, _))) => reply.header("Allow", route.allow(call.config.on_prem)),
            _ => reply,
        }
    });
    let reply = if call.is_https() { reply.header("Strict-Transport-Security", HSTS) } else { reply };
    let response = with_cors(&call, reply).into_response(&call.id, call.method == "HEAD")?;
    log_request(&call, response.status_code(), cost);
    Ok(response)
}

/// Gives invalid input of the command endpoints its code (spec.md, Command errors). An agent's reports keep the plain form.
fn of_command(call: &Call, error: Error) -> Error {
    let is_command = call.route.is_some_and(|route| route.access == Access::User && route.path.starts_with(COMMANDS));
    if is_command && error.kind == Kind::Invalid { error.invalid_command() } else { error }
}

/// Runs when the clock says so (wrangler.toml, triggers): has old commands deleted, and audit events sealed that are not.
#[event(scheduled)]
async fn scheduled(_: ScheduledEvent, env: Env, _: ScheduleContext) {
    if let Err(error) = store::idempotency_keys::purge(&env).await {
        log::trouble("keys_not_purged", json!({}), &error.detail);
    }
    if let Err(error) = janitor::delete_old_commands(&env).await {
        log::trouble("retention_not_begun", json!({}), &error.detail);
    }
    if let Err(error) = audit::write_overdue(&env).await {
        log::trouble("audit_event_lost", json!({}), &error.detail);
    }
    if let Err(error) = audit_sealer::tell_all(&env).await {
        log::trouble("sealers_not_told", json!({}), &error.detail);
    }
}

/// A line of the log.
#[derive(Serialize)]
struct Line<'a> {
    event: &'static str,
    request_id: &'a str,
    workspace: Option<&'a str>,
    route: Option<&'static str>,
    method: &'a str,
    status: u16,
    /// From the request's arrival to its answer, without the body of one that streams. The clock stands still between calls
    /// to anything else, so what the Worker itself computes is not in there.
    duration_ms: u64,
    #[serde(flatten)]
    cost: Cost,
}

/// Tells the log of a request at its end: a JSON object in a line. Nothing of its path or its query is in there.
///
/// What is open to everybody, cost nothing and went well leaves no line: the line would be most of the work.
fn log_request(call: &Call, status: u16, cost: Cost) {
    let is_open = call.route.is_some_and(|route| route.access == Access::Open);
    if is_open && status == 200 && cost == Cost::default() {
        return;
    }
    let line = Line {
        event: "request",
        request_id: &call.id,
        workspace: call.host.workspace(),
        route: call.route.map(|route| route.path),
        method: &call.method,
        status,
        duration_ms: platform::now().as_millis().saturating_sub(call.now.as_millis()),
        cost,
    };
    console_log!("{}", serde_json::to_string(&line).unwrap_or_default());
}

/// Finds the endpoint and has it answer, in the contract's order of refusals: host, path, method, and then what the
/// handler asks for.
async fn answer(call: &mut Call) -> Result<Reply, Error> {
    let before_hosts = matches!(call.path.as_str(), "/healthz")
        || call.path.starts_with("/operator/") && api::operator::is_visible(call);
    if !before_hosts {
        call.workspace()?;
    }
    if let Some(path) = with_slash(call) {
        if let Some(error) = workspace_missing(call).await {
            return Err(error);
        }
        // An agent's client would turn a redirected POST into a GET: agents are served where they ask.
        if !call.is_agent() {
            let query = if call.raw_query.is_empty() { String::new() } else { format!("?{}", call.raw_query) };
            return Ok(Reply::moved(format!("{}{path}{query}", call.origin)));
        }
        call.path = path;
    }
    let path = call.path.clone();
    let (route, parameters) =
        routes::find(&path).filter(|(route, _)| is_served(call, route)).ok_or_else(Error::no_path)?;
    if call.method == "OPTIONS" {
        if let Some(error) = workspace_missing(call).await {
            return Err(error);
        }
        return Ok(Reply::no_content().header("Allow", route.allow(call.config.on_prem)));
    }
    call.route = Some(route);
    let endpoint = route.endpoint(&call.method);
    let endpoint = endpoint.ok_or_else(|| Error::new(Kind::MethodNotAllowed, "Method not allowed."))?;
    call.takes_limited_tokens = endpoint.takes_limited_tokens();
    call.parameters = parameters.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let reply = api::dispatch(endpoint, call).await?;
    match workspace_missing(call).await {
        Some(error) => Err(error),
        None => Ok(reply),
    }
}

/// What a request without a credential is asked for.
fn challenge(access: Access) -> &'static str {
    match access {
        Access::Operator => "Bearer realm=\"farhand operator\"",
        Access::Agent => "id realm=\"farhand agent\"",
        Access::Open | Access::User | Access::UserOrAgent | Access::Registration => "token realm=\"farhand\"",
    }
}

/// Where every path ends with a slash (contract 11). Other paths are files and pages.
const SLASHED: [&str; 3] = ["/api/", "/operator/", "/ws/"];

/// The path with the slash that it lacks.
fn with_slash(call: &Call) -> Option<String> {
    let whole = format!("{}/", call.path);
    let is_slashed = SLASHED.iter().any(|prefix| whole.starts_with(prefix)) || routes::find(&whole).is_some();
    let is_whole = call.path.ends_with('/') || routes::ends_without_slash(&call.path);
    (is_slashed && !is_whole).then_some(whole)
}

/// Tells whether there is such an endpoint here at all: what is hidden is 404, whatever the method.
fn is_served(call: &Call, route: &Route) -> bool {
    let hidden_operator = route.access == Access::Operator && !api::operator::is_visible(call);
    let hidden_in_cloud = !call.config.on_prem
        && (route.on_prem_only.contains(&call.method.as_str()) || route.served(false).next().is_none());
    !hidden_operator && !hidden_in_cloud
}

/// The refusal where the request's workspace does not exist, if that is not known yet.
async fn workspace_missing(call: &Call) -> Option<Error> {
    let outside = call.path == "/healthz" || call.path.starts_with("/operator/");
    let slug = call.host.workspace().filter(|_| !outside && !call.workspace_proven.get())?;
    match workspaces::id_of(&call.env, slug, call.now).await {
        Ok(Some(_)) => {
            call.workspace_proven.set(true);
            None
        }
        Ok(None) => Some(Error::no_workspace()),
        Err(error) => Some(error),
    }
}

/// Lets pages of the web client's origin read the answer, and no others (contract 3).
fn with_cors(call: &Call, reply: Reply) -> Reply {
    let is_operator = call.path.starts_with("/operator/");
    let Some(origin) = call.header("Origin").filter(|_| !is_operator) else { return reply };
    let web_client = call.config.web_client_elsewhere().unwrap_or(&call.origin);
    let reply = reply.header("Vary", "Origin");
    if !cors::allows(web_client, &origin) {
        return reply;
    }
    let reply = reply.header("Access-Control-Allow-Origin", origin).header(
        "Access-Control-Expose-Headers",
        "X-Request-Id, X-Error-Code, Retry-After, Location, Idempotent-Replayed, Preference-Applied",
    );
    if call.method != "OPTIONS" {
        return reply;
    }
    reply
        .header("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
        .header(
            "Access-Control-Allow-Headers",
            "Authorization, Content-Type, Prefer, Idempotency-Key, Last-Event-ID, X-Request-Id",
        )
        .header("Access-Control-Max-Age", "600")
}
