//! The Worker's access to D1 and KV, one file per table.
//!
//! A function here fails if D1 or KV fails, or if a row does not have the expected form. Both are
//! internal errors.

pub mod anonymous_events;
pub mod api_tokens;
pub mod audit;
pub mod audit_chain;
pub mod batch_reads;
pub mod batch_targets;
pub mod batches;
pub mod command_list;
pub mod commands;
pub mod database;
pub mod db;
pub mod deleted_servers;
pub mod groups;
pub mod idempotency_keys;
pub mod joined_events;
pub mod list;
pub mod login_tokens;
pub mod open_batches;
pub mod permission_rows;
pub mod quota_bytes;
pub mod registration_tokens;
pub mod reset_requests;
pub mod retention;
pub mod schedule_runs;
pub mod schedules;
pub mod scope;
pub mod scripts;
pub mod servers;
pub mod sessions;
pub mod stored_requester;
pub mod transaction;
pub mod users;
pub mod within_acl;
pub mod workspaces;

/// Whether background work remains after a bounded step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// There may be more work. The next step can follow immediately.
    More,
    /// Something failed. The next step should follow after a delay.
    Retry,
    /// There is no more work now.
    Done,
}
