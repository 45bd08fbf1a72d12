//! Endpoints of the dialect that need more than one native request, or whose native request depends
//! on the parameters.

use farhand_domain::dialect::pages;
use farhand_domain::dialect::reply::{Shape, convert};
use farhand_domain::dialect::table::built_in;
use farhand_domain::error::Error;
use farhand_domain::http::fields::Fields;
use farhand_domain::http::page::last_value;
use farhand_domain::id;
use farhand_domain::shell_words;
use serde_json::{Value, json};

use super::exchange::Exchange;
use super::{convert_items, convert_value, converted};
use crate::http::response::Reply;

const COMMANDS: &str = "/api/events/commands/";
const MEMBERSHIPS: &str = "/api/iam/memberships/";
const TOKENS: &str = "/api/auth/tokens/";
/// The maximum length of a token's name, in characters.
const MAX_TOKEN_NAME: usize = 128;

/// `POST /api/servers/servers/<id>/actions/`: a built-in command of the server's agent.
pub async fn action(exchange: &mut Exchange) -> Result<Reply, Reply> {
    let read = |mut fields: Fields| {
        // Nothing that runs on the server is protected, so there is nothing to override.
        fields.optional_boolean("force");
        let action = fields.text("action", 1..=64);
        let line = action.as_deref().and_then(built_in);
        if action.is_some() && line.is_none() {
            fields.reject("action", "No such action.");
        }
        fields.finish_with(line)
    };
    let input = exchange.fields().await.and_then(read);
    let line = exchange.require_input(input).await?;
    let body = json!({"server": exchange.parameter("id"), "shell": "internal", "line": line});
    let sent = exchange.send("POST", COMMANDS, "", Some(&body)).await.map(|(reply, _)| reply);
    converted(exchange, Shape::Command, sent).await
}

/// A filter of the native list of commands: a server's id or a user's id.
fn command_filter(segment: &str) -> Option<String> {
    if let Some(server) = id::parse(segment) {
        return Some(format!("server={server}"));
    }
    let user: u64 = segment.parse().ok()?;
    Some(format!("requested_by={user}"))
}

/// `GET /api/events/commands/<id>/`: a command. With `page_size`, it is the list of the commands of
/// a server or of a user.
pub async fn command_or_list(exchange: &mut Exchange, shape: Shape) -> Result<Reply, Reply> {
    let filter = command_filter(exchange.parameter("id"));
    let is_list = last_value(&exchange.query, "page_size").is_some();
    let sent = match filter.filter(|_| is_list) {
        Some(filter) => {
            let query = exchange.query_with(&filter);
            exchange.get(COMMANDS, &query).await.map(|(reply, _)| reply)
        }
        None => exchange.forward().await,
    };
    converted(exchange, shape, sent).await
}

/// `GET /api/events/commands/<server>/<user>/`: the commands of a user on a server.
pub async fn command_list(exchange: &mut Exchange, shape: Shape) -> Result<Reply, Reply> {
    let server = id::parse(exchange.parameter("id"));
    let user: Option<u64> = exchange.parameter("user").parse().ok();
    let Some((server, user)) = server.zip(user) else { return exchange.forward().await };
    let query = exchange.query_with(&format!("server={server}&requested_by={user}"));
    let sent = exchange.get(COMMANDS, &query).await.map(|(reply, _)| reply);
    converted(exchange, shape, sent).await
}

/// `GET /api/events/commands/<id>/chunks/`: a page of chunks, up to `seq__lte`.
pub async fn chunks(exchange: &mut Exchange) -> Result<Reply, Reply> {
    let reply = exchange.forward().await?;
    let value = reply.json_value().unwrap_or_default();
    let mut list = convert_value(exchange, Shape::Same, value).await;
    if let Some(text) = last_value(&exchange.query, "seq__lte") {
        let Ok(last_seq) = text.parse() else {
            let error = Error::field("seq__lte", "Enter a whole number of at least 0.");
            return Err(exchange.refusal(&error));
        };
        pages::limit_chunks(&mut list, last_seq);
    }
    Ok(reply.with_json(200, &list))
}

/// `GET /api/iam/memberships/`: a page, or without `page` all memberships as an array.
pub async fn memberships(exchange: &mut Exchange, shape: Shape) -> Result<Reply, Reply> {
    if last_value(&exchange.query, "page").is_some() {
        let sent = exchange.forward().await;
        return converted(exchange, shape, sent).await;
    }
    let all = exchange.get_all(MEMBERSHIPS, &exchange.query_with("")).await?;
    let selects_one =
        ["group", "user"].iter().all(|name| last_value(&exchange.query, name).is_some());
    if all.is_empty() && selects_one {
        // The command line crashes if it gets an empty array.
        return Err(exchange.missing("The user is not a member of the group."));
    }
    let all = convert_items(exchange, shape, json!(all)).await;
    Ok(exchange.reply(200, &all))
}

/// `POST /api/auth/tokens/<id>/duplicate/`: a new token with the expiry, the access control list
/// and the state of another one.
pub async fn duplicate_token(exchange: &mut Exchange) -> Result<Reply, Reply> {
    let read = |mut fields: Fields| {
        let name = fields.optional_text("name", 0..=MAX_TOKEN_NAME).filter(|name| !name.is_empty());
        fields.finish().map(|()| name)
    };
    let input = exchange.fields().await.and_then(read);
    let name = exchange.require_input(input).await?;
    let path = format!("{TOKENS}{}/", exchange.parameter("id"));
    let (_, original) = exchange.get(&path, "").await?;
    let name = name.unwrap_or_else(|| {
        let copy = format!("Copy of {}", original["name"].as_str().unwrap_or(""));
        copy.chars().take(MAX_TOKEN_NAME).collect()
    });
    let mut body = json!({"name": name});
    for field in ["expires_at", "acl", "enabled"] {
        body[field] = original[field].clone();
    }
    let (reply, copy) = exchange.send("POST", TOKENS, "", Some(&body)).await?;
    Ok(reply.with_json(201, &copy))
}

/// A request for the commands that register a host.
struct GuideRequest {
    platform: &'static str,
    server_name: String,
    registration_token: String,
}

impl GuideRequest {
    fn read(mut fields: Fields) -> Result<Self, Error> {
        let platforms = [
            ("debian", "Debian and Ubuntu"),
            ("rhel", "Red Hat Enterprise Linux"),
            ("suse", "SUSE Linux"),
            ("darwin", "macOS"),
            ("windows", "Windows"),
        ];
        let platform = fields.text("platform", 1..=32);
        let label = platforms.iter().find(|(name, _)| platform.as_deref() == Some(name));
        if platform.is_some() && label.is_none() {
            fields.reject("platform", "Choose debian, rhel, suse, darwin or windows.");
        }
        let server_name = fields.optional_text("server_name", 0..=64).unwrap_or_default();
        // The MCP server says `token`.
        let token_field = if fields.has("token") { "token" } else { "registration_token" };
        let token = fields.text(token_field, 1..=64);
        if token.as_deref().is_some_and(|token| id::parse(token).is_none()) {
            fields.reject(token_field, "Enter a UUID.");
        }
        let (label, registration_token) = fields.finish_with(label.zip(token))?;
        Ok(Self { platform: label.1, server_name, registration_token })
    }
}

/// `POST /api/servers/registration-methods/token-install/guide/`. The service stores only the hash
/// of a token's key, so the commands have a placeholder for the key.
pub async fn registration_guide(exchange: &mut Exchange) -> Result<Reply, Reply> {
    let fields = exchange.fields().await;
    let platform_name = fields
        .as_ref()
        .ok()
        .and_then(|fields| fields.value("platform").and_then(Value::as_str).map(str::to_owned));
    let input = fields.and_then(GuideRequest::read);
    let GuideRequest { platform, server_name, registration_token } =
        exchange.require_input(input).await?;
    let path = format!("/api/servers/registration-tokens/{registration_token}/");
    exchange.get(&path, "").await?;
    let slug = exchange.call.workspace().map_err(|error| exchange.refusal(&error))?;
    let url = exchange.call.config.base_url_of(slug);
    let name = match server_name.as_str() {
        "" => String::new(),
        name => format!(" --name {}", shell_words::quoted(&[name.to_owned()])),
    };
    let guide = json!({
        "method_id": "token-install",
        "platform": platform_name,
        "platform_label": platform,
        "server_name": server_name,
        "alpacon_url": url,
        "token_key": "<key>",
        "package_proxy": null,
        "allow_sudo_with_mfa": false,
        "register_command": format!("alpamon register --url {url} --token <key>{name}"),
        "install_commands": [
            "# With Farhand's own agent, and the key in the file token:",
            format!("curl -fsSL {url}/install.sh | sh -s -- --token-file token{name}"),
        ],
    });
    Ok(exchange.reply(200, &guide))
}

/// `GET /api/audit/activity/`: the audit log. The cursor is the number of a native page.
pub async fn activity(exchange: &mut Exchange, shape: Shape) -> Result<Reply, Reply> {
    // The client sends the user's id. The native filter compares the name.
    let mut actor = last_value(&exchange.query, "user").map(str::to_owned);
    if let Some(id) = actor.as_ref().and_then(|user| user.parse::<u64>().ok()) {
        let (_, user) = exchange.get(&format!("/api/iam/users/{id}/"), "").await?;
        actor = user["username"].as_str().map(str::to_owned);
    }
    let value = |name: &str| last_value(&exchange.query, name).filter(|text| !text.is_empty());
    let mut query = form_urlencoded::Serializer::new(String::new());
    let actor = actor.as_deref().filter(|name| !name.is_empty());
    let pairs = [("page", value("cursor")), ("page_size", value("page_size")), ("actor", actor)];
    query.extend_pairs(pairs.iter().filter_map(|(name, value)| Some((name, (*value)?))));
    // A native filter compares the whole action, such as `api_token.create`. Filters that have no
    // native counterpart are refused: a list without them would show too much.
    let unknown = ["app", "model"].into_iter().find(|name| value(name).is_some());
    let query = query.finish();
    let (reply, mut list) = exchange.get("/api/audit/events/", &query).await?;
    if let Some(name) = unknown {
        let error = Error::field(name, "This filter is not available.");
        return Err(exchange.refusal(&error));
    }
    let number = last_value(&exchange.query, "cursor").and_then(|text| text.parse::<u64>().ok());
    let has_more = !list["next"].is_null();
    let next = has_more.then(|| (number.unwrap_or(1) + 1).to_string());
    let events = list["results"].take();
    let now = exchange.call.now;
    let no_names = farhand_domain::dialect::reply::Names::default();
    let events: Vec<Value> = events
        .as_array()
        .into_iter()
        .flatten()
        .map(|event| convert(shape, event.clone(), &no_names, now))
        .collect();
    Ok(reply.with_json(200, &json!({"next": next, "results": events})))
}
