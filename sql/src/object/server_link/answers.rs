//! The table `answers`: the responses to requests with an Idempotency-Key.

use farhand_domain::time::Timestamp;
use uuid::Uuid;

use crate::statement::{Statement, fixed};

/// Deletes responses that have expired.
pub fn delete_expired(now: Timestamp) -> Statement {
    fixed!("DELETE FROM answers WHERE expires_at <= :now").bind("now", now)
}

/// The request of a key, in the columns of `IdempotentRequest`.
pub fn find(key: &str) -> Statement {
    fixed!("SELECT body, command, answer FROM answers WHERE key = :key").bind("key", key)
}

/// Stores that a key is used for a command.
pub fn insert(key: &str, body: &str, command: Uuid, expires_at: Timestamp) -> Statement {
    fixed!(
        "INSERT OR REPLACE INTO answers (key, body, command, expires_at)
            VALUES (:key, :body, :command, :expires_at)"
    )
    .bind("key", key)
    .bind("body", body)
    .bind("command", command)
    .bind("expires_at", expires_at)
}

/// Stores the response for a key.
pub fn set_answer(key: &str, answer: &str) -> Statement {
    fixed!("UPDATE answers SET answer = :answer WHERE key = :key")
        .bind("key", key)
        .bind("answer", answer)
}

/// Deletes the response that created a command.
pub fn delete_of_command(command: Uuid) -> Statement {
    fixed!("DELETE FROM answers WHERE command = :command").bind("command", command)
}
