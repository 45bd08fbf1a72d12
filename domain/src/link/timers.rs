//! The timers, and the one alarm that serves all of them.

use super::event::{D1_WITHIN, Effect};
use super::machine::Link;
use super::memory::Asked;
use super::outbox::BATCH;
use super::store::{Result, Store};
use super::stored_command::Phase;
use crate::lifecycle::State as Life;
use crate::time::Timestamp;

/// How long the alarm leaves a command alone that is being recorded, in seconds.
const LOOK_AGAIN: i64 = 30;

impl<S: Store> Link<S> {
    /// Serves all timers that are due.
    pub(super) fn alarm(&mut self) -> Result<()> {
        let Some(server) = &self.server else { return Ok(()) };
        let timers = server.timers.clone();
        let now = self.scene.now;
        let is_due = |at: Option<_>| at.is_some_and(|at| at <= now);
        if is_due(timers.look) {
            self.look_into_d1()?;
        }
        if is_due(timers.pong) {
            self.give_up_silent_agent()?;
        }
        if is_due(timers.ping) {
            self.ping();
        }
        self.look_at_due_commands()?;
        if is_due(timers.resync) {
            self.resync_some()?;
        }
        if is_due(self.plan.hand_out) {
            self.plan.hand_out = None;
        }
        self.hand_out()?;
        if is_due(self.plan.tell) {
            self.tell()?;
        }
        self.wipe_if_unused()
    }

    fn look_at_due_commands(&mut self) -> Result<()> {
        let now = self.scene.now;
        let mut is_silent = false;
        for mut stored in self.store.due(now, BATCH)? {
            let id = stored.command.id;
            match stored.phase {
                Phase::Recording if self.is_recording(id) => {
                    self.store.postpone(id, Some(now.plus_seconds(LOOK_AGAIN)))?;
                    continue;
                }
                // A crash lost the request that created it.
                Phase::Recording => stored.phase = Phase::Withdrawing,
                Phase::Withdrawing => {}
                Phase::Accepted if stored.lacks_hash && stored.life.outcome().is_some() => {
                    if let Some(at) = stored.hash_due_at().filter(|at| *at > now) {
                        self.store.postpone(id, Some(at))?;
                        continue;
                    }
                    self.note_output(&mut stored)?;
                }
                Phase::Accepted => {
                    is_silent |= stored.life.state() == Life::Sent;
                    if !stored.life.give_up_if_overdue(now) {
                        // Its time has come: it is delivered now, or waits for the agent.
                        self.store.postpone(id, stored.life.deadline(now))?;
                        continue;
                    }
                    self.note_end(&mut stored)?;
                }
            }
            self.save(&stored)?;
        }
        // The agent of a command that was sent and not acknowledged may be gone.
        if is_silent && self.state().timers.pong.is_none() {
            self.ping();
        }
        Ok(())
    }

    /// Sets the alarm for the earliest timer. While D1 is asked about a timer's work, that timer
    /// waits until D1's time is up: usually the answer comes first, but after a crash none comes.
    pub(super) fn set_alarm(&mut self) -> Result<()> {
        let Some(server) = &self.server else { return Ok(()) };
        let timers = server.timers.clone();
        let answered_by = self.scene.now.plus(D1_WITHIN);
        let unless = |at: Option<Timestamp>, is_of_kind: fn(&Asked) -> bool| {
            at.map(|at| if self.is_asking(is_of_kind) { at.max(answered_by) } else { at })
        };
        let due = [
            timers.ping,
            timers.pong,
            unless(self.plan.tell, |asked| matches!(asked, Asked::Tell(_) | Asked::Restore(..))),
            unless(self.plan.hand_out, |asked| matches!(asked, Asked::Rights(_))),
            unless(timers.look, |asked| matches!(asked, Asked::Change)),
            unless(timers.resync, |asked| matches!(asked, Asked::Tell(_) | Asked::Restore(..))),
            self.store.next_due()?,
        ];
        if let Some(at) = due.into_iter().flatten().min() {
            self.effects.push(Effect::Alarm(at));
        }
        Ok(())
    }
}
