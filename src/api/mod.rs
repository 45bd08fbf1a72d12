//! The handlers, one file per resource: each reads its input, makes one call into the store or an
//! object, and answers. `dispatch` hands requests to them, `change` and `idempotency` have what
//! changes share.

pub mod acl_check;
pub mod agent;
pub mod audit;
pub mod change;
pub mod command_creation;
pub mod command_output;
pub mod commands;
pub mod dispatch;
pub mod docs;
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
mod wait;

use std::fmt::Display;

use farhand_domain::caller::Caller;
use farhand_domain::error::{self, Error};
use farhand_domain::page::{self, Page};
use serde::Deserialize;
use serde_json::json;

use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::store::db::Items;
use crate::store::list::List;
use crate::store::scope::Query;

/// Answers with one resource, by its id, to those who are permitted it.
async fn one_of<Id>(
    call: &Call,
    permit: impl Fn(&Caller) -> Result<(), Error>,
    id: Result<Id, Error>,
    query: impl FnOnce(Id) -> Query,
) -> Result<Reply, Error> {
    let credential = Credential::of(call)?;
    let (caller, resource) = credential.read(query(credential.checked(id).await?)).await?;
    permit(&caller)?;
    resource.map(Reply::ok_text).ok_or_else(Error::not_found)
}

/// The address of another page of the same list: on the caller's own base URL, with the other
/// parameters kept.
fn page_url(call: &Call, query: &page::Query, number: u64) -> String {
    let mut parameters = form_urlencoded::Serializer::new(String::new());
    parameters.extend_pairs(query.iter().filter(|(name, _)| name != "page"));
    parameters.append_pair("page", &number.to_string());
    format!("{}{}?{}", call.origin, call.path, parameters.finish())
}

/// Answers with a page of a list, in the envelope of contract 3.7 (Paginated list envelope).
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
    let Numbered { id } = serde_json::from_str(json)?;
    Ok(location(call, collection, id))
}

/// Lets everybody read what is theirs.
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

/// Answers with a page of a list of the caller's that a query asks for, to those who are permitted
/// it. `list` is a plain function: what it gives depends on the query only, so it can be kept.
async fn page_of(
    call: &Call,
    permit: impl Fn(&Caller) -> Result<(), Error>,
    list: fn(&page::Query, Page) -> Result<List, Error>,
) -> Result<Reply, Error> {
    let credential = Credential::of(call)?;
    let query = call.query();
    let kept = credential.kept_list().map_or_else(
        || {
            let page = Page::of(&query);
            // What else is wrong is told together with what is wrong with the page.
            let list = list(&query, *page.as_ref().unwrap_or(&Page::FIRST));
            error::both(page, list).map(|(page, list)| credential.keep_list(list, page))
        },
        Ok,
    );
    let kept = match kept {
        Ok(kept) => kept,
        // The caller's right comes before the input (contract 3.4).
        Err(error) => return Err(permit(&credential.check().await?).err().unwrap_or(error)),
    };
    let (caller, items, count) = credential.list(&kept).await?;
    permit(&caller)?;
    envelope(call, &query, kept.page, items, count)
}
