//! Dispatch: selects the handler of a request, and turns the handler's result into a response.

use farhand_domain::error::{Error, ErrorKind};
use farhand_domain::http::endpoints::{self, Access, Endpoint, Route};
use futures_util::future::{self, FutureExt, LocalBoxFuture};
use worker::web_sys;

use crate::api::change::Extent;
use crate::api::{
    acl_check, agent, audit, batch_creation, batch_stream, batches, command_creation,
    command_output, commands, console, deleted_servers, docs, groups, installer, operator, pages,
    passwords, registration_tokens, room, schedules, scripts, servers, service, sessions, tokens,
    users,
};
use crate::auth;
use crate::http::head::is_of_operator;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::http::{cors, request_log, setup};
use crate::platform::cost;
use crate::store::workspaces;

/// The prefix of the paths of command endpoints.
const COMMANDS: &str = "/api/events/commands/";
/// `Strict-Transport-Security` for one year (contract 3.8). Subdomains are not included, because
/// they may belong to other services of the domain's owner.
const HSTS: &str = "max-age=31536000";

/// What handles a request after the checks of [`answer`].
pub type Handler = for<'a> fn(&'a mut Call) -> LocalBoxFuture<'a, Result<Reply, Error>>;

/// Responds to a request of the API.
///
/// # Errors
/// The runtime cannot create the response.
pub async fn respond(mut call: Call) -> worker::Result<web_sys::Response> {
    let reply = answer(&mut call, native).await;
    reply.into_response(&call.id, call.method == "HEAD")
}

/// The handler of the API: finds the endpoint, and calls its handler.
pub fn native(call: &mut Call) -> LocalBoxFuture<'_, Result<Reply, Error>> {
    find_and_handle(call).boxed_local()
}

/// Answers a request, and logs it. Only this function turns an error into a reply.
pub async fn answer(call: &mut Call, handler: Handler) -> Reply {
    let (outcome, cost) = cost::measure(async {
        // Before the lookup of the workspace: the response to plain http must not depend on which
        // workspaces exist.
        call.require_https()?;
        setup::require_secrets(call)?;
        match handler(call).await {
            // If the workspace does not exist, its 404 replaces every other error (contract 3.4).
            Err(error) => {
                Err(with_command_code(call, missing_workspace_error(call).await.unwrap_or(error)))
            }
            reply => reply,
        }
    })
    .await;
    let outcome = setup::explain(call, outcome, cost.d1_calls > 0).await;
    if let Err(error) = &outcome {
        auth::audit::record_denial(call, error);
    }
    auth::audit::seal_later(call);
    let reply = outcome.unwrap_or_else(|error| error_reply(call, &error));
    let reply =
        if call.is_https() { reply.header("Strict-Transport-Security", HSTS) } else { reply };
    request_log::write(call, reply.status(), cost);
    cors::add_headers(call, reply)
}

/// The response to an error, with `WWW-Authenticate` or `Allow` if its status requires one.
fn error_reply(call: &Call, error: &Error) -> Reply {
    let reply = Reply::from_error(error, &call.id);
    match (error.kind, endpoints::find(&call.path)) {
        (ErrorKind::Unauthenticated, Some((route, _))) => {
            reply.header("WWW-Authenticate", www_authenticate(route.access))
        }
        (ErrorKind::MethodNotAllowed, Some((route, _))) => {
            reply.header("Allow", route.allow(call.config.on_prem))
        }
        _ => reply,
    }
}

fn www_authenticate(access: Access) -> &'static str {
    match access {
        Access::Operator => "Bearer realm=\"farhand operator\"",
        Access::Agent => "id realm=\"farhand agent\"",
        Access::Open | Access::User | Access::UserOrAgent | Access::Registration => {
            "token realm=\"farhand\""
        }
    }
}

/// Adds the code `INVALID_COMMAND` to 400s of command endpoints (contract 3.9), except for reports
/// of agents.
fn with_command_code(call: &Call, error: Error) -> Error {
    let is_command = call
        .route
        .is_some_and(|route| route.access == Access::User && route.path.starts_with(COMMANDS));
    if is_command && error.kind == ErrorKind::Invalid { error.invalid_command() } else { error }
}

/// Finds the endpoint and calls its handler. Refusals follow the order of contract 3.4: first host,
/// path and method, then the refusals of the handler.
async fn find_and_handle(call: &mut Call) -> Result<Reply, Error> {
    let needs_workspace =
        call.path != "/healthz" && !(is_of_operator(&call.path) && operator::is_visible(call));
    if needs_workspace {
        call.workspace()?;
    }
    if let Some(path) = endpoints::with_slash(&call.path) {
        if let Some(error) = missing_workspace_error(call).await {
            return Err(error);
        }
        // Agents get a response without a redirect, because their HTTP client turns a redirected
        // POST into a GET (agent-protocol 1.1).
        if !call.is_agent() {
            let query = if call.raw_query.is_empty() {
                String::new()
            } else {
                format!("?{}", call.raw_query)
            };
            return Ok(Reply::permanent_redirect(format!("{}{path}{query}", call.origin)));
        }
        call.path = path;
    }
    let path = call.path.clone();
    let (route, parameters) = endpoints::find(&path)
        .filter(|(route, _)| is_served(call, route))
        .ok_or_else(Error::no_path)?;
    if call.method == "OPTIONS" {
        if let Some(error) = missing_workspace_error(call).await {
            return Err(error);
        }
        return Ok(Reply::no_content().header("Allow", route.allow(call.config.on_prem)));
    }
    call.route = Some(route);
    let endpoint = route.endpoint(&call.method);
    let endpoint =
        endpoint.ok_or_else(|| Error::new(ErrorKind::MethodNotAllowed, "Method not allowed."))?;
    call.parameters =
        parameters.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    if room::is_scarce(call, endpoint) {
        room::require(call, endpoint).boxed_local().await?;
    }
    let reply = handle(endpoint, call).await?;
    match missing_workspace_error(call).await {
        Some(error) => Err(error),
        None => Ok(reply),
    }
}

/// Whether this host and this deployment serve the endpoint (contract 2.1 and 4.15). The response
/// for an endpoint that is not served is 404, never 405.
fn is_served(call: &Call, route: &Route) -> bool {
    let is_hidden_operator = route.access == Access::Operator && !operator::is_visible(call);
    !is_hidden_operator && !route.is_hidden(&call.method, call.config.on_prem)
}

/// The 404 for a workspace that does not exist, or the error of the lookup. Returns `None` if the
/// workspace exists, or if the path needs no workspace. Queries D1 only if the handler did not find
/// out whether the workspace exists.
async fn missing_workspace_error(call: &Call) -> Option<Error> {
    let outside = call.path == "/healthz" || is_of_operator(&call.path);
    let slug = call.host.workspace().filter(|_| !outside && !call.is_workspace_known.get())?;
    match workspaces::id_of(&call.database, slug, call.now).await {
        Ok(Some(_)) => {
            call.is_workspace_known.set(true);
            None
        }
        Ok(None) => Some(Error::no_workspace()),
        Err(error) => Some(error),
    }
}

/// Calls the handler of an endpoint. The future of each handler is boxed, because with a single
/// future of all handlers, the first request of an isolate would wait until all of them are
/// compiled.
fn handle(endpoint: Endpoint, call: &mut Call) -> LocalBoxFuture<'_, Result<Reply, Error>> {
    match endpoint {
        Endpoint::Health => future::ready(service::health(call)).boxed_local(),
        Endpoint::Console => console::page(call).boxed_local(),
        Endpoint::ConsoleFile => console::file(call).boxed_local(),
        Endpoint::Page => future::ready(pages::file(call)).boxed_local(),
        Endpoint::Docs => docs::file(call).boxed_local(),
        Endpoint::InstallScript => future::ready(installer::script(call)).boxed_local(),
        Endpoint::AgentFile => installer::agent_file(call).boxed_local(),
        Endpoint::WorkspaceCreate => operator::create(call).boxed_local(),
        Endpoint::WorkspaceList => operator::list(call).boxed_local(),
        Endpoint::WorkspaceDelete => operator::delete(call).boxed_local(),
        Endpoint::WorkspaceUndelete => operator::undelete(call).boxed_local(),
        Endpoint::WorkspaceResync => operator::resync(call).boxed_local(),
        Endpoint::Status => service::status(call).boxed_local(),
        Endpoint::Schema => future::ready(Ok(service::schema())).boxed_local(),
        Endpoint::Login => sessions::login(call).boxed_local(),
        Endpoint::IsAuthenticated => sessions::is_authenticated(call).boxed_local(),
        Endpoint::Logout => sessions::logout(call).boxed_local(),
        Endpoint::SessionList => sessions::list(call).boxed_local(),
        Endpoint::SessionRetrieve => sessions::retrieve(call).boxed_local(),
        Endpoint::SessionDelete => sessions::delete(call).boxed_local(),
        Endpoint::TokenCreate => tokens::create(call).boxed_local(),
        Endpoint::TokenList => tokens::list(call).boxed_local(),
        Endpoint::TokenRetrieve => tokens::retrieve(call).boxed_local(),
        Endpoint::TokenReplace => tokens::change(call, Extent::Whole).boxed_local(),
        Endpoint::TokenUpdate => tokens::change(call, Extent::Partial).boxed_local(),
        Endpoint::TokenDelete => tokens::delete(call).boxed_local(),
        Endpoint::AclCheck => acl_check::check(call).boxed_local(),
        Endpoint::PasswordChange => passwords::change(call).boxed_local(),
        Endpoint::PasswordSet => passwords::set(call).boxed_local(),
        Endpoint::ResetRequest => passwords::request_reset(call).boxed_local(),
        Endpoint::ResetOpen => passwords::open_reset(call).boxed_local(),
        Endpoint::ResetConfirm => passwords::confirm_reset(call).boxed_local(),
        Endpoint::UserList => users::list(call).boxed_local(),
        Endpoint::UserCreate => users::create(call).boxed_local(),
        Endpoint::UserRetrieve | Endpoint::CurrentUser => users::retrieve(call).boxed_local(),
        Endpoint::UserReplace => users::change(call, Extent::Whole).boxed_local(),
        Endpoint::UserUpdate => users::change(call, Extent::Partial).boxed_local(),
        Endpoint::UserDelete => users::delete(call).boxed_local(),
        Endpoint::ServerList => servers::list(call).boxed_local(),
        Endpoint::ServerCreate => servers::create(call).boxed_local(),
        Endpoint::ServerRetrieve => servers::retrieve(call).boxed_local(),
        Endpoint::ServerReplace => servers::change(call, Extent::Whole).boxed_local(),
        Endpoint::ServerUpdate => servers::change(call, Extent::Partial).boxed_local(),
        Endpoint::ServerDelete => servers::delete(call).boxed_local(),
        Endpoint::ServerApprove => servers::approve(call).boxed_local(),
        Endpoint::ServerRotateKey => servers::rotate_key(call).boxed_local(),
        Endpoint::ServerUndelete => deleted_servers::undelete(call).boxed_local(),
        Endpoint::RegistrationTokenList => registration_tokens::list(call).boxed_local(),
        Endpoint::RegistrationTokenCreate => registration_tokens::create(call).boxed_local(),
        Endpoint::RegistrationTokenRetrieve => registration_tokens::retrieve(call).boxed_local(),
        Endpoint::RegistrationTokenDelete => registration_tokens::delete(call).boxed_local(),
        Endpoint::GroupList => groups::list(call).boxed_local(),
        Endpoint::GroupCreate => groups::create(call).boxed_local(),
        Endpoint::GroupRetrieve => groups::retrieve(call).boxed_local(),
        Endpoint::GroupReplace => groups::change(call, Extent::Whole).boxed_local(),
        Endpoint::GroupUpdate => groups::change(call, Extent::Partial).boxed_local(),
        Endpoint::GroupDelete => groups::delete(call).boxed_local(),
        Endpoint::MembershipList => groups::list_memberships(call).boxed_local(),
        Endpoint::MembershipCreate => groups::create_membership(call).boxed_local(),
        Endpoint::MembershipRetrieve => groups::retrieve_membership(call).boxed_local(),
        Endpoint::MembershipReplace => groups::change_membership(call, Extent::Whole).boxed_local(),
        Endpoint::MembershipUpdate => {
            groups::change_membership(call, Extent::Partial).boxed_local()
        }
        Endpoint::MembershipDelete => groups::delete_membership(call).boxed_local(),
        Endpoint::CommandList => commands::list(call).boxed_local(),
        Endpoint::CommandCreate => command_creation::create(call).boxed_local(),
        Endpoint::CommandRetrieve => commands::retrieve(call).boxed_local(),
        Endpoint::CommandCancel => commands::cancel(call).boxed_local(),
        Endpoint::CommandDelete => commands::delete(call).boxed_local(),
        Endpoint::CommandKill => commands::kill(call).boxed_local(),
        Endpoint::CommandChunks => command_output::chunks(call).boxed_local(),
        Endpoint::CommandOutput => command_output::full(call).boxed_local(),
        Endpoint::CommandStream => command_output::stream(call).boxed_local(),
        Endpoint::BatchList => batches::list(call).boxed_local(),
        Endpoint::BatchCreate => batch_creation::create(call).boxed_local(),
        Endpoint::BatchRetrieve => batches::retrieve(call).boxed_local(),
        Endpoint::BatchCancel => batches::cancel(call).boxed_local(),
        Endpoint::BatchKill => batches::kill(call).boxed_local(),
        Endpoint::BatchRetry => batch_creation::retry_failed(call).boxed_local(),
        Endpoint::BatchTargets => batches::targets(call).boxed_local(),
        Endpoint::BatchOutputs => batches::outputs(call).boxed_local(),
        Endpoint::BatchStream => batch_stream::stream(call).boxed_local(),
        Endpoint::ScriptList => scripts::list(call).boxed_local(),
        Endpoint::ScriptCreate => scripts::create(call).boxed_local(),
        Endpoint::ScriptRetrieve => scripts::retrieve(call).boxed_local(),
        Endpoint::ScriptReplace => scripts::change(call, Extent::Whole).boxed_local(),
        Endpoint::ScriptUpdate => scripts::change(call, Extent::Partial).boxed_local(),
        Endpoint::ScriptDelete => scripts::delete(call).boxed_local(),
        Endpoint::ScriptVersionList => scripts::list_versions(call).boxed_local(),
        Endpoint::ScriptVersionRetrieve => scripts::retrieve_version(call).boxed_local(),
        Endpoint::AgentAck => agent::ack(call).boxed_local(),
        Endpoint::AgentChunk => agent::chunk(call).boxed_local(),
        Endpoint::AgentFin => agent::fin(call).boxed_local(),
        Endpoint::AgentRegister => registration_tokens::register(call).boxed_local(),
        Endpoint::AgentUnregister => agent::unregister(call).boxed_local(),
        Endpoint::AgentCommit => agent::host_facts(call, true).boxed_local(),
        Endpoint::AgentSync => agent::host_facts(call, false).boxed_local(),
        Endpoint::AgentProcReport => agent::proc_report(call).boxed_local(),
        Endpoint::AgentSyncCheck => agent::sync_check(call).boxed_local(),
        Endpoint::AgentReject => agent::reject(call).boxed_local(),
        Endpoint::AgentEvent => agent::agent_event(call).boxed_local(),
        Endpoint::AgentHeartbeat => agent::heartbeat(call).boxed_local(),
        Endpoint::AgentIgnored => agent::ignored_report(call).boxed_local(),
        Endpoint::AgentMetricsConfig => agent::metrics_config(call).boxed_local(),
        Endpoint::AgentProcSync => agent::proc_sync(call).boxed_local(),
        Endpoint::AgentUnknown => agent::unknown_get(call).boxed_local(),
        Endpoint::AgentBackhaul => agent::web_socket(call, "/backhaul").boxed_local(),
        Endpoint::AgentControl => agent::web_socket(call, "/control").boxed_local(),
        Endpoint::ScheduleList => schedules::list(call).boxed_local(),
        Endpoint::ScheduleCreate => schedules::create(call).boxed_local(),
        Endpoint::ScheduleRetrieve => schedules::retrieve(call).boxed_local(),
        Endpoint::ScheduleReplace => schedules::change(call, Extent::Whole).boxed_local(),
        Endpoint::ScheduleUpdate => schedules::change(call, Extent::Partial).boxed_local(),
        Endpoint::ScheduleDelete => schedules::delete(call).boxed_local(),
        Endpoint::ScheduleRun => schedules::run(call).boxed_local(),
        Endpoint::ScheduleRunList => schedules::runs(call).boxed_local(),
        Endpoint::AuditList => audit::list(call).boxed_local(),
        Endpoint::AuditVerify => audit::verify(call).boxed_local(),
        Endpoint::CellAuditList => audit::list_of_cell(call).boxed_local(),
        Endpoint::CellAuditVerify => audit::verify_cell(call).boxed_local(),
    }
}
