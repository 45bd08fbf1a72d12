//! An agent that behaves on the wire as an unmodified Alpamon 2.x does (agent-protocol), and keeps
//! a ledger of what it saw. A test says what its commands do, and how fast its clock goes.

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
use crate::client::{Api, Asked, Reply, Workspace};
use crate::{PATIENCE, eventually_within};

/// The paths of its two WebSockets.
pub const BACKHAUL: &str = "/ws/servers/backhaul/";
/// The one on which nothing goes back.
pub const CONTROL: &str = "/ws/servers/control/";
/// Where it asks who it is.
const OWN: &str = "/api/servers/servers/-/";
/// What may be missing in a service (agent-protocol 2 and 5).
const ACCESS_POLICY: &str = "/api/servers/servers/-/access-policy/";

/// How many commands run at once.
const RUNNING: usize = 20;
/// How many more wait in the agent.
const QUEUED: usize = 200;
/// How many reporters there are.
const REPORTERS: usize = 4;
/// How often a report is tried again before it is dropped.
const RETRIES: u32 = 5;
/// The largest chunk, in bytes.
const CHUNK: usize = 4 * 1024;
/// Where a result is cut, in bytes.
const RESULT: usize = 1 << 20;
/// How long the service has to answer a close. No test depends on it.
const CLOSING: Duration = Duration::from_secs(2);

/// Priorities of its reports: lower numbers go first.
mod priority {
    /// A command's ack and chunks, and what tells of the start.
    pub const COMMAND: u32 = 10;
    /// A command's fin.
    pub const FIN: u32 = 11;
    /// Facts, heartbeats and measurements.
    pub const FACTS: u32 = 80;
}

/// What the agent tells of its host.
#[derive(Clone, Debug)]
pub struct Host {
    /// The agent's own version.
    pub version: String,
    /// The load average.
    pub load: f64,
    /// Processors.
    pub cores: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// The version of the system, which is an Ubuntu.
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
    /// What it is of the category `info`, `os` or `time`.
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

    /// What it has of a category that is a list.
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

/// What a command does.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// What it writes, in pieces, with a moment between them.
    pub pieces: Vec<String>,
    /// Its exit code.
    pub exit_code: i64,
    /// It does not end before [`Alpamon::release`].
    pub is_held: bool,
}

impl Run {
    /// A command that writes something and succeeds.
    pub fn writing(pieces: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { pieces: pieces.into_iter().map(Into::into).collect(), ..Self::default() }
    }
}

type Runs = Box<dyn Fn(&Value) -> Run + Send + Sync>;

/// How an agent differs from one that runs `echo` on a host of its own.
pub struct Habits {
    /// How long a second of its clock takes.
    pub second: Duration,
    /// How long it waits for an answer to a report. Alpamon waits 5 s, which a loaded machine may
    /// need with nothing wrong.
    pub answer_within: Duration,
    /// How long a socket may be without a data message.
    pub read_deadline: Duration,
    /// It is of an older version: it tells no exit codes, and sends a ping of its own after each
    /// message.
    pub is_older: bool,
    /// Its host.
    pub host: Host,
    /// What a command does, by the order that came.
    pub runs: Runs,
}

impl Default for Habits {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self {
            second,
            answer_within: PATIENCE,
            read_deadline: second * 35 * 60,
            is_older: false,
            host: Host::default(),
            runs: Box::new(|order| {
                Run::writing([format!("{}\n", order["line"].as_str().unwrap_or_default())])
            }),
        }
    }
}

/// A call of the agent's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Called {
    /// The method.
    pub method: &'static str,
    /// The path.
    pub path: String,
    /// The status, or `None` where there was no answer.
    pub status: Option<u16>,
    /// How often it was tried before.
    pub retry: u32,
}

impl Called {
    /// Whether the agent takes it for done.
    pub fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status / 100 == 2)
    }

    /// Whether it was sent elsewhere, which makes a GET of a POST.
    fn is_redirect(&self) -> bool {
        self.status.is_some_and(|status| status / 100 == 3)
    }
}

/// How a socket ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The service closed it, with that code.
    Closed(Option<u16>),
    /// It broke off.
    Lost,
    /// No data message came for too long.
    Silent,
    /// The service asked for a new one.
    Reconnect,
    /// The service asked the agent to exit.
    Quit,
    /// The agent left of itself.
    Left,
}

/// A socket that was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Its path.
    pub path: &'static str,
    /// How it ended, if it did.
    pub end: Option<End>,
    /// How many pings of the service's came on it.
    pub pings: u64,
    /// How many of the agent's own pings, which are the WebSocket protocol's, were answered.
    pub pongs: u64,
}

/// What an agent saw.
#[derive(Clone, Default, Debug)]
pub struct Ledger {
    /// What it was told of itself.
    pub commissioned: Option<bool>,
    /// Its calls in the order of their answers.
    pub calls: Vec<Called>,
    /// Reports that it gave up.
    pub dropped: Vec<String>,
    /// Its sockets in the order of their opening.
    pub sockets: Vec<Opened>,
    /// Dials that failed, by their status.
    pub refused: Vec<Option<u16>>,
    /// Commands in the order of their coming.
    pub orders: Vec<Value>,
    /// Ids of commands that came more than once.
    pub repeated: Vec<String>,
    /// Messages that it does not understand.
    pub warnings: Vec<String>,
}

impl Ledger {
    /// All that should not be: whatever an agent's log would complain of when nothing has gone
    /// wrong.
    pub fn complaints(&self) -> Vec<String> {
        let may_be_missing = |call: &Called| call.path == ACCESS_POLICY && call.status == Some(404);
        let calls = self
            .calls
            .iter()
            .filter(|call| !(call.is_success() && call.retry == 0 || may_be_missing(call)));
        let ended = |socket: &&Opened| !matches!(socket.end, None | Some(End::Left));
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
    pub fn redirects(&self) -> Vec<&Called> {
        self.calls.iter().filter(|call| call.is_redirect()).collect()
    }

    /// The sockets of a path.
    pub fn sockets_of<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a Opened> {
        self.sockets.iter().filter(move |socket| socket.path == path)
    }

    /// Whether a socket of a path is open.
    pub fn is_open(&self, path: &str) -> bool {
        self.sockets_of(path).any(|socket| socket.end.is_none())
    }

    /// Calls whose method and path are these.
    pub fn calls_of<'a>(
        &'a self,
        method: &'a str,
        path: &'a str,
    ) -> impl Iterator<Item = &'a Called> {
        self.calls.iter().filter(move |call| call.method == method && call.path == path)
    }

    /// Ids of the commands that came.
    pub fn ids(&self) -> Vec<String> {
        self.orders
            .iter()
            .map(|order| order["id"].as_str().unwrap_or_default().to_owned())
            .collect()
    }
}

/// A report that waits to be sent.
struct Report {
    method: &'static str,
    path: String,
    body: Option<String>,
    retry: u32,
}

/// What waits: by priority, by when it is due, by when it came.
type Waiting = BTreeMap<(u32, Instant, u64), Report>;

struct Inner {
    api: Api,
    client: Client,
    habits: Habits,
    ledger: Mutex<Ledger>,
    waiting: Mutex<Waiting>,
    came: Notify,
    /// Reports that came, the number of those at hand, and that of commands that did not end.
    counts: Mutex<Counts>,
    room: Semaphore,
    released: watch::Sender<bool>,
    leaving: watch::Sender<bool>,
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Default)]
struct Counts {
    reports: u64,
    at_hand: usize,
    commands: usize,
}

/// A running agent. Dropped, it ends like a process that is killed.
pub struct Alpamon(Arc<Inner>);

type Socket = WebSocketStream<TcpStream>;

impl Alpamon {
    /// Starts an agent for a server whose key is known, and waits for nothing.
    pub fn start(workspace: &Workspace, server: &Value, habits: Habits) -> Self {
        let api = workspace.anonymous.with(&credential(server));
        // What stands idle for longer the service may just be closing.
        let client = Client::builder().redirect(redirect::Policy::none()).no_proxy();
        let client = client.pool_idle_timeout(Duration::from_secs(1)).build().unwrap();
        let inner = Arc::new(Inner {
            api,
            client,
            habits,
            ledger: Mutex::default(),
            waiting: Mutex::default(),
            came: Notify::new(),
            counts: Mutex::default(),
            room: Semaphore::new(RUNNING),
            released: watch::Sender::new(false),
            leaving: watch::Sender::new(false),
            tasks: Mutex::default(),
        });
        inner.spawn(inner.clone().live());
        Self(inner)
    }

    /// The same, once both its sockets are open.
    pub async fn connect(workspace: &Workspace, server: &Value, habits: Habits) -> Self {
        let agent = Self::start(workspace, server, habits);
        agent
            .until("both sockets", |ledger| ledger.is_open(BACKHAUL) && ledger.is_open(CONTROL))
            .await;
        agent
    }

    /// Registers a server as `alpamon register` does, with a registration token's key.
    pub async fn register(workspace: &Workspace, key: &str, name: &str) -> Reply {
        let api = workspace.anonymous.with_token(key);
        api.post("/api/servers/servers/register/", &json!({"name": name, "platform": "debian"}))
            .await
    }

    /// Unregisters a server as `alpamon unregister` does.
    pub async fn unregister(workspace: &Workspace, server: &Value) -> Reply {
        let path = format!("/api/servers/servers/{}/unregister/", server["id"].as_str().unwrap());
        workspace.anonymous.with(&credential(server)).delete(&path).await
    }

    /// A client with its credential.
    pub fn api(&self) -> &Api {
        &self.0.api
    }

    /// What it saw until now.
    pub fn ledger(&self) -> Ledger {
        self.0.ledger().clone()
    }

    /// Waits until the ledger has something.
    pub async fn until(&self, what: &str, is_so: impl Fn(&Ledger) -> bool) {
        self.until_within(PATIENCE, what, is_so).await;
    }

    /// The same where it may take longer.
    pub async fn until_within(
        &self,
        patience: Duration,
        what: &str,
        is_so: impl Fn(&Ledger) -> bool,
    ) {
        eventually_within(patience, what, || async { is_so(&self.0.ledger()).then_some(()) }).await;
    }

    /// Waits until it has nothing to report and no command runs.
    pub async fn until_idle(&self, patience: Duration) {
        eventually_within(patience, "all reports to be sent", || async {
            let waiting = self.0.waiting.lock().unwrap();
            let counts = self.0.counts.lock().unwrap();
            (waiting.is_empty() && counts.at_hand == 0 && counts.commands == 0).then_some(())
        })
        .await;
    }

    /// Reports something as one of its parts would, through the queue.
    pub fn report(&self, method: &'static str, path: &str, body: Option<&Value>) {
        self.0.report(priority::FACTS, method, path.to_owned(), body.map(Value::to_string));
    }

    /// Lets the commands end that are held.
    pub fn release(&self) {
        self.0.released.send_replace(true);
    }

    /// Ends it like a service that is stopped: its sockets are closed with 1000.
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
        // The tasks hold what holds them.
        self.0.tasks.lock().unwrap().abort_all();
    }
}

impl Inner {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }

    /// Does something beside the rest, until the agent leaves.
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
        self.habits.second * seconds
    }

    // HTTP.

    /// Makes a call and notes it. The body of the answer is for those who ask.
    async fn call(
        &self,
        method: &'static str,
        path: &str,
        body: Option<String>,
        retry: u32,
    ) -> (Called, String) {
        let verb = Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self
            .client
            .request(verb, format!("{}{path}", self.api.url))
            .header("Host", &self.api.host);
        request =
            request.header("Authorization", self.api.authorization.as_deref().unwrap_or_default());
        request = request.header("User-Agent", format!("alpamon/{}", self.habits.host.version));
        if matches!(method, "POST" | "PUT" | "PATCH") {
            request = request.header("Content-Type", "application/json");
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        let request = request.build().unwrap();
        let asked = Asked::of(&request);
        let answer = async {
            let response = self.client.execute(request).await.ok()?;
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            let text = response.text().await.ok()?;
            asked.check(status, &headers, Some(&text));
            Some((status, text))
        };
        let answer = timeout(self.habits.answer_within, answer).await.ok().flatten();
        let (status, text) =
            answer.map_or((None, String::new()), |(status, text)| (Some(status), text));
        let called = Called { method, path: path.to_owned(), status, retry };
        self.ledger().calls.push(called.clone());
        (called, text)
    }

    /// Asks for something that is used; `None` where the answer is none or of no use.
    async fn get(&self, path: &str) -> Option<Value> {
        let (called, text) = self.call("GET", path, None, 0).await;
        if !called.is_success() {
            return None;
        }
        let read = serde_json::from_str(&text);
        if read.is_err() {
            self.ledger().warnings.push(format!("{path}: {text}"));
        }
        read.ok()
    }

    /// Puts a report into the queue.
    fn report(&self, priority: u32, method: &'static str, path: String, body: Option<String>) {
        let number = {
            let mut counts = self.counts.lock().unwrap();
            counts.reports += 1;
            counts.reports
        };
        let report = Report { method, path, body, retry: 0 };
        self.waiting.lock().unwrap().insert((priority, Instant::now(), number), report);
        self.came.notify_one();
    }

    /// One of the reporters. It takes what has the highest priority; where that is not due yet, it
    /// puts it back and pauses, so that all else waits, too.
    async fn report_forever(self: Arc<Self>) {
        loop {
            let next = {
                let mut waiting = self.waiting.lock().unwrap();
                let next = waiting.pop_first();
                self.counts.lock().unwrap().at_hand += usize::from(next.is_some());
                next
            };
            let Some(((priority, due, number), mut report)) = next else {
                self.came.notified().await;
                continue;
            };
            if due > Instant::now() {
                self.waiting.lock().unwrap().insert((priority, due, number), report);
                self.counts.lock().unwrap().at_hand -= 1;
                sleep(self.seconds(1)).await;
                continue;
            }
            let (called, _) =
                self.call(report.method, &report.path, report.body.clone(), report.retry).await;
            if !called.is_success() && report.retry < RETRIES {
                let pause = self.seconds(1 << report.retry);
                report.retry += 1;
                self.waiting.lock().unwrap().insert((priority, due + pause, number), report);
            } else if !called.is_success() {
                self.ledger().dropped.push(report.path);
            }
            self.counts.lock().unwrap().at_hand -= 1;
        }
    }

    // The start.

    async fn live(self: Arc<Self>) {
        let commissioned = self.check_in().await;
        for _ in 0..REPORTERS {
            self.spawn(self.clone().report_forever());
        }
        let version = &self.habits.host.version;
        self.tell_of("started", &format!("alpamon {version} started running."), priority::COMMAND);
        self.spawn(self.clone().measure());
        for path in [BACKHAUL, CONTROL] {
            let inner = self.clone();
            // It notices by itself that the agent leaves, as it closes its socket then.
            self.tasks.lock().unwrap().spawn(inner.keep_open(path));
        }
        if commissioned {
            sleep(self.seconds(5)).await;
            self.sync().await;
        } else {
            self.commit();
        }
    }

    /// Asks who it is until it is told.
    async fn check_in(&self) -> bool {
        let mut pause = 5;
        loop {
            let own = self.get(OWN).await;
            if let Some(commissioned) = own.and_then(|own| own["commissioned"].as_bool()) {
                self.ledger().commissioned = Some(commissioned);
                return commissioned;
            }
            pause = (pause * 2).min(300);
            sleep(self.seconds(pause)).await;
        }
    }

    fn tell_of(&self, record: &str, description: &str, priority: u32) {
        let event = json!({"reporter": "alpamon", "record": record, "description": description});
        self.report(priority, "POST", "/api/events/events/".to_owned(), Some(event.to_string()));
    }

    /// The start of an agent that was never here.
    fn commit(&self) {
        let host = &self.habits.host;
        let mut facts = json!({"version": host.version, "load": host.load});
        for category in SINGLE {
            facts[category] = host.single(category);
        }
        for category in LISTS {
            facts[category] = Host::list(category);
        }
        self.report(priority::FACTS, "PUT", format!("{OWN}commit/"), Some(facts.to_string()));
        let description = format!("Committed system information. version: {}", host.version);
        self.tell_of("committed", &description, priority::FACTS);
    }

    /// The start of an agent that was here before: it tells what the service says it lacks.
    async fn sync(&self) {
        let host = &self.habits.host;
        let facts = json!({"version": host.version, "load": host.load});
        self.report(priority::FACTS, "PATCH", format!("{OWN}sync/"), Some(facts.to_string()));
        let hashes: Map<String, Value> = SINGLE
            .iter()
            .chain(&LISTS)
            .map(|category| ((*category).to_owned(), json!("sha256:0")))
            .collect();
        let body = json!({"hashes": hashes}).to_string();
        let (called, text) = self.call("POST", &format!("{OWN}sync-check/"), Some(body), 0).await;
        let asked = serde_json::from_str::<Value>(&text).ok().filter(|_| called.is_success());
        let asked = asked.and_then(|asked| {
            serde_json::from_value::<Vec<String>>(asked["sync_required"].clone()).ok()
        });
        // A service of an older version does not say what it lacks.
        let asked = asked.unwrap_or_else(|| {
            SINGLE.iter().chain(&LISTS).map(|name| (*name).to_owned()).collect()
        });
        for category in asked {
            self.sync_category(&category).await;
        }
        self.get(ACCESS_POLICY).await;
    }

    /// Compares a category with what the service has of it, and tells it where that differs.
    async fn sync_category(&self, category: &str) {
        let path = format!("/api/proc/{category}/");
        let Some(remote) = self.get(&format!("{path}-/sync/")).await else { return };
        if SINGLE.contains(&category) {
            let current = self.habits.host.single(category);
            if !remote.is_object() {
                self.ledger().warnings.push(format!("{path}: {remote}"));
            } else if current != remote {
                // The id that the service did not tell is empty.
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
            self.ledger().warnings.push(format!("{path}: {remote}"));
        }
    }

    /// Asks what to measure, and sends heartbeats.
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
            self.report(priority::FACTS, "PATCH", format!("{OWN}status/"), None);
        }
    }

    // WebSockets.

    /// Keeps a socket open: after a drop it dials at once, after a failed dial later and later.
    async fn keep_open(self: Arc<Self>, path: &'static str) {
        let mut leaving = self.leaving.subscribe();
        let mut failures = 0;
        loop {
            let pause = match self.dial(path).await {
                Ok(socket) => {
                    failures = 0;
                    let index = {
                        let mut ledger = self.ledger();
                        ledger.sockets.push(Opened { path, end: None, pings: 0, pongs: 0 });
                        ledger.sockets.len() - 1
                    };
                    let end = self.listen(socket, index, leaving.clone()).await;
                    self.ledger().sockets[index].end = Some(end);
                    match end {
                        End::Left => return,
                        End::Quit => {
                            self.leaving.send_replace(true);
                            return;
                        }
                        _ => Duration::ZERO,
                    }
                }
                Err(status) => {
                    self.ledger().refused.push(status);
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
        headers
            .insert("User-Agent", format!("alpamon/{}", self.habits.host.version).parse().unwrap());
        headers.insert(
            "Authorization",
            self.api.authorization.as_deref().unwrap_or_default().parse().unwrap(),
        );
        let dial = async {
            let stream = TcpStream::connect(address).await.map_err(|_| None)?;
            let asked = Asked::to(path, request.headers());
            match client_async(request, stream).await {
                Ok((socket, response)) => {
                    asked.check(response.status().as_u16(), response.headers(), None);
                    Ok(socket)
                }
                Err(Error::Http(response)) => {
                    asked.check(response.status().as_u16(), response.headers(), None);
                    Err(Some(response.status().as_u16()))
                }
                Err(_) => Err(None),
            }
        };
        timeout(PATIENCE, dial).await.unwrap_or(Err(None))
    }

    /// Listens to a socket until its end.
    async fn listen(
        self: &Arc<Self>,
        mut socket: Socket,
        index: usize,
        mut leaving: watch::Receiver<bool>,
    ) -> End {
        let path = self.ledger().sockets[index].path;
        let mut keepalive = interval(self.seconds(30));
        keepalive.tick().await;
        let mut deadline = Instant::now() + self.habits.read_deadline;
        let end = loop {
            let message = tokio::select! {
                message = socket.next() => message,
                _ = keepalive.tick() => {
                    // One that cannot be sent is found by the deadline.
                    socket.send(Message::Ping("".into())).await.ok();
                    continue;
                }
                () = sleep_until(deadline) => break End::Silent,
                () = is_set(&mut leaving) => break End::Left,
            };
            match message {
                Some(Ok(Message::Text(text))) => {
                    deadline = Instant::now() + self.habits.read_deadline;
                    if let Some(end) = self.hear(&mut socket, path, index, &text).await {
                        break end;
                    }
                }
                Some(Ok(Message::Binary(_))) => {
                    deadline = Instant::now() + self.habits.read_deadline;
                    self.ledger().warnings.push("a binary message".to_owned());
                }
                Some(Ok(Message::Pong(_))) => self.ledger().sockets[index].pongs += 1,
                Some(Ok(Message::Close(frame))) => {
                    // Reading on sends the answer.
                    timeout(CLOSING, socket.next()).await.ok();
                    return End::Closed(frame.map(|frame| frame.code.into()));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return End::Lost,
            }
        };
        let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        let closing = async {
            if socket.close(Some(frame)).await.is_ok() {
                // What was on its way is not read any more.
                while let Some(Ok(_)) = socket.next().await {}
            }
        };
        timeout(CLOSING, closing).await.ok();
        end
    }

    /// Does what a message asks for.
    async fn hear(
        self: &Arc<Self>,
        socket: &mut Socket,
        path: &str,
        index: usize,
        text: &str,
    ) -> Option<End> {
        let message: Value = serde_json::from_str(text).unwrap_or(Value::Null);
        let query = message["query"].as_str().unwrap_or_default();
        if query == "ping" {
            self.ledger().sockets[index].pings += 1;
        }
        // On the other one, what is no `control` is passed over.
        if path == CONTROL {
            return None;
        }
        if self.habits.is_older {
            socket.send(Message::text(r#"{"query":"ping"}"#)).await.ok();
        }
        match query {
            "ping" => {
                let pong = json!({"query": "pong", "timestamp": 1_700_000_000.5});
                socket.send(Message::text(pong.to_string())).await.ok();
            }
            "command" if is_readable(&message["command"]) => self.take(message["command"].clone()),
            "reconnect" => return Some(End::Reconnect),
            "quit" => return Some(End::Quit),
            _ => self.ledger().warnings.push(text.to_owned()),
        }
        None
    }

    // Commands.

    /// Takes a command: acknowledges it at once, and runs it when there is room.
    fn take(self: &Arc<Self>, order: Value) {
        let id = order["id"].as_str().unwrap_or_default().to_owned();
        {
            let mut ledger = self.ledger();
            if ledger.orders.iter().any(|earlier| earlier["id"] == order["id"]) {
                ledger.repeated.push(id.clone());
            }
            ledger.orders.push(order.clone());
        }
        self.report(priority::COMMAND, "POST", format!("/api/events/commands/{id}/ack/"), None);
        let has_room = {
            let mut counts = self.counts.lock().unwrap();
            let has_room = counts.commands < RUNNING + QUEUED;
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
        let run = (self.habits.runs)(order);
        let chunks = run.pieces.iter().flat_map(|piece| pieces(piece, CHUNK));
        for (seq, content) in chunks.enumerate() {
            if seq > 0 {
                sleep(self.habits.second / 10).await;
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
        let result = pieces(&result, RESULT).next().unwrap_or_default();
        let mut fin = json!({
            "success": run.exit_code == 0, "result": result, "elapsed_time": began.elapsed().as_secs_f64(),
            "exit_code": run.exit_code,
        });
        if self.habits.is_older {
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

/// Waits until a flag is set.
async fn is_set(flag: &mut watch::Receiver<bool>) {
    flag.wait_for(|is_set| *is_set).await.unwrap();
}

/// Cuts a text into pieces of at most so many bytes, between characters.
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

/// Whether a command is one of the types that Alpamon reads: one member of another type, and it
/// drops the whole message.
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
