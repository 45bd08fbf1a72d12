//! `/api/events/`.

mod command_output;
mod commands;
