//! The work that the machine has under way: waiting calls, changes of the server, requests to D1.
//! A crash loses all of it.

use uuid::Uuid;

use super::call::{
    ClaimedIdentity, Create, FollowOutput, IdempotencyKey, ReadLiveFields, Refusal, Report,
    ServerLocation,
};
use super::event::{ConnectionKind, D1Answer, ServerChange, Ticket};
use super::state::Resync;
use super::stored_command::StoredCommand;
use crate::audit::Source;
use crate::time::Timestamp;

/// A call that waits for its answer.
#[derive(Debug)]
pub(super) struct WaitingCall {
    /// When it stops waiting; `None`: it has no time limit.
    pub until: Option<Timestamp>,
    pub waits_for: WaitsFor,
}

#[derive(Debug)]
pub(super) enum WaitsFor {
    /// D1 inserts the command of this call.
    Recording(Recording),
    /// The shell sends the command of this call. The command must be delivered now or refused.
    SendOutcome(Recording, Box<StoredCommand>),
    /// An earlier call with the same Idempotency-Key gets its answer. If that call gets none, this
    /// call takes its turn.
    FirstAnswer(IdempotencyKey, Option<Box<Create>>),
    /// Another call finishes recording this command.
    Recorded(ReadLiveFields),
    /// The command ends.
    End(Uuid, AfterWait),
    /// The agent reported the end before the last output, which arrives (agent-protocol 4.1).
    Output(Uuid, AfterWait),
    /// D1 has the command's end, or has deleted the withdrawn command.
    D1Copy(Uuid, AfterWait),
    /// The command has new output for a follower. The follower gets an answer by this time.
    NextOutput(FollowOutput, Timestamp),
    /// The agent at the older connection, which has this number, answers a ping.
    Pong(u64, Box<UnverifiedCall>),
}

/// A new command that the object has stored and that D1 is asked to insert.
#[derive(Debug)]
pub(super) struct Recording {
    pub id: Uuid,
    pub workspace_id: i64,
    pub key: Option<IdempotencyKey>,
    /// Seconds that the client waits for the command's end.
    pub wait: Option<u32>,
    /// Whether the command must be delivered now or refused.
    pub must_deliver_now: bool,
    /// Whether D1 inserts it as already delivered.
    pub is_inserted_as_delivered: bool,
}

/// How a call gets its answer when its wait ends.
#[derive(Debug)]
pub(super) enum AfterWait {
    /// Answer with the new command, and store the answer for its Idempotency-Key.
    Created(Option<IdempotencyKey>, Box<StoredCommand>),
    /// Answer with the live fields.
    Live,
    /// Refuse the call.
    Refuse(Refusal),
    /// A crash lost the first request with this key. Answer with the command that the request
    /// created, or refuse with [`Refusal::KeyInUse`] if it created none.
    Recovered(IdempotencyKey),
    /// Answer a follower with the end of the stream.
    EndStream(FollowOutput),
}

impl WaitingCall {
    /// The answer if the object is wiped.
    pub(super) fn refusal(&self) -> Refusal {
        match &self.waits_for {
            WaitsFor::FirstAnswer(_, None) => Refusal::NotFound,
            WaitsFor::Recording(_) | WaitsFor::SendOutcome(..) | WaitsFor::FirstAnswer(..) => {
                Refusal::NoServer
            }
            WaitsFor::Pong(..) => Refusal::InvalidAgent,
            WaitsFor::End(_, then) | WaitsFor::Output(_, then) | WaitsFor::D1Copy(_, then) => {
                match then {
                    AfterWait::Created(..) => Refusal::NoServer,
                    AfterWait::Refuse(refusal) => *refusal,
                    AfterWait::Live | AfterWait::Recovered(_) | AfterWait::EndStream(_) => {
                        Refusal::NotFound
                    }
                }
            }
            WaitsFor::Recorded(_) | WaitsFor::NextOutput(..) => Refusal::NotFound,
        }
    }

    /// The command whose changes resume this call.
    pub(super) fn awaited_command(&self) -> Option<Uuid> {
        match &self.waits_for {
            WaitsFor::Recorded(ReadLiveFields { id, .. })
            | WaitsFor::End(id, _)
            | WaitsFor::Output(id, _)
            | WaitsFor::D1Copy(id, _)
            | WaitsFor::NextOutput(FollowOutput { id, .. }, _) => Some(*id),
            WaitsFor::Recording(_)
            | WaitsFor::SendOutcome(..)
            | WaitsFor::FirstAnswer(..)
            | WaitsFor::Pong(..) => None,
        }
    }

    /// The hash of the Idempotency-Key whose answer this call will store.
    pub(super) fn key_to_answer(&self) -> Option<&str> {
        let key = match &self.waits_for {
            WaitsFor::Recording(recording) | WaitsFor::SendOutcome(recording, _) => {
                recording.key.as_ref()
            }
            WaitsFor::End(_, then) | WaitsFor::Output(_, then) | WaitsFor::D1Copy(_, then) => {
                match then {
                    AfterWait::Created(key, _) => key.as_ref(),
                    AfterWait::Recovered(key) => Some(key),
                    _ => None,
                }
            }
            _ => None,
        };
        key.map(|key| key.hash.as_str())
    }

    /// The hash of the Idempotency-Key whose first answer resumes this call.
    pub(super) fn awaited_key(&self) -> Option<&str> {
        match &self.waits_for {
            WaitsFor::FirstAnswer(key, _) => Some(&key.hash),
            _ => None,
        }
    }

    /// The number of the connection whose pong resumes this call.
    pub(super) fn awaited_pong(&self) -> Option<u64> {
        match self.waits_for {
            WaitsFor::Pong(generation, _) => Some(generation),
            _ => None,
        }
    }
}

/// A call of an agent whose claimed identity is not verified yet.
#[derive(Debug)]
pub(super) struct UnverifiedCall {
    pub claimed: ClaimedIdentity,
    pub source: Source,
    pub then: AfterVerification,
}

/// What the agent asks for.
#[derive(Debug)]
pub(super) enum AfterVerification {
    Report(Ticket, Report),
    Connect {
        ticket: Ticket,
        kind: ConnectionKind,
        /// Whether the agent at the older connection was already pinged.
        was_pinged: bool,
    },
}

impl UnverifiedCall {
    pub(super) fn ticket(&self) -> Ticket {
        match &self.then {
            AfterVerification::Report(ticket, _) | AfterVerification::Connect { ticket, .. } => {
                *ticket
            }
        }
    }
}

/// A change of the server. Changes go to D1 one after the other.
#[derive(Debug)]
pub(super) struct QueuedChange {
    pub of: ServerLocation,
    pub change: ServerChange,
    pub then: AfterChange,
}

/// What follows when D1 has answered a change.
#[derive(Debug)]
pub(super) enum AfterChange {
    /// Answer the call.
    Reply(Ticket),
    /// Answer the call: done if D1 has this hash of the agent's key, otherwise a refusal.
    ReplyIfKey(Ticket, String),
    /// Answer the call: done if D1 has deleted the server, otherwise a refusal.
    ReplyIfDeleted(Ticket),
    /// Begin a resync, and answer the call.
    BeginResync(Ticket),
    /// No call waits for the change.
    Nothing,
}

impl AfterChange {
    /// The waiting call.
    pub(super) fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Reply(ticket)
            | Self::ReplyIfKey(ticket, _)
            | Self::ReplyIfDeleted(ticket)
            | Self::BeginResync(ticket) => Some(*ticket),
            Self::Nothing => None,
        }
    }
}

/// D1's answer, or why there is none.
pub(super) type D1Result = std::result::Result<D1Answer, String>;

/// A request to D1 that has no answer yet: what the answer is for.
#[derive(Debug)]
pub(super) enum PendingRequest {
    /// Insert the command of this call, which waits as [`WaitsFor::Recording`].
    Insert(Ticket),
    /// Check the permission for these commands.
    CheckPermissions(Vec<StoredCommand>),
    /// Write these entries of the outbox.
    Flush(Vec<FlushedEntry>),
    /// Make the first of the queued changes.
    Change,
    /// Verify an agent's identity.
    VerifyAgent(Box<UnverifiedCall>),
    /// Restore these commands.
    Restore(Resync, Vec<StoredCommand>),
    /// Nothing waits for the answer.
    Unawaited,
}

/// An entry of the outbox that a flush writes, as of a revision.
#[derive(Debug)]
pub(super) enum FlushedEntry {
    Command {
        id: Uuid,
        revision: i64,
        /// Whether audit events are written with it.
        has_events: bool,
    },
    Withdrawal {
        id: Uuid,
        revision: i64,
    },
    /// The facts of the server, by their revision.
    Server(i64),
}
