//! The D1 table of API tokens.

use farhand_domain::access::acl::{Acl, MAX_IN_EVENT};
use farhand_domain::access::api_token::{NewToken, TokenChanges, TokenFilter};
use farhand_domain::audit::event::AuditEvent;
use farhand_domain::command::request::ServerRef;
use farhand_domain::command::script::ScriptCall;
use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use farhand_sql::selector;
use farhand_sql::statement::Statement;
use uuid::Uuid;

use super::audit::{self, Insert};
use super::database::Database;
use super::db::{self, params};
use super::idempotency_keys::ReplaySource;
use super::list::{Filters, List};
use super::scope::{Query, Scope};
use super::transaction::Transaction;
use super::{scripts, servers};

/// SQL for the token object (contract 4.8) of a row of `api_tokens t`, as JSON. It does not contain
/// the key.
const OBJECT: &str = "json_object('id', t.id, 'name', t.name, 'enabled', json(iif(t.enabled, 'true', 'false')),
    'acl', json(t.acl), 'added_at', t.added_at, 'updated_at', t.updated_at, 'expires_at', t.expires_at,
    'last_used_at', t.last_used_at)";

/// Reads the response to a creation.
pub const REPLAY: ReplaySource = ReplaySource {
    object: OBJECT,
    row: "api_tokens t ON t.id = :resource AND t.workspace_id = me.workspace_id AND t.user_id = me.user_id",
};

/// SQL for the condition that a row of `api_tokens t` belongs to the caller.
const IS_OWN: &str = "t.workspace_id = me.workspace_id AND t.user_id = me.user_id";

/// The caller's tokens, newest first.
pub fn list(filter: &TokenFilter) -> List {
    let Filters { sql, parameters } = Filters::default()
        .with("t.name = :name", "name", filter.name.as_ref())
        .with("t.enabled = :enabled", "enabled", filter.enabled);
    List::new(
        "",
        ("api_tokens t", OBJECT),
        &[format!("api_tokens t WHERE {IS_OWN}{sql}")],
        "t.id DESC",
        parameters,
    )
}

/// Reads the token object of a token of the caller.
pub fn by_id(id: Uuid) -> Query {
    Query::new(
        format!("(SELECT {OBJECT} FROM api_tokens t WHERE t.id = :id AND {IS_OWN})"),
        params! { id },
    )
}

/// Reads the data to check an access control list, as `{target, script, token}`: the server as
/// [`servers::for_command`] returns it, the version of the script as [`scripts::for_use`] returns
/// it, and a token of the caller.
pub fn for_check(server: &ServerRef, call: Option<&ScriptCall>, token: Option<Uuid>) -> Query {
    let (target, server) = servers::for_command(server);
    let (script, mut parameters) = scripts::for_use(call);
    parameters.extend(params! { server, token });
    let sql = format!(
        "json_object('target', json({target}), 'script', json({script}), 'token', json((SELECT json_object(
            'enabled', json(iif(t.enabled, 'true', 'false')), 'expires_at', t.expires_at, 'acl', json(t.acl))
            FROM api_tokens t WHERE t.id = :token AND {IS_OWN})))"
    );
    Query::new(sql, parameters)
}

fn acl_text(acl: Option<&Acl>) -> Result<Option<String>, Error> {
    Ok(acl.map(Acl::json).transpose()?)
}

/// The selector of an access control list, in the form that SQL compares.
fn selector_terms(acl: Option<&Acl>) -> Option<String> {
    acl?.selector.as_ref().map(selector::terms)
}

/// Adds an access control list to the details of an event.
pub fn add_acl_to_event(event: &mut AuditEvent, acl: Option<&Acl>) -> Result<(), Error> {
    let mut fields = Acl::in_event(acl)?;
    if let Some(details) = event.details.as_object_mut() {
        details.append(&mut fields);
    }
    Ok(())
}

/// SQL for whether a credential outlives the API token of the request. `end` is SQL for the time at
/// which the credential expires, or for null if it never expires.
pub(super) fn outlives(end: &str) -> String {
    format!(
        "(me.kind = 'api_token' AND me.expires_at IS NOT NULL AND ({end} IS NULL OR {end} > me.expires_at))"
    )
}

/// SQL for the condition that the caller may make a change of a token: if the change sets the
/// expiry or enables the token, the token does not outlive the API token of the request. If the
/// request expects an access control list, the token has that list. `row` is the table or its
/// alias. [`bind_change`] binds the parameters.
fn may_change(row: &str) -> String {
    let outlives_new = outlives(":expires_at");
    let outlives_result =
        outlives(&format!("iif(:sets_expires_at, :expires_at, {row}.expires_at)"));
    format!(
        "NOT (:sets_expires_at AND {outlives_new})
         AND NOT (coalesce(:enabled, 0) AND NOT {row}.enabled AND {outlives_result})
         AND (:expected_acl IS NULL OR coalesce({row}.acl, 'null') = :expected_acl)"
    )
}

/// Binds the parameters of [`may_change`].
fn bind_change(
    statement: Statement,
    changes: &TokenChanges,
    expected_acl: Option<&str>,
) -> Statement {
    statement.bind_all(params! {
        enabled: changes.enabled, sets_expires_at: changes.expires_at.is_some(),
        expires_at: changes.expires_at.flatten(), expected_acl: expected_acl.map(str::to_owned),
    })
}

/// Creates a token of the caller, unless it would outlive the API token of the request, or the
/// caller already has `max_tokens` tokens. The reply is the token.
pub fn insert(
    scope: &Scope<'_>,
    id: Uuid,
    new: &NewToken,
    key_hash: &str,
    max_tokens: i64,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let insert = scope
        .statement(&format!(
            "INSERT INTO api_tokens (id, workspace_id, user_id, name, key_hash, enabled, added_at, updated_at, expires_at, acl, selector)
             SELECT :id, workspace_id, user_id, :name, :key_hash, :enabled, :now, :now, :expires_at, :acl, :selector FROM me
             WHERE NOT {} AND :max_tokens > (SELECT count(*) FROM api_tokens t WHERE {IS_OWN})
             RETURNING {} AS body",
            outlives(":expires_at"),
            db::returned(OBJECT, "t")
        ))
        .bind_all(params! {
            id, name: &new.name, key_hash, enabled: new.enabled, expires_at: new.expires_at,
            acl: acl_text(new.acl.as_ref())?, selector: selector_terms(new.acl.as_ref()), max_tokens,
        });
    Ok(Transaction::default().change(insert, audit::after_change_by(scope, event)?))
}

/// Changes a token of the caller, unless it would outlive the API token of the request, or its
/// access control list is not `expected_acl`. The reply is the token.
pub fn update(
    scope: &Scope<'_>,
    id: Uuid,
    changes: &TokenChanges,
    expected_acl: Option<&str>,
    event: AuditEvent,
) -> Result<Transaction, Error> {
    let acl = changes.acl.as_ref().map(|acl| acl_text(acl.as_ref())).transpose()?;
    let update = scope
        .statement(&format!(
            "UPDATE api_tokens SET updated_at = :now, name = coalesce(:name, name), enabled = coalesce(:enabled, enabled),
                expires_at = iif(:sets_expires_at, :expires_at, expires_at), acl = iif(:sets_acl, :acl, acl),
                selector = iif(:sets_acl, :selector, selector)
             WHERE id = :id AND (workspace_id, user_id) IN (SELECT workspace_id, user_id FROM me WHERE {})
             RETURNING {} AS body",
            may_change("api_tokens"),
            db::returned(OBJECT, "t")
        ))
        .bind_all(params! { id, name: changes.name.as_ref() });
    let update = bind_change(update, changes, expected_acl).bind_all(params! {
        sets_acl: acl.is_some(), acl: acl.flatten(),
        selector: selector_terms(changes.acl.as_ref().and_then(Option::as_ref)),
    });
    Ok(Transaction::default()
        .change_after_event(before_update(scope, event, changes, expected_acl)?, update))
}

/// SQL that selects the token that is the object of the audit event, as `d`.
const EVENT_TOKEN: &str = "FROM me CROSS JOIN api_tokens d ON d.id = :event ->> '$.object.id'
    AND d.workspace_id = me.workspace_id AND d.user_id = me.user_id";

/// The statement for the audit event of [`update`]. It comes before the update: it needs the
/// token's old name, and the update may disable the API token of the request, which makes `me`
/// empty.
fn before_update(
    scope: &Scope<'_>,
    mut event: AuditEvent,
    changes: &TokenChanges,
    expected_acl: Option<&str>,
) -> Result<Statement, Error> {
    // The event contains the old and the new access control list. If the old list is long, the
    // event contains only its size. The event that set the old list has its hash.
    let old = format!(
        "json_set(:event -> '$.details', '$.old', json(iif(length(CAST(d.acl AS BLOB)) > {MAX_IN_EVENT},
            json_object('acl_bytes', length(CAST(d.acl AS BLOB))), json_object('acl', json(d.acl)))))"
    );
    let details = changes
        .acl
        .as_ref()
        .map(|acl| add_acl_to_event(&mut event, acl.as_ref()).map(|()| old.as_str()))
        .transpose()?;
    let rest = format!("{EVENT_TOKEN} WHERE {}", may_change("d"));
    let insert = Insert { object_name: Some("d.name"), details, rest: &rest, ..Insert::by_me() };
    Ok(bind_change(insert.statement(scope, &event)?, changes, expected_acl))
}

/// Deletes a token of the caller. The audit event is written first: it reads the token's name.
pub fn delete(scope: &Scope<'_>, id: Uuid, event: &AuditEvent) -> Result<Transaction, Error> {
    let insert = Insert { object_name: Some("d.name"), rest: EVENT_TOKEN, ..Insert::by_me() };
    let event = insert.statement(scope, event)?;
    let delete = scope
        .statement(
            "DELETE FROM api_tokens WHERE id = :id AND (workspace_id, user_id) IN (SELECT workspace_id, user_id FROM me)
             RETURNING id AS body",
        )
        .bind("id", id);
    Ok(Transaction::default().change_after_event(event, delete))
}

/// Stores when a token was last used.
pub async fn touch(
    database: &Database,
    workspace_id: i64,
    id: Uuid,
    now: Timestamp,
) -> Result<(), Error> {
    let sql =
        "UPDATE api_tokens SET last_used_at = :now WHERE workspace_id = :workspace_id AND id = :id";
    db::execute(database, Statement::new(sql).bind_all(params! { workspace_id, id, now })).await
}
