//! The calls from the Worker to a server's object: request messages and response messages. They are
//! sent as JSON.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

pub use super::refusal::Refusal;
use crate::agent::features::Features;
use crate::agent::wire::{Chunk, Fin, HostFacts, Script};
use crate::audit::event::{AuditEvent, Source};
use crate::command::end::Cancellation;
use crate::command::request::{Command, Inputs, OnOffline, Origin};
use crate::error::Error;
use crate::time::Timestamp;

/// A request message to a server's object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum LinkRequest {
    /// Create a command and deliver it when it is due. Returns [`Created`].
    Create(Box<Create>),
    /// Store and deliver, or cancel, a command of a batch, which D1 has. Repeated calls for the
    /// same command change nothing else.
    RunOfBatch(Box<BatchCommand>),
    /// Replay the response to the first request with an Idempotency-Key. Waits if the first request
    /// is in progress. Returns [`Created`].
    Replay(IdempotencyKey),
    /// Read the live fields of a command.
    ReadLiveFields(ReadLiveFields),
    /// Cancel a command. Returns its live fields.
    Cancel(UserAction),
    /// Cancel the waiting commands that were created with revoked login sessions.
    CancelOfSessions(RevokedSessions),
    /// Kill a command. Returns its live fields.
    Kill(UserAction),
    /// Kill a command of a batch. Returns its live fields. If the agent is not connected, it gets
    /// the kill when it connects.
    KillOfBatch(UserAction),
    /// Read a page of a command's output. Returns [`OutputPage`].
    ReadOutput(ReadOutput),
    /// Wait for the next output of a command. Returns [`FollowedOutput`].
    FollowOutput(FollowOutput),
    /// Load the identity of a server that was just created.
    InitIdentity(ServerLocation),
    /// Store the new name of the server.
    Rename(Rename),
    /// Replace the key of the server's agent. Returns [`ReplacedKey`].
    ReplaceKey(ReplaceKey),
    /// Delete the server: disconnect its agent and cancel waiting commands. Commands that it ran
    /// are kept, with their output.
    DeleteServer(DeleteServer),
    /// Restore the deleted server, and accept its agent again.
    UndeleteServer(UndeleteServer),
    /// Write everything to D1 again: D1 was restored to an earlier time.
    Resync(ServerLocation),
    /// Handle a report of an agent. The result is for the agent.
    HandleReport(AgentReport),
    /// Delete commands that ended long ago. Returns [`DeletedCommands`].
    DeleteOldCommands(DeleteOldCommands),
    /// Disconnect the agent and wipe the object: its workspace is purged.
    DisconnectAndWipe,
    /// True: the workspace was deleted, so disconnect the agent and refuse agents. False: it was
    /// undeleted, so accept agents again. Nothing is deleted.
    Suspend(bool),
}

/// A new name of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rename {
    /// The new name.
    pub name: String,
    /// When it was set. Renames can arrive out of order. The object keeps the latest name.
    pub at: Timestamp,
}

/// Which server an object belongs to. An object does not know that before its first call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServerLocation {
    /// The workspace's slug.
    pub workspace: String,
    /// The workspace's id.
    pub workspace_id: i64,
    /// The server's id.
    pub server: Uuid,
}

/// A new key for an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReplaceKey {
    /// The server whose agent gets the key.
    pub of: ServerLocation,
    /// The id of the user who requests it.
    pub by: i64,
    /// The hash of the new key.
    pub key_hash: String,
    /// The fingerprint of the new key.
    pub fingerprint: String,
    /// Until when the old key stays valid, unless an agent connects with the new key first; `None`:
    /// it is refused immediately.
    #[serde(default)]
    pub old_key_valid_until: Option<Timestamp>,
    /// When it was requested.
    pub at: Timestamp,
    /// Its audit event.
    pub event: AuditEvent,
}

/// The outcome of [`ReplaceKey`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReplacedKey {
    /// Until when the old key is valid, unless an agent connects with the new key first; `None`: it
    /// is refused.
    pub old_key_valid_until: Option<Timestamp>,
}

/// The deletion of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeleteServer {
    /// The server to delete.
    pub of: ServerLocation,
    /// The id of the user who requests it; `None`: the server's own agent or the service requests
    /// it.
    pub by: Option<i64>,
    /// Whether the server is deleted only if it is still pending, that is, not approved.
    pub only_pending: bool,
    /// Its audit event.
    pub event: AuditEvent,
}

/// The end of a server's deletion.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UndeleteServer {
    /// The deleted server.
    pub of: ServerLocation,
    /// The id of the user who requests it.
    pub by: i64,
    /// Its name from now on.
    pub name: String,
    /// Its audit event.
    pub event: AuditEvent,
}

/// A command of a batch. The batch's object has inserted it into D1 as delivered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BatchCommand {
    /// The workspace's id.
    pub workspace_id: i64,
    /// What to run.
    pub command: Command,
    /// The credential of the batch, and whether it has inputs.
    pub origin: Origin,
    /// Its environment, standard input and working directory.
    pub inputs: Option<Inputs>,
    /// The script that it runs; `None`: it runs none, or this object reads the script from D1.
    #[serde(default)]
    pub script: Option<Script>,
    /// How long it may run, in seconds.
    pub timeout: i64,
    /// When it was inserted into D1.
    pub added_at: Timestamp,
    /// The latest time of its delivery.
    pub expires_at: Timestamp,
    /// The bytes of its output that may be kept. Belongs to the check at `checked_at`.
    #[serde(default)]
    pub output_limit: Option<u64>,
    /// When the batch checked the permission. After [`CHECK_VALIDITY`] this object checks it again.
    pub checked_at: Option<Timestamp>,
    /// Why it is cancelled, if it is.
    pub cancellation: Option<Cancellation>,
}

/// A permission check of a batch is valid for this time (contract 13).
pub const CHECK_VALIDITY: Duration = Duration::from_secs(5);

/// A new command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Create {
    /// The workspace's id.
    pub workspace_id: i64,
    /// What to run.
    pub command: Command,
    /// The credential of the request, and whether the command has inputs.
    pub origin: Origin,
    /// Its environment, standard input and working directory.
    pub inputs: Option<Inputs>,
    /// The script that it runs, for an immediate delivery; `None`: it runs none, or the object
    /// reads the script from D1 when the command is due.
    #[serde(default)]
    pub script: Option<Script>,
    /// How long it may run, in seconds.
    pub timeout: i64,
    /// When to run it; `None`: now.
    pub scheduled_at: Option<Timestamp>,
    /// The latest time of its delivery; `None`: the default.
    pub expires_at: Option<Timestamp>,
    /// What to do if the agent is not connected.
    pub on_offline: OnOffline,
    /// How long the client waits for its end, in seconds.
    pub wait: Option<u32>,
    /// The request's Idempotency-Key.
    pub key: Option<IdempotencyKey>,
    /// Its audit event.
    pub event: AuditEvent,
}

/// An Idempotency-Key and the body of its request, both hashed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IdempotencyKey {
    /// The hash of the user's id and the key: keys of different users never collide.
    pub hash: String,
    /// The hash of the body.
    pub body: String,
}

/// The result for a new command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Created {
    /// The command object.
    pub command: Map<String, Value>,
    /// Whether this repeats the result of an earlier request with the same Idempotency-Key.
    pub replayed: bool,
}

impl Created {
    /// The command's id.
    ///
    /// # Errors
    /// The command object has no id.
    pub fn id(&self) -> Result<Uuid, Error> {
        let id =
            self.command.get("id").and_then(Value::as_str).and_then(|id| Uuid::try_parse(id).ok());
        id.ok_or_else(|| Error::internal("a command without an id"))
    }
}

/// A request for a command's live fields.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadLiveFields {
    /// The command's id.
    pub id: Uuid,
    /// How long to wait for its end, in seconds.
    pub wait: Option<u32>,
}

/// A user cancels or kills a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserAction {
    /// The command's id.
    pub id: Uuid,
    /// The user's name.
    pub username: String,
    /// Its audit event.
    pub event: AuditEvent,
}

/// Login sessions that were revoked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RevokedSessions {
    /// The ids of the sessions.
    pub sessions: Vec<Uuid>,
}

/// A request for a page of a command's output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadOutput {
    /// The command's id.
    pub id: Uuid,
    /// The lowest `seq`.
    pub from: u64,
    /// The number of chunks to skip, starting at `from`.
    pub offset: u64,
    /// Maximum number of chunks to return.
    pub limit: u64,
}

/// A page of a command's output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OutputPage {
    /// The number of chunks on all pages.
    pub count: u64,
    /// The chunks of the page.
    pub chunks: Vec<Chunk>,
}

/// A request for a command's next output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FollowOutput {
    /// The command's id.
    pub id: Uuid,
    /// The lowest `seq`.
    pub from: u64,
    /// How long to wait for output, in milliseconds.
    pub wait_millis: i64,
    /// Whether to return output after a gap before the gap is filled.
    pub skips_gap: bool,
}

/// The next output of a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FollowedOutput {
    /// The next chunks. They have no gap while more output is expected.
    pub chunks: Vec<Chunk>,
    /// Whether more chunks are stored. If `chunks` is empty, the stored chunks are after a gap.
    pub has_more: bool,
    /// With the last chunk: the command's live fields, with the stream's `output_truncated`.
    pub end: Option<Map<String, Value>>,
}

/// A request to delete commands that ended long ago.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeleteOldCommands {
    /// The ids of the commands.
    pub ids: Vec<Uuid>,
    /// Commands that ended later are kept.
    pub until: Timestamp,
}

/// The outcome of [`DeleteOldCommands`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeletedCommands {
    /// The ids of the commands that are deleted completely.
    pub ids: Vec<Uuid>,
    /// Whether the object keeps all other commands of the request. False: the call reached its
    /// limit and must be repeated.
    pub is_complete: bool,
}

/// The identity that an agent claims.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClaimedIdentity {
    /// The slug of the workspace in the request's host name.
    pub workspace: String,
    /// The server's id.
    pub server: Uuid,
    /// The hash of the key that the agent sent.
    pub key_hash: String,
    /// The agent's address.
    pub remote_ip: String,
    /// The features that it announced (agent-protocol 6.1).
    #[serde(default)]
    pub features: Features,
}

impl ClaimedIdentity {
    /// The source of the agent's request, for the audit log.
    pub fn source(&self, request_id: Option<String>) -> Source {
        let remote_ip = Some(self.remote_ip.clone()).filter(|ip| !ip.is_empty());
        Source { remote_ip, request_id: request_id.filter(|id| !id.is_empty()) }
    }
}

/// An agent's report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentReport {
    /// The identity that the agent claims.
    pub identity: ClaimedIdentity,
    /// What it reports.
    pub report: Report,
    /// The id of the HTTP request, for the audit log.
    #[serde(default)]
    pub request_id: String,
}

/// What an agent can report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Report {
    /// The agent asks for its own server's id and name.
    Whoami,
    /// The agent is alive.
    Alive,
    /// The agent's process started.
    Started,
    /// The agent acknowledged a command.
    Ack {
        /// The command's id.
        command: Uuid,
    },
    /// A command wrote output.
    Chunk {
        /// The command's id.
        command: Uuid,
        /// A piece of the output.
        chunk: Chunk,
    },
    /// A command ended.
    Fin {
        /// The command's id.
        command: Uuid,
        /// The result.
        fin: Fin,
    },
    /// Facts about the agent and its host.
    Facts {
        /// The facts.
        facts: Box<HostFacts>,
        /// Whether this is the agent's first complete report.
        is_commit: bool,
    },
    /// A heartbeat.
    Heartbeat {
        /// The host's load; `None`: the agent does not send it.
        load: Option<f64>,
    },
    /// The agent unregisters: delete the server.
    Unregister,
}

/// A response message of a server's object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum LinkResponse {
    /// The call succeeded, with this result as JSON.
    Done(Value),
    /// The object refuses the call.
    Refused(Refusal),
    /// The call failed with this error. If the call should have created a command, the command is
    /// withdrawn.
    Failed(String),
}

impl LinkResponse {
    /// Success without a result.
    pub const EMPTY: Self = Self::Done(Value::Null);

    /// Success with a result.
    pub fn done(result: impl Serialize) -> Self {
        // JSON objects need strings as keys. All results have string keys, so this does not fail.
        serde_json::to_value(result)
            .map_or_else(|error| Self::Failed(error.to_string()), Self::Done)
    }
}
