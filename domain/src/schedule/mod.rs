//! Schedules: a cron expression in a time zone, and what happens at each due time.
//!
//! - [`cron`] reads expressions. [`zone`] defines what the platform must know about a time zone.
//! - [`next`] finds due times, including the days when the local clock changes.
//! - [`claim`] handles due times that the service missed, and runs that overlap.
//! - [`machine`] holds the schedules of a workspace. It decides what to start, and when.

pub mod claim;
pub mod cron;
pub mod machine;
pub mod next;
pub mod zone;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::time::Timestamp;

/// Maximum number of due times in `next_runs`.
pub const NEXT_RUNS: usize = 5;

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
pub enum Outcome {
    Started,
    /// Not started because of `overlap`, or because the schedule was disabled or changed.
    Skipped,
    /// Not started because the owner lacks the permission, or because its fields are invalid.
    Refused,
    /// Not started because the service was down, or because the schedule ended first.
    Missed,
}

/// An entry of the run history.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Run {
    pub due_at: Timestamp,
    /// When the object got the confirmation of the start. The difference from `due_at` is the lag.
    pub started_at: Option<Timestamp>,
    pub batch: Option<Uuid>,
    pub outcome: Outcome,
    pub reason: Option<String>,
}

/// Finds the due times of an expression in a time zone. The platform implements it with
/// [`next::next_due`] and its own time zone data.
pub trait Calendar {
    /// Returns the first due time after `after`. Returns `None` if there is none, or if `cron` or
    /// `timezone` is invalid.
    fn next_due(&self, cron: &str, timezone: &str, after: Timestamp) -> Option<Timestamp>;
}

/// The fields of a schedule that decide when it runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Timing {
    pub cron: String,
    /// A name from the IANA time zone database.
    pub timezone: String,
    pub enabled: bool,
    /// The earliest possible due time; `None`: no limit.
    pub starts_at: Option<Timestamp>,
    /// The latest possible due time; `None`: no limit. A run that has not started
    /// [`claim::IN_TIME`] seconds after this time is dropped.
    pub ends_at: Option<Timestamp>,
    pub misfire: Misfire,
    pub overlap: Overlap,
}

impl Timing {
    /// Returns the first due time after `after`. Returns `None` if the schedule is disabled, or has
    /// no later due time.
    pub fn due_after(&self, calendar: &impl Calendar, after: Timestamp) -> Option<Timestamp> {
        if !self.enabled {
            return None;
        }
        let next = |after| calendar.next_due(&self.cron, &self.timezone, after);
        let due = match self.starts_at {
            Some(start) if after < start => {
                let due = next(start.plus_seconds(-1))?;
                if due < start { next(due)? } else { due }
            }
            _ => next(after)?,
        };
        self.ends_at.is_none_or(|end| due <= end).then_some(due)
    }

    /// Returns the next due times, at most [`NEXT_RUNS`].
    pub fn next_runs(&self, calendar: &impl Calendar, now: Timestamp) -> Vec<Timestamp> {
        let next = |due: &Timestamp| self.due_after(calendar, *due);
        std::iter::successors(self.due_after(calendar, now), next).take(NEXT_RUNS).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::cron::Expression;
    use super::next::next_due;
    use super::*;

    struct InUtc;

    impl Calendar for InUtc {
        fn next_due(&self, cron: &str, _: &str, after: Timestamp) -> Option<Timestamp> {
            next_due(&Expression::parse(cron).ok()?, &zone::Utc, after)
        }
    }

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Timing), expected: &[&str]) {
        let mut timing = Timing {
            cron: "0 12 * * *".to_owned(),
            timezone: "UTC".to_owned(),
            enabled: true,
            starts_at: None,
            ends_at: None,
            misfire: Misfire::default(),
            overlap: Overlap::default(),
        };
        change(&mut timing);
        let runs = timing.next_runs(&InUtc, at("2026-11-21T12:00:00Z"));
        let expected: Vec<_> = expected.iter().map(|text| at(text)).collect();
        assert_eq!(runs, expected);
    }

    #[test]
    fn next_runs_are_five_between_start_and_end() {
        let (first, second) = ("2026-11-22T12:00:00Z", "2026-11-23T12:00:00Z");
        let rest = ["2026-11-24T12:00:00Z", "2026-11-25T12:00:00Z", "2026-11-26T12:00:00Z"];
        check(|_| (), &[&[first, second][..], &rest].concat());
        check(|timing| timing.enabled = false, &[]);
        check(|timing| timing.cron = "0 0 30 2 *".to_owned(), &[]);
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
