//! A naive model of the object's storage, in memory. It behaves like the storage in SQLite.

use std::cell::Cell;
use std::collections::BTreeMap;

use farhand_domain::agent::wire::Chunk;
use farhand_domain::command::end::End;
use farhand_domain::command::lifecycle::State;
use farhand_domain::command::object::Output;
use farhand_domain::hash::sha256;
use farhand_domain::link::call::DeletedCommands;
use farhand_domain::link::state::ServerState;
use farhand_domain::link::store::{
    IdempotentRequest, NextFlush, PlatformFailure, ReadLimit, Result, Store,
};
use farhand_domain::link::stored_command::{ChunkSums, Phase, Stage, StoredCommand};
use farhand_domain::time::Timestamp;
use uuid::Uuid;

/// A stored command, with its columns and its chunks.
#[derive(Clone, Debug)]
pub struct Row {
    pub command: StoredCommand,
    pub flushed: i64,
    pub timer_at: Option<Timestamp>,
    pub chunks: BTreeMap<u32, String>,
}

impl Row {
    /// The command as a query returns it.
    fn read(&self) -> StoredCommand {
        let bytes = self.chunks.values().map(|content| content.len() as u64).sum();
        let chunks = ChunkSums {
            rows: self.chunks.len() as u64,
            bytes,
            count: self.chunks.len() as u64,
            top: self.chunks.keys().next_back().map_or(0, |seq| u64::from(*seq) + 1),
            kept_bytes: bytes,
        };
        StoredCommand { is_flushed: self.is_flushed(), chunks, ..self.command.clone() }
    }

    pub fn is_flushed(&self) -> bool {
        self.flushed >= self.command.revision
    }

    /// Writes the document, which has the inputs only while the command waits.
    fn write(&mut self, changed: &StoredCommand) {
        self.command = StoredCommand { revision: self.command.revision, ..changed.clone() };
        if self.command.life.state() != State::Waiting {
            self.command.inputs = None;
        }
    }

    fn last_report(&self) -> Option<Timestamp> {
        self.command.life.acked_at.or(self.command.life.delivered_at)
    }
}

/// The storage.
#[derive(Clone, Default, Debug)]
pub struct MemoryStore {
    pub state: Option<ServerState>,
    pub rows: BTreeMap<Uuid, Row>,
    pub answers: BTreeMap<String, (IdempotentRequest, Timestamp)>,
    /// Whether writing the state fails.
    pub is_broken: Cell<bool>,
    /// The number of wipes.
    pub wipes: u64,
}

impl MemoryStore {
    fn select(&self, is_wanted: impl Fn(&Row) -> bool) -> Vec<StoredCommand> {
        self.rows.values().filter(|row| is_wanted(row)).map(Row::read).collect()
    }

    fn row(&mut self, id: Uuid) -> Option<&mut Row> {
        self.rows.get_mut(&id)
    }
}

impl Store for MemoryStore {
    fn save_state(&mut self, server: &ServerState, is_first: bool) -> Result<()> {
        if self.is_broken.get() {
            return Err(PlatformFailure("the disk is full".to_owned()));
        }
        assert_eq!(is_first, self.state.is_none(), "the storage is set up once");
        self.state = Some(server.clone());
        Ok(())
    }

    fn server(&self) -> Result<Option<ServerState>> {
        Ok(self.state.clone())
    }

    fn wipe(&mut self) -> Result<()> {
        *self = Self { wipes: self.wipes + 1, ..Self::default() };
        Ok(())
    }

    fn insert(&mut self, new: &StoredCommand, timer_at: Timestamp) -> Result<()> {
        assert!(self.state.is_some(), "the tables exist");
        let row = Row {
            command: new.clone(),
            flushed: 1,
            timer_at: Some(timer_at),
            chunks: BTreeMap::new(),
        };
        assert!(self.rows.insert(new.command.id, row).is_none(), "an id is used once");
        Ok(())
    }

    fn accept(&mut self, accepted: &StoredCommand, now: Timestamp) -> Result<()> {
        if let Some(row) = self.row(accepted.command.id) {
            row.command.phase = Phase::Accepted;
            row.timer_at = accepted.timer_at(now);
        }
        Ok(())
    }

    fn save(&mut self, changed: &StoredCommand, now: Timestamp) -> Result<()> {
        if let Some(row) = self.row(changed.command.id) {
            row.write(changed);
            row.command.revision += 1;
            row.timer_at = changed.timer_at(now);
        }
        Ok(())
    }

    fn set_timer(&mut self, id: Uuid, timer_at: Option<Timestamp>) -> Result<()> {
        if let Some(row) = self.row(id) {
            row.timer_at = timer_at;
        }
        Ok(())
    }

    fn delete(&mut self, id: Uuid) -> Result<()> {
        self.answers.retain(|_, (answer, _)| answer.command != id);
        self.rows.remove(&id);
        Ok(())
    }

    fn command(&self, id: Uuid) -> Result<Option<StoredCommand>> {
        Ok(self.rows.get(&id).map(Row::read))
    }

    fn has_commands(&self) -> Result<bool> {
        Ok(!self.rows.is_empty())
    }

    fn due_waiting(&self, now: Timestamp, limit: u64) -> Result<Vec<StoredCommand>> {
        let mut due = self.select(|row| {
            row.command.stage() == Some(Stage::Waiting) && row.command.life.is_due(now)
        });
        due.sort_by_key(|stored| (stored.life.scheduled_at, stored.command.id));
        due.truncate(limit as usize);
        Ok(due)
    }

    fn waiting(&self) -> Result<Vec<StoredCommand>> {
        Ok(self.select(|row| row.command.stage() == Some(Stage::Waiting)))
    }

    fn open_commands(&self) -> Result<Vec<StoredCommand>> {
        Ok(self.select(|row| row.command.stage() == Some(Stage::Open)))
    }

    fn count_open(&self) -> Result<u64> {
        Ok(self.rows.values().filter(|row| row.command.stage() == Some(Stage::Open)).count() as u64)
    }

    fn with_due_timer(&self, now: Timestamp, limit: u32) -> Result<Vec<StoredCommand>> {
        let is_due = |row: &&Row| row.timer_at.is_some_and(|at| at <= now);
        let mut due: Vec<_> = self.rows.values().filter(is_due).collect();
        due.sort_by_key(|row| (row.timer_at, row.command.command.id));
        Ok(due.into_iter().take(limit as usize).map(Row::read).collect())
    }

    fn next_timer(&self) -> Result<Option<Timestamp>> {
        Ok(self.rows.values().filter_map(|row| row.timer_at).min())
    }

    fn unflushed(&self, reported_by: Timestamp, limit: u32) -> Result<Vec<StoredCommand>> {
        let is_wanted = |row: &Row| {
            let is_open = row.command.stage() == Some(Stage::Open);
            !row.is_flushed() && (!is_open || row.last_report().is_some_and(|at| at <= reported_by))
        };
        Ok(self.select(is_wanted).into_iter().take(limit as usize).collect())
    }

    fn next_unflushed(&self) -> Result<Option<NextFlush>> {
        let entries: Vec<_> = self.rows.values().filter(|row| !row.is_flushed()).collect();
        if entries.iter().any(|row| row.command.stage() != Some(Stage::Open)) {
            return Ok(Some(NextFlush::Now));
        }
        Ok(entries.iter().filter_map(|row| row.last_report()).min().map(NextFlush::After))
    }

    fn mark_flushed(&mut self, id: Uuid, revision: i64, has_events: bool) -> Result<()> {
        if let Some(row) = self.row(id) {
            row.flushed = row.flushed.max(revision);
            if has_events {
                row.command.events.retain(|event| event.revision > revision);
            }
        }
        Ok(())
    }

    fn mark_unflushed(&mut self, id: Uuid) -> Result<()> {
        if let Some(row) = self.row(id) {
            row.flushed = 0;
        }
        Ok(())
    }

    fn accepted_after(&self, after: &str, limit: u32) -> Result<Vec<StoredCommand>> {
        let is_wanted = |row: &Row| {
            row.command.phase == Phase::Accepted
                && row.command.command.id.to_string().as_str() > after
        };
        Ok(self.select(is_wanted).into_iter().take(limit as usize).collect())
    }

    fn delete_old(
        &mut self,
        ids: &[Uuid],
        until: Timestamp,
        at_once: u64,
    ) -> Result<DeletedCommands> {
        let (mut deleted, mut left) =
            (DeletedCommands { ids: Vec::new(), is_complete: false }, at_once);
        for id in ids {
            if let Some(row) = self.rows.get(id) {
                let is_over = row.command.life.handled_at.is_some_and(|at| at <= until);
                if row.command.phase != Phase::Accepted || !row.is_flushed() || !is_over {
                    continue;
                }
                if left == 0 {
                    return Ok(deleted);
                }
                left = left.saturating_sub(row.chunks.len() as u64 + 1);
                self.delete(*id)?;
            }
            deleted.ids.push(*id);
        }
        Ok(DeletedCommands { is_complete: true, ..deleted })
    }

    fn idempotent_request(
        &mut self,
        key: &str,
        now: Timestamp,
    ) -> Result<Option<IdempotentRequest>> {
        self.answers.retain(|_, (_, expires_at)| *expires_at > now);
        Ok(self.answers.get(key).map(|(answer, _)| answer.clone()))
    }

    fn insert_idempotent_request(
        &mut self,
        key: &str,
        body: &str,
        command: Uuid,
        expires_at: Timestamp,
    ) -> Result<()> {
        let answer = IdempotentRequest { body: body.to_owned(), command, answer: None };
        self.answers.insert(key.to_owned(), (answer, expires_at));
        Ok(())
    }

    fn set_idempotent_answer(&mut self, key: &str, answer: &str) -> Result<()> {
        if let Some((stored, _)) = self.answers.get_mut(key) {
            stored.answer = Some(answer.to_owned());
        }
        Ok(())
    }

    fn add_chunk(&mut self, stored: &StoredCommand, chunk: &Chunk, now: Timestamp) -> Result<bool> {
        let Some(row) = self.row(stored.command.id) else { return Ok(false) };
        if row.chunks.contains_key(&chunk.seq) {
            return Ok(false);
        }
        row.chunks.insert(chunk.seq, chunk.content.clone());
        if stored.life.outcome().is_some() {
            row.write(&StoredCommand { output_at: Some(now), ..stored.clone() });
            row.command.revision += 1;
        }
        Ok(true)
    }

    fn count_chunks(&self, stored: &StoredCommand, from: u64) -> Result<u64> {
        Ok(self.chunks_from(stored, from).count() as u64)
    }

    fn find_chunk(&self, stored: &StoredCommand, from: u64, offset: u64) -> Result<Option<u64>> {
        Ok(self.chunks_from(stored, from).nth(offset as usize).map(|(seq, _)| u64::from(*seq)))
    }

    fn chunks(&self, stored: &StoredCommand, from: u64, limit: ReadLimit) -> Result<Vec<Chunk>> {
        let mut chunks: Vec<Chunk> = Vec::new();
        let mut bytes = 0;
        for (seq, content) in self.chunks_from(stored, from) {
            let is_after_gap = chunks.last().is_some_and(|last| last.seq + 1 != *seq);
            if chunks.len() as u64 >= limit.chunks
                || bytes > limit.bytes
                || (limit.until_gap && is_after_gap)
            {
                break;
            }
            bytes += content.len();
            chunks.push(Chunk { seq: *seq, content: content.clone() });
        }
        Ok(chunks)
    }

    fn output(&self, stored: &StoredCommand) -> Result<Output> {
        let bytes = stored.output_bytes();
        if !matches!(stored.life.end, Some(End::Finished(_))) {
            return Ok(Output { result: None, truncated: false, bytes });
        }
        let result = match &stored.result {
            Some(result) if !result.is_empty() || stored.chunks.bytes == 0 => result.clone(),
            _ => self.content(stored),
        };
        Ok(Output { result: Some(result), truncated: stored.result_cut, bytes })
    }

    fn output_hash(&self, stored: &StoredCommand, is_late: bool) -> Result<Option<String>> {
        if !is_late && !stored.has_all_chunks() {
            return Ok(None);
        }
        let is_empty = stored.chunks.count == 0;
        let text =
            if is_empty { stored.result.clone().unwrap_or_default() } else { self.content(stored) };
        Ok(Some(sha256(&text)))
    }
}

impl MemoryStore {
    fn chunks_from(
        &self,
        stored: &StoredCommand,
        from: u64,
    ) -> impl Iterator<Item = (&u32, &String)> {
        let chunks = self.rows.get(&stored.command.id).map(|row| row.chunks.iter());
        chunks.into_iter().flatten().filter(move |(seq, _)| u64::from(**seq) >= from)
    }

    fn content(&self, stored: &StoredCommand) -> String {
        self.chunks_from(stored, 0).map(|(_, content)| content.as_str()).collect()
    }
}
