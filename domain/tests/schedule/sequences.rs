//! Random sequences of due times, changes, ends, crashes and repeats. The model is the row of one
//! schedule in D1, its run history and its batches. It checks the invariants at each write.

use std::collections::BTreeMap;

use farhand_domain::schedule::cron::Expression;
use farhand_domain::schedule::decision::{Decision, ScheduleProgress};
use farhand_domain::schedule::next::next_due;
use farhand_domain::schedule::zone::Utc;
use farhand_domain::schedule::{Misfire, Overlap, RunOutcome, Timing};
use farhand_domain::time::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::setting;

type Check = Result<(), String>;

const EXPRESSIONS: [&str; 4] = ["* * * * *", "*/5 * * * *", "0 * * * *", "30 12 * * *"];

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

/// An operation. Numbers choose among the existing objects.
#[derive(Clone, Debug)]
enum Op {
    /// Time passes. The alarm goes off each time that it is due.
    Wait {
        seconds: i64,
    },
    /// Time passes, and the service is down.
    Down {
        seconds: i64,
    },
    /// The object reads the row and decides, but does not write yet. It may never write: a crash.
    Decide {
        is_refused: bool,
    },
    /// The object writes one of its decisions, even if it is outdated or was written before.
    Write {
        place: usize,
    },
    Put {
        variant: u64,
    },
    EndBatch {
        place: usize,
    },
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (1..90_i64).prop_map(|seconds| Op::Wait { seconds }),
        1 => (1..1000_i64).prop_map(|seconds| Op::Wait { seconds }),
        2 => (1..200_i64).prop_map(|seconds| Op::Down { seconds }),
        1 => (1..30_000_i64).prop_map(|seconds| Op::Down { seconds }),
        4 => (0..8_u8).prop_map(|number| Op::Decide { is_refused: number == 0 }),
        4 => (0..8_usize).prop_map(|place| Op::Write { place }),
        3 => any::<u64>().prop_map(|variant| Op::Put { variant }),
        3 => (0..8_usize).prop_map(|place| Op::EndBatch { place }),
    ]
}

/// The row in D1, without its column `is_running`, which follows from the batches.
#[derive(Clone)]
struct Schedule {
    cron: &'static str,
    progress: ScheduleProgress,
    revision: u64,
}

struct World {
    now: Timestamp,
    expressions: Vec<(&'static str, Expression)>,
    row: Schedule,
    /// Decisions with the revision of the row that they were made for.
    decisions: Vec<(u64, Decision)>,
    history: BTreeMap<Timestamp, RunOutcome>,
    /// The batches by due time, and whether they ended.
    batches: BTreeMap<Timestamp, bool>,
}

impl World {
    fn new(variant: u64) -> Self {
        let now = Timestamp::parse("2026-11-21T10:00:00.5Z").unwrap();
        let timing = Timing {
            enabled: false,
            starts_at: None,
            ends_at: None,
            misfire: Misfire::Skip,
            overlap: Overlap::Skip,
        };
        let progress = ScheduleProgress { timing, next_due: None, queued: None, is_running: false };
        let row = Schedule { cron: EXPRESSIONS[0], progress, revision: 0 };
        let expressions = EXPRESSIONS.map(|text| (text, Expression::parse(text).unwrap()));
        let mut world = Self {
            now,
            expressions: expressions.into(),
            row,
            decisions: vec![],
            history: BTreeMap::new(),
            batches: BTreeMap::new(),
        };
        world.put(variant);
        world
    }

    fn next(&self) -> impl Fn(Timestamp) -> Option<Timestamp> {
        let cron = self.row.cron;
        let expression = &self.expressions.iter().find(|(text, _)| *text == cron).unwrap().1;
        move |after| next_due(expression, &Utc, after)
    }

    fn run(&mut self, op: &Op) -> Check {
        match *op {
            Op::Wait { seconds } => self.wait(seconds)?,
            Op::Down { seconds } => self.now = self.now.plus_seconds(seconds),
            Op::Decide { is_refused } => self.decide(is_refused),
            Op::Write { place } if !self.decisions.is_empty() => {
                self.write(place % self.decisions.len())?;
            }
            Op::Write { .. } => {}
            Op::Put { variant } => self.put(variant),
            Op::EndBatch { place } => {
                let running = self.batches.values_mut().filter(|is_ended| !**is_ended);
                if let Some(is_ended) = running.take(place + 1).last() {
                    *is_ended = true;
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, variant: u64) {
        let mut number = variant;
        let mut choose = |among: u64| {
            let choice = number % among;
            number /= among;
            choice
        };
        self.row.cron = EXPRESSIONS[choose(4) as usize];
        let timing = Timing {
            enabled: choose(4) != 0,
            overlap: [Overlap::Skip, Overlap::Allow, Overlap::Queue][choose(3) as usize],
            misfire: [Misfire::RunOnce, Misfire::Skip][choose(2) as usize],
            starts_at: (choose(4) == 0).then(|| self.now.plus_seconds(choose(200) as i64 - 60)),
            ends_at: (choose(3) == 0).then(|| self.now.plus_seconds(choose(400) as i64 - 60)),
        };
        let next_due = timing.next_due_after_change(
            self.next(),
            &self.row.progress.timing,
            self.row.progress.next_due,
            self.now,
        );
        self.row.progress = ScheduleProgress { timing, next_due, ..self.row.progress.clone() };
        self.row.revision += 1;
    }

    fn is_running(&self) -> bool {
        self.batches.values().any(|is_ended| !is_ended)
    }

    fn decide(&mut self, is_refused: bool) {
        let progress =
            ScheduleProgress { is_running: self.is_running(), ..self.row.progress.clone() };
        if let Some(decision) = progress.decide(self.next(), self.now) {
            let decision = if is_refused { decision.refused("No permission.") } else { decision };
            self.decisions.push((self.row.revision, decision));
        }
    }

    /// The transaction: it changes nothing if the row has changed.
    fn write(&mut self, place: usize) -> Check {
        let (revision, decision) = self.decisions[place].clone();
        if revision != self.row.revision {
            return Ok(());
        }
        let old = self.row.progress.clone();
        self.check_decision(&old, &decision)?;
        if let Some(due_at) = decision.start {
            self.check_start(due_at)?;
            ensure!(self.batches.insert(due_at, false).is_none(), "{due_at} starts again");
        }
        let skipped = decision.skipped.iter().map(|skipped| (skipped.due_at, skipped.outcome));
        let started = decision.start.map(|due_at| (due_at, RunOutcome::Started));
        for (due_at, outcome) in skipped.chain(started) {
            ensure!(self.history.insert(due_at, outcome).is_none(), "{due_at} is recorded again");
        }
        (self.row.progress.next_due, self.row.progress.queued) =
            (decision.next_due, decision.queued);
        self.row.revision += 1;
        Ok(())
    }

    /// The due times that the decision handles are those that the rules require.
    fn check_decision(&self, old: &ScheduleProgress, decision: &Decision) -> Check {
        if old.queued.is_some() && decision.queued != old.queued {
            // A decision about the queued run. It leaves the due times to the next decision.
            ensure!(decision.next_due == old.next_due, "two decisions in one");
            return Ok(());
        }
        let until = decision.next_due.map_or(self.now, |next| next.plus_seconds(-1).min(self.now));
        let next = self.next();
        let first = old.next_due;
        let mut passed: Vec<_> = first.into_iter().collect();
        passed.extend(
            std::iter::successors(old.timing.due_after(&next, first.unwrap_or(self.now)), |due| {
                old.timing.due_after(&next, *due)
            })
            .take_while(|due| *due <= until),
        );
        let [.., last] = passed[..] else { return Err("decided without a due time".to_owned()) };
        let handled: Vec<_> = decision.skipped.iter().map(|skipped| skipped.due_at).collect();
        let handled: Vec<_> =
            handled.into_iter().chain(decision.start).chain(decision.queued).collect();
        ensure!(handled.contains(&last), "{last} is not handled, but {handled:?}");
        ensure!(
            handled.iter().all(|due| passed.contains(due) || old.queued == Some(*due)),
            "{handled:?} is not due"
        );
        ensure!(decision.next_due.is_none_or(|next| next > last), "{last} is due again");
        Ok(())
    }

    fn check_start(&self, due_at: Timestamp) -> Check {
        let timing = &self.row.progress.timing;
        ensure!(timing.enabled, "start while disabled");
        ensure!(due_at <= self.now, "start before {due_at}");
        ensure!(timing.starts_at.is_none_or(|start| start <= due_at), "before the start");
        ensure!(timing.ends_at.is_none_or(|end| due_at <= end), "after the end");
        ensure!(timing.overlap == Overlap::Allow || !self.is_running(), "two runs at {due_at}");
        Ok(())
    }

    /// When the object sets its alarm: at the next due time, and soon while a run is queued.
    fn alarm(&self) -> Option<Timestamp> {
        let ScheduleProgress { next_due, queued, .. } = self.row.progress;
        let recheck = queued.map(|_| self.now.plus_seconds(5));
        let next_due = next_due.filter(|_| self.row.progress.timing.enabled);
        next_due.into_iter().chain(recheck).min()
    }

    fn wait(&mut self, seconds: i64) -> Check {
        let end = self.now.plus_seconds(seconds);
        // The limit detects an alarm that goes off forever without progress.
        for _ in 0..=3 * seconds {
            let Some(alarm) = self.alarm().filter(|alarm| *alarm <= end) else { break };
            self.now = self.now.max(alarm.plus_millis(20));
            self.pass()?;
        }
        ensure!(self.alarm().is_none_or(|alarm| alarm > end), "alarms without end");
        self.now = self.now.max(end);
        Ok(())
    }

    /// What one alarm does: it decides until nothing is left.
    fn pass(&mut self) -> Check {
        for _ in 0..4 {
            self.decisions.clear();
            self.decide(false);
            if self.decisions.is_empty() {
                return Ok(());
            }
            self.write(0)?;
        }
        Err("decisions without end".to_owned())
    }

    /// Lets all work finish, and checks that nothing is left.
    fn settle(&mut self) -> Check {
        for _ in 0..4 {
            self.pass()?;
            self.batches.values_mut().for_each(|is_ended| *is_ended = true);
        }
        let ScheduleProgress { next_due, queued, ref timing, .. } = self.row.progress;
        ensure!(queued.is_none(), "{queued:?} waits for nothing");
        ensure!(
            !timing.enabled || next_due.is_none_or(|due| due > self.now),
            "nothing was decided about {next_due:?}"
        );
        for due_at in self.batches.keys() {
            let outcome = self.history.get(due_at);
            ensure!(outcome == Some(&RunOutcome::Started), "the batch of {due_at} has {outcome:?}");
        }
        Ok(())
    }
}

#[test]
fn any_order_of_events_keeps_the_invariants() {
    let cases = setting("FARHAND_SCHEDULE_SEQUENCES", 2_000);
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 5_000, ..Config::default() };
    let sequences = (any::<u64>(), prop::collection::vec(ops(), 1..60));
    let done = TestRunner::new(config).run(&sequences, |(variant, ops)| {
        let mut world = World::new(variant);
        for op in &ops {
            world.run(op).map_err(TestCaseError::fail)?;
        }
        world.settle().map_err(TestCaseError::fail)
    });
    if let Err(error) = done {
        panic!("{error}");
    }
}
