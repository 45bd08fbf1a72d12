//! The table of workspaces, and what this isolate remembers of it.

use std::time::Duration;

use farhand_domain::audit::Event;
use farhand_domain::error::Error;
use farhand_domain::page::Page;
use farhand_domain::time::Timestamp;
use farhand_domain::user::NewUser;
use farhand_sql::statement::Statement;
use serde::Deserialize;
use worker::Env;

use super::audit::{self, Insert};
use super::db::{self, Failure, Items, PageStatement, boolean, params};
use super::list;
use crate::platform::hints::Hints;

/// How long it may be remembered that a workspace exists (contract 1.1).
const REMEMBERED: Duration = Duration::from_secs(60);

thread_local! {
    /// The ids of workspaces that exist, by slug. That one does not exist is never remembered.
    static IDS: Hints<String, i64> = Hints::new(REMEMBERED);
}

/// Notes that a workspace exists.
pub fn remember(slug: &str, id: i64, now: Timestamp) {
    IDS.with(|ids| ids.put(slug.to_owned(), id, now));
}

/// Forgets that a workspace exists.
pub fn forget(slug: &str) {
    IDS.with(|ids| ids.forget(slug));
}

/// The id of a workspace, remembered or looked up; `None` where it does not exist.
pub async fn id_of(env: &Env, slug: &str, now: Timestamp) -> Result<Option<i64>, Error> {
    if let Some(id) = IDS.with(|ids| ids.get(slug, now)) {
        return Ok(Some(id));
    }
    let sql = "SELECT id FROM workspaces WHERE slug = :slug AND deleted_at IS NULL";
    let id = db::first_value(&db::run(env, Statement::new(sql).bind("slug", slug)).await?)?;
    if let Some(id) = id {
        remember(slug, id, now);
    }
    Ok(id)
}

/// A workspace to be made.
pub struct New<'a> {
    /// Its slug.
    pub slug: &'a str,
    /// What people call it.
    pub name: &'a str,
    /// Its first superuser.
    pub admin: &'a NewUser,
    /// The PHC string of the admin's password.
    pub password: &'a str,
    /// What the region cell's audit log tells of it.
    pub event: &'a Event,
    /// What the workspace's own does.
    pub own_event: &'a Event,
    /// The statements that store the answer of a request with an Idempotency-Key.
    pub answer: Option<[Statement; 2]>,
}

/// A workspace that was made.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Made {
    /// Its id.
    #[serde(rename = "workspace_id")]
    pub workspace: i64,
    /// The id of its superuser.
    #[serde(rename = "id")]
    pub admin: i64,
}

/// SQL for the id of a workspace, whose slug is the name of the object of an audit event, as a
/// text.
const OBJECT_ID: &str = "CAST(w.id AS TEXT)";

/// Creates a workspace with its superuser; `None` if the slug is taken, or the Idempotency-Key.
pub async fn insert(env: &Env, new: New<'_>, now: Timestamp) -> Result<Option<Made>, Error> {
    let workspace =
        Statement::new("INSERT INTO workspaces (slug, name, added_at) VALUES (:slug, :name, :now)")
            .bind_all(params! { slug: new.slug, name: new.name, now });
    let admin = Statement::new(
        "INSERT INTO users (workspace_id, id, username, email, password, is_staff, is_superuser, date_joined)
         SELECT id, last_user_id + 1, :username, :email, :password, 1, 1, :now FROM workspaces WHERE slug = :slug AND deleted_at IS NULL
         RETURNING workspace_id, id",
    )
    .bind_all(params! {
        slug: new.slug, username: &new.admin.username, email: &new.admin.email,
        password: new.password, now,
    });
    let told = |workspace: &'static str, id: &'static str, event: &Event| {
        let rest = "FROM workspaces w WHERE w.slug = :slug AND w.deleted_at IS NULL";
        let insert = Insert { object_id: Some(id), ..Insert::whole(workspace, ":event", rest) };
        Ok::<_, Error>(Statement::new(insert.sql()).bind_all(params! {
            slug: new.slug, event: audit::text(event)?,
        }))
    };
    // All of it is done or nothing is, as a slug that is taken breaks a rule.
    let events = [told("0", OBJECT_ID, new.event)?, told("w.id", "w.slug", new.own_event)?];
    let statements = [workspace, admin]
        .into_iter()
        .chain(events)
        .chain(new.answer.into_iter().flatten())
        .collect::<Vec<_>>();
    match db::batch(env, statements).await {
        Ok(results) => Ok(results.get(1).map(db::first).transpose()?.flatten()),
        Err(Failure::NotUnique(_)) => Ok(None),
        Err(failure) => Err(failure.into()),
    }
}

/// A page of the workspaces that are live or within their grace period, oldest first, as JSON text,
/// and how many there are.
pub async fn list(env: &Env, region: &str, page: Page) -> Result<(Items, u64), Error> {
    let sql = "SELECT (SELECT count(*) FROM workspaces WHERE is_purging = 0) AS total, NULL AS body
        UNION ALL SELECT NULL, body FROM (SELECT json_object('slug', slug, 'name', name, 'region', :region,
            'added_at', added_at, 'deleted_at', deleted_at, 'purge_at', purge_at) AS body
            FROM workspaces WHERE is_purging = 0 ORDER BY id LIMIT :page_size + 0 OFFSET :page_offset)";
    let statement = list::bind_page(Statement::new(sql).bind("region", region), page);
    let (first, items) = db::run_page(env, &PageStatement::new(statement)?, &[]).await?;
    Ok((items, list::total(&first)?.unwrap_or(0)))
}

/// Writes a change of one workspace's row with the cell's audit event; its id, or `None` if nothing
/// changed.
async fn change(
    env: &Env,
    update: Statement,
    slug: &str,
    event: &Event,
) -> Result<Option<i64>, Error> {
    // Of the workspaces that had the slug, the last one: no other can be live or within its grace
    // period.
    let rest =
        "FROM workspaces w WHERE w.slug = :slug AND changes() > 0 ORDER BY w.id DESC LIMIT 1";
    let insert = Insert { object_id: Some(OBJECT_ID), ..Insert::whole("0", ":event", rest) };
    let told = Statement::new(insert.sql()).bind_all(params! { slug, event: audit::text(event)? });
    let results = db::batch(env, vec![update, told]).await?;
    db::first_value(results.first().ok_or_else(|| Error::internal("D1 gave no result"))?)
}

/// Marks a workspace as deleted, which refuses every credential in it immediately. If `is_now`, its
/// purge begins, also for one that is within its grace period. The caller decides that, whose clock
/// is not this one's. Returns its id, or `None` if there is none.
pub async fn mark_deleted(
    env: &Env,
    slug: &str,
    (purge_at, is_now): (Timestamp, bool),
    event: &Event,
    now: Timestamp,
) -> Result<Option<i64>, Error> {
    let sql =
        "UPDATE workspaces SET deleted_at = coalesce(deleted_at, :now), purge_at = :purge_at, is_purging = :is_now
        WHERE slug = :slug AND is_purging = 0 AND (deleted_at IS NULL OR :is_now) RETURNING id";
    change(env, Statement::new(sql).bind_all(params! { slug, now, purge_at, is_now }), slug, event)
        .await
}

/// Makes a workspace within its grace period a live one again; its id, or `None` if there is none.
pub async fn undelete(env: &Env, slug: &str, event: &Event) -> Result<Option<i64>, Error> {
    let sql = "UPDATE workspaces SET deleted_at = NULL, purge_at = NULL
        WHERE slug = :slug AND is_purging = 0 AND deleted_at IS NOT NULL RETURNING id";
    change(env, Statement::new(sql).bind("slug", slug), slug, event).await
}

/// Begins the purge of the workspaces whose grace period is over.
pub async fn begin_due_purges(env: &Env, now: Timestamp) -> Result<(), Error> {
    let sql = "UPDATE workspaces SET is_purging = 1 WHERE purge_at <= :now AND is_purging = 0";
    db::execute(env, Statement::new(sql).bind("now", now)).await
}

/// A workspace whose slug is taken.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Standing {
    /// Its id.
    pub id: i64,
    /// Whether it is deleted, and within its grace period.
    #[serde(deserialize_with = "boolean")]
    pub is_deleted: bool,
}

/// The workspace that has a slug, live or within its grace period.
pub async fn standing(env: &Env, slug: &str) -> Result<Option<Standing>, Error> {
    let sql = "SELECT id, deleted_at IS NOT NULL AS is_deleted FROM workspaces WHERE slug = :slug AND is_purging = 0";
    db::first(&db::run(env, Statement::new(sql).bind("slug", slug)).await?)
}

/// A workspace that is being purged.
#[derive(Debug, Deserialize)]
pub struct Deleted {
    /// Its id.
    pub id: i64,
    /// The slug that it had.
    pub slug: String,
    /// Whether another workspace has that slug now.
    #[serde(deserialize_with = "boolean")]
    pub slug_is_used: bool,
}

/// The workspace to purge with the next higher id, or else with the lowest.
pub async fn next_deleted(env: &Env, after: i64) -> Result<Option<Deleted>, Error> {
    let sql = "SELECT d.id, d.slug, EXISTS (
            SELECT 1 FROM workspaces w WHERE w.slug = d.slug AND w.is_purging = 0) AS slug_is_used
        FROM workspaces d WHERE d.is_purging = 1 AND d.id = coalesce(
            (SELECT min(id) FROM workspaces WHERE is_purging = 1 AND id > :after),
            (SELECT min(id) FROM workspaces WHERE is_purging = 1))";
    db::first(&db::run(env, Statement::new(sql).bind("after", after)).await?)
}

/// How many rows go at a time, so that no statement runs long.
const PURGE_ROWS: u64 = 200;
/// The tables whose rows go with the objects of their servers, before all others.
const OF_OBJECTS: [&str; 2] = ["servers", "gone_servers"];

/// A table with rows of workspaces.
#[derive(Deserialize)]
struct TenantTable {
    name: String,
    /// The statement that made it.
    sql: String,
}

impl TenantTable {
    /// The columns that name a row.
    fn key(&self) -> &str {
        let without_rowid = self.sql.strip_suffix("WITHOUT ROWID");
        let key = without_rowid.and_then(|sql| sql.rsplit_once("PRIMARY KEY (")?.1.split_once(')'));
        key.map_or("rowid", |(key, _)| key)
    }

    fn purge_sql(&self) -> String {
        let (name, key) = (&self.name, self.key());
        let guard = match name.as_str() {
            // The search index finds the texts of a command by its row here.
            "command_servers" => format!(" AND NOT {}", has_rows("commands")),
            // The sessions go with their users, and first their hashes are read.
            "users" => format!(" AND NOT {}", has_rows("sessions")),
            _ => String::new(),
        };
        format!("DELETE FROM {name} WHERE ({key}) IN ({}){guard}", next_rows(name, key))
    }
}

/// SQL for the rows of a workspace that are purged next.
fn next_rows(table: &str, key: &str) -> String {
    format!("SELECT {key} FROM {table} WHERE workspace_id = :workspace_id LIMIT {PURGE_ROWS}")
}

fn has_rows(table: &str) -> String {
    format!("EXISTS (SELECT 1 FROM {table} WHERE workspace_id = :workspace_id)")
}

/// The hashes of login tokens that the next [`purge_some`] removes from D1.
pub async fn token_hashes(env: &Env, workspace_id: i64) -> Result<Vec<String>, Error> {
    let sql = format!(
        "SELECT token_hash FROM sessions WHERE rowid IN ({})",
        next_rows("sessions", "rowid")
    );
    db::column(&db::run(env, Statement::new(sql).bind("workspace_id", workspace_id)).await?)
}

/// Removes some of the rows of a deleted workspace, and its own when no other is left. Those of
/// servers are gone before.
pub async fn purge_some(env: &Env, workspace_id: i64) -> Result<(), Error> {
    // As the schema has them: a new one is purged without being named here.
    let sql = "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND sql LIKE '%workspace_id INTEGER%'";
    let tables: Vec<TenantTable> = db::rows(&db::run(env, Statement::new(sql)).await?)?;
    let purged = tables.iter().filter(|table| !OF_OBJECTS.contains(&table.name.as_str()));
    let rests: Vec<_> = tables.iter().map(|table| has_rows(&table.name)).collect();
    let own =
        format!("DELETE FROM workspaces WHERE id = :workspace_id AND NOT ({})", rests.join(" OR "));
    let all = purged.map(TenantTable::purge_sql).chain([own]);
    db::execute_all(
        env,
        all.map(|sql| Statement::new(sql).bind("workspace_id", workspace_id)).collect(),
    )
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tables_key_is_that_of_its_schema() {
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
