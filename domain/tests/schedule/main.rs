//! Schedules: due times against a walk minute by minute, and the machine under any order of events
//! with crashes between any two effects.
//!
//! - `FARHAND_SCHEDULE_CASES`: the expressions per time zone, each around one change of its clock.
//! - `FARHAND_SCHEDULE_YEARS`: the expressions per time zone that are walked from 2020 to 2040
//!   (default 0, a few seconds each).
//! - `FARHAND_SCHEDULE_SEQUENCES`: the sequences of events.

// In tests, a panic is a failure.
#![allow(clippy::unwrap_used)]

mod due_times;
mod examples;
mod ops;
mod reference;
mod sequences;
mod world;
mod zones;

/// A number from the environment.
fn setting(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
