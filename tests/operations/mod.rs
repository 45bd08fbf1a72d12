//! The work of operators: start, set up, back up, restore, delete workspaces
//! (`docs/operations.md`).

mod backup;
mod batches;
mod cloud;
mod mail;
mod operator;
mod request_log;
mod retention;
mod set_up;
mod start;
