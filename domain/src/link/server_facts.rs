//! The facts of a server: what its object knows of the host and the connection, and writes to D1.

use serde::{Deserialize, Serialize};

use super::stored_command::PendingEvent;
use crate::audit::Event;
use crate::time::Timestamp;
use crate::wire::HostFacts;

/// How many audit events of a server wait for D1 at most.
const MAX_EVENTS: usize = 100;

/// The facts of a server.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct ServerFacts {
    /// Whether an agent has committed: it reported its host completely.
    pub commissioned: bool,
    /// Whether the backhaul is open.
    pub is_connected: bool,
    /// Since when.
    pub connected_at: Option<Timestamp>,
    /// When the agent was last seen.
    pub last_seen_at: Option<Timestamp>,
    /// The address that it connected from.
    pub remote_ip: Option<String>,
    /// The version of the agent, as it last reported it.
    pub agent_version: Option<String>,
    /// The family of its system.
    pub platform: Option<String>,
    /// The name of its system.
    pub os_name: Option<String>,
    /// Its version.
    pub os_version: Option<String>,
    /// Processors.
    pub cpu_logical_cores: Option<i64>,
    /// Bytes.
    pub physical_memory: Option<i64>,
    /// The load that the agent last sent.
    pub load: Option<f64>,
    /// The account that its agent reported as the only one that it can use.
    pub reported_username: Option<String>,
    /// When a second agent with this server's identity was last refused; `None`: not recently.
    pub identity_conflict_at: Option<Timestamp>,
    /// Audit events that D1 does not have yet.
    pub events: Vec<PendingEvent>,
    /// When the agent last sent the load. Absent once that load is dropped.
    pub load_at: Option<Timestamp>,
    /// Whether the load in D1 is out of date and is cleared.
    pub drops_load: bool,
    /// Counts the changes.
    pub revision: i64,
    /// The revision that D1 has.
    pub flushed: i64,
}

impl ServerFacts {
    /// The facts of a new object, whose server has a revision in D1 already.
    pub fn beginning(commissioned: bool, revision: i64) -> Self {
        Self { commissioned, revision, flushed: revision, ..Self::default() }
    }

    /// Adds an audit event to the current change. While D1 does not answer, only the first
    /// `MAX_EVENTS` are kept.
    pub fn note(&mut self, event: Event) {
        if self.events.len() < MAX_EVENTS {
            self.events.push(PendingEvent { revision: self.revision + 1, event });
        }
    }

    /// The texts about the host for the search: in lower case, one on each line.
    pub fn folded(&self) -> String {
        let texts = [&self.platform, &self.os_name, &self.os_version, &self.agent_version];
        texts.into_iter().flatten().map(|text| text.to_lowercase()).collect::<Vec<_>>().join("\n")
    }

    /// Takes an agent's facts about itself and its host. Missing ones stay as they were. Once an
    /// agent has committed, its server is commissioned (agent-protocol 2.1).
    pub fn learn(&mut self, told: HostFacts, is_commit: bool, now: Timestamp) {
        fn set<T>(field: &mut Option<T>, value: Option<T>) {
            if value.is_some() {
                *field = value;
            }
        }
        self.commissioned |= is_commit;
        set(&mut self.platform, told.platform);
        set(&mut self.os_name, told.os_name);
        set(&mut self.os_version, told.os_version);
        set(&mut self.cpu_logical_cores, told.cpu_logical_cores);
        set(&mut self.physical_memory, told.physical_memory);
        // A complete report (commit or sync) has the version. If it names no account, the agent can
        // use any.
        if told.version.is_some() || told.default_username.is_some() {
            self.reported_username = told.default_username;
        }
        set(&mut self.agent_version, told.version);
        if told.load.is_some() {
            self.set_load(told.load, now);
        }
    }

    /// Takes the host's load, or drops it.
    pub fn set_load(&mut self, load: Option<f64>, now: Timestamp) {
        (self.load, self.load_at, self.drops_load) = (load, load.map(|_| now), load.is_none());
    }
}
