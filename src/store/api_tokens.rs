//! The table of API tokens.

use farhand_domain::acl::{Acl, MAX_IN_EVENT};
use farhand_domain::api_token::{NewToken, TokenChanges};
use farhand_domain::audit::Event;
use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use uuid::Uuid;
use worker::Env;

use super::audit::{self, Insert};
use super::db::{self, Statement};
use super::scope::Scope;
use crate::platform::internal;

/// SQL for the token object (spec.md, API token) of a row of `api_tokens t`, as JSON. The key is not in it.
pub const OBJECT: &str = "json_object('id', t.id, 'name', t.name, 'enabled', json(iif(t.enabled, 'true', 'false')),
    'acl', json(t.acl), 'added_at', t.added_at, 'updated_at', t.updated_at, 'expires_at', t.expires_at,
    'last_used_at', t.last_used_at)";

/// SQL for the list's filters: a name as `?7`, and whether enabled as `?8`; null where it is not asked for.
pub const FILTERS: &str = "(?7 IS NULL OR t.name = ?7) AND (?8 IS NULL OR t.enabled = ?8)";

/// SQL for the condition that a row of `api_tokens t` is the caller's own.
pub const OWN: &str = "t.workspace_id = me.workspace_id AND t.user_id = me.user_id";

/// SQL for the caller's token with the id `?6`, as far as a check of its list needs it.
pub const FOR_CHECK: &str =
    "(SELECT json_object('enabled', json(iif(t.enabled, 'true', 'false')), 'expires_at', t.expires_at,
    'acl', json(t.acl)) FROM api_tokens t
    WHERE t.id = ?6 AND t.workspace_id = me.workspace_id AND t.user_id = me.user_id)";

fn acl_text(acl: Option<&Acl>) -> Result<Option<String>, Error> {
    acl.map(|acl| acl.json().map_err(internal)).transpose()
}

/// Adds an access control list to the details of an event.
///
/// # Errors
/// None that a list can have.
pub fn tell_acl(event: &mut Event, acl: Option<&Acl>) -> Result<(), Error> {
    let mut fields = Acl::in_event(acl).map_err(internal)?;
    if let Some(details) = event.details.as_object_mut() {
        details.append(&mut fields);
    }
    Ok(())
}

/// SQL for whether a token that ends at a time, or never if that is null, outlives the API token that calls.
fn outlives(end: &str) -> String {
    format!("(me.kind = 'api_token' AND me.expires_at IS NOT NULL AND ({end} IS NULL OR {end} > me.expires_at))")
}

/// SQL for the condition on `me` that a row of a table may be changed as the parameters of [`bind_change`] say, the
/// first of which has the number `first`: neither what they set nor what they enable again outlives the caller's own API token.
fn may_change(row: &str, first: usize) -> String {
    let [enabled, has_end, end] = [first, first + 1, first + 2].map(|number| format!("?{number}"));
    let (outlives_new, outlives_result) =
        (outlives(&end), outlives(&format!("iif({has_end}, {end}, {row}.expires_at)")));
    format!(
        "NOT ({has_end} AND {outlives_new}) AND NOT (coalesce({enabled}, 0) AND NOT {row}.enabled AND {outlives_result})"
    )
}

/// Binds whether a token is to be enabled, whether its end changes, and to what.
fn bind_change(statement: Statement, changes: &TokenChanges) -> Statement {
    statement.bind(changes.enabled).bind(changes.expires_at.is_some()).bind(changes.expires_at.flatten())
}

/// The statement that makes a token of the caller's and returns it as `body`, unless it would outlive the caller's own or they
/// have `most` tokens already.
pub fn insert(
    scope: &Scope<'_>,
    id: Uuid,
    new: &NewToken,
    key_hash: &str,
    most: i64,
    now: Timestamp,
) -> Result<Statement, Error> {
    let statement = scope
        .statement(&format!(
            "INSERT INTO api_tokens (id, workspace_id, user_id, name, key_hash, added_at, updated_at, expires_at, acl)
             SELECT ?5, workspace_id, user_id, ?6, ?7, ?8, ?8, ?9, ?10 FROM me
             WHERE NOT {} AND ?11 > (SELECT count(*) FROM api_tokens t WHERE {OWN})
             RETURNING {} AS body",
            outlives("?9"),
            db::returned(OBJECT, "t")
        ))
        .bind(id)
        .bind(&new.name)
        .bind(key_hash)
        .bind(now)
        .bind(new.expires_at)
        .bind(acl_text(new.acl.as_ref())?)
        .bind(most);
    Ok(statement)
}

/// The statement that changes a token of the caller's and returns it as `body`, unless it would outlive the caller's own.
pub fn update(scope: &Scope<'_>, id: Uuid, changes: &TokenChanges, now: Timestamp) -> Result<Statement, Error> {
    let acl = changes.acl.as_ref().map(|acl| acl_text(acl.as_ref())).transpose()?;
    let statement = scope
        .statement(&format!(
            "UPDATE api_tokens SET updated_at = ?6, name = coalesce(?7, name), enabled = coalesce(?8, enabled),
                expires_at = iif(?9, ?10, expires_at), acl = iif(?11, ?12, acl)
             WHERE id = ?5 AND (workspace_id, user_id) IN (SELECT workspace_id, user_id FROM me WHERE {})
             RETURNING {} AS body",
            may_change("api_tokens", 8),
            db::returned(OBJECT, "t")
        ))
        .bind(id)
        .bind(now)
        .bind(changes.name.as_ref());
    Ok(bind_change(statement, changes).bind(acl.is_some()).bind(acl.flatten()))
}

const CHANGED: &str = "FROM me CROSS JOIN api_tokens d ON d.id = ?5 ->> '$.object.id'
    AND d.workspace_id = me.workspace_id AND d.user_id = me.user_id";

/// The statement for the audit event of [`update`], before it, while the token has its name: the token may be the one that
/// calls, and then its caller may be nobody after it.
pub fn before_update(scope: &Scope<'_>, mut event: Event, changes: &TokenChanges) -> Result<Statement, Error> {
    // The access control list as it was and as it is. Of a long one that was, the event that set it has the hash.
    let old = format!(
        "json_set(?5 -> '$.details', '$.old', json(iif(length(CAST(d.acl AS BLOB)) > {MAX_IN_EVENT},
            json_object('acl_bytes', length(CAST(d.acl AS BLOB))), json_object('acl', json(d.acl)))))"
    );
    let details =
        changes.acl.as_ref().map(|acl| tell_acl(&mut event, acl.as_ref()).map(|()| old.as_str())).transpose()?;
    let rest = format!("{CHANGED} WHERE {}", may_change("d", 6));
    let insert = Insert { object_name: Some("d.name"), details, rest: &rest, ..Insert::by_me() };
    Ok(bind_change(scope.statement(&insert.sql()).bind(audit::text(&event)?), changes))
}

/// The same of [`delete`].
pub fn before_delete(scope: &Scope<'_>, event: &Event) -> Result<Statement, Error> {
    let insert = Insert { object_name: Some("d.name"), rest: CHANGED, ..Insert::by_me() };
    Ok(scope.statement(&insert.sql()).bind(audit::text(event)?))
}

/// The statement that deletes a token of the caller's and returns its id as `body`.
pub fn delete(scope: &Scope<'_>, id: Uuid) -> Statement {
    scope
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
