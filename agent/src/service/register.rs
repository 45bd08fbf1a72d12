//! `register` and `unregister`: add this host as a server of a workspace, and remove it
//! (agent-protocol 1.2 and 1.3).
//!
//! The token is read from a file or the environment, because every account on the host can read the
//! arguments of a process. The token and the key are never printed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farhand_domain::secret::Secret;
use hyper::Method;
use hyper::body::Bytes;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::config::{self, Service, Settings};
use crate::connection::client::Client;
use crate::host::facts::Facts;
use crate::journal::file::JournalFile;
use crate::labels::{self, Labels};
use crate::service::config_file::{Draft, config_text};

/// The time limit for a response. It is longer than the limit for reports, because without a
/// response it is unknown whether the service created the server.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum length of a text from the service that is printed, in characters.
const MAX_TEXT_CHARS: usize = 300;

/// The arguments of `register`.
pub struct Registration {
    /// The service.
    pub service: Service,
    /// The registration token.
    pub token: Secret,
    /// The server's name. If `None`, it is the host name.
    pub name: Option<String>,
    /// The labels of the server.
    pub labels: Labels,
    /// The path of the agent's config file.
    pub config: PathBuf,
    /// Whether to replace an existing file.
    pub force: bool,
}

/// Registers this host as a server and writes the agent's config file. Returns text to print.
///
/// # Errors
/// The reason, in one line.
pub async fn register(registration: Registration) -> Result<String, String> {
    let Registration { service, token, name, labels, config, force } = registration;
    let Some(name) = name.or_else(|| nix::unistd::gethostname().ok()?.into_string().ok()) else {
        return Err("this host has no name: use --name".to_owned());
    };
    // Create the file before the request, so that a local error does not leave a server in the
    // workspace.
    let draft = Draft::begin(&config, force)?;
    let client = Client::for_token(&service, &token)?;
    client.connect().await.map_err(|error| format!("{service} is unreachable: {error}"))?;
    let os = Facts::read().os;
    let platform = os.platform_like.or(os.platform);
    let body = json!({"name": name, "platform": platform, "tags": {}, "labels": labels});
    let path = "/api/servers/servers/register/";
    let response =
        client.call_json(Method::POST, path, Bytes::from(body.to_string()), RESPONSE_TIMEOUT).await;
    let unknown = "it is unknown whether the server was registered: look for it in the workspace";
    let (status, body) = response.map_err(|why| format!("{service}: {}; {unknown}", why.0))?;
    if status != 201 {
        return Err(format!("not registered: {}", describe_refusal(status, &body)));
    }
    let server = RegisteredServer::read(&body)
        .ok_or_else(|| format!("{service}: the response is not a server; {unknown}"))?;
    if let Err(why) =
        draft.finish(&(config_text(&service, server.id, &server.key) + &labels::to_toml(&labels)))
    {
        let undone = match undo(&service, &server).await {
            Ok(()) => "the server is unregistered again".to_owned(),
            Err(undone) => {
                format!("server {} ({}) stays in the workspace: {undone}", server.name, server.id)
            }
        };
        return Err(format!("{why}; {undone}"));
    }
    let (name, id, shown) = (&server.name, server.id, config.display());
    Ok(format!(
        "registered as {name}, with the id {id}\nthe agent's file is {shown}\nto run it as a service: farhand-agent install --config {shown}"
    ))
}

/// The server that the service created.
struct RegisteredServer {
    id: Uuid,
    key: Secret,
    name: String,
}

impl RegisteredServer {
    fn read(body: &Value) -> Option<Self> {
        let text = |name: &str| body[name].as_str().map(str::to_owned);
        let key = Secret::new(text("key")?);
        config::check_credential("", &key).ok()?;
        Some(Self {
            id: farhand_domain::id::parse(&text("id")?)?,
            key,
            name: printable(&text("name")?),
        })
    }
}

/// Unregisters a server that was just registered.
async fn undo(service: &Service, server: &RegisteredServer) -> Result<(), String> {
    match call_unregister(&Client::for_server(service, server.id, &server.key)?).await? {
        (204, _) => Ok(()),
        (status, body) => Err(describe_refusal(status, &body)),
    }
}

async fn call_unregister(client: &Client) -> Result<(u16, Value), String> {
    let path = "/api/servers/servers/-/unregister/";
    let response = client.call_json(Method::DELETE, path, Bytes::new(), RESPONSE_TIMEOUT).await;
    response.map_err(|why| format!("{} is unreachable: {}", client.service(), why.0))
}

/// Removes the server from its workspace, then deletes the agent's config file and state. With
/// `force`, deletes both even if the service does not know the server. Returns text to print.
///
/// # Errors
/// The reason, in one line.
pub async fn unregister(settings: &Settings, config: &Path, force: bool) -> Result<String, String> {
    let client = Client::new(settings)?;
    let (id, shown) = (settings.id, config.display());
    let outcome = match call_unregister(&client).await? {
        (204, _) => format!("server {id} is unregistered"),
        (403, _) if force => {
            format!("the service does not know server {id} with this key; it may have been deleted")
        }
        (403, _) => {
            return Err(format!(
                "the service does not know server {id} with this key; it may have been deleted; with --force, {shown} is removed anyway"
            ));
        }
        (status, body) => {
            return Err(format!("not unregistered: {}", describe_refusal(status, &body)));
        }
    };
    fs::remove_file(config)
        .map_err(|error| format!("{outcome}; {shown} could not be removed: {error}"))?;
    let runs = |folder: &PathBuf| matches!(JournalFile::inspect(folder), Ok(Some(seen)) if seen.agent.is_some());
    let warning = if settings.state_dirs.iter().any(runs) {
        "\nits agent still runs here: stop it"
    } else {
        ""
    };
    for folder in &settings.state_dirs {
        let describe = |error| {
            format!("{outcome}, and {shown} is removed; {} could not be: {error}", folder.display())
        };
        JournalFile::remove(folder).map_err(describe)?;
    }
    // Deletes the state folder next to the config file if it is empty. It may contain the state of
    // another server.
    let _ = fs::remove_dir(config.with_extension("state"));
    Ok(format!("{outcome}\n{shown} and the agent's state are removed{warning}"))
}

/// The service's error response, in one line.
fn describe_refusal(status: u16, body: &Value) -> String {
    let mut words = Vec::new();
    for (name, value) in body.as_object().into_iter().flatten() {
        match value {
            Value::String(text) if name == "detail" => words.push(text.clone()),
            Value::Array(messages) => {
                let messages: Vec<_> = messages.iter().filter_map(Value::as_str).collect();
                words.push(format!("{name}: {}", messages.join(" ")));
            }
            _ => {}
        }
    }
    let hint =
        if (300..400).contains(&status) { " (is that the workspace's address?)" } else { "" };
    let words = if words.is_empty() {
        String::new()
    } else {
        format!(": {}", printable(&words.join("; ")))
    };
    format!("status {status}{hint}{words}")
}

/// Makes a text from the service safe to print: replaces control characters with blanks, and cuts
/// the text after [`MAX_TEXT_CHARS`].
fn printable(text: &str) -> String {
    text.chars().take(MAX_TEXT_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn refusals_are_one_line() {
        let said = |status, body: Value| describe_refusal(status, &body);
        assert_eq!(
            said(403, json!({"detail": "Invalid\ntoken.", "code": "INVALID_TOKEN"})),
            "status 403: Invalid token."
        );
        assert_eq!(
            said(400, json!({"name": ["Too long.", "Bad."], "x": ["No."]})),
            "status 400: name: Too long. Bad.; x: No."
        );
        assert_eq!(said(502, Value::Null), "status 502");
        assert_eq!(said(301, Value::Null), "status 301 (is that the workspace's address?)");
        assert!(said(400, json!({"detail": "x".repeat(100_000)})).len() < 400);
    }

    #[test]
    fn a_response_without_a_valid_server_is_refused() {
        let id = "01936d3e-7a00-7000-8000-000000000000";
        let server =
            RegisteredServer::read(&json!({"id": id, "key": "sesame", "name": "web-1"})).unwrap();
        assert_eq!((server.id.to_string().as_str(), server.key.expose()), (id, "sesame"));
        for bad in [
            json!(null),
            json!({"id": id, "name": "a"}),
            json!({"id": "x", "key": "k", "name": "a"}),
            json!({"id": id, "key": "k\"\n", "name": "a"}),
            json!({"id": id, "key": "", "name": "a"}),
        ] {
            assert!(RegisteredServer::read(&bad).is_none(), "{bad}");
        }
    }
}
