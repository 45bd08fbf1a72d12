//! The agent's reports: about commands, about its host, and about itself.

use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::call::{DeleteServer, LinkResponse, Refusal, Report};
use super::event::Ticket;
use super::machine::Machine;
use super::state::ServerIdentity;
use super::store::{Result, Store};
use super::stored_command::StoredCommand;
use crate::agent::wire::Chunk;
use crate::audit::event::Source;
use crate::command::lifecycle::Lifecycle;
use crate::command::retention;
use crate::time::Timestamp;

/// An agent may report the start of its process up to this long after it connected.
const START_REPORT_WINDOW: Duration = Duration::from_secs(60);

impl<S: Store> Machine<S> {
    /// Handles a report of the server's own agent, which is verified.
    pub(super) fn report(
        &mut self,
        ticket: Ticket,
        server: &ServerIdentity,
        source: Source,
        report: Report,
    ) -> Result<()> {
        self.mark_seen();
        let now = self.input.now;
        let answer = match report {
            Report::Whoami => {
                let commissioned = self.state().facts.commissioned;
                let ServerIdentity { server: id, name, .. } = server;
                LinkResponse::done(json!({"id": id, "name": name, "commissioned": commissioned}))
            }
            Report::Alive => LinkResponse::EMPTY,
            Report::Started => {
                self.agent_started()?;
                LinkResponse::EMPTY
            }
            Report::Ack { command } => {
                self.change_command(server, command, source, |stored| stored.life.ack(now))?
            }
            Report::Chunk { command, chunk } => self.store_chunk(server, command, &chunk)?,
            Report::Fin { command, fin } => {
                let answer =
                    self.change_command(server, command, source, |stored| stored.finish(fin, now))?;
                // The agent may have room for another command now.
                self.schedule_delivery()?;
                answer
            }
            Report::Facts { facts, is_commit } => {
                let upgrade = self.upgrade_event(server, source.clone(), &facts)?;
                let policy = self.policy_event(server, source, &facts)?;
                self.change_facts(|server_facts| {
                    server_facts.learn(*facts, is_commit, now);
                    upgrade
                        .into_iter()
                        .chain(policy)
                        .for_each(|event| server_facts.add_event(event));
                });
                LinkResponse::EMPTY
            }
            Report::Heartbeat { load } => {
                self.heartbeat(load);
                LinkResponse::EMPTY
            }
            Report::Unregister => {
                let event = self.agent_event("server.unregister", server, source)?;
                let of = server.location();
                let remove = DeleteServer { of, by: None, only_pending: false, event };
                return self.remove(ticket, remove);
            }
        };
        self.reply(ticket, answer);
        Ok(())
    }

    /// Applies a report to a command. A late or repeated report changes nothing, and succeeds.
    fn change_command(
        &mut self,
        server: &ServerIdentity,
        id: Uuid,
        source: Source,
        change: impl FnOnce(&mut StoredCommand) -> bool,
    ) -> Result<LinkResponse> {
        let Some(mut stored) = self.find(id)? else { return Ok(self.unknown_command(server, id)) };
        let before = stored.life.state();
        if change(&mut stored) {
            let state = stored.life.state();
            if state.is_final() && state != before {
                self.add_agent_finish_event(&mut stored, server, source)?;
            }
            self.save(&stored)?;
        }
        Ok(LinkResponse::EMPTY)
    }

    fn store_chunk(
        &mut self,
        server: &ServerIdentity,
        id: Uuid,
        chunk: &Chunk,
    ) -> Result<LinkResponse> {
        let Some(stored) = self.find(id)? else { return Ok(self.unknown_command(server, id)) };
        let now = self.input.now;
        if stored.accepts_chunk(chunk.seq.into(), now)
            && self.store.add_chunk(&stored, chunk, now)?
        {
            self.changed_commands.insert(id);
            // While a command runs, readers get the size of its output from the object, so D1 gets
            // it only after the end.
            if stored.life.outcome().is_some() {
                self.schedule_flush();
            }
        }
        Ok(LinkResponse::EMPTY)
    }

    /// The reply to a report about a command that the object does not have. The reply is success if
    /// retention may have deleted the command.
    fn unknown_command(&self, server: &ServerIdentity, command: Uuid) -> LinkResponse {
        if retention::may_be_deleted(command, server.server, self.input.now) {
            return LinkResponse::EMPTY;
        }
        LinkResponse::Refused(Refusal::NotFound)
    }

    /// The agent reports the start of its process. It sends this before it connects, but the report
    /// may be late. So a connection that was just opened may belong to the new process or to the
    /// previous process.
    fn agent_started(&mut self) -> Result<()> {
        let now = self.input.now;
        let facts = &self.state().facts;
        let opened = facts
            .connected_at
            .filter(|since| facts.is_connected && since.plus(START_REPORT_WINDOW) > now);
        self.state().agent_started_at = opened.map(|_| now);
        self.mark_delivered_before(opened.unwrap_or(now), Lifecycle::mark_agent_restarted)
    }

    /// The agent connected. If it reported a new process shortly before, commands that were
    /// delivered before the report went to the older process.
    pub(super) fn apply_pending_start(&mut self) -> Result<()> {
        match self.state().agent_started_at.take() {
            Some(started) if started.plus(START_REPORT_WINDOW) > self.input.now => {
                self.mark_delivered_before(started, Lifecycle::mark_agent_restarted)
            }
            _ => Ok(()),
        }
    }

    /// Records that the agent is alive, at most once in each [`Self::seen_interval`].
    pub(super) fn mark_seen(&mut self) {
        let (now, every) = (self.input.now, self.seen_interval());
        let is_recent = |seen: Timestamp| seen.plus_seconds(every) > now;
        if !self.state().facts.last_seen_at.is_some_and(is_recent) {
            self.change_facts(|facts| facts.last_seen_at = Some(now));
        }
        if self.state().facts.event_limit.is_due(now) {
            self.change_facts(|facts| facts.add_joined_events(now));
        }
    }

    /// The minimum interval between two updates of `last_seen_at` or `load`, in seconds. It is
    /// shorter than the interval of heartbeats, which come up to a tenth early.
    fn seen_interval(&self) -> i64 {
        (self.settings.heartbeat_every * 4 / 5).max(1)
    }

    /// Records the load of a heartbeat. A heartbeat without a load clears a load that is older than
    /// two heartbeats.
    fn heartbeat(&mut self, load: Option<f64>) {
        let (now, every) = (self.input.now, self.seen_interval());
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
