//! The table of login sessions, which decides whether a login token is alive.

use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use uuid::Uuid;
use worker::Env;

use super::db::{self, Statement};
use crate::caller::Credential;

/// How long a login token lives after its last use, in seconds: 14 days (spec.md, Limits).
pub const LIFETIME: i64 = 14 * 24 * 3600;
/// How long an expiry may go unmoved, in seconds. A token is taken for as long past its expiry, so that it is never
/// refused before its 14 days (contract 4).
pub const REFRESH_EVERY: i64 = 600;

/// A session to be made.
#[derive(Debug)]
pub struct New<'a> {
    /// Its id.
    pub id: Uuid,
    /// The user who logs in.
    pub user_id: i64,
    /// The PHC string that the password was checked against: where it is another by now, the login came too late.
    pub checked_password: &'a str,
    /// The PHC string to store from now on.
    pub password: &'a str,
    /// The hash of the login token.
    pub token_hash: &'a str,
    /// The client's User-Agent header.
    pub user_agent: &'a str,
    /// The client's address.
    pub remote_ip: &'a str,
    /// When the token expires, if it is not used before.
    pub expires_at: Timestamp,
}

/// Makes a session. False: the user may not log in any more, and nothing was made.
pub async fn insert(env: &Env, workspace: &str, new: New<'_>, now: Timestamp) -> Result<bool, Error> {
    let session = Statement::new(
        "INSERT INTO sessions (id, workspace_id, user_id, token_hash, user_agent, remote_ip, added_at, refreshed_at, expires_at)
         SELECT ?4, w.id, u.id, ?5, ?6, ?7, ?8, ?8, ?9
         FROM workspaces w JOIN users u ON u.workspace_id = w.id
         WHERE w.slug = ?1 AND w.deleted_at IS NULL AND u.id = ?2 AND u.is_active = 1 AND u.password = ?3
         RETURNING id",
    )
    .bind(workspace)
    .bind(new.user_id)
    .bind(new.checked_password)
    .bind(new.id)
    .bind(new.token_hash)
    .bind(new.user_agent)
    .bind(new.remote_ip)
    .bind(now)
    .bind(new.expires_at);
    let user = Statement::new(
        "UPDATE users SET last_login = ?4, password = ?5
         WHERE id = ?2 AND password = ?3 AND is_active = 1
         AND workspace_id = (SELECT id FROM workspaces WHERE slug = ?1 AND deleted_at IS NULL)",
    )
    .bind(workspace)
    .bind(new.user_id)
    .bind(new.checked_password)
    .bind(now)
    .bind(new.password);
    let results = db::batch(env, vec![session, user]).await?;
    let made = results.first().map(db::column::<String>).transpose()?;
    Ok(made.is_some_and(|ids| !ids.is_empty()))
}

/// The statement that ends the session of a credential; it does nothing to an API token.
pub fn delete_own(credential: &Credential<'_>) -> Statement {
    credential.statement(
        "DELETE FROM sessions WHERE (workspace_id, id) IN (SELECT workspace_id, credential_id FROM me WHERE kind = 'session')",
    )
}

/// Moves a session's expiry. A session that was revoked meanwhile stays so.
pub async fn refresh(
    env: &Env,
    workspace_id: i64,
    id: Uuid,
    now: Timestamp,
    expires_at: Timestamp,
) -> Result<(), Error> {
    let sql = "UPDATE sessions SET refreshed_at = ?3, expires_at = ?4 WHERE workspace_id = ?1 AND id = ?2 AND expires_at < ?4";
    db::run(env, Statement::new(sql).bind(workspace_id).bind(id).bind(now).bind(expires_at)).await?;
    Ok(())
}
