//! The alarm of a Durable Object. The platform gives each object one alarm, and may run it late. If
//! an object is called while its alarm is overdue, it sets the alarm again.

use std::cell::Cell;
use std::time::Duration;

use farhand_domain::time::Timestamp;
use worker::{ScheduledTime, Storage, js_sys};

/// An alarm that is overdue by more than this is set again.
const MAX_OVERDUE: Duration = Duration::from_secs(5);
/// The maximum time from now for which an alarm is set. The platform accepts no time after the year
/// 2189.
const MAX_AHEAD: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// What the object knows about its alarm.
#[derive(Default)]
pub struct Alarm {
    /// The alarm is set for this time or earlier. `None` means that its time is unknown.
    armed: Cell<Option<Timestamp>>,
    /// How often the alarm was set. The platform bills each time as a row written to the storage.
    sets: Cell<usize>,
}

impl Alarm {
    /// Call this first when the alarm goes off.
    pub fn went_off(&self) {
        self.armed.set(None);
    }

    /// Sets the alarm for `at`, unless it is already set for an earlier time. If `at` is more than
    /// [`MAX_AHEAD`] away, sets an earlier alarm, whose handler must call this again.
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
        let current = self.forget_on_error(storage.get_alarm().await)?;
        let current = current.map(|millis| Timestamp::from_millis(millis.unsigned_abs()));
        if self.is_needed(at, current, now) { self.set(storage, at).await } else { Ok(()) }
    }

    /// Sets the alarm, even if it is set for an earlier time.
    ///
    /// # Errors
    /// The storage failed.
    pub async fn set(&self, storage: &Storage, at: Timestamp) -> worker::Result<()> {
        self.armed.set(Some(at));
        self.sets.set(self.sets.get() + 1);
        let date = js_sys::Date::new(&(at.as_millis() as f64).into());
        self.forget_on_error(storage.set_alarm(ScheduledTime::new(date)).await)
    }

    /// Returns how often the alarm was set since the last call.
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

    /// The time to set the alarm for. Returns `None` if the alarm is known to be set for that time
    /// or earlier, and is not overdue.
    fn begin(&self, at: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let at = at.clamp(now, now.plus_seconds(MAX_AHEAD.as_secs().cast_signed()));
        let overdue = now.plus_seconds(-MAX_OVERDUE.as_secs().cast_signed());
        if self.armed.get().is_some_and(|armed| overdue < armed && armed <= at) {
            return None;
        }
        self.armed.set(Some(at));
        Some(at)
    }

    /// Whether to set the alarm for `at`. `current` is the time for which the storage has it set. A
    /// current time that has passed does not count: the object may have crashed after it set that
    /// alarm, and the alarm may run late.
    fn is_needed(&self, at: Timestamp, current: Option<Timestamp>, now: Timestamp) -> bool {
        // Another task may have begun to set an earlier alarm while this one awaited the storage.
        let is_earliest = self.armed.get().is_none_or(|armed| armed >= at);
        is_earliest && current.is_none_or(|current| current <= now || current > at)
    }

    /// Returns the storage's result. After an error, the time of the alarm is unknown.
    fn forget_on_error<T>(&self, result: worker::Result<T>) -> worker::Result<T> {
        result.inspect_err(|_| self.armed.set(None))
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
        // The clock was set back by an hour.
        assert_eq!(alarm.begin(after(-3_590), after(-3_600)), Some(after(-3_590)));
        alarm
            .forget_on_error(Err::<(), _>(worker::Error::RustError(
                "the storage failed".to_owned(),
            )))
            .unwrap_err();
        assert_eq!(alarm.begin(after(60), after(14)), Some(after(60)));
    }

    #[test]
    fn a_stored_alarm_is_kept_if_it_is_not_overdue_and_early_enough() {
        let alarm = Alarm::default();
        for (current, is_needed) in [
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
                alarm.is_needed(after(10), current.map(after), after(0)),
                is_needed,
                "{current:?}"
            );
        }
    }

    #[test]
    fn if_two_tasks_set_the_alarm_concurrently_the_earlier_time_wins() {
        let alarm = Alarm::default();
        let late = alarm.begin(after(20), after(0)).unwrap();
        let early = alarm.begin(after(10), after(0)).unwrap();
        assert!(!alarm.is_needed(late, None, after(0)));
        assert!(alarm.is_needed(early, None, after(0)));
    }

    #[test]
    fn an_alarm_is_never_set_in_the_past_or_beyond_the_platforms_limit() {
        let begun = |seconds| Alarm::default().begin(after(seconds), after(0)).unwrap();
        assert_eq!(begun(86_400), after(86_400));
        assert_eq!(begun(-60), after(0));
        let far = Alarm::default()
            .begin(Timestamp::parse("9999-12-31T23:59:59Z").unwrap(), after(0))
            .unwrap();
        assert!(far > after(0) && far < Timestamp::parse("2189-01-01T00:00:00Z").unwrap());
    }
}
