//! The counters of commands (`counted_commands`, `command_counts`), for the counts of lists and for
//! the quota of stored bytes.
//!
//! The counters include a workspace's commands up to a key. [`behind`] selects the commands after
//! that key, which are not counted yet.

use farhand_domain::output::MAX_KEPT;

use crate::numbering::{highest, last};

/// SQL for the key of the last command of a workspace that the counters include.
fn counted_up_to(workspace: &str) -> String {
    format!(
        "coalesce((SELECT n.up_to FROM counted_commands n WHERE n.workspace_id = {workspace}), {workspace} << 40)"
    )
}

/// SQL for the condition that the counters do not include a row of `commands c` yet.
pub fn behind(workspace: &str) -> String {
    format!("c.seq > {} AND c.seq <= {}", counted_up_to(workspace), last(workspace))
}

/// SQL for the bytes that a row of `commands c` stored on a day, for the quota. The command itself
/// counts on the day of its creation. Its output counts on the day of its end.
fn bytes(day: &str) -> String {
    format!(
        "iif(c.stored_bytes IS NULL, 0, iif(substr(c.added_at, 1, 10) = {day}, c.stored_bytes, 0)
            + iif(substr(coalesce(c.handled_at, {day}), 1, 10) = {day}, min(c.output_bytes, {MAX_KEPT}), 0))"
    )
}

/// SQL for the bytes that a workspace stored on a day.
pub fn bytes_of_day(workspace: &str, day: &str) -> String {
    format!(
        "(coalesce((SELECT iif(n.day = {day}, n.bytes, 0) FROM counted_commands n WHERE n.workspace_id = {workspace}), 0)
          + coalesce((SELECT sum({}) FROM commands c NOT INDEXED WHERE {}), 0))",
        bytes(day),
        behind(workspace)
    )
}

/// The statement that adds `:stored_bytes` to the bytes that the workspace of the caller `me` stored
/// on a day, if the statement before it changed rows. It is for what is stored besides commands.
pub fn add_bytes(day: &str) -> String {
    format!(
        "INSERT INTO counted_commands (workspace_id, up_to, total, day, bytes)
         SELECT me.workspace_id, me.workspace_id << 40, 0, {day}, :stored_bytes FROM me WHERE changes() > 0
         ON CONFLICT (workspace_id) DO UPDATE SET bytes = excluded.bytes + iif(day = excluded.day, bytes, 0),
            day = excluded.day"
    )
}

/// SQL for the key of a new command.
pub fn next_key(workspace: &str) -> String {
    format!("max({}, {}) + 1", highest("commands", "seq", workspace), counted_up_to(workspace))
}

/// SQL for an upper bound of the number of uncounted commands. It is not exact, because some keys
/// may have no command.
pub fn distance(workspace: &str) -> String {
    format!("max({} - {}, 0)", highest("commands", "seq", workspace), counted_up_to(workspace))
}

/// SQL that selects the counters to which some commands belong, each with the number of commands.
/// `commands` is the text after FROM.
fn counts(commands: &str) -> String {
    format!(
        "SELECT 'server' AS kind, c.server_id AS key, count(*) AS total FROM {commands} GROUP BY c.server_id
         UNION ALL
         SELECT 'requester', CAST(c.requested_by AS TEXT), count(*) FROM {commands}
         AND c.requested_by IS NOT NULL GROUP BY c.requested_by"
    )
}

/// SQL for the current day (UTC).
const TODAY: &str = "strftime('%Y-%m-%d', 'now')";

/// The statements that add the uncounted commands of the workspace `:workspace_id` to its counters.
/// Run them in one transaction.
pub fn add() -> [String; 2] {
    let behind = format!("commands c NOT INDEXED WHERE {}", behind(":workspace_id"));
    [
        format!(
            "INSERT INTO command_counts (workspace_id, kind, key, total)
             SELECT :workspace_id, kind, key, total FROM ({}) WHERE true
             ON CONFLICT (workspace_id, kind, key) DO UPDATE SET total = total + excluded.total",
            counts(&behind)
        ),
        format!(
            "INSERT INTO counted_commands (workspace_id, up_to, total, day, bytes)
             SELECT :workspace_id, max(c.seq), count(*), {TODAY}, sum({}) FROM {behind} HAVING count(*) > 0
             ON CONFLICT (workspace_id) DO UPDATE SET up_to = excluded.up_to, total = total + excluded.total,
                day = excluded.day, bytes = excluded.bytes + iif(day = excluded.day, bytes, 0)",
            bytes(TODAY)
        ),
    ]
}

/// The statements that subtract commands of the workspace `:workspace_id` from its counters, and
/// then delete these commands. `condition` is SQL on the ids of `commands c`. Run the statements in
/// one transaction.
pub fn delete(condition: &str) -> [String; 3] {
    let rows =
        format!("c INDEXED BY commands_by_id WHERE c.workspace_id = :workspace_id AND {condition}");
    let counted = format!("commands {rows} AND c.seq <= {}", counted_up_to(":workspace_id"));
    [
        format!(
            "UPDATE command_counts SET total = command_counts.total - d.total FROM ({}) d
             WHERE command_counts.workspace_id = :workspace_id AND command_counts.kind = d.kind AND command_counts.key = d.key",
            counts(&counted)
        ),
        format!(
            "UPDATE counted_commands SET total = counted_commands.total - d.total, bytes = counted_commands.bytes - d.bytes
             FROM (SELECT count(*) AS total, coalesce(sum({}), 0) AS bytes FROM {counted}) d
             WHERE workspace_id = :workspace_id AND d.total > 0",
            bytes("(SELECT n.day FROM counted_commands n WHERE n.workspace_id = :workspace_id)")
        ),
        format!("DELETE FROM commands AS {rows}"),
    ]
}
