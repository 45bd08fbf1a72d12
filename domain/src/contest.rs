//! Two hosts with one identity (agent-protocol 5.2): when a newer connection no longer replaces the
//! older one.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// After how many replacements within [`WINDOW`] the older connection is asked whether it is alive.
const REPLACEMENTS: usize = 3;
/// The time in which replacements count, in seconds.
const WINDOW: i64 = 60;
/// How long after a refused connection the next one is refused too, in seconds. Agents dial at
/// least every 60 s.
const AFTER_REFUSAL: i64 = 180;

/// The recent history of one kind of socket: connections that replaced an older one, and
/// connections that were refused.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Contest {
    /// The latest replacements, the oldest first.
    replaced_at: Vec<Timestamp>,
    refused_at: Option<Timestamp>,
}

impl Contest {
    /// Whether connections replaced each other so often that the next one has to prove that the
    /// older one is dead.
    pub fn is_open(&self, now: Timestamp) -> bool {
        let is_within = |at: &Timestamp, seconds| *at <= now && at.plus_seconds(seconds) > now;
        let replacements = self.replaced_at.iter().filter(|at| is_within(at, WINDOW)).count();
        replacements >= REPLACEMENTS
            || self.refused_at.is_some_and(|at| is_within(&at, AFTER_REFUSAL))
    }

    /// A connection replaced an older one that was still open.
    pub fn note_replacement(&mut self, now: Timestamp) {
        self.replaced_at.push(now);
        let surplus = self.replaced_at.len().saturating_sub(REPLACEMENTS);
        self.replaced_at.drain(..surplus);
    }

    /// A connection was refused, as the older one is alive.
    pub fn note_refusal(&mut self, now: Timestamp) {
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
    fn three_replacements_within_a_minute_open_a_contest() {
        let mut contest = Contest::default();
        for seconds in [0, 30, 59] {
            assert!(!contest.is_open(at(seconds)));
            contest.note_replacement(at(seconds));
        }
        assert!(contest.is_open(at(59)));
        assert!(!contest.is_open(at(60)), "the first one is a minute old");
        contest.note_replacement(at(61));
        assert!(contest.is_open(at(61)) && contest.replaced_at.len() == REPLACEMENTS);
        // The clock was set back: what happened later does not count.
        assert!(!contest.is_open(at(10)));
    }

    #[test]
    fn a_refusal_keeps_it_open_until_the_agent_has_dialed_again() {
        let mut contest = Contest::default();
        for _ in 0..REPLACEMENTS {
            contest.note_replacement(at(0));
        }
        for seconds in [5, 15, 35, 75, 135, 195] {
            assert!(contest.is_open(at(seconds)), "{seconds}");
            contest.note_refusal(at(seconds));
        }
        assert!(
            contest.is_open(at(195 + AFTER_REFUSAL - 1))
                && !contest.is_open(at(195 + AFTER_REFUSAL))
        );
    }
}
