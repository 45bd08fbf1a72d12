//! The D1 table of login sessions. A login token is valid while its session is in this table and
//! has not expired.

use farhand_domain::audit::event::AuditEvent;
use farhand_domain::error::Error;
use farhand_domain::people::session;
use farhand_domain::time::Timestamp;
use farhand_sql::statement::{Statement, Value};
use serde::Deserialize;
use uuid::Uuid;

use super::audit::{self, Insert};
use super::database::Database;
use super::db::{self, params};
use super::list::List;
use super::scope::{Query, Scope};
use super::transaction::Transaction;

/// SQL for the session object (contract 4.7) of a row of `sessions s`, as JSON.
const OBJECT: &str = "json_object('id', s.id, 'user_agent', s.user_agent, 'remote_ip', s.remote_ip,
    'added_at', s.added_at, 'expires_at', s.expires_at,
    'current', json(iif(s.id = me.credential_id, 'true', 'false')))";

/// SQL for the condition that a row of `sessions s` is a live session of the caller.
const IS_OWN: &str =
    "s.workspace_id = me.workspace_id AND s.user_id = me.user_id AND s.expires_at > :dead_until";

/// The caller's live sessions, newest first.
pub fn list() -> List {
    let rows = format!("sessions s WHERE {IS_OWN}");
    List::new("", ("sessions s", OBJECT), &[rows], "s.id DESC", params! {})
}

/// The session object of a live session of the caller.
pub fn by_id(id: Uuid) -> Query {
    Query::new(
        format!("(SELECT {OBJECT} FROM sessions s WHERE s.id = :id AND {IS_OWN})"),
        params! { id },
    )
}

/// A session to be created.
#[derive(Debug)]
pub struct NewSession<'a> {
    pub id: Uuid,
    /// The user who logs in.
    pub user_id: i64,
    /// The PHC string that the password was checked against. The login fails if another PHC string
    /// is stored by now.
    pub checked_password: &'a str,
    /// The PHC string to store from now on. It differs if the password was hashed again.
    pub password: &'a str,
    /// The hash of the login token.
    pub token_hash: &'a str,
    /// The client's User-Agent header.
    pub user_agent: &'a str,
    /// The client's address.
    pub remote_ip: &'a str,
    /// When the token expires, unless a request extends the session.
    pub expires_at: Timestamp,
    /// The maximum number of sessions of the user. The oldest sessions beyond it are deleted.
    pub max_sessions: i64,
}

/// Creates a session, with the audit event of the login. Returns the workspace's id, or `None` if
/// the user may not log in any more and nothing was created.
pub async fn insert(
    database: &Database,
    workspace: &str,
    new: NewSession<'_>,
    event: &AuditEvent,
    now: Timestamp,
) -> Result<Option<i64>, Error> {
    let insert = Statement::new(
        "INSERT INTO sessions (id, workspace_id, user_id, token_hash, user_agent, remote_ip, added_at, refreshed_at, expires_at)
         SELECT :id, w.id, u.id, :token_hash, :user_agent, :remote_ip, :now, :now, :expires_at
         FROM workspaces w JOIN users u ON u.workspace_id = w.id
         WHERE w.slug = :slug AND w.deleted_at IS NULL AND u.id = :user_id AND u.is_active = 1 AND u.password = :checked_password
         RETURNING workspace_id",
    )
    .bind_all(params! {
        slug: workspace, user_id: new.user_id, checked_password: new.checked_password, id: new.id,
        token_hash: new.token_hash, user_agent: new.user_agent, remote_ip: new.remote_ip, now,
        expires_at: new.expires_at,
    });
    let insert_event = Insert::from_event(
        "s.workspace_id",
        ":event",
        "FROM sessions s WHERE s.id = :id AND changes() > 0",
    );
    let insert_event = Statement::new(insert_event.sql()).bind_all(params! {
        id: new.id, event: audit::text(event)?,
    });
    let update_user = Statement::new(
        "UPDATE users SET last_login = :now, password = :password
         WHERE id = :user_id AND password = :checked_password AND is_active = 1
         AND workspace_id = (SELECT id FROM workspaces WHERE slug = :slug AND deleted_at IS NULL)",
    )
    .bind_all(params! {
        slug: workspace, user_id: new.user_id, checked_password: new.checked_password, now,
        password: new.password,
    });
    // Delete expired sessions, and sessions beyond the maximum. Session ids sort by creation time.
    let delete_old = Statement::new(
        "DELETE FROM sessions WHERE user_id = :user_id
         AND workspace_id = (SELECT id FROM workspaces WHERE slug = :slug AND deleted_at IS NULL)
         AND (expires_at <= :dead_until OR id IN (
            SELECT s.id FROM workspaces w JOIN sessions s ON s.workspace_id = w.id AND s.user_id = :user_id
            WHERE w.slug = :slug AND w.deleted_at IS NULL ORDER BY s.id DESC LIMIT -1 OFFSET :max_sessions + 0))",
    )
    .bind_all(params! {
        slug: workspace, user_id: new.user_id, dead_until: session::oldest_accepted_expiry(now), max_sessions: new.max_sessions,
    });
    let results = db::batch(database, vec![insert, insert_event, update_user, delete_old]).await?;
    results.first().map_or(Ok(None), db::first_value)
}

/// Deletes the session of the caller's login token. If the credential is an API token, nothing
/// changes.
pub fn delete_own(scope: &Scope<'_>, event: &AuditEvent) -> Result<Transaction, Error> {
    let id = Some("me.credential_id");
    let insert =
        Insert { object_id: id, rest: "FROM me WHERE me.kind = 'session'", ..Insert::by_me() };
    let event = insert.statement(scope, event)?;
    let delete = scope.statement(
        "DELETE FROM sessions WHERE (workspace_id, id) IN (SELECT workspace_id, credential_id FROM me WHERE kind = 'session')
         RETURNING json_array(token_hash) AS body",
    );
    Ok(Transaction::default().delete_session_after_event(event, delete))
}

/// Deletes a live session of the caller, which may be the session of the request. Unless
/// `keep_scheduled`, the session is also marked as revoked: its waiting commands must not be
/// delivered.
pub fn delete(
    scope: &Scope<'_>,
    id: Uuid,
    keep_scheduled: bool,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let rest = "FROM me CROSS JOIN sessions s ON s.id = :event ->> '$.object.id' AND s.expires_at > :dead_until
        AND s.workspace_id = me.workspace_id AND s.user_id = me.user_id";
    let insert = Insert { rest, ..Insert::by_me() };
    let event = insert.statement(scope, event)?;
    let delete = scope
        .statement(
            "DELETE FROM sessions WHERE id = :id AND expires_at > :dead_until
             AND (workspace_id, user_id) IN (SELECT workspace_id, user_id FROM me)
             RETURNING json_array(token_hash) AS body",
        )
        .bind("id", id);
    let transaction = if keep_scheduled {
        Transaction::default()
    } else {
        Transaction::default().then(revoke(scope, id))
    };
    Ok(transaction.delete_session_after_event(event, delete))
}

/// The statement that marks a live session of the caller as revoked.
fn revoke(scope: &Scope<'_>, id: Uuid) -> Statement {
    scope
        .statement(&format!(
            "INSERT OR IGNORE INTO revoked_sessions (workspace_id, id, user_id, revoked_at)
             SELECT s.workspace_id, s.id, s.user_id, :now FROM me CROSS JOIN sessions s ON s.id = :id AND {IS_OWN}"
        ))
        .bind("id", id)
}

/// SQL that marks all live sessions of some users as revoked. The arguments are SQL: `users` for a
/// table of the users' `id` and `workspace_id`, `now` for the time, and `dead_until` for the time
/// up to which sessions have expired.
pub fn revoke_all(users: &str, now: &str, dead_until: &str) -> String {
    format!(
        "INSERT OR IGNORE INTO revoked_sessions (workspace_id, id, user_id, revoked_at)
         SELECT s.workspace_id, s.id, s.user_id, {now} FROM ({users}) u
         CROSS JOIN sessions s ON s.workspace_id = u.workspace_id AND s.user_id = u.id AND s.expires_at > {dead_until}"
    )
}

/// A user's revoked sessions whose waiting commands the janitor must cancel.
#[derive(Debug)]
pub struct Revoked {
    pub workspace_id: i64,
    pub user_id: i64,
    /// The sessions' ids.
    pub sessions: Vec<Uuid>,
    /// The ids of the servers on which commands of the user wait.
    pub servers: Vec<String>,
}

/// Finds the next user with revoked sessions, in the order of workspace and user after `after`.
/// After the last user, the first user follows again.
pub async fn next_revoked(
    database: &Database,
    after: (i64, i64),
) -> Result<Option<Revoked>, Error> {
    #[derive(Deserialize)]
    struct RevokedRow {
        workspace_id: i64,
        user_id: i64,
        sessions: String,
        servers: String,
    }
    // The plus signs prevent SQLite from using the index of the user's commands. The workspace has
    // few unfinished commands, but the user may have many finished ones.
    let next = "SELECT workspace_id, user_id FROM revoked_sessions WHERE is_settled = 0";
    let order = "ORDER BY workspace_id, user_id LIMIT 1";
    let sql = format!(
        "WITH after AS ({next} AND (workspace_id, user_id) > (:workspace_id, :user_id) {order}),
         n AS (SELECT * FROM after UNION ALL SELECT * FROM (
            {next} AND NOT EXISTS (SELECT 1 FROM after) {order}))
         SELECT n.workspace_id, n.user_id,
            (SELECT json_group_array(r.id) FROM revoked_sessions r
                WHERE r.workspace_id = n.workspace_id AND r.user_id = n.user_id AND r.is_settled = 0) AS sessions,
            (SELECT json_group_array(DISTINCT c.server_id) FROM commands c
                WHERE c.workspace_id = n.workspace_id AND c.handled_at IS NULL AND +c.requested_by = n.user_id
                AND +c.delivered_at IS NULL) AS servers
         FROM n"
    );
    let result = db::run(
        database,
        Statement::new(sql).bind_all(params! {
            workspace_id: after.0, user_id: after.1,
        }),
    )
    .await?;
    let Some(row) = db::first::<RevokedRow>(&result)? else { return Ok(None) };
    Ok(Some(Revoked {
        workspace_id: row.workspace_id,
        user_id: row.user_id,
        sessions: serde_json::from_str(&row.sessions)?,
        servers: serde_json::from_str(&row.servers)?,
    }))
}

/// Stores that the waiting commands of revoked sessions are cancelled.
pub async fn mark_cancelled(database: &Database, revoked: &Revoked) -> Result<(), Error> {
    let sql = "UPDATE revoked_sessions SET is_settled = 1
        WHERE workspace_id = :workspace_id AND id IN (SELECT value FROM json_each(:sessions))";
    let statement = Statement::new(sql).bind_all(params! {
        workspace_id: revoked.workspace_id, sessions: Value::list(&revoked.sessions),
    });
    db::execute(database, statement).await
}

/// The seconds for which the mark of a revoked session is kept. No request that creates a command
/// takes that long.
const KEEP_REVOKED_SECONDS: i64 = 24 * 60 * 60;
/// The maximum number of marks that one statement deletes.
const MAX_PURGED: u64 = 10_000;

/// Deletes the marks of sessions that were revoked long ago, if their users have no waiting command
/// and no open batch. Then no command of such a session can be delivered any more.
pub async fn purge_revoked(database: &Database, now: Timestamp) -> Result<(), Error> {
    let sql = "DELETE FROM revoked_sessions WHERE (workspace_id, id) IN (
        SELECT r.workspace_id, r.id FROM revoked_sessions r WHERE r.is_settled = 1 AND r.revoked_at <= :until
            AND NOT EXISTS (SELECT 1 FROM commands c INDEXED BY commands_waiting WHERE c.workspace_id = r.workspace_id
                AND c.requested_by = r.user_id AND c.delivered_at IS NULL AND c.handled_at IS NULL)
            AND NOT EXISTS (SELECT 1 FROM batches b INDEXED BY batches_open WHERE b.workspace_id = r.workspace_id
                AND b.requested_by = r.user_id AND b.finished_at IS NULL)
        LIMIT :limit + 0)";
    let statement = Statement::new(sql).bind_all(params! {
        until: now.plus_seconds(-KEEP_REVOKED_SECONDS), limit: MAX_PURGED,
    });
    db::execute(database, statement).await
}

/// The maximum number of KV entries that are deleted together with their sessions. Further entries
/// expire later. They grant no access, because D1 decides.
const MAX_TOKEN_HASHES: u64 = 500;

/// SQL for the hashes of a user's login tokens, as a JSON array. The arguments are SQL for the ids
/// of the workspace and the user.
pub fn token_hashes(workspace_id: &str, user_id: &str) -> String {
    format!(
        "(SELECT json_group_array(token_hash) FROM (SELECT token_hash FROM sessions
          WHERE workspace_id = {workspace_id} AND user_id = {user_id} LIMIT {MAX_TOKEN_HASHES}))"
    )
}

/// Parses the result of [`token_hashes`].
pub fn read_token_hashes(array: Option<String>) -> Result<Vec<String>, Error> {
    Ok(array.map_or(Ok(vec![]), |array| serde_json::from_str(&array))?)
}

/// Extends a session. Does nothing if another request has deleted the session.
pub async fn refresh(
    database: &Database,
    workspace_id: i64,
    id: Uuid,
    now: Timestamp,
    expires_at: Timestamp,
) -> Result<(), Error> {
    let sql = "UPDATE sessions SET refreshed_at = :now, expires_at = :expires_at
        WHERE workspace_id = :workspace_id AND id = :id AND expires_at < :expires_at";
    db::execute(
        database,
        Statement::new(sql).bind_all(params! { workspace_id, id, now, expires_at }),
    )
    .await
}
