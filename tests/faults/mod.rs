//! The guarantees of contract 8 while the service, agents, sockets, D1, the clock or alarms fail.
//!
//! Each test injects one kind of fault into its own instance with real and scripted agents. After
//! each fault, it compares the state with a ledger outside the service. `npm test` injects a few
//! faults of each kind, `npm run faults` many (FARHAND_FAULTS=long).

mod agents;
mod batches;
mod cell;
mod database;
mod figures;
mod ledger;
mod proxy;
mod runtime;
mod sockets;
mod time;

use std::time::{Duration, Instant};

/// Time limit for the rounds of one kind of fault. It bounds the long form on slow machines.
const MAX_DURATION: Duration = Duration::from_secs(8 * 60);

/// The numbers of the rounds for one kind of fault. No round starts after [`MAX_DURATION`].
fn rounds(few: usize, many: usize) -> impl Iterator<Item = usize> {
    let until = Instant::now() + MAX_DURATION;
    (0..few_or_many(few, many)).take_while(move |_| Instant::now() < until)
}

/// `few` under `npm test`, `many` under `npm run faults`.
fn few_or_many(few: usize, many: usize) -> usize {
    if std::env::var("FARHAND_FAULTS").is_ok_and(|form| form == "long") { many } else { few }
}
