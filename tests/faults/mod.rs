//! Faults: what contract 8 promises, while the service, its agents, their sockets, D1, the clock
//! and the alarms fail.
//!
//! Each test does one kind of fault to an instance of its own, with real and scripted agents, and
//! looks after each at what a ledger outside the service says. `npm test` does a few of each, `npm
//! run faults` many (FARHAND_FAULTS=long).

mod agents;
mod cell;
mod database;
mod figures;
mod ledger;
mod runtime;
mod sockets;
mod time;
mod wire;

use std::time::{Duration, Instant};

/// How long a kind of fault is gone on with, so that the long form ends on a slow machine, too.
const LONGEST: Duration = Duration::from_secs(8 * 60);

/// The rounds of a kind of fault, until their time is over.
fn rounds(few: usize, many: usize) -> impl Iterator<Item = usize> {
    let until = Instant::now() + LONGEST;
    (0..either(few, many)).take_while(move |_| Instant::now() < until)
}

/// How many there are of something: a few, or for `npm run faults` many.
fn either(few: usize, many: usize) -> usize {
    if std::env::var("FARHAND_FAULTS").is_ok_and(|form| form == "long") { many } else { few }
}
