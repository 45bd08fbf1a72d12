//! The machine: its memory, and how it handles events.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use uuid::Uuid;

use super::event::{
    Answer, Batch, BatchState, Call, Effect, Event, Mark, Position, Request, RequestId, Rest, Step,
    Work,
};
use super::target::{Change, Started, Target, TargetState, Verdict};
use super::waves::{Waves, fraction};
use crate::batch::request::OfflineTargets;
use crate::time::Timestamp;

/// Maximum number of calls without an answer.
pub const MAX_CALLS: usize = 50;
/// The delay before a failed call is repeated.
const CALL_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Maximum delay before a failed request to D1 is repeated, in seconds. The delay doubles with each
/// failure.
const MAX_RETRY_DELAY: i64 = 60;
/// While a request or a call has no answer, the alarm is at most this far ahead, because a crash
/// may have lost it.
const RECOVERY_DELAY: Duration = Duration::from_secs(5);
/// The delay before D1 is read again after it refused a request.
const MISMATCH_DELAY: Duration = Duration::from_secs(1);
/// D1 is read again after this time, even if reports arrive all the time, or the workspace is
/// deleted.
const MAX_READ_INTERVAL: Duration = Duration::from_secs(300);
/// The object's storage is deleted this long after the end.
pub const LOG_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The machine of one batch.
#[derive(Debug)]
pub struct Machine {
    /// What D1 had when it was read, with the changes since then; `None`: not read yet.
    pub(super) batch: Option<Batch>,
    /// Whether D1 must be read before anything else, because it may differ from `batch`.
    is_stale: bool,
    /// Whether D1 has no such batch.
    is_gone: bool,
    is_killed: bool,
    /// The request to D1 without an answer, and when it was sent. The shell gives up a request or
    /// a call after a time, so each gets an answer unless the object crashes.
    request: Option<(RequestId, Request, Timestamp)>,
    last_request: RequestId,
    /// The number of requests to D1 that failed in a row, and when the next one may be sent.
    failures: u32,
    retry_at: Option<Timestamp>,
    /// Reports that arrived while D1 was being read. The answer may be older.
    early: Vec<Change>,
    /// Targets with a call without an answer.
    calls: BTreeSet<Position>,
    /// When failed calls are repeated.
    call_retries: BTreeMap<Position, Timestamp>,
    /// When D1 was read or a report arrived for the last time.
    news_at: Timestamp,
    /// When D1 was read.
    loaded_at: Timestamp,
    pub(super) waves: Waves,
}

impl Machine {
    /// A machine that has read nothing yet. `is_killed`: whether a user killed the batch.
    pub fn new(is_killed: bool, now: Timestamp) -> Self {
        Self {
            batch: None,
            is_stale: true,
            is_gone: false,
            is_killed,
            request: None,
            last_request: 0,
            failures: 0,
            retry_at: None,
            early: Vec::new(),
            calls: BTreeSet::new(),
            call_retries: BTreeMap::new(),
            news_at: now,
            loaded_at: now,
            waves: Waves::default(),
        }
    }

    /// The batch, if it was read.
    pub fn batch(&self) -> Option<&Batch> {
        self.batch.as_ref()
    }

    /// Whether D1 has no such batch, or it ended long ago.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Whether the batch has ended.
    pub fn is_over(&self) -> bool {
        self.is_gone
            || !self.is_stale
                && self.batch.as_ref().is_some_and(|batch| batch.finished_at.is_some())
    }

    /// Handles an event.
    pub fn step(&mut self, event: Event, now: Timestamp) -> Step {
        let mut step = Step::default();
        self.apply(event, now, &mut step);
        if self.is_gone {
            return step;
        }
        self.send_calls(now, &mut step);
        if self.request.is_none()
            && self.retry_at.is_none_or(|at| at <= now)
            && let Some(request) = self.next_request(now)
        {
            self.retry_at = None;
            self.last_request += 1;
            self.request = Some((self.last_request, request.clone(), now));
            step.effects.push(Effect::Then(Work::Request(self.last_request, request)));
        }
        step.effects.extend(self.alarm(now).map(Effect::SetAlarm));
        step
    }

    fn apply(&mut self, event: Event, now: Timestamp, step: &mut Step) {
        match event {
            Event::Reload => (self.is_stale, self.is_gone) = (true, false),
            Event::Kill => (self.is_stale, self.is_gone, self.is_killed) = (true, false, true),
            Event::Alarm => {
                self.waves.next_at = self.waves.next_at.filter(|at| *at > now);
                let is_due = self.read_at().is_some_and(|at| at <= now);
                self.is_stale |= is_due;
                if self.wipe_at().is_some_and(|at| at <= now) {
                    step.effects.push(Effect::Then(Work::Wipe));
                    self.is_gone = true;
                }
            }
            Event::Answered { id, answer } => {
                let Some((_, request, sent_at)) =
                    self.request.take_if(|(awaited, ..)| *awaited == id)
                else {
                    return;
                };
                match answer {
                    Ok(answer) => {
                        self.failures = 0;
                        self.answered((request, sent_at), answer, now, step);
                    }
                    Err(_) => self.request_failed(now),
                }
            }
            Event::Changed(change) => {
                self.news_at = now;
                if matches!(self.request, Some((_, Request::Load, _))) {
                    self.early.push(change.clone());
                }
                self.apply_change(&change, step);
            }
            Event::Connected { server } => {
                if let Some(target) = self.find(server) {
                    target.is_online = true;
                }
            }
            Event::Called { position, call, is_done } => {
                self.called(position, call, is_done, now);
            }
        }
    }

    /// Reads D1 again, because it differs from what this machine knows.
    fn reload(&mut self, now: Timestamp) {
        self.is_stale = true;
        self.retry_at = Some(now.plus(MISMATCH_DELAY));
    }

    /// D1 may have carried the request out, or may do so later.
    fn request_failed(&mut self, now: Timestamp) {
        self.is_stale = true;
        self.failures = self.failures.saturating_add(1);
        let delay = (1 << self.failures.min(6)).min(MAX_RETRY_DELAY);
        self.retry_at = Some(now.plus_seconds(delay));
    }

    fn find(&mut self, server: Uuid) -> Option<&mut Target> {
        self.batch.as_mut()?.targets.iter_mut().find(|target| target.server == server)
    }

    fn apply_change(&mut self, change: &Change, step: &mut Step) {
        let Some(batch) = &mut self.batch else { return };
        let place = batch.targets.iter().position(|target| target.server == change.server);
        let Some(place) = place else { return };
        let target = &mut batch.targets[place];
        if target.started.is_none() {
            // A request that was given up inserted the command.
            self.is_stale = true;
        } else if target.advance(change) {
            step.changed.extend(Position::try_from(place));
        }
    }

    fn answered(
        &mut self,
        (request, sent_at): (Request, Timestamp),
        answer: Answer,
        now: Timestamp,
        step: &mut Step,
    ) {
        match (request, answer) {
            (Request::Load, Answer::Loaded(Some(batch))) => self.loaded(*batch, now, step),
            (Request::Load, Answer::Loaded(None)) => {
                step.effects.push(Effect::Then(Work::Wipe));
                (self.batch, self.is_gone) = (None, true);
            }
            (Request::Check(_), Answer::Checked(None))
            | (Request::Finish, Answer::Finished(false)) => self.reload(now),
            (Request::Check(positions), Answer::Checked(Some(verdicts))) => {
                if let Some(batch) = &mut self.batch {
                    if batch.state == BatchState::Scheduled {
                        batch.state = BatchState::Running;
                    }
                    for (position, verdict) in positions.into_iter().zip(verdicts) {
                        batch.check(position, verdict, (sent_at, now));
                    }
                }
            }
            (Request::Insert { runs, added_at, marks, .. }, Answer::Inserted(inserted)) => {
                self.waves.inserted(&inserted, now);
                if let Some(batch) = &mut self.batch {
                    for (position, _) in &runs {
                        if inserted.contains(position) {
                            batch.start(*position, added_at);
                        } else if let Some(target) = batch.targets.get_mut(*position as usize) {
                            // The permission may have ended since the check.
                            target.check = None;
                        }
                    }
                }
                step.changed.extend(&inserted);
                if inserted.len() == runs.len() {
                    self.marked(&marks, step);
                } else {
                    self.reload(now);
                }
            }
            (Request::Mark(marks), Answer::Written) => self.marked(&marks, step),
            (Request::Finish, Answer::Finished(true)) => {
                if let Some(batch) = &mut self.batch {
                    batch.finished_at = Some(now);
                    if batch.state != BatchState::Cancelled {
                        batch.state = BatchState::Finished;
                    }
                }
            }
            // After `EndRest`, some targets may have a command that a late request inserted.
            _ => self.reload(now),
        }
    }

    fn loaded(&mut self, mut batch: Batch, now: Timestamp, step: &mut Step) {
        for (target, known) in
            batch.targets.iter_mut().zip(self.batch.iter().flat_map(|batch| &batch.targets))
        {
            if let (Some(started), Some(known)) = (&mut target.started, &known.started) {
                started.keep(known);
            }
            if target.is_waiting() {
                target.check.clone_from(&known.check);
            }
        }
        step.changed.extend(0..Position::try_from(batch.targets.len()).unwrap_or(Position::MAX));
        (self.batch, self.is_stale) = (Some(batch), false);
        (self.news_at, self.loaded_at) = (now, now);
        for change in std::mem::take(&mut self.early) {
            self.apply_change(&change, step);
        }
    }

    fn marked(&mut self, marks: &[Mark], step: &mut Step) {
        let Some(batch) = &mut self.batch else { return };
        for mark in marks {
            if let Some(target) = batch.targets.get_mut(mark.position as usize) {
                (target.state, target.mark) = (mark.state, None);
                step.changed.insert(mark.position);
            }
        }
    }

    fn called(&mut self, position: Position, call: Call, is_done: bool, now: Timestamp) {
        self.calls.remove(&position);
        if !is_done {
            self.call_retries.insert(position, now.plus(CALL_RETRY_DELAY));
            return;
        }
        let target = self.batch.as_mut().and_then(|batch| batch.targets.get_mut(position as usize));
        if let Some(started) = target.and_then(|target| target.started.as_mut()) {
            match call {
                Call::Start => started.is_confirmed = true,
                Call::Cancel => (started.is_confirmed, started.is_cancel_done) = (true, true),
                Call::Kill => started.is_kill_done = true,
            }
        }
    }

    /// Sends the calls that open commands need.
    fn send_calls(&mut self, now: Timestamp, step: &mut Step) {
        self.call_retries.retain(|_, at| *at > now);
        let Some(batch) = &self.batch else { return };
        for (position, target) in (0..).zip(&batch.targets) {
            if self.calls.len() >= MAX_CALLS {
                return;
            }
            if let Some(call) = batch.needed_call(target, self.is_killed)
                && !self.calls.contains(&position)
                && !self.call_retries.contains_key(&position)
            {
                self.calls.insert(position);
                step.effects.push(Effect::Then(Work::Call(position, call)));
            }
        }
    }

    /// The next request to D1, if there is one to send now.
    fn next_request(&mut self, now: Timestamp) -> Option<Request> {
        let Some(batch) = self.batch.as_ref().filter(|_| !self.is_stale) else {
            return Some(Request::Load);
        };
        if batch.finished_at.is_some() || batch.is_workspace_deleted {
            return None;
        }
        if batch.targets.iter().all(|target| target.state.is_end()) {
            return Some(Request::Finish);
        }
        if batch.targets.iter().any(Target::is_waiting) {
            let is_stopped = batch.state == BatchState::Stopping
                || batch.limits.is_exceeded_by(batch.count(TargetState::is_failure));
            let rest = match batch.state {
                BatchState::Cancelled => Some(Rest::Cancelled),
                _ if is_stopped => Some(Rest::TooManyErrors),
                _ => (batch.expires_at <= now).then_some(Rest::Expired),
            };
            if let Some(rest) = rest {
                return Some(Request::EndRest(rest));
            }
        }
        if batch.scheduled_at > now { None } else { self.waves.next(batch, now) }
    }

    /// When D1 is read again without any event; `None`: never.
    fn read_at(&self) -> Option<Timestamp> {
        let batch = self.batch.as_ref().filter(|batch| batch.finished_at.is_none())?;
        if batch.is_workspace_deleted {
            return Some(self.loaded_at.plus(MAX_READ_INTERVAL));
        }
        let is_open = |target: &Target| target.is_open() || target.state == TargetState::Queued;
        let quiet = fraction(batch.scheduled_at, self.news_at, 8, 5);
        let at = self.news_at.plus(quiet).min(self.loaded_at.plus(MAX_READ_INTERVAL));
        batch.targets.iter().any(is_open).then_some(at)
    }

    fn wipe_at(&self) -> Option<Timestamp> {
        Some(self.batch.as_ref().filter(|_| self.is_over())?.finished_at?.plus(LOG_TTL))
    }

    fn alarm(&self, now: Timestamp) -> Option<Timestamp> {
        let recovery = now.plus(RECOVERY_DELAY);
        let calls = if self.calls.is_empty() { None } else { Some(recovery) };
        let calls = calls.into_iter().chain(self.call_retries.values().copied());
        // While D1 is asked or has failed, its other work waits.
        let request = if self.request.is_some() {
            Some(recovery)
        } else if self.retry_at.is_some() {
            self.retry_at
        } else {
            self.next_due(now)
        };
        calls.chain(request).min()
    }

    /// When the next request to D1 must be sent, if no event comes before.
    fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let batch = self.batch.as_ref()?;
        if batch.finished_at.is_some() {
            return self.wipe_at();
        }
        if batch.is_workspace_deleted {
            return self.read_at();
        }
        let is_waiting = batch.targets.iter().any(Target::is_waiting);
        let times = [
            Some(batch.scheduled_at).filter(|at| *at > now),
            Some(batch.expires_at).filter(|_| is_waiting),
            self.waves.due_at(),
            self.read_at(),
        ];
        times.into_iter().flatten().min()
    }
}

impl Started {
    /// Keeps what D1 does not have.
    fn keep(&mut self, known: &Self) {
        self.checked_at = self.checked_at.or(known.checked_at);
        self.is_confirmed |= known.is_confirmed;
        self.is_cancel_done = known.is_cancel_done;
        self.is_kill_done = known.is_kill_done;
    }
}

impl Batch {
    /// The number of targets whose state has a property.
    pub fn count(&self, is_counted: impl Fn(TargetState) -> bool) -> u64 {
        self.targets.iter().filter(|target| is_counted(target.state)).count() as u64
    }

    /// Applies a verdict. `times`: when the check was sent, and when D1 answered.
    fn check(&mut self, position: Position, verdict: Verdict, times: (Timestamp, Timestamp)) {
        let on_offline = self.on_offline;
        let Some(target) = self.targets.get_mut(position as usize) else { return };
        if !target.is_waiting() {
            return;
        }
        target.check = None;
        match verdict {
            Verdict::Ready(run) => target.check = Some((run, times.0, times.1)),
            Verdict::Refused(reason) => target.mark = Some((TargetState::Cancelled, reason)),
            Verdict::Offline if on_offline == OfflineTargets::Queue => {
                target.is_online = false;
                if target.state == TargetState::Pending {
                    target.mark = Some((TargetState::Queued, "Its server is offline.".to_owned()));
                }
            }
            Verdict::Offline => {
                target.mark = Some((TargetState::Skipped, "Its server was offline.".to_owned()));
            }
        }
    }

    /// Notes that D1 has a target's command.
    fn start(&mut self, position: Position, added_at: Timestamp) {
        let Some(target) = self.targets.get_mut(position as usize) else { return };
        if let Some((run, sent_at, _)) = target.check.take() {
            let started = Started::new(run, added_at, false);
            target.started = Some(Started { checked_at: Some(sent_at), ..started });
            (target.state, target.at) = (TargetState::Sent, Some(added_at));
        }
    }

    /// The call that a target needs now.
    fn needed_call(&self, target: &Target, is_killed: bool) -> Option<Call> {
        let started = target.started.as_ref().filter(|_| target.is_open())?;
        let is_cancelled =
            is_killed || self.state == BatchState::Cancelled || started.is_server_deleted;
        if is_cancelled && !started.is_cancel_done {
            Some(Call::Cancel)
        } else if is_killed && started.is_cancel_done && !started.is_kill_done {
            Some(Call::Kill)
        } else {
            (!started.is_confirmed).then_some(Call::Start)
        }
    }
}
