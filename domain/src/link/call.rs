//! The calls into a server's object, typed: requests, answers and refusals. They travel as JSON.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::audit::{Event, Source};
use crate::command::{Command, Inputs, OnOffline, Origin};
use crate::error::{Code, Error, Kind};
use crate::features::{Feature, Features};
use crate::time::Timestamp;
use crate::wire::{Chunk, Fin, HostFacts};

/// A request to a server's object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Create a command and deliver it, now or when it is due. Answers with [`Created`].
    Create(Box<Create>),
    /// Repeat the first answer to a request with an Idempotency-Key, and wait for it if that
    /// request is under way. Answers with [`Created`].
    Replay(Key),
    /// Answer with the live fields of a command.
    Live(Live),
    /// Cancel a command. Answers with its live fields.
    Cancel(ByUser),
    /// Cancel the waiting commands that revoked login sessions created.
    CancelOf(RevokedSessions),
    /// Kill a command. Answers with its live fields.
    Kill(ByUser),
    /// Answer with a page of a command's output: [`ChunkPage`].
    Chunks(Chunks),
    /// Wait for the next output of a command. Answers with [`Followed`].
    Follow(Follow),
    /// Learn the identity of the server, which was just created.
    Adopt(OfServer),
    /// Learn the new name of the server.
    Rename(Rename),
    /// Replace the key of the server's agent, and refuse the old one.
    Rotate(Rotate),
    /// Delete the server: disconnect its agent and cancel waiting commands. Delivered commands and
    /// their output stay.
    Remove(Remove),
    /// Write everything to D1 again: D1 was restored to an earlier time.
    Resync(OfServer),
    /// Take an agent's report. The answer is for the agent.
    Agent(AgentCall),
    /// Delete commands that ended long ago. Answers with [`Forgotten`].
    Forget(Forget),
    /// Disconnect the agent and wipe the object: the server is gone.
    Sever,
    /// Disconnect the agent and refuse agents, or accept them again: the workspace was deleted or
    /// undeleted. Nothing is deleted.
    Suspend(bool),
}

/// A new name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rename {
    /// The name.
    pub name: String,
    /// When it was set. Of two names the later one counts.
    pub at: Timestamp,
}

/// The server's identity, for an object that may not know it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OfServer {
    /// The workspace's slug.
    pub workspace: String,
    /// The workspace.
    pub workspace_id: i64,
    /// The server.
    pub server: Uuid,
}

/// A new key for an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rotate {
    /// The server.
    pub of: OfServer,
    /// The user who asks for it.
    pub by: i64,
    /// The key's hash.
    pub key_hash: String,
    /// The key's fingerprint.
    pub fingerprint: String,
    /// When it was asked for.
    pub at: Timestamp,
    /// Its audit event.
    pub event: Event,
}

/// The deletion of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Remove {
    /// The server.
    pub of: OfServer,
    /// The user who asks for it; `None`: its own agent, or the service.
    pub by: Option<i64>,
    /// Whether the server is deleted only if it is still pending.
    pub only_pending: bool,
    /// Its audit event.
    pub event: Event,
}

/// A new command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Create {
    /// The workspace.
    pub workspace_id: i64,
    /// The command.
    pub command: Command,
    /// The credential of the request, and whether the command has inputs.
    pub origin: Origin,
    /// Its environment, standard input and working directory.
    pub inputs: Option<Inputs>,
    /// Seconds that it may run.
    pub timeout: i64,
    /// When to run it.
    pub scheduled_at: Option<Timestamp>,
    /// When to deliver it at the latest.
    pub expires_at: Option<Timestamp>,
    /// What to do if the agent is not connected.
    pub on_offline: OnOffline,
    /// Seconds to wait for its end.
    pub wait: Option<u32>,
    /// The Idempotency-Key.
    pub key: Option<Key>,
    /// Its audit event.
    pub event: Event,
}

/// A user's Idempotency-Key and the body that it came with, both hashed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Key {
    /// The user's id and the key.
    pub hash: String,
    /// The body.
    pub body: String,
}

/// The answer for a new command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Created {
    /// The command object.
    pub command: Map<String, Value>,
    /// Whether this is the first answer to the same request, repeated.
    pub replayed: bool,
}

impl Created {
    /// The command's id.
    ///
    /// # Errors
    /// The command object has none.
    pub fn id(&self) -> Result<Uuid, Error> {
        let id =
            self.command.get("id").and_then(Value::as_str).and_then(|id| Uuid::try_parse(id).ok());
        id.ok_or_else(|| Error::internal("a command without an id"))
    }
}

/// A request for a command's live fields.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Live {
    /// The command.
    pub id: Uuid,
    /// Seconds to wait for its end.
    pub wait: Option<u32>,
}

/// A user cancels or kills a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ByUser {
    /// The command.
    pub id: Uuid,
    /// The user's name.
    pub username: String,
    /// Its audit event.
    pub event: Event,
}

/// Login sessions that were revoked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RevokedSessions {
    /// Their ids.
    pub sessions: Vec<Uuid>,
}

/// A request for a page of a command's output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Chunks {
    /// The command.
    pub id: Uuid,
    /// The lowest `seq`.
    pub from: u64,
    /// How many of them to skip.
    pub offset: u64,
    /// How many to return.
    pub limit: u64,
}

/// A page of a command's output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChunkPage {
    /// How many chunks there are in all, from the lowest `seq` on.
    pub count: u64,
    /// The chunks of the page.
    pub chunks: Vec<Chunk>,
}

/// A request for a command's next output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Follow {
    /// The command.
    pub id: Uuid,
    /// The lowest `seq`.
    pub from: u64,
    /// Milliseconds to wait for output.
    pub wait_millis: i64,
    /// Whether to return output behind a gap that was not filled.
    pub skips_gap: bool,
}

/// The next output of a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Followed {
    /// The chunks. They have no gap while more output is expected.
    pub chunks: Vec<Chunk>,
    /// Whether more chunks are stored. If `chunks` is empty, they are behind a gap.
    pub has_more: bool,
    /// After the last chunk: the command's live fields and `output_truncated`.
    pub end: Option<Map<String, Value>>,
}

/// A request to delete commands that ended long ago.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Forget {
    /// The commands.
    pub ids: Vec<Uuid>,
    /// They must have ended by this time.
    pub until: Timestamp,
}

/// The outcome of [`Forget`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Forgotten {
    /// The commands that are deleted entirely.
    pub ids: Vec<Uuid>,
    /// Whether the others stay. False: there is more to delete than one call does; repeat it.
    pub is_all: bool,
}

/// The identity that an agent claims.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// The slug of the workspace in the request's host name.
    pub workspace: String,
    /// The server.
    pub server: Uuid,
    /// The hash of its key.
    pub key_hash: String,
    /// Its address.
    pub remote_ip: String,
    /// The features that it announced (agent-protocol 6.1).
    #[serde(default)]
    pub features: Features,
}

impl Identity {
    /// Where a request of the agent came from.
    pub fn source(&self, request_id: Option<String>) -> Source {
        let remote_ip = Some(self.remote_ip.clone()).filter(|ip| !ip.is_empty());
        Source { remote_ip, request_id: request_id.filter(|id| !id.is_empty()) }
    }
}

/// An agent's report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentCall {
    /// The identity that the agent claims.
    pub identity: Identity,
    /// The report.
    pub report: Report,
    /// The request's id.
    #[serde(default)]
    pub request_id: String,
}

/// What an agent can report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Report {
    /// Asks for its own server.
    Whoami,
    /// It is alive.
    Seen,
    /// Its process started.
    Started,
    /// It acknowledged a command.
    Ack {
        /// The command.
        command: Uuid,
    },
    /// A piece of output.
    Chunk {
        /// The command.
        command: Uuid,
        /// The piece.
        chunk: Chunk,
    },
    /// A command ended.
    Fin {
        /// The command.
        command: Uuid,
        /// How.
        fin: Fin,
    },
    /// Facts about it and its host.
    Facts {
        /// The facts.
        facts: HostFacts,
        /// Whether this is its first complete report.
        is_commit: bool,
    },
    /// A heartbeat.
    Heartbeat {
        /// The host's load, if the agent sends it.
        load: Option<f64>,
    },
    /// It unregisters: the server is to be deleted.
    Unregister,
}

/// An answer of the object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Done, with a result.
    Done(Value),
    /// The object refuses.
    Refused(Refusal),
    /// The call failed. A command that was not accepted yet is withdrawn.
    Failed(String),
}

impl Answer {
    /// Done, without a result.
    pub const NOTHING: Self = Self::Done(Value::Null);

    /// Done, with a result.
    pub fn done(told: impl Serialize) -> Self {
        // All results have texts as keys, so this does not fail.
        serde_json::to_value(told).map_or_else(|error| Self::Failed(error.to_string()), Self::Done)
    }
}

/// Why the object refuses a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Refusal {
    /// The agent's id or key is wrong.
    InvalidAgent,
    /// An older connection of an agent with the same identity is alive (agent-protocol 5.2).
    IdentityInUse,
    /// No such command here.
    NotFound,
    /// No agent is connected, and nothing was stored.
    NotConnected,
    /// The server was deleted, and nothing was stored.
    NoServer,
    /// The user lost the permission before the change's turn came.
    NotPermitted,
    /// The command was delivered.
    AlreadySent,
    /// The command has ended.
    AlreadyHandled,
    /// The command's agent is not connected, or cannot kill.
    CannotKill,
    /// The connected agent lacks a feature that the command needs, and nothing was stored.
    AgentCannot(Feature),
    /// The Idempotency-Key was used with another body.
    KeyReused,
    /// The Idempotency-Key was used for a command of another server, or its first request was cut
    /// off just now; nothing was stored.
    KeyTaken,
    /// The user or the workspace has as many waiting commands as the quota allows; nothing was
    /// stored.
    TooManyWaiting,
    /// The workspace stored as many bytes today as its quota allows; nothing was stored.
    TooManyBytes,
}

/// The Retry-After of a used-up quota of waiting commands, in seconds.
const WAITING_RETRY_AFTER: u64 = 60;
/// The Retry-After of a used-up quota of a day, in seconds: it may end within the hour.
const DAY_RETRY_AFTER: u64 = 3_600;

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let conflict = |detail| Self::new(Kind::Conflict, detail);
        match refusal {
            Refusal::InvalidAgent => Self::invalid_token(),
            Refusal::IdentityInUse => {
                conflict("Another agent with this server's identity is connected.")
            }
            Refusal::NotFound => Self::not_found(),
            Refusal::NotConnected => Self::new(Kind::NotConnected, "The server is not connected.")
                .code(Code::ServerNotConnected),
            Refusal::NotPermitted => {
                Self::permission_denied("You may no longer change this server.")
            }
            Refusal::NoServer => Self::field("server", "No such server."),
            Refusal::AlreadySent => conflict("The command was already sent to the server.")
                .code(Code::EventCommandAlreadySent),
            Refusal::AlreadyHandled => {
                conflict("The command has ended.").code(Code::CommandAlreadyHandled)
            }
            Refusal::CannotKill => {
                conflict("The command's agent is not connected, or cannot kill commands.")
                    .code(Code::AgentCannotKill)
            }
            Refusal::AgentCannot(feature) => {
                let detail = format!(
                    "The server's agent {feature}. Upgrade it, or send the command without."
                );
                Self::new(Kind::Conflict, detail).code(Code::AgentCannot)
            }
            Refusal::KeyReused => Self::new(
                Kind::Unprocessable,
                "The Idempotency-Key was used with another request body.",
            )
            .code(Code::IdempotencyKeyReused),
            Refusal::KeyTaken => conflict(
                "The first request with this Idempotency-Key was cut off; try again in a minute.",
            )
            .code(Code::IdempotencyKeyInUse),
            Refusal::TooManyWaiting => Self::quota_exceeded(
                "Too many commands wait, of yours or of the workspace. Cancel some, or wait until they have run.",
                WAITING_RETRY_AFTER,
            ),
            Refusal::TooManyBytes => Self::quota_exceeded(
                "The workspace's commands and their output stored as many bytes today (UTC) as its quota allows.",
                DAY_RETRY_AFTER,
            ),
        }
    }
}
