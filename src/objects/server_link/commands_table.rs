//! The commands of a server's object, in its tables.

use farhand_domain::link::stored_command::{Phase, Stage, StoredCommand};
use farhand_domain::time::Timestamp;
use serde::Deserialize;
use uuid::Uuid;
use worker::{Error, Result, SqlStorageValue};

use super::tables::{Tables, integer, nullable, text};

/// SQL for when something was last heard of a command that is under way: it was acknowledged, or else went out.
const LAST_REPORT: &str = "coalesce(document ->> '$.life.acked_at', document ->> '$.life.delivered_at')";

/// What D1 does not have of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unflushed {
    /// Something that nothing is waited for with.
    Now,
    /// That something was heard of it then; it is under way, and more may come.
    After(Timestamp),
}

#[derive(Deserialize)]
struct CommandRow {
    document: String,
    result: Option<String>,
    phase: Phase,
    revision: f64,
    is_flushed: f64,
    chunks: String,
}

impl TryFrom<CommandRow> for StoredCommand {
    type Error = Error;

    fn try_from(row: CommandRow) -> Result<Self> {
        Ok(Self {
            result: row.result,
            phase: row.phase,
            revision: row.revision as i64,
            is_flushed: row.is_flushed != 0.0,
            chunks: serde_json::from_str(&row.chunks)?,
            ..serde_json::from_str(&row.document)?
        })
    }
}

const COMMAND: &str = "SELECT document, result, phase, revision, flushed >= revision AS is_flushed,
    (SELECT json_object('rows', count(*), 'bytes', coalesce(sum(bytes), 0), 'count', coalesce(sum(next - first), 0),
        'top', coalesce(max(next), 0), 'kept_bytes', coalesce(sum(kept), 0))
     FROM chunks c WHERE c.command = commands.id AND c.piece = 0) AS chunks FROM commands";

impl Tables {
    /// Takes a new command in, which is looked at again at `due_at` if nobody finishes recording it.
    pub fn insert_command(&self, new: &StoredCommand, due_at: Timestamp) -> Result<()> {
        let sql = "INSERT INTO commands (id, phase, scheduled_at, due_at, revision, flushed, document)
            VALUES (?1, ?2, ?3, ?4, 1, 1, ?5)";
        let parameters = vec![
            text(new.command.id),
            text(new.phase.as_str()),
            text(new.life.scheduled_at),
            text(due_at),
            text(new.document()?),
        ];
        self.exec(sql, parameters)
    }

    /// Accepts a recorded command, which is no change that D1 need hear of.
    pub fn accept(&self, stored: &StoredCommand, now: Timestamp) -> Result<()> {
        let accepted = StoredCommand { phase: Phase::Accepted, ..stored.clone() };
        let parameters = vec![
            text(accepted.command.id),
            text(accepted.phase.as_str()),
            nullable(accepted.stage().map(Stage::as_str)),
            nullable(accepted.due_at(now)),
        ];
        self.exec("UPDATE commands SET phase = ?2, stage = ?3, due_at = ?4 WHERE id = ?1", parameters)
    }

    /// Commands that wait to go out, in their order (contract 8, 5).
    pub fn due_waiting(&self, now: Timestamp, limit: u64) -> Result<Vec<StoredCommand>> {
        let found = self.commands(
            "stage = ? AND scheduled_at <= ? ORDER BY scheduled_at, id LIMIT ? + 0",
            vec![text(Stage::Waiting.as_str()), text(now), integer(limit)],
        )?;
        Ok(found.into_iter().filter(|stored| stored.life.is_due(now)).collect())
    }

    /// All commands that wait to go out, now or later.
    pub fn waiting_commands(&self) -> Result<Vec<StoredCommand>> {
        self.commands("stage = ?", vec![text(Stage::Waiting.as_str())])
    }

    /// Commands that the agent has and has not ended.
    pub fn open_commands(&self) -> Result<Vec<StoredCommand>> {
        self.commands("stage = ?", vec![text(Stage::Open.as_str())])
    }

    /// Whether there are no commands.
    pub fn has_no_commands(&self) -> Result<bool> {
        Ok(self.count("SELECT count(*) AS number FROM (SELECT 1 FROM commands LIMIT 1)", vec![])? == 0)
    }

    /// Whether a new command would go out at once: nothing that is due waits, and the agent has fewer than so many.
    pub fn has_room(&self, now: Timestamp, window: u64) -> Result<bool> {
        let sql = "SELECT NOT EXISTS (SELECT 1 FROM commands WHERE stage = ?1 AND scheduled_at <= ?2)
            AND (SELECT count(*) FROM commands WHERE stage = ?3) < ?4 AS number";
        Ok(self
            .count(sql, vec![text(Stage::Waiting.as_str()), text(now), text(Stage::Open.as_str()), integer(window)])?
            > 0)
    }

    /// How many commands the agent has and has not ended.
    pub fn count_open(&self) -> Result<u64> {
        self.count("SELECT count(*) AS number FROM commands WHERE stage = ?", vec![text(Stage::Open.as_str())])
    }

    pub(super) fn commands(&self, condition: &str, parameters: Vec<SqlStorageValue>) -> Result<Vec<StoredCommand>> {
        let rows: Vec<CommandRow> = self.rows(&format!("{COMMAND} WHERE {condition}"), parameters)?;
        rows.into_iter().map(StoredCommand::try_from).collect()
    }

    /// A command.
    pub fn command(&self, id: Uuid) -> Result<Option<StoredCommand>> {
        Ok(self.commands("id = ?", vec![text(id)])?.into_iter().next())
    }

    /// Commands whose time has come, the earliest first.
    pub fn due_commands(&self, now: Timestamp, limit: u32) -> Result<Vec<StoredCommand>> {
        let parameters = vec![text(now), SqlStorageValue::Integer(limit.into())];
        self.commands("due_at <= ? ORDER BY due_at, id LIMIT ? + 0", parameters)
    }

    /// Commands of which D1 does not have the latest; of those that are under way, whose last report came by `reported_by`.
    pub fn unflushed_commands(&self, reported_by: Timestamp, limit: u32) -> Result<Vec<StoredCommand>> {
        let condition = format!("flushed < revision AND (stage IS NOT ? OR {LAST_REPORT} <= ?) LIMIT ? + 0");
        self.commands(
            &condition,
            vec![text(Stage::Open.as_str()), text(reported_by), SqlStorageValue::Integer(limit.into())],
        )
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
        let rows: Vec<Row> = self.rows(&sql, vec![text(Stage::Open.as_str())])?;
        Ok(rows.first().and_then(|row| match row.waits? {
            0.0 => Some(Unflushed::Now),
            _ => row.report.map(Unflushed::After),
        }))
    }

    /// Stores what changed of a command, as another revision. `is_told`: D1 has it already, and lacked nothing before.
    pub fn save(&self, stored: &StoredCommand, now: Timestamp, is_told: bool) -> Result<()> {
        let sql =
            "UPDATE commands SET phase = ?2, stage = ?3, due_at = ?4, revision = revision + 1, flushed = flushed + ?5,
            document = ?6, result = ?7 WHERE id = ?1";
        let parameters = vec![
            text(stored.command.id),
            text(stored.phase.as_str()),
            nullable(stored.stage().map(Stage::as_str)),
            nullable(stored.due_at(now)),
            integer(u64::from(is_told)),
            text(stored.document()?),
            nullable(stored.result.as_deref()),
        ];
        self.exec(sql, parameters)
    }

    /// Has a command looked at later.
    pub fn postpone(&self, id: Uuid, due_at: Option<Timestamp>) -> Result<()> {
        self.exec("UPDATE commands SET due_at = ?2 WHERE id = ?1", vec![text(id), nullable(due_at)])
    }

    /// Accepted commands after one, by their ids.
    pub fn accepted_after(&self, after: &str, limit: u32) -> Result<Vec<StoredCommand>> {
        let parameters = vec![text(Phase::Accepted.as_str()), text(after), SqlStorageValue::Integer(limit.into())];
        self.commands("phase = ? AND id > ? ORDER BY id LIMIT ? + 0", parameters)
    }

    /// Notes that D1 may have an older revision of a command than it had.
    pub fn mark_unflushed(&self, id: Uuid) -> Result<()> {
        self.exec("UPDATE commands SET flushed = 0 WHERE id = ?", vec![text(id)])
    }

    /// Notes that D1 has a revision of a command, and with it the events up to that. The command may have changed since.
    pub fn mark_flushed(&self, told: &StoredCommand) -> Result<()> {
        let sql = if told.events.is_empty() {
            "UPDATE commands SET flushed = max(flushed, ?2) WHERE id = ?1"
        } else {
            "UPDATE commands SET flushed = max(flushed, ?2), document = json_set(document, '$.events', json((
                SELECT json_group_array(json(value)) FROM json_each(document, '$.events') WHERE value ->> 'revision' > ?2)))
             WHERE id = ?1"
        };
        self.exec(sql, vec![text(told.command.id), SqlStorageValue::Integer(told.revision)])
    }

    /// Stores a command's document and nothing beside it. `is_change`: D1 lacks it then.
    pub(super) fn store_document(&self, stored: &StoredCommand, is_change: bool) -> Result<()> {
        let parameters = vec![text(stored.command.id), text(stored.document()?), integer(u64::from(is_change))];
        self.exec("UPDATE commands SET document = ?2, revision = revision + ?3 WHERE id = ?1", parameters)
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
                AND coalesce(document ->> '$.life.handled_at' <= ?2, 0) AS is_due
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
}
