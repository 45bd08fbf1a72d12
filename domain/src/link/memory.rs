//! The work in progress in the machine's memory: waiting calls, changes of the server, requests to
//! D1. A crash loses all of it.

use uuid::Uuid;

use super::call::{
    ClaimedIdentity, Create, FollowOutput, IdempotencyKey, ReadLiveFields, Refusal, Report,
    ServerLocation,
};
use super::event::{Answer, BatchNotice, ConnectionKind, ServerChange, Ticket};
use super::state::Resync;
use super::stored_command::StoredCommand;
use crate::agent::wire::Script;
use crate::audit::event::Source;
use crate::time::Timestamp;

/// A call that waits for its reply.
#[derive(Debug)]
pub(super) struct WaitingCall {
    /// When the call stops waiting; `None`: it has no time limit.
    pub until: Option<Timestamp>,
    pub waits_for: WaitsFor,
}

/// How long a call waits.
#[derive(Debug)]
pub(super) enum WaitsFor {
    /// Until D1 has inserted the command of this call.
    Recording(Recording),
    /// Until the shell has sent the command of this call. The command must be delivered now or
    /// refused.
    SendOutcome(Recording, Box<StoredCommand>),
    /// Until an earlier call with the same Idempotency-Key is answered. If the earlier call is
    /// given up, this call takes its place.
    FirstAnswer(IdempotencyKey, Option<Box<Create>>),
    /// Until another call has recorded this command.
    Recorded(ReadLiveFields),
    /// Until the command ends.
    End(Uuid, AfterWait),
    /// Until the last output arrives: the agent reported the end first (agent-protocol 4.1).
    Output(Uuid, AfterWait),
    /// Until D1 has the command's end, or has deleted the withdrawn command.
    D1Copy(Uuid, AfterWait),
    /// Until the command has new output for a follower. The follower gets a reply at this time at
    /// the latest.
    NextOutput(FollowOutput, Timestamp),
    /// Until the agent at the older connection, which has this number, answers a ping.
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
    /// The script that it runs, if the call has it.
    pub script: Option<Script>,
}

/// The reply to a call when its wait ends.
#[derive(Debug)]
pub(super) enum AfterWait {
    /// Reply with the new command, and store the reply for its Idempotency-Key.
    Created(Option<IdempotencyKey>, Box<StoredCommand>),
    /// Reply with the live fields.
    Live,
    /// Refuse the call.
    Refuse(Refusal),
    /// A crash lost the first request with this key. Reply with the command that the request
    /// created. If it created no command, refuse with [`Refusal::KeyInUse`].
    Recovered(IdempotencyKey),
    /// Reply to a follower with the end of the stream.
    EndStream(FollowOutput),
}

/// What happens to the kill of a command whose agent is not connected.
#[derive(Clone, Copy, Debug)]
pub(super) enum Disconnected {
    /// The call is refused.
    Refuse,
    /// The agent gets the kill when it connects.
    Wait,
}

impl WaitingCall {
    /// The reply if the object is wiped.
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

    /// The hash of the Idempotency-Key whose response this call will store.
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

    /// The hash of the Idempotency-Key whose first response resumes this call.
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

/// A change of the server. D1 gets the changes one after the other.
#[derive(Debug)]
pub(super) struct QueuedChange {
    pub of: ServerLocation,
    pub change: ServerChange,
    pub then: AfterChange,
}

/// What the machine does after D1 has answered a change.
#[derive(Debug)]
pub(super) enum AfterChange {
    /// Answer the call.
    Reply(Ticket),
    /// Answer the call: done if D1 has this hash of a key of the agent, otherwise a refusal.
    ReplyIfKey(Ticket, String),
    /// Verify the agent, which connects with the key that the change makes the only one.
    Connect(Box<UnverifiedCall>),
    /// Answer the call: done if D1 has deleted the server, otherwise a refusal.
    ReplyIfDeleted(Ticket),
    /// Answer the call: done if D1 has the server, otherwise a refusal.
    ReplyIfUndeleted(Ticket),
    /// Begin a resync, and reply to the call.
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
            | Self::ReplyIfUndeleted(ticket)
            | Self::BeginResync(ticket) => Some(*ticket),
            Self::Connect(call) => Some(call.ticket()),
            Self::Nothing => None,
        }
    }
}

/// D1's answer, or why there is none.
pub(super) type D1Result = Result<Answer, String>;

/// A request to D1 that has no answer yet: what the machine does with the answer.
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
        /// The notification to the command's batch.
        notice: Option<Box<BatchNotice>>,
    },
    Withdrawal {
        id: Uuid,
        revision: i64,
    },
    /// The facts of the server, by their revision.
    Server(i64),
}
