//! Keeps [`ChunkSums`] in memory.
//!
//! To find the end of a range, SQLite loads whole rows of a table without rowids, with their
//! content. So the sums over 16 MB of output take milliseconds, and each chunk needs them.

use farhand_domain::link::store::Result;
use farhand_domain::link::stored_command::ChunkSums;
use serde::Deserialize;
use uuid::Uuid;

use super::tables::{Tables, failed, text};

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
        // Only piece 0 of a row has the row's numbers.
        let sql = "SELECT json_object('rows', count(*), 'bytes', coalesce(sum(bytes), 0),
                'count', coalesce(sum(next - first), 0), 'top', coalesce(max(next), 0),
                'kept_bytes', coalesce(sum(kept), 0)) AS sums
             FROM chunks WHERE command = ? AND piece = 0";
        let rows: Vec<SumsRow> = self.rows(sql, vec![text(id)])?;
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
