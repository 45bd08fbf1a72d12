//! The handlers, one file per resource: each reads its input, makes one call into the store or an object, and answers.

pub mod agent;
pub mod commands;
pub mod operator;
pub mod servers;
pub mod service;
pub mod sessions;
pub mod tokens;
pub mod users;

use farhand_domain::error::Error;
use farhand_domain::page::{Page, Query, parameter};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::caller::Credential;
use crate::request::Call;
use crate::response::Reply;
use crate::routes::Endpoint;

/// Hands a request to its endpoint's handler.
pub async fn dispatch(endpoint: Endpoint, call: &mut Call) -> Result<Reply, Error> {
    match endpoint {
        Endpoint::Health => service::health(),
        Endpoint::WorkspaceCreate => operator::create(call).await,
        Endpoint::WorkspaceList => operator::list(call).await,
        Endpoint::WorkspaceDelete => operator::delete(call).await,
        Endpoint::Status => service::status(call).await,
        Endpoint::Login => sessions::login(call).await,
        Endpoint::IsAuthenticated => sessions::is_authenticated(call).await,
        Endpoint::Logout => sessions::logout(call).await,
        Endpoint::TokenCreate => tokens::create(call).await,
        Endpoint::TokenList => tokens::list(call).await,
        Endpoint::TokenDelete => tokens::delete(call).await,
        Endpoint::CurrentUser => users::current(call).await,
        Endpoint::ServerList => servers::list(call).await,
        Endpoint::ServerCreate => servers::create(call).await,
        Endpoint::ServerRetrieve => servers::retrieve(call).await,
        Endpoint::CommandList => commands::list(call).await,
        Endpoint::CommandCreate => commands::create(call).await,
        Endpoint::CommandRetrieve => commands::retrieve(call).await,
        Endpoint::AgentAck => agent::ack(call).await,
        Endpoint::AgentChunk => agent::chunk(call).await,
        Endpoint::AgentFin => agent::fin(call).await,
        Endpoint::AgentCommit | Endpoint::AgentSync => agent::facts(call).await,
        Endpoint::AgentSyncCheck => agent::sync_check(call).await,
        Endpoint::AgentEvent | Endpoint::AgentHeartbeat | Endpoint::AgentIgnored => agent::seen(call).await,
        Endpoint::AgentMetricsConfig => agent::metrics_config(call).await,
        Endpoint::AgentProcSync => agent::proc_sync(call).await,
        Endpoint::AgentUnknown => agent::unknown(call).await,
        Endpoint::AgentBackhaul => agent::web_socket(call, "/backhaul").await,
        Endpoint::AgentControl => agent::web_socket(call, "/control").await,
    }
}

/// The envelope of a list (spec.md, Paginated list envelope).
#[derive(Serialize)]
struct Envelope<'a> {
    count: u64,
    next: Option<String>,
    previous: Option<String>,
    results: &'a RawValue,
}

/// The address of another page of the same list: on the caller's own base URL, with the other parameters kept.
fn page_url(call: &Call, query: &Query, number: u64) -> String {
    let mut parameters = form_urlencoded::Serializer::new(String::new());
    parameters.extend_pairs(query.iter().filter(|(name, _)| name != "page"));
    parameters.append_pair("page", &number.to_string());
    format!("{}{}?{}", call.origin, call.path, parameters.finish())
}

/// Answers with a page of a list whose items are JSON text already.
fn envelope(call: &Call, query: &Query, page: Page, items: String, count: u64) -> Result<Reply, Error> {
    let (previous, next) = page.neighbours(count)?;
    let url = |number: u64| page_url(call, query, number);
    let results = RawValue::from_string(items).map_err(crate::platform::internal)?;
    Reply::ok(&Envelope { count, next: next.map(url), previous: previous.map(url), results: &results })
}

/// Answers with a page of a list of the caller's: SQL for the array of its items and for their number, as
/// [`Credential::list`] takes them. Parameters of the contract that are not served yet are refused: all items would be
/// the wrong answer to a question for some.
async fn list_of(call: &Call, items: &str, count: &str, unserved: &[&'static str]) -> Result<Reply, Error> {
    let credential = Credential::of(call)?;
    let query = call.query();
    let asked = unserved.iter().find(|name| parameter(&query, name).is_some());
    let input = asked.map_or_else(|| Page::of(&query), |name| Err(Error::field(name, "Not supported yet.")));
    let page = credential.checked(input).await?;
    let (items, count) = credential.list(items, count, page).await?;
    envelope(call, &query, page, items, count)
}
