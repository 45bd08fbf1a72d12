//! Runs statements on the tables of a server's object. `farhand_sql::object::server_link` has the
//! statements.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::Display;
use std::rc::Rc;

use farhand_domain::link::state::ServerState;
use farhand_domain::link::store::{PlatformFailure, Result};
use farhand_domain::link::stored_command::ChunkSums;
use farhand_sql::object::server_link;
use farhand_sql::statement::Statement;
use futures_util::{FutureExt, future};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use uuid::Uuid;
use worker::{SqlStorage, State};

use crate::objects::alarm::Alarm;
use crate::objects::sqlite;
use crate::platform::log;

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

pub(super) fn failed(error: impl Display) -> PlatformFailure {
    PlatformFailure(error.to_string())
}

impl Tables {
    /// A handle on the tables of an object. It does not create them.
    pub fn new(state: Rc<State>, alarm: Rc<Alarm>) -> Self {
        let sql = state.storage().sql();
        Self { sql, state, alarm, rows_written: Cell::default(), sums: RefCell::default() }
    }

    /// Runs a statement that returns no rows.
    pub(super) fn exec(&self, statement: Statement) -> Result<()> {
        let cursor = sqlite::exec(&self.sql, statement).map_err(failed)?;
        cursor.to_array::<serde_json::Value>().map_err(failed)?;
        self.rows_written.set(self.rows_written.get() + cursor.rows_written());
        Ok(())
    }

    /// Returns the number of rows written since the last call, including index entries.
    pub fn take_rows_written(&self) -> usize {
        self.rows_written.take()
    }

    /// Runs a query and returns all rows.
    pub(super) fn rows<T: DeserializeOwned>(&self, statement: Statement) -> Result<Vec<T>> {
        sqlite::rows(&self.sql, statement).map_err(failed)
    }

    /// Runs a query and reads its rows one at a time.
    pub(super) fn each<T: DeserializeOwned>(
        &self,
        statement: Statement,
    ) -> Result<impl Iterator<Item = Result<T>>> {
        let cursor = sqlite::exec(&self.sql, statement).map_err(failed)?;
        Ok(cursor.next::<T>().map(|row| row.map_err(failed)))
    }

    /// Runs a query that returns one column, `number`, and returns the first value.
    pub(super) fn count(&self, statement: Statement) -> Result<u64> {
        #[derive(Deserialize)]
        struct CountRow {
            number: f64,
        }
        let rows: Vec<CountRow> = self.rows(statement)?;
        Ok(rows.first().map_or(0, |row| row.number as u64))
    }

    /// Reads the server's state. Returns `None` if the tables do not exist: the object was never
    /// used, or was wiped.
    pub(super) fn load(&self) -> Result<Option<ServerState>> {
        #[derive(Deserialize)]
        struct ServerRow {
            document: String,
        }
        if !sqlite::has_rows(&self.sql, server_link::find_tables()).map_err(failed)? {
            return Ok(None);
        }
        let rows: Vec<ServerRow> = self.rows(server_link::server())?;
        rows.first().map(|row| serde_json::from_str(&row.document)).transpose().map_err(failed)
    }

    /// Stores the server's state. If `is_first`, creates the tables first.
    pub(super) fn store(&self, server: &ServerState, is_first: bool) -> Result<()> {
        if is_first {
            server_link::schema().into_iter().try_for_each(|statement| self.exec(statement))?;
        }
        let document = serde_json::to_string(server).map_err(failed)?;
        self.exec(server_link::save_server(document))
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
