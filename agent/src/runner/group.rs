//! The processes of a command: checks whether any runs, waits for the command's exit, and ends all
//! of them (agent-protocol 6.2).

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use crate::host::{process, system};
use crate::runner::cgroup::Cgroup;
use crate::runner::supervisor::Supervisor;

/// The time between TERM and KILL.
pub const KILL_DELAY: Duration = Duration::from_secs(5);
/// The first pause between two checks whether a group has ended. Each pause doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The maximum pause between two checks.
const MAX_PAUSE: Duration = Duration::from_millis(100);
/// If a group still runs this long after KILL, an error is logged.
const KILL_LOG_DELAY: Duration = Duration::from_secs(10);

/// The maximum number of times that a supervisor's descendants are listed while new descendants
/// appear.
const MAX_LISTINGS: usize = 100;

/// How the agent finds the processes of a command after they left its process group.
#[derive(Clone, Debug)]
pub enum Containment {
    /// The agent finds processes only while they are in the process group.
    Nothing,
    /// The processes are in a control group.
    Cgroup(Arc<Cgroup>),
    /// The processes are descendants of a supervisor. The supervisor's process number identifies
    /// the group.
    Supervisor(Arc<Supervisor>),
}

/// The processes of all running commands. Clones share their state.
#[derive(Clone, Default)]
pub struct Groups(Arc<Mutex<GroupTable>>);

#[derive(Default)]
struct GroupTable {
    running: BTreeMap<Pid, Containment>,
    /// Control groups that still have background processes.
    left: Vec<Arc<Cgroup>>,
}

/// The processes of a running command. Dropping a `Group` removes it from [`Groups`].
pub struct Group {
    /// The process number of the agent's child: the command itself, which leads its process group,
    /// or the command's supervisor.
    id: Pid,
    containment: Containment,
    groups: Groups,
}

impl Groups {
    fn lock(&self) -> MutexGuard<'_, GroupTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a command. `id` is the process number of the agent's child.
    pub fn add(&self, id: Pid, containment: Containment) -> Group {
        let mut table = self.lock();
        // Removes control groups whose background processes have exited.
        table.left.retain(|cgroup| !cgroup.remove());
        table.running.insert(id, containment.clone());
        Group { id, containment, groups: self.clone() }
    }

    /// Sends KILL to all processes of all commands. Does not wait.
    pub fn kill(&self) {
        for (id, containment) in &self.lock().running {
            containment.signal(*id, Signal::SIGKILL);
        }
    }

    /// The numbers of all running groups.
    #[cfg(test)]
    pub fn ids(&self) -> Vec<Pid> {
        self.lock().running.keys().copied().collect()
    }
}

impl Containment {
    /// Sends a signal to each process of a group. An empty group is not an error. Blocks.
    fn signal(&self, id: Pid, signal: Signal) {
        if let Self::Supervisor(supervisor) = self {
            return signal_descendants(supervisor, signal);
        }
        let _ = killpg(id, signal);
        if let Self::Cgroup(cgroup) = self {
            cgroup.signal(signal, (signal != Signal::SIGKILL).then_some(id));
        }
    }

    /// Whether any process of a group runs. Blocks.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    fn runs(&self, id: Pid) -> io::Result<bool> {
        // Lists the processes twice, because one listing can miss a process that starts while its
        // parent ends.
        match self {
            Self::Supervisor(supervisor) => {
                let look =
                    || process::descendants(&supervisor.process).map(|found| !found.is_empty());
                Ok(look()? || look()?)
            }
            Self::Cgroup(cgroup) if cgroup.runs() => Ok(true),
            _ if killpg(id, None) == Err(Errno::ESRCH) => Ok(false),
            _ => Ok(process::group_runs(id)? || process::group_runs(id)?),
        }
    }
}

/// Sends a signal once to each descendant of a supervisor, including descendants that start during
/// the call.
fn signal_descendants(supervisor: &Supervisor, signal: Signal) {
    let mut signalled = HashSet::new();
    for _ in 0..MAX_LISTINGS {
        let found = process::descendants(&supervisor.process).unwrap_or_default();
        let new: Vec<_> = found.into_iter().filter(|process| signalled.insert(*process)).collect();
        if new.is_empty() {
            return;
        }
        for process in new {
            let _ = kill(process, signal);
        }
    }
}

impl Group {
    async fn signal(&self, signal: Signal) {
        let (containment, id) = (self.containment.clone(), self.id);
        let _ = tokio::task::spawn_blocking(move || containment.signal(id, signal)).await;
    }

    /// Waits until the command has exited. Does not reap the agent's child, so that no other
    /// process can get its number before [`Self::status`]. So a signal cannot hit another group.
    pub async fn exited(&self) {
        if let Containment::Supervisor(supervisor) = &self.containment {
            return supervisor.command_ended().await;
        }
        let mut changes = signal(SignalKind::child());
        // Checked after subscribing, so that no exit is missed.
        while !self.has_exited() {
            match &mut changes {
                Ok(changes) => {
                    changes.recv().await;
                }
                Err(_) => sleep(MAX_PAUSE).await,
            }
        }
    }

    fn has_exited(&self) -> bool {
        system::has_exited(self.id)
    }

    /// Reaps `child` and returns how the command ended. Call it after the command has exited or was
    /// ended.
    ///
    /// # Errors
    /// The status is not known.
    pub async fn status(&self, child: &mut Child) -> io::Result<ExitStatus> {
        let Containment::Supervisor(supervisor) = &self.containment else {
            return child.wait().await;
        };
        // The remaining descendants become children of init.
        let _ = child.start_kill();
        let own = child.wait().await;
        supervisor.status().map_or(own, Ok)
    }

    /// Whether any process of the group runs.
    pub async fn runs(&self) -> bool {
        let (containment, id) = (self.containment.clone(), self.id);
        let seen = tokio::task::spawn_blocking(move || containment.runs(id)).await;
        // Without `/proc` only the leader can be checked.
        seen.is_ok_and(|seen| seen.unwrap_or_else(|_| !self.has_exited()))
    }

    /// Ends the group: sends TERM, and KILL after [`KILL_DELAY`]. Returns when no process of the
    /// group runs. The result is true if KILL was needed.
    pub async fn end(&self) -> bool {
        self.signal(Signal::SIGTERM).await;
        // A stopped process does not handle TERM.
        self.signal(Signal::SIGCONT).await;
        if timeout(KILL_DELAY, self.wait_until_empty(None)).await.is_ok() {
            return false;
        }
        if timeout(KILL_LOG_DELAY, self.wait_until_empty(Some(Signal::SIGKILL))).await.is_err() {
            log::error!("process group {} still runs after SIGKILL", self.id);
            self.wait_until_empty(Some(Signal::SIGKILL)).await;
        }
        true
    }

    /// Waits until no process of the group runs. Sends `signal`, if given, at each check.
    async fn wait_until_empty(&self, signal: Option<Signal>) {
        let mut pause = FIRST_PAUSE;
        while self.runs().await {
            if let Some(signal) = signal {
                self.signal(signal).await;
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut table = self.groups.lock();
        table.running.remove(&self.id);
        if let Containment::Cgroup(cgroup) = &self.containment
            && !cgroup.remove()
        {
            table.left.push(cgroup.clone());
        }
    }
}
