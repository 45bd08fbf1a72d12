//! The agent's connections: how one is taken, pinged and closed.

use farhand_domain::audit::Source;
use farhand_domain::features::Features;
use farhand_domain::time::Timestamp;
use farhand_domain::wire::ToAgent;
use serde::{Deserialize, Serialize};
use worker::WebSocket;
use worker::{Response, WebSocketPair};

use super::calls::Identity;
use super::contest::connect_event;
use super::object::{BACKHAUL, CONTROL, ServerLink, fact, now, wake};
use crate::platform;

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

    pub(super) fn generation_of(socket: &WebSocket) -> Option<u64> {
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

    /// The socket with a tag and a generation.
    pub(super) fn socket_of(&self, tag: &str, generation: u64) -> Option<WebSocket> {
        let sockets = self.state.get_websockets_with_tag(tag);
        sockets.into_iter().find(|socket| Self::generation_of(socket) == Some(generation))
    }

    /// The socket on which commands go out. Where the runtime lost it without a word, that is noticed here.
    pub(super) fn open_socket(&self) -> worker::Result<Option<WebSocket>> {
        let Some(open) = self.open_generation()? else { return Ok(None) };
        let socket = self.socket_of(BACKHAUL, open);
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
        self.close_sockets_of(tag, "replaced");
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

    /// Closes all of the agent's connections, and notes that it is disconnected.
    pub(super) fn cut_off(&self, why: &str) -> worker::Result<()> {
        self.close_sockets(why);
        if self.open_generation()?.is_some() { self.disconnected() } else { Ok(()) }
    }

    /// Closes all of the agent's connections.
    pub(super) fn close_sockets(&self, why: &str) {
        for tag in [BACKHAUL, CONTROL] {
            self.close_sockets_of(tag, why);
        }
    }

    fn close_sockets_of(&self, tag: &str, why: &str) {
        for socket in self.state.get_websockets_with_tag(tag) {
            // One that is closing already refuses; that is fine.
            socket.close(Some(1000), Some(why)).ok();
        }
    }
}
