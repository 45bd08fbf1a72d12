//! When the next commands of a batch start. A wave is one insertion of several commands, so that a
//! large batch needs few requests to D1.

use std::time::Duration;

use super::event::{Batch, CHECK_VALIDITY, Mark, Position, Request};
use super::target::{Run, Target, TargetState};
use crate::time::Timestamp;

/// Maximum number of targets in one request to D1.
const MAX_WAVE: usize = 250;
/// A wave does not wait for more free slots than this, nor for more than 60 % of all slots.
const MAX_WANTED_SLOTS: u64 = 30;
/// A check includes at least this number of targets: those of later waves.
const MIN_CHECKED: usize = 150;
/// Maximum time of a wait, in seconds.
const MAX_WAIT: u64 = 60;

/// A part of the time that the batch has run, in whole seconds, at least `min`. What waits for
/// this time is done often in short batches, and rarely in long ones.
pub(super) fn fraction(since: Timestamp, now: Timestamp, part: u64, min: u64) -> Duration {
    let elapsed = now.as_millis().saturating_sub(since.as_millis()) / 1_000;
    Duration::from_secs((elapsed / part).clamp(min, MAX_WAIT))
}

/// The timing of waves.
#[derive(Debug, Default)]
pub struct Waves {
    /// No wave starts before this time has passed and the alarm went off. So each wave is the work
    /// of a new alarm, and the platform's limit of calls per event is not reached.
    pub next_at: Option<Timestamp>,
    /// Since when there are free slots and targets for them.
    free_since: Option<Timestamp>,
    /// When the wave starts even if it is small.
    due_at: Option<Timestamp>,
}

impl Waves {
    /// When the alarm must start a wave.
    pub fn due_at(&self) -> Option<Timestamp> {
        self.next_at.or(self.due_at)
    }

    /// Notes that D1 inserted commands.
    pub fn inserted(&mut self, inserted: &[Position], now: Timestamp) {
        (self.free_since, self.due_at) = (None, None);
        if !inserted.is_empty() {
            self.next_at = Some(now);
        }
    }

    /// The next request of a running batch, if there is one to send now.
    pub fn next(&mut self, batch: &Batch, now: Timestamp) -> Option<Request> {
        if self.next_at.is_some() {
            return None;
        }
        self.due_at = None;
        let wave = self.wave(batch, now);
        if wave.is_some() {
            return wave;
        }
        let marks = marks(batch);
        (!marks.is_empty()).then_some(Request::Mark(marks))
    }

    /// Inserts commands for free slots, or checks the targets for them.
    fn wave(&mut self, batch: &Batch, now: Timestamp) -> Option<Request> {
        let limit = batch.limits.concurrency(batch.count(|state| state == TargetState::Success));
        let open = batch.targets.iter().filter(|target| target.is_open()).count() as u64;
        let free = limit.saturating_sub(open);
        let is_candidate = |target: &Target| {
            target.is_waiting()
                && target.mark.is_none()
                && (target.state == TargetState::Pending || target.is_online)
        };
        let candidates: Vec<(Position, &Target)> =
            (0..).zip(&batch.targets).filter(|(_, target)| is_candidate(target)).collect();
        let size = candidates.len().min(MAX_WAVE).min(usize::try_from(free).unwrap_or(usize::MAX));
        if size == 0 {
            self.free_since = None;
            return None;
        }
        let enough = (candidates.len() as u64).min((limit * 3).div_ceil(5)).min(MAX_WANTED_SLOTS);
        let wait = fraction(batch.scheduled_at, now, 4, 1);
        let due_at = self.free_since.get_or_insert(now).plus(wait);
        if (size as u64) < enough && due_at > now {
            self.due_at = Some(due_at);
            return None;
        }
        let check = |target: &Target| -> Option<Run> {
            let (run, _, answered_at) = target.check.as_ref()?;
            (answered_at.plus(CHECK_VALIDITY) > now).then(|| run.clone())
        };
        let ready: Vec<(Position, Run)> = candidates
            .iter()
            .filter_map(|(position, target)| Some((*position, check(target)?)))
            .take(size)
            .collect();
        let unchecked: Vec<Position> = candidates
            .iter()
            .filter(|(_, target)| check(target).is_none())
            .map(|(position, _)| *position)
            .take(size.max(MIN_CHECKED))
            .collect();
        if ready.len() < size && !unchecked.is_empty() {
            return Some(Request::Check(unchecked));
        }
        let started = batch.targets.iter().filter(|target| target.started.is_some()).count() as u64;
        Some(Request::Insert { runs: ready, started, added_at: now, marks: marks(batch) })
    }
}

/// The marks that D1 does not have yet.
fn marks(batch: &Batch) -> Vec<Mark> {
    let mark = |(position, target): (Position, &Target)| {
        let (state, reason) = target.mark.clone()?;
        Some(Mark { position, state, reason })
    };
    (0..).zip(&batch.targets).filter_map(mark).take(1_000).collect()
}
