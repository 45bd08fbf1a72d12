//! An agent that behaves on the wire like an unmodified Alpamon 2.x (agent-protocol), and records
//! what it sees. Tests set what its commands do, and how fast its clock runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use reqwest::{Client, Method, redirect};
use serde_json::{Map, Value, json};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::agents::credential;
use crate::client::{Api, Reply, SentRequest, Workspace};
use crate::{PATIENCE, eventually_within};

/// The WebSocket on which the agent receives commands.
pub const BACKHAUL: &str = "/ws/servers/backhaul/";
/// The other WebSocket, on which the agent sends nothing.
pub const CONTROL: &str = "/ws/servers/control/";
/// The path of the agent's own server.
const OWN_SERVER: &str = "/api/servers/servers/-/";
/// The service may lack this path (agent-protocol 2 and 5).
const ACCESS_POLICY: &str = "/api/servers/servers/-/access-policy/";

/// How many commands run concurrently.
const MAX_RUNNING: usize = 20;
/// How many more commands the agent queues.
const MAX_QUEUED: usize = 200;
/// How many tasks send reports concurrently.
const REPORTERS: usize = 4;
/// How often a failed report is retried before it is dropped.
const MAX_RETRIES: u32 = 5;
/// The maximum size of a chunk, in bytes.
const CHUNK_BYTES: usize = 4 * 1024;
/// The maximum size of a result, in bytes.
const RESULT_BYTES: usize = 1 << 20;
/// How long the agent waits for the service's close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Priorities of reports. Lower numbers are sent first.
mod priority {
    /// Acks and chunks of commands, and the event at the start of the agent.
    pub const COMMAND: u32 = 10;
    pub const FIN: u32 = 11;
    /// Facts, heartbeats and measurements.
    pub const FACTS: u32 = 80;
}

/// What the agent reports about its host.
#[derive(Clone, Debug)]
pub struct Host {
    /// The agent's own version.
    pub version: String,
    /// The load average.
    pub load: f64,
    /// The number of processors.
    pub cores: u32,
    /// Memory in bytes.
    pub memory: u64,
    /// The version of Ubuntu.
    pub os_version: String,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            version: "2.1.0".into(),
            load: 0.25,
            cores: 4,
            memory: 8 << 30,
            os_version: "24.04".into(),
        }
    }
}

impl Host {
    /// The object for the category `info`, `os` or `time`.
    fn single(&self, category: &str) -> Value {
        match category {
            "info" => json!({
                "uuid": "6f3c1f2e-0c52-4f0a-9d3a-1f6c3c0d9a11", "cpu_type": "x86_64", "cpu_brand": "Some CPU",
                "cpu_physical_cores": self.cores, "cpu_logical_cores": self.cores, "physical_memory": self.memory,
                "hardware_vendor": "Some", "hardware_model": "1", "hardware_serial": "", "computer_name": "web",
                "hostname": "web", "local_hostname": "web",
            }),
            "os" => json!({
                "name": "Ubuntu", "version": self.os_version, "major": 24, "minor": 4, "patch": 0, "platform": "ubuntu",
                "platform_like": "debian",
            }),
            _ => {
                json!({"datetime": "2026-11-21T12:00:00Z", "timezone": "UTC", "uptime": 86_400, "boot_time": 1_700_000_000})
            }
        }
    }

    /// The list for any other category.
    fn list(category: &str) -> Value {
        match category {
            "users" => {
                json!([{"username": "root", "uid": 0, "gid": 0, "directory": "/root", "shell": "/bin/bash"}])
            }
            "groups" => json!([{"gid": 0, "groupname": "root"}]),
            "interfaces" => {
                json!([{"name": "eth0", "mac": "02:00:00:00:00:01", "flags": 19, "mtu": 1500}])
            }
            "addresses" => {
                json!([{"address": "192.0.2.7", "broadcast": "192.0.2.255", "mask": "255.255.255.0"}])
            }
            "disks" => json!([{"name": "sda", "serial_number": "", "label": ""}]),
            _ => {
                json!([{"name": "/dev/sda1", "mount_points": ["/"], "disk_name": "sda", "fs_type": "ext4"}])
            }
        }
    }
}

/// Categories with one object.
const SINGLE: [&str; 3] = ["info", "os", "time"];
/// Categories with a list.
const LISTS: [&str; 6] = ["users", "groups", "interfaces", "addresses", "disks", "partitions"];

/// What a simulated command does.
#[derive(Clone, Debug, Default)]
pub struct CommandScript {
    /// Its output, in pieces with a short pause between them.
    pub pieces: Vec<String>,
    pub exit_code: i64,
    /// If true, the command ends only after [`Alpamon::release`].
    pub is_held: bool,
}

impl CommandScript {
    /// A command that writes some pieces and succeeds.
    pub fn writing(pieces: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { pieces: pieces.into_iter().map(Into::into).collect(), ..Self::default() }
    }
}

type ScriptChooser = Box<dyn Fn(&Value) -> CommandScript + Send + Sync>;

/// How a simulated agent behaves. By default, each command writes its own line.
pub struct AgentBehaviour {
    /// The real time that one second of the agent's clock takes.
    pub second: Duration,
    /// Timeout for the response to a report. Alpamon waits 5 s, but a loaded machine may need
    /// longer.
    pub answer_within: Duration,
    /// After this time without a data message, the agent closes a socket.
    pub read_deadline: Duration,
    /// Simulates an older version: it reports no exit codes, and sends a ping after each message.
    pub is_older: bool,
    pub host: Host,
    /// Decides what a command does, from the message that delivered it.
    pub runs: ScriptChooser,
}

impl Default for AgentBehaviour {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self {
            second,
            answer_within: PATIENCE,
            read_deadline: second * 35 * 60,
            is_older: false,
            host: Host::default(),
            runs: Box::new(|order| {
                CommandScript::writing([format!(
                    "{}\n",
                    order["line"].as_str().unwrap_or_default()
                )])
            }),
        }
    }
}

/// An HTTP call that the agent made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallRecord {
    pub method: &'static str,
    pub path: String,
    /// The status, or `None` without a response.
    pub status: Option<u16>,
    /// How many attempts preceded this one.
    pub retry: u32,
}

impl CallRecord {
    /// True if the agent considers the call successful.
    pub fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status / 100 == 2)
    }

    /// A redirect is harmful: it turns a POST into a GET.
    fn is_redirect(&self) -> bool {
        self.status.is_some_and(|status| status / 100 == 3)
    }
}

/// How a socket ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketEnd {
    /// The service closed it, with a close code.
    Closed(Option<u16>),
    /// The connection was lost.
    Lost,
    /// No data message arrived before the read deadline.
    Silent,
    /// The service sent `reconnect`.
    Reconnect,
    /// The service sent `quit`.
    Quit,
    /// The agent closed it.
    Left,
}

/// A socket that the agent opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SocketRecord {
    pub path: &'static str,
    /// `None` while the socket is open.
    pub end: Option<SocketEnd>,
    /// How many pings of the service arrived.
    pub pings: u64,
    /// How many of the agent's own protocol-level pings were answered.
    pub pongs: u64,
}

/// What the agent saw.
#[derive(Clone, Default, Debug)]
pub struct AgentLog {
    /// The field `commissioned` of the check-in response.
    pub commissioned: Option<bool>,
    /// HTTP calls, in the order of their responses.
    pub calls: Vec<CallRecord>,
    /// The paths of reports that were dropped after all retries.
    pub dropped: Vec<String>,
    /// Sockets, in the order in which they were opened.
    pub sockets: Vec<SocketRecord>,
    /// Failed connection attempts, by status.
    pub refused: Vec<Option<u16>>,
    /// The delivered commands, in order.
    pub delivered: Vec<Value>,
    /// The ids of commands that were delivered more than once.
    pub repeated: Vec<String>,
    /// Messages that the agent could not understand.
    pub warnings: Vec<String>,
}

impl AgentLog {
    /// Everything that an agent's log would report as unusual.
    pub fn complaints(&self) -> Vec<String> {
        let may_be_missing =
            |call: &CallRecord| call.path == ACCESS_POLICY && call.status == Some(404);
        let calls = self
            .calls
            .iter()
            .filter(|call| !(call.is_success() && call.retry == 0 || may_be_missing(call)));
        let ended = |socket: &&SocketRecord| !matches!(socket.end, None | Some(SocketEnd::Left));
        calls
            .map(|call| format!("{call:?}"))
            .chain(self.dropped.iter().map(|path| format!("dropped: {path}")))
            .chain(self.sockets.iter().filter(ended).map(|socket| format!("{socket:?}")))
            .chain(self.refused.iter().map(|status| format!("refused: {status:?}")))
            .chain(self.repeated.iter().map(|id| format!("repeated: {id}")))
            .chain(self.warnings.iter().map(|text| format!("not understood: {text}")))
            .collect()
    }

    /// Calls that were redirected.
    pub fn redirects(&self) -> Vec<&CallRecord> {
        self.calls.iter().filter(|call| call.is_redirect()).collect()
    }

    /// The sockets of a path.
    pub fn sockets_of<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a SocketRecord> {
        self.sockets.iter().filter(move |socket| socket.path == path)
    }

    pub fn is_open(&self, path: &str) -> bool {
        self.sockets_of(path).any(|socket| socket.end.is_none())
    }

    /// The calls with a method and a path.
    pub fn calls_of<'a>(
        &'a self,
        method: &'a str,
        path: &'a str,
    ) -> impl Iterator<Item = &'a CallRecord> {
        self.calls.iter().filter(move |call| call.method == method && call.path == path)
    }

    /// The ids of the delivered commands.
    pub fn ids(&self) -> Vec<String> {
        self.delivered
            .iter()
            .map(|order| order["id"].as_str().unwrap_or_default().to_owned())
            .collect()
    }
}

/// A report in the queue.
struct Report {
    method: &'static str,
    path: String,
    body: Option<String>,
    retry: u32,
}

/// Queued reports, keyed by priority, due time and sequence number.
type ReportQueue = BTreeMap<(u32, Instant, u64), Report>;

struct Inner {
    api: Api,
    client: Client,
    behaviour: AgentBehaviour,
    log: Mutex<AgentLog>,
    waiting: Mutex<ReportQueue>,
    report_queued: Notify,
    counts: Mutex<Counts>,
    room: Semaphore,
    released: watch::Sender<bool>,
    leaving: watch::Sender<bool>,
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Default)]
struct Counts {
    reports: u64,
    reports_in_progress: usize,
    commands: usize,
}

/// A running agent. Dropping it ends the agent like a killed process.
pub struct Alpamon(Arc<Inner>);

type Socket = WebSocketStream<TcpStream>;

impl Alpamon {
    /// Starts an agent for a server whose `key` is known, and returns immediately.
    pub fn start(workspace: &Workspace, server: &Value, behaviour: AgentBehaviour) -> Self {
        let api = workspace.anonymous.with_authorization(&credential(server));
        // The service closes idle connections after a while. Never reuse one that is idle for
        // longer than a second.
        let client = Client::builder().redirect(redirect::Policy::none()).no_proxy();
        let client = client.pool_idle_timeout(Duration::from_secs(1)).build().unwrap();
        let inner = Arc::new(Inner {
            api,
            client,
            behaviour,
            log: Mutex::default(),
            waiting: Mutex::default(),
            report_queued: Notify::new(),
            counts: Mutex::default(),
            room: Semaphore::new(MAX_RUNNING),
            released: watch::Sender::new(false),
            leaving: watch::Sender::new(false),
            tasks: Mutex::default(),
        });
        inner.spawn(inner.clone().start_up());
        Self(inner)
    }

    /// Starts an agent, and waits until both its sockets are open.
    pub async fn connect(workspace: &Workspace, server: &Value, behaviour: AgentBehaviour) -> Self {
        let agent = Self::start(workspace, server, behaviour);
        agent.until("both sockets", |log| log.is_open(BACKHAUL) && log.is_open(CONTROL)).await;
        agent
    }

    /// Registers a server as `alpamon register` does, with the key of a registration token.
    pub async fn register(workspace: &Workspace, key: &str, name: &str) -> Reply {
        let api = workspace.anonymous.with_token(key);
        api.post("/api/servers/servers/register/", &json!({"name": name, "platform": "debian"}))
            .await
    }

    /// Unregisters a server as `alpamon unregister` does.
    pub async fn unregister(workspace: &Workspace, server: &Value) -> Reply {
        let path = format!("/api/servers/servers/{}/unregister/", server["id"].as_str().unwrap());
        workspace.anonymous.with_authorization(&credential(server)).delete(&path).await
    }

    /// A client with the agent's credential.
    pub fn api(&self) -> &Api {
        &self.0.api
    }

    /// A copy of what the agent has seen so far.
    pub fn log(&self) -> AgentLog {
        self.0.log().clone()
    }

    /// Waits until the record fulfils a condition.
    pub async fn until(&self, what: &str, is_so: impl Fn(&AgentLog) -> bool) {
        self.until_within(PATIENCE, what, is_so).await;
    }

    /// Like [`Alpamon::until`], with another time limit.
    pub async fn until_within(
        &self,
        patience: Duration,
        what: &str,
        is_so: impl Fn(&AgentLog) -> bool,
    ) {
        eventually_within(patience, what, || async { is_so(&self.0.log()).then_some(()) }).await;
    }

    /// Waits until no report is queued and no command runs.
    pub async fn until_idle(&self, patience: Duration) {
        eventually_within(patience, "all reports to be sent", || async {
            let waiting = self.0.waiting.lock().unwrap();
            let counts = self.0.counts.lock().unwrap();
            (waiting.is_empty() && counts.reports_in_progress == 0 && counts.commands == 0)
                .then_some(())
        })
        .await;
    }

    /// Queues a report.
    pub fn report(&self, method: &'static str, path: &str, body: Option<&Value>) {
        self.0.report(priority::FACTS, method, path.to_owned(), body.map(Value::to_string));
    }

    /// Lets the held commands end.
    pub fn release(&self) {
        self.0.released.send_replace(true);
    }

    /// Ends the agent like a stopped service: it closes its sockets with 1000.
    pub async fn leave(self) {
        self.0.leaving.send_replace(true);
        let mut tasks = std::mem::take(&mut *self.0.tasks.lock().unwrap());
        timeout(PATIENCE, async { while tasks.join_next().await.is_some() {} })
            .await
            .expect("the agent did not end");
    }
}

impl Drop for Alpamon {
    fn drop(&mut self) {
        // The tasks own `Inner`, which owns the tasks: break the cycle.
        self.0.tasks.lock().unwrap().abort_all();
    }
}

impl Inner {
    fn log(&self) -> MutexGuard<'_, AgentLog> {
        self.log.lock().unwrap()
    }

    /// Runs a task until the agent leaves.
    fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let mut leaving = self.leaving.subscribe();
        self.tasks.lock().unwrap().spawn(async move {
            tokio::select! {
                () = work => {}
                () = is_set(&mut leaving) => {}
            }
        });
    }

    fn seconds(&self, seconds: u32) -> Duration {
        self.behaviour.second * seconds
    }

    // HTTP.

    /// Makes a call, records it, and returns the response body.
    async fn call(
        &self,
        method: &'static str,
        path: &str,
        body: Option<String>,
        retry: u32,
    ) -> (CallRecord, String) {
        let verb = Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self
            .client
            .request(verb, format!("{}{path}", self.api.url))
            .header("Host", &self.api.host);
        request =
            request.header("Authorization", self.api.authorization.as_deref().unwrap_or_default());
        request = request.header("User-Agent", format!("alpamon/{}", self.behaviour.host.version));
        if matches!(method, "POST" | "PUT" | "PATCH") {
            request = request.header("Content-Type", "application/json");
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        let request = request.build().unwrap();
        let sent = SentRequest::new(&request);
        let answer = async {
            let response = self.client.execute(request).await.ok()?;
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            let text = response.text().await.ok()?;
            sent.check(status, &headers, Some(&text));
            Some((status, text))
        };
        let answer = timeout(self.behaviour.answer_within, answer).await.ok().flatten();
        let (status, text) =
            answer.map_or((None, String::new()), |(status, text)| (Some(status), text));
        let called = CallRecord { method, path: path.to_owned(), status, retry };
        self.log().calls.push(called.clone());
        (called, text)
    }

    /// Gets JSON. `None` if the call fails or the body is not JSON.
    async fn get(&self, path: &str) -> Option<Value> {
        let (called, text) = self.call("GET", path, None, 0).await;
        if !called.is_success() {
            return None;
        }
        let read = serde_json::from_str(&text);
        if read.is_err() {
            self.log().warnings.push(format!("{path}: {text}"));
        }
        read.ok()
    }

    /// Queues a report.
    fn report(&self, priority: u32, method: &'static str, path: String, body: Option<String>) {
        let number = {
            let mut counts = self.counts.lock().unwrap();
            counts.reports += 1;
            counts.reports
        };
        let report = Report { method, path, body, retry: 0 };
        self.waiting.lock().unwrap().insert((priority, Instant::now(), number), report);
        self.report_queued.notify_one();
    }

    /// One of the reporting tasks. It takes the report with the highest priority. If that report is
    /// not due yet, the task puts it back and sleeps. As in Alpamon, due reports of lower priority
    /// then wait too.
    async fn report_forever(self: Arc<Self>) {
        loop {
            let next = {
                let mut waiting = self.waiting.lock().unwrap();
                let next = waiting.pop_first();
                self.counts.lock().unwrap().reports_in_progress += usize::from(next.is_some());
                next
            };
            let Some(((priority, due, number), mut report)) = next else {
                self.report_queued.notified().await;
                continue;
            };
            if due > Instant::now() {
                self.waiting.lock().unwrap().insert((priority, due, number), report);
                self.counts.lock().unwrap().reports_in_progress -= 1;
                sleep(self.seconds(1)).await;
                continue;
            }
            let (called, _) =
                self.call(report.method, &report.path, report.body.clone(), report.retry).await;
            if !called.is_success() && report.retry < MAX_RETRIES {
                let pause = self.seconds(1 << report.retry);
                report.retry += 1;
                self.waiting.lock().unwrap().insert((priority, due + pause, number), report);
            } else if !called.is_success() {
                self.log().dropped.push(report.path);
            }
            self.counts.lock().unwrap().reports_in_progress -= 1;
        }
    }

    // Startup.

    async fn start_up(self: Arc<Self>) {
        let commissioned = self.check_in().await;
        for _ in 0..REPORTERS {
            self.spawn(self.clone().report_forever());
        }
        let version = &self.behaviour.host.version;
        self.post_event(
            "started",
            &format!("alpamon {version} started running."),
            priority::COMMAND,
        );
        self.spawn(self.clone().measure());
        for path in [BACKHAUL, CONTROL] {
            let inner = self.clone();
            // This task ends by itself when the agent leaves, because it has to close its socket
            // first.
            self.tasks.lock().unwrap().spawn(inner.keep_open(path));
        }
        if commissioned {
            sleep(self.seconds(5)).await;
            self.sync().await;
        } else {
            self.commit();
        }
    }

    /// Requests the agent's own server until that succeeds.
    async fn check_in(&self) -> bool {
        let mut pause = 5;
        loop {
            let own = self.get(OWN_SERVER).await;
            if let Some(commissioned) = own.and_then(|own| own["commissioned"].as_bool()) {
                self.log().commissioned = Some(commissioned);
                return commissioned;
            }
            pause = (pause * 2).min(300);
            sleep(self.seconds(pause)).await;
        }
    }

    fn post_event(&self, record: &str, description: &str, priority: u32) {
        let event = json!({"reporter": "alpamon", "record": record, "description": description});
        self.report(priority, "POST", "/api/events/events/".to_owned(), Some(event.to_string()));
    }

    /// Reports everything about a host that is new to the service.
    fn commit(&self) {
        let host = &self.behaviour.host;
        let mut facts = json!({"version": host.version, "load": host.load});
        for category in SINGLE {
            facts[category] = host.single(category);
        }
        for category in LISTS {
            facts[category] = Host::list(category);
        }
        self.report(
            priority::FACTS,
            "PUT",
            format!("{OWN_SERVER}commit/"),
            Some(facts.to_string()),
        );
        let description = format!("Committed system information. version: {}", host.version);
        self.post_event("committed", &description, priority::FACTS);
    }

    /// Reports the data that the service lacks about a host that it already knows.
    async fn sync(&self) {
        let host = &self.behaviour.host;
        let facts = json!({"version": host.version, "load": host.load});
        self.report(
            priority::FACTS,
            "PATCH",
            format!("{OWN_SERVER}sync/"),
            Some(facts.to_string()),
        );
        let hashes: Map<String, Value> = SINGLE
            .iter()
            .chain(&LISTS)
            .map(|category| ((*category).to_owned(), json!("sha256:0")))
            .collect();
        let body = json!({"hashes": hashes}).to_string();
        let (called, text) =
            self.call("POST", &format!("{OWN_SERVER}sync-check/"), Some(body), 0).await;
        let answer = serde_json::from_str::<Value>(&text).ok().filter(|_| called.is_success());
        let categories = answer.and_then(|answer| {
            serde_json::from_value::<Vec<String>>(answer["sync_required"].clone()).ok()
        });
        // An older service does not list the missing categories.
        let categories = categories.unwrap_or_else(|| {
            SINGLE.iter().chain(&LISTS).map(|name| (*name).to_owned()).collect()
        });
        for category in categories {
            self.sync_category(&category).await;
        }
        self.get(ACCESS_POLICY).await;
    }

    /// Compares a category with what the service has, and reports a difference.
    async fn sync_category(&self, category: &str) {
        let path = format!("/api/proc/{category}/");
        let Some(remote) = self.get(&format!("{path}-/sync/")).await else { return };
        if SINGLE.contains(&category) {
            let current = self.behaviour.host.single(category);
            if !remote.is_object() {
                self.log().warnings.push(format!("{path}: {remote}"));
            } else if current != remote {
                // If the service sent no id, the id in the path is empty.
                let id = remote["id"].as_str().unwrap_or_default();
                self.report(
                    priority::FACTS,
                    "PATCH",
                    format!("{path}{id}/"),
                    Some(current.to_string()),
                );
            }
        } else if remote == json!([]) {
            self.report(priority::FACTS, "POST", path, Some(Host::list(category).to_string()));
        } else {
            self.log().warnings.push(format!("{path}: {remote}"));
        }
    }

    /// Requests what to measure, and sends heartbeats.
    async fn measure(self: Arc<Self>) {
        let Some(config) = self.get("/api/metrics/config/").await else { return };
        let status =
            config.as_array().and_then(|list| list.iter().find(|item| item["type"] == "status"));
        let Some(seconds) =
            status.and_then(|status| u32::try_from(status["interval"].as_u64()?).ok())
        else {
            return;
        };
        loop {
            sleep(self.seconds(seconds)).await;
            self.report(priority::FACTS, "PATCH", format!("{OWN_SERVER}status/"), None);
        }
    }

    // WebSockets.

    /// Keeps a socket open. Reconnects immediately after a lost connection, and with growing pauses
    /// after failed attempts.
    async fn keep_open(self: Arc<Self>, path: &'static str) {
        let mut leaving = self.leaving.subscribe();
        let mut failures = 0;
        loop {
            let pause = match self.dial(path).await {
                Ok(socket) => {
                    failures = 0;
                    let index = {
                        let mut log = self.log();
                        log.sockets.push(SocketRecord { path, end: None, pings: 0, pongs: 0 });
                        log.sockets.len() - 1
                    };
                    let end = self.listen(socket, index, leaving.clone()).await;
                    self.log().sockets[index].end = Some(end);
                    match end {
                        SocketEnd::Left => return,
                        SocketEnd::Quit => {
                            self.leaving.send_replace(true);
                            return;
                        }
                        _ => Duration::ZERO,
                    }
                }
                Err(status) => {
                    self.log().refused.push(status);
                    let seconds = (5 << failures).min(60);
                    failures = (failures + 1).min(4);
                    self.seconds(seconds)
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = is_set(&mut leaving) => return,
            }
        }
    }

    async fn dial(&self, path: &str) -> Result<Socket, Option<u16>> {
        let address = self.api.url.strip_prefix("http://").unwrap();
        let mut request = format!("ws://{address}{path}").into_client_request().unwrap();
        let headers = request.headers_mut();
        headers.insert("Host", self.api.host.parse().unwrap());
        headers.insert("Origin", format!("http://{}", self.api.host).parse().unwrap());
        headers.insert(
            "User-Agent",
            format!("alpamon/{}", self.behaviour.host.version).parse().unwrap(),
        );
        headers.insert(
            "Authorization",
            self.api.authorization.as_deref().unwrap_or_default().parse().unwrap(),
        );
        let dial = async {
            let stream = TcpStream::connect(address).await.map_err(|_| None)?;
            let sent = SentRequest::get(path, request.headers());
            match client_async(request, stream).await {
                Ok((socket, response)) => {
                    sent.check(response.status().as_u16(), response.headers(), None);
                    Ok(socket)
                }
                Err(Error::Http(response)) => {
                    sent.check(response.status().as_u16(), response.headers(), None);
                    Err(Some(response.status().as_u16()))
                }
                Err(_) => Err(None),
            }
        };
        timeout(PATIENCE, dial).await.unwrap_or(Err(None))
    }

    /// Handles messages until the socket ends.
    async fn listen(
        self: &Arc<Self>,
        mut socket: Socket,
        index: usize,
        mut leaving: watch::Receiver<bool>,
    ) -> SocketEnd {
        let path = self.log().sockets[index].path;
        let mut keepalive = interval(self.seconds(30));
        keepalive.tick().await;
        let mut deadline = Instant::now() + self.behaviour.read_deadline;
        let end = loop {
            let message = tokio::select! {
                message = socket.next() => message,
                _ = keepalive.tick() => {
                    // A failed ping is ignored: the read deadline notices a dead connection.
                    socket.send(Message::Ping("".into())).await.ok();
                    continue;
                }
                () = sleep_until(deadline) => break SocketEnd::Silent,
                () = is_set(&mut leaving) => break SocketEnd::Left,
            };
            match message {
                Some(Ok(Message::Text(text))) => {
                    deadline = Instant::now() + self.behaviour.read_deadline;
                    if let Some(end) = self.handle(&mut socket, path, index, &text).await {
                        break end;
                    }
                }
                Some(Ok(Message::Binary(_))) => {
                    deadline = Instant::now() + self.behaviour.read_deadline;
                    self.log().warnings.push("a binary message".to_owned());
                }
                Some(Ok(Message::Pong(_))) => self.log().sockets[index].pongs += 1,
                Some(Ok(Message::Close(frame))) => {
                    // Reading once more sends the agent's own close frame.
                    timeout(CLOSE_TIMEOUT, socket.next()).await.ok();
                    return SocketEnd::Closed(frame.map(|frame| frame.code.into()));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return SocketEnd::Lost,
            }
        };
        let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        let closing = async {
            if socket.close(Some(frame)).await.is_ok() {
                // Discard messages that were still on their way.
                while let Some(Ok(_)) = socket.next().await {}
            }
        };
        timeout(CLOSE_TIMEOUT, closing).await.ok();
        end
    }

    /// Handles a message. Returns a value if the socket must end.
    async fn handle(
        self: &Arc<Self>,
        socket: &mut Socket,
        path: &str,
        index: usize,
        text: &str,
    ) -> Option<SocketEnd> {
        let message: Value = serde_json::from_str(text).unwrap_or(Value::Null);
        let query = message["query"].as_str().unwrap_or_default();
        if query == "ping" {
            self.log().sockets[index].pings += 1;
        }
        // On the control socket, Alpamon ignores other messages than `control`.
        if path == CONTROL {
            return None;
        }
        if self.behaviour.is_older {
            socket.send(Message::text(r#"{"query":"ping"}"#)).await.ok();
        }
        match query {
            "ping" => {
                let pong = json!({"query": "pong", "timestamp": 1_700_000_000.5});
                socket.send(Message::text(pong.to_string())).await.ok();
            }
            "command" if is_readable(&message["command"]) => self.take(message["command"].clone()),
            "reconnect" => return Some(SocketEnd::Reconnect),
            "quit" => return Some(SocketEnd::Quit),
            _ => self.log().warnings.push(text.to_owned()),
        }
        None
    }

    // Commands.

    /// Acknowledges a command immediately, and runs it when fewer than [`MAX_RUNNING`] commands
    /// run.
    fn take(self: &Arc<Self>, order: Value) {
        let id = order["id"].as_str().unwrap_or_default().to_owned();
        {
            let mut log = self.log();
            if log.delivered.iter().any(|earlier| earlier["id"] == order["id"]) {
                log.repeated.push(id.clone());
            }
            log.delivered.push(order.clone());
        }
        self.report(priority::COMMAND, "POST", format!("/api/events/commands/{id}/ack/"), None);
        let has_room = {
            let mut counts = self.counts.lock().unwrap();
            let has_room = counts.commands < MAX_RUNNING + MAX_QUEUED;
            counts.commands += usize::from(has_room);
            has_room
        };
        if !has_room {
            let fin = json!({"success": false, "result": "Failed to submit command: queue is full", "elapsed_time": 0.0});
            self.report(
                priority::COMMAND,
                "POST",
                format!("/api/events/commands/{id}/fin/"),
                Some(fin.to_string()),
            );
            return;
        }
        let inner = self.clone();
        self.spawn(async move {
            inner.run(&id, &order).await;
            inner.counts.lock().unwrap().commands -= 1;
        });
    }

    async fn run(&self, id: &str, order: &Value) {
        let _permit = self.room.acquire().await.unwrap();
        let began = Instant::now();
        let run = (self.behaviour.runs)(order);
        let chunks = run.pieces.iter().flat_map(|piece| pieces(piece, CHUNK_BYTES));
        for (seq, content) in chunks.enumerate() {
            if seq > 0 {
                sleep(self.behaviour.second / 10).await;
            }
            let chunk = json!({"seq": seq, "content": content});
            self.report(
                priority::COMMAND,
                "POST",
                format!("/api/events/commands/{id}/chunk/"),
                Some(chunk.to_string()),
            );
        }
        if run.is_held {
            is_set(&mut self.released.subscribe()).await;
        }
        let result = run.pieces.concat();
        let result = pieces(&result, RESULT_BYTES).next().unwrap_or_default();
        let mut fin = json!({
            "success": run.exit_code == 0, "result": result, "elapsed_time": began.elapsed().as_secs_f64(),
            "exit_code": run.exit_code,
        });
        if self.behaviour.is_older {
            fin.as_object_mut().unwrap().remove("exit_code");
        }
        self.report(
            priority::FIN,
            "POST",
            format!("/api/events/commands/{id}/fin/"),
            Some(fin.to_string()),
        );
    }
}

async fn is_set(flag: &mut watch::Receiver<bool>) {
    flag.wait_for(|is_set| *is_set).await.unwrap();
}

/// Splits a text into pieces of at most `most` bytes, on character boundaries.
fn pieces(text: &str, most: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let piece;
        (piece, rest) = rest.split_at(rest.floor_char_boundary(most));
        Some(piece)
    })
}

/// True if every member of a command has the type that Alpamon expects. Otherwise Alpamon discards
/// the whole message.
fn is_readable(command: &Value) -> bool {
    let is_text = |name: &str| command[name].is_string();
    let are_texts = |map: &Map<String, Value>| map.values().all(Value::is_string);
    let has_texts = ["id", "shell", "line", "user", "group"].into_iter().all(is_text);
    let env = &command["env"];
    has_texts
        && (env.is_null() || env.as_object().is_some_and(are_texts))
        && command["allow_sh"].is_boolean()
        && (command["data"].is_null() || command["data"].is_string())
}
