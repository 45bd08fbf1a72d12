//! Every call into a server's object, typed, in one place. The platform carries it as JSON.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::audit::{Event, Source};
use crate::command::{Command, Inputs, OnOffline, Origin};
use crate::error::{Code, Error, Kind};
use crate::features::{Feature, Features};
use crate::time::Timestamp;
use crate::wire::{Chunk, Fin, HostFacts};

/// What a server's object can be asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Take a command, record it and hand it to the agent, now or when its time has come. Answers with [`Created`].
    Create(Box<Create>),
    /// Tell the first answer to a request with an Idempotency-Key, when there is one. Answers with [`Created`].
    Replay(Key),
    /// Tell the live fields of a command.
    Live(Live),
    /// Take a command back. Answers with its live fields.
    Cancel(ByUser),
    /// Cancel the waiting commands that revoked login sessions created.
    CancelOf(RevokedSessions),
    /// Kill a command. Answers with its live fields.
    Kill(ByUser),
    /// Tell a page of a command's output. Answers with [`ChunkPage`].
    Chunks(Chunks),
    /// Tell the next of a command's output, when there is some. Answers with [`Followed`].
    Follow(Follow),
    /// Learn who the server is, which was just made.
    Adopt(OfServer),
    /// Learn that the server has another name.
    Rename(Rename),
    /// Give the server's agent another key, and refuse the old one.
    Rotate(Rotate),
    /// Delete the server: cut its agent off, and take back what waits. What went out and its output stay.
    Remove(Remove),
    /// Tell D1 everything again: it was taken back to an earlier moment.
    Resync(OfServer),
    /// Take an agent's report. Answers with what the agent is to be told.
    Agent(AgentCall),
    /// Forget commands that are over for long. Answers with [`Forgotten`].
    Forget(Forget),
    /// Forget everything and cut the agent off: the server is gone.
    Sever,
    /// Disconnect the agent and take none, or take agents again: the workspace is deleted or undeleted. Nothing is forgotten.
    Suspend(bool),
}

/// Another name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rename {
    /// The name.
    pub name: String,
    /// Since when: of two, the later one stands.
    pub at: Timestamp,
}

/// Which server is meant, for an object that may not know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OfServer {
    /// The workspace's slug.
    pub workspace: String,
    /// The workspace.
    pub workspace_id: i64,
    /// The server.
    pub server: Uuid,
}

/// Another key for an agent.
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
    /// When that was asked for.
    pub at: Timestamp,
    /// What the audit log tells of it.
    pub event: Event,
}

/// The end of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Remove {
    /// The server.
    pub of: OfServer,
    /// The user who asks for it; `None`: its own agent, or the service.
    pub by: Option<i64>,
    /// Whether the server is deleted only if it is still pending.
    pub only_pending: bool,
    /// What the audit log tells of it.
    pub event: Event,
}

/// A command to be run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Create {
    /// The workspace.
    pub workspace_id: i64,
    /// The command.
    pub command: Command,
    /// What it is asked for with.
    pub origin: Origin,
    /// What it is given beside what it runs.
    pub inputs: Option<Inputs>,
    /// Seconds that it may run.
    pub timeout: i64,
    /// When to run it.
    pub scheduled_at: Option<Timestamp>,
    /// When to deliver it at the latest.
    pub expires_at: Option<Timestamp>,
    /// What becomes of it where the agent is not connected.
    pub on_offline: OnOffline,
    /// Seconds to wait for its end.
    pub wait: Option<u32>,
    /// The Idempotency-Key.
    pub key: Option<Key>,
    /// What the audit log tells of it.
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

/// A command that was taken.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Created {
    /// The command object.
    pub command: Map<String, Value>,
    /// It is the first answer to the same request, again.
    pub replayed: bool,
}

impl Created {
    /// The command's id.
    ///
    /// # Errors
    /// The command object has none.
    pub fn id(&self) -> Result<Uuid, Error> {
        let id = self.command.get("id").and_then(Value::as_str).and_then(|id| Uuid::try_parse(id).ok());
        id.ok_or_else(|| Error::internal("a command without an id"))
    }
}

/// A question for a command's live fields.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Live {
    /// The command.
    pub id: Uuid,
    /// Seconds to wait for its end.
    pub wait: Option<u32>,
}

/// What a user does to a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ByUser {
    /// The command.
    pub id: Uuid,
    /// The user's name.
    pub username: String,
    /// What the audit log tells of it.
    pub event: Event,
}

/// Login sessions that were revoked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RevokedSessions {
    /// Their ids.
    pub sessions: Vec<Uuid>,
}

/// A question for a page of a command's output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Chunks {
    /// The command.
    pub id: Uuid,
    /// The lowest `seq`.
    pub from: u64,
    /// How many of them to skip.
    pub offset: u64,
    /// How many to tell.
    pub limit: u64,
}

/// A page of a command's output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChunkPage {
    /// How many there are in all.
    pub count: u64,
    /// The page's own.
    pub chunks: Vec<Chunk>,
}

/// A question for a command's next output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Follow {
    /// The command.
    pub id: Uuid,
    /// The lowest `seq`.
    pub from: u64,
    /// Milliseconds to wait for some.
    pub wait_millis: i64,
    /// Whether to go on behind a gap that was not filled.
    pub skips_gap: bool,
}

/// The next of a command's output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Followed {
    /// The chunks, without a gap where more is to come.
    pub chunks: Vec<Chunk>,
    /// Whether more of them is there already. Where none is told, that is behind a gap.
    pub has_more: bool,
    /// The live fields of the command, once that was all, and whether it lacks some of the output.
    pub end: Option<Map<String, Value>>,
}

/// Commands to be forgotten.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Forget {
    /// The commands.
    pub ids: Vec<Uuid>,
    /// Until when they must have been over.
    pub until: Timestamp,
}

/// What became of commands that were to be forgotten.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Forgotten {
    /// Those of which nothing is there.
    pub ids: Vec<Uuid>,
    /// Whether the others are to stay; false: there is more than goes at once, and it is to be asked again.
    pub is_all: bool,
}

/// Who an agent says that it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// The workspace that its request belongs to.
    pub workspace: String,
    /// The server.
    pub server: Uuid,
    /// The hash of its key.
    pub key_hash: String,
    /// Its address.
    pub remote_ip: String,
    /// What it announced that it can do (agent-protocol 6 and 7).
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

/// A report of an agent's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentCall {
    /// Who it says that it is.
    pub identity: Identity,
    /// What it says.
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
    /// It is there.
    Seen,
    /// Its process began.
    Started,
    /// It took a command.
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
    /// What it and its host are.
    Facts {
        /// As far as they are of use.
        facts: HostFacts,
        /// Whether that is all of it, for the first time.
        is_commit: bool,
    },
    /// It is still there.
    Heartbeat {
        /// The host's load, if the agent sends it.
        load: Option<f64>,
    },
    /// It goes for good, and the server with it.
    Unregister,
}

/// What the object answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Done; with what there is to tell.
    Done(Value),
    /// It will not do it.
    Refused(Refusal),
    /// It could not be done. A command that was not handed over yet is withdrawn.
    Failed(String),
}

impl Answer {
    /// Done, with nothing to tell.
    pub const NOTHING: Self = Self::Done(Value::Null);

    /// Done, with this to tell.
    pub fn done(told: impl Serialize) -> Self {
        // All that is told has text for keys, so that it is JSON.
        serde_json::to_value(told).map_or_else(|error| Self::Failed(error.to_string()), Self::Done)
    }
}

/// Why an object does not do what it is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Refusal {
    /// The agent's id or key is wrong.
    InvalidAgent,
    /// An older connection of an agent with the same identity is alive (agent-protocol 5).
    IdentityInUse,
    /// No such command here.
    NotFound,
    /// No agent is connected, and nothing was stored.
    NotConnected,
    /// The server was deleted, and nothing was stored.
    NoServer,
    /// When its turn came, the user had no right to it any more.
    NotPermitted,
    /// The command was delivered.
    AlreadySent,
    /// The command has ended.
    AlreadyHandled,
    /// The command's agent kills nothing, or is not there.
    CannotKill,
    /// The connected agent lacks a feature that the command needs, and nothing was stored.
    AgentCannot(Feature),
    /// The Idempotency-Key was used with another body.
    KeyReused,
    /// The Idempotency-Key was used for a command of another server, or just now; nothing was stored.
    KeyTaken,
    /// As many commands of the user or the workspace wait as may; nothing was stored.
    TooManyWaiting,
    /// The workspace stored as many bytes today as it may; nothing was stored.
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
            Refusal::IdentityInUse => conflict("Another agent with this server's identity is connected."),
            Refusal::NotFound => Self::not_found(),
            Refusal::NotConnected => {
                Self::new(Kind::NotConnected, "The server is not connected.").code(Code::ServerNotConnected)
            }
            Refusal::NotPermitted => Self::permission_denied("You may no longer change this server."),
            Refusal::NoServer => Self::field("server", "No such server."),
            Refusal::AlreadySent => {
                conflict("The command was already sent to the server.").code(Code::EventCommandAlreadySent)
            }
            Refusal::AlreadyHandled => conflict("The command has ended.").code(Code::CommandAlreadyHandled),
            Refusal::CannotKill => {
                conflict("The command's agent is not connected, or cannot kill commands.").code(Code::AgentCannotKill)
            }
            Refusal::AgentCannot(feature) => {
                let detail = format!("The server's agent {feature}. Upgrade it, or send the command without.");
                Self::new(Kind::Conflict, detail).code(Code::AgentCannot)
            }
            Refusal::KeyReused => {
                Self::new(Kind::Unprocessable, "The Idempotency-Key was used with another request body.")
                    .code(Code::IdempotencyKeyReused)
            }
            Refusal::KeyTaken => {
                conflict("The first request with this Idempotency-Key was cut off; try again in a minute.")
                    .code(Code::IdempotencyKeyInUse)
            }
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
