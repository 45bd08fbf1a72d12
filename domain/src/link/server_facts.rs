//! The facts of a server: the state of its host and its connection. The object stores them first,
//! and the outbox writes them to D1.

use serde::{Deserialize, Serialize};

use super::event_limit::EventLimit;
use super::stored_command::PendingEvent;
use crate::agent::wire::{HostFacts, HostPolicy};
use crate::audit::event::AuditEvent;
use crate::time::Timestamp;

/// Maximum number of a server's audit events that wait for D1.
const MAX_EVENTS: usize = 100;

/// An undeleted server skips this number of revisions in D1: updates from before the deletion that
/// arrive late are ignored. The object has far fewer changes that D1 does not have.
pub const UNDELETED_REVISIONS: i64 = 1_000_000;

/// The facts of a server.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct ServerFacts {
    /// Whether an agent has reported its host completely (agent-protocol 2.1).
    pub commissioned: bool,
    /// Whether the backhaul is open.
    pub is_connected: bool,
    /// When the last backhaul was opened.
    pub connected_at: Option<Timestamp>,
    /// When the agent was last seen.
    pub last_seen_at: Option<Timestamp>,
    /// The address from which the agent connected.
    pub remote_ip: Option<String>,
    /// The version of the agent.
    pub agent_version: Option<String>,
    /// The family of the host's operating system.
    pub platform: Option<String>,
    /// The name of the host's operating system.
    pub os_name: Option<String>,
    /// The version of the host's operating system.
    pub os_version: Option<String>,
    /// The number of logical processors.
    pub cpu_logical_cores: Option<i64>,
    /// The memory in bytes.
    pub physical_memory: Option<i64>,
    /// The load that the agent last sent.
    pub load: Option<f64>,
    /// The only account that the agent can use, as the agent reported it; `None`: any account.
    pub reported_username: Option<String>,
    /// The policy of the host; `None`: the agent does not report it.
    #[serde(default)]
    pub policy: Option<HostPolicy>,
    /// When a second agent with this server's identity was last refused; `None`: not recently.
    pub identity_conflict_at: Option<Timestamp>,
    /// Audit events about the server that D1 does not have yet.
    pub events: Vec<PendingEvent>,
    /// How many events the agent has caused in this hour.
    #[serde(default)]
    pub event_limit: EventLimit,
    /// When the agent last sent the load; `None`: `load` was cleared.
    pub load_at: Option<Timestamp>,
    /// Whether the next flush clears the load in D1.
    pub drops_load: bool,
    /// The number of changes.
    pub revision: i64,
    /// The revision that D1 has.
    pub flushed: i64,
}

impl ServerFacts {
    /// The facts of a new object, from the server's row in D1 with this revision. The object has no
    /// connection: if D1 has one, D1 was restored to an earlier time, and must learn that.
    pub fn beginning(commissioned: bool, is_connected: bool, flushed: i64) -> Self {
        let revision = flushed + i64::from(is_connected);
        Self { commissioned, revision, flushed, ..Self::default() }
    }

    /// Whether D1 lacks the latest change.
    pub fn is_pending(&self) -> bool {
        self.flushed < self.revision
    }

    /// Gives the pending changes a revision after the one that D1 has, if undeletions let D1 skip
    /// theirs. Events that D1 already had at the deletion are forgotten: only the answer was lost.
    pub fn continue_after(&mut self, in_d1: i64) {
        if self.revision < in_d1 {
            let at_deletion = self.flushed + (in_d1 - self.flushed).rem_euclid(UNDELETED_REVISIONS);
            self.events.retain(|event| event.revision > at_deletion);
            (self.revision, self.flushed) = (in_d1 + 1, in_d1);
            self.events.iter_mut().for_each(|event| event.revision = in_d1 + 1);
        }
    }

    /// Adds an audit event to the current change, unless the agent has caused too many of them: see
    /// `EventLimit`. If D1 is unavailable for long, only the first `MAX_EVENTS` events are kept.
    pub fn add_event(&mut self, event: AuditEvent) {
        self.add_joined_events(event.occurred_at);
        if let Some(event) = self.event_limit.admit(event) {
            self.push_event(event);
        }
    }

    /// Adds the joined events of an hour that is over to the current change.
    pub fn add_joined_events(&mut self, now: Timestamp) {
        if let Some(event) = self.event_limit.end_hour(now) {
            self.push_event(event);
        }
    }

    fn push_event(&mut self, event: AuditEvent) {
        if self.events.len() < MAX_EVENTS {
            self.events.push(PendingEvent { revision: self.revision + 1, event });
        }
    }

    /// The texts about the host that a search compares: in lower case, one text per line.
    pub fn folded(&self) -> String {
        let texts = [&self.platform, &self.os_name, &self.os_version, &self.agent_version];
        texts.into_iter().flatten().map(|text| text.to_lowercase()).collect::<Vec<_>>().join("\n")
    }

    /// The policy after a report. A complete report (commit or sync) has the version. If it has no
    /// policy, the agent does not report policies.
    pub fn policy_after(&self, reported: &HostFacts) -> Option<HostPolicy> {
        if reported.version.is_some() || reported.policy.is_some() {
            reported.policy.clone()
        } else {
            self.policy.clone()
        }
    }

    /// Stores what an agent reports about itself and its host. A missing value does not change.
    /// `is_commit`: the report is complete, so the server is commissioned (agent-protocol 2.1).
    pub fn learn(&mut self, reported: HostFacts, is_commit: bool, now: Timestamp) {
        fn set<T>(field: &mut Option<T>, value: Option<T>) {
            if value.is_some() {
                *field = value;
            }
        }
        self.commissioned |= is_commit;
        self.policy = self.policy_after(&reported);
        set(&mut self.platform, reported.platform);
        set(&mut self.os_name, reported.os_name);
        set(&mut self.os_version, reported.os_version);
        set(&mut self.cpu_logical_cores, reported.cpu_logical_cores);
        set(&mut self.physical_memory, reported.physical_memory);
        // A complete report (commit or sync) has the version. If the report names no account, the
        // agent can use any account.
        if reported.version.is_some() || reported.default_username.is_some() {
            self.reported_username = reported.default_username;
        }
        set(&mut self.agent_version, reported.version);
        if reported.load.is_some() {
            self.set_load(reported.load, now);
        }
    }

    /// Stores the host's load, or clears it.
    pub fn set_load(&mut self, load: Option<f64>, now: Timestamp) {
        (self.load, self.load_at, self.drops_load) = (load, load.map(|_| now), load.is_none());
    }
}
