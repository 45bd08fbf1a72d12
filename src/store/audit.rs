//! The table of audit events (`docs/audit.md`).
//!
//! An event goes into the batch of the change that it tells of, right behind the statement that makes or does not make it:
//! `changes()` there is how many rows that one changed itself, without those of its triggers. So there is no event without
//! its change, no change without its event, and no round trip for it.

use farhand_domain::audit::{ActorType, COLUMNS, Event, EventFilter, Object, Outcome, Row, Seal, Source};
use farhand_domain::error::Error;
use farhand_domain::page::Page;
use farhand_domain::time::Timestamp;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;
use worker::Env;

use super::db::{self, Filters, Selection, Statement};
use super::scope::Scope;
use crate::platform::{self, internal};

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
    /// SQL for the details, where these are not the event's own.
    pub details: Option<&'a str>,
    /// What comes after the columns: FROM and WHERE.
    pub rest: &'a str,
}

impl Insert<'static> {
    /// The event of the caller of a statement on the common table `me`, as its parameter `?5`.
    pub fn by_me() -> Self {
        let rest = "FROM me WHERE changes() > 0";
        let workspace = "me.workspace_id";
        Self { workspace, event: "?5", by: Some(BY_ME), object_id: None, object_name: None, details: None, rest }
    }

    /// The event as it is, as the parameter of a name, in a workspace.
    pub fn whole(workspace: &'static str, event: &'static str, rest: &'static str) -> Self {
        Self { workspace, event, by: None, object_id: None, object_name: None, details: None, rest }
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
        let details = self.details.map_or_else(|| format!("{event} -> '$.details'"), str::to_owned);
        let (id, occurred_at, action, object_type) = (own("id"), own("occurred_at"), own("action"), own("object.type"));
        let (outcome, remote_ip, request_id) = (own("outcome"), own("source.remote_ip"), own("source.request_id"));
        format!(
            "INSERT INTO audit_events (workspace_id, {})
             SELECT {workspace}, {id}, {occurred_at}, {actor_type}, {actor_id}, {actor_name}, {credential_type},
                {credential_id}, {action}, {object_type}, {object_id}, {object_name}, {outcome}, {remote_ip}, {request_id},
                {details}
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
pub fn after_change_by(scope: &Scope<'_>, event: &Event) -> Result<Statement, Error> {
    Ok(scope.statement(&Insert::by_me().sql()).bind(text(event)?))
}

/// What has an id that counts within its workspace.
#[derive(Clone, Copy, Debug)]
pub enum Numbered {
    /// A user.
    User,
    /// A group.
    Group,
}

/// The same for a change that inserted a user or a group: the event's object has the id that the row got.
pub fn after_insert_by(scope: &Scope<'_>, what: Numbered, event: &Event) -> Result<Statement, Error> {
    let id = match what {
        Numbered::User => "(SELECT CAST(w.last_user_id AS TEXT) FROM workspaces w WHERE w.id = me.workspace_id)",
        Numbered::Group => "(SELECT CAST(w.last_group_id AS TEXT) FROM workspaces w WHERE w.id = me.workspace_id)",
    };
    let insert = Insert { object_id: Some(id), ..Insert::by_me() };
    Ok(scope.statement(&insert.sql()).bind(text(event)?))
}

/// An event of Farhand's own, that no request is the cause of.
///
/// # Errors
/// There are no random bytes for its id.
pub fn of_service(action: &str) -> Result<Event, Error> {
    let now = platform::now();
    Ok(Event::new(platform::new_id(now)?, now, Default::default(), action).by(ActorType::Service, None, None))
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

// Anonymous events: one a minute is written for each action and object, with the number of occurrences.

/// The action of a failed login.
const FAILED_LOGIN: &str = "session.login";
/// Seconds between two anonymous events of the same action and object.
const ANONYMOUS_EVERY: i64 = 60;
/// How many overdue anonymous events one pass of the clock writes at most.
const ANONYMOUS_AT_ONCE: u64 = 100;

/// SQL for the users whose reset requests were counted since the last event of `anonymous_events a`, as a JSON array of ids. A
/// request expires 24 hours after it was made.
const RESET_USERS: &str = "(SELECT json_group_array(DISTINCT CAST(p.user_id AS TEXT)) FROM reset_requests p
    WHERE p.workspace_id = a.workspace_id AND p.user_id IS NOT NULL
    AND p.expires_at > iif(a.written_at = '', '', strftime('%Y-%m-%dT%H:%M:%f000+00:00', a.written_at, '+1 day')))";

/// SQL for the event `?2` with what was counted in `anonymous_events a`.
fn counted(action: &str) -> String {
    if action == FAILED_LOGIN {
        "json_set(?2, '$.details.count', a.pending)".to_owned()
    } else {
        format!("json_set(?2, '$.details.count', a.pending, '$.details.users', json({RESET_USERS}))")
    }
}

/// The statements that count an anonymous event, and write one for all that were counted if none of the same action and object was
/// written within the last minute.
///
/// # Errors
/// None that an event can have.
pub fn anonymous(workspace_id: i64, event: &Event, now: Timestamp) -> Result<Vec<Statement>, Error> {
    let object = event.object.as_ref().and_then(|object| object.id.clone()).unwrap_or_default();
    let count = "INSERT INTO anonymous_events (workspace_id, action, object_id, pending, written_at)
        SELECT w.id, ?2, ?3, 1, '' FROM workspaces w WHERE w.id = ?1 AND w.deleted_at IS NULL
        ON CONFLICT (workspace_id, action, object_id) DO UPDATE SET pending = pending + 1";
    let count = Statement::new(count).bind(workspace_id).bind(&event.action).bind(&object);
    Ok([vec![count], write_pending(workspace_id, &object, event, now)?].concat())
}

/// The statements that write an event for what was counted, if that is due.
fn write_pending(workspace_id: i64, object: &str, event: &Event, now: Timestamp) -> Result<Vec<Statement>, Error> {
    let event_sql = counted(&event.action);
    let rest = "FROM anonymous_events a WHERE a.workspace_id = ?1 AND a.action = ?3 AND a.object_id = ?4
        AND a.pending > 0 AND a.written_at <= ?5";
    let insert = Insert { event: &event_sql, ..Insert::whole("?1", "?2", rest) };
    let insert = Statement::new(insert.sql())
        .bind(workspace_id)
        .bind(text(event)?)
        .bind(&event.action)
        .bind(object)
        .bind(now.plus_seconds(-ANONYMOUS_EVERY));
    let done = "UPDATE anonymous_events SET pending = 0, written_at = ?4
        WHERE changes() > 0 AND workspace_id = ?1 AND action = ?2 AND object_id = ?3";
    let done = Statement::new(done).bind(workspace_id).bind(&event.action).bind(object).bind(now);
    Ok(vec![insert, done])
}

/// The statements that do what [`anonymous`] does for a reset request, behind its insert. The event's object is the user of this
/// request; `users` in its details are those of all that were counted. So the work is the same for every address.
///
/// # Errors
/// None that an event can have.
pub fn after_reset_request(id: Uuid, event: &Event, now: Timestamp) -> Result<Vec<Statement>, Error> {
    let count = "INSERT INTO anonymous_events (workspace_id, action, object_id, pending, written_at)
        SELECT r.workspace_id, ?2, '', 1, '' FROM reset_requests r WHERE r.id = ?1 AND changes() > 0
        ON CONFLICT (workspace_id, action, object_id) DO UPDATE SET pending = pending + 1";
    let event_sql = counted(&event.action);
    let rest = "FROM reset_requests r JOIN anonymous_events a
            ON a.workspace_id = r.workspace_id AND a.action = ?3 AND a.object_id = ''
        WHERE r.id = ?1 AND changes() > 0 AND a.written_at <= ?4";
    // By the id alone: looking the name up would be work for registered addresses only.
    let user = Some("CAST(r.user_id AS TEXT)");
    let insert = Insert { object_id: user, event: &event_sql, ..Insert::whole("r.workspace_id", "?2", rest) };
    let done = "UPDATE anonymous_events SET pending = 0, written_at = ?3
        WHERE changes() > 0 AND action = ?2 AND object_id = ''
        AND workspace_id = (SELECT workspace_id FROM reset_requests WHERE id = ?1)";
    Ok(vec![
        Statement::new(count).bind(id).bind(&event.action),
        Statement::new(insert.sql())
            .bind(id)
            .bind(text(event)?)
            .bind(&event.action)
            .bind(now.plus_seconds(-ANONYMOUS_EVERY)),
        Statement::new(done).bind(id).bind(&event.action).bind(now),
    ])
}

/// Carries out the statements of [`anonymous`].
///
/// # Errors
/// D1 did not do it.
pub async fn write_anonymous(env: &Env, statements: Vec<Statement>) -> Result<(), Error> {
    db::batch(env, statements).await?;
    Ok(())
}

/// Writes what was counted and is overdue, since no further event of its kind came. Returns the workspaces.
///
/// # Errors
/// D1 did not do it.
pub async fn write_overdue(env: &Env, now: Timestamp) -> Result<Vec<i64>, Error> {
    #[derive(Deserialize)]
    struct Overdue {
        workspace_id: f64,
        action: String,
        object_id: String,
    }
    let sql = "SELECT a.workspace_id, a.action, a.object_id FROM anonymous_events a
        WHERE a.pending > 0 AND a.written_at <= ?1 LIMIT ?2 + 0";
    let select = Statement::new(sql).bind(now.plus_seconds(-ANONYMOUS_EVERY)).bind(ANONYMOUS_AT_ONCE);
    let mut workspaces = Vec::new();
    for Overdue { workspace_id, action, object_id } in db::rows::<Overdue>(&db::run(env, select).await?)? {
        let event = Event::new(platform::new_id(now)?, now, Source::default(), &action);
        let object = (!object_id.is_empty()).then(|| Object::new("user", Some(object_id.clone()), None));
        let outcome = if action == FAILED_LOGIN { Outcome::Failure } else { Outcome::Success };
        let event = Event { object, outcome, ..event };
        db::batch(env, write_pending(workspace_id as i64, &object_id, &event, now)?).await?;
        workspaces.push(workspace_id as i64);
    }
    Ok(workspaces)
}

/// SQL for how many events a workspace has. Links are numbered without a gap, and so are those of expired events among them, so only
/// what is not sealed yet is counted.
fn total(workspace: &str) -> String {
    let of = |what: &str, which: &str| {
        format!("(SELECT {what} FROM audit_events WHERE workspace_id = {workspace} AND link {which})")
    };
    let (last, first, unsealed) =
        (of("max(link)", "IS NOT NULL"), of("min(link)", "IS NOT NULL"), of("count(*)", "IS NULL"));
    let number = |which: &str| {
        format!("(SELECT number FROM audit_expired WHERE workspace_id = {workspace} AND link {which} LIMIT 1)")
    };
    let (end, beginning) =
        (number(&format!("< {last} ORDER BY link DESC")), number(&format!("> {first} ORDER BY link")));
    format!("coalesce({last} - {first} + 1 - coalesce({end} - {beginning} + 1, 0), 0) + {unsealed}")
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
    let Filters { mut sql, parameters } = filters;
    match filter.outcome {
        // As the index of events without success has it.
        Some(outcome @ (Outcome::Failure | Outcome::Denied)) => {
            sql += &format!(" AND e.outcome <> 'success' AND e.outcome = '{}'", outcome.as_str());
        }
        Some(Outcome::Success) => sql += " AND e.outcome = 'success'",
        None => {}
    }
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
    // Each table is sorted and limited on its own, by its index. Otherwise SQLite reads every matching row and sorts them.
    let select = |which: &str, order: &str| {
        let sql = format!(
            "SELECT body FROM (
                SELECT * FROM (SELECT link, seq, {} AS body FROM audit_events e
                    WHERE e.workspace_id = ?1 AND e.link {which} ORDER BY {order})
                UNION ALL
                SELECT * FROM (SELECT link, 0 AS seq, json_array(0, x.link, x.hash, x.digest) FROM audit_expired x
                    WHERE x.workspace_id = ?1 AND x.link {which} ORDER BY {order})
             ) ORDER BY {order}",
            row()
        );
        Statement::new(sql).bind(workspace_id)
    };
    let most = last + 2 - first;
    let count = "SELECT count(*) AS number FROM audit_events WHERE workspace_id = ?1 AND link IS NULL";
    let statements = vec![
        select("< ?2", "link DESC, seq DESC LIMIT 2").bind(first),
        select("BETWEEN ?2 AND ?3", "link, seq LIMIT ?4 + 0").bind(first).bind(last).bind(most),
        select("> ?2", "link, seq LIMIT 1").bind(end),
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

/// Deletes the links of a workspace up to one of them.
///
/// # Errors
/// D1 did not do it.
pub async fn delete_links(env: &Env, workspace_id: i64, last: i64) -> Result<(), Error> {
    let delete = |table: &str| {
        let sql = format!("DELETE FROM {table} WHERE workspace_id = ?1 AND link <= ?2");
        Statement::new(sql).bind(workspace_id).bind(last)
    };
    db::batch(env, vec![delete("audit_events"), delete("audit_expired")]).await?;
    Ok(())
}

/// SQL for when the first anonymous event of a workspace happened that is sealed and not expired.
fn first_anonymous(workspace: &str) -> String {
    format!(
        "(SELECT f.occurred_at FROM audit_events f INDEXED BY audit_events_anonymous
            WHERE f.workspace_id = {workspace} AND f.actor_type = 'anonymous' AND f.link > 0 ORDER BY f.link LIMIT 1)"
    )
}

/// The first sealed anonymous events of a workspace, in the order of the chain; none if the first happened after `until`.
///
/// # Errors
/// D1 did not answer.
pub async fn first_anonymous_links(
    env: &Env,
    workspace_id: i64,
    until: Timestamp,
    limit: u64,
) -> Result<Vec<Row>, Error> {
    let sql = format!(
        "SELECT {} AS body FROM audit_events e INDEXED BY audit_events_anonymous
         WHERE e.workspace_id = ?1 AND e.actor_type = 'anonymous' AND e.link > 0 AND {} < ?2
         ORDER BY e.link LIMIT ?3 + 0",
        row(),
        first_anonymous("?1")
    );
    read_rows(&db::run(env, Statement::new(sql).bind(workspace_id).bind(until).bind(limit)).await?)
}

/// Deletes anonymous events. Of each, its hash and its digest stay.
///
/// # Errors
/// D1 did not do it.
pub async fn expire(env: &Env, workspace_id: i64, rows: &[Row]) -> Result<(), Error> {
    let rows: Vec<_> = rows.iter().map(|row| json!({"seq": row.seq, "digest": row.digest()})).collect();
    let rows = json!(rows).to_string();
    let statement = |sql: &str| Statement::new(sql).bind(workspace_id).bind(&rows);
    let insert = "INSERT INTO audit_expired (workspace_id, link, number, hash, digest)
        SELECT ?1, e.link, row_number() OVER (ORDER BY e.link) + coalesce(
            (SELECT x.number FROM audit_expired x WHERE x.workspace_id = ?1 ORDER BY x.link DESC LIMIT 1), 0),
            e.hash, r.value ->> 'digest'
        FROM json_each(?2) r CROSS JOIN audit_events e ON e.seq = r.value ->> 'seq'
        WHERE +e.workspace_id = ?1 AND +e.actor_type = 'anonymous' AND +e.link > 0";
    let delete = "DELETE FROM audit_events WHERE seq IN (SELECT r.value ->> 'seq' FROM json_each(?2) r)
        AND +workspace_id = ?1 AND +actor_type = 'anonymous' AND +link > 0";
    db::batch(env, vec![statement(insert), statement(delete)]).await?;
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

/// Before when events happened that are to be deleted; `None`: events are kept forever.
#[derive(Clone, Copy)]
pub struct KeptUntil {
    /// All events of workspaces.
    pub all: Option<Timestamp>,
    /// Anonymous events.
    pub anonymous: Option<Timestamp>,
}

/// The next workspaces after one, up to another, that have events to be sealed or deleted, and the cell's own chain likewise.
///
/// # Errors
/// D1 did not answer.
pub async fn workspaces_to_seal(
    env: &Env,
    (after, last): (i64, Option<i64>),
    until: KeptUntil,
    limit: u64,
) -> Result<Vec<i64>, Error> {
    let sql = format!(
        "SELECT w.id FROM (SELECT 0 AS id UNION ALL SELECT id FROM workspaces WHERE deleted_at IS NULL) w
        WHERE w.id > ?1 AND (?4 IS NULL OR w.id <= ?4) AND (EXISTS (SELECT 1 FROM audit_events e WHERE e.workspace_id = w.id AND e.link IS NULL)
            OR w.id > 0 AND EXISTS (SELECT 1 FROM audit_events e WHERE e.workspace_id = w.id AND e.occurred_at < ?2)
            OR {} < ?5)
        ORDER BY w.id LIMIT ?3 + 0",
        first_anonymous("w.id")
    );
    let statement = Statement::new(sql).bind(after).bind(until.all).bind(limit).bind(last).bind(until.anonymous);
    let ids = db::column::<f64>(&db::run(env, statement).await?)?;
    Ok(ids.into_iter().map(|id| id as i64).collect())
}
