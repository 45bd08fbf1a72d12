//! Agents: a scripted one whose every step a test decides, and the real one.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::client::{Api, Reply, SentRequest, Workspace};
use crate::processes::Process;
use crate::{PATIENCE, eventually, setting};

/// An agent without behaviour of its own: the test sends each message.
pub struct ScriptedAgent {
    /// A client with the agent's credential.
    pub api: Api,
    socket: Socket,
}

type Socket = WebSocketStream<TcpStream>;

/// The Authorization header of a server's agent.
pub fn credential(server: &Value) -> String {
    format!(
        "id=\"{}\", key=\"{}\"",
        server["id"].as_str().unwrap(),
        server["key"].as_str().unwrap()
    )
}

/// Opens a WebSocket as an agent does.
///
/// # Errors
/// The status of the response, if the service rejects the connection.
pub async fn dial(api: &Api, path: &str) -> Result<Socket, u16> {
    dial_with_features(api, path, None).await
}

/// Like [`dial`], with an `X-Agent-Features` header (agent-protocol 6.1).
async fn dial_with_features(api: &Api, path: &str, features: Option<&str>) -> Result<Socket, u16> {
    let address = api.url.strip_prefix("http://").unwrap();
    let mut request = format!("ws://{address}{path}").into_client_request().unwrap();
    let headers = request.headers_mut();
    headers.insert("Host", api.host.parse().unwrap());
    headers.insert("Origin", format!("http://{}", api.host).parse().unwrap());
    headers.insert("User-Agent", "alpamon/2.0.0".parse().unwrap());
    if let Some(features) = features {
        headers.insert("X-Agent-Features", features.parse().unwrap());
    }
    if let Some(address) = &api.address {
        headers.insert("X-Forwarded-For", address.parse().unwrap());
    }
    if let Some(authorization) = &api.authorization {
        headers.insert("Authorization", authorization.parse().unwrap());
    }
    let stream = TcpStream::connect(address).await.unwrap();
    let sent = SentRequest::get(path, request.headers());
    match client_async(request, stream).await {
        Ok((socket, response)) => {
            sent.check(response.status().as_u16(), response.headers(), None);
            Ok(socket)
        }
        Err(tokio_tungstenite::tungstenite::Error::Http(response)) => {
            sent.check(response.status().as_u16(), response.headers(), None);
            Err(response.status().as_u16())
        }
        Err(error) => panic!("{error}"),
    }
}

impl ScriptedAgent {
    /// Connects the agent of a server whose `key` is known.
    pub async fn connect(workspace: &Workspace, server: &Value) -> Self {
        Self::connect_to(
            &workspace.anonymous.with_authorization(&credential(server)),
            "/ws/servers/backhaul/",
        )
        .await
    }

    /// Connects an agent that can kill commands.
    pub async fn connect_with_kill(workspace: &Workspace, server: &Value) -> Self {
        Self::connect_with_features(workspace, server, "kill, replay").await
    }

    /// Connects an agent that announces features.
    pub async fn connect_with_features(
        workspace: &Workspace,
        server: &Value,
        features: &str,
    ) -> Self {
        let api = workspace.anonymous.with_authorization(&credential(server));
        let socket =
            dial_with_features(&api, "/ws/servers/backhaul/", Some(features)).await.unwrap();
        Self { api, socket }
    }

    /// Connects to a WebSocket path with a client's credential.
    pub async fn connect_to(api: &Api, path: &str) -> Self {
        Self { api: api.clone(), socket: dial(api, path).await.unwrap() }
    }

    /// The next message.
    ///
    /// # Errors
    /// The close code, if the service closed the socket.
    pub async fn next(&mut self) -> Result<Value, Option<u16>> {
        loop {
            let message = tokio::time::timeout(PATIENCE, self.socket.next())
                .await
                .expect("no message in time");
            match message {
                Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).unwrap()),
                Some(Ok(Message::Close(frame))) => return Err(frame.map(|frame| frame.code.into())),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(None),
            }
        }
    }

    /// The next command. Responds to pings. The service sends a ping if a command was not
    /// acknowledged for a minute.
    pub async fn next_command(&mut self) -> Value {
        loop {
            let message = self.next().await.unwrap();
            if message["query"] == "ping" {
                self.pong().await;
                continue;
            }
            assert_eq!(message["query"], "command", "{message}");
            return message["command"].clone();
        }
    }

    async fn pong(&mut self) {
        self.send(&json!({"query": "pong", "timestamp": 1.5})).await;
    }

    /// True if nothing but pings arrives for half a second. Absence has no condition to wait for,
    /// so this waits for a fixed time.
    pub async fn stays_silent(&mut self) -> bool {
        let until = tokio::time::Instant::now() + Duration::from_millis(500);
        loop {
            match tokio::time::timeout_at(until, self.socket.next()).await {
                Err(_) => return true,
                Ok(Some(Ok(Message::Text(text)))) if text.contains("\"ping\"") => self.pong().await,
                Ok(_) => return false,
            }
        }
    }

    pub async fn send(&mut self, message: &Value) {
        self.socket.send(Message::text(message.to_string())).await.unwrap();
    }

    pub async fn close(mut self) {
        self.socket.close(None).await.unwrap();
    }

    /// Sends a report about a command: `ack`, `chunk` or `fin`.
    pub async fn report(&self, command: &str, kind: &str, body: Option<&Value>) -> Reply {
        let request = self.api.request("POST", &format!("/api/events/commands/{command}/{kind}/"));
        let request = match body {
            Some(body) => request.json(body),
            None => request.header("Content-Type", "application/json"),
        };
        self.api.send(request).await
    }

    pub async fn ack(&self, command: &str) {
        self.report(command, "ack", None).await.expect(204);
    }

    /// Sends a chunk of output.
    pub async fn chunk(&self, command: &str, seq: u32, content: &str) {
        self.report(command, "chunk", Some(&json!({"seq": seq, "content": content})))
            .await
            .expect(204);
    }

    /// Reports the end of a command with an exit code.
    pub async fn fin(&self, command: &str, code: i32, result: &str) {
        let fin = json!({"success": code == 0, "result": result, "elapsed_time": 0.25, "exit_code": code});
        self.report(command, "fin", Some(&fin)).await.expect(204);
    }
}

/// The project's agent, as a child process.
pub struct RealAgent {
    /// The agent's process. Dropping it kills the process.
    pub process: Process,
    folder: TempDir,
}

impl RealAgent {
    /// Starts the agent of a server whose `key` is known, and waits until it is connected.
    pub async fn start(workspace: &Workspace, server: &Value) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), workspace, server).await
    }

    /// Kills the agent's process, as a crash does, and starts it again with the same state. Its
    /// commands keep running until then.
    pub async fn restart_after_crash(self, workspace: &Workspace, server: &Value) -> Self {
        let Self { mut process, folder } = self;
        process.signal(Signal::SIGKILL);
        process.wait_for_exit(PATIENCE).await;
        wait_until_connected(workspace, server["id"].as_str().unwrap(), false).await;
        Self::start_in(folder, workspace, server).await
    }

    async fn start_in(folder: TempDir, workspace: &Workspace, server: &Value) -> Self {
        let config = folder.path().join("agent.toml");
        let port = workspace.anonymous.url.rsplit(':').next().unwrap();
        let url = format!("http://{}:{port}", workspace.anonymous.host);
        let (id, key) = (server["id"].as_str().unwrap(), server["key"].as_str().unwrap());
        std::fs::write(&config, format!("url = \"{url}\"\nid = \"{id}\"\nkey = \"{key}\"\n"))
            .unwrap();
        let mut command = tokio::process::Command::new(setting("FARHAND_AGENT"));
        command
            .args(["run", "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log(folder.path()));
        let process = Process::spawn(&mut command);
        wait_until_connected(workspace, id, true).await;
        Self { process, folder }
    }
}

fn log(folder: &Path) -> Stdio {
    std::fs::File::create(folder.join("agent.log")).unwrap().into()
}

/// Waits until `is_connected` of a server has a value.
pub async fn wait_until_connected(workspace: &Workspace, server: &str, connected: bool) {
    let path = format!("/api/servers/servers/{server}/");
    eventually("the server's connection", || async {
        (workspace.admin.get(&path).await.expect(200)["is_connected"] == connected).then_some(())
    })
    .await;
}

/// The name of the account that runs this process.
pub fn own_account() -> String {
    let id = std::process::Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(id.stdout).unwrap().trim().to_owned()
}
