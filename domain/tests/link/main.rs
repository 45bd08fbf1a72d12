//! Property tests of the server's object as a state machine (`farhand_domain::link`). They play
//! random sequences of calls, reports, connections, alarms, answers of D1 and passing time, with
//! crashes between any two effects.
//!
//! `FARHAND_LINK_SEQUENCES` sets the number of sequences.

// In a test, a failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

mod checks;
mod d1;
mod examples;
mod ops;
mod regressions;
mod settle;
mod store;
mod world;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use ops::Op;
use world::{Check, World};

/// The default number of sequences.
const SEQUENCES: u32 = 100_000;
/// The number of tests that share the sequences. They run in parallel.
const TESTS: u32 = 4;

/// Runs operations one after the other, then lets all pending work finish.
///
/// # Errors
/// An invariant is broken.
pub fn play(ops: &[Op]) -> Check {
    let mut world = World::default();
    for op in ops {
        world.run(op)?;
    }
    world.settle()
}

fn sequences(test: u32, prefix: &[Op]) {
    let requested = std::env::var("FARHAND_LINK_SEQUENCES").ok().and_then(|text| text.parse().ok());
    let cases = requested.unwrap_or(SEQUENCES).div_ceil(TESTS);
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let op = any::<u64>().prop_map(Op::decode);
    let mut runner = TestRunner::new(config);
    let done = runner.run(&prop::collection::vec(op, 1..40), |ops| {
        let ops = [prefix, &ops].concat();
        play(&ops).map_err(TestCaseError::fail)
    });
    if let Err(error) = done {
        panic!("test {test}: {error}");
    }
}

const INIT_IDENTITY: [Op; 2] = [Op::InitIdentity, Op::Answer { place: 0, refused: 0 }];
const CONNECT: [Op; 3] = [
    Op::Connect { is_control: false, can_kill: true, age: 0 },
    Op::Answer { place: 0, refused: 0 },
    Op::Alarm(0),
];
const CREATE: [Op; 2] =
    [Op::Create { how: 0, key: None, wait: 0 }, Op::Answer { place: 0, refused: 0 }];

#[test]
fn from_nothing() {
    sequences(1, &[]);
}

#[test]
fn from_a_server_without_an_agent() {
    sequences(2, &[&INIT_IDENTITY[..], &CREATE].concat());
}

#[test]
fn from_a_connected_agent() {
    sequences(3, &CONNECT);
}

#[test]
fn from_commands_under_way() {
    sequences(4, &[&CONNECT[..], &CREATE, &CREATE, &CREATE, &CREATE].concat());
}
