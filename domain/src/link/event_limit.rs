//! The audit events that an agent causes: each of the first ones of an hour is written, and the
//! others are joined into one event (contract 18).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::audit::event::AuditEvent;
use crate::time::Timestamp;

/// How many events of an hour are written one by one.
const MAX_PER_HOUR: u32 = 60;
const HOUR: Duration = Duration::from_secs(3_600);

/// Events that were joined.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct JoinedEvents {
    first: AuditEvent,
    number: u32,
}

/// The events of the current hour, which begins with its first event.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct EventLimit {
    began_at: Option<Timestamp>,
    written: u32,
    joined: Option<JoinedEvents>,
}

impl EventLimit {
    /// Whether joined events must be written now.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.joined.is_some() && self.is_over(now)
    }

    fn is_over(&self, now: Timestamp) -> bool {
        // A beginning in the future does not count, because the clock was wrong then.
        self.began_at.is_none_or(|began_at| now < began_at || began_at.plus(HOUR) <= now)
    }

    /// Ends the hour if it is over. Returns the first of the joined events, with their number.
    pub fn end_hour(&mut self, now: Timestamp) -> Option<AuditEvent> {
        if !self.is_over(now) {
            return None;
        }
        let ended = std::mem::take(self);
        let JoinedEvents { mut first, number } = ended.joined?;
        first.details["count"] = json!(number);
        (self.began_at, self.written) = (Some(now), 1);
        Some(first)
    }

    /// Returns the event if it is written. Otherwise it is joined. Call [`EventLimit::end_hour`]
    /// first.
    pub fn admit(&mut self, event: AuditEvent) -> Option<AuditEvent> {
        if self.written < MAX_PER_HOUR {
            self.began_at.get_or_insert(event.occurred_at);
            self.written += 1;
            return Some(event);
        }
        match &mut self.joined {
            Some(joined) => joined.number = joined.number.saturating_add(1),
            None => self.joined = Some(JoinedEvents { first: event, number: 1 }),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::audit::event::Source;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::parse("2026-11-21T12:00:00Z").unwrap().plus_seconds(seconds)
    }

    fn event(seconds: i64) -> AuditEvent {
        AuditEvent::new(Uuid::nil(), at(seconds), Source::default(), "server.connect")
    }

    #[test]
    fn more_than_60_events_of_an_hour_are_joined() {
        let mut limit = EventLimit::default();
        let add = |limit: &mut EventLimit, seconds| {
            let joined = limit.end_hour(at(seconds));
            joined.into_iter().chain(limit.admit(event(seconds))).collect::<Vec<_>>()
        };
        for seconds in 0..60 {
            assert_eq!(add(&mut limit, seconds), [event(seconds)]);
        }
        for seconds in 60..1_060 {
            assert_eq!(add(&mut limit, seconds), []);
        }
        assert!(!limit.is_due(at(3_599)) && limit.is_due(at(3_600)));
        let joined = event(60).details(json!({"count": 1_000}));
        assert_eq!(add(&mut limit, 3_600), [joined, event(3_600)]);
        assert!(!limit.is_due(at(100_000)));
        // The joined event counts in the new hour.
        let written: usize = (0..100).map(|_| add(&mut limit, 3_601).len()).sum();
        assert_eq!(written, 58);
        // The clock was set back by an hour.
        assert_eq!(add(&mut limit, 0).len(), 2);
    }

    #[test]
    fn an_hour_without_joined_events_ends_without_an_event() {
        let mut limit = EventLimit::default();
        assert_eq!(limit.end_hour(at(0)), None);
        assert_eq!(limit.admit(event(0)), Some(event(0)));
        assert!(!limit.is_due(at(3_600)));
        assert_eq!(limit.end_hour(at(3_600)), None);
        assert_eq!(limit, EventLimit::default());
    }
}
