//! What the machine remembers of what is under way: calls that wait, changes of the server, requests
//! to D1. A crash loses it.

use uuid::Uuid;

use super::call::{Create, Follow, Identity, Key, Live, OfServer, Refusal, Report};
use super::event::{FromD1, Kind, ServerChange, Ticket};
use super::state::Resync;
use super::stored_command::StoredCommand;
use crate::audit::Source;
use crate::time::Timestamp;

/// A call that is not answered yet.
#[derive(Debug)]
pub(super) struct Wait {
    /// Until when it waits at most; `None`: until it is answered.
    pub until: Option<Timestamp>,
    pub what: What,
}

/// What a call waits for.
#[derive(Debug)]
pub(super) enum What {
    /// D1, which has its command inserted.
    Recording(Box<Create>),
    /// Whether its command left, which must go at once or not at all.
    Sent(Box<Create>, Box<StoredCommand>),
    /// The answer of another call with the same Idempotency-Key, or else its own turn.
    Twin(Key, Option<Box<Create>>),
    /// The end of a recording.
    Recorded(Live),
    /// A command's end.
    End(Uuid, Then),
    /// Output that a command's end has overtaken (agent-protocol 4).
    Output(Uuid, Then),
    /// D1 to have a command's end, or not to have the command any more.
    D1(Uuid, Then),
    /// Output behind what a follower has.
    Follow(Follow, Timestamp),
    /// A sign of life of the older connection, which has this number.
    Pong(u64, Box<Identified>),
}

/// What follows when a call need not wait any more.
#[derive(Debug)]
pub(super) enum Then {
    /// The new command is shown, also to others with its key.
    Created(Option<Key>, Box<StoredCommand>),
    /// The live fields are shown.
    Live,
    /// The call is refused.
    Refuse(Refusal),
    /// A command that was made by a request that died is the answer to its key; or else this
    /// request's turn has come.
    Made(Key),
    /// The follower is told the end.
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

    /// The Idempotency-Key that the call will answer to.
    pub(super) fn answers_to(&self) -> Option<&str> {
        let key = match &self.what {
            What::Recording(create) | What::Sent(create, _) => create.key.as_ref(),
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

    /// The number of the connection whose sign of life it waits for.
    pub(super) fn connection(&self) -> Option<u64> {
        match self.what {
            What::Pong(generation, _) => Some(generation),
            _ => None,
        }
    }
}

/// An agent's call, and what follows when the agent is known to be this server's own.
#[derive(Debug)]
pub(super) struct Identified {
    pub identity: Identity,
    pub source: Source,
    pub then: ThenAgent,
}

#[derive(Debug)]
pub(super) enum ThenAgent {
    /// Its report is taken.
    Reports(Ticket, Report),
    /// Its connection is taken.
    Connects {
        ticket: Ticket,
        kind: Kind,
        /// Whether the older connection was asked whether it is alive.
        was_asked: bool,
    },
}

impl Identified {
    /// The call that is to be answered.
    pub(super) fn ticket(&self) -> Ticket {
        match &self.then {
            ThenAgent::Reports(ticket, _) | ThenAgent::Connects { ticket, .. } => *ticket,
        }
    }
}

/// A change of the server, and what follows when it is through.
#[derive(Debug)]
pub(super) struct Change {
    pub of: OfServer,
    pub what: ServerChange,
    pub then: ThenChanged,
}

#[derive(Debug)]
pub(super) enum ThenChanged {
    /// Nothing.
    Done(Ticket),
    /// The agent's key should have this hash.
    HasKey(Ticket, String),
    /// The server should be gone.
    IsGone(Ticket),
    /// D1 is told everything again.
    Resync(Ticket),
    /// Nobody waits for it.
    Nobody,
}

impl ThenChanged {
    /// The call that is to be answered.
    pub(super) fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Done(ticket) | Self::HasKey(ticket, _) | Self::IsGone(ticket) | Self::Resync(ticket) => Some(*ticket),
            Self::Nobody => None,
        }
    }
}

/// What D1 answered, or why it did not.
pub(super) type FromD1Result = std::result::Result<FromD1, String>;

/// What a request to D1 is for.
#[derive(Debug)]
pub(super) enum Asked {
    /// A command is inserted for this call.
    Insert {
        /// The call.
        ticket: Ticket,
        /// The command.
        id: Uuid,
        /// Whether D1 is told that it went out.
        is_sent: bool,
    },
    /// The rights to these commands are checked.
    Rights(Vec<StoredCommand>),
    /// D1 is told what it lacks.
    Tell(Vec<Told>),
    /// The first of the changes is under way.
    Change,
    /// Somebody is to be identified.
    Find(Box<Identified>),
    /// These commands are restored.
    Restore(Resync, Vec<StoredCommand>),
    /// Nothing depends on it.
    Nothing,
}

/// What D1 was told.
#[derive(Debug)]
pub(super) enum Told {
    /// The latest of a command.
    Command(Box<StoredCommand>),
    /// That a command was withdrawn, as it is stored.
    Withdrawal(Box<StoredCommand>),
    /// What is known of the server, by its revision.
    Server(i64),
}
