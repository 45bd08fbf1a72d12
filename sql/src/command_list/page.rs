//! The items of a page.

use super::access::{HAS_FULL_ACCESS, IS_READABLE};
use super::order::{BY_REQUESTER, BY_SCHEDULE, BY_SERVER, index, is_index_order, order_by};
use super::search::IS_RARE;
use super::{Callers, Parts};
use crate::numbering::is_of;

/// The offset from which all matching commands are sorted. For lower offsets, the first commands of
/// each key are collected in JSON texts, whose size D1 limits.
const DEEP_OFFSET: u64 = 10_000;

/// SQL for a table `key` that is joined before other tables: the values of `requested_by` that mean
/// "no requester". They are NULL, and the ids of deleted users that are still in commands.
pub const MISSING_REQUESTERS: &str = "(SELECT NULL AS user_id UNION ALL
    SELECT d.user_id FROM me CROSS JOIN deleted_users d ON d.workspace_id = me.workspace_id) key CROSS JOIN";
/// SQL for the condition that a command has the requester of a row of `key`.
pub const IS_OF_KEY: &str = "c.requested_by IS key.user_id";

impl Parts<'_> {
    /// SQL for the items of a page. Of its branches, only one returns items. The caller's access
    /// decides which one, and whether a search finds few commands.
    pub fn items(&self, callers: Callers) -> String {
        let mut branches = vec![self.items_with_full_access()];
        if callers == Callers::All {
            branches.push(self.items_with_partial_access());
        }
        if self.has_found {
            branches.push(self.items_of_rare_words(callers));
        }
        branches
            .iter()
            .map(|branch| format!("SELECT body FROM ({branch})"))
            .collect::<Vec<_>>()
            .join(" UNION ALL ")
    }

    fn items_with_full_access(&self) -> String {
        if self.is_by_missing_requester() {
            return self.merge_keys(MISSING_REQUESTERS, BY_REQUESTER, IS_OF_KEY, HAS_FULL_ACCESS);
        }
        self.scan_index(index(self.list), HAS_FULL_ACCESS, "true")
    }

    fn items_with_partial_access(&self) -> String {
        let access = format!("NOT {HAS_FULL_ACCESS}");
        if let Some(index) = self.index_with_partial_access() {
            return self.scan_index(index, &access, IS_READABLE);
        }
        let is_readable = self.is_readable_on_key_server();
        self.merge_keys("accessible_servers key CROSS JOIN", BY_SERVER, &is_readable, &access)
    }

    /// Whether a list for full access uses the index of requesters to read the commands without a
    /// requester.
    pub fn is_by_missing_requester(&self) -> bool {
        self.list.requested_by_isnull == Some(true) && index(self.list) == BY_SCHEDULE
    }

    /// The index of the list's filter, if the filter matches fewer commands than the caller's
    /// servers have. Returns `None` if a list for partial access should read one server after the
    /// other.
    pub fn index_with_partial_access(&self) -> Option<&'static str> {
        Some(index(self.list)).filter(|index| ![BY_SERVER, BY_SCHEDULE].contains(index))
    }

    /// SQL for the condition that a command is on the server `key`, and that the caller can read
    /// it.
    pub fn is_readable_on_key_server(&self) -> String {
        let is_listed = if self.list.server.is_some() { "key.id = :server AND " } else { "" };
        format!(
            "{is_listed}c.server_id = key.id AND (key.all_commands OR c.requested_by = me.user_id)"
        )
    }

    /// Sorts the few commands that a search finds.
    fn items_of_rare_words(&self, callers: Callers) -> String {
        self.sort(&format!("{} AND {IS_RARE}", self.rare_rows(callers)))
    }

    /// Reads an index in its order until the page is full. If the list has another order, sorts all
    /// matching commands. `access` is a condition on the caller, and `more` is a condition on the
    /// commands.
    fn scan_index(&self, index: &str, access: &str, more: &str) -> String {
        let (object, filters, order) = (self.object, &self.filters, order_by(self.list));
        // If the branch does not apply, the workspace is NULL, and no entry of the index matches.
        let workspace = format!("(SELECT me.workspace_id FROM me WHERE {})", self.applies(access));
        if is_index_order(self.list) || index != BY_SCHEDULE {
            let rows = format!(
                "commands c INDEXED BY {index} WHERE c.workspace_id = {workspace} AND {filters} AND {more}"
            );
            if !is_index_order(self.list) {
                return self.sort(&rows);
            }
            return format!(
                "SELECT {object} AS body FROM {rows} ORDER BY {order} LIMIT :page_size + 0 OFFSET :page_offset"
            );
        }
        // All commands are read. The table has them side by side, so it is faster than the index.
        let is_of_workspace = is_of("c.seq", &workspace);
        self.sort(&format!(
            "commands c NOT INDEXED WHERE {is_of_workspace} AND {filters} AND {more}"
        ))
    }

    /// Merges the first commands of each key. The index has the commands of one key in the list's
    /// order. `keys` is SQL for the table `key`, `is_of_key` is the condition on a command and its
    /// key, and `access` is a condition on the caller.
    fn merge_keys(&self, keys: &str, index: &str, is_of_key: &str, access: &str) -> String {
        let (filters, order, applies) = (&self.filters, order_by(self.list), self.applies(access));
        let rows = format!(
            "commands c INDEXED BY {index} WHERE c.workspace_id = me.workspace_id AND {is_of_key} AND {filters}"
        );
        if self.offset >= DEEP_OFFSET {
            return self.sort(&format!("me CROSS JOIN {keys} {rows} AND {applies}"));
        }
        let first =
            format!("SELECT c.seq FROM {rows} ORDER BY {order} LIMIT :page_size + :page_offset");
        self.sort(&format!(
            "me CROSS JOIN {keys} json_each((SELECT json_group_array(seq) FROM ({first}))) first
             CROSS JOIN commands c ON c.seq = first.value WHERE {applies}"
        ))
    }

    /// SQL for the condition that a branch applies. `access` is its condition on the caller. If the
    /// list has a search, the branch applies only if the search finds many commands.
    fn applies(&self, access: &str) -> String {
        let is_frequent =
            if self.has_found { format!(" AND NOT {IS_RARE}") } else { String::new() };
        format!("{access}{is_frequent}")
    }

    /// Sorts `rows`, and builds JSON objects only for the rows on the page.
    pub fn sort(&self, rows: &str) -> String {
        let (object, order) = (self.object, order_by(self.list));
        format!(
            "SELECT {object} AS body
             FROM (SELECT c.seq FROM {rows} ORDER BY {order} LIMIT :page_size + 0 OFFSET :page_offset) page
             CROSS JOIN commands c ON c.seq = page.seq ORDER BY {order}"
        )
    }

    /// SQL for the rows of `commands c` that a search for rare words finds and the caller can read.
    /// The text ends with a condition, so that `AND` can follow.
    pub fn rare_rows(&self, callers: Callers) -> String {
        let is_readable = match callers {
            Callers::All => format!("({HAS_FULL_ACCESS} OR {IS_READABLE})"),
            Callers::FullAccess => HAS_FULL_ACCESS.to_owned(),
        };
        format!(
            "me CROSS JOIN found f CROSS JOIN commands c ON c.seq = f.seq
             WHERE c.workspace_id = me.workspace_id AND {is_readable} AND {}",
            self.filters_of_found
        )
    }
}
