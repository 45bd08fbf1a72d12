//! Helpers for the tests of the runner.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use farhand_domain::agent::wire::{AgentCommand, Fin};
use farhand_domain::secret::Secret;
use nix::unistd::{User, geteuid};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::config::Service;
use crate::connection::client::Client;
use crate::host::account::AgentAccount;
use crate::host::program::Program;
use crate::host::system_log::SystemLog;
use crate::journal::writer::JournalWriter;
use crate::reports::Report;
use crate::runner::cgroup::Cgroups;
use crate::runner::execute::{StopSignals, execute};
use crate::runner::group::Groups;
use crate::runner::host_settings::HostSettings;
use crate::runner::policy::PolicyFile;
use crate::upgrade::Upgrader;

/// The time limit of every wait. It is much longer than any step takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A host without a policy and without a system log.
pub static HOST: LazyLock<HostSettings> = LazyLock::new(|| HostSettings {
    own: AgentAccount::current(),
    policy: PolicyFile::absent(),
    system_log: SystemLog::new("/no/such/socket".into()),
    cgroups: Cgroups::find(),
});

/// The same host without control groups, so each command has a supervisor.
pub static SUPERVISED: LazyLock<HostSettings> =
    LazyLock::new(|| HostSettings { cgroups: Cgroups::default(), ..HOST.clone() });

/// The hosts to test: with control groups, if they can be created here, and with supervisors.
pub fn hosts() -> impl Iterator<Item = &'static HostSettings> {
    if !HOST.cgroups.is_available() {
        eprintln!("control groups cannot be created here: testing with supervisors only");
    }
    [&*HOST, &*SUPERVISED].into_iter().skip(usize::from(!HOST.cgroups.is_available()))
}

/// An upgrader whose service does not exist.
pub fn upgrader() -> Upgrader {
    let service = Service::parse("http://127.0.0.1:9").unwrap();
    let client = Client::for_server(&service, Uuid::nil(), &Secret::new("key")).unwrap();
    Upgrader::new(client, Program::current(), Uuid::nil())
}

pub fn own_name() -> String {
    User::from_uid(geteuid()).unwrap().unwrap().name
}

pub fn order(line: &str) -> AgentCommand {
    AgentCommand {
        id: Uuid::from_u128(fastrand::u128(..)),
        shell: "system".into(),
        line: line.into(),
        user: own_name(),
        group: String::new(),
        allow_sh: true,
        ..AgentCommand::default()
    }
}

/// Runs an order. Returns its fin and the content of its chunks.
pub async fn run(order: &AgentCommand) -> (Fin, Vec<String>) {
    run_until(order, &never()).await
}

pub fn never() -> StopSignals {
    StopSignals { stopping: CancellationToken::new(), killed: CancellationToken::new() }
}

pub async fn run_until(order: &AgentCommand, stops: &StopSignals) -> (Fin, Vec<String>) {
    run_at(&HOST, order, stops).await
}

pub async fn run_at(
    host: &HostSettings,
    order: &AgentCommand,
    stops: &StopSignals,
) -> (Fin, Vec<String>) {
    let (queue, mut reports) = mpsc::channel(2);
    let chunks = async {
        let mut chunks = Vec::new();
        while let Some(Report::Chunk(chunk)) = reports.recv().await {
            assert_eq!(chunk.seq as usize, chunks.len());
            chunks.push(chunk.content);
        }
        chunks
    };
    let execute = async {
        let queue = queue;
        execute(order, host, &Groups::default(), stops, &JournalWriter::default(), &queue).await
    };
    tokio::time::timeout(PATIENCE, async { tokio::join!(execute, chunks) })
        .await
        .expect("the command does not end")
}

/// Runs a line. Returns its exit code and its result.
pub async fn result(line: &str) -> (i64, String) {
    let (fin, chunks) = run(&order(line)).await;
    let (code, result) = (fin.exit_code.unwrap(), fin.result.unwrap());
    assert_eq!(fin.success, code == 0);
    assert_eq!(chunks.concat(), result);
    (code, result)
}

pub async fn refusal(order: &AgentCommand) -> (i64, String) {
    let (fin, chunks) = run(order).await;
    assert!(!fin.success && chunks.is_empty() && fin.result.as_deref() == Some(""));
    (fin.exit_code.unwrap(), fin.reason.unwrap())
}

pub async fn eventually(condition: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "the condition did not become true");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Whether a process runs. A zombie does not run.
pub fn is_running(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}
