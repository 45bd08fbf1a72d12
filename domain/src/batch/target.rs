//! A target of a batch: a server on which the command runs once.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::command::lifecycle::State as Life;
use crate::time::Timestamp;

/// The state of a target, as `counts` names it (contract 13).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetState {
    /// It has no command yet.
    Pending,
    /// It waits for its server to connect, with or without a command.
    Queued,
    /// Its command was sent, or is about to be sent.
    Sent,
    /// Its agent acknowledged the command.
    Running,
    /// No result arrived in time. A late result may follow.
    Stuck,
    /// The command succeeded.
    Success,
    /// The command failed.
    Failed,
    /// It was cancelled before the delivery, or was not permitted.
    Cancelled,
    /// It was not delivered by `expires_at`.
    Expired,
    /// It never started: its server was offline, or too many other commands failed.
    Skipped,
}

impl TargetState {
    /// The name in D1 and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Queued => "queued",
            Self::Sent => "sent",
            Self::Running => "running",
            Self::Stuck => "stuck",
            Self::Success => "success",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Skipped => "skipped",
        }
    }

    /// Whether the target has ended. A late result can still change a stuck target.
    pub fn is_end(self) -> bool {
        self >= Self::Stuck
    }

    /// Whether the end counts as a failure.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Failed | Self::Expired | Self::Stuck)
    }

    /// Whether a target in this state can change to another one. Reports can overtake each other.
    fn may_become(self, later: Self) -> bool {
        let is_result = matches!(later, Self::Success | Self::Failed);
        if self.is_end() { self == Self::Stuck && is_result } else { later > self }
    }
}

impl From<Life> for TargetState {
    fn from(life: Life) -> Self {
        match life {
            Life::Waiting => Self::Queued,
            Life::Sent => Self::Sent,
            Life::Acked => Self::Running,
            Life::Stuck => Self::Stuck,
            Life::Success => Self::Success,
            Life::Failed => Self::Failed,
            Life::Cancelled => Self::Cancelled,
            Life::Expired => Self::Expired,
        }
    }
}

/// What a permission check decided about a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Its command may start.
    Ready(Run),
    /// Its server is not connected.
    Offline,
    /// It may not run, for this reason.
    Refused(String),
}

/// The part of a command that depends on the target.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The remote account.
    pub username: String,
    /// The server's name.
    pub server_name: String,
}

/// A target's command, which D1 has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Started {
    /// Account and server's name.
    pub run: Run,
    /// When the command was created.
    pub added_at: Timestamp,
    /// When its permission was last checked; `None`: unknown, so the server's object checks it.
    pub checked_at: Option<Timestamp>,
    /// Whether the server's object has the command.
    pub is_confirmed: bool,
    /// Whether its server was deleted.
    pub is_server_deleted: bool,
    /// Whether the server's object carried out the cancellation.
    pub(super) is_cancel_done: bool,
    /// Whether the server's object got the kill.
    pub(super) is_kill_done: bool,
}

impl Started {
    /// A command as D1 has it. `is_confirmed`: the server's object has written it to D1.
    pub fn new(run: Run, added_at: Timestamp, is_confirmed: bool) -> Self {
        Self {
            run,
            added_at,
            checked_at: None,
            is_confirmed,
            is_server_deleted: false,
            is_cancel_done: false,
            is_kill_done: false,
        }
    }
}

/// A target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// The server's id.
    pub server: Uuid,
    /// Its state.
    pub state: TargetState,
    /// The exit code, if the agent reported it.
    pub exit_code: Option<i64>,
    /// When it reached the state, if that is known.
    pub at: Option<Timestamp>,
    /// Its command; `None`: no command was inserted.
    pub started: Option<Started>,
    /// Whether its server was connected when D1 was read.
    pub is_online: bool,
    /// A permission check that allows it, when it was sent, and when D1 answered.
    pub(super) check: Option<(Run, Timestamp, Timestamp)>,
    /// The state and reason that D1 does not have yet.
    pub(super) mark: Option<(TargetState, String)>,
}

impl Target {
    /// A target without a command.
    pub fn new(server: Uuid, state: TargetState) -> Self {
        Self {
            server,
            state,
            exit_code: None,
            at: None,
            started: None,
            is_online: false,
            check: None,
            mark: None,
        }
    }

    /// Whether it may still get a command.
    pub fn is_waiting(&self) -> bool {
        self.started.is_none() && !self.state.is_end()
    }

    /// Whether its command was inserted and has not ended.
    pub fn is_open(&self) -> bool {
        self.started.is_some() && !self.state.is_end()
    }

    /// Applies a state that D1 has. Returns false if the target has a later state already.
    pub(super) fn advance(&mut self, change: &Change) -> bool {
        if let Some(started) = &mut self.started {
            started.is_confirmed = true;
        }
        let may = self.state.may_become(change.state);
        if may {
            (self.state, self.exit_code, self.at) = (change.state, change.exit_code, change.at);
        }
        may
    }
}

/// A notice of a server's object: D1 has this state of a target's command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Change {
    /// The server's id.
    pub server: Uuid,
    /// The state.
    pub state: TargetState,
    /// The exit code, if the agent reported it.
    pub exit_code: Option<i64>,
    /// When the command reached the state.
    pub at: Option<Timestamp>,
}
