//! The agent's connections: which one counts (agent-protocol 5.1), pings, and what the audit log
//! says about them.

use serde_json::json;

use super::call::Refusal;
use super::event::{Effect, Kind};
use super::machine::Link;
use super::memory::What;
use super::memory::{Identified, ThenAgent};
use super::server_facts::ServerFacts;
use super::state::Known;
use super::store::{Result, Store};
use crate::audit::{ActorType, CredentialType, Event, Source};
use crate::contest::Contest;
use crate::time::Timestamp;
use crate::wire::{HostFacts, ToAgent};

/// How long an agent may take to answer a ping, in seconds.
const PONG_WITHIN: i64 = 60;
/// How long an older connection may take to prove that its agent is alive, in seconds.
const ANSWER_WITHIN: i64 = 5;
/// How often a conflict is recorded at most, in seconds.
const RECORD_EVERY: i64 = 60;
/// How long a conflict is shown after the last refusal that was recorded, in seconds.
const SHOWN_FOR: i64 = 600;

impl<S: Store> Link<S> {
    /// An audit event that a server's agent caused, with its server as the object.
    pub(super) fn agent_event(
        &mut self,
        action: &str,
        known: &Known,
        source: Source,
    ) -> Result<Event> {
        let id = Some(known.server.to_string());
        let event = self.service_event(action)?;
        let event = event.by(ActorType::Agent, id.clone(), Some(known.name.clone()));
        let event = event.with(CredentialType::AgentKey, id.clone()).on(id, Some(&known.name));
        Ok(Event { source, ..event })
    }

    /// The event of an agent that connects from another address than before.
    fn connect_event(
        &mut self,
        known: &Known,
        source: Source,
        before: &ServerFacts,
    ) -> Result<Option<Event>> {
        let address = |ip: &Option<String>| ip.clone().unwrap_or_default();
        if address(&source.remote_ip) == address(&before.remote_ip) {
            return Ok(None);
        }
        let details = json!({
            "remote_ip": source.remote_ip, "previous_remote_ip": before.remote_ip,
            "agent_version": before.agent_version,
        });
        Ok(Some(self.agent_event("server.connect", known, source)?.details(details)))
    }

    /// The event of an agent that reports another version than before.
    pub(super) fn upgrade_event(
        &mut self,
        known: &Known,
        source: Source,
        facts: &HostFacts,
    ) -> Result<Option<Event>> {
        let previous = self.state().facts.agent_version.clone();
        let (Some(version), Some(previous)) = (&facts.version, previous) else { return Ok(None) };
        if *version == previous {
            return Ok(None);
        }
        let details = json!({
            "remote_ip": source.remote_ip, "agent_version": version,
            "previous_agent_version": previous,
        });
        Ok(Some(self.agent_event("server.connect", known, source)?.details(details)))
    }

    /// Notices a connection that the runtime lost without an event.
    pub(super) fn notice_lost_sockets(&mut self) -> Result<()> {
        let has_one = self.server.as_ref().is_some_and(|server| server.backhaul.open.is_some());
        if has_one && self.backhaul().is_none() { self.disconnected() } else { Ok(()) }
    }

    /// Accepts an agent's connection. It replaces an older one, unless two hosts with one identity
    /// keep replacing each other.
    pub(super) fn connect(&mut self, identified: Identified, known: &Known) -> Result<()> {
        let ThenAgent::Connects { ticket, kind, was_asked } = identified.then else {
            return Ok(());
        };
        let now = self.scene.now;
        let replaces = self.open_of(kind).is_some();
        if replaces && !was_asked && self.state().connection(kind).contest.is_open(now) {
            return self.ask_older(identified);
        }
        if replaces {
            self.state().connection(kind).contest.note_replacement(now);
        }
        self.effects.push(Effect::Close { kind, code: 1000, reason: "replaced" });
        let state = self.state();
        let generation = state.last_generation + 1;
        state.last_generation = generation;
        let older = state.connection(kind).open.replace(generation);
        let features = identified.identity.features;
        self.effects.push(Effect::Accept { ticket, kind, generation, features });
        match kind {
            Kind::Control => self.scene.control = Some(generation),
            Kind::Backhaul => {
                self.scene.backhaul = Some((generation, features));
                self.connected(identified, known)?;
                if features.kill {
                    self.send_kills(generation)?;
                }
                self.hand_out_soon()?;
            }
        }
        older.map_or(Ok(()), |older| self.look_at_connection(older))
    }

    fn connected(&mut self, identified: Identified, known: &Known) -> Result<()> {
        let now = self.scene.now;
        let ping = now.plus_seconds(self.settings.ping_every);
        let timers = &mut self.state().timers;
        (timers.ping, timers.pong) = (Some(ping), None);
        let before = self.state().facts.clone();
        let event = self.connect_event(known, identified.source, &before)?;
        self.change_facts(|facts| {
            facts.is_connected = true;
            facts.connected_at = Some(now);
            facts.last_seen_at = Some(now);
            facts.remote_ip = Some(identified.identity.remote_ip);
            event.into_iter().for_each(|event| facts.note(event));
        });
        self.settle_start()
    }

    /// Pings the older agent. Nothing comes back on a control connection, so the ping goes to the
    /// backhaul for both kinds.
    fn ask_older(&mut self, identified: Identified) -> Result<()> {
        let Some(generation) = self.open_of(Kind::Backhaul) else {
            return self.older_answered(0, identified, false);
        };
        let message = ToAgent::Ping;
        self.effects.push(Effect::Send { kind: Kind::Backhaul, generation, message, before: None });
        let until = self.scene.now.plus_seconds(ANSWER_WITHIN);
        self.wait(identified.ticket(), Some(until), What::Pong(generation, Box::new(identified)));
        Ok(())
    }

    /// The older agent answered the ping, or did not in time, or its connection ended.
    pub(super) fn older_answered(
        &mut self,
        generation: u64,
        identified: Identified,
        is_answer: bool,
    ) -> Result<()> {
        let ThenAgent::Connects { ticket, kind, .. } = identified.then else { return Ok(()) };
        let is_alive = is_answer && self.open_of(Kind::Backhaul) == Some(generation);
        if is_alive && self.open_of(kind).is_some() {
            self.note_conflict(kind, identified.source)?;
            self.refuse(ticket, Refusal::IdentityInUse);
            return Ok(());
        }
        if !is_alive && kind == Kind::Backhaul {
            // The older agent is dead, and its control connection with it.
            let state = self.state();
            state.backhaul.contest = Contest::default();
            state.control.contest = Contest::default();
        }
        // The key may have been replaced in the meantime.
        let then = ThenAgent::Connects { ticket, kind, was_asked: true };
        self.identify(Identified { then, ..identified })
    }

    /// Notes that a connection was refused, as the older agent is alive.
    fn note_conflict(&mut self, kind: Kind, source: Source) -> Result<()> {
        let now = self.scene.now;
        self.state().connection(kind).contest.note_refusal(now);
        let is_recorded = |at: Timestamp| at <= now && at.plus_seconds(RECORD_EVERY) > now;
        let Some(known) = self.known().cloned() else { return Ok(()) };
        let facts = &self.state().facts;
        if facts.identity_conflict_at.is_some_and(is_recorded) {
            return Ok(());
        }
        let connected = &facts.remote_ip;
        let details = json!({"remote_ip": source.remote_ip, "connected_remote_ip": connected});
        let event = self.agent_event("server.conflict", &known, source)?.details(details);
        self.change_facts(|facts| {
            facts.identity_conflict_at = Some(now);
            facts.note(event);
        });
        Ok(())
    }

    /// Clears a conflict that has not occurred for long.
    fn clear_old_conflict(&mut self) {
        let at = self.state().facts.identity_conflict_at;
        if at.is_some_and(|at| at.plus_seconds(SHOWN_FOR) <= self.scene.now) {
            self.change_facts(|facts| facts.identity_conflict_at = None);
        }
    }

    /// The agent answered a ping.
    pub(super) fn pong(&mut self, generation: u64) -> Result<()> {
        if self.open_of(Kind::Backhaul) != Some(generation) {
            return Ok(());
        }
        self.state().timers.pong = None;
        self.seen();
        self.look_at_connection(generation)
    }

    /// A connection ended.
    pub(super) fn closed(&mut self, generation: u64) -> Result<()> {
        let Some(server) = &mut self.server else { return Ok(()) };
        if server.control.open == Some(generation) {
            server.control.open = None;
        }
        if server.backhaul.open == Some(generation) { self.disconnected() } else { Ok(()) }
    }

    /// No backhaul is open any more.
    pub(super) fn disconnected(&mut self) -> Result<()> {
        let state = self.state();
        let was_open = state.backhaul.open.take();
        (state.timers.ping, state.timers.pong) = (None, None);
        self.change_facts(|facts| facts.is_connected = false);
        was_open.map_or(Ok(()), |generation| self.look_at_connection(generation))
    }

    /// Sends pings and expects an answer.
    pub(super) fn ping(&mut self) {
        self.clear_old_conflict();
        let Some(generation) = self.open_of(Kind::Backhaul) else { return };
        let sockets = [
            self.open_of(Kind::Control).map(|open| (Kind::Control, open)),
            Some((Kind::Backhaul, generation)),
        ];
        for (kind, generation) in sockets.into_iter().flatten() {
            let message = ToAgent::Ping;
            self.effects.push(Effect::Send { kind, generation, message, before: None });
        }
        let now = self.scene.now;
        let ping = now.plus_seconds(self.settings.ping_every);
        let timers = &mut self.state().timers;
        timers.pong.get_or_insert(now.plus_seconds(PONG_WITHIN));
        timers.ping = Some(ping);
    }

    /// Closes a connection whose agent did not answer a ping.
    pub(super) fn give_up_silent_agent(&mut self) -> Result<()> {
        self.state().timers.pong = None;
        if self.backhaul().is_none() {
            return Ok(());
        }
        let (kind, reason) = (Kind::Backhaul, "no answer to a ping");
        self.effects.push(Effect::Close { kind, code: 1001, reason });
        self.disconnected()
    }

    /// Closes all of the agent's connections, and notes that it is disconnected.
    pub(super) fn cut_off(&mut self, reason: &'static str) -> Result<()> {
        self.close_all(reason);
        self.state().control.open = None;
        if self.state().backhaul.open.is_some() { self.disconnected() } else { Ok(()) }
    }

    pub(super) fn close_all(&mut self, reason: &'static str) {
        for kind in Kind::ALL {
            self.effects.push(Effect::Close { kind, code: 1000, reason });
        }
    }
}
