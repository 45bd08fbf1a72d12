//! The life of a command: its timestamps, how they move, and the status that they make (contract 7 and 8).

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// How long a delivered command may go unacknowledged before it is stuck, in seconds.
const ACK_WITHIN: i64 = 60;
/// How long after its timeout a running command is stuck, in seconds.
const GRACE: i64 = 60;

/// How a command ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum End {
    /// The agent gave up on it, or never took it: no result came in time. A late result still replaces this.
    Stuck,
    /// The agent reported the end.
    Finished(Outcome),
}

/// What the agent reported of the end.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Whether it ended well.
    pub success: bool,
    /// The exit code, where the agent tells it.
    pub exit_code: Option<i64>,
    /// Seconds.
    pub elapsed_time: Option<f64>,
}

/// The moments of a command and how it ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Lifecycle {
    /// Created.
    pub added_at: Timestamp,
    /// Planned execution.
    pub scheduled_at: Timestamp,
    /// Latest delivery.
    pub expires_at: Timestamp,
    /// Seconds that it may run.
    pub timeout: i64,
    /// Handed to the agent's socket.
    pub delivered_at: Option<Timestamp>,
    /// Acknowledged: the agent began.
    pub acked_at: Option<Timestamp>,
    /// Over.
    pub handled_at: Option<Timestamp>,
    /// How it ended, once it did.
    pub end: Option<End>,
}

/// Where in its life a command is, but for what only the clock tells ([`Label`]). D1 holds its name in `state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Not handed to an agent yet.
    Waiting,
    /// Handed to the agent.
    Sent,
    /// The agent began.
    Acked,
    /// No result came in time.
    Stuck,
    /// Ended well.
    Success,
    /// Ended badly.
    Failed,
}

impl State {
    /// The name in D1.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Sent => "sent",
            Self::Acked => "acked",
            Self::Stuck => "stuck",
            Self::Success => "success",
            Self::Failed => "failed",
        }
    }

    /// Tells whether nothing but a late result can change it any more.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Stuck | Self::Success | Self::Failed)
    }
}

/// A row of contract 7's status table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label {
    /// For a person.
    pub text: &'static str,
    /// A colour's role: secondary, danger, success or warning.
    pub color: &'static str,
    /// Whether it can still be taken back.
    pub cancellable: bool,
}

const fn label(text: &'static str, color: &'static str, cancellable: bool) -> Label {
    Label { text, color, cancellable }
}

/// The label of a waiting command whose time has not come.
pub const SCHEDULED: Label = label("Scheduled", "secondary", true);

impl State {
    /// The label of this state; of a waiting command, when it is due.
    pub const fn label(self) -> Label {
        match self {
            Self::Waiting => label("Queued", "warning", true),
            Self::Sent => label("Sent", "warning", false),
            Self::Acked => label("Acked", "warning", false),
            Self::Stuck => label("Stuck", "danger", false),
            Self::Success => label("Success", "success", false),
            Self::Failed => label("Failed", "danger", false),
        }
    }

    /// Every state.
    pub const ALL: [Self; 6] = [Self::Waiting, Self::Sent, Self::Acked, Self::Stuck, Self::Success, Self::Failed];
}

/// The status object (spec.md, Command status object).
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Status {
    /// Human-readable summary.
    pub text: &'static str,
    /// A colour's role.
    pub color: &'static str,
    /// Whether it can still be taken back.
    pub cancellable: bool,
    /// One sentence for a person.
    pub message: String,
}

impl Lifecycle {
    /// A command accepted now, to run at once: its latest delivery is an hour later.
    pub fn immediate(now: Timestamp, timeout: i64) -> Self {
        Self {
            added_at: now,
            scheduled_at: now,
            expires_at: now.plus_seconds(3600),
            timeout,
            delivered_at: None,
            acked_at: None,
            handled_at: None,
            end: None,
        }
    }

    /// Where in its life the command is.
    pub fn state(&self) -> State {
        match (&self.end, self.acked_at, self.delivered_at) {
            (Some(End::Stuck), ..) => State::Stuck,
            (Some(End::Finished(outcome)), ..) if outcome.success => State::Success,
            (Some(End::Finished(_)), ..) => State::Failed,
            (None, Some(_), _) => State::Acked,
            (None, None, Some(_)) => State::Sent,
            (None, None, None) => State::Waiting,
        }
    }

    /// What the status object says in words, for every state but [`State::Waiting`], whose words change with the clock.
    pub fn message(&self) -> String {
        match (&self.end, self.acked_at, self.delivered_at) {
            (Some(End::Stuck), ..) => {
                format!("No result came in time; given up at {}.", shown(self.handled_at))
            }
            (Some(End::Finished(outcome)), ..) => {
                let how = if outcome.success { "Succeeded" } else { "Failed" };
                let code = outcome.exit_code.map(|code| format!(" with exit code {code}")).unwrap_or_default();
                format!("{how}{code} at {}.", shown(self.handled_at))
            }
            (None, Some(_), _) => format!("Running since {}.", shown(self.acked_at)),
            (None, None, Some(_)) => {
                format!("Sent to the server at {}; not acknowledged yet.", shown(self.delivered_at))
            }
            (None, None, None) => String::new(),
        }
    }

    /// The status object at a moment.
    pub fn status(&self, now: Timestamp) -> Status {
        let state = self.state();
        let (label, message) = match state {
            State::Waiting if self.scheduled_at > now => (SCHEDULED, format!("Scheduled for {}.", self.scheduled_at)),
            State::Waiting => (state.label(), format!("Waiting for the agent since {}.", self.scheduled_at)),
            _ => (state.label(), self.message()),
        };
        Status { text: label.text, color: label.color, cancellable: label.cancellable, message }
    }

    /// Whether it went well; `None` until that is known (contract 7).
    pub fn success(&self) -> Option<bool> {
        match &self.end {
            None => None,
            Some(End::Stuck) => Some(false),
            Some(End::Finished(outcome)) => Some(outcome.success),
        }
    }

    /// What the agent reported of the end.
    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.end {
            Some(End::Finished(outcome)) => Some(outcome),
            _ => None,
        }
    }

    /// Seconds from delivery to acknowledgement.
    pub fn response_delay(&self) -> Option<f64> {
        Some(self.acked_at?.seconds_since(self.delivered_at?))
    }

    /// It goes to the agent now. Returns false where it went before: a command is handed over at most once
    /// (contract 8, 2).
    pub fn deliver(&mut self, now: Timestamp) -> bool {
        let first = self.delivered_at.is_none() && self.end.is_none();
        if first {
            self.delivered_at = Some(now.max(self.added_at));
        }
        first
    }

    /// The agent acknowledged it. Late and repeated acknowledgements change nothing; the flag tells whether this did.
    pub fn ack(&mut self, now: Timestamp) -> bool {
        let Some(delivered_at) = self.delivered_at.filter(|_| self.acked_at.is_none()) else { return false };
        // After Stuck, `handled_at` is set already, and the three moments keep their order.
        self.acked_at = Some(self.handled_at.unwrap_or(now).max(delivered_at));
        true
    }

    /// The agent reported the end. The first report stands, except over Stuck (contract 8, 4).
    pub fn finish(&mut self, now: Timestamp, outcome: Outcome) -> bool {
        let Some(delivered_at) = self.delivered_at.filter(|_| self.outcome().is_none()) else { return false };
        let handled_at = now.max(self.acked_at.unwrap_or(delivered_at));
        self.acked_at.get_or_insert(handled_at);
        self.handled_at = Some(handled_at);
        self.end = Some(End::Finished(outcome));
        true
    }

    /// When it has to be looked at again, though nobody reports.
    pub fn deadline(&self) -> Option<Timestamp> {
        match (&self.end, self.acked_at, self.delivered_at) {
            (Some(_), ..) | (None, None, None) => None,
            (None, Some(acked), _) => Some(acked.plus_seconds(self.timeout + GRACE)),
            (None, None, Some(delivered)) => Some(delivered.plus_seconds(ACK_WITHIN)),
        }
    }

    /// Looks at it: past its deadline it is stuck. The flag tells whether that changed it.
    pub fn give_up_if_overdue(&mut self, now: Timestamp) -> bool {
        let overdue = self.deadline().is_some_and(|deadline| deadline <= now);
        if overdue {
            self.handled_at = Some(now);
            self.end = Some(End::Stuck);
        }
        overdue
    }
}

fn shown(moment: Option<Timestamp>) -> String {
    moment.map(|moment| moment.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_000_000).plus_seconds(seconds)
    }

    fn delivered() -> Lifecycle {
        let mut life = Lifecycle::immediate(at(0), 10);
        assert!(life.deliver(at(1)));
        life
    }

    fn outcome(success: bool) -> Outcome {
        Outcome { success, exit_code: Some(i64::from(!success)), elapsed_time: Some(0.5) }
    }

    #[track_caller]
    fn check(life: &Lifecycle, text: &str, color: &str, cancellable: bool) {
        let status = life.status(at(100));
        assert_eq!((status.text, status.color, status.cancellable), (text, color, cancellable));
        assert!(status.message.ends_with('.'), "{}", status.message);
    }

    #[test]
    fn each_status() {
        let mut life = Lifecycle::immediate(at(0), 10);
        check(&life, "Queued", "warning", true);
        life.scheduled_at = at(101);
        check(&life, "Scheduled", "secondary", true);
        let mut life = delivered();
        check(&life, "Sent", "warning", false);
        life.ack(at(2));
        check(&life, "Acked", "warning", false);
        let mut failed = life.clone();
        life.finish(at(3), outcome(true));
        check(&life, "Success", "success", false);
        failed.finish(at(3), outcome(false));
        check(&failed, "Failed", "danger", false);
        let mut stuck = delivered();
        stuck.give_up_if_overdue(at(61));
        check(&stuck, "Stuck", "danger", false);
    }

    #[test]
    fn a_command_is_delivered_once() {
        let mut life = delivered();
        assert!(!life.deliver(at(5)));
        assert_eq!(life.delivered_at, Some(at(1)));
    }

    #[test]
    fn a_report_before_delivery_changes_nothing() {
        let mut life = Lifecycle::immediate(at(0), 10);
        assert!(!life.ack(at(1)) && !life.finish(at(1), outcome(true)));
        assert_eq!(life, Lifecycle::immediate(at(0), 10));
    }

    #[test]
    fn stuck_after_a_minute_without_ack() {
        let mut life = delivered();
        assert_eq!(life.deadline(), Some(at(61)));
        assert!(!life.give_up_if_overdue(at(60)));
        assert!(life.give_up_if_overdue(at(61)));
        assert_eq!((life.success(), life.handled_at, life.deadline()), (Some(false), Some(at(61)), None));
    }

    #[test]
    fn stuck_a_minute_past_the_timeout() {
        let mut life = delivered();
        life.ack(at(2));
        assert_eq!(life.deadline(), Some(at(72)));
        assert!(life.give_up_if_overdue(at(72)));
        assert!(life.finish(at(80), outcome(true)), "a late result replaces Stuck");
        assert_eq!((life.state(), life.handled_at), (State::Success, Some(at(80))));
    }

    #[test]
    fn the_first_result_stands() {
        let mut life = delivered();
        assert!(life.finish(at(3), outcome(true)));
        assert!(!life.finish(at(4), outcome(false)));
        assert!(!life.ack(at(5)));
        assert_eq!((life.state(), life.acked_at, life.handled_at), (State::Success, Some(at(3)), Some(at(3))));
    }

    #[test]
    fn delays_are_in_seconds() {
        let mut life = delivered();
        assert_eq!(life.response_delay(), None);
        life.ack(at(1).plus_millis(250));
        assert_eq!(life.response_delay(), Some(0.25));
    }

    proptest! {
        /// Any order of reports and looks, with a clock that may jump, keeps the order of the moments and ends once.
        #[test]
        fn moments_keep_their_order(events in proptest::collection::vec((0..4u8, -50..200i64), 0..12)) {
            let mut life = Lifecycle::immediate(at(0), 10);
            for (event, seconds) in events {
                let before = life.clone();
                match event {
                    0 => { life.deliver(at(seconds)); }
                    1 => { life.ack(at(seconds)); }
                    2 => { life.finish(at(seconds), outcome(seconds % 2 == 0)); }
                    _ => { life.give_up_if_overdue(at(seconds)); }
                }
                let moments = [Some(life.added_at), life.delivered_at, life.acked_at, life.handled_at];
                let known: Vec<_> = moments.into_iter().flatten().collect();
                prop_assert!(known.is_sorted(), "{life:?}");
                prop_assert_eq!(life.handled_at.is_some(), life.end.is_some());
                if before.outcome().is_some() {
                    prop_assert_eq!(&life, &before);
                }
                if before.delivered_at.is_some() {
                    prop_assert_eq!(life.delivered_at, before.delivered_at);
                }
            }
        }
    }
}
