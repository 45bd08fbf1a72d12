//! The alarm of a server's object: one, for the earliest of all that is due.

use farhand_domain::lifecycle::State as Life;
use farhand_domain::link::stored_command::Phase;
use farhand_domain::time::Timestamp;
use futures_util::future;
use worker::ScheduledTime;

use super::object::{BATCH, ServerLink, now, wake};

/// How late an alarm that this object set may be before it is set again, in milliseconds.
const LATE_ALARM: i64 = 5_000;
/// The farthest that an alarm is set, in seconds: the platform takes none past the year 2189.
const FARTHEST: i64 = 30 * 24 * 60 * 60;
/// When a command that a request at hand is recording is looked at again, in seconds.
const LOOK_AGAIN: i64 = 30;

impl ServerLink {
    /// Sets the alarm for the earliest of all that is due.
    pub(super) async fn arm(&self) -> worker::Result<()> {
        let Some(due_at) = self.tables().next_due()? else { return Ok(()) };
        let due_at = woken_at(due_at, now());
        let due = i64::try_from(due_at.as_millis()).unwrap_or(i64::MAX);
        let now = i64::try_from(now().as_millis()).unwrap_or(i64::MAX);
        // One that should have gone off long ago is not relied on. Nor is one of the past that this object found, and did not
        // set itself: if the runtime died, it may come much later than the object can see.
        let reliable = if self.armed.get().is_some() { now - LATE_ALARM } else { now };
        let due = if due > reliable { due } else { now };
        if self.armed.get().is_some_and(|armed| armed <= due && armed > reliable) {
            return Ok(());
        }
        let alarms = self.alarms.get();
        self.armed.set(Some(due));
        let set = self.set_alarm(due, reliable).await;
        if set.is_err() || self.alarms.get() != alarms {
            self.armed.set(None);
        }
        set
    }

    /// Sets the alarm for a time in milliseconds, unless it is set for an earlier one that is after `reliable`.
    pub(super) async fn set_alarm(&self, due: i64, reliable: i64) -> worker::Result<()> {
        let storage = self.state.storage();
        let set_for = storage.get_alarm().await?;
        // Meanwhile somebody else may be at it for an earlier one.
        let is_earliest = self.armed.get().is_none_or(|armed| armed >= due);
        if is_earliest && set_for.is_none_or(|set_for| set_for > due || set_for <= reliable) {
            let date = worker::js_sys::Date::new(&(due as f64).into());
            storage.set_alarm(ScheduledTime::new(date)).await?;
        }
        Ok(())
    }

    /// The alarm that was set went off, or was taken back.
    pub(super) fn disarmed(&self) {
        self.armed.set(None);
        self.alarms.set(self.alarms.get() + 1);
    }

    pub(super) async fn arm_if_used(&self) -> worker::Result<()> {
        if self.is_used()? { self.arm().await } else { Ok(()) }
    }

    /// Does everything that is due, and sets the alarm for what is next.
    pub(super) async fn wake_up(&self) -> worker::Result<()> {
        if !self.is_used()? {
            return Ok(());
        }
        let now = now();
        let tables = self.tables();
        let is_due = |name: &str| Ok::<_, worker::Error>(tables.wake(name)?.is_some_and(|due| due <= now));
        if is_due(wake::LOOK)? {
            self.look_into_d1().await?;
            if !self.is_used()? {
                return Ok(());
            }
        }
        if is_due(wake::PONG)? {
            self.give_up_silent_agent()?;
        }
        if is_due(wake::PING)? {
            self.ping(now)?;
        }
        self.look_at_due_commands(now)?;
        if is_due(wake::RESYNC)? {
            self.resync_some().await?;
            if !self.is_used()? {
                return Ok(());
            }
        }
        // Also notices a connection that the runtime lost.
        self.open_socket()?;
        tables.set_wake(wake::HAND_OUT, None)?;
        let is_flush_due = is_due(wake::FLUSH)?;
        // Side by side: a slow answer of D1 to one must not hold up the other.
        let flush = async { if is_flush_due { self.flush().await } else { Ok(()) } };
        let (handed_out, flushed) = future::join(self.hand_out(), flush).await;
        self.forget_if_unused().await?;
        self.arm_if_used().await?;
        handed_out.and(flushed)
    }

    fn look_at_due_commands(&self, now: Timestamp) -> worker::Result<()> {
        let tables = self.tables();
        let mut is_silent = false;
        for mut stored in tables.due_commands(now, BATCH)? {
            let id = stored.command.id;
            match stored.phase {
                Phase::Recording if self.is_recording(&stored, now) => {
                    tables.postpone(id, Some(now.plus_seconds(LOOK_AGAIN)))?;
                    continue;
                }
                // Its request died before it was answered.
                Phase::Recording => stored.phase = Phase::Withdrawing,
                Phase::Withdrawing => {}
                Phase::Accepted if stored.lacks_hash && stored.life.outcome().is_some() => {
                    if let Some(at) = stored.hash_due_at().filter(|at| *at > now) {
                        tables.postpone(id, Some(at))?;
                        continue;
                    }
                    self.note_output(&mut stored)?;
                }
                Phase::Accepted => {
                    is_silent |= stored.life.state() == Life::Sent;
                    if !stored.life.give_up_if_overdue(now) {
                        // Its time has come: it goes out now, or waits for the agent.
                        tables.postpone(id, stored.life.deadline(now))?;
                        continue;
                    }
                    self.note_end(&mut stored)?;
                }
            }
            self.save(&stored)?;
        }
        // An agent that took a command and says nothing may be gone.
        if is_silent && tables.wake(wake::PONG)?.is_none() {
            self.ping(now)?;
        }
        Ok(())
    }
}

/// When to be woken for what is due; for what is very far away, on the way there.
fn woken_at(due_at: Timestamp, now: Timestamp) -> Timestamp {
    due_at.min(now.plus_seconds(FARTHEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_alarm_is_too_far_for_the_platform() {
        let at = |text: &str| Timestamp::parse(text).unwrap();
        let now = at("2026-11-21T00:00:00Z");
        assert_eq!(woken_at(at("2026-11-22T00:00:00Z"), now), at("2026-11-22T00:00:00Z"));
        let far = woken_at(at("9999-12-31T23:59:59Z"), now);
        assert!(far > now && far < at("2189-01-01T00:00:00Z"));
    }
}
