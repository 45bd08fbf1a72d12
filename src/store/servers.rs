//! The D1 table of servers.

use farhand_domain::agent::wire::PolicyMode;
use farhand_domain::audit::event::AuditEvent;
use farhand_domain::command::request::ServerRef;
use farhand_domain::error::Error;
use farhand_domain::fleet::labels::Labels;
use farhand_domain::fleet::server::{CHANGES_WINDOW, ServerChanges, ServerList, ServerOrderField};
use farhand_domain::people::group::MAX_SERVERS;
use farhand_domain::time::Timestamp;
use farhand_sql::command_list::{ACCESSIBLE_SERVERS, HAS_FULL_ACCESS};
use farhand_sql::labels_match;
use farhand_sql::selector;
use farhand_sql::server_changes::{Changer, limiting_change};
use farhand_sql::statement::{Statement, Value};
use serde::Deserialize;
use serde_json::Value as Json;
use uuid::Uuid;

use super::audit::after_change_by;
use super::database::Database;
use super::db::{self, params};
use super::idempotency_keys::ReplaySource;
use super::list::{Filters, List};
use super::scope::{Query, Scope};
use super::transaction::Transaction;
use crate::platform::Quotas;

/// SQL for the server object (contract 6.1) of a row of `servers s`, as JSON, as the caller `me`
/// sees it.
pub(super) const OBJECT: &str = "json_object('id', s.id, 'name', s.name,
    'is_connected', json(iif(s.is_connected, 'true', 'false')), 'remote_ip', s.remote_ip, 'platform', s.platform,
    'os_name', s.os_name, 'os_version', s.os_version, 'agent_version', s.agent_version,
    'cpu_logical_cores', s.cpu_logical_cores, 'physical_memory', s.physical_memory, 'load', s.load,
    'owner', (SELECT json_object('id', o.id, 'username', o.username, 'email', o.email) FROM users o
        WHERE o.id = s.owner_id AND o.workspace_id = s.workspace_id),
    'groups', (SELECT json_group_array(i.group_id) FROM (SELECT group_id FROM server_groups
        WHERE workspace_id = s.workspace_id AND server_id = s.id ORDER BY group_id) i),
    'registration', s.registration, 'fingerprint',
    iif(s.registration = 'pending' AND (me.is_staff OR me.is_superuser), s.fingerprint, NULL), 'connected_at', s.connected_at, 'last_seen_at', s.last_seen_at,
    'identity_conflict_at', s.identity_conflict_at,
    'default_username', coalesce(s.default_username, s.reported_username), 'labels', json(s.labels),
    'policy', json(s.policy), 'added_at', s.added_at, 'updated_at', s.updated_at)";

/// Reads the response to a creation.
pub const REPLAY: ReplaySource = ReplaySource {
    object: OBJECT,
    row: "servers s ON s.id = :resource AND s.workspace_id = me.workspace_id",
};

/// The value of [`IS_ACCESSIBLE`], for other constants.
macro_rules! is_accessible {
    () => {
        concat!(
            "s.workspace_id = me.workspace_id AND (me.is_superuser OR me.is_staff OR s.owner_id = me.user_id
        OR EXISTS (SELECT 1 FROM memberships m
            JOIN server_groups i ON i.workspace_id = m.workspace_id AND i.group_id = m.group_id AND i.server_id = s.id
            WHERE m.workspace_id = me.workspace_id AND m.user_id = me.user_id))
    AND (me.acl_servers IS NULL OR s.id IN (SELECT value FROM json_each(me.acl_servers)))
    AND ",
            farhand_sql::labels_match!("s.labels", "me.acl_selector")
        )
    };
}
pub(super) use is_accessible;

/// SQL for the condition that the caller can access a row of `servers s` (contract 5.5), and that
/// the access control list of the API token includes it (contract 4.12).
pub const IS_ACCESSIBLE: &str = is_accessible!();

/// SQL for whether the caller may run commands as any account of a row of `servers s` that the
/// caller can access (contract 5.6).
pub const MAY_USE_ANY_ACCOUNT: &str = "(me.is_superuser OR me.is_staff OR s.owner_id = me.user_id
    OR EXISTS (SELECT 1 FROM memberships m
        JOIN server_groups i ON i.workspace_id = m.workspace_id AND i.group_id = m.group_id AND i.server_id = s.id
        WHERE m.workspace_id = me.workspace_id AND m.user_id = me.user_id AND m.role IN ('manager', 'owner')))";

/// SQL for the condition that the caller may edit and delete a row of `servers s` (contract 5.7).
const IS_EDITABLE: &str = "(me.is_superuser OR me.is_staff OR s.owner_id = me.user_id)";

/// Reads the server object of a server that the caller can access.
pub fn by_id(id: Uuid) -> Query {
    Query::new(
        format!("(SELECT {OBJECT} FROM servers s WHERE s.id = :id AND {IS_ACCESSIBLE})"),
        params! { id },
    )
}

/// SQL for the server that a command names, as `{id, name, default_username, labels, any_account,
/// is_pending}`, and the value of the parameter `:server`. `any_account`: whether the caller may
/// run commands as any account there (contract 5.6).
pub fn for_command(server: &ServerRef) -> (String, String) {
    let (column, value) = match server {
        ServerRef::Id(id) => ("id", id.to_string()),
        ServerRef::Name(name) => ("name", name.clone()),
    };
    let sql = format!(
        "(SELECT json_object('id', s.id, 'name', s.name,
            'default_username', coalesce(s.default_username, s.reported_username), 'labels', json(s.labels),
            'any_account', json(iif({MAY_USE_ANY_ACCOUNT}, 'true', 'false')),
            'is_pending', json(iif(s.registration = 'pending', 'true', 'false')))
          FROM servers s WHERE s.{column} = :server AND {IS_ACCESSIBLE})"
    );
    (sql, value)
}

/// A server to be created.
#[derive(Debug)]
pub struct NewServer<'a> {
    pub id: Uuid,
    pub name: &'a str,
    /// The hash of the agent's key.
    pub key_hash: &'a str,
    /// The ids of the server's groups.
    pub groups: &'a [i64],
    /// The account for commands that do not name an account.
    pub default_username: Option<&'a str>,
    pub labels: &'a Labels,
}

/// Creates a server owned by the caller, if the caller is staff and [`group_problem`] finds no
/// problem. The reply is the server.
pub fn insert(
    scope: &Scope<'_>,
    new: &NewServer<'_>,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let insert = scope
        .statement(&format!(
            "INSERT INTO servers (id, workspace_id, name, agent_key_hash, owner_id, added_at, updated_at, default_username, labels)
             SELECT :id, workspace_id, :name, :key_hash, user_id, :now, :now, :default_username, :labels FROM me WHERE (is_staff OR is_superuser) AND {} IS NULL
             RETURNING id AS body",
            group_problem(":groups")
        ))
        .bind_all(params! {
            id: new.id, name: new.name, key_hash: new.key_hash, groups: Value::list(new.groups),
            default_username: new.default_username, labels: new.labels.json(),
        });
    let batch = Transaction::default().change(insert, after_change_by(scope, event)?);
    Ok(batch.then(join_groups(scope, new.id, new.groups)).returning(select(scope, new.id)))
}

/// The statement that selects a server that the caller can access, as `body`.
fn select(scope: &Scope<'_>, id: Uuid) -> Statement {
    scope
        .statement(&format!(
            "SELECT {OBJECT} AS body FROM me JOIN servers s ON s.id = :id AND {IS_ACCESSIBLE}"
        ))
        .bind("id", id)
}

/// The statement that adds a server to groups, if the caller is staff.
fn join_groups(scope: &Scope<'_>, id: Uuid, groups: &[i64]) -> Statement {
    scope
        .statement(
            "INSERT INTO server_groups (workspace_id, group_id, server_id)
             SELECT s.workspace_id, g.id, s.id FROM me
             CROSS JOIN servers s ON s.workspace_id = me.workspace_id AND s.id = :id
             CROSS JOIN json_each(:groups) wanted
             CROSS JOIN groups g ON g.workspace_id = me.workspace_id AND g.id = wanted.value
             WHERE me.is_staff OR me.is_superuser
             ON CONFLICT (workspace_id, group_id, server_id) DO NOTHING",
        )
        .bind_all(params! { id, groups: Value::list(groups) })
}

/// Checks whether a new server may be added to some groups: see [`group_problem`].
pub fn check_groups(groups: &[i64]) -> Query {
    Query::new(group_problem(":groups"), params! { groups: Value::list(groups) })
}

/// SQL for why a server cannot be added to some groups. `parameter` is SQL for a JSON array of the
/// groups' ids. The value is `unknown` if a group does not exist in the workspace, `full` if a
/// group has the maximum number of servers, and null if there is no problem.
fn group_problem(parameter: &str) -> String {
    format!(
        "(CASE WHEN EXISTS (SELECT 1 FROM json_each({parameter}) wanted WHERE NOT EXISTS (
            SELECT 1 FROM groups g WHERE g.id = wanted.value AND g.workspace_id = me.workspace_id)) THEN 'unknown'
         WHEN EXISTS (SELECT 1 FROM json_each({parameter}) wanted WHERE {}) THEN 'full' END)",
        is_full("me.workspace_id", "wanted.value")
    )
}

/// SQL for whether a group has the maximum number of servers.
pub fn is_full(workspace: &str, group: &str) -> String {
    format!(
        "EXISTS (SELECT 1 FROM server_groups f WHERE f.workspace_id = {workspace} AND f.group_id = {group}
            LIMIT 1 OFFSET {})",
        MAX_SERVERS - 1
    )
}

/// The data that the checks of a server change need.
#[derive(Debug, Deserialize)]
pub struct ServerForChange {
    /// Whether the caller may edit and delete the server.
    pub is_editable: bool,
    /// Why the server cannot be added to the new groups: see [`group_problem`].
    pub group_problem: Option<String>,
    /// Whether the new owner exists.
    pub has_new_owner: bool,
    /// The server object.
    pub server: Json,
}

/// Reads a server as [`ServerForChange`]. `groups` and `owner` are the values after the change. A
/// full group is no problem if the server is already in it.
pub fn for_change(id: Uuid, groups: &[i64], owner: Option<i64>) -> Query {
    let sql = format!(
        "(SELECT json_object('is_editable', json(iif({IS_EDITABLE}, 'true', 'false')), 'group_problem', {},
            'has_new_owner', json(iif(EXISTS (SELECT 1 FROM users o
                WHERE o.id = :owner AND o.workspace_id = s.workspace_id), 'true', 'false')), 'server', {OBJECT})
          FROM servers s WHERE s.id = :id AND {IS_ACCESSIBLE})",
        group_problem(
            "(SELECT json_group_array(value) FROM json_each(:groups) WHERE value NOT IN (SELECT group_id
                FROM server_groups WHERE workspace_id = s.workspace_id AND server_id = s.id))"
        )
    );
    Query::new(sql, params! { id, groups: Value::list(groups), owner })
}

/// The data that the checks of a rotation or a deletion need.
#[derive(Debug, Deserialize)]
pub struct ServerForLimitedChange {
    pub workspace_id: i64,
    /// Whether the caller may edit and delete the server.
    pub is_editable: bool,
    /// The change that must be over an hour ago before the caller may make another one: see
    /// [`limiting_change`].
    pub limiting_change: Option<Timestamp>,
    /// The server object.
    pub server: Json,
}

/// Reads a server as [`ServerForLimitedChange`].
pub fn for_limited_change(id: Uuid, quotas: &Quotas, now: Timestamp) -> Query {
    let changer = Changer {
        workspace: "me.workspace_id",
        username: "me.username",
        is_superuser: "me.is_superuser",
    };
    let sql = format!(
        "(SELECT json_object('workspace_id', s.workspace_id,
            'is_editable', json(iif({IS_EDITABLE}, 'true', 'false')),
            'limiting_change', iif({IS_EDITABLE}, {}, NULL), 'server', {OBJECT})
          FROM servers s WHERE s.id = :id AND {IS_ACCESSIBLE})",
        limiting_change(changer)
    );
    let parameters = params! {
        id, since: now.minus(CHANGES_WINDOW), user_limit: quotas.server_changes_of_user,
        superuser_limit: quotas.server_changes_of_superuser,
    };
    Query::new(sql, parameters)
}

/// Changes a server, if the caller still has the permission. Staff and the owner may change the
/// name. Staff may change the groups and the labels. Superusers may change the owner. Nothing
/// changes if the new owner does not exist. If the labels are to change, the stored labels must
/// still equal `labels_before`, which the audit event contains. The reply is the server.
pub fn update(
    scope: &Scope<'_>,
    id: Uuid,
    changes: &ServerChanges,
    labels_before: &Labels,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let update = scope
        .statement(&format!(
            "UPDATE servers AS s SET name = coalesce(:name, s.name), owner_id = iif(:sets_owner, :owner, s.owner_id), updated_at = :now,
                default_username = iif(:sets_default_username, :default_username, s.default_username),
                labels = coalesce(:labels, s.labels)
             WHERE s.id = :id AND s.workspace_id = (SELECT me.workspace_id FROM me
                WHERE {IS_EDITABLE} AND (:keeps_groups AND :labels IS NULL OR me.is_staff OR me.is_superuser) AND (NOT :sets_owner OR me.is_superuser))
             AND (:owner IS NULL OR EXISTS (SELECT 1 FROM users o WHERE o.id = :owner AND o.workspace_id = s.workspace_id))
             AND (:labels IS NULL OR s.labels = :labels_before)
             RETURNING id AS body"
        ))
        .bind_all(params! {
            id, name: changes.name.as_ref(), keeps_groups: changes.groups.is_none(),
            sets_owner: changes.owner.is_some(), owner: changes.owner.flatten(),
            sets_default_username: changes.default_username.is_some(),
            default_username: changes.default_username.as_ref().and_then(Option::as_deref),
            labels: changes.labels.as_ref().map(Labels::json),
            labels_before: labels_before.json(),
        });
    let mut batch = Transaction::default().change(update, after_change_by(scope, event)?);
    if let Some(groups) = &changes.groups {
        let leave = scope.statement(
            "DELETE FROM server_groups WHERE server_id = :id
             AND workspace_id = (SELECT workspace_id FROM me WHERE is_staff OR is_superuser)
             AND group_id NOT IN (SELECT value FROM json_each(:groups))",
        );
        let leave = leave.bind_all(params! { id, groups: Value::list(groups) });
        batch = batch.then(leave).then(join_groups(scope, id, groups));
    }
    Ok(batch.returning(select(scope, id)))
}

/// The data that the checks of a server's approval need.
#[derive(Debug, Deserialize)]
pub struct ServerForApproval {
    pub name: String,
    pub is_pending: bool,
    /// The fingerprint of the agent's key. `None` if the server was not registered with a token
    /// that requires approval.
    pub fingerprint: Option<String>,
}

/// Reads a server as [`ServerForApproval`].
pub fn for_approval(id: Uuid) -> Query {
    let sql = format!(
        "(SELECT json_object('name', s.name, 'is_pending', json(iif(s.registration = 'pending', 'true', 'false')),
            'fingerprint', s.fingerprint) FROM servers s WHERE s.id = :id AND {IS_ACCESSIBLE})"
    );
    Query::new(sql, params! { id })
}

/// Approves a pending server, if the caller is staff and the agent's key still has this
/// fingerprint. The reply is the server.
pub fn approve(
    scope: &Scope<'_>,
    id: Uuid,
    fingerprint: &str,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let approve = scope.statement(
        "UPDATE servers SET registration = 'active', updated_at = :now
         WHERE id = :id AND registration = 'pending' AND fingerprint = :fingerprint
         AND workspace_id = (SELECT workspace_id FROM me WHERE is_staff OR is_superuser)
         RETURNING id AS body",
    );
    let approve = approve.bind_all(params! { id, fingerprint });
    Ok(Transaction::default()
        .change(approve, after_change_by(scope, event)?)
        .returning(select(scope, id)))
}

/// A server that was not approved in time.
#[derive(Debug, Deserialize)]
pub struct UnapprovedServer {
    /// The workspace's slug.
    pub workspace: String,
    pub workspace_id: i64,
    pub id: String,
    pub name: String,
}

/// Finds pending servers that were registered by the time `before`, in the order of their ids,
/// after the id `after`.
pub async fn unapproved(
    database: &Database,
    before: Timestamp,
    after: &str,
    limit: u64,
) -> Result<Vec<UnapprovedServer>, Error> {
    let sql = "SELECT w.slug AS workspace, s.workspace_id, s.id, s.name FROM servers s
        JOIN workspaces w ON w.id = s.workspace_id AND w.deleted_at IS NULL
        WHERE s.registration = 'pending' AND s.added_at <= :before AND s.id > :after ORDER BY s.id LIMIT :limit + 0";
    db::rows(
        &db::run(database, Statement::new(sql).bind_all(params! { before, after, limit })).await?,
    )
}

/// The filters of a list of servers `s`. `in_group`: SQL for whether a server is in `:group`.
pub(super) fn filters(list: &ServerList, in_group: &str) -> Filters {
    // SQLite's lower() works for ASCII only. `folded` has the other reported texts in lower case.
    let text = "lower(concat_ws(char(10), s.name, s.remote_ip, s.platform, s.os_name, s.os_version, s.agent_version))
        || char(10) || s.folded";
    Filters::default()
        .with("s.name = :name", "name", list.name.as_ref())
        .with("s.is_connected = :is_connected", "is_connected", list.is_connected)
        .with(in_group, "group", list.group)
        .with("s.owner_id = :owner", "owner", list.owner)
        .with("s.platform = :platform", "platform", list.platform.as_ref())
        .with("s.agent_version = :agent_version", "agent_version", list.agent_version.as_ref())
        .with("s.policy ->> '$.mode' = :policy", "policy", list.policy.map(PolicyMode::as_str))
        .with(
            labels_match!("s.labels", ":label"),
            "label",
            list.label.as_ref().map(selector::terms),
        )
        .with_words(text, &list.words)
}

/// The text after ORDER BY of a list of servers `s`.
pub(super) fn order(list: &ServerList) -> String {
    let direction = |descending: bool| if descending { "DESC" } else { "ASC" };
    // Server ids sort by the time at which the servers were added.
    let column =
        |key: ServerOrderField| if key == ServerOrderField::Added { "id" } else { key.as_str() };
    let keys = list
        .order
        .iter()
        .map(|(key, descending)| format!("s.{} {}", column(*key), direction(*descending)));
    let first = list.order.first().is_none_or(|(_, descending)| *descending);
    keys.chain([format!("s.id {}", direction(first))]).collect::<Vec<_>>().join(", ")
}

/// Lists the servers that the caller can access. For a caller without full access, only these
/// servers are read.
pub fn list(list: &ServerList) -> List {
    let in_group = "s.id IN (SELECT g.server_id FROM server_groups g
        WHERE g.workspace_id = (SELECT workspace_id FROM me) AND g.group_id = :group)";
    let Filters { sql: filters, parameters } = filters(list, in_group);
    let full_access =
        format!("servers s WHERE {HAS_FULL_ACCESS} AND s.workspace_id = me.workspace_id{filters}");
    let partial_access = format!(
        "accessible_servers a CROSS JOIN servers s ON s.id = a.id AND s.workspace_id = me.workspace_id
         WHERE NOT {HAS_FULL_ACCESS} AND a.all_commands{filters}"
    );
    let branches = [full_access, partial_access];
    List::new(
        &format!(", {ACCESSIBLE_SERVERS}"),
        ("servers s", OBJECT),
        &branches,
        &order(list),
        parameters,
    )
}

/// The next ids of a workspace's servers, in order, after the id `after`.
pub async fn ids_after(
    database: &Database,
    workspace_id: i64,
    after: &str,
    limit: u64,
) -> Result<Vec<String>, Error> {
    let sql = "SELECT id FROM servers WHERE workspace_id = :workspace_id AND id > :after ORDER BY id LIMIT :limit + 0";
    db::column(
        &db::run(database, Statement::new(sql).bind_all(params! { workspace_id, after, limit }))
            .await?,
    )
}

/// The next ids of a workspace's deleted servers that still have objects, in order, after the id
/// `after`.
pub async fn deleted_ids_after(
    database: &Database,
    workspace_id: i64,
    after: &str,
    limit: u64,
) -> Result<Vec<String>, Error> {
    let sql = "SELECT id FROM deleted_servers_with_commands WHERE workspace_id = :workspace_id AND id > :after
        ORDER BY id LIMIT :limit + 0";
    db::column(
        &db::run(database, Statement::new(sql).bind_all(params! { workspace_id, after, limit }))
            .await?,
    )
}

/// Deletes the rows of servers whose objects are wiped.
pub async fn delete(database: &Database, workspace_id: i64, ids: &[String]) -> Result<(), Error> {
    let delete = |table: &str| {
        let sql = format!(
            "DELETE FROM {table} WHERE workspace_id = :workspace_id AND id IN (SELECT value FROM json_each(:ids))"
        );
        Statement::new(sql).bind_all(params! { workspace_id, ids: Value::list(ids) })
    };
    db::execute_all(database, vec![delete("servers"), delete("deleted_servers_with_commands")])
        .await
}
