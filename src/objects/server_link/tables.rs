//! The tables in the SQLite database of a server's object, and methods that run statements on them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::Display;
use std::rc::Rc;

use farhand_domain::link::state::ServerState;
use farhand_domain::link::store::{Failed, Result};
use farhand_domain::link::stored_command::ChunkSums;
use futures_util::{FutureExt, future};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use uuid::Uuid;
use worker::{SqlStorage, SqlStorageValue, State};

use crate::objects::alarm::Alarm;
use crate::platform::log;

/// The statements that create the tables. An object runs them when it first stores something.
const SCHEMA: [&str; 9] = [
    // One row: the server's state without its commands (`ServerState`), as JSON.
    "CREATE TABLE server (id INTEGER PRIMARY KEY, document TEXT NOT NULL)",
    // Stored commands: `document` (`StoredCommand` as JSON), `result` (the agent's), and the
    // columns that queries need.
    // - `stage`: `StoredCommand::stage`, or null.
    // - `due_at`: when the alarm serves the command.
    // - `revision` counts the changes. `flushed` is the revision that D1 has.
    // - `is_active`: 1 if the command needs work other than its delivery from the queue. Few
    //   commands are active. Indexes filter on this column and contain few other columns, because
    //   each index entry that a statement may change is billed as two written rows.
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
    // Serves: queries for delivered commands that have not ended, for changes that D1 does not
    // have, and for commands that are due.
    "CREATE INDEX commands_active ON commands (id) WHERE is_active = 1",
    // Serves: the queue, in the order of delivery.
    "CREATE INDEX commands_waiting ON commands (scheduled_at, id) WHERE stage = 'waiting'",
    // Serves: the alarm's query for waiting commands that are due.
    "CREATE INDEX commands_waiting_due ON commands (due_at) WHERE stage = 'waiting'",
    // Output. A row holds consecutive chunks (`ChunkRow`).
    // - `first` is the seq of its first chunk, `next` the seq after its last one.
    // - `lengths`: the bytes of each chunk. `bytes`: their sum.
    // - `content`: the stored content. `kept`: its bytes.
    // - `piece`: content that exceeds the limit of a row is split into several pieces. Piece 0 has
    //   the sums `bytes` and `kept`. In later pieces they are 0.
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
    // For each Idempotency-Key, the response to its first request. `answer` is null until the
    // object responds to that request.
    "CREATE TABLE answers (
        key TEXT PRIMARY KEY, body TEXT NOT NULL, command TEXT NOT NULL, answer TEXT, expires_at TEXT NOT NULL
    ) WITHOUT ROWID",
    // Serves: the deletion of expired responses.
    "CREATE INDEX answers_by_expiry ON answers (expires_at)",
    // Serves: the deletion of a command's response together with the command.
    "CREATE INDEX answers_by_command ON answers (command)",
];

/// The object's tables. Only this type writes them.
pub struct Tables {
    state: Rc<State>,
    alarm: Rc<Alarm>,
    sql: SqlStorage,
    /// Rows written since [`Tables::take_rows_written`], including index entries.
    rows_written: Cell<usize>,
    /// The sums of chunk rows by the command's id. They are always equal to the stored rows.
    pub(super) sums: RefCell<HashMap<Uuid, ChunkSums>>,
}

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
    /// A handle on the tables of an object. It does not create them.
    pub fn new(state: Rc<State>, alarm: Rc<Alarm>) -> Self {
        let sql = state.storage().sql();
        Self { sql, state, alarm, rows_written: Cell::default(), sums: RefCell::default() }
    }

    /// Runs a statement that returns no rows.
    pub(super) fn exec(&self, sql: &str, parameters: Vec<SqlStorageValue>) -> Result<()> {
        let cursor = self.sql.exec(sql, parameters).map_err(failed)?;
        cursor.to_array::<serde_json::Value>().map_err(failed)?;
        self.rows_written.set(self.rows_written.get() + cursor.rows_written());
        Ok(())
    }

    /// Returns the number of rows written since the last call, including index entries.
    pub fn take_rows_written(&self) -> usize {
        self.rows_written.take()
    }

    /// Runs a query and returns all rows. A parameter after LIMIT needs `+ 0`, as in D1
    /// (`farhand_sql::statement::Mistake::BareLimit`).
    pub(super) fn rows<T: DeserializeOwned>(
        &self,
        sql: &str,
        parameters: Vec<SqlStorageValue>,
    ) -> Result<Vec<T>> {
        self.sql.exec(sql, parameters).and_then(|cursor| cursor.to_array()).map_err(failed)
    }

    /// Runs a query and reads its rows one at a time.
    pub(super) fn each<T: DeserializeOwned>(
        &self,
        sql: &str,
        parameters: Vec<SqlStorageValue>,
    ) -> Result<impl Iterator<Item = Result<T>>> {
        let cursor = self.sql.exec(sql, parameters).map_err(failed)?;
        Ok(cursor.next::<T>().map(|row| row.map_err(failed)))
    }

    /// Runs a query that returns one column, `number`, and returns the first value.
    pub(super) fn count(&self, sql: &str, parameters: Vec<SqlStorageValue>) -> Result<u64> {
        #[derive(Deserialize)]
        struct CountRow {
            number: f64,
        }
        let rows: Vec<CountRow> = self.rows(sql, parameters)?;
        Ok(rows.first().map_or(0, |row| row.number as u64))
    }

    /// Reads the server's state. Returns `None` if the tables do not exist: the object was never
    /// used, or was wiped.
    pub(super) fn load(&self) -> Result<Option<ServerState>> {
        #[derive(Deserialize)]
        struct ServerRow {
            document: String,
        }
        let tables: Vec<serde_json::Value> =
            self.rows("SELECT name FROM sqlite_master WHERE name = 'server'", vec![])?;
        if tables.is_empty() {
            return Ok(None);
        }
        let rows: Vec<ServerRow> = self.rows("SELECT document FROM server", vec![])?;
        rows.first().map(|row| serde_json::from_str(&row.document)).transpose().map_err(failed)
    }

    /// Stores the server's state. If `is_first`, creates the tables first.
    pub(super) fn store(&self, server: &ServerState, is_first: bool) -> Result<()> {
        if is_first {
            SCHEMA.iter().try_for_each(|sql| self.exec(sql, vec![]))?;
        }
        let document = serde_json::to_string(server).map_err(failed)?;
        let sql = "INSERT INTO server (id, document) VALUES (1, ?1)
            ON CONFLICT (id) DO UPDATE SET document = ?1";
        self.exec(sql, vec![text(document)])
    }

    /// Deletes everything in the object. Later reads find nothing. The deletion becomes durable in
    /// the background.
    pub(super) fn delete_all(&self) {
        self.sums.take();
        let (storage, alarm) = (self.state.storage(), self.alarm.clone());
        let mut deletion = Box::pin(async move {
            // The first poll starts both deletions.
            let (alarm, all) = future::join(alarm.delete(&storage), storage.delete_all()).await;
            if let Err(error) = alarm.and(all) {
                log::error("object_not_wiped", json!({}), &error);
            }
        });
        if (&mut deletion).now_or_never().is_none() {
            self.state.wait_until(deletion);
        }
    }
}
