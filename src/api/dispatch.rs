//! A request's way from the platform to its handler, and back as a response.

use farhand_domain::endpoints::{self, Access, Endpoint, Route};
use farhand_domain::error::{Error, Kind};
use worker::Response;

use crate::api::change::Extent;
use crate::api::{
    acl_check, agent, audit, command_output, commands, groups, operator, pages, passwords, registration_tokens,
    servers, service, sessions, tokens, users,
};
use crate::auth;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::http::{cors, request_log, setup};
use crate::platform::cost;
use crate::store::workspaces;

/// Where the paths of the command endpoints begin.
const COMMANDS: &str = "/api/events/commands/";
/// Browsers use https only for a year. Without subdomains: the service's domain may have others that belong to its owner.
const HSTS: &str = "max-age=31536000";

/// Answers a request: the one place where an error becomes JSON.
///
/// # Errors
/// The platform cannot create the response.
pub async fn respond(mut call: Call) -> worker::Result<Response> {
    let (outcome, cost) = cost::of(async {
        // Before the host is looked up: over plain http, no answer may depend on which workspaces exist.
        call.require_https()?;
        setup::require_secrets(&call)?;
        match answer(&mut call).await {
            // A workspace that does not exist is 404 before anything else about the request (contract 3).
            Err(error) => Err(command_error(&call, workspace_missing(&call).await.unwrap_or(error))),
            reply => reply,
        }
    })
    .await;
    let outcome = setup::explain(&call, outcome, cost.d1_calls > 0).await;
    if let Err(error) = &outcome {
        auth::audit::note_refusal(&call, error);
    }
    auth::audit::seal_later(&call);
    let reply = outcome.unwrap_or_else(|error| refusal(&call, &error));
    let reply = if call.is_https() { reply.header("Strict-Transport-Security", HSTS) } else { reply };
    let response = cors::add_headers(&call, reply).into_response(&call.id, call.method == "HEAD")?;
    request_log::write(&call, response.status_code(), cost);
    Ok(response)
}

/// The response to an error, with the headers that its status requires.
fn refusal(call: &Call, error: &Error) -> Reply {
    let reply = Reply::refusal(error, &call.id);
    match (error.kind, endpoints::find(&call.path)) {
        (Kind::Unauthenticated, Some((route, _))) => reply.header("WWW-Authenticate", challenge(route.access)),
        (Kind::MethodNotAllowed, Some((route, _))) => reply.header("Allow", route.allow(call.config.on_prem)),
        _ => reply,
    }
}

/// The value of the WWW-Authenticate header.
fn challenge(access: Access) -> &'static str {
    match access {
        Access::Operator => "Bearer realm=\"farhand operator\"",
        Access::Agent => "id realm=\"farhand agent\"",
        Access::Open | Access::User | Access::UserOrAgent | Access::Registration => "token realm=\"farhand\"",
    }
}

/// Gives invalid input of the command endpoints its code (spec.md, Command errors). An agent's reports keep the plain form.
fn command_error(call: &Call, error: Error) -> Error {
    let is_command = call.route.is_some_and(|route| route.access == Access::User && route.path.starts_with(COMMANDS));
    if is_command && error.kind == Kind::Invalid { error.invalid_command() } else { error }
}

/// Finds the endpoint and calls its handler. The order of refusals is the contract's: host, path, method, then the
/// handler's own.
async fn answer(call: &mut Call) -> Result<Reply, Error> {
    let needs_workspace =
        call.path != "/healthz" && !(call.path.starts_with("/operator/") && operator::is_visible(call));
    if needs_workspace {
        call.workspace()?;
    }
    if let Some(path) = endpoints::with_slash(&call.path) {
        if let Some(error) = workspace_missing(call).await {
            return Err(error);
        }
        // An agent's client would turn a redirected POST into a GET: agents are served without a redirect.
        if !call.is_agent() {
            let query = if call.raw_query.is_empty() { String::new() } else { format!("?{}", call.raw_query) };
            return Ok(Reply::moved(format!("{}{path}{query}", call.origin)));
        }
        call.path = path;
    }
    let path = call.path.clone();
    let (route, parameters) =
        endpoints::find(&path).filter(|(route, _)| is_served(call, route)).ok_or_else(Error::no_path)?;
    if call.method == "OPTIONS" {
        if let Some(error) = workspace_missing(call).await {
            return Err(error);
        }
        return Ok(Reply::no_content().header("Allow", route.allow(call.config.on_prem)));
    }
    call.route = Some(route);
    let endpoint = route.endpoint(&call.method);
    let endpoint = endpoint.ok_or_else(|| Error::new(Kind::MethodNotAllowed, "Method not allowed."))?;
    call.parameters = parameters.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let reply = handle(endpoint, call).await?;
    match workspace_missing(call).await {
        Some(error) => Err(error),
        None => Ok(reply),
    }
}

/// Whether this host and this deployment have the endpoint. A hidden one is 404, whatever the method.
fn is_served(call: &Call, route: &Route) -> bool {
    let is_hidden_operator = route.access == Access::Operator && !operator::is_visible(call);
    !is_hidden_operator && !route.is_hidden(&call.method, call.config.on_prem)
}

/// The 404 for a workspace that does not exist. Asks D1 unless the handler has already proven that it exists.
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

/// Calls the endpoint's handler.
async fn handle(endpoint: Endpoint, call: &mut Call) -> Result<Reply, Error> {
    match endpoint {
        Endpoint::Health => service::health(call),
        Endpoint::Page => pages::file(call),
        Endpoint::WorkspaceCreate => operator::create(call).await,
        Endpoint::WorkspaceList => operator::list(call).await,
        Endpoint::WorkspaceDelete => operator::delete(call).await,
        Endpoint::WorkspaceUndelete => operator::undelete(call).await,
        Endpoint::WorkspaceResync => operator::resync(call).await,
        Endpoint::Status => service::status(call).await,
        Endpoint::Schema => Ok(service::schema()),
        Endpoint::Login => sessions::login(call).await,
        Endpoint::IsAuthenticated => sessions::is_authenticated(call).await,
        Endpoint::Logout => sessions::logout(call).await,
        Endpoint::SessionList => sessions::list(call).await,
        Endpoint::SessionRetrieve => sessions::retrieve(call).await,
        Endpoint::SessionDelete => sessions::delete(call).await,
        Endpoint::TokenCreate => tokens::create(call).await,
        Endpoint::TokenList => tokens::list(call).await,
        Endpoint::TokenRetrieve => tokens::retrieve(call).await,
        Endpoint::TokenReplace => tokens::change(call, Extent::Whole).await,
        Endpoint::TokenUpdate => tokens::change(call, Extent::Partial).await,
        Endpoint::TokenDelete => tokens::delete(call).await,
        Endpoint::AclCheck => acl_check::check(call).await,
        Endpoint::PasswordChange => passwords::change(call).await,
        Endpoint::PasswordSet => passwords::set(call).await,
        Endpoint::ResetRequest => passwords::request_reset(call).await,
        Endpoint::ResetOpen => passwords::open_reset(call).await,
        Endpoint::ResetConfirm => passwords::confirm_reset(call).await,
        Endpoint::UserList => users::list(call).await,
        Endpoint::UserCreate => users::create(call).await,
        Endpoint::UserRetrieve | Endpoint::CurrentUser => users::retrieve(call).await,
        Endpoint::UserReplace => users::change(call, Extent::Whole).await,
        Endpoint::UserUpdate => users::change(call, Extent::Partial).await,
        Endpoint::UserDelete => users::delete(call).await,
        Endpoint::ServerList => servers::list(call).await,
        Endpoint::ServerCreate => servers::create(call).await,
        Endpoint::ServerRetrieve => servers::retrieve(call).await,
        Endpoint::ServerReplace => servers::change(call, Extent::Whole).await,
        Endpoint::ServerUpdate => servers::change(call, Extent::Partial).await,
        Endpoint::ServerDelete => servers::delete(call).await,
        Endpoint::ServerApprove => servers::approve(call).await,
        Endpoint::ServerRotateKey => servers::rotate_key(call).await,
        Endpoint::RegistrationTokenList => registration_tokens::list(call).await,
        Endpoint::RegistrationTokenCreate => registration_tokens::create(call).await,
        Endpoint::RegistrationTokenRetrieve => registration_tokens::retrieve(call).await,
        Endpoint::RegistrationTokenDelete => registration_tokens::delete(call).await,
        Endpoint::GroupList => groups::list(call).await,
        Endpoint::GroupCreate => groups::create(call).await,
        Endpoint::GroupRetrieve => groups::retrieve(call).await,
        Endpoint::GroupReplace => groups::change(call, Extent::Whole).await,
        Endpoint::GroupUpdate => groups::change(call, Extent::Partial).await,
        Endpoint::GroupDelete => groups::delete(call).await,
        Endpoint::MembershipList => groups::list_memberships(call).await,
        Endpoint::MembershipCreate => groups::create_membership(call).await,
        Endpoint::MembershipRetrieve => groups::retrieve_membership(call).await,
        Endpoint::MembershipReplace => groups::change_membership(call, Extent::Whole).await,
        Endpoint::MembershipUpdate => groups::change_membership(call, Extent::Partial).await,
        Endpoint::MembershipDelete => groups::delete_membership(call).await,
        Endpoint::CommandList => commands::list(call).await,
        Endpoint::CommandCreate => commands::create(call).await,
        Endpoint::CommandRetrieve => commands::retrieve(call).await,
        Endpoint::CommandCancel => commands::cancel(call).await,
        Endpoint::CommandDelete => commands::delete(call).await,
        Endpoint::CommandKill => commands::kill(call).await,
        Endpoint::CommandChunks => command_output::chunks(call).await,
        Endpoint::CommandOutput => command_output::whole(call).await,
        Endpoint::CommandStream => command_output::stream(call).await,
        Endpoint::AgentAck => agent::ack(call).await,
        Endpoint::AgentChunk => agent::chunk(call).await,
        Endpoint::AgentFin => agent::fin(call).await,
        Endpoint::AgentRegister => registration_tokens::register(call).await,
        Endpoint::AgentUnregister => agent::unregister(call).await,
        Endpoint::AgentCommit => agent::facts(call, true).await,
        Endpoint::AgentSync => agent::facts(call, false).await,
        Endpoint::AgentProcReport => agent::proc_report(call).await,
        Endpoint::AgentSyncCheck => agent::sync_check(call).await,
        Endpoint::AgentReject => agent::reject(call).await,
        Endpoint::AgentEvent => agent::event(call).await,
        Endpoint::AgentHeartbeat => agent::heartbeat(call).await,
        Endpoint::AgentIgnored => agent::seen(call).await,
        Endpoint::AgentMetricsConfig => agent::metrics_config(call).await,
        Endpoint::AgentProcSync => agent::proc_sync(call).await,
        Endpoint::AgentUnknown => agent::unknown(call).await,
        Endpoint::AgentBackhaul => agent::web_socket(call, "/backhaul").await,
        Endpoint::AgentControl => agent::web_socket(call, "/control").await,
        Endpoint::AuditList => audit::list(call).await,
        Endpoint::AuditVerify => audit::verify(call).await,
        Endpoint::CellAuditList => audit::list_of_cell(call).await,
        Endpoint::CellAuditVerify => audit::verify_cell(call).await,
    }
}
