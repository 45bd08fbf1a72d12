//! What D1 is told of a server and its commands: all that it lacks in one request, and again until
//! it has it.

use serde_json::json;

use super::event::{Effect, FromD1, Lacking, ToD1};
use super::machine::Link;
use super::memory::{Asked, FromD1Result, Told};
use super::store::{Result, Store, Unflushed};
use super::stored_command::Phase;
use crate::lifecycle::State as Life;
use crate::time::Timestamp;

/// How many commands D1 is told of in one request.
pub(super) const BATCH: u32 = 50;
/// How long changes gather before D1 is told of them together, in milliseconds. Lists follow within
/// a second (contract 8).
const GATHER: i64 = 300;
/// How long a command that is under way waits for its next report, to be told together with it, in
/// milliseconds: most are over within a moment. What remains of the second is for the way there.
const GATHER_REPORTS: i64 = 800;
/// After how many failures in a row D1 is told of each thing alone, so that one that it refuses
/// holds no other up.
const TOGETHER: u32 = 3;
/// The slowest that D1 is told again what it did not take, in seconds.
const SLOWEST_RETRY: i64 = 60;

impl<S: Store> Link<S> {
    /// Notes that D1 lacks something. What comes within the next moments goes along.
    pub(super) fn tell_soon(&mut self) {
        self.tell_by(self.scene.now.plus_millis(GATHER));
    }

    /// The same for a command that is in this state now.
    pub(super) fn tell_after(&mut self, state: Life) {
        // What may end at any moment is told with its end.
        let gather = if matches!(state, Life::Sent | Life::Acked) { GATHER_REPORTS } else { GATHER };
        self.tell_by(self.scene.now.plus_millis(gather));
    }

    /// Has D1 told by a time at the latest, unless it was told in vain and is to be left alone for
    /// longer.
    fn tell_by(&mut self, at: Timestamp) {
        let farthest = self.scene.now.plus_millis(GATHER_REPORTS);
        let planned = &mut self.state().timers.tell;
        if planned.is_none_or(|planned| at < planned && planned <= farthest) {
            *planned = Some(at);
        }
    }

    /// Tells D1 what it lacks, one request after the other. While commands are restored, D1 may not
    /// have them yet, and would take nothing in.
    pub(super) fn tell(&mut self) -> Result<()> {
        let Some(server) = &self.server else { return Ok(()) };
        if self.is_asking(|asked| matches!(asked, Asked::Tell(_) | Asked::Restore(..))) {
            return Ok(());
        }
        let is_one_by_one = server.failures >= TOGETHER;
        let (mut told, mut lacking) = (Vec::new(), Vec::new());
        let reported_by = self.scene.now.plus_millis(-GATHER_REPORTS);
        for stored in self.store.unflushed(reported_by, BATCH)? {
            if stored.phase == Phase::Withdrawing {
                let (workspace_id, id, bytes) = (stored.workspace_id, stored.command.id, stored.stored_bytes);
                told.push(Told::Withdrawal(Box::new(stored)));
                lacking.push(Lacking::Withdrawal { workspace_id, id, bytes });
            } else {
                let output = self.store.output(&stored)?;
                told.push(Told::Command(Box::new(stored.clone())));
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

    /// D1 answered what became of what it was told. A failure is tried again later, slower each
    /// time.
    pub(super) fn told(&mut self, told: &[Told], answer: FromD1Result) -> Result<()> {
        let outcomes = match answer {
            Ok(FromD1::Told(outcomes)) => outcomes,
            Ok(_) => vec![Err("D1 gave another answer".to_owned()); told.len()],
            Err(error) => vec![Err(error); told.len()],
        };
        let mut failure = None;
        for (told, outcome) in told.iter().zip(outcomes) {
            match outcome {
                Ok(()) => self.d1_knows(told)?,
                Err(error) => failure = Some(error),
            }
        }
        // Those who wait for D1 may go, or have it told again.
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
        state.timers.tell = Some(now.plus_seconds(delay));
        let about = json!({"try": state.failures});
        self.trouble("d1_not_told", about, &error);
        Ok(())
    }

    /// Plans when D1 is told next.
    fn plan_telling(&mut self) -> Result<()> {
        let now = self.scene.now;
        let unflushed = self.store.next_unflushed()?;
        let state = self.state();
        let lacks_facts = state.known.is_some() && state.facts.revision > state.facts.flushed;
        state.timers.tell = match unflushed {
            _ if lacks_facts => Some(now),
            Some(Unflushed::Now) => Some(now),
            Some(Unflushed::After(report)) => Some(report.plus_millis(GATHER_REPORTS)),
            None => None,
        };
        Ok(())
    }

    fn d1_knows(&mut self, told: &Told) -> Result<()> {
        match told {
            Told::Command(stored) => self.store.mark_flushed(stored),
            Told::Withdrawal(told) => {
                let id = told.command.id;
                // D1 may have inserted it late, after it was told of the withdrawal.
                let is_latest = self.find(id)?.is_some_and(|stored| stored.revision == told.revision);
                if is_latest { self.store.delete(id) } else { Ok(()) }
            }
            Told::Server(revision) => {
                let facts = &mut self.state().facts;
                facts.flushed = facts.flushed.max(*revision);
                facts.events.retain(|noted| noted.revision > *revision);
                Ok(())
            }
        }
    }

    /// Has audit events sealed that D1 is told of.
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

    /// Has audit events sealed that D1 has, or has soon. Nothing waits for that.
    pub(super) fn seal_soon(&mut self, workspace: i64) {
        self.effects.push(Effect::Seal(workspace));
    }
}
