//! The servers that a caller can access.

/// SQL for whether the caller can access all of the workspace's servers.
pub const HAS_FULL_ACCESS: &str = "((me.is_superuser OR me.is_staff) AND me.acl_servers IS NULL)";

/// Common tables that follow `me`. `reached` has the servers whose commands a caller without full
/// access can read. If a server was deleted, `is_whole` is 0: the caller can read only their own
/// commands on it. Staff with a list of servers can read all commands on the servers of that list.
///
/// For a caller with full access it is empty, and reads nothing.
pub const REACHED: &str = "some AS MATERIALIZED (
    SELECT * FROM me WHERE NOT (me.is_superuser OR me.is_staff) OR me.acl_servers IS NOT NULL
), reached AS MATERIALIZED (
    SELECT id, max(is_whole) AS is_whole FROM (
        SELECT o.id, 1 AS is_whole FROM some
        CROSS JOIN servers o ON o.workspace_id = some.workspace_id AND o.owner_id = some.user_id
        WHERE NOT (some.is_superuser OR some.is_staff)
        UNION ALL
        SELECT g.server_id, 1 FROM some
        CROSS JOIN memberships m ON m.workspace_id = some.workspace_id AND m.user_id = some.user_id
        CROSS JOIN server_groups g ON g.workspace_id = m.workspace_id AND g.group_id = m.group_id
        WHERE NOT (some.is_superuser OR some.is_staff)
        UNION ALL
        SELECT q.server_id, 0 FROM some
        CROSS JOIN command_requesters q ON q.workspace_id = some.workspace_id AND q.user_id = some.user_id
        CROSS JOIN gone_servers d ON d.workspace_id = q.workspace_id AND d.id = q.server_id
        WHERE NOT (some.is_superuser OR some.is_staff)
        UNION ALL
        SELECT a.value, 1 FROM some CROSS JOIN json_each(some.acl_servers) a WHERE some.is_superuser OR some.is_staff
    ) WHERE (SELECT acl_servers IS NULL FROM some)
        OR id IN (SELECT a.value FROM some CROSS JOIN json_each(some.acl_servers) a)
    GROUP BY id
)";

/// The condition that a caller without full access can read a row of `commands c`.
pub const IS_READABLE: &str =
    "c.server_id IN (SELECT id FROM reached) AND (c.requested_by = (SELECT user_id FROM me)
    OR c.server_id NOT IN (SELECT id FROM reached WHERE NOT is_whole))";
