//! The table of API tokens.

use farhand_domain::acl::Acl;
use farhand_domain::api_token::{NewToken, TokenChanges};
use farhand_domain::audit::Event;
use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use uuid::Uuid;
use worker::Env;

use super::audit::{self, Insert};
use super::db::{self, Statement};
use crate::caller::Credential;
use crate::platform::internal;

/// SQL for the token object (spec.md, API token) of a row of `api_tokens t`, as JSON. The key is not in it.
pub const OBJECT: &str = "json_object('id', t.id, 'name', t.name, 'enabled', json(iif(t.enabled, 'true', 'false')),
    'acl', json(t.acl), 'added_at', t.added_at, 'updated_at', t.updated_at, 'expires_at', t.expires_at,
    'last_used_at', t.last_used_at)";

/// SQL for the list's filters: a name as `?7`, and whether enabled as `?8`; null where it is not asked for.
pub const FILTERS: &str = "(?7 IS NULL OR t.name = ?7) AND (?8 IS NULL OR t.enabled = ?8)";

/// SQL for the condition that a row of `api_tokens t` is the caller's own.
pub const OWN: &str = "t.workspace_id = me.workspace_id AND t.user_id = me.user_id";

fn acl_text(acl: Option<&Acl>) -> Result<Option<String>, Error> {
    acl.map(|acl| serde_json::to_string(acl).map_err(internal)).transpose()
}

/// The statement that makes a token of the caller's and returns it as `body`.
pub fn insert(
    credential: &Credential<'_>,
    id: Uuid,
    new: &NewToken,
    key_hash: &str,
    now: Timestamp,
) -> Result<Statement, Error> {
    let statement = credential
        .statement(&format!(
            "INSERT INTO api_tokens (id, workspace_id, user_id, name, key_hash, added_at, updated_at, expires_at, acl)
             SELECT ?5, workspace_id, user_id, ?6, ?7, ?8, ?8, ?9, ?10 FROM me
             RETURNING {} AS body",
            db::returned(OBJECT, "t")
        ))
        .bind(id)
        .bind(&new.name)
        .bind(key_hash)
        .bind(now)
        .bind(new.expires_at)
        .bind(acl_text(new.acl.as_ref())?);
    Ok(statement)
}

/// The statement that changes a token of the caller's and returns it as `body`.
pub fn update(
    credential: &Credential<'_>,
    id: Uuid,
    changes: &TokenChanges,
    now: Timestamp,
) -> Result<Statement, Error> {
    let acl = changes.acl.as_ref().map(|acl| acl_text(acl.as_ref())).transpose()?;
    let statement = credential
        .statement(&format!(
            "UPDATE api_tokens SET updated_at = ?6, name = coalesce(?7, name), enabled = coalesce(?8, enabled),
                expires_at = iif(?9, ?10, expires_at), acl = iif(?11, ?12, acl)
             WHERE id = ?5 AND (workspace_id, user_id) IN (SELECT workspace_id, user_id FROM me)
             RETURNING {} AS body",
            db::returned(OBJECT, "t")
        ))
        .bind(id)
        .bind(now)
        .bind(changes.name.as_ref())
        .bind(changes.enabled)
        .bind(changes.expires_at.is_some())
        .bind(changes.expires_at.flatten())
        .bind(acl.is_some())
        .bind(acl.flatten());
    Ok(statement)
}

/// The statement for the audit event of [`update`] or [`delete`], before it, while the token has its name: the token may be the
/// one that calls, and then its caller may be nobody after it.
pub fn before_change(credential: &Credential<'_>, event: &Event) -> Result<Statement, Error> {
    let rest = "FROM me CROSS JOIN api_tokens d ON d.id = ?5 ->> '$.object.id'
        AND d.workspace_id = me.workspace_id AND d.user_id = me.user_id";
    let insert = Insert { object_name: Some("d.name"), rest, ..Insert::by_me() };
    Ok(credential.statement(&insert.sql()).bind(audit::text(event)?))
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

/// Notes that a token was used, and stores it by another hash of it where there is one.
pub async fn touch(
    env: &Env,
    workspace_id: i64,
    id: Uuid,
    new_hash: Option<&str>,
    now: Timestamp,
) -> Result<(), Error> {
    // Without one the index is not written.
    let hash = new_hash.map_or("", |_| ", key_hash = ?4");
    let sql = format!("UPDATE api_tokens SET last_used_at = ?3{hash} WHERE workspace_id = ?1 AND id = ?2");
    let statement = Statement::new(sql).bind(workspace_id).bind(id).bind(now);
    db::run(env, new_hash.into_iter().fold(statement, Statement::bind)).await?;
    Ok(())
}
