//! Resync, after D1 was restored to an earlier time (docs/operations.md, Restore):
//! 1. The object applies the server's row in D1.
//! 2. It restores the commands that D1 lost: it inserts their rows.
//! 3. It marks all commands as pending, so that the outbox writes their latest state.

use std::time::Duration;

use serde_json::json;

use super::call::{LinkResponse, ServerLocation};
use super::event::{Request, ServerChange, Ticket};
use super::machine::Machine;
use super::memory::{AfterChange, QueuedChange};
use super::memory::{D1Result, PendingRequest};
use super::outbox::MAX_BATCH;
use super::state::Resync;
use super::store::{Result, Store};
use super::stored_command::{Phase, StoredCommand};

/// The delay before a failed restore is repeated.
const RESTORE_RETRY_DELAY: Duration = Duration::from_secs(5);

impl<S: Store> Machine<S> {
    /// Begins a resync. A resync that is in progress starts again.
    pub(super) fn resync(&mut self, ticket: Ticket, of: ServerLocation) -> Result<()> {
        if self.server.is_some() && !self.is_server_deleted() {
            let then = AfterChange::BeginResync(ticket);
            return self.queue_change(QueuedChange { of, change: ServerChange::ReadOnly, then });
        }
        self.begin_resync(ticket)
    }

    /// Starts to restore commands, after the object has applied D1's row of the server. Does
    /// nothing if the object was wiped because D1 has no server and the object has no commands.
    pub(super) fn begin_resync(&mut self, ticket: Ticket) -> Result<()> {
        let now = self.input.now;
        if let Some(server) = &mut self.server {
            server.resync = Some(Resync { requested_at: now, after: String::new() });
            server.timers.resync = Some(now);
        }
        self.reply(ticket, LinkResponse::EMPTY);
        Ok(())
    }

    /// Restores the next commands in D1. The outbox then writes their latest state.
    pub(super) fn restore_next_commands(&mut self) -> Result<()> {
        // A pending flush may be older than the restore of D1.
        if self.is_request_pending(|request| {
            matches!(request, PendingRequest::Flush(_) | PendingRequest::Restore(..))
        }) {
            return Ok(());
        }
        let now = self.input.now;
        let state = self.state();
        state.timers.resync = None;
        let Some(resync) = state.resync.clone() else { return Ok(()) };
        if resync.after.is_empty() {
            state.facts.flushed = 0;
        }
        let batch = self.store.accepted_after(&resync.after, MAX_BATCH)?;
        if batch.is_empty() {
            self.state().resync = None;
            self.plan.flush = Some(now);
            return Ok(());
        }
        // Before the request, because retention does not delete commands that are pending.
        for stored in &batch {
            self.store.mark_unflushed(stored.command.id)?;
        }
        // After a crash the timer repeats the request.
        self.state().timers.resync = Some(now);
        self.plan.flush = Some(now);
        self.request_d1(PendingRequest::Restore(resync, batch.clone()), Request::Restore(batch));
        Ok(())
    }

    /// Handles D1's answer to a restore.
    pub(super) fn restored(
        &mut self,
        resync: Resync,
        commands: &[StoredCommand],
        answer: D1Result,
    ) -> Result<()> {
        let now = self.input.now;
        if let Err(error) = answer {
            self.log_error("d1_not_written", json!({}), &error);
            self.state().timers.resync = Some(now.plus(RESTORE_RETRY_DELAY));
            return Ok(());
        }
        let last = commands.last().map(|stored| stored.command.id.to_string());
        let state = self.state();
        if state.resync.as_ref() == Some(&resync) {
            let after = last.unwrap_or(resync.after);
            state.resync = Some(Resync { requested_at: resync.requested_at, after });
        }
        state.timers.resync = Some(now);
        self.plan.flush = Some(now);
        Ok(())
    }

    /// Handles a restore that ended after it had been reported as failed. An earlier flush may have
    /// found none of the rows, so the resync starts again. Commands that the object has deleted in
    /// the meantime are deleted from D1 again.
    pub(super) fn restored_late(&mut self, commands: &[StoredCommand]) -> Result<()> {
        if self.server.is_some() {
            let requested_at = self.input.now;
            let state = self.state();
            state.resync = Some(Resync { requested_at, after: String::new() });
            state.timers.resync = Some(requested_at);
        }
        let mut deleted = Vec::new();
        for stored in commands {
            let found = self.find(stored.command.id)?;
            if found.is_none_or(|stored| stored.phase != Phase::Accepted) {
                deleted.push(stored.clone());
            }
        }
        if !deleted.is_empty() {
            self.request_d1(PendingRequest::Unawaited, Request::DeleteRestored(deleted));
        }
        Ok(())
    }
}
