//! What the machine hears, and what it has done.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::call::{Answer, Ask, Create, Identity, OfServer, Refusal};
use super::server_facts::ServerFacts;
use super::stored_command::StoredCommand;
use crate::audit::Event as AuditEvent;
use crate::command_object::Output;
use crate::features::Features;
use crate::lifecycle::{Denial, Lifecycle};
use crate::rights::Rights;
use crate::time::Timestamp;
use crate::wire::ToAgent;

/// The number of a call that is to be answered.
pub type Ticket = u64;

/// The number of a request to D1.
pub type RequestId = u64;

/// The kinds of an agent's connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Commands go out over it.
    Backhaul,
    /// The agent asks for it, and nothing but pings goes over it.
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

/// The moment of a step, and the sockets that the runtime has then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scene {
    /// The time.
    pub now: Timestamp,
    /// The number of the newest backhaul connection, and what its agent can do.
    pub backhaul: Option<(u64, Features)>,
    /// The number of the newest control connection.
    pub control: Option<u64>,
}

/// What happens to a server.
#[derive(Clone, Debug)]
pub enum Event {
    /// The Worker asks something.
    Call {
        /// To be answered by [`Effect::Reply`].
        ticket: Ticket,
        /// What it asks.
        ask: Box<Ask>,
    },
    /// An agent connects.
    Connect {
        /// To be answered by [`Effect::Accept`] or [`Effect::Reply`].
        ticket: Ticket,
        /// Who it says that it is.
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
    /// A message did not leave, as its connection is gone. In the turn of the step that sent it.
    NotSent {
        /// The connection.
        generation: u64,
        /// The command as it was before, if the message was one.
        before: Option<Box<StoredCommand>>,
    },
    /// The alarm went off.
    Alarm,
    /// D1 answered, or failed: then whether it did what it was asked is not known.
    Answered {
        /// The request.
        id: RequestId,
        /// The answer, or why there is none.
        answer: Result<FromD1, String>,
    },
    /// D1 answered after [`Event::Answered`] said that it had failed.
    Late(Box<ToD1>),
    /// The time of an [`Effect::Later`] has come.
    TimeUp(Ticket),
}

/// What is to be done, in this order, after what the step stored.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Send a message; if it does not leave, [`Event::NotSent`] follows at once.
    Send {
        /// The kind of connection.
        kind: Kind,
        /// Its number.
        generation: u64,
        /// The message.
        message: ToAgent,
        /// The command in it as it was before.
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
    /// Take the connection of an [`Event::Connect`].
    Accept {
        /// Which.
        ticket: Ticket,
        /// The kind of connection.
        kind: Kind,
        /// Its number.
        generation: u64,
        /// What its agent can do.
        features: Features,
    },
    /// Answer a call, once.
    Reply(Ticket, Answer),
    /// Have the alarm go off at that time at the latest.
    Alarm(Timestamp),
    /// [`Event::TimeUp`] at a time, in place of an earlier one of this call. If that time has come,
    /// the event follows in this turn, behind [`Event::NotSent`].
    Later(Ticket, Timestamp),
    /// Ask D1.
    Ask(RequestId, Box<ToD1>),
    /// Have a workspace's audit events sealed.
    Seal(i64),
    /// Tell the operator of trouble.
    Log {
        /// The name of the line.
        event: &'static str,
        /// What it is about, beside the server: an object.
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
    /// Change a server, and find it after that.
    Change(OfServer, ServerChange),
    /// Insert a command.
    Insert {
        /// What was asked for.
        create: Box<Create>,
        /// Its life. If it can go out at once, as delivered: so it never counts as waiting.
        life: Lifecycle,
    },
    /// Find what the requesters of commands may do.
    FindRights(Vec<StoredCommand>),
    /// Write what D1 lacks.
    Tell {
        /// What it lacks.
        lacking: Vec<Lacking>,
        /// Whether each is written alone, so that one that D1 refuses holds up no other.
        is_one_by_one: bool,
    },
    /// Insert commands that D1 may have lost.
    Restore(Vec<StoredCommand>),
    /// Delete restored commands that are withdrawn.
    Unrestore(Vec<StoredCommand>),
}

/// What is changed of a server.
#[derive(Clone, Debug)]
pub enum ServerChange {
    /// Nothing: it is looked at.
    Nothing,
    /// Its agent gets another key.
    Key {
        /// The user who wants it.
        by: i64,
        /// The key's hash.
        key_hash: String,
        /// The key's fingerprint.
        fingerprint: String,
        /// When that was asked for.
        at: Timestamp,
        /// What the audit log tells of it.
        event: Box<AuditEvent>,
    },
    /// It is deleted.
    Delete {
        /// The user who wants it; `None`: its own agent, or the service.
        by: Option<i64>,
        /// Whether it is deleted only if it is still pending.
        only_pending: bool,
        /// What the audit log tells of it.
        event: Box<AuditEvent>,
    },
}

/// Something that D1 lacks.
#[derive(Clone, Debug)]
pub enum Lacking {
    /// The latest of a command.
    Command(Box<StoredCommand>, Output),
    /// That a command was withdrawn, and how many stored bytes are not counted any more.
    Withdrawal {
        /// The workspace.
        workspace_id: i64,
        /// The command.
        id: Uuid,
        /// Bytes.
        bytes: u64,
    },
    /// What is known of the server.
    Server {
        /// The workspace.
        workspace_id: i64,
        /// The server.
        server: Uuid,
        /// What is known of it.
        facts: Box<ServerFacts>,
    },
}

/// What D1 says of a server.
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
    /// The last revision of the object's reports.
    pub revision: i64,
}

/// What D1 answers.
#[derive(Clone, Debug)]
pub enum FromD1 {
    /// To [`ToD1::Find`] and [`ToD1::Change`]: the server as it is now; `None`: there is none.
    Server(Option<Found>),
    /// To [`ToD1::Insert`]: why nothing was inserted, if so.
    Inserted(Option<Refusal>),
    /// To [`ToD1::FindRights`]: the rights in the order of the commands. `None`: the workspace is
    /// deleted, and nothing may go out unless it is undeleted.
    Rights(Option<Vec<Result<Rights, Denial>>>),
    /// To [`ToD1::Tell`]: what became of each.
    Told(Vec<Result<(), String>>),
    /// To [`ToD1::Restore`] and [`ToD1::Unrestore`]: it is done.
    Restored,
}
