//! The successful logins of each user in an hour (contract 4.5). Each has an audit event and costs
//! no quota, so without a limit a user could fill D1 with them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// How many successes a window may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SuccessLimit {
    /// The maximum number of successes in a window.
    pub max: u32,
    /// The length of the window, in seconds. It begins with its first success.
    pub window_seconds: i64,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    ends_at: Timestamp,
    successes: u32,
}

/// The successes by user. Kept in the memory of an object, which stays there while users log in
/// often: a restart of the object only allows more.
#[derive(Default, Debug)]
pub struct SuccessRates(BTreeMap<String, Window>);

impl SuccessRates {
    /// Returns the whole seconds until the user may succeed again, at least 1; `None`: now.
    pub fn wait(&self, user: &str, limit: SuccessLimit, now: Timestamp) -> Option<u64> {
        let window = self.0.get(user).filter(|window| window.is_open(limit, now))?;
        let left = window.ends_at.seconds_since(now).ceil().max(1.0) as u64;
        (window.successes >= limit.max).then_some(left)
    }

    /// Counts a success.
    pub fn count(&mut self, user: &str, limit: SuccessLimit, now: Timestamp) {
        self.0.retain(|_, window| window.is_open(limit, now));
        let ends_at = now.plus_seconds(limit.window_seconds);
        let window = self.0.entry(user.to_owned()).or_insert(Window { ends_at, successes: 0 });
        window.successes = window.successes.saturating_add(1);
    }
}

impl Window {
    /// Whether the window has not ended. One that ends later than a new one would, because the
    /// clock was wrong, has ended too.
    fn is_open(&self, limit: SuccessLimit, now: Timestamp) -> bool {
        now < self.ends_at && self.ends_at <= now.plus_seconds(limit.window_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: SuccessLimit = SuccessLimit { max: 2, window_seconds: 60 };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::parse("2026-11-21T00:00:00Z").unwrap().plus_seconds(seconds)
    }

    #[test]
    fn a_user_succeeds_at_most_so_often_in_a_window() {
        let mut rates = SuccessRates::default();
        for second in [0, 10] {
            assert_eq!(rates.wait("alice", LIMIT, at(second)), None);
            rates.count("alice", LIMIT, at(second));
        }
        assert_eq!(rates.wait("alice", LIMIT, at(10)), Some(50));
        assert_eq!(rates.wait("bob", LIMIT, at(10)), None);
        assert_eq!(rates.wait("alice", LIMIT, at(59)), Some(1));
        assert_eq!(rates.wait("alice", LIMIT, at(60)), None);
    }

    #[test]
    fn windows_that_ended_are_forgotten() {
        let mut rates = SuccessRates::default();
        rates.count("alice", LIMIT, at(0));
        rates.count("bob", LIMIT, at(60));
        assert_eq!(rates.0.len(), 1);
        // The clock was set back.
        rates.count("bob", LIMIT, at(61));
        assert_eq!(rates.wait("bob", LIMIT, at(-1)), None);
    }
}
