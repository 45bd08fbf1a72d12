//! The number of all items of a list. It comes from the counters if they have it. Otherwise the
//! items are counted in an index.

use farhand_domain::command::list::CommandList;
use farhand_domain::command::request::Shell;

use super::access::{HAS_FULL_ACCESS, IS_READABLE};
use super::order::{BY_REQUESTER, BY_SCHEDULE, BY_SERVER, INTERNAL, OPEN, UNSUCCESSFUL, index};
use super::page::{IS_OF_KEY, MISSING_REQUESTERS};
use super::search::{self, IS_RARE};
use super::{Callers, Parts};
use crate::command_counts::behind;

/// SQL for the sum of some counters, plus the commands that the counters do not include yet.
/// `counters` is the text after FROM, with a column `n.total`. `condition` selects the uncounted
/// commands that belong to these counters.
fn sum_counters(counters: &str, condition: &str) -> String {
    let behind = behind("me.workspace_id");
    format!(
        "(coalesce((SELECT sum(n.total) FROM {counters}), 0)
          + (SELECT count(*) FROM commands c NOT INDEXED WHERE {behind} AND {condition}))"
    )
}

/// SQL for the number of all commands of the workspace, minus `others`.
fn all_but(others: &str) -> String {
    let all = sum_counters("counted_commands n WHERE n.workspace_id = me.workspace_id", "true");
    format!("({all} - {others})")
}

/// SQL for the number of commands by the counters of a `kind`. `keys` is SQL for tables that are
/// joined before `command_counts n`. `is_key` is the condition on `n.key`. `condition` is as in
/// [`sum_counters`].
fn sum_counters_of_kind(kind: &str, keys: &str, is_key: &str, condition: &str) -> String {
    let counters = format!(
        "{keys} command_counts n WHERE n.workspace_id = me.workspace_id AND n.kind = '{kind}' AND {is_key}"
    );
    sum_counters(&counters, condition)
}

/// SQL that counts the commands in an index for which a condition is true. `keys` is SQL for tables
/// that are joined before `commands c`.
fn count_in_index(keys: &str, index: &str, condition: &str) -> String {
    format!(
        "(SELECT count(*) FROM {keys} commands c INDEXED BY {index}
          WHERE c.workspace_id = me.workspace_id AND {condition})"
    )
}

impl Parts<'_> {
    /// SQL for the number of items for `callers`. NULL for other callers.
    pub fn total(&self, callers: Callers) -> String {
        let partial_access = match callers {
            Callers::All => self.total_with_partial_access(),
            Callers::FullAccess => "NULL".to_owned(),
        };
        let full_access = self.total_with_full_access();
        let total = format!("iif({HAS_FULL_ACCESS}, {full_access}, {partial_access})");
        if !self.has_found {
            return total;
        }
        let applies = if callers == Callers::All { "true" } else { HAS_FULL_ACCESS };
        format!(
            "iif({IS_RARE} AND {applies}, (SELECT count(*) FROM {}), {total})",
            self.rare_rows(callers)
        )
    }

    fn total_with_full_access(&self) -> String {
        if let Some(total) = self.total_from_counters() {
            return total;
        }
        if self.is_by_missing_requester() {
            let condition = format!("{IS_OF_KEY} AND {}", self.filters);
            return count_in_index(MISSING_REQUESTERS, BY_REQUESTER, &condition);
        }
        count_in_index("", index(self.list), &self.filters)
    }

    /// The number from the counters. Returns `None` if the list has several filters, or a filter
    /// without counters.
    fn total_from_counters(&self) -> Option<String> {
        let is_requester = "n.key = (SELECT CAST(u.id AS TEXT) FROM users u
            WHERE u.workspace_id = me.workspace_id AND u.id = :requested_by)";
        Some(match self.list {
            _ if self.filter_count > 1 => return None,
            _ if self.filter_count == 0 => all_but("0"),
            CommandList { server: Some(_), .. } => {
                sum_counters_of_kind("server", "", "n.key = :server", &self.filters)
            }
            CommandList { requested_by: Some(_), .. } => {
                sum_counters_of_kind("requester", "", is_requester, &self.filters)
            }
            // The next filters match most commands. So the few commands that do not match are
            // counted and subtracted.
            CommandList { requested_by_isnull: Some(false), .. } => {
                all_but(&count_in_index(MISSING_REQUESTERS, BY_REQUESTER, IS_OF_KEY))
            }
            CommandList { is_scheduled: Some(false), .. } => {
                all_but(&count_in_index("", BY_SCHEDULE, "c.scheduled_at > :now"))
            }
            CommandList { shell: Some(Shell::System), .. } => {
                all_but(&count_in_index("", INTERNAL, "c.shell = 'internal'"))
            }
            CommandList { success: Some(true), .. } => {
                let open = count_in_index("", OPEN, "c.handled_at IS NULL");
                let unsuccessful = count_in_index("", UNSUCCESSFUL, "c.success = 0");
                all_but(&format!("({unsuccessful} + {open})"))
            }
            _ if self.has_found && search::is_exact(&self.list.words) => {
                "(SELECT count(*) FROM found)".to_owned()
            }
            _ => return None,
        })
    }

    fn total_with_partial_access(&self) -> String {
        if let Some(index) = self.index_with_partial_access() {
            return count_in_index("", index, &format!("{} AND {IS_READABLE}", self.filters));
        }
        let keys = "accessible_servers key CROSS JOIN";
        let is_readable = self.is_readable_on_key_server();
        if self.filter_count > 0 {
            let condition = format!("{is_readable} AND {}", self.filters);
            return count_in_index(keys, BY_SERVER, &condition);
        }
        // The counters of servers on which the caller can read all commands, plus the caller's own
        // commands on other servers.
        let of_servers = sum_counters_of_kind(
            "server",
            keys,
            "n.key = key.id AND key.all_commands",
            "c.server_id IN (SELECT id FROM accessible_servers WHERE all_commands)",
        );
        let own = format!("NOT key.all_commands AND {is_readable}");
        format!("({of_servers} + {})", count_in_index(keys, BY_SERVER, &own))
    }
}
