//! Detects two hosts with one identity (agent-protocol 5.2). While they keep replacing each other's
//! connection, a newer connection must first prove that the older one is dead.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// After this number of replacements within [`REPLACEMENT_WINDOW`], the older connection is pinged
/// first.
const MAX_REPLACEMENTS: usize = 3;
/// How long a replacement is counted.
const REPLACEMENT_WINDOW: Duration = Duration::from_secs(60);
/// How long a refusal is counted. Agents dial at least every 60 s.
const REFUSAL_WINDOW: Duration = Duration::from_secs(180);

/// The recent history of one kind of connection: when a connection replaced an older one, and when
/// a connection was refused.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ReplacementHistory {
    /// The latest replacements, the oldest first.
    replaced_at: Vec<Timestamp>,
    refused_at: Option<Timestamp>,
}

impl ReplacementHistory {
    /// Whether the older connection must be pinged before a newer one may replace it.
    pub fn is_contested(&self, now: Timestamp) -> bool {
        let is_within = |at: &Timestamp, window| *at <= now && at.plus(window) > now;
        let replacements =
            self.replaced_at.iter().filter(|at| is_within(at, REPLACEMENT_WINDOW)).count();
        replacements >= MAX_REPLACEMENTS
            || self.refused_at.is_some_and(|at| is_within(&at, REFUSAL_WINDOW))
    }

    /// Records that a connection replaced an older one that was still open.
    pub fn record_replacement(&mut self, now: Timestamp) {
        self.replaced_at.push(now);
        let surplus = self.replaced_at.len().saturating_sub(MAX_REPLACEMENTS);
        self.replaced_at.drain(..surplus);
    }

    /// Records that a connection was refused because the older one is alive.
    pub fn record_refusal(&mut self, now: Timestamp) {
        self.refused_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_000_000).plus_seconds(seconds)
    }

    #[test]
    fn three_replacements_within_a_minute_are_a_contest() {
        let mut history = ReplacementHistory::default();
        for seconds in [0, 30, 59] {
            assert!(!history.is_contested(at(seconds)));
            history.record_replacement(at(seconds));
        }
        assert!(history.is_contested(at(59)));
        assert!(!history.is_contested(at(60)), "the first one is a minute old");
        history.record_replacement(at(61));
        assert!(history.is_contested(at(61)) && history.replaced_at.len() == MAX_REPLACEMENTS);
        // The clock was set back: replacements after the current time do not count.
        assert!(!history.is_contested(at(10)));
    }

    #[test]
    fn each_refusal_prolongs_the_contest() {
        let mut history = ReplacementHistory::default();
        for _ in 0..MAX_REPLACEMENTS {
            history.record_replacement(at(0));
        }
        for seconds in [5, 15, 35, 75, 135, 195] {
            assert!(history.is_contested(at(seconds)), "{seconds}");
            history.record_refusal(at(seconds));
        }
        assert!(history.is_contested(at(195 + 179)) && !history.is_contested(at(195 + 180)));
    }
}
