//! A simulated world around the machine: a clock, D1, sockets, the alarm, callers and crashes. It
//! carries a step's effects out as the shell does: messages and closed connections in the turn
//! of the step, and after that the alarm, the answers and the requests to D1.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farhand_domain::features::Features;
use farhand_domain::lifecycle::Lifecycle;
use farhand_domain::link::call::{Answer, Ask};
use farhand_domain::link::event::{
    Effect, Event, FromD1, Kind, RequestId, Scene, ServerChange, Ticket, ToD1,
};
use farhand_domain::link::machine::{Link, Random, Settings};
use farhand_domain::secret::SecretKey;
use farhand_domain::time::Timestamp;
use farhand_domain::wire::ToAgent;
use uuid::Uuid;

use super::d1::D1;
use super::store::MemoryStore;

/// What is wrong with a step.
pub type Check = Result<(), String>;

/// Fails with a message unless something holds.
#[macro_export]
macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}

/// How many commands the agent has at most.
pub const WINDOW: u64 = 3;

/// A connection, as the runtime has it.
#[derive(Clone, Debug)]
pub struct Socket {
    pub kind: Kind,
    pub generation: u64,
    pub features: Features,
    pub key: String,
    /// Whether the runtime has it.
    pub is_there: bool,
    /// Whether messages cannot leave over it.
    pub is_broken: bool,
    /// Whether the machine has still to be told that it closed.
    pub closes: bool,
}

/// A request to D1 that is under way.
#[derive(Clone, Debug)]
pub struct Flight {
    pub id: RequestId,
    pub request: Box<ToD1>,
    pub sent_at: Timestamp,
    /// What D1 answered, which is still to arrive.
    pub answer: Option<FromD1>,
    /// Whether the machine was told that it failed: then it can only be late.
    pub is_given_up: bool,
    /// Whether the object was wiped: the machine does not know of it any more.
    pub is_orphan: bool,
    /// Whether the alarm's handler waits for it.
    pub is_of_alarm: bool,
}

/// A call that is made.
#[derive(Clone, Debug)]
pub struct Call {
    pub what: What,
    pub answer: Option<Answer>,
    /// The object crashed before it was answered.
    pub is_dead: bool,
}

/// What a call is about.
#[derive(Clone, Debug)]
pub enum What {
    Create { id: Uuid, key: Option<(String, String)> },
    Replay { key: (String, String) },
    Agent { key: String },
    Connect { kind: Kind, key: String, features: Features },
    Rotate { key: String },
    Resync,
    Sever,
    Forget { ids: Vec<Uuid> },
    Other,
}

/// A crash in the next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crash {
    /// After how many effects; `None`: before the step's writes are durable.
    pub after: Option<u8>,
    /// What else the crash takes along, a bit each.
    pub loss: u8,
}

/// The world.
pub struct World {
    pub now: Timestamp,
    pub link: Link<MemoryStore>,
    pub d1: D1,
    pub snapshot: Option<D1>,
    pub sockets: Vec<Socket>,
    pub flights: Vec<Flight>,
    pub calls: BTreeMap<Ticket, Call>,
    pub laters: BTreeMap<Ticket, Timestamp>,
    pub alarm: Option<Timestamp>,
    /// Whether the alarm's handler is at work.
    pub is_alarm_at_work: bool,
    /// A crash came before the alarm was set: the next event has it set.
    pub is_alarm_lost: bool,
    pub crash: Option<Crash>,
    pub last_ticket: Ticket,
    /// What was created, in its order.
    pub commands: Vec<Uuid>,
    /// How often each command was sent.
    pub sent: BTreeMap<Uuid, u32>,
    /// What is just answered: when it was sent, and the answer.
    pub answered: Option<(Timestamp, Box<ToD1>, FromD1)>,
    /// How many keys the agent had.
    pub keys: u32,
    pub history: History,
}

/// What the checks remember.
#[derive(Default)]
pub struct History {
    pub lives: BTreeMap<Uuid, (i64, Lifecycle)>,
    /// Commands that a failed message gave back in this step.
    pub given_back: BTreeSet<Uuid>,
    pub noted: BTreeSet<Uuid>,
    pub revoked: BTreeSet<String>,
    /// Keys that D1 may take after any other.
    pub late_keys: BTreeSet<String>,
    /// The command that each Idempotency-Key made, and when.
    pub made: BTreeMap<(String, String), (Uuid, Timestamp)>,
    pub forgotten: BTreeSet<Uuid>,
    /// D1 was taken back, and the resync is not answered.
    pub needs_resync: bool,
    /// The object was just begun after a crash: what D1 was asked is due when it had its time.
    pub is_fresh: bool,
    /// When it was taken back, by the number of the last call.
    pub taken_back_at: Ticket,
    pub was_taken_back: bool,
    pub was_severed: bool,
}

fn settings() -> Settings {
    let key = SecretKey::new("a-secret-that-is-long-enough-for-tests", "").ok();
    Settings { ping_every: 200, heartbeat_every: 30, key, window: WINDOW }
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
        let scene = Scene { now, backhaul: None, control: None };
        Self {
            now,
            link: Link::new(MemoryStore::default(), settings(), random(1), scene),
            d1: D1::new("key-0"),
            snapshot: None,
            sockets: vec![],
            flights: vec![],
            calls: BTreeMap::new(),
            laters: BTreeMap::new(),
            alarm: None,
            is_alarm_at_work: false,
            is_alarm_lost: false,
            crash: None,
            last_ticket: 0,
            commands: vec![],
            sent: BTreeMap::new(),
            answered: None,
            keys: 0,
            history: History::default(),
        }
    }
}

/// What is left to do after the turn of a step.
#[derive(Default)]
struct Rest {
    alarm: Option<Timestamp>,
    replies: Vec<(Ticket, Answer)>,
    requests: Vec<(RequestId, Box<ToD1>)>,
}

/// Whether there is one more effect before the crash.
fn spend(left: &mut Option<u8>) -> bool {
    match left {
        None => true,
        Some(0) => false,
        Some(left) => {
            *left -= 1;
            true
        }
    }
}

impl Flight {
    /// Whether the machine waits for it.
    pub fn is_awaited(&self) -> bool {
        !self.is_given_up && !self.is_orphan
    }
}

impl World {
    pub fn store(&self) -> &MemoryStore {
        self.link.store()
    }

    pub fn ticket(&mut self, what: What) -> Ticket {
        self.last_ticket += 1;
        self.calls.insert(self.last_ticket, Call { what, answer: None, is_dead: false });
        self.last_ticket
    }

    /// Makes a call.
    pub fn call(&mut self, what: What, ask: Ask) -> Result<Ticket, String> {
        let ticket = self.ticket(what);
        self.step(Event::Call { ticket, ask: Box::new(ask) })?;
        Ok(ticket)
    }

    fn scene(&self) -> Scene {
        let newest = |kind| {
            let there =
                self.sockets.iter().filter(move |socket| socket.is_there && socket.kind == kind);
            there.max_by_key(|socket| socket.generation)
        };
        Scene {
            now: self.now,
            backhaul: newest(Kind::Backhaul).map(|socket| (socket.generation, socket.features)),
            control: newest(Kind::Control).map(|socket| socket.generation),
        }
    }

    /// Has the machine take an event and carries out what follows, and checks all of it.
    pub fn step(&mut self, event: Event) -> Check {
        self.step_of(event, false)
    }

    /// The same. `is_of_alarm`: the alarm's handler waits for what is asked.
    pub fn step_of(&mut self, event: Event, is_of_alarm: bool) -> Check {
        let crash = self.crash.take();
        let before = crash.filter(|crash| crash.after.is_none()).map(|_| self.store().clone());
        // How many more effects there are before the crash.
        let mut left = crash.and_then(|crash| crash.after);
        self.history.given_back.clear();
        self.history.is_fresh = false;
        let (mut rest, mut sent) = (Rest::default(), vec![]);
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let wipes = self.store().wipes;
            let effects = self.link.step(event, self.scene());
            if before.is_some() {
                break;
            }
            if self.store().wipes > wipes {
                self.alarm = None;
                self.flights.iter_mut().for_each(|flight| flight.is_orphan = true);
            }
            for effect in effects {
                events.extend(self.carry_out(effect, &mut rest, &mut sent, &mut left)?);
            }
        }
        if let Some(before) = before {
            return self.crash_now(before, crash);
        }
        self.check_order(&sent)?;
        self.is_alarm_lost &= rest.alarm.is_none() && self.store().state.is_some();
        if let Some(at) = rest.alarm {
            if spend(&mut left) {
                self.alarm = Some(self.alarm.map_or(at, |set| set.min(at)));
            } else {
                self.is_alarm_lost = true;
            }
        }
        for (ticket, answer) in rest.replies {
            if spend(&mut left) {
                self.reply(ticket, answer)?;
            }
        }
        for (id, request) in rest.requests {
            if spend(&mut left) {
                let sent_at = self.now;
                self.flights.push(Flight {
                    id,
                    request,
                    sent_at,
                    answer: None,
                    is_given_up: false,
                    is_orphan: false,
                    is_of_alarm,
                });
            }
        }
        self.is_alarm_at_work = self.flights.iter().any(|flight| flight.is_of_alarm);
        if crash.is_some() {
            self.crash_now(self.store().clone(), crash)?;
        }
        self.check()
    }

    /// Carries out what is done in the turn of the step, and returns what happens at that.
    fn carry_out(
        &mut self,
        effect: Effect,
        rest: &mut Rest,
        sent: &mut Vec<Uuid>,
        left: &mut Option<u8>,
    ) -> Result<Option<Event>, String> {
        match effect {
            Effect::Send { kind, generation, message, before } => {
                self.check_may_send(kind, generation)?;
                let socket = self
                    .sockets
                    .iter_mut()
                    .find(|socket| socket.generation == generation && socket.is_there);
                let leaves = socket.as_ref().is_some_and(|socket| !socket.is_broken);
                if let Some(socket) = socket.filter(|socket| socket.is_broken) {
                    socket.is_there = generation % 2 == 0;
                }
                if !leaves {
                    self.history.given_back.extend(before.as_ref().map(|before| before.command.id));
                    return Ok(Some(Event::NotSent { generation, before }));
                }
                if let ToAgent::Command { command } = message
                    && spend(left)
                {
                    self.check_send(command.id)?;
                    sent.push(command.id);
                }
            }
            Effect::Close { kind, .. } => {
                for socket in
                    self.sockets.iter_mut().filter(|socket| socket.kind == kind && socket.is_there)
                {
                    (socket.is_there, socket.closes) = (false, true);
                }
            }
            Effect::Accept { ticket, kind, generation, features } => {
                self.accept(ticket, kind, generation, features)?
            }
            Effect::Reply(ticket, answer) => rest.replies.push((ticket, answer)),
            Effect::Alarm(at) => rest.alarm = Some(at),
            Effect::Later(ticket, at) if at <= self.now => return Ok(Some(Event::TimeUp(ticket))),
            Effect::Later(ticket, at) => _ = self.laters.insert(ticket, at),
            Effect::Ask(id, request) => {
                self.check_ask(&request, &rest.requests)?;
                rest.requests.push((id, request));
            }
            Effect::Seal(_) => {}
            Effect::Log { event, error, .. } => {
                ensure!(
                    event != "step_failed" || self.store().is_broken.get(),
                    "a step failed: {error}"
                );
            }
        }
        Ok(None)
    }

    fn accept(&mut self, ticket: Ticket, kind: Kind, generation: u64, features: Features) -> Check {
        let call = self.calls.get_mut(&ticket).ok_or("an unknown call is accepted")?;
        ensure!(call.answer.is_none() && !call.is_dead, "call {ticket} is accepted twice");
        call.answer = Some(Answer::NOTHING);
        let What::Connect { kind: asked, key, features: announced } = call.what.clone() else {
            return Err("a call that is no connection is accepted".to_owned());
        };
        ensure!(asked == kind && announced == features, "another connection is accepted");
        ensure!(!self.history.revoked.contains(&key), "an agent with a revoked key is accepted");
        self.laters.remove(&ticket);
        let is_new = self
            .sockets
            .iter()
            .all(|socket| socket.generation < generation || self.store().wipes > 0);
        ensure!(is_new, "a connection has an old number");
        let socket = Socket {
            kind,
            generation,
            features,
            key,
            is_there: true,
            is_broken: false,
            closes: false,
        };
        self.sockets.push(socket);
        Ok(())
    }

    fn reply(&mut self, ticket: Ticket, answer: Answer) -> Check {
        let call = self.calls.get_mut(&ticket).ok_or("an unknown call is answered")?;
        ensure!(
            call.answer.is_none(),
            "call {ticket} is answered twice: {:?}, {answer:?}",
            call.answer
        );
        ensure!(!call.is_dead, "a call of before the crash is answered");
        call.answer = Some(answer.clone());
        let what = call.what.clone();
        self.laters.remove(&ticket);
        self.check_reply(&what, &answer)
    }

    /// The object dies: its memory is lost, and what D1 was asked is done or not.
    fn crash_now(&mut self, store: MemoryStore, crash: Option<Crash>) -> Check {
        let loss = crash.map_or(0, |crash| crash.loss);
        for (place, mut flight) in std::mem::take(&mut self.flights).into_iter().enumerate() {
            // Not covered: D1 does what was given up, and the object dies before it hears of that.
            if flight.is_given_up && flight.answer.is_some() {
                self.flights.push(flight);
                continue;
            }
            if flight.answer.is_none() && !flight.is_given_up && loss >> (place % 4) & 1 == 1 {
                flight.answer = Some(self.d1.apply(&flight.request));
            }
        }
        if std::mem::take(&mut self.is_alarm_at_work) && self.alarm.is_none() {
            self.alarm = Some(self.now);
        }
        if loss & 16 != 0 {
            self.sockets
                .iter_mut()
                .for_each(|socket| (socket.is_there, socket.closes) = (false, false));
        }
        for call in self.calls.values_mut().filter(|call| call.answer.is_none()) {
            call.is_dead = true;
        }
        self.laters.clear();
        self.history.is_fresh = true;
        let seed = self.last_ticket << 32 | self.now.as_millis();
        self.link = Link::new(store, settings(), random(seed), self.scene());
        Ok(())
    }

    /// The object dies between two events.
    pub fn die(&mut self, loss: u8) -> Check {
        self.crash_now(self.store().clone(), Some(Crash { after: None, loss }))
    }

    /// The alarm goes off, if it is set and its handler is not at work.
    pub fn alarm_goes_off(&mut self, late_millis: i64) -> Check {
        let Some(at) = self.alarm.filter(|_| !self.is_alarm_at_work) else { return Ok(()) };
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

    /// D1 does what it was asked.
    pub fn apply(&mut self, place: usize, parts: u64) {
        if let Some(flight) = self.flights.get_mut(place)
            && flight.answer.is_none()
        {
            flight.answer = Some(self.d1.apply_in_part(&flight.request, parts));
        }
    }

    /// The answer of D1 arrives; D1 does it before that if need be.
    pub fn answer(&mut self, place: usize, parts: u64) -> Check {
        if place >= self.flights.len() {
            return Ok(());
        }
        self.apply(place, parts);
        let flight = self.flights.remove(place);
        let Some(answer) = flight.answer.clone() else { return Ok(()) };
        let event = match flight.is_given_up {
            true => Event::Late(flight.request.clone()),
            false => Event::Answered { id: flight.id, answer: Ok(answer.clone()) },
        };
        if flight.is_given_up && self.crash.is_some_and(|crash| crash.after.is_none()) {
            self.flights.push(flight.clone());
        }
        self.answered = Some((flight.sent_at, flight.request, answer));
        let checked = self.step_of(event, flight.is_of_alarm);
        self.answered = None;
        checked
    }

    /// A request fails, before or after D1 did it.
    pub fn fail(&mut self, place: usize) -> Check {
        if self.flights.get(place).is_none_or(|flight| flight.is_given_up) {
            return Ok(());
        }
        let flight = self.flights.remove(place);
        let event = Event::Answered { id: flight.id, answer: Err("D1 failed".to_owned()) };
        self.step_of(event, flight.is_of_alarm)
    }

    /// A request takes too long. It may still be done, and answered late.
    pub fn time_out(&mut self, place: usize) -> Check {
        let Some(flight) = self.flights.get_mut(place).filter(|flight| !flight.is_given_up) else {
            return Ok(());
        };
        self.now = self.now.max(flight.sent_at.plus_seconds(30));
        flight.is_given_up = true;
        if let ToD1::Change(_, ServerChange::Key { key_hash, .. }) = &*flight.request {
            self.history.late_keys.insert(key_hash.clone());
        }
        let is_of_alarm = std::mem::take(&mut flight.is_of_alarm);
        let event =
            Event::Answered { id: flight.id, answer: Err("D1 did not answer in time".to_owned()) };
        self.step_of(event, is_of_alarm)
    }

    /// A timer of a call runs out.
    pub fn time_is_up(&mut self, place: usize) -> Check {
        let Some((ticket, at)) = self.laters.iter().map(|(ticket, at)| (*ticket, *at)).nth(place)
        else {
            return Ok(());
        };
        self.now = self.now.max(at);
        self.laters.remove(&ticket);
        self.step(Event::TimeUp(ticket))
    }
}
