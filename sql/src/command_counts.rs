//! The counters of commands (`counted_commands`, `command_counts`), for the counts of lists.
//!
//! The counters include a workspace's commands up to a key. [`behind`] selects the commands after
//! that key, which are not counted yet.

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

/// The statements that add the uncounted commands of the workspace `:workspace_id` to its counters.
/// They belong after those of the quotas: see
/// [`quotas::count_commands`](crate::quotas::count_commands).
pub(crate) fn add() -> [String; 2] {
    let behind = format!("commands c NOT INDEXED WHERE {}", behind(":workspace_id"));
    [
        format!(
            "INSERT INTO command_counts (workspace_id, kind, key, total)
             SELECT :workspace_id, kind, key, total FROM ({}) WHERE true
             ON CONFLICT (workspace_id, kind, key) DO UPDATE SET total = total + excluded.total",
            counts(&behind)
        ),
        format!(
            "INSERT INTO counted_commands (workspace_id, up_to, total)
             SELECT :workspace_id, max(c.seq), count(*) FROM {behind} HAVING count(*) > 0
             ON CONFLICT (workspace_id) DO UPDATE SET up_to = excluded.up_to, total = total + excluded.total"
        ),
    ]
}

/// The statements that subtract commands of the workspace `:workspace_id` from its counters, and
/// then delete these commands. The quotas still count what the commands stored. `condition` is SQL on
/// the ids of `commands c`. Run the statements in one transaction.
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
            "UPDATE counted_commands SET total = counted_commands.total - d.total
             FROM (SELECT count(*) AS total FROM {counted}) d WHERE workspace_id = :workspace_id AND d.total > 0"
        ),
        format!("DELETE FROM commands AS {rows}"),
    ]
}
