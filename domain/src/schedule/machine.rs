//! The schedules of a workspace as a state machine, without I/O. A step takes an event and the
//! time, and returns effects. One Durable Object per workspace (the shell) will hold the machine.
//!
//! After each [`Step`], the shell must:
//! 1. Write the changed schedules and the alarm, in one transaction.
//! 2. Carry out the effects. Pass the answer to each effect to the machine as an event.
//!
//! A crash loses the memory, and may lose effects after the write. When a machine that was
//! [loaded](Machine::load) again gets its next event, it repeats the effects without an answer. So
//! the receivers must be idempotent:
//! - [`Effect::Start`] creates the batch of a schedule and due time, or finds the existing batch.
//! - [`Effect::Withdraw`] finds that batch, or ensures that no start can create it later.
//! - [`Effect::Record`] writes the history entry of a schedule and due time, unless it exists.
//!
//! Invariants (tests: `tests/schedule/`): Each due time is handled once, and starts at most one
//! batch. Of due times that were missed together, at most one starts a batch. No start is sent for
//! a schedule that is disabled, deleted or has ended, or for a due time outside `starts_at` and
//! `ends_at`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::claim::{Admission, IN_TIME, Passed, admit};
use super::{Calendar, Outcome, Run, Timing};
use crate::time::Timestamp;

/// Maximum number of starts and withdrawals that wait for an answer.
pub const MAX_STARTING: usize = 50;
/// Seconds until a failed effect is repeated. While work is pending, the alarm is set at most this
/// far ahead, because a crash may lose effects.
const RETRY: i64 = 5;

const DISABLED: &str = "The schedule was disabled before the run could start.";
const OUTSIDE: &str = "The time is not between the schedule's start and end.";
const ENDED: &str = "The schedule ended before the run could start.";
const WITHDRAWN: &str = "The schedule was changed before the run could start.";

/// Identifies a run. The due time comes first, because runs start in this order.
type Key = (Timestamp, Uuid);

/// The progress of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stage {
    /// The start was never sent.
    Waiting,
    /// The start was sent, and may have arrived.
    Sent,
    /// The start may have arrived, but the run is no longer wanted.
    Withdrawing,
    /// The batch exists and has not ended.
    Running,
    /// The run has ended, or did not start. Only its history entry may still be unrecorded.
    Over,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Progress {
    stage: Stage,
    /// The history entry, until it is recorded.
    unrecorded: Option<Run>,
}

/// A schedule as the object stores it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Schedule {
    timing: Timing,
    /// A deleted schedule is kept until each start that was sent has an answer.
    is_deleted: bool,
    next_due: Option<Timestamp>,
    /// The due time that waits for the previous run to end (`overlap: queue`).
    queued: Option<Timestamp>,
    /// The runs that have not ended or are not recorded, by due time.
    runs: BTreeMap<Timestamp, Progress>,
}

/// The answer to [`Effect::Start`] or [`Effect::Withdraw`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The batch exists.
    Started { batch: Uuid },
    /// The batch does not exist and will not be created: the owner lacks the permission, or the
    /// fields are invalid.
    Refused { reason: String },
    /// The batch does not exist and will not be created.
    Withdrawn,
    /// The request failed. The batch may exist.
    Unknown,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The alarm went off. Also for calls that bring no other event.
    Alarm,
    /// A schedule was created or changed.
    Put {
        schedule: Uuid,
        timing: Timing,
    },
    Delete {
        schedule: Uuid,
    },
    Answered {
        schedule: Uuid,
        due_at: Timestamp,
        answer: Answer,
    },
    /// The batch of a run ended. This event may come before the answer to the start.
    Ended {
        schedule: Uuid,
        due_at: Timestamp,
        batch: Uuid,
    },
    /// The answer to [`Effect::Record`].
    Recorded {
        schedule: Uuid,
        due_at: Timestamp,
        is_done: bool,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    Start { schedule: Uuid, due_at: Timestamp },
    Withdraw { schedule: Uuid, due_at: Timestamp },
    Record { schedule: Uuid, run: Run },
}

/// The result of an event.
#[derive(Debug, Default)]
pub struct Step {
    /// The schedules to write. If [`Machine::stored`] does not have a schedule, delete it.
    pub changed: BTreeSet<Uuid>,
    /// When the alarm must go off.
    pub alarm: Option<Timestamp>,
    pub effects: Vec<Effect>,
}

#[derive(Debug, Default)]
pub struct Machine {
    schedules: BTreeMap<Uuid, Schedule>,
    /// Starts and withdrawals without an answer.
    starting: BTreeSet<Key>,
    /// Records without an answer.
    recording: BTreeSet<Key>,
    /// When to repeat failed starts, withdrawals and records.
    retries: BTreeMap<Key, Timestamp>,
}

impl Machine {
    /// Creates a machine from the stored schedules.
    pub fn load(schedules: impl IntoIterator<Item = (Uuid, Schedule)>) -> Self {
        Self { schedules: schedules.into_iter().collect(), ..Self::default() }
    }

    /// A schedule as it must be stored; `None`: it must be deleted.
    pub fn stored(&self, schedule: Uuid) -> Option<&Schedule> {
        self.schedules.get(&schedule)
    }

    /// Handles an event.
    pub fn step(&mut self, event: Event, now: Timestamp, calendar: &impl Calendar) -> Step {
        let mut step = Step::default();
        // Decide passed due times before the event, because a change of timing does not affect
        // them.
        for (id, schedule) in &mut self.schedules {
            if schedule.claim(now, calendar) {
                step.changed.insert(*id);
            }
        }
        self.apply(event, now, calendar, &mut step);
        self.send_starts(now, &mut step);
        self.send_records(now, &mut step);
        self.schedules.retain(|_, schedule| !schedule.is_deleted || !schedule.runs.is_empty());
        step.alarm = self.alarm(now);
        step
    }

    fn apply(&mut self, event: Event, now: Timestamp, calendar: &impl Calendar, step: &mut Step) {
        let (id, due_at) = match event {
            Event::Alarm => return,
            Event::Put { schedule, timing } => {
                let next_due = timing.due_after(calendar, now);
                let entry = self.schedules.entry(schedule).or_insert_with(|| Schedule {
                    timing: timing.clone(),
                    is_deleted: false,
                    next_due: None,
                    queued: None,
                    runs: BTreeMap::new(),
                });
                if !entry.is_deleted {
                    (entry.timing, entry.next_due) = (timing, next_due);
                    entry.promote(now);
                }
                step.changed.insert(schedule);
                return;
            }
            Event::Delete { schedule } => {
                if let Some(entry) = self.schedules.get_mut(&schedule) {
                    entry.delete();
                    step.changed.insert(schedule);
                }
                return;
            }
            Event::Answered { schedule, due_at, .. } => {
                self.starting.remove(&(due_at, schedule));
                (schedule, due_at)
            }
            Event::Recorded { schedule, due_at, .. } => {
                self.recording.remove(&(due_at, schedule));
                (schedule, due_at)
            }
            Event::Ended { schedule, due_at, .. } => (schedule, due_at),
        };
        let key = (due_at, id);
        let has_failed = matches!(
            event,
            Event::Answered { answer: Answer::Unknown, .. }
                | Event::Recorded { is_done: false, .. }
        );
        if has_failed {
            self.retries.insert(key, now.plus_seconds(RETRY));
            return;
        }
        self.retries.remove(&key);
        let Some(schedule) = self.schedules.get_mut(&id) else { return };
        let is_change = match event {
            Event::Answered { answer, .. } => schedule.answered(due_at, answer, now),
            Event::Ended { batch, .. } => schedule.ended(due_at, batch, now),
            _ => schedule.recorded(due_at),
        };
        if is_change {
            schedule.promote(now);
            step.changed.insert(id);
        }
    }

    /// Sends waiting starts and withdrawals in the order of their due times. Repeats starts and
    /// withdrawals that failed, or whose answer a crash lost.
    fn send_starts(&mut self, now: Timestamp, step: &mut Step) {
        let unsent = |(id, schedule): (&Uuid, &Schedule)| {
            let runs = schedule.runs.iter().filter(|(_, run)| run.stage.is_starting());
            runs.map(|(due_at, _)| (*due_at, *id)).collect::<Vec<_>>()
        };
        let mut keys: Vec<Key> = self.schedules.iter().flat_map(unsent).collect();
        keys.retain(|key| !self.starting.contains(key) && self.may_send(key, now));
        keys.sort_unstable();
        for key @ (due_at, id) in keys {
            let Some(schedule) = self.schedules.get_mut(&id) else { continue };
            let obstacle = schedule.obstacle(due_at, now);
            let Some(run) = schedule.runs.get_mut(&due_at) else { continue };
            if let (Stage::Waiting, Some((outcome, reason))) = (run.stage, obstacle) {
                run.end(due_at, outcome, reason);
                step.changed.insert(id);
                continue;
            }
            if self.starting.len() >= MAX_STARTING {
                continue;
            }
            let stage = match run.stage {
                Stage::Withdrawing => Stage::Withdrawing,
                _ if obstacle.is_some() => Stage::Withdrawing,
                _ => Stage::Sent,
            };
            if run.stage != stage {
                run.stage = stage;
                step.changed.insert(id);
            }
            self.starting.insert(key);
            step.effects.push(match stage {
                Stage::Withdrawing => Effect::Withdraw { schedule: id, due_at },
                _ => Effect::Start { schedule: id, due_at },
            });
        }
    }

    fn send_records(&mut self, now: Timestamp, step: &mut Step) {
        for (id, schedule) in &self.schedules {
            for (due_at, progress) in &schedule.runs {
                let key = (*due_at, *id);
                let Some(run) = &progress.unrecorded else { continue };
                if self.may_send(&key, now) && self.recording.insert(key) {
                    step.effects.push(Effect::Record { schedule: *id, run: run.clone() });
                }
            }
        }
    }

    fn may_send(&self, key: &Key, now: Timestamp) -> bool {
        self.retries.get(key).is_none_or(|at| *at <= now)
    }

    /// The next due time, or an earlier time if an effect may have to be repeated.
    fn alarm(&self, now: Timestamp) -> Option<Timestamp> {
        let is_pending = |run: &Progress| run.stage.is_starting() || run.unrecorded.is_some();
        let mut runs = self.schedules.values().flat_map(|schedule| schedule.runs.values());
        let retry = runs.any(is_pending).then(|| now.plus_seconds(RETRY));
        let next = self.schedules.values().filter_map(|schedule| schedule.next_due);
        next.chain(retry).min()
    }
}

impl Stage {
    /// Whether a start or a withdrawal must be sent, or has no answer yet.
    fn is_starting(self) -> bool {
        matches!(self, Self::Waiting | Self::Sent | Self::Withdrawing)
    }
}

impl Progress {
    fn end(&mut self, due_at: Timestamp, outcome: Outcome, reason: impl Into<String>) {
        let reason = Some(reason.into());
        self.stage = Stage::Over;
        self.unrecorded = Some(Run { due_at, started_at: None, batch: None, outcome, reason });
    }

    fn start(&mut self, due_at: Timestamp, batch: Uuid, now: Timestamp, stage: Stage) {
        self.stage = stage;
        self.unrecorded = Some(Run {
            due_at,
            started_at: Some(now),
            batch: Some(batch),
            outcome: Outcome::Started,
            reason: None,
        });
    }
}

impl Schedule {
    /// Decides about the due times up to `now`. Returns whether there were any.
    fn claim(&mut self, now: Timestamp, calendar: &impl Calendar) -> bool {
        let Some(first) = self.next_due.filter(|due| *due <= now) else { return false };
        let passed = Passed::new(&self.timing, calendar, first, now);
        self.next_due = passed.next;
        let (start, missed) = passed.decide(self.timing.misfire);
        if let Some((due_at, reason)) = missed {
            self.note(due_at, Outcome::Missed, &reason);
        }
        if let Some(due_at) = start {
            match admit(self.timing.overlap, self.is_running(), self.queued.is_some()) {
                Admission::Start => self.wait(due_at),
                Admission::Wait => self.queued = Some(due_at),
                Admission::Skip(reason) => self.note(due_at, Outcome::Skipped, reason),
            }
        }
        true
    }

    fn wait(&mut self, due_at: Timestamp) {
        self.runs.insert(due_at, Progress { stage: Stage::Waiting, unrecorded: None });
    }

    /// Adds a history entry for a due time without a start.
    fn note(&mut self, due_at: Timestamp, outcome: Outcome, reason: &str) {
        let mut progress = Progress { stage: Stage::Over, unrecorded: None };
        progress.end(due_at, outcome, reason);
        self.runs.insert(due_at, progress);
    }

    fn is_running(&self) -> bool {
        self.runs.values().any(|run| run.stage != Stage::Over)
    }

    /// Starts the queued run if no other run is active, or drops it if it may no longer start.
    fn promote(&mut self, now: Timestamp) {
        let Some(due_at) = self.queued else { return };
        if let Some((outcome, reason)) = self.obstacle(due_at, now) {
            self.note(due_at, outcome, reason);
            self.queued = None;
        } else if !self.is_running() {
            self.wait(due_at);
            self.queued = None;
        }
    }

    /// The reason why a run must not start now, if there is one.
    fn obstacle(&self, due_at: Timestamp, now: Timestamp) -> Option<(Outcome, &'static str)> {
        let Timing { enabled, starts_at, ends_at, .. } = self.timing;
        if self.is_deleted || !enabled {
            Some((Outcome::Skipped, DISABLED))
        } else if starts_at.is_some_and(|start| due_at < start)
            || ends_at.is_some_and(|end| end < due_at)
        {
            Some((Outcome::Skipped, OUTSIDE))
        } else if ends_at.is_some_and(|end| end.plus_seconds(IN_TIME) < now) {
            Some((Outcome::Missed, ENDED))
        } else {
            None
        }
    }

    /// Withdraws the starts that may have arrived, and drops the other runs. Running batches
    /// continue.
    fn delete(&mut self) {
        self.is_deleted = true;
        self.next_due = None;
        self.queued = None;
        self.runs.retain(|_, run| matches!(run.stage, Stage::Sent | Stage::Withdrawing));
        for run in self.runs.values_mut() {
            run.stage = Stage::Withdrawing;
        }
    }

    fn answered(&mut self, due_at: Timestamp, answer: Answer, now: Timestamp) -> bool {
        let obstacle = self.obstacle(due_at, now);
        let Some(run) = self.runs.get_mut(&due_at) else { return false };
        if !matches!(run.stage, Stage::Sent | Stage::Withdrawing) {
            return false;
        }
        match answer {
            _ if self.is_deleted => _ = self.runs.remove(&due_at),
            Answer::Started { batch } => run.start(due_at, batch, now, Stage::Running),
            Answer::Refused { reason } => run.end(due_at, Outcome::Refused, reason),
            Answer::Withdrawn => {
                let (outcome, reason) = obstacle.unwrap_or((Outcome::Skipped, WITHDRAWN));
                run.end(due_at, outcome, reason);
            }
            Answer::Unknown => return false,
        }
        true
    }

    fn ended(&mut self, due_at: Timestamp, batch: Uuid, now: Timestamp) -> bool {
        let Some(run) = self.runs.get_mut(&due_at) else { return false };
        match run.stage {
            // The answer to the start has not arrived yet, or was lost.
            Stage::Sent | Stage::Withdrawing => run.start(due_at, batch, now, Stage::Over),
            Stage::Running => run.stage = Stage::Over,
            Stage::Waiting | Stage::Over => return false,
        }
        self.tidy(due_at);
        true
    }

    fn recorded(&mut self, due_at: Timestamp) -> bool {
        let Some(run) = self.runs.get_mut(&due_at) else { return false };
        run.unrecorded = None;
        self.tidy(due_at);
        true
    }

    /// Removes a run that is over and recorded. Runs of a deleted schedule need no record.
    fn tidy(&mut self, due_at: Timestamp) {
        let Some(run) = self.runs.get(&due_at) else { return };
        if run.stage == Stage::Over && (run.unrecorded.is_none() || self.is_deleted) {
            self.runs.remove(&due_at);
        }
    }
}
