//! The keys of `commands`, `audit_events` and `audit_seals`.
//!
//! A key is 2^40 times the workspace's id, plus a number that grows with each row of the workspace.
//! So the rows of a workspace are adjacent, in the order of their insertion.

/// SQL for the bits of a key that are the number.
const NUMBER: &str = "0xFFFFFFFFFF";

/// SQL for the number in a key.
pub fn number(key: &str) -> String {
    format!("({key} & {NUMBER})")
}

/// SQL for the key of a workspace and a number.
pub fn key(workspace: &str, number: &str) -> String {
    format!("({workspace} << 40 | {number})")
}

/// SQL for the highest possible key of a workspace. The lowest possible key is [`key`] with the
/// number 0.
pub fn last(workspace: &str) -> String {
    key(workspace, NUMBER)
}

/// SQL for the condition that a key belongs to the workspace. Do not combine it with another bound
/// of the key. SQLite uses only one lower and one upper bound for its search, and may choose the
/// wider bounds.
pub fn is_of(key: &str, workspace: &str) -> String {
    format!("{key} BETWEEN ({workspace} << 40) AND {}", last(workspace))
}

/// SQL for the highest key of the workspace in a table, or the key with the number 0 if there is
/// none.
pub fn highest(table: &str, column: &str, workspace: &str) -> String {
    let is_of = is_of(&format!("h.{column}"), workspace);
    format!("coalesce((SELECT max(h.{column}) FROM {table} h WHERE {is_of}), {workspace} << 40)")
}
