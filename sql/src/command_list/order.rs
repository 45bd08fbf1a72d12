//! The order of a list, and the index that a list reads.

use farhand_domain::command::list::{CommandList, TimeColumn};
use farhand_domain::command::request::Shell;

use super::filters::is_open;

/// The text after ORDER BY. Ties are broken by id, in the direction of the first key. NULL sorts
/// lowest.
pub fn order_by(list: &CommandList) -> String {
    let direction = |descending| if descending { "DESC" } else { "ASC" };
    let keys = list
        .order
        .iter()
        .map(|key| format!("c.{} {}", key.column.as_str(), direction(key.descending)));
    let first = list.order.first().is_none_or(|key| key.descending);
    keys.chain([format!("c.id {}", direction(first))]).collect::<Vec<_>>().join(", ")
}

/// Whether the list's index has the list's order: `scheduled_at`. In any other order, all matching
/// commands must be sorted.
pub fn is_index_order(list: &CommandList) -> bool {
    index(list) != BY_BATCH
        && list.order.len() == 1
        && list.order.iter().all(|key| key.column == TimeColumn::Scheduled)
}

pub const BY_SERVER: &str = "commands_by_server";
pub const BY_REQUESTER: &str = "commands_by_requester";
/// The index of all commands.
pub const BY_SCHEDULE: &str = "commands_by_schedule";
/// The index of the commands of batches. It is not in the order of `scheduled_at`.
pub const BY_BATCH: &str = "commands_by_batch";
/// The index of commands that have not ended.
pub const OPEN: &str = "commands_open";
/// The index of commands that ended without success.
pub const UNSUCCESSFUL: &str = "commands_unsuccessful";
/// The index of internal commands.
pub const INTERNAL: &str = "commands_internal";

/// The index of the first filter that has an index, or else the index of all commands.
pub fn index(list: &CommandList) -> &'static str {
    match list {
        CommandList { batch: Some(_), .. } | CommandList { schedule: Some(_), .. } => BY_BATCH,
        CommandList { server: Some(_), .. } => BY_SERVER,
        CommandList { requested_by: Some(_), .. } => BY_REQUESTER,
        _ if is_open(list) => OPEN,
        CommandList { success: Some(false), .. } => UNSUCCESSFUL,
        CommandList { shell: Some(Shell::Builtin), .. } => INTERNAL,
        _ => BY_SCHEDULE,
    }
}
