//! The agent's connections: which one is valid (agent-protocol 5.1), pings, and their audit events.

use std::time::Duration;

use serde_json::json;

use super::call::Refusal;
use super::event::{ConnectionKind, Effect};
use super::machine::Machine;
use super::memory::WaitsFor;
use super::memory::{AfterVerification, UnverifiedCall};
use super::server_facts::ServerFacts;
use super::state::ServerIdentity;
use super::store::{Result, Store};
use crate::agent::wire::{HostFacts, MessageToAgent};
use crate::audit::event::{ActorType, AuditEvent, CredentialType, Source};
use crate::link::contest::ReplacementHistory;
use crate::time::Timestamp;

/// An agent that does not answer a ping within this time is disconnected.
const PONG_TIMEOUT: Duration = Duration::from_secs(60);
/// During a conflict, the agent at the older connection must answer a ping within this time.
const OLDER_PONG_TIMEOUT: Duration = Duration::from_secs(5);
/// At most one conflict event is recorded in this time.
const CONFLICT_EVENT_INTERVAL: Duration = Duration::from_secs(60);
/// How long the API shows a conflict after the last recorded refusal.
const CONFLICT_SHOWN_FOR: Duration = Duration::from_secs(600);

impl<S: Store> Machine<S> {
    /// An audit event with the agent as the actor and its server as the object.
    pub(super) fn agent_event(
        &mut self,
        action: &str,
        server: &ServerIdentity,
        source: Source,
    ) -> Result<AuditEvent> {
        let id = Some(server.server.to_string());
        let event = self.service_event(action)?;
        let event = event.with_actor(ActorType::Agent, id.clone(), Some(server.name.clone()));
        let event = event
            .with_credential(CredentialType::AgentKey, id.clone())
            .with_object(id, Some(&server.name));
        Ok(AuditEvent { source, ..event })
    }

    /// Returns an audit event if the agent connects from another address than before.
    fn connect_event(
        &mut self,
        server: &ServerIdentity,
        source: Source,
        before: &ServerFacts,
    ) -> Result<Option<AuditEvent>> {
        let address = |ip: &Option<String>| ip.clone().unwrap_or_default();
        if address(&source.remote_ip) == address(&before.remote_ip) {
            return Ok(None);
        }
        let details = json!({
            "remote_ip": source.remote_ip, "previous_remote_ip": before.remote_ip,
            "agent_version": before.agent_version,
        });
        Ok(Some(self.agent_event("server.connect", server, source)?.details(details)))
    }

    /// Returns an audit event if the agent reports another version than before.
    pub(super) fn upgrade_event(
        &mut self,
        server: &ServerIdentity,
        source: Source,
        facts: &HostFacts,
    ) -> Result<Option<AuditEvent>> {
        let previous = self.state().facts.agent_version.clone();
        let (Some(version), Some(previous)) = (&facts.version, previous) else { return Ok(None) };
        if *version == previous {
            return Ok(None);
        }
        let details = json!({
            "remote_ip": source.remote_ip, "agent_version": version,
            "previous_agent_version": previous,
        });
        Ok(Some(self.agent_event("server.connect", server, source)?.details(details)))
    }

    /// Returns an audit event if the agent reports another policy of its host than before. The
    /// first report of a server is no change.
    pub(super) fn policy_event(
        &mut self,
        server: &ServerIdentity,
        source: Source,
        facts: &HostFacts,
    ) -> Result<Option<AuditEvent>> {
        let before = &self.state().facts;
        let (policy, previous) = (before.policy_after(facts), before.policy.clone());
        if !before.commissioned || policy == previous {
            return Ok(None);
        }
        let details = json!({"policy": policy, "previous_policy": previous});
        Ok(Some(self.agent_event("server.policy", server, source)?.details(details)))
    }

    /// Handles a connection that the runtime dropped without an event.
    pub(super) fn notice_lost_sockets(&mut self) -> Result<()> {
        let has_one = self.server.as_ref().is_some_and(|server| server.backhaul.open.is_some());
        if has_one && self.backhaul().is_none() { self.disconnected() } else { Ok(()) }
    }

    /// Accepts an agent's connection, which replaces an older connection. But if two hosts with the
    /// same identity keep replacing each other, the agent at the older connection is pinged first.
    pub(super) fn connect(&mut self, call: UnverifiedCall, server: &ServerIdentity) -> Result<()> {
        let AfterVerification::Connect { ticket, kind, was_pinged } = call.then else {
            return Ok(());
        };
        let now = self.input.now;
        let replaces = self.open_of(kind).is_some();
        if replaces && !was_pinged && self.state().connection(kind).replacements.is_contested(now) {
            return self.ping_older(call);
        }
        if replaces {
            self.state().connection(kind).replacements.record_replacement(now);
        }
        self.effects.push(Effect::Close { kind, code: 1000, reason: "replaced" });
        let state = self.state();
        let generation = state.last_generation + 1;
        state.last_generation = generation;
        let older = state.connection(kind).open.replace(generation);
        let features = call.claimed.features;
        self.effects.push(Effect::Accept { ticket, kind, generation, features });
        match kind {
            ConnectionKind::Control => self.input.control = Some(generation),
            ConnectionKind::Backhaul => {
                self.input.backhaul = Some((generation, features));
                self.connected(call, server)?;
                if features.kill {
                    self.send_kills(generation)?;
                }
                self.schedule_delivery()?;
            }
        }
        older.map_or(Ok(()), |older| self.resume_pong_waits(older))
    }

    fn connected(&mut self, call: UnverifiedCall, server: &ServerIdentity) -> Result<()> {
        let now = self.input.now;
        let ping = now.plus_seconds(self.settings.ping_every);
        let timers = &mut self.state().timers;
        (timers.ping, timers.pong) = (Some(ping), None);
        let before = self.state().facts.clone();
        let event = self.connect_event(server, call.source, &before)?;
        self.change_facts(|facts| {
            facts.is_connected = true;
            facts.connected_at = Some(now);
            facts.last_seen_at = Some(now);
            facts.remote_ip = Some(call.claimed.remote_ip);
            event.into_iter().for_each(|event| facts.add_event(event));
        });
        self.apply_pending_start()
    }

    /// Pings the agent at the older connection. Agents do not answer on a control connection, so
    /// the ping goes to the backhaul for both kinds.
    fn ping_older(&mut self, call: UnverifiedCall) -> Result<()> {
        let Some(generation) = self.open_of(ConnectionKind::Backhaul) else {
            return self.older_ping_ended(0, call, false);
        };
        let message = MessageToAgent::Ping;
        self.effects.push(Effect::Send {
            kind: ConnectionKind::Backhaul,
            generation,
            message,
            before: None,
        });
        let until = self.input.now.plus(OLDER_PONG_TIMEOUT);
        self.wait(call.ticket(), Some(until), WaitsFor::Pong(generation, Box::new(call)));
        Ok(())
    }

    /// Handles the end of the ping to the older connection. `is_answer`: its agent answered.
    /// Otherwise the ping timed out, or the connection ended.
    pub(super) fn older_ping_ended(
        &mut self,
        generation: u64,
        call: UnverifiedCall,
        is_answer: bool,
    ) -> Result<()> {
        let AfterVerification::Connect { ticket, kind, .. } = call.then else { return Ok(()) };
        let is_alive = is_answer && self.open_of(ConnectionKind::Backhaul) == Some(generation);
        if is_alive && self.open_of(kind).is_some() {
            self.record_conflict(kind, call.source)?;
            self.refuse(ticket, Refusal::IdentityInUse);
            return Ok(());
        }
        if !is_alive && kind == ConnectionKind::Backhaul {
            // The older agent is dead, and so is its control connection.
            let state = self.state();
            state.backhaul.replacements = ReplacementHistory::default();
            state.control.replacements = ReplacementHistory::default();
        }
        // Verify again: the key may have been replaced in the meantime.
        let then = AfterVerification::Connect { ticket, kind, was_pinged: true };
        self.verify_agent(UnverifiedCall { then, ..call })
    }

    /// Records that a connection was refused because the older agent is alive.
    fn record_conflict(&mut self, kind: ConnectionKind, source: Source) -> Result<()> {
        let now = self.input.now;
        self.state().connection(kind).replacements.record_refusal(now);
        let is_recorded = |at: Timestamp| at <= now && at.plus(CONFLICT_EVENT_INTERVAL) > now;
        let Some(server) = self.identity().cloned() else { return Ok(()) };
        let facts = &self.state().facts;
        if facts.identity_conflict_at.is_some_and(is_recorded) {
            return Ok(());
        }
        let connected = &facts.remote_ip;
        let details = json!({"remote_ip": source.remote_ip, "connected_remote_ip": connected});
        let event = self.agent_event("server.conflict", &server, source)?.details(details);
        self.change_facts(|facts| {
            facts.identity_conflict_at = Some(now);
            facts.add_event(event);
        });
        Ok(())
    }

    /// Clears a conflict that was last recorded more than `CONFLICT_SHOWN_FOR` ago.
    fn clear_old_conflict(&mut self) {
        let at = self.state().facts.identity_conflict_at;
        if at.is_some_and(|at| at.plus(CONFLICT_SHOWN_FOR) <= self.input.now) {
            self.change_facts(|facts| facts.identity_conflict_at = None);
        }
    }

    /// The agent at this connection answered a ping.
    pub(super) fn pong_received(&mut self, generation: u64) -> Result<()> {
        if self.open_of(ConnectionKind::Backhaul) != Some(generation) {
            return Ok(());
        }
        self.state().timers.pong = None;
        self.mark_seen();
        self.resume_pong_waits(generation)
    }

    pub(super) fn connection_closed(&mut self, generation: u64) -> Result<()> {
        let Some(server) = &mut self.server else { return Ok(()) };
        if server.control.open == Some(generation) {
            server.control.open = None;
        }
        if server.backhaul.open == Some(generation) { self.disconnected() } else { Ok(()) }
    }

    /// The backhaul connection ended.
    pub(super) fn disconnected(&mut self) -> Result<()> {
        let state = self.state();
        let was_open = state.backhaul.open.take();
        (state.timers.ping, state.timers.pong) = (None, None);
        self.change_facts(|facts| facts.is_connected = false);
        was_open.map_or(Ok(()), |generation| self.resume_pong_waits(generation))
    }

    /// Pings the agent on its connections, and sets the timer for the answer.
    pub(super) fn ping(&mut self) {
        self.clear_old_conflict();
        let Some(generation) = self.open_of(ConnectionKind::Backhaul) else { return };
        let sockets = [
            self.open_of(ConnectionKind::Control).map(|open| (ConnectionKind::Control, open)),
            Some((ConnectionKind::Backhaul, generation)),
        ];
        for (kind, generation) in sockets.into_iter().flatten() {
            let message = MessageToAgent::Ping;
            self.effects.push(Effect::Send { kind, generation, message, before: None });
        }
        let now = self.input.now;
        let ping = now.plus_seconds(self.settings.ping_every);
        let timers = &mut self.state().timers;
        timers.pong.get_or_insert(now.plus(PONG_TIMEOUT));
        timers.ping = Some(ping);
    }

    /// Closes a connection whose agent did not answer a ping.
    pub(super) fn close_silent_connection(&mut self) -> Result<()> {
        self.state().timers.pong = None;
        if self.backhaul().is_none() {
            return Ok(());
        }
        let (kind, reason) = (ConnectionKind::Backhaul, "no answer to a ping");
        self.effects.push(Effect::Close { kind, code: 1001, reason });
        self.disconnected()
    }

    /// Closes all connections of the agent, and marks it as disconnected.
    pub(super) fn disconnect(&mut self, reason: &'static str) -> Result<()> {
        self.close_sockets(reason);
        self.state().control.open = None;
        if self.state().backhaul.open.is_some() { self.disconnected() } else { Ok(()) }
    }

    pub(super) fn close_sockets(&mut self, reason: &'static str) {
        for kind in ConnectionKind::ALL {
            self.effects.push(Effect::Close { kind, code: 1000, reason });
        }
    }
}
