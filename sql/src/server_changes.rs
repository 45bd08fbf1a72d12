//! The limit of rotated keys and deleted servers of a user within an hour (contract 11.4). The audit
//! log counts: each change has its event in the same transaction.

/// The audit actions that count.
const ACTIONS: [&str; 2] = ["server.delete", "server.rotate_key"];

/// The user whose changes count. All fields are SQL expressions.
#[derive(Clone, Copy, Debug)]
pub struct Changer<'a> {
    /// The workspace's id.
    pub workspace: &'a str,
    /// The user's name.
    pub username: &'a str,
    /// Whether the user is a superuser.
    pub is_superuser: &'a str,
}

/// SQL for the time of the change that must be over an hour ago before the user may make another
/// one; null if the user may make one now. Parameters: `:since`, the beginning of the window, and
/// the limits `:user_limit` and `:superuser_limit`, which are at least 1.
pub fn limiting_change(of: Changer<'_>) -> String {
    let (user, superuser) = (within(of, ":user_limit"), within(of, ":superuser_limit"));
    format!("(CASE WHEN {} THEN {superuser} ELSE {user} END)", of.is_superuser)
}

/// Reads at most `limit` events of each action. SQLite does not allow columns in a LIMIT.
fn within(Changer { workspace, username, .. }: Changer<'_>, limit: &str) -> String {
    let events = ACTIONS.map(|action| {
        format!(
            "SELECT * FROM (SELECT e.occurred_at FROM audit_events e INDEXED BY audit_events_by_action
                WHERE e.workspace_id = {workspace} AND e.action = '{action}' AND e.actor_name = {username}
                AND e.actor_type = 'user' AND e.outcome = 'success' ORDER BY e.seq DESC LIMIT {limit} + 0)"
        )
    });
    format!(
        "(SELECT c.occurred_at FROM ({}) c WHERE c.occurred_at > :since
          ORDER BY c.occurred_at DESC LIMIT 1 OFFSET {limit} - 1)",
        events.join(" UNION ALL ")
    )
}
