//! How long a login lives (contract 4.3).

use crate::time::Timestamp;

/// How long a login token lives after its last use, in seconds: 14 days.
const LIFETIME: i64 = 14 * 24 * 3600;
/// How long an expiry may go unmoved, in seconds: writing at every access would cost too much.
const REFRESH_EVERY: i64 = 600;

/// When a login token expires that is used now.
pub fn expires_at(now: Timestamp) -> Timestamp {
    now.plus_seconds(LIFETIME)
}

/// Tells whether an access now moves an expiry that was moved then.
pub fn is_refresh_due(moved_at: Timestamp, now: Timestamp) -> bool {
    moved_at.plus_seconds(REFRESH_EVERY) <= now
}

/// The moment that an expiry must lie after for its token to be taken now. An expiry may have stood
/// still through accesses of ten minutes, so a token is taken for as long past it: never refused
/// before its 14 days, nor taken ten minutes after.
pub fn dead_until(now: Timestamp) -> Timestamp {
    now.plus_seconds(-REFRESH_EVERY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAYS_14: i64 = 14 * 24 * 3600;

    fn start() -> Timestamp {
        Timestamp::parse("2026-11-21T00:00:00Z").unwrap()
    }

    /// A session as the Worker keeps it.
    struct Session {
        moved_at: Timestamp,
        expires_at: Timestamp,
    }

    impl Session {
        fn new(now: Timestamp) -> Self {
            Self { moved_at: now, expires_at: expires_at(now) }
        }

        fn is_taken(&self, now: Timestamp) -> bool {
            self.expires_at > dead_until(now)
        }

        /// An access: whether it is let in; if it is, it counts.
        fn access(&mut self, now: Timestamp) -> bool {
            let is_taken = self.is_taken(now);
            if is_taken && is_refresh_due(self.moved_at, now) {
                *self = Self::new(now);
            }
            is_taken
        }
    }

    #[test]
    fn exact_ends() {
        let mut session = Session::new(start());
        let at = |seconds: i64| start().plus_seconds(seconds);
        assert!(session.is_taken(at(DAYS_14)));
        assert!(session.is_taken(at(DAYS_14 + 600).plus_millis(-1)));
        assert!(!session.is_taken(at(DAYS_14 + 600)));
        // An access just before ten minutes does not move it, one at ten minutes does.
        assert!(session.access(at(600).plus_millis(-1)));
        assert_eq!(session.expires_at, at(DAYS_14));
        assert!(session.access(at(600)));
        assert_eq!(session.expires_at, at(600 + DAYS_14));
        assert!(!session.access(at(600 + DAYS_14 + 600)));
    }

    proptest! {
        /// Whenever it is used, it is taken for 14 days after, and refused from ten minutes after
        /// that on.
        #[test]
        fn never_too_short_nor_too_long(gaps in prop::collection::vec(0..DAYS_14 + 1, 0..40)) {
            let mut session = Session::new(start());
            let mut last = start();
            for gap in gaps {
                last = last.plus_seconds(gap);
                prop_assert!(session.access(last), "used {gap} s before");
            }
            prop_assert!(session.is_taken(last.plus_seconds(DAYS_14)));
            prop_assert!(!session.is_taken(last.plus_seconds(DAYS_14 + 600)));
        }
    }
}
