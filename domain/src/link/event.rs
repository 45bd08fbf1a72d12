//! The machine's input (events) and output (effects), and its requests to D1.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::call::{ClaimedIdentity, Create, LinkRequest, LinkResponse, Refusal, ServerLocation};
use super::server_facts::ServerFacts;
use super::stored_command::StoredCommand;
use crate::access::rights::CommandPermissions;
use crate::agent::features::Features;
use crate::agent::wire::{MessageToAgent, Script};
use crate::audit::event::AuditEvent;
use crate::command::end::Denial;
use crate::command::lifecycle::{Lifecycle, State};
use crate::command::object::Output;
use crate::command::script::ScriptRef;
use crate::time::Timestamp;

/// A request to D1 that takes longer than this counts as failed.
pub const D1_TIMEOUT: Duration = Duration::from_secs(30);

/// Identifies a call, from the event to the reply.
pub type Ticket = u64;

/// Identifies a request to D1, from the effect to the answer.
pub type RequestId = u64;

/// The two kinds of connections that an agent opens (agent-protocol 5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionKind {
    /// Carries commands.
    Backhaul,
    /// Carries only pings. Not all agents open it.
    Control,
}

impl ConnectionKind {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::Backhaul, Self::Control];

    /// The name in paths. It is also the tag of the sockets.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Backhaul => "backhaul",
            Self::Control => "control",
        }
    }
}

/// The input of a step in addition to its event: the time, and the sockets that the runtime has
/// open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepInput {
    /// The time of the step.
    pub now: Timestamp,
    /// The number of the newest backhaul connection, and the features of its agent.
    pub backhaul: Option<(u64, Features)>,
    /// The number of the newest control connection.
    pub control: Option<u64>,
}

/// An input of the machine.
#[derive(Clone, Debug)]
pub enum Event {
    /// The Worker calls.
    Call {
        /// The machine answers the call with [`Effect::Reply`].
        ticket: Ticket,
        /// The request message.
        message: Box<LinkRequest>,
    },
    /// An agent connects.
    Connect {
        /// The machine answers the call with [`Effect::Accept`] or [`Effect::Reply`].
        ticket: Ticket,
        /// The identity that the agent claims.
        identity: ClaimedIdentity,
        /// The kind of connection.
        kind: ConnectionKind,
        /// The id of the HTTP request, for the audit log.
        request_id: Option<String>,
    },
    /// The connection with this number ended.
    Closed(u64),
    /// The agent at the connection with this number answered a ping.
    Pong(u64),
    /// An [`Effect::Send`] failed, because the connection is closed. The event follows in the same
    /// turn as the step that sent the message.
    NotSent {
        /// The number of the connection.
        generation: u64,
        /// The command in the message, as it was before the step; `None`: another message.
        before: Option<Box<StoredCommand>>,
    },
    /// The alarm went off.
    Alarm,
    /// D1 answered, or the request failed. If it failed, D1 may have carried it out.
    Answered {
        /// The request.
        id: RequestId,
        /// The answer, or the error.
        answer: Result<Answer, String>,
    },
    /// A request to D1 ended after [`Event::Answered`] had reported it as failed. D1 may have
    /// carried it out.
    EndedLate(Box<Request>),
    /// The timer that [`Effect::StartCallTimer`] started ran out.
    CallTimer(Ticket),
}

/// An output of the machine. [`crate::turn`] has the order in which effects are carried out.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Send a message. If that fails, [`Event::NotSent`] follows immediately.
    Send {
        /// The kind of connection.
        kind: ConnectionKind,
        /// The number of the connection.
        generation: u64,
        /// The message.
        message: MessageToAgent,
        /// The command in the message, as it was before the step. [`Event::NotSent`] returns
        /// it.
        before: Option<Box<StoredCommand>>,
    },
    /// Close all connections of a kind.
    Close {
        /// The kind of connection.
        kind: ConnectionKind,
        /// The WebSocket status code.
        code: u16,
        /// The reason, for the agent.
        reason: &'static str,
    },
    /// Accept the connection of an [`Event::Connect`].
    Accept {
        /// The call that connects.
        ticket: Ticket,
        /// The kind of connection.
        kind: ConnectionKind,
        /// The number of the new connection.
        generation: u64,
        /// The features of its agent.
        features: Features,
    },
    /// Reply to a call. Each call gets exactly one reply.
    Reply(Ticket, LinkResponse),
    /// Set the alarm for this time, unless it goes off earlier.
    SetAlarm(Timestamp),
    /// Start the timer of a call, which ends with [`Event::CallTimer`]. A call has one timer: a
    /// new timer replaces the old timer. If the time has passed already, the event follows in the
    /// same turn, after any [`Event::NotSent`].
    StartCallTimer(Ticket, Timestamp),
    /// Send a request to D1.
    Request(RequestId, Box<Request>),
    /// Ask the sealer of the workspace with this id to seal its audit events.
    RequestSeal(i64),
    /// Notify the object of a batch about a target. The call may be lost.
    NotifyBatch(BatchNotice),
    /// Write a line to the log.
    Log {
        /// The `event` of the line (docs/operations.md).
        event: &'static str,
        /// More fields, as a JSON object. The shell adds the server.
        fields: Value,
        /// The error.
        error: String,
    },
}

/// A notification to the object of a batch about a target.
#[derive(Clone, PartialEq, Debug)]
pub struct BatchNotice {
    /// The workspace's id.
    pub workspace_id: i64,
    /// The batch's id.
    pub batch: Uuid,
    /// The target's server.
    pub server: Uuid,
    /// The state of the target's command in D1, its exit code, and when it reached the state.
    /// `None`: the target waited for the server, which is connected now.
    pub command: Option<(State, Option<i64>, Option<Timestamp>)>,
}

/// A request to D1.
#[derive(Clone, Debug)]
pub enum Request {
    /// Find a server in a workspace that exists.
    FindServer {
        /// The workspace's slug.
        workspace: String,
        /// The server's id.
        server: Uuid,
    },
    /// Change a server, then read it.
    ChangeServer(ServerLocation, ServerChange),
    /// Insert a command.
    InsertCommand {
        /// The request message.
        create: Box<Create>,
        /// The command's life. A command that can be delivered immediately is inserted as
        /// delivered, so it never counts as waiting.
        life: Lifecycle,
    },
    /// Read the current permissions of the commands' requesters, and the scripts of the commands.
    FindPermissions(Vec<StoredCommand>),
    /// Write entries of the outbox.
    Flush {
        /// The entries.
        entries: Vec<OutboxEntry>,
        /// Whether each entry is written in its own transaction, so that a rejected entry does not
        /// block other entries.
        is_one_by_one: bool,
    },
    /// Insert commands that D1 may have lost. Rows that D1 has do not change.
    Restore(Vec<StoredCommand>),
    /// Delete restored commands that the object does not have any more.
    DeleteRestored(Vec<StoredCommand>),
}

/// A change of a server.
#[derive(Clone, Debug)]
pub enum ServerChange {
    /// No change: the server is only read.
    ReadOnly,
    /// The server's agent gets another key.
    ReplaceKey {
        /// The id of the user who requested it.
        by: i64,
        /// Until when the old key stays valid, unless an agent connects with the new key first;
        /// `None`: it is refused immediately. The old key of a pending server always is.
        old_key_valid_until: Option<Timestamp>,
        /// The hash of the new key.
        key_hash: String,
        /// The fingerprint of the new key.
        fingerprint: String,
        /// When it was requested.
        at: Timestamp,
        /// Its audit event.
        event: Box<AuditEvent>,
    },
    /// The new key with this hash replaces the old key, if it is still the newest key.
    TakeNextKey(String),
    /// The server is deleted.
    Delete {
        /// The id of the user who requested it; `None`: the server's own agent, or the service.
        by: Option<i64>,
        /// Whether the server is deleted only if it is still pending, that is, not approved.
        only_pending: bool,
        /// When it is deleted.
        at: Timestamp,
        /// Until when it can be undeleted; `None`: it cannot.
        purge_at: Option<Timestamp>,
        /// Its audit event.
        event: Box<AuditEvent>,
    },
    /// The deleted server is restored, if it can be.
    Undelete {
        /// The id of the user who requested it.
        by: i64,
        /// Its name from now on.
        name: String,
        /// When it was requested.
        at: Timestamp,
        /// Its audit event.
        event: Box<AuditEvent>,
    },
}

/// An entry of the outbox: a change that D1 does not have yet.
#[derive(Clone, Debug)]
pub enum OutboxEntry {
    /// The latest state of a command.
    Command(Box<StoredCommand>, Output),
    /// The withdrawal of a command.
    Withdrawal {
        /// The workspace's id.
        workspace_id: i64,
        /// The command's id.
        id: Uuid,
    },
    /// The latest facts of the server.
    Server {
        /// The workspace's id.
        workspace_id: i64,
        /// The server's id.
        server: Uuid,
        /// Its facts.
        facts: Box<ServerFacts>,
    },
}

/// A new key of a server's agent, with which no agent has connected yet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NextKey {
    /// The hash of the new key.
    pub key_hash: String,
    /// Until then the old key is valid, too.
    pub old_key_valid_until: Timestamp,
}

/// The row of a server in D1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct D1Server {
    /// The workspace's id.
    pub workspace_id: i64,
    /// The server's name.
    pub name: String,
    /// The hash of its agent's key.
    pub key_hash: String,
    /// The key that replaces it when an agent connects with it.
    pub next_key: Option<NextKey>,
    /// Whether an agent has reported its host completely before (agent-protocol 2.1).
    pub commissioned: bool,
    /// Whether D1 has the agent as connected.
    pub is_connected: bool,
    /// The revision of the object's facts that D1 has.
    pub revision: i64,
}

/// What a permission check found.
#[derive(Clone, Debug, Default)]
pub struct Verdicts {
    /// The requesters' permissions or the reasons for refusals, in the order of the commands.
    pub permissions: Vec<Result<CommandPermissions, Denial>>,
    /// Scripts of the commands. It may lack some, because scripts are large, but never the script
    /// of the first command that is not refused.
    pub scripts: BTreeMap<ScriptRef, Script>,
    /// The bytes of output that each command may keep, in the order of the commands.
    pub output_limits: Vec<u64>,
}

/// An answer of D1 to a [`Request`].
#[derive(Clone, Debug)]
pub enum Answer {
    /// To [`Request::FindServer`] and [`Request::ChangeServer`]: the server as it is now;
    /// `None`: D1 has no such server.
    Server(Option<D1Server>),
    /// To [`Request::InsertCommand`]: the bytes of output that the inserted command may keep, or
    /// the refusal.
    Inserted(Result<Option<u64>, Refusal>),
    /// To [`Request::FindPermissions`]. `None`: the workspace is deleted, and nothing may be
    /// delivered until it is undeleted.
    Permissions(Option<Verdicts>),
    /// To [`Request::Flush`]: the result for each entry, in the order of the entries; and the
    /// batches that wait for this server, if it is connected.
    Flushed(Vec<Result<(), String>>, Vec<Uuid>),
    /// To [`Request::Restore`] and [`Request::DeleteRestored`]: success.
    Restored,
}
