//! The tables of a sealer: the state of an audit chain.

use crate::statement::{Statement, fixed};

/// Creates the tables, unless they exist.
pub fn schema() -> [Statement; 2] {
    [
        // One row, with the fields of `Chain`.
        fixed!(
            "CREATE TABLE IF NOT EXISTS chains (
        workspace INTEGER PRIMARY KEY, head TEXT NOT NULL, pending TEXT NOT NULL, base TEXT NOT NULL, is_deleting INTEGER NOT NULL,
        expired INTEGER NOT NULL DEFAULT 0
    )"
        ),
        // The hashes of some chain entries: see `ANCHOR_INTERVAL`.
        fixed!(
            "CREATE TABLE IF NOT EXISTS anchors (link INTEGER PRIMARY KEY, hash TEXT NOT NULL)"
        ),
    ]
}

/// Returns a row if the tables exist. They do not if the object was never used, or was wiped.
pub fn find_tables() -> Statement {
    fixed!("SELECT name FROM sqlite_master WHERE name = 'chains'")
}

/// Stores an empty chain, unless there is a chain. `beginning` is the end of an empty chain.
pub fn insert_chain(workspace: i64, beginning: String) -> Statement {
    fixed!(
        "INSERT OR IGNORE INTO chains (workspace, head, pending, base, is_deleting)
            VALUES (:workspace, :beginning, 'null', :beginning, 0)"
    )
    .bind("workspace", workspace)
    .bind("beginning", beginning)
}

/// The state of the chain.
pub fn chain() -> Statement {
    fixed!("SELECT workspace, head, pending, base, is_deleting, expired FROM chains")
}

/// Stores the end of the chain, and the seals that D1 may not have yet.
pub fn set_head(head: String, pending: String) -> Statement {
    fixed!("UPDATE chains SET head = :head, pending = :pending")
        .bind("head", head)
        .bind("pending", pending)
}

/// Stores the new beginning of the chain. Entries up to it are to be deleted from D1.
pub fn begin_deletion(base: String) -> Statement {
    fixed!("UPDATE chains SET base = :base, is_deleting = 1").bind("base", base)
}

/// Stores that D1 has no entry up to the beginning of the chain.
pub fn end_deletion() -> Statement {
    fixed!("UPDATE chains SET is_deleting = 0")
}

/// Stores up to which entry anonymous events may be expired.
pub fn set_expired(link: i64) -> Statement {
    fixed!("UPDATE chains SET expired = :link").bind("link", link)
}

/// Stores the hash of an entry, unless it is stored.
pub fn insert_anchor(link: i64, hash: &str) -> Statement {
    fixed!("INSERT OR IGNORE INTO anchors (link, hash) VALUES (:link, :hash)")
        .bind("link", link)
        .bind("hash", hash)
}

/// The stored hashes (`link`, `hash`) of the entries from `first` to `last`.
pub fn anchors(first: i64, last: i64) -> Statement {
    fixed!("SELECT link, hash FROM anchors WHERE link BETWEEN :first AND :last")
        .bind("first", first)
        .bind("last", last)
}

/// Deletes the hashes of the entries before an entry.
pub fn delete_anchors_before(link: i64) -> Statement {
    fixed!("DELETE FROM anchors WHERE link < :link").bind("link", link)
}
