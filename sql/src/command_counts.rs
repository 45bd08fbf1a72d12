//! The numbers of commands that the counters have (`counted_commands`, `command_counts`).
//!
//! The counters have the commands of a workspace up to a key; [`behind`] are those that they do not
//! have yet.

use farhand_domain::output::MAX_KEPT;

use crate::numbering::{highest, last};

/// SQL for the key up to which the counters have the commands of a workspace.
fn counted(workspace: &str) -> String {
    format!(
        "coalesce((SELECT n.up_to FROM counted_commands n WHERE n.workspace_id = {workspace}), {workspace} << 40)"
    )
}

/// SQL for the condition that the counters do not have a row of `commands c` yet.
pub fn behind(workspace: &str) -> String {
    format!("c.seq > {} AND c.seq <= {}", counted(workspace), last(workspace))
}

/// SQL for the bytes that a row of `commands c` stored on a day, for the quota.
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

/// SQL for the key of a new command.
pub fn next_key(workspace: &str) -> String {
    format!("max({}, {}) + 1", highest("commands", "seq", workspace), counted(workspace))
}

/// SQL for how many commands the counters do not have yet, or more: keys may be missing.
pub fn distance(workspace: &str) -> String {
    format!("max({} - {}, 0)", highest("commands", "seq", workspace), counted(workspace))
}

/// SQL for the counters of `commands` (text that follows FROM), with the number of each.
fn counts(commands: &str) -> String {
    format!(
        "SELECT 'server' AS kind, c.server_id AS key, count(*) AS total FROM {commands} GROUP BY c.server_id
         UNION ALL
         SELECT 'requester', CAST(c.requested_by AS TEXT), count(*) FROM {commands}
         AND c.requested_by IS NOT NULL GROUP BY c.requested_by"
    )
}

/// SQL for the day.
const TODAY: &str = "strftime('%Y-%m-%d', 'now')";

/// The statements that add the commands that are not counted yet to the counters of the workspace
/// `:workspace_id`. They are one transaction.
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

/// The statements that take commands of the workspace `:workspace_id` out of its counters, and then
/// delete them. `which` is a condition on the ids of `commands c`. They are one transaction.
pub fn delete(which: &str) -> [String; 3] {
    let which =
        format!("c INDEXED BY commands_by_id WHERE c.workspace_id = :workspace_id AND {which}");
    let counted = format!("commands {which} AND c.seq <= {}", counted(":workspace_id"));
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
        format!("DELETE FROM commands AS {which}"),
    ]
}
