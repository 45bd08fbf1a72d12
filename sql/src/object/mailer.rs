//! The tables of the mailer: the queue of mails, and the counts of notices.

use farhand_domain::time::Timestamp;
use uuid::Uuid;

use crate::statement::{Statement, fixed};

/// Creates the tables, unless they exist. An earlier version of the program created fewer tables.
pub fn schema() -> [Statement; 5] {
    [
        // The queue. `request` is the id of a request for a password reset, or of a row of
        // `notices`.
        fixed!(
            "CREATE TABLE IF NOT EXISTS mails (
        request TEXT PRIMARY KEY, tries INTEGER NOT NULL, due_at TEXT NOT NULL) WITHOUT ROWID"
        ),
        // Serves: the mails that are due.
        fixed!("CREATE INDEX IF NOT EXISTS mails_due ON mails (due_at)"),
        // The queued mails of notices, as JSON.
        fixed!(
            "CREATE TABLE IF NOT EXISTS notices (id TEXT PRIMARY KEY, mail TEXT NOT NULL) WITHOUT ROWID"
        ),
        // How many mails of notices were queued in a window.
        fixed!(
            "CREATE TABLE IF NOT EXISTS notice_counts (
        key TEXT PRIMARY KEY, count INTEGER NOT NULL, ends_at TEXT NOT NULL) WITHOUT ROWID"
        ),
        // Serves: the deletion of windows that have ended.
        fixed!("CREATE INDEX IF NOT EXISTS notice_counts_by_end ON notice_counts (ends_at)"),
    ]
}

/// Queues a mail, unless it is in the queue.
pub fn queue(request: Uuid, due_at: Timestamp) -> Statement {
    fixed!("INSERT OR IGNORE INTO mails (request, tries, due_at) VALUES (:request, 0, :due_at)")
        .bind("request", request)
        .bind("due_at", due_at)
}

/// The mails that are due (`request`, `tries`). Resets come first: a user waits for them.
pub fn due(now: Timestamp, limit: i64) -> Statement {
    fixed!(
        "SELECT request, tries FROM mails WHERE due_at <= :now
            ORDER BY EXISTS (SELECT 1 FROM notices n WHERE n.id = mails.request), due_at LIMIT :limit + 0"
    )
    .bind("now", now)
    .bind("limit", limit)
}

/// The time of the next try of any mail, in the column `due_at`, which may be null.
pub fn next_due() -> Statement {
    fixed!("SELECT min(due_at) AS due_at FROM mails")
}

/// Stores the number of tries of a mail, and when the next try is due.
pub fn postpone(request: Uuid, tries: i64, due_at: Timestamp) -> Statement {
    fixed!("UPDATE mails SET tries = :tries, due_at = :due_at WHERE request = :request")
        .bind("request", request)
        .bind("tries", tries)
        .bind("due_at", due_at)
}

/// Removes a mail from the queue.
pub fn remove(request: Uuid) -> Statement {
    fixed!("DELETE FROM mails WHERE request = :request").bind("request", request)
}

/// Stores the mail of a notice, as JSON.
pub fn insert_notice(id: Uuid, mail: String) -> Statement {
    fixed!("INSERT INTO notices (id, mail) VALUES (:id, :mail)").bind("id", id).bind("mail", mail)
}

/// The mail of a notice, in the column `mail`.
pub fn notice(id: Uuid) -> Statement {
    fixed!("SELECT mail FROM notices WHERE id = :id").bind("id", id)
}

/// Deletes the mail of a notice.
pub fn delete_notice(id: Uuid) -> Statement {
    fixed!("DELETE FROM notices WHERE id = :id").bind("id", id)
}

/// The number of mails of a counter, in the column `count`.
pub fn notice_count(key: &str) -> Statement {
    fixed!("SELECT count FROM notice_counts WHERE key = :key").bind("key", key)
}

/// Adds one to a counter. A new counter ends at `ends_at`.
pub fn count_notice(key: &str, ends_at: Timestamp) -> Statement {
    fixed!(
        "INSERT INTO notice_counts (key, count, ends_at) VALUES (:key, 1, :ends_at)
                    ON CONFLICT DO UPDATE SET count = count + 1"
    )
    .bind("key", key)
    .bind("ends_at", ends_at)
}

/// Deletes counters whose window has ended.
pub fn delete_ended_counts(now: Timestamp) -> Statement {
    fixed!("DELETE FROM notice_counts WHERE ends_at <= :now").bind("now", now)
}
