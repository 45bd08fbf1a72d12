//! The life of a command: its timestamps, the events that set them, and the resulting state and
//! status (contract 7 and 8).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agent::features::Feature;
use crate::command::end::{Cancellation, End, Outcome};
use crate::time::Timestamp;

/// A delivered command is stuck if it is not acknowledged within this time.
const ACK_TIMEOUT: Duration = Duration::from_secs(60);
/// A running command is stuck this long after its timeout.
const RESULT_GRACE: Duration = Duration::from_secs(60);
/// A running command is stuck this long after a restart of the agent or the deletion of the server.
const LOST_AGENT_GRACE: Duration = Duration::from_secs(60);
/// The default of `expires_at` of commands and batches is this long after `scheduled_at`.
pub const DEFAULT_EXPIRY: Duration = Duration::from_secs(3_600);

/// Rounds seconds to microseconds. Returns a number unchanged if it is too large to round.
pub fn round_to_micros(seconds: f64) -> f64 {
    let rounded = (seconds * 1e6).round() / 1e6;
    if rounded.is_finite() { rounded } else { seconds }
}

/// The timestamps of a command, and how it ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Lifecycle {
    /// When it was created.
    pub added_at: Timestamp,
    /// When it is due.
    pub scheduled_at: Timestamp,
    /// The latest time of its delivery.
    pub expires_at: Timestamp,
    /// How long it may run, in seconds.
    pub timeout: i64,
    /// When it was written to the agent's socket.
    pub delivered_at: Option<Timestamp>,
    /// When the agent acknowledged it.
    pub acked_at: Option<Timestamp>,
    /// When it ended.
    pub handled_at: Option<Timestamp>,
    /// How it ended.
    pub end: Option<End>,
    /// When its agent reported a restart after the delivery. The agent may have lost the command.
    #[serde(default)]
    pub restarted_at: Option<Timestamp>,
    /// When its server was deleted after the delivery. Since then, the agent's reports are refused.
    #[serde(default)]
    pub server_deleted_at: Option<Timestamp>,
    /// The name of the first user who killed it.
    #[serde(default)]
    pub killed_by: Option<String>,
}

/// The state of a command, as D1 stores it. It does not depend on the clock, but [`State::shown`]
/// and [`Lifecycle::status`] do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Not delivered yet: scheduled or queued.
    Waiting,
    /// Delivered to the agent.
    Sent,
    /// The agent acknowledged it.
    Acked,
    /// Delivered, but no result arrived in time.
    Stuck,
    /// The agent reported success.
    Success,
    /// The agent reported a failure, or lacks a feature that the command needs.
    Failed,
    /// Cancelled before the delivery.
    Cancelled,
    /// Not delivered by `expires_at`.
    Expired,
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
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }

    /// The `state` of a command object (contract 7.1): a waiting command is `queued` once it is
    /// due.
    pub fn shown(self, is_due: bool) -> &'static str {
        match self {
            Self::Waiting if is_due => "queued",
            Self::Waiting => "scheduled",
            state => state.as_str(),
        }
    }

    /// Whether the command has ended. Only a late result can still change a stuck command.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Waiting | Self::Sent | Self::Acked)
    }
}

/// The fixed part of a status object: a row of the table in contract 7.11.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label {
    /// The name of the state, for people.
    pub text: &'static str,
    /// The name of the colour: secondary, danger, success or warning.
    pub color: &'static str,
    /// Whether the command can still be cancelled.
    pub cancellable: bool,
}

const fn label(text: &'static str, color: &'static str, cancellable: bool) -> Label {
    Label { text, color, cancellable }
}

/// The label of a waiting command that is not due.
pub const SCHEDULED: Label = label("Scheduled", "secondary", true);

impl State {
    /// The label of this state. For a waiting command: the label when it is due.
    pub const fn label(self) -> Label {
        match self {
            Self::Waiting => label("Queued", "warning", true),
            Self::Sent => label("Sent", "warning", false),
            Self::Acked => label("Acked", "warning", false),
            Self::Stuck => label("Stuck", "danger", false),
            Self::Success => label("Success", "success", false),
            Self::Failed => label("Failed", "danger", false),
            Self::Cancelled => label("Cancelled", "secondary", false),
            Self::Expired => label("Expired", "danger", false),
        }
    }

    /// Every state.
    pub const ALL: [Self; 8] = [
        Self::Waiting,
        Self::Sent,
        Self::Acked,
        Self::Stuck,
        Self::Success,
        Self::Failed,
        Self::Cancelled,
        Self::Expired,
    ];
}

/// The status object (contract 7.11).
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Status {
    /// [`Label::text`].
    pub text: &'static str,
    /// [`Label::color`].
    pub color: &'static str,
    /// [`Label::cancellable`].
    pub cancellable: bool,
    /// A sentence with the details, for people.
    pub message: String,
}

impl Lifecycle {
    /// The life of a new command (contract 7.2). A `scheduled_at` in the past becomes `added_at`.
    /// The default of `expires_at` is an hour after `scheduled_at`.
    pub fn new(
        now: Timestamp,
        scheduled_at: Option<Timestamp>,
        expires_at: Option<Timestamp>,
        timeout: i64,
    ) -> Self {
        let scheduled_at = scheduled_at.map_or(now, |at| at.max(now));
        Self {
            added_at: now,
            scheduled_at,
            expires_at: expires_at.unwrap_or_else(|| scheduled_at.plus(DEFAULT_EXPIRY)),
            timeout,
            delivered_at: None,
            acked_at: None,
            handled_at: None,
            end: None,
            restarted_at: None,
            server_deleted_at: None,
            killed_by: None,
        }
    }

    /// Whether the command is due when it is created.
    pub fn is_immediate(&self) -> bool {
        self.scheduled_at == self.added_at
    }

    /// The state that follows from the timestamps and the end.
    pub fn state(&self) -> State {
        match (&self.end, self.acked_at, self.delivered_at) {
            (Some(End::Cancelled(_)), ..) => State::Cancelled,
            (Some(End::Expired), ..) => State::Expired,
            (Some(End::Stuck), ..) => State::Stuck,
            (Some(End::Finished(outcome)), ..) if outcome.success => State::Success,
            (Some(End::Finished(_) | End::Undeliverable(_)), ..) => State::Failed,
            (None, Some(_), _) => State::Acked,
            (None, None, Some(_)) => State::Sent,
            (None, None, None) => State::Waiting,
        }
    }

    /// The `message` of the status object. Empty for [`State::Waiting`], whose message depends on
    /// the clock ([`Lifecycle::status`]).
    pub fn message(&self) -> String {
        let handled = time_text(self.handled_at);
        let killer = |before: &str, after: &str| {
            self.killed_by.as_ref().map(|name| format!("{before}{name}{after}")).unwrap_or_default()
        };
        match (&self.end, self.acked_at, self.delivered_at) {
            (Some(End::Cancelled(Cancellation::By(username))), ..) => {
                format!("Cancelled by {username} at {handled}.")
            }
            (Some(End::Cancelled(why)), ..) => format!("Cancelled at {handled}, {why}."),
            (Some(End::Expired), ..) => {
                format!("Not delivered by {}, its latest time.", self.expires_at)
            }
            (Some(End::Undeliverable(feature)), ..) => {
                format!("Failed at {handled} without delivery: its agent {feature}.")
            }
            (Some(End::Stuck), ..) => match (self.server_deleted_at, self.restarted_at) {
                (Some(at), _) => format!("Its server was deleted at {at}; given up at {handled}."),
                (None, Some(at)) => {
                    format!(
                        "Its agent restarted at {at} and reported no result; given up at {handled}."
                    )
                }
                (None, None) => format!("No result came in time; given up at {handled}."),
            },
            (Some(End::Finished(outcome)), ..) => {
                let how = if outcome.success { "Succeeded" } else { "Failed" };
                let code = outcome
                    .exit_code
                    .map(|code| format!(" with exit code {code}"))
                    .unwrap_or_default();
                let killer =
                    if outcome.success { String::new() } else { killer("; killed by ", "") };
                let reason =
                    outcome.reason.as_ref().map(|reason| format!(" {reason}")).unwrap_or_default();
                format!("{how}{code} at {handled}{killer}.{reason}")
            }
            (None, Some(_), _) => {
                format!(
                    "Running since {}{}.",
                    time_text(self.acked_at),
                    killer("; ", " asked to kill it")
                )
            }
            (None, None, Some(_)) => {
                let killer = killer("; ", " asked to kill it");
                format!(
                    "Sent to the server at {}; not acknowledged yet{killer}.",
                    time_text(self.delivered_at)
                )
            }
            (None, None, None) => String::new(),
        }
    }

    /// The status object as of `now`.
    pub fn status(&self, now: Timestamp) -> Status {
        let state = self.state();
        let (label, message) = match state {
            State::Waiting if self.scheduled_at > now => {
                (SCHEDULED, format!("Scheduled for {}.", self.scheduled_at))
            }
            State::Waiting => {
                (state.label(), format!("Waiting for the agent since {}.", self.scheduled_at))
            }
            _ => (state.label(), self.message()),
        };
        Status { text: label.text, color: label.color, cancellable: label.cancellable, message }
    }

    /// Whether it succeeded. `None` before it has ended (contract 7.1).
    pub fn success(&self) -> Option<bool> {
        match &self.end {
            None => None,
            Some(End::Finished(outcome)) => Some(outcome.success),
            Some(_) => Some(false),
        }
    }

    /// The result that the agent reported, if there is one.
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

    /// Marks the command as delivered. Returns false if it was already delivered or has ended,
    /// because a command is delivered at most once (contract 8.2).
    pub fn deliver(&mut self, now: Timestamp) -> bool {
        let first = self.delivered_at.is_none() && self.end.is_none();
        if first {
            self.delivered_at = Some(now.max(self.scheduled_at));
        }
        first
    }

    /// Whether the command waits and may be delivered now.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.state() == State::Waiting && self.scheduled_at <= now && self.expires_at > now
    }

    /// Cancels the command. Returns false if it was delivered or has ended.
    pub fn cancel(&mut self, now: Timestamp, why: Cancellation) -> bool {
        let waits = self.state() == State::Waiting;
        if waits {
            self.end_undelivered(now, End::Cancelled(why));
        }
        waits
    }

    /// Ends the command because the connected agent lacks a feature. Returns false if it was
    /// delivered or has ended.
    pub fn fail_undeliverable(&mut self, now: Timestamp, feature: Feature) -> bool {
        let waits = self.state() == State::Waiting;
        if waits {
            self.end_undelivered(now, End::Undeliverable(feature));
        }
        waits
    }

    fn end_undelivered(&mut self, now: Timestamp, end: End) {
        self.handled_at = Some(now.max(self.added_at));
        self.end = Some(end);
    }

    /// The agent reported a restart, after which it may have lost a running command
    /// (contract 7.12). Only the first report counts. Returns whether the command was marked.
    pub fn mark_agent_restarted(&mut self, now: Timestamp) -> bool {
        let concerns =
            matches!(self.state(), State::Sent | State::Acked) && self.restarted_at.is_none();
        if concerns {
            self.restarted_at = Some(now);
        }
        concerns
    }

    /// The server was deleted while the command was running. Returns whether the command was
    /// marked.
    pub fn mark_server_deleted(&mut self, now: Timestamp) -> bool {
        let concerns =
            matches!(self.state(), State::Sent | State::Acked) && self.server_deleted_at.is_none();
        if concerns {
            self.server_deleted_at = Some(now);
        }
        concerns
    }

    /// A user kills the command. Returns false if it cannot be running: it was not delivered, or
    /// the agent reported its end.
    pub fn kill(&mut self, username: &str) -> bool {
        let may_run = matches!(self.state(), State::Sent | State::Acked | State::Stuck);
        if may_run {
            self.killed_by.get_or_insert_with(|| username.to_owned());
        }
        may_run
    }

    /// The agent acknowledged the command. A repeated acknowledgement changes nothing. Returns
    /// whether the command changed.
    pub fn ack(&mut self, now: Timestamp) -> bool {
        let Some(delivered_at) = self.delivered_at.filter(|_| self.acked_at.is_none()) else {
            return false;
        };
        // `handled_at` is set if the command is stuck. The three timestamps must stay in order.
        self.acked_at = Some(self.handled_at.unwrap_or(now).max(delivered_at));
        true
    }

    /// The agent reported the end. Only the first report counts. It can replace a stuck end, but no
    /// other end (contract 8.4). Returns whether the command changed.
    pub fn finish(&mut self, now: Timestamp, outcome: Outcome) -> bool {
        let Some(delivered_at) = self.delivered_at.filter(|_| self.outcome().is_none()) else {
            return false;
        };
        let handled_at = now.max(self.acked_at.unwrap_or(delivered_at));
        self.acked_at.get_or_insert(handled_at);
        self.handled_at = Some(handled_at);
        self.end = Some(End::Finished(outcome));
        true
    }

    /// The time of the command's next change if no report arrives: when it becomes due, or when
    /// [`Lifecycle::give_up_if_overdue`] ends it. `None`: it has ended.
    pub fn deadline(&self, now: Timestamp) -> Option<Timestamp> {
        let usual = match (&self.end, self.acked_at, self.delivered_at) {
            (Some(_), ..) => return None,
            (None, None, None) if self.scheduled_at > now => self.scheduled_at.min(self.expires_at),
            (None, None, None) => self.expires_at,
            (None, Some(acked), _) => acked.plus_seconds(self.timeout).plus(RESULT_GRACE),
            (None, None, Some(delivered)) => delivered.plus(ACK_TIMEOUT),
        };
        let lost_at = [self.restarted_at, self.server_deleted_at].into_iter().flatten().min();
        Some(lost_at.map_or(usual, |at| at.plus(LOST_AGENT_GRACE).min(usual)))
    }

    /// Ends the command if it is past its deadline: as stuck, or as expired if it was not
    /// delivered. Returns whether the command changed.
    pub fn give_up_if_overdue(&mut self, now: Timestamp) -> bool {
        let overdue = self.deadline(now).is_some_and(|deadline| deadline <= now);
        match self.state() {
            State::Waiting if self.expires_at <= now => self.end_undelivered(now, End::Expired),
            State::Sent | State::Acked if overdue => {
                self.handled_at = self.acked_at.or(self.delivered_at).max(Some(now));
                self.end = Some(End::Stuck);
            }
            _ => return false,
        }
        true
    }
}

fn time_text(time: Option<Timestamp>) -> String {
    time.map(|time| time.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::end::{Denial, MAX_REASON};
    use proptest::prelude::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_000_000).plus_seconds(seconds)
    }

    #[test]
    fn a_missing_feature_of_the_agent_fails_a_command() {
        let mut life = Lifecycle::new(at(0), None, None, 10);
        assert!(
            life.fail_undeliverable(at(5), Feature::Stdin)
                && !life.fail_undeliverable(at(6), Feature::Cwd)
        );
        check(&life, "Failed", "danger", false);
        assert_eq!(
            (life.success(), life.delivered_at, life.handled_at),
            (Some(false), None, Some(at(5)))
        );
        assert!(
            life.message().contains("cannot give commands standard input"),
            "{}",
            life.message()
        );
        assert!(
            !life.deliver(at(7))
                && !life.finish(at(8), outcome(true))
                && !life.ack(at(8))
                && !life.kill("a")
        );
        assert!(!life.cancel(at(9), Cancellation::ServerDeleted) && life.deadline(at(9)).is_none());
        let mut life = delivered();
        assert!(!life.fail_undeliverable(at(5), Feature::Argv) && life.state() == State::Sent);
    }

    fn delivered() -> Lifecycle {
        let mut life = Lifecycle::new(at(0), None, None, 10);
        assert!(life.deliver(at(1)));
        life
    }

    fn outcome(success: bool) -> Outcome {
        Outcome {
            success,
            exit_code: Some(i64::from(!success)),
            elapsed_time: Some(0.5),
            reason: None,
        }
    }

    #[track_caller]
    fn check(life: &Lifecycle, text: &str, color: &str, cancellable: bool) {
        let status = life.status(at(100));
        assert_eq!((status.text, status.color, status.cancellable), (text, color, cancellable));
        assert!(status.message.ends_with('.'), "{}", status.message);
    }

    #[test]
    fn a_reason_is_part_of_the_message() {
        let mut refused = delivered();
        let reason = Outcome::reason("There is no account\nadmin on this server");
        refused.finish(at(3), Outcome { exit_code: Some(126), reason, ..outcome(false) });
        let expected = format!(
            "Failed with exit code 126 at {}. There is no account admin on this server.",
            at(3)
        );
        assert_eq!(refused.message(), expected);
        assert_eq!(Outcome::reason(" \n\0"), None);
        assert_eq!(
            Outcome::reason(&"é".repeat(9_000)).map(|reason| reason.chars().count()),
            Some(MAX_REASON + 1)
        );
        // A stored form that has no reason.
        let stored = r#"{"success":true,"exit_code":0,"elapsed_time":0.5}"#;
        assert_eq!(serde_json::from_str::<Outcome>(stored).unwrap().reason, None);
    }

    #[test]
    fn each_state_has_its_status() {
        let mut life = Lifecycle::new(at(0), None, None, 10);
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
        let mut cancelled = Lifecycle::new(at(0), None, None, 10);
        assert!(cancelled.cancel(at(3), Cancellation::By("alice".into())));
        check(&cancelled, "Cancelled", "secondary", false);
        assert_eq!((cancelled.success(), cancelled.handled_at), (Some(false), Some(at(3))));
        assert_eq!(cancelled.message(), format!("Cancelled by alice at {}.", at(3)));
        let mut expired = Lifecycle::new(at(0), None, Some(at(5)), 10);
        assert!(!expired.give_up_if_overdue(at(4)) && expired.give_up_if_overdue(at(5)));
        check(&expired, "Expired", "danger", false);
        assert_eq!((expired.success(), expired.handled_at), (Some(false), Some(at(5))));
    }

    #[test]
    fn a_new_command_gets_default_times() {
        let life = Lifecycle::new(at(10), Some(at(9)), None, 10);
        assert_eq!((life.scheduled_at, life.expires_at), (at(10), at(10 + 3_600)));
        let life = Lifecycle::new(at(10), Some(at(20)), None, 10);
        assert_eq!((life.scheduled_at, life.expires_at), (at(20), at(20 + 3_600)));
        assert!(!life.is_due(at(19)) && life.is_due(at(20)) && !life.is_due(at(20 + 3_600)));
        assert_eq!(
            (life.deadline(at(19)), life.deadline(at(20))),
            (Some(at(20)), Some(at(20 + 3_600)))
        );
        assert_eq!(Lifecycle::new(at(10), None, Some(at(15)), 10).expires_at, at(15));
    }

    #[test]
    fn delivered_and_ended_commands_are_not_cancelled() {
        let by = || Cancellation::By("alice".into());
        let mut life = delivered();
        assert!(!life.cancel(at(2), by()));
        assert_eq!(life, delivered());
        let mut expired = Lifecycle::new(at(0), None, Some(at(5)), 10);
        expired.give_up_if_overdue(at(5));
        assert!(
            !expired.cancel(at(6), by())
                && !expired.deliver(at(6))
                && expired.state() == State::Expired
        );
        let mut cancelled = Lifecycle::new(at(0), None, None, 10);
        let why = Cancellation::NotAllowed(Denial::Token);
        assert!(
            cancelled.cancel(at(2), why)
                && !cancelled.cancel(at(3), by())
                && !cancelled.deliver(at(4))
        );
        assert_eq!(cancelled.handled_at, Some(at(2)));
        assert!(cancelled.message().contains("API token"), "{}", cancelled.message());
    }

    #[test]
    fn seconds_are_rounded_to_microseconds() {
        assert_eq!(round_to_micros(0.123_456_7), 0.123_457);
        assert_eq!(round_to_micros(0.123_456_4), 0.123_456);
        assert_eq!(round_to_micros(0.000_000_4), 0.0);
        assert_eq!((round_to_micros(0.25), round_to_micros(3.0)), (0.25, 3.0));
        assert_eq!(round_to_micros(f64::MAX), f64::MAX);
    }

    #[test]
    fn a_command_is_stuck_a_minute_after_a_restart() {
        let mut life = Lifecycle::new(at(0), None, None, 1_000);
        assert!(!life.mark_agent_restarted(at(1)), "it was not delivered");
        life.deliver(at(1));
        life.ack(at(2));
        assert!(life.mark_agent_restarted(at(10)) && !life.mark_agent_restarted(at(20)));
        assert_eq!(life.deadline(at(20)), Some(at(70)));
        assert!(!life.give_up_if_overdue(at(69)) && life.give_up_if_overdue(at(70)));
        let message = format!(
            "Its agent restarted at {} and reported no result; given up at {}.",
            at(10),
            at(70)
        );
        assert_eq!(life.message(), message);
        assert!(life.finish(at(80), outcome(false)) && life.state() == State::Failed);
    }

    #[test]
    fn a_command_is_stuck_a_minute_after_server_deletion() {
        let mut life = Lifecycle::new(at(0), None, None, 1_000);
        assert!(!life.mark_server_deleted(at(1)), "it was not delivered");
        life.deliver(at(1));
        life.ack(at(2));
        assert!(life.mark_server_deleted(at(10)) && !life.mark_server_deleted(at(20)));
        assert!(!life.give_up_if_overdue(at(69)) && life.give_up_if_overdue(at(70)));
        assert_eq!(
            life.message(),
            format!("Its server was deleted at {}; given up at {}.", at(10), at(70))
        );
    }

    #[test]
    fn the_message_of_a_failure_names_who_killed_it() {
        let mut life = Lifecycle::new(at(0), None, None, 10);
        assert!(!life.kill("alice"), "it was not delivered");
        life.deliver(at(1));
        assert!(life.kill("alice") && life.kill("bob"));
        assert!(life.message().contains("alice asked to kill it"), "{}", life.message());
        let mut succeeded = life.clone();
        succeeded.finish(at(3), outcome(true));
        assert!(!succeeded.message().contains("alice"), "{}", succeeded.message());
        life.finish(at(3), outcome(false));
        assert!(
            life.message().contains("exit code 1 ")
                && life.message().ends_with("; killed by alice.")
        );
        assert!(!life.kill("carol"));
    }

    #[test]
    fn a_command_is_delivered_once() {
        let mut life = delivered();
        assert!(!life.deliver(at(5)));
        assert_eq!(life.delivered_at, Some(at(1)));
    }

    #[test]
    fn a_report_before_delivery_changes_nothing() {
        let mut life = Lifecycle::new(at(0), None, None, 10);
        assert!(!life.ack(at(1)) && !life.finish(at(1), outcome(true)));
        assert_eq!(life, Lifecycle::new(at(0), None, None, 10));
    }

    #[test]
    fn a_command_is_stuck_after_a_minute_without_ack() {
        let mut life = delivered();
        assert_eq!(life.deadline(at(1)), Some(at(61)));
        assert!(!life.give_up_if_overdue(at(60)));
        assert!(life.give_up_if_overdue(at(61)));
        assert_eq!(
            (life.success(), life.handled_at, life.deadline(at(61))),
            (Some(false), Some(at(61)), None)
        );
    }

    #[test]
    fn a_command_is_stuck_a_minute_past_its_timeout() {
        let mut life = delivered();
        life.ack(at(2));
        assert_eq!(life.deadline(at(2)), Some(at(72)));
        assert!(life.give_up_if_overdue(at(72)));
        assert!(life.finish(at(80), outcome(true)), "a late result replaces Stuck");
        assert_eq!((life.state(), life.handled_at), (State::Success, Some(at(80))));
    }

    #[test]
    fn the_first_result_counts() {
        let mut life = delivered();
        assert!(life.finish(at(3), outcome(true)));
        assert!(!life.finish(at(4), outcome(false)));
        assert!(!life.ack(at(5)));
        assert_eq!(
            (life.state(), life.acked_at, life.handled_at),
            (State::Success, Some(at(3)), Some(at(3)))
        );
    }

    #[test]
    fn the_response_delay_is_in_seconds() {
        let mut life = delivered();
        assert_eq!(life.response_delay(), None);
        life.ack(at(1).plus_millis(250));
        assert_eq!(life.response_delay(), Some(0.25));
    }

    proptest! {
        /// After events in any order, with a clock that may jump, the timestamps are in order and
        /// the command has ended at most once.
        #[test]
        fn timestamps_keep_their_order(events in proptest::collection::vec((0..7u8, -50..200i64), 0..12)) {
            let mut life = Lifecycle::new(at(0), None, None, 10);
            for (event, seconds) in events {
                let before = life.clone();
                match event {
                    0 => { life.deliver(at(seconds)); }
                    1 => { life.ack(at(seconds)); }
                    2 => { life.finish(at(seconds), outcome(seconds % 2 == 0)); }
                    3 => { life.cancel(at(seconds), Cancellation::By("alice".into())); }
                    4 => { life.mark_agent_restarted(at(seconds)); }
                    5 => { life.kill("bob"); }
                    _ => { life.give_up_if_overdue(at(seconds)); }
                }
                let times = [Some(life.added_at), life.delivered_at, life.acked_at, life.handled_at];
                let set: Vec<_> = times.into_iter().flatten().collect();
                prop_assert!(set.is_sorted(), "{life:?}");
                prop_assert_eq!(life.handled_at.is_some(), life.end.is_some());
                if before.outcome().is_some() {
                    prop_assert_eq!(&life, &before);
                }
                if before.delivered_at.is_some() {
                    prop_assert_eq!(life.delivered_at, before.delivered_at);
                }
                prop_assert!(before.state() == State::Stuck || !before.state().is_final() || life.end == before.end);
            }
        }

        /// Reports about one command, repeated and in any order, lead to the same end. Checks of
        /// the deadline in between do not change it.
        #[test]
        fn any_order_of_reports_leads_to_the_same_end(
            reports in proptest::collection::vec((0..3u8, 1..200i64), 0..8).prop_flat_map(|reports| {
                (Just(reports.clone()), Just(reports).prop_shuffle())
            }),
            success in any::<bool>(),
        ) {
            let end = |reports: &[(u8, i64)]| {
                let mut life = delivered();
                for (report, seconds) in reports {
                    match report {
                        0 => { life.ack(at(*seconds)); }
                        1 => { life.finish(at(*seconds), outcome(success)); }
                        // Without a result, the end depends on the time of the check, so no check
                        // is after the deadline.
                        _ => { life.give_up_if_overdue(at((*seconds).min(60))); }
                    }
                }
                (life.state(), life.outcome().cloned(), life.acked_at.is_some(), life.handled_at.is_some())
            };
            prop_assert_eq!(end(&reports.0), end(&reports.1));
        }
    }
}
