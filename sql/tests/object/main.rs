//! Tests of the statements of the Durable Objects in SQLite, on the tables that the objects create.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod audit_sealer;
mod batch;
mod channel;
mod chunks;
mod commands;
mod mailer;
#[path = "../../../domain/tests/link/store.rs"]
#[allow(dead_code, reason = "the tests of the machine use the rest")]
mod model;
mod object;
mod server_link;
mod throttle;
