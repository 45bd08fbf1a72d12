//! `/api/events/`.

mod command_list;
mod commands;
