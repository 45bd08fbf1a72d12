//! The tables of a server's object, in its own SQLite.

use std::cell::RefCell;
use std::collections::HashMap;

use farhand_domain::time::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use worker::{Error, Result, SqlStorage, SqlStorageValue};

/// The tables of an object that is used.
const SCHEMA: [&str; 10] = [
    // One value by name: who this server is, what is known of its host, and counters.
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    // What is to be done when, though nothing happens; commands have their own `due_at`.
    "CREATE TABLE wakes (name TEXT PRIMARY KEY, due_at TEXT NOT NULL) WITHOUT ROWID",
    // Commands: the document (`StoredCommand`) and the agent's result, and beside them what is queried.
    // `revision` counts the changes, `flushed` is the revision that D1 has. `stage` is that of
    // `StoredCommand::stage`, or null.
    "CREATE TABLE commands (
        id TEXT PRIMARY KEY,
        phase TEXT NOT NULL,
        stage TEXT,
        scheduled_at TEXT NOT NULL,
        due_at TEXT,
        revision INTEGER NOT NULL,
        flushed INTEGER NOT NULL,
        document TEXT NOT NULL,
        result TEXT
    ) WITHOUT ROWID",
    // Serves: what is due.
    "CREATE INDEX commands_due ON commands (due_at) WHERE due_at IS NOT NULL",
    // Serves: what D1 does not have yet.
    "CREATE INDEX commands_unflushed ON commands (id) WHERE flushed < revision",
    // Serves: the queue in its order, and the number of commands that the agent has.
    "CREATE INDEX commands_stage ON commands (stage, scheduled_at, id) WHERE stage IS NOT NULL",
    // Output in rows of consecutive chunks (`ChunkRow`), from the seq `first` to the one before `next`: the lengths of the
    // chunks, their bytes in all, the bytes that are kept, and the content of these. Content that is larger than a row can
    // be is in several pieces; the numbers are with the first one.
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
    // The first answers to requests with an Idempotency-Key; null while the request is under way.
    "CREATE TABLE answers (
        key TEXT PRIMARY KEY, body TEXT NOT NULL, command TEXT NOT NULL, answer TEXT, expires_at TEXT NOT NULL
    ) WITHOUT ROWID",
    // Serves: clearing away what expired.
    "CREATE INDEX answers_by_expiry ON answers (expires_at)",
    // Serves: the end of a command that was withdrawn.
    "CREATE INDEX answers_by_command ON answers (command)",
];

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

/// The object's tables. Nobody else writes them, and where a write does not become durable the platform ends the object: so
/// what was read of the facts and wakes is true as long as the object is in memory.
pub struct Tables {
    pub(super) sql: SqlStorage,
    /// Facts that were read or written, as they are stored; `None` where there is none.
    facts: RefCell<HashMap<String, Option<String>>>,
    /// All wakes, once they were read.
    wakes: RefCell<Option<HashMap<String, Timestamp>>>,
}

pub(super) fn text(value: impl ToString) -> SqlStorageValue {
    SqlStorageValue::String(value.to_string())
}

pub(super) fn nullable(value: Option<impl ToString>) -> SqlStorageValue {
    value.map_or(SqlStorageValue::Null, text)
}

pub(super) fn integer(value: u64) -> SqlStorageValue {
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

    pub(super) fn exec(&self, sql: &str, parameters: Vec<SqlStorageValue>) -> Result<()> {
        self.sql.exec(sql, parameters)?.to_array::<serde_json::Value>()?;
        Ok(())
    }

    /// As in D1, no parameter stands alone after a LIMIT (`db::Statement::new`).
    pub(super) fn rows<T: DeserializeOwned>(&self, sql: &str, parameters: Vec<SqlStorageValue>) -> Result<Vec<T>> {
        self.sql.exec(sql, parameters)?.to_array()
    }

    /// Whether the tables are there: an object that nobody ever used has none.
    pub fn exist(&self) -> Result<bool> {
        let found: Vec<serde_json::Value> = self.rows("SELECT name FROM sqlite_master WHERE name = 'facts'", vec![])?;
        Ok(!found.is_empty())
    }

    /// Makes the tables.
    pub fn create(&self) -> Result<()> {
        SCHEMA.iter().try_for_each(|sql| self.exec(sql, vec![]))
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

    pub(super) fn count(&self, sql: &str, parameters: Vec<SqlStorageValue>) -> Result<u64> {
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
}
