//! The table of servers.

use farhand_domain::command::ServerRef;
use farhand_domain::error::Error;
use serde_json::json;
use uuid::Uuid;
use worker::Env;

use super::db::{self, Parameter, Statement};
use crate::caller::Credential;

/// SQL for the server object (contract 6) of a row of `servers s`, as JSON.
pub const OBJECT: &str = "json_object('id', s.id, 'name', s.name,
    'is_connected', json(iif(s.is_connected, 'true', 'false')), 'remote_ip', s.remote_ip, 'platform', s.platform,
    'os_name', s.os_name, 'os_version', s.os_version, 'agent_version', s.agent_version,
    'cpu_logical_cores', s.cpu_logical_cores, 'physical_memory', s.physical_memory, 'load', s.load,
    'owner', (SELECT json_object('id', o.id, 'username', o.username, 'email', o.email) FROM users o
        WHERE o.id = s.owner_id AND o.workspace_id = s.workspace_id),
    'groups', json('[]'), 'connected_at', s.connected_at, 'last_seen_at', s.last_seen_at,
    'added_at', s.added_at, 'updated_at', s.updated_at)";

/// SQL for the condition that a row of `servers s` is one that the caller reaches (contract 5, Server access), and that
/// the API token is not kept from (contract 4, Token ACL).
pub const REACHABLE: &str =
    "s.workspace_id = me.workspace_id AND (me.is_superuser OR me.is_staff OR s.owner_id = me.user_id)
    AND (me.acl_servers IS NULL OR s.id IN (SELECT value FROM json_each(me.acl_servers)))";

/// SQL for whether the caller may name any remote account on a row of `servers s` that they reach (contract 5, Run-as).
pub const ANY_ACCOUNT: &str = "(me.is_superuser OR me.is_staff OR s.owner_id = me.user_id)";

/// SQL for a server that a command names, as `{id, name, any_account}`, and the parameter that it takes as `?5`.
///
/// `any_account` tells whether the caller may name any remote account there (contract 5, Run-as).
pub fn for_command(server: &ServerRef) -> (String, Parameter) {
    let (column, value) = match server {
        ServerRef::Id(id) => ("id", id.to_string()),
        ServerRef::Name(name) => ("name", name.clone()),
    };
    let sql = format!(
        "(SELECT json_object('id', s.id, 'name', s.name,
            'any_account', json(iif({ANY_ACCOUNT}, 'true', 'false')))
          FROM servers s WHERE s.{column} = ?5 AND {REACHABLE})"
    );
    (sql, value.into())
}

/// A server to be made.
#[derive(Debug)]
pub struct New<'a> {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: &'a str,
    /// The hash of its agent's key.
    pub key_hash: &'a str,
}

/// The statement that makes a server owned by the caller, if the caller is staff, and returns its id as `body`.
pub fn insert(credential: &Credential<'_>, new: &New<'_>) -> Statement {
    credential
        .statement(
            "INSERT INTO servers (id, workspace_id, name, agent_key_hash, owner_id, added_at, updated_at)
             SELECT ?5, workspace_id, ?6, ?7, user_id, ?3, ?3 FROM me WHERE is_staff OR is_superuser
             RETURNING id AS body",
        )
        .bind(new.id)
        .bind(new.name)
        .bind(new.key_hash)
}

/// The statement that reads a server that the caller reaches, as `body`.
pub fn select(credential: &Credential<'_>, id: Uuid) -> Statement {
    credential
        .statement(&format!("SELECT {OBJECT} AS body FROM me JOIN servers s ON s.id = ?5 AND {REACHABLE}"))
        .bind(id)
}

/// Ids of a workspace's servers in their order, after one of them.
pub async fn ids_after(env: &Env, workspace_id: i64, after: &str, limit: u64) -> Result<Vec<String>, Error> {
    let sql = "SELECT id FROM servers WHERE workspace_id = ?1 AND id > ?2 ORDER BY id LIMIT ?3";
    db::column(&db::run(env, Statement::new(sql).bind(workspace_id).bind(after).bind(limit)).await?)
}

/// Removes the rows of servers whose objects are wiped.
pub async fn delete(env: &Env, workspace_id: i64, ids: &[String]) -> Result<(), Error> {
    let sql = "DELETE FROM servers WHERE workspace_id = ?1 AND id IN (SELECT value FROM json_each(?2))";
    db::run(env, Statement::new(sql).bind(workspace_id).bind(json!(ids).to_string())).await?;
    Ok(())
}
