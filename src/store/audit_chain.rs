//! The chain of audit events (`docs/audit.md`) in D1.

use farhand_domain::audit_chain::{COLUMNS, HASH, Row, Seals};
use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use farhand_sql::command_counts;
use farhand_sql::numbering::{self, highest, key, number};
use farhand_sql::statement::{Statement, Value};
use serde_json::json;
use worker::Env;

use super::db::{self, Outcome, params};

/// The workspace of a statement.
const WORKSPACE: &str = ":workspace_id";

/// SQL for the hash of the link with a key, from its seal; null if there is none that fits.
fn hash(workspace: &str, key: &str, fits: &str) -> String {
    format!(
        "(SELECT iif(s.workspace_id = {workspace} AND s.first <= {key} AND {fits},
            nullif(substr(s.hashes, {HASH} * ({key} - s.first) + 1, {HASH}), ''), NULL)
          FROM audit_seals s WHERE s.last >= {key} ORDER BY s.last LIMIT 1)"
    )
}

/// SQL for the hash of a row of `audit_events e`; null until it is sealed. A seal with other times
/// does not fit, as the filter by time would not find the event.
pub(super) fn hash_of_event() -> String {
    hash("e.workspace_id", "e.seq", "e.occurred_at BETWEEN s.earliest AND s.latest")
}

/// SQL for a row of `audit_events e` as [`Row`] reads it.
fn row() -> String {
    let columns = COLUMNS.map(|column| format!("e.{column}")).join(", ");
    format!("json_array({}, {}, json_array({columns}))", number("e.seq"), hash_of_event())
}

/// SQL for the key of the last event of a workspace that D1 has a seal of.
fn sealed(workspace: &str) -> String {
    highest("audit_seals", "last", workspace)
}

fn read_rows(result: &Outcome) -> Result<Vec<Row>, Error> {
    let rows = db::column::<String>(result)?;
    Ok(rows.iter().map(|row| serde_json::from_str(row)).collect::<Result<_, _>>()?)
}

/// What a workspace's sealer finds.
pub struct Unsealed {
    /// The next events behind the end of the chain, in the order in which they were written; none
    /// of a deleted workspace.
    pub rows: Vec<Row>,
    /// How many commands the counters of lists do not have, or more.
    pub uncounted: u64,
}

/// Looks for the next events of a workspace behind the end of its chain.
///
/// After Time Travel, D1 may have given new events the numbers of links that are lost. These events
/// move behind the others first.
pub async fn unsealed(
    env: &Env,
    workspace_id: i64,
    end: i64,
    limit: u64,
) -> Result<Unsealed, Error> {
    let (end_key, sealed) = (key(WORKSPACE, ":end"), sealed(WORKSPACE));
    let highest = highest("audit_events", "seq", WORKSPACE);
    let move_lost = format!(
        "UPDATE audit_events SET seq = seq + max({highest}, {end_key}) - {sealed} WHERE seq > {sealed} AND seq <= {end_key}"
    );
    let select = format!(
        "SELECT {} AS body FROM audit_events e WHERE e.seq > {end_key} AND e.seq <= {}
         AND (:workspace_id = 0 OR EXISTS (SELECT 1 FROM workspaces w WHERE w.id = :workspace_id AND w.deleted_at IS NULL))
         ORDER BY e.seq LIMIT :limit + 0",
        row(),
        numbering::last(WORKSPACE)
    );
    let uncounted = format!("SELECT {} AS number", command_counts::distance(WORKSPACE));
    let of = |sql| Statement::new(sql).bind_all(params! { workspace_id });
    let statements = vec![
        of(move_lost).bind("end", end),
        of(select).bind_all(params! { end, limit }),
        of(uncounted),
    ];
    let results = db::batch(env, statements).await?;
    let [_, rows, uncounted] = results.as_slice() else {
        return Err(Error::internal("D1 gave no result"));
    };
    Ok(Unsealed { rows: read_rows(rows)?, uncounted: db::first_value(uncounted)?.unwrap_or(0) })
}

/// Adds the commands that the counters of lists do not have to them.
pub async fn count_commands(env: &Env, workspace_id: i64) -> Result<(), Error> {
    let statements =
        command_counts::add().map(|sql| Statement::new(sql).bind("workspace_id", workspace_id));
    db::execute_all(env, statements.to_vec()).await
}

/// Writes seals. Those that are there already stay as they are.
pub async fn write_seals(env: &Env, workspace_id: i64, seals: &Seals) -> Result<(), Error> {
    let [zero, first, last] = ["0", ":first", ":last"].map(|number| key(WORKSPACE, number));
    // `latest` is of all events up to these.
    let sql = format!(
        "INSERT INTO audit_seals (last, workspace_id, first, earliest, latest, hashes)
         SELECT {last}, :workspace_id, {first}, :earliest, max(:latest, coalesce((SELECT s.latest FROM audit_seals s
            WHERE s.last >= {zero} AND s.last < {last} ORDER BY s.last DESC LIMIT 1), '')), :hashes
         WHERE :workspace_id = 0 OR EXISTS (SELECT 1 FROM workspaces w WHERE w.id = :workspace_id)
         ON CONFLICT (last) DO NOTHING"
    );
    let Seals { first, last, earliest, latest, hashes } = seals;
    let parameters = params! { workspace_id, first: *first, last: *last, earliest, latest, hashes };
    db::execute(env, Statement::new(sql).bind_all(parameters)).await
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

/// Reads the links of a workspace's chain from the `first` to the `last`, and what is behind its
/// `end`.
pub async fn links(
    env: &Env,
    workspace_id: i64,
    (first, last): (i64, i64),
    end: i64,
) -> Result<Links, Error> {
    // Each table is sorted and limited on its own, by its index. Otherwise SQLite reads every
    // matching row and sorts them.
    let expired_hash = hash("x.workspace_id", &key("x.workspace_id", "x.link"), "true");
    let select = |keys: &str, which: &str, order: &str| {
        let sql = format!(
            "SELECT body FROM (
                SELECT * FROM (SELECT {} AS link, {} AS body FROM audit_events e
                    WHERE {keys} ORDER BY e.seq {order})
                UNION ALL
                SELECT * FROM (SELECT x.link, json_array(x.link, {expired_hash}, x.digest) FROM audit_expired x
                    WHERE x.workspace_id = :workspace_id AND x.link {which} ORDER BY x.link {order})
             ) ORDER BY link {order}",
            number("e.seq"),
            row(),
        );
        Statement::new(sql).bind("workspace_id", workspace_id)
    };
    let most = last + 2 - first;
    let [zero, first_key, last_key, end_key] =
        ["0", ":first", ":last", ":end"].map(|number| key(WORKSPACE, number));
    let sealed = sealed(WORKSPACE);
    let count = format!(
        "SELECT count(*) AS number FROM audit_events e WHERE e.seq > {sealed} AND e.seq <= {}",
        numbering::last(WORKSPACE)
    );
    let statements = vec![
        select(&format!("e.seq >= {zero} AND e.seq < {first_key}"), "< :first", "DESC LIMIT 2")
            .bind("first", first),
        select(
            &format!("e.seq BETWEEN {first_key} AND {last_key}"),
            "BETWEEN :first AND :last",
            "LIMIT :most + 0",
        )
        .bind_all(params! { first, last, most }),
        select(&format!("e.seq > {end_key} AND e.seq <= {sealed}"), "> :end", "LIMIT 1")
            .bind("end", end),
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

/// Deletes the links of a workspace up to one of them. The last seals stay: their number is not
/// used again.
pub async fn delete_links(env: &Env, workspace_id: i64, last: i64) -> Result<(), Error> {
    let (sealed, zero, last_key) =
        (sealed(WORKSPACE), key(WORKSPACE, "0"), key(WORKSPACE, ":last"));
    let delete = |rows: &str| {
        Statement::new(format!("DELETE FROM {rows}")).bind_all(params! { workspace_id, last })
    };
    let statements = vec![
        delete(&format!("audit_events WHERE seq BETWEEN {zero} AND {last_key}")),
        delete("audit_expired WHERE workspace_id = :workspace_id AND link <= :last"),
        delete(&format!("audit_seals WHERE last BETWEEN {zero} AND min({last_key}, {sealed} - 1)")),
    ];
    db::execute_all(env, statements).await
}

/// SQL for when the first anonymous event of a workspace happened that is sealed and not expired.
fn first_anonymous(workspace: &str) -> String {
    format!(
        "(SELECT f.occurred_at FROM audit_events f INDEXED BY audit_events_anonymous
            WHERE f.workspace_id = {workspace} AND f.actor_type = 'anonymous' AND f.seq <= {} ORDER BY f.seq LIMIT 1)",
        sealed(workspace)
    )
}

/// The first sealed anonymous events of a workspace, in the order of the chain; none if the first
/// happened after `until`.
pub async fn first_anonymous_links(
    env: &Env,
    workspace_id: i64,
    until: Timestamp,
    limit: u64,
) -> Result<Vec<Row>, Error> {
    let sql = format!(
        "SELECT {} AS body FROM audit_events e INDEXED BY audit_events_anonymous
         WHERE e.workspace_id = :workspace_id AND e.actor_type = 'anonymous' AND e.seq <= {} AND {} < :until
         ORDER BY e.seq LIMIT :limit + 0",
        row(),
        sealed(WORKSPACE),
        first_anonymous(WORKSPACE)
    );
    read_rows(
        &db::run(env, Statement::new(sql).bind_all(params! { workspace_id, until, limit })).await?,
    )
}

/// Deletes anonymous events. Of each, its hash and its digest stay.
pub async fn expire(env: &Env, workspace_id: i64, rows: &[Row]) -> Result<(), Error> {
    let rows =
        Value::list(rows.iter().map(|row| json!({"link": row.link, "digest": row.digest()})));
    let key = key(WORKSPACE, "r.value ->> 'link'");
    let is_anonymous = format!(
        "+e.workspace_id = :workspace_id AND +e.actor_type = 'anonymous' AND e.seq <= {}",
        sealed(WORKSPACE)
    );
    let insert = format!(
        "INSERT INTO audit_expired (workspace_id, link, number, digest)
         SELECT :workspace_id, r.value ->> 'link', row_number() OVER (ORDER BY e.seq) + coalesce(
            (SELECT x.number FROM audit_expired x WHERE x.workspace_id = :workspace_id ORDER BY x.link DESC LIMIT 1), 0),
            r.value ->> 'digest'
         FROM json_each(:rows) r CROSS JOIN audit_events e ON e.seq = {key} WHERE {is_anonymous}"
    );
    let delete = format!(
        "DELETE FROM audit_events AS e WHERE e.seq IN (SELECT {key} FROM json_each(:rows) r) AND {is_anonymous}"
    );
    let statement =
        |sql| Statement::new(sql).bind_all(params! { workspace_id, rows: rows.clone() });
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
pub async fn workspaces_to_seal(
    env: &Env,
    after: i64,
    until: KeptUntil,
    limit: u64,
) -> Result<Vec<i64>, Error> {
    let (sealed, last, first) = (sealed("w.id"), numbering::last("w.id"), first_anonymous("w.id"));
    // Events are deleted from the first one on.
    let sql = format!(
        "SELECT w.id FROM (SELECT 0 AS id UNION ALL SELECT id FROM workspaces WHERE deleted_at IS NULL) w
         WHERE w.id > :after AND (EXISTS (SELECT 1 FROM audit_events e WHERE e.seq > {sealed} AND e.seq <= {last})
             OR w.id > 0 AND (SELECT e.occurred_at FROM audit_events e
                WHERE e.seq >= w.id << 40 AND e.seq <= {last} ORDER BY e.seq LIMIT 1) < :until
             OR {first} < :anonymous_until)
         ORDER BY w.id LIMIT :limit + 0"
    );
    let statement = Statement::new(sql).bind_all(params! {
        after, until: until.all, limit, anonymous_until: until.anonymous,
    });
    db::column(&db::run(env, statement).await?)
}
