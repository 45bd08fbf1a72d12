//! The table of API tokens.

use farhand_domain::time::Timestamp;
use uuid::Uuid;
use worker::Env;

use farhand_domain::error::Error;

use super::db::{self, Statement};
use crate::caller::Credential;

/// SQL for the token object (spec.md, API token) of a row of `api_tokens t`, as JSON. The key is not in it.
pub const OBJECT: &str = "json_object('id', t.id, 'name', t.name, 'enabled', json(iif(t.enabled, 'true', 'false')),
    'acl', json(t.acl), 'added_at', t.added_at, 'updated_at', t.updated_at, 'expires_at', t.expires_at,
    'last_used_at', t.last_used_at)";

/// SQL for the condition that a row of `api_tokens t` is the caller's own.
pub const OWN: &str = "t.workspace_id = me.workspace_id AND t.user_id = me.user_id";

/// The statement that makes a token of the caller's and returns it as `body`.
pub fn insert(
    credential: &Credential<'_>,
    id: Uuid,
    name: &str,
    key_hash: &str,
    expires_at: Option<Timestamp>,
    now: Timestamp,
) -> Statement {
    // RETURNING knows the table's columns by their bare names only.
    let returned = OBJECT.replace("t.", "");
    credential
        .statement(&format!(
            "INSERT INTO api_tokens (id, workspace_id, user_id, name, key_hash, added_at, updated_at, expires_at)
             SELECT ?5, workspace_id, user_id, ?6, ?7, ?8, ?8, ?9 FROM me
             RETURNING {returned} AS body"
        ))
        .bind(id)
        .bind(name)
        .bind(key_hash)
        .bind(now)
        .bind(expires_at)
}

/// The statement that deletes a token of the caller's and returns its id as `body`.
pub fn delete(credential: &Credential<'_>, id: Uuid) -> Statement {
    credential
        .statement(
            "DELETE FROM api_tokens WHERE id = ?5 AND (workspace_id, user_id) IN (SELECT workspace_id, user_id FROM me)
             RETURNING id AS body",
        )
        .bind(id)
}

/// Notes that a token was used.
pub async fn touch(env: &Env, workspace_id: i64, id: Uuid, now: Timestamp) -> Result<(), Error> {
    let sql = "UPDATE api_tokens SET last_used_at = ?3 WHERE workspace_id = ?1 AND id = ?2";
    db::run(env, Statement::new(sql).bind(workspace_id).bind(id).bind(now)).await?;
    Ok(())
}
