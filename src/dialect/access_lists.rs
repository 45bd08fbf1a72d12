//! The allowed commands and servers of API tokens (contract 21.5). Natively they are one access
//! control list of the token. Each change is a native `PATCH` of the token, on the condition that
//! its list did not change since it was read.

use std::collections::BTreeSet;

use farhand_domain::dialect::acl::{self, Accounts};
use farhand_domain::dialect::pages;
use farhand_domain::error::{Error, ErrorKind};
use farhand_domain::http::fields::Fields;
use farhand_domain::http::page::{Page, last_value};
use farhand_domain::id;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use super::exchange::Exchange;
use super::names;
use crate::http::response::Reply;

const TOKENS: &str = "/api/auth/tokens/";
/// The maximum number of attempts to change a list. After them, the response is a conflict.
const MAX_ATTEMPTS: usize = 8;
/// The maximum number of servers in one request.
const MAX_SERVERS: usize = 100;

/// The caller's tokens that the query selects, in `token` (the command line) or in `api_token` (the
/// MCP server).
async fn selected_tokens(exchange: &mut Exchange) -> Result<Vec<Value>, Reply> {
    let tokens = exchange.get_all(TOKENS, "").await?.into_iter();
    let value = |name: &str| last_value(&exchange.query, name).filter(|text| !text.is_empty());
    if value("service_token").is_some() {
        let error = Error::field("service_token", "There are no service tokens.");
        return Err(exchange.refusal(&error));
    }
    let selected = value("token").or_else(|| value("api_token"));
    Ok(tokens.filter(|token| selected.is_none_or(|id| token["id"] == id)).collect())
}

/// One page of entries.
fn page_of(exchange: &Exchange, entries: Vec<Value>) -> Result<Reply, Reply> {
    let page = Page::from_query(&exchange.query).map_err(|error| exchange.refusal(&error))?;
    Ok(exchange.reply(200, &pages::paginate(entries, page)))
}

/// `GET /api/security/command-acl/`.
pub async fn list_commands(exchange: &mut Exchange) -> Result<Reply, Reply> {
    let tokens = selected_tokens(exchange).await?;
    page_of(exchange, tokens.iter().flat_map(acl::command_entries).collect())
}

/// The allowed servers of tokens, with their names.
async fn server_entries(exchange: &mut Exchange, tokens: &[Value]) -> Vec<Value> {
    let ids = tokens.iter().flat_map(|token| acl::entries(&token["acl"], "servers"));
    let ids: BTreeSet<String> = ids.flatten().collect();
    let known = names::servers(exchange, &ids).await;
    let name_of = |id: &str| known.get(id).map_or(json!(""), |server| server["name"].clone());
    tokens.iter().flat_map(|token| acl::server_entries(token, name_of)).collect()
}

/// `GET /api/security/server-acl/`.
pub async fn list_servers(exchange: &mut Exchange) -> Result<Reply, Reply> {
    let tokens = selected_tokens(exchange).await?;
    let entries = server_entries(exchange, &tokens).await;
    page_of(exchange, entries)
}

/// The JSON text of the access control list in a native token object.
fn acl_text(token: &Reply) -> String {
    #[derive(Deserialize)]
    struct Token<'a> {
        #[serde(borrow)]
        acl: Option<&'a RawValue>,
    }
    let token = token.text().and_then(|text| serde_json::from_str::<Token<'_>>(text).ok());
    token.and_then(|token| token.acl).map_or_else(|| "null".to_owned(), |acl| acl.get().to_owned())
}

/// Changes the access control list of a token of the caller. `change` returns the new list, or
/// `None` if the list needs no change. Returns the token.
async fn change(
    exchange: &mut Exchange,
    token: Uuid,
    change: impl Fn(&Value) -> Result<Option<Value>, Error>,
) -> Result<Value, Reply> {
    let path = format!("{TOKENS}{token}/");
    for _ in 0..MAX_ATTEMPTS {
        let (reply, token) = exchange.get(&path, "").await?;
        let changed = change(&token["acl"]).map_err(|error| exchange.refusal(&error))?;
        let Some(acl) = changed else { return Ok(token) };
        exchange.call.overrides.expected_acl = Some(acl_text(&reply));
        let sent = exchange.send("PATCH", &path, "", Some(&json!({"acl": acl}))).await;
        exchange.call.overrides.expected_acl = None;
        match sent {
            Err(refusal) if refusal.status() == 409 => {}
            sent => return sent.map(|(_, token)| token),
        }
    }
    let detail = "The token was changed by others at the same time. Try again.";
    Err(exchange.refusal(&Error::new(ErrorKind::Conflict, detail)))
}

/// Reads the id of a resource.
fn read_id(fields: &mut Fields, name: &'static str) -> Option<Uuid> {
    let text = fields.text(name, 1..=64)?;
    let id = id::parse(&text);
    if id.is_none() {
        fields.reject(name, "Enter a UUID.");
    }
    id
}

/// A request to allow a command.
struct NewAllowedCommand {
    token: Uuid,
    command: String,
    username: Option<String>,
}

impl NewAllowedCommand {
    fn read(mut fields: Fields) -> Result<Self, Error> {
        let token = read_id(&mut fields, "token");
        let command = fields.text("command", 1..=usize::MAX);
        let username = fields.optional_text("username", 0..=64);
        if fields.optional_text("groupname", 0..=64).is_some_and(|name| !name.is_empty()) {
            fields.reject("groupname", "An allowed command cannot have a group.");
        }
        let (token, command) = fields.finish_with(token.zip(command))?;
        Ok(Self { token, command, username })
    }
}

/// `POST /api/security/command-acl/`.
pub async fn add_command(exchange: &mut Exchange) -> Result<Reply, Reply> {
    let input = exchange.fields().await.and_then(NewAllowedCommand::read);
    let NewAllowedCommand { token, command, username } = exchange.require_input(input).await?;
    // Tokens with an access control list may read their user, but not change tokens. So the token
    // is read first.
    exchange.get(&format!("{TOKENS}{token}/"), "").await?;
    let (_, user) = exchange.get("/api/iam/users/-/", "").await?;
    let own_name = user["username"].as_str().unwrap_or("");
    let accounts = Accounts::from_username(username.as_deref(), own_name);
    let token = change(exchange, token, |list| acl::add_command(list, &command, &accounts)).await?;
    let entry = acl::command_entries(&token).into_iter().find(|entry| entry["command"] == command);
    Ok(exchange.reply(201, &entry.unwrap_or_default()))
}

/// `DELETE /api/security/command-acl/<id>/` and `…/server-acl/<id>/`: removes an entry of a list.
pub async fn delete_entry(exchange: &mut Exchange, list: &'static str) -> Result<Reply, Reply> {
    let entry = id::parse(exchange.parameter("id"));
    let tokens = exchange.get_all(TOKENS, "").await?;
    let token = tokens.iter().find_map(|token| {
        let id = token["id"].as_str()?;
        let is_deleted = |text: &String| Some(acl::entry_id(id, text)) == entry;
        acl::entries(&token["acl"], list)?.iter().any(is_deleted).then(|| id::parse(id))?
    });
    let Some(token) = token else { return Err(exchange.missing("Not found.")) };
    let id = token.to_string();
    let is_deleted = |text: &str| Some(acl::entry_id(&id, text)) == entry;
    change(exchange, token, |acl| Ok(acl::remove(acl, list, is_deleted))).await?;
    Ok(Reply::no_content().with_general_headers_of(&exchange.reply(204, &Value::Null)))
}

/// Reads `servers`.
fn read_servers(fields: &mut Fields) -> Option<Vec<String>> {
    let read = |value: &Value| id::parse(value.as_str()?).map(|id| id.to_string());
    let servers =
        fields.optional_list("servers", MAX_SERVERS, "Enter the UUIDs of servers.", read)?;
    if servers.is_empty() {
        fields.reject("servers", "This list may not be empty.");
    }
    Some(servers)
}

/// Reads a token and a list of servers.
fn read_many(mut fields: Fields) -> Result<(Uuid, Vec<String>), Error> {
    let token = read_id(&mut fields, "token");
    if !fields.has("servers") {
        fields.reject("servers", "This field is required.");
    }
    let servers = read_servers(&mut fields);
    fields.finish_with(token.zip(servers))
}

/// Adds servers that the caller can access. Returns their entries. `field` is the field of the body
/// that an error names.
async fn add(
    exchange: &mut Exchange,
    (token, servers): (Uuid, Vec<String>),
    field: &'static str,
) -> Result<Vec<Value>, Reply> {
    exchange.get(&format!("{TOKENS}{token}/"), "").await?;
    let wanted: BTreeSet<String> = servers.iter().cloned().collect();
    let known = names::servers(exchange, &wanted).await;
    if wanted.iter().any(|id| !known.contains_key(id)) {
        return Err(exchange.refusal(&Error::field(field, "No such server.")));
    }
    let token = change(exchange, token, |list| Ok(acl::add_servers(list, &servers))).await?;
    let entries = server_entries(exchange, &[token]).await.into_iter();
    let is_added =
        |entry: &Value| entry["server"]["id"].as_str().is_some_and(|id| wanted.contains(id));
    Ok(entries.filter(is_added).collect())
}

/// `POST /api/security/server-acl/`.
pub async fn add_server(exchange: &mut Exchange) -> Result<Reply, Reply> {
    let read = |mut fields: Fields| {
        let ids = read_id(&mut fields, "token").zip(read_id(&mut fields, "server"));
        let (token, server) = fields.finish_with(ids)?;
        Ok((token, vec![server.to_string()]))
    };
    let input = exchange.fields().await.and_then(read);
    let input = exchange.require_input(input).await?;
    let mut entries = add(exchange, input, "server").await?;
    Ok(exchange.reply(201, &entries.pop().unwrap_or_default()))
}

/// `POST /api/security/server-acl/bulk/`.
pub async fn add_servers(exchange: &mut Exchange) -> Result<Reply, Reply> {
    let input = exchange.fields().await.and_then(read_many);
    let input = exchange.require_input(input).await?;
    let entries = add(exchange, input, "servers").await?;
    Ok(exchange.reply(201, &json!(entries)))
}

/// `POST /api/security/server-acl/bulk/delete/`. The response is 404 if the token's list has none
/// of the servers.
pub async fn delete_servers(exchange: &mut Exchange) -> Result<Reply, Reply> {
    let input = exchange.fields().await.and_then(read_many);
    let (token, servers) = exchange.require_input(input).await?;
    let is_removed = |id: &str| servers.iter().any(|server| server == id);
    let not_in_list =
        || Error::new(ErrorKind::NotFound, "The token's list has none of these servers.");
    let (_, present) = exchange.get(&format!("{TOKENS}{token}/"), "").await?;
    if acl::remove(&present["acl"], "servers", is_removed).is_none() {
        return Err(exchange.refusal(&not_in_list()));
    }
    change(exchange, token, |list| Ok(acl::remove(list, "servers", is_removed))).await?;
    Ok(exchange.reply(200, &json!({"deleted": servers})))
}
