//! Compares the due times of random expressions with [`Meaning::walk`].

use farhand_domain::schedule::cron::Expression;
use farhand_domain::schedule::next::{last_due, next_due};
use farhand_domain::schedule::zone::Zone;
use farhand_domain::time::Timestamp;
use proptest::collection::btree_set;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::reference::{DaysOfMonth, DaysOfWeek, Hours, Meaning};
use super::setting;
use super::zones::{FIRST_YEAR, LAST_YEAR, NAMES, Table, seconds};

const DAY: i64 = 24 * 3600;

/// Expressions that are often due at night, when clocks change, and mostly on every day.
fn meanings() -> impl Strategy<Value = Meaning> {
    let minutes = prop_oneof![
        Just((0..60).collect()),
        Just([0].into()),
        Just([0, 15, 30, 45].into()),
        btree_set(0..60_u32, 1..4),
    ];
    let hours = prop_oneof![
        1 => Just(Hours::Every),
        1 => (1..24_u32).prop_map(Hours::Step),
        3 => btree_set(0..5_u32, 1..4).prop_map(Hours::Some),
        1 => btree_set(0..24_u32, 1..8).prop_map(Hours::Some),
    ];
    let days = prop_oneof![
        6 => Just(DaysOfMonth::Any),
        1 => (1..10_u32).prop_map(DaysOfMonth::Step),
        1 => btree_set(1..32_u32, 1..9).prop_map(DaysOfMonth::Some),
        1 => Just(DaysOfMonth::Last),
    ];
    let months = prop_oneof![4 => Just(None), 1 => btree_set(1..13_u32, 1..6).prop_map(Some)];
    let weekdays = prop_oneof![
        4 => Just(DaysOfWeek::Any),
        2 => btree_set(0..7_u32, 1..4).prop_map(DaysOfWeek::Some),
        1 => (0..7_u32, 1..6_u32).prop_map(|(day, nth)| DaysOfWeek::Nth(day, nth)),
        1 => (0..7_u32).prop_map(DaysOfWeek::Last),
    ];
    (minutes, hours, days, months, weekdays).prop_map(|(minutes, hours, days, months, weekdays)| {
        Meaning { minutes, hours, days, months, weekdays }
    })
}

fn moment(seconds: i64) -> Timestamp {
    Timestamp::from_millis(u64::try_from(seconds).unwrap() * 1000)
}

/// All due times between two moments, in order.
fn due_times(expression: &Expression, zone: &impl Zone, from: i64, until: i64) -> Vec<i64> {
    let next = |after: &Timestamp| next_due(expression, zone, *after);
    std::iter::successors(next(&moment(from - 1)), next)
        .map(|due| i64::try_from(due.as_millis()).unwrap() / 1000)
        .take_while(|due| *due <= until)
        .collect()
}

fn check(meaning: &Meaning, zone: &Table, from: i64, until: i64) -> Result<(), TestCaseError> {
    let text = meaning.text();
    let Ok(expression) = Expression::parse(&text) else {
        // The expression names only the 30th or 31st of months that are shorter.
        prop_assert_eq!(meaning.walk(zone, from, until), Vec::<i64>::new());
        return Ok(());
    };
    let expected = meaning.walk(zone, from, until);
    prop_assert_eq!(
        due_times(&expression, zone, from, until),
        &expected[..],
        "{} {}",
        text,
        zone.name
    );
    // From any moment, the next and the last due time equal those of the walk.
    let step = usize::try_from((until - from) / 20).unwrap() + 13;
    for moment_between in (from..until).step_by(step) {
        let next = expected.iter().find(|due| **due > moment_between);
        let found = next_due(&expression, zone, moment(moment_between));
        if let Some(next) = next {
            prop_assert_eq!(found, Some(moment(*next)), "{} {}", text, zone.name);
        }
        let next = |after| next_due(&expression, zone, after);
        let last = expected.iter().rev().find(|due| **due <= moment_between);
        let found = last_due(next, moment(from - 1), moment(moment_between));
        prop_assert_eq!(found, last.map(|last| moment(*last)), "{} {}", text, zone.name);
    }
    Ok(())
}

fn run<S: Strategy>(
    cases: u32,
    strategy: &S,
    test: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 500, ..Config::default() };
    if let Err(error) = TestRunner::new(config).run(strategy, test) {
        panic!("{error}");
    }
}

#[test]
fn due_times_around_each_change_are_those_of_a_walk() {
    let cases = setting("FARHAND_SCHEDULE_CASES", 25);
    for name in NAMES {
        let zone = Table::new(name, seconds(FIRST_YEAR), seconds(LAST_YEAR));
        let changes: Vec<i64> = zone.changes.iter().map(|(change, _)| *change).collect();
        run(
            cases,
            &(meanings(), any::<prop::sample::Index>(), 0..15_000_i64),
            |(meaning, index, minutes)| {
                // In a zone without changes, any moment will do.
                let anywhere =
                    seconds(FIRST_YEAR) + i64::try_from(index.index(7000)).unwrap() * DAY;
                let change =
                    if changes.is_empty() { anywhere } else { changes[index.index(changes.len())] };
                let from = change - minutes % (3 * 24 * 60) * 60;
                check(&meaning, &zone, from, change + 3 * DAY)
            },
        );
    }
}

/// Rare due times, which are months apart, with all clock changes in between.
#[test]
fn due_times_of_twenty_years_are_those_of_a_walk() {
    for name in NAMES {
        let zone = Table::new(name, seconds(FIRST_YEAR), seconds(LAST_YEAR));
        let cases = setting("FARHAND_SCHEDULE_YEARS", 0);
        run(cases, &meanings(), |meaning| {
            check(&meaning, &zone, seconds(FIRST_YEAR) + 2 * DAY, seconds(LAST_YEAR))
        });
    }
}

/// A few expressions over one year, so that each test run covers some.
#[test]
fn due_times_of_a_year_are_those_of_a_walk() {
    for name in NAMES {
        let zone = Table::new(name, seconds(FIRST_YEAR), seconds(LAST_YEAR));
        let until = seconds(LAST_YEAR) - 366 * DAY;
        run(1, &(meanings(), 2..7_000_i64), |(meaning, day)| {
            let from = (seconds(FIRST_YEAR) + day * DAY).min(until);
            check(&meaning, &zone, from, from + 365 * DAY)
        });
    }
}
