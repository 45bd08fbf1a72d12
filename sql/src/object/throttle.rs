//! The tables of a throttle: counters of attempts, and known addresses.

use farhand_domain::limits::throttle::{Counter, KnownAddress};
use farhand_domain::time::Timestamp;

use crate::statement::{Statement, fixed};

/// Creates the tables, unless they exist.
pub fn schema() -> [Statement; 4] {
    [
        fixed!(
            "CREATE TABLE IF NOT EXISTS counters (key TEXT PRIMARY KEY, count INTEGER NOT NULL, ends_at TEXT NOT NULL) WITHOUT ROWID"
        ),
        // Serves: the deletion of expired counters.
        fixed!("CREATE INDEX IF NOT EXISTS counters_by_end ON counters (ends_at)"),
        // The addresses and the networks from which users logged in. Users, addresses and networks
        // are hashes (`KnownAddress`).
        fixed!(
            "CREATE TABLE IF NOT EXISTS known_addresses (
        user TEXT, address TEXT, logged_in_at TEXT NOT NULL, PRIMARY KEY (user, address)) WITHOUT ROWID"
        ),
        // Serves: the deletion of expired addresses.
        fixed!(
            "CREATE INDEX IF NOT EXISTS known_addresses_by_time ON known_addresses (logged_in_at)"
        ),
    ]
}

/// A counter, in the columns of [`Counter`].
pub fn counter(key: &str) -> Statement {
    fixed!("SELECT key, count, ends_at FROM counters WHERE key = :key").bind("key", key)
}

/// Stores a counter.
pub fn store_counter(counter: Counter) -> Statement {
    fixed!("INSERT OR REPLACE INTO counters (key, count, ends_at) VALUES (:key, :count, :ends_at)")
        .bind("key", counter.key)
        .bind("count", counter.count)
        .bind("ends_at", counter.ends_at)
}

/// Deletes a counter.
pub fn delete_counter(key: &str) -> Statement {
    fixed!("DELETE FROM counters WHERE key = :key").bind("key", key)
}

/// Deletes expired counters.
pub fn delete_expired_counters(now: Timestamp) -> Statement {
    fixed!("DELETE FROM counters WHERE ends_at <= :now").bind("now", now)
}

/// Returns a row if there is any counter.
pub fn any_counter() -> Statement {
    fixed!("SELECT 1 AS one FROM counters LIMIT 1")
}

/// The time of the last login (`logged_in_at`) from an address, if it was after `since`.
pub fn last_login(from: &KnownAddress, since: Timestamp) -> Statement {
    fixed!(
        "SELECT logged_in_at FROM known_addresses
            WHERE user = :user AND address = :address AND logged_in_at > :since"
    )
    .bind("user", &from.user)
    .bind("address", &from.address)
    .bind("since", since)
}

/// Stores the time of a login from an address.
pub fn store_login(from: &KnownAddress, now: Timestamp) -> Statement {
    fixed!(
        "INSERT OR REPLACE INTO known_addresses (user, address, logged_in_at) VALUES (:user, :address, :now)"
    )
    .bind("user", &from.user)
    .bind("address", &from.address)
    .bind("now", now)
}

/// Deletes all addresses of a user except the `max` latest ones.
pub fn delete_surplus_addresses(user: &str, max: u32) -> Statement {
    fixed!(
        "DELETE FROM known_addresses WHERE user = :user AND address NOT IN (
                SELECT address FROM known_addresses WHERE user = :user ORDER BY logged_in_at DESC LIMIT :max + 0)"
    )
    .bind("user", user)
    .bind("max", max)
}

/// Deletes the addresses without a login after `since`.
pub fn delete_expired_addresses(since: Timestamp) -> Statement {
    fixed!("DELETE FROM known_addresses WHERE logged_in_at <= :since").bind("since", since)
}

/// Returns a row if there is any known address.
pub fn any_address() -> Statement {
    fixed!("SELECT 1 AS one FROM known_addresses LIMIT 1")
}
