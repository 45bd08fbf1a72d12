//! A scripted `alpacon-cli` and `alpacon-mcp`: they send what the real programs send, and read with
//! the same strictness. Null is accepted for every field and unknown fields are ignored, but a
//! value of another type is fatal.

use farhand_domain::time::Timestamp;
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::client::{Api, Reply};
use crate::{PATIENCE, secrets};

/// The `User-Agent` of the command line.
pub const CLI: &str = "alpacon-cli/1.11.1";
/// The `User-Agent` of the MCP server.
pub const MCP: &str = "alpacon-mcp/1.20.0 (MCP-Server; persistent-pool) Python/3.12.1";

/// The envelope of a list.
#[derive(Deserialize, Debug)]
pub struct List<T> {
    pub count: i64,
    pub current: i64,
    pub next: Option<i64>,
    pub previous: Option<i64>,
    pub last: i64,
    pub results: Vec<T>,
}

#[derive(Deserialize, Debug, PartialEq, Eq, Clone)]
pub struct UserSummary {
    pub id: Option<String>,
    pub name: Option<String>,
    pub email: Option<String>,
}

#[derive(Deserialize, Debug, PartialEq, Eq, Clone)]
pub struct ServerSummary {
    pub id: Option<String>,
    pub name: Option<String>,
    pub os: Option<String>,
    pub is_connected: Option<bool>,
}

#[derive(Deserialize, Debug)]
pub struct Environment {
    pub auth0: EnvironmentMethod,
    pub language: Option<String>,
}

#[derive(Deserialize, Debug)]
pub struct EnvironmentMethod {
    pub method: String,
}

#[derive(Deserialize, Debug)]
pub struct Login {
    pub token: String,
    pub expires_at: Option<Timestamp>,
}

#[derive(Deserialize, Debug)]
pub struct User {
    pub id: String,
    pub username: Option<String>,
    pub first_name: Option<String>,
    pub last_name: Option<String>,
    pub email: Option<String>,
    pub phone: Option<String>,
    pub shell: Option<String>,
    pub home_directory: Option<String>,
    pub tags: Option<String>,
    pub num_groups: Option<i64>,
    pub uid: Option<i64>,
    pub is_active: Option<bool>,
    pub is_staff: Option<bool>,
    pub is_superuser: Option<bool>,
    pub is_ldap_user: Option<bool>,
    pub date_joined: Option<Timestamp>,
}

#[derive(Deserialize, Debug)]
pub struct Group {
    pub id: String,
    pub name: Option<String>,
    pub display_name: Option<String>,
    pub description: Option<String>,
    pub tags: Option<String>,
    pub num_members: Option<i64>,
    pub members_names: Option<Vec<String>>,
    pub gid: Option<i64>,
    pub is_ldap_group: Option<bool>,
    pub servers: Option<Vec<ServerSummary>>,
    pub added_at: Option<Timestamp>,
    pub updated_at: Option<Timestamp>,
}

#[derive(Deserialize, Debug)]
pub struct Membership {
    pub id: String,
    pub group: Option<String>,
    pub group_name: Option<String>,
    pub user: Option<UserSummary>,
    pub role: Option<String>,
}

#[derive(Deserialize, Debug)]
pub struct Server {
    pub id: String,
    pub name: Option<String>,
    pub remote_ip: Option<String>,
    pub os_name: Option<String>,
    pub os_version: Option<String>,
    pub is_connected: Option<bool>,
    pub owner: Option<UserSummary>,
    pub groups: Option<Vec<String>>,
    pub load: Option<f64>,
    pub cpu_logical_cores: Option<i64>,
    pub physical_memory: Option<i64>,
    pub commissioned: Option<bool>,
    pub starred: Option<bool>,
    pub cpu_physical_cores: Option<i64>,
    pub cpu_type: Option<String>,
    pub boot_time: Option<String>,
}

#[derive(Deserialize, Debug)]
pub struct RegistrationToken {
    pub id: String,
    pub name: Option<String>,
    pub key: Option<String>,
    pub allowed_groups: Option<Vec<String>>,
    pub enabled: Option<bool>,
    pub expires_at: Option<String>,
    pub added_at: Option<String>,
}

#[derive(Deserialize, Debug)]
pub struct Guide {
    pub method_id: Option<String>,
    pub platform: Option<String>,
    pub platform_label: Option<String>,
    pub server_name: Option<String>,
    pub alpacon_url: Option<String>,
    pub register_command: String,
    pub install_commands: Vec<String>,
    pub token_key: Option<String>,
    pub package_proxy: Option<String>,
    pub allow_sudo_with_mfa: Option<bool>,
}

#[derive(Deserialize, Debug)]
pub struct Command {
    pub id: String,
    pub shell: Option<String>,
    pub line: Option<String>,
    pub data: Option<String>,
    pub username: Option<String>,
    pub groupname: Option<String>,
    pub added_at: Option<Timestamp>,
    pub scheduled_at: Option<Timestamp>,
    pub server: Option<ServerSummary>,
    pub requested_by: Option<UserSummary>,
    pub run_after: Option<Vec<String>>,
    pub success: Option<bool>,
    pub exit_code: Option<i64>,
    pub error_phase: Option<String>,
    pub result: Option<String>,
    pub status: Option<String>,
    pub cancellable: Option<bool>,
    pub response_delay: Option<f64>,
    pub elapsed_time: Option<f64>,
}

#[derive(Deserialize, Debug)]
pub struct OutputChunk {
    pub seq: i64,
    pub content: String,
}

#[derive(Deserialize, Debug)]
pub struct ApiToken {
    pub id: String,
    pub name: Option<String>,
    pub key: Option<String>,
    pub enabled: Option<bool>,
    pub updated_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub scopes: Option<Vec<String>>,
}

#[derive(Deserialize, Debug)]
pub struct Scopes {
    pub resources: Vec<Value>,
    pub wildcards: Vec<String>,
}

#[derive(Deserialize, Debug)]
pub struct CommandAcl {
    pub id: String,
    pub token_name: Option<String>,
    pub command: Option<String>,
    pub username: Option<String>,
    pub groupname: Option<String>,
}

#[derive(Deserialize, Debug)]
pub struct ServerAcl {
    pub id: String,
    pub token: Option<String>,
    pub token_name: Option<String>,
    pub server: Option<ServerSummary>,
}

#[derive(Deserialize, Debug)]
pub struct Activities {
    /// A cursor.
    pub next: Option<String>,
    pub results: Vec<Activity>,
}

#[derive(Deserialize, Debug)]
pub struct Activity {
    pub id: Option<String>,
    pub user: Option<UserSummary>,
    pub username: Option<String>,
    pub ip: Option<String>,
    pub app: Option<String>,
    pub action: Option<String>,
    pub status_code: Option<i64>,
    pub added_at: Option<Timestamp>,
    pub model: Option<String>,
    pub description: Option<String>,
}

#[derive(Deserialize, Debug)]
pub struct EventSession {
    pub id: String,
    pub channel_id: String,
    pub websocket_url: String,
}

/// A frame of the WebSocket.
#[derive(Deserialize, Debug, Clone)]
pub struct Frame {
    pub event_type: String,
    pub payload: FramePayload,
}

/// The payload of `command_output`, or of `command_fin`.
#[derive(Deserialize, Debug, Clone)]
pub struct FramePayload {
    pub command_id: Option<String>,
    pub seq: Option<i64>,
    pub content: Option<String>,
    pub id: Option<String>,
}

/// One of the two clients, with a credential.
#[derive(Clone)]
pub struct Alpacon {
    pub api: Api,
}

/// Decodes the body of a success.
#[track_caller]
fn decode<T: DeserializeOwned>(reply: &Reply) -> T {
    assert!((200..300).contains(&reply.status), "{} {}", reply.status, reply.text);
    serde_json::from_str(&reply.text).unwrap_or_else(|error| panic!("{error}: {}", reply.text))
}

/// The number of a line of output that the command line polls for.
const PAGE_SIZE: usize = 100;

impl Alpacon {
    /// The command line with the credential of a client.
    pub fn cli(api: &Api) -> Self {
        Self { api: api.with_user_agent(Some(CLI)) }
    }

    /// The MCP server with the credential of a client.
    pub fn mcp(api: &Api) -> Self {
        Self { api: api.with_user_agent(Some(MCP)) }
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> T {
        decode(&self.api.get(path).await)
    }

    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> T {
        decode(&self.api.post(path, body).await)
    }

    pub async fn patch<T: DeserializeOwned>(&self, path: &str, body: &Value) -> T {
        decode(&self.api.patch(path, body).await)
    }

    /// Reads all pages of a list.
    pub async fn list<T: DeserializeOwned>(&self, path: &str, query: &str) -> Vec<T> {
        let (mut items, mut page) = (Vec::new(), 1);
        loop {
            let url = format!("{path}?{query}&page={page}&page_size={PAGE_SIZE}");
            let list: List<T> = self.get(&url).await;
            assert_eq!(list.current, page);
            items.extend(list.results);
            match list.next {
                Some(next) => page = next,
                None => {
                    assert_eq!((list.last, list.count), (page, items.len() as i64));
                    return items;
                }
            }
        }
    }

    /// Looks up the id of a server by its name, as each command does first.
    pub async fn server_id(&self, name: &str) -> String {
        let list: List<Server> = self.get(&format!("/api/servers/servers/?name={name}")).await;
        assert_eq!(list.count, 1, "{name}");
        list.results[0].id.clone()
    }

    /// Looks up the id of a user by the username.
    pub async fn user_id(&self, username: &str) -> String {
        let list: List<User> = self.get(&format!("/api/iam/users/?username={username}")).await;
        assert_eq!(list.count, 1, "{username}");
        list.results[0].id.clone()
    }

    /// Looks up the id of a group by its name.
    pub async fn group_id(&self, name: &str) -> String {
        let list: List<Group> = self.get(&format!("/api/iam/groups/?name={name}")).await;
        assert_eq!(list.count, 1, "{name}");
        list.results[0].id.clone()
    }

    /// The body with which `exec` starts a command.
    pub fn command(server: &str, line: &str, username: &str) -> Value {
        json!({
            "shell": "system", "line": line, "env": {}, "data": "", "username": username,
            "groupname": "", "scheduled_at": null, "server": server, "run_after": [],
        })
    }

    /// Starts a command as `exec` does.
    pub async fn start(&self, server: &str, line: &str, username: &str) -> Command {
        let commands: Vec<Command> =
            self.post("/api/events/commands/", &Self::command(server, line, username)).await;
        commands.into_iter().next().unwrap()
    }

    /// Polls a command until it has ended.
    pub async fn wait(&self, id: &str) -> Command {
        crate::eventually("the command's end", || async {
            let command: Command = self.get(&format!("/api/events/commands/{id}/")).await;
            let status = command.status.clone().unwrap();
            let goes_on = ["scheduled", "queued", "delivered", "acked"].contains(&status.as_str());
            assert!(
                goes_on
                    || ["success", "failed", "stuck", "error", "cancelled"]
                        .contains(&status.as_str()),
                "unexpected command status {status}"
            );
            (!goes_on).then_some(command)
        })
        .await
    }

    /// Opens a channel, without a connection.
    pub async fn open_channel(&self) -> EventSession {
        let session: EventSession = self.post("/api/events/sessions/", &json!({})).await;
        let secret = session.websocket_url.trim_end_matches('/').rsplit('/').next().unwrap();
        secrets::record("channel", secret);
        session
    }

    /// Connects to the WebSocket of a channel, without a credential.
    ///
    /// # Errors
    /// The status, if the service refuses.
    pub async fn dial(&self, session: &EventSession) -> Result<Channel, u16> {
        let address = self.api.url.strip_prefix("http://").unwrap();
        let (scheme, rest) = session.websocket_url.split_once("://").unwrap();
        assert_eq!(scheme, "ws");
        let path = &rest[rest.find('/').unwrap()..];
        let mut request = format!("ws://{address}{path}").into_client_request().unwrap();
        let headers = request.headers_mut();
        headers.insert("Host", self.api.host.parse().unwrap());
        headers.insert("Origin", format!("http://{}", self.api.host).parse().unwrap());
        headers.insert("User-Agent", CLI.parse().unwrap());
        let stream = TcpStream::connect(address).await.unwrap();
        match client_async(request, stream).await {
            Ok((socket, _)) => Ok(Channel { socket }),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    /// Subscribes a channel to events.
    pub async fn subscribe(&self, channel: &str, event: &str, target: &str) -> Reply {
        let body = json!({"channel": channel, "event_type": event, "target_id": target});
        self.api.post("/api/events/subscriptions/", &body).await
    }
}

/// The WebSocket of a channel.
pub struct Channel {
    socket: WebSocketStream<TcpStream>,
}

impl Channel {
    /// The next frame.
    ///
    /// # Errors
    /// The close code, if the service closed the socket.
    pub async fn next(&mut self) -> Result<Frame, Option<u16>> {
        loop {
            let message =
                tokio::time::timeout(PATIENCE, self.socket.next()).await.expect("no frame in time");
            match message {
                Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).unwrap()),
                Some(Ok(Message::Close(frame))) => return Err(frame.map(|frame| frame.code.into())),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(None),
            }
        }
    }

    pub async fn close(mut self) {
        self.socket.close(None).await.ok();
        self.socket.flush().await.ok();
    }
}
