//! Keeps [`ChunkSums`] in memory.
//!
//! To find the end of a range, SQLite loads whole rows of a table without rowids, with their
//! content. So the sums over 16 MB of output take milliseconds, and each chunk needs them.

use farhand_domain::link::store::Result;
use farhand_domain::link::stored_command::ChunkSums;
use farhand_sql::object::server_link::chunks;
use serde::Deserialize;
use uuid::Uuid;

use super::tables::{Tables, failed};

/// The maximum number of commands whose sums are in memory. Beyond it, all sums are dropped.
const MAX_COMMANDS: usize = 1_000;

#[derive(Deserialize)]
struct SumsRow {
    /// [`ChunkSums`] as JSON.
    sums: String,
}

impl Tables {
    /// Returns the sums over a command's chunk rows.
    pub(super) fn chunk_sums(&self, id: Uuid) -> Result<ChunkSums> {
        if let Some(sums) = self.sums.borrow().get(&id) {
            return Ok(*sums);
        }
        let rows: Vec<SumsRow> = self.rows(chunks::sums(id))?;
        let sums = rows.first().map_or("{}", |row| &row.sums);
        let sums = serde_json::from_str(sums).map_err(failed)?;
        self.keep_sums(id, sums);
        Ok(sums)
    }

    /// Puts the sums of a command into memory.
    pub(super) fn keep_sums(&self, id: Uuid, sums: ChunkSums) {
        let mut all = self.sums.borrow_mut();
        if all.len() >= MAX_COMMANDS {
            all.clear();
        }
        all.insert(id, sums);
    }

    /// Removes the sums of a command from memory, because its rows change.
    pub(super) fn drop_sums(&self, id: Uuid) {
        self.sums.borrow_mut().remove(&id);
    }
}
