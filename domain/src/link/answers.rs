//! Replies about commands: the command object, pages of its output, and the stream of its output.
//! Also deletes old commands.

use serde_json::{Map, Value};
use uuid::Uuid;

use super::call::{
    DeleteOldCommands, DeletedCommands, FollowOutput, FollowedOutput, LinkResponse, OutputPage,
    ReadOutput, Refusal,
};
use super::event::Ticket;
use super::machine::Machine;
use super::memory::{AfterWait, WaitsFor};
use super::store::{ReadLimit, Result, Store};
use super::stored_command::{Phase, StoredCommand};
use crate::command::object;
use crate::time::Timestamp;

/// Maximum number of chunks in one reply to a follower.
const MAX_STREAM_CHUNKS: u64 = 1_000;
/// Maximum number of bytes in one reply to a follower. The last chunk may exceed it.
const MAX_STREAM_BYTES: usize = 256 * 1024;
/// Maximum that one call deletes: the number of rows plus the number of pages of 4 KiB.
const MAX_DELETED_PER_CALL: u64 = 8_000;

impl<S: Store> Machine<S> {
    fn live_fields(&self, stored: &StoredCommand) -> Result<Map<String, Value>> {
        let output = self.store.output(stored)?;
        let loss = stored.output_loss();
        Ok(object::live_fields(&stored.life, &output, loss, self.input.now))
    }

    /// The whole command object.
    pub(super) fn command_json(&self, stored: &StoredCommand) -> Result<Map<String, Value>> {
        Ok(object::command_json(&stored.command, self.live_fields(stored)?))
    }

    /// The live fields of an accepted command.
    pub(super) fn live_answer(&self, id: Uuid) -> Result<LinkResponse> {
        match self.find(id)?.filter(|stored| stored.phase == Phase::Accepted) {
            Some(stored) => Ok(LinkResponse::done(self.live_fields(&stored)?)),
            None => Ok(LinkResponse::Refused(Refusal::NotFound)),
        }
    }

    /// Replies with a page of a command's output.
    pub(super) fn output_page(&mut self, ticket: Ticket, page: &ReadOutput) -> Result<()> {
        let Some(stored) = self.find(page.id)? else {
            self.refuse(ticket, Refusal::NotFound);
            return Ok(());
        };
        let limit = ReadLimit { chunks: page.limit, bytes: usize::MAX, until_gap: false };
        let chunks = match self.store.find_chunk(&stored, page.from, page.offset)? {
            Some(first) => self.store.chunks(&stored, first, limit)?,
            None => vec![],
        };
        let count = self.store.count_chunks(&stored, page.from)?;
        self.reply(ticket, LinkResponse::done(OutputPage { count, chunks }));
        Ok(())
    }

    /// Replies with the next output of a command when it arrives, or with the command's end.
    pub(super) fn follow(&mut self, ticket: Ticket, follow: FollowOutput) -> Result<()> {
        let until = self.input.now.plus_millis(follow.wait_millis);
        self.follow_until(ticket, follow, until, false)
    }

    /// Like [`Self::follow`], but replies at `until` at the latest. `is_end_in_d1`: D1 has the
    /// command's end, or the wait for D1 timed out.
    pub(super) fn follow_until(
        &mut self,
        ticket: Ticket,
        follow: FollowOutput,
        until: Timestamp,
        is_end_in_d1: bool,
    ) -> Result<()> {
        let now = self.input.now;
        let Some(stored) = self.find(follow.id)? else {
            self.refuse(ticket, Refusal::NotFound);
            return Ok(());
        };
        let complete_at = stored.output_complete_at();
        let is_complete = complete_at.is_some_and(|at| at <= now);
        let limit = ReadLimit {
            chunks: MAX_STREAM_CHUNKS,
            bytes: MAX_STREAM_BYTES,
            until_gap: !is_complete,
        };
        let first = self.store.find_chunk(&stored, follow.from, 0)?;
        // Output after a gap is held back until the gap is filled.
        let chunks = match first {
            Some(first) if first == follow.from || is_complete || follow.skips_gap => {
                self.store.chunks(&stored, first, limit)?
            }
            _ => vec![],
        };
        let has_more = match chunks.last() {
            Some(last) => self.store.find_chunk(&stored, u64::from(last.seq) + 1, 0)?.is_some(),
            None => first.is_some(),
        };
        let is_at_end = is_complete && !has_more;
        if is_at_end && !is_end_in_d1 {
            return self.await_d1(ticket, follow.id, AfterWait::EndStream(follow));
        }
        if !chunks.is_empty() || is_at_end || until <= now {
            let end = if is_at_end { Some(self.stream_end(&stored)?) } else { None };
            self.reply(ticket, LinkResponse::done(FollowedOutput { chunks, has_more, end }));
            return Ok(());
        }
        let resume_at = complete_at.map_or(until, |at| at.min(until));
        self.wait(ticket, Some(resume_at), WaitsFor::NextOutput(follow, until));
        Ok(())
    }

    /// The end of a stream: the live fields, and whether some of the output is not in the chunks.
    fn stream_end(&self, stored: &StoredCommand) -> Result<Map<String, Value>> {
        let mut end = self.live_fields(stored)?;
        end.insert("output_truncated".to_owned(), stored.is_output_incomplete().into());
        Ok(end)
    }

    /// Deletes commands that ended long ago, with their output. Keeps commands that have not ended
    /// here, and commands whose latest revision D1 does not have. The call can be repeated.
    pub(super) fn delete_old_commands(
        &mut self,
        ticket: Ticket,
        request: DeleteOldCommands,
    ) -> Result<()> {
        let DeleteOldCommands { ids, until } = request;
        let deleted = match self.server {
            None => DeletedCommands { ids, is_complete: true },
            Some(_) => {
                let deleted = self.store.delete_old(&ids, until, MAX_DELETED_PER_CALL)?;
                // Followers of a deleted command get a reply.
                self.changed_commands.extend(&deleted.ids);
                deleted
            }
        };
        self.reply(ticket, LinkResponse::done(deleted));
        self.resume_waiting()?;
        self.wipe_if_unused()
    }
}
