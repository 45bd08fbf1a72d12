//! The state of a server's object without its commands, stored as one JSON document.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::call::{ClaimedIdentity, ServerLocation};
use super::event::{ConnectionKind, D1Server, NextKey};
use super::server_facts::ServerFacts;
use crate::link::contest::ReplacementHistory;
use crate::time::Timestamp;

/// A server's identity, and the hash of its agent's key. With the identity, the object verifies its
/// agent without D1.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServerIdentity {
    /// The workspace's slug.
    pub workspace: String,
    /// The workspace's id.
    pub workspace_id: i64,
    /// The server's id.
    pub server: Uuid,
    /// The server's name.
    pub name: String,
    /// When the server got this name; `None`: unknown.
    pub named_at: Option<Timestamp>,
    /// The hash of its agent's key.
    pub key_hash: String,
    /// The key that replaces `key_hash` when an agent connects with it; `None`: no such key.
    pub next_key: Option<NextKey>,
}

impl ServerIdentity {
    /// Converts the server's row in D1. `workspace` is a slug.
    pub fn from_d1(workspace: &str, server: Uuid, found: D1Server) -> Self {
        Self {
            workspace: workspace.to_owned(),
            workspace_id: found.workspace_id,
            server,
            name: found.name,
            named_at: None,
            key_hash: found.key_hash,
            next_key: found.next_key,
        }
    }

    /// Whether an agent that claims this identity has a valid key of the server.
    pub fn matches(&self, claimed: &ClaimedIdentity, now: Timestamp) -> bool {
        let is_old_key_valid =
            self.next_key.as_ref().is_none_or(|next| next.old_key_valid_until > now);
        let has_key = self.key_hash == claimed.key_hash && is_old_key_valid;
        self.workspace == claimed.workspace && (has_key || self.is_next_key(&claimed.key_hash))
    }

    /// Whether this is the hash of the key with which no agent has connected yet.
    pub fn is_next_key(&self, key_hash: &str) -> bool {
        self.next_key.as_ref().is_some_and(|next| next.key_hash == key_hash)
    }

    /// The server, for a change in D1.
    pub fn location(&self) -> ServerLocation {
        let Self { workspace, workspace_id, server, .. } = self;
        ServerLocation {
            workspace: workspace.clone(),
            workspace_id: *workspace_id,
            server: *server,
        }
    }
}

/// The open connection of one kind.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// The number of the open connection.
    pub open: Option<u64>,
    /// The recent replacements of connections.
    pub replacements: ReplacementHistory,
}

/// The progress of a resync.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Resync {
    /// When it was requested. A later request starts again from the beginning.
    pub requested_at: Timestamp,
    /// The id of the last command that was restored in D1; empty at the start.
    pub after: String,
}

/// The stored timers: when the alarm must do this work; `None`: no such work. Commands are not
/// included: each command has its own timer.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Timers {
    /// Ping the agent.
    pub ping: Option<Timestamp>,
    /// Close the connection, because the agent did not answer a ping.
    pub pong: Option<Timestamp>,
    /// Read the server from D1 again, after a change that was cut off.
    pub revalidate: Option<Timestamp>,
    /// Restore the next commands of a resync.
    pub resync: Option<Timestamp>,
    /// End the validity of the old key, although no agent has connected with the new key.
    pub old_key: Option<Timestamp>,
}

/// Timers that follow from the stored commands and facts, so they are not stored. The machine
/// computes them when it loads the state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Plan {
    /// Flush the outbox.
    pub flush: Option<Timestamp>,
    /// Deliver due commands.
    pub deliver: Option<Timestamp>,
}

/// All that the object stores, except commands, their output, and responses for Idempotency-Keys.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct ServerState {
    /// `None` before the object loads the identity from D1, and after the server was deleted.
    pub identity: Option<ServerIdentity>,
    /// The server, while D1 may differ from `identity`: a change is in progress, or was cut off.
    /// Until it is confirmed, each call of an agent is verified in D1.
    pub unconfirmed: Option<ServerLocation>,
    /// Whether the server was deleted. Delivered commands are kept.
    pub is_deleted: bool,
    /// Whether the workspace is deleted. It may be undeleted.
    pub is_suspended: bool,
    /// The facts of the host and the connection, which the outbox writes to D1.
    pub facts: ServerFacts,
    /// The number of the last connection of either kind.
    pub last_generation: u64,
    /// The connection over which commands are sent.
    pub backhaul: Connection,
    /// The control connection.
    pub control: Connection,
    /// When the agent last reported a new process, while it is unknown whether the open connection
    /// belongs to that process.
    pub agent_started_at: Option<Timestamp>,
    /// The number of flushes that failed in a row.
    pub failures: u32,
    /// The resync in progress; `None`: no resync.
    pub resync: Option<Resync>,
    /// The stored timers.
    pub timers: Timers,
}

impl ServerState {
    /// Stores the identity, and the timer of its old key.
    pub fn set_identity(&mut self, identity: ServerIdentity) {
        self.timers.old_key = identity.next_key.as_ref().map(|next| next.old_key_valid_until);
        self.identity = Some(identity);
    }

    /// The connection of a kind.
    pub fn connection(&mut self, kind: ConnectionKind) -> &mut Connection {
        match kind {
            ConnectionKind::Backhaul => &mut self.backhaul,
            ConnectionKind::Control => &mut self.control,
        }
    }
}
