//! `/api/events/`.

mod commands;
