//! The lifetime of a login session (contract 4.3).

use std::time::Duration;

use crate::time::Timestamp;

/// A login token expires this long after its last use.
const LIFETIME: Duration = Duration::from_secs(14 * 24 * 3_600);
/// The expiry is extended at most once in this time, because a write for each request would cost
/// too much.
const EXTENSION_INTERVAL: Duration = Duration::from_secs(600);

/// The expiry of a login token that is used now.
pub fn expires_at(now: Timestamp) -> Timestamp {
    now.plus(LIFETIME)
}

/// Whether a request now extends an expiry that was last extended at `moved_at`.
pub fn is_extension_due(moved_at: Timestamp, now: Timestamp) -> bool {
    moved_at.plus(EXTENSION_INTERVAL) <= now
}

/// A login token is accepted now if its stored expiry is later than this time.
///
/// The stored expiry may be `EXTENSION_INTERVAL` older than the last use. So the token is
/// accepted that much longer: at least 14 days after its last use, and at most ten minutes more.
pub fn oldest_accepted_expiry(now: Timestamp) -> Timestamp {
    now.minus(EXTENSION_INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAYS_14: i64 = 14 * 24 * 3600;

    fn start() -> Timestamp {
        Timestamp::parse("2026-11-21T00:00:00Z").unwrap()
    }

    /// A session as the Worker stores it.
    struct Session {
        moved_at: Timestamp,
        expires_at: Timestamp,
    }

    impl Session {
        fn new(now: Timestamp) -> Self {
            Self { moved_at: now, expires_at: expires_at(now) }
        }

        fn is_accepted(&self, now: Timestamp) -> bool {
            self.expires_at > oldest_accepted_expiry(now)
        }

        /// A request with the token. Returns whether the token is accepted.
        fn access(&mut self, now: Timestamp) -> bool {
            let is_accepted = self.is_accepted(now);
            if is_accepted && is_extension_due(self.moved_at, now) {
                *self = Self::new(now);
            }
            is_accepted
        }
    }

    #[test]
    fn a_session_ends_between_14_days_and_ten_minutes_more() {
        let mut session = Session::new(start());
        let at = |seconds: i64| start().plus_seconds(seconds);
        assert!(session.is_accepted(at(DAYS_14)));
        assert!(session.is_accepted(at(DAYS_14 + 600).plus_millis(-1)));
        assert!(!session.is_accepted(at(DAYS_14 + 600)));
        // A request just before ten minutes does not extend the expiry, but a request at ten
        // minutes does.
        assert!(session.access(at(600).plus_millis(-1)));
        assert_eq!(session.expires_at, at(DAYS_14));
        assert!(session.access(at(600)));
        assert_eq!(session.expires_at, at(600 + DAYS_14));
        assert!(!session.access(at(600 + DAYS_14 + 600)));
    }

    proptest! {
        /// After each use, the token is accepted for 14 days. It is refused ten minutes later.
        #[test]
        fn each_use_extends_the_session_by_14_days(gaps in prop::collection::vec(0..DAYS_14 + 1, 0..40)) {
            let mut session = Session::new(start());
            let mut last = start();
            for gap in gaps {
                last = last.plus_seconds(gap);
                prop_assert!(session.access(last), "used {gap} s before");
            }
            prop_assert!(session.is_accepted(last.plus_seconds(DAYS_14)));
            prop_assert!(!session.is_accepted(last.plus_seconds(DAYS_14 + 600)));
        }
    }
}
