//! `/api/events/`.

mod cancel;
mod commands;
mod idempotency;
mod lifecycle;
mod queue;
