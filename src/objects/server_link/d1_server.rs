//! What a server's object reads and writes of its server in D1. As in `d1.rs`, writes can be repeated and can come late.

use farhand_domain::audit::Event;
use farhand_domain::link::event::{Found, ServerChange};
use farhand_domain::link::server_facts::ServerFacts;
use farhand_domain::link::stored_command::PendingEvent;
use farhand_domain::time::Timestamp;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;
use worker::{Env, Result};

use super::calls::OfServer;
use super::d1::own;
use crate::store::audit::{self, Insert};
use crate::store::db::{self, Statement};

/// Finds a server in a workspace that exists.
pub async fn find_server(env: &Env, workspace: &str, server: Uuid) -> Result<Option<Found>> {
    change_server_of(env, workspace, server, vec![], "w.deleted_at IS NULL").await
}

/// SQL for the condition that the user `?3` may still change a row of `servers s` (contract 5): they are active, and staff or
/// its owner. A change waits for its turn, and the right to it may be gone meanwhile.
const PERMITTED: &str =
    "EXISTS (SELECT 1 FROM users u WHERE u.id = ?3 AND u.workspace_id = s.workspace_id AND u.is_active = 1
    AND (u.is_superuser = 1 OR u.is_staff = 1 OR s.owner_id = u.id))";

/// The statements that give a server's agent another key, if a user still may.
fn update_key(
    workspace_id: i64,
    server: Uuid,
    by: i64,
    (key_hash, fingerprint, now): (&str, &str, Timestamp),
    event: &Event,
) -> Result<Vec<Statement>> {
    let sql = format!(
        "UPDATE servers AS s SET agent_key_hash = ?4, updated_at = ?5,
            fingerprint = iif(s.fingerprint IS NULL, NULL, ?6)
         WHERE s.id = ?2 AND s.workspace_id = ?1 AND {PERMITTED}"
    );
    let update =
        Statement::new(sql).bind(workspace_id).bind(server).bind(by).bind(key_hash).bind(now).bind(fingerprint);
    Ok(vec![update, audit::after_change(workspace_id, event).map_err(|error| own(&error))?])
}

/// The statements that delete a server, if a user still may; without one, for its own agent or for the service. `only_pending`:
/// only if it is still pending. While there are commands of it,
/// their output stays in its object, which is noted.
fn delete_server(
    workspace_id: i64,
    server: Uuid,
    (by, only_pending): (Option<i64>, bool),
    event: &Event,
) -> Result<Vec<Statement>> {
    let is_due = format!(
        "s.id = ?2 AND s.workspace_id = ?1 AND (?3 IS NULL OR {PERMITTED}) AND (NOT ?4 OR s.registration = 'pending')"
    );
    let statement = |sql: String| Statement::new(sql).bind(workspace_id).bind(server).bind(by).bind(only_pending);
    Ok(vec![
        statement(format!(
            "INSERT INTO gone_servers (workspace_id, id)
             SELECT s.workspace_id, s.id FROM servers s WHERE {is_due}
             AND EXISTS (SELECT 1 FROM commands c WHERE c.workspace_id = s.workspace_id AND c.server_id = s.id)
             ON CONFLICT (workspace_id, id) DO NOTHING"
        )),
        statement(format!("DELETE FROM servers AS s WHERE {is_due}")),
        audit::after_change(workspace_id, event).map_err(|error| own(&error))?,
    ])
}

/// Changes a server, and finds what it is then, in one round trip. In a deleted workspace that may be undeleted, its servers
/// are still there.
///
/// # Errors
/// D1 did not answer; whether it did what it was told is not known then.
pub async fn change_server(env: &Env, of: &OfServer, change: &ServerChange) -> Result<Option<Found>> {
    let changes = match change {
        ServerChange::Nothing => vec![],
        ServerChange::Key { by, key_hash, fingerprint, at, event } => {
            update_key(of.workspace_id, of.server, *by, (key_hash, fingerprint, *at), event)?
        }
        ServerChange::Delete { by, only_pending, event } => {
            delete_server(of.workspace_id, of.server, (*by, *only_pending), event)?
        }
    };
    change_server_of(env, &of.workspace, of.server, changes, "w.is_purging = 0").await
}

/// The same in a workspace for which a condition holds.
async fn change_server_of(
    env: &Env,
    workspace: &str,
    server: Uuid,
    mut changes: Vec<Statement>,
    condition: &str,
) -> Result<Option<Found>> {
    let sql = format!(
        "SELECT s.workspace_id, s.name, s.agent_key_hash, s.commissioned, s.link_revision
        FROM workspaces w JOIN servers s ON s.id = ?2 AND s.workspace_id = w.id
        WHERE w.slug = ?1 AND {condition}"
    );
    #[derive(Deserialize)]
    struct Row {
        workspace_id: f64,
        name: String,
        agent_key_hash: String,
        commissioned: f64,
        link_revision: f64,
    }
    changes.push(Statement::new(sql).bind(workspace).bind(server));
    let results = db::batch(env, changes).await?;
    let row = results.last().map(db::first::<Row>).transpose().map_err(|error| own(&error))?.flatten();
    Ok(row.map(|row| Found {
        workspace_id: row.workspace_id as i64,
        name: row.name,
        key_hash: row.agent_key_hash,
        commissioned: row.commissioned != 0.0,
        revision: row.link_revision as i64,
    }))
}

/// The statements that write what is known of a server, and before that its audit events. What its agent did not report stays
/// as it was.
pub fn update_server(workspace_id: i64, server: Uuid, facts: &ServerFacts) -> Vec<Statement> {
    let update = Statement::new(
        "UPDATE servers SET commissioned = ?4, is_connected = ?5, connected_at = ?6, last_seen_at = ?7, remote_ip = ?8,
            agent_version = coalesce(?9, agent_version), platform = coalesce(?10, platform),
            os_name = coalesce(?11, os_name), os_version = coalesce(?12, os_version),
            cpu_logical_cores = coalesce(?13, cpu_logical_cores), physical_memory = coalesce(?14, physical_memory),
            load = CASE WHEN ?17 THEN NULL ELSE coalesce(?15, load) END, folded = ?16, identity_conflict_at = ?18,
            reported_username = iif(?9 IS NULL, coalesce(?19, reported_username), ?19), link_revision = ?3
         WHERE id = ?2 AND workspace_id = ?1 AND link_revision < ?3",
    )
    .bind(workspace_id)
    .bind(server)
    .bind(facts.revision)
    .bind(facts.commissioned)
    .bind(facts.is_connected)
    .bind(facts.connected_at)
    .bind(facts.last_seen_at)
    .bind(facts.remote_ip.as_deref())
    .bind(facts.agent_version.as_deref())
    .bind(facts.platform.as_deref())
    .bind(facts.os_name.as_deref())
    .bind(facts.os_version.as_deref())
    .bind(facts.cpu_logical_cores)
    .bind(facts.physical_memory)
    .bind(facts.load)
    .bind(facts.folded())
    .bind(facts.drops_load)
    .bind(facts.identity_conflict_at)
    .bind(facts.reported_username.as_deref());
    of_server(workspace_id, server, &facts.events).into_iter().chain([update]).collect()
}

/// The statement for a server's events that D1 does not have, before D1 gets the revision that they belong to. It can be
/// repeated, like [`super::d1::of_command`].
fn of_server(workspace_id: i64, server: Uuid, events: &[PendingEvent]) -> Option<Statement> {
    if events.is_empty() {
        return None;
    }
    let rest = "FROM servers s CROSS JOIN json_each(?3) p
               WHERE s.workspace_id = ?1 AND s.id = ?2 AND s.link_revision < p.value ->> 'revision' ORDER BY p.key";
    let insert = Insert::whole("s.workspace_id", "(p.value -> 'event')", rest);
    Some(Statement::new(insert.sql()).bind(workspace_id).bind(server).bind(json!(events).to_string()))
}
