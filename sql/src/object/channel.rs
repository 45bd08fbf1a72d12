//! The table of a client's channel.

use farhand_domain::time::Timestamp;

use crate::statement::{Statement, fixed};

/// Creates the table, unless it exists. Its one row has the credential that opened the channel.
pub fn schema() -> Statement {
    fixed!(
        "CREATE TABLE IF NOT EXISTS channel (
    workspace TEXT NOT NULL, token_hash TEXT NOT NULL, remote_ip TEXT NOT NULL,
    secret_hash TEXT NOT NULL, opened_at TEXT NOT NULL, is_used INTEGER NOT NULL DEFAULT 0)"
    )
}

/// A new channel.
#[derive(Clone, Copy, Debug)]
pub struct NewChannel<'a> {
    /// The slug of the workspace.
    pub workspace: &'a str,
    /// The hash of the credential.
    pub token_hash: &'a str,
    /// The client's address.
    pub remote_ip: &'a str,
    /// The hash of the secret that connects once.
    pub secret_hash: &'a str,
    /// The time.
    pub opened_at: Timestamp,
}

/// Stores a new channel.
pub fn insert(new: NewChannel<'_>) -> Statement {
    fixed!(
        "INSERT INTO channel (workspace, token_hash, remote_ip, secret_hash, opened_at)
            VALUES (:workspace, :token_hash, :remote_ip, :secret_hash, :opened_at)"
    )
    .bind("workspace", new.workspace)
    .bind("token_hash", new.token_hash)
    .bind("remote_ip", new.remote_ip)
    .bind("secret_hash", new.secret_hash)
    .bind("opened_at", new.opened_at)
}

/// Returns a row if the table exists. It does not if the channel was never opened.
pub fn find_table() -> Statement {
    fixed!("SELECT name FROM sqlite_master WHERE name = 'channel'")
}

/// All columns of the channel.
pub fn find() -> Statement {
    fixed!("SELECT * FROM channel")
}

/// Uses the secret. Returns a row if the secret is right, unused, and was created after `since`.
pub fn use_secret(workspace: &str, secret_hash: &str, since: Timestamp) -> Statement {
    fixed!(
        "UPDATE channel SET is_used = 1
            WHERE is_used = 0 AND workspace = :workspace AND secret_hash = :secret_hash AND opened_at > :since RETURNING is_used"
    )
    .bind("workspace", workspace)
    .bind("secret_hash", secret_hash)
    .bind("since", since)
}
