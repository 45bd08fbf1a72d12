//! What the object of a server stores beside its commands, as one JSON document.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::call::{Identity, OfServer};
use super::event::{Found, Kind};
use super::server_facts::ServerFacts;
use crate::contest::Contest;
use crate::time::Timestamp;

/// Who a server is, and the hash of its agent's key: with it every call of an agent is checked
/// without a look into D1.
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
    /// Since when it has that name; `None` if that was not told.
    pub named_at: Option<Timestamp>,
    /// The hash of its agent's key.
    pub key_hash: String,
}

impl Known {
    /// What is known of a server that D1 has in a workspace, by its slug.
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

    /// Whether an agent is this server's own.
    pub fn is_of(&self, identity: &Identity) -> bool {
        self.workspace == identity.workspace && self.key_hash == identity.key_hash
    }
}

/// One kind of the agent's connections.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// The number of the open connection.
    pub open: Option<u64>,
    /// How often connections replaced each other lately.
    pub contest: Contest,
}

/// How far D1 was given the commands again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Resync {
    /// When that was asked for. A later request begins anew.
    pub run: Timestamp,
    /// The id of the last command that it was given.
    pub after: String,
}

/// What is to be done when, though nothing happens. Commands have times of their own.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Timers {
    /// D1 is told what it lacks.
    pub tell: Option<Timestamp>,
    /// The agent is pinged.
    pub ping: Option<Timestamp>,
    /// The agent has not answered.
    pub pong: Option<Timestamp>,
    /// The queue is looked at.
    pub hand_out: Option<Timestamp>,
    /// D1 is asked what became of a change that was cut off.
    pub look: Option<Timestamp>,
    /// D1 is given the next commands again.
    pub resync: Option<Timestamp>,
}

/// What the object stores beside commands, output and answers.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct ServerState {
    /// Who the server is; `None` before that is learnt, and after its end.
    pub known: Option<Known>,
    /// The server about which D1 may say something else than `known`: a change of it is under way,
    /// or was cut off.
    pub unsure: Option<OfServer>,
    /// Whether the server was deleted. What went out to it stays.
    pub is_gone: bool,
    /// Whether its workspace is deleted, and may be undeleted.
    pub is_suspended: bool,
    /// What D1 is told of the server.
    pub facts: ServerFacts,
    /// The number of the last connection.
    pub last_generation: u64,
    /// The connection over which commands go out.
    pub backhaul: Connection,
    /// The control connection.
    pub control: Connection,
    /// When the agent last reported that its process began, while it is not known whether the open
    /// connection is of that process.
    pub agent_started_at: Option<Timestamp>,
    /// How often telling D1 failed in a row.
    pub failures: u32,
    /// How far D1 was given the commands again, while there are more.
    pub resync: Option<Resync>,
    /// What is due when.
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
