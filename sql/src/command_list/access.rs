//! The servers that a caller can access.

use crate::labels_match;

/// SQL for whether the caller can access all servers of the workspace.
pub const HAS_FULL_ACCESS: &str =
    "((me.is_superuser OR me.is_staff) AND me.acl_servers IS NULL AND me.acl_selector IS NULL)";

/// Common table expressions that follow `me`, for callers without full access.
///
/// - `restricted`: the row of `me` if the caller does not have full access, otherwise empty.
/// - `accessible_servers`: the servers on which the caller can read commands. If the caller has
///   full access, it is empty and reads no row. `all_commands` is 1 if the caller can read all
///   commands of the server. It is 0 for a deleted server, where the caller can only read the
///   commands that the caller requested. Staff with an access control list of servers can read all
///   commands of the servers on that list. The selector of an access control list limits all
///   callers to servers whose labels match. A deleted server has no labels, and matches no
///   selector.
pub const ACCESSIBLE_SERVERS: &str = concat!(
    "restricted AS MATERIALIZED (
    SELECT * FROM me WHERE NOT (me.is_superuser OR me.is_staff) OR me.acl_servers IS NOT NULL OR me.acl_selector IS NOT NULL
), accessible_servers AS MATERIALIZED (
    SELECT id, max(all_commands) AS all_commands FROM (
        SELECT o.id, 1 AS all_commands FROM restricted r
        CROSS JOIN servers o ON o.workspace_id = r.workspace_id AND o.owner_id = r.user_id
        WHERE NOT (r.is_superuser OR r.is_staff)
        UNION ALL
        SELECT g.server_id, 1 FROM restricted r
        CROSS JOIN memberships m ON m.workspace_id = r.workspace_id AND m.user_id = r.user_id
        CROSS JOIN server_groups g ON g.workspace_id = m.workspace_id AND g.group_id = m.group_id
        WHERE NOT (r.is_superuser OR r.is_staff)
        UNION ALL
        SELECT q.server_id, 0 FROM restricted r
        CROSS JOIN command_requesters q ON q.workspace_id = r.workspace_id AND q.user_id = r.user_id
        CROSS JOIN deleted_servers_with_commands d ON d.workspace_id = q.workspace_id AND d.id = q.server_id
        WHERE NOT (r.is_superuser OR r.is_staff)
        UNION ALL
        SELECT a.value, 1 FROM restricted r CROSS JOIN json_each(r.acl_servers) a WHERE r.is_superuser OR r.is_staff
        UNION ALL
        SELECT s.id, 1 FROM restricted r CROSS JOIN servers s ON s.workspace_id = r.workspace_id
        WHERE (r.is_superuser OR r.is_staff) AND r.acl_servers IS NULL
    ) server WHERE ((SELECT acl_servers IS NULL FROM restricted)
        OR id IN (SELECT a.value FROM restricted r CROSS JOIN json_each(r.acl_servers) a))
        AND ((SELECT acl_selector IS NULL FROM restricted)
        OR EXISTS (SELECT 1 FROM restricted r CROSS JOIN servers s ON s.id = server.id AND s.workspace_id = r.workspace_id
            WHERE ",
    labels_match!("s.labels", "r.acl_selector"),
    "))
    GROUP BY id
)"
);

/// SQL for the condition that a caller without full access can read a row of `commands c`.
pub const IS_READABLE: &str =
    "c.server_id IN (SELECT id FROM accessible_servers) AND (c.requested_by = (SELECT user_id FROM me)
    OR c.server_id NOT IN (SELECT id FROM accessible_servers WHERE NOT all_commands))";
