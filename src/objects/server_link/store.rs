//! Implements the state machine's [`Store`] with the tables of its object.

use farhand_domain::agent::wire::Chunk;
use farhand_domain::command::object::Output;
use farhand_domain::link::call::DeletedCommands;
use farhand_domain::link::state::ServerState;
use farhand_domain::link::store::{
    IdempotentRequest, NextFlush, PlatformFailure, ReadLimit, Result, Store,
};
use farhand_domain::link::stored_command::{ChunkSums, Phase, StoredCommand};
use farhand_domain::time::Timestamp;
use farhand_sql::object::server_link::{answers, commands};
use farhand_sql::statement::Statement;
use serde::Deserialize;
use uuid::Uuid;

use super::tables::{Tables, failed};

/// The size of a database page, in bytes. Deleting output costs a write for each page.
const PAGE_BYTES: u64 = 4096;

#[derive(Deserialize)]
struct CommandRow {
    document: String,
    result: Option<String>,
    phase: Phase,
    revision: f64,
    is_flushed: f64,
}

impl TryFrom<CommandRow> for StoredCommand {
    type Error = PlatformFailure;

    fn try_from(row: CommandRow) -> Result<Self> {
        Ok(Self {
            result: row.result,
            phase: row.phase,
            revision: row.revision as i64,
            is_flushed: row.is_flushed != 0.0,
            ..serde_json::from_str(&row.document).map_err(failed)?
        })
    }
}

impl Tables {
    fn select_commands(&self, query: Statement) -> Result<Vec<StoredCommand>> {
        let rows: Vec<CommandRow> = self.rows(query)?;
        rows.into_iter().map(|row| self.with_sums(row.try_into()?)).collect()
    }

    /// Adds the sums of its chunks to a command. A command that was not delivered has no chunks.
    fn with_sums(&self, mut stored: StoredCommand) -> Result<StoredCommand> {
        if stored.life.delivered_at.is_some() {
            stored.chunks = self.chunk_sums(stored.command.id)?;
        }
        Ok(stored)
    }

    /// Stores a command's document. If `is_change`, also marks the command as active and increments
    /// its revision, so that the document is flushed to D1.
    pub(super) fn store_document(&self, stored: &StoredCommand, is_change: bool) -> Result<()> {
        if is_change {
            self.exec(commands::activate(stored.command.id))?;
        }
        let document = stored.document().map_err(failed)?;
        self.exec(commands::set_document(stored.command.id, document, is_change))
    }
}

impl Store for Tables {
    fn save_state(&mut self, server: &ServerState, is_first: bool) -> Result<()> {
        self.store(server, is_first)
    }

    fn server(&self) -> Result<Option<ServerState>> {
        self.load()
    }

    fn wipe(&mut self) -> Result<()> {
        self.delete_all();
        Ok(())
    }

    fn insert(&mut self, new: &StoredCommand, timer_at: Timestamp) -> Result<()> {
        let document = new.document().map_err(failed)?;
        self.keep_sums(new.command.id, ChunkSums::default());
        self.exec(commands::insert(new, document, timer_at))
    }

    fn accept(&mut self, accepted: &StoredCommand, now: Timestamp) -> Result<()> {
        self.exec(commands::accept(accepted, now))
    }

    fn due_waiting(&self, now: Timestamp, limit: u64) -> Result<Vec<StoredCommand>> {
        let waiting = self.select_commands(commands::due_waiting(now, limit))?;
        Ok(waiting.into_iter().filter(|stored| stored.life.is_due(now)).collect())
    }

    fn waiting(&self) -> Result<Vec<StoredCommand>> {
        self.select_commands(commands::waiting())
    }

    fn open_commands(&self) -> Result<Vec<StoredCommand>> {
        self.select_commands(commands::open())
    }

    fn has_commands(&self) -> Result<bool> {
        Ok(self.count(commands::count_any())? > 0)
    }

    fn count_open(&self) -> Result<u64> {
        self.count(commands::count_open())
    }

    fn command(&self, id: Uuid) -> Result<Option<StoredCommand>> {
        Ok(self.select_commands(commands::find(id))?.into_iter().next())
    }

    fn with_due_timer(&self, now: Timestamp, limit: u32) -> Result<Vec<StoredCommand>> {
        self.select_commands(commands::with_due_timer(now, limit))
    }

    fn unflushed(&self, reported_by: Timestamp, limit: u32) -> Result<Vec<StoredCommand>> {
        self.select_commands(commands::unflushed(reported_by, limit))
    }

    fn next_unflushed(&self) -> Result<Option<NextFlush>> {
        #[derive(Deserialize)]
        struct PendingRow {
            /// 1 if all pending commands are open, 0 if not. `None` if no command is pending.
            are_all_open: Option<f64>,
            earliest_report: Option<Timestamp>,
        }
        let rows: Vec<PendingRow> = self.rows(commands::next_unflushed())?;
        Ok(rows.first().and_then(|row| match row.are_all_open? {
            0.0 => Some(NextFlush::Now),
            _ => row.earliest_report.map(NextFlush::After),
        }))
    }

    fn save(&mut self, changed: &StoredCommand, now: Timestamp) -> Result<()> {
        self.exec(commands::activate(changed.command.id))?;
        let document = changed.document().map_err(failed)?;
        self.exec(commands::save(changed, document, now))
    }

    fn set_timer(&mut self, id: Uuid, at: Option<Timestamp>) -> Result<()> {
        self.exec(commands::set_timer(id, at))
    }

    fn accepted_after(&self, after: &str, limit: u32) -> Result<Vec<StoredCommand>> {
        self.select_commands(commands::accepted_after(after, limit))
    }

    fn mark_unflushed(&mut self, id: Uuid) -> Result<()> {
        self.exec(commands::mark_unflushed(id))
    }

    fn mark_flushed(&mut self, id: Uuid, revision: i64, has_events: bool) -> Result<()> {
        self.exec(commands::mark_flushed(id, revision, has_events))
    }

    fn delete(&mut self, id: Uuid) -> Result<()> {
        self.drop_sums(id);
        self.exec(answers::delete_of_command(id))?;
        self.exec(commands::delete(id))
    }

    fn delete_old(
        &mut self,
        ids: &[Uuid],
        until: Timestamp,
        at_once: u64,
    ) -> Result<DeletedCommands> {
        #[derive(Deserialize)]
        struct OldCommandRow {
            id: Uuid,
            is_deletable: f64,
            kept_bytes: f64,
        }
        let rows: Vec<OldCommandRow> = self.rows(commands::deletable(ids, until))?;
        // How many rows and pages of output this call may still delete.
        let mut budget = at_once;
        let mut deleted = DeletedCommands { ids: Vec::new(), is_complete: false };
        for id in ids {
            // A command without a row was deleted by an earlier call, and is reported as deleted.
            if let Some(row) = rows.iter().find(|row| row.id == *id) {
                if row.is_deletable == 0.0 {
                    continue;
                }
                if budget == 0 {
                    return Ok(deleted);
                }
                let chunk_rows = self.delete_chunks(*id, budget)?;
                let pages = row.kept_bytes as u64 / PAGE_BYTES;
                budget = budget.saturating_sub(chunk_rows + pages + 1);
                if self.has_chunks(*id)? {
                    return Ok(deleted);
                }
                self.delete(*id)?;
            }
            deleted.ids.push(*id);
        }
        Ok(DeletedCommands { is_complete: true, ..deleted })
    }

    fn next_timer(&self) -> Result<Option<Timestamp>> {
        #[derive(Deserialize)]
        struct DueRow {
            due_at: Option<Timestamp>,
        }
        let rows: Vec<DueRow> = self.rows(commands::next_timer())?;
        Ok(rows.first().and_then(|row| row.due_at))
    }

    fn idempotent_request(
        &mut self,
        key: &str,
        now: Timestamp,
    ) -> Result<Option<IdempotentRequest>> {
        self.exec(answers::delete_expired(now))?;
        Ok(self.rows(answers::find(key))?.into_iter().next())
    }

    fn insert_idempotent_request(
        &mut self,
        key: &str,
        body: &str,
        command: Uuid,
        expires_at: Timestamp,
    ) -> Result<()> {
        self.exec(answers::insert(key, body, command, expires_at))
    }

    fn set_idempotent_answer(&mut self, key: &str, answer: &str) -> Result<()> {
        self.exec(answers::set_answer(key, answer))
    }

    fn add_chunk(&mut self, stored: &StoredCommand, chunk: &Chunk, now: Timestamp) -> Result<bool> {
        self.add_output(stored, chunk, now)
    }

    fn count_chunks(&self, stored: &StoredCommand, from: u64) -> Result<u64> {
        self.count_output(stored, from)
    }

    fn find_chunk(&self, stored: &StoredCommand, from: u64, offset: u64) -> Result<Option<u64>> {
        self.find_output(stored, from, offset)
    }

    fn chunks(&self, stored: &StoredCommand, from: u64, limit: ReadLimit) -> Result<Vec<Chunk>> {
        self.read_output(stored, from, limit)
    }

    fn output(&self, stored: &StoredCommand) -> Result<Output> {
        self.whole_output(stored)
    }

    fn output_hash(&self, stored: &StoredCommand, is_late: bool) -> Result<Option<String>> {
        self.hash_output(stored, is_late)
    }
}
