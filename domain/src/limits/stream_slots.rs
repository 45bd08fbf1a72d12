//! The live streams that each user holds open, up to a quota (contract 11.4).
//!
//! A stream holds a slot under a lease, and renews the lease while it is open. A stream that was
//! cut off renews nothing, so its slot is free soon.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::time::Timestamp;

/// Seconds after which a slot is free again, unless its stream renews it.
pub const LEASE_SECONDS: i64 = 40;
/// How often a stream renews its slot, in seconds.
pub const RENEWAL_SECONDS: i64 = 15;
const _: () = assert!(2 * RENEWAL_SECONDS < LEASE_SECONDS, "a stream may miss one renewal");

/// The open streams by user, each with the end of its lease. Kept in the memory of an object: after
/// a restart of the object, streams get their slots back when they renew them.
#[derive(Default, Debug)]
pub struct StreamSlots(BTreeMap<String, BTreeMap<Uuid, Timestamp>>);

impl StreamSlots {
    /// Takes a slot for the stream `id` of a user. Returns false if the user has `max` streams.
    pub fn open(&mut self, user: &str, id: Uuid, max: i64, now: Timestamp) -> bool {
        self.free_expired(now);
        let open = self.0.get(user).map_or(0, BTreeMap::len);
        let has_room = i64::try_from(open).is_ok_and(|open| open < max);
        if has_room {
            self.renew(user, id, now);
        }
        has_room
    }

    /// Renews the slot of a stream. A stream whose slot was freed gets it back, also beyond the
    /// maximum: it is already open.
    pub fn renew(&mut self, user: &str, id: Uuid, now: Timestamp) {
        let until = now.plus_seconds(LEASE_SECONDS);
        self.0.entry(user.to_owned()).or_default().insert(id, until);
    }

    /// Frees the slot of a stream.
    pub fn close(&mut self, user: &str, id: Uuid) {
        if let Some(streams) = self.0.get_mut(user) {
            streams.remove(&id);
        }
    }

    fn free_expired(&mut self, now: Timestamp) {
        for streams in self.0.values_mut() {
            streams.retain(|_, until| *until > now);
        }
        self.0.retain(|_, streams| !streams.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::parse("2026-11-21T00:00:00Z").unwrap().plus_seconds(seconds)
    }

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    #[test]
    fn a_user_has_a_maximum_of_open_streams() {
        let mut slots = StreamSlots::default();
        assert!(slots.open("alice", id(1), 2, at(0)) && slots.open("alice", id(2), 2, at(0)));
        assert!(!slots.open("alice", id(3), 2, at(1)));
        assert!(slots.open("bob", id(4), 2, at(1)), "another user has an own quota");
        slots.close("alice", id(1));
        slots.close("alice", id(9));
        assert!(slots.open("alice", id(3), 2, at(1)));
        assert!(!slots.open("alice", id(5), 2, at(1)));
    }

    #[test]
    fn a_stream_that_is_not_renewed_loses_its_slot() {
        let mut slots = StreamSlots::default();
        assert!(slots.open("alice", id(1), 1, at(0)));
        slots.renew("alice", id(1), at(RENEWAL_SECONDS));
        assert!(!slots.open("alice", id(2), 1, at(LEASE_SECONDS + 1)));
        assert!(slots.open("alice", id(2), 1, at(LEASE_SECONDS + RENEWAL_SECONDS)));
        // A stream that was slow is still open, and counts again.
        slots.renew("alice", id(1), at(LEASE_SECONDS + RENEWAL_SECONDS));
        slots.close("alice", id(2));
        assert!(!slots.open("alice", id(3), 1, at(LEASE_SECONDS + RENEWAL_SECONDS)));
        assert!(slots.open("alice", id(3), 1, at(3 * LEASE_SECONDS)));
        assert_eq!(slots.0.len(), 1, "users without streams are forgotten");
    }
}
