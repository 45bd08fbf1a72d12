//! The waiting and running commands, and the ids of recent commands.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farhand_domain::agent::wire::AgentCommand;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::journal::writer::Written;
use crate::reports::Reporter;

/// The maximum number of waiting commands. A command that arrives beyond this number fails.
pub const MAX_WAITING: usize = 200;
/// The maximum number of stored ids. The agent does not run a command whose id is stored.
const MAX_SEEN_IDS: usize = 1_000;

/// The ids of the last [`MAX_SEEN_IDS`] commands.
#[derive(Default)]
pub struct SeenIds {
    pub ids: HashSet<Uuid>,
    in_order: VecDeque<Uuid>,
}

impl SeenIds {
    /// Adds an id. Returns false if the id is already stored.
    pub fn insert(&mut self, id: Uuid) -> bool {
        if !self.ids.insert(id) {
            return false;
        }
        self.in_order.push_back(id);
        if self.in_order.len() > MAX_SEEN_IDS
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        true
    }
}

/// A waiting command.
pub struct Job {
    pub order: AgentCommand,
    pub reporter: Reporter,
    /// The command may run when this write is done.
    pub written: Written,
    pub killed: CancellationToken,
}

/// The waiting and running commands, and the ids of recent commands.
#[derive(Default)]
pub struct Jobs {
    pub seen: SeenIds,
    pub waiting: VecDeque<Job>,
    /// The running commands. Cancelling a command's token kills it.
    pub running: HashMap<Uuid, CancellationToken>,
    /// Whether new commands are refused, because the agent is shutting down.
    pub is_closed: bool,
}

/// The jobs, and notifications about new and removed jobs.
#[derive(Default)]
pub struct Queue {
    pub jobs: Mutex<Jobs>,
    pub added: Notify,
    pub removed: Notify,
}

impl Queue {
    pub fn lock(&self) -> MutexGuard<'_, Jobs> {
        // No code panics while it holds this lock.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next job, takes it out of the queue, and marks it as running.
    pub async fn next(&self) -> Job {
        loop {
            if let Some(job) = self.take_first() {
                return job;
            }
            self.added.notified().await;
        }
    }

    fn take_first(&self) -> Option<Job> {
        let mut jobs = self.lock();
        let job = jobs.waiting.pop_front()?;
        jobs.running.insert(job.order.id, job.killed.clone());
        Some(job)
    }

    /// Removes a job whose command has ended.
    pub fn remove_running(&self, id: Uuid) {
        self.lock().running.remove(&id);
        self.removed.notify_waiters();
    }

    /// Waits until no job waits or runs.
    pub async fn idle(&self) {
        loop {
            // Subscribed before the check, so that no notification is missed.
            let removed = self.removed.notified();
            {
                let jobs = self.lock();
                if jobs.waiting.is_empty() && jobs.running.is_empty() {
                    return;
                }
            }
            removed.await;
        }
    }

    /// Makes the queue refuse new jobs. Takes out the waiting jobs and returns them.
    pub fn close(&self) -> VecDeque<Job> {
        let mut jobs = self.lock();
        jobs.is_closed = true;
        std::mem::take(&mut jobs.waiting)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_oldest_id_is_removed() {
        let id = |number: usize| Uuid::from_u128(number as u128);
        let mut seen = SeenIds::default();
        assert!((0..MAX_SEEN_IDS).all(|number| seen.insert(id(number))));
        assert!((0..MAX_SEEN_IDS).all(|number| !seen.insert(id(number))));
        assert!(seen.insert(id(MAX_SEEN_IDS)) && seen.insert(id(0)), "the oldest id is removed");
        assert_eq!((seen.ids.len(), seen.in_order.len()), (MAX_SEEN_IDS, MAX_SEEN_IDS));
    }
}
