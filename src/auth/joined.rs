//! Refusals and reads that this isolate has counted and D1 does not have yet.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use farhand_domain::audit::event::AuditEvent;
use farhand_domain::time::Timestamp;

/// The minimum interval between two writes of the same key.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// The platform may end work after the response without notice, after 30 seconds at the latest. A
/// write that was scheduled earlier than this is scheduled again.
const WRITE_PATIENCE: Duration = Duration::from_secs(60);
/// With more keys than this, those without counted refusals are removed.
const MAX_IDLE_KEYS: usize = 1_000;

/// What refusals or reads have in common that become one audit event.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct JoinKey {
    pub workspace_id: i64,
    /// The user and the action, and of refusals also the code.
    pub text: String,
}

#[derive(Default)]
struct Entry {
    /// The first counted refusal, and how many there are.
    counted: Option<(AuditEvent, u64)>,
    /// For when the last write was scheduled.
    write_at: Option<Timestamp>,
}

/// Counted refusals by key.
#[derive(Default)]
pub struct JoinedEvents {
    entries: RefCell<HashMap<JoinKey, Entry>>,
}

impl JoinedEvents {
    /// Counts a refusal. If the caller must write the counted refusals, returns after which time.
    pub fn count(&self, key: &JoinKey, event: AuditEvent, now: Timestamp) -> Option<Duration> {
        let mut entries = self.entries.borrow_mut();
        if entries.len() >= MAX_IDLE_KEYS && !entries.contains_key(key) {
            let is_recent = |at: Timestamp| at.plus(WRITE_INTERVAL) > now;
            entries.retain(|_, entry| {
                entry.counted.is_some() || entry.write_at.is_some_and(is_recent)
            });
        }
        let entry = entries.entry(key.clone()).or_default();
        let is_first = entry.counted.is_none();
        entry.counted.get_or_insert((event, 0)).1 += 1;
        // No write is scheduled further ahead, unless the clock was wrong then.
        let last = entry.write_at.filter(|at| *at <= now.plus(WRITE_INTERVAL));
        if !is_first && last.is_some_and(|at| now < at.plus(WRITE_PATIENCE)) {
            return None;
        }
        let write_at = last.map_or(now, |at| at.plus(WRITE_INTERVAL).max(now));
        entry.write_at = Some(write_at);
        Some(Duration::from_millis(write_at.as_millis().saturating_sub(now.as_millis())))
    }

    /// Takes the counted refusals of a key: the first one, and their number.
    pub fn take(&self, key: &JoinKey) -> Option<(AuditEvent, u64)> {
        self.entries.borrow_mut().get_mut(key)?.counted.take()
    }

    /// Returns refusals that could not be written.
    pub fn put_back(&self, key: &JoinKey, first: AuditEvent, number: u64) {
        let mut entries = self.entries.borrow_mut();
        let counted = &mut entries.entry(key.clone()).or_default().counted;
        let later = counted.take().map_or(0, |(_, later)| later);
        *counted = Some((first, number + later));
    }
}

/// The maximum number of a user's reads in [`READ_WINDOW`] that each have an audit event.
const MAX_SINGLE_READS: u32 = 20;
const READ_WINDOW: Duration = Duration::from_secs(60);
/// With more users than this, those whose window is over are removed.
const MAX_IDLE_READERS: usize = 1_000;

/// Limits how many reads of a user have an audit event of their own. Reads cost no quota, so a user
/// could fill D1 with their events.
#[derive(Default)]
pub struct SingleReads {
    /// The beginning of the window of a workspace's user, and the reads in it.
    windows: RefCell<HashMap<(i64, i64), (Timestamp, u32)>>,
}

impl SingleReads {
    /// Counts a read. Returns whether it gets an event of its own.
    pub fn admits(&self, user: (i64, i64), now: Timestamp) -> bool {
        let mut windows = self.windows.borrow_mut();
        let is_over = |began_at: Timestamp| now < began_at || began_at.plus(READ_WINDOW) <= now;
        if windows.len() >= MAX_IDLE_READERS && !windows.contains_key(&user) {
            windows.retain(|_, (began_at, _)| !is_over(*began_at));
        }
        let (began_at, reads) = windows.entry(user).or_insert((now, 0));
        if is_over(*began_at) {
            (*began_at, *reads) = (now, 0);
        }
        *reads = reads.saturating_add(1);
        *reads <= MAX_SINGLE_READS
    }
}

#[cfg(test)]
mod tests {
    use farhand_domain::audit::event::Source;
    use uuid::Uuid;

    use super::*;

    fn after(millis: i64) -> Timestamp {
        Timestamp::parse("2026-11-21T12:00:00Z").unwrap().plus_millis(millis)
    }

    fn key(text: &str) -> JoinKey {
        JoinKey { workspace_id: 1, text: text.to_owned() }
    }

    fn event(millis: i64) -> AuditEvent {
        AuditEvent::new(Uuid::nil(), after(millis), Source::default(), "user.create")
    }

    #[test]
    fn the_first_refusal_is_written_immediately_and_the_next_ones_together() {
        let joined = JoinedEvents::default();
        let count = |millis| joined.count(&key("a"), event(millis), after(millis));
        let taken = || joined.take(&key("a")).map(|(event, number)| (event.occurred_at, number));
        assert_eq!(count(0), Some(Duration::ZERO));
        assert_eq!(taken(), Some((after(0), 1)));
        assert_eq!(taken(), None);
        assert_eq!(count(1_000), Some(Duration::from_secs(4)));
        for millis in 2_000..3_000 {
            assert_eq!(count(millis), None);
        }
        assert_eq!(joined.count(&key("b"), event(0), after(3_000)), Some(Duration::ZERO));
        assert_eq!(taken(), Some((after(1_000), 1_001)));
        assert_eq!(count(6_000), Some(Duration::from_secs(4)));
        assert_eq!(taken(), Some((after(6_000), 1)));
        assert_eq!(count(60_000), Some(Duration::ZERO));
    }

    #[test]
    fn refusals_that_were_not_written_are_counted_again() {
        let joined = JoinedEvents::default();
        let key = key("a");
        joined.count(&key, event(0), after(0));
        let (first, number) = joined.take(&key).unwrap();
        joined.count(&key, event(1), after(1));
        joined.put_back(&key, first.clone(), number);
        assert_eq!(joined.take(&key), Some((first.clone(), 2)));
        joined.put_back(&key, first.clone(), 2);
        assert_eq!(joined.take(&key), Some((first, 2)));
    }

    #[test]
    fn a_write_that_never_began_is_scheduled_again() {
        let joined = JoinedEvents::default();
        let count = |millis| joined.count(&key("a"), event(millis), after(millis));
        assert_eq!(count(0), Some(Duration::ZERO));
        assert_eq!(count(59_999), None);
        assert_eq!(count(60_000), Some(Duration::ZERO));
        assert_eq!(joined.take(&key("a")).map(|(_, number)| number), Some(3));
        // The clock was set back by an hour.
        assert_eq!(count(-3_600_000), Some(Duration::ZERO));
    }

    #[test]
    fn only_keys_without_refusals_are_removed() {
        let joined = JoinedEvents::default();
        for number in 0..MAX_IDLE_KEYS {
            let key = key(&number.to_string());
            joined.count(&key, event(0), after(0));
            if number > 0 {
                joined.take(&key);
            }
        }
        joined.count(&key("new"), event(0), after(10_000));
        assert_eq!(joined.entries.borrow().len(), 2);
        assert!(joined.take(&key("0")).is_some());
    }

    #[test]
    fn twenty_reads_of_a_user_in_a_minute_have_events() {
        let reads = SingleReads::default();
        let admitted = |user, millis| (0..30).filter(|_| reads.admits(user, after(millis))).count();
        assert_eq!(admitted((1, 1), 0), 20);
        assert_eq!(
            (admitted((1, 1), 59_999), admitted((1, 2), 0), admitted((2, 1), 0)),
            (0, 20, 20)
        );
        assert_eq!(admitted((1, 1), 60_000), 20);
        // The clock was set back.
        assert_eq!(admitted((1, 1), -1), 20);
        for user in 0..2_000 {
            reads.admits((3, user), after(200_000));
        }
        reads.admits((3, 2_000), after(300_000));
        assert_eq!(reads.windows.borrow().len(), 1);
    }
}
