//! The number of all items: from the counters if they have it, otherwise counted.

use farhand_domain::command::Shell;
use farhand_domain::command_list::CommandList;

use super::access::{HAS_FULL_ACCESS, IS_READABLE};
use super::order::{BY_REQUESTER, BY_SCHEDULE, BY_SERVER, INTERNAL, OPEN, UNSUCCESSFUL, index};
use super::page::{NOBODY, OF_NOBODY};
use super::search::{self, IS_RARE};
use super::{Callers, Parts};
use crate::command_counts::behind;

/// SQL for the sum of `counters`, with the commands that they do not have yet, as far as these
/// fulfil a condition.
fn counter(counters: &str, condition: &str) -> String {
    let behind = behind("me.workspace_id");
    format!(
        "(coalesce((SELECT sum(n.total) FROM {counters}), 0)
          + (SELECT count(*) FROM commands c NOT INDEXED WHERE {behind} AND {condition}))"
    )
}

/// SQL for the number of all commands less those that are counted by `others`.
fn all_but(others: &str) -> String {
    let all = counter("counted_commands n WHERE n.workspace_id = me.workspace_id", "true");
    format!("({all} - {others})")
}

/// SQL for the number of commands of a kind whose key fulfils a condition. `keys` are tables that
/// stand before `command_counts n`.
fn counter_of(kind: &str, keys: &str, key: &str, condition: &str) -> String {
    let counters = format!(
        "{keys} command_counts n WHERE n.workspace_id = me.workspace_id AND n.kind = '{kind}' AND {key}"
    );
    counter(&counters, condition)
}

/// SQL for the number of commands in an index that fulfil a condition. `keys` are tables that stand
/// before `commands c`.
fn counted(keys: &str, index: &str, condition: &str) -> String {
    format!(
        "(SELECT count(*) FROM {keys} commands c INDEXED BY {index}
          WHERE c.workspace_id = me.workspace_id AND {condition})"
    )
}

impl Parts<'_> {
    /// SQL for the number of items, for `callers`; NULL for other callers.
    pub fn total(&self, callers: Callers) -> String {
        let others = match callers {
            Callers::All => self.total_without_full_access(),
            Callers::FullAccess => "NULL".to_owned(),
        };
        let total = format!("iif({HAS_FULL_ACCESS}, {}, {others})", self.total_with_full_access());
        if !self.has_found {
            return total;
        }
        let who = if callers == Callers::All { "true" } else { HAS_FULL_ACCESS };
        format!(
            "iif({IS_RARE} AND {who}, (SELECT count(*) FROM {}), {total})",
            self.rare_rows(callers)
        )
    }

    fn total_with_full_access(&self) -> String {
        let of_nobody = self.is_of_nobody().then(|| format!("{OF_NOBODY} AND {}", self.filters));
        self.counter_with_full_access().unwrap_or_else(|| match of_nobody {
            Some(of_nobody) => counted(NOBODY, BY_REQUESTER, &of_nobody),
            None => counted("", index(self.list), &self.filters),
        })
    }

    /// The number from the counters, if the list has at most one filter and they have its number.
    fn counter_with_full_access(&self) -> Option<String> {
        let user = "n.key = (SELECT CAST(u.id AS TEXT) FROM users u
            WHERE u.workspace_id = me.workspace_id AND u.id = :requested_by)";
        Some(match self.list {
            _ if self.filter_count > 1 => return None,
            _ if self.filter_count == 0 => all_but("0"),
            CommandList { server: Some(_), .. } => {
                counter_of("server", "", "n.key = :server", &self.filters)
            }
            CommandList { requested_by: Some(_), .. } => {
                counter_of("requester", "", user, &self.filters)
            }
            // Those that do not match are few.
            CommandList { requested_by_isnull: Some(false), .. } => {
                all_but(&counted(NOBODY, BY_REQUESTER, OF_NOBODY))
            }
            CommandList { is_scheduled: Some(false), .. } => {
                all_but(&counted("", BY_SCHEDULE, "c.scheduled_at > :now"))
            }
            CommandList { shell: Some(Shell::System), .. } => {
                all_but(&counted("", INTERNAL, "c.shell = 'internal'"))
            }
            CommandList { success: Some(true), .. } => {
                let open = counted("", OPEN, "c.handled_at IS NULL");
                all_but(&format!("({} + {open})", counted("", UNSUCCESSFUL, "c.success = 0")))
            }
            _ if self.has_found && search::is_exact(&self.list.words) => {
                "(SELECT count(*) FROM found)".to_owned()
            }
            _ => return None,
        })
    }

    fn total_without_full_access(&self) -> String {
        if let Some(index) = self.index_without_full_access() {
            return counted("", index, &format!("{} AND {IS_READABLE}", self.filters));
        }
        let of_server = self.of_server();
        if self.filter_count > 0 {
            return counted(
                "reached key CROSS JOIN",
                BY_SERVER,
                &format!("{of_server} AND {}", self.filters),
            );
        }
        let is_whole = "c.server_id IN (SELECT id FROM reached WHERE is_whole)";
        let whole = counter_of(
            "server",
            "reached key CROSS JOIN",
            "n.key = key.id AND key.is_whole",
            is_whole,
        );
        let own = counted(
            "reached key CROSS JOIN",
            BY_SERVER,
            &format!("NOT key.is_whole AND {of_server}"),
        );
        format!("({whole} + {own})")
    }
}
