//! Which connection counts when several agents have one identity (agent-protocol 5), and what the audit log says about
//! connections.

use std::time::Duration;

use farhand_domain::audit::{ActorType, CredentialType, Event, Source};
use farhand_domain::contest::Contest;
use farhand_domain::features::Features;
use farhand_domain::time::Timestamp;
use farhand_domain::wire::{HostFacts, ToAgent};
use serde::{Deserialize, Serialize};
use serde_json::json;
use worker::{Error, Result, WebSocket};
use worker::{Response, WebSocketPair};

use super::calls::Identity;
use super::d1_server::ServerFacts;
use super::identity::Known;
use super::object::{BACKHAUL, CONTROL, ServerLink, fact, now, wake};
use crate::platform;
use crate::store::audit::of_service;

/// How long an older connection may take to prove that its agent is alive.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How often a conflict is recorded at most, in seconds.
const RECORD_EVERY: i64 = 60;
/// How long a conflict is shown after the last refusal that was recorded, in seconds.
const SHOWN_FOR: i64 = 600;

/// An audit event that a server's agent caused, with its server as the object.
pub(super) fn agent_event(action: &str, known: &Known, source: Source) -> Result<Event> {
    let id = Some(known.server.to_string());
    let event = of_service(action).map_err(|error| Error::RustError(error.detail.into_owned()))?;
    let event = event.by(ActorType::Agent, id.clone(), Some(known.name.clone()));
    let event = event.with(CredentialType::AgentKey, id.clone()).on(id, Some(&known.name));
    Ok(Event { source, ..event })
}

/// The event of an agent that connects from another address than before.
fn connect_event(known: &Known, source: Source, before: &ServerFacts) -> Result<Option<Event>> {
    if source.remote_ip.as_deref().unwrap_or_default() == before.remote_ip.as_deref().unwrap_or_default() {
        return Ok(None);
    }
    let details = json!({
        "remote_ip": source.remote_ip, "previous_remote_ip": before.remote_ip, "agent_version": before.agent_version(),
    });
    Ok(Some(agent_event("server.connect", known, source)?.details(details)))
}

/// The event of an agent that reports another version than before.
pub(super) fn upgrade_event(
    known: &Known,
    source: Source,
    before: &ServerFacts,
    facts: &HostFacts,
) -> Result<Option<Event>> {
    let (Some(version), Some(previous)) = (&facts.version, before.agent_version()) else { return Ok(None) };
    if version == previous {
        return Ok(None);
    }
    let details = json!({
        "remote_ip": source.remote_ip, "agent_version": version, "previous_agent_version": previous,
    });
    Ok(Some(agent_event("server.connect", known, source)?.details(details)))
}

fn contest_of(tag: &str) -> &'static str {
    if tag == CONTROL { fact::CONTROL_CONTEST } else { fact::BACKHAUL_CONTEST }
}

impl ServerLink {
    /// The number of the open control connection.
    fn open_control(&self) -> Result<Option<u64>> {
        Ok(self.tables().fact::<Option<u64>>(fact::CONTROL_OPEN)?.flatten())
    }

    /// The connection of a kind that a newer one would replace.
    fn older(&self, tag: &str) -> Result<Option<WebSocket>> {
        if tag == BACKHAUL {
            return self.open_socket();
        }
        let Some(open) = self.open_control()? else { return Ok(None) };
        let sockets = self.state.get_websockets_with_tag(tag);
        Ok(sockets.into_iter().find(|socket| Self::generation_of(socket) == Some(open)))
    }

    fn contest(&self, tag: &str) -> Result<Contest> {
        Ok(self.tables().fact(contest_of(tag))?.unwrap_or_default())
    }

    /// Whether connections of a kind replaced each other so often that the older one may stay.
    fn is_contested(&self, tag: &str) -> Result<bool> {
        Ok(self.is_used()? && self.contest(tag)?.is_open(now()) && self.older(tag)?.is_some())
    }

    /// Asks the older agent whether it is alive. Nothing comes back on a control connection, so the backhaul is asked for both.
    async fn older_answers(&self, tag: &str) -> Result<bool> {
        let before = self.pongs.get();
        let asked = self.open_generation()?;
        let Some(socket) = self.open_socket()? else { return Ok(false) };
        if socket.send_with_str(serde_json::to_string(&ToAgent::Ping)?).is_ok() {
            self.ponged.wait((), ANSWER_WITHIN).await;
        }
        let answers = self.is_used()? && self.pongs.get() != before && self.open_generation()? == asked;
        if !answers && tag == BACKHAUL && self.is_used()? {
            // The older agent is dead, and its control connection with it.
            for contest in [fact::BACKHAUL_CONTEST, fact::CONTROL_CONTEST] {
                self.tables().set_fact(contest, &Contest::default())?;
            }
        }
        Ok(answers && self.older(tag)?.is_some())
    }

    /// Notes that a connection is about to replace an older one, if there is one.
    fn note_replacement(&self, tag: &str) -> Result<()> {
        if self.older(tag)?.is_some() {
            let mut contest = self.contest(tag)?;
            contest.note_replacement(now());
            self.tables().set_fact(contest_of(tag), &contest)?;
        }
        Ok(())
    }

    /// Notes that a connection was refused, as the older agent is alive.
    fn note_conflict(&self, known: &Known, source: Source, tag: &str) -> Result<()> {
        let (now, facts) = (now(), self.facts()?);
        let mut contest = self.contest(tag)?;
        contest.note_refusal(now);
        self.tables().set_fact(contest_of(tag), &contest)?;
        if facts.identity_conflict_at.is_some_and(|at| at <= now && at.plus_seconds(RECORD_EVERY) > now) {
            return Ok(());
        }
        let details = json!({"remote_ip": source.remote_ip, "connected_remote_ip": facts.remote_ip});
        let event = agent_event("server.conflict", known, source)?.details(details);
        self.change_facts(|facts| {
            facts.identity_conflict_at = Some(now);
            facts.note(event);
        })
    }

    /// Takes a conflict off the server that was not seen for long.
    fn clear_old_conflict(&self, now: Timestamp) -> Result<()> {
        match self.facts()?.identity_conflict_at {
            Some(at) if at.plus_seconds(SHOWN_FOR) <= now => {
                self.change_facts(|facts| facts.identity_conflict_at = None)
            }
            _ => Ok(()),
        }
    }
}

/// How long an agent may take to answer a ping, in seconds.
const PONG_WITHIN: i64 = 60;

/// What a socket carries through hibernation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Attachment {
    generation: u64,
    /// What its agent can do.
    #[serde(default)]
    features: Features,
}

impl ServerLink {
    /// The open connection's number.
    pub(super) fn open_generation(&self) -> worker::Result<Option<u64>> {
        Ok(if self.is_used()? { self.tables().fact::<Option<u64>>(fact::OPEN)?.flatten() } else { None })
    }

    fn attachment(socket: &WebSocket) -> Option<Attachment> {
        socket.deserialize_attachment().ok().flatten()
    }

    fn generation_of(socket: &WebSocket) -> Option<u64> {
        Self::attachment(socket).map(|attachment| attachment.generation)
    }

    /// What the agent at a socket announced that it can do.
    pub(super) fn features(socket: &WebSocket) -> Features {
        Self::attachment(socket).map(|attachment| attachment.features).unwrap_or_default()
    }

    pub(super) fn can_kill(socket: &WebSocket) -> bool {
        Self::features(socket).kill
    }

    pub(super) fn is_open(&self, socket: &WebSocket) -> worker::Result<bool> {
        let open = self.open_generation()?;
        Ok(open.is_some() && Self::generation_of(socket) == open)
    }

    /// The socket on which commands go out. Where the runtime lost it without a word, that is noticed here.
    pub(super) fn open_socket(&self) -> worker::Result<Option<WebSocket>> {
        let Some(open) = self.open_generation()? else { return Ok(None) };
        let sockets = self.state.get_websockets_with_tag(BACKHAUL);
        let socket = sockets.into_iter().find(|socket| Self::generation_of(socket) == Some(open));
        if socket.is_none() {
            self.disconnected()?;
        }
        Ok(socket)
    }

    pub(super) fn disconnected(&self) -> worker::Result<()> {
        let tables = self.tables();
        self.ponged.tell(&());
        tables.set_fact(fact::OPEN, &None::<u64>)?;
        tables.set_wake(wake::PING, None)?;
        tables.set_wake(wake::PONG, None)?;
        self.change_facts(|facts| facts.is_connected = false)
    }

    pub(super) async fn socket_ended(&self, socket: &WebSocket) -> worker::Result<()> {
        if self.is_open(socket)? {
            self.disconnected()?;
            self.arm().await?;
        } else if self.is_used()? && Self::generation_of(socket) == self.open_control()? {
            self.tables().set_fact(fact::CONTROL_OPEN, &None::<u64>)?;
        }
        Ok(())
    }

    /// Accepts an agent's WebSocket. A newer backhaul wins, and the older one is closed with 1000, unless two hosts with one
    /// identity replace each other (agent-protocol 5).
    pub(super) async fn take_socket(
        &self,
        identity: &Identity,
        path: &str,
        request_id: Option<String>,
    ) -> worker::Result<Response> {
        let tag = if path.ends_with(CONTROL) { CONTROL } else { BACKHAUL };
        let refused = |status| Ok(Response::empty()?.with_status(status));
        let Some(known) = self.authenticate(identity).await? else { return refused(403) };
        let source = Source { remote_ip: Some(identity.remote_ip.clone()).filter(|ip| !ip.is_empty()), request_id };
        if self.is_contested(tag)? {
            if self.older_answers(tag).await? {
                self.note_conflict(&known, source, tag)?;
                self.arm().await?;
                return refused(503);
            }
            // The key may have been changed while the older connection was asked.
            if self.authenticate(identity).await?.is_none() {
                return refused(403);
            }
        }
        self.note_replacement(tag)?;
        let WebSocketPair { client, server } = WebSocketPair::new()?;
        for older in self.state.get_websockets_with_tag(tag) {
            // One that is closing already refuses; that is fine.
            older.close(Some(1000), Some("replaced")).ok();
        }
        self.state.accept_websocket_with_tags(&server, &[tag]);
        let tables = self.tables();
        let generation = tables.fact::<u64>(fact::GENERATION)?.unwrap_or(0) + 1;
        server.serialize_attachment(Attachment { generation, features: identity.features })?;
        tables.set_fact(fact::GENERATION, &generation)?;
        tables.set_fact(if tag == CONTROL { fact::CONTROL_OPEN } else { fact::OPEN }, &Some(generation))?;
        if tag == BACKHAUL {
            let now = now();
            tables.set_wake(wake::PING, Some(now.plus_seconds(platform::ping_seconds(&self.env))))?;
            tables.set_wake(wake::PONG, None)?;
            let connect = connect_event(&known, source, &self.facts()?)?;
            self.change_facts(|facts| {
                facts.is_connected = true;
                facts.connected_at = Some(now);
                facts.last_seen_at = Some(now);
                facts.remote_ip = Some(identity.remote_ip.clone());
                connect.into_iter().for_each(|event| facts.note(event));
            })?;
            self.settle_start(now)?;
            self.send_kills(&server)?;
            self.hand_out_soon()?;
            self.arm().await?;
        }
        Response::from_websocket(client)
    }

    /// Sends a ping and expects an answer.
    pub(super) fn ping(&self, now: Timestamp) -> worker::Result<()> {
        let tables = self.tables();
        self.clear_old_conflict(now)?;
        let Some(socket) = self.open_socket()? else { return Ok(()) };
        let message = serde_json::to_string(&ToAgent::Ping)?;
        for socket in self.state.get_websockets_with_tag(CONTROL).iter().chain([&socket]) {
            // A socket that cannot be written to is found by its missing answer.
            socket.send_with_str(&message).ok();
        }
        if tables.wake(wake::PONG)?.is_none() {
            tables.set_wake(wake::PONG, Some(now.plus_seconds(PONG_WITHIN)))?;
        }
        tables.set_wake(wake::PING, Some(now.plus_seconds(platform::ping_seconds(&self.env))))
    }

    /// Closes a connection whose agent did not answer a ping.
    pub(super) fn give_up_silent_agent(&self) -> worker::Result<()> {
        if let Some(socket) = self.open_socket()? {
            socket.close(Some(1001), Some("no answer to a ping")).ok();
            self.disconnected()?;
        }
        self.tables().set_wake(wake::PONG, None)
    }

    /// Closes all of the agent's connections.
    pub(super) fn close_sockets(&self, why: &str) {
        for tag in [BACKHAUL, CONTROL] {
            for socket in self.state.get_websockets_with_tag(tag) {
                // One that is closing already refuses; that is fine.
                socket.close(Some(1000), Some(why)).ok();
            }
        }
    }
}
