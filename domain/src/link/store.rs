//! What the machine needs from the object's own storage. The writes of a step become durable
//! together, or not at all.

use std::fmt;

use serde::Deserialize;
use uuid::Uuid;

use super::call::DeletedCommands;
use super::state::ServerState;
use super::stored_command::StoredCommand;
use crate::agent::wire::Chunk;
use crate::command::object::Output;
use crate::time::Timestamp;

/// The platform failed: its storage, or its source of random bytes. The text says how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlatformFailure(pub String);

impl fmt::Display for PlatformFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PlatformFailure {}

/// The result of a storage operation.
pub type Result<T> = std::result::Result<T, PlatformFailure>;

/// The first request with an Idempotency-Key, and its response.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct IdempotentRequest {
    /// The hash of the request's body.
    pub body: String,
    /// The command that the request creates.
    pub command: Uuid,
    /// The command object, as JSON; `None`: the request is not answered yet.
    pub answer: Option<String>,
}

/// When the next flush of commands is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextFlush {
    /// Immediately.
    Now,
    /// Some time after this report. Only running commands are pending. Each has a last report, and
    /// this is the earliest of these times.
    After(Timestamp),
}

/// The limits of one read of output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadLimit {
    /// Maximum number of chunks.
    pub chunks: u64,
    /// Maximum number of bytes. The last chunk may exceed it.
    pub bytes: usize,
    /// Whether to stop at a gap.
    pub until_gap: bool,
}

/// The object's storage. An error of a method means that the storage failed.
#[expect(clippy::missing_errors_doc, reason = "all methods have the same error")]
pub trait Store {
    /// Stores the server's state. `is_first`: nothing was stored since the object was created or
    /// wiped.
    fn save_state(&mut self, server: &ServerState, is_first: bool) -> Result<()>;
    /// Reads the server's state. Returns `None` if this object was never used, or was wiped.
    fn server(&self) -> Result<Option<ServerState>>;
    /// Deletes everything, including the alarm.
    fn wipe(&mut self) -> Result<()>;

    /// Inserts a new command, with a timer.
    fn insert(&mut self, new: &StoredCommand, timer_at: Timestamp) -> Result<()>;
    /// Stores a recorded command as accepted. The revision does not change, because D1 needs no
    /// update.
    fn accept(&mut self, accepted: &StoredCommand, now: Timestamp) -> Result<()>;
    /// Stores a changed command as its next revision.
    fn save(&mut self, changed: &StoredCommand, now: Timestamp) -> Result<()>;
    /// Sets the time of a command's timer; `None`: the command has no timer.
    fn set_timer(&mut self, id: Uuid, at: Option<Timestamp>) -> Result<()>;
    /// Deletes a command, and the response for its Idempotency-Key.
    fn delete(&mut self, id: Uuid) -> Result<()>;
    /// Reads a command.
    fn command(&self, id: Uuid) -> Result<Option<StoredCommand>>;
    /// Whether the object has any command.
    fn has_commands(&self) -> Result<bool>;
    /// Waiting commands that are due, ordered by `scheduled_at`, then id (contract 8.5).
    fn due_waiting(&self, now: Timestamp, limit: u64) -> Result<Vec<StoredCommand>>;
    /// All waiting commands.
    fn waiting(&self) -> Result<Vec<StoredCommand>>;
    /// All commands that were delivered and have not ended.
    fn open_commands(&self) -> Result<Vec<StoredCommand>>;
    /// The number of commands that were delivered and have not ended.
    fn count_open(&self) -> Result<u64>;
    /// Commands whose timer is due, the earliest first.
    fn with_due_timer(&self, now: Timestamp, limit: u32) -> Result<Vec<StoredCommand>>;
    /// The time of the next timer of a command.
    fn next_timer(&self) -> Result<Option<Timestamp>>;
    /// Commands whose latest revision D1 does not have. Running commands are returned only if their
    /// last report is not later than `reported_by`.
    fn unflushed(&self, reported_by: Timestamp, limit: u32) -> Result<Vec<StoredCommand>>;
    /// When the next flush of commands is due; `None`: D1 has the latest revision of all commands.
    fn next_unflushed(&self) -> Result<Option<NextFlush>>;
    /// Records that D1 has this revision of a command. `has_events`: D1 also has the audit events
    /// up to this revision, so they are deleted here.
    fn mark_flushed(&mut self, id: Uuid, revision: i64, has_events: bool) -> Result<()>;
    /// Records that D1 may have lost a command.
    fn mark_unflushed(&mut self, id: Uuid) -> Result<()>;
    /// Accepted commands with ids above `after`, ordered by id.
    fn accepted_after(&self, after: &str, limit: u32) -> Result<Vec<StoredCommand>>;
    /// Deletes commands, with their output, if they ended by `until` and D1 has their latest
    /// revision. `at_once` limits one call: the number of rows plus the number of pages of 4 KiB.
    fn delete_old(
        &mut self,
        ids: &[Uuid],
        until: Timestamp,
        at_once: u64,
    ) -> Result<DeletedCommands>;

    /// The stored request with an Idempotency-Key, if it has not expired.
    fn idempotent_request(
        &mut self,
        key: &str,
        now: Timestamp,
    ) -> Result<Option<IdempotentRequest>>;
    /// Stores that a key is used for a command. [`Self::set_idempotent_answer`] stores the response
    /// later.
    fn insert_idempotent_request(
        &mut self,
        key: &str,
        body: &str,
        command: Uuid,
        expires_at: Timestamp,
    ) -> Result<()>;
    /// Stores the response for a key.
    fn set_idempotent_answer(&mut self, key: &str, answer: &str) -> Result<()>;

    /// Stores a chunk of output, and returns whether it is new.
    fn add_chunk(&mut self, stored: &StoredCommand, chunk: &Chunk, now: Timestamp) -> Result<bool>;
    /// The number of kept chunks with this `seq` or a higher `seq`.
    fn count_chunks(&self, stored: &StoredCommand, from: u64) -> Result<u64>;
    /// Skips `offset` kept chunks, starting at `from`. Returns the `seq` of the next kept chunk.
    fn find_chunk(&self, stored: &StoredCommand, from: u64, offset: u64) -> Result<Option<u64>>;
    /// Kept chunks, starting at `from`, ordered by `seq`.
    fn chunks(&self, stored: &StoredCommand, from: u64, limit: ReadLimit) -> Result<Vec<Chunk>>;
    /// The output of a command that has arrived so far.
    fn output(&self, stored: &StoredCommand) -> Result<Output>;
    /// The SHA-256 of a command's output. Returns `None` while more output is expected. `is_late`:
    /// hash the output that has arrived, even if some output is missing.
    fn output_hash(&self, stored: &StoredCommand, is_late: bool) -> Result<Option<String>>;
}
