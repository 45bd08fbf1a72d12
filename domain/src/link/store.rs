//! What the machine needs from the object's own storage. All writes of a step become durable
//! together, or none of them.

use std::fmt;

use serde::Deserialize;
use uuid::Uuid;

use super::state::ServerState;
use super::stored_command::StoredCommand;
use crate::command_object::Output;
use crate::time::Timestamp;
use crate::wire::Chunk;

/// The platform failed: its storage, or its source of random bytes. Says how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failed(pub String);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}

/// The result of a storage operation.
pub type Result<T> = std::result::Result<T, Failed>;

/// The answer to a request with an Idempotency-Key.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct StoredAnswer {
    /// The hash of the request's body.
    pub body: String,
    /// The command.
    pub command: Uuid,
    /// The command object, as JSON; `None` while the request is not answered.
    pub answer: Option<String>,
}

/// When D1 is to get what it lacks of commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unflushed {
    /// Immediately.
    Now,
    /// After the next report: only commands under way lack something, and this is the earliest of
    /// their last reports.
    After(Timestamp),
}

/// Limits of a read of output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Most {
    /// Chunks.
    pub chunks: u64,
    /// Bytes. The last chunk may exceed them.
    pub bytes: usize,
    /// Whether to stop at a gap.
    pub until_gap: bool,
}

/// The object's storage.
pub trait Store {
    /// Stores the state beside the commands. `is_first`: nothing was stored since the object was
    /// created or wiped.
    fn save_server(&mut self, server: &ServerState, is_first: bool) -> Result<()>;
    /// The state beside the commands; `None`: this object was never used, or was wiped.
    fn server(&self) -> Result<Option<ServerState>>;
    /// Deletes everything, the alarm included.
    fn wipe(&mut self) -> Result<()>;

    /// Inserts a new command. The alarm looks at it at `due_at`.
    fn insert(&mut self, new: &StoredCommand, due_at: Timestamp) -> Result<()>;
    /// Stores a recorded command as accepted. That is no new revision: D1 needs no update.
    fn accept(&mut self, accepted: &StoredCommand, now: Timestamp) -> Result<()>;
    /// Stores a changed command as its next revision.
    fn save(&mut self, changed: &StoredCommand, now: Timestamp) -> Result<()>;
    /// Sets when the alarm looks at a command; `None`: never.
    fn postpone(&mut self, id: Uuid, due_at: Option<Timestamp>) -> Result<()>;
    /// Deletes a command, and the answer to its Idempotency-Key.
    fn delete(&mut self, id: Uuid) -> Result<()>;
    /// A command.
    fn command(&self, id: Uuid) -> Result<Option<StoredCommand>>;
    /// Whether there is any command.
    fn has_commands(&self) -> Result<bool>;
    /// Waiting commands that may be delivered now, ordered by `scheduled_at`, then id
    /// (contract 8.5).
    fn due_waiting(&self, now: Timestamp, limit: u64) -> Result<Vec<StoredCommand>>;
    /// All waiting commands.
    fn waiting(&self) -> Result<Vec<StoredCommand>>;
    /// All commands that were delivered and have not ended.
    fn open(&self) -> Result<Vec<StoredCommand>>;
    /// How many commands were delivered and have not ended.
    fn count_open(&self) -> Result<u64>;
    /// Commands that the alarm has to look at by now, the earliest first.
    fn due(&self, now: Timestamp, limit: u32) -> Result<Vec<StoredCommand>>;
    /// When the alarm has to look at the next command.
    fn next_due(&self) -> Result<Option<Timestamp>>;
    /// Commands whose latest revision D1 does not have. Of commands under way, only those whose
    /// last report was by `reported_by`.
    fn unflushed(&self, reported_by: Timestamp, limit: u32) -> Result<Vec<StoredCommand>>;
    /// When D1 is to get what it lacks of commands; `None`: it has everything.
    fn next_unflushed(&self) -> Result<Option<Unflushed>>;
    /// Notes that D1 has this revision of a command, and its audit events, if it `has_events`.
    fn mark_flushed(&mut self, id: Uuid, revision: i64, has_events: bool) -> Result<()>;
    /// Notes that D1 may have lost a command.
    fn mark_unflushed(&mut self, id: Uuid) -> Result<()>;
    /// Accepted commands whose ids come after `after`, in order.
    fn accepted_after(&self, after: &str, limit: u32) -> Result<Vec<StoredCommand>>;
    /// Deletes commands that had ended by `until` and whose latest revision D1 has, with their
    /// output. Returns the ids of those that are deleted entirely, and whether no more is to be
    /// deleted. `at_once` limits one call, in rows and in pages of 4 KiB.
    fn forget(&mut self, ids: &[Uuid], until: Timestamp, at_once: u64)
    -> Result<(Vec<Uuid>, bool)>;

    /// The answer to an Idempotency-Key that has not expired.
    fn answer(&mut self, key: &str, now: Timestamp) -> Result<Option<StoredAnswer>>;
    /// Notes that a key is used for a command. The answer follows.
    fn insert_answer(
        &mut self,
        key: &str,
        body: &str,
        command: Uuid,
        expires_at: Timestamp,
    ) -> Result<()>;
    /// Stores the answer to a key.
    fn set_answer(&mut self, key: &str, answer: &str) -> Result<()>;

    /// Stores a chunk of output once, and returns whether it is new.
    fn add_chunk(&mut self, stored: &StoredCommand, chunk: &Chunk, now: Timestamp) -> Result<bool>;
    /// How many chunks of a command are kept, from a `seq` on.
    fn count_chunks(&self, stored: &StoredCommand, from: u64) -> Result<u64>;
    /// The `seq` of the kept chunk that is `offset` behind the first one from `from` on.
    fn find_chunk(&self, stored: &StoredCommand, from: u64, offset: u64) -> Result<Option<u64>>;
    /// Kept chunks from a `seq` on, in their order.
    fn chunks(&self, stored: &StoredCommand, from: u64, most: Most) -> Result<Vec<Chunk>>;
    /// A command's output, as far as it is known.
    fn output(&self, stored: &StoredCommand) -> Result<Output>;
    /// The SHA-256 of a command's output; `None` while more output is expected. `is_late`: no more
    /// output is waited for.
    fn output_hash(&self, stored: &StoredCommand, is_late: bool) -> Result<Option<String>>;
}
