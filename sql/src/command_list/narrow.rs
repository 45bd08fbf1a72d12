//! The list of an API token that reads only commands its access control list allows
//! (contract 4.13).

use farhand_domain::command_list::CommandList;

use super::access::{HAS_FULL_ACCESS, IS_READABLE, REACHED};
use super::order::{BY_REQUESTER, BY_SERVER};
use super::{ListSql, Parts};

/// How many commands such a list compares with the access control list at most, on each side of the
/// present: the latest due ones by `scheduled_at`, and the next scheduled ones. No index helps to
/// compare them.
pub const NARROW_WINDOW: u32 = 1_000;

/// SQL for what an access control list allows.
pub struct Within<'a> {
    /// The list's patterns of lines, as the table `patterns`.
    pub patterns: &'a str,
    /// The list's lists of words, as the table `lists`.
    pub lists: &'a str,
    /// The cost of a comparison, as the table `cost` of one row, from the tables `patterns` and
    /// `lists`.
    pub cost: &'a str,
    /// The cost of a row of `commands c`, from the table `cost`.
    pub cost_of_row: &'a str,
    /// After this cost no further command is compared.
    pub most_cost: u32,
    /// The condition that the list allows a row of `commands c`; it may use `me` and the tables
    /// `patterns` and `lists`.
    pub is_within: &'a str,
}

/// SQL for a page of such a list.
pub fn narrow_sql(list: &CommandList, offset: u64, object: &str, within: &Within<'_>) -> ListSql {
    let Within { patterns, lists, cost, cost_of_row, most_cost, is_within } = within;
    let parts = Parts::new(list, offset, object, false);
    let (filters, newest) = (&parts.filters, newest(list));
    // Due commands are compared first, so that scheduled ones cannot use up the limit before them.
    let tables = format!(
        ", {REACHED}, patterns AS MATERIALIZED ({patterns}), lists AS MATERIALIZED ({lists}), cost AS MATERIALIZED ({cost}),
         newest AS MATERIALIZED ({newest}),
         looked_at AS MATERIALIZED (SELECT c.seq, sum({cost_of_row}) OVER (
                ORDER BY iif(c.scheduled_at > :now, c.scheduled_at, ''), c.scheduled_at DESC, c.id DESC
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS spent
            FROM me CROSS JOIN newest n CROSS JOIN commands c ON c.seq = n.seq CROSS JOIN cost WHERE {filters}),
         allowed AS MATERIALIZED (SELECT c.seq FROM me CROSS JOIN looked_at n CROSS JOIN commands c ON c.seq = n.seq
            WHERE coalesce(n.spent, 0) < {most_cost} AND {is_within}),
         total AS (SELECT count(*) AS total FROM allowed)"
    );
    let items =
        parts.sorted("me CROSS JOIN allowed a CROSS JOIN commands c ON c.seq = a.seq WHERE true");
    ListSql { tables, items, full_access: None, parameters: parts.parameters }
}

/// The commands that are compared: the nearest on each side of the present, limited to the list's
/// server and requester.
fn newest(list: &CommandList) -> String {
    let past = nearest(list, "c.scheduled_at <= :now", "DESC");
    let future = nearest(list, "c.scheduled_at > :now", "ASC");
    format!("{past} UNION ALL {future}")
}

/// The first [`NARROW_WINDOW`] commands on one `side` of the present, by `scheduled_at` in that
/// direction.
fn nearest(list: &CommandList, side: &str, direction: &str) -> String {
    let order =
        format!("ORDER BY c.scheduled_at {direction}, c.id {direction} LIMIT {NARROW_WINDOW}");
    let of_requester =
        if list.requested_by.is_some() { "AND c.requested_by = :requested_by" } else { "" };
    let of_server = if list.server.is_some() { "AND c.server_id = :server" } else { "" };
    let by = |index: &str, who: &str, more: &str| {
        format!(
            "SELECT c.seq FROM commands c INDEXED BY {index}
             WHERE c.workspace_id = (SELECT me.workspace_id FROM me WHERE {who}) AND {side}
             {of_server} {of_requester} {more} {order}"
        )
    };
    let index = match (list.server, list.requested_by) {
        (Some(_), _) => BY_SERVER,
        (None, Some(_)) => BY_REQUESTER,
        (None, None) => "commands_by_schedule",
    };
    let with_full_access = by(index, HAS_FULL_ACCESS, "");
    let without = if index == BY_REQUESTER {
        by(index, &format!("NOT {HAS_FULL_ACCESS}"), &format!("AND {IS_READABLE}"))
    } else {
        format!(
            "SELECT c.seq FROM me CROSS JOIN reached r CROSS JOIN json_each((SELECT json_group_array(seq) FROM (
                SELECT c.seq FROM commands c INDEXED BY {BY_SERVER}
                WHERE c.workspace_id = me.workspace_id AND c.server_id = r.id AND {side} {of_server} {of_requester}
                    AND (r.is_whole OR c.requested_by = me.user_id) {order}))) first
             CROSS JOIN commands c ON c.seq = first.value WHERE NOT {HAS_FULL_ACCESS} {order}"
        )
    };
    format!("SELECT seq FROM ({with_full_access}) UNION ALL SELECT seq FROM ({without})")
}
