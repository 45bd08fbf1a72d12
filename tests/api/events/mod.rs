//! `/api/events/`.

mod acl_check;
mod argv;
mod cancel;
mod command_acl;
mod command_list;
mod command_output;
pub mod commands;
mod firing;
mod firing_groups;
mod idempotency;
mod lifecycle;
mod long_poll;
mod narrow_reads;
mod queue;
mod quotas;
mod revocation;
