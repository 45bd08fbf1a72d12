//! `/api/events/`.

mod cancel;
mod command_output;
mod commands;
mod idempotency;
mod lifecycle;
mod queue;
