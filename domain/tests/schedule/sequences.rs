//! Random sequences of operations.

use farhand_domain::schedule::machine::{Answer, Effect, Event, MAX_STARTING, Machine};
use farhand_domain::schedule::{Misfire, Overlap, Run, Timing};
use farhand_domain::time::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use uuid::Uuid;

use super::ops::Op;
use super::setting;
use super::world::{InUtc, World};

#[test]
fn any_order_of_events_keeps_the_invariants() {
    let cases = setting("FARHAND_SCHEDULE_SEQUENCES", 1_000);
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 5_000, ..Config::default() };
    let put =
        any::<u64>().prop_map(|number| Op::Put { schedule: number % 64, variant: number / 64 });
    let op = any::<u64>().prop_map(Op::decode);
    let ops = (prop::collection::vec(put, 1..4), prop::collection::vec(op, 1..60));
    let done = TestRunner::new(config).run(&ops, |(puts, ops)| {
        let mut world = World::default();
        for op in puts.iter().chain(&ops) {
            world.run(op).map_err(TestCaseError::fail)?;
        }
        world.settle().map_err(TestCaseError::fail)
    });
    if let Err(error) = done {
        panic!("{error}");
    }
}

fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

/// The schedules that the effects start.
fn starts(effects: &[Effect]) -> Vec<u128> {
    let started = effects.iter().filter_map(|effect| match effect {
        Effect::Start { schedule, .. } => Some(schedule.as_u128()),
        _ => None,
    });
    started.collect()
}

#[test]
fn fifty_start_at_once_and_the_others_in_order_with_their_lag() {
    let calendar = InUtc::default();
    let mut machine = Machine::default();
    let timing = Timing {
        cron: "0 * * * *".to_owned(),
        timezone: "UTC".to_owned(),
        enabled: true,
        starts_at: None,
        ends_at: None,
        misfire: Misfire::Skip,
        overlap: Overlap::Skip,
    };
    for number in (0..60).rev() {
        let put = Event::Put { schedule: Uuid::from_u128(number), timing: timing.clone() };
        let step = machine.step(put, at("2026-11-21T09:30:00Z"), &calendar);
        assert_eq!(step.alarm, Some(at("2026-11-21T10:00:00Z")));
    }
    let due_at = at("2026-11-21T10:00:00Z");
    let step = machine.step(Event::Alarm, at("2026-11-21T10:00:00.02Z"), &calendar);
    assert_eq!(starts(&step.effects), (0..MAX_STARTING as u128).collect::<Vec<_>>());
    // Starts wait for earlier ones without becoming late: their due times were handled in time.
    let late = at("2026-11-21T10:02:00Z");
    for (number, next) in (0..10).zip(50..) {
        let (schedule, batch) = (Uuid::from_u128(number), Uuid::from_u128(1000 + number));
        let answer = Answer::Started { batch };
        let step = machine.step(Event::Answered { schedule, due_at, answer }, late, &calendar);
        assert_eq!(starts(&step.effects), [next]);
        let record = step.effects.iter().find_map(|effect| match effect {
            Effect::Record { run, .. } => Some(run),
            _ => None,
        });
        let Some(Run { started_at, batch: recorded, .. }) = record else { panic!("no record") };
        assert_eq!((*started_at, *recorded), (Some(late), Some(batch)));
    }
}
