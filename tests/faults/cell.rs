//! A service with agents into which faults are injected, the workload during faults, and the checks
//! after them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farhand_sql::{batch_counts, counted_targets};
use farhand_tests::agents::own_account;
use farhand_tests::alpamon::{AgentBehaviour, Alpamon, CommandScript};
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
use super::ledger::{
    Finding, Ledger, Observation, RequestOutcome, RequestedCommand, has_ended, token_of,
};

/// Time limit for every accepted command to end. Stuck commands need a minute, a reconnecting agent
/// up to another minute, and a loaded machine more.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(300);
/// The time limit of each command, in seconds.
const COMMAND_TIMEOUT_SECONDS: u32 = 10;
/// How many commands are read concurrently during a check.
const CONCURRENT_READS: usize = 8;
/// How many times a request with an `Idempotency-Key` is sent until it gets a response.
const MAX_ATTEMPTS: usize = 480;

/// A service with its own state folder, and the workload for it.
pub struct Cell {
    instance: Option<Instance>,
    state: TempDir,
    variables: Vec<(String, String)>,
    port: u16,
    /// Requests commands, even while the service is down.
    pub workload: Arc<Workload>,
    figures: Figures,
}

/// Requests commands, and records the outcomes.
pub struct Workload {
    /// The workspace of all commands.
    pub workspace: Workspace,
    ledger: Mutex<Ledger>,
    tokens: AtomicUsize,
    /// Each request holds this for reading, and a check holds it for writing. A command that is
    /// accepted during a check would look lost.
    gate: tokio::sync::RwLock<()>,
    /// Ids of commands that an earlier check has read individually.
    already_read: tokio::sync::Mutex<BTreeSet<String>>,
    /// The folder in which the commands' processes record that they ran.
    run_folder: TempDir,
}

/// How a command is requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandKind {
    /// Delivered now, or refused if the agent is offline.
    Immediate,
    /// Queued if the agent is offline.
    Queued,
    /// Scheduled after some seconds.
    After(i64),
    /// Retried with an `Idempotency-Key` until the service responds.
    Keyed,
    /// Queued if the agent is offline, and runs for some seconds.
    Long,
}

impl Cell {
    /// Starts a service with additional variables. `kind` names the row of the figures.
    pub async fn start(kind: &'static str, variables: &[(&str, &str)]) -> Self {
        // The load is more than a workspace's quota.
        let variables = [variables, &[("QUOTA_BYTES_PER_DAY", "1000000000000")]].concat();
        let (instance, state) = Instance::new_with(&variables).await;
        let workspace = Workspace::create_with(&instance.operator(), "faults").await;
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            port: instance.port(),
            instance: Some(instance),
            state,
            variables: variables.iter().map(owned).collect(),
            workload: Arc::new(Workload {
                workspace,
                ledger: Mutex::default(),
                tokens: AtomicUsize::default(),
                gate: tokio::sync::RwLock::default(),
                already_read: tokio::sync::Mutex::default(),
                run_folder: tempfile::tempdir().unwrap(),
            }),
            figures: Figures::new(kind),
        }
    }

    pub fn instance(&self) -> &Instance {
        self.instance.as_ref().unwrap()
    }

    pub fn state(&self) -> &Path {
        self.state.path()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Counts an injected fault.
    pub fn count_fault(&mut self) {
        self.figures.faults += 1;
    }

    /// Records a target of a batch that ended in a state, and how often its command was delivered.
    /// A target counts as an accepted command.
    pub fn count_target(&mut self, state: &str, deliveries: usize) {
        self.figures.accepted += 1;
        self.figures.ran += deliveries;
        self.figures.repeats += usize::from(deliveries > 1);
        *self.figures.ends.entry(state.to_owned()).or_insert(0) += 1;
    }

    /// Compares the counters in D1 with the rows for the last time, and writes the figures.
    pub fn finish(self) {
        self.assert_counters_match_rows();
        self.figures.write();
    }

    /// Kills the service, including workerd, with SIGKILL.
    pub async fn kill(&mut self) {
        self.instance.take().unwrap().kill().await;
    }

    /// Starts the service again on the same port.
    pub async fn restart(&mut self) {
        let variables: Vec<_> =
            self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        self.instance = Some(Instance::restart_at(self.port, self.state.path(), &variables).await);
    }

    /// Connects a scripted agent with a fast clock. Its commands write their line.
    pub async fn connect_scripted(&self, server: &Value, is_held: bool) -> Alpamon {
        let runs = move |order: &Value| CommandScript {
            is_held,
            ..CommandScript::writing([order["line"].as_str().unwrap_or_default()])
        };
        let behaviour = AgentBehaviour {
            second: Duration::from_millis(200),
            runs: Box::new(runs),
            ..AgentBehaviour::default()
        };
        Alpamon::connect(&self.workload.workspace, server, behaviour).await
    }
}

impl Workload {
    /// The line of a command that appends its token to a file, and writes some output.
    fn line(&self, token: &str, kind: CommandKind) -> String {
        let seconds = if kind == CommandKind::Long { "5" } else { "0.3" };
        format!(
            "echo {token} >> {}; echo begun; sleep {seconds}; echo done",
            self.run_folder.path().join("ran").display()
        )
    }

    pub fn has_run(&self, token: &str) -> bool {
        self.ran().iter().any(|ran| ran == token)
    }

    fn ran(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.run_folder.path().join("ran")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Requests a command and records the outcome. Returns its token, and its id if it was
    /// accepted.
    pub async fn request(&self, server: &Value, kind: CommandKind) -> (String, Option<String>) {
        let token = format!("t{}", self.tokens.fetch_add(1, Ordering::Relaxed));
        let mut body = json!({
            "server": server["id"], "line": self.line(&token, kind), "username": own_account(), "timeout": COMMAND_TIMEOUT_SECONDS,
        });
        match kind {
            CommandKind::Immediate => {}
            CommandKind::Queued | CommandKind::Keyed | CommandKind::Long => {
                body["on_offline"] = json!("queue")
            }
            CommandKind::After(seconds) => {
                body["scheduled_at"] = json!(now().plus_seconds(seconds).to_string())
            }
        }
        // Recorded before the request is sent, because the response may be lost.
        let requested = RequestedCommand {
            server: server["id"].as_str().unwrap().to_owned(),
            at: now(),
            answer: RequestOutcome::Unknown,
        };
        self.ledger.lock().unwrap().requested.insert(token.clone(), requested);
        let key = (kind == CommandKind::Keyed).then(|| unique("key"));
        let tries = if key.is_some() { MAX_ATTEMPTS } else { 1 };
        let mut answer = RequestOutcome::Unknown;
        for _ in 0..tries {
            let request_in_progress = self.gate.read().await;
            answer = self.send(&body, key.as_deref()).await;
            self.ledger.lock().unwrap().requested.get_mut(&token).unwrap().answer = answer.clone();
            drop(request_in_progress);
            if answer != RequestOutcome::Unknown {
                break;
            }
            // The service may be down for a while.
            if key.is_some() {
                sleep(Duration::from_millis(250)).await;
            }
        }
        let id = if let RequestOutcome::Accepted(id) = answer { Some(id) } else { None };
        (token, id)
    }

    async fn send(&self, body: &Value, key: Option<&str>) -> RequestOutcome {
        let mut request =
            self.workspace.admin.request("POST", COMMANDS).json(body).timeout(PATIENCE);
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        let Ok(response) = request.send().await else { return RequestOutcome::Unknown };
        let status = response.status().as_u16();
        let Ok(body) = response.json::<Value>().await else { return RequestOutcome::Unknown };
        match status {
            201 => RequestOutcome::Accepted(body["id"].as_str().unwrap().to_owned()),
            // An earlier attempt was cut off, and the service does not know its outcome yet.
            409 if body["code"] == "IDEMPOTENCY_KEY_IN_USE" => RequestOutcome::Unknown,
            400..500 => panic!("{status}: {body}"),
            503 if body["code"] == "SERVER_NOT_CONNECTED" => RequestOutcome::Refused,
            _ => RequestOutcome::Unknown,
        }
    }

    /// Requests `count` commands, four concurrently: every kind in turn, on every server.
    pub async fn run(&self, servers: &[&Value], count: usize) {
        const KINDS: [CommandKind; 4] = [
            CommandKind::Immediate,
            CommandKind::Queued,
            CommandKind::After(1),
            CommandKind::Keyed,
        ];
        let requested = (0..count).map(|number| {
            self.request(servers[number % servers.len()], KINDS[number / servers.len() % 4])
        });
        stream::iter(requested).buffer_unordered(4).for_each(async |_| {}).await;
    }

    /// Waits until `count` commands have been requested.
    pub async fn wait_until_requested(&self, count: usize) {
        while self.tokens.load(Ordering::Relaxed) < count {
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// How many commands have been requested.
    pub fn requested(&self) -> usize {
        self.tokens.load(Ordering::Relaxed)
    }

    /// Reads one command, or `None` for a 404.
    pub async fn read(&self, id: &str) -> Option<Value> {
        let reply = self.workspace.admin.get(&format!("{COMMANDS}{id}/")).await;
        (reply.status != 404).then(|| reply.expect(200))
    }

    /// All commands in the list, page by page. Asserts that the list's own count matches.
    async fn listed(&self) -> Vec<Value> {
        let mut found = Vec::new();
        for page in 1.. {
            let path = format!("{COMMANDS}?ordering=added_at&page_size=100&page={page}");
            let list = self.workspace.admin.get(&path).await.expect(200);
            found.extend(list["results"].as_array().unwrap().clone());
            if list["next"].is_null() {
                assert_eq!(
                    list["count"],
                    found.len(),
                    "the list's count is the number of its items"
                );
                break;
            }
        }
        found
    }

    /// Waits until a command has ended.
    pub async fn wait_until_ended(&self, id: &str) -> Value {
        eventually_within(SETTLE_TIMEOUT, "the command's end", || async {
            self.read(id).await.filter(has_ended)
        })
        .await
    }

    /// Everything that can be observed of the requested commands. Commands that an earlier check
    /// has read individually are taken from the list, except in the last check.
    async fn observe(&self, agents: &[&Alpamon], is_settled: bool) -> Observation {
        let listed = self.listed().await;
        let mut by_id: BTreeMap<String, Option<Value>> = BTreeMap::new();
        let mut already_read = self.already_read.lock().await;
        if !is_settled {
            let earlier = listed
                .iter()
                .filter(|command| already_read.contains(command["id"].as_str().unwrap()));
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
        let read: Vec<_> = stream::iter(read).buffer_unordered(CONCURRENT_READS).collect().await;
        by_id.extend(read);
        already_read.extend(ids);
        let orders = agents.iter().flat_map(|agent| agent.log().delivered);
        Observation {
            by_id,
            listed,
            ran: self.ran(),
            delivered: orders.map(|order| token_of(&order).to_owned()).collect(),
            is_settled,
        }
    }
}

impl Cell {
    /// Asserts that no command was lost or repeated, and that the counters are correct. `agents`
    /// are all scripted agents that were ever connected.
    pub async fn check(&mut self, agents: &[&Alpamon]) {
        let workload = self.workload.clone();
        let _no_request_is_in_progress = workload.gate.write().await;
        let observed = workload.observe(agents, false).await;
        self.assert_no_findings(&observed);
        self.assert_counters_match_rows();
    }

    /// Waits until every accepted command has ended, and until D1 has every change. Then does the
    /// last check.
    pub async fn settle_and_check(mut self, agents: &[&Alpamon]) {
        eventually_within(SETTLE_TIMEOUT, "every command to end", || async {
            // This reads D1 because the list may be a second behind.
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
        let observed = self.workload.observe(agents, true).await;
        self.assert_no_findings(&observed);
        self.assert_counters_match_rows();
        for command in &observed.listed {
            *self
                .figures
                .ends
                .entry(command["status"]["text"].as_str().unwrap().to_lowercase())
                .or_insert(0) += 1;
        }
        self.figures.ran = observed.ran.len() + observed.delivered.len();
        for requested in self.workload.ledger.lock().unwrap().requested.values() {
            match requested.answer {
                RequestOutcome::Accepted(_) => self.figures.accepted += 1,
                RequestOutcome::Refused => self.figures.refused += 1,
                RequestOutcome::Unknown => self.figures.unanswered += 1,
            }
        }
        self.figures.write();
    }

    /// Records the figures, and asserts that there are no findings.
    fn assert_no_findings(&mut self, observed: &Observation) {
        let findings = self.workload.ledger.lock().unwrap().findings(observed);
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
        let ledger = self.workload.ledger.lock().unwrap();
        let details = findings.iter().map(|finding| {
            let requested = ledger.requested.get(finding.token());
            let details = requested
                .map(|requested| format!("requested at {}, {:?}", requested.at, requested.answer));
            format!("{finding:?}: {}", details.unwrap_or_default())
        });
        assert!(findings.is_empty(), "{:#?} {figures:#?}", details.collect::<Vec<_>>());
    }

    /// Reads a text column from D1.
    fn rows(&self, sql: &str) -> Vec<String> {
        self.instance().read_d1(sql)
    }

    /// Asserts that the counters in D1 agree with the rows.
    pub fn assert_counters_match_rows(&self) {
        let of_batches = concat!(
            "SELECT b.id FROM batches b WHERE b.finished_at IS NULL AND ",
            batch_counts!(),
            " IS NOT ",
            counted_targets!(),
            " UNION ALL SELECT batch_id FROM batch_counts n
                WHERE NOT EXISTS (SELECT 1 FROM batches b WHERE b.id = n.batch_id AND b.finished_at IS NULL)"
        );
        assert_eq!(self.rows(of_batches), Vec::<String>::new(), "counts of batches");
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
        assert_eq!(wrong, Vec::<String>::new(), "counters that differ from the rows");
    }

    /// Waits until the service shows the expected connection of each server.
    pub async fn wait_for_connections(&self, expected: &[(&Value, bool)]) {
        for (server, is_connected) in expected {
            let path = format!("{SERVERS}{}/", server["id"].as_str().unwrap());
            // An agent that was often cut off waits up to a minute before it reconnects.
            eventually_within(SETTLE_TIMEOUT, "the server's connection", || async {
                let shown = self.workload.workspace.admin.get(&path).await.expect(200);
                (shown["is_connected"] == *is_connected).then_some(())
            })
            .await;
        }
    }

    pub async fn create_servers<const N: usize>(&self, names: [&str; N]) -> [Value; N] {
        let made = names.map(async |name| self.workload.workspace.server(name).await);
        futures_util::future::join_all(made).await.try_into().unwrap()
    }
}

/// A host with the project's agent, which keeps its journal across restarts.
pub struct AgentHost {
    folder: TempDir,
    process: Option<Process>,
}

impl AgentHost {
    /// A host for a server's agent that connects to a port. The agent is not started yet.
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

    pub fn pid(&mut self) -> i32 {
        self.process.as_mut().unwrap().child().id().unwrap().try_into().unwrap()
    }

    /// Kills the agent with SIGKILL. Its commands' processes keep running.
    pub async fn kill(&mut self) {
        self.process.as_ref().unwrap().signal(Signal::SIGKILL);
        self.wait_for_exit().await;
    }

    /// Waits until the killed agent has ended.
    pub async fn wait_for_exit(&mut self) {
        self.process.as_mut().unwrap().wait_for_exit(PATIENCE).await;
        self.process = None;
    }
}
