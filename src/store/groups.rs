//! The D1 tables of groups and memberships. If a deletion affects other rows, triggers of the
//! tables delete or change those rows.

use farhand_domain::audit::event::AuditEvent;
use farhand_domain::error::Error;
use farhand_domain::people::group::{
    GroupChanges, GroupFilter, Membership, MembershipFilter, NewMembership, Role,
};
use farhand_sql::statement::Value;
use serde::Deserialize;
use uuid::Uuid;

use super::audit::{self, NumberedResource};
use super::db::{self, params};
use super::idempotency_keys::ReplaySource;
use super::list::{Filters, List};
use super::scope::{Query, Scope};
use super::transaction::Transaction;

/// SQL for the group object (contract 5.4) of a row of `groups g`, as JSON.
const OBJECT: &str = "json_object('id', g.id, 'name', g.name, 'display_name', g.display_name,
    'description', g.description,
    'num_members', (SELECT count(*) FROM memberships n WHERE n.workspace_id = g.workspace_id AND n.group_id = g.id),
    'servers', json((SELECT json_group_array(i.server_id) FROM (SELECT server_id FROM server_groups
        WHERE workspace_id = g.workspace_id AND group_id = g.id ORDER BY server_id) i)),
    'added_at', g.added_at, 'updated_at', g.updated_at)";

/// Reads the response to a creation.
pub const REPLAY: ReplaySource = ReplaySource {
    object: OBJECT,
    row: "groups g ON g.workspace_id = me.workspace_id AND g.name = :resource AND g.added_at = :now",
};

/// SQL for the condition that the caller is staff, and therefore can see all groups.
const IS_STAFF: &str = "(me.is_superuser OR me.is_staff)";

/// SQL for the caller's role in a group; null if the caller is not a member. `group` is SQL for the
/// group's id.
fn role_in(group: &str) -> String {
    format!(
        "(SELECT v.role FROM memberships v
          WHERE v.workspace_id = me.workspace_id AND v.user_id = me.user_id AND v.group_id = {group})"
    )
}

/// SQL for the condition that the caller can see a group of the workspace. `group` is SQL for the
/// group's id.
fn is_visible(group: &str) -> String {
    format!("({IS_STAFF} OR {} IS NOT NULL)", role_in(group))
}

/// SQL for the condition that the caller may edit a group of the workspace and grant every role in
/// it. `group` is SQL for the group's id.
fn is_editable(group: &str) -> String {
    format!("({IS_STAFF} OR {} = 'owner')", role_in(group))
}

/// SQL for the group object of the group `:id`, if the caller can see it.
fn by_id_sql() -> String {
    format!(
        "(SELECT {OBJECT} FROM groups g WHERE g.id = :id AND g.workspace_id = me.workspace_id AND {})",
        is_visible("g.id")
    )
}

/// Reads the group object of a group that the caller can see.
pub fn by_id(id: i64) -> Query {
    Query::new(by_id_sql(), params! { id })
}

/// Lists the groups that the caller can see. For a caller who is not staff, only the caller's
/// memberships are read.
pub fn list(filter: &GroupFilter) -> List {
    let text = "g.name || char(10) || g.folded_display_name || char(10) || g.folded_description";
    let Filters { sql: filters, parameters } = Filters::default()
        .with("g.name = :name", "name", filter.name.as_ref())
        .with_words(text, &filter.words);
    let branches = [
        format!("groups g WHERE {IS_STAFF} AND g.workspace_id = me.workspace_id{filters}"),
        format!(
            "memberships v CROSS JOIN groups g ON g.id = v.group_id AND g.workspace_id = v.workspace_id
             WHERE NOT {IS_STAFF} AND v.workspace_id = me.workspace_id AND v.user_id = me.user_id{filters}"
        ),
    ];
    List::new("", ("groups g", OBJECT), &branches, "g.id", parameters)
}

/// Whether at least one of these servers does not exist in the workspace, as a JSON boolean.
pub fn names_unknown_server(servers: &[Uuid]) -> Query {
    Query::new(has_unknown_server(":servers"), params! { servers: Value::list(servers) })
}

/// SQL for whether at least one server of a JSON array does not exist in the workspace. `parameter`
/// is SQL for the array of ids.
fn has_unknown_server(parameter: &str) -> String {
    format!(
        "json(iif(EXISTS (SELECT 1 FROM json_each({parameter}) wanted WHERE NOT EXISTS (
            SELECT 1 FROM servers s WHERE s.id = wanted.value AND s.workspace_id = me.workspace_id)), 'true', 'false'))"
    )
}

/// The data that the checks of a group change need.
#[derive(Debug, Deserialize)]
pub struct GroupForChange {
    pub name: String,
    /// The caller's role in the group.
    pub role: Option<Role>,
    /// The group's servers, sorted.
    pub servers: Vec<Uuid>,
    /// Whether at least one of the new servers does not exist.
    pub has_unknown_server: bool,
}

/// Reads a group as [`GroupForChange`]. `servers` are the group's servers after the change.
pub fn for_change(id: i64, servers: &[Uuid]) -> Query {
    let sql = format!(
        "(SELECT json_object('name', g.name, 'role', {},
            'servers', json((SELECT json_group_array(i.server_id) FROM (SELECT server_id FROM server_groups
                WHERE workspace_id = g.workspace_id AND group_id = g.id ORDER BY server_id) i)),
            'has_unknown_server', {})
          FROM groups g WHERE g.id = :id AND g.workspace_id = me.workspace_id AND {})",
        role_in("g.id"),
        has_unknown_server(":servers"),
        is_visible("g.id")
    );
    Query::new(sql, params! { id, servers: Value::list(servers) })
}

/// Creates a group owned by the caller, if the caller is staff. The reply is the group.
///
/// D1 assigns the group's id, so the other statements need another way to find the group. The
/// second statement finds the group by its name, and because it has no member yet. It inserts the
/// caller's membership with the id `membership`. The remaining statements find the group by this
/// id.
pub fn insert(
    scope: &Scope<'_>,
    new: &GroupChanges,
    membership: Uuid,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let [name, display_name, description] = [&new.name, &new.display_name, &new.description]
        .map(|text| text.as_deref().unwrap_or_default());
    let insert = scope
        .statement(
            "INSERT INTO groups (workspace_id, id, name, display_name, description, folded_display_name, folded_description,
                added_at, updated_at)
             SELECT workspace_id, (SELECT w.last_group_id + 1 FROM workspaces w WHERE w.id = me.workspace_id),
                :name, :display_name, :description, :folded_display_name, :folded_description, :now, :now
             FROM me WHERE is_staff OR is_superuser
             RETURNING name AS body",
        )
        .bind_all(params! {
            name, display_name, description, folded_display_name: display_name.to_lowercase(),
            folded_description: description.to_lowercase(),
        });
    let own = scope
        .statement(
            "INSERT INTO memberships (id, workspace_id, group_id, user_id, role)
             SELECT :membership, g.workspace_id, g.id, me.user_id, 'owner' FROM me
             CROSS JOIN groups g ON g.workspace_id = me.workspace_id AND g.name = :name
             WHERE (me.is_staff OR me.is_superuser) AND NOT EXISTS (
                SELECT 1 FROM memberships m WHERE m.workspace_id = g.workspace_id AND m.group_id = g.id)",
        )
        .bind_all(params! { membership, name });
    let join = scope
        .statement(
            "INSERT INTO server_groups (workspace_id, group_id, server_id)
             SELECT m.workspace_id, m.group_id, s.id FROM me
             CROSS JOIN memberships m ON m.id = :membership AND m.workspace_id = me.workspace_id
             CROSS JOIN json_each(:servers) wanted
             CROSS JOIN servers s ON s.id = wanted.value AND s.workspace_id = m.workspace_id",
        )
        .bind_all(params! {
            membership, servers: Value::list(new.servers.as_deref().unwrap_or_default()),
        });
    let select = scope
        .statement(&format!(
            "SELECT {OBJECT} AS body FROM me CROSS JOIN memberships m ON m.id = :membership AND m.workspace_id = me.workspace_id
             CROSS JOIN groups g ON g.id = m.group_id AND g.workspace_id = m.workspace_id"
        ))
        .bind("membership", membership);
    let event = audit::after_insert_by(scope, NumberedResource::Group, event)?;
    Ok(Transaction::default().change(insert, event).then(own).then(join).returning(select))
}

/// Changes a group, if the caller still has the permission. Owners and staff may change the texts.
/// Staff may change the servers. The reply is the group.
pub fn update(
    scope: &Scope<'_>,
    id: i64,
    changes: &GroupChanges,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let update = scope
        .statement(&format!(
            "UPDATE groups SET name = coalesce(:name, name), display_name = coalesce(:display_name, display_name),
                description = coalesce(:description, description), folded_display_name = coalesce(:folded_display_name, folded_display_name),
                folded_description = coalesce(:folded_description, folded_description), updated_at = :now
             WHERE id = :id AND workspace_id = (SELECT me.workspace_id FROM me
                WHERE {} AND (:keeps_servers OR me.is_staff OR me.is_superuser))
             RETURNING name AS body",
            is_editable(":id")
        ))
        .bind_all(params! {
            id, name: changes.name.as_ref(), display_name: changes.display_name.as_ref(),
            description: changes.description.as_ref(),
            folded_display_name: changes.display_name.as_ref().map(|text| text.to_lowercase()),
            folded_description: changes.description.as_ref().map(|text| text.to_lowercase()),
            keeps_servers: changes.servers.is_none(),
        });
    let mut batch = Transaction::default().change(update, audit::after_change_by(scope, event)?);
    if let Some(servers) = &changes.servers {
        let servers = Value::list(servers);
        let leave = scope.statement(
            "DELETE FROM server_groups WHERE group_id = :id
             AND workspace_id = (SELECT workspace_id FROM me WHERE is_staff OR is_superuser)
             AND server_id NOT IN (SELECT value FROM json_each(:servers))",
        );
        let join = scope.statement(
            "INSERT INTO server_groups (workspace_id, group_id, server_id)
             SELECT g.workspace_id, g.id, s.id FROM me
             CROSS JOIN groups g ON g.id = :id AND g.workspace_id = me.workspace_id
             CROSS JOIN json_each(:servers) wanted
             CROSS JOIN servers s ON s.id = wanted.value AND s.workspace_id = g.workspace_id
             WHERE me.is_staff OR me.is_superuser
             ON CONFLICT (workspace_id, group_id, server_id) DO NOTHING",
        );
        batch = batch
            .then(leave.bind_all(params! { id, servers: servers.clone() }))
            .then(join.bind_all(params! { id, servers }));
    }
    Ok(batch.returning(
        scope.statement(&format!("SELECT {} AS body FROM me", by_id_sql())).bind("id", id),
    ))
}

/// Deletes a group, if the caller still has the permission.
pub fn delete(scope: &Scope<'_>, id: i64, event: &AuditEvent) -> Result<Transaction, Error> {
    let sql = format!(
        "DELETE FROM groups WHERE id = :id AND workspace_id = (SELECT me.workspace_id FROM me WHERE {})
         RETURNING name AS body",
        is_editable(":id")
    );
    Ok(Transaction::default()
        .change(scope.statement(&sql).bind("id", id), audit::after_change_by(scope, event)?))
}

// Memberships.

/// SQL for the membership object (contract 5.4) of a row of `memberships m`, as JSON.
const MEMBERSHIP: &str =
    "json_object('id', m.id, 'group', m.group_id, 'user', m.user_id, 'role', m.role)";

/// Reads the response to the creation of a membership.
pub const MEMBERSHIP_REPLAY: ReplaySource = ReplaySource {
    object: MEMBERSHIP,
    row: "memberships m ON m.id = :resource AND m.workspace_id = me.workspace_id",
};

/// SQL for whether the group of a row of `memberships m` has another owner.
const HAS_OTHER_OWNER: &str =
    "EXISTS (SELECT 1 FROM memberships o WHERE o.workspace_id = m.workspace_id
    AND o.group_id = m.group_id AND o.role = 'owner' AND o.id <> m.id)";

/// SQL for whether a user is the only owner of a group. `users` is the table of users, or its
/// alias.
pub fn is_only_owner(users: &str) -> String {
    format!(
        "EXISTS (SELECT 1 FROM memberships m
          WHERE m.workspace_id = {users}.workspace_id AND m.user_id = {users}.id AND m.role = 'owner'
          AND NOT {HAS_OTHER_OWNER})"
    )
}

/// Reads the membership object of a membership in a group that the caller can see.
pub fn membership(id: Uuid) -> Query {
    let sql = format!(
        "(SELECT {MEMBERSHIP} FROM memberships m WHERE m.id = :id AND m.workspace_id = me.workspace_id AND {})",
        is_visible("m.group_id")
    );
    Query::new(sql, params! { id })
}

/// Lists the memberships in groups that the caller can see. For a caller who is not staff, only the
/// caller's groups are read.
pub fn list_memberships(filter: MembershipFilter) -> List {
    let is_narrow = filter.group.is_some() || filter.user.is_some();
    let Filters { sql: filters, parameters } = Filters::default()
        .with("m.group_id = :group", "group", filter.group)
        .with("m.user_id = :user", "user", filter.user)
        .with("m.role = :role", "role", filter.role.map(Role::as_str));
    let branches = [
        format!("memberships m WHERE {IS_STAFF} AND m.workspace_id = me.workspace_id{filters}"),
        format!(
            "memberships v CROSS JOIN memberships m ON m.workspace_id = v.workspace_id AND m.group_id = v.group_id
             WHERE NOT {IS_STAFF} AND v.workspace_id = me.workspace_id AND v.user_id = me.user_id{filters}"
        ),
    ];
    // A group or a user has few memberships. The plus sign makes SQLite find them by their own
    // index and sort them, instead of reading all memberships in the order of the list.
    let order = if is_narrow { "+m.id" } else { "m.id" };
    List::new("", ("memberships m", MEMBERSHIP), &branches, order, parameters)
}

/// The data that the checks of a new membership need.
#[derive(Debug, Deserialize)]
pub struct GroupForJoining {
    /// Whether the group exists.
    pub has_group: bool,
    /// The caller's role in the group.
    pub role: Option<Role>,
    /// Whether the user exists.
    pub has_user: bool,
}

/// Reads a group and a user as [`GroupForJoining`].
pub fn for_joining(group: i64, user: i64) -> Query {
    let sql = format!(
        "json_object('has_group', json(iif(EXISTS (SELECT 1 FROM groups g
                WHERE g.id = :group AND g.workspace_id = me.workspace_id), 'true', 'false')),
            'role', {},
            'has_user', json(iif(EXISTS (SELECT 1 FROM users u
                WHERE u.id = :user AND u.workspace_id = me.workspace_id), 'true', 'false')))",
        role_in(":group")
    );
    Query::new(sql, params! { group, user })
}

/// Adds a user to a group, if the caller still has the permission, and group and user still exist.
/// The reply is the membership.
pub fn insert_membership(
    scope: &Scope<'_>,
    id: Uuid,
    new: NewMembership,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let sql = format!(
        "INSERT INTO memberships (id, workspace_id, group_id, user_id, role)
         SELECT :id, me.workspace_id, g.id, u.id, :role FROM me
         CROSS JOIN groups g ON g.id = :group AND g.workspace_id = me.workspace_id
         CROSS JOIN users u ON u.id = :user AND u.workspace_id = me.workspace_id
         WHERE {} OR (:role = 'member' AND {} = 'manager')
         RETURNING {} AS body",
        is_editable("g.id"),
        role_in("g.id"),
        db::returned(MEMBERSHIP, "m")
    );
    let insert = scope
        .statement(&sql)
        .bind_all(params! { id, group: new.group, user: new.user, role: new.role.as_str() });
    Ok(Transaction::default().change(insert, audit::after_change_by(scope, event)?))
}

/// The data that the checks of a membership change need.
#[derive(Debug, Deserialize)]
pub struct MembershipForChange {
    pub membership: Membership,
    /// The caller's role in the group.
    pub role: Option<Role>,
    /// Whether the group has another owner.
    pub has_other_owner: bool,
}

/// Reads a membership as [`MembershipForChange`].
pub fn membership_for_change(id: Uuid) -> Query {
    let sql = format!(
        "(SELECT json_object('membership', {MEMBERSHIP}, 'role', {},
            'has_other_owner', json(iif({HAS_OTHER_OWNER}, 'true', 'false')))
          FROM memberships m WHERE m.id = :id AND m.workspace_id = me.workspace_id AND {})",
        role_in("m.group_id"),
        is_visible("m.group_id")
    );
    Query::new(sql, params! { id })
}

/// Changes the role of a membership, if the membership is unchanged since it was read and the
/// caller still has the permission. The reply is the membership.
pub fn update_membership(
    scope: &Scope<'_>,
    membership: Membership,
    role: Role,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let sql = format!(
        "UPDATE memberships AS m SET role = :role WHERE m.id = :id AND m.role = :old_role
         AND m.workspace_id = (SELECT me.workspace_id FROM me WHERE {})
         AND (m.role <> 'owner' OR :role = 'owner' OR {HAS_OTHER_OWNER})
         RETURNING {} AS body",
        is_editable("m.group_id"),
        db::returned(MEMBERSHIP, "m")
    );
    let update = scope.statement(&sql).bind_all(params! {
        id: membership.id, old_role: membership.role.as_str(), role: role.as_str(),
    });
    Ok(Transaction::default().change(update, audit::after_change_by(scope, event)?))
}

/// Deletes a membership, if the membership is unchanged since it was read and the caller still has
/// the permission.
pub fn delete_membership(
    scope: &Scope<'_>,
    membership: Membership,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let sql = format!(
        "DELETE FROM memberships AS m WHERE m.id = :id AND m.role = :role
         AND m.workspace_id = (SELECT me.workspace_id FROM me
            WHERE {} OR (m.role = 'member' AND {} = 'manager') OR m.user_id = me.user_id)
         AND (m.role <> 'owner' OR {HAS_OTHER_OWNER})
         RETURNING id AS body",
        is_editable("m.group_id"),
        role_in("m.group_id")
    );
    let delete = scope.statement(&sql).bind_all(params! {
        id: membership.id, role: membership.role.as_str(),
    });
    Ok(Transaction::default().change(delete, audit::after_change_by(scope, event)?))
}
