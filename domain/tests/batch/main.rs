//! Property tests of a batch as a state machine (`farhand_domain::batch`). They play random
//! sequences of ends, failures, disconnects, lost and repeated reports, late answers of D1,
//! cancellations and crashes between any two effects, against models of D1 and of the servers'
//! objects.
//!
//! `FARHAND_BATCH_SEQUENCES` sets the number of sequences.

// In a test, a failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

mod d1;
mod examples;
mod object;
mod ops;
mod world;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use ops::Op;
use world::{Setting, World};

/// The default number of sequences.
const SEQUENCES: u32 = 20_000;

#[test]
fn any_order_of_events_keeps_the_invariants() {
    let requested =
        std::env::var("FARHAND_BATCH_SEQUENCES").ok().and_then(|text| text.parse().ok());
    let config = Config {
        cases: requested.unwrap_or(SEQUENCES),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let op = any::<u64>().prop_map(Op::decode);
    let plan = (any::<u64>().prop_map(Setting::decode), prop::collection::vec(op, 1..80));
    let done = TestRunner::new(config).run(&plan, |(setting, ops)| {
        let mut world = World::new(setting);
        ops.iter().try_for_each(|op| world.run(op)).map_err(TestCaseError::fail)?;
        world.settle().map_err(TestCaseError::fail)
    });
    if let Err(error) = done {
        panic!("{error}");
    }
}
