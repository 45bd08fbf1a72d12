//! Schedules: a cron expression in a time zone, and what happens at each due time.
//!
//! - [`cron`] reads expressions, [`zone`] is the time zone that the platform supplies.
//! - [`next`] finds due times, also when the local clock is changed.
//! - [`claim`] decides about due times that the service missed, and about runs that overlap.
//! - [`machine`] holds the schedules of a workspace, and says what to start and when.

pub mod claim;
pub mod cron;
pub mod machine;
pub mod next;
pub mod zone;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::time::Timestamp;

/// How many due times `next_runs` shows.
pub const NEXT_RUNS: usize = 5;

/// What to do when the service was down over due times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Misfire {
    /// Start one run for all of them.
    #[default]
    RunOnce,
    /// Start none.
    Skip,
}

/// What to do when the previous run has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// Start no new run.
    #[default]
    Skip,
    /// Start it beside the previous one.
    Allow,
    /// Start it when the previous one ends. One run waits, and further ones are skipped.
    Queue,
}

/// What happened at a due time, as the run history shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Started,
    /// By `overlap`, or because the schedule was disabled.
    Skipped,
    /// The owner may not start it, or its targets are invalid.
    Refused,
    /// By `misfire`, or because the schedule ended before it could start.
    Missed,
}

/// An entry of the run history.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Run {
    pub due_at: Timestamp,
    /// The lag is the difference to `due_at`.
    pub started_at: Option<Timestamp>,
    pub batch: Option<Uuid>,
    pub outcome: Outcome,
    pub reason: Option<String>,
}

/// The next due time of an expression in a time zone. The platform implements it with
/// [`next::next_due`] and its own time zone data.
pub trait Calendar {
    /// The first due time after a moment; `None` if there is none, or a text is invalid.
    fn next_due(&self, cron: &str, timezone: &str, after: Timestamp) -> Option<Timestamp>;
}

/// The fields of a schedule that decide when it runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Timing {
    pub cron: String,
    /// A name of the IANA database.
    pub timezone: String,
    pub enabled: bool,
    /// The first moment that may be a due time.
    pub starts_at: Option<Timestamp>,
    /// The last moment that may be a due time. A later run is not started.
    pub ends_at: Option<Timestamp>,
    pub misfire: Misfire,
    pub overlap: Overlap,
}

impl Timing {
    /// The first due time after a moment; `None` if the schedule is disabled or has ended.
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

    /// The next due times, at most [`NEXT_RUNS`].
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
