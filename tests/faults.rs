//! Faults: what contract 8 promises, while the service, its agents, their sockets, D1, the clock and the alarms fail.
//!
//! Each test does one kind of fault to an instance of its own, with real and scripted agents, and looks after each at what
//! a ledger outside the service says. `npm test` does a few of each, `npm run faults` many (FARHAND_FAULTS=long).

mod agents;
mod cell;
mod database;
mod figures;
mod ledger;
mod runtime;
mod sockets;
mod time;
mod wire;

/// How many faults of a kind are done: a few, or for `npm run faults` many.
fn rounds(few: usize, many: usize) -> usize {
    if std::env::var("FARHAND_FAULTS").is_ok_and(|form| form == "long") { many } else { few }
}
