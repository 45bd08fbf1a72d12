//! The outbox: writes to D1 what it lacks of the server and its commands, all in one request, and
//! again until D1 has it.

use serde_json::json;

use super::event::{Effect, FromD1, Lacking, ToD1};
use super::machine::Link;
use super::memory::{Asked, FromD1Result, Told};
use super::store::{Result, Store, Unflushed};
use super::stored_command::Phase;
use crate::lifecycle::State as Life;

/// How many commands one request to D1 has at most.
pub(super) const BATCH: u32 = 50;
/// How long changes are collected before a flush, in milliseconds. Lists follow within a second
/// (contract 8.1).
const GATHER: i64 = 300;
/// How long a command under way waits for its next report, to be written together with it, in
/// milliseconds: most end within a moment. The rest of the second is for the way to D1.
const GATHER_REPORTS: i64 = 800;
/// After so many failures in a row each entry is written alone, so that one that D1 refuses holds
/// up no other.
const TOGETHER: u32 = 3;
/// The longest delay before a failed flush is repeated, in seconds.
const SLOWEST_RETRY: i64 = 60;

impl<S: Store> Link<S> {
    /// Schedules a flush, unless one is scheduled. Changes of the next moments go along.
    pub(super) fn tell_soon(&mut self) {
        self.plan.tell.get_or_insert(self.scene.now.plus_millis(GATHER));
    }

    /// Schedules a flush for a command in this state, unless one is scheduled.
    pub(super) fn tell_after(&mut self, state: Life) {
        // A command under way is written with its next report.
        let gather =
            if matches!(state, Life::Sent | Life::Acked) { GATHER_REPORTS } else { GATHER };
        self.plan.tell.get_or_insert(self.scene.now.plus_millis(gather));
    }

    /// Flushes, with one request at a time. While commands are restored, D1 may not have them yet,
    /// and an update would be lost.
    pub(super) fn tell(&mut self) -> Result<()> {
        let Some(server) = &self.server else { return Ok(()) };
        if self.is_asking(|asked| matches!(asked, Asked::Tell(_) | Asked::Restore(..))) {
            return Ok(());
        }
        let is_one_by_one = server.failures >= TOGETHER;
        let (mut told, mut lacking) = (Vec::new(), Vec::new());
        let reported_by = self.scene.now.plus_millis(-GATHER_REPORTS);
        for stored in self.store.unflushed(reported_by, BATCH)? {
            let (id, revision) = (stored.command.id, stored.revision);
            if stored.phase == Phase::Withdrawing {
                told.push(Told::Withdrawal { id, revision });
                lacking.push(Lacking::Withdrawal { workspace_id: stored.workspace_id, id });
            } else {
                told.push(Told::Command { id, revision, has_events: !stored.events.is_empty() });
                let output = self.store.output(&stored)?;
                lacking.push(Lacking::Command(Box::new(stored), output));
            }
        }
        if let Some(known) = &server.known
            && server.facts.revision > server.facts.flushed
        {
            let facts = Box::new(server.facts.clone());
            told.push(Told::Server(facts.revision));
            let (workspace_id, server) = (known.workspace_id, known.server);
            lacking.push(Lacking::Server { workspace_id, server, facts });
        }
        if lacking.is_empty() {
            return self.plan_telling();
        }
        self.seal_for(&lacking);
        self.ask(Asked::Tell(told), ToD1::Tell { lacking, is_one_by_one });
        Ok(())
    }

    /// Takes D1's answer to a flush. What failed is written again, with a longer delay each time.
    pub(super) fn told(&mut self, told: Vec<Told>, answer: FromD1Result) -> Result<()> {
        let outcomes = match answer {
            Ok(FromD1::Told(outcomes)) => outcomes,
            Ok(_) => vec![Err("D1 gave another answer".to_owned()); told.len()],
            Err(error) => vec![Err(error); told.len()],
        };
        let mut failure = None;
        for (told, outcome) in told.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => self.d1_knows(told)?,
                Err(error) => failure = Some(error),
            }
        }
        // Calls that wait for D1 go on, or have it written again.
        self.touched.extend(self.awaited_in_d1());
        let now = self.scene.now;
        let state = self.state();
        let Some(error) = failure else {
            state.failures = 0;
            self.plan_telling()?;
            return self.wipe_if_unused();
        };
        state.failures = state.failures.saturating_add(1);
        let delay = (1 << state.failures.min(6)).min(SLOWEST_RETRY);
        let about = json!({"try": state.failures});
        self.plan.tell = Some(now.plus_seconds(delay));
        self.trouble("d1_not_told", about, &error);
        Ok(())
    }

    /// Schedules the next flush, if D1 lacks something.
    pub(super) fn plan_telling(&mut self) -> Result<()> {
        let Some(server) = &self.server else { return Ok(()) };
        let now = self.scene.now;
        let lacks_facts = server.known.is_some() && server.facts.revision > server.facts.flushed;
        self.plan.tell = match self.store.next_unflushed()? {
            _ if lacks_facts => Some(now),
            Some(Unflushed::Now) => Some(now),
            Some(Unflushed::After(report)) => Some(report.plus_millis(GATHER_REPORTS)),
            None => None,
        };
        Ok(())
    }

    fn d1_knows(&mut self, told: Told) -> Result<()> {
        match told {
            Told::Command { id, revision, has_events } => {
                self.store.mark_flushed(id, revision, has_events)
            }
            Told::Withdrawal { id, revision } => {
                // A late insertion may have made another withdrawal necessary.
                let is_latest = self.find(id)?.is_some_and(|stored| stored.revision == revision);
                if is_latest { self.store.delete(id) } else { Ok(()) }
            }
            Told::Server(revision) => {
                let facts = &mut self.state().facts;
                facts.flushed = facts.flushed.max(revision);
                facts.events.retain(|noted| noted.revision > revision);
                Ok(())
            }
        }
    }

    /// Has audit events sealed that a flush writes.
    fn seal_for(&mut self, lacking: &[Lacking]) {
        for lacking in lacking {
            let workspace = match lacking {
                Lacking::Command(stored, _) if stored.events.is_empty() => None,
                Lacking::Command(stored, _) => Some(stored.workspace_id),
                Lacking::Withdrawal { workspace_id, .. } => Some(*workspace_id),
                Lacking::Server { facts, .. } if facts.events.is_empty() => None,
                Lacking::Server { workspace_id, .. } => Some(*workspace_id),
            };
            if let Some(workspace) = workspace {
                // A server is in one workspace.
                self.seal_soon(workspace);
                return;
            }
        }
    }

    /// Has the workspace's audit events sealed that D1 has, or gets soon. Nothing waits for that.
    pub(super) fn seal_soon(&mut self, workspace: i64) {
        self.effects.push(Effect::Seal(workspace));
    }
}
