//! What a server's object tells of its commands, and how long a question waits for its answer.

use std::pin::pin;
use std::time::Duration;

use farhand_domain::command_object;
use farhand_domain::link::stored_command::{Phase, StoredCommand};
use futures_util::future::{self, Either};
use serde_json::{Map, Value, json};
use uuid::Uuid;
use worker::Delay;

use super::calls::{Answer, ChunkPage, Chunks, Follow, Followed, Live, Refusal};
use super::calls::{done, refused};
use super::object::{ServerLink, fact, now};
use super::output_table::Most;
use crate::platform::log;

/// How long a question for a command that is just being recorded waits for that.
const RECORDED_WITHIN: Duration = Duration::from_secs(10);
/// How much output a follower is told at once: so many chunks, and not many more than so many bytes.
const TOLD_AT_ONCE: (u64, usize) = (1_000, 256 * 1024);
/// How long an answer waits for output that its command's end has overtaken, in milliseconds.
const OUTPUT_FOLLOWS_WITHIN: i64 = 1_000;
/// How long an answer waits for D1 to have the end that it shows, in milliseconds.
const D1_HAS_END_WITHIN: i64 = 1_000;

impl ServerLink {
    fn live_fields(&self, stored: &StoredCommand) -> worker::Result<Map<String, Value>> {
        Ok(command_object::live_fields(&stored.life, &self.tables().output(stored)?, now()))
    }

    /// The whole command object.
    pub(super) fn whole(&self, stored: &StoredCommand) -> worker::Result<Map<String, Value>> {
        Ok(command_object::object(&stored.command, self.live_fields(stored)?))
    }

    /// Tells the live fields of a command that was accepted.
    pub(super) fn tell(&self, id: Uuid) -> worker::Result<Answer> {
        match self.find(id)?.filter(|stored| stored.phase == Phase::Accepted) {
            Some(stored) => done(&self.live_fields(&stored)?),
            None => refused(Refusal::NotFound),
        }
    }

    /// Tells the live fields of a command, if asked to when it has ended.
    pub(super) async fn live(&self, live: Live) -> worker::Result<Answer> {
        if self.recording.borrow().contains(&live.id) {
            self.recorded.wait(live.id, RECORDED_WITHIN).await;
        }
        if let (Some(stored), Some(seconds)) = (self.find(live.id)?, live.wait) {
            self.wait_for_end(&stored, seconds).await?;
        }
        self.until_d1_has_end(live.id).await?;
        self.tell(live.id)
    }

    /// Waits for a command's end, and then a moment for output that the end has overtaken (agent-protocol 4).
    pub(super) async fn wait_for_end(&self, stored: &StoredCommand, seconds: u32) -> worker::Result<()> {
        let id = stored.command.id;
        if seconds == 0 || stored.life.state().is_final() {
            return Ok(());
        }
        self.ended.wait(id, Duration::from_secs(seconds.into())).await;
        let until = now().plus_millis(OUTPUT_FOLLOWS_WITHIN);
        while let Some(stored) = self.find(id)?.filter(StoredCommand::awaits_output) {
            let left = until.seconds_since(now());
            if left <= 0.0 {
                break;
            }
            self.output_came.wait(stored.command.id, Duration::from_secs_f64(left)).await;
        }
        Ok(())
    }

    /// If a command has ended, waits until D1 has that state, so that no list lags behind the answer (contract 11, Answers). If
    /// D1 does not answer within a second, the alarm goes on.
    pub(super) async fn until_d1_has_end(&self, id: Uuid) -> worker::Result<()> {
        let until = now().plus_millis(D1_HAS_END_WITHIN);
        while self.find(id)?.is_some_and(|stored| stored.life.state().is_final() && !stored.is_flushed) {
            let left = until.seconds_since(now());
            if left <= 0.0 {
                break;
            }
            let longest = Delay::from(Duration::from_secs_f64(left));
            if let Either::Left((flushed, _)) = future::select(pin!(self.flush()), longest).await
                && let Err(error) = flushed
            {
                log::trouble("d1_not_told", json!({"command": id}), &error);
                break;
            }
            if self.is_used()? && self.tables().fact::<u32>(fact::FAILURES)?.unwrap_or(0) > 0 {
                break;
            }
        }
        self.arm_if_used().await
    }

    /// Tells a page of a command's output.
    pub(super) fn chunks(&self, asked: &Chunks) -> worker::Result<Answer> {
        let Some(stored) = self.find(asked.id)? else { return refused(Refusal::NotFound) };
        let tables = self.tables();
        let most = Most { chunks: asked.limit, bytes: usize::MAX, until_gap: false };
        let chunks = match tables.find_chunk(&stored, asked.from, asked.offset)? {
            Some(first) => tables.chunks(&stored, first, most)?,
            None => vec![],
        };
        done(&ChunkPage { count: tables.count_chunks(&stored, asked.from)?, chunks })
    }

    /// Tells the next of a command's output, when there is some, or that there is no more.
    pub(super) async fn follow(&self, asked: Follow) -> worker::Result<Answer> {
        let until = now().plus_millis(asked.wait_millis);
        loop {
            let Some(stored) = self.find(asked.id)? else { return refused(Refusal::NotFound) };
            let tables = self.tables();
            let settles_at = stored.settles_at();
            let is_settled = settles_at.is_some_and(|at| at <= now());
            let most = Most { chunks: TOLD_AT_ONCE.0, bytes: TOLD_AT_ONCE.1, until_gap: !is_settled };
            let first = tables.find_chunk(&stored, asked.from, 0)?;
            // What comes after a gap waits until the gap is filled.
            let chunks = match first {
                Some(first) if first == asked.from || is_settled || asked.skips_gap => {
                    tables.chunks(&stored, first, most)?
                }
                _ => vec![],
            };
            let has_more = match chunks.last() {
                Some(last) => tables.find_chunk(&stored, u64::from(last.seq) + 1, 0)?.is_some(),
                None => first.is_some(),
            };
            let is_over = is_settled && !has_more;
            if is_over {
                self.until_d1_has_end(asked.id).await?;
            }
            let left = until.seconds_since(now());
            if !chunks.is_empty() || is_over || left <= 0.0 {
                let end = if is_over { Some(self.end(&stored)?) } else { None };
                return done(&Followed { chunks, has_more, end });
            }
            let settles_in = settles_at.map_or(left, |at| at.seconds_since(now()));
            let longest = Duration::from_secs_f64(left.min(settles_in).max(0.01));
            self.output_came.wait(asked.id, longest).await;
        }
    }

    /// What a stream tells at its end: the live fields, and whether it lacks some of the output.
    pub(super) fn end(&self, stored: &StoredCommand) -> worker::Result<Map<String, Value>> {
        let mut end = self.live_fields(stored)?;
        end.insert("output_truncated".to_owned(), stored.lacks_output().into());
        Ok(end)
    }
}
