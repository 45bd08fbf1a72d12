//! Reports of the agent.

use serde_json::json;
use uuid::Uuid;

use super::call::{Answer, OfServer, Refusal, Remove, Report};
use super::event::Ticket;
use super::machine::Link;
use super::state::Known;
use super::store::{Result, Store};
use super::stored_command::StoredCommand;
use crate::audit::Source;
use crate::lifecycle::Lifecycle;
use crate::retention;
use crate::wire::Chunk;

/// How long after it connected an agent may still report the start of its process, in seconds.
const START_IS_TOLD_WITHIN: i64 = 60;

impl<S: Store> Link<S> {
    /// Takes a report of the server's own agent.
    pub(super) fn report(
        &mut self,
        ticket: Ticket,
        known: &Known,
        source: Source,
        report: Report,
    ) -> Result<()> {
        self.seen();
        let now = self.scene.now;
        let answer = match report {
            Report::Whoami => {
                let commissioned = self.state().facts.commissioned;
                let Known { server, name, .. } = known;
                Answer::done(json!({"id": server, "name": name, "commissioned": commissioned}))
            }
            Report::Seen => Answer::NOTHING,
            Report::Started => {
                self.started()?;
                Answer::NOTHING
            }
            Report::Ack { command } => {
                self.report_on(known, command, source, |stored| stored.life.ack(now))?
            }
            Report::Chunk { command, chunk } => self.take_chunk(known, command, &chunk)?,
            Report::Fin { command, fin } => {
                let answer =
                    self.report_on(known, command, source, |stored| stored.finish(fin, now))?;
                // The agent may have room for another command now.
                self.hand_out_soon()?;
                answer
            }
            Report::Facts { facts, is_commit } => {
                let upgrade = self.upgrade_event(known, source, &facts)?;
                self.change_facts(|known| {
                    known.learn(facts, is_commit, now);
                    upgrade.into_iter().for_each(|event| known.note(event));
                });
                Answer::NOTHING
            }
            Report::Heartbeat { load } => {
                self.heartbeat(load);
                Answer::NOTHING
            }
            Report::Unregister => {
                let event = self.agent_event("server.unregister", known, source)?;
                let Known { workspace, workspace_id, server, .. } = known.clone();
                let of = OfServer { workspace, workspace_id, server };
                let remove = Remove { of, by: None, only_pending: false, event };
                return self.remove(ticket, remove);
            }
        };
        self.reply(ticket, answer);
        Ok(())
    }

    /// Changes a command by a report. A late or repeated report changes nothing, and succeeds.
    fn report_on(
        &mut self,
        known: &Known,
        id: Uuid,
        source: Source,
        change: impl FnOnce(&mut StoredCommand) -> bool,
    ) -> Result<Answer> {
        let Some(mut stored) = self.find(id)? else { return Ok(self.unknown(known, id)) };
        let before = stored.life.state();
        if change(&mut stored) {
            let state = stored.life.state();
            if state.is_final() && state != before {
                self.note_end_by_agent(&mut stored, known, source)?;
            }
            self.save(&stored)?;
        }
        Ok(Answer::NOTHING)
    }

    fn take_chunk(&mut self, known: &Known, id: Uuid, chunk: &Chunk) -> Result<Answer> {
        let Some(stored) = self.find(id)? else { return Ok(self.unknown(known, id)) };
        let now = self.scene.now;
        if stored.takes_chunk(chunk.seq.into(), now) && self.store.add_chunk(&stored, chunk, now)? {
            self.touched.insert(id);
            // Before the end D1 needs no size of the output: readers of the command ask the object.
            if stored.life.outcome().is_some() {
                self.tell_soon();
            }
        }
        Ok(Answer::NOTHING)
    }

    /// The answer to a report about a command that is not here.
    fn unknown(&self, known: &Known, command: Uuid) -> Answer {
        if retention::may_be_taken(command, known.server, self.scene.now) {
            return Answer::NOTHING;
        }
        Answer::Refused(Refusal::NotFound)
    }

    /// The agent reports the start of its process. It does so before it connects, but the report
    /// may be late: a connection that was just opened may be of the new process or of the one
    /// before it.
    fn started(&mut self) -> Result<()> {
        let now = self.scene.now;
        let facts = &self.state().facts;
        let opened = facts
            .connected_at
            .filter(|since| facts.is_connected && since.plus_seconds(START_IS_TOLD_WITHIN) > now);
        self.state().agent_started_at = opened.map(|_| now);
        self.doubt(opened.unwrap_or(now), Lifecycle::agent_restarted)
    }

    /// The agent connected. If it reported a new process shortly before, commands that were
    /// delivered before that report went to another process.
    pub(super) fn settle_start(&mut self) -> Result<()> {
        match self.state().agent_started_at.take() {
            Some(started) if started.plus_seconds(START_IS_TOLD_WITHIN) > self.scene.now => {
                self.doubt(started, Lifecycle::agent_restarted)
            }
            _ => Ok(()),
        }
    }

    /// Notes that the agent is alive. D1 gets that once in a while (`seen_every`).
    pub(super) fn seen(&mut self) {
        let (now, every) = (self.scene.now, self.seen_every());
        let is_told = |seen: crate::time::Timestamp| seen.plus_seconds(every) > now;
        if !self.state().facts.last_seen_at.is_some_and(is_told) {
            self.change_facts(|facts| facts.last_seen_at = Some(now));
        }
    }

    /// How late `last_seen_at` and `load` may be in D1, in seconds: less than the shortest pause
    /// between two heartbeats, which come up to a tenth early.
    fn seen_every(&self) -> i64 {
        (self.settings.heartbeat_every * 4 / 5).max(1)
    }

    /// Takes the load of a heartbeat. A heartbeat without a load drops a load that is older than
    /// two heartbeats.
    fn heartbeat(&mut self, load: Option<f64>) {
        let (now, every) = (self.scene.now, self.seen_every());
        let load_at = self.state().facts.load_at;
        let is_older = |seconds| load_at.is_none_or(|at| at.plus_seconds(seconds) <= now);
        let is_due = match load {
            Some(_) => is_older(every),
            None => load_at.is_some() && is_older(2 * self.settings.heartbeat_every),
        };
        if is_due {
            self.change_facts(|facts| facts.set_load(load, now));
        }
    }
}
