//! The D1 table of responses to requests with an Idempotency-Key. Responses to the creation of
//! commands are stored with the commands.

use farhand_domain::command::request::IDEMPOTENCY_KEY_TTL;
use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use farhand_sql::statement::Statement;

use super::database::Database;
use super::db::{self, params};
use super::scope::{Query, Scope};
use super::transaction::Transaction;
use crate::platform;

/// Reads the caller's earlier request with the same key, made after `since`, as
/// `{request, answer}`.
pub fn earlier(key_hash: &str, since: Timestamp) -> Query {
    let sql = "(SELECT json_object('request', i.request_hash, 'answer', json(i.answer)) FROM idempotency_keys i
        WHERE i.workspace_id = me.workspace_id AND i.user_id = me.user_id
            AND i.key_hash = :key_hash AND i.added_at > :since)";
    Query::new(sql, params! { key_hash, since })
}

/// The maximum number of expired rows that one statement deletes.
const PURGE_BATCH: usize = 1_000;
/// The maximum number of deletion statements in one purge.
const MAX_PURGE_BATCHES: usize = 20;

/// How to read a new resource. The JSON is stored as the response to repeated requests.
#[derive(Debug)]
pub struct ReplaySource {
    /// SQL for the resource as JSON.
    pub object: &'static str,
    /// SQL that joins the new row to `me`. `:resource` is its id or name.
    pub row: &'static str,
}

/// Adds the statements that store the response to a creation, in the transaction of the creation.
/// If no row was created, no response is stored. `resource` is the new resource's id or name.
///
/// A second row with the same key violates a uniqueness rule. So of concurrent requests with the
/// same key, only one creates a resource.
pub fn insert(
    transaction: Transaction,
    scope: &Scope<'_>,
    (key_hash, request_hash): (&str, &str),
    ReplaySource { object, row }: &ReplaySource,
    resource: &str,
) -> Transaction {
    let expired = "DELETE FROM idempotency_keys WHERE key_hash = :key_hash AND added_at <= :until
        AND (workspace_id, user_id) IN (SELECT workspace_id, user_id FROM me)";
    let insert = format!(
        "INSERT INTO idempotency_keys (workspace_id, user_id, key_hash, request_hash, answer, added_at)
         SELECT me.workspace_id, me.user_id, :key_hash, :request_hash, {object}, :now FROM me CROSS JOIN {row}"
    );
    transaction
        .then(scope.statement(expired).bind_all(params! {
            key_hash, until: platform::now().plus_seconds(-IDEMPOTENCY_KEY_TTL),
        }))
        .then(scope.statement(&insert).bind_all(params! { key_hash, request_hash, resource }))
}

/// SQL for the condition that a row belongs to an operator's request. No workspace and no user has
/// the id 0.
const OPERATOR: &str = "workspace_id = 0 AND user_id = 0";

/// Reads the operator's earlier request with the same key, made after `since`, as
/// `{request, answer}`.
pub async fn earlier_of_operator(
    database: &Database,
    key_hash: &str,
    since: Timestamp,
) -> Result<Option<String>, Error> {
    let sql = format!(
        "SELECT json_object('request', request_hash, 'answer', json(answer)) AS body FROM idempotency_keys
         WHERE {OPERATOR} AND key_hash = :key_hash AND added_at > :since"
    );
    db::first_value(
        &db::run(database, Statement::new(sql).bind_all(params! { key_hash, since })).await?,
    )
}

/// The statements that store the response to the creation of a workspace. They add the id of the
/// workspace's admin to the response, because D1 assigns that id.
pub fn insert_of_operator(
    (key_hash, request_hash): (&str, &str),
    answer: &str,
    slug: &str,
    now: Timestamp,
) -> [Statement; 2] {
    let expired = format!(
        "DELETE FROM idempotency_keys WHERE {OPERATOR} AND key_hash = :key_hash AND added_at <= :until"
    );
    let insert = "INSERT INTO idempotency_keys (workspace_id, user_id, key_hash, request_hash, answer, added_at)
        SELECT 0, 0, :key_hash, :request_hash, json_set(:answer, '$.admin.id', u.id), :now
        FROM workspaces w JOIN users u ON u.workspace_id = w.id WHERE w.slug = :slug AND w.deleted_at IS NULL";
    [
        Statement::new(expired)
            .bind_all(params! { key_hash, until: now.plus_seconds(-IDEMPOTENCY_KEY_TTL) }),
        Statement::new(insert).bind_all(params! { key_hash, request_hash, answer, slug, now }),
    ]
}

/// Deletes expired rows, at most [`MAX_PURGE_BATCHES`] times [`PURGE_BATCH`].
pub async fn purge(database: &Database) -> Result<(), Error> {
    let sql = format!(
        "DELETE FROM idempotency_keys WHERE rowid IN (
            SELECT rowid FROM idempotency_keys WHERE added_at <= :until ORDER BY added_at LIMIT {PURGE_BATCH})"
    );
    let until = platform::now().plus_seconds(-IDEMPOTENCY_KEY_TTL);
    for _ in 0..MAX_PURGE_BATCHES {
        let result = db::run(database, Statement::new(&sql).bind("until", until)).await?;
        if db::changes(&result)? < PURGE_BATCH {
            break;
        }
    }
    Ok(())
}
