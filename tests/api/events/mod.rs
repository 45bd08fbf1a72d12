//! `/api/events/`.

mod cancel;
mod command_acl;
mod command_list;
mod command_output;
pub mod commands;
mod firing;
mod firing_groups;
mod idempotency;
mod lifecycle;
mod queue;
