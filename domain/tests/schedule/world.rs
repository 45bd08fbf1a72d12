//! A model of the machine's environment: storage, the clock, the history in D1, the batches, and
//! messages in transit. It checks the invariants at each step.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use farhand_domain::schedule::claim::IN_TIME;
use farhand_domain::schedule::cron::Expression;
use farhand_domain::schedule::machine::{Answer, Effect, Event, Machine, Schedule};
use farhand_domain::schedule::next::next_due;
use farhand_domain::schedule::zone::Utc;
use farhand_domain::schedule::{Calendar, Misfire, Outcome, Overlap, Run, Timing};
use farhand_domain::time::Timestamp;
use uuid::Uuid;

use super::ops::Op;

pub type Check = Result<(), String>;
/// A run, by its schedule and due time.
type Key = (Uuid, Timestamp);

const EXPRESSIONS: [&str; 4] = ["* * * * *", "*/5 * * * *", "0 * * * *", "30 12 * * *"];
/// The number of schedules.
pub const SCHEDULES: u128 = 3;

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

/// A calendar in UTC. Other tests cover changes of local clocks.
#[derive(Default)]
pub struct InUtc(RefCell<HashMap<String, Expression>>);

impl Calendar for InUtc {
    fn next_due(&self, cron: &str, _: &str, after: Timestamp) -> Option<Timestamp> {
        let mut parsed = self.0.borrow_mut();
        let expression =
            parsed.entry(cron.to_owned()).or_insert_with(|| Expression::parse(cron).unwrap());
        next_due(expression, &Utc, after)
    }
}

/// A message in transit, and the number of the object's life in which it was sent.
struct Message {
    effect: Effect,
    life: u64,
}

pub struct World {
    calendar: InUtc,
    pub now: Timestamp,
    machine: Option<Machine>,
    /// The number of crashes so far. Answers to messages of an earlier life are lost.
    life: u64,
    crash_in: Option<usize>,
    /// Durable.
    stored: BTreeMap<Uuid, Schedule>,
    alarm: Option<Timestamp>,
    messages: Vec<Message>,
    /// The batches, by schedule and due time, and whether they ended.
    batches: BTreeMap<Key, (Uuid, bool)>,
    /// Runs whose end the object has not confirmed.
    unconfirmed: BTreeSet<Key>,
    withdrawn: BTreeSet<Key>,
    history: BTreeMap<Key, Run>,
    /// The model: the timing of each schedule, and until when its due times were decided.
    timings: BTreeMap<Uuid, (Timing, Timestamp)>,
    /// The due times that were decided, and the `overlap` then.
    decided: BTreeMap<Key, Overlap>,
    /// Deleted schedules. Their ids are never used again.
    deleted: BTreeSet<Uuid>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            calendar: InUtc::default(),
            now: Timestamp::parse("2026-11-21T10:00:00.5Z").unwrap(),
            machine: None,
            life: 0,
            crash_in: None,
            stored: BTreeMap::new(),
            alarm: None,
            messages: vec![],
            batches: BTreeMap::new(),
            unconfirmed: BTreeSet::new(),
            withdrawn: BTreeSet::new(),
            history: BTreeMap::new(),
            timings: BTreeMap::new(),
            decided: BTreeMap::new(),
            deleted: BTreeSet::new(),
        }
    }
}

impl World {
    pub fn run(&mut self, op: &Op) -> Check {
        match *op {
            Op::Wait { seconds } => self.wait(seconds),
            Op::Down { seconds } => {
                self.crash();
                self.now = self.now.plus_seconds(seconds);
                Ok(())
            }
            Op::Alarm => self.step(Event::Alarm),
            Op::Put { schedule, variant } => self.put(schedule, variant),
            Op::Delete { schedule } => {
                let schedule = id(schedule);
                if self.deleted.insert(schedule) {
                    self.step(Event::Delete { schedule })
                } else {
                    Ok(())
                }
            }
            Op::Deliver { place, is_refused } => self.deliver(place, is_refused, true),
            Op::DeliverInVain { place } => self.deliver(place, false, false),
            Op::Lose { place } => self.lose(place),
            Op::EndBatch { place } => self.end_batch(place),
            Op::Crash => {
                self.crash();
                Ok(())
            }
            Op::CrashIn { effects } => {
                self.crash_in = Some(effects);
                Ok(())
            }
        }
    }

    fn crash(&mut self) {
        self.machine = None;
        self.life += 1;
    }

    fn wait(&mut self, seconds: i64) -> Check {
        let end = self.now.plus_seconds(seconds);
        // The limit detects an alarm that goes off forever without progress.
        for _ in 0..=2 * seconds {
            let Some(alarm) = self.alarm.filter(|alarm| *alarm <= end) else { break };
            self.now = self.now.max(alarm.plus_millis(20));
            self.step(Event::Alarm)?;
            // An alarm in the past is an error, unless the object crashed and the alarm is
            // repeated.
            let is_past = self.alarm.is_some_and(|next| next <= self.now);
            ensure!(self.machine.is_none() || !is_past, "an alarm in the past");
        }
        ensure!(self.alarm.is_none_or(|alarm| alarm > end), "alarms without end");
        self.now = self.now.max(end);
        Ok(())
    }

    fn put(&mut self, schedule: u64, variant: u64) -> Check {
        if self.deleted.contains(&id(schedule)) {
            return Ok(());
        }
        let mut number = variant;
        let mut choose = |among: u64| {
            let choice = number % among;
            number /= among;
            choice
        };
        let timing = Timing {
            cron: EXPRESSIONS[choose(4) as usize].to_owned(),
            timezone: "UTC".to_owned(),
            enabled: choose(4) != 0,
            overlap: [Overlap::Skip, Overlap::Allow, Overlap::Queue][choose(3) as usize],
            misfire: [Misfire::RunOnce, Misfire::Skip][choose(2) as usize],
            starts_at: (choose(4) == 0).then(|| self.now.plus_seconds(choose(200) as i64 - 60)),
            ends_at: (choose(3) == 0).then(|| self.now.plus_seconds(choose(400) as i64 - 60)),
        };
        self.step(Event::Put { schedule: id(schedule), timing })
    }

    /// The due times of a schedule in `(from, until]`, in order.
    fn due_between(&self, timing: &Timing, from: Timestamp, until: Timestamp) -> Vec<Timestamp> {
        if !timing.enabled {
            return vec![];
        }
        let next = |after: &Timestamp| self.calendar.next_due(&timing.cron, "UTC", *after);
        std::iter::successors(next(&from), next)
            .take_while(|due| *due <= until)
            .filter(|due| timing.starts_at.is_none_or(|start| start <= *due))
            .filter(|due| timing.ends_at.is_none_or(|end| *due <= end))
            .collect()
    }

    fn step(&mut self, event: Event) -> Check {
        if self.crash_in == Some(0) && matches!(event, Event::Alarm) {
            // The object crashes before it writes anything.
            self.crash_in = None;
            self.crash();
            return Ok(());
        }
        let mut machine = match self.machine.take() {
            Some(machine) => machine,
            None => Machine::load(self.stored.iter().map(|(id, schedule)| {
                let text = serde_json::to_string(schedule).unwrap();
                (*id, serde_json::from_str::<Schedule>(&text).unwrap())
            })),
        };
        let confirmed = match &event {
            Event::Ended { schedule, due_at, .. } => Some((*schedule, *due_at)),
            _ => None,
        };
        let step = machine.step(event.clone(), self.now, &self.calendar);
        let mut changed = BTreeMap::new();
        for id in &step.changed {
            let current = machine.stored(*id).cloned();
            let old = match current.clone() {
                Some(schedule) => self.stored.insert(*id, schedule),
                None => self.stored.remove(id),
            };
            let old = due_times(old.as_ref());
            let new = due_times(current.as_ref()).into_iter().filter(|due| !old.contains(due));
            changed.insert(*id, new.collect());
        }
        for id in (0..SCHEDULES).map(Uuid::from_u128) {
            ensure!(machine.stored(id) == self.stored.get(&id), "a change of {id} is not stored");
        }
        self.alarm = step.alarm;
        if let Some(key) = confirmed {
            self.unconfirmed.remove(&key);
        }
        self.check_decisions(changed, &event)?;
        self.machine = Some(machine);
        let count = self.crash_in.take().map_or(usize::MAX, |count| count);
        let total = step.effects.len();
        for effect in step.effects.into_iter().take(count) {
            if let Effect::Start { schedule, due_at } = &effect {
                self.check_start(*schedule, *due_at)?;
            }
            self.messages.push(Message { effect, life: self.life });
        }
        if count < total {
            self.crash();
        }
        Ok(())
    }

    /// The decided due times are exactly those that the rules require.
    fn check_decisions(
        &mut self,
        mut changed: BTreeMap<Uuid, Vec<Timestamp>>,
        event: &Event,
    ) -> Check {
        for id in (0..SCHEDULES).map(Uuid::from_u128) {
            let new = changed.remove(&id).unwrap_or_default();
            let mut expected = vec![];
            let mut overlap = Overlap::Allow;
            if let Some((timing, since)) = self.timings.get(&id) {
                overlap = timing.overlap;
                let passed = self.due_between(timing, *since, self.now);
                if let [.., last] = passed[..] {
                    expected.push(last);
                    let is_late = last.plus_seconds(IN_TIME) < self.now;
                    if timing.misfire == Misfire::Skip && !is_late && passed.len() > 1 {
                        expected.insert(0, passed[passed.len() - 2]);
                    }
                }
            }
            if matches!(event, Event::Delete { schedule } if *schedule == id) {
                // The last decision and the deletion were in one step.
                self.timings.remove(&id);
                expected.clear();
            }
            ensure!(new == expected, "{id}: decided {new:?} and not {expected:?}");
            for due in new {
                ensure!(
                    self.decided.insert((id, due), overlap).is_none(),
                    "{id}: decided {due} again"
                );
            }
            if let Some((_, since)) = self.timings.get_mut(&id) {
                *since = self.now;
            }
            if let Event::Put { schedule, timing } = event
                && *schedule == id
            {
                self.timings.insert(id, (timing.clone(), self.now));
            }
        }
        Ok(())
    }

    fn check_start(&self, schedule: Uuid, due_at: Timestamp) -> Check {
        let Some((timing, _)) = self.timings.get(&schedule) else {
            return Err(format!("start of deleted {schedule}"));
        };
        ensure!(timing.enabled, "start while disabled");
        ensure!(due_at <= self.now, "start before {due_at}");
        let Some(overlap) = self.decided.get(&(schedule, due_at)) else {
            return Err(format!("start of {due_at}, which was not decided"));
        };
        ensure!(timing.starts_at.is_none_or(|start| start <= due_at), "due before the start");
        let is_ended = |end: Timestamp| end < due_at || end.plus_seconds(IN_TIME) < self.now;
        ensure!(!timing.ends_at.is_some_and(is_ended), "start after the end");
        if *overlap != Overlap::Allow {
            let earlier = (schedule, Timestamp::from_millis(0))..(schedule, due_at);
            let running = self.batches.range(earlier).find(|(_, (_, is_ended))| !is_ended);
            ensure!(running.is_none(), "start at {due_at} beside {running:?}");
        }
        Ok(())
    }

    fn deliver(&mut self, place: u64, is_refused: bool, is_answered: bool) -> Check {
        if self.messages.is_empty() {
            return Ok(());
        }
        let Message { effect, life } = self.messages.remove(place as usize % self.messages.len());
        let answer = match effect {
            Effect::Start { schedule, due_at } => {
                let key = (schedule, due_at);
                let answer = if let Some((batch, _)) = self.batches.get(&key) {
                    Answer::Started { batch: *batch }
                } else if self.withdrawn.contains(&key) {
                    Answer::Withdrawn
                } else if is_refused {
                    self.withdrawn.insert(key);
                    Answer::Refused { reason: "No permission.".to_owned() }
                } else {
                    let batch = Uuid::from_u128(1000 + self.batches.len() as u128);
                    self.batches.insert(key, (batch, false));
                    Answer::Started { batch }
                };
                Event::Answered { schedule, due_at, answer }
            }
            Effect::Withdraw { schedule, due_at } => {
                let key = (schedule, due_at);
                let answer = match self.batches.get(&key) {
                    Some((batch, _)) => Answer::Started { batch: *batch },
                    None => {
                        self.withdrawn.insert(key);
                        Answer::Withdrawn
                    }
                };
                Event::Answered { schedule, due_at, answer }
            }
            Effect::Record { schedule, run } => {
                let due_at = run.due_at;
                let old = self.history.entry((schedule, due_at)).or_insert_with(|| run.clone());
                ensure!(old.outcome == run.outcome, "recorded as {old:?} and {run:?}");
                Event::Recorded { schedule, due_at, is_done: true }
            }
        };
        match answer {
            _ if life != self.life => Ok(()),
            answer if is_answered => self.step(answer),
            answer => self.step(failed(answer)),
        }
    }

    fn lose(&mut self, place: u64) -> Check {
        if self.messages.is_empty() {
            return Ok(());
        }
        let Message { effect, life } = self.messages.remove(place as usize % self.messages.len());
        if life != self.life {
            return Ok(());
        }
        let (schedule, due_at) = match effect {
            Effect::Start { schedule, due_at } | Effect::Withdraw { schedule, due_at } => {
                (schedule, due_at)
            }
            Effect::Record { schedule, run } => {
                return self.step(Event::Recorded { schedule, due_at: run.due_at, is_done: false });
            }
        };
        self.step(Event::Answered { schedule, due_at, answer: Answer::Unknown })
    }

    fn end_batch(&mut self, place: u64) -> Check {
        let running = self.batches.iter_mut().filter(|(_, (_, is_ended))| !is_ended);
        let mut running: Vec<_> = running.collect();
        if !running.is_empty() {
            let place = place as usize % running.len();
            let (key, (_, is_ended)) = &mut running[place];
            *is_ended = true;
            self.unconfirmed.insert(**key);
        }
        self.confirm()
    }

    /// Batches report their end until the object confirms it.
    fn confirm(&mut self) -> Check {
        let Some(key) = self.unconfirmed.first().copied() else { return Ok(()) };
        let (schedule, due_at) = key;
        self.step(Event::Ended { schedule, due_at, batch: self.batches[&key].0 })
    }

    /// Lets all work finish, and checks that nothing is left.
    pub fn settle(&mut self) -> Check {
        self.crash_in = None;
        self.quiet()?;
        for number in 0..SCHEDULES as u64 {
            let Some((timing, _)) = self.timings.get(&id(number)) else { continue };
            let timing = Timing { enabled: false, ..timing.clone() };
            self.step(Event::Put { schedule: id(number), timing })?;
        }
        self.quiet()?;
        for (id, schedule) in &self.stored {
            let left = due_times(Some(schedule));
            ensure!(left.is_empty(), "{id}: {left:?} is left");
        }
        ensure!(self.alarm.is_none(), "an alarm without work");
        for key in self.decided.keys() {
            let run = self.history.get(key);
            ensure!(run.is_some() || self.deleted.contains(&key.0), "{key:?} has no history");
            let Some(run) = run else { continue };
            let batch = self.batches.get(key).map(|(batch, _)| *batch);
            ensure!(run.batch == batch, "{run:?}, but the batch is {batch:?}");
            ensure!((run.outcome == Outcome::Started) == batch.is_some(), "{run:?}");
            ensure!(run.started_at.is_some() == batch.is_some(), "{run:?}");
        }
        Ok(())
    }

    /// Delivers all messages, ends all batches, and lets the alarms of half a minute go off.
    fn quiet(&mut self) -> Check {
        for _ in 0..6 {
            for _ in 0..200 {
                if self.messages.is_empty() && self.unconfirmed.is_empty() {
                    break;
                }
                self.deliver(0, false, true)?;
                self.confirm()?;
            }
            self.wait(5)?;
            while self.batches.values().any(|(_, is_ended)| !is_ended) {
                self.end_batch(0)?;
            }
        }
        Ok(())
    }
}

/// The due times of a schedule's runs, including the queued run.
fn due_times(schedule: Option<&Schedule>) -> Vec<Timestamp> {
    let state = serde_json::to_value(schedule).unwrap();
    let runs = state["runs"].as_object().into_iter().flatten().map(|(due, _)| due.as_str());
    let all = runs.chain(state["queued"].as_str());
    all.map(|due| Timestamp::parse(due).unwrap()).collect()
}

/// The event that the machine gets if the answer to a message was lost.
fn failed(answer: Event) -> Event {
    match answer {
        Event::Answered { schedule, due_at, .. } => {
            Event::Answered { schedule, due_at, answer: Answer::Unknown }
        }
        Event::Recorded { schedule, due_at, .. } => {
            Event::Recorded { schedule, due_at, is_done: false }
        }
        event => event,
    }
}

pub fn id(number: u64) -> Uuid {
    Uuid::from_u128(u128::from(number) % SCHEDULES)
}
