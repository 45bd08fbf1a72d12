//! The server's object as a state machine: no platform, no clock, no randomness, no I/O.
//!
//! [`machine::Link::step`] takes one [`event::Event`] and returns [`event::Effect`]s. What it stores
//! ([`store::Store`]) becomes durable together, before any effect is carried out. In memory it holds
//! only who waits for an answer and what D1 was asked; a crash loses that and nothing else.
//!
//! Invariants, which the property tests check after every step:
//! - A command goes to a connection at most once, and `delivered_at` is stored before it does.
//! - The fields of a command's life only move forward.
//! - A command is answered with 201 when D1 has it. One that is refused is in neither place in the
//!   end.
//! - What D1 lacks is told again until D1 has it: `flushed < revision`.
//! - A call is answered exactly once.
//! - While anything is due, the alarm is set.

mod answers;
pub mod call;
mod connection;
pub mod create;
mod ending;
pub mod event;
mod identity;
pub mod machine;
mod memory;
mod outbox;
mod queue;
mod reports;
mod resync;
pub mod server_facts;
pub mod state;
pub mod store;
pub mod stored_command;
mod timers;
mod waits;
