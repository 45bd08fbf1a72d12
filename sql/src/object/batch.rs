//! The tables of a batch's object.

use crate::statement::{Statement, fixed};

/// Creates the tables, unless they exist.
pub fn schema() -> [Statement; 2] {
    [
        // One row: `Identity` as JSON.
        fixed!("CREATE TABLE IF NOT EXISTS batch (id INTEGER PRIMARY KEY, document TEXT NOT NULL)"),
        // Events as a JSON array. `last` is the number of the last one.
        fixed!("CREATE TABLE IF NOT EXISTS log (last INTEGER PRIMARY KEY, events TEXT NOT NULL)"),
    ]
}

/// Returns a row if the tables exist. They do not if the object was never used, or was wiped.
pub fn find_tables() -> Statement {
    fixed!("SELECT name FROM sqlite_master WHERE name = 'batch'")
}

/// The identity, in the column `document`.
pub fn identity() -> Statement {
    fixed!("SELECT document FROM batch")
}

/// Stores the identity.
pub fn save_identity(document: String) -> Statement {
    fixed!(
        "INSERT INTO batch (id, document) VALUES (1, :document)
        ON CONFLICT (id) DO UPDATE SET document = :document"
    )
    .bind("document", document)
}

/// Stores events. `last` is the number of the last one.
pub fn insert_events(last: u64, events: String) -> Statement {
    fixed!("INSERT OR REPLACE INTO log (last, events) VALUES (:last, :events)")
        .bind("last", last)
        .bind("events", events)
}

/// The rows that have an event after a number, in the column `events`.
pub fn events_after(after: u64) -> Statement {
    fixed!("SELECT events FROM log WHERE last > :after ORDER BY last").bind("after", after)
}
