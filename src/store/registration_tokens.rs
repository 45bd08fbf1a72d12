//! The table of registration tokens, and the servers that are registered with them.

use farhand_domain::audit::Event;
use farhand_domain::error::{Error, NON_FIELD};
use farhand_domain::registration_token::{NewRegistrationToken, Registration};
use farhand_domain::secret::Hashes;
use farhand_domain::server::numbered_sql;
use farhand_domain::time::Timestamp;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;
use worker::Env;

use super::audit::{self, Insert};
use super::db::{self, Failure, Statement};
use super::servers;
use crate::caller::Credential;

/// SQL for the registration token object (contract 6) of a row of `registration_tokens t`, as JSON. The key is not in it.
pub const OBJECT: &str = "json_object('id', t.id, 'name', t.name,
    'groups', json((SELECT json_group_array(i.group_id) FROM (SELECT group_id FROM registration_token_groups
        WHERE workspace_id = t.workspace_id AND token_id = t.id ORDER BY group_id) i)),
    'expires_at', t.expires_at, 'uses', t.uses, 'added_at', t.added_at)";

/// SQL for the condition that a row of `registration_tokens t` is of the caller's workspace, and the caller staff.
pub const LISTED: &str = "t.workspace_id = me.workspace_id AND (me.is_staff OR me.is_superuser)";

/// The statements that make a token, if the caller is staff. The last one's `body` is the token.
pub fn insert(credential: &Credential<'_>, id: Uuid, new: &NewRegistrationToken, key_hash: &str) -> Vec<Statement> {
    let insert = credential
        .statement(
            "INSERT INTO registration_tokens (id, workspace_id, creator_id, name, key_hash, expires_at, uses, added_at)
             SELECT ?5, workspace_id, user_id, ?6, ?7, ?8, ?9, ?3 FROM me WHERE is_staff OR is_superuser",
        )
        .bind(id)
        .bind(&new.name)
        .bind(key_hash)
        .bind(new.expires_at)
        .bind(new.uses);
    let join = credential
        .statement(
            "INSERT INTO registration_token_groups (workspace_id, token_id, group_id)
             SELECT t.workspace_id, t.id, g.id FROM me
             CROSS JOIN registration_tokens t ON t.id = ?5 AND t.workspace_id = me.workspace_id
             CROSS JOIN json_each(?6) wanted
             CROSS JOIN groups g ON g.id = wanted.value AND g.workspace_id = t.workspace_id",
        )
        .bind(id)
        .bind(json!(new.groups).to_string());
    let select = credential.statement(&format!("SELECT {} AS body FROM me", one())).bind(id);
    vec![insert, join, select]
}

/// SQL for a token by its id `?5`, for staff.
pub fn one() -> String {
    format!("(SELECT {OBJECT} FROM registration_tokens t WHERE t.id = ?5 AND {LISTED})")
}

/// The statement that deletes a token, if the caller is staff, and returns its id as `body`.
pub fn delete(credential: &Credential<'_>, id: Uuid) -> Statement {
    credential
        .statement(
            "DELETE FROM registration_tokens WHERE id = ?5
             AND workspace_id = (SELECT workspace_id FROM me WHERE is_staff OR is_superuser)
             RETURNING id AS body",
        )
        .bind(id)
}

/// The statement for the audit event of [`delete`], before it, while the token has its name.
pub fn before_delete(credential: &Credential<'_>, event: &Event) -> Result<Statement, Error> {
    let rest = "FROM me CROSS JOIN registration_tokens t ON t.id = ?5 ->> '$.object.id'
        AND t.workspace_id = me.workspace_id WHERE me.is_staff OR me.is_superuser";
    let insert = Insert { object_name: Some("t.name"), rest, ..Insert::by_me() };
    Ok(credential.statement(&insert.sql()).bind(audit::text(event)?))
}

/// The condition that a row of `registration_tokens t` is alive at `?3` and has one of the hashes `?2` in the workspace of
/// the slug `?1`: what it allows is done in its creator's name, who must still be allowed it.
fn alive(hashes: &Hashes) -> String {
    format!(
        "{} AND (t.expires_at IS NULL OR t.expires_at > ?3) AND (t.uses IS NULL OR t.uses > 0)
        AND t.workspace_id = (SELECT w.id FROM workspaces w WHERE w.slug = ?1 AND w.deleted_at IS NULL)
        AND EXISTS (SELECT 1 FROM users u WHERE u.id = t.creator_id AND u.workspace_id = t.workspace_id
            AND u.is_active = 1 AND (u.is_staff = 1 OR u.is_superuser = 1))",
        db::has_hash("t.key_hash", "?2", hashes)
    )
}

/// How many servers may have a name with a number behind it.
const MOST_NUMBERS: u32 = 10_000;

/// A server to be registered.
#[derive(Clone, Copy, Debug)]
pub struct NewServer<'a> {
    /// Its id.
    pub id: Uuid,
    /// The hash of its agent's key.
    pub key_hash: &'a str,
    /// What its agent told.
    pub registration: &'a Registration,
    /// What the audit log tells of it. The actor is the agent of the new server.
    pub event: &'a Event,
}

/// A server that was registered.
#[derive(Debug, Deserialize)]
pub struct Registered {
    /// The workspace's id.
    pub workspace_id: f64,
    /// The name that it got.
    pub name: String,
}

/// Why no server can be registered with a token, whatever its name.
///
/// # Errors
/// The token is not alive; one of its groups is full.
pub async fn refusal(env: &Env, workspace: &str, token: &Hashes, now: Timestamp) -> Result<(), Error> {
    let sql = format!("SELECT {} AS is_full FROM registration_tokens t WHERE {}", has_full_group(), alive(token));
    let result = db::run(env, Statement::new(sql).bind(workspace).bind(token).bind(now)).await?;
    match db::column::<f64>(&result)?.first() {
        None => Err(Error::invalid_token()),
        Some(0.0) => Ok(()),
        Some(_) => {
            Err(Error::field(NON_FIELD, "A group of the registration token has all the servers that it may have."))
        }
    }
}

/// SQL for whether a group of a row of `registration_tokens t` is full.
fn has_full_group() -> String {
    format!(
        "EXISTS (SELECT 1 FROM registration_token_groups i WHERE i.workspace_id = t.workspace_id AND i.token_id = t.id AND {})",
        servers::is_full("i.workspace_id", "i.group_id")
    )
}

/// Registers a server with a token, and uses the token once; `None` where there is a [`refusal`], or no name is left. A token
/// that is stored by its hash under the previous pepper is stored by the current one then.
///
/// # Errors
/// D1 did not do it.
pub async fn register(
    env: &Env,
    workspace: &str,
    token: &Hashes,
    new: NewServer<'_>,
    now: Timestamp,
) -> Result<Option<Registered>, Failure> {
    let alive = alive(token);
    let rehash = token.previous.as_ref().map_or("", |_| ", key_hash = ?5, key_hashed_at = ?3");
    let statement = |sql: String| Statement::new(sql).bind(workspace).bind(token).bind(now).bind(new.id);
    let name = numbered_sql("?5", "number");
    let insert = statement(format!(
        "WITH RECURSIVE free (workspace_id, creator_id, number) AS (
            SELECT t.workspace_id, t.creator_id, 1 FROM registration_tokens t WHERE {alive} AND NOT {}
            UNION ALL
            SELECT workspace_id, creator_id, number + 1 FROM free WHERE number < {MOST_NUMBERS} AND EXISTS (
                SELECT 1 FROM servers s WHERE s.workspace_id = free.workspace_id AND s.name = {name})
         )
         INSERT INTO servers (id, workspace_id, name, agent_key_hash, owner_id, platform, added_at, updated_at)
         SELECT ?4, workspace_id, {name}, ?6, creator_id, ?7, ?3, ?3 FROM free
         WHERE number = (SELECT max(number) FROM free) AND number < {MOST_NUMBERS}
         RETURNING workspace_id, name",
        has_full_group()
    ))
    .bind(&new.registration.name)
    .bind(new.key_hash)
    .bind(new.registration.platform.as_deref());
    let join = statement(format!(
        "INSERT INTO server_groups (workspace_id, group_id, server_id)
         SELECT s.workspace_id, i.group_id, s.id FROM servers s
         CROSS JOIN registration_tokens t ON {alive} AND t.workspace_id = s.workspace_id
         CROSS JOIN registration_token_groups i ON i.workspace_id = t.workspace_id AND i.token_id = t.id
         WHERE s.id = ?4"
    ));
    let spend = statement(format!(
        "UPDATE registration_tokens AS t SET uses = uses - 1{rehash}
         WHERE {alive} AND EXISTS (SELECT 1 FROM servers s WHERE s.id = ?4)"
    ));
    // Unless the pepper is being rotated, the index is not written.
    let spend = token.previous.iter().fold(spend, |spend, _| spend.bind(&token.current));
    // The token is still alive here: it is used after this.
    let rest = format!(
        "FROM servers s CROSS JOIN registration_tokens t ON {alive} AND t.workspace_id = s.workspace_id
         WHERE s.id = ?4 AND changes() > 0"
    );
    let told = Insert {
        workspace: "s.workspace_id",
        event: "?5",
        by: Some(["'agent'", "s.id", "s.name", "'registration_token'", "t.id"]),
        object_id: None,
        object_name: Some("s.name"),
        rest: &rest,
    };
    let told = statement(told.sql()).bind(audit::text(new.event)?);
    let results = db::batch(env, vec![insert, told, join, spend]).await?;
    Ok(results.first().map(db::first::<Registered>).transpose()?.flatten())
}
