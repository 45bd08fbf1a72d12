//! The D1 tables of scripts and their versions (contract 14.10).

use farhand_domain::audit::event::AuditEvent;
use farhand_domain::command::script::parameters::Parameter;
use farhand_domain::command::script::{
    FIRST_VERSION, NewScript, ScriptCall, ScriptChanges, ScriptFilter, ScriptRef,
};
use farhand_domain::error::Error;
use farhand_domain::hash::sha256;
use farhand_domain::limits::quota::VERSION_BYTES;
use farhand_sql::quotas::{self, RANK_OF_ME, add_bytes};
use farhand_sql::statement::{Parameters, Statement, Value};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::audit::{self, Insert};
use super::db::params;
use super::idempotency_keys::ReplaySource;
use super::list::{Filters, List};
use super::scope::{Query, Scope};
use super::transaction::Transaction;
use crate::platform::Quotas;

/// SQL for a user as JSON. `id` is the column of a row of `script_versions v`, or of its script.
macro_rules! user {
    ($id:literal) => {
        concat!(
            "(SELECT json_object('id', u.id, 'username', u.username, 'email', u.email) FROM users u
                WHERE u.workspace_id = v.workspace_id AND u.id = ",
            $id,
            ")"
        )
    };
}

/// SQL for the member `body` of a row of `script_versions v`. It is null unless the caller is staff,
/// wrote the version, or has an access control list or a schedule that names it (contract 14.10). A
/// limited token reads only rows that its list names ([`IS_READABLE`]).
macro_rules! body_member {
    () => {
        "'body', iif(me.is_staff OR me.is_superuser OR me.acl IS NOT NULL OR v.author_id = me.user_id
            OR EXISTS (SELECT 1 FROM schedules c WHERE c.workspace_id = v.workspace_id AND c.owner_id = me.user_id
                AND c.definition ->> '$.script' = v.script_id
                AND coalesce(c.definition ->> '$.script_version', v.version) = v.version),
            v.body, NULL), "
    };
}

/// SQL for the script object (contract 14.10) without its body, of a row of `script_versions v`.
/// `$body` is SQL for further members.
macro_rules! object {
    ($body:expr) => {
        concat!(
            "json_object('id', v.script_id, 'name', v.name, 'description', v.description, 'interpreter', v.interpreter, ",
            $body,
            "'body_bytes', length(CAST(v.body AS BLOB)), 'sha256', v.sha256, 'params', json(v.params), 'version', v.version, 'owner', ",
            user!("(SELECT s.owner_id FROM scripts s WHERE s.id = v.script_id AND s.workspace_id = v.workspace_id)"),
            ", 'added_at', (SELECT s.added_at FROM scripts s WHERE s.id = v.script_id AND s.workspace_id = v.workspace_id),
            'updated_at', v.added_at)"
        )
    };
}

/// SQL for the script object of its latest version, a row of `script_versions v`.
const OBJECT: &str = object!(body_member!());
/// SQL for the script object in a list, which has no body.
const LIST_OBJECT: &str = object!("");

/// SQL for the version object (contract 14.10) of a row of `script_versions v`, as JSON.
macro_rules! version_object {
    ($body:expr) => {
        concat!(
            "json_object('script', v.script_id, 'version', v.version, 'name', v.name, 'description', v.description,
            'interpreter', v.interpreter, ",
            $body,
            "'body_bytes', length(CAST(v.body AS BLOB)), 'sha256', v.sha256, 'params', json(v.params), 'author', ",
            user!("v.author_id"),
            ", 'added_at', v.added_at)"
        )
    };
}

/// SQL for the version object with the body.
const VERSION_OBJECT: &str = version_object!(body_member!());
/// SQL for the version object in a list.
const LIST_VERSION_OBJECT: &str = version_object!("");

/// SQL for the latest versions of the scripts of the caller's workspace that are not deleted:
/// tables `scripts s` and `script_versions v`, and the condition.
const LATEST: &str = "scripts s CROSS JOIN script_versions v
    ON v.workspace_id = s.workspace_id AND v.script_id = s.id AND v.version = s.version
    WHERE s.workspace_id = me.workspace_id AND s.hidden_at IS NULL";

/// SQL for the condition that the caller can read a row of `script_versions v`: a limited token
/// reads only versions that its list names (contract 4.12).
const IS_READABLE: &str =
    "(me.acl IS NULL OR EXISTS (SELECT 1 FROM json_each(me.acl, '$.scripts') a
    WHERE a.value IN (v.script_id, v.script_id || '@' || v.version)))";

/// SQL for whether the caller is staff.
const IS_STAFF: &str = "(me.is_staff OR me.is_superuser)";

/// The most versions of a script.
pub const MAX_VERSIONS: i64 = 1_000;

/// SQL for whether the caller may store `:stored_bytes` more bytes (contract 11.4).
fn has_bytes_left() -> String {
    let usage = quotas::usage("me.workspace_id", "me.user_id", ":now");
    format!(":stored_bytes <= (SELECT {} FROM {usage} u)", quotas::bytes_left(RANK_OF_ME))
}

/// Reads the seconds until the caller may store `stored_bytes` more bytes. Finds nothing if they are
/// more than the whole quota.
pub fn find_retry_after(stored_bytes: u64, limits: Quotas) -> Query {
    let sql =
        quotas::retry_after(":stored_bytes", "me.workspace_id", "me.user_id", RANK_OF_ME, ":now");
    Query::new(
        format!("CAST({sql} AS TEXT)"),
        params! {
            stored_bytes, bytes_of_day: limits.bytes_of_day, bytes_of_user: limits.bytes_of_user,
        },
    )
}

/// The bytes that a new script counts for the quotas of bytes.
pub fn bytes_of(new: &NewScript) -> u64 {
    stored_bytes(new.body.len() as u64, &new.description, &new.params)
}

/// The bytes that a version counts for the quotas of bytes.
fn stored_bytes(body: u64, description: &str, params: &[Parameter]) -> u64 {
    VERSION_BYTES + body + (description.len() + json!(params).to_string().len()) as u64
}

/// Reads the response to a creation.
pub const REPLAY: ReplaySource = ReplaySource {
    object: OBJECT,
    row: "script_versions v ON v.workspace_id = me.workspace_id AND v.script_id = :resource AND v.version = 1",
};

/// SQL for the script object of the script `:id`, if the caller can read it.
fn by_id_sql() -> String {
    format!("(SELECT {OBJECT} FROM {LATEST} AND s.id = :id AND {IS_READABLE})")
}

/// Reads the script object of a script that the caller can read.
pub fn by_id(id: Uuid) -> Query {
    Query::new(by_id_sql(), params! { id })
}

/// The scripts that the caller can read, newest first.
pub fn list(filter: &ScriptFilter) -> List {
    let text = "v.folded_name || char(10) || v.folded_description";
    let Filters { sql, parameters } = Filters::default()
        .with("s.name = :name", "name", filter.name.as_ref())
        .with_words(text, &filter.words);
    let rows = format!("{LATEST} AND {IS_READABLE}{sql}");
    List::new("", ("script_versions v", LIST_OBJECT), &[rows], "v.script_id DESC", parameters)
}

/// The versions of a script that the caller can read, newest first, also of a deleted script.
pub fn versions(id: Uuid) -> List {
    let rows = format!(
        "script_versions v WHERE v.workspace_id = me.workspace_id AND v.script_id = :id AND {IS_READABLE}"
    );
    let list = ("script_versions v", LIST_VERSION_OBJECT);
    List::new("", list, &[rows], "v.version DESC", params! { id })
}

/// Reads the version object of a version that the caller can read, also of a deleted script.
pub fn version(script: ScriptRef) -> Query {
    let sql = format!(
        "(SELECT {VERSION_OBJECT} FROM script_versions v WHERE v.workspace_id = me.workspace_id
            AND v.script_id = :id AND v.version = :version AND {IS_READABLE})"
    );
    Query::new(sql, params! { id: script.id, version: script.version })
}

/// SQL that reads the version that a request runs, as JSON for
/// [`farhand_domain::command::script::ScriptVersion`]; null if the script does not exist, was deleted, or
/// has no such version. The caller's permission to run it is not checked.
pub fn for_use(call: Option<&ScriptCall>) -> (&'static str, Parameters) {
    let sql = "(SELECT json_object('id', v.script_id, 'version', v.version, 'name', v.name, 'interpreter', v.interpreter,
            'body', v.body, 'sha256', v.sha256, 'params', json(v.params))
        FROM scripts s CROSS JOIN script_versions v ON v.workspace_id = s.workspace_id AND v.script_id = s.id
            AND v.version = coalesce(:script_version, s.version)
        WHERE s.id = :script AND s.workspace_id = me.workspace_id AND s.hidden_at IS NULL)";
    let parameters = params! {
        script: call.map(|call| call.script), script_version: call.and_then(|call| call.version),
    };
    (sql, parameters)
}

/// The statement that reads versions of scripts for delivery: `id`, `version`, `interpreter`,
/// `body` and `sha256`.
pub fn for_delivery(workspace_id: i64, scripts: &[ScriptRef]) -> Statement {
    let wanted = scripts.iter().map(|script| json!({"id": script.id, "version": script.version}));
    let sql = "SELECT v.script_id AS id, v.version, v.interpreter, v.body, v.sha256 FROM json_each(:scripts) w
        CROSS JOIN script_versions v ON v.workspace_id = :workspace_id
            AND v.script_id = w.value ->> 'id' AND v.version = w.value ->> 'version'";
    Statement::new(sql).bind_all(params! { workspace_id, scripts: Value::list(wanted) })
}

/// The data that a change of a script is compared with: its latest version.
#[derive(Debug, Deserialize)]
pub struct ScriptForChange {
    pub version: i64,
    pub name: String,
    pub description: String,
    pub interpreter: String,
    pub sha256: String,
    pub params: Vec<Parameter>,
    body_bytes: u64,
    /// The bytes that the caller may still store.
    pub bytes_left: i64,
}

impl ScriptForChange {
    /// The bytes that the next version counts for the quotas of bytes.
    pub fn bytes_after(&self, changes: &ScriptChanges) -> u64 {
        let body = changes.body.as_ref().map_or(self.body_bytes, |body| body.len() as u64);
        let description = changes.description.as_ref().unwrap_or(&self.description);
        stored_bytes(body, description, changes.params.as_ref().unwrap_or(&self.params))
    }

    /// The names of the fields that a change gives another value.
    pub fn changed_by(&self, changes: &ScriptChanges) -> Vec<&'static str> {
        fn differs<T: PartialEq>(new: Option<&T>, old: &T) -> bool {
            new.is_some_and(|new| new != old)
        }
        let sha256 = changes.body.as_deref().map(sha256);
        let fields = [
            ("name", differs(changes.name.as_ref(), &self.name)),
            ("description", differs(changes.description.as_ref(), &self.description)),
            ("interpreter", differs(changes.interpreter.as_ref(), &self.interpreter)),
            ("body", differs(sha256.as_ref(), &self.sha256)),
            ("params", differs(changes.params.as_ref(), &self.params)),
        ];
        fields.into_iter().filter_map(|(name, is_changed)| is_changed.then_some(name)).collect()
    }
}

/// Reads a script as [`ScriptForChange`].
pub fn for_change(id: Uuid, limits: Quotas) -> Query {
    let sql = format!(
        "(SELECT json_object('version', v.version, 'name', v.name, 'description', v.description,
            'interpreter', v.interpreter, 'sha256', v.sha256, 'params', json(v.params),
            'body_bytes', length(CAST(v.body AS BLOB)), 'bytes_left', (SELECT {} FROM {} u))
         FROM {LATEST} AND s.id = :id)",
        quotas::bytes_left(RANK_OF_ME),
        quotas::usage("me.workspace_id", "me.user_id", ":now")
    );
    Query::new(
        sql,
        params! { id, bytes_of_day: limits.bytes_of_day, bytes_of_user: limits.bytes_of_user },
    )
}

/// SQL for whether the workspace has room for another script.
const HAS_ROOM: &str = ":scripts_of_workspace > (SELECT count(*) FROM scripts s
    WHERE s.workspace_id = me.workspace_id AND s.hidden_at IS NULL)";

/// Reads whether the workspace has too many scripts for another one, as `true` or `false`.
pub fn has_too_many(quotas: Quotas) -> Query {
    let sql = format!("iif({HAS_ROOM}, 'false', 'true')");
    Query::new(sql, params! { scripts_of_workspace: quotas.scripts_of_workspace })
}

/// Creates a script owned by the caller, if the caller is staff and the workspace's quotas have
/// room for it. The reply is the script.
pub fn insert(
    scope: &Scope<'_>,
    id: Uuid,
    new: &NewScript,
    quotas: Quotas,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let stored_bytes = bytes_of(new);
    let insert = scope
        .statement(&format!(
            "INSERT INTO scripts (id, workspace_id, name, owner_id, version, added_at)
             SELECT :id, me.workspace_id, :name, me.user_id, {FIRST_VERSION}, :now FROM me
             WHERE {IS_STAFF} AND {HAS_ROOM} AND {}
             RETURNING id AS body",
            has_bytes_left()
        ))
        .bind_all(params! {
            id, name: &new.name, scripts_of_workspace: quotas.scripts_of_workspace, stored_bytes,
            bytes_of_day: quotas.bytes_of_day, bytes_of_user: quotas.bytes_of_user,
        });
    let version = scope
        .statement(&format!(
            "INSERT INTO script_versions (workspace_id, script_id, version, name, description, folded_name, folded_description,
                interpreter, body, sha256, params, author_id, added_at)
             SELECT s.workspace_id, s.id, s.version, s.name, :description, :folded_name, :folded_description,
                :interpreter, :body, :sha256, :params, me.user_id, :now
             FROM me CROSS JOIN scripts s ON s.id = :id AND s.workspace_id = me.workspace_id
             WHERE {IS_STAFF} AND NOT EXISTS (SELECT 1 FROM script_versions v
                WHERE v.workspace_id = s.workspace_id AND v.script_id = s.id)"
        ))
        .bind_all(params! {
            id, description: &new.description, folded_name: new.name.to_lowercase(),
            folded_description: new.description.to_lowercase(), interpreter: &new.interpreter,
            body: &new.body, sha256: sha256(&new.body), params: json!(new.params).to_string(),
        });
    Ok(Transaction::default()
        .change(insert, audit::after_change_by(scope, event)?)
        .then(version)
        .then(scope.statement(&add_bytes()).bind("stored_bytes", stored_bytes))
        .returning(select(scope, id)))
}

/// The statement that selects the script object as `body`.
fn select(scope: &Scope<'_>, id: Uuid) -> Statement {
    scope.statement(&format!("SELECT {} AS body FROM me", by_id_sql())).bind("id", id)
}

/// Adds a version to a script, if the caller is staff, `found` is still its latest version, and the
/// workspace's quota of bytes has room. Omitted fields keep their values. The reply is the script.
pub fn update(
    scope: &Scope<'_>,
    id: Uuid,
    found: &ScriptForChange,
    changes: &ScriptChanges,
    quotas: Quotas,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let stored_bytes = found.bytes_after(changes);
    let update = scope
        .statement(&format!(
            "UPDATE scripts SET version = version + 1, name = coalesce(:name, name)
             WHERE id = :id AND hidden_at IS NULL AND version = :latest
                AND workspace_id = (SELECT me.workspace_id FROM me WHERE {IS_STAFF} AND {})
             RETURNING id AS body",
            has_bytes_left()
        ))
        .bind_all(params! {
            id, latest: found.version, name: changes.name.as_ref(), stored_bytes,
            bytes_of_day: quotas.bytes_of_day, bytes_of_user: quotas.bytes_of_user,
        });
    let version = scope
        .statement(&format!(
            "INSERT INTO script_versions (workspace_id, script_id, version, name, description, folded_name, folded_description,
                interpreter, body, sha256, params, author_id, added_at)
             SELECT s.workspace_id, s.id, s.version, s.name, coalesce(:description, o.description),
                coalesce(:folded_name, o.folded_name), coalesce(:folded_description, o.folded_description),
                coalesce(:interpreter, o.interpreter), coalesce(:body, o.body), coalesce(:sha256, o.sha256),
                coalesce(:params, o.params), me.user_id, :now
             FROM me CROSS JOIN scripts s ON s.id = :id AND s.workspace_id = me.workspace_id
             CROSS JOIN script_versions o ON o.workspace_id = s.workspace_id AND o.script_id = s.id AND o.version = s.version - 1
             WHERE {IS_STAFF} AND NOT EXISTS (SELECT 1 FROM script_versions v
                WHERE v.workspace_id = s.workspace_id AND v.script_id = s.id AND v.version = s.version)"
        ))
        .bind_all(params! {
            id, description: changes.description.as_ref(),
            folded_name: changes.name.as_ref().map(|name| name.to_lowercase()),
            folded_description: changes.description.as_ref().map(|text| text.to_lowercase()),
            interpreter: changes.interpreter.as_ref(), body: changes.body.as_ref(),
            sha256: changes.body.as_deref().map(sha256),
            params: changes.params.as_ref().map(|params| json!(params).to_string()),
        });
    Ok(Transaction::default()
        .change(update, audit::after_change_by(scope, event)?)
        .then(version)
        .then(scope.statement(&add_bytes()).bind("stored_bytes", stored_bytes))
        .returning(select(scope, id)))
}

/// Hides a script, if the caller is staff. Its versions are kept.
pub fn hide(scope: &Scope<'_>, id: Uuid, event: &AuditEvent) -> Result<Transaction, Error> {
    let hide = scope
        .statement(&format!(
            "UPDATE scripts SET hidden_at = :now WHERE id = :id AND hidden_at IS NULL
                AND workspace_id = (SELECT me.workspace_id FROM me WHERE {IS_STAFF})
             RETURNING id AS body"
        ))
        .bind("id", id);
    let name = "(SELECT s.name FROM scripts s
        WHERE s.id = :event ->> '$.object.id' AND s.workspace_id = me.workspace_id)";
    let event = Insert { object_name: Some(name), ..Insert::by_me() }.statement(scope, event)?;
    Ok(Transaction::default().change(hide, event))
}
