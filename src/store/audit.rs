//! The table of audit events (`docs/audit.md`).
//!
//! An event goes into the batch of the change that it tells of, right behind the statement that makes or does not make it:
//! `changes()` there is how many rows that one changed itself, without those of its triggers. So there is no event without
//! its change, no change without its event, and no round trip for it.

use farhand_domain::audit::{COLUMNS, Event, EventFilter, Row, Seal};
use farhand_domain::error::Error;
use farhand_domain::page::Page;
use farhand_domain::time::Timestamp;
use serde::Deserialize;
use serde_json::json;
use worker::Env;

use super::db::{self, Filters, Selection, Statement};
use crate::caller::Credential;
use crate::platform::internal;
use crate::server_link_sql::Held;

/// SQL for the event object (`docs/audit.md`) of a row of `audit_events e`, as JSON.
const OBJECT: &str = "json_object('id', e.id, 'occurred_at', e.occurred_at,
    'actor', json_object('type', e.actor_type, 'id', e.actor_id, 'name', e.actor_name),
    'credential', json(iif(e.credential_type IS NULL, NULL,
        json_object('type', e.credential_type, 'id', e.credential_id))),
    'action', e.action,
    'object', json(iif(e.object_type IS NULL, NULL,
        json_object('type', e.object_type, 'id', e.object_id, 'name', e.object_name))),
    'outcome', e.outcome, 'remote_ip', e.remote_ip, 'request_id', e.request_id, 'details', json(e.details),
    'link', e.link, 'hash', e.hash)";

/// The caller of a statement on the common table `me`, as actor and credential.
const BY_ME: [&str; 5] = ["'user'", "CAST(me.user_id AS TEXT)", "me.username", "me.kind", "me.credential_id"];

/// How an event gets into the table.
pub struct Insert<'a> {
    /// SQL for the workspace's id.
    pub workspace: &'a str,
    /// SQL for the event as JSON.
    pub event: &'a str,
    /// SQL for the actor's type, id and name and the credential's type and id, where these are not the event's own.
    pub by: Option<[&'a str; 5]>,
    /// SQL for the object's id, where it is not the event's own.
    pub object_id: Option<&'a str>,
    /// SQL for the object's name, likewise.
    pub object_name: Option<&'a str>,
    /// What comes after the columns: FROM and WHERE.
    pub rest: &'a str,
}

impl Insert<'static> {
    /// The event of the caller of a statement on the common table `me`, as its parameter `?5`.
    pub fn by_me() -> Self {
        let rest = "FROM me WHERE changes() > 0";
        let workspace = "me.workspace_id";
        Self { workspace, event: "?5", by: Some(BY_ME), object_id: None, object_name: None, rest }
    }

    /// The event as it is, as the parameter of a name, in a workspace.
    pub fn whole(workspace: &'static str, event: &'static str, rest: &'static str) -> Self {
        Self { workspace, event, by: None, object_id: None, object_name: None, rest }
    }
}

impl Insert<'_> {
    /// The statement's text.
    pub fn sql(&self) -> String {
        let Self { workspace, event, rest, .. } = self;
        let own = |path: &str| format!("{event} ->> '$.{path}'");
        let [actor_type, actor_id, actor_name, credential_type, credential_id] = match self.by {
            Some(by) => by.map(str::to_owned),
            None => ["actor.type", "actor.id", "actor.name", "credential.type", "credential.id"].map(own),
        };
        let object_id = self.object_id.map_or_else(|| own("object.id"), str::to_owned);
        let object_name = self.object_name.map_or_else(|| own("object.name"), str::to_owned);
        let (id, occurred_at, action, object_type) = (own("id"), own("occurred_at"), own("action"), own("object.type"));
        let (outcome, remote_ip, request_id) = (own("outcome"), own("source.remote_ip"), own("source.request_id"));
        format!(
            "INSERT INTO audit_events (workspace_id, {})
             SELECT {workspace}, {id}, {occurred_at}, {actor_type}, {actor_id}, {actor_name}, {credential_type},
                {credential_id}, {action}, {object_type}, {object_id}, {object_name}, {outcome}, {remote_ip}, {request_id},
                {event} -> '$.details'
             {rest}",
            COLUMNS.join(", ")
        )
    }
}

/// An event as the parameter that [`Insert::event`] names.
///
/// # Errors
/// None that an event can have.
pub fn text(event: &Event) -> Result<String, Error> {
    serde_json::to_string(event).map_err(internal)
}

/// The statement for an event, if the statement before it changed something.
pub fn after_change(workspace_id: i64, event: &Event) -> Result<Statement, Error> {
    let insert = Insert::whole("?1", "?2", "WHERE changes() > 0");
    Ok(Statement::new(insert.sql()).bind(workspace_id).bind(text(event)?))
}

/// The same for an event of the caller's, who is still there after the change.
pub fn after_change_by(credential: &Credential<'_>, event: &Event) -> Result<Statement, Error> {
    Ok(credential.statement(&Insert::by_me().sql()).bind(text(event)?))
}

/// The same where the change made a row of a number that the database gave it: that of the event's object.
pub fn after_insert_by(credential: &Credential<'_>, event: &Event) -> Result<Statement, Error> {
    let insert = Insert { object_id: Some("CAST(last_insert_rowid() AS TEXT)"), ..Insert::by_me() };
    Ok(credential.statement(&insert.sql()).bind(text(event)?))
}

/// The statement for what happened to a command that D1 has not heard of, before it hears of the command: whatever came of a
/// revision that D1 has is there already, so it can be repeated.
pub fn of_command(held: &Held) -> Option<Statement> {
    if held.events.is_empty() {
        return None;
    }
    let rest = "FROM commands c CROSS JOIN json_each(?3) p
               WHERE c.workspace_id = ?1 AND c.id = ?2 AND c.revision < p.value ->> 'revision' ORDER BY p.key";
    let insert = Insert::whole("c.workspace_id", "(p.value -> 'event')", rest);
    let statement = Statement::new(insert.sql()).bind(held.workspace_id).bind(held.command.id);
    Some(statement.bind(json!(held.events).to_string()))
}

/// Stores an event of which there is nothing else in D1, of a workspace that exists, or of the region cell.
///
/// # Errors
/// D1 did not do it.
pub async fn record(env: &Env, workspace_id: i64, event: &Event) -> Result<(), Error> {
    let rest = "WHERE ?1 = 0 OR EXISTS (SELECT 1 FROM workspaces w WHERE w.id = ?1 AND w.deleted_at IS NULL)";
    let insert = Insert::whole("?1", "?2", rest);
    db::run(env, Statement::new(insert.sql()).bind(workspace_id).bind(text(event)?)).await?;
    Ok(())
}

/// SQL for how many events a workspace has. Links are numbered without a gap, so only what is not sealed yet is counted.
fn total(workspace: &str) -> String {
    let of = |what: &str, which: &str| {
        format!("(SELECT {what} FROM audit_events WHERE workspace_id = {workspace} AND link {which})")
    };
    let (last, first, unsealed) =
        (of("max(link)", "IS NOT NULL"), of("min(link)", "IS NOT NULL"), of("count(*)", "IS NULL"));
    format!("coalesce({last} - {first} + 1, 0) + {unsealed}")
}

/// What a list of events is read with, newest first, for those who `may` see it.
fn selection(filter: EventFilter, may: &str) -> Selection {
    let is_whole = filter.is_empty();
    let mut filters = Filters::default();
    filters.add("e.actor_name = ?", filter.actor);
    filters.add("e.action = ?", filter.action);
    filters.add("e.object_id = ?", filter.object);
    filters.add("e.occurred_at >= ?", filter.from);
    filters.add("e.occurred_at < ?", filter.before);
    let Filters { sql, parameters } = filters;
    let way = format!("audit_events e WHERE {may} AND e.workspace_id = me.workspace_id{sql}");
    let order = "e.occurred_at DESC, e.seq DESC";
    let mut selection = Selection::of("", ("audit_events e", OBJECT), &[way], order, parameters);
    if is_whole {
        selection.tables = format!(", total AS (SELECT {} AS total FROM me)", total("me.workspace_id"));
    }
    selection
}

/// What a list of the workspace's events is read with, newest first, for staff.
pub fn list(filter: EventFilter) -> Selection {
    selection(filter, "(me.is_staff OR me.is_superuser)")
}

/// A page of the events of a chain that is no workspace's, newest first, as a JSON array, and how many there are.
///
/// # Errors
/// D1 did not answer.
pub async fn list_of_cell(env: &Env, workspace: i64, filter: EventFilter, page: Page) -> Result<(String, u64), Error> {
    #[derive(Deserialize)]
    struct Listed {
        total: Option<f64>,
        body: Option<String>,
    }
    let Selection { tables, items, parameters, .. } = selection(filter, "?2");
    let sql = format!(
        "WITH me AS (SELECT ?1 AS workspace_id){tables}
         SELECT (SELECT total FROM total) AS total, NULL AS body WHERE ?3 IS NULL AND ?4 IS NULL
         UNION ALL SELECT NULL, body FROM ({items})"
    );
    let nothing = || None::<i64>;
    let statement = Statement::new(sql).bind(workspace).bind(true).bind(nothing()).bind(nothing());
    let statement = statement.bind(page.size).bind(page.offset());
    let result = db::run(env, parameters.into_iter().fold(statement, Statement::bind)).await?;
    let mut rows = db::rows::<Listed>(&result)?.into_iter();
    let total = rows.next().and_then(|row| row.total).unwrap_or(0.0) as u64;
    let items: Vec<_> = rows.filter_map(|row| row.body).collect();
    Ok((format!("[{}]", items.join(",")), total))
}

// The chain.

/// SQL for a row as [`Row`] reads it.
fn row() -> String {
    let columns = COLUMNS.map(|column| format!("e.{column}")).join(", ");
    format!("json_array(e.seq, e.link, e.hash, json_array({columns}))")
}

fn read_rows(result: &worker::D1Result) -> Result<Vec<Row>, Error> {
    let rows = db::column::<String>(result)?;
    rows.iter().map(|row| serde_json::from_str(row).map_err(internal)).collect()
}

/// The next events of a workspace that are not sealed, in the order in which they were written; none of one that is gone.
///
/// # Errors
/// D1 did not answer.
pub async fn unsealed(env: &Env, workspace_id: i64, limit: u64) -> Result<Vec<Row>, Error> {
    let sql = format!(
        "SELECT {} AS body FROM audit_events e WHERE e.workspace_id = ?1 AND e.link IS NULL
         AND (?1 = 0 OR EXISTS (SELECT 1 FROM workspaces w WHERE w.id = ?1 AND w.deleted_at IS NULL))
         ORDER BY e.seq LIMIT ?2 + 0",
        row()
    );
    read_rows(&db::run(env, Statement::new(sql).bind(workspace_id).bind(limit)).await?)
}

/// Writes seals to their events. Those that are there already stay as they are.
///
/// # Errors
/// D1 did not do it.
pub async fn write_seals(env: &Env, workspace_id: i64, seals: &[Seal]) -> Result<(), Error> {
    // With a plus no index is looked at: by its number is the way to each row.
    let sql = "UPDATE audit_events SET link = s.value ->> 'link', hash = s.value ->> 'hash' FROM json_each(?2) s
        WHERE audit_events.seq = s.value ->> 'seq' AND +audit_events.workspace_id = ?1
        AND audit_events.id = s.value ->> 'id' AND +audit_events.link IS NULL";
    db::run(env, Statement::new(sql).bind(workspace_id).bind(json!(seals).to_string())).await?;
    Ok(())
}

/// Some links of a chain, and what there is beside them.
pub struct Links {
    /// The two links before the first one that was asked for, the last one first.
    pub before: Vec<Row>,
    /// The links in their order, and one more where there are several of a number.
    pub rows: Vec<Row>,
    /// A link behind the end.
    pub beyond: Option<Row>,
    /// How many events are not sealed yet.
    pub unsealed: u64,
}

/// Reads the links of a workspace's chain from the `first` to the `last`, and what is behind its `end`.
///
/// # Errors
/// D1 did not answer.
pub async fn links(env: &Env, workspace_id: i64, (first, last): (i64, i64), end: i64) -> Result<Links, Error> {
    let select = |which: &str| {
        let sql = format!("SELECT {} AS body FROM audit_events e WHERE e.workspace_id = ?1 AND {which}", row());
        Statement::new(sql).bind(workspace_id)
    };
    let most = last + 2 - first;
    let count = "SELECT count(*) AS number FROM audit_events WHERE workspace_id = ?1 AND link IS NULL";
    let statements = vec![
        select("e.link < ?2 ORDER BY e.link DESC, e.seq DESC LIMIT 2").bind(first),
        select("e.link BETWEEN ?2 AND ?3 ORDER BY e.link, e.seq LIMIT ?4 + 0").bind(first).bind(last).bind(most),
        select("e.link > ?2 ORDER BY e.link, e.seq LIMIT 1").bind(end),
        Statement::new(count).bind(workspace_id),
    ];
    let results = db::batch(env, statements).await?;
    let [before, rows, beyond, unsealed] = results.as_slice() else {
        return Err(Error::internal("D1 gave no result"));
    };
    Ok(Links {
        before: read_rows(before)?,
        rows: read_rows(rows)?,
        beyond: read_rows(beyond)?.into_iter().next(),
        unsealed: db::column::<f64>(unsealed)?.first().map_or(0, |number| *number as u64),
    })
}

/// Deletes the sealed events of a workspace up to a link.
///
/// # Errors
/// D1 did not do it.
pub async fn delete_links(env: &Env, workspace_id: i64, last: i64) -> Result<(), Error> {
    let sql = "DELETE FROM audit_events WHERE workspace_id = ?1 AND link <= ?2";
    db::run(env, Statement::new(sql).bind(workspace_id).bind(last)).await?;
    Ok(())
}

/// Any workspace, or rather one that another comes after: where a look at them may begin.
///
/// # Errors
/// D1 did not answer.
pub async fn some_workspace(env: &Env) -> Result<i64, Error> {
    let sql = "SELECT abs(random() % (coalesce(max(id), 0) + 1)) - 1 AS id FROM workspaces";
    Ok(db::returned_id(&db::run(env, Statement::new(sql)).await?)?.unwrap_or(-1))
}

/// The next workspaces after one, up to another, that have events which are not sealed, the cell's own chain among them, or events
/// of before a time.
///
/// # Errors
/// D1 did not answer.
pub async fn workspaces_to_seal(
    env: &Env,
    (after, last): (i64, Option<i64>),
    until: Option<Timestamp>,
    limit: u64,
) -> Result<Vec<i64>, Error> {
    let sql = "SELECT w.id FROM (SELECT 0 AS id UNION ALL SELECT id FROM workspaces WHERE deleted_at IS NULL) w
        WHERE w.id > ?1 AND (?4 IS NULL OR w.id <= ?4) AND (EXISTS (SELECT 1 FROM audit_events e WHERE e.workspace_id = w.id AND e.link IS NULL)
            OR w.id > 0 AND EXISTS (SELECT 1 FROM audit_events e WHERE e.workspace_id = w.id AND e.occurred_at < ?2))
        ORDER BY w.id LIMIT ?3 + 0";
    let statement = Statement::new(sql).bind(after).bind(until).bind(limit).bind(last);
    let ids = db::column::<f64>(&db::run(env, statement).await?)?;
    Ok(ids.into_iter().map(|id| id as i64).collect())
}
