//! The handlers of the API, one file per resource. `dispatch` selects the handler of a request.
//! `change` and `idempotency` have the steps that handlers share.

pub mod acl_check;
pub mod agent;
pub mod audit;
pub mod batch_creation;
mod batch_live_output;
pub mod batch_stream;
pub mod batches;
pub mod change;
pub mod command_creation;
pub mod command_output;
pub mod commands;
pub mod console;
pub mod deleted_servers;
pub mod dispatch;
pub mod docs;
mod event_stream;
pub mod groups;
pub mod idempotency;
pub mod installer;
mod notices;
pub mod operator;
pub mod output_follower;
pub mod pages;
pub mod passwords;
pub mod registration_tokens;
mod room;
pub mod schedules;
pub mod scripts;
pub mod servers;
pub mod service;
pub mod sessions;
pub mod tokens;
pub mod users;
mod wait;

use std::fmt::Display;

use farhand_domain::access::caller::Caller;
use farhand_domain::error::{self, Error};
use farhand_domain::http::page::{self, Page};
use serde::Deserialize;
use serde_json::json;

use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::store::db::Items;
use crate::store::list::List;
use crate::store::scope::Query;

/// Responds to a GET of one resource by its id. `permit` refuses callers that may not read it.
async fn retrieve_one<Id>(
    call: &Call,
    permit: impl Fn(&Caller) -> Result<(), Error>,
    id: Result<Id, Error>,
    query: impl FnOnce(Id) -> Query,
) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let (caller, resource) = credential.read(query(credential.require_input(id).await?)).await?;
    permit(&caller)?;
    resource.map(Reply::ok_text).ok_or_else(Error::not_found)
}

/// The URL of another page of the same list, on the base URL that the caller used. The other
/// parameters keep their values.
fn page_url(call: &Call, query: &page::Query, number: u64) -> String {
    let mut parameters = form_urlencoded::Serializer::new(String::new());
    parameters.extend_pairs(query.iter().filter(|(name, _)| name != "page"));
    parameters.append_pair("page", &number.to_string());
    format!("{}{}?{}", call.origin, call.path, parameters.finish())
}

/// Responds with one page of a list (contract 3.7).
fn envelope(
    call: &Call,
    query: &page::Query,
    page: Page,
    items: Items,
    count: u64,
) -> Result<Reply, Error> {
    let (previous, next) = page.neighbours(count)?;
    let url = |number: u64| page_url(call, query, number);
    let (next, previous) = (json!(next.map(url)), json!(previous.map(url)));
    let before = format!(r#"{{"count":{count},"next":{next},"previous":{previous},"results":"#);
    Ok(Reply::list(before, items))
}

/// The URL of a resource in a collection, on the base URL that the caller used.
fn location(call: &Call, collection: &str, id: impl Display) -> String {
    format!("{}{collection}{id}/", call.origin)
}

/// The URL of a resource from its JSON, which has a number as `id`.
fn location_from_json(call: &Call, collection: &str, json: &str) -> Result<String, Error> {
    #[derive(Deserialize)]
    struct Numbered {
        id: i64,
    }
    let Numbered { id } = serde_json::from_str(json)?;
    Ok(location(call, collection, id))
}

/// Permits every caller.
fn any_caller(_: &Caller) -> Result<(), Error> {
    Ok(())
}

/// The 403 for callers who are not staff.
fn staff_only_error() -> Error {
    Error::permission_denied("Only staff and superusers may do this.")
}

/// Permits staff only.
fn require_staff(caller: &Caller) -> Result<(), Error> {
    if caller.is_staff_or_superuser() { Ok(()) } else { Err(staff_only_error()) }
}

/// Responds to a GET of a list. `permit` refuses callers that may not read it. `list` is a function
/// pointer and captures nothing, so its result depends only on the query and can be cached.
async fn list_page(
    call: &Call,
    permit: impl Fn(&Caller) -> Result<(), Error>,
    list: fn(&page::Query, Page) -> Result<List, Error>,
) -> Result<Reply, Error> {
    list_page_up_to(call, page::MAX_SIZE, permit, list).await.map(|(reply, _)| reply)
}

/// Like [`list_page`], with another maximum of `page_size`, and also returns the number of items on
/// all pages. The result of `list` is cached, so it must depend only on the request's path and
/// query.
async fn list_page_up_to(
    call: &Call,
    max_size: u64,
    permit: impl Fn(&Caller) -> Result<(), Error>,
    list: impl Fn(&page::Query, Page) -> Result<List, Error>,
) -> Result<(Reply, u64), Error> {
    let credential = Credential::from_request(call)?;
    let query = call.query();
    let cached = credential.cached_list().map_or_else(
        || {
            let page = Page::from_query_up_to(&query, max_size);
            // Errors of the page and of other parameters are reported together (contract 3.7).
            let list = list(&query, *page.as_ref().unwrap_or(&Page::FIRST));
            error::combine(page, list).map(|(page, list)| credential.cache_list(list, page))
        },
        Ok,
    );
    let list = match cached {
        Ok(list) => list,
        // The permission is checked before the input (contract 3.4).
        Err(error) => return Err(permit(&credential.check().await?).err().unwrap_or(error)),
    };
    let (caller, items, count) = credential.list(&list).await?;
    permit(&caller)?;
    Ok((envelope(call, &query, list.page, items, count)?, count))
}
