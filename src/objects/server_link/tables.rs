//! The tables of a server's object, in its own SQLite.

use std::cell::RefCell;
use std::collections::HashMap;

use farhand_domain::audit::Event;
use farhand_domain::chunk_row::ChunkRow;
use farhand_domain::command::{Command, Origin, Output};
use farhand_domain::lifecycle::{End, Lifecycle, State};
use farhand_domain::output::{self, OutputHash};
use farhand_domain::time::Timestamp;
use farhand_domain::wire::Chunk;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use worker::{Error, Result, SqlStorage, SqlStorageValue};

/// The largest piece of a chunk that goes into one row, in bytes: rows hold at most 2 MB.
const MAX_PIECE: usize = 1_000_000;
/// How many rows of chunks a command has at most. Only chunks with gaps between them make so many.
const MAX_CHUNK_ROWS: u64 = 16_384;
/// How long after its end a command's last output may still come, in seconds, if it is not known to be complete.
const SETTLES_WITHIN: i64 = 2;
/// The same if some is known to be missing.
const COMPLETES_WITHIN: i64 = 10;
/// How long after its end a command's output is in the audit log, in seconds.
const HASHED_WITHIN: i64 = 60;
/// How long after its end a command's output is accepted, in seconds.
const OUTPUT_WITHIN: i64 = 24 * 60 * 60;
/// How far beyond the highest `seq` a chunk is accepted after the end, if the agent did not report how many there are.
const LATE_CHUNKS: u64 = 256;

const SCHEMA: [&str; 4] = [
    // One value by name: who this server is, what is known of its host, and counters.
    "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    // What is to be done when, though nothing happens; commands have their own `due_at`.
    "CREATE TABLE IF NOT EXISTS wakes (name TEXT PRIMARY KEY, due_at TEXT NOT NULL) WITHOUT ROWID",
    // Commands. `revision` counts the changes, `flushed` is the revision that D1 has.
    "CREATE TABLE IF NOT EXISTS commands (
        id TEXT PRIMARY KEY,
        workspace_id INTEGER NOT NULL,
        phase TEXT NOT NULL,
        command TEXT NOT NULL,
        life TEXT NOT NULL,
        due_at TEXT,
        revision INTEGER NOT NULL,
        flushed INTEGER NOT NULL,
        result TEXT,
        result_cut INTEGER NOT NULL DEFAULT 0,
        result_bytes INTEGER NOT NULL DEFAULT 0,
        chunk_bytes INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID",
    // Output as it came; a large chunk is in several pieces.
    "CREATE TABLE IF NOT EXISTS chunks (
        command TEXT NOT NULL,
        seq INTEGER NOT NULL,
        piece INTEGER NOT NULL,
        content TEXT NOT NULL,
        PRIMARY KEY (command, seq, piece)
    ) WITHOUT ROWID",
];

/// Serves: what is due, and what D1 does not have yet.
const INDEXES: [&str; 2] = [
    "CREATE INDEX IF NOT EXISTS commands_due ON commands (due_at) WHERE due_at IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS commands_unflushed ON commands (id) WHERE flushed < revision",
];

/// What came after the first version, by the number of the version that it makes.
const CHANGES: [(i64, &[&str]); 4] = [
    (
        2,
        &[
            // What it was requested with, as JSON, and its encrypted inputs until it is delivered or ends.
            "ALTER TABLE commands ADD COLUMN origin TEXT",
            "ALTER TABLE commands ADD COLUMN inputs TEXT",
            // waiting: accepted and not delivered; open: delivered and not over; null: neither.
            "ALTER TABLE commands ADD COLUMN stage TEXT",
            "ALTER TABLE commands ADD COLUMN scheduled_at TEXT NOT NULL DEFAULT ''",
            "UPDATE commands SET stage = 'open' WHERE phase = 'accepted' AND json_extract(life, '$.end') IS NULL",
            // How many chunks came, the highest seq and one, how many there are in all where the agent told it, and when
            // output last came.
            "ALTER TABLE commands ADD COLUMN chunk_count INTEGER NOT NULL DEFAULT 0",
            "ALTER TABLE commands ADD COLUMN chunk_top INTEGER NOT NULL DEFAULT 0",
            "ALTER TABLE commands ADD COLUMN chunk_total INTEGER",
            "ALTER TABLE commands ADD COLUMN output_at TEXT",
            // 0: its content was more than is kept.
            "ALTER TABLE chunks ADD COLUMN kept INTEGER NOT NULL DEFAULT 1",
            // Serves: the queue in its order, and the number of commands that the agent has.
            "CREATE INDEX commands_stage ON commands (stage, scheduled_at, id) WHERE stage IS NOT NULL",
            // The first answers to requests with an Idempotency-Key; null while the request is under way.
            "CREATE TABLE answers (
            key TEXT PRIMARY KEY, body TEXT NOT NULL, command TEXT NOT NULL, answer TEXT, expires_at TEXT NOT NULL
        ) WITHOUT ROWID",
            // Serves: clearing away what expired.
            "CREATE INDEX answers_by_expiry ON answers (expires_at)",
        ],
    ),
    (
        3,
        &[
            // Bytes of the chunks that are kept, and the lowest seq that is not.
            "ALTER TABLE commands ADD COLUMN kept_bytes INTEGER NOT NULL DEFAULT 0",
            "ALTER TABLE commands ADD COLUMN cut_at INTEGER",
            "UPDATE commands SET
            chunk_count = (SELECT count(*) FROM chunks c WHERE c.command = commands.id AND c.piece = 0),
            chunk_top = coalesce((SELECT max(c.seq) + 1 FROM chunks c WHERE c.command = commands.id), 0),
            kept_bytes = coalesce((SELECT sum(length(CAST(c.content AS BLOB))) FROM chunks c
                WHERE c.command = commands.id), 0),
            cut_at = (SELECT min(c.seq) FROM chunks c WHERE c.command = commands.id AND c.kept = 0)",
            "ALTER TABLE chunks DROP COLUMN kept",
            // Serves: the end of a command that was withdrawn.
            "CREATE INDEX answers_by_command ON answers (command)",
        ],
    ),
    (
        4,
        &[
            // What happened to the command that D1 has no audit event of, as a JSON array; null: nothing.
            "ALTER TABLE commands ADD COLUMN events TEXT",
        ],
    ),
    (
        5,
        &[
            // Output in rows of consecutive chunks (`ChunkRow`), from the seq `first` to the one before `next`: the lengths of the
            // chunks, their bytes in all, the bytes that are kept, and the content of these. Content that is larger than a row can
            // be is in several pieces; the numbers are with the first one.
            "DROP TABLE chunks",
            "CREATE TABLE chunks (
                command TEXT NOT NULL,
                first INTEGER NOT NULL,
                piece INTEGER NOT NULL,
                next INTEGER NOT NULL,
                bytes INTEGER NOT NULL,
                kept INTEGER NOT NULL,
                lengths TEXT NOT NULL,
                content TEXT NOT NULL,
                PRIMARY KEY (command, first, piece)
            ) WITHOUT ROWID",
            // 1: the audit log has its end, and not its output yet.
            "ALTER TABLE commands ADD COLUMN lacks_hash INTEGER NOT NULL DEFAULT 0",
            // The rows of its chunks have these.
            "ALTER TABLE commands DROP COLUMN chunk_bytes",
            "ALTER TABLE commands DROP COLUMN chunk_count",
            "ALTER TABLE commands DROP COLUMN chunk_top",
            "ALTER TABLE commands DROP COLUMN kept_bytes",
        ],
    ),
];

/// The name of the fact that tells the version of the tables.
const VERSION: &str = "tables_version";

/// Where a command is between the client's request and the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Being written to D1; the client has no answer yet.
    Recording,
    /// Accepted.
    Accepted,
    /// Not accepted after all, and perhaps still in D1.
    Withdrawing,
}

impl Phase {
    fn as_str(self) -> &'static str {
        match self {
            Self::Recording => "recording",
            Self::Accepted => "accepted",
            Self::Withdrawing => "withdrawing",
        }
    }
}

/// A stored row of chunks, or a piece of one.
#[derive(Deserialize)]
struct ChunkPiece {
    first: f64,
    lengths: String,
    content: String,
}

/// Puts the pieces of rows together.
fn whole_rows(pieces: impl Iterator<Item = Result<ChunkPiece>>) -> impl Iterator<Item = Result<ChunkRow>> {
    let mut pieces = pieces.peekable();
    std::iter::from_fn(move || {
        let ChunkPiece { first, lengths, mut content } = match pieces.next()? {
            Ok(piece) => piece,
            Err(error) => return Some(Err(error)),
        };
        while let Some(Ok(more)) = pieces.next_if(|next| next.as_ref().is_ok_and(|next| next.first == first)) {
            content.push_str(&more.content);
        }
        Some(Ok(ChunkRow::stored(first as u64, &lengths, content)))
    })
}

/// A command in the object.
#[derive(Clone, Debug)]
pub struct Held {
    /// The workspace.
    pub workspace_id: i64,
    /// Where it is on its way to the agent.
    pub phase: Phase,
    /// What it is.
    pub command: Command,
    /// Where it is in its life.
    pub life: Lifecycle,
    /// Counts its changes.
    pub revision: i64,
    /// The agent's result, cut.
    pub result: Option<String>,
    /// Whether that was cut.
    pub result_cut: bool,
    /// Bytes of the agent's result before the cut.
    pub result_bytes: u64,
    /// Bytes of its chunks.
    pub chunk_bytes: u64,
    /// What it was asked for with. Commands of earlier versions, which all went out, have none.
    pub origin: Option<Origin>,
    /// Its inputs, encrypted under `SECRET_KEY`, until the command is delivered or ends.
    pub inputs: Option<String>,
    /// How many chunks came.
    pub chunk_count: u64,
    /// The highest `seq` of its chunks, and one.
    pub chunk_top: u64,
    /// How many chunks there are in all, where the agent told it.
    pub chunk_total: Option<u64>,
    /// When output last came after its end, the end included.
    pub output_at: Option<Timestamp>,
    /// Whether D1 has its latest.
    pub is_flushed: bool,
    /// Whether the audit log has its end, and not its output yet.
    pub lacks_hash: bool,
    /// Bytes of its chunks that are kept.
    kept_bytes: u64,
    /// Rows of its chunks.
    chunk_rows: u64,
    /// The lowest `seq` that is not kept, as what comes before is all that is.
    cut_at: Option<u64>,
    /// What happened to it that D1 has no audit event of.
    pub events: Vec<Happened>,
}

/// Something that happened to a command, for the audit log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Happened {
    /// The command's revision that came of it. D1 has the event if it has that revision.
    pub revision: i64,
    /// The event.
    pub event: Event,
}

impl Held {
    /// The length of its whole output, as far as it is known.
    pub fn output_bytes(&self) -> u64 {
        self.chunk_bytes.max(self.result_bytes)
    }

    /// Whether a chunk is missing before one that came.
    pub fn has_gap(&self) -> bool {
        self.chunk_count < self.chunk_top
    }

    /// Whether a chunk that comes now is part of its output (contract 11, Running). Later ones could rewrite history.
    pub fn takes_chunk(&self, seq: u64, now: Timestamp) -> bool {
        if self.life.delivered_at.is_none() {
            return false;
        }
        let Some(handled_at) = self.life.handled_at else { return true };
        let end = self.chunk_total.unwrap_or(self.chunk_top + LATE_CHUNKS);
        handled_at.plus_seconds(OUTPUT_WITHIN) > now && seq < end
    }

    /// From when on no more of its output is waited for; `None` while it may run.
    ///
    /// An agent's reports can overtake each other: its fin may come before its last chunks (agent-protocol 4). If it reports how
    /// many there are, or what came is as long as its result, that is all. Else what comes shortly after still counts.
    pub fn settles_at(&self) -> Option<Timestamp> {
        let handled_at = self.life.handled_at?;
        let ended = self.output_at.unwrap_or(handled_at).max(handled_at);
        let misses_some = self.has_gap()
            || self.chunk_bytes < self.result_bytes
            || self.chunk_total.is_some_and(|total| self.chunk_count < total);
        Some(match (self.has_all_chunks(), misses_some) {
            (true, _) => handled_at,
            (false, true) => ended.plus_seconds(COMPLETES_WITHIN),
            (false, false) => ended.plus_seconds(SETTLES_WITHIN),
        })
    }

    /// Whether all chunks are known to be there.
    fn has_all_chunks(&self) -> bool {
        match (self.life.outcome(), self.chunk_total) {
            (None, _) => self.life.handled_at.is_some() && self.life.delivered_at.is_none(),
            (Some(_), Some(total)) => self.chunk_count >= total,
            // An agent that reports no result may still send what it would have been.
            (Some(_), None) => !self.has_gap() && self.result.is_some() && self.chunk_bytes == self.result_bytes,
        }
    }

    /// When the audit log gets the hash of its output, if it lacks that.
    pub fn hash_due_at(&self) -> Option<Timestamp> {
        let latest = self.life.handled_at?.plus_seconds(HASHED_WITHIN);
        self.settles_at().map(|at| at.min(latest)).filter(|_| self.lacks_hash)
    }

    /// Whether output of a command that ended is known, or likely, to be on its way still.
    pub fn awaits_output(&self) -> bool {
        let Some(_) = self.life.outcome() else { return false };
        match self.chunk_total {
            Some(total) => self.chunk_count < total,
            // A result that the agent cut says nothing about how much there was.
            None => self.has_gap() || (self.result_bytes >= AGENT_CUT && self.chunk_bytes != self.result_bytes),
        }
    }

    /// Whether the chunks that are kept are known to be less than the whole output.
    pub fn lacks_output(&self) -> bool {
        let are_missing = match self.chunk_total {
            Some(total) => self.chunk_count < total,
            None => self.chunk_bytes < self.result_bytes,
        };
        self.cut_at.is_some() || self.has_gap() || are_missing
    }

    /// The `seq` at which the chunks that came and are kept end.
    fn kept_end(&self) -> u64 {
        self.cut_at.map_or(self.chunk_top, |cut_at| cut_at.min(self.chunk_top))
    }

    /// Notes something for the audit log that happened to it, and is saved with it.
    pub fn note(&mut self, event: Event) {
        self.events.push(Happened { revision: self.revision + 1, event });
    }

    /// Where it is in the queue's eyes.
    fn stage(&self) -> Option<&'static str> {
        match self.life.state() {
            State::Waiting if self.phase == Phase::Accepted => Some(WAITING),
            State::Sent | State::Acked => Some(OPEN),
            _ => None,
        }
    }
}

/// The stage of accepted commands that were not delivered.
const WAITING: &str = "waiting";
/// The stage of delivered commands that are not over.
const OPEN: &str = "open";

/// From how many bytes on a result may be cut by its agent: agents cut it to about 1 MiB.
const AGENT_CUT: u64 = 1_000_000;

/// SQL for when something was last heard of a command that is under way: it was acknowledged, or else went out.
const LAST_REPORT: &str = "coalesce(life ->> 'acked_at', life ->> 'delivered_at')";

/// What D1 does not have of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unflushed {
    /// Something that nothing is waited for with.
    Now,
    /// That something was heard of it then; it is under way, and more may come.
    After(Timestamp),
}

/// A new command, as the tables take it in.
pub struct NewHeld<'a> {
    /// The workspace.
    pub workspace_id: i64,
    /// What it is.
    pub command: &'a Command,
    /// Where it begins.
    pub life: &'a Lifecycle,
    /// What it was asked for with.
    pub origin: &'a Origin,
    /// Its inputs, encrypted.
    pub inputs: Option<&'a str>,
    /// When it is looked at again if nobody finishes recording it.
    pub due_at: Timestamp,
}

/// The answer that a request with an Idempotency-Key had, or will have.
#[derive(Deserialize)]
pub struct StoredAnswer {
    /// The hash of its body.
    pub body: String,
    /// The command.
    pub command: Uuid,
    /// The answer, once there is one.
    pub answer: Option<String>,
}

/// How much output is wanted at once.
#[derive(Clone, Copy)]
pub struct Most {
    /// So many chunks.
    pub chunks: u64,
    /// Not many more than so many bytes.
    pub bytes: usize,
    /// None after a gap.
    pub until_gap: bool,
}

#[derive(Deserialize)]
struct HeldRow {
    workspace_id: f64,
    phase: Phase,
    command: String,
    life: String,
    revision: f64,
    result: Option<String>,
    result_cut: f64,
    result_bytes: f64,
    origin: Option<String>,
    inputs: Option<String>,
    chunk_total: Option<f64>,
    output_at: Option<Timestamp>,
    is_flushed: f64,
    lacks_hash: f64,
    /// Rows, bytes, chunks, the highest `seq` and one, kept bytes.
    chunks: String,
    cut_at: Option<f64>,
    events: Option<String>,
}

impl TryFrom<HeldRow> for Held {
    type Error = Error;

    fn try_from(row: HeldRow) -> Result<Self> {
        let [chunk_rows, chunk_bytes, chunk_count, chunk_top, kept_bytes] = serde_json::from_str(&row.chunks)?;
        Ok(Self {
            workspace_id: row.workspace_id as i64,
            phase: row.phase,
            command: serde_json::from_str(&row.command)?,
            life: serde_json::from_str(&row.life)?,
            revision: row.revision as i64,
            result: row.result,
            result_cut: row.result_cut != 0.0,
            result_bytes: row.result_bytes as u64,
            chunk_bytes,
            origin: row.origin.as_deref().map(serde_json::from_str).transpose()?,
            inputs: row.inputs,
            chunk_count,
            chunk_top,
            chunk_total: row.chunk_total.map(|total| total as u64),
            output_at: row.output_at,
            is_flushed: row.is_flushed != 0.0,
            lacks_hash: row.lacks_hash != 0.0,
            kept_bytes,
            chunk_rows,
            cut_at: row.cut_at.map(|seq| seq as u64),
            events: row.events.as_deref().map(serde_json::from_str).transpose()?.unwrap_or_default(),
        })
    }
}

const HELD: &str = "SELECT workspace_id, phase, command, life, revision, result, result_cut, result_bytes,
    origin, inputs, chunk_total, output_at, flushed >= revision AS is_flushed, lacks_hash, cut_at, events,
    (SELECT json_array(count(*), coalesce(sum(bytes), 0), coalesce(sum(next - first), 0), coalesce(max(next), 0),
        coalesce(sum(kept), 0)) FROM chunks c WHERE c.command = commands.id AND c.piece = 0) AS chunks FROM commands";

/// The object's tables. Nobody else writes them, and where a write does not become durable the platform ends the object: so
/// what was read of the facts and wakes is true as long as the object is in memory.
pub struct Tables {
    sql: SqlStorage,
    /// Facts that were read or written, as they are stored; `None` where there is none.
    facts: RefCell<HashMap<String, Option<String>>>,
    /// All wakes, once they were read.
    wakes: RefCell<Option<HashMap<String, Timestamp>>>,
}

fn text(value: impl ToString) -> SqlStorageValue {
    SqlStorageValue::String(value.to_string())
}

fn integer(value: u64) -> SqlStorageValue {
    SqlStorageValue::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}

impl Tables {
    /// Those in an object's database, which may not be there yet.
    pub fn new(sql: SqlStorage) -> Self {
        Self { sql, facts: RefCell::default(), wakes: RefCell::default() }
    }

    /// Everything was deleted.
    pub fn drop_copies(&self) {
        self.facts.borrow_mut().clear();
        *self.wakes.borrow_mut() = None;
    }

    fn exec(&self, sql: &str, parameters: Vec<SqlStorageValue>) -> Result<()> {
        self.sql.exec(sql, parameters)?.to_array::<serde_json::Value>()?;
        Ok(())
    }

    /// As in D1, no parameter stands alone after a LIMIT (`db::Statement::new`).
    fn rows<T: DeserializeOwned>(&self, sql: &str, parameters: Vec<SqlStorageValue>) -> Result<Vec<T>> {
        self.sql.exec(sql, parameters)?.to_array()
    }

    /// Whether the tables are there: an object that nobody ever used has none. Those of an earlier version are brought up
    /// to date.
    pub fn exist(&self) -> Result<bool> {
        let found: Vec<serde_json::Value> = self.rows("SELECT name FROM sqlite_master WHERE name = 'facts'", vec![])?;
        if found.is_empty() {
            return Ok(false);
        }
        let version = self.fact::<i64>(VERSION)?.unwrap_or(1);
        for (number, statements) in CHANGES.iter().filter(|(number, _)| *number > version) {
            statements.iter().try_for_each(|sql| self.exec(sql, vec![]))?;
            self.set_fact(VERSION, number)?;
        }
        Ok(true)
    }

    /// Makes the tables.
    pub fn create(&self) -> Result<()> {
        SCHEMA.iter().chain(&INDEXES).try_for_each(|sql| self.exec(sql, vec![]))?;
        self.exist().map(drop)
    }

    /// A value by name.
    pub fn fact<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        #[derive(Deserialize)]
        struct Row {
            value: String,
        }
        if !self.facts.borrow().contains_key(name) {
            let rows: Vec<Row> = self.rows("SELECT value FROM facts WHERE name = ?", vec![text(name)])?;
            let value = rows.into_iter().next().map(|row| row.value);
            self.facts.borrow_mut().insert(name.to_owned(), value);
        }
        let facts = self.facts.borrow();
        let value = facts.get(name).and_then(Option::as_deref);
        value.map(serde_json::from_str).transpose().map_err(Error::from)
    }

    /// Sets a value by name.
    pub fn set_fact(&self, name: &str, value: &impl Serialize) -> Result<()> {
        let sql = "INSERT INTO facts (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = ?2";
        let value = serde_json::to_string(value)?;
        self.exec(sql, vec![text(name), text(&value)])?;
        self.facts.borrow_mut().insert(name.to_owned(), Some(value));
        Ok(())
    }

    /// Forgets a value by name.
    pub fn delete_fact(&self, name: &str) -> Result<()> {
        self.exec("DELETE FROM facts WHERE name = ?", vec![text(name)])?;
        self.facts.borrow_mut().insert(name.to_owned(), None);
        Ok(())
    }

    /// Does something with all wakes.
    fn with_wakes<T>(&self, work: impl FnOnce(&mut HashMap<String, Timestamp>) -> T) -> Result<T> {
        #[derive(Deserialize)]
        struct Row {
            name: String,
            due_at: Timestamp,
        }
        if self.wakes.borrow().is_none() {
            let rows: Vec<Row> = self.rows("SELECT name, due_at FROM wakes", vec![])?;
            *self.wakes.borrow_mut() = Some(rows.into_iter().map(|row| (row.name, row.due_at)).collect());
        }
        Ok(work(self.wakes.borrow_mut().get_or_insert_default()))
    }

    /// When a wake is due.
    pub fn wake(&self, name: &str) -> Result<Option<Timestamp>> {
        self.with_wakes(|wakes| wakes.get(name).copied())
    }

    /// Sets or clears a wake.
    pub fn set_wake(&self, name: &str, due_at: Option<Timestamp>) -> Result<()> {
        if self.wake(name)? == due_at {
            return Ok(());
        }
        match due_at {
            None => self.exec("DELETE FROM wakes WHERE name = ?", vec![text(name)])?,
            Some(due_at) => {
                let sql =
                    "INSERT INTO wakes (name, due_at) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET due_at = ?2";
                self.exec(sql, vec![text(name), text(due_at)])?;
            }
        }
        self.with_wakes(|wakes| match due_at {
            None => wakes.remove(name),
            Some(due_at) => wakes.insert(name.to_owned(), due_at),
        })?;
        Ok(())
    }

    /// When the next thing is due: a wake or a command.
    pub fn next_due(&self) -> Result<Option<Timestamp>> {
        #[derive(Deserialize)]
        struct Row {
            due_at: Option<Timestamp>,
        }
        let rows: Vec<Row> =
            self.rows("SELECT min(due_at) AS due_at FROM commands WHERE due_at IS NOT NULL", vec![])?;
        let command = rows.first().and_then(|row| row.due_at);
        let wake = self.with_wakes(|wakes| wakes.values().min().copied())?;
        Ok(command.into_iter().chain(wake).min())
    }

    /// Takes a new command in.
    pub fn insert_command(&self, new: &NewHeld<'_>) -> Result<()> {
        let sql =
            "INSERT INTO commands (id, workspace_id, phase, command, life, due_at, revision, flushed, origin, inputs,
            scheduled_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1, 1, ?7, ?8, ?9)";
        let parameters = vec![
            text(new.command.id),
            SqlStorageValue::Integer(new.workspace_id),
            text(Phase::Recording.as_str()),
            text(serde_json::to_string(new.command)?),
            text(serde_json::to_string(new.life)?),
            text(new.due_at),
            text(serde_json::to_string(new.origin)?),
            new.inputs.map_or(SqlStorageValue::Null, text),
            text(new.life.scheduled_at),
        ];
        self.exec(sql, parameters)
    }

    /// Accepts a recorded command, which is no change that D1 need hear of.
    pub fn accept(&self, held: &Held, now: Timestamp) -> Result<()> {
        let accepted = Held { phase: Phase::Accepted, ..held.clone() };
        let parameters = vec![
            text(held.command.id),
            text(accepted.phase.as_str()),
            accepted.stage().map_or(SqlStorageValue::Null, text),
            accepted.life.deadline(now).map_or(SqlStorageValue::Null, text),
        ];
        self.exec("UPDATE commands SET phase = ?2, stage = ?3, due_at = ?4 WHERE id = ?1", parameters)
    }

    /// Commands that wait to go out, in their order (contract 8, 5).
    pub fn due_waiting(&self, now: Timestamp, limit: u64) -> Result<Vec<Held>> {
        let found = self.held(
            "stage = ? AND scheduled_at <= ? ORDER BY scheduled_at, id LIMIT ? + 0",
            vec![text(WAITING), text(now), integer(limit)],
        )?;
        Ok(found.into_iter().filter(|held| held.life.is_due(now)).collect())
    }

    /// All commands that wait to go out, now or later.
    pub fn waiting_commands(&self) -> Result<Vec<Held>> {
        self.held("stage = ?", vec![text(WAITING)])
    }

    /// Commands that the agent has and has not ended.
    pub fn open_commands(&self) -> Result<Vec<Held>> {
        self.held("stage = ?", vec![text(OPEN)])
    }

    /// Whether there are no commands.
    pub fn has_no_commands(&self) -> Result<bool> {
        Ok(self.count("SELECT count(*) AS number FROM (SELECT 1 FROM commands LIMIT 1)", vec![])? == 0)
    }

    /// Whether a new command would go out at once: nothing that is due waits, and the agent has fewer than so many.
    pub fn has_room(&self, now: Timestamp, window: u64) -> Result<bool> {
        let sql = "SELECT NOT EXISTS (SELECT 1 FROM commands WHERE stage = ?1 AND scheduled_at <= ?2)
            AND (SELECT count(*) FROM commands WHERE stage = ?3) < ?4 AS number";
        Ok(self.count(sql, vec![text(WAITING), text(now), text(OPEN), integer(window)])? > 0)
    }

    /// How many commands the agent has and has not ended.
    pub fn count_open(&self) -> Result<u64> {
        self.count("SELECT count(*) AS number FROM commands WHERE stage = ?", vec![text(OPEN)])
    }

    fn count(&self, sql: &str, parameters: Vec<SqlStorageValue>) -> Result<u64> {
        #[derive(Deserialize)]
        struct Row {
            number: f64,
        }
        let rows: Vec<Row> = self.rows(sql, parameters)?;
        Ok(rows.first().map_or(0, |row| row.number as u64))
    }

    /// The answer to an Idempotency-Key, if it was used lately.
    pub fn answer(&self, key: &str, now: Timestamp) -> Result<Option<StoredAnswer>> {
        self.exec("DELETE FROM answers WHERE expires_at <= ?", vec![text(now)])?;
        let sql = "SELECT body, command, answer FROM answers WHERE key = ?";
        Ok(self.rows(sql, vec![text(key)])?.into_iter().next())
    }

    /// Notes that a key is used for a command, whose answer is to come.
    pub fn insert_answer(&self, key: &str, body: &str, command: Uuid, expires_at: Timestamp) -> Result<()> {
        let sql = "INSERT OR REPLACE INTO answers (key, body, command, expires_at) VALUES (?, ?, ?, ?)";
        self.exec(sql, vec![text(key), text(body), text(command), text(expires_at)])
    }

    /// Stores the answer to a key.
    pub fn set_answer(&self, key: &str, answer: &str) -> Result<()> {
        self.exec("UPDATE answers SET answer = ?2 WHERE key = ?1", vec![text(key), text(answer)])
    }

    fn held(&self, condition: &str, parameters: Vec<SqlStorageValue>) -> Result<Vec<Held>> {
        let rows: Vec<HeldRow> = self.rows(&format!("{HELD} WHERE {condition}"), parameters)?;
        rows.into_iter().map(Held::try_from).collect()
    }

    /// A command.
    pub fn command(&self, id: Uuid) -> Result<Option<Held>> {
        Ok(self.held("id = ?", vec![text(id)])?.into_iter().next())
    }

    /// Commands whose time has come, the earliest first.
    pub fn due_commands(&self, now: Timestamp, limit: u32) -> Result<Vec<Held>> {
        let parameters = vec![text(now), SqlStorageValue::Integer(limit.into())];
        self.held("due_at <= ? ORDER BY due_at, id LIMIT ? + 0", parameters)
    }

    /// Commands of which D1 does not have the latest; of those that are under way, whose last report came by `reported_by`.
    pub fn unflushed_commands(&self, reported_by: Timestamp, limit: u32) -> Result<Vec<Held>> {
        let condition = format!("flushed < revision AND (stage IS NOT ? OR {LAST_REPORT} <= ?) LIMIT ? + 0");
        self.held(&condition, vec![text(OPEN), text(reported_by), SqlStorageValue::Integer(limit.into())])
    }

    /// The most urgent of what D1 does not have of commands.
    pub fn next_unflushed(&self) -> Result<Option<Unflushed>> {
        #[derive(Deserialize)]
        struct Row {
            waits: Option<f64>,
            report: Option<Timestamp>,
        }
        let sql = format!(
            "SELECT min(stage IS ?1) AS waits, min(iif(stage IS ?1, {LAST_REPORT}, NULL)) AS report
             FROM commands WHERE flushed < revision"
        );
        let rows: Vec<Row> = self.rows(&sql, vec![text(OPEN)])?;
        Ok(rows.first().and_then(|row| match row.waits? {
            0.0 => Some(Unflushed::Now),
            _ => row.report.map(Unflushed::After),
        }))
    }

    /// Stores what changed of a command, as another revision. `is_told`: D1 has it already, and lacked nothing before.
    pub fn save(&self, held: &Held, now: Timestamp, is_told: bool) -> Result<()> {
        let is_accepted = held.phase == Phase::Accepted;
        let due_at = held.life.deadline(now).or_else(|| held.hash_due_at()).filter(|_| is_accepted);
        // It went out, or never will: nobody needs it any more.
        let is_waiting = held.life.state() == State::Waiting;
        let inputs = held.inputs.clone().filter(|_| is_waiting);
        let events = (!held.events.is_empty()).then(|| serde_json::to_string(&held.events)).transpose()?;
        let sql = "UPDATE commands SET phase = ?2, life = ?3, due_at = ?4, revision = revision + 1,
            result = ?5, result_cut = ?6, result_bytes = ?7, inputs = ?8, stage = ?9, chunk_total = ?10, output_at = ?11,
            flushed = flushed + ?12, events = ?13, lacks_hash = ?14
            WHERE id = ?1";
        let parameters = vec![
            text(held.command.id),
            text(held.phase.as_str()),
            text(serde_json::to_string(&held.life)?),
            due_at.map_or(SqlStorageValue::Null, text),
            held.result.clone().into(),
            integer(u64::from(held.result_cut)),
            integer(held.result_bytes),
            inputs.into(),
            held.stage().map_or(SqlStorageValue::Null, text),
            held.chunk_total.map_or(SqlStorageValue::Null, integer),
            held.output_at.map_or(SqlStorageValue::Null, text),
            integer(u64::from(is_told)),
            events.into(),
            integer(u64::from(held.lacks_hash)),
        ];
        self.exec(sql, parameters)
    }

    /// Has a command looked at later.
    pub fn postpone(&self, id: Uuid, due_at: Option<Timestamp>) -> Result<()> {
        let due_at = due_at.map_or(SqlStorageValue::Null, text);
        self.exec("UPDATE commands SET due_at = ?2 WHERE id = ?1", vec![text(id), due_at])
    }

    /// Accepted commands after one, by their ids.
    pub fn accepted_after(&self, after: &str, limit: u32) -> Result<Vec<Held>> {
        let parameters = vec![text(Phase::Accepted.as_str()), text(after), SqlStorageValue::Integer(limit.into())];
        self.held("phase = ? AND id > ? ORDER BY id LIMIT ? + 0", parameters)
    }

    /// Notes that D1 may have an older revision of a command than it had.
    pub fn mark_unflushed(&self, id: Uuid) -> Result<()> {
        self.exec("UPDATE commands SET flushed = 0 WHERE id = ?", vec![text(id)])
    }

    /// Notes that D1 has a revision of a command, and with it the events up to that.
    pub fn mark_flushed(&self, held: &Held) -> Result<()> {
        let sql = "UPDATE commands SET flushed = max(flushed, ?2), events = (SELECT nullif(json_group_array(json(value)), '[]')
            FROM json_each(events) WHERE value ->> 'revision' > ?2) WHERE id = ?1";
        self.exec(sql, vec![text(held.command.id), SqlStorageValue::Integer(held.revision)])
    }

    /// Removes a command, and with it what was to be answered to its key.
    pub fn delete_command(&self, id: Uuid) -> Result<()> {
        self.exec("DELETE FROM answers WHERE command = ?", vec![text(id)])?;
        self.exec("DELETE FROM commands WHERE id = ?", vec![text(id)])
    }

    /// Removes commands that were over at a moment and of which D1 has the latest, with their output. Returns those of which
    /// nothing is left, and whether that is all that is to go: `at_once` bounds what is removed, in rows and in pages of 4 KiB.
    pub fn forget(&self, ids: &[Uuid], until: Timestamp, at_once: u64) -> Result<(Vec<Uuid>, bool)> {
        #[derive(Deserialize)]
        struct Row {
            id: Uuid,
            is_due: f64,
            kept_bytes: f64,
        }
        let sql = "SELECT id, (SELECT coalesce(sum(kept), 0) FROM chunks c WHERE c.command = commands.id) AS kept_bytes, phase = 'accepted' AND flushed >= revision
                AND coalesce(life ->> 'handled_at' <= ?2, 0) AS is_due
            FROM commands WHERE id IN (SELECT value FROM json_each(?1))";
        let rows: Vec<Row> = self.rows(sql, vec![text(serde_json::to_string(ids)?), text(until)])?;
        let (mut forgotten, mut left) = (Vec::new(), at_once);
        for id in ids {
            if let Some(row) = rows.iter().find(|row| row.id == *id) {
                if row.is_due == 0.0 {
                    continue;
                }
                if left == 0 {
                    return Ok((forgotten, false));
                }
                let removed = self.delete_chunks(*id, left)?;
                left = left.saturating_sub(removed + row.kept_bytes as u64 / 4096 + 1);
                if self.has_chunks(*id)? {
                    return Ok((forgotten, false));
                }
                self.delete_command(*id)?;
            }
            forgotten.push(*id);
        }
        Ok((forgotten, true))
    }

    /// Removes chunks of a command, the first ones, and tells how many rows that were: at most so many, but for the pieces of
    /// the last.
    fn delete_chunks(&self, id: Uuid, most: u64) -> Result<u64> {
        let sql = "SELECT count(*) AS number FROM (SELECT 1 FROM chunks WHERE command = ? LIMIT ? + 0)";
        let number = self.count(sql, vec![text(id), integer(most)])?;
        let sql = "DELETE FROM chunks WHERE command = ?1
            AND first <= (SELECT max(first) FROM (SELECT first FROM chunks WHERE command = ?1 ORDER BY first LIMIT ?2 + 0))";
        self.exec(sql, vec![text(id), integer(most)])?;
        Ok(number)
    }

    fn has_chunks(&self, id: Uuid) -> Result<bool> {
        let sql = "SELECT count(*) AS number FROM (SELECT 1 FROM chunks WHERE command = ? LIMIT 1)";
        Ok(self.count(sql, vec![text(id)])? > 0)
    }

    /// Stores a chunk of output, once. Of all the output its beginning is kept: if a chunk comes late, the last ones give way to
    /// it. Of what is not kept, only the length is counted. Returns whether the chunk is new.
    pub fn add_chunk(&self, held: &Held, chunk: &Chunk, now: Timestamp) -> Result<bool> {
        let (id, seq) = (held.command.id, u64::from(chunk.seq));
        let before = self.chunk_row(id, "first <= ?2 ORDER BY first DESC", seq)?;
        if before.as_ref().is_some_and(|row| seq < row.end()) {
            return Ok(false);
        }
        let new = ChunkRow::new(seq, &chunk.content, held.cut_at.is_none_or(|cut_at| seq < cut_at));
        let mut kept_bytes = held.kept_bytes + new.content.len() as u64;
        let mut row = match before {
            Some(mut row) if row.has_room_for(&new) => {
                row.append(&new);
                row
            }
            _ if held.chunk_rows >= MAX_CHUNK_ROWS => return Ok(false),
            _ => new,
        };
        // It may fill a gap.
        let after = if row.end() < held.chunk_top { self.chunk_row(id, "first = ?2", row.end())? } else { None };
        if let Some(after) = after.filter(|after| row.has_room_for(after)) {
            self.exec("DELETE FROM chunks WHERE command = ? AND first = ?", vec![text(id), integer(after.first)])?;
            row.append(&after);
        }
        self.store_chunks(id, &row)?;
        let mut cut_at = held.cut_at;
        while kept_bytes > output::MAX_KEPT {
            let end = cut_at.unwrap_or(1 << 32);
            let Some(mut last) = self.chunk_row(id, "first < ?2 ORDER BY first DESC", end)? else { break };
            while kept_bytes > output::MAX_KEPT
                && let Some((seq, bytes)) = last.drop_last(cut_at.unwrap_or(1 << 32))
            {
                kept_bytes = kept_bytes.saturating_sub(bytes);
                cut_at = Some(seq);
            }
            self.store_chunks(id, &last)?;
        }
        let is_over = held.life.outcome().is_some();
        if is_over || cut_at != held.cut_at {
            let sql = "UPDATE commands SET revision = revision + ?2, output_at = iif(?2, ?3, output_at), cut_at = ?4 WHERE id = ?1";
            let cut_at = cut_at.map_or(SqlStorageValue::Null, integer);
            self.exec(sql, vec![text(id), integer(u64::from(is_over)), text(now), cut_at])?;
        }
        Ok(true)
    }

    /// The first row of a command's chunks for which a condition on `?2` is true.
    fn chunk_row(&self, id: Uuid, condition: &str, seq: u64) -> Result<Option<ChunkRow>> {
        let sql = format!(
            "SELECT first, lengths, content FROM chunks WHERE command = ?1 AND first = (
                SELECT first FROM chunks WHERE command = ?1 AND piece = 0 AND {condition} LIMIT 1) ORDER BY piece"
        );
        let rows: Vec<ChunkPiece> = self.rows(&sql, vec![text(id), integer(seq)])?;
        whole_rows(rows.into_iter().map(Ok)).next().transpose()
    }

    /// Stores a row of chunks, in place of the one that begins with the same chunk.
    fn store_chunks(&self, id: Uuid, row: &ChunkRow) -> Result<()> {
        let mut rest = row.content.as_str();
        let mut piece = 0;
        loop {
            let (this, after) = rest.split_at(rest.floor_char_boundary(MAX_PIECE));
            let parameters = vec![
                text(id),
                integer(row.first),
                integer(piece),
                integer(row.end()),
                integer(if piece == 0 { row.bytes() } else { 0 }),
                integer(if piece == 0 { row.content.len() as u64 } else { 0 }),
                text(row.lengths()),
                text(this),
            ];
            let sql = "INSERT INTO chunks (command, first, piece, next, bytes, kept, lengths, content)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (command, first, piece)
                DO UPDATE SET next = ?4, bytes = ?5, kept = ?6, lengths = ?7, content = ?8";
            self.exec(sql, parameters)?;
            piece += 1;
            if after.is_empty() {
                break;
            }
            rest = after;
        }
        // Only content that was larger had more pieces.
        if row.bytes() > MAX_PIECE as u64 {
            let sql = "DELETE FROM chunks WHERE command = ? AND first = ? AND piece >= ?";
            self.exec(sql, vec![text(id), integer(row.first), integer(piece)])?;
        }
        Ok(())
    }

    /// The ranges of `seq` that a command's chunks have and that are kept, from a `seq` on.
    fn chunk_ranges(&self, held: &Held, from: u64) -> Result<Vec<(u64, u64)>> {
        #[derive(Deserialize)]
        struct Row {
            first: f64,
            next: f64,
        }
        let end = held.kept_end();
        let sql = "SELECT first, next FROM chunks WHERE command = ?1 AND piece = 0 AND next > ?2 AND first < ?3 ORDER BY first";
        let rows: Vec<Row> = self.rows(sql, vec![text(held.command.id), integer(from), integer(end)])?;
        Ok(rows.iter().map(|row| ((row.first as u64).max(from), (row.next as u64).min(end))).collect())
    }

    /// How many chunks of a command are kept, from a `seq` on.
    pub fn count_chunks(&self, held: &Held, from: u64) -> Result<u64> {
        if !held.has_gap() {
            return Ok(held.kept_end().saturating_sub(from));
        }
        Ok(self.chunk_ranges(held, from)?.iter().map(|(first, end)| end - first).sum())
    }

    /// The `seq` of the chunk that is so many after the first one that is kept from a `seq` on.
    pub fn find_chunk(&self, held: &Held, from: u64, offset: u64) -> Result<Option<u64>> {
        if !held.has_gap() {
            return Ok(Some(from.saturating_add(offset)).filter(|seq| *seq < held.kept_end()));
        }
        let mut left = offset;
        for (first, end) in self.chunk_ranges(held, from)? {
            if left < end - first {
                return Ok(Some(first + left));
            }
            left -= end - first;
        }
        Ok(None)
    }

    /// Chunks of a command that are kept, from a `seq` on, in their order: so many, not many more than so many bytes, and if
    /// that is asked for, none after a gap.
    pub fn chunks(&self, held: &Held, from: u64, most: Most) -> Result<Vec<Chunk>> {
        let (mut chunks, mut bytes): (Vec<Chunk>, usize) = (Vec::new(), 0);
        let sql = "SELECT first, lengths, content FROM chunks WHERE command = ?1 AND first < ?3
            AND first >= coalesce((SELECT max(first) FROM chunks WHERE command = ?1 AND first <= ?2), ?2)
            ORDER BY first, piece";
        let parameters = vec![text(held.command.id), integer(from), integer(held.kept_end())];
        let cursor = self.sql.exec(sql, parameters)?;
        for row in whole_rows(cursor.next::<ChunkPiece>()) {
            for chunk in row?.chunks(from, held.kept_end()) {
                let is_after_gap = chunks.last().is_some_and(|last| last.seq.checked_add(1) != Some(chunk.seq));
                let is_full = chunks.len() as u64 >= most.chunks || bytes > most.bytes;
                if is_full || (most.until_gap && is_after_gap) {
                    return Ok(chunks);
                }
                bytes += chunk.content.len();
                chunks.push(chunk);
            }
        }
        Ok(chunks)
    }

    /// The kept content of a command from one end, until there are as many bytes as a result holds. The flag tells whether that
    /// was all.
    fn content_from(&self, held: &Held, order: &str) -> Result<(Vec<String>, bool)> {
        #[derive(Deserialize)]
        struct Row {
            content: String,
        }
        let sql = format!("SELECT content FROM chunks WHERE command = ? ORDER BY first {order}, piece {order}");
        let (mut contents, mut length) = (Vec::new(), 0);
        for row in self.sql.exec(&sql, vec![text(held.command.id)])?.next::<Row>() {
            if length > output::MAX_RESULT {
                return Ok((contents, false));
            }
            let Row { content } = row?;
            length += content.len();
            contents.push(content);
        }
        Ok((contents, true))
    }

    /// The SHA-256 of a command's output, if the output is known to be complete: of the kept chunks, or of the result if there
    /// is no chunk. `is_late`: no further chunk is waited for.
    pub fn output_hash(&self, held: &Held, is_late: bool) -> Result<Option<String>> {
        if !is_late && !held.has_all_chunks() {
            return Ok(None);
        }
        if held.chunk_count == 0 {
            return Ok(Some(output::sha256(held.result.as_deref().unwrap_or_default())));
        }
        #[derive(Deserialize)]
        struct Row {
            content: String,
        }
        let mut hash = OutputHash::default();
        let sql = "SELECT content FROM chunks WHERE command = ? ORDER BY first, piece";
        for row in self.sql.exec(sql, vec![text(held.command.id)])?.next::<Row>() {
            hash.add(&row?.content);
        }
        Ok(Some(hash.finish()))
    }

    /// A result made of the chunks of a command. Output can be far larger than a result: only its two ends are read.
    fn result_of_chunks(&self, held: &Held) -> Result<(String, bool)> {
        let (head, is_all) = self.content_from(held, "ASC")?;
        if is_all {
            return Ok(output::result(&head.concat()));
        }
        let (mut tail, _) = self.content_from(held, "DESC")?;
        tail.reverse();
        let length = usize::try_from(held.chunk_bytes).unwrap_or(usize::MAX);
        Ok((output::result_of_ends(&head.concat(), &tail.concat(), length), true))
    }

    /// What is known of a command's output: the agent's result, or one made of the chunks where it sent none.
    pub fn output(&self, held: &Held) -> Result<Output> {
        let bytes = held.output_bytes();
        if !matches!(held.life.end, Some(End::Finished(_))) {
            return Ok(Output { result: None, truncated: false, bytes });
        }
        let larger_than_kept = bytes > output::MAX_RESULT as u64;
        let (result, cut) = match &held.result {
            Some(result) if !result.is_empty() || held.chunk_bytes == 0 => (result.clone(), held.result_cut),
            _ => self.result_of_chunks(held)?,
        };
        Ok(Output { result: Some(result), truncated: cut || larger_than_kept, bytes })
    }
}
