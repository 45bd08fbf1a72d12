//! The machine's input (events) and output (effects), and its requests to D1.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::call::{Answer, Ask, Create, Identity, OfServer, Refusal};
use super::server_facts::ServerFacts;
use super::stored_command::StoredCommand;
use crate::audit::Event as AuditEvent;
use crate::command_end::Denial;
use crate::command_object::Output;
use crate::features::Features;
use crate::lifecycle::Lifecycle;
use crate::rights::Rights;
use crate::time::Timestamp;
use crate::wire::ToAgent;

/// How long D1 may take to answer. The shell then reports the request as failed.
pub const D1_WITHIN: Duration = Duration::from_secs(30);

/// Identifies a call, from the event to the answer.
pub type Ticket = u64;

/// Identifies a request to D1, from the effect to the answer.
pub type RequestId = u64;

/// The kinds of an agent's connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Commands are sent over it.
    Backhaul,
    /// Opened by agents that expect it. Only pings are sent over it.
    Control,
}

impl Kind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Backhaul, Self::Control];

    /// The name in paths, and the tag of its sockets.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Backhaul => "backhaul",
            Self::Control => "control",
        }
    }
}

/// The time of a step, and the sockets that the runtime has at that time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scene {
    /// The time.
    pub now: Timestamp,
    /// The number of the newest backhaul connection, and its agent's features.
    pub backhaul: Option<(u64, Features)>,
    /// The number of the newest control connection.
    pub control: Option<u64>,
}

/// An input of the machine.
#[derive(Clone, Debug)]
pub enum Event {
    /// The Worker calls.
    Call {
        /// Answered by [`Effect::Reply`].
        ticket: Ticket,
        /// The request.
        ask: Box<Ask>,
    },
    /// An agent connects.
    Connect {
        /// Answered by [`Effect::Accept`] or [`Effect::Reply`].
        ticket: Ticket,
        /// The identity that the agent claims.
        identity: Identity,
        /// The kind of connection.
        kind: Kind,
        /// The request's id.
        request_id: Option<String>,
    },
    /// A connection ended.
    Closed(u64),
    /// The agent at a connection answered a ping.
    Pong(u64),
    /// An [`Effect::Send`] failed, as the connection is gone. Follows in the turn of the step that
    /// sent the message.
    NotSent {
        /// The connection.
        generation: u64,
        /// The command in the message, as it was before the step; `None` for other messages.
        before: Option<Box<StoredCommand>>,
    },
    /// The alarm went off.
    Alarm,
    /// D1 answered, or the request failed: then it is unknown whether D1 carried it out.
    Answered {
        /// The request.
        id: RequestId,
        /// The answer, or why there is none.
        answer: Result<FromD1, String>,
    },
    /// A request to D1 ended after [`Event::Answered`] had reported it as failed. D1 may have
    /// carried it out.
    Late(Box<ToD1>),
    /// The timer of an [`Effect::Later`] ran out.
    TimeUp(Ticket),
}

/// An output of the machine. The shell carries effects out after the step's writes: what needs no
/// waiting in the order of the effects, then the alarm, the answers to calls, and the requests to
/// D1.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Send a message. If that fails, [`Event::NotSent`] follows immediately.
    Send {
        /// The kind of connection.
        kind: Kind,
        /// Its number.
        generation: u64,
        /// The message.
        message: ToAgent,
        /// The command in the message, as it was before the step.
        before: Option<Box<StoredCommand>>,
    },
    /// Close all connections of a kind.
    Close {
        /// The kind.
        kind: Kind,
        /// The status code.
        code: u16,
        /// Why.
        reason: &'static str,
    },
    /// Accept the connection of an [`Event::Connect`].
    Accept {
        /// The call that connects.
        ticket: Ticket,
        /// The kind of connection.
        kind: Kind,
        /// Its number.
        generation: u64,
        /// Its agent's features.
        features: Features,
    },
    /// Answer a call. Each call gets one answer.
    Reply(Ticket, Answer),
    /// Set the alarm for this time, unless it goes off earlier.
    Alarm(Timestamp),
    /// Start the timer of a call, which ends with [`Event::TimeUp`]. It replaces the call's earlier
    /// timer. If its time has already come, the event follows in this turn, after any
    /// [`Event::NotSent`].
    Later(Ticket, Timestamp),
    /// Send a request to D1.
    Ask(RequestId, Box<ToD1>),
    /// Ask a workspace's sealer to seal its audit events.
    Seal(i64),
    /// Write a line to the log.
    Log {
        /// The line's `event` (docs/operations.md).
        event: &'static str,
        /// Further fields: a JSON object. The shell adds the server.
        about: Value,
        /// What went wrong.
        error: String,
    },
}

/// A request to D1.
#[derive(Clone, Debug)]
pub enum ToD1 {
    /// Find a server in a workspace that exists.
    Find {
        /// The workspace's slug.
        workspace: String,
        /// The server.
        server: Uuid,
    },
    /// Change a server, then find it.
    Change(OfServer, ServerChange),
    /// Insert a command.
    Insert {
        /// The request.
        create: Box<Create>,
        /// Its life. If it can be delivered immediately, it is inserted as delivered: so it never
        /// counts as waiting.
        life: Lifecycle,
    },
    /// Find the present rights of the commands' requesters.
    FindRights(Vec<StoredCommand>),
    /// Write what D1 lacks.
    Tell {
        /// The entries.
        lacking: Vec<Lacking>,
        /// Whether each entry is written alone, so that one that D1 refuses holds up no other.
        is_one_by_one: bool,
    },
    /// Insert commands that D1 may have lost.
    Restore(Vec<StoredCommand>),
    /// Delete restored commands that are withdrawn.
    Unrestore(Vec<StoredCommand>),
}

/// A change of a server.
#[derive(Clone, Debug)]
pub enum ServerChange {
    /// None: the server is only read.
    Nothing,
    /// Its agent gets another key.
    Key {
        /// The user who asked for it.
        by: i64,
        /// The key's hash.
        key_hash: String,
        /// The key's fingerprint.
        fingerprint: String,
        /// When it was asked for.
        at: Timestamp,
        /// Its audit event.
        event: Box<AuditEvent>,
    },
    /// It is deleted.
    Delete {
        /// The user who asked for it; `None`: the server's own agent, or the service.
        by: Option<i64>,
        /// Whether it is deleted only if it is still pending.
        only_pending: bool,
        /// Its audit event.
        event: Box<AuditEvent>,
    },
}

/// Something that D1 lacks.
#[derive(Clone, Debug)]
pub enum Lacking {
    /// The latest state of a command.
    Command(Box<StoredCommand>, Output),
    /// The withdrawal of a command.
    Withdrawal {
        /// The workspace.
        workspace_id: i64,
        /// The command.
        id: Uuid,
    },
    /// The latest facts of the server.
    Server {
        /// The workspace.
        workspace_id: i64,
        /// The server.
        server: Uuid,
        /// The facts.
        facts: Box<ServerFacts>,
    },
}

/// A server as D1 has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The workspace.
    pub workspace_id: i64,
    /// The server's name.
    pub name: String,
    /// The hash of its agent's key.
    pub key_hash: String,
    /// Whether an agent was here before.
    pub commissioned: bool,
    /// The revision of the object's facts that D1 has.
    pub revision: i64,
}

/// An answer of D1.
#[derive(Clone, Debug)]
pub enum FromD1 {
    /// To [`ToD1::Find`] and [`ToD1::Change`]: the server as it is now; `None`: there is none.
    Server(Option<Found>),
    /// To [`ToD1::Insert`]: `None` if the command was inserted, otherwise why not.
    Inserted(Option<Refusal>),
    /// To [`ToD1::FindRights`]: the rights in the order of the commands. `None`: the workspace is
    /// deleted, and nothing may be delivered until it is undeleted.
    Rights(Option<Vec<Result<Rights, Denial>>>),
    /// To [`ToD1::Tell`]: the result for each entry, in the order of the entries.
    Told(Vec<Result<(), String>>),
    /// To [`ToD1::Restore`] and [`ToD1::Unrestore`]: it is done.
    Restored,
}
