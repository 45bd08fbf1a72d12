//! The D1 statements of a server's object about its server. As in `d1.rs`, a write may arrive late
//! or more than once.

use farhand_domain::error::Error;
use farhand_domain::fleet::server::CHANGES_WINDOW;
use farhand_domain::link::event::{D1Server, NextKey, ServerChange};
use farhand_domain::link::server_facts::ServerFacts;
use farhand_domain::time::Timestamp;
use farhand_sql::deleted_servers;
use farhand_sql::server_changes::{Changer, limiting_change};
use farhand_sql::statement::Statement;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::calls::ServerLocation;
use crate::platform::Quotas;
use crate::store::audit;
use crate::store::database::Database;
use crate::store::db::{self, boolean, params};
use crate::store::servers::is_full;

/// Finds a server in a workspace that is not deleted.
pub async fn find_server(
    database: &Database,
    workspace: &str,
    server: Uuid,
) -> Result<Option<D1Server>, Error> {
    change_and_find(database, workspace, server, vec![], "w.deleted_at IS NULL").await
}

/// SQL for the condition that the user `:by` may change a row of `servers s` (contract 5.7): the
/// user is active, and is staff or owns the server. The API checked this before. But the object
/// makes changes one by one, and the user may lose the permission in between. `more`: SQL for another
/// condition on the row of `users u`.
fn is_permitted(more: &str) -> String {
    format!(
        "EXISTS (SELECT 1 FROM users u WHERE u.id = :by AND u.workspace_id = s.workspace_id AND u.is_active = 1
        AND (u.is_superuser = 1 OR u.is_staff = 1 OR s.owner_id = u.id) AND {more})"
    )
}

/// SQL like [`is_permitted`], if the user may also rotate a key or delete a server now (contract
/// 11.4). Many requests can pass the check of the API at the same time.
fn is_permitted_now() -> String {
    let changer = Changer {
        workspace: "s.workspace_id",
        username: "u.username",
        is_superuser: "u.is_superuser = 1",
    };
    is_permitted(&format!("{} IS NULL", limiting_change(changer)))
}

/// SQL for whether a row of `users u` is staff.
const IS_STAFF: &str = "(u.is_superuser = 1 OR u.is_staff = 1)";

/// SQL for whether a rotation refuses the old key immediately. A pending server runs no commands, so
/// nothing is cut off, and staff compare the fingerprint of its only key.
const REFUSES_OLD_KEY: &str = "(:old_key_valid_until IS NULL OR s.registration = 'pending')";

/// The statements that change a server, if the user still has the permission.
fn change_statements(
    of: &ServerLocation,
    change: &ServerChange,
    quotas: &Quotas,
) -> Result<Vec<Statement>, Error> {
    let (workspace_id, server_id) = (of.workspace_id, of.server);
    let limits = |statement: Statement, at: Timestamp| {
        statement.bind_all(params! {
            since: at.minus(CHANGES_WINDOW), user_limit: quotas.server_changes_of_user,
            superuser_limit: quotas.server_changes_of_superuser,
        })
    };
    match change {
        ServerChange::ReadOnly => Ok(vec![]),
        ServerChange::ReplaceKey { by, old_key_valid_until, key_hash, fingerprint, at, event } => {
            let sql = format!(
                "UPDATE servers AS s SET updated_at = :at,
                    agent_key_hash = CASE WHEN {REFUSES_OLD_KEY} THEN :key_hash
                        WHEN s.old_key_valid_until <= :at THEN s.next_key_hash ELSE s.agent_key_hash END,
                    next_key_hash = iif({REFUSES_OLD_KEY}, NULL, :key_hash),
                    old_key_valid_until = iif({REFUSES_OLD_KEY}, NULL, :old_key_valid_until),
                    fingerprint = iif(s.fingerprint IS NULL, NULL, :fingerprint)
                 WHERE s.id = :server_id AND s.workspace_id = :workspace_id AND {}",
                is_permitted_now()
            );
            let update = Statement::new(sql).bind_all(params! {
                workspace_id, server_id, by: *by, key_hash, fingerprint, at: *at,
                old_key_valid_until: *old_key_valid_until,
            });
            Ok(vec![limits(update, *at), audit::after_change(workspace_id, event)?])
        }
        ServerChange::TakeNextKey(key_hash) => {
            let sql = "UPDATE servers SET agent_key_hash = next_key_hash, next_key_hash = NULL,
                    old_key_valid_until = NULL
                 WHERE id = :server_id AND workspace_id = :workspace_id AND next_key_hash = :key_hash";
            let parameters = params! { workspace_id, server_id, key_hash };
            Ok(vec![Statement::new(sql).bind_all(parameters)])
        }
        ServerChange::Delete { by, only_pending, at, purge_at, event } => {
            let is_deletable = format!(
                "s.id = :server_id AND s.workspace_id = :workspace_id AND (:by IS NULL OR {})
                 AND (NOT :only_pending OR s.registration = 'pending')",
                is_permitted_now()
            );
            let statement = |sql: String| {
                let statement = Statement::new(sql).bind_all(params! {
                    workspace_id, server_id, by: *by, only_pending: *only_pending,
                });
                limits(statement, *at)
            };
            let keep = statement(deleted_servers::keep(&is_deletable))
                .bind_all(params! { at: *at, purge_at: *purge_at });
            // Keep a row for the deleted server if it has commands: its object keeps their output.
            let insert_deleted = statement(format!(
                "INSERT INTO deleted_servers_with_commands (workspace_id, id)
                 SELECT s.workspace_id, s.id FROM servers s WHERE {is_deletable}
                 AND EXISTS (SELECT 1 FROM commands c WHERE c.workspace_id = s.workspace_id AND c.server_id = s.id)
                 ON CONFLICT (workspace_id, id) DO NOTHING"
            ));
            let delete = statement(format!("DELETE FROM servers AS s WHERE {is_deletable}"));
            Ok(vec![insert_deleted, keep, delete, audit::after_change(workspace_id, event)?])
        }
        ServerChange::Undelete { by, name, at, event } => {
            let parameters = params! { workspace_id, server_id };
            let restore = deleted_servers::restore(&is_permitted(IS_STAFF));
            let restore = Statement::new(restore)
                .bind_all(parameters.clone())
                .bind_all(params! { by: *by, name, at: *at });
            let rejoin = deleted_servers::rejoin(&is_full("s.workspace_id", "g.id"));
            let after =
                [rejoin.as_str(), deleted_servers::FORGET, deleted_servers::FORGET_WITH_COMMANDS]
                    .map(|sql| Statement::new(sql).bind_all(parameters.clone()));
            let mut statements = vec![restore, audit::after_change(workspace_id, event)?];
            statements.extend(after);
            Ok(statements)
        }
    }
}

/// Changes a server and then reads it, in one round trip. This also works for servers of a deleted
/// workspace, which exist until the workspace is purged.
///
/// # Errors
/// D1 failed. It is unknown whether D1 made the change.
pub async fn change_server(
    database: &Database,
    quotas: &Quotas,
    of: &ServerLocation,
    change: &ServerChange,
) -> Result<Option<D1Server>, Error> {
    let changes = change_statements(of, change, quotas)?;
    change_and_find(database, &of.workspace, of.server, changes, "w.is_purging = 0").await
}

/// Runs `changes` and then reads the server, if `condition` is true for its row of `workspaces w`.
async fn change_and_find(
    database: &Database,
    workspace: &str,
    server: Uuid,
    mut changes: Vec<Statement>,
    condition: &str,
) -> Result<Option<D1Server>, Error> {
    #[derive(Deserialize)]
    struct ServerRow {
        workspace_id: i64,
        name: String,
        agent_key_hash: String,
        next_key_hash: Option<String>,
        old_key_valid_until: Option<Timestamp>,
        #[serde(deserialize_with = "boolean")]
        commissioned: bool,
        #[serde(deserialize_with = "boolean")]
        is_connected: bool,
        link_revision: i64,
    }
    let sql = format!(
        "SELECT s.workspace_id, s.name, s.agent_key_hash, s.next_key_hash, s.old_key_valid_until,
            s.commissioned, s.is_connected, s.link_revision
        FROM workspaces w JOIN servers s ON s.id = :server AND s.workspace_id = w.id
        WHERE w.slug = :workspace AND {condition}"
    );
    changes.push(Statement::new(sql).bind_all(params! { workspace, server }));
    let results = db::batch(database, changes).await?;
    let row = results.last().map(db::first::<ServerRow>).transpose()?.flatten();
    Ok(row.map(|row| D1Server {
        workspace_id: row.workspace_id,
        name: row.name,
        key_hash: row.agent_key_hash,
        next_key: row
            .next_key_hash
            .zip(row.old_key_valid_until)
            .map(|(key_hash, old_key_valid_until)| NextKey { key_hash, old_key_valid_until }),
        commissioned: row.commissioned,
        is_connected: row.is_connected,
        revision: row.link_revision,
    }))
}

/// The statements that write a server's pending audit events, and then its host facts. A fact that
/// the agent did not report keeps its value in D1.
pub fn update_server(
    workspace_id: i64,
    id: Uuid,
    facts: &ServerFacts,
) -> Result<Vec<Statement>, Error> {
    let sql = "UPDATE servers SET commissioned = :commissioned, is_connected = :is_connected,
            connected_at = :connected_at, last_seen_at = :last_seen_at, remote_ip = :remote_ip,
            agent_version = coalesce(:version, agent_version), platform = coalesce(:platform, platform),
            os_name = coalesce(:os_name, os_name), os_version = coalesce(:os_version, os_version),
            cpu_logical_cores = coalesce(:cores, cpu_logical_cores),
            physical_memory = coalesce(:memory, physical_memory),
            load = CASE WHEN :drops_load THEN NULL ELSE coalesce(:load, load) END, folded = :folded,
            identity_conflict_at = :identity_conflict_at,
            reported_username = iif(:version IS NULL, coalesce(:username, reported_username), :username),
            policy = iif(:version IS NULL, coalesce(:policy, policy), :policy),
            link_revision = :revision
         WHERE id = :id AND workspace_id = :workspace_id AND link_revision < :revision";
    let update = Statement::new(sql).bind_all(params! {
        workspace_id,
        id,
        revision: facts.revision,
        commissioned: facts.commissioned,
        is_connected: facts.is_connected,
        connected_at: facts.connected_at,
        last_seen_at: facts.last_seen_at,
        remote_ip: facts.remote_ip.as_deref(),
        version: facts.agent_version.as_deref(),
        platform: facts.platform.as_deref(),
        os_name: facts.os_name.as_deref(),
        os_version: facts.os_version.as_deref(),
        cores: facts.cpu_logical_cores,
        memory: facts.physical_memory,
        load: facts.load,
        folded: facts.folded(),
        drops_load: facts.drops_load,
        identity_conflict_at: facts.identity_conflict_at,
        username: facts.reported_username.as_deref(),
        policy: facts.policy.as_ref().map(|policy| json!(policy).to_string()),
    });
    let mut statements =
        audit::pending(("servers", "link_revision"), workspace_id, id, &facts.events)?;
    statements.push(update);
    Ok(statements)
}
