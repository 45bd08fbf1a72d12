//! How a server is kept after its deletion, and restored (contract 6.6).

use farhand_domain::link::server_facts::UNDELETED_REVISIONS;

/// The columns of `servers` that an undeleted server gets back, except the name.
pub const KEPT: &str =
    "workspace_id, id, agent_key_hash, next_key_hash, old_key_valid_until, owner_id,
    commissioned, remote_ip, platform, os_name, os_version, agent_version, cpu_logical_cores,
    physical_memory, connected_at, last_seen_at, added_at, folded, registration,
    fingerprint, default_username, reported_username, labels, policy";

/// The statement that keeps the rows of `servers s` that fulfil a condition. The deletion follows it.
/// Parameters: `:at`, `:purge_at` (null: nothing is kept), and `:by`, the id of the user who deletes.
pub fn keep(condition: &str) -> String {
    format!(
        "INSERT OR REPLACE INTO deleted_servers ({KEPT}, name, updated_at, link_revision, groups, deleted_at, purge_at, deleted_by)
         SELECT {KEPT}, s.name, s.updated_at, s.link_revision,
            (SELECT json_group_array(i.group_id) FROM (SELECT group_id FROM server_groups
                WHERE workspace_id = s.workspace_id AND server_id = s.id ORDER BY group_id) i),
            :at, :purge_at, (SELECT u.username FROM users u WHERE u.workspace_id = s.workspace_id AND u.id = :by)
         FROM servers s WHERE :purge_at IS NOT NULL AND {condition}"
    )
}

/// The statement that restores the deleted server `:server_id` with the name `:name`, if the name is
/// free and `condition` on the row of `deleted_servers s` is true. `:at` is the current time.
pub fn restore(condition: &str) -> String {
    format!(
        "INSERT INTO servers ({KEPT}, name, updated_at, link_revision)
         SELECT {KEPT}, :name, :at, s.link_revision + {UNDELETED_REVISIONS} FROM deleted_servers s
         WHERE s.workspace_id = :workspace_id AND s.id = :server_id AND s.purge_at > :at AND {condition}
            AND NOT EXISTS (SELECT 1 FROM servers o WHERE o.workspace_id = s.workspace_id
                AND (o.name = :name OR o.id = s.id))"
    )
}

/// The statement that adds the restored server to its groups that still exist and are not full.
/// `is_full`: SQL for whether the group `g.id` of the workspace `:workspace_id` is full.
pub fn rejoin(is_full: &str) -> String {
    format!(
        "INSERT INTO server_groups (workspace_id, group_id, server_id)
         SELECT s.workspace_id, g.id, s.id FROM deleted_servers s
         JOIN servers o ON o.workspace_id = s.workspace_id AND o.id = s.id
         CROSS JOIN json_each(s.groups) kept
         CROSS JOIN groups g ON g.workspace_id = s.workspace_id AND g.id = kept.value
         WHERE s.workspace_id = :workspace_id AND s.id = :server_id AND NOT {is_full}
         ON CONFLICT (workspace_id, group_id, server_id) DO NOTHING"
    )
}

/// The statement that forgets the deletion of the restored server.
pub const FORGET: &str = "DELETE FROM deleted_servers WHERE workspace_id = :workspace_id AND id = :server_id
    AND EXISTS (SELECT 1 FROM servers s WHERE s.workspace_id = :workspace_id AND s.id = :server_id)";

/// The statement that deletes the row of the restored server in `deleted_servers_with_commands`.
pub const FORGET_WITH_COMMANDS: &str = "DELETE FROM deleted_servers_with_commands
    WHERE workspace_id = :workspace_id AND id = :server_id
    AND EXISTS (SELECT 1 FROM servers s WHERE s.workspace_id = :workspace_id AND s.id = :server_id)";
