//! What the object of a server stores beside its commands, as one JSON document.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::call::{Identity, OfServer};
use super::event::{Found, Kind};
use super::server_facts::ServerFacts;
use crate::contest::Contest;
use crate::time::Timestamp;

/// A server's identity, and the hash of its agent's key. With it every call of the agent is checked
/// without D1.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Known {
    /// The workspace's slug.
    pub workspace: String,
    /// The workspace.
    pub workspace_id: i64,
    /// The server.
    pub server: Uuid,
    /// Its name.
    pub name: String,
    /// When it got that name; `None`: unknown.
    pub named_at: Option<Timestamp>,
    /// The hash of its agent's key.
    pub key_hash: String,
}

impl Known {
    /// The identity of a server as D1 has it. `workspace` is a slug.
    pub fn found(workspace: &str, server: Uuid, found: Found) -> Self {
        Self {
            workspace: workspace.to_owned(),
            workspace_id: found.workspace_id,
            server,
            name: found.name,
            named_at: None,
            key_hash: found.key_hash,
        }
    }

    /// Whether an agent has this server's key.
    pub fn is_of(&self, identity: &Identity) -> bool {
        self.workspace == identity.workspace && self.key_hash == identity.key_hash
    }
}

/// One kind of the agent's connections.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// The number of the open connection.
    pub open: Option<u64>,
    /// How often connections replaced each other recently.
    pub contest: Contest,
}

/// How far a resync has come.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Resync {
    /// When it was asked for. A later request starts again from the beginning.
    pub run: Timestamp,
    /// The id of the last command that D1 was given; empty at the start.
    pub after: String,
}

/// When the alarm has something to do; `None`: nothing. Commands have their own times.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Timers {
    /// Ping the agent.
    pub ping: Option<Timestamp>,
    /// Close the connection: the agent did not answer a ping.
    pub pong: Option<Timestamp>,
    /// Ask D1 what became of a change that was cut off.
    pub look: Option<Timestamp>,
    /// Give D1 the next commands of a resync.
    pub resync: Option<Timestamp>,
}

/// When the alarm has something to do that follows from what is stored. It is not stored itself:
/// the machine plans it when it loads the state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Plan {
    /// Write to D1 what it lacks.
    pub tell: Option<Timestamp>,
    /// Look at the queue.
    pub hand_out: Option<Timestamp>,
}

/// What the object stores beside commands, output and answers.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct ServerState {
    /// The server's identity; `None` before the object learns it, and after the server was deleted.
    pub known: Option<Known>,
    /// The server, while D1 may differ from `known`: a change is under way, or was cut off. Then D1
    /// is asked about every call of an agent.
    pub unsure: Option<OfServer>,
    /// Whether the server was deleted. Delivered commands stay.
    pub is_gone: bool,
    /// Whether its workspace is deleted, and may be undeleted.
    pub is_suspended: bool,
    /// The facts of the server that D1 gets.
    pub facts: ServerFacts,
    /// The number of the last connection.
    pub last_generation: u64,
    /// The connection over which commands are sent.
    pub backhaul: Connection,
    /// The control connection.
    pub control: Connection,
    /// When the agent last reported a new process, while it is unknown whether the open connection
    /// is of that process.
    pub agent_started_at: Option<Timestamp>,
    /// How many flushes failed in a row.
    pub failures: u32,
    /// The resync under way.
    pub resync: Option<Resync>,
    /// The timers.
    pub timers: Timers,
}

impl ServerState {
    /// The connection of a kind.
    pub fn connection(&mut self, kind: Kind) -> &mut Connection {
        match kind {
            Kind::Backhaul => &mut self.backhaul,
            Kind::Control => &mut self.control,
        }
    }
}
