//! The one alarm of an object. The platform may run it late: if an object is called while its alarm
//! is overdue, it sets the alarm again.

use std::cell::Cell;
use std::time::Duration;

use farhand_domain::time::Timestamp;
use worker::{ScheduledTime, Storage, js_sys};

/// How late an alarm that this object set may be before it is set again.
const MAX_DELAY: Duration = Duration::from_secs(5);
/// How far ahead an alarm is set at most: the platform takes none after the year 2189.
const MAX_AHEAD: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The alarm of an object, as the object knows it.
#[derive(Default)]
pub struct Alarm {
    /// When it goes off at the latest; `None`: unknown.
    armed: Cell<Option<Timestamp>>,
    /// How often it was set. Each time counts as a row written to the storage.
    sets: Cell<usize>,
}

impl Alarm {
    /// To be called first when the alarm goes off.
    pub fn went_off(&self) {
        self.armed.set(None);
    }

    /// Sets the alarm, unless it goes off earlier. A time that is far ahead is reached in several
    /// alarms: each sets the next one.
    ///
    /// # Errors
    /// The storage failed.
    pub async fn set_by(
        &self,
        storage: &Storage,
        at: Timestamp,
        now: Timestamp,
    ) -> worker::Result<()> {
        let Some(at) = self.begin(at, now) else { return Ok(()) };
        let found = self.tried(storage.get_alarm().await)?;
        let found = found.map(|found| Timestamp::from_millis(found.unsigned_abs()));
        if self.is_needed(at, found, now) { self.set(storage, at).await } else { Ok(()) }
    }

    /// Sets the alarm, whatever it was set for.
    ///
    /// # Errors
    /// The storage failed.
    pub async fn set(&self, storage: &Storage, at: Timestamp) -> worker::Result<()> {
        self.armed.set(Some(at));
        self.sets.set(self.sets.get() + 1);
        let date = js_sys::Date::new(&(at.as_millis() as f64).into());
        self.tried(storage.set_alarm(ScheduledTime::new(date)).await)
    }

    /// How often the alarm was set since this was last called.
    pub fn take_sets(&self) -> usize {
        self.sets.take()
    }

    /// Deletes the alarm.
    ///
    /// # Errors
    /// The storage failed.
    pub async fn delete(&self, storage: &Storage) -> worker::Result<()> {
        self.armed.set(None);
        storage.delete_alarm().await
    }

    /// The time to set, unless the alarm is known to go off by then.
    fn begin(&self, at: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let at = at.clamp(now, now.plus_seconds(MAX_AHEAD.as_secs().cast_signed()));
        let overdue = now.plus_seconds(-MAX_DELAY.as_secs().cast_signed());
        if self.armed.get().is_some_and(|armed| overdue < armed && armed <= at) {
            return None;
        }
        self.armed.set(Some(at));
        Some(at)
    }

    /// Whether to set the alarm, which the storage has at `found`. An overdue one that this object
    /// did not set itself is set again: after the runtime died, it may come late.
    fn is_needed(&self, at: Timestamp, found: Option<Timestamp>, now: Timestamp) -> bool {
        // While the storage was asked, another task may have begun to set an earlier one.
        let is_earliest = self.armed.get().is_none_or(|armed| armed >= at);
        is_earliest && found.is_none_or(|found| found <= now || found > at)
    }

    /// Passes on the storage's answer. After a failure the time of the alarm is unknown.
    fn tried<T>(&self, answer: worker::Result<T>) -> worker::Result<T> {
        answer.inspect_err(|_| self.armed.set(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: i64) -> Timestamp {
        Timestamp::parse("2026-11-21T00:00:00Z").unwrap().plus_seconds(seconds)
    }

    #[test]
    fn an_alarm_is_set_once_until_it_is_overdue() {
        let alarm = Alarm::default();
        assert_eq!(alarm.begin(after(10), after(0)), Some(after(10)));
        assert_eq!(alarm.begin(after(10), after(0)), None);
        assert_eq!(alarm.begin(after(20), after(0)), None);
        assert_eq!(alarm.begin(after(9), after(0)), Some(after(9)));
        assert_eq!(alarm.begin(after(9), after(13)), None);
        assert_eq!(alarm.begin(after(9), after(14)), Some(after(14)));
        alarm.went_off();
        assert_eq!(alarm.begin(after(60), after(14)), Some(after(60)));
        // The clock was an hour ahead.
        assert_eq!(alarm.begin(after(-3_590), after(-3_600)), Some(after(-3_590)));
        alarm
            .tried(Err::<(), _>(worker::Error::RustError("the storage failed".to_owned())))
            .unwrap_err();
        assert_eq!(alarm.begin(after(60), after(14)), Some(after(60)));
    }

    #[test]
    fn an_alarm_that_the_object_finds_is_kept_if_it_comes_in_time() {
        let alarm = Alarm::default();
        for (found, is_needed) in [
            (None, true),
            (Some(-3_600), true),
            (Some(-1), true),
            (Some(0), true),
            (Some(1), false),
            (Some(10), false),
            (Some(11), true),
            (Some(3_600), true),
        ] {
            assert_eq!(
                alarm.is_needed(after(10), found.map(after), after(0)),
                is_needed,
                "{found:?}"
            );
        }
    }

    #[test]
    fn of_two_that_set_it_at_the_same_time_the_earlier_one_counts() {
        let alarm = Alarm::default();
        let late = alarm.begin(after(20), after(0)).unwrap();
        let early = alarm.begin(after(10), after(0)).unwrap();
        assert!(!alarm.is_needed(late, None, after(0)));
        assert!(alarm.is_needed(early, None, after(0)));
    }

    #[test]
    fn no_alarm_is_in_the_past_or_too_far_for_the_platform() {
        let begun = |seconds| Alarm::default().begin(after(seconds), after(0)).unwrap();
        assert_eq!(begun(86_400), after(86_400));
        assert_eq!(begun(-60), after(0));
        let far = Alarm::default()
            .begin(Timestamp::parse("9999-12-31T23:59:59Z").unwrap(), after(0))
            .unwrap();
        assert!(far > after(0) && far < Timestamp::parse("2189-01-01T00:00:00Z").unwrap());
    }
}
