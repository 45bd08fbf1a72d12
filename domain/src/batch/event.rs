//! The machine's input (events) and output (steps), and its requests to D1.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::limits::Limits;
use super::target::{Change, Run, Target, TargetState, Verdict};
use crate::batch::request::OfflineTargets;
pub use crate::link::call::CHECK_VALIDITY;
use crate::time::Timestamp;

/// A request to D1 that takes longer than this counts as failed.
pub const D1_TIMEOUT: Duration = Duration::from_secs(30);
/// A call to a server's object that takes longer than this counts as failed.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Identifies a request to D1.
pub type RequestId = u64;

/// The place of a target in its batch.
pub type Position = u32;

/// The state of a batch in D1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchState {
    /// It begins at `scheduled_at`.
    Scheduled,
    /// Its commands start.
    Running,
    /// Too many commands failed. No command starts, and some still run.
    Stopping,
    /// All targets have ended.
    Finished,
    /// A user cancelled it. Some commands may still run.
    Cancelled,
}

impl BatchState {
    /// The name in D1 and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Finished => "finished",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A batch as D1 has it.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Its state.
    pub state: BatchState,
    /// When it begins.
    pub scheduled_at: Timestamp,
    /// The latest time at which a command may be delivered.
    pub expires_at: Timestamp,
    /// When all targets had ended.
    pub finished_at: Option<Timestamp>,
    /// Its limits.
    pub limits: Limits,
    /// What happens to targets whose server is not connected.
    pub on_offline: OfflineTargets,
    /// Whether its workspace is deleted. Nothing may start until it is undeleted.
    pub is_workspace_deleted: bool,
    /// Its targets, by their position.
    pub targets: Vec<Target>,
}

/// An input of the machine.
#[derive(Clone, Debug)]
pub enum Event {
    /// D1 may have changed: the batch was created or cancelled, or is overdue.
    Reload,
    /// A user kills the batch. The shell has stored that, and D1 has the batch as cancelled.
    Kill,
    /// The alarm went off.
    Alarm,
    /// D1 answered, or the request failed. If it failed, D1 may carry it out later.
    Answered {
        /// The request.
        id: RequestId,
        /// The answer, or the error.
        answer: Result<Answer, String>,
    },
    /// A server's object reports a state that D1 has.
    Changed(Change),
    /// A server connected, for which a target waits.
    Connected {
        /// The server's id.
        server: Uuid,
    },
    /// A call ended.
    Called {
        /// The target.
        position: Position,
        /// The call.
        call: Call,
        /// Whether the server's object carried it out. If not, it may carry it out later.
        is_done: bool,
    },
}

/// A call to a server's object. The object may get it more than once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Store the target's command, and deliver it.
    Start,
    /// Store the target's command, and cancel it if it was not delivered.
    Cancel,
    /// Kill the target's command if it runs.
    Kill,
}

/// A request to D1. Each is one round trip, and may arrive late or not at all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Read the batch.
    Load,
    /// Check whether these targets may start. A scheduled batch that is due becomes running.
    Check(Vec<Position>),
    /// Insert commands. D1 does so only if the batch is running, D1 has not more than `max_errors`
    /// failures, and the batch has exactly `started` commands. So a late request changes nothing.
    Insert {
        /// The targets.
        runs: Vec<(Position, Run)>,
        /// The number of commands that the batch has.
        started: u64,
        /// When the commands are created.
        added_at: Timestamp,
        /// Marks, as in [`Request::Mark`].
        marks: Vec<Mark>,
    },
    /// Set the state of targets that have no command and have not ended.
    Mark(Vec<Mark>),
    /// End all targets that have no command and have not ended.
    EndRest(Rest),
    /// Store the final counts, if all targets have ended.
    Finish,
}

/// A new state of a target without a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The target.
    pub position: Position,
    /// Its state. Targets whose server is connected do not become queued.
    pub state: TargetState,
    /// The reason, for people.
    pub reason: String,
}

/// Why the remaining targets end without a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// A user cancelled the batch.
    Cancelled,
    /// Too many commands failed. The batch is then stopping.
    TooManyErrors,
    /// `expires_at` has passed.
    Expired,
}

impl Rest {
    /// The state of the targets.
    pub fn state(self) -> TargetState {
        match self {
            Self::Cancelled => TargetState::Cancelled,
            Self::TooManyErrors => TargetState::Skipped,
            Self::Expired => TargetState::Expired,
        }
    }

    /// The reason, for people.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Cancelled => "The batch was cancelled.",
            Self::TooManyErrors => "More commands failed than max_errors allows.",
            Self::Expired => "It could not start before expires_at.",
        }
    }
}

/// An answer of D1 to a [`Request`].
#[derive(Clone, Debug)]
pub enum Answer {
    /// To [`Request::Load`]; `None`: D1 has no such batch.
    Loaded(Option<Box<Batch>>),
    /// To [`Request::Check`]: the verdicts in the order of the targets; `None`: the batch may not
    /// start commands, or its workspace is deleted.
    Checked(Option<Vec<Verdict>>),
    /// To [`Request::Insert`]: the targets whose commands were inserted.
    Inserted(Vec<Position>),
    /// To [`Request::Mark`] and [`Request::EndRest`]: success.
    Written,
    /// To [`Request::Finish`]: whether all targets had ended.
    Finished(bool),
}

/// An output of the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Set the alarm for this time, unless it goes off earlier.
    SetAlarm(Timestamp),
    /// Do this after the alarm is set.
    Then(Work),
}

/// What the object does after the alarm is set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// Send a request to D1.
    Request(RequestId, Request),
    /// Call the object of a target's server.
    Call(Position, Call),
    /// Delete everything that the object stores: the batch is deleted, or ended long ago.
    Wipe,
}

/// The result of an event.
#[derive(Debug, Default)]
pub struct Step {
    /// The targets whose state may have changed.
    pub changed: BTreeSet<Position>,
    /// What to do.
    pub effects: Vec<Effect>,
}
