//! A simulated world around the machine: a clock, the alarm, D1, the servers' objects, calls,
//! reports and crashes.

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::future::ready;

use farhand_domain::batch::event::{
    Answer, Batch, BatchState, CALL_TIMEOUT, CHECK_VALIDITY, Call, D1_TIMEOUT, Effect, Event,
    Position, Request, RequestId, Work,
};
use farhand_domain::batch::limits::Limits;
use farhand_domain::batch::machine::Machine;
use farhand_domain::batch::request::OfflineTargets;
use farhand_domain::batch::target::{Change, TargetState};
use farhand_domain::time::Timestamp;
use farhand_domain::turn::{Platform, Turn};

use super::d1::{CommandRow, D1, TargetRow, server};
use super::object::Object;
use super::ops::Op;

/// The result of a check. The error says which invariant is violated.
pub type Check = Result<(), String>;

/// The batch of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub targets: usize,
    pub limits: Limits,
    pub on_offline: OfflineTargets,
    /// Seconds until it begins.
    pub delay: i64,
    /// How many servers are connected at first, of eight.
    pub connected: usize,
}

impl Setting {
    /// Turns 64 random bits into a setting.
    pub fn decode(bits: u64) -> Self {
        let part = |shift: u32, modulus: u64| bits >> shift & 0xff & (modulus - 1);
        Self {
            targets: 1 + part(0, 16) as usize,
            limits: Limits {
                max_concurrency: 1 + part(8, 4),
                max_errors: [None, None, Some(0), Some(2)][part(16, 4) as usize],
                ramp: part(24, 2) == 1,
            },
            on_offline: if part(32, 2) == 1 { OfflineTargets::Skip } else { OfflineTargets::Queue },
            delay: [0, 0, 0, 20][part(40, 4) as usize],
            connected: part(48, 8) as usize,
        }
    }
}

/// A request to D1 without an answer.
struct Pending {
    id: RequestId,
    request: Request,
    answer: Option<Answer>,
    sent_at: Timestamp,
}

/// A call without an answer.
#[derive(Clone, Copy)]
struct PendingCall {
    position: Position,
    call: Call,
    checked_at: Option<Timestamp>,
    sent_at: Timestamp,
}

/// The simulated world.
pub struct World {
    pub now: Timestamp,
    pub machine: Machine,
    pub d1: D1,
    pub objects: Vec<Object>,
    pub requests_sent: u64,
    snapshot: Option<D1>,
    is_killed: bool,
    alarm: Option<Timestamp>,
    requests: Vec<Pending>,
    calls: Vec<PendingCall>,
    reports: VecDeque<Event>,
    /// Requests and calls that failed for the machine, but may still be carried out.
    late_requests: Vec<Request>,
    late_calls: Vec<PendingCall>,
    crash_in: Option<usize>,
    /// How many effects of the turn come before the crash.
    effects_left: usize,
    /// The invariant that an effect of the turn broke.
    problem: Option<String>,
    was_restored: bool,
    /// Whether D1 had too many failures at some time.
    was_exceeded: bool,
    /// The insertions that D1 has carried out, by their time.
    inserted: BTreeSet<Timestamp>,
    was_inserted_late: bool,
}

impl Platform for World {
    type Event = Event;
    type Effect = Effect;
    type Reply = Infallible;
    type Request = Work;
    type Pending = ();

    fn step(&mut self, event: Event) -> Vec<Effect> {
        self.machine.step(event, self.now).effects
    }

    fn carry_out(&mut self, effect: Effect, turn: &mut Turn<Self>) {
        match effect {
            Effect::SetAlarm(at) => turn.set_alarm(at),
            Effect::Then(work) => turn.request(work),
        }
    }

    fn set_alarm(&mut self, at: Timestamp) -> impl Future<Output = ()> {
        if self.has_effects_left() {
            let at = at.max(self.now);
            self.alarm = Some(self.alarm.map_or(at, |set| set.min(at)));
        }
        ready(())
    }

    fn reply(&mut self, reply: Infallible) {
        match reply {}
    }

    fn send(&mut self, work: Work) {
        if self.has_effects_left()
            && let Err(problem) = self.carry_out_work(work)
        {
            self.problem.get_or_insert(problem);
        }
    }
}

impl World {
    pub fn new(setting: Setting) -> Self {
        let now = Timestamp::from_millis(1_795_000_000_000);
        let scheduled_at = now.plus_seconds(setting.delay);
        let is_connected = |place: usize| place % 8 < setting.connected;
        let row = |place| TargetRow {
            mark: None,
            command: None,
            is_connected: is_connected(place),
            is_denied: false,
            is_deleted: false,
            allowed_at: None,
        };
        let object = |place| Object { is_connected: is_connected(place), ..Object::default() };
        let state = if setting.delay > 0 { BatchState::Scheduled } else { BatchState::Running };
        let batch = Batch {
            state,
            scheduled_at,
            expires_at: scheduled_at.plus_seconds(3_600),
            finished_at: None,
            limits: setting.limits,
            on_offline: setting.on_offline,
            is_workspace_deleted: false,
            targets: vec![],
        };
        Self {
            now,
            machine: Machine::new(false, now),
            d1: D1 {
                batch,
                rows: (0..setting.targets).map(row).collect(),
                is_revoked: false,
                is_gone: false,
            },
            objects: (0..setting.targets).map(object).collect(),
            requests_sent: 0,
            snapshot: None,
            is_killed: false,
            // The hourly look finds a batch whose object was never called.
            alarm: Some(now.plus_seconds(3_000)),
            requests: vec![],
            calls: vec![],
            reports: VecDeque::new(),
            late_requests: vec![],
            late_calls: vec![],
            crash_in: None,
            effects_left: 0,
            problem: None,
            was_restored: false,
            was_exceeded: false,
            inserted: BTreeSet::new(),
            was_inserted_late: false,
        }
    }

    /// Handles the turn of an event, up to a crash.
    pub fn step(&mut self, event: Event) -> Check {
        let crash_in = self.crash_in.take();
        self.effects_left = crash_in.unwrap_or(usize::MAX);
        Turn::begin(self, event).end_at_once(self);
        if let Some(problem) = self.problem.take() {
            return Err(problem);
        }
        if crash_in.is_some() {
            self.crash();
        }
        self.check()
    }

    /// Whether another effect comes before the crash.
    fn has_effects_left(&mut self) -> bool {
        let has_left = self.effects_left > 0;
        self.effects_left = self.effects_left.saturating_sub(1);
        has_left
    }

    fn carry_out_work(&mut self, work: Work) -> Check {
        match work {
            Work::Request(id, request) => {
                if !self.requests.is_empty() {
                    return Err("two requests to D1 at a time".to_owned());
                }
                self.requests_sent += 1;
                self.requests.push(Pending { id, request, answer: None, sent_at: self.now });
            }
            Work::Call(position, call) => {
                let batch = self.machine.batch().ok_or("a call without a batch")?;
                let target = &batch.targets[position as usize];
                let started = target.started.as_ref().ok_or("a call without a command")?;
                let checked_at = started.checked_at;
                let sent_at = self.now;
                self.calls.push(PendingCall { position, call, checked_at, sent_at });
            }
            Work::Wipe => {
                (self.alarm, self.is_killed) = (None, false);
                if self.d1.batch.finished_at.is_none() && !self.d1.is_gone {
                    return Err("a running batch is wiped".to_owned());
                }
            }
        }
        Ok(())
    }

    /// The object loses its memory. Its earlier requests and calls may still arrive.
    fn crash(&mut self) {
        let requests = self.requests.drain(..).filter(|pending| pending.answer.is_none());
        self.late_requests.extend(requests.map(|pending| pending.request));
        self.late_calls.append(&mut self.calls);
        self.machine = Machine::new(self.is_killed, self.now);
        // Before a crash, the alarm may not have been set. Then an earlier alarm goes off.
        let soon = self.now.plus_seconds(5);
        if !self.d1.is_gone && self.d1.batch.finished_at.is_none() {
            self.alarm = Some(self.alarm.map_or(soon, |at| at.min(soon)));
        }
    }

    fn apply(&mut self, place: usize) {
        let now = self.now;
        if let Some(pending) = self.requests.get_mut(place)
            && pending.answer.is_none()
        {
            let request = pending.request.clone();
            pending.answer = Some(self.d1.apply(&request, now));
            self.check_insertion(&request);
        }
    }

    /// Notes whether an insertion came after the batch was stopped.
    fn check_insertion(&mut self, request: &Request) {
        let is_new =
            matches!(request, Request::Insert { started, .. } if *started < self.d1.started());
        let batch = &self.d1.batch;
        let is_stopped =
            batch.state != BatchState::Running || batch.limits.is_exceeded_by(self.d1.failures());
        self.was_inserted_late |= is_new && is_stopped && !self.was_restored && {
            let Request::Insert { runs, added_at, .. } = request else { return };
            let is_inserted = |position: &u32| {
                let row = &self.d1.rows[*position as usize];
                row.command
                    .as_ref()
                    .is_some_and(|command| command.added_at == *added_at && command.revision == 0)
            };
            runs.iter().any(|(position, _)| is_inserted(position))
                && !self.inserted.contains(added_at)
        };
        if let Request::Insert { added_at, .. } = request
            && is_new
        {
            self.inserted.insert(*added_at);
        }
    }

    pub fn answer(&mut self, place: usize) -> Check {
        if self.requests.is_empty() {
            return Ok(());
        }
        let place = place % self.requests.len();
        self.apply(place);
        self.check()?;
        let Pending { id, answer, .. } = self.requests.remove(place);
        self.step(Event::Answered { id, answer: answer.ok_or("no answer".to_owned()) })
    }

    fn fail(&mut self, place: usize) -> Check {
        if self.requests.is_empty() {
            return Ok(());
        }
        let place = place % self.requests.len();
        let Pending { id, request, answer, .. } = self.requests.remove(place);
        if answer.is_none() {
            self.late_requests.push(request);
        }
        self.step(Event::Answered { id, answer: Err("no answer".to_owned()) })
    }

    fn late(&mut self, place: usize) -> Check {
        if !self.late_requests.is_empty() {
            let request = self.late_requests.remove(place % self.late_requests.len());
            self.d1.apply(&request, self.now);
            self.check_insertion(&request);
        }
        if !self.late_calls.is_empty() {
            let call = self.late_calls.remove(place % self.late_calls.len());
            self.carry_out(call)?;
        }
        self.check()
    }

    fn carry_out(&mut self, call: PendingCall) -> Check {
        let place = call.position as usize;
        let row = &self.d1.rows[place];
        let is_denied = row.is_denied || self.d1.is_revoked;
        let is_permitted = !is_denied && !row.is_deleted && !self.d1.batch.is_workspace_deleted;
        self.objects[place].call(call.call, call.checked_at, is_permitted, self.now);
        let was_allowed =
            |at: Timestamp| row.allowed_at.is_some_and(|allowed| allowed.plus(CHECK_VALIDITY) > at);
        if self.objects[place].trusted_at.is_some_and(|at| !was_allowed(at)) {
            return Err("a command runs that no check allowed".to_owned());
        }
        Ok(())
    }

    pub fn call(&mut self, place: usize, is_done: bool) -> Check {
        if self.calls.is_empty() {
            return Ok(());
        }
        let pending = self.calls.remove(place % self.calls.len());
        if is_done {
            self.carry_out(pending)?;
        } else {
            self.late_calls.push(pending);
        }
        let PendingCall { position, call, .. } = pending;
        self.step(Event::Called { position, call, is_done })
    }

    /// A server's object writes its latest state to D1.
    pub fn flush(&mut self, place: usize) {
        let place = place % self.objects.len();
        let (object, row) = (&mut self.objects[place], &mut self.d1.rows[place]);
        if row.is_connected != object.is_connected {
            row.is_connected = object.is_connected && !row.is_deleted;
            if row.is_connected && row.mark == Some(TargetState::Queued) {
                self.reports.push_back(Event::Connected { server: server(place) });
            }
        }
        let Some(command) = object.command.as_mut().filter(|command| !command.is_flushed) else {
            return;
        };
        command.is_flushed = true;
        let Some(row) = &mut row.command else { return };
        if row.revision < command.revision {
            (row.state, row.revision) = (command.state, command.revision);
        }
        let failures = self.d1.failures();
        self.was_exceeded |= self.d1.batch.limits.is_exceeded_by(failures);
        let (server, state) = (server(place), command.state);
        let at = Some(self.now);
        self.reports.push_back(Event::Changed(Change { server, state, exit_code: None, at }));
    }

    fn report(&mut self, place: usize, is_repeated: bool) -> Check {
        if self.reports.is_empty() {
            return Ok(());
        }
        let place = place % self.reports.len();
        let report = self.reports.remove(place).ok_or("no report")?;
        if is_repeated {
            self.reports.push_back(report.clone());
        }
        self.step(report)
    }

    fn pass(&mut self, millis: i64) -> Check {
        let until = self.now.plus_millis(millis);
        for _ in 0..1_000 {
            let Some(at) = self.alarm.filter(|at| *at <= until) else { break };
            (self.now, self.alarm) = (self.now.max(at), None);
            self.give_up_overdue()?;
            self.step(Event::Alarm)?;
            // The platform does not run the same alarm again in the same millisecond.
            self.now = self.now.plus_millis(1);
        }
        if self.alarm.is_some_and(|at| at <= until) {
            return Err("the alarm goes off again and again".to_owned());
        }
        self.now = self.now.max(until);
        self.give_up_overdue()?;
        if self.d1.batch.expires_at <= self.now {
            self.objects.iter_mut().for_each(|object| object.report(TargetState::Expired));
        }
        Ok(())
    }

    /// The shell gives up requests and calls that take too long.
    fn give_up_overdue(&mut self) -> Check {
        if self.requests.iter().any(|pending| pending.sent_at.plus(D1_TIMEOUT) <= self.now) {
            self.fail(0)?;
        }
        let now = self.now;
        let is_overdue = |call: &PendingCall| call.sent_at.plus(CALL_TIMEOUT) <= now;
        while let Some(place) = self.calls.iter().position(is_overdue) {
            self.call(place, false)?;
        }
        Ok(())
    }

    /// Runs an operation.
    pub fn run(&mut self, op: &Op) -> Check {
        self.now = self.now.plus_millis(1);
        let count = self.objects.len();
        match *op {
            Op::Pass { millis } => self.pass(millis)?,
            Op::Reload => self.step(Event::Reload)?,
            Op::Kill | Op::Cancel { .. } if self.d1.batch.finished_at.is_some() => {}
            Op::Kill => {
                self.d1.batch.state = BatchState::Cancelled;
                self.is_killed = true;
                self.step(Event::Kill)?;
            }
            Op::Cancel { is_lost } => {
                self.d1.batch.state = BatchState::Cancelled;
                if !is_lost {
                    self.step(Event::Reload)?;
                }
            }
            Op::Apply(place) => self.apply(place % self.requests.len().max(1)),
            Op::Answer(place) => self.answer(place)?,
            Op::Fail(place) => self.fail(place)?,
            Op::Late(place) => self.late(place)?,
            Op::Call(place) => self.call(place, true)?,
            Op::FailCall(place) => self.call(place, false)?,
            Op::Connect(place) if !self.d1.rows[place % count].is_deleted => {
                let object = &mut self.objects[place % count];
                object.is_connected = true;
                let is_denied = self.d1.is_revoked || self.d1.rows[place % count].is_denied;
                object.deliver_waiting(!is_denied);
            }
            Op::Connect(_) => {}
            Op::Disconnect(place) => self.objects[place % count].is_connected = false,
            Op::Ack(place) => self.objects[place % count].report(TargetState::Running),
            Op::End { place, is_success } => {
                let end = if is_success { TargetState::Success } else { TargetState::Failed };
                self.objects[place % count].report(end);
            }
            Op::Stuck(place) => self.objects[place % count].report(TargetState::Stuck),
            Op::Flush(place) => self.flush(place),
            Op::Report { place, is_repeated } => self.report(place, is_repeated)?,
            Op::LoseReport(place) if !self.reports.is_empty() => {
                self.reports.remove(place % self.reports.len());
            }
            Op::LoseReport(_) => {}
            Op::Revoke => self.d1.is_revoked = true,
            Op::Deny(place) => self.d1.rows[place % count].is_denied = true,
            Op::Delete(place) => self.delete(place % count),
            Op::Crash => self.crash(),
            Op::CrashIn(effects) => self.crash_in = Some(effects),
            Op::Suspend(is_deleted) => self.d1.batch.is_workspace_deleted = is_deleted,
            Op::Snapshot => self.snapshot = Some(self.d1.clone()),
            Op::Restore => self.restore()?,
            Op::Purge => self.d1.is_gone = true,
        }
        self.check()
    }

    fn delete(&mut self, place: usize) {
        let row = &mut self.d1.rows[place];
        (row.is_deleted, row.is_connected) = (true, false);
        let object = &mut self.objects[place];
        object.is_connected = false;
        if object.command.as_ref().is_some_and(|command| command.state == TargetState::Queued) {
            object.call(Call::Cancel, None, true, self.now);
        } else {
            object.report(TargetState::Stuck);
        }
    }

    /// D1 goes back to an earlier state. The servers' objects write their commands again.
    fn restore(&mut self) -> Check {
        let Some(mut earlier) = self.snapshot.clone() else { return Ok(()) };
        earlier.is_gone = self.d1.is_gone;
        for (row, later) in earlier.rows.iter_mut().zip(&self.d1.rows) {
            row.allowed_at = later.allowed_at;
        }
        earlier.is_revoked = false;
        (self.d1, self.was_restored) = (earlier, true);
        self.late_requests.clear();
        while !self.requests.is_empty() {
            self.requests[0].answer = None;
            self.fail(0)?;
        }
        self.late_requests.clear();
        for (object, row) in self.objects.iter_mut().zip(&mut self.d1.rows) {
            row.is_denied = false;
            if let Some(command) = &mut object.command {
                command.is_flushed = false;
                let (state, added_at) = (TargetState::Queued, self.now);
                row.command.get_or_insert(CommandRow { state, added_at, revision: 0 });
            }
        }
        self.step(Event::Reload)
    }

    /// Checks the invariants.
    fn check(&self) -> Check {
        let Batch { limits, .. } = self.d1.batch;
        if self.objects.iter().any(|object| object.runs > 1) {
            return Err("a command runs twice".to_owned());
        }
        if self.was_inserted_late {
            return Err("a command was inserted after the batch was stopped".to_owned());
        }
        if self.was_restored {
            return Ok(());
        }
        let successes = self.d1.count(|state| state == TargetState::Success);
        let (open, limit) = (self.d1.open(), limits.concurrency(successes));
        if open > limit {
            return Err(format!("{open} commands are open, and {limit} are allowed"));
        }
        let has_two_ends =
            |row: &TargetRow| row.command.is_some() && row.mark.is_some_and(TargetState::is_end);
        if self.d1.rows.iter().any(has_two_ends) {
            return Err("a target with a command ended without one".to_owned());
        }
        let is_running = !self.d1.is_gone && self.d1.batch.finished_at.is_none();
        if is_running && self.alarm.is_none() {
            return Err("no alarm is set".to_owned());
        }
        Ok(())
    }

    /// Lets all pending work finish, and checks that the batch ends.
    pub fn settle(&mut self) -> Check {
        self.crash_in = None;
        self.d1.batch.is_workspace_deleted = false;
        for round in 0..400 {
            if self.d1.is_gone || self.d1.batch.finished_at.is_some() {
                break;
            }
            self.late(0)?;
            self.answer(0)?;
            while !self.calls.is_empty() {
                self.call(0, true)?;
            }
            for place in 0..self.objects.len() {
                let end = if round % 2 == 0 { TargetState::Success } else { TargetState::Failed };
                self.objects[place].report(end);
                self.flush(place);
                self.report(0, false)?;
            }
            if self.requests.is_empty() {
                self.pass(if round < 200 { 1_000 } else { 120_000 })?;
            }
        }
        if self.d1.is_gone {
            return Ok(());
        }
        let states: Vec<_> = self.d1.rows.iter().map(TargetRow::state).collect();
        if self.d1.batch.finished_at.is_none() {
            return Err(format!("the batch does not end: {states:?}"));
        }
        let has_ended = |state: &TargetState| state.is_end();
        if !states.iter().all(has_ended) {
            return Err(format!("the batch ended before its targets: {states:?}"));
        }
        if self.was_restored {
            return Ok(());
        }
        let is_skipped = |state: &TargetState| *state == TargetState::Skipped;
        let is_allowed = self.was_exceeded || self.d1.batch.on_offline == OfflineTargets::Skip;
        if states.iter().any(is_skipped) && !is_allowed {
            return Err("targets are skipped without too many failures".to_owned());
        }
        Ok(())
    }
}
