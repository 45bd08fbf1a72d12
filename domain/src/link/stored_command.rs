//! A command as the object of its server stores it, and what follows from that: whether its output
//! is complete, and when the alarm looks at it.

use serde::{Deserialize, Serialize};

use crate::audit::Event;
use crate::command::{Command, Origin};
use crate::command_end::Outcome;
use crate::lifecycle::{self, Lifecycle, State};
use crate::output;
use crate::time::Timestamp;
use crate::wire::Fin;

/// How long after its end a command's last output may come, in seconds, if the output is not known
/// to be complete.
const SETTLES_WITHIN: i64 = 2;
/// The same if some output is known to be missing.
const COMPLETES_WITHIN: i64 = 10;
/// How long after its end a command's output is in the audit log, in seconds.
const HASHED_WITHIN: i64 = 60;
/// How long after its end a command's output is accepted, in seconds.
const OUTPUT_WITHIN: i64 = 24 * 60 * 60;
/// How far beyond the highest `seq` a chunk is accepted after the end, if the agent did not report
/// how many there are.
const LATE_CHUNKS: u64 = 256;
/// From this size on an agent may have cut a result: agents cut it to about 1 MiB.
const AGENT_CUT: u64 = 1_000_000;
/// The largest number of bytes that is accepted from an agent: JSON is exact up to here.
const MAX_COUNT: u64 = 1 << 53;

/// Where a command is between the client's request and the agent.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Being written to D1; the client has no answer yet.
    #[default]
    Recording,
    /// Accepted.
    Accepted,
    /// Withdrawn, and perhaps still in D1.
    Withdrawing,
}

impl Phase {
    /// Its name in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Recording => "recording",
            Self::Accepted => "accepted",
            Self::Withdrawing => "withdrawing",
        }
    }
}

/// A command as the object of its server stores it: one JSON document, beside the columns that are
/// queried.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StoredCommand {
    /// The workspace.
    pub workspace_id: i64,
    /// The command.
    pub command: Command,
    /// Its life so far.
    pub life: Lifecycle,
    /// The credential of its request, and whether it has inputs.
    pub origin: Origin,
    /// Its inputs, encrypted under `SECRET_KEY`, until the command is delivered or ends.
    pub inputs: Option<String>,
    /// Whether the agent's result was cut.
    pub result_cut: bool,
    /// Bytes of the agent's result before the cut.
    pub result_bytes: u64,
    /// How many chunks there are in all, if the agent reported it.
    pub chunk_total: Option<u64>,
    /// The lowest `seq` of a chunk that was not kept, because the chunks before it fill the space.
    pub cut_at: Option<u64>,
    /// When output last came at or after its end.
    pub output_at: Option<Timestamp>,
    /// Whether the audit log has its end, but not the hash of its output.
    pub lacks_hash: bool,
    /// Its audit events that D1 does not have yet.
    pub events: Vec<PendingEvent>,
    /// The agent's result, cut: a column of its own. In JSON it could be six times as long.
    #[serde(skip)]
    pub result: Option<String>,
    /// Where it is between the client's request and the agent: a column of its own.
    #[serde(skip)]
    pub phase: Phase,
    /// Counts its changes: a column of its own.
    #[serde(skip)]
    pub revision: i64,
    /// Whether D1 has its latest revision.
    #[serde(skip)]
    pub is_flushed: bool,
    /// The sums of its chunks, which have rows of their own.
    #[serde(skip)]
    pub chunks: ChunkSums,
}

/// The sums of a command's chunks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize)]
pub struct ChunkSums {
    /// Rows.
    pub rows: u64,
    /// Bytes in all.
    pub bytes: u64,
    /// Chunks.
    pub count: u64,
    /// The highest `seq`, and one.
    pub top: u64,
    /// Bytes that are kept.
    pub kept_bytes: u64,
}

/// An audit event that D1 may not have yet.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PendingEvent {
    /// The revision of the command or the server that it belongs to. D1 has the event if it has
    /// that revision.
    pub revision: i64,
    /// The event.
    pub event: Event,
}

impl StoredCommand {
    /// A new command, which is to be recorded.
    pub fn new(
        workspace_id: i64,
        command: Command,
        origin: Origin,
        inputs: Option<String>,
        life: Lifecycle,
    ) -> Self {
        Self {
            workspace_id,
            command,
            life,
            origin,
            inputs,
            result: None,
            result_cut: false,
            result_bytes: 0,
            chunk_total: None,
            cut_at: None,
            output_at: None,
            lacks_hash: false,
            events: Vec::new(),
            phase: Phase::Recording,
            revision: 1,
            is_flushed: true,
            chunks: ChunkSums::default(),
        }
    }

    /// The JSON document. It has the inputs only while the command may still be delivered.
    ///
    /// # Errors
    /// Never, as every field is JSON.
    pub fn document(&self) -> serde_json::Result<String> {
        if self.inputs.is_some() && self.life.state() != State::Waiting {
            return serde_json::to_string(&Self { inputs: None, ..self.clone() });
        }
        serde_json::to_string(self)
    }

    /// The length of its whole output in bytes, as far as it is known.
    pub fn output_bytes(&self) -> u64 {
        self.chunks.bytes.max(self.result_bytes)
    }

    /// Whether a chunk is missing before one that came.
    pub fn has_gap(&self) -> bool {
        self.chunks.count < self.chunks.top
    }

    /// Whether a chunk that comes now is part of its output (contract 7.9). Later chunks
    /// could change history.
    pub fn takes_chunk(&self, seq: u64, now: Timestamp) -> bool {
        if self.life.delivered_at.is_none() {
            return false;
        }
        let Some(handled_at) = self.life.handled_at else { return true };
        let end = self.chunk_total.unwrap_or(self.chunks.top + LATE_CHUNKS);
        handled_at.plus_seconds(OUTPUT_WITHIN) > now && seq < end
    }

    /// From when on no more output is waited for; `None` while it may run.
    ///
    /// An agent's reports can overtake each other: its fin may come before its last chunks
    /// (agent-protocol 4.1). The output is complete if the agent reported the number of chunks, or
    /// if the chunks are as long as its result. Otherwise chunks that come shortly after still
    /// count.
    pub fn settles_at(&self) -> Option<Timestamp> {
        let handled_at = self.life.handled_at?;
        let ended = self.output_at.unwrap_or(handled_at).max(handled_at);
        let misses_some = self.has_gap()
            || self.chunks.bytes < self.result_bytes
            || self.chunk_total.is_some_and(|total| self.chunks.count < total);
        Some(match (self.has_all_chunks(), misses_some) {
            (true, _) => handled_at,
            (false, true) => ended.plus_seconds(COMPLETES_WITHIN),
            (false, false) => ended.plus_seconds(SETTLES_WITHIN),
        })
    }

    /// Whether all chunks are known to be there.
    pub fn has_all_chunks(&self) -> bool {
        match (self.life.outcome(), self.chunk_total) {
            (None, _) => self.life.handled_at.is_some() && self.life.delivered_at.is_none(),
            (Some(_), Some(total)) => self.chunks.count >= total,
            // An agent that reports no result may still send what it would have been.
            (Some(_), None) => {
                !self.has_gap() && self.result.is_some() && self.chunks.bytes == self.result_bytes
            }
        }
    }

    /// When the audit log gets the hash of its output, if it lacks that.
    pub fn hash_due_at(&self) -> Option<Timestamp> {
        let latest = self.life.handled_at?.plus_seconds(HASHED_WITHIN);
        self.settles_at().map(|at| at.min(latest)).filter(|_| self.lacks_hash)
    }

    /// Whether more output of an ended command is known or likely to be on its way.
    pub fn awaits_output(&self) -> bool {
        let Some(_) = self.life.outcome() else { return false };
        match self.chunk_total {
            Some(total) => self.chunks.count < total,
            // A result that the agent cut says nothing about how much there was.
            None => {
                self.has_gap()
                    || (self.result_bytes >= AGENT_CUT && self.chunks.bytes != self.result_bytes)
            }
        }
    }

    /// Whether the chunks that are kept are known to be less than the whole output.
    pub fn lacks_output(&self) -> bool {
        let are_missing = match self.chunk_total {
            Some(total) => self.chunks.count < total,
            None => self.chunks.bytes < self.result_bytes,
        };
        self.cut_at.is_some() || self.has_gap() || are_missing
    }

    /// The `seq` after the last chunk that is kept.
    pub fn kept_end(&self) -> u64 {
        self.cut_at.map_or(self.chunks.top, |cut_at| cut_at.min(self.chunks.top))
    }

    /// Adds an audit event, which is saved with the command.
    pub fn note(&mut self, event: Event) {
        self.events.push(PendingEvent { revision: self.revision + 1, event });
    }

    /// The queue that it is in; `None`: it is not accepted yet, or goes to no agent any more.
    pub fn stage(&self) -> Option<Stage> {
        match self.life.state() {
            State::Waiting if self.phase == Phase::Accepted => Some(Stage::Waiting),
            State::Sent | State::Acked => Some(Stage::Open),
            _ => None,
        }
    }

    /// When the alarm is to look at it; `None`: never.
    pub fn due_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.life
            .deadline(now)
            .or_else(|| self.hash_due_at())
            .filter(|_| self.phase == Phase::Accepted)
    }

    /// Ends it by its agent's report. Returns false for a repeated report, which changes nothing.
    pub fn finish(&mut self, fin: Fin, now: Timestamp) -> bool {
        let safe = |code: &i64| i32::try_from(*code).is_ok();
        let outcome = Outcome {
            success: fin.success,
            exit_code: fin.exit_code.filter(safe),
            elapsed_time: fin
                .elapsed_time
                .filter(|seconds| *seconds >= 0.0)
                .map(lifecycle::in_micros),
            reason: fin.reason.as_deref().filter(|_| !fin.success).and_then(Outcome::reason),
        };
        let changed = self.life.finish(now, outcome);
        if changed {
            self.chunk_total = fin.chunks.map(u64::from);
            self.output_at = Some(now);
            self.result_bytes = fin.output_bytes.filter(|bytes| *bytes <= MAX_COUNT).unwrap_or(0);
        }
        if changed && let Some(result) = fin.result {
            self.result_bytes = self.result_bytes.max(result.len() as u64);
            let (kept, cut) = output::result(&result);
            (self.result, self.result_cut) = (Some(kept), cut);
        }
        changed
    }
}

/// A queue of commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Accepted and not delivered.
    Waiting,
    /// Delivered, and not ended.
    Open,
}

impl Stage {
    /// Its name in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Open => "open",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::command::Shell;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::parse("2026-11-22T12:00:00Z").unwrap().plus_seconds(seconds)
    }

    /// An accepted command that was added at 0 s.
    fn accepted() -> StoredCommand {
        let command = Command {
            id: Uuid::nil(),
            shell: Shell::System,
            line: "id".into(),
            argv: None,
            username: "root".into(),
            groupname: String::new(),
            server: Uuid::nil(),
            server_name: "web-1".into(),
            requested_by: None,
        };
        let origin =
            Origin { api_token: None, session: None, remote_ip: String::new(), has_inputs: true };
        let life = Lifecycle::new(at(0), None, None, 60);
        let new = StoredCommand::new(1, command, origin, Some("sealed".into()), life);
        StoredCommand { phase: Phase::Accepted, ..new }
    }

    /// One that was delivered at 1 s.
    fn delivered() -> StoredCommand {
        let mut stored = accepted();
        assert!(stored.life.deliver(at(1)));
        stored
    }

    fn fin(result: Option<&str>, chunks: Option<u32>) -> Fin {
        Fin {
            success: true,
            result: result.map(str::to_owned),
            chunks,
            exit_code: Some(0),
            ..Fin::default()
        }
    }

    /// One that ended at 10 s, with so many chunks of four bytes from the first on.
    fn ended(result: Option<&str>, total: Option<u32>, count: u64) -> StoredCommand {
        let mut stored = delivered();
        assert!(stored.finish(fin(result, total), at(10)));
        stored.chunks =
            ChunkSums { rows: 1, bytes: 4 * count, count, top: count, kept_bytes: 4 * count };
        stored
    }

    #[test]
    fn the_document_keeps_all_but_the_columns() {
        let mut stored = ended(Some("result"), Some(3), 0);
        stored.inputs = None;
        (stored.result_cut, stored.cut_at, stored.lacks_hash) = (true, Some(1), true);
        (stored.origin.api_token, stored.origin.session) = (Some(Uuid::max()), Some(Uuid::nil()));
        stored.note(Event::new(
            Uuid::nil(),
            at(1),
            crate::audit::Source::default(),
            "command.finish",
        ));
        let read: StoredCommand = serde_json::from_str(&stored.document().unwrap()).unwrap();
        let StoredCommand { phase, revision, is_flushed, chunks, ref result, .. } = stored;
        let columns =
            StoredCommand { phase, revision, is_flushed, chunks, result: result.clone(), ..read };
        assert_eq!(columns, stored);
    }

    #[test]
    fn no_result_makes_the_document_too_long_for_a_row() {
        let stored = ended(Some(&"\u{1b}".repeat(output::MAX_RESULT)), None, 0);
        assert!(stored.document().unwrap().len() < 10_000);
    }

    #[test]
    fn inputs_are_stored_only_while_it_waits() {
        let inputs = |stored: &StoredCommand| {
            let document: serde_json::Value =
                serde_json::from_str(&stored.document().unwrap()).unwrap();
            document["inputs"].clone()
        };
        assert_eq!(inputs(&accepted()), json!("sealed"));
        // In memory they stay: a message that does not leave is taken back.
        let delivered = delivered();
        assert_eq!(
            (inputs(&delivered), delivered.inputs.as_deref()),
            (json!(null), Some("sealed"))
        );
        let mut cancelled = accepted();
        assert!(cancelled.life.cancel(at(1), crate::command_end::Cancellation::By("boss".into())));
        assert_eq!(inputs(&cancelled), json!(null));
    }

    #[test]
    fn the_queues() {
        let recording = StoredCommand { phase: Phase::Recording, ..accepted() };
        assert_eq!(recording.stage(), None);
        assert_eq!(accepted().stage(), Some(Stage::Waiting));
        assert_eq!(delivered().stage(), Some(Stage::Open));
        assert_eq!(ended(None, None, 0).stage(), None);
    }

    #[test]
    fn only_accepted_commands_are_due_by_themselves() {
        let delivered = delivered();
        assert_eq!(delivered.due_at(at(2)), delivered.life.deadline(at(2)));
        assert!(delivered.due_at(at(2)).is_some());
        let withdrawing = StoredCommand { phase: Phase::Withdrawing, ..delivered };
        assert_eq!(withdrawing.due_at(at(2)), None);
    }

    #[test]
    fn a_report_of_the_end_counts_once() {
        let mut stored = delivered();
        let report = Fin {
            output_bytes: Some(1 << 60),
            reason: Some("timeout".into()),
            ..fin(Some("four"), Some(2))
        };
        assert!(stored.finish(report.clone(), at(10)));
        assert_eq!((stored.chunk_total, stored.output_at), (Some(2), Some(at(10))));
        // A number that JSON does not count to exactly is not believed.
        assert_eq!((stored.result.as_deref(), stored.result_bytes), (Some("four"), 4));
        assert_eq!(stored.life.outcome().unwrap().reason, None, "it succeeded");
        let before = stored.clone();
        assert!(!stored.finish(report, at(11)));
        assert_eq!(stored, before);

        let mut odd = delivered();
        let report = Fin { exit_code: Some(1 << 40), elapsed_time: Some(-1.0), ..fin(None, None) };
        assert!(odd.finish(report, at(10)));
        let outcome = odd.life.outcome().unwrap();
        assert_eq!((outcome.exit_code, outcome.elapsed_time), (None, None));
    }

    #[test]
    fn output_settles_when_nothing_more_is_waited_for() {
        // Nothing runs any more, and no agent ever had it.
        let mut cancelled = accepted();
        cancelled.life.cancel(at(5), crate::command_end::Cancellation::By("boss".into()));
        assert_eq!(cancelled.settles_at(), Some(at(5)));
        assert_eq!(delivered().settles_at(), None);
        for (stored, seconds, awaits, lacks) in [
            // The agent reported how many chunks there are.
            (ended(None, Some(2), 2), 10, false, false),
            (ended(None, Some(3), 2), 20, true, true),
            // It did not: what came is as long as the result, shorter, or there is no result.
            (ended(Some("12345678"), None, 2), 10, false, false),
            (ended(Some("123456789"), None, 2), 20, false, true),
            (ended(None, None, 2), 12, false, false),
        ] {
            assert_eq!(stored.settles_at(), Some(at(seconds)), "{stored:?}");
            assert_eq!(
                (stored.awaits_output(), stored.lacks_output()),
                (awaits, lacks),
                "{stored:?}"
            );
        }
        // A gap, and output that came after the end.
        let mut gap = ended(None, None, 2);
        gap.chunks.top = 3;
        gap.output_at = Some(at(15));
        assert_eq!(
            (gap.settles_at(), gap.awaits_output(), gap.lacks_output()),
            (Some(at(25)), true, true)
        );
        // More than is kept.
        let cut = StoredCommand { cut_at: Some(1), ..ended(None, Some(2), 2) };
        assert_eq!((cut.kept_end(), cut.lacks_output()), (1, true));
    }

    #[test]
    fn the_hash_of_output_is_due_when_it_settles_or_a_minute_after_the_end() {
        let lacks = |stored: StoredCommand| StoredCommand { lacks_hash: true, ..stored };
        assert_eq!(ended(None, None, 2).hash_due_at(), None);
        assert_eq!(lacks(ended(None, None, 2)).hash_due_at(), Some(at(12)));
        let late = StoredCommand { output_at: Some(at(69)), ..ended(None, Some(9), 2) };
        assert_eq!(lacks(late).hash_due_at(), Some(at(70)));
    }

    #[test]
    fn late_chunks_are_taken_for_a_day_and_not_far_from_the_others() {
        assert!(!accepted().takes_chunk(0, at(1)), "nobody has it");
        assert!(delivered().takes_chunk(u64::from(u32::MAX), at(1)));
        let known = ended(None, Some(3), 2);
        assert!(known.takes_chunk(2, at(11)) && !known.takes_chunk(3, at(11)));
        let unknown = ended(None, None, 2);
        assert!(unknown.takes_chunk(257, at(11)) && !unknown.takes_chunk(258, at(11)));
        assert!(
            unknown.takes_chunk(2, at(10 + 86_399)) && !unknown.takes_chunk(2, at(10 + 86_400))
        );
    }

    #[test]
    fn events_belong_to_the_next_revision() {
        let mut stored = accepted();
        let event =
            Event::new(Uuid::nil(), at(1), crate::audit::Source::default(), "command.finish");
        stored.note(event.clone());
        assert_eq!(stored.events, [PendingEvent { revision: 2, event }]);
    }
}
