//! Helpers for tests with the real agent. A simulated service records the agent's calls, and tests
//! choose its responses.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use uuid::Uuid;

/// The time limit of every wait. It is much longer than any step takes.
pub const PATIENCE: Duration = Duration::from_secs(25);
/// The id of the agent's server.
pub const SERVER: &str = "01936d3e-7a00-7000-8000-000000000001";
/// The agent's key.
pub const KEY: &str = "kEyKeYkEyKeYkEyKeY";

pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// A call of the agent.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The method and the path.
    pub call: String,
    /// The headers, by name in lower case.
    pub headers: HashMap<String, String>,
    /// The JSON body, or null if the body is not JSON.
    pub body: Value,
}

/// Responses that replace default responses. Each is used once, in order.
type Responses = Arc<Mutex<Vec<Response>>>;

/// A response that replaces a default response.
struct Response {
    /// The response is for paths with this end. `/ws/` also stands for the path of the WebSocket.
    suffix: &'static str,
    status: u16,
    body: String,
    /// Called before the response is sent.
    before: Option<Box<dyn FnOnce() + Send>>,
}

impl Response {
    /// Whether this response is for a path.
    fn matches(&self, path: &str) -> bool {
        path.ends_with(self.suffix) || (self.suffix == "/ws/" && path.starts_with(self.suffix))
    }
}

pub struct Service {
    pub port: u16,
    pub url: String,
    /// Additional lines for the agent's config file.
    pub settings: &'static str,
    /// Whether each agent gets its own copy of the program, so that a test can replace it.
    pub copies: bool,
    certificate: Option<String>,
    calls: watch::Sender<Vec<Seen>>,
    responses: Responses,
    sockets: mpsc::UnboundedReceiver<Socket>,
}

impl Service {
    /// Starts a service. `commissioned` says whether the agent's server is commissioned.
    pub async fn start(commissioned: bool) -> Self {
        Self::listen(commissioned, None).await
    }

    /// Starts a service with https, for `localhost`.
    pub async fn start_tls() -> Self {
        let generated = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(generated.signing_key.serialize_der())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![generated.cert.der().clone()], key)
            .unwrap();
        Self::listen(true, Some((TlsAcceptor::from(Arc::new(config)), generated.cert.pem()))).await
    }

    async fn listen(commissioned: bool, tls: Option<(TlsAcceptor, String)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let calls = watch::Sender::new(Vec::new());
        let responses = Responses::default();
        let (to_sockets, sockets) = mpsc::unbounded_channel();
        let (acceptor, certificate) = tls.unzip();
        let scheme = if acceptor.is_some() { "https" } else { "http" };
        let handler = Handler {
            commissioned,
            calls: calls.clone(),
            responses: responses.clone(),
            sockets: to_sockets,
        };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (handler, acceptor) = (handler.clone(), acceptor.clone());
                tokio::spawn(async move {
                    let stream: Box<dyn Connection> = match acceptor {
                        Some(acceptor) => match acceptor.accept(stream).await {
                            Ok(stream) => Box::new(stream),
                            Err(_) => return,
                        },
                        None => Box::new(stream),
                    };
                    handler.serve(stream).await;
                });
            }
        });
        let url = format!("{scheme}://localhost:{port}");
        Self { port, url, settings: "", copies: false, certificate, calls, responses, sockets }
    }

    /// Sets the statuses of the next calls whose paths end with `suffix`.
    pub fn respond(&self, suffix: &'static str, statuses: &[u16]) {
        let response =
            |status: &u16| Response { suffix, status: *status, body: String::new(), before: None };
        self.responses.lock().unwrap().extend(statuses.iter().map(response));
    }

    /// Sets the status and the JSON of the next call whose path ends with `suffix`. Calls `before`
    /// before it sends the response.
    pub fn respond_with(
        &self,
        suffix: &'static str,
        status: u16,
        body: &Value,
        before: impl FnOnce() + Send + 'static,
    ) {
        let response =
            Response { suffix, status, body: body.to_string(), before: Some(Box::new(before)) };
        self.responses.lock().unwrap().push(response);
    }

    /// Restores the default responses.
    pub fn clear_responses(&self) {
        self.responses.lock().unwrap().clear();
    }

    /// All calls so far.
    pub fn calls(&self) -> Vec<Seen> {
        self.calls.borrow().clone()
    }

    /// The reports of a command so far. Each is `ack`, `chunk` or `fin`, with its body.
    pub fn reports(&self, id: Uuid) -> Vec<(String, Value)> {
        reports(&self.calls.borrow(), id)
    }

    /// Waits until the calls so far satisfy a condition.
    pub async fn until(&self, condition: impl Fn(&[Seen]) -> bool) {
        let mut calls = self.calls.subscribe();
        if timeout(PATIENCE, calls.wait_for(|calls| condition(calls))).await.is_err() {
            panic!("the expected calls did not come: {:#?}", self.calls());
        }
    }

    /// Waits for the fin of a command.
    pub async fn fin(&self, id: Uuid) -> Value {
        self.until(|calls| reports(calls, id).iter().any(|(kind, _)| kind == "fin")).await;
        self.reports(id).into_iter().find(|(kind, _)| kind == "fin").unwrap().1
    }

    /// Waits for the ack of a command.
    pub async fn acked(&self, id: Uuid) {
        self.until(|calls| reports(calls, id).iter().any(|(kind, _)| kind == "ack")).await;
    }

    /// Waits until a command has written `text`.
    pub async fn wrote(&self, id: Uuid, text: &str) {
        self.until(|calls| written(calls, id).contains(text)).await;
    }

    /// Waits for the first line that a command writes.
    pub async fn first_line(&self, id: Uuid) -> String {
        self.wrote(id, "\n").await;
        written(&self.calls(), id).lines().next().unwrap().to_owned()
    }

    /// The fins of a command so far.
    pub fn fins(&self, id: Uuid) -> Vec<Value> {
        let fins = self.reports(id).into_iter().filter(|(kind, _)| kind == "fin");
        fins.map(|(_, body)| body).collect()
    }

    /// Waits for the agent's next WebSocket.
    pub async fn socket(&mut self) -> Socket {
        timeout(PATIENCE, self.sockets.recv()).await.expect("the agent does not connect").unwrap()
    }

    pub fn agent(&self) -> Agent {
        self.agent_with(&[], None)
    }

    /// Starts an agent with additional arguments, as `account` if it is given.
    pub fn agent_with(&self, arguments: &[&str], account: Option<&User>) -> Agent {
        let directory = tempfile::tempdir().unwrap();
        let (config, log) = (directory.path().join("agent.toml"), directory.path().join("log"));
        let (syslog, records) = system_log(directory.path());
        let content =
            format!("url = {:?}\nid = {SERVER:?}\nkey = {KEY:?}\nsyslog = {syslog:?}\n", self.url);
        write_config(&config, &format!("{content}{}\n", self.settings));
        let mut program = PathBuf::from(env!("CARGO_BIN_EXE_farhand-agent"));
        // The account may have no permission for the build folder.
        if account.is_some() || self.copies {
            let copy = directory.path().join("farhand-agent");
            copy_program(&program, &copy);
            program = copy;
        }
        if let Some(account) = account {
            fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
            chown(&config, Some(account.uid.as_raw()), Some(account.gid.as_raw())).unwrap();
        }
        let mut command = Command::new(program);
        command.arg("run").arg("--config").arg(&config).args(arguments);
        // A variable that the agent must not pass to commands.
        command
            .env("FARHAND_TEST_LEAK", "leaked")
            .env_remove("FARHAND_AGENT_KEY")
            .env_remove("STATE_DIRECTORY");
        if let Some(certificate) = &self.certificate {
            let path = directory.path().join("roots.pem");
            fs::write(&path, certificate).unwrap();
            command.env("SSL_CERT_FILE", path);
        }
        if let Some(account) = account {
            command.uid(account.uid.as_raw()).gid(account.gid.as_raw());
        }
        command.stdin(Stdio::null()).stderr(fs::File::create(&log).unwrap());
        Agent { process: command.spawn().unwrap(), command, log, records, directory }
    }
}

/// Opens a simulated system log in a folder. Returns the path of its socket, and the list to which
/// it adds records.
fn system_log(folder: &std::path::Path) -> (PathBuf, Arc<Mutex<Vec<String>>>) {
    let socket = folder.join("syslog");
    let log = UnixDatagram::bind(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).unwrap();
    let records = Arc::<Mutex<Vec<String>>>::default();
    let received = records.clone();
    // This thread runs until the test process exits.
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(length) = log.recv(&mut bytes) {
            received.lock().unwrap().push(String::from_utf8_lossy(&bytes[..length]).into_owned());
        }
    });
    (socket, records)
}

/// Copies a program with a separate process. If this process wrote the file, a child that another
/// test forks could hold the file open for writing. Then the file could not be executed.
pub fn copy_program(from: &std::path::Path, to: &std::path::Path) {
    assert!(
        Command::new("install").args(["-m", "755"]).args([from, to]).status().unwrap().success()
    );
}

/// Writes a new file that only its owner can access.
fn write_config(path: &std::path::Path, content: &str) {
    use std::io::Write;
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).unwrap();
    file.write_all(content.as_bytes()).unwrap();
}

fn reports(calls: &[Seen], id: Uuid) -> Vec<(String, Value)> {
    let prefix = format!("POST /api/events/commands/{id}/");
    let reports =
        calls.iter().filter_map(|seen| Some((seen.call.strip_prefix(&prefix)?, &seen.body)));
    reports.map(|(kind, body)| (kind.trim_end_matches('/').to_owned(), body.clone())).collect()
}

/// The output in the chunks of a command so far.
fn written(calls: &[Seen], id: Uuid) -> String {
    let chunks = reports(calls, id).into_iter().filter(|(kind, _)| kind == "chunk");
    chunks.map(|(_, body)| body["content"].as_str().unwrap().to_owned()).collect()
}

#[derive(Clone)]
struct Handler {
    commissioned: bool,
    calls: watch::Sender<Vec<Seen>>,
    responses: Responses,
    sockets: mpsc::UnboundedSender<Socket>,
}

impl Handler {
    /// Serves one connection until it ends or becomes a WebSocket.
    async fn serve(self, stream: Box<dyn Connection>) {
        let mut stream = BufReader::new(stream);
        while let Some(seen) = read_call(&mut stream).await {
            let path = seen.call.split(' ').nth(1).unwrap().to_owned();
            let has_response =
                self.responses.lock().unwrap().iter().any(|response| response.matches(&path));
            if path.starts_with("/ws/") && seen.headers.contains_key("upgrade") && !has_response {
                let accept = derive_accept_key(seen.headers["sec-websocket-key"].as_bytes());
                let response = format!(
                    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
                );
                stream.write_all(response.as_bytes()).await.unwrap();
                let socket =
                    WebSocketStream::from_raw_socket(stream.into_inner(), Role::Server, None).await;
                self.calls.send_modify(|calls| calls.push(seen));
                let _ = self.sockets.send(Socket(socket));
                return;
            }
            let found = {
                let mut responses = self.responses.lock().unwrap();
                let found = responses.iter().position(|response| response.matches(&path));
                found.map(|index| responses.remove(index))
            };
            let (status, body, before) = found
                .map_or((200, None, None), |found| (found.status, Some(found.body), found.before));
            if let Some(before) = before {
                before();
            }
            let body = body.unwrap_or_else(|| match path.as_str() {
                "/api/servers/servers/-/" => {
                    json!({"id": SERVER, "name": "web-1", "commissioned": self.commissioned})
                        .to_string()
                }
                "/api/metrics/config/" => json!([{"type": "status", "interval": 1}]).to_string(),
                "/api/servers/servers/-/sync-check/" => {
                    json!({"sync_required": ["info", "os"]}).to_string()
                }
                _ => "{}".to_owned(),
            });
            let response =
                format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            if stream.write_all(response.as_bytes()).await.is_err() {
                return;
            }
            self.calls.send_modify(|calls| calls.push(seen));
        }
    }
}

/// Reads a request. Returns `None` if the connection has ended.
async fn read_call(stream: &mut BufReader<Box<dyn Connection>>) -> Option<Seen> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let call = lines.first()?.strip_suffix(" HTTP/1.1")?.to_owned();
    let headers: HashMap<_, _> = lines[1..]
        .iter()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Seen { call, headers, body: serde_json::from_slice(&body).unwrap_or_default() })
}

/// The service's side of a WebSocket.
pub struct Socket(WebSocketStream<Box<dyn Connection>>);

impl Socket {
    /// Sends a message.
    pub async fn send(&mut self, message: Value) {
        self.0.send(Message::text(message.to_string())).await.unwrap();
    }

    /// Sends a command for the account that the tests run as. Returns its id.
    pub async fn command(&mut self, line: &str) -> Uuid {
        self.command_as(&own_name(), line).await
    }

    /// Sends a command for an account. Returns its id.
    pub async fn command_as(&mut self, user: &str, line: &str) -> Uuid {
        let id = next_id();
        self.command_with(id, user, line).await;
        id
    }

    /// Sends a command with a given id, which may be the id of an earlier command.
    pub async fn command_with(&mut self, id: Uuid, user: &str, line: &str) {
        self.order(id, user, line, None).await;
    }

    /// Sends a command with a timeout in seconds. Returns its id.
    pub async fn command_within(&mut self, timeout: i64, line: &str) -> Uuid {
        let id = next_id();
        self.order(id, &own_name(), line, Some(timeout)).await;
        id
    }

    /// Sends a built-in. Returns its id.
    pub async fn builtin(&mut self, line: &str) -> Uuid {
        let id = next_id();
        self.order_in("internal", id, &own_name(), line, None).await;
        id
    }

    async fn order(&mut self, id: Uuid, user: &str, line: &str, timeout: Option<i64>) {
        self.order_in("system", id, user, line, timeout).await;
    }

    async fn order_in(
        &mut self,
        shell: &str,
        id: Uuid,
        user: &str,
        line: &str,
        timeout: Option<i64>,
    ) {
        let command = json!({
            "id": id, "shell": shell, "line": line, "user": user, "group": "", "requested_by": "alice", "env": null, "allow_sh": true, "data": null,
            "timeout": timeout,
        });
        self.send(json!({"query": "command", "command": command})).await;
    }

    /// Sends a kill.
    pub async fn kill(&mut self, id: Uuid) {
        self.send(json!({"query": "kill", "id": id})).await;
    }

    /// Waits for the next message. Returns a text message as JSON, or the code of a close frame as
    /// an error.
    pub async fn next(&mut self) -> Result<Value, u16> {
        loop {
            match timeout(PATIENCE, self.0.next()).await.expect("no message came") {
                Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).unwrap()),
                Some(Ok(Message::Close(frame))) => {
                    // This read also sends the service's close frame.
                    let _ = timeout(PATIENCE, self.0.next()).await;
                    return Err(frame.map_or(0, |frame| frame.code.into()));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(0),
            }
        }
    }
}

static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

/// Returns a new command id.
fn next_id() -> Uuid {
    Uuid::from_u64_pair(0x7a00, NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
}

/// The account that the tests run as.
pub fn own_name() -> String {
    User::from_uid(geteuid()).unwrap().unwrap().name
}

/// Polls a condition that does not depend on calls.
pub async fn eventually(condition: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "the condition did not become true");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Whether a process runs. A zombie does not run.
pub fn is_running(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// A running agent. Dropping it kills the process.
pub struct Agent {
    process: Child,
    command: Command,
    log: PathBuf,
    records: Arc<Mutex<Vec<String>>>,
    directory: TempDir,
}

impl Agent {
    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id() as i32), signal).unwrap();
    }

    /// Kills the agent's process and starts the agent again with the same files.
    pub fn kill_and_restart(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.restart();
    }

    /// Starts the agent again after it has exited.
    pub fn restart(&mut self) {
        self.process = self.command.spawn().unwrap();
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The path of the agent's config file.
    pub fn config(&self) -> PathBuf {
        self.directory.path().join("agent.toml")
    }

    /// The path of the agent's copy of the program.
    pub fn program(&self) -> PathBuf {
        self.directory.path().join("farhand-agent")
    }

    /// The folder of the agent's state.
    pub fn state(&self) -> PathBuf {
        self.directory.path().join("agent.state").join(SERVER)
    }

    pub async fn exit(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "the agent does not exit: {}", self.log());
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// The agent's records in the system log so far.
    pub fn records(&self) -> Vec<String> {
        self.records.lock().unwrap().clone()
    }

    /// The agent's log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the agent's log:\n{}", self.log());
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
