//! `/api/events/`.

mod command_acl;
mod commands;
mod firing;
