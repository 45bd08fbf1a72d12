//! Resync, after D1 was restored to an earlier time (docs/operations.md, Restore): the object takes
//! over what D1 has of the server, and writes all its commands to D1 again. Commands that D1 does
//! not have any more are inserted.

use serde_json::json;

use super::call::{Answer, OfServer};
use super::event::{ServerChange, Ticket, ToD1};
use super::machine::Link;
use super::memory::{Asked, FromD1Result};
use super::memory::{Change, ThenChanged};
use super::outbox::BATCH;
use super::state::Resync;
use super::store::{Result, Store};
use super::stored_command::{Phase, StoredCommand};

/// When D1 is given commands again that it did not take, in seconds.
const AGAIN: i64 = 5;

impl<S: Store> Link<S> {
    /// Begins a resync. One that is under way starts again from the beginning.
    pub(super) fn resync(&mut self, ticket: Ticket, of: OfServer) -> Result<()> {
        if self.server.is_some() && !self.is_gone() {
            let then = ThenChanged::Resync(ticket);
            return self.change(Change { of, what: ServerChange::Nothing, then });
        }
        self.begin_resync(ticket)
    }

    /// Begins with the commands, when the server was taken over from D1. If D1 had no server and
    /// the object no commands, the object was wiped.
    pub(super) fn begin_resync(&mut self, ticket: Ticket) -> Result<()> {
        let now = self.scene.now;
        if let Some(server) = &mut self.server {
            server.resync = Some(Resync { run: now, after: String::new() });
            server.timers.resync = Some(now);
        }
        self.reply(ticket, Answer::NOTHING);
        Ok(())
    }

    /// Gives D1 the next commands that it may lack. Their latest state follows by the outbox.
    pub(super) fn resync_some(&mut self) -> Result<()> {
        // A flush under way may be from before D1 was restored.
        if self.is_asking(|asked| matches!(asked, Asked::Tell(_) | Asked::Restore(..))) {
            return Ok(());
        }
        let now = self.scene.now;
        let state = self.state();
        state.timers.resync = None;
        let Some(resync) = state.resync.clone() else { return Ok(()) };
        if resync.after.is_empty() {
            state.facts.flushed = 0;
        }
        let some = self.store.accepted_after(&resync.after, BATCH)?;
        if some.is_empty() {
            self.state().resync = None;
            self.plan.tell = Some(now);
            return Ok(());
        }
        // Before the request: retention leaves a command alone that D1 does not have.
        for stored in &some {
            self.store.mark_unflushed(stored.command.id)?;
        }
        // After a crash the timer repeats it.
        self.state().timers.resync = Some(now);
        self.plan.tell = Some(now);
        self.ask(Asked::Restore(resync, some.clone()), ToD1::Restore(some));
        Ok(())
    }

    /// Takes D1's answer to the restoring of commands.
    pub(super) fn restored(
        &mut self,
        resync: Resync,
        commands: &[StoredCommand],
        answer: FromD1Result,
    ) -> Result<()> {
        let now = self.scene.now;
        if let Err(error) = answer {
            self.trouble("d1_not_told", json!({}), &error);
            self.state().timers.resync = Some(now.plus_seconds(AGAIN));
            return Ok(());
        }
        let last = commands.last().map(|stored| stored.command.id.to_string());
        let state = self.state();
        if state.resync.as_ref() == Some(&resync) {
            let after = last.unwrap_or(resync.after);
            state.resync = Some(Resync { run: resync.run, after });
        }
        state.timers.resync = Some(now);
        self.plan.tell = Some(now);
        Ok(())
    }

    /// Commands were restored after that was given up, perhaps after a flush that found none of
    /// them: the resync starts again. Commands that were deleted here in the meantime are deleted
    /// from D1 again.
    pub(super) fn restored_late(&mut self, commands: &[StoredCommand]) -> Result<()> {
        if self.server.is_some() {
            let run = self.scene.now;
            let state = self.state();
            state.resync = Some(Resync { run, after: String::new() });
            state.timers.resync = Some(run);
        }
        let mut withdrawn = Vec::new();
        for stored in commands {
            let is_there = self.find(stored.command.id)?;
            if is_there.is_none_or(|stored| stored.phase != Phase::Accepted) {
                withdrawn.push(stored.clone());
            }
        }
        if !withdrawn.is_empty() {
            self.ask(Asked::Nothing, ToD1::Unrestore(withdrawn));
        }
        Ok(())
    }
}
