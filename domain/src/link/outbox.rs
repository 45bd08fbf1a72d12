//! The outbox: changes of the server and its commands that D1 does not have yet. A flush writes
//! them in one request, and repeats it until D1 has them.

use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::event::{Answer, BatchNotice, Effect, OutboxEntry, Request};
use super::machine::Machine;
use super::memory::{D1Result, FlushedEntry, PendingRequest};
use super::store::{NextFlush, Result, Store};
use super::stored_command::{Phase, StoredCommand};
use crate::command::lifecycle::State as Life;

/// Maximum number of commands in one request to D1.
pub(super) const MAX_BATCH: u32 = 50;
/// The delay before a flush, so that several changes share one request. Lists follow within a
/// second (contract 8.1).
const FLUSH_DELAY: Duration = Duration::from_millis(300);
/// The delay before a running command is flushed, so that its next report shares the request: most
/// commands end quickly. It leaves 200 ms of the contract's second for the request itself.
const RUNNING_FLUSH_DELAY: Duration = Duration::from_millis(800);
/// After this number of failures in a row, each entry is written in its own transaction, so that
/// one rejected entry does not block other entries.
const MAX_BATCHED_FAILURES: u32 = 3;
/// Maximum delay before a failed flush is repeated, in seconds. The delay doubles with each
/// failure.
const MAX_RETRY_DELAY: i64 = 60;

/// The notification to a command's batch when D1 has the command's current state.
fn batch_notice(stored: &StoredCommand) -> Option<BatchNotice> {
    let (life, batch) = (&stored.life, stored.command.batch?);
    let state = life.state();
    let at = life.handled_at.or(life.acked_at).or(life.delivered_at);
    let exit_code = life.outcome().and_then(|outcome| outcome.exit_code);
    let (workspace_id, server) = (stored.workspace_id, stored.command.server);
    let command = (state != Life::Waiting).then_some((state, exit_code, at));
    command.map(|command| BatchNotice { workspace_id, batch, server, command: Some(command) })
}

impl<S: Store> Machine<S> {
    /// Schedules a flush, unless one is scheduled.
    pub(super) fn schedule_flush(&mut self) {
        self.plan.flush.get_or_insert(self.input.now.plus(FLUSH_DELAY));
    }

    /// Schedules a flush for a command in this state, unless one is scheduled.
    pub(super) fn schedule_flush_for(&mut self, state: Life) {
        let delay = if matches!(state, Life::Sent | Life::Acked) {
            RUNNING_FLUSH_DELAY
        } else {
            FLUSH_DELAY
        };
        self.plan.flush.get_or_insert(self.input.now.plus(delay));
    }

    /// Flushes the outbox. One flush runs at a time. While commands are being restored, D1 may not
    /// have their rows yet, and their updates would be lost.
    pub(super) fn flush(&mut self) -> Result<()> {
        let Some(server) = &self.server else { return Ok(()) };
        if self.is_request_pending(|request| {
            matches!(request, PendingRequest::Flush(_) | PendingRequest::Restore(..))
        }) {
            return Ok(());
        }
        let is_one_by_one = server.failures >= MAX_BATCHED_FAILURES;
        let (mut flushed, mut entries) = (Vec::new(), Vec::new());
        let reported_by = self.input.now.minus(RUNNING_FLUSH_DELAY);
        for stored in self.store.unflushed(reported_by, MAX_BATCH)? {
            let (id, revision) = (stored.command.id, stored.revision);
            if stored.phase == Phase::Withdrawing {
                flushed.push(FlushedEntry::Withdrawal { id, revision });
                entries.push(OutboxEntry::Withdrawal { workspace_id: stored.workspace_id, id });
            } else {
                flushed.push(FlushedEntry::Command {
                    id,
                    revision,
                    has_events: !stored.events.is_empty(),
                    notice: batch_notice(&stored).map(Box::new),
                });
                let output = self.store.output(&stored)?;
                entries.push(OutboxEntry::Command(Box::new(stored), output));
            }
        }
        if let Some(identity) = &server.identity
            && server.facts.revision > server.facts.flushed
        {
            let facts = Box::new(server.facts.clone());
            flushed.push(FlushedEntry::Server(facts.revision));
            let (workspace_id, server) = (identity.workspace_id, identity.server);
            entries.push(OutboxEntry::Server { workspace_id, server, facts });
        }
        if entries.is_empty() {
            return self.plan_flush();
        }
        self.request_seal_for(&entries);
        self.request_d1(PendingRequest::Flush(flushed), Request::Flush { entries, is_one_by_one });
        Ok(())
    }

    /// Handles D1's answer to a flush. Entries that failed are written again.
    pub(super) fn flush_answered(
        &mut self,
        flushed: Vec<FlushedEntry>,
        answer: D1Result,
    ) -> Result<()> {
        let mut waiting_batches = Vec::new();
        let outcomes = match answer {
            Ok(Answer::Flushed(outcomes, waiting)) => {
                waiting_batches = waiting;
                outcomes
            }
            Ok(_) => vec![Err("D1 gave another answer".to_owned()); flushed.len()],
            Err(error) => vec![Err(error); flushed.len()],
        };
        let mut failure = None;
        for (entry, outcome) in flushed.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => self.mark_in_d1(entry)?,
                Err(error) => failure = Some(error),
            }
        }
        self.notify_waiting(waiting_batches);
        // Resumes the calls that wait for D1. If D1 failed, they get their reply without waiting
        // for D1.
        self.changed_commands.extend(self.awaited_in_d1());
        let now = self.input.now;
        let state = self.state();
        let Some(error) = failure else {
            state.failures = 0;
            self.plan_flush()?;
            return self.wipe_if_unused();
        };
        state.failures = state.failures.saturating_add(1);
        let delay = (1 << state.failures.min(6)).min(MAX_RETRY_DELAY);
        let about = json!({"try": state.failures});
        self.plan.flush = Some(now.plus_seconds(delay));
        self.log_error("d1_not_written", about, &error);
        Ok(())
    }

    /// Schedules the next flush if the outbox has entries.
    pub(super) fn plan_flush(&mut self) -> Result<()> {
        let Some(server) = &self.server else { return Ok(()) };
        let now = self.input.now;
        let lacks_facts = server.identity.is_some() && server.facts.revision > server.facts.flushed;
        self.plan.flush = match self.store.next_unflushed()? {
            _ if lacks_facts => Some(now),
            Some(NextFlush::Now) => Some(now),
            Some(NextFlush::After(report)) => Some(report.plus(RUNNING_FLUSH_DELAY)),
            None => None,
        };
        Ok(())
    }

    fn mark_in_d1(&mut self, entry: FlushedEntry) -> Result<()> {
        match entry {
            FlushedEntry::Command { id, revision, has_events, notice } => {
                self.effects.extend(notice.map(|notice| Effect::NotifyBatch(*notice)));
                self.store.mark_flushed(id, revision, has_events)
            }
            FlushedEntry::Withdrawal { id, revision } => {
                // A late insertion in D1 may have started another withdrawal.
                let is_latest = self.find(id)?.is_some_and(|stored| stored.revision == revision);
                if is_latest { self.store.delete(id) } else { Ok(()) }
            }
            FlushedEntry::Server(revision) => {
                let facts = &mut self.state().facts;
                facts.flushed = facts.flushed.max(revision);
                facts.events.retain(|pending| pending.revision > revision);
                Ok(())
            }
        }
    }

    /// Notifies batches that wait for this server that the server is connected.
    fn notify_waiting(&mut self, batches: Vec<Uuid>) {
        let Some(identity) = self.identity().cloned() else { return };
        self.effects.extend(batches.into_iter().map(|batch| {
            let (workspace_id, server) = (identity.workspace_id, identity.server);
            Effect::NotifyBatch(BatchNotice { workspace_id, batch, server, command: None })
        }));
    }

    /// Requests sealing if a flush writes audit events.
    fn request_seal_for(&mut self, entries: &[OutboxEntry]) {
        for entry in entries {
            let workspace = match entry {
                OutboxEntry::Command(stored, _) if stored.events.is_empty() => None,
                OutboxEntry::Command(stored, _) => Some(stored.workspace_id),
                OutboxEntry::Withdrawal { workspace_id, .. } => Some(*workspace_id),
                OutboxEntry::Server { facts, .. } if facts.events.is_empty() => None,
                OutboxEntry::Server { workspace_id, .. } => Some(*workspace_id),
            };
            if let Some(workspace) = workspace {
                // A server is in one workspace.
                self.request_seal(workspace);
                return;
            }
        }
    }

    /// Asks the workspace's sealer to seal the audit events that D1 has or gets soon. No call waits
    /// for the sealer.
    pub(super) fn request_seal(&mut self, workspace: i64) {
        self.effects.push(Effect::RequestSeal(workspace));
    }
}
