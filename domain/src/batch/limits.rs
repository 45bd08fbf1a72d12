//! How many commands of a batch may be open at a time, and when failures stop it.

use serde::{Deserialize, Serialize};

/// The limits of a batch. Percentages are resolved when the batch is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum number of commands that were started and have not ended.
    pub max_concurrency: u64,
    /// If more commands fail, no further command starts; `None`: no limit.
    pub max_errors: Option<u64>,
    /// Whether the batch begins with one command at a time.
    pub ramp: bool,
}

impl Limits {
    /// The number of commands that may be open, given the number of commands that succeeded.
    ///
    /// With `ramp` it begins at 1, and doubles each time as many commands succeeded as it allowed:
    /// after 1, 3, 7 and 15 successes. So it only grows.
    pub fn concurrency(&self, successes: u64) -> u64 {
        let ramp = if self.ramp { 1 << (successes + 1).ilog2() } else { u64::MAX };
        ramp.min(self.max_concurrency)
    }

    /// Whether this number of failures stops the batch.
    pub fn is_exceeded_by(&self, failures: u64) -> bool {
        self.max_errors.is_some_and(|max_errors| failures > max_errors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ramp_doubles_after_as_many_successes_as_it_allowed() {
        let limits = Limits { max_concurrency: 10, max_errors: None, ramp: true };
        let allowed = [1, 2, 2, 4, 4, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 10, 10];
        for (successes, allowed) in (0..).zip(allowed) {
            assert_eq!(limits.concurrency(successes), allowed, "{successes}");
        }
        assert_eq!(limits.concurrency(5_000), 10);
        assert_eq!(Limits { ramp: false, ..limits }.concurrency(0), 10);
    }

    #[test]
    fn only_more_failures_than_allowed_stop_a_batch() {
        let limits = |max_errors| Limits { max_concurrency: 1, max_errors, ramp: false };
        assert!(!limits(None).is_exceeded_by(5_000));
        assert!(!limits(Some(2)).is_exceeded_by(2) && limits(Some(2)).is_exceeded_by(3));
        assert!(!limits(Some(0)).is_exceeded_by(0) && limits(Some(0)).is_exceeded_by(1));
    }
}
