//! The list of commands in SQLite, on the real schema: against a naive model, and what it reads.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod answers;
mod cost;
mod data;
mod model;
