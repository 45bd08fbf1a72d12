//! The server's object as a state machine: no platform, no clock, no randomness, no I/O.
//!
//! [`machine::Machine::step`] takes one [`event::Event`] and returns [`event::Effect`]s.
//! The writes of a step to its [`store::Store`] become durable together, before any effect leaves
//! the object. In memory the machine holds the waiting calls, the pending requests to D1 and a copy
//! of the stored state. A crash loses only the calls and the requests.
//!
//! `docs/contributing/server-object.md` shows how to change it.
//!
//! Invariants, which the property tests check after every step:
//! - A command is sent to a connection at most once, and `delivered_at` is stored before that.
//! - A field of a command's life that is set never changes, except that a late result replaces a
//!   stuck end.
//! - A client gets 201 only after D1 has the command. A refused command is deleted from the object
//!   and from D1.
//! - The outbox writes a change until D1 has it: while `flushed < revision`.
//! - Each call gets exactly one reply, unless the object crashes.
//! - While work is pending, the alarm is set.

mod answers;
pub mod call;
mod connection;
mod contest;
mod create;
mod ending;
pub mod event;
mod event_limit;
mod identity;
pub mod machine;
mod memory;
mod outbox;
mod queue;
mod refusal;
mod reports;
mod resync;
pub mod server_facts;
pub mod state;
pub mod store;
pub mod stored_command;
mod timers;
mod waits;
