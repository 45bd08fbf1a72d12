//! The list for an API token that can read only commands that its access control list allows
//! (contract 4.13).

use farhand_domain::command::list::CommandList;

use super::access::{ACCESSIBLE_SERVERS, HAS_FULL_ACCESS, IS_READABLE};
use super::order::{BY_BATCH, BY_REQUESTER, BY_SCHEDULE, BY_SERVER};
use super::{ListSql, Parts};

/// The maximum number of due commands that such a list compares with the access control list, and
/// also the maximum number of scheduled commands. It compares the latest due commands and the next
/// scheduled commands. No index helps with the comparison.
pub const MAX_COMPARED: u32 = 1_000;

/// SQL for the comparison of commands with an access control list (ACL).
pub struct AclSql<'a> {
    /// The query for the common table `patterns`: the ACL's patterns of lines.
    pub patterns: &'a str,
    /// The query for the common table `lists`: the ACL's lists of words.
    pub lists: &'a str,
    /// The query for the common table `cost`. Its one row has the cost of a comparison. The query
    /// may use `patterns` and `lists`.
    pub cost: &'a str,
    /// SQL for the cost of comparing a row of `commands c`. It may use `cost`.
    pub cost_of_row: &'a str,
    /// The maximum cost of all comparisons. After it is reached, no further command is compared.
    pub max_cost: u32,
    /// SQL for the condition that the ACL allows a row of `commands c`. It may use `me`, `patterns`
    /// and `lists`.
    pub is_within: &'a str,
}

/// SQL for a page of the list.
pub fn narrow_sql(list: &CommandList, offset: u64, object: &str, within: &AclSql<'_>) -> ListSql {
    let AclSql { patterns, lists, cost, cost_of_row, max_cost, is_within } = within;
    let parts = Parts::new(list, offset, object, false);
    let (filters, newest) = (&parts.filters, newest(list));
    // Due commands are compared first, so that scheduled commands do not use up the cost.
    let tables = format!(
        ", {ACCESSIBLE_SERVERS}, patterns AS MATERIALIZED ({patterns}), lists AS MATERIALIZED ({lists}), cost AS MATERIALIZED ({cost}),
         newest AS MATERIALIZED ({newest}),
         looked_at AS MATERIALIZED (SELECT c.seq, sum({cost_of_row}) OVER (
                ORDER BY iif(c.scheduled_at > :now, c.scheduled_at, ''), c.scheduled_at DESC, c.id DESC
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS spent
            FROM me CROSS JOIN newest n CROSS JOIN commands c ON c.seq = n.seq CROSS JOIN cost WHERE {filters}),
         allowed AS MATERIALIZED (SELECT c.seq FROM me CROSS JOIN looked_at n CROSS JOIN commands c ON c.seq = n.seq
            WHERE coalesce(n.spent, 0) < {max_cost} AND {is_within}),
         total AS (SELECT count(*) AS total FROM allowed)"
    );
    let items =
        parts.sort("me CROSS JOIN allowed a CROSS JOIN commands c ON c.seq = a.seq WHERE true");
    ListSql { tables, items, full_access: None, parameters: parts.parameters }
}

/// SQL for the commands that are compared: the latest due commands and the next scheduled commands.
/// If the list has filters by server or requester, only matching commands.
fn newest(list: &CommandList) -> String {
    let due = first_commands(list, "c.scheduled_at <= :now", "DESC");
    let scheduled = first_commands(list, "c.scheduled_at > :now", "ASC");
    format!("{due} UNION ALL {scheduled}")
}

/// SQL for the first [`MAX_COMPARED`] commands that meet a condition on `scheduled_at`, sorted by
/// `scheduled_at` in a direction.
fn first_commands(list: &CommandList, condition: &str, direction: &str) -> String {
    let order =
        format!("ORDER BY c.scheduled_at {direction}, c.id {direction} LIMIT {MAX_COMPARED}");
    let of_requester =
        if list.requested_by.is_some() { "AND c.requested_by = :requested_by" } else { "" };
    let of_server = if list.server.is_some() { "AND c.server_id = :server" } else { "" };
    let of_batch = match (list.batch, list.schedule) {
        (Some(_), _) => "AND c.batch_id = :batch",
        (None, Some(_)) => {
            "AND c.batch_id IN (SELECT b.id FROM me CROSS JOIN batches b
                ON b.workspace_id = me.workspace_id AND b.schedule_id = :schedule)"
        }
        (None, None) => "",
    };
    let scan = |index: &str, applies: &str, more: &str| {
        format!(
            "SELECT c.seq FROM commands c INDEXED BY {index}
             WHERE c.workspace_id = (SELECT me.workspace_id FROM me WHERE {applies}) AND {condition}
             {of_batch} {of_server} {of_requester} {more} {order}"
        )
    };
    let index = match (list.server, list.requested_by) {
        _ if !of_batch.is_empty() => BY_BATCH,
        (Some(_), _) => BY_SERVER,
        (None, Some(_)) => BY_REQUESTER,
        (None, None) => BY_SCHEDULE,
    };
    let full_access = scan(index, HAS_FULL_ACCESS, "");
    let partial_access = if [BY_BATCH, BY_REQUESTER].contains(&index) {
        scan(index, &format!("NOT {HAS_FULL_ACCESS}"), &format!("AND {IS_READABLE}"))
    } else {
        format!(
            "SELECT c.seq FROM me CROSS JOIN accessible_servers s CROSS JOIN json_each((SELECT json_group_array(seq) FROM (
                SELECT c.seq FROM commands c INDEXED BY {BY_SERVER}
                WHERE c.workspace_id = me.workspace_id AND c.server_id = s.id AND {condition} {of_server} {of_requester}
                    AND (s.all_commands OR c.requested_by = me.user_id) {order}))) first
             CROSS JOIN commands c ON c.seq = first.value WHERE NOT {HAS_FULL_ACCESS} {order}"
        )
    };
    format!("SELECT seq FROM ({full_access}) UNION ALL SELECT seq FROM ({partial_access})")
}
