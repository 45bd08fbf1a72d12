//! Decides what to do about due times that have passed.

use super::next::last_due;
use super::{Misfire, Overlap, Timing};
use crate::time::Timestamp;

/// A due time that is handled later than this, in seconds, is missed. Shorter than a
/// minute, so that at most one passed due time is in time.
pub const MISSED_AFTER_SECONDS: i64 = 30;

/// The due times of a schedule that have passed, but about which nothing is decided yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PassedDueTimes {
    /// The first and the last missed due time.
    missed: Option<(Timestamp, Timestamp)>,
    in_time: Option<Timestamp>,
    /// The first due time after now.
    pub next: Option<Timestamp>,
}

impl PassedDueTimes {
    /// Finds the due times from `first` to `now`. `first` is a due time that has passed.
    pub fn new(
        timing: &Timing,
        next: impl Fn(Timestamp) -> Option<Timestamp>,
        first: Timestamp,
        now: Timestamp,
    ) -> Self {
        let due_after = |after| timing.due_after(&next, after);
        let last_until = |until| last_due(due_after, first.plus_seconds(-1), until);
        let last = last_until(now).unwrap_or(first);
        let next = due_after(now);
        if last.plus_seconds(MISSED_AFTER_SECONDS) < now {
            return Self { missed: Some((first, last)), in_time: None, next };
        }
        let missed = last_until(last.plus_seconds(-1)).map(|before| (first, before));
        Self { missed, in_time: Some(last), next }
    }

    /// Applies `misfire`. Returns the due time to start, and the due time to record as missed, with
    /// the reason.
    ///
    /// However many due times were missed, they lead to at most one run or one history entry.
    pub fn decide(self, misfire: Misfire) -> (Option<Timestamp>, Option<(Timestamp, String)>) {
        match (self.missed, misfire) {
            (None, _) => (self.in_time, None),
            (Some((_, last)), Misfire::RunOnce) => (self.in_time.or(Some(last)), None),
            (Some((first, last)), Misfire::Skip) => {
                let reason = if first == last {
                    "The service was not available at this time.".to_owned()
                } else {
                    format!("The service was not available from {first} to {last}.")
                };
                (self.in_time, Some((last, reason)))
            }
        }
    }
}

/// Whether a run starts now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    Start,
    /// Start the run when the previous run ends.
    Wait,
    Skip(&'static str),
}

/// Applies `overlap`. `is_running`: an earlier run has not ended. `is_waiting`: another run already
/// waits for its end.
pub fn admit(overlap: Overlap, is_running: bool, is_waiting: bool) -> Admission {
    match overlap {
        _ if !is_running => Admission::Start,
        Overlap::Allow => Admission::Start,
        Overlap::Skip => Admission::Skip("The previous run had not ended."),
        Overlap::Queue if is_waiting => {
            Admission::Skip("Another run already waited for the previous one to end.")
        }
        Overlap::Queue => Admission::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::cron::Expression;
    use crate::schedule::next::next_due;
    use crate::schedule::zone::Utc;

    fn at(time: &str) -> Timestamp {
        Timestamp::parse(&format!("2026-11-21T{time}Z")).unwrap()
    }

    /// Checks what starts and what is recorded as missed. The schedule is due every ten minutes.
    #[track_caller]
    fn check(misfire: Misfire, now: &str, start: Option<&str>, missed: Option<&str>) {
        let expression = Expression::parse("*/10 * * * *").unwrap();
        let timing = Timing {
            enabled: true,
            starts_at: None,
            ends_at: None,
            misfire,
            overlap: Overlap::Skip,
        };
        let passed = PassedDueTimes::new(
            &timing,
            |after| next_due(&expression, &Utc, after),
            at("10:00:00"),
            at(now),
        );
        assert!(passed.next.unwrap() > at(now));
        let (started, recorded) = passed.decide(misfire);
        assert_eq!((started, recorded.map(|(due, _)| due)), (start.map(at), missed.map(at)));
    }

    #[test]
    fn misfire_decides_once_for_all_that_were_missed() {
        let (ten, eleven) = (Some("10:00:00"), Some("11:00:00"));
        for misfire in [Misfire::RunOnce, Misfire::Skip] {
            check(misfire, "10:00:00", ten, None);
            check(misfire, "10:00:30", ten, None);
        }
        check(Misfire::RunOnce, "10:00:31", ten, None);
        check(Misfire::RunOnce, "11:09:59", eleven, None);
        check(Misfire::RunOnce, "11:00:01", eleven, None);
        check(Misfire::Skip, "10:00:31", None, ten);
        check(Misfire::Skip, "11:09:59", None, eleven);
        check(Misfire::Skip, "11:00:01", eleven, Some("10:50:00"));
    }

    #[test]
    fn overlap_decides_while_a_run_goes_on() {
        for overlap in [Overlap::Skip, Overlap::Allow, Overlap::Queue] {
            assert_eq!(admit(overlap, false, false), Admission::Start);
        }
        assert_eq!(admit(Overlap::Allow, true, false), Admission::Start);
        assert_eq!(admit(Overlap::Queue, true, false), Admission::Wait);
        assert!(matches!(admit(Overlap::Skip, true, false), Admission::Skip(_)));
        assert!(matches!(admit(Overlap::Queue, true, true), Admission::Skip(_)));
    }
}
