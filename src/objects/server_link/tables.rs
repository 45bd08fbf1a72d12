//! The tables of a server's object, in its own SQLite.

use std::cell::Cell;
use std::fmt::Display;
use std::rc::Rc;

use farhand_domain::link::state::ServerState;
use farhand_domain::link::store::{Failed, Result};
use futures_util::{FutureExt, future};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use worker::{SqlStorage, SqlStorageValue, State};

use crate::objects::alarm::Alarm;
use crate::platform::log;

/// The tables of an object that is used.
const SCHEMA: [&str; 9] = [
    // One row: the document of the state beside the commands (`ServerState`).
    "CREATE TABLE server (id INTEGER PRIMARY KEY, document TEXT NOT NULL)",
    // Commands: the document (`StoredCommand`), the agent's result, and the columns that are
    // queried. `revision` counts the changes, `flushed` is the revision that D1 has. `stage` is
    // that of `StoredCommand::stage`, or null. `is_active` is 1 while there is more to do for the
    // command than to wait in the queue: few commands are. It keeps other columns out of the
    // indexes, as each entry of an index that a statement may change counts as two written rows.
    "CREATE TABLE commands (
        id TEXT PRIMARY KEY,
        phase TEXT NOT NULL,
        stage TEXT,
        scheduled_at TEXT NOT NULL,
        due_at TEXT,
        revision INTEGER NOT NULL,
        flushed INTEGER NOT NULL,
        is_active INTEGER NOT NULL,
        document TEXT NOT NULL,
        result TEXT,
        CHECK (is_active OR phase = 'accepted' AND stage IS NOT 'open' AND flushed >= revision
            AND (due_at IS NULL OR stage IS 'waiting'))
    ) WITHOUT ROWID",
    // Serves: the unfinished commands of the agent, what D1 does not have yet, and the commands
    // that the alarm has to look at.
    "CREATE INDEX commands_active ON commands (id) WHERE is_active = 1",
    // Serves: the queue in its order.
    "CREATE INDEX commands_waiting ON commands (scheduled_at, id) WHERE stage = 'waiting'",
    // Serves: the waiting commands that the alarm has to look at.
    "CREATE INDEX commands_waiting_due ON commands (due_at) WHERE stage = 'waiting'",
    // Output in rows of consecutive chunks (`ChunkRow`), from the seq `first` to the one before
    // `next`: the lengths of the chunks, their bytes in all, the bytes that are kept, and the
    // content of these. Content that is larger than a row can be is in several pieces; the numbers
    // are with the first one.
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
    // Serves: deleting expired answers.
    "CREATE INDEX answers_by_expiry ON answers (expires_at)",
    // Serves: deleting the answer of a deleted command.
    "CREATE INDEX answers_by_command ON answers (command)",
];

/// The object's tables. Nothing else writes them.
pub struct Tables {
    state: Rc<State>,
    alarm: Rc<Alarm>,
    sql: SqlStorage,
    /// Rows that were written, with those of indexes.
    rows_written: Cell<usize>,
}

/// The failure of the platform's storage.
pub(super) fn failed(error: impl Display) -> Failed {
    Failed(error.to_string())
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
    /// The tables of an object's database. They may not exist yet.
    pub fn new(state: Rc<State>, alarm: Rc<Alarm>) -> Self {
        Self { sql: state.storage().sql(), state, alarm, rows_written: Cell::default() }
    }

    pub(super) fn exec(&self, sql: &str, parameters: Vec<SqlStorageValue>) -> Result<()> {
        let cursor = self.sql.exec(sql, parameters).map_err(failed)?;
        cursor.to_array::<serde_json::Value>().map_err(failed)?;
        self.rows_written.set(self.rows_written.get() + cursor.rows_written());
        Ok(())
    }

    /// How many rows were written since this was last called, with those of indexes.
    pub fn take_rows_written(&self) -> usize {
        self.rows_written.take()
    }

    /// As in D1, no parameter stands alone after a LIMIT
    /// (`farhand_sql::statement::Mistake::BareLimit`).
    pub(super) fn rows<T: DeserializeOwned>(
        &self,
        sql: &str,
        parameters: Vec<SqlStorageValue>,
    ) -> Result<Vec<T>> {
        self.sql.exec(sql, parameters).and_then(|cursor| cursor.to_array()).map_err(failed)
    }

    /// Reads rows one by one.
    pub(super) fn each<T: DeserializeOwned>(
        &self,
        sql: &str,
        parameters: Vec<SqlStorageValue>,
    ) -> Result<impl Iterator<Item = Result<T>>> {
        let cursor = self.sql.exec(sql, parameters).map_err(failed)?;
        Ok(cursor.next::<T>().map(|row| row.map_err(failed)))
    }

    pub(super) fn count(&self, sql: &str, parameters: Vec<SqlStorageValue>) -> Result<u64> {
        #[derive(Deserialize)]
        struct Row {
            number: f64,
        }
        let rows: Vec<Row> = self.rows(sql, parameters)?;
        Ok(rows.first().map_or(0, |row| row.number as u64))
    }

    /// The state beside the commands. An object that was never used has no tables.
    pub(super) fn load(&self) -> Result<Option<ServerState>> {
        #[derive(Deserialize)]
        struct Row {
            document: String,
        }
        let found: Vec<serde_json::Value> =
            self.rows("SELECT name FROM sqlite_master WHERE name = 'server'", vec![])?;
        if found.is_empty() {
            return Ok(None);
        }
        let rows: Vec<Row> = self.rows("SELECT document FROM server", vec![])?;
        rows.first().map(|row| serde_json::from_str(&row.document)).transpose().map_err(failed)
    }

    /// Stores the state beside the commands. `is_first`: the tables do not exist yet.
    pub(super) fn store(&self, server: &ServerState, is_first: bool) -> Result<()> {
        if is_first {
            SCHEMA.iter().try_for_each(|sql| self.exec(sql, vec![]))?;
        }
        let document = serde_json::to_string(server).map_err(failed)?;
        let sql = "INSERT INTO server (id, document) VALUES (1, ?1)
            ON CONFLICT (id) DO UPDATE SET document = ?1";
        self.exec(sql, vec![text(document)])
    }

    /// Deletes everything. The platform does that in the same turn, and nothing waits for it to
    /// become durable.
    pub(super) fn delete_all(&self) {
        let (storage, alarm) = (self.state.storage(), self.alarm.clone());
        let mut forgotten = Box::pin(async move {
            // Both start immediately.
            let (alarm, all) = future::join(alarm.delete(&storage), storage.delete_all()).await;
            if let Err(error) = alarm.and(all) {
                log::trouble("object_not_wiped", json!({}), &error);
            }
        });
        if (&mut forgotten).now_or_never().is_none() {
            self.state.wait_until(forgotten);
        }
    }
}
