//! Decides what happens to a schedule now. There is no other state than the row in D1.
//!
//! The caller writes a [`Decision`] in one transaction: the new `next_due` and `queued`, the
//! entries of the run history, and the batch of the run that starts. The transaction fails if the
//! row has changed since it was read, or if the history already has the due time. So each due time
//! is handled once, and starts at most one batch, even if the caller crashes or is called twice.

use serde::{Deserialize, Serialize};

use super::claim::{Admission, MISSED_AFTER_SECONDS, PassedDueTimes, admit};
use super::{RunOutcome, Timing};
use crate::time::Timestamp;

const DISABLED_REASON: &str = "The schedule was disabled before the run could start.";
const OUTSIDE_REASON: &str = "The time is not between the schedule's start and end.";
const ENDED_REASON: &str = "The schedule ended before the run could start.";

/// What a decision needs to know about a schedule.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScheduleProgress {
    #[serde(flatten)]
    pub timing: Timing,
    /// The first due time about which nothing was decided.
    pub next_due: Option<Timestamp>,
    /// The due time that waits for the previous run to end (`overlap: queue`).
    pub queued: Option<Timestamp>,
    /// Whether a batch of the schedule has not ended.
    pub is_running: bool,
}

/// An entry of the run history for a due time without a start.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Skipped {
    pub due_at: Timestamp,
    pub outcome: RunOutcome,
    pub reason: String,
}

/// What to write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The due time whose run starts now.
    pub start: Option<Timestamp>,
    pub skipped: Vec<Skipped>,
    pub next_due: Option<Timestamp>,
    pub queued: Option<Timestamp>,
}

impl ScheduleProgress {
    /// Decides about the queued run, or else about the due times up to `now`. Returns `None` if
    /// there is nothing to decide. `next` returns the first due time after a moment.
    pub fn decide(
        &self,
        next: impl Fn(Timestamp) -> Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Decision> {
        let Self { ref timing, next_due, queued, is_running } = *self;
        let mut decision = Decision { start: None, skipped: vec![], next_due, queued };
        if let Some(due_at) = queued {
            if let Some((outcome, reason)) = timing.obstacle(due_at, now) {
                decision.skip(due_at, outcome, reason);
                decision.queued = None;
                return Some(decision);
            }
            if !is_running {
                (decision.start, decision.queued) = (Some(due_at), None);
                return Some(decision);
            }
        }
        let first = next_due.filter(|due| timing.enabled && *due <= now)?;
        let passed = PassedDueTimes::new(timing, next, first, now);
        decision.next_due = passed.next;
        let (start, missed) = passed.decide(timing.misfire);
        if let Some((due_at, reason)) = missed {
            decision.skip(due_at, RunOutcome::Missed, &reason);
        }
        let Some(due_at) = start else { return Some(decision) };
        if let Some((outcome, reason)) = timing.obstacle(due_at, now) {
            decision.skip(due_at, outcome, reason);
            return Some(decision);
        }
        match admit(timing.overlap, is_running, queued.is_some()) {
            Admission::Start => decision.start = Some(due_at),
            Admission::Wait => decision.queued = Some(due_at),
            Admission::Skip(reason) => decision.skip(due_at, RunOutcome::Skipped, reason),
        }
        Some(decision)
    }
}

impl Decision {
    /// Adds a history entry for a due time without a start.
    fn skip(&mut self, due_at: Timestamp, outcome: RunOutcome, reason: &str) {
        self.skipped.push(Skipped { due_at, outcome, reason: reason.to_owned() });
    }

    /// The same decision, but the run that would start is refused.
    #[must_use]
    pub fn refused(mut self, reason: &str) -> Self {
        if let Some(due_at) = self.start.take() {
            self.skip(due_at, RunOutcome::Refused, reason);
        }
        self
    }
}

impl Timing {
    /// The first due time about which nothing is decided, after a change from `old` to this timing.
    /// A due time that has passed, but was not handled yet, stays.
    pub fn next_due_after_change(
        &self,
        next: impl Fn(Timestamp) -> Option<Timestamp>,
        old: &Self,
        old_due: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let unhandled = old_due.filter(|due| old.enabled && self.enabled && *due <= now);
        unhandled.or_else(|| self.due_after(next, now))
    }

    /// Why a run must not start now, if there is a reason.
    fn obstacle(&self, due_at: Timestamp, now: Timestamp) -> Option<(RunOutcome, &'static str)> {
        let Self { enabled, starts_at, ends_at, .. } = *self;
        let is_outside = starts_at.is_some_and(|start| due_at < start)
            || ends_at.is_some_and(|end| end < due_at);
        if !enabled {
            Some((RunOutcome::Skipped, DISABLED_REASON))
        } else if is_outside {
            Some((RunOutcome::Skipped, OUTSIDE_REASON))
        } else if ends_at.is_some_and(|end| end.plus_seconds(MISSED_AFTER_SECONDS) < now) {
            Some((RunOutcome::Missed, ENDED_REASON))
        } else {
            None
        }
    }
}
