//! Finds the batches whose objects the janitor calls.

use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use farhand_sql::statement::{Statement, Value};
use serde::Deserialize;
use uuid::Uuid;

use super::database::Database;
use super::db::{self, params};

/// A batch, and its workspace.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct BatchLocation {
    pub workspace_id: i64,
    pub id: Uuid,
}

/// The next batches that have not ended, in the order of their ids after `after`.
pub async fn open_after(
    database: &Database,
    after: &str,
    limit: u64,
) -> Result<Vec<BatchLocation>, Error> {
    let sql = "SELECT workspace_id, id FROM batches INDEXED BY batches_open
        WHERE finished_at IS NULL AND id > :after ORDER BY id LIMIT :limit + 0";
    let statement = Statement::new(sql).bind_all(params! { after, limit });
    db::rows(&db::run(database, statement).await?)
}

/// Some batches of a workspace that have not ended by `until`.
pub async fn not_ended_by(
    database: &Database,
    workspace_id: i64,
    until: Timestamp,
    limit: u64,
) -> Result<Vec<BatchLocation>, Error> {
    let sql = "SELECT workspace_id, id FROM batches
        WHERE workspace_id = :workspace_id AND (finished_at IS NULL OR finished_at > :until) LIMIT :limit + 0";
    let statement = Statement::new(sql).bind_all(params! { workspace_id, until, limit });
    db::rows(&db::run(database, statement).await?)
}

/// Deletes the rows of batches, without their targets.
pub async fn delete(database: &Database, batches: &[BatchLocation]) -> Result<(), Error> {
    let ids = Value::list(batches.iter().map(|batch| batch.id));
    let sql = "DELETE FROM batches WHERE id IN (SELECT value FROM json_each(:ids))";
    db::execute(database, Statement::new(sql).bind("ids", ids)).await
}
