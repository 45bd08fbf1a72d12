//! The chain of audit events (`docs/audit.md`) in D1.

use farhand_domain::audit::chain::{COLUMNS, ChainEntry, HASH_LENGTH, Seals};
use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use farhand_sql::numbering::{self, highest, key, number};
use farhand_sql::statement::{Statement, Value};
use farhand_sql::{command_counts, quotas};
use serde_json::json;

use super::database::Database;
use super::db::{self, StatementResult, params};

/// The parameter for the workspace of a statement.
const WORKSPACE: &str = ":workspace_id";

/// SQL for the hash of the chain entry with a key, from its seal. Null if no seal includes the key,
/// or if `condition` on the seal `s` is false.
fn hash(workspace: &str, key: &str, condition: &str) -> String {
    format!(
        "(SELECT iif(s.workspace_id = {workspace} AND s.first <= {key} AND {condition},
            nullif(substr(s.hashes, {HASH_LENGTH} * ({key} - s.first) + 1, {HASH_LENGTH}), ''), NULL)
          FROM audit_seals s WHERE s.last >= {key} ORDER BY s.last LIMIT 1)"
    )
}

/// SQL for the hash of a row of `audit_events e`. Null until the event is sealed. Also null if the
/// event's time is outside the seal's range of times: then one of the two was tampered with, and
/// the filter by time would not find the event.
pub(super) fn hash_of_event() -> String {
    hash("e.workspace_id", "e.seq", "e.occurred_at BETWEEN s.earliest AND s.latest")
}

/// SQL for a row of `audit_events e` as [`ChainEntry`] reads it.
fn row() -> String {
    let columns = COLUMNS.map(|column| format!("e.{column}")).join(", ");
    format!("json_array({}, {}, json_array({columns}))", number("e.seq"), hash_of_event())
}

/// SQL for the key of the last sealed event of a workspace, by the seals in D1.
fn sealed(workspace: &str) -> String {
    highest("audit_seals", "last", workspace)
}

fn read_rows(result: &StatementResult) -> Result<Vec<ChainEntry>, Error> {
    let rows = db::column::<String>(result)?;
    Ok(rows.iter().map(|row| serde_json::from_str(row)).collect::<Result<_, _>>()?)
}

/// The pending work of a workspace's sealer.
pub struct UnsealedWork {
    /// The next events after the end of the chain, in the order in which they were written. Empty
    /// if the workspace is deleted.
    pub rows: Vec<ChainEntry>,
    /// An upper bound of the number of commands that the counters of lists do not include.
    pub uncounted: u64,
}

/// Reads the next events of a workspace after the end of its chain.
///
/// After D1 was restored to an earlier time (Time Travel), chain entries are missing, and new
/// events may use their numbers. This function first gives such events new numbers after the end of
/// the chain.
pub async fn unsealed(
    database: &Database,
    workspace_id: i64,
    end: i64,
    limit: u64,
) -> Result<UnsealedWork, Error> {
    let (end_key, sealed) = (key(WORKSPACE, ":end"), sealed(WORKSPACE));
    let highest = highest("audit_events", "seq", WORKSPACE);
    let renumber = format!(
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
    let statement = |sql| Statement::new(sql).bind_all(params! { workspace_id });
    let statements = vec![
        statement(renumber).bind("end", end),
        statement(select).bind_all(params! { end, limit }),
        statement(uncounted),
    ];
    let results = db::batch(database, statements).await?;
    let [_, rows, uncounted] = results.as_slice() else {
        return Err(Error::internal("D1 returned no result"));
    };
    Ok(UnsealedWork { rows: read_rows(rows)?, uncounted: db::first_value(uncounted)?.unwrap_or(0) })
}

/// Adds the uncounted commands to the counters of lists.
pub async fn count_commands(database: &Database, workspace_id: i64) -> Result<(), Error> {
    let statements =
        quotas::count_commands().map(|sql| Statement::new(sql).bind("workspace_id", workspace_id));
    db::execute_all(database, statements.to_vec()).await
}

/// Writes seals. Seals that D1 already has are not changed.
pub async fn write_seals(
    database: &Database,
    workspace_id: i64,
    seals: &Seals,
) -> Result<(), Error> {
    let [zero, first, last] = ["0", ":first", ":last"].map(|number| key(WORKSPACE, number));
    // `latest` is the latest time of all events up to the end of these seals.
    let sql = format!(
        "INSERT INTO audit_seals (last, workspace_id, first, earliest, latest, hashes)
         SELECT {last}, :workspace_id, {first}, :earliest, max(:latest, coalesce((SELECT s.latest FROM audit_seals s
            WHERE s.last >= {zero} AND s.last < {last} ORDER BY s.last DESC LIMIT 1), '')), :hashes
         WHERE :workspace_id = 0 OR EXISTS (SELECT 1 FROM workspaces w WHERE w.id = :workspace_id)
         ON CONFLICT (last) DO NOTHING"
    );
    let Seals { first, last, earliest, latest, hashes } = seals;
    let parameters = params! { workspace_id, first: *first, last: *last, earliest, latest, hashes };
    db::execute(database, Statement::new(sql).bind_all(parameters)).await
}

/// A range of chain entries, and the rows around it that a verification needs.
pub struct Links {
    /// Up to two entries before the range, the last one first.
    pub before: Vec<ChainEntry>,
    /// The entries of the range, in order. The query reads one row more than the range has numbers,
    /// so that a number with two rows is noticed.
    pub rows: Vec<ChainEntry>,
    /// A sealed entry after the end of the chain.
    pub beyond: Option<ChainEntry>,
    /// The number of events that are not sealed yet.
    pub unsealed: u64,
}

/// Reads the entries of a workspace's chain from `first` to `last`. `end` is the number of the
/// chain's last entry.
pub async fn links(
    database: &Database,
    workspace_id: i64,
    (first, last): (i64, i64),
    end: i64,
) -> Result<Links, Error> {
    // Each of the two tables is sorted and limited by its own index. Otherwise SQLite would read
    // all matching rows and sort them.
    let expired_hash = hash("x.workspace_id", &key("x.workspace_id", "x.link"), "true");
    let select = |has_key: &str, has_number: &str, order: &str| {
        let sql = format!(
            "SELECT body FROM (
                SELECT * FROM (SELECT {} AS link, {} AS body FROM audit_events e
                    WHERE {has_key} ORDER BY e.seq {order})
                UNION ALL
                SELECT * FROM (SELECT x.link, json_array(x.link, {expired_hash}, x.digest) FROM audit_expired x
                    WHERE x.workspace_id = :workspace_id AND x.link {has_number} ORDER BY x.link {order})
             ) ORDER BY link {order}",
            number("e.seq"),
            row(),
        );
        Statement::new(sql).bind("workspace_id", workspace_id)
    };
    let limit = last + 2 - first;
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
            "LIMIT :limit + 0",
        )
        .bind_all(params! { first, last, limit }),
        select(&format!("e.seq > {end_key} AND e.seq <= {sealed}"), "> :end", "LIMIT 1")
            .bind("end", end),
        Statement::new(count).bind("workspace_id", workspace_id),
    ];
    let results = db::batch(database, statements).await?;
    let [before, rows, beyond, unsealed] = results.as_slice() else {
        return Err(Error::internal("D1 returned no result"));
    };
    Ok(Links {
        before: read_rows(before)?,
        rows: read_rows(rows)?,
        beyond: read_rows(beyond)?.into_iter().next(),
        unsealed: db::first_value(unsealed)?.unwrap_or(0),
    })
}

/// Deletes the entries of a workspace's chain up to `last`. The last seals are kept, so that their
/// numbers are not used again.
pub async fn delete_links(database: &Database, workspace_id: i64, last: i64) -> Result<(), Error> {
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
    db::execute_all(database, statements).await
}

/// SQL for the time of the first anonymous event of a workspace that is sealed and not expired.
fn first_anonymous(workspace: &str) -> String {
    format!(
        "(SELECT f.occurred_at FROM audit_events f INDEXED BY audit_events_anonymous
            WHERE f.workspace_id = {workspace} AND f.actor_type = 'anonymous' AND f.seq <= {} ORDER BY f.seq LIMIT 1)",
        sealed(workspace)
    )
}

/// Reads the first sealed anonymous events of a workspace, in the order of the chain. Returns an
/// empty list if the first of them is not older than `until`.
pub async fn first_anonymous_links(
    database: &Database,
    workspace_id: i64,
    until: Timestamp,
    limit: u64,
) -> Result<Vec<ChainEntry>, Error> {
    let sql = format!(
        "SELECT {} AS body FROM audit_events e INDEXED BY audit_events_anonymous
         WHERE e.workspace_id = :workspace_id AND e.actor_type = 'anonymous' AND e.seq <= {} AND {} < :until
         ORDER BY e.seq LIMIT :limit + 0",
        row(),
        sealed(WORKSPACE),
        first_anonymous(WORKSPACE)
    );
    read_rows(
        &db::run(database, Statement::new(sql).bind_all(params! { workspace_id, until, limit }))
            .await?,
    )
}

/// Deletes anonymous events. The hash and the digest of each event are kept.
pub async fn expire(
    database: &Database,
    workspace_id: i64,
    rows: &[ChainEntry],
) -> Result<(), Error> {
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
    db::execute_all(database, vec![statement(insert), statement(delete)]).await
}

/// The cutoffs of retention: the times before which events are deleted. `None` means that events
/// are kept forever.
#[derive(Clone, Copy)]
pub struct RetentionCutoffs {
    /// For all events of workspaces.
    pub all: Option<Timestamp>,
    /// For anonymous events.
    pub anonymous: Option<Timestamp>,
}

/// Finds workspaces with events to be sealed or deleted, in the order of their ids after `after`.
/// The workspace 0 is the region cell.
pub async fn workspaces_to_seal(
    database: &Database,
    after: i64,
    until: RetentionCutoffs,
    limit: u64,
) -> Result<Vec<i64>, Error> {
    let (sealed, last, first) = (sealed("w.id"), numbering::last("w.id"), first_anonymous("w.id"));
    // Events are deleted in order, so comparing the time of the first event is enough.
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
    db::column(&db::run(database, statement).await?)
}
