//! Implements the state machine's [`Store`] with the tables of its object.

use farhand_domain::agent::wire::Chunk;
use farhand_domain::command::object::Output;
use farhand_domain::link::call::DeletedCommands;
use farhand_domain::link::state::ServerState;
use farhand_domain::link::store::{
    IdempotentRequest, NextFlush, PlatformFailure, ReadLimit, Result, Store,
};
use farhand_domain::link::stored_command::{ChunkSums, Phase, Stage, StoredCommand};
use farhand_domain::time::Timestamp;
use serde::Deserialize;
use uuid::Uuid;
use worker::SqlStorageValue;

use super::tables::{Tables, failed, integer, nullable, text};

/// The size of a database page, in bytes. Deleting output costs a write for each page.
const PAGE_BYTES: u64 = 4096;

/// SQL for the time of the last report on a command that has not ended: `acked_at`, or if that is
/// null `delivered_at`.
const LAST_REPORT: &str =
    "coalesce(document ->> '$.life.acked_at', document ->> '$.life.delivered_at')";

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

/// Reads commands without the sums of their chunks. The caller adds a WHERE clause.
const SELECT_COMMANDS: &str =
    "SELECT document, result, phase, revision, flushed >= revision AS is_flushed FROM commands";

impl Tables {
    fn select_commands(
        &self,
        condition: &str,
        parameters: Vec<SqlStorageValue>,
    ) -> Result<Vec<StoredCommand>> {
        let rows: Vec<CommandRow> =
            self.rows(&format!("{SELECT_COMMANDS} WHERE {condition}"), parameters)?;
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
            self.activate(stored.command.id)?;
        }
        let document = stored.document().map_err(failed)?;
        let parameters =
            vec![text(stored.command.id), text(document), integer(u64::from(is_change))];
        self.exec(
            "UPDATE commands SET document = ?2, revision = revision + ?3 WHERE id = ?1",
            parameters,
        )
    }

    /// Marks a command as active. The table's CHECK rejects an update that leaves work for a
    /// command that is not active.
    fn activate(&self, id: Uuid) -> Result<()> {
        self.exec(
            "UPDATE commands SET is_active = 1 WHERE id = ? AND is_active = 0",
            vec![text(id)],
        )
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
        let sql = "INSERT INTO commands (id, phase, scheduled_at, due_at, revision, flushed, is_active, document)
            VALUES (?1, ?2, ?3, ?4, 1, 1, 1, ?5)";
        let parameters = vec![
            text(new.command.id),
            text(new.phase.as_str()),
            text(new.life.scheduled_at),
            text(timer_at),
            text(new.document().map_err(failed)?),
        ];
        self.keep_sums(new.command.id, ChunkSums::default());
        self.exec(sql, parameters)
    }

    fn accept(&mut self, accepted: &StoredCommand, now: Timestamp) -> Result<()> {
        let parameters = vec![
            text(accepted.command.id),
            text(accepted.phase.as_str()),
            nullable(accepted.stage().map(Stage::as_str)),
            nullable(accepted.timer_at(now)),
        ];
        // An accepted command only waits in the queue, so it is not active.
        self.exec(
            "UPDATE commands SET phase = ?2, stage = ?3, due_at = ?4, is_active = 0 WHERE id = ?1",
            parameters,
        )
    }

    fn due_waiting(&self, now: Timestamp, limit: u64) -> Result<Vec<StoredCommand>> {
        let waiting = self.select_commands(
            "stage = 'waiting' AND scheduled_at <= ? ORDER BY scheduled_at, id LIMIT ? + 0",
            vec![text(now), integer(limit)],
        )?;
        Ok(waiting.into_iter().filter(|stored| stored.life.is_due(now)).collect())
    }

    fn waiting(&self) -> Result<Vec<StoredCommand>> {
        self.select_commands("stage = 'waiting'", vec![])
    }

    fn open_commands(&self) -> Result<Vec<StoredCommand>> {
        self.select_commands("is_active = 1 AND stage = 'open'", vec![])
    }

    fn has_commands(&self) -> Result<bool> {
        Ok(self.count("SELECT count(*) AS number FROM (SELECT 1 FROM commands LIMIT 1)", vec![])?
            > 0)
    }

    fn count_open(&self) -> Result<u64> {
        self.count(
            "SELECT count(*) AS number FROM commands WHERE is_active = 1 AND stage = 'open'",
            vec![],
        )
    }

    fn command(&self, id: Uuid) -> Result<Option<StoredCommand>> {
        Ok(self.select_commands("id = ?", vec![text(id)])?.into_iter().next())
    }

    fn with_due_timer(&self, now: Timestamp, limit: u32) -> Result<Vec<StoredCommand>> {
        let parameters = vec![text(now), SqlStorageValue::Integer(limit.into())];
        let condition = "id IN (SELECT id FROM commands WHERE stage = 'waiting' AND due_at <= ?1
                UNION ALL SELECT id FROM commands WHERE is_active = 1 AND due_at <= ?1)
            ORDER BY due_at, id LIMIT ?2 + 0";
        self.select_commands(condition, parameters)
    }

    fn unflushed(&self, reported_by: Timestamp, limit: u32) -> Result<Vec<StoredCommand>> {
        let condition = format!(
            "is_active = 1 AND flushed < revision AND (stage IS NOT 'open' OR {LAST_REPORT} <= ?) LIMIT ? + 0"
        );
        self.select_commands(
            &condition,
            vec![text(reported_by), SqlStorageValue::Integer(limit.into())],
        )
    }

    fn next_unflushed(&self) -> Result<Option<NextFlush>> {
        #[derive(Deserialize)]
        struct PendingRow {
            /// 1 if all pending commands are open, 0 if not. `None` if no command is pending.
            are_all_open: Option<f64>,
            earliest_report: Option<Timestamp>,
        }
        let sql = format!(
            "SELECT min(stage IS 'open') AS are_all_open,
                min(iif(stage IS 'open', {LAST_REPORT}, NULL)) AS earliest_report
             FROM commands WHERE is_active = 1 AND flushed < revision"
        );
        let rows: Vec<PendingRow> = self.rows(&sql, vec![])?;
        Ok(rows.first().and_then(|row| match row.are_all_open? {
            0.0 => Some(NextFlush::Now),
            _ => row.earliest_report.map(NextFlush::After),
        }))
    }

    fn save(&mut self, changed: &StoredCommand, now: Timestamp) -> Result<()> {
        self.activate(changed.command.id)?;
        let sql =
            "UPDATE commands SET phase = ?2, stage = ?3, due_at = ?4, revision = revision + 1,
            document = ?5, result = ?6 WHERE id = ?1";
        let parameters = vec![
            text(changed.command.id),
            text(changed.phase.as_str()),
            nullable(changed.stage().map(Stage::as_str)),
            nullable(changed.timer_at(now)),
            text(changed.document().map_err(failed)?),
            nullable(changed.result.as_deref()),
        ];
        self.exec(sql, parameters)
    }

    fn set_timer(&mut self, id: Uuid, at: Option<Timestamp>) -> Result<()> {
        self.exec("UPDATE commands SET due_at = ?2 WHERE id = ?1", vec![text(id), nullable(at)])
    }

    fn accepted_after(&self, after: &str, limit: u32) -> Result<Vec<StoredCommand>> {
        let parameters = vec![
            text(Phase::Accepted.as_str()),
            text(after),
            SqlStorageValue::Integer(limit.into()),
        ];
        self.select_commands("phase = ? AND id > ? ORDER BY id LIMIT ? + 0", parameters)
    }

    fn mark_unflushed(&mut self, id: Uuid) -> Result<()> {
        self.exec("UPDATE commands SET flushed = 0, is_active = 1 WHERE id = ?", vec![text(id)])
    }

    fn mark_flushed(&mut self, id: Uuid, revision: i64, has_events: bool) -> Result<()> {
        let events = if has_events {
            ", document = json_set(document, '$.events', json((
                SELECT json_group_array(json(value)) FROM json_each(document, '$.events') WHERE value ->> 'revision' > ?2)))"
        } else {
            ""
        };
        let sql = format!(
            "UPDATE commands SET flushed = max(flushed, ?2), is_active = phase <> 'accepted' OR stage IS 'open'
                OR max(flushed, ?2) < revision OR due_at IS NOT NULL AND stage IS NOT 'waiting' {events} WHERE id = ?1"
        );
        self.exec(&sql, vec![text(id), SqlStorageValue::Integer(revision)])
    }

    fn delete(&mut self, id: Uuid) -> Result<()> {
        self.drop_sums(id);
        self.exec("DELETE FROM answers WHERE command = ?", vec![text(id)])?;
        self.exec("DELETE FROM commands WHERE id = ?", vec![text(id)])
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
        let sql = "SELECT id,
                (SELECT coalesce(sum(kept), 0) FROM chunks c
                    WHERE c.command = commands.id) AS kept_bytes,
                phase = 'accepted' AND flushed >= revision
                    AND coalesce(document ->> '$.life.handled_at' <= ?2, 0) AS is_deletable
            FROM commands WHERE id IN (SELECT value FROM json_each(?1))";
        let rows: Vec<OldCommandRow> =
            self.rows(sql, vec![text(serde_json::to_string(ids).map_err(failed)?), text(until)])?;
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
        let sql = "SELECT min(due_at) AS due_at FROM (
            SELECT min(due_at) AS due_at FROM commands WHERE stage = 'waiting'
            UNION ALL SELECT min(due_at) FROM commands WHERE is_active = 1)";
        let rows: Vec<DueRow> = self.rows(sql, vec![])?;
        Ok(rows.first().and_then(|row| row.due_at))
    }

    fn idempotent_request(
        &mut self,
        key: &str,
        now: Timestamp,
    ) -> Result<Option<IdempotentRequest>> {
        self.exec("DELETE FROM answers WHERE expires_at <= ?", vec![text(now)])?;
        let sql = "SELECT body, command, answer FROM answers WHERE key = ?";
        Ok(self.rows(sql, vec![text(key)])?.into_iter().next())
    }

    fn insert_idempotent_request(
        &mut self,
        key: &str,
        body: &str,
        command: Uuid,
        expires_at: Timestamp,
    ) -> Result<()> {
        let sql =
            "INSERT OR REPLACE INTO answers (key, body, command, expires_at) VALUES (?, ?, ?, ?)";
        self.exec(sql, vec![text(key), text(body), text(command), text(expires_at)])
    }

    fn set_idempotent_answer(&mut self, key: &str, answer: &str) -> Result<()> {
        self.exec("UPDATE answers SET answer = ?2 WHERE key = ?1", vec![text(key), text(answer)])
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
