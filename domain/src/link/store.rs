//! What the machine needs of the object's own storage. Everything that one step writes becomes
//! durable together, or not at all.

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

/// What the storage answers.
pub type Result<T> = std::result::Result<T, Failed>;

/// The answer that a request with an Idempotency-Key had, or will have.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct StoredAnswer {
    /// The hash of its body.
    pub body: String,
    /// The command.
    pub command: Uuid,
    /// The command object that was answered, as JSON; `None` while there is no answer.
    pub answer: Option<String>,
}

/// What D1 does not have of the commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unflushed {
    /// Something that waits for nothing.
    Now,
    /// A report of this moment on a command that is under way: more may follow.
    After(Timestamp),
}

/// How much output is wanted at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Most {
    /// Chunks.
    pub chunks: u64,
    /// Bytes: what exceeds them by less than a chunk is told, too.
    pub bytes: usize,
    /// Whether nothing behind a gap is wanted.
    pub until_gap: bool,
}

/// The object's storage.
pub trait Store {
    /// Stores what is stored beside commands. `is_first`: nothing was stored since the object was
    /// made, or wiped.
    fn save_server(&mut self, server: &ServerState, is_first: bool) -> Result<()>;
    /// What was stored beside commands; `None`: this object was never used, or was wiped.
    fn server(&self) -> Result<Option<ServerState>>;
    /// Forgets everything, the alarm included.
    fn wipe(&mut self) -> Result<()>;

    /// Takes a new command in, which is looked at again at `due_at`.
    fn insert(&mut self, new: &StoredCommand, due_at: Timestamp) -> Result<()>;
    /// Accepts a recorded command, which is no change that D1 is told of.
    fn accept(&mut self, accepted: &StoredCommand, now: Timestamp) -> Result<()>;
    /// Stores a changed command as its next revision.
    fn save(&mut self, changed: &StoredCommand, now: Timestamp) -> Result<()>;
    /// Has a command looked at at another time.
    fn postpone(&mut self, id: Uuid, due_at: Option<Timestamp>) -> Result<()>;
    /// Removes a command, and with it what is to be answered to its Idempotency-Key.
    fn delete(&mut self, id: Uuid) -> Result<()>;
    /// A command.
    fn command(&self, id: Uuid) -> Result<Option<StoredCommand>>;
    /// Whether there is any command.
    fn has_commands(&self) -> Result<bool>;
    /// Commands that wait and may go out, ordered by `scheduled_at`, then id (contract 8, 5).
    fn due_waiting(&self, now: Timestamp, limit: u64) -> Result<Vec<StoredCommand>>;
    /// All commands that wait.
    fn waiting(&self) -> Result<Vec<StoredCommand>>;
    /// All commands that went out and are not over.
    fn open(&self) -> Result<Vec<StoredCommand>>;
    /// How many commands went out and are not over.
    fn count_open(&self) -> Result<u64>;
    /// Commands whose time to be looked at has come, the earliest first.
    fn due(&self, now: Timestamp, limit: u32) -> Result<Vec<StoredCommand>>;
    /// When the next command is to be looked at.
    fn next_due(&self) -> Result<Option<Timestamp>>;
    /// Commands of which D1 does not have the latest. Those under way only if they last reported by
    /// `reported_by`.
    fn unflushed(&self, reported_by: Timestamp, limit: u32) -> Result<Vec<StoredCommand>>;
    /// The most urgent of what D1 does not have.
    fn next_unflushed(&self) -> Result<Option<Unflushed>>;
    /// Notes that D1 has a command as it was told, with its events.
    fn mark_flushed(&mut self, told: &StoredCommand) -> Result<()>;
    /// Notes that D1 may have lost a command.
    fn mark_unflushed(&mut self, id: Uuid) -> Result<()>;
    /// Accepted commands behind one, by their ids.
    fn accepted_after(&self, after: &str, limit: u32) -> Result<Vec<StoredCommand>>;
    /// Removes commands that were over at a moment and of which D1 has the latest, with their
    /// output. Returns those of which nothing is left, and whether that is all that is to go.
    /// `at_once` bounds what is removed, in rows and in pages of 4 KiB.
    fn forget(&mut self, ids: &[Uuid], until: Timestamp, at_once: u64) -> Result<(Vec<Uuid>, bool)>;

    /// The answer to an Idempotency-Key that has not expired.
    fn answer(&mut self, key: &str, now: Timestamp) -> Result<Option<StoredAnswer>>;
    /// Notes that a key is used for a command, whose answer is to come.
    fn insert_answer(&mut self, key: &str, body: &str, command: Uuid, expires_at: Timestamp) -> Result<()>;
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
    /// What is known of a command's output.
    fn output(&self, stored: &StoredCommand) -> Result<Output>;
    /// The SHA-256 of a command's output; `None` while more of it is expected. `is_late`: no more
    /// is waited for.
    fn output_hash(&self, stored: &StoredCommand, is_late: bool) -> Result<Option<String>>;
}
