//! The D1 table of registration tokens, and the registration of servers with them.

use std::borrow::Cow;

use farhand_domain::access::registration_token::{self, NewRegistrationToken, Registration};
use farhand_domain::audit::event::AuditEvent;
use farhand_domain::error::{Code, Error, ErrorKind, NON_FIELD};
use farhand_domain::fleet::server::unique_name_sql;
use farhand_domain::time::Timestamp;
use farhand_sql::statement::{Statement, Value};
use serde::Deserialize;
use uuid::Uuid;

use super::api_tokens::outlives;
use super::audit::{self, Insert};
use super::database::Database;
use super::db::{self, Failure, boolean, params};
use super::idempotency_keys::ReplaySource;
use super::list::List;
use super::scope::{Query, Scope};
use super::servers;
use super::transaction::Transaction;

/// SQL for the registration token object (contract 6.4) of a row of `registration_tokens t`, as
/// JSON. It does not contain the key.
const OBJECT: &str = "json_object('id', t.id, 'name', t.name,
    'groups', json((SELECT json_group_array(i.group_id) FROM (SELECT group_id FROM registration_token_groups
        WHERE workspace_id = t.workspace_id AND token_id = t.id ORDER BY group_id) i)),
    'expires_at', t.expires_at, 'uses', t.uses, 'name_pattern', t.name_pattern, 'networks', json(t.networks),
    'approval', json(iif(t.approval, 'true', 'false')), 'labels', json(t.labels), 'label_keys', json(t.label_keys), 'added_at', t.added_at)";

/// Reads the response to a creation.
pub const REPLAY: ReplaySource = ReplaySource {
    object: OBJECT,
    row: "registration_tokens t ON t.id = :resource AND t.workspace_id = me.workspace_id",
};

/// SQL for the condition that the caller can see a row of `registration_tokens t`: the token
/// belongs to the caller's workspace, and the caller is staff.
const IS_VISIBLE: &str = "t.workspace_id = me.workspace_id AND (me.is_staff OR me.is_superuser)";

/// Creates a token, if the caller is staff, and the token does not outlive the API token of the
/// request. The reply is the token.
pub fn insert(
    scope: &Scope<'_>,
    id: Uuid,
    new: &NewRegistrationToken,
    key_hash: &str,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let insert = scope
        .statement(&format!(
            "INSERT INTO registration_tokens (id, workspace_id, creator_id, name, key_hash, expires_at, uses, name_pattern,
                networks, approval, labels, label_keys, added_at)
             SELECT :id, workspace_id, user_id, :name, :key_hash, :expires_at, :uses, :name_pattern,
                :networks, :approval, :labels, :label_keys, :now
             FROM me WHERE (is_staff OR is_superuser) AND NOT {}
             RETURNING id AS body",
            outlives(":expires_at")
        ))
        .bind_all(params! {
            id, name: &new.name, key_hash, expires_at: new.expires_at, uses: new.uses,
            name_pattern: new.name_pattern.as_ref(),
            networks: new.networks.as_ref().map(Value::list), approval: new.approval,
            labels: new.labels.json(), label_keys: Value::list(&new.label_keys),
        });
    let join = scope
        .statement(
            "INSERT INTO registration_token_groups (workspace_id, token_id, group_id)
             SELECT t.workspace_id, t.id, g.id FROM me
             CROSS JOIN registration_tokens t ON t.id = :id AND t.workspace_id = me.workspace_id
             CROSS JOIN json_each(:groups) wanted
             CROSS JOIN groups g ON g.id = wanted.value AND g.workspace_id = t.workspace_id",
        )
        .bind_all(params! { id, groups: Value::list(&new.groups) });
    let select = scope.statement(&format!("SELECT {} AS body FROM me", by_id_sql())).bind("id", id);
    Ok(Transaction::default()
        .change(insert, audit::after_change_by(scope, event)?)
        .then(join)
        .returning(select))
}

/// The tokens of the caller's workspace, for staff, newest first.
pub fn list() -> List {
    let rows = format!("registration_tokens t WHERE {IS_VISIBLE}");
    List::new("", ("registration_tokens t", OBJECT), &[rows], "t.id DESC", params! {})
}

/// SQL for the token object of the token `:id`, for staff.
fn by_id_sql() -> String {
    format!("(SELECT {OBJECT} FROM registration_tokens t WHERE t.id = :id AND {IS_VISIBLE})")
}

/// Reads the token object of a token, for staff.
pub fn by_id(id: Uuid) -> Query {
    Query::new(by_id_sql(), params! { id })
}

/// Deletes a token, if the caller is staff. The audit event is written first: it reads the token's
/// name.
pub fn delete(scope: &Scope<'_>, id: Uuid, event: &AuditEvent) -> Result<Transaction, Error> {
    let delete = scope
        .statement(
            "DELETE FROM registration_tokens WHERE id = :id
             AND workspace_id = (SELECT workspace_id FROM me WHERE is_staff OR is_superuser)
             RETURNING id AS body",
        )
        .bind("id", id);
    let rest = "FROM me CROSS JOIN registration_tokens t ON t.id = :event ->> '$.object.id'
        AND t.workspace_id = me.workspace_id WHERE me.is_staff OR me.is_superuser";
    let insert = Insert { object_name: Some("t.name"), rest, ..Insert::by_me() };
    let event = insert.statement(scope, event)?;
    Ok(Transaction::default().change_after_event(event, delete))
}

/// SQL for the condition that a row of `registration_tokens t` is the valid token with the hash
/// `:token_hash` in the workspace `:slug`. A token acts for its creator, so the creator must still
/// be active staff.
const IS_VALID: &str =
    "t.key_hash = :token_hash AND (t.expires_at IS NULL OR t.expires_at > :now) AND (t.uses IS NULL OR t.uses > 0)
        AND t.workspace_id = (SELECT w.id FROM workspaces w WHERE w.slug = :slug AND w.deleted_at IS NULL)
        AND EXISTS (SELECT 1 FROM users u WHERE u.id = t.creator_id AND u.workspace_id = t.workspace_id
            AND u.is_active = 1 AND (u.is_staff = 1 OR u.is_superuser = 1))";

/// The maximum number that is appended to a name that is in use.
const MAX_NAME_NUMBER: u32 = 10_000;

/// SQL for the labels of a new server: the labels of a row of `registration_tokens t`, and the
/// agent's `:labels`. They are sorted by key, like all labels in D1.
const ALL_LABELS: &str = "(SELECT json_group_object(l.key, l.value) FROM (
    SELECT key, value FROM json_each(t.labels) UNION ALL SELECT key, value FROM json_each(:labels) ORDER BY key) l)";

/// A server to be registered.
#[derive(Clone, Copy, Debug)]
pub struct RegisteringServer<'a> {
    pub id: Uuid,
    /// The hash of the agent's key.
    pub key_hash: &'a str,
    /// The fingerprint of that key.
    pub fingerprint: &'a str,
    /// The data that the agent sent.
    pub registration: &'a Registration,
    /// The agent's address.
    pub remote_ip: &'a str,
    /// The audit event. Its actor is the agent of the new server.
    pub event: &'a AuditEvent,
}

/// A server that was registered.
#[derive(Debug, Deserialize)]
pub struct RegisteredServer {
    pub workspace_id: i64,
    /// The server's name, with a number if the requested name was in use.
    pub name: String,
}

/// SQL for whether a row of `registration_tokens t` allows a name. `name` is SQL for the name.
fn allows_name(name: &str) -> String {
    format!("(t.name_pattern IS NULL OR {name} GLOB t.name_pattern)")
}

/// SQL for whether a row of `registration_tokens t` allows an address. `networks` is SQL for a JSON
/// array of all networks that contain the address.
fn allows_address(networks: &str) -> String {
    format!(
        "(t.networks IS NULL OR EXISTS (SELECT 1 FROM json_each(t.networks) n
            WHERE n.value IN (SELECT value FROM json_each({networks}))))"
    )
}

/// All networks that contain an address, for [`allows_address`].
fn networks_of(remote_ip: &str) -> Value {
    Value::list(registration_token::networks_of(remote_ip))
}

/// SQL for the first label of an agent that a row of `registration_tokens t` does not allow.
/// `labels` is SQL for the labels as JSON.
fn refused_label(labels: &str) -> String {
    format!(
        "(SELECT min(l.key) FROM json_each({labels}) l WHERE l.key NOT IN (SELECT k.value FROM json_each(t.label_keys) k))"
    )
}

/// Fails if an agent cannot register a server with a token. `registration` is `None` if the
/// request's input is invalid. Does not check whether the name can still get a number.
///
/// # Errors
/// The token is invalid, expired or used up. Or it does not allow the address, the name or a label.
/// Or one of its groups is full.
pub async fn check_registration(
    database: &Database,
    workspace: &str,
    token_hash: &str,
    (registration, remote_ip): (Option<&Registration>, &str),
    now: Timestamp,
) -> Result<(), Error> {
    #[derive(Deserialize)]
    struct Checks {
        #[serde(deserialize_with = "boolean")]
        has_full_group: bool,
        #[serde(deserialize_with = "boolean")]
        allows_name: bool,
        #[serde(deserialize_with = "boolean")]
        allows_address: bool,
        refused_label: Option<String>,
    }
    let sql = format!(
        "SELECT {} AS has_full_group, :name IS NULL OR {} AS allows_name, {} AS allows_address, {} AS refused_label
         FROM registration_tokens t WHERE {IS_VALID}",
        has_full_group(),
        allows_name(":name"),
        allows_address(":networks"),
        refused_label(":labels")
    );
    let name = registration.map(|registration| &registration.name);
    let labels = registration.map(|registration| registration.labels.json());
    let statement = Statement::new(sql).bind_all(params! {
        slug: workspace, token_hash, now, name, labels, networks: networks_of(remote_ip),
    });
    let denied = |detail: Cow<'static, str>| {
        Err(Error::new(ErrorKind::Forbidden, detail).with_code(Code::PermissionDenied))
    };
    match db::first::<Checks>(&db::run(database, statement).await?)? {
        None => Err(Error::invalid_token()),
        Some(checks) if !checks.allows_address => {
            denied("The registration token's networks do not allow the agent's address.".into())
        }
        Some(checks) if !checks.allows_name => {
            denied("The registration token's name_pattern does not allow this name.".into())
        }
        Some(Checks { refused_label: Some(key), .. }) => denied(
            format!("The registration token's label_keys do not allow the label {key}.").into(),
        ),
        Some(checks) if checks.has_full_group => Err(Error::field(
            NON_FIELD,
            "A group of the registration token has all the servers that it may have.",
        )),
        Some(_) => Ok(()),
    }
}

/// SQL for whether a group of a row of `registration_tokens t` is full.
fn has_full_group() -> String {
    format!(
        "EXISTS (SELECT 1 FROM registration_token_groups i WHERE i.workspace_id = t.workspace_id AND i.token_id = t.id AND {})",
        servers::is_full("i.workspace_id", "i.group_id")
    )
}

/// Registers a server with a token, and subtracts one from the token's uses. Returns `None` if
/// [`check_registration`] would fail, or if all numbers for the name are in use.
pub async fn register(
    database: &Database,
    workspace: &str,
    token_hash: &str,
    new: RegisteringServer<'_>,
    now: Timestamp,
) -> Result<Option<RegisteredServer>, Failure> {
    let statement = |sql: String| {
        Statement::new(sql).bind_all(params! { slug: workspace, token_hash, now, id: new.id })
    };
    let name = unique_name_sql(":name", "number");
    let insert = statement(format!(
        "WITH RECURSIVE free (workspace_id, approval, labels, number) AS (
            SELECT t.workspace_id, t.approval, {ALL_LABELS}, 1 FROM registration_tokens t
            WHERE {IS_VALID} AND {} AND {} AND {} IS NULL AND NOT {}
            UNION ALL
            SELECT workspace_id, approval, labels, number + 1 FROM free WHERE number < {MAX_NAME_NUMBER} AND (
                EXISTS (SELECT 1 FROM servers s WHERE s.workspace_id = free.workspace_id AND s.name = {name})
                OR approval AND EXISTS (SELECT 1 FROM server_names n
                    WHERE n.workspace_id = free.workspace_id AND n.name = {name} AND n.freed_at > :taken_since))
         )
         INSERT INTO servers (id, workspace_id, name, agent_key_hash, platform, registration, fingerprint, added_at, updated_at, labels)
         SELECT :id, workspace_id, {name}, :key_hash, :platform, iif(approval, 'pending', 'active'), iif(approval, :fingerprint, NULL), :now, :now, labels
         FROM free
         WHERE number = (SELECT max(number) FROM free) AND number < {MAX_NAME_NUMBER}
         RETURNING workspace_id, name",
        allows_name(":name"),
        allows_address(":networks"),
        refused_label(":labels"),
        has_full_group()
    ))
    .bind_all(params! {
        name: &new.registration.name, labels: new.registration.labels.json(), key_hash: new.key_hash,
        platform: new.registration.platform.as_deref(), networks: networks_of(new.remote_ip),
        fingerprint: new.fingerprint, taken_since: now.plus_seconds(-registration_token::NAME_RESERVATION),
    });
    let join = statement(format!(
        "INSERT INTO server_groups (workspace_id, group_id, server_id)
         SELECT s.workspace_id, i.group_id, s.id FROM servers s
         CROSS JOIN registration_tokens t ON {IS_VALID} AND t.workspace_id = s.workspace_id
         CROSS JOIN registration_token_groups i ON i.workspace_id = t.workspace_id AND i.token_id = t.id
         WHERE s.id = :id"
    ));
    let use_token = statement(format!(
        "UPDATE registration_tokens AS t SET uses = uses - 1
         WHERE {IS_VALID} AND EXISTS (SELECT 1 FROM servers s WHERE s.id = :id)"
    ));
    // The statement for the event comes before `use_token`, which may use up the token.
    let rest = format!(
        "FROM servers s CROSS JOIN registration_tokens t ON {IS_VALID} AND t.workspace_id = s.workspace_id
         WHERE s.id = :id AND changes() > 0"
    );
    let insert_event = Insert {
        workspace: "s.workspace_id",
        event: ":event",
        by: Some(["'agent'", "s.id", "s.name", "'registration_token'", "t.id"]),
        object_id: None,
        object_name: Some("s.name"),
        details: Some(
            "iif(s.labels = '{}', :event -> '$.details', json_set(:event -> '$.details', '$.labels', json(s.labels)))",
        ),
        rest: &rest,
    };
    let insert_event = statement(insert_event.sql()).bind("event", audit::text(new.event)?);
    let results = db::batch(database, vec![insert, insert_event, join, use_token]).await?;
    Ok(results.first().map(db::first::<RegisteredServer>).transpose()?.flatten())
}
