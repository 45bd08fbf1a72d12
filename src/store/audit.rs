//! The D1 table of audit events (`docs/audit.md`).
//!
//! An event is inserted in the transaction of its change, directly after the statement that makes
//! the change. There, `changes()` is the number of rows that the change itself affected, without
//! rows that triggers affected. So an event exists if and only if its change was made, and it costs
//! no extra round trip.

use farhand_domain::audit::chain::COLUMNS;
use farhand_domain::audit::event::{ActorType, AuditEvent, AuditOutcome, EventFilter, Source};
use farhand_domain::error::Error;
use farhand_domain::http::page::Page;
use farhand_domain::link::stored_command::PendingEvent;
use farhand_sql::numbering::{highest, is_of, key, number};
use farhand_sql::statement::Statement;
use uuid::Uuid;

use super::audit_chain;
use super::database::Database;
use super::db::{self, Items, PageStatement, params};
use super::list::{self, Filters, List};
use super::scope::Scope;
use crate::platform;

/// SQL for the event object (`docs/audit.md`) of a row of `audit_events e`, as JSON.
fn object() -> String {
    let (entry, hash) = (number("e.seq"), audit_chain::hash_of_event());
    format!(
        "json_object('id', e.id, 'occurred_at', e.occurred_at,
    'actor', json_object('type', e.actor_type, 'id', e.actor_id, 'name', e.actor_name),
    'credential', json(iif(e.credential_type IS NULL, NULL,
        json_object('type', e.credential_type, 'id', e.credential_id))),
    'action', e.action,
    'object', json(iif(e.object_type IS NULL, NULL,
        json_object('type', e.object_type, 'id', e.object_id, 'name', e.object_name))),
    'outcome', e.outcome, 'remote_ip', e.remote_ip, 'request_id', e.request_id, 'details', json(e.details),
        'link', iif({hash} IS NULL, NULL, {entry}), 'hash', {hash})"
    )
}

/// SQL for the caller as actor and credential, in a statement on the common table `me`.
const BY_ME: [&str; 5] =
    ["'user'", "CAST(me.user_id AS TEXT)", "me.username", "me.kind", "me.credential_id"];

/// The statement that inserts one event. For a field that is `None`, it uses the value in the
/// event's JSON.
pub struct Insert<'a> {
    /// SQL for the workspace's id.
    pub workspace: &'a str,
    /// SQL for the event as JSON.
    pub event: &'a str,
    /// SQL for the type, id and name of the actor, and the type and id of the credential.
    pub by: Option<[&'a str; 5]>,
    /// SQL for the object's id.
    pub object_id: Option<&'a str>,
    /// SQL for the object's name.
    pub object_name: Option<&'a str>,
    /// SQL for the details.
    pub details: Option<&'a str>,
    /// The FROM and WHERE clauses.
    pub rest: &'a str,
}

impl Insert<'static> {
    /// An event of the caller, in a statement on the common table `me` with the parameter `:event`.
    /// It is inserted if the statement before it changed something.
    pub fn by_me() -> Self {
        let rest = "FROM me WHERE changes() > 0";
        let workspace = "me.workspace_id";
        Self {
            workspace,
            event: ":event",
            by: Some(BY_ME),
            object_id: None,
            object_name: None,
            details: None,
            rest,
        }
    }

    /// An event whose fields all come from the event's JSON.
    pub fn from_event(workspace: &'static str, event: &'static str, rest: &'static str) -> Self {
        Self { workspace, event, by: None, object_id: None, object_name: None, details: None, rest }
    }
}

impl Insert<'_> {
    /// The statement with the event, on the common table `me`.
    pub fn statement(&self, scope: &Scope<'_>, event: &AuditEvent) -> Result<Statement, Error> {
        Ok(scope.statement(&self.sql()).bind("event", text(event)?))
    }

    /// The statement's text. It inserts at most one event.
    pub fn sql(&self) -> String {
        self.sql_with_number("1")
    }

    /// The statement's text, for any number of events.
    pub fn sql_of_many(&self) -> String {
        self.sql_with_number("row_number() OVER ()")
    }

    /// `number`: SQL for the number of the event in the statement, from 1 on.
    fn sql_with_number(&self, number: &str) -> String {
        let Self { workspace, event, rest, .. } = self;
        let own = |path: &str| format!("{event} ->> '$.{path}'");
        let [actor_type, actor_id, actor_name, credential_type, credential_id] = match self.by {
            Some(by) => by.map(str::to_owned),
            None => ["actor.type", "actor.id", "actor.name", "credential.type", "credential.id"]
                .map(own),
        };
        let object_id = self.object_id.map_or_else(|| own("object.id"), str::to_owned);
        let object_name = self.object_name.map_or_else(|| own("object.name"), str::to_owned);
        let details = self.details.map_or_else(|| format!("{event} -> '$.details'"), str::to_owned);
        let (id, occurred_at, action, object_type) =
            (own("id"), own("occurred_at"), own("action"), own("object.type"));
        let (outcome, remote_ip, request_id) =
            (own("outcome"), own("source.remote_ip"), own("source.request_id"));
        // A number is never used again, even after its event was deleted because of its age. So the
        // numbers in seals count, too.
        let last = [("audit_events", "seq"), ("audit_seals", "last")]
            .map(|(table, key)| highest(table, key, workspace));
        format!(
            "INSERT INTO audit_events (seq, workspace_id, {})
             SELECT max({}) + {number}, {workspace}, {id}, {occurred_at}, {actor_type}, {actor_id}, {actor_name}, {credential_type},
                {credential_id}, {action}, {object_type}, {object_id}, {object_name}, {outcome}, {remote_ip}, {request_id},
                {details}
             {rest}",
            COLUMNS.join(", "),
            last.join(", ")
        )
    }
}

/// An event as JSON, for the parameter that [`Insert::event`] names.
pub fn text(event: &AuditEvent) -> Result<String, Error> {
    Ok(serde_json::to_string(event)?)
}

/// The statement that inserts an event if the statement before it changed something.
pub fn after_change(workspace_id: i64, event: &AuditEvent) -> Result<Statement, Error> {
    let insert = Insert::from_event(":workspace_id", ":event", "WHERE changes() > 0");
    Ok(Statement::new(insert.sql()).bind_all(params! { workspace_id, event: text(event)? }))
}

/// The statement that inserts an event of the caller if the statement before it changed something.
/// The caller's credential must still be valid after the change.
pub fn after_change_by(scope: &Scope<'_>, event: &AuditEvent) -> Result<Statement, Error> {
    Insert::by_me().statement(scope, event)
}

/// The kinds of objects whose ids D1 assigns.
#[derive(Clone, Copy, Debug)]
pub enum NumberedResource {
    User,
    Group,
}

/// The statement that inserts an event of the caller if the statement before it inserted a user or
/// a group. The event's object gets the id that D1 assigned.
pub fn after_insert_by(
    scope: &Scope<'_>,
    what: NumberedResource,
    event: &AuditEvent,
) -> Result<Statement, Error> {
    let id = match what {
        NumberedResource::User => {
            "(SELECT CAST(w.last_user_id AS TEXT) FROM workspaces w WHERE w.id = me.workspace_id)"
        }
        NumberedResource::Group => {
            "(SELECT CAST(w.last_group_id AS TEXT) FROM workspaces w WHERE w.id = me.workspace_id)"
        }
    };
    Insert { object_id: Some(id), ..Insert::by_me() }.statement(scope, event)
}

/// The statements that insert the pending events of a row with a `revision` column. Run them before
/// the row is updated to its new revision. They insert only events of revisions that the row does
/// not have yet, so they can be repeated.
pub fn pending(
    (table, revision): (&str, &str),
    workspace_id: i64,
    id: Uuid,
    events: &[PendingEvent],
) -> Result<Vec<Statement>, Error> {
    let rest = format!(
        "FROM {table} r WHERE r.workspace_id = :workspace_id AND r.id = :id AND r.{revision} < :revision"
    );
    let sql = Insert { rest: &rest, ..Insert::from_event("r.workspace_id", ":event", "") }.sql();
    let statement = |PendingEvent { revision, event }: &PendingEvent| {
        let event = text(event)?;
        Ok(Statement::new(&sql).bind_all(params! { workspace_id, id, event, revision: *revision }))
    };
    events.iter().map(statement).collect()
}

/// An event whose actor is the service itself: no request caused it.
pub fn service_event(action: &str) -> Result<AuditEvent, Error> {
    let now = platform::now();
    Ok(AuditEvent::new(platform::new_id(now)?, now, Source::default(), action).with_actor(
        ActorType::Service,
        None,
        None,
    ))
}

/// Inserts an event that belongs to no change in D1. Does nothing if the workspace was deleted. The
/// workspace 0 is the region cell.
pub async fn record(
    database: &Database,
    workspace_id: i64,
    event: &AuditEvent,
) -> Result<(), Error> {
    let rest = "WHERE :workspace_id = 0 OR EXISTS (SELECT 1 FROM workspaces w WHERE w.id = :workspace_id AND w.deleted_at IS NULL)";
    let insert = Insert::from_event(":workspace_id", ":event", rest);
    db::run(
        database,
        Statement::new(insert.sql()).bind_all(params! {
            workspace_id, event: text(event)?,
        }),
    )
    .await?;
    Ok(())
}

/// SQL for the number of events in a workspace, without reading them all. Events are numbered
/// without gaps. Expired events between the first and the last event are missing. They have
/// consecutive numbers of their own (`audit_expired.number`), so that SQL can subtract their count.
fn total(workspace: &str) -> String {
    let is_of = is_of("seq", workspace);
    let end =
        |which: &str| number(&format!("(SELECT {which}(seq) FROM audit_events WHERE {is_of})"));
    let (last, first) = (end("max"), end("min"));
    let expired = |which: &str| {
        format!(
            "(SELECT number FROM audit_expired WHERE workspace_id = {workspace} AND link {which} LIMIT 1)"
        )
    };
    let (end, beginning) = (
        expired(&format!("< {last} ORDER BY link DESC")),
        expired(&format!("> {first} ORDER BY link")),
    );
    format!("coalesce({last} - {first} + 1 - coalesce({end} - {beginning} + 1, 0), 0)")
}

/// The common table `span`, which follows `me`: a range of keys (after `after`, up to `last`) that
/// contains all events in the filter's range of time. The times in the seals give the range.
/// Unsealed events have no seal, so the range contains all of them if one of them may match.
fn span(filter: &EventFilter) -> String {
    let workspace = "me.workspace_id";
    let (first, last) = (key(workspace, "0"), highest("audit_events", "seq", workspace));
    let (sealed, is_seal) = (highest("audit_seals", "last", workspace), is_of("s.last", workspace));
    let last_seal = |condition: &str| {
        let sql = format!(
            "SELECT s.last FROM audit_seals s WHERE {is_seal} AND {condition} ORDER BY s.last DESC LIMIT 1"
        );
        format!("coalesce(({sql}), {first})")
    };
    let after = if filter.from.is_some() { last_seal("s.latest < :from") } else { first.clone() };
    let last = match filter.before {
        Some(_) => format!(
            "iif(EXISTS (SELECT 1 FROM audit_events u WHERE u.seq > {sealed} AND u.seq <= {last} AND u.occurred_at < :before),
                {last}, {})",
            last_seal("s.earliest < :before")
        ),
        None => last,
    };
    format!(", span AS MATERIALIZED (SELECT {after} AS after, {last} AS last FROM me)")
}

/// The common table `actions`, which follows `me`: the distinct actions of the workspace's events.
/// A workspace has few actions. The query searches the index once for each.
const ACTIONS: &str = ", actions AS (
    SELECT (SELECT min(a.action) FROM audit_events a WHERE a.workspace_id = me.workspace_id) AS action FROM me
    UNION ALL
    SELECT (SELECT min(a.action) FROM audit_events a WHERE a.workspace_id = me.workspace_id AND a.action > actions.action)
    FROM me CROSS JOIN actions WHERE actions.action IS NOT NULL)";

/// The events of a workspace, in reverse order of writing. `may_read` is SQL for the condition that
/// the caller may read them.
fn events(filter: EventFilter, may_read: &str) -> List {
    let is_unfiltered = filter.is_empty();
    let (index, tables, condition) = match &filter {
        EventFilter { object: Some(_), .. } => {
            ("INDEXED BY audit_events_by_object", String::new(), "")
        }
        EventFilter { outcome: Some(AuditOutcome::Failure | AuditOutcome::Denied), .. } => {
            ("INDEXED BY audit_events_by_outcome", String::new(), " AND e.outcome <> 'success'")
        }
        EventFilter { action: Some(_), .. } => {
            ("INDEXED BY audit_events_by_action", String::new(), "")
        }
        EventFilter { actor: Some(_), .. } => (
            "INDEXED BY audit_events_by_action",
            ACTIONS.to_owned(),
            " AND e.action IN (SELECT action FROM actions)",
        ),
        _ => {
            let within =
                " AND e.seq > (SELECT after FROM span) AND e.seq <= (SELECT last FROM span)";
            ("NOT INDEXED", span(&filter), within)
        }
    };
    let Filters { sql, parameters } = Filters::default()
        .with("e.actor_name = :actor", "actor", filter.actor)
        .with("e.action = :action", "action", filter.action)
        .with("e.object_id = :object", "object", filter.object)
        .with("e.occurred_at >= :from", "from", filter.from)
        .with("e.occurred_at < :before", "before", filter.before)
        .with("e.outcome = :outcome", "outcome", filter.outcome.map(AuditOutcome::as_str));
    let rows = format!(
        "audit_events e {index} WHERE {may_read} AND e.workspace_id = me.workspace_id{condition}{sql}"
    );
    let mut list =
        List::new(&tables, ("audit_events e", &object()), &[rows], "e.seq DESC", parameters);
    if is_unfiltered {
        list.select.tables =
            format!("{tables}, total AS (SELECT {} AS total FROM me)", total("me.workspace_id"));
    }
    list
}

/// The workspace's events for staff, in reverse order of writing.
pub fn list(filter: EventFilter) -> List {
    events(filter, "(me.is_staff OR me.is_superuser)")
}

/// A page of the events of the region cell, in reverse order of writing, and the number of all its
/// events. `workspace` is the id that stands for the cell.
pub async fn list_of_cell(
    database: &Database,
    workspace: i64,
    filter: EventFilter,
    page: Page,
) -> Result<(Items, u64), Error> {
    let List { select, .. } = events(filter, "true");
    let sql =
        format!("WITH me AS (SELECT :workspace_id AS workspace_id){}", select.text(&[], page));
    let statement = select.bind(Statement::new(sql).bind("workspace_id", workspace), page);
    let (first, items) = db::run_page(database, &PageStatement::new(statement)?, &[]).await?;
    Ok((items, list::total(&first)?.unwrap_or(0)))
}
