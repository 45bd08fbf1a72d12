//! What an isolate did lately, so that it does not do it again at once. Only a hint: other isolates know nothing of it.

use std::collections::HashMap;
use std::hash::Hash;

use farhand_domain::time::Timestamp;

/// How many things are remembered at most.
const REMEMBERED: usize = 10_000;

/// When things were done.
pub struct Lately<K>(HashMap<K, Timestamp>);

impl<K> Default for Lately<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Lately<K> {
    /// Tells whether something was not done within so many milliseconds before now, and notes that it is done now. What was done
    /// later than now was done by a clock that went wrong: it is as if it never was.
    pub fn is_due(&mut self, what: K, now: Timestamp, every: i64) -> bool {
        if self.0.get(&what).is_some_and(|at| *at <= now && at.plus_millis(every) > now) {
            return false;
        }
        if self.0.len() >= REMEMBERED {
            self.0.clear();
        }
        self.0.insert(what, now);
        true
    }

    /// Forgets that something was done.
    pub fn forget(&mut self, what: &K) {
        self.0.remove(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_due_once_in_a_while() {
        let mut lately = Lately::default();
        let now = Timestamp::parse("2026-11-21T12:00:00Z").unwrap();
        let mut is_due = |what: i64, millis: i64| lately.is_due(what, now.plus_millis(millis), 1_000);
        assert!(is_due(1, 0));
        assert!(!is_due(1, 0));
        assert!(!is_due(1, 999));
        assert!(is_due(2, 999));
        assert!(is_due(1, 1_000));
        // The clock was set back by an hour.
        assert!(is_due(1, -3_600_000));
        assert!(!is_due(1, -3_599_999));
        lately.forget(&1);
        assert!(lately.is_due(1, now, 1_000));
        for what in 0..2 * REMEMBERED as i64 {
            lately.is_due(what, now, 1_000);
            assert!(lately.0.len() <= REMEMBERED);
        }
    }
}
