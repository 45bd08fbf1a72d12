//! The agent's life: check in, serve, drain (agent-protocol 2 and 6).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::account::Own;
use crate::client::Client;
use crate::config::Settings;
use crate::group::{GRACE, Groups};
use crate::journal::Stage;
use crate::link::{self, Over};
use crate::memory::Memory;
use crate::reports::Reports;
use crate::run::{Ending, Runner};
use crate::{checkin, host};

/// How long stopping what runs may take, beyond [`GRACE`].
const STOPPING: Duration = Duration::from_secs(3);
/// How long unsent reports are tried at the end.
const FLUSHING: Duration = Duration::from_secs(5);

/// How the agent ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// It drained.
    Drained,
    /// It was told a second time, and did not wait.
    AtOnce,
}

/// Runs until a signal or the service ends it. Running commands have `patience` to end by themselves then.
///
/// # Errors
/// What keeps the agent from starting, in one line.
pub async fn run(settings: Settings, patience: Duration) -> Result<Exit, String> {
    let listen = |kind| signal(kind).map_err(|error| format!("cannot listen for signals: {error}"));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let mut told = async || {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    };
    let client = Client::new(&settings)?;
    let own = Own::current();
    log::info!("version {}, for server {} of {}", host::VERSION, settings.id, client.service());
    if !own.uid.is_root() {
        log::info!("not root: commands run as user number {} only", own.uid);
    }
    let (ending, groups, flushing) = (Ending::default(), Groups::default(), CancellationToken::new());
    let (memory, remembered) = remember(settings.state_dir).await;
    let reports = Reports::new(client.clone(), memory.clone(), flushing.clone());
    let runner = Runner::new(settings.max_running, own, reports.clone(), groups.clone(), ending.clone());
    runner.recover(remembered);
    let runner = Arc::new(runner);

    let serving = serve(client, runner.clone(), ending.draining.clone());
    let mut serving = tokio::spawn(serving);
    let mut is_over = false;
    tokio::select! {
        _ = &mut serving => {
            is_over = true;
            log::info!("the service asked the agent to exit");
        }
        signal = told() => log::info!("{signal}: no more commands are taken, and those that run have {} s", patience.as_secs()),
    }
    ending.draining.cancel();
    let drain = async {
        if timeout(patience, runner.finished()).await.is_err() {
            log::warn!("commands still run, and are stopped");
            ending.stopping.cancel();
            if timeout(GRACE + STOPPING, runner.finished()).await.is_err() {
                log::error!("some commands could not be stopped");
            }
        }
        if !is_over {
            // It closes its socket meanwhile, and does not take long.
            let _ = (&mut serving).await;
        }
        flushing.cancel();
        if timeout(FLUSHING, reports.finished()).await.is_err() {
            let fate = if memory.is_sound() { "are kept for the next start" } else { "are lost" };
            log::error!("the reports of {} commands could not be sent and {fate}", reports.unsent());
        }
        // Else the next start would send once more what was sent just now.
        memory.flush().await;
    };
    let exit = tokio::select! {
        () = drain => Exit::Drained,
        signal = told() => {
            log::warn!("{signal} again: exiting at once");
            Exit::AtOnce
        }
    };
    // Nothing that the agent ran outlives it, except what a command left in the background on purpose.
    groups.kill();
    Ok(exit)
}

/// Opens the memory; tells what is in it. Without one the agent works all the same.
async fn remember(directory: PathBuf) -> (Memory, Vec<(Uuid, Stage)>) {
    let shown = directory.display().to_string();
    // It may wait for an agent that is just being killed.
    let opened = tokio::task::spawn_blocking(move || Memory::open(&directory)).await;
    match opened.map_err(|error| error.to_string()).flatten() {
        Ok(opened) => {
            log::info!("commands are remembered in {shown}");
            opened
        }
        Err(error) => {
            log::error!("commands are not remembered over a restart: {error}");
            (Memory::default(), Vec::new())
        }
    }
}

/// Checks in, then keeps the heartbeat and the WebSocket going.
async fn serve(client: Client, runner: Arc<Runner<Client>>, draining: CancellationToken) -> Over {
    let interval = tokio::select! {
        interval = checkin::check_in(&client) => interval,
        () = draining.cancelled() => return Over::Draining,
    };
    let heartbeat = async {
        match interval {
            Some(interval) => checkin::heartbeat(&client, interval).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        over = link::run(&client, &draining, &*runner) => over,
        () = heartbeat => Over::Draining,
    }
}
