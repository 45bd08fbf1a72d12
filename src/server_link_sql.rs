//! The tables of a server's object, in its own SQLite.

use farhand_domain::command::{Command, Output};
use farhand_domain::lifecycle::{End, Lifecycle};
use farhand_domain::output;
use farhand_domain::time::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use worker::{Error, Result, SqlStorage, SqlStorageValue};

/// The largest piece of a chunk that goes into one row, in bytes: rows hold at most 2 MB.
const MAX_PIECE: usize = 1_000_000;

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
    chunk_bytes: f64,
}

impl TryFrom<HeldRow> for Held {
    type Error = Error;

    fn try_from(row: HeldRow) -> Result<Self> {
        Ok(Self {
            workspace_id: row.workspace_id as i64,
            phase: row.phase,
            command: serde_json::from_str(&row.command)?,
            life: serde_json::from_str(&row.life)?,
            revision: row.revision as i64,
            result: row.result,
            result_cut: row.result_cut != 0.0,
            result_bytes: row.result_bytes as u64,
            chunk_bytes: row.chunk_bytes as u64,
        })
    }
}

const HELD: &str =
    "SELECT workspace_id, phase, command, life, revision, result, result_cut, result_bytes, chunk_bytes FROM commands";

/// The object's tables.
pub struct Tables(pub SqlStorage);

fn text(value: impl ToString) -> SqlStorageValue {
    SqlStorageValue::String(value.to_string())
}

fn integer(value: u64) -> SqlStorageValue {
    SqlStorageValue::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}

impl Tables {
    fn exec(&self, sql: &str, parameters: Vec<SqlStorageValue>) -> Result<()> {
        self.0.exec(sql, parameters)?.to_array::<serde_json::Value>()?;
        Ok(())
    }

    fn rows<T: DeserializeOwned>(&self, sql: &str, parameters: Vec<SqlStorageValue>) -> Result<Vec<T>> {
        self.0.exec(sql, parameters)?.to_array()
    }

    /// Whether the tables are there: an object that nobody ever used has none.
    pub fn exist(&self) -> Result<bool> {
        let found: Vec<serde_json::Value> = self.rows("SELECT name FROM sqlite_master WHERE name = 'facts'", vec![])?;
        Ok(!found.is_empty())
    }

    /// Makes the tables.
    pub fn create(&self) -> Result<()> {
        SCHEMA.iter().chain(&INDEXES).try_for_each(|sql| self.exec(sql, vec![]))
    }

    /// A value by name.
    pub fn fact<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        #[derive(Deserialize)]
        struct Row {
            value: String,
        }
        let rows: Vec<Row> = self.rows("SELECT value FROM facts WHERE name = ?", vec![text(name)])?;
        rows.first().map(|row| serde_json::from_str(&row.value)).transpose().map_err(Error::from)
    }

    /// Sets a value by name.
    pub fn set_fact(&self, name: &str, value: &impl Serialize) -> Result<()> {
        let sql = "INSERT INTO facts (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = ?2";
        self.exec(sql, vec![text(name), text(serde_json::to_string(value)?)])
    }

    /// When a wake is due.
    pub fn wake(&self, name: &str) -> Result<Option<Timestamp>> {
        #[derive(Deserialize)]
        struct Row {
            due_at: Timestamp,
        }
        let rows: Vec<Row> = self.rows("SELECT due_at FROM wakes WHERE name = ?", vec![text(name)])?;
        Ok(rows.first().map(|row| row.due_at))
    }

    /// Sets or clears a wake.
    pub fn set_wake(&self, name: &str, due_at: Option<Timestamp>) -> Result<()> {
        match due_at {
            None => self.exec("DELETE FROM wakes WHERE name = ?", vec![text(name)]),
            Some(due_at) => {
                let sql =
                    "INSERT INTO wakes (name, due_at) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET due_at = ?2";
                self.exec(sql, vec![text(name), text(due_at)])
            }
        }
    }

    /// When the next thing is due: a wake or a command.
    pub fn next_due(&self) -> Result<Option<Timestamp>> {
        #[derive(Deserialize)]
        struct Row {
            due_at: Option<Timestamp>,
        }
        let sql = "SELECT min(due_at) AS due_at FROM (
            SELECT min(due_at) AS due_at FROM wakes UNION ALL SELECT min(due_at) FROM commands WHERE due_at IS NOT NULL)";
        let rows: Vec<Row> = self.rows(sql, vec![])?;
        Ok(rows.first().and_then(|row| row.due_at))
    }

    /// Takes a new command in, to be looked at again at `due_at` if nobody finishes it.
    pub fn insert_command(
        &self,
        workspace_id: i64,
        command: &Command,
        life: &Lifecycle,
        due_at: Timestamp,
    ) -> Result<()> {
        let sql = "INSERT INTO commands (id, workspace_id, phase, command, life, due_at, revision, flushed)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1, 1)";
        let parameters = vec![
            text(command.id),
            SqlStorageValue::Integer(workspace_id),
            text(Phase::Recording.as_str()),
            text(serde_json::to_string(command)?),
            text(serde_json::to_string(life)?),
            text(due_at),
        ];
        self.exec(sql, parameters)
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
        self.held("due_at <= ? ORDER BY due_at, id LIMIT ?", parameters)
    }

    /// Commands of which D1 does not have the latest.
    pub fn unflushed_commands(&self, limit: u32) -> Result<Vec<Held>> {
        self.held("flushed < revision LIMIT ?", vec![SqlStorageValue::Integer(limit.into())])
    }

    /// Stores what changed of a command, as another revision.
    pub fn save(&self, held: &Held) -> Result<()> {
        let due_at = if held.phase == Phase::Accepted { held.life.deadline() } else { None };
        let sql = "UPDATE commands SET phase = ?2, life = ?3, due_at = ?4, revision = revision + 1,
            result = ?5, result_cut = ?6, result_bytes = ?7 WHERE id = ?1";
        let parameters = vec![
            text(held.command.id),
            text(held.phase.as_str()),
            text(serde_json::to_string(&held.life)?),
            due_at.map_or(SqlStorageValue::Null, text),
            held.result.clone().into(),
            integer(u64::from(held.result_cut)),
            integer(held.result_bytes),
        ];
        self.exec(sql, parameters)
    }

    /// Has a command looked at later.
    pub fn postpone(&self, id: Uuid, due_at: Timestamp) -> Result<()> {
        self.exec("UPDATE commands SET due_at = ?2 WHERE id = ?1", vec![text(id), text(due_at)])
    }

    /// Notes that D1 has a revision of a command.
    pub fn mark_flushed(&self, held: &Held) -> Result<()> {
        let sql = "UPDATE commands SET flushed = max(flushed, ?2) WHERE id = ?1";
        self.exec(sql, vec![text(held.command.id), SqlStorageValue::Integer(held.revision)])
    }

    /// Removes a command.
    pub fn delete_command(&self, id: Uuid) -> Result<()> {
        self.exec("DELETE FROM commands WHERE id = ?", vec![text(id)])
    }

    /// Takes a chunk of output in, once. Past what is kept for a command only its length is counted.
    pub fn add_chunk(&self, held: &Held, seq: u32, content: &str) -> Result<bool> {
        let id = held.command.id;
        let known: Vec<serde_json::Value> = self.rows(
            "SELECT seq FROM chunks WHERE command = ? AND seq = ? LIMIT 1",
            vec![text(id), integer(seq.into())],
        )?;
        if !known.is_empty() {
            return Ok(false);
        }
        let length = content.len() as u64;
        // Even a chunk that is not kept leaves its number, so that a repeated one is not counted twice.
        let kept = if held.chunk_bytes + length <= output::MAX_KEPT { content } else { "" };
        let mut rest = kept;
        let mut piece = 0;
        loop {
            let (this, after) = rest.split_at(rest.floor_char_boundary(MAX_PIECE));
            let parameters = vec![text(id), integer(seq.into()), integer(piece), text(this)];
            self.exec("INSERT INTO chunks (command, seq, piece, content) VALUES (?, ?, ?, ?)", parameters)?;
            if after.is_empty() {
                break;
            }
            (rest, piece) = (after, piece + 1);
        }
        let is_over = u64::from(held.life.outcome().is_some());
        let sql = "UPDATE commands SET chunk_bytes = chunk_bytes + ?2, revision = revision + ?3 WHERE id = ?1";
        self.exec(sql, vec![text(id), integer(length), integer(is_over)])?;
        Ok(true)
    }

    /// The chunks of a command from one end, until there are as many bytes as a result holds. The flag tells whether that
    /// was all.
    fn chunks_from(&self, id: Uuid, order: &str) -> Result<(Vec<String>, bool)> {
        #[derive(Deserialize)]
        struct Row {
            content: String,
        }
        let sql = format!("SELECT content FROM chunks WHERE command = ? ORDER BY seq {order}, piece {order}");
        let (mut chunks, mut length) = (Vec::new(), 0);
        for row in self.0.exec(&sql, vec![text(id)])?.next::<Row>() {
            if length > output::MAX_RESULT {
                return Ok((chunks, false));
            }
            let Row { content } = row?;
            length += content.len();
            chunks.push(content);
        }
        Ok((chunks, true))
    }

    /// A result made of the chunks of a command. Output can be far larger than a result: only its two ends are read.
    fn result_of_chunks(&self, held: &Held) -> Result<(String, bool)> {
        let (head, is_all) = self.chunks_from(held.command.id, "ASC")?;
        if is_all {
            return Ok(output::result(&head.concat()));
        }
        let (mut tail, _) = self.chunks_from(held.command.id, "DESC")?;
        tail.reverse();
        let length = usize::try_from(held.chunk_bytes).unwrap_or(usize::MAX);
        Ok((output::result_of_ends(&head.concat(), &tail.concat(), length), true))
    }

    /// What is known of a command's output: the agent's result, or one made of the chunks where it sent none.
    pub fn output(&self, held: &Held) -> Result<Output> {
        let bytes = held.chunk_bytes.max(held.result_bytes);
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
