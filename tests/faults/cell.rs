//! A service with its agents that faults are done to, what is asked of it meanwhile, and the look
//! at what became of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farhand_tests::agents::own_account;
use farhand_tests::alpamon::{Alpamon, Habits, Run};
use farhand_tests::client::unique;
use farhand_tests::people::{COMMANDS, SERVERS};
use farhand_tests::processes::Process;
use farhand_tests::{Instance, PATIENCE, Workspace, eventually, eventually_within, now, setting};
use futures_util::{StreamExt, stream};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use super::figures::Figures;
use super::ledger::{Answer, Asked, Finding, Ledger, Seen, is_over, token_of};

/// How long everything that was accepted may take to end: a minute for what got stuck, as much for
/// an agent that is slow to come back, and what a loaded machine adds.
const ENDS_WITHIN: Duration = Duration::from_secs(300);
/// How long a command of these may run, in seconds.
const TIMEOUT: u32 = 10;
/// How many requests of a look are under way at once.
const AT_ONCE: usize = 8;
/// How often a request with an Idempotency-Key is sent until it is answered.
const TRIES: usize = 480;

/// A service on a state folder of its own, and what was asked of it.
pub struct Cell {
    instance: Option<Instance>,
    state: TempDir,
    variables: Vec<(String, String)>,
    port: u16,
    /// Where commands are asked for, also while the service is not there.
    pub desk: Arc<Desk>,
    /// What the faults came to.
    figures: Figures,
}

/// Where commands are asked for, and what came of it is noted.
pub struct Desk {
    /// The workspace in which everything happens.
    pub workspace: Workspace,
    ledger: Mutex<Ledger>,
    tokens: AtomicUsize,
    /// Held by each request that is under way, and wholly by who looks: what is accepted meanwhile
    /// would look lost.
    gate: tokio::sync::RwLock<()>,
    /// Ids that were read one by one already.
    looked: tokio::sync::Mutex<BTreeSet<String>>,
    /// Where processes of commands tell that they ran.
    outside: TempDir,
}

/// What of a request for a command is not usual.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It goes out now, or is refused.
    Immediate,
    /// It waits for its agent.
    Queued,
    /// It goes out in so many seconds.
    In(i64),
    /// It is sent with an Idempotency-Key until it is answered.
    Keyed,
    /// It waits for its agent, and runs for some seconds.
    Long,
}

impl Cell {
    /// Starts a service, with further variables. `kind` is the row of the figures.
    pub async fn start(kind: &'static str, variables: &[(&str, &str)]) -> Self {
        let (instance, state) = Instance::new_with(variables).await;
        let workspace = Workspace::made_by(&instance.operator(), "faults").await;
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            port: instance.port(),
            instance: Some(instance),
            state,
            variables: variables.iter().map(owned).collect(),
            desk: Arc::new(Desk {
                workspace,
                ledger: Mutex::default(),
                tokens: AtomicUsize::default(),
                gate: tokio::sync::RwLock::default(),
                looked: tokio::sync::Mutex::default(),
                outside: tempfile::tempdir().unwrap(),
            }),
            figures: Figures::of(kind),
        }
    }

    /// The service.
    pub fn instance(&self) -> &Instance {
        self.instance.as_ref().unwrap()
    }

    /// Its state folder.
    pub fn state(&self) -> &Path {
        self.state.path()
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Notes that a fault was done.
    pub fn fault(&mut self) {
        self.figures.faults += 1;
    }

    /// Kills the service with SIGKILL, workerd included.
    pub async fn kill(&mut self) {
        self.instance.take().unwrap().kill().await;
    }

    /// Starts it again where it was.
    pub async fn restart(&mut self) {
        let variables: Vec<_> =
            self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        self.instance = Some(Instance::restart_at(self.port, self.state.path(), &variables).await);
    }

    /// Starts a scripted agent whose seconds are short. Its commands write their line.
    pub async fn scripted(&self, server: &Value, is_held: bool) -> Alpamon {
        let runs = move |order: &Value| Run {
            is_held,
            ..Run::writing([order["line"].as_str().unwrap_or_default()])
        };
        let habits = Habits {
            second: Duration::from_millis(200),
            runs: Box::new(runs),
            ..Habits::default()
        };
        Alpamon::connect(&self.desk.workspace, server, habits).await
    }
}

impl Desk {
    /// The line of a command that tells outside that it ran, and writes some output.
    fn line(&self, token: &str, kind: Kind) -> String {
        let seconds = if kind == Kind::Long { "5" } else { "0.3" };
        format!(
            "echo {token} >> {}; echo begun; sleep {seconds}; echo done",
            self.outside.path().join("ran").display()
        )
    }

    /// Whether something ran, by its token.
    pub fn has_run(&self, token: &str) -> bool {
        self.ran().iter().any(|ran| ran == token)
    }

    fn ran(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.outside.path().join("ran")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Asks for a command, and notes what came of it. Returns its token, and its id where it was
    /// accepted.
    pub async fn ask(&self, server: &Value, kind: Kind) -> (String, Option<String>) {
        let token = format!("t{}", self.tokens.fetch_add(1, Ordering::Relaxed));
        let mut body = json!({
            "server": server["id"], "line": self.line(&token, kind), "username": own_account(), "timeout": TIMEOUT,
        });
        match kind {
            Kind::Immediate => {}
            Kind::Queued | Kind::Keyed | Kind::Long => body["on_offline"] = json!("queue"),
            Kind::In(seconds) => {
                body["scheduled_at"] = json!(now().plus_seconds(seconds).to_string())
            }
        }
        // Before it is sent: what is not answered was asked for, too.
        let asked = Asked {
            server: server["id"].as_str().unwrap().to_owned(),
            at: now(),
            answer: Answer::Unknown,
        };
        self.ledger.lock().unwrap().asked.insert(token.clone(), asked);
        let key = (kind == Kind::Keyed).then(|| unique("key"));
        let tries = if key.is_some() { TRIES } else { 1 };
        let mut answer = Answer::Unknown;
        for _ in 0..tries {
            let under_way = self.gate.read().await;
            answer = self.send(&body, key.as_deref()).await;
            self.ledger.lock().unwrap().asked.get_mut(&token).unwrap().answer = answer.clone();
            drop(under_way);
            if answer != Answer::Unknown {
                break;
            }
            // The service may be away for a while.
            if key.is_some() {
                sleep(Duration::from_millis(250)).await;
            }
        }
        let id = if let Answer::Accepted(id) = answer { Some(id) } else { None };
        (token, id)
    }

    async fn send(&self, body: &Value, key: Option<&str>) -> Answer {
        let mut request =
            self.workspace.admin.request("POST", COMMANDS).json(body).timeout(PATIENCE);
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        let Ok(response) = request.send().await else { return Answer::Unknown };
        let status = response.status().as_u16();
        let Ok(body) = response.json::<Value>().await else { return Answer::Unknown };
        match status {
            201 => Answer::Accepted(body["id"].as_str().unwrap().to_owned()),
            // Its first try was cut off; the service says so until it knows what became of that.
            409 if body["code"] == "IDEMPOTENCY_KEY_IN_USE" => Answer::Unknown,
            400..500 => panic!("{status}: {body}"),
            503 if body["code"] == "SERVER_NOT_CONNECTED" => Answer::Refused,
            _ => Answer::Unknown,
        }
    }

    /// Asks for so many commands, a few at a time: of each kind, on each server in turn.
    pub async fn load(&self, servers: &[&Value], many: usize) {
        const KINDS: [Kind; 4] = [Kind::Immediate, Kind::Queued, Kind::In(1), Kind::Keyed];
        let asked = (0..many).map(|number| {
            self.ask(servers[number % servers.len()], KINDS[number / servers.len() % 4])
        });
        stream::iter(asked).buffer_unordered(4).for_each(async |_| {}).await;
    }

    /// Waits until so many commands were asked for.
    pub async fn until_asked(&self, many: usize) {
        while self.tokens.load(Ordering::Relaxed) < many {
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// How many commands were asked for.
    pub fn asked(&self) -> usize {
        self.tokens.load(Ordering::Relaxed)
    }

    /// Reads one command.
    pub async fn read(&self, id: &str) -> Option<Value> {
        let reply = self.workspace.admin.get(&format!("{COMMANDS}{id}/")).await;
        (reply.status != 404).then(|| reply.expect(200))
    }

    /// All commands of the list, page by page, where the list's own count is theirs.
    async fn listed(&self) -> Vec<Value> {
        let mut found = Vec::new();
        for page in 1.. {
            let path = format!("{COMMANDS}?ordering=added_at&page_size=100&page={page}");
            let list = self.workspace.admin.get(&path).await.expect(200);
            found.extend(list["results"].as_array().unwrap().clone());
            if list["next"].is_null() {
                assert_eq!(list["count"], found.len(), "the list's count");
                break;
            }
        }
        found
    }

    /// Waits until a command is over.
    pub async fn ended(&self, id: &str) -> Value {
        eventually_within(ENDS_WITHIN, "the command's end", || async {
            self.read(id).await.filter(is_over)
        })
        .await
    }

    /// What can be seen of all that was asked for. Those of earlier looks are read one by one again
    /// only at the end.
    async fn seen(&self, agents: &[&Alpamon], is_settled: bool) -> Seen {
        let listed = self.listed().await;
        let mut by_id: BTreeMap<String, Option<Value>> = BTreeMap::new();
        let mut looked = self.looked.lock().await;
        if !is_settled {
            let earlier =
                listed.iter().filter(|command| looked.contains(command["id"].as_str().unwrap()));
            by_id.extend(earlier.map(|command| {
                (command["id"].as_str().unwrap().to_owned(), Some(command.clone()))
            }));
        }
        let ids: Vec<String> =
            self.ledger.lock().unwrap().accepted().map(|(_, id)| id.to_owned()).collect();
        let read = ids
            .iter()
            .filter(|id| !by_id.contains_key(*id))
            .map(async |id| (id.clone(), self.read(id).await));
        let read: Vec<_> = stream::iter(read).buffer_unordered(AT_ONCE).collect().await;
        by_id.extend(read);
        looked.extend(ids);
        let orders = agents.iter().flat_map(|agent| agent.ledger().orders);
        Seen {
            by_id,
            listed,
            ran: self.ran(),
            handed: orders.map(|order| token_of(&order).to_owned()).collect(),
            is_settled,
        }
    }
}

impl Cell {
    /// Looks at everything after a fault: nothing is lost, nothing was repeated, and the counters
    /// are right. `agents` are all scripted ones that there ever were.
    pub async fn look(&mut self, agents: &[&Alpamon]) {
        let desk = self.desk.clone();
        let _nothing_is_under_way = desk.gate.write().await;
        let seen = desk.seen(agents, false).await;
        self.judge(&seen);
        self.counters_are_right();
    }

    /// Waits until everything that was accepted is over and D1 has all that the objects have, and
    /// looks at it.
    pub async fn settle(mut self, agents: &[&Alpamon]) {
        eventually_within(ENDS_WITHIN, "every command to end", || async {
            // D1's rows: the list can be behind by a second, and here there may be hundreds.
            let open = self.rows("SELECT id FROM commands WHERE handled_at IS NULL");
            if !open.is_empty() {
                sleep(Duration::from_secs(1)).await;
            }
            open.is_empty().then_some(())
        })
        .await;
        eventually("D1 to have everything", || async {
            let of_objects = self.instance().read_objects(
                "ServerLink",
                "SELECT id || ' ' || revision || ' ' || (flushed < revision) FROM commands",
            );
            let of_d1: BTreeSet<String> = self
                .rows("SELECT id || ' ' || revision || ' 0' FROM commands")
                .into_iter()
                .collect();
            (of_objects.into_iter().collect::<BTreeSet<_>>() == of_d1).then_some(())
        })
        .await;
        let seen = self.desk.seen(agents, true).await;
        self.judge(&seen);
        self.counters_are_right();
        for command in &seen.listed {
            *self
                .figures
                .ends
                .entry(command["status"]["text"].as_str().unwrap().to_lowercase())
                .or_insert(0) += 1;
        }
        self.figures.ran = seen.ran.len() + seen.handed.len();
        for asked in self.desk.ledger.lock().unwrap().asked.values() {
            match asked.answer {
                Answer::Accepted(_) => self.figures.accepted += 1,
                Answer::Refused => self.figures.refused += 1,
                Answer::Unknown => self.figures.unanswered += 1,
            }
        }
        self.figures.write();
    }

    /// Notes and asserts that nothing is wrong.
    fn judge(&mut self, seen: &Seen) {
        let findings = self.desk.ledger.lock().unwrap().findings(seen);
        let figures = &mut self.figures;
        let commands = |is_such: fn(&Finding) -> bool| {
            findings
                .iter()
                .filter(|finding| is_such(finding))
                .map(Finding::token)
                .collect::<BTreeSet<_>>()
                .len()
        };
        figures.losses = commands(Finding::is_loss);
        figures.repeats = commands(Finding::is_repeat);
        if !findings.is_empty() {
            figures.write();
        }
        let ledger = self.desk.ledger.lock().unwrap();
        let told = findings.iter().map(|finding| {
            let asked = ledger.asked.get(finding.token());
            let told = asked.map(|asked| format!("asked for at {}, {:?}", asked.at, asked.answer));
            format!("{finding:?}: {}", told.unwrap_or_default())
        });
        assert!(findings.is_empty(), "{:#?} {figures:#?}", told.collect::<Vec<_>>());
    }

    /// A column of text of D1, as it is now.
    fn rows(&self, sql: &str) -> Vec<String> {
        self.instance().read_d1(sql)
    }

    /// The counters that D1 keeps are what its rows come to.
    fn counters_are_right(&self) {
        let wrong = self.rows(
            "SELECT 'all' FROM counted_commands n WHERE total <>
                (SELECT count(*) FROM commands r WHERE r.workspace_id = n.workspace_id AND r.seq <= n.up_to)
            UNION ALL SELECT kind || ' ' || key FROM command_counts c JOIN counted_commands n USING (workspace_id) WHERE c.total <>
                (SELECT count(*) FROM commands r WHERE r.workspace_id = c.workspace_id AND r.seq <= n.up_to
                    AND iif(kind = 'server', r.server_id, CAST(r.requested_by AS TEXT)) = c.key)
            UNION ALL SELECT k.name FROM (SELECT 'server' AS name UNION ALL SELECT 'requester') k WHERE
                (SELECT coalesce(sum(total), 0) FROM command_counts c WHERE c.kind = k.name) <>
                (SELECT count(iif(k.name = 'server', r.server_id, r.requested_by)) FROM commands r
                    JOIN counted_commands n USING (workspace_id) WHERE r.seq <= n.up_to)",
        );
        assert_eq!(wrong, Vec::<String>::new(), "counters that are not what the rows come to");
    }

    /// Waits until the service shows which servers have an agent and which have not.
    pub async fn connections_are(&self, expected: &[(&Value, bool)]) {
        for (server, is_connected) in expected {
            let path = format!("{SERVERS}{}/", server["id"].as_str().unwrap());
            // The agent dials again after up to a minute where it was often cut off.
            eventually_within(ENDS_WITHIN, "the server's connection", || async {
                let shown = self.desk.workspace.admin.get(&path).await.expect(200);
                (shown["is_connected"] == *is_connected).then_some(())
            })
            .await;
        }
    }

    /// Makes servers.
    pub async fn servers<const N: usize>(&self, names: [&str; N]) -> [Value; N] {
        let made = names.map(async |name| self.desk.workspace.server(name).await);
        futures_util::future::join_all(made).await.try_into().unwrap()
    }
}

/// A host with the project's agent, which can be killed and started again with what it remembers.
pub struct Host {
    folder: TempDir,
    process: Option<Process>,
}

impl Host {
    /// A host for a server's agent, which reaches the service at a port. Nothing runs yet.
    pub fn new(workspace: &Workspace, server: &Value, port: u16) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (id, key) = (server["id"].as_str().unwrap(), server["key"].as_str().unwrap());
        let url = format!("http://{}:{port}", workspace.anonymous.host);
        std::fs::write(
            folder.path().join("agent.toml"),
            format!("url = \"{url}\"\nid = \"{id}\"\nkey = \"{key}\"\n"),
        )
        .unwrap();
        Self { folder, process: None }
    }

    /// Starts the agent.
    pub fn start(&mut self) {
        let log = File::options().create(true).append(true).open(self.log_file()).unwrap();
        let mut command = tokio::process::Command::new(setting("FARHAND_AGENT"));
        command.args(["run", "--config"]).arg(self.folder.path().join("agent.toml"));
        self.process =
            Some(Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log)));
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("agent.log")
    }

    /// The number of its process.
    pub fn pid(&mut self) -> i32 {
        self.process.as_mut().unwrap().child().id().unwrap().try_into().unwrap()
    }

    /// Kills it with SIGKILL. What it runs is left as it is.
    pub async fn kill(&mut self) {
        self.process.as_ref().unwrap().signal(Signal::SIGKILL);
        self.dead().await;
    }

    /// Waits until it was killed.
    pub async fn dead(&mut self) {
        self.process.as_mut().unwrap().ended(PATIENCE).await;
        self.process = None;
    }
}
