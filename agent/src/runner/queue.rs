//! The commands that wait or run, and the ids of those that came last.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farhand_domain::wire::Order;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::journal::writer::Written;
use crate::reports::Reporter;

/// How many commands wait while as many run as may.
pub const QUEUE: usize = 200;
/// How many ids of commands are remembered, so that one which comes again is not run again.
const REMEMBERED: usize = 1_000;

/// The commands that came last.
#[derive(Default)]
pub struct SeenIds {
    pub ids: HashSet<Uuid>,
    in_order: VecDeque<Uuid>,
}

impl SeenIds {
    /// Notes a command; false where it came before.
    pub fn insert(&mut self, id: Uuid) -> bool {
        if !self.ids.insert(id) {
            return false;
        }
        self.in_order.push_back(id);
        if self.in_order.len() > REMEMBERED
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        true
    }
}

/// A command on its way.
pub struct Job {
    pub order: Order,
    pub reporter: Reporter,
    /// When it may run.
    pub written: Written,
    pub killed: CancellationToken,
}

/// The commands that did not end yet, and those that are remembered.
#[derive(Default)]
pub struct Jobs {
    pub seen: SeenIds,
    pub waiting: VecDeque<Job>,
    /// How those that run are killed.
    pub running: HashMap<Uuid, CancellationToken>,
    /// Whether no more are taken.
    pub is_closed: bool,
}

/// The jobs, and word of new ones and of those that are over.
#[derive(Default)]
pub struct Queue {
    pub jobs: Mutex<Jobs>,
    pub more: Notify,
    pub less: Notify,
}

impl Queue {
    pub fn lock(&self) -> MutexGuard<'_, Jobs> {
        // Nothing in here can panic half-way.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a job. From then on it runs.
    pub async fn next(&self) -> Job {
        loop {
            if let Some(job) = self.first() {
                return job;
            }
            self.more.notified().await;
        }
    }

    fn first(&self) -> Option<Job> {
        let mut jobs = self.lock();
        let job = jobs.waiting.pop_front()?;
        jobs.running.insert(job.order.id, job.killed.clone());
        Some(job)
    }

    /// Notes that a job is over.
    pub fn done(&self, id: Uuid) {
        self.lock().running.remove(&id);
        self.less.notify_waiters();
    }

    /// Waits until no job waits or runs.
    pub async fn idle(&self) {
        loop {
            // Listened to before the look, so that nothing is missed.
            let less = self.less.notified();
            {
                let jobs = self.lock();
                if jobs.waiting.is_empty() && jobs.running.is_empty() {
                    return;
                }
            }
            less.await;
        }
    }

    /// Takes no more jobs; gives those that wait.
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
    fn a_bounded_number_of_ids_is_known() {
        let id = |number: usize| Uuid::from_u128(number as u128);
        let mut seen = SeenIds::default();
        assert!((0..REMEMBERED).all(|number| seen.insert(id(number))));
        assert!((0..REMEMBERED).all(|number| !seen.insert(id(number))));
        assert!(seen.insert(id(REMEMBERED)) && seen.insert(id(0)), "the oldest gives way");
        assert_eq!((seen.ids.len(), seen.in_order.len()), (REMEMBERED, REMEMBERED));
    }
}
