//! SIGINT (Ctrl-C) and SIGTERM while commands or a batch run: the first signal kills them, the
//! second signal ends farhand.

use std::collections::BTreeMap;
use std::process::exit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::client::{Client, segment};
use crate::error::{Error, Result};
use crate::output::note;

/// The exit code after the second Ctrl-C: 128 + SIGINT.
const EXIT_INTERRUPTED: i32 = 130;

/// What a signal kills.
#[derive(Clone, Copy)]
pub enum KillTarget {
    Command,
    Batch,
}

impl KillTarget {
    fn collection(self) -> &'static str {
        match self {
            Self::Command => "/api/events/commands/",
            Self::Batch => "/api/events/batches/",
        }
    }

    /// The subcommand of farhand that follows a job of this kind.
    fn follow(self) -> &'static str {
        match self {
            Self::Command => "farhand logs -f",
            Self::Batch => "farhand batch show --follow",
        }
    }

    /// The error code of a kill that came after the end.
    fn ended_code(self) -> &'static str {
        match self {
            Self::Command => "COMMAND_ALREADY_HANDLED",
            Self::Batch => "BATCH_ALREADY_ENDED",
        }
    }
}

#[derive(Clone)]
struct RunningJob {
    kind: KillTarget,
    /// Its name in messages: the server of the command, or `Batch`.
    label: String,
}

#[derive(Default)]
struct State {
    is_stopping: bool,
    /// The running commands and batches by their ids.
    jobs: BTreeMap<String, RunningJob>,
}

/// What runs, shared with the thread that handles signals.
#[derive(Clone)]
pub struct Running {
    client: Client,
    state: Arc<Mutex<State>>,
}

impl Running {
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone(), state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles SIGINT and SIGTERM from now on.
    pub fn watch(&self) -> Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM])
            .map_err(|error| Error::local(format!("Cannot handle signals: {error}.")))?;
        let running = self.clone();
        thread::spawn(move || {
            for _ in signals.forever() {
                running.interrupted();
            }
        });
        Ok(())
    }

    fn interrupted(&self) {
        let jobs = {
            let mut state = self.state();
            if state.is_stopping {
                for (id, RunningJob { kind, label }) in &state.jobs {
                    let follow = kind.follow();
                    note(&format!(
                        "{label}: {id} has not ended yet. Follow it with `{follow} {id}`."
                    ));
                }
                exit(EXIT_INTERRUPTED);
            }
            state.is_stopping = true;
            state.jobs.clone()
        };
        note("Killing what runs. Press Ctrl-C again to leave it running.");
        let running = self.clone();
        // The second signal must not wait for these requests.
        thread::spawn(move || {
            for (id, job) in jobs {
                running.kill(&id, &job);
            }
        });
    }

    fn kill(&self, id: &str, job: &RunningJob) {
        let path = format!("{}{}/kill/", job.kind.collection(), segment(id));
        match self.client.post(&path, &serde_json::json!({})) {
            Ok(_) => {}
            Err(error) if error.has_code(job.kind.ended_code()) => {}
            Err(error) => note(&format!("{}: {error}", job.label)),
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.state().is_stopping
    }

    /// Adds a command or a batch that was just created. Kills it if the first signal has already
    /// arrived.
    pub fn add(&self, kind: KillTarget, id: &str, label: &str) {
        let job = RunningJob { kind, label: label.to_owned() };
        let is_stopping = {
            let mut state = self.state();
            state.jobs.insert(id.to_owned(), job.clone());
            state.is_stopping
        };
        if is_stopping {
            self.kill(id, &job);
        }
    }

    /// Removes a command or a batch that has ended.
    pub fn remove(&self, id: &str) {
        self.state().jobs.remove(id);
    }
}
