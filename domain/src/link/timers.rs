//! The timers, and the alarm that serves all of them.

use std::time::Duration;

use super::event::{D1_TIMEOUT, Effect};
use super::machine::Machine;
use super::memory::PendingRequest;
use super::outbox::MAX_BATCH;
use super::store::{Result, Store};
use super::stored_command::Phase;
use crate::command::lifecycle::State as Life;
use crate::time::Timestamp;

/// The delay before the alarm checks a command again that is still being recorded.
const RECORDING_RECHECK_DELAY: Duration = Duration::from_secs(30);

impl<S: Store> Machine<S> {
    /// Serves the timers that are due.
    pub(super) fn alarm(&mut self) -> Result<()> {
        let Some(server) = &self.server else { return Ok(()) };
        let timers = server.timers.clone();
        let now = self.input.now;
        let is_due = |at: Option<_>| at.is_some_and(|at| at <= now);
        if is_due(timers.revalidate) {
            self.revalidate_identity()?;
        }
        if is_due(timers.pong) {
            self.close_silent_connection()?;
        }
        if is_due(timers.ping) {
            self.ping();
        }
        self.serve_due_commands()?;
        if is_due(timers.resync) {
            self.restore_next_commands()?;
        }
        if is_due(self.plan.deliver) {
            self.plan.deliver = None;
        }
        self.deliver_due()?;
        if is_due(self.plan.flush) {
            self.flush()?;
        }
        self.wipe_if_unused()
    }

    fn serve_due_commands(&mut self) -> Result<()> {
        let now = self.input.now;
        let mut is_agent_silent = false;
        for mut stored in self.store.with_due_timer(now, MAX_BATCH)? {
            let id = stored.command.id;
            match stored.phase {
                Phase::Recording if self.is_recording(id) => {
                    self.store.set_timer(id, Some(now.plus(RECORDING_RECHECK_DELAY)))?;
                    continue;
                }
                // A crash lost the call that created the command.
                Phase::Recording => stored.phase = Phase::Withdrawing,
                Phase::Withdrawing => {}
                Phase::Accepted if stored.lacks_hash && stored.life.outcome().is_some() => {
                    if let Some(at) = stored.hash_due_at().filter(|at| *at > now) {
                        self.store.set_timer(id, Some(at))?;
                        continue;
                    }
                    self.add_output_event(&mut stored)?;
                }
                Phase::Accepted => {
                    is_agent_silent |= stored.life.state() == Life::Sent;
                    if !stored.life.give_up_if_overdue(now) {
                        // The command is due: `deliver_due` delivers it now, or it waits for the
                        // agent.
                        self.store.set_timer(id, stored.life.deadline(now))?;
                        continue;
                    }
                    self.add_finish_event(&mut stored)?;
                }
            }
            self.save(&stored)?;
        }
        // A command was sent and not acknowledged: the agent may be dead.
        if is_agent_silent && self.state().timers.pong.is_none() {
            self.ping();
        }
        Ok(())
    }

    /// Sets the alarm for the earliest timer. While a timer's request to D1 is pending, that timer
    /// waits for [`D1_TIMEOUT`]. Usually the answer comes first. After a crash no answer comes, and
    /// the timer repeats the request.
    pub(super) fn set_alarm(&mut self) -> Result<()> {
        let Some(server) = &self.server else { return Ok(()) };
        let timers = server.timers.clone();
        let answered_by = self.input.now.plus(D1_TIMEOUT);
        let unless = |at: Option<Timestamp>, is_of_kind: fn(&PendingRequest) -> bool| {
            at.map(|at| if self.is_request_pending(is_of_kind) { at.max(answered_by) } else { at })
        };
        let due = [
            timers.ping,
            timers.pong,
            timers.old_key,
            unless(self.plan.flush, |request| {
                matches!(request, PendingRequest::Flush(_) | PendingRequest::Restore(..))
            }),
            unless(self.plan.deliver, |request| {
                matches!(request, PendingRequest::CheckPermissions(_))
            }),
            unless(timers.revalidate, |request| matches!(request, PendingRequest::Change)),
            unless(timers.resync, |request| {
                matches!(request, PendingRequest::Flush(_) | PendingRequest::Restore(..))
            }),
            self.store.next_timer()?,
        ];
        if let Some(at) = due.into_iter().flatten().min() {
            self.effects.push(Effect::SetAlarm(at));
        }
        Ok(())
    }
}
