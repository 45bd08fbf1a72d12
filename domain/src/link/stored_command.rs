//! A command in the storage of its server's object: its document, whether its output is complete,
//! and when the alarm serves it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agent::wire::Fin;
use crate::audit::event::AuditEvent;
use crate::command::end::Outcome;
use crate::command::lifecycle::{self, Lifecycle, State};
use crate::command::output::{self, OutputLoss};
use crate::command::request::{Command, Origin};
use crate::time::Timestamp;

/// If it is unknown whether the output is complete, it counts as complete this long after the end
/// or the last output.
const SETTLE_DELAY: Duration = Duration::from_secs(2);
/// If some output is known to be missing, the output counts as complete this long after the end or
/// the last output.
const MISSING_OUTPUT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time from the end until the audit log gets the hash of the output.
const HASH_TIMEOUT: Duration = Duration::from_secs(60);
/// Chunks are accepted until this long after the end.
const LATE_OUTPUT_WINDOW: Duration = Duration::from_secs(24 * 60 * 60);
/// After the end, a chunk's `seq` may exceed the highest `seq` of the end by this number, if the
/// agent did not report the number of chunks.
const MAX_LATE_CHUNKS: u64 = 256;
/// The agent may have cut a result of this size or more: agents cut at about 1 MiB.
const AGENT_CUT_BYTES: u64 = 1_000_000;
/// Maximum integer that JSON holds exactly. A larger number of bytes from an agent is ignored.
const MAX_EXACT_JSON: u64 = 1 << 53;

/// The progress of the request that creates a command.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The command is being inserted into D1. The client has no response yet.
    #[default]
    Recording,
    /// D1 has the command, and the API shows it.
    Accepted,
    /// The command was refused. D1 may still have it, and must delete it.
    Withdrawing,
}

impl Phase {
    /// The value in the column.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Recording => "recording",
            Self::Accepted => "accepted",
            Self::Withdrawing => "withdrawing",
        }
    }
}

/// A command in the storage of its server's object: a JSON document, and the columns that queries
/// use (`serde(skip)`).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StoredCommand {
    /// The workspace's id.
    pub workspace_id: i64,
    /// The command that the client requested.
    pub command: Command,
    /// Its timestamps and its end.
    pub life: Lifecycle,
    /// The credential of its request, and whether it has inputs.
    pub origin: Origin,
    /// Its inputs, encrypted under `SECRET_KEY`, until the command is delivered or ends.
    pub inputs: Option<String>,
    /// Whether the agent's result was cut.
    pub result_cut: bool,
    /// Bytes of the agent's result before it was cut.
    pub result_bytes: u64,
    /// The number of chunks of its whole output, if the agent reported it.
    pub chunk_total: Option<u64>,
    /// One more than the highest `seq` that had arrived with the agent's report of the end. Later
    /// chunks do not move it.
    pub top_at_end: Option<u64>,
    /// The lowest `seq` of a chunk that was not kept because the output is larger than the limit.
    pub cut_at: Option<u64>,
    /// The bytes of its output that may be kept, as D1 said before the delivery (contract 11.4);
    /// `None`: only [`output::MAX_KEPT`] limits it.
    #[serde(default)]
    pub output_limit: Option<u64>,
    /// Bytes of the agent's result that were left out because of `output_limit`.
    #[serde(default)]
    pub result_skipped: u64,
    /// When the last output arrived at or after its end.
    pub output_at: Option<Timestamp>,
    /// Whether the audit log has its end, but not yet the hash of its output.
    pub lacks_hash: bool,
    /// Audit events that D1 does not have yet.
    pub events: Vec<PendingEvent>,
    /// The agent's result, cut. A column, because in JSON it can be six times as long.
    #[serde(skip)]
    pub result: Option<String>,
    /// The progress of its creation.
    #[serde(skip)]
    pub phase: Phase,
    /// The number of its changes. D1 ignores an update with an older revision.
    #[serde(skip)]
    pub revision: i64,
    /// Whether D1 has its latest revision.
    #[serde(skip)]
    pub is_flushed: bool,
    /// The sums of its chunks, which are stored in rows of their own.
    #[serde(skip)]
    pub chunks: ChunkSums,
}

/// The sums of a command's chunks of output.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize)]
pub struct ChunkSums {
    /// The number of stored rows. A row has one or more chunks.
    pub rows: u64,
    /// The bytes of all chunks that arrived, kept or not.
    pub bytes: u64,
    /// The number of chunks that arrived.
    pub count: u64,
    /// One more than the highest `seq`.
    pub top: u64,
    /// The bytes of the chunks that are kept.
    pub kept_bytes: u64,
}

/// An audit event that D1 may not have yet.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PendingEvent {
    /// The revision of the command or the server that the event belongs to. D1 has the event if it
    /// has that revision.
    pub revision: i64,
    /// What happened.
    pub event: AuditEvent,
}

impl StoredCommand {
    /// A new command in the phase [`Phase::Recording`].
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
            top_at_end: None,
            cut_at: None,
            output_limit: None,
            result_skipped: 0,
            output_at: None,
            lacks_hash: false,
            events: Vec::new(),
            phase: Phase::Recording,
            revision: 1,
            is_flushed: true,
            chunks: ChunkSums::default(),
        }
    }

    /// The JSON document. It has the inputs only while the command waits.
    ///
    /// # Errors
    /// None in practice: every field can be written as JSON.
    pub fn document(&self) -> serde_json::Result<String> {
        if self.inputs.is_some() && self.life.state() != State::Waiting {
            return serde_json::to_string(&Self { inputs: None, ..self.clone() });
        }
        serde_json::to_string(self)
    }

    /// The length of the whole output in bytes. If it is unknown, the longest length that is
    /// certain.
    pub fn output_bytes(&self) -> u64 {
        self.chunks.bytes.max(self.result_bytes)
    }

    /// Whether a chunk is missing before a chunk that arrived.
    pub fn has_gap(&self) -> bool {
        self.chunks.count < self.chunks.top
    }

    /// Whether a chunk that arrives now is accepted (contract 7.9). Chunks that arrive too late
    /// could change the history.
    pub fn accepts_chunk(&self, seq: u64, now: Timestamp) -> bool {
        if self.life.delivered_at.is_none() {
            return false;
        }
        let Some(handled_at) = self.life.handled_at else { return true };
        let top = self.top_at_end.unwrap_or(self.chunks.top);
        let end = self.chunk_total.unwrap_or(top + MAX_LATE_CHUNKS);
        handled_at.plus(LATE_OUTPUT_WINDOW) > now && seq < end
    }

    /// The time from which its output counts as complete; `None` while it runs or waits.
    ///
    /// The reports of an agent can overtake each other: its fin may arrive before its last chunks
    /// (agent-protocol 4.1). The output is complete when all chunks that the agent counted have
    /// arrived, or when the chunks are as long as the result. Otherwise it counts as complete after
    /// a delay.
    pub fn output_complete_at(&self) -> Option<Timestamp> {
        let handled_at = self.life.handled_at?;
        let ended = self.output_at.unwrap_or(handled_at).max(handled_at);
        let misses_some = self.has_gap()
            || self.chunks.bytes < self.result_bytes
            || self.chunk_total.is_some_and(|total| self.chunks.count < total);
        Some(match (self.has_all_chunks(), misses_some) {
            (true, _) => handled_at,
            (false, true) => ended.plus(MISSING_OUTPUT_TIMEOUT),
            (false, false) => ended.plus(SETTLE_DELAY),
        })
    }

    /// Whether all chunks have certainly arrived.
    pub fn has_all_chunks(&self) -> bool {
        match (self.life.outcome(), self.chunk_total) {
            (None, _) => self.life.handled_at.is_some() && self.life.delivered_at.is_none(),
            (Some(_), Some(total)) => self.chunks.count >= total,
            // An agent that reports no result may still send chunks.
            (Some(_), None) => {
                !self.has_gap() && self.result.is_some() && self.chunks.bytes == self.result_bytes
            }
        }
    }

    /// When the audit log gets the hash of the output; `None`: the audit log has the hash, or the
    /// command has not ended.
    pub fn hash_due_at(&self) -> Option<Timestamp> {
        let latest = self.life.handled_at?.plus(HASH_TIMEOUT);
        self.output_complete_at().map(|at| at.min(latest)).filter(|_| self.lacks_hash)
    }

    /// Whether an ended command certainly or probably has more output, which has not arrived.
    pub fn awaits_output(&self) -> bool {
        let Some(_) = self.life.outcome() else { return false };
        match self.chunk_total {
            Some(total) => self.chunks.count < total,
            // If the agent cut the result, its length is not the length of the output.
            None => {
                self.has_gap()
                    || (self.result_bytes >= AGENT_CUT_BYTES
                        && self.chunks.bytes != self.result_bytes)
            }
        }
    }

    /// Whether the kept chunks are certainly not the whole output.
    pub fn is_output_incomplete(&self) -> bool {
        let are_missing = match self.chunk_total {
            Some(total) => self.chunks.count < total,
            None => self.chunks.bytes < self.result_bytes,
        };
        self.cut_at.is_some() || self.has_gap() || are_missing || self.result_skipped > 0
    }

    /// The bytes of its output that may be kept.
    pub fn max_kept(&self) -> u64 {
        self.output_limit.map_or(output::MAX_KEPT, |limit| limit.min(output::MAX_KEPT))
    }

    /// What was left out of its output.
    pub fn output_loss(&self) -> OutputLoss {
        let skipped = match self.chunks.count {
            0 => self.result_skipped,
            _ => self.chunks.bytes.saturating_sub(self.chunks.kept_bytes),
        };
        let is_over_quota = skipped > 0 && self.max_kept() < output::MAX_KEPT;
        OutputLoss { skipped, is_over_quota }
    }

    /// One more than the highest `seq` of a kept chunk.
    pub fn kept_end(&self) -> u64 {
        self.cut_at.map_or(self.chunks.top, |cut_at| cut_at.min(self.chunks.top))
    }

    /// Adds an audit event to the change that is saved next.
    pub fn add_event(&mut self, event: AuditEvent) {
        self.events.push(PendingEvent { revision: self.revision + 1, event });
    }

    /// The stage of the command; `None`: it is not accepted yet, or has ended.
    pub fn stage(&self) -> Option<Stage> {
        match self.life.state() {
            State::Waiting if self.phase == Phase::Accepted => Some(Stage::Waiting),
            State::Sent | State::Acked => Some(Stage::Open),
            _ => None,
        }
    }

    /// The time of the command's timer; `None`: the command has no timer.
    pub fn timer_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.life
            .deadline(now)
            .or_else(|| self.hash_due_at())
            .filter(|_| self.phase == Phase::Accepted)
    }

    /// Ends the command with its agent's report. Returns whether something changed: a repeated
    /// report changes nothing.
    pub fn finish(&mut self, fin: Fin, now: Timestamp) -> bool {
        let is_exit_code = |code: &i64| i32::try_from(*code).is_ok();
        let outcome = Outcome {
            success: fin.success,
            exit_code: fin.exit_code.filter(is_exit_code),
            elapsed_time: fin
                .elapsed_time
                .filter(|seconds| *seconds >= 0.0)
                .map(lifecycle::round_to_micros),
            reason: fin.reason.as_deref().filter(|_| !fin.success).and_then(Outcome::reason),
        };
        let changed = self.life.finish(now, outcome);
        if changed {
            self.chunk_total = fin.chunks.map(u64::from);
            self.top_at_end = Some(self.chunks.top);
            self.output_at = Some(now);
            self.result_bytes =
                fin.output_bytes.filter(|bytes| *bytes <= MAX_EXACT_JSON).unwrap_or(0);
        }
        if changed && let Some(result) = fin.result {
            self.result_bytes = self.result_bytes.max(result.len() as u64);
            let (mut kept, cut) = output::result(&result);
            let limit = usize::try_from(self.max_kept()).unwrap_or(usize::MAX);
            if kept.len() > limit {
                kept.truncate(kept.floor_char_boundary(limit));
                self.result_skipped = (result.len() - kept.len()) as u64;
            }
            self.result_cut = cut || self.result_skipped > 0;
            self.result = Some(kept);
        }
        changed
    }
}

/// The stage of an accepted command that has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Accepted, not delivered.
    Waiting,
    /// Delivered, not ended.
    Open,
}

impl Stage {
    /// The value in the column.
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
    use crate::command::request::Shell;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::parse("2026-11-22T12:00:00Z").unwrap().plus_seconds(seconds)
    }

    /// An accepted command, added at 0 s.
    fn accepted() -> StoredCommand {
        let command = Command {
            id: Uuid::nil(),
            shell: Shell::System,
            line: "id".into(),
            argv: None,
            script: None,
            username: "root".into(),
            groupname: String::new(),
            server: Uuid::nil(),
            server_name: "web-1".into(),
            requested_by: None,
            batch: None,
        };
        let origin =
            Origin { api_token: None, session: None, remote_ip: String::new(), has_inputs: true };
        let life = Lifecycle::new(at(0), None, None, 60);
        let new = StoredCommand::new(1, command, origin, Some("sealed".into()), life);
        StoredCommand { phase: Phase::Accepted, ..new }
    }

    /// A command that was delivered at 1 s.
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

    /// A command that ended at 10 s, with `count` chunks of four bytes.
    fn ended(result: Option<&str>, total: Option<u32>, count: u64) -> StoredCommand {
        let mut stored = delivered();
        stored.chunks =
            ChunkSums { rows: 1, bytes: 4 * count, count, top: count, kept_bytes: 4 * count };
        assert!(stored.finish(fin(result, total), at(10)));
        stored
    }

    #[test]
    fn the_document_has_every_field_but_the_columns() {
        let mut stored = ended(Some("result"), Some(3), 0);
        stored.inputs = None;
        (stored.result_cut, stored.cut_at, stored.lacks_hash) = (true, Some(1), true);
        (stored.output_limit, stored.result_skipped) = (Some(7), 3);
        (stored.origin.api_token, stored.origin.session) = (Some(Uuid::max()), Some(Uuid::nil()));
        stored.add_event(AuditEvent::new(
            Uuid::nil(),
            at(1),
            crate::audit::event::Source::default(),
            "command.finish",
        ));
        let read: StoredCommand = serde_json::from_str(&stored.document().unwrap()).unwrap();
        let StoredCommand { phase, revision, is_flushed, chunks, ref result, .. } = stored;
        let columns =
            StoredCommand { phase, revision, is_flushed, chunks, result: result.clone(), ..read };
        assert_eq!(columns, stored);
    }

    #[test]
    fn a_long_result_does_not_lengthen_the_document() {
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
        // The memory keeps the inputs: if the message is not sent, the command waits again.
        let delivered = delivered();
        assert_eq!(
            (inputs(&delivered), delivered.inputs.as_deref()),
            (json!(null), Some("sealed"))
        );
        let mut cancelled = accepted();
        assert!(cancelled.life.cancel(at(1), crate::command::end::Cancellation::By("boss".into())));
        assert_eq!(inputs(&cancelled), json!(null));
    }

    #[test]
    fn stage_is_the_queue_of_a_command() {
        let recording = StoredCommand { phase: Phase::Recording, ..accepted() };
        assert_eq!(recording.stage(), None);
        assert_eq!(accepted().stage(), Some(Stage::Waiting));
        assert_eq!(delivered().stage(), Some(Stage::Open));
        assert_eq!(ended(None, None, 0).stage(), None);
    }

    #[test]
    fn only_accepted_commands_have_a_due_time() {
        let delivered = delivered();
        assert_eq!(delivered.timer_at(at(2)), delivered.life.deadline(at(2)));
        assert!(delivered.timer_at(at(2)).is_some());
        let withdrawing = StoredCommand { phase: Phase::Withdrawing, ..delivered };
        assert_eq!(withdrawing.timer_at(at(2)), None);
    }

    #[test]
    fn a_repeated_fin_changes_nothing() {
        let mut stored = delivered();
        let report = Fin {
            output_bytes: Some(1 << 60),
            reason: Some("timeout".into()),
            ..fin(Some("four"), Some(2))
        };
        assert!(stored.finish(report.clone(), at(10)));
        assert_eq!((stored.chunk_total, stored.output_at), (Some(2), Some(at(10))));
        // A number that JSON does not hold exactly is ignored.
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
    fn output_is_complete_when_no_more_is_expected() {
        // No agent ever had the command.
        let mut cancelled = accepted();
        cancelled.life.cancel(at(5), crate::command::end::Cancellation::By("boss".into()));
        assert_eq!(cancelled.output_complete_at(), Some(at(5)));
        assert_eq!(delivered().output_complete_at(), None);
        for (stored, seconds, awaits, lacks) in [
            // The agent reported the number of chunks.
            (ended(None, Some(2), 2), 10, false, false),
            (ended(None, Some(3), 2), 20, true, true),
            // The agent did not report the number: the chunks are as long as the result, or
            // shorter, or there is no result.
            (ended(Some("12345678"), None, 2), 10, false, false),
            (ended(Some("123456789"), None, 2), 20, false, true),
            (ended(None, None, 2), 12, false, false),
        ] {
            assert_eq!(stored.output_complete_at(), Some(at(seconds)), "{stored:?}");
            assert_eq!(
                (stored.awaits_output(), stored.is_output_incomplete()),
                (awaits, lacks),
                "{stored:?}"
            );
        }
        // A gap, and output that arrived after the end.
        let mut gap = ended(None, None, 2);
        gap.chunks.top = 3;
        gap.output_at = Some(at(15));
        assert_eq!(
            (gap.output_complete_at(), gap.awaits_output(), gap.is_output_incomplete()),
            (Some(at(25)), true, true)
        );
        // The output is larger than the limit.
        let cut = StoredCommand { cut_at: Some(1), ..ended(None, Some(2), 2) };
        assert_eq!((cut.kept_end(), cut.is_output_incomplete()), (1, true));
    }

    #[test]
    fn the_quota_of_output_limits_chunks_and_the_result() {
        let limited = |limit, result: &str| {
            let mut stored = StoredCommand { output_limit: Some(limit), ..delivered() };
            assert!(stored.finish(fin(Some(result), None), at(10)));
            stored
        };
        let loss = |skipped, is_over_quota| OutputLoss { skipped, is_over_quota };
        let kept = limited(6, "1234é");
        assert_eq!((kept.result.as_deref(), kept.result_cut), (Some("1234é"), false));
        assert_eq!(kept.output_loss(), loss(0, false));
        let cut = limited(5, "1234é");
        assert_eq!((cut.result.as_deref(), cut.result_cut), (Some("1234"), true));
        assert_eq!((cut.output_loss(), cut.output_bytes()), (loss(2, true), 6));
        assert!(cut.is_output_incomplete());
        assert_eq!(limited(0, "12").result.as_deref(), Some(""));
        // The result that an agent without chunks cut itself.
        let long = limited(output::MAX_KEPT + 1, &"x".repeat(output::MAX_RESULT + 1));
        assert_eq!((long.max_kept(), long.output_loss()), (output::MAX_KEPT, loss(0, false)));

        let mut chunks = StoredCommand { output_limit: Some(5), ..ended(None, Some(2), 2) };
        assert_eq!(chunks.output_loss(), loss(0, false));
        chunks.chunks.kept_bytes = 4;
        assert_eq!(chunks.output_loss(), loss(4, true));
        // The limit of every command is no quota.
        chunks.output_limit = Some(output::MAX_KEPT);
        assert_eq!(chunks.output_loss(), loss(4, false));
        chunks.output_limit = None;
        assert_eq!(chunks.output_loss(), loss(4, false));
    }

    #[test]
    fn the_output_hash_is_due_within_a_minute() {
        let lacks = |stored: StoredCommand| StoredCommand { lacks_hash: true, ..stored };
        assert_eq!(ended(None, None, 2).hash_due_at(), None);
        assert_eq!(lacks(ended(None, None, 2)).hash_due_at(), Some(at(12)));
        let late = StoredCommand { output_at: Some(at(69)), ..ended(None, Some(9), 2) };
        assert_eq!(lacks(late).hash_due_at(), Some(at(70)));
    }

    #[test]
    fn late_chunks_are_accepted_for_a_day_if_near_the_others() {
        assert!(!accepted().accepts_chunk(0, at(1)), "no agent has it");
        assert!(delivered().accepts_chunk(u64::from(u32::MAX), at(1)));
        let known = ended(None, Some(3), 2);
        assert!(known.accepts_chunk(2, at(11)) && !known.accepts_chunk(3, at(11)));
        let unknown = ended(None, None, 2);
        assert!(unknown.accepts_chunk(257, at(11)) && !unknown.accepts_chunk(258, at(11)));
        assert!(
            unknown.accepts_chunk(2, at(10 + 86_399)) && !unknown.accepts_chunk(2, at(10 + 86_400))
        );
    }

    #[test]
    fn late_chunks_do_not_move_the_limit_of_late_chunks() {
        let mut unknown = ended(None, None, 2);
        for seq in 2..258 {
            assert!(unknown.accepts_chunk(seq, at(11)), "{seq}");
            (unknown.chunks.count, unknown.chunks.top) = (seq + 1, seq + 1);
        }
        assert!(!unknown.accepts_chunk(258, at(11)));
        // The document has the limit, so a restart of the object keeps it.
        let read: StoredCommand = serde_json::from_str(&unknown.document().unwrap()).unwrap();
        let read = StoredCommand { chunks: unknown.chunks, ..read };
        assert!(read.accepts_chunk(257, at(11)) && !read.accepts_chunk(258, at(11)));
        // A command that ended as stuck may still run: its agent reports its end later.
        let mut stuck = delivered();
        stuck.life.give_up_if_overdue(at(1_000));
        stuck.chunks.top = 300;
        assert!(stuck.life.handled_at.is_some() && stuck.accepts_chunk(555, at(1_001)));
    }

    #[test]
    fn an_added_event_belongs_to_the_next_revision() {
        let mut stored = accepted();
        let event = AuditEvent::new(
            Uuid::nil(),
            at(1),
            crate::audit::event::Source::default(),
            "command.finish",
        );
        stored.add_event(event.clone());
        assert_eq!(stored.events, [PendingEvent { revision: 2, event }]);
    }
}
