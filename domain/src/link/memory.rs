//! What the machine remembers of work under way: waiting calls, changes of the server, requests to
//! D1. A crash loses it.

use uuid::Uuid;

use super::call::{Create, Follow, Identity, Key, Live, OfServer, Refusal, Report};
use super::event::{FromD1, Kind, ServerChange, Ticket};
use super::state::Resync;
use super::stored_command::StoredCommand;
use crate::audit::Source;
use crate::time::Timestamp;

/// A waiting call.
#[derive(Debug)]
pub(super) struct Wait {
    /// When it stops waiting; `None`: not by time.
    pub until: Option<Timestamp>,
    pub what: What,
}

/// What a call waits for.
#[derive(Debug)]
pub(super) enum What {
    /// D1's answer to the insertion of its command.
    Recording(Recording),
    /// The outcome of sending its command, which must be delivered immediately or not at all.
    Sent(Recording, Box<StoredCommand>),
    /// The answer of an earlier call with the same Idempotency-Key, or this call's turn if that
    /// call gets none.
    Twin(Key, Option<Box<Create>>),
    /// The end of the recording of a command by another call.
    Recorded(Live),
    /// A command's end.
    End(Uuid, Then),
    /// Output that its command's end has overtaken (agent-protocol 4.1).
    Output(Uuid, Then),
    /// D1's copy: until it has a command's end, or a withdrawn command is deleted from it.
    D1(Uuid, Then),
    /// The next output for a follower, who is answered by this time.
    Follow(Follow, Timestamp),
    /// A pong of the older connection, which has this number.
    Pong(u64, Box<Identified>),
}

/// A call whose command is being recorded: inserted into D1.
#[derive(Debug)]
pub(super) struct Recording {
    pub id: Uuid,
    pub workspace_id: i64,
    pub key: Option<Key>,
    /// Seconds to wait for the command's end.
    pub wait: Option<u32>,
    /// Whether the command must be delivered immediately or not at all.
    pub must_go: bool,
    /// Whether it is inserted as delivered.
    pub is_sent: bool,
}

/// How a call goes on after its wait.
#[derive(Debug)]
pub(super) enum Then {
    /// Answers with the new command, also to other calls with its Idempotency-Key.
    Created(Option<Key>, Box<StoredCommand>),
    /// Answers with the live fields.
    Live,
    /// Refuses the call.
    Refuse(Refusal),
    /// Answers with the command that a lost request with this key created. If there is none,
    /// refuses the call with `KeyTaken`.
    Made(Key),
    /// Answers a follower with the end.
    Followed(Follow),
}

impl Wait {
    /// The answer to a call when the object is wiped.
    pub(super) fn refusal(&self) -> Refusal {
        match &self.what {
            What::Twin(_, None) => Refusal::NotFound,
            What::Recording(_) | What::Sent(..) | What::Twin(..) => Refusal::NoServer,
            What::Pong(..) => Refusal::InvalidAgent,
            What::End(_, then) | What::Output(_, then) | What::D1(_, then) => match then {
                Then::Created(..) => Refusal::NoServer,
                Then::Refuse(refusal) => *refusal,
                Then::Live | Then::Made(_) | Then::Followed(_) => Refusal::NotFound,
            },
            What::Recorded(_) | What::Follow(..) => Refusal::NotFound,
        }
    }

    pub(super) fn command(&self) -> Option<Uuid> {
        match &self.what {
            What::Recorded(Live { id, .. })
            | What::End(id, _)
            | What::Output(id, _)
            | What::D1(id, _)
            | What::Follow(Follow { id, .. }, _) => Some(*id),
            What::Recording(_) | What::Sent(..) | What::Twin(..) | What::Pong(..) => None,
        }
    }

    /// The Idempotency-Key whose answer this call will store.
    pub(super) fn answers_to(&self) -> Option<&str> {
        let key = match &self.what {
            What::Recording(recording) | What::Sent(recording, _) => recording.key.as_ref(),
            What::End(_, then) | What::Output(_, then) | What::D1(_, then) => match then {
                Then::Created(key, _) => key.as_ref(),
                Then::Made(key) => Some(key),
                _ => None,
            },
            _ => None,
        };
        key.map(|key| key.hash.as_str())
    }

    /// The key whose answer the call waits for.
    pub(super) fn wants(&self) -> Option<&str> {
        match &self.what {
            What::Twin(key, _) => Some(&key.hash),
            _ => None,
        }
    }

    /// The number of the connection whose pong it waits for.
    pub(super) fn connection(&self) -> Option<u64> {
        match self.what {
            What::Pong(generation, _) => Some(generation),
            _ => None,
        }
    }
}

/// An agent's call, and how it goes on when the agent's identity is verified.
#[derive(Debug)]
pub(super) struct Identified {
    pub identity: Identity,
    pub source: Source,
    pub then: ThenAgent,
}

#[derive(Debug)]
pub(super) enum ThenAgent {
    /// Takes its report.
    Reports(Ticket, Report),
    /// Accepts its connection.
    Connects {
        ticket: Ticket,
        kind: Kind,
        /// Whether the older connection was already pinged.
        was_asked: bool,
    },
}

impl Identified {
    /// The call.
    pub(super) fn ticket(&self) -> Ticket {
        match &self.then {
            ThenAgent::Reports(ticket, _) | ThenAgent::Connects { ticket, .. } => *ticket,
        }
    }
}

/// A change of the server, and what follows when D1 has answered.
#[derive(Debug)]
pub(super) struct Change {
    pub of: OfServer,
    pub what: ServerChange,
    pub then: ThenChanged,
}

#[derive(Debug)]
pub(super) enum ThenChanged {
    /// The call is answered.
    Done(Ticket),
    /// The call is answered: done if the agent's key has this hash.
    HasKey(Ticket, String),
    /// The call is answered: done if the server is gone.
    IsGone(Ticket),
    /// A resync begins, and the call is answered.
    Resync(Ticket),
    /// No call waits for it.
    Nobody,
}

impl ThenChanged {
    /// The call, if one waits.
    pub(super) fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Done(ticket)
            | Self::HasKey(ticket, _)
            | Self::IsGone(ticket)
            | Self::Resync(ticket) => Some(*ticket),
            Self::Nobody => None,
        }
    }
}

/// D1's answer, or why there is none.
pub(super) type FromD1Result = std::result::Result<FromD1, String>;

/// What a request to D1 is for.
#[derive(Debug)]
pub(super) enum Asked {
    /// Inserts the command of this call, which waits as [`What::Recording`].
    Insert(Ticket),
    /// Checks the permission for these commands.
    Rights(Vec<StoredCommand>),
    /// Writes these entries, which D1 lacks.
    Tell(Vec<Told>),
    /// Makes the first of the changes.
    Change,
    /// Verifies an agent's identity.
    Find(Box<Identified>),
    /// Restores these commands.
    Restore(Resync, Vec<StoredCommand>),
    /// Nothing depends on the answer.
    Nothing,
}

/// An entry of a flush.
#[derive(Debug)]
pub(super) enum Told {
    /// A command, by its revision.
    Command {
        id: Uuid,
        revision: i64,
        /// Whether audit events go along.
        has_events: bool,
    },
    /// The withdrawal of a command, by its revision.
    Withdrawal { id: Uuid, revision: i64 },
    /// The facts of the server, by their revision.
    Server(i64),
}
