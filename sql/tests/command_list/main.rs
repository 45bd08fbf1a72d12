//! Tests of the list of commands in SQLite, with the real schema: a comparison with a naive model,
//! and how much the list reads.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod answers;
mod cost;
mod data;
mod model;
