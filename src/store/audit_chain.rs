//! The chain of audit events (`docs/audit.md`) in D1.

use farhand_domain::audit_chain::{COLUMNS, Row, Seal};
use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use farhand_sql::statement::{Statement, Value};
use serde_json::json;
use worker::Env;

use super::db::{self, Outcome, params};

/// SQL for a row as [`Row`] reads it.
fn row() -> String {
    let columns = COLUMNS.map(|column| format!("e.{column}")).join(", ");
    format!("json_array(e.seq, e.link, e.hash, json_array({columns}))")
}

fn read_rows(result: &Outcome) -> Result<Vec<Row>, Error> {
    let rows = db::column::<String>(result)?;
    Ok(rows.iter().map(|row| serde_json::from_str(row)).collect::<Result<_, _>>()?)
}

/// The next events of a workspace that are not sealed, in the order in which they were written; none of one that is gone.
pub async fn unsealed(env: &Env, workspace_id: i64, limit: u64) -> Result<Vec<Row>, Error> {
    let sql = format!(
        "SELECT {} AS body FROM audit_events e WHERE e.workspace_id = :workspace_id AND e.link IS NULL
         AND (:workspace_id = 0 OR EXISTS (SELECT 1 FROM workspaces w WHERE w.id = :workspace_id AND w.deleted_at IS NULL))
         ORDER BY e.seq LIMIT :limit + 0",
        row()
    );
    read_rows(&db::run(env, Statement::new(sql).bind_all(params! { workspace_id, limit })).await?)
}

/// Writes seals to their events. Those that are there already stay as they are.
pub async fn write_seals(env: &Env, workspace_id: i64, seals: &[Seal]) -> Result<(), Error> {
    // With a plus no index is looked at: by its number is the way to each row.
    let sql = "UPDATE audit_events SET link = s.value ->> 'link', hash = s.value ->> 'hash' FROM json_each(:seals) s
        WHERE audit_events.seq = s.value ->> 'seq' AND +audit_events.workspace_id = :workspace_id
        AND audit_events.id = s.value ->> 'id' AND +audit_events.link IS NULL";
    db::execute(env, Statement::new(sql).bind_all(params! { workspace_id, seals: Value::list(seals) })).await
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
pub async fn links(env: &Env, workspace_id: i64, (first, last): (i64, i64), end: i64) -> Result<Links, Error> {
    // Each table is sorted and limited on its own, by its index. Otherwise SQLite reads every matching row and sorts them.
    let select = |which: &str, order: &str| {
        let sql = format!(
            "SELECT body FROM (
                SELECT * FROM (SELECT link, seq, {} AS body FROM audit_events e
                    WHERE e.workspace_id = :workspace_id AND e.link {which} ORDER BY {order})
                UNION ALL
                SELECT * FROM (SELECT link, 0 AS seq, json_array(0, x.link, x.hash, x.digest) FROM audit_expired x
                    WHERE x.workspace_id = :workspace_id AND x.link {which} ORDER BY {order})
             ) ORDER BY {order}",
            row()
        );
        Statement::new(sql).bind("workspace_id", workspace_id)
    };
    let most = last + 2 - first;
    let count = "SELECT count(*) AS number FROM audit_events WHERE workspace_id = :workspace_id AND link IS NULL";
    let statements = vec![
        select("< :first", "link DESC, seq DESC LIMIT 2").bind("first", first),
        select("BETWEEN :first AND :last", "link, seq LIMIT :most + 0").bind_all(params! { first, last, most }),
        select("> :end", "link, seq LIMIT 1").bind("end", end),
        Statement::new(count).bind("workspace_id", workspace_id),
    ];
    let results = db::batch(env, statements).await?;
    let [before, rows, beyond, unsealed] = results.as_slice() else {
        return Err(Error::internal("D1 gave no result"));
    };
    Ok(Links {
        before: read_rows(before)?,
        rows: read_rows(rows)?,
        beyond: read_rows(beyond)?.into_iter().next(),
        unsealed: db::first_value(unsealed)?.unwrap_or(0),
    })
}

/// Deletes the links of a workspace up to one of them.
pub async fn delete_links(env: &Env, workspace_id: i64, last: i64) -> Result<(), Error> {
    let delete = |table: &str| {
        let sql = format!("DELETE FROM {table} WHERE workspace_id = :workspace_id AND link <= :last");
        Statement::new(sql).bind_all(params! { workspace_id, last })
    };
    db::execute_all(env, vec![delete("audit_events"), delete("audit_expired")]).await
}

/// SQL for when the first anonymous event of a workspace happened that is sealed and not expired.
fn first_anonymous(workspace: &str) -> String {
    format!(
        "(SELECT f.occurred_at FROM audit_events f INDEXED BY audit_events_anonymous
            WHERE f.workspace_id = {workspace} AND f.actor_type = 'anonymous' AND f.link > 0 ORDER BY f.link LIMIT 1)"
    )
}

/// The first sealed anonymous events of a workspace, in the order of the chain; none if the first happened after `until`.
pub async fn first_anonymous_links(
    env: &Env,
    workspace_id: i64,
    until: Timestamp,
    limit: u64,
) -> Result<Vec<Row>, Error> {
    let sql = format!(
        "SELECT {} AS body FROM audit_events e INDEXED BY audit_events_anonymous
         WHERE e.workspace_id = :workspace_id AND e.actor_type = 'anonymous' AND e.link > 0 AND {} < :until
         ORDER BY e.link LIMIT :limit + 0",
        row(),
        first_anonymous(":workspace_id")
    );
    read_rows(&db::run(env, Statement::new(sql).bind_all(params! { workspace_id, until, limit })).await?)
}

/// Deletes anonymous events. Of each, its hash and its digest stay.
pub async fn expire(env: &Env, workspace_id: i64, rows: &[Row]) -> Result<(), Error> {
    let rows = Value::list(rows.iter().map(|row| json!({"seq": row.seq, "digest": row.digest()})));
    let statement = |sql: &str| {
        Statement::new(sql).bind_all(params! {
            workspace_id, rows: rows.clone(),
        })
    };
    let insert = "INSERT INTO audit_expired (workspace_id, link, number, hash, digest)
        SELECT :workspace_id, e.link, row_number() OVER (ORDER BY e.link) + coalesce(
            (SELECT x.number FROM audit_expired x WHERE x.workspace_id = :workspace_id ORDER BY x.link DESC LIMIT 1), 0),
            e.hash, r.value ->> 'digest'
        FROM json_each(:rows) r CROSS JOIN audit_events e ON e.seq = r.value ->> 'seq'
        WHERE +e.workspace_id = :workspace_id AND +e.actor_type = 'anonymous' AND +e.link > 0";
    let delete = "DELETE FROM audit_events WHERE seq IN (SELECT r.value ->> 'seq' FROM json_each(:rows) r)
        AND +workspace_id = :workspace_id AND +actor_type = 'anonymous' AND +link > 0";
    db::execute_all(env, vec![statement(insert), statement(delete)]).await
}

/// Before when events happened that are to be deleted; `None`: events are kept forever.
#[derive(Clone, Copy)]
pub struct KeptUntil {
    /// All events of workspaces.
    pub all: Option<Timestamp>,
    /// Anonymous events.
    pub anonymous: Option<Timestamp>,
}

/// The next workspaces after one that have events to be sealed or deleted; 0 is the region cell.
pub async fn workspaces_to_seal(env: &Env, after: i64, until: KeptUntil, limit: u64) -> Result<Vec<i64>, Error> {
    let sql = format!(
        "SELECT w.id FROM (SELECT 0 AS id UNION ALL SELECT id FROM workspaces WHERE deleted_at IS NULL) w
         WHERE w.id > :after AND (EXISTS (SELECT 1 FROM audit_events e WHERE e.workspace_id = w.id AND e.link IS NULL)
             OR w.id > 0 AND EXISTS (SELECT 1 FROM audit_events e WHERE e.workspace_id = w.id AND e.occurred_at < :until)
             OR {} < :anonymous_until)
         ORDER BY w.id LIMIT :limit + 0",
        first_anonymous("w.id")
    );
    let statement = Statement::new(sql).bind_all(params! {
        after, until: until.all, limit, anonymous_until: until.anonymous,
    });
    db::column(&db::run(env, statement).await?)
}
