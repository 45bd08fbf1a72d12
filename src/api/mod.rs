//! The handlers, one file per resource: each reads its input, makes one call into the store or an object, and answers.

pub mod acl_check;
pub mod agent;
pub mod audit;
pub mod change;
pub mod command_output;
pub mod commands;
pub mod groups;
pub mod idempotency;
pub mod operator;
pub mod pages;
pub mod passwords;
pub mod registration_tokens;
pub mod servers;
pub mod service;
pub mod sessions;
pub mod tokens;
pub mod users;

use std::fmt::Display;

use farhand_domain::error::{self, Error};
use farhand_domain::page::{Page, Query};
use serde::Deserialize;
use serde_json::json;

use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::http::routes::Endpoint;
use crate::store::db::{Parameter, Selection};
use farhand_domain::caller::Caller;

/// Hands a request to its endpoint's handler.
pub async fn dispatch(endpoint: Endpoint, call: &mut Call) -> Result<Reply, Error> {
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
        Endpoint::TokenReplace => tokens::replace(call).await,
        Endpoint::TokenUpdate => tokens::update(call).await,
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
        Endpoint::UserReplace => users::replace(call).await,
        Endpoint::UserUpdate => users::update(call).await,
        Endpoint::UserDelete => users::delete(call).await,
        Endpoint::ServerList => servers::list(call).await,
        Endpoint::ServerCreate => servers::create(call).await,
        Endpoint::ServerRetrieve => servers::retrieve(call).await,
        Endpoint::ServerReplace => servers::replace(call).await,
        Endpoint::ServerUpdate => servers::update(call).await,
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
        Endpoint::GroupReplace => groups::replace(call).await,
        Endpoint::GroupUpdate => groups::update(call).await,
        Endpoint::GroupDelete => groups::delete(call).await,
        Endpoint::MembershipList => groups::list_memberships(call).await,
        Endpoint::MembershipCreate => groups::create_membership(call).await,
        Endpoint::MembershipRetrieve => groups::retrieve_membership(call).await,
        Endpoint::MembershipReplace => groups::replace_membership(call).await,
        Endpoint::MembershipUpdate => groups::update_membership(call).await,
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

/// Answers with one resource that the caller sees: SQL for it as JSON, by its id `?5`.
async fn one_of(call: &Call, id: Result<impl Into<Parameter>, Error>, sql: &str) -> Result<Reply, Error> {
    let credential = Credential::of(call)?;
    let id = credential.checked(id).await?;
    let (_, resource) = credential.read(sql, vec![id.into()]).await?;
    resource.map(Reply::ok_text).ok_or_else(Error::not_found)
}

/// The address of another page of the same list: on the caller's own base URL, with the other parameters kept.
fn page_url(call: &Call, query: &Query, number: u64) -> String {
    let mut parameters = form_urlencoded::Serializer::new(String::new());
    parameters.extend_pairs(query.iter().filter(|(name, _)| name != "page"));
    parameters.append_pair("page", &number.to_string());
    format!("{}{}?{}", call.origin, call.path, parameters.finish())
}

/// Answers with a page of a list whose items are JSON text already, in the envelope of spec.md (Paginated list envelope).
fn envelope(call: &Call, query: &Query, page: Page, items: String, count: u64) -> Result<Reply, Error> {
    let (previous, next) = page.neighbours(count)?;
    let url = |number: u64| page_url(call, query, number);
    let (next, previous) = (json!(next.map(url)), json!(previous.map(url)));
    // Put together as it stands: the items come from the database as JSON, and may be many kilobytes.
    Ok(Reply::ok_text(format!(r#"{{"count":{count},"next":{next},"previous":{previous},"results":{items}}}"#)))
}

/// The address of a resource in a collection, on the caller's own base URL.
fn location(call: &Call, collection: &str, id: impl Display) -> String {
    format!("{}{collection}{id}/", call.origin)
}

/// The address of a resource whose JSON has a number as its id.
fn location_of(call: &Call, collection: &str, json: &str) -> Result<String, Error> {
    #[derive(Deserialize)]
    struct Numbered {
        id: i64,
    }
    let Numbered { id } = serde_json::from_str(json).map_err(crate::platform::internal)?;
    Ok(location(call, collection, id))
}

/// Lets everybody have a list, which holds what is theirs.
fn anybody(_: &Caller) -> Result<(), Error> {
    Ok(())
}

/// The refusal of what only staff and superusers may do.
fn staff_only() -> Error {
    Error::permission_denied("Only staff and superusers may do this.")
}

/// Lets staff and superusers do something.
fn staff(caller: &Caller) -> Result<(), Error> {
    if caller.is_staff_or_superuser() { Ok(()) } else { Err(staff_only()) }
}

/// Answers with a page of a list of the caller's that a query asks for, to those who are permitted it.
async fn page_of(
    call: &Call,
    permit: impl Fn(&Caller) -> Result<(), Error>,
    select: impl FnOnce(&Query, Page) -> Result<Selection, Error>,
) -> Result<Reply, Error> {
    let credential = Credential::of(call)?;
    let query = call.query();
    let page = Page::of(&query);
    // What else is wrong is told together with what is wrong with the page.
    let selection = select(&query, *page.as_ref().unwrap_or(&Page::FIRST));
    let (page, selection) = match error::both(page, selection) {
        Ok(read) => read,
        // The caller's right comes before the input (contract 3, order of refusals).
        Err(error) => return Err(permit(&credential.check().await?).err().unwrap_or(error)),
    };
    let (caller, items, count) = credential.list(&selection, page).await?;
    permit(&caller)?;
    envelope(call, &query, page, items, count)
}
