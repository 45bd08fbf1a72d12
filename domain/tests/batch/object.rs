//! A model of a server's object and its agent: it has at most one command of the batch.

use farhand_domain::batch::event::{CHECK_VALIDITY, Call};
use farhand_domain::batch::target::TargetState;
use farhand_domain::time::Timestamp;

/// A command in the object.
#[derive(Clone, Debug)]
pub struct StoredCommand {
    pub state: TargetState,
    pub revision: u64,
    /// Whether D1 has the revision.
    pub is_flushed: bool,
}

/// The object.
#[derive(Clone, Default, Debug)]
pub struct Object {
    pub command: Option<StoredCommand>,
    pub is_connected: bool,
    /// How often the agent ran the command.
    pub runs: u32,
    /// When the object delivered without a permission check of its own.
    pub trusted_at: Option<Timestamp>,
}

impl Object {
    fn set(&mut self, state: TargetState) {
        let revision = self.command.as_ref().map_or(1, |command| command.revision) + 1;
        self.command = Some(StoredCommand { state, revision, is_flushed: false });
    }

    fn state(&self) -> Option<TargetState> {
        self.command.as_ref().map(|command| command.state)
    }

    fn deliver(&mut self) {
        self.runs += 1;
        self.set(TargetState::Sent);
    }

    /// Carries out a call. `is_permitted`: what a permission check in D1 says now. `checked_at`:
    /// when the caller checked it.
    pub fn call(
        &mut self,
        call: Call,
        checked_at: Option<Timestamp>,
        is_permitted: bool,
        now: Timestamp,
    ) {
        match (call, self.state()) {
            (Call::Start, None) => {
                let is_fresh = checked_at.is_some_and(|at| at.plus(CHECK_VALIDITY) > now);
                if self.is_connected && is_fresh {
                    self.trusted_at = Some(now);
                    self.deliver();
                } else {
                    self.set(TargetState::Queued);
                    self.deliver_waiting(is_permitted);
                }
            }
            // D1 may have lost the end.
            (Call::Start | Call::Cancel, Some(state)) if state.is_end() => {
                if let Some(command) = &mut self.command {
                    command.is_flushed = false;
                }
            }
            (Call::Cancel, None | Some(TargetState::Queued)) => self.set(TargetState::Cancelled),
            (Call::Kill, Some(TargetState::Sent | TargetState::Running)) => {
                self.set(TargetState::Failed);
            }
            _ => {}
        }
    }

    /// Delivers a waiting command after a permission check, if the agent is connected.
    pub fn deliver_waiting(&mut self, is_permitted: bool) {
        if self.is_connected && self.state() == Some(TargetState::Queued) {
            if is_permitted { self.deliver() } else { self.set(TargetState::Cancelled) }
        }
    }

    /// The agent, or the alarm, moves the command to a later state.
    pub fn report(&mut self, state: TargetState) {
        let may = match self.state() {
            Some(TargetState::Queued) => state == TargetState::Expired,
            Some(TargetState::Sent | TargetState::Running) => state != TargetState::Expired,
            Some(TargetState::Stuck) => {
                matches!(state, TargetState::Success | TargetState::Failed)
            }
            _ => false,
        };
        if may {
            self.set(state);
        }
    }
}
