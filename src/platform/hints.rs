//! Cached hints: data that an isolate keeps in memory for a limited time. Other isolates do not
//! have a hint, and it may be outdated, so no decision may depend on it.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use farhand_domain::time::Timestamp;

/// The maximum number of entries in a map.
const MAX_ENTRIES: usize = 10_000;

/// A bounded map whose entries expire.
pub struct Hints<K, V = ()> {
    time_to_live: Duration,
    /// The values, with the time at which they were added.
    entries: RefCell<HashMap<K, (V, Timestamp)>>,
}

impl<K: Eq + Hash, V: Clone> Hints<K, V> {
    pub fn new(time_to_live: Duration) -> Self {
        Self { time_to_live, entries: RefCell::default() }
    }

    /// The value of a key, unless it has expired. A value with a future time counts as expired,
    /// because the clock was wrong when the value was added.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q, now: Timestamp) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let millis = self.time_to_live.as_millis() as i64;
        let is_valid = |at: Timestamp| at <= now && at.plus_millis(millis) > now;
        self.entries
            .borrow()
            .get(key)
            .filter(|(_, at)| is_valid(*at))
            .map(|(value, _)| value.clone())
    }

    /// Adds or replaces a value. If the map is full and the key is new, all entries are removed
    /// first.
    pub fn put(&self, key: K, value: V, now: Timestamp) {
        let mut entries = self.entries.borrow_mut();
        if entries.len() >= MAX_ENTRIES && !entries.contains_key(&key) {
            entries.clear();
        }
        entries.insert(key, (value, now));
    }

    /// Removes a key.
    pub fn forget<Q: Eq + Hash + ?Sized>(&self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.entries.borrow_mut().remove(key);
    }
}

impl<K: Eq + Hash> Hints<K> {
    /// Adds a key. Returns whether the key was absent or expired.
    pub fn is_new(&self, key: K, now: Timestamp) -> bool {
        let is_new = self.get(&key, now).is_none();
        if is_new {
            self.put(key, (), now);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(millis: i64) -> Timestamp {
        Timestamp::parse("2026-11-21T12:00:00Z").unwrap().plus_millis(millis)
    }

    #[test]
    fn a_key_is_new_once_until_it_expires_or_is_removed() {
        let hints = Hints::new(Duration::from_secs(1));
        let is_new = |key: i64, millis: i64| hints.is_new(key, after(millis));
        assert!(is_new(1, 0));
        assert!(!is_new(1, 0));
        assert!(!is_new(1, 999));
        assert!(is_new(2, 999));
        assert!(is_new(1, 1_000));
        // The clock was set back by an hour.
        assert!(is_new(1, -3_600_000));
        assert!(!is_new(1, -3_599_999));
        hints.forget(&1);
        assert!(is_new(1, 0));
    }

    #[test]
    fn the_last_value_is_returned_until_it_expires() {
        let hints: Hints<String, i64> = Hints::new(Duration::from_secs(60));
        assert_eq!(hints.get("a", after(0)), None);
        hints.put("a".to_owned(), 1, after(0));
        hints.put("a".to_owned(), 2, after(30_000));
        assert_eq!(hints.get("a", after(30_000)), Some(2));
        assert_eq!(hints.get("a", after(89_999)), Some(2));
        assert_eq!(hints.get("a", after(90_000)), None);
        assert_eq!(hints.get("b", after(30_000)), None);
        hints.put("a".to_owned(), 3, after(100_000));
        hints.forget("a");
        assert_eq!(hints.get("a", after(100_000)), None);
    }

    #[test]
    fn a_map_never_exceeds_its_maximum() {
        let hints = Hints::new(Duration::from_secs(60));
        for key in 0..2 * MAX_ENTRIES {
            hints.put(key, (), after(0));
            assert!(hints.entries.borrow().len() <= MAX_ENTRIES);
            assert!(hints.get(&key, after(0)).is_some());
        }
        let is_kept = hints.get(&(2 * MAX_ENTRIES - 1), after(0)).is_some();
        hints.put(2 * MAX_ENTRIES - 1, (), after(1));
        assert!(
            is_kept && hints.entries.borrow().len() == MAX_ENTRIES,
            "replacing an entry must not empty the map"
        );
    }
}
