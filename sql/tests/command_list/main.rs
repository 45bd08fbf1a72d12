//! Tests of the list of commands in SQLite, with the real schema. They compare lists with a naive
//! model, and measure how much a list reads.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod answers;
mod cost;
mod data;
mod model;
