//! The agent's life: check in, serve, drain (agent-protocol 2 and 6).

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
use crate::journal::file::Stage;
use crate::journal::host_journal::HostJournal;
#[cfg(test)]
use crate::journal::writer;
use crate::journal::writer::JournalWriter;
use crate::reports::Reports;
use crate::runner::cgroup::Cgroups;
use crate::runner::group::{GRACE, Groups};
use crate::runner::policy::PolicyFile;
use crate::runner::site::Site;
use crate::runner::{Runner, Shutdown};
use crate::service::checkin;

/// How long stopping what runs may take, beyond [`GRACE`].
const STOPPING: Duration = Duration::from_secs(3);
/// How long unsent reports are tried at the end.
const FLUSHING: Duration = Duration::from_secs(5);
/// How long a signal takes at most from the kernel to who waits for it.
const SETTLED: Duration = Duration::from_millis(50);

/// How long the end may take at most, beyond the time that commands have to end by themselves.
#[cfg(test)]
pub const LONGEST_END: Duration = Duration::from_secs(
    GRACE.as_secs()
        + STOPPING.as_secs()
        + websocket::CLOSING.as_secs()
        + FLUSHING.as_secs()
        + writer::PATIENCE.as_secs(),
);

/// How the agent ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// It drained.
    Drained,
    /// A second signal came, so it did not wait.
    AtOnce,
    /// It drained, and should be started again.
    Restart,
}

/// Runs until a signal or the service ends it. Running commands have `patience` to end by
/// themselves then; before a restart those that wait have it too. `program` is what a restart would
/// start.
///
/// # Errors
/// What keeps the agent from starting, in one line.
pub async fn run(
    settings: Settings,
    mut patience: Duration,
    program: Program,
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
        log::info!("not root: commands run as user number {} only", own.uid);
    }
    let (shutdown, groups, flushing) =
        (Shutdown::default(), Groups::default(), CancellationToken::new());
    let (journal, remembered) = open_journal(settings.state_dir).await;
    let reports = Reports::new(client.clone(), journal.clone(), flushing.clone());
    let uses_https = settings.service.tls;
    let policy = PolicyFile::new(settings.policy, uses_https);
    let site = Site {
        own,
        policy,
        host_journal: HostJournal::new(settings.syslog),
        cgroups: Cgroups::find(),
    };
    if !site.cgroups.is_there() {
        log::info!("no control groups: each command gets a supervisor instead");
    }
    let runner = Runner::new(
        settings.max_running,
        site,
        reports.clone(),
        groups.clone(),
        shutdown.clone(),
        program,
    );
    runner.recover(remembered);
    let runner = Arc::new(runner);

    let serving = serve(client, runner.clone(), shutdown.leaving.clone());
    let mut serving = tokio::spawn(serving);
    let (mut is_over, mut restarts) = (false, false);
    tokio::select! {
        _ = &mut serving => {
            is_over = true;
            log::info!("the service asked the agent to exit");
        }
        signal = next_signal() => log::info!("{signal}: no more commands are taken, and those that run have {} s", patience.as_secs()),
        () = shutdown.restarting.cancelled() => {
            log::info!("to be restarted: no more commands are taken, and those that came have {} s", patience.as_secs());
            restarts = true;
        }
    }
    shutdown.leaving.cancel();
    if restarts {
        let calm = async {
            // What the service was just sending is still taken.
            let _ = (&mut serving).await;
            is_over = true;
            runner.idle().await;
        };
        tokio::select! {
            calm = timeout(patience, calm) => if calm.is_err() {
                // They had their time.
                patience = Duration::ZERO;
            },
            signal = next_signal() => {
                log::info!("{signal}: the agent exits, and is not restarted");
                restarts = false;
            }
        }
    }
    shutdown.draining.cancel();
    let drain = async {
        if timeout(patience, runner.finished()).await.is_err() {
            log::warn!("commands still run, and are stopped");
            shutdown.stopping.cancel();
            if timeout(GRACE + STOPPING, runner.finished()).await.is_err() {
                log::error!("some commands could not be stopped");
            }
        }
        if !is_over {
            // It is closing its socket, which does not take long.
            let _ = (&mut serving).await;
        }
        flushing.cancel();
        if timeout(FLUSHING, reports.finished()).await.is_err() {
            let fate =
                if journal.is_durable() { "are kept for the next start" } else { "are lost" };
            log::error!(
                "the reports of {} commands could not be sent and {fate}",
                reports.unsent()
            );
        }
        // Else the next start would send once more what was sent just now.
        journal.flush().await;
    };
    let mut drain = pin!(drain);
    let exit = loop {
        tokio::select! {
            () = &mut drain => break if restarts { Exit::Restart } else { Exit::Drained },
            signal = next_signal() => {
                if !restarts {
                    log::warn!("{signal} again: exiting at once");
                    break Exit::AtOnce;
                }
                log::info!("{signal}: the agent exits, and is not restarted");
                restarts = false;
            }
        }
    };
    // Nothing that the agent ran outlives it, except what a command left in the background on
    // purpose.
    groups.kill();
    if exit == Exit::Restart {
        for kind in [Signal::SIGTERM, Signal::SIGINT] {
            // SAFETY: the usual effect of a signal is no code of this program.
            let _ = unsafe { nix::sys::signal::signal(kind, SigHandler::SigDfl) };
        }
        // From here on a signal ends the process, which has nothing left to do. One that came just
        // before is not lost.
        if timeout(SETTLED, next_signal()).await.is_ok() {
            log::info!("the agent exits, and is not restarted");
            return Ok(Exit::Drained);
        }
    }
    Ok(exit)
}

/// Opens the journal and returns its commands. If that fails, the agent works without a journal.
async fn open_journal(directory: PathBuf) -> (JournalWriter, Vec<(Uuid, Stage)>) {
    let shown = directory.display().to_string();
    // It may wait for an agent that is just being killed.
    let opened = tokio::task::spawn_blocking(move || JournalWriter::open(&directory)).await;
    match opened.map_err(|error| error.to_string()).flatten() {
        Ok(opened) => {
            log::info!("commands are remembered in {shown}");
            opened
        }
        Err(error) => {
            log::error!("commands are not remembered over a restart: {error}");
            (JournalWriter::default(), Vec::new())
        }
    }
}

/// Checks in, then keeps the heartbeat and the WebSocket going.
async fn serve(
    client: Client,
    runner: Arc<Runner<Client>>,
    leaving: CancellationToken,
) -> Finished {
    let interval = tokio::select! {
        interval = checkin::check_in(&client) => interval,
        () = leaving.cancelled() => return Finished::Draining,
    };
    let heartbeat = async {
        match interval {
            Some(interval) => checkin::heartbeat(&client, interval).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        over = websocket::run(&client, &leaving, &*runner) => over,
        () = heartbeat => Finished::Draining,
    }
}
