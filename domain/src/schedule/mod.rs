//! Schedules: a cron expression in a time zone, and what happens at each due time.
//!
//! - [`cron`] reads expressions. [`zone`] defines what the platform must know about a time zone.
//! - [`next`] finds due times, including the days when the local clock changes.
//! - [`claim`] handles due times that the service missed, and runs that overlap.
//! - [`decision`] decides what happens to a schedule now. The caller writes the decision to D1.
//! - [`request`] reads the fields of requests.

pub mod claim;
pub mod cron;
pub mod decision;
pub mod next;
pub mod request;
pub mod zone;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// Number of due times that D1 stores. `next_runs` shows five of them that have not passed.
const STORED_RUNS: usize = 8;

/// What to do about due times that passed while the service was down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Misfire {
    /// Start one run for all missed due times.
    #[default]
    RunOnce,
    /// Start no run for missed due times.
    Skip,
}

/// What to do at a due time if the previous run has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// Start no new run.
    #[default]
    Skip,
    /// Start the new run while the previous run continues.
    Allow,
    /// Start the new run when the previous run ends. At most one run waits. Later runs are skipped.
    Queue,
}

/// What happened at a due time, as the run history shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    Started,
    /// Not started because of `overlap`, or because the schedule was disabled or changed.
    Skipped,
    /// Not started because the owner lacks the permission, or because its fields are invalid.
    Refused,
    /// Not started because the service was down, or because the schedule ended first.
    Missed,
}

/// The fields of a schedule that decide when it runs, besides `cron` and `timezone`. The functions
/// take the latter as `next`, which returns the first due time after a moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Timing {
    pub enabled: bool,
    /// The earliest possible due time; `None`: no limit.
    pub starts_at: Option<Timestamp>,
    /// The latest possible due time; `None`: no limit. A run that has not started
    /// [`claim::MISSED_AFTER_SECONDS`] seconds after this time is dropped.
    pub ends_at: Option<Timestamp>,
    pub misfire: Misfire,
    pub overlap: Overlap,
}

impl Timing {
    /// Returns the first due time after `after`. Returns `None` if the schedule is disabled, or has
    /// no later due time.
    pub fn due_after(
        &self,
        next: impl Fn(Timestamp) -> Option<Timestamp>,
        after: Timestamp,
    ) -> Option<Timestamp> {
        if !self.enabled {
            return None;
        }
        let due = match self.starts_at {
            Some(start) if after < start => {
                let due = next(start.plus_seconds(-1))?;
                if due < start { next(due)? } else { due }
            }
            _ => next(after)?,
        };
        self.ends_at.is_none_or(|end| due <= end).then_some(due)
    }

    /// Returns the next due times, at most eight.
    pub fn next_runs(
        &self,
        next: impl Fn(Timestamp) -> Option<Timestamp>,
        now: Timestamp,
    ) -> Vec<Timestamp> {
        let due_after = |after: &Timestamp| self.due_after(&next, *after);
        std::iter::successors(due_after(&now), due_after).take(STORED_RUNS).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::cron::Expression;
    use super::next::next_due;
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Timing), expected: &[&str]) {
        let noon = Expression::parse("0 12 * * *").unwrap();
        let mut timing = Timing {
            enabled: true,
            starts_at: None,
            ends_at: None,
            misfire: Misfire::default(),
            overlap: Overlap::default(),
        };
        change(&mut timing);
        let next = |after| next_due(&noon, &zone::Utc, after);
        let runs = timing.next_runs(next, at("2026-11-21T12:00:00Z"));
        let expected: Vec<_> = expected.iter().map(|text| at(text)).collect();
        assert_eq!(runs, expected);
    }

    #[test]
    fn next_runs_are_eight_between_start_and_end() {
        let (first, second) = ("2026-11-22T12:00:00Z", "2026-11-23T12:00:00Z");
        let all: Vec<_> = (22..30).map(|day| format!("2026-11-{day}T12:00:00Z")).collect();
        check(|_| (), &all.iter().map(String::as_str).collect::<Vec<_>>());
        check(|timing| timing.enabled = false, &[]);
        check(|timing| timing.ends_at = Some(at(second)), &[first, second]);
        check(|timing| timing.ends_at = Some(at("2026-11-22T11:59:59Z")), &[]);
        let start_at = |start: &'static str, end| {
            move |timing: &mut Timing| {
                timing.starts_at = Some(at(start));
                timing.ends_at = Some(at(end));
            }
        };
        check(start_at(second, second), &[second]);
        check(start_at("2026-11-22T12:00:00.000001Z", second), &[second]);
        check(start_at("2026-11-01T00:00:00Z", first), &[first]);
    }
}
