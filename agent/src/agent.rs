//! The run of the agent: it checks in, runs commands, and shuts down (agent-protocol 2 and 6).

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{SigHandler, Signal};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::config::Settings;
use crate::connection::client::Client;
use crate::connection::websocket::{self, Finished};
use crate::host::account::AgentAccount;
use crate::host::facts;
use crate::host::program::Program;
use crate::host::system_log::SystemLog;
use crate::journal::file::Stage;
#[cfg(test)]
use crate::journal::writer;
use crate::journal::writer::JournalWriter;
use crate::reports::Reports;
use crate::runner::cgroup::Cgroups;
use crate::runner::group::{Groups, KILL_DELAY};
use crate::runner::host_settings::HostSettings;
use crate::runner::policy::PolicyFile;
use crate::runner::{Runner, Shutdown};
use crate::service::checkin;
use crate::upgrade::Upgrader;
use crate::upgrade::program_file::ProgramFile;

/// The time limit for stopping running commands, in addition to [`KILL_DELAY`].
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// The time limit for sending the remaining reports before exit.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a new program may take to connect after an upgrade, before the previous one returns.
const TRIAL: Duration = Duration::from_secs(60);
/// The maximum time from a signal's arrival at the process until a waiting task receives it.
const SIGNAL_DELIVERY_TIME: Duration = Duration::from_millis(50);

/// The maximum duration of a shutdown, in addition to the time that commands get to end by
/// themselves.
#[cfg(test)]
pub const MAX_SHUTDOWN: Duration = Duration::from_secs(
    KILL_DELAY.as_secs()
        + STOP_TIMEOUT.as_secs()
        + websocket::CLOSE_TIMEOUT.as_secs()
        + FLUSH_TIMEOUT.as_secs()
        + writer::DISK_TIMEOUT.as_secs(),
);

/// How the agent's run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// All commands have ended.
    Drained,
    /// A second signal arrived during the shutdown, so the agent did not wait for commands.
    Immediately,
    /// All commands have ended. The caller replaces this process with the program on disk.
    Restart,
}

/// Runs until a signal or the service ends it. Then running commands get `drain_time` to end by
/// themselves. Before a restart, waiting commands get `drain_time` too. The built-ins `restart` and
/// `upgrade` start and replace `program`. `trial` is set at the first start after an upgrade.
///
/// # Errors
/// The reason why the agent cannot start, in one line.
pub async fn run(
    settings: Settings,
    mut drain_time: Duration,
    program: Program,
    trial: Option<ProgramFile>,
) -> Result<Exit, String> {
    let listen = |kind| signal(kind).map_err(|error| format!("cannot listen for signals: {error}"));
    let (mut terminate, mut interrupt) =
        (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let mut next_signal = async || {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    };
    let client = Client::new(&settings)?;
    let own = AgentAccount::current();
    log::info!("version {}, for server {} of {}", facts::VERSION, settings.id, client.service());
    if !own.uid.is_root() {
        log::info!("not root: commands run as user {} only", own.uid);
    }
    let (shutdown, groups, flushing) =
        (Shutdown::default(), Groups::default(), CancellationToken::new());
    let (journal, stored_commands) = open_journal(settings.state_dir).await;
    let reports = Reports::new(client.clone(), journal.clone(), flushing.clone());
    let uses_https = settings.service.tls;
    let policy = PolicyFile::new(settings.policy, uses_https).required(settings.require_policy);
    let current = policy.clone();
    // Does not delay the start, because account databases can be on the network.
    tokio::task::spawn_blocking(move || {
        if let Err(why) = current.read() {
            log::warn!("{why}");
        }
    });
    let host = HostSettings {
        own,
        policy: policy.clone(),
        system_log: SystemLog::new(settings.syslog),
        cgroups: Cgroups::find(),
    };
    if !host.cgroups.is_available() {
        log::info!("no control groups: each command gets a supervisor instead");
    }
    let runner = Runner::new(
        settings.max_running,
        host,
        reports.clone(),
        groups.clone(),
        shutdown.clone(),
        Upgrader::new(client.clone(), program, settings.id),
    );
    runner.recover(stored_commands);
    let runner = Arc::new(runner);

    let connected = CancellationToken::new();
    let serving =
        serve(client, policy, runner.clone(), shutdown.leaving.clone(), connected.clone());
    let mut serving = tokio::spawn(serving);
    let (mut is_disconnected, mut restarts) = (false, false);
    tokio::select! {
        _ = &mut serving => {
            is_disconnected = true;
            log::info!("the service asked the agent to exit");
        }
        signal = next_signal() => log::info!("{signal}: no more commands are accepted; running commands have {} s to end", drain_time.as_secs()),
        () = shutdown.restarting.cancelled() => {
            log::info!("restart: no more commands are accepted; commands that arrived have {} s to end", drain_time.as_secs());
            restarts = true;
        }
        () = fail_trial(trial, &connected) => restarts = true,
    }
    shutdown.leaving.cancel();
    if restarts {
        let idle = async {
            // Waits for the WebSocket to close, because commands that the service has already sent
            // are still accepted.
            let _ = (&mut serving).await;
            is_disconnected = true;
            runner.idle().await;
        };
        tokio::select! {
            idle = timeout(drain_time, idle) => if idle.is_err() {
                // The commands have used `drain_time`.
                drain_time = Duration::ZERO;
            },
            signal = next_signal() => {
                log::info!("{signal}: the agent exits, and is not restarted");
                restarts = false;
            }
        }
    }
    shutdown.draining.cancel();
    let drain = async {
        if timeout(drain_time, runner.finished()).await.is_err() {
            log::warn!("commands still run and will be stopped");
            shutdown.stopping.cancel();
            if timeout(KILL_DELAY + STOP_TIMEOUT, runner.finished()).await.is_err() {
                log::error!("some commands could not be stopped");
            }
        }
        if !is_disconnected {
            // The task closes its WebSocket, which takes at most `CLOSE_TIMEOUT`.
            let _ = (&mut serving).await;
        }
        flushing.cancel();
        if timeout(FLUSH_TIMEOUT, reports.finished()).await.is_err() {
            let fate =
                if journal.is_durable() { "are kept for the next start" } else { "are lost" };
            log::error!(
                "the reports of {} commands could not be sent and {fate}",
                reports.unsent()
            );
        }
        // Without this, the next agent would send fins again that the service has accepted.
        journal.flush().await;
    };
    let mut drain = pin!(drain);
    let exit = loop {
        tokio::select! {
            () = &mut drain => break if restarts { Exit::Restart } else { Exit::Drained },
            signal = next_signal() => {
                if !restarts {
                    log::warn!("{signal} again: exiting immediately");
                    break Exit::Immediately;
                }
                log::info!("{signal}: the agent exits, and is not restarted");
                restarts = false;
            }
        }
    };
    // No process of a running command outlives the agent. Background processes of ended commands
    // may.
    groups.kill();
    if exit == Exit::Restart {
        for kind in [Signal::SIGTERM, Signal::SIGINT] {
            // SAFETY: the default action of a signal runs no code of this program.
            let _ = unsafe { nix::sys::signal::signal(kind, SigHandler::SigDfl) };
        }
        // From here on, a signal ends the process. A signal that arrived just before cancels the
        // restart.
        if timeout(SIGNAL_DELIVERY_TIME, next_signal()).await.is_ok() {
            log::info!("the agent exits, and is not restarted");
            return Ok(Exit::Drained);
        }
    }
    Ok(exit)
}

/// Waits until a new program is connected, and deletes the previous one. Returns only if it does
/// not connect within [`TRIAL`]. Then the previous program is in its place again.
async fn fail_trial(trial: Option<ProgramFile>, connected: &CancellationToken) {
    if let Some(file) = trial {
        if timeout(TRIAL, connected.cancelled()).await.is_ok() {
            file.keep_new();
        } else {
            log::error!(
                "this version did not connect within {} s: the previous version returns",
                TRIAL.as_secs()
            );
            match file.go_back() {
                Ok(()) => return,
                Err(error) => log::error!("the previous version cannot return: {error}"),
            }
        }
    }
    std::future::pending().await
}

/// Opens the journal and returns it with its commands. If that fails, the agent works without a
/// journal.
async fn open_journal(directory: PathBuf) -> (JournalWriter, Vec<(Uuid, Stage)>) {
    let shown = directory.display().to_string();
    // Blocks, because `open` retries while a killed agent still holds the lock.
    let opened = tokio::task::spawn_blocking(move || JournalWriter::open(&directory)).await;
    match opened.map_err(|error| error.to_string()).flatten() {
        Ok(opened) => {
            log::info!("the state is kept in {shown}");
            opened
        }
        Err(error) => {
            log::error!("commands are not remembered across a restart: {error}");
            (JournalWriter::default(), Vec::new())
        }
    }
}

/// Checks in, then sends heartbeats and keeps the WebSocket open.
async fn serve(
    client: Client,
    policy: PolicyFile,
    runner: Arc<Runner<Client>>,
    leaving: CancellationToken,
    connected: CancellationToken,
) -> Finished {
    let mut reported = checkin::ReportedPolicy::new(policy);
    let interval = tokio::select! {
        interval = checkin::check_in(&client, &mut reported) => interval,
        () = leaving.cancelled() => return Finished::Draining,
    };
    let heartbeat = async {
        match interval {
            Some(interval) => checkin::heartbeat(&client, interval, &mut reported).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        finished = websocket::run(&client, &leaving, &connected, &*runner) => finished,
        () = heartbeat => Finished::Draining,
    }
}
