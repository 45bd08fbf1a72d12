//! SIGINT (Ctrl-C) and SIGTERM while commands run: the first signal kills the commands, the second
//! signal ends farhand.

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

#[derive(Default)]
struct State {
    is_stopping: bool,
    /// Maps the id of each running command to the name of its server.
    commands: BTreeMap<String, String>,
}

/// The running commands, shared with the thread that handles signals.
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
        let commands = {
            let mut state = self.state();
            if state.is_stopping {
                for (id, server) in &state.commands {
                    note(&format!(
                        "{server}: {id} has not ended yet. Follow it with `farhand logs -f {id}`."
                    ));
                }
                exit(EXIT_INTERRUPTED);
            }
            state.is_stopping = true;
            state.commands.clone()
        };
        note("Killing what runs. Press Ctrl-C again to leave it running.");
        let running = self.clone();
        // The second signal must not wait for these requests.
        thread::spawn(move || {
            for (id, server) in commands {
                running.kill(&id, &server);
            }
        });
    }

    fn kill(&self, id: &str, server: &str) {
        let path = format!("/api/events/commands/{}/kill/", segment(id));
        match self.client.post(&path, &serde_json::json!({})) {
            Ok(_) => {}
            Err(error) if error.has_code("COMMAND_ALREADY_HANDLED") => {}
            Err(error) => note(&format!("{server}: {error}")),
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.state().is_stopping
    }

    /// Adds a command that was just created. Kills it if the first signal has already arrived.
    pub fn add(&self, id: &str, server: &str) {
        let is_stopping = {
            let mut state = self.state();
            state.commands.insert(id.to_owned(), server.to_owned());
            state.is_stopping
        };
        if is_stopping {
            self.kill(id, server);
        }
    }

    /// Removes a command that has ended.
    pub fn remove(&self, id: &str) {
        self.state().commands.remove(id);
    }
}
