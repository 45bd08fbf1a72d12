//! Tests of schedules: compares due times with a walk minute by minute, and makes decisions in
//! random orders of events, with crashes and repeats between any two of them.
//!
//! - `FARHAND_SCHEDULE_CASES`: the number of expressions per time zone. Each is checked around one
//!   change of the zone's clock.
//! - `FARHAND_SCHEDULE_YEARS`: the number of expressions per time zone that are checked from 2020
//!   to 2040 (default 0; each takes a few seconds).
//! - `FARHAND_SCHEDULE_SEQUENCES`: the number of sequences of events.

// In tests, a panic is a failure.
#![allow(clippy::unwrap_used)]

mod due_times;
mod examples;
mod reference;
mod sequences;
mod zones;

/// Reads a number from the environment.
fn setting(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
