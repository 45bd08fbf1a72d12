//! Process groups: which ones run, when one's leader has exited, and how one is ended (agent-protocol 6).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use crate::process;

/// How long a group has from TERM to KILL.
pub const GRACE: Duration = Duration::from_secs(5);
/// The first pause between two looks at a group that is ending, and the longest; each is twice the one before.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));
/// After how long it is logged that a group is still there after a KILL.
const WORRY: Duration = Duration::from_secs(10);

/// The process groups that run.
#[derive(Clone, Default)]
pub struct Groups(Arc<Mutex<BTreeSet<Pid>>>);

/// A process group that runs, until dropped.
pub struct Group {
    id: Pid,
    groups: Groups,
}

impl Groups {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<Pid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a group by the number of its leader.
    pub fn enter(&self, id: Pid) -> Group {
        self.lock().insert(id);
        Group { id, groups: self.clone() }
    }

    /// Kills all of them, at once and without waiting.
    pub fn kill(&self) {
        for id in self.lock().iter() {
            let _ = killpg(*id, Signal::SIGKILL);
        }
    }

    /// Those that run.
    #[cfg(test)]
    pub fn ids(&self) -> Vec<Pid> {
        self.lock().iter().copied().collect()
    }
}

impl Group {
    /// Sends a signal to each process of the group. That none is left is no error.
    fn signal(&self, signal: Signal) {
        let _ = killpg(self.id, signal);
    }

    /// Waits until the leader, a child of the agent, has exited. It is left as it is, so that nobody else gets its
    /// number: until it is waited for, a signal to the group reaches the group and nobody else.
    pub async fn leader_exited(&self) {
        let mut changes = signal(SignalKind::child());
        // Looked at after listening began, so that no exit is missed.
        while !self.has_leader_exited() {
            match &mut changes {
                Ok(changes) => {
                    changes.recv().await;
                }
                Err(_) => sleep(PAUSES.1).await,
            }
        }
    }

    fn has_leader_exited(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(self.id), flags) != Ok(WaitStatus::StillAlive)
    }

    /// Whether any process of the group runs.
    pub async fn runs(&self) -> bool {
        if killpg(self.id, None) == Err(Errno::ESRCH) {
            return false;
        }
        let id = self.id;
        // Twice, as one that starts while the other ends can be missed.
        let look = move || Ok::<bool, std::io::Error>(process::group_runs(id)? || process::group_runs(id)?);
        let seen = tokio::task::spawn_blocking(look).await;
        // Without `/proc` the leader stands for all.
        seen.is_ok_and(|seen| seen.unwrap_or_else(|_| !self.has_leader_exited()))
    }

    /// Ends the group: TERM, and KILL after [`GRACE`]. Returns when none of its processes runs; true where it took KILL.
    pub async fn end(&self) -> bool {
        self.signal(Signal::SIGTERM);
        // What is stopped takes no TERM.
        self.signal(Signal::SIGCONT);
        if timeout(GRACE, self.gone(None)).await.is_ok() {
            return false;
        }
        if timeout(WORRY, self.gone(Some(Signal::SIGKILL))).await.is_err() {
            log::error!("process group {} is still there after SIGKILL", self.id);
            self.gone(Some(Signal::SIGKILL)).await;
        }
        true
    }

    /// Waits until no process of the group runs; sends a signal to those that do at each look, if one is given.
    async fn gone(&self, signal: Option<Signal>) {
        let mut pause = PAUSES.0;
        while self.runs().await {
            if let Some(signal) = signal {
                self.signal(signal);
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.groups.lock().remove(&self.id);
    }
}
