//! The items of a page.

use super::access::{HAS_FULL_ACCESS, IS_READABLE};
use super::order::{BY_REQUESTER, BY_SCHEDULE, BY_SERVER, index, is_index_order, order_by};
use super::search::IS_RARE;
use super::{Callers, Parts};

/// From this offset on, all matching commands are sorted. Before it, the first commands of each
/// server are gathered in JSON texts, whose size D1 limits.
const DEEP: u64 = 10_000;

/// The table `key`, with the requesters of commands without a requester: NULL, and deleted users
/// whose ids are still there.
pub const NOBODY: &str = "(SELECT NULL AS user_id UNION ALL
    SELECT d.user_id FROM me CROSS JOIN departed_users d ON d.workspace_id = me.workspace_id) key CROSS JOIN";
/// The condition that a command has the requester of a `key`.
pub const OF_NOBODY: &str = "c.requested_by IS key.user_id";

impl Parts<'_> {
    /// SQL for the items of a page. It has several ways, of which one gives items: the others apply
    /// to other callers, or to another number of commands that a search finds.
    pub fn items(&self, callers: Callers) -> String {
        let mut ways = vec![self.items_with_full_access()];
        if callers == Callers::All {
            ways.push(self.items_without_full_access());
        }
        if self.has_found {
            ways.push(self.items_of_rare_words(callers));
        }
        ways.iter()
            .map(|way| format!("SELECT body FROM ({way})"))
            .collect::<Vec<_>>()
            .join(" UNION ALL ")
    }

    fn items_with_full_access(&self) -> String {
        if self.is_of_nobody() {
            return self.merged(NOBODY, BY_REQUESTER, OF_NOBODY, HAS_FULL_ACCESS);
        }
        self.walk(index(self.list), HAS_FULL_ACCESS, "true")
    }

    fn items_without_full_access(&self) -> String {
        let who = format!("NOT {HAS_FULL_ACCESS}");
        match self.index_without_full_access() {
            Some(index) => self.walk(index, &who, IS_READABLE),
            None => self.merged("reached key CROSS JOIN", BY_SERVER, &self.of_server(), &who),
        }
    }

    /// Whether the list goes by the index of requesters, to the commands without one (for callers
    /// with full access).
    pub fn is_of_nobody(&self) -> bool {
        self.list.requested_by_isnull == Some(true) && index(self.list) == BY_SCHEDULE
    }

    /// The index of a filter that matches few commands: fewer than the servers that a caller can
    /// access have.
    pub fn index_without_full_access(&self) -> Option<&'static str> {
        Some(index(self.list)).filter(|index| ![BY_SERVER, BY_SCHEDULE].contains(index))
    }

    /// The condition that a command is on the server `key`; if the server was deleted, that it is
    /// the caller's own.
    pub fn of_server(&self) -> String {
        let is_listed = if self.list.server.is_some() { "key.id = :server AND " } else { "" };
        format!("{is_listed}c.server_id = key.id AND (key.is_whole OR c.requested_by = me.user_id)")
    }

    /// Sorts the few commands that a search finds.
    fn items_of_rare_words(&self, callers: Callers) -> String {
        self.sorted(&format!("{} AND {IS_RARE}", self.rare_rows(callers)))
    }

    /// Reads an index in its order until the page is full. In another order, sorts all that it has
    /// for the list.
    fn walk(&self, index: &str, who: &str, more: &str) -> String {
        let (object, filters, order) = (self.object, &self.filters, order_by(self.list));
        // For callers to whom this does not apply the workspace is NULL, which no index entry has.
        let workspace = format!("(SELECT me.workspace_id FROM me WHERE {})", self.applies(who));
        let rows = format!(
            "commands c INDEXED BY {index} WHERE c.workspace_id = {workspace} AND {filters} AND {more}"
        );
        if is_index_order(self.list) {
            return format!(
                "SELECT {object} AS body FROM {rows} ORDER BY {order} LIMIT :page_size + 0 OFFSET :page_offset"
            );
        }
        self.sorted(&rows)
    }

    /// Merges the first commands of each of the `keys`, which an index has in the list's order.
    fn merged(&self, keys: &str, index: &str, of_key: &str, who: &str) -> String {
        let (filters, order, applies) = (&self.filters, order_by(self.list), self.applies(who));
        let rows = format!(
            "commands c INDEXED BY {index} WHERE c.workspace_id = me.workspace_id AND {of_key} AND {filters}"
        );
        if self.offset >= DEEP {
            return self.sorted(&format!("me CROSS JOIN {keys} {rows} AND {applies}"));
        }
        let first =
            format!("SELECT c.seq FROM {rows} ORDER BY {order} LIMIT :page_size + :page_offset");
        self.sorted(&format!(
            "me CROSS JOIN {keys} json_each((SELECT json_group_array(seq) FROM ({first}))) first
             CROSS JOIN commands c ON c.seq = first.value WHERE {applies}"
        ))
    }

    /// The condition that a way applies: to the caller `who`, and to as many commands as a search
    /// finds.
    fn applies(&self, who: &str) -> String {
        let is_frequent =
            if self.has_found { format!(" AND NOT {IS_RARE}") } else { String::new() };
        format!("{who}{is_frequent}")
    }

    /// Sorts `rows`, and makes objects only of those on the page.
    pub fn sorted(&self, rows: &str) -> String {
        let (object, order) = (self.object, order_by(self.list));
        format!(
            "SELECT {object} AS body
             FROM (SELECT c.seq FROM {rows} ORDER BY {order} LIMIT :page_size + 0 OFFSET :page_offset) page
             CROSS JOIN commands c ON c.seq = page.seq ORDER BY {order}"
        )
    }

    /// The rows of `commands c` that a search for rare words finds, if the caller can read them; it
    /// ends with a condition.
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
