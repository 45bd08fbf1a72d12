//! A simulated world around the machine: a clock, D1, sockets, the alarm, callers and crashes.
//! Like the Worker's object, it handles each event in a turn of `farhand_domain::turn`.

use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::time::Duration;

use farhand_domain::agent::features::Features;
use farhand_domain::agent::wire::MessageToAgent;
use farhand_domain::command::lifecycle::Lifecycle;
use farhand_domain::link::call::{BatchCommand, LinkRequest, LinkResponse};
use farhand_domain::link::event::{
    Answer, ConnectionKind, Effect, Event, Request, RequestId, ServerChange, StepInput, Ticket,
};
use farhand_domain::link::machine::{Machine, Random, Settings};
use farhand_domain::secret::SecretKey;
use farhand_domain::time::Timestamp;
use farhand_domain::turn::{Platform, Turn};
use uuid::Uuid;

use super::d1::D1;
use super::store::MemoryStore;

/// The result of a check. The error says which invariant is violated.
pub type Check = Result<(), String>;

/// Returns an error with a message unless a condition holds.
#[macro_export]
macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}

/// Maximum number of unfinished commands of the agent.
pub const MAX_OPEN: u64 = 3;

/// A connection in the runtime.
#[derive(Clone, Debug)]
pub struct Socket {
    pub kind: ConnectionKind,
    pub generation: u64,
    pub features: Features,
    pub key: String,
    /// Whether the runtime still has the connection.
    pub is_open: bool,
    /// Whether sending over it fails.
    pub is_broken: bool,
    /// Whether the event for the closed connection is still pending.
    pub must_report_close: bool,
}

/// A request to D1 without an answer.
#[derive(Clone, Debug)]
pub struct D1Call {
    pub id: RequestId,
    pub request: Box<Request>,
    pub sent_at: Timestamp,
    /// D1's answer, if D1 has carried the request out. It has not arrived yet.
    pub answer: Option<Answer>,
    /// Whether the shell has reported it as failed. Then it can only end late.
    pub is_timed_out: bool,
    /// Whether the object was wiped, so that the machine ignores the answer.
    pub is_abandoned: bool,
    /// Whether the alarm's handler waits for it.
    pub is_of_alarm: bool,
}

/// A call to the object.
#[derive(Clone, Debug)]
pub struct Call {
    pub kind: CallKind,
    pub answer: Option<LinkResponse>,
    /// Whether the object crashed before it replied.
    pub is_dead: bool,
}

/// The kind of a call, with the values that the checks need.
#[derive(Clone, Debug)]
pub enum CallKind {
    Create { id: Uuid, key: Option<(String, String)> },
    Replay { key: (String, String) },
    Agent { key: String },
    Connect { kind: ConnectionKind, key: String, features: Features },
    Rotate { key: String },
    Resync,
    DisconnectAndWipe,
    DeleteOld { ids: Vec<Uuid> },
    RunOfBatch(Box<BatchCommand>),
    Other,
}

/// A crash in the next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crash {
    /// The number of effects before the crash; `None`: it comes before the step's writes are
    /// durable.
    pub after: Option<u8>,
    /// What else the crash loses. Each bit stands for a request to D1, or for the sockets.
    pub loss: u8,
}

/// The simulated world.
pub struct World {
    pub now: Timestamp,
    pub link: Machine<MemoryStore>,
    pub d1: D1,
    pub snapshot: Option<D1>,
    pub sockets: Vec<Socket>,
    pub d1_calls: Vec<D1Call>,
    pub calls: BTreeMap<Ticket, Call>,
    pub call_timers: BTreeMap<Ticket, Timestamp>,
    pub alarm: Option<Timestamp>,
    /// Whether the alarm's handler is running.
    pub is_alarm_running: bool,
    /// Whether a crash came before the alarm was set. The next event sets it.
    pub is_alarm_lost: bool,
    pub crash: Option<Crash>,
    pub last_ticket: Ticket,
    /// The ids of created commands, in order.
    pub commands: Vec<Uuid>,
    /// How often each command was sent.
    pub sent: BTreeMap<Uuid, u32>,
    /// The request to D1 whose answer the current step handles: when it was sent, the request, and
    /// the answer.
    pub answered: Option<(Timestamp, Box<Request>, Answer)>,
    /// The number of key changes.
    pub keys: u32,
    pub history: History,
    pub turn: TurnState,
}

/// What the checks need from earlier steps.
#[derive(Default)]
pub struct History {
    pub lives: BTreeMap<Uuid, (i64, Lifecycle)>,
    /// Commands whose message failed in this step, so that they wait again.
    pub unsent: BTreeSet<Uuid>,
    pub event_ids: BTreeSet<Uuid>,
    pub revoked: BTreeSet<String>,
    /// Keys of requests that timed out: D1 may still set them.
    pub late_keys: BTreeSet<String>,
    /// The command that each Idempotency-Key created, and when.
    pub keyed_commands: BTreeMap<(String, String), (Uuid, Timestamp)>,
    pub deleted: BTreeSet<Uuid>,
    /// Whether D1 was restored to a snapshot, and the resync has no reply yet.
    pub needs_resync: bool,
    /// Whether the object has just started after a crash. Timers that wait for D1 may then be up to
    /// `D1_TIMEOUT` late.
    pub is_fresh: bool,
    /// The number of the last call before D1 was restored.
    pub restored_at: Ticket,
    pub was_restored: bool,
    pub was_undeleted: bool,
    /// Whether the object was in use before the event. Messages that the event sends before it ends
    /// the use go to sockets that it closes after them.
    pub was_in_use: bool,
    pub was_wiped: bool,
}

fn settings() -> Settings {
    let key = SecretKey::new("a-secret-that-is-long-enough-for-tests", "").ok();
    let server_grace = Duration::from_secs(7 * 24 * 60 * 60);
    Settings {
        ping_every: 200,
        heartbeat_every: 30,
        key,
        server_grace,
        max_open_commands: MAX_OPEN,
    }
}

fn random(seed: u64) -> Random {
    let mut state = seed;
    Box::new(move |bytes| {
        for byte in bytes {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
        Ok(())
    })
}

impl Default for World {
    fn default() -> Self {
        let now = Timestamp::from_millis(1_795_000_000_000);
        let input = StepInput { now, backhaul: None, control: None };
        Self {
            now,
            link: Machine::new(MemoryStore::default(), settings(), random(1), input),
            d1: D1::new("key-0"),
            snapshot: None,
            sockets: vec![],
            d1_calls: vec![],
            calls: BTreeMap::new(),
            call_timers: BTreeMap::new(),
            alarm: None,
            is_alarm_running: false,
            is_alarm_lost: false,
            crash: None,
            last_ticket: 0,
            commands: vec![],
            sent: BTreeMap::new(),
            answered: None,
            keys: 0,
            history: History::default(),
            turn: TurnState::default(),
        }
    }
}

/// The state of the turn that the world handles.
pub struct TurnState {
    /// Whether the alarm's handler waits for the requests to D1.
    is_of_alarm: bool,
    /// Whether a crash comes before the turn's writes are durable. Then no effect is carried out.
    is_lost: bool,
    /// The number of effects before a crash; `None`: no crash comes.
    left: Option<u8>,
    /// The commands that were sent.
    sent: Vec<Uuid>,
    /// Whether the machine wanted an alarm.
    has_alarm: bool,
    /// The first violation of an invariant.
    check: Check,
}

impl Default for TurnState {
    fn default() -> Self {
        Self {
            is_of_alarm: false,
            is_lost: false,
            left: None,
            sent: vec![],
            has_alarm: false,
            check: Ok(()),
        }
    }
}

impl D1Call {
    /// Whether the machine still waits for the answer.
    pub fn is_awaited(&self) -> bool {
        !self.is_timed_out && !self.is_abandoned
    }
}

impl Platform for World {
    type Event = Event;
    type Effect = Effect;
    type Reply = (Ticket, LinkResponse);
    type Request = (RequestId, Box<Request>);
    type Pending = ();

    fn step(&mut self, event: Event) -> Vec<Effect> {
        let wipes = self.store().wipes;
        self.history.was_in_use = self.is_in_use();
        let effects = self.link.step(event, self.input());
        if self.turn.is_lost {
            return vec![];
        }
        if self.store().wipes > wipes {
            self.alarm = None;
            self.d1_calls.iter_mut().for_each(|d1_call| d1_call.is_abandoned = true);
        }
        effects
    }

    fn carry_out(&mut self, effect: Effect, turn: &mut Turn<Self>) {
        let check = self.try_effect(effect, turn);
        self.note(check);
    }

    fn set_alarm(&mut self, at: Timestamp) -> impl Future<Output = ()> {
        self.turn.has_alarm = true;
        self.is_alarm_lost = !self.has_effects_left();
        if !self.is_alarm_lost {
            self.alarm = Some(self.alarm.map_or(at, |set| set.min(at)));
        }
        ready(())
    }

    fn reply(&mut self, (ticket, answer): (Ticket, LinkResponse)) {
        if self.has_effects_left() {
            let check = self.try_reply(ticket, answer);
            self.note(check);
        }
    }

    fn send(&mut self, (id, request): (RequestId, Box<Request>)) {
        if !self.has_effects_left() {
            return;
        }
        let check = self.check_request(&request);
        self.note(check);
        self.d1_calls.push(D1Call {
            id,
            request,
            sent_at: self.now,
            answer: None,
            is_timed_out: false,
            is_abandoned: false,
            is_of_alarm: self.turn.is_of_alarm,
        });
    }
}

impl World {
    pub fn store(&self) -> &MemoryStore {
        self.link.store()
    }

    pub fn ticket(&mut self, kind: CallKind) -> Ticket {
        self.last_ticket += 1;
        self.calls.insert(self.last_ticket, Call { kind, answer: None, is_dead: false });
        self.last_ticket
    }

    /// Sends a call to the machine.
    pub fn call(&mut self, kind: CallKind, message: LinkRequest) -> Result<Ticket, String> {
        let ticket = self.ticket(kind);
        self.step(Event::Call { ticket, message: Box::new(message) })?;
        Ok(ticket)
    }

    fn input(&self) -> StepInput {
        let newest = |kind| {
            let there =
                self.sockets.iter().filter(move |socket| socket.is_open && socket.kind == kind);
            there.max_by_key(|socket| socket.generation)
        };
        StepInput {
            now: self.now,
            backhaul: newest(ConnectionKind::Backhaul)
                .map(|socket| (socket.generation, socket.features)),
            control: newest(ConnectionKind::Control).map(|socket| socket.generation),
        }
    }

    /// Handles the turn of an event, and checks the invariants.
    pub fn step(&mut self, event: Event) -> Check {
        self.step_of(event, false)
    }

    /// Like [`Self::step`]. `is_of_alarm`: the alarm's handler waits for the requests to D1.
    pub fn step_of(&mut self, event: Event, is_of_alarm: bool) -> Check {
        let crash = self.crash.take();
        let before = crash.filter(|crash| crash.after.is_none()).map(|_| self.store().clone());
        self.history.unsent.clear();
        self.history.is_fresh = false;
        self.turn = TurnState {
            is_of_alarm,
            is_lost: before.is_some(),
            left: crash.and_then(|crash| crash.after),
            ..TurnState::default()
        };
        let turn = Turn::begin(self, event);
        if let Some(before) = before {
            return self.crash_now(before, crash);
        }
        self.turn.check =
            std::mem::replace(&mut self.turn.check, Ok(())).and(self.check_order(&self.turn.sent));
        turn.end_at_once(self);
        std::mem::replace(&mut self.turn.check, Ok(()))?;
        if !self.turn.has_alarm {
            self.is_alarm_lost &= self.store().state.is_some();
        }
        self.is_alarm_running = self.d1_calls.iter().any(|d1_call| d1_call.is_of_alarm);
        if crash.is_some() {
            self.crash_now(self.store().clone(), crash)?;
        }
        self.check()
    }

    /// Whether another effect comes before the crash.
    fn has_effects_left(&mut self) -> bool {
        match &mut self.turn.left {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    /// Carries out an effect, or adds it to the turn.
    fn try_effect(&mut self, effect: Effect, turn: &mut Turn<Self>) -> Check {
        match effect {
            Effect::Send { kind, generation, message, before } => {
                self.check_may_send(kind, generation)?;
                let socket = self
                    .sockets
                    .iter_mut()
                    .find(|socket| socket.generation == generation && socket.is_open);
                let leaves = socket.as_ref().is_some_and(|socket| !socket.is_broken);
                if let Some(socket) = socket.filter(|socket| socket.is_broken) {
                    socket.is_open = generation % 2 == 0;
                }
                if !leaves {
                    self.history.unsent.extend(before.as_ref().map(|before| before.command.id));
                    turn.cause(Event::NotSent { generation, before });
                } else if let MessageToAgent::Command { command } = message
                    && self.has_effects_left()
                {
                    self.check_send(&command)?;
                    self.turn.sent.push(command.id);
                }
            }
            Effect::Close { kind, .. } => {
                for socket in
                    self.sockets.iter_mut().filter(|socket| socket.kind == kind && socket.is_open)
                {
                    (socket.is_open, socket.must_report_close) = (false, true);
                }
            }
            Effect::Accept { ticket, kind, generation, features } => {
                self.accept(ticket, kind, generation, features)?;
            }
            Effect::Reply(ticket, answer) => turn.reply((ticket, answer)),
            Effect::SetAlarm(at) => turn.set_alarm(at),
            Effect::StartCallTimer(ticket, at) if at <= self.now => {
                turn.cause(Event::CallTimer(ticket));
            }
            Effect::StartCallTimer(ticket, at) => _ = self.call_timers.insert(ticket, at),
            Effect::Request(id, request) => turn.request((id, request)),
            Effect::RequestSeal(_) => {}
            Effect::NotifyBatch(notice) => self.check_notice(&notice)?,
            Effect::Log { event, error, .. } => {
                ensure!(
                    event != "step_failed" || self.store().is_broken.get(),
                    "a step failed: {error}"
                );
            }
        }
        Ok(())
    }

    /// Keeps the first violation of the turn.
    fn note(&mut self, check: Check) {
        if self.turn.check.is_ok() {
            self.turn.check = check;
        }
    }

    fn accept(
        &mut self,
        ticket: Ticket,
        kind: ConnectionKind,
        generation: u64,
        features: Features,
    ) -> Check {
        let call = self.calls.get_mut(&ticket).ok_or("an unknown call is accepted")?;
        ensure!(call.answer.is_none() && !call.is_dead, "call {ticket} is accepted twice");
        call.answer = Some(LinkResponse::EMPTY);
        let CallKind::Connect { kind: asked, key, features: announced } = call.kind.clone() else {
            return Err("a call that is not a connection is accepted".to_owned());
        };
        ensure!(asked == kind && announced == features, "another connection is accepted");
        ensure!(!self.history.revoked.contains(&key), "an agent with a revoked key is accepted");
        self.call_timers.remove(&ticket);
        let is_new = self
            .sockets
            .iter()
            .all(|socket| socket.generation < generation || self.store().wipes > 0);
        ensure!(is_new, "a connection has an old number");
        let socket = Socket {
            kind,
            generation,
            features,
            key: key.clone(),
            is_open: true,
            is_broken: false,
            must_report_close: false,
        };
        self.sockets.push(socket);
        // A change that was cut off closes connections when it is confirmed.
        if self.is_confirmed() { self.revoke_other_keys(&key) } else { Ok(()) }
    }

    fn try_reply(&mut self, ticket: Ticket, answer: LinkResponse) -> Check {
        let call = self.calls.get_mut(&ticket).ok_or("an unknown call gets a reply")?;
        ensure!(
            call.answer.is_none(),
            "call {ticket} gets two replies: {:?}, {answer:?}",
            call.answer
        );
        ensure!(!call.is_dead, "a call from before the crash gets a reply");
        call.answer = Some(answer.clone());
        let what = call.kind.clone();
        self.call_timers.remove(&ticket);
        self.check_reply(&what, &answer)
    }

    /// The object crashes: its memory is lost. D1 may or may not carry out its requests.
    fn crash_now(&mut self, store: MemoryStore, crash: Option<Crash>) -> Check {
        let loss = crash.map_or(0, |crash| crash.loss);
        for (place, mut d1_call) in std::mem::take(&mut self.d1_calls).into_iter().enumerate() {
            // Not covered: D1 carries out a request that timed out, and the object crashes before
            // it gets the late answer.
            if d1_call.is_timed_out && d1_call.answer.is_some() {
                self.d1_calls.push(d1_call);
                continue;
            }
            if d1_call.answer.is_none() && !d1_call.is_timed_out && loss >> (place % 4) & 1 == 1 {
                d1_call.answer = Some(self.d1.apply(&d1_call.request));
            }
        }
        if std::mem::take(&mut self.is_alarm_running) && self.alarm.is_none() {
            self.alarm = Some(self.now);
        }
        if loss & 16 != 0 {
            self.sockets
                .iter_mut()
                .for_each(|socket| (socket.is_open, socket.must_report_close) = (false, false));
        }
        for call in self.calls.values_mut().filter(|call| call.answer.is_none()) {
            call.is_dead = true;
        }
        self.call_timers.clear();
        // A batch repeats a command that the crash lost.
        self.history.lives.retain(|id, _| store.rows.contains_key(id));
        self.history.is_fresh = true;
        let seed = self.last_ticket << 32 | self.now.as_millis();
        self.link = Machine::new(store, settings(), random(seed), self.input());
        Ok(())
    }

    /// The object crashes between two events.
    pub fn die(&mut self, loss: u8) -> Check {
        self.crash_now(self.store().clone(), Some(Crash { after: None, loss }))
    }

    /// The alarm goes off, if it is set and its handler is not running.
    pub fn alarm_goes_off(&mut self, late_millis: i64) -> Check {
        let Some(at) = self.alarm.filter(|_| !self.is_alarm_running) else { return Ok(()) };
        self.now = self.now.max(at).plus_millis(late_millis);
        self.alarm = None;
        let crash = self.crash;
        self.step_of(Event::Alarm, true)?;
        if crash.is_some() && self.alarm.is_none() {
            // Its handler did not finish.
            self.alarm = Some(self.now);
        }
        Ok(())
    }

    /// D1 carries out a request. Its answer has not arrived yet.
    pub fn apply(&mut self, place: usize, parts: u64) {
        if let Some(d1_call) = self.d1_calls.get_mut(place)
            && d1_call.answer.is_none()
        {
            d1_call.answer = Some(self.d1.apply_in_part(&d1_call.request, parts));
        }
    }

    /// The answer of D1 to a request arrives. If D1 has not carried the request out, it does so
    /// first.
    pub fn answer(&mut self, place: usize, parts: u64) -> Check {
        if place >= self.d1_calls.len() {
            return Ok(());
        }
        self.apply(place, parts);
        let d1_call = self.d1_calls.remove(place);
        let Some(answer) = d1_call.answer.clone() else { return Ok(()) };
        let event = match d1_call.is_timed_out {
            true => Event::EndedLate(d1_call.request.clone()),
            false => Event::Answered { id: d1_call.id, answer: Ok(answer.clone()) },
        };
        if d1_call.is_timed_out && self.crash.is_some_and(|crash| crash.after.is_none()) {
            self.d1_calls.push(d1_call.clone());
        }
        self.answered = Some((d1_call.sent_at, d1_call.request, answer));
        let checked = self.step_of(event, d1_call.is_of_alarm);
        self.answered = None;
        checked
    }

    /// A request to D1 fails, whether D1 has carried it out or not.
    pub fn fail(&mut self, place: usize) -> Check {
        if self.d1_calls.get(place).is_none_or(|d1_call| d1_call.is_timed_out) {
            return Ok(());
        }
        let d1_call = self.d1_calls.remove(place);
        let event = Event::Answered { id: d1_call.id, answer: Err("D1 failed".to_owned()) };
        self.step_of(event, d1_call.is_of_alarm)
    }

    /// A request to D1 times out. D1 may still carry it out, and answer late.
    pub fn time_out(&mut self, place: usize) -> Check {
        let Some(d1_call) = self.d1_calls.get_mut(place).filter(|d1_call| !d1_call.is_timed_out)
        else {
            return Ok(());
        };
        self.now = self.now.max(d1_call.sent_at.plus_seconds(30));
        d1_call.is_timed_out = true;
        if let Request::ChangeServer(_, ServerChange::ReplaceKey { key_hash, .. }) =
            &*d1_call.request
        {
            self.history.late_keys.insert(key_hash.clone());
        }
        let is_of_alarm = std::mem::take(&mut d1_call.is_of_alarm);
        let event =
            Event::Answered { id: d1_call.id, answer: Err("D1 did not answer in time".to_owned()) };
        self.step_of(event, is_of_alarm)
    }

    /// A timer of a call runs out.
    pub fn time_is_up(&mut self, place: usize) -> Check {
        let Some((ticket, at)) =
            self.call_timers.iter().map(|(ticket, at)| (*ticket, *at)).nth(place)
        else {
            return Ok(());
        };
        self.now = self.now.max(at);
        self.call_timers.remove(&ticket);
        self.step(Event::CallTimer(ticket))
    }
}
