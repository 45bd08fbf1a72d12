//! Answers about commands: the command object, its output, and a stream of it.

use serde_json::{Map, Value};
use uuid::Uuid;

use super::call::{Answer, ChunkPage, Chunks, Follow, Followed, Forget, Forgotten, Refusal};
use super::event::Ticket;
use super::machine::Link;
use super::memory::{Then, What};
use super::store::{Most, Result, Store};
use super::stored_command::{Phase, StoredCommand};
use crate::command_object;
use crate::time::Timestamp;

/// How much output one answer to a follower has at most: chunks, and about as many bytes.
const TOLD_AT_ONCE: (u64, usize) = (1_000, 256 * 1024);
/// How much one call deletes at most, in rows and in pages of 4 KiB together.
const FORGOTTEN_AT_ONCE: u64 = 8_000;

impl<S: Store> Link<S> {
    fn live_fields(&self, stored: &StoredCommand) -> Result<Map<String, Value>> {
        let output = self.store.output(stored)?;
        Ok(command_object::live_fields(&stored.life, &output, self.scene.now))
    }

    /// The whole command object.
    pub(super) fn whole(&self, stored: &StoredCommand) -> Result<Map<String, Value>> {
        Ok(command_object::object(&stored.command, self.live_fields(stored)?))
    }

    /// The live fields of a command that was accepted.
    pub(super) fn live_answer(&self, id: Uuid) -> Result<Answer> {
        match self.find(id)?.filter(|stored| stored.phase == Phase::Accepted) {
            Some(stored) => Ok(Answer::done(self.live_fields(&stored)?)),
            None => Ok(Answer::Refused(Refusal::NotFound)),
        }
    }

    /// Answers with a page of a command's output.
    pub(super) fn tell_chunks(&mut self, ticket: Ticket, asked: &Chunks) -> Result<()> {
        let Some(stored) = self.find(asked.id)? else {
            self.refuse(ticket, Refusal::NotFound);
            return Ok(());
        };
        let most = Most { chunks: asked.limit, bytes: usize::MAX, until_gap: false };
        let chunks = match self.store.find_chunk(&stored, asked.from, asked.offset)? {
            Some(first) => self.store.chunks(&stored, first, most)?,
            None => vec![],
        };
        let count = self.store.count_chunks(&stored, asked.from)?;
        self.reply(ticket, Answer::done(ChunkPage { count, chunks }));
        Ok(())
    }

    /// Answers with the next output of a command as soon as there is some, or with its end.
    pub(super) fn follow(&mut self, ticket: Ticket, asked: Follow) -> Result<()> {
        let until = self.scene.now.plus_millis(asked.wait_millis);
        self.follow_until(ticket, asked, until, false)
    }

    /// The same, with the latest time of the answer. `is_told`: D1 has the command's end, or was
    /// waited for long enough.
    pub(super) fn follow_until(
        &mut self,
        ticket: Ticket,
        asked: Follow,
        until: Timestamp,
        is_told: bool,
    ) -> Result<()> {
        let now = self.scene.now;
        let Some(stored) = self.find(asked.id)? else {
            self.refuse(ticket, Refusal::NotFound);
            return Ok(());
        };
        let settles_at = stored.settles_at();
        let is_settled = settles_at.is_some_and(|at| at <= now);
        let most = Most { chunks: TOLD_AT_ONCE.0, bytes: TOLD_AT_ONCE.1, until_gap: !is_settled };
        let first = self.store.find_chunk(&stored, asked.from, 0)?;
        // Output after a gap waits until the gap is filled.
        let chunks = match first {
            Some(first) if first == asked.from || is_settled || asked.skips_gap => {
                self.store.chunks(&stored, first, most)?
            }
            _ => vec![],
        };
        let has_more = match chunks.last() {
            Some(last) => self.store.find_chunk(&stored, u64::from(last.seq) + 1, 0)?.is_some(),
            None => first.is_some(),
        };
        let is_over = is_settled && !has_more;
        if is_over && !is_told {
            return self.await_d1(ticket, asked.id, Then::Followed(asked));
        }
        if !chunks.is_empty() || is_over || until <= now {
            let end = if is_over { Some(self.end(&stored)?) } else { None };
            self.reply(ticket, Answer::done(Followed { chunks, has_more, end }));
            return Ok(());
        }
        let look_at = settles_at.map_or(until, |at| at.min(until));
        self.wait(ticket, Some(look_at), What::Follow(asked, until));
        Ok(())
    }

    /// The end of a stream: the live fields, and whether some of the output is missing.
    fn end(&self, stored: &StoredCommand) -> Result<Map<String, Value>> {
        let mut end = self.live_fields(stored)?;
        end.insert("output_truncated".to_owned(), stored.lacks_output().into());
        Ok(end)
    }

    /// Deletes commands that ended long ago, with their output. A command stays if it has not ended
    /// here or if D1 does not have its latest revision. Repeating the call is harmless.
    pub(super) fn forget(&mut self, ticket: Ticket, forget: Forget) -> Result<()> {
        let Forget { ids, until } = forget;
        let forgotten = match self.server {
            None => Forgotten { ids, is_all: true },
            Some(_) => {
                let (ids, is_all) = self.store.forget(&ids, until, FORGOTTEN_AT_ONCE)?;
                // Calls that still follow one of them get an answer.
                self.touched.extend(&ids);
                Forgotten { ids, is_all }
            }
        };
        self.reply(ticket, Answer::done(forgotten));
        self.look_at_waits()?;
        self.wipe_if_unused()
    }
}
