//! The processes of a command: whether any runs, when the command has exited, and how to end all of
//! them (agent-protocol 6.2).

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use crate::host::process;
use crate::runner::cgroup::Cgroup;
use crate::runner::supervisor::Supervisor;

/// The time from TERM to KILL.
pub const GRACE: Duration = Duration::from_secs(5);
/// The first pause between two checks whether a group has ended. Each pause doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause between two checks.
const MAX_PAUSE: Duration = Duration::from_millis(100);
/// A group that survives KILL for this long is logged.
const KILL_LOG_DELAY: Duration = Duration::from_secs(10);

/// How many times a supervisor's descendants are listed, at most, while new ones appear.
const MAX_LISTINGS: usize = 100;

/// How the processes of a command are found, even after they left its process group.
#[derive(Clone, Debug)]
pub enum Containment {
    /// Only while they stay in the process group.
    Nothing,
    /// They are in a control group.
    Cgroup(Arc<Cgroup>),
    /// They descend from a supervisor, whose number is the group's.
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

/// The processes of a running command. Dropping it removes it from [`Groups`].
pub struct Group {
    /// The number of the agent's child: the command itself, which leads its process group, or its
    /// supervisor.
    id: Pid,
    containment: Containment,
    groups: Groups,
}

impl Groups {
    fn lock(&self) -> MutexGuard<'_, GroupTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a command. `id` is the number of the agent's child.
    pub fn add(&self, id: Pid, containment: Containment) -> Group {
        let mut table = self.lock();
        // Their background processes may have exited.
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
    /// Sends a signal to each process of a group. An empty group is no error. Blocks.
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
        // Twice: one listing can miss a process that starts while its parent ends.
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

/// Sends a signal once to each descendant of a supervisor, also to descendants that start during
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
    /// process can get its number. Until [`Self::status`], a signal to the group therefore reaches
    /// this group only.
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
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(self.id), flags) != Ok(WaitStatus::StillAlive)
    }

    /// Reaps `child` and returns how the command ended. Call it after the command exited or was
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

    /// Ends the group: TERM, and KILL after [`GRACE`]. Returns when no process of the group runs.
    /// True if KILL was needed.
    pub async fn end(&self) -> bool {
        self.signal(Signal::SIGTERM).await;
        // A stopped process does not handle TERM.
        self.signal(Signal::SIGCONT).await;
        if timeout(GRACE, self.wait_until_empty(None)).await.is_ok() {
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
