//! The D1 table of workspaces, and this isolate's cache of existing workspaces.

use std::time::Duration;

use farhand_domain::audit::event::AuditEvent;
use farhand_domain::error::Error;
use farhand_domain::http::page::Page;
use farhand_domain::people::user::NewUser;
use farhand_domain::time::Timestamp;
use farhand_sql::statement::Statement;
use serde::{Deserialize, Serialize};

use super::audit::{self, Insert};
use super::database::Database;
use super::db::{self, Failure, Items, PageStatement, boolean, params};
use super::list;
use crate::platform::hints::Hints;

/// How long an isolate may cache that a workspace exists (contract 1.1).
const HINT_TIME_TO_LIVE: Duration = Duration::from_secs(60);

thread_local! {
    /// The ids of workspaces that exist, by slug. Unknown slugs are never cached.
    static IDS: Hints<String, i64> = Hints::new(HINT_TIME_TO_LIVE);
}

/// Caches that a workspace exists.
pub fn remember(slug: &str, id: i64, now: Timestamp) {
    IDS.with(|ids| ids.put(slug.to_owned(), id, now));
}

/// Removes a workspace from the cache.
pub fn forget(slug: &str) {
    IDS.with(|ids| ids.forget(slug));
}

/// Returns the id of a workspace, from the cache or from D1. Returns `None` if the workspace does
/// not exist.
pub async fn id_of(database: &Database, slug: &str, now: Timestamp) -> Result<Option<i64>, Error> {
    if let Some(id) = IDS.with(|ids| ids.get(slug, now)) {
        return Ok(Some(id));
    }
    let sql = "SELECT id FROM workspaces WHERE slug = :slug AND deleted_at IS NULL";
    let id = db::first_value(&db::run(database, Statement::new(sql).bind("slug", slug)).await?)?;
    if let Some(id) = id {
        remember(slug, id, now);
    }
    Ok(id)
}

/// A workspace to create.
pub struct NewWorkspace<'a> {
    pub slug: &'a str,
    /// The display name.
    pub name: &'a str,
    /// The first superuser.
    pub admin: &'a NewUser,
    /// The PHC string of the admin's password.
    pub password: &'a str,
    /// The event for the audit log of the region cell.
    pub event: &'a AuditEvent,
    /// The event for the audit log of the workspace.
    pub own_event: &'a AuditEvent,
    /// The statements that store the response to a request with an Idempotency-Key.
    pub answer: Option<[Statement; 2]>,
}

/// The ids of a workspace that was created.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct CreatedWorkspace {
    pub workspace: i64,
    /// The id of the first superuser.
    pub admin: i64,
}

/// SQL for the object id in an audit event on a row of `workspaces w`. The object's name in the
/// event is the slug.
const OBJECT_ID: &str = "CAST(w.id AS TEXT)";

/// Creates a workspace with its first superuser. Returns `None` if another workspace has the slug,
/// or if the Idempotency-Key was used.
pub async fn insert(
    database: &Database,
    new: NewWorkspace<'_>,
    now: Timestamp,
) -> Result<Option<CreatedWorkspace>, Error> {
    let workspace =
        Statement::new("INSERT INTO workspaces (slug, name, added_at) VALUES (:slug, :name, :now)")
            .bind_all(params! { slug: new.slug, name: new.name, now });
    let admin = Statement::new(
        "INSERT INTO users (workspace_id, id, username, email, password, is_staff, is_superuser, date_joined)
         SELECT id, last_user_id + 1, :username, :email, :password, 1, 1, :now FROM workspaces WHERE slug = :slug AND deleted_at IS NULL
         RETURNING workspace_id AS workspace, id AS admin",
    )
    .bind_all(params! {
        slug: new.slug, username: &new.admin.username, email: &new.admin.email,
        password: new.password, now,
    });
    let insert_event = |workspace: &'static str, id: &'static str, event: &AuditEvent| {
        let rest = "FROM workspaces w WHERE w.slug = :slug AND w.deleted_at IS NULL";
        let insert =
            Insert { object_id: Some(id), ..Insert::from_event(workspace, ":event", rest) };
        Ok::<_, Error>(Statement::new(insert.sql()).bind_all(params! {
            slug: new.slug, event: audit::text(event)?,
        }))
    };
    let events =
        [insert_event("0", OBJECT_ID, new.event)?, insert_event("w.id", "w.slug", new.own_event)?];
    // If the slug is in use, the first statement violates a uniqueness rule, and nothing is
    // written.
    let statements = [workspace, admin]
        .into_iter()
        .chain(events)
        .chain(new.answer.into_iter().flatten())
        .collect::<Vec<_>>();
    match db::batch(database, statements).await {
        Ok(results) => Ok(results.get(1).map(db::first).transpose()?.flatten()),
        Err(Failure::NotUnique(_)) => Ok(None),
        Err(failure) => Err(failure.into()),
    }
}

/// A page of the workspaces whose purge has not begun, oldest first, and the number of all of them.
/// Deleted workspaces within their grace period are included.
pub async fn list(database: &Database, region: &str, page: Page) -> Result<(Items, u64), Error> {
    let sql = "SELECT (SELECT count(*) FROM workspaces WHERE is_purging = 0) AS total, NULL AS body
        UNION ALL SELECT NULL, body FROM (SELECT json_object('slug', slug, 'name', name, 'region', :region,
            'added_at', added_at, 'deleted_at', deleted_at, 'purge_at', purge_at) AS body
            FROM workspaces WHERE is_purging = 0 ORDER BY id LIMIT :page_size + 0 OFFSET :page_offset)";
    let statement = list::bind_page(Statement::new(sql).bind("region", region), page);
    let (first, items) = db::run_page(database, &PageStatement::new(statement)?, &[]).await?;
    Ok((items, list::total(&first)?.unwrap_or(0)))
}

/// Updates the row of a workspace, and writes the audit event of the region cell. Returns the
/// workspace's id, or `None` if nothing changed.
async fn update_with_event(
    database: &Database,
    update: Statement,
    slug: &str,
    event: &AuditEvent,
) -> Result<Option<i64>, Error> {
    // Several workspaces may have used the slug one after the other. Only the newest of them can be
    // live or within its grace period, so only that workspace can have changed.
    let rest =
        "FROM workspaces w WHERE w.slug = :slug AND changes() > 0 ORDER BY w.id DESC LIMIT 1";
    let insert = Insert { object_id: Some(OBJECT_ID), ..Insert::from_event("0", ":event", rest) };
    let insert_event =
        Statement::new(insert.sql()).bind_all(params! { slug, event: audit::text(event)? });
    let results = db::batch(database, vec![update, insert_event]).await?;
    db::first_value(results.first().ok_or_else(|| Error::internal("D1 returned no result"))?)
}

/// The deletion of a workspace.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Deletion {
    /// When the purge begins.
    pub purge_at: Timestamp,
    /// Whether the purge begins immediately. It is a field, because the clock that set `purge_at`
    /// can differ from the clock of the object that deletes the workspace.
    pub purges_now: bool,
    /// Purge only a workspace that was deleted by this time. `None`: delete a live workspace.
    pub deleted_by: Option<Timestamp>,
}

/// Marks a workspace as deleted. From then on all its credentials are refused. Returns the
/// workspace's id, or `None` if nothing changed.
pub async fn mark_deleted(
    database: &Database,
    slug: &str,
    deletion: Deletion,
    event: &AuditEvent,
    now: Timestamp,
) -> Result<Option<i64>, Error> {
    let Deletion { purge_at, purges_now, deleted_by } = deletion;
    let sql =
        "UPDATE workspaces SET deleted_at = coalesce(deleted_at, :now), purge_at = :purge_at, is_purging = :purges_now
        WHERE slug = :slug AND is_purging = 0 AND iif(:deleted_by IS NULL, deleted_at IS NULL, deleted_at <= :deleted_by)
        RETURNING id";
    let update =
        Statement::new(sql).bind_all(params! { slug, now, purge_at, purges_now, deleted_by });
    update_with_event(database, update, slug, event).await
}

/// Undeletes a workspace within its grace period. Returns its id, or `None` if no such workspace
/// has the slug.
pub async fn undelete(
    database: &Database,
    slug: &str,
    event: &AuditEvent,
) -> Result<Option<i64>, Error> {
    let sql = "UPDATE workspaces SET deleted_at = NULL, purge_at = NULL
        WHERE slug = :slug AND is_purging = 0 AND deleted_at IS NOT NULL RETURNING id";
    update_with_event(database, Statement::new(sql).bind("slug", slug), slug, event).await
}

/// Begins the purge of the workspaces whose grace period has ended.
pub async fn begin_due_purges(database: &Database, now: Timestamp) -> Result<(), Error> {
    let sql = "UPDATE workspaces SET is_purging = 1 WHERE purge_at <= :now AND is_purging = 0";
    db::execute(database, Statement::new(sql).bind("now", now)).await
}

/// The workspace that holds a slug: no other workspace can use the slug.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct SlugHolder {
    pub id: i64,
    /// Whether the workspace is deleted, and within its grace period.
    #[serde(deserialize_with = "boolean")]
    pub is_deleted: bool,
}

/// Finds the workspace that holds a slug: it is live, or deleted and within its grace period.
pub async fn slug_holder(database: &Database, slug: &str) -> Result<Option<SlugHolder>, Error> {
    let sql = "SELECT id, deleted_at IS NOT NULL AS is_deleted FROM workspaces WHERE slug = :slug AND is_purging = 0";
    db::first(&db::run(database, Statement::new(sql).bind("slug", slug)).await?)
}

/// A workspace whose purge has begun.
#[derive(Debug, Deserialize)]
pub struct WorkspaceToPurge {
    pub id: i64,
    /// The slug that it had.
    pub slug: String,
    /// Whether another workspace has that slug now.
    #[serde(deserialize_with = "boolean")]
    pub slug_is_used: bool,
}

/// Finds the next workspace to purge, in the order of the ids after `after`. After the last
/// workspace, the first one follows again.
pub async fn next_to_purge(
    database: &Database,
    after: i64,
) -> Result<Option<WorkspaceToPurge>, Error> {
    let sql = "SELECT d.id, d.slug, EXISTS (
            SELECT 1 FROM workspaces w WHERE w.slug = d.slug AND w.is_purging = 0) AS slug_is_used
        FROM workspaces d WHERE d.is_purging = 1 AND d.id = coalesce(
            (SELECT min(id) FROM workspaces WHERE is_purging = 1 AND id > :after),
            (SELECT min(id) FROM workspaces WHERE is_purging = 1))";
    db::first(&db::run(database, Statement::new(sql).bind("after", after)).await?)
}

/// The maximum number of rows that one statement purges, so that it does not run long.
const MAX_PURGED_ROWS: u64 = 200;
/// The tables whose rows are deleted when the objects of their servers are wiped, before the rows
/// of all other tables.
const SERVER_TABLES: [&str; 2] = ["servers", "deleted_servers_with_commands"];

/// A table with a column `workspace_id`.
#[derive(Deserialize)]
struct TenantTable {
    name: String,
    /// The statement that created it.
    sql: String,
}

impl TenantTable {
    /// The columns that identify a row: the primary key if the table is WITHOUT ROWID, else
    /// `rowid`.
    fn key(&self) -> &str {
        let without_rowid = self.sql.strip_suffix("WITHOUT ROWID");
        let key = without_rowid.and_then(|sql| sql.rsplit_once("PRIMARY KEY (")?.1.split_once(')'));
        key.map_or("rowid", |(key, _)| key)
    }

    fn purge_sql(&self) -> String {
        let (name, key) = (&self.name, self.key());
        let guard = match name.as_str() {
            // When a command is deleted, its trigger needs this row to update the search index.
            "command_servers" => format!(" AND NOT {}", has_rows("commands")),
            // Deleting a user deletes the user's sessions. Their token hashes are read before that.
            "users" => format!(" AND NOT {}", has_rows("sessions")),
            _ => String::new(),
        };
        format!("DELETE FROM {name} WHERE ({key}) IN ({}){guard}", next_rows(name, key))
    }
}

/// SQL that selects the rows of a workspace that are purged next.
fn next_rows(table: &str, key: &str) -> String {
    format!("SELECT {key} FROM {table} WHERE workspace_id = :workspace_id LIMIT {MAX_PURGED_ROWS}")
}

fn has_rows(table: &str) -> String {
    format!("EXISTS (SELECT 1 FROM {table} WHERE workspace_id = :workspace_id)")
}

/// The hashes of the login tokens whose sessions the next [`purge_rows`] deletes.
pub async fn token_hashes(database: &Database, workspace_id: i64) -> Result<Vec<String>, Error> {
    let sql = format!(
        "SELECT token_hash FROM sessions WHERE rowid IN ({})",
        next_rows("sessions", "rowid")
    );
    db::column(&db::run(database, Statement::new(sql).bind("workspace_id", workspace_id)).await?)
}

/// Deletes some rows of a deleted workspace from each table. Deletes the workspace's own row when
/// no other row is left. Call this after all of its servers are deleted.
pub async fn purge_rows(database: &Database, workspace_id: i64) -> Result<(), Error> {
    // Read from the schema, so that rows of a new table are purged, too.
    let sql = "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND sql LIKE '%workspace_id INTEGER%'";
    let tables: Vec<TenantTable> = db::rows(&db::run(database, Statement::new(sql)).await?)?;
    let purged = tables.iter().filter(|table| !SERVER_TABLES.contains(&table.name.as_str()));
    let has_rows: Vec<_> = tables.iter().map(|table| has_rows(&table.name)).collect();
    let purge_workspace = format!(
        "DELETE FROM workspaces WHERE id = :workspace_id AND NOT ({})",
        has_rows.join(" OR ")
    );
    let statements = purged
        .map(TenantTable::purge_sql)
        .chain([purge_workspace])
        .map(|sql| Statement::new(sql).bind("workspace_id", workspace_id));
    db::execute_all(database, statements.collect()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_table_is_read_from_its_schema() {
        let table = |sql: &str| {
            TenantTable { name: "things".to_owned(), sql: sql.to_owned() }.key().to_owned()
        };
        assert_eq!(
            table("CREATE TABLE things (id TEXT PRIMARY KEY, workspace_id INTEGER) STRICT"),
            "rowid"
        );
        assert_eq!(
            table(
                "CREATE TABLE things (workspace_id INTEGER, PRIMARY KEY (workspace_id, id)) STRICT"
            ),
            "rowid"
        );
        let without = "CREATE TABLE things (workspace_id INTEGER, PRIMARY KEY (workspace_id, id)) STRICT, WITHOUT ROWID";
        assert_eq!(table(without), "workspace_id, id");
    }
}
