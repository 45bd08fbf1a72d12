//! The quotas of bytes (contract 11.4): what counts, and what is kept beyond them.

/// The bytes that a command counts besides its line and its inputs: its row, its index entries and
/// its two audit events, as measured in `docs/contributing/scaling.md`.
pub const COMMAND_BYTES: u64 = 2_500;
/// The bytes that a batch counts besides its line, its inputs and its targets: its row, its index
/// entries and its audit event. A run of a schedule is a batch with a row of its history.
pub const BATCH_BYTES: u64 = 1_500;
/// The bytes that a target counts for its row.
pub const TARGET_BYTES: u64 = 200;
/// The bytes that a version of a script counts besides its texts: its row and its audit event.
pub const VERSION_BYTES: u64 = 1_000;

/// The bytes of output that each command of staff keeps, even if the quota of output is used up.
pub const STAFF_OUTPUT: u64 = 256 * 1024;

/// The header Retry-After, in seconds, for a request that is larger than the whole quota.
pub const DAY_SECONDS: u64 = 24 * 60 * 60;

/// The audit actions of changes whose events count for the quota of the user. The trigger
/// `audit_events_counted` has the same actions.
///
/// Sign-in, passwords, sessions, cancellations, kills, deletions and refusals are not among them: a
/// quota never prevents them. Commands, batches and versions of scripts count with their rows.
pub const COUNTED_ACTIONS: [&str; 13] = [
    "api_token.create",
    "api_token.update",
    "user.create",
    "user.update",
    "group.create",
    "group.update",
    "membership.create",
    "membership.update",
    "server.create",
    "server.update",
    "registration_token.create",
    "schedule.create",
    "schedule.update",
];

/// Whether changes with this audit action count for the quota of the user.
pub fn counts(action: &str) -> bool {
    COUNTED_ACTIONS.contains(&action)
}
