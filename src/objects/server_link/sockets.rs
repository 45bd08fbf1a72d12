//! The WebSockets between a server's object and its agent.

use farhand_domain::agent::features::Features;
use farhand_domain::agent::wire::MessageToAgent;
use farhand_domain::link::event::{ConnectionKind, StepInput};
use serde::{Deserialize, Serialize};
use worker::{Result, State, WebSocket, WebSocketPair};

use crate::platform;

/// The data that the platform keeps with a socket while the object hibernates. Stored as JSON.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Attachment {
    /// The connection's number.
    generation: u64,
    /// Its agent's features.
    features: Features,
}

fn attachment(socket: &WebSocket) -> Option<Attachment> {
    socket.deserialize_attachment().ok().flatten()
}

/// The number of a socket's connection.
pub fn generation(socket: &WebSocket) -> Option<u64> {
    attachment(socket).map(|attachment| attachment.generation)
}

/// Reads the time and the newest socket of each kind.
pub fn input(state: &State) -> StepInput {
    let newest = |kind: ConnectionKind| {
        let sockets = state.get_websockets_with_tag(kind.as_str());
        sockets.iter().filter_map(attachment).max_by_key(|attachment| attachment.generation)
    };
    StepInput {
        now: platform::now(),
        backhaul: newest(ConnectionKind::Backhaul)
            .map(|newest| (newest.generation, newest.features)),
        control: newest(ConnectionKind::Control).map(|newest| newest.generation),
    }
}

/// Opens a WebSocket and returns the agent's end.
pub fn accept(
    state: &State,
    kind: ConnectionKind,
    generation: u64,
    features: Features,
) -> Result<WebSocket> {
    let WebSocketPair { client, server } = WebSocketPair::new()?;
    state.accept_websocket_with_tags(&server, &[kind.as_str()]);
    server.serialize_attachment(Attachment { generation, features })?;
    Ok(client)
}

/// Sends a message to a connection. Fails if the connection has ended. In that case nothing was
/// sent.
pub fn send(state: &State, kind: ConnectionKind, to: u64, message: &MessageToAgent) -> Result<()> {
    let sockets = state.get_websockets_with_tag(kind.as_str());
    let socket = sockets.iter().find(|socket| generation(socket) == Some(to));
    let socket =
        socket.ok_or_else(|| worker::Error::RustError("the connection is closed".to_owned()))?;
    socket.send_with_str(serde_json::to_string(message)?)
}

/// Closes all sockets of a kind.
pub fn close(state: &State, kind: ConnectionKind, code: u16, reason: &str) {
    for socket in state.get_websockets_with_tag(kind.as_str()) {
        // This fails if the socket is already closing, which is harmless.
        socket.close(Some(code), Some(reason)).ok();
    }
}
