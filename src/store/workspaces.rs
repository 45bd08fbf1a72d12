//! The table of workspaces, and what this isolate remembers of it.

use std::cell::RefCell;
use std::collections::HashMap;

use farhand_domain::audit::Event;
use farhand_domain::error::Error;
use farhand_domain::page::Page;
use farhand_domain::time::Timestamp;
use farhand_domain::user::NewUser;
use serde::Deserialize;
use worker::Env;

use super::audit::{self, Insert};
use super::db::{self, Failure, Statement};

/// How long it may be remembered that a workspace exists, in seconds (contract 1).
const REMEMBERED: i64 = 60;

thread_local! {
    /// Workspaces that exist, with their ids, until when that may be believed. That one does not exist is never remembered.
    static KNOWN: RefCell<HashMap<String, (i64, Timestamp)>> = RefCell::default();
}

/// Notes that a workspace exists.
pub fn remember(slug: &str, id: i64, now: Timestamp) {
    KNOWN.with_borrow_mut(|known| known.insert(slug.to_owned(), (id, now.plus_seconds(REMEMBERED))));
}

/// Forgets that a workspace exists.
pub fn forget(slug: &str) {
    KNOWN.with_borrow_mut(|known| known.remove(slug));
}

fn known_id(slug: &str, now: Timestamp) -> Option<i64> {
    KNOWN.with_borrow(|known| known.get(slug).filter(|(_, until)| *until > now).map(|(id, _)| *id))
}

/// The id of a workspace, remembered or looked up; `None` where it does not exist.
pub async fn id_of(env: &Env, slug: &str, now: Timestamp) -> Result<Option<i64>, Error> {
    if let Some(id) = known_id(slug, now) {
        return Ok(Some(id));
    }
    let sql = "SELECT id FROM workspaces WHERE slug = ?1 AND deleted_at IS NULL";
    let id = db::returned_id(&db::run(env, Statement::new(sql).bind(slug)).await?)?;
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

/// The ids of a workspace that was made.
#[derive(Debug, Deserialize)]
struct MadeRow {
    workspace_id: f64,
    id: f64,
}

/// A workspace that was made.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// Its id.
    pub workspace: i64,
    /// The id of its superuser.
    pub admin: i64,
}

/// SQL for the id of a workspace, whose slug is the name of the object of an audit event, as a text.
const OBJECT_ID: &str = "CAST(w.id AS TEXT)";

/// Creates a workspace with its superuser; `None` if the slug is taken, or the Idempotency-Key.
pub async fn insert(env: &Env, new: New<'_>, now: Timestamp) -> Result<Option<Made>, Error> {
    let workspace = Statement::new("INSERT INTO workspaces (slug, name, added_at) VALUES (?1, ?2, ?3)")
        .bind(new.slug)
        .bind(new.name)
        .bind(now);
    let admin = Statement::new(
        "INSERT INTO users (workspace_id, id, username, email, password, is_staff, is_superuser, date_joined)
         SELECT id, last_user_id + 1, ?2, ?3, ?4, 1, 1, ?5 FROM workspaces WHERE slug = ?1 AND deleted_at IS NULL
         RETURNING workspace_id, id",
    )
    .bind(new.slug)
    .bind(&new.admin.username)
    .bind(&new.admin.email)
    .bind(new.password)
    .bind(now);
    let told = |workspace: &'static str, id: &'static str, event: &Event| {
        let rest = "FROM workspaces w WHERE w.slug = ?1 AND w.deleted_at IS NULL";
        let insert = Insert { object_id: Some(id), ..Insert::whole(workspace, "?2", rest) };
        Ok::<_, Error>(Statement::new(insert.sql()).bind(new.slug).bind(audit::text(event)?))
    };
    // All of it is done or nothing is, as a slug that is taken breaks a rule.
    let events = [told("0", OBJECT_ID, new.event)?, told("w.id", "w.slug", new.own_event)?];
    let statements = [workspace, admin].into_iter().chain(events).chain(new.answer.into_iter().flatten()).collect();
    match db::batch(env, statements).await {
        Ok(results) => {
            let made = results.get(1).map(db::first::<MadeRow>).transpose()?.flatten();
            Ok(made.map(|row| Made { workspace: row.workspace_id as i64, admin: row.id as i64 }))
        }
        Err(Failure::NotUnique(_)) => Ok(None),
        Err(failure) => Err(failure.into()),
    }
}

/// A page of the workspaces that are live or within their grace period, oldest first, as JSON text, and how many there are.
pub async fn list(env: &Env, region: &str, page: Page) -> Result<(String, u64), Error> {
    let sql = "SELECT
        (SELECT json_group_array(json_object('slug', slug, 'name', name, 'region', ?1, 'added_at', added_at,
            'deleted_at', deleted_at, 'purge_at', purge_at))
         FROM (SELECT * FROM workspaces WHERE is_purging = 0 ORDER BY id LIMIT ?2 + 0 OFFSET ?3)) AS body,
        (SELECT count(*) FROM workspaces WHERE is_purging = 0) AS total";
    #[derive(Deserialize)]
    struct Row {
        body: String,
        total: f64,
    }
    let result = db::run(env, Statement::new(sql).bind(region).bind(page.size).bind(page.offset())).await?;
    let row = db::first::<Row>(&result)?.ok_or_else(|| Error::internal("D1 gave no row"))?;
    Ok((row.body, row.total as u64))
}

/// Writes a change of one workspace's row, `?1` its slug, with the cell's audit event; its id, or `None` if nothing changed.
async fn change(env: &Env, update: Statement, slug: &str, event: &Event) -> Result<Option<i64>, Error> {
    // Of the workspaces that had the slug, the last one: no other can be live or within its grace period.
    let rest = "FROM workspaces w WHERE w.slug = ?1 AND changes() > 0 ORDER BY w.id DESC LIMIT 1";
    let insert = Insert { object_id: Some(OBJECT_ID), ..Insert::whole("0", "?2", rest) };
    let told = Statement::new(insert.sql()).bind(slug).bind(audit::text(event)?);
    let results = db::batch(env, vec![update, told]).await?;
    db::returned_id(results.first().ok_or_else(|| Error::internal("D1 gave no result"))?)
}

/// Marks a workspace as deleted, which refuses every credential in it immediately. If `is_now`, its purge begins, also for one
/// that is within its grace period. The caller decides that, whose clock is not this one's. Returns its id, or `None` if there is
/// none.
pub async fn mark_deleted(
    env: &Env,
    slug: &str,
    (purge_at, is_now): (Timestamp, bool),
    event: &Event,
    now: Timestamp,
) -> Result<Option<i64>, Error> {
    let sql = "UPDATE workspaces SET deleted_at = coalesce(deleted_at, ?2), purge_at = ?3, is_purging = ?4
        WHERE slug = ?1 AND is_purging = 0 AND (deleted_at IS NULL OR ?4) RETURNING id";
    change(env, Statement::new(sql).bind(slug).bind(now).bind(purge_at).bind(is_now), slug, event).await
}

/// Makes a workspace within its grace period a live one again; its id, or `None` if there is none.
pub async fn undelete(env: &Env, slug: &str, event: &Event) -> Result<Option<i64>, Error> {
    let sql = "UPDATE workspaces SET deleted_at = NULL, purge_at = NULL
        WHERE slug = ?1 AND is_purging = 0 AND deleted_at IS NOT NULL RETURNING id";
    change(env, Statement::new(sql).bind(slug), slug, event).await
}

/// Begins the purge of the workspaces whose grace period is over.
pub async fn begin_due_purges(env: &Env, now: Timestamp) -> Result<(), Error> {
    let sql = "UPDATE workspaces SET is_purging = 1 WHERE purge_at <= ?1 AND is_purging = 0";
    db::run(env, Statement::new(sql).bind(now)).await?;
    Ok(())
}

/// A workspace whose slug is taken.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Its id.
    pub id: i64,
    /// Whether it is deleted, and within its grace period.
    pub is_deleted: bool,
}

/// The workspace that has a slug, live or within its grace period.
pub async fn standing(env: &Env, slug: &str) -> Result<Option<Standing>, Error> {
    let sql = "SELECT id, deleted_at IS NOT NULL AS is_deleted FROM workspaces WHERE slug = ?1 AND is_purging = 0";
    #[derive(Deserialize)]
    struct Row {
        id: f64,
        is_deleted: f64,
    }
    let row = db::first::<Row>(&db::run(env, Statement::new(sql).bind(slug)).await?)?;
    Ok(row.map(|row| Standing { id: row.id as i64, is_deleted: row.is_deleted != 0.0 }))
}

/// A workspace that is being purged.
#[derive(Debug)]
pub struct Deleted {
    /// Its id.
    pub id: i64,
    /// The slug that it had.
    pub slug: String,
    /// Whether another workspace has that slug now.
    pub slug_is_used: bool,
}

/// The workspace to purge with the next higher id, or else with the lowest.
pub async fn next_deleted(env: &Env, after: i64) -> Result<Option<Deleted>, Error> {
    let sql = "SELECT d.id, d.slug, EXISTS (
            SELECT 1 FROM workspaces w WHERE w.slug = d.slug AND w.is_purging = 0) AS slug_is_used
        FROM workspaces d WHERE d.is_purging = 1 AND d.id = coalesce(
            (SELECT min(id) FROM workspaces WHERE is_purging = 1 AND id > ?1),
            (SELECT min(id) FROM workspaces WHERE is_purging = 1))";
    #[derive(Deserialize)]
    struct Row {
        id: f64,
        slug: String,
        slug_is_used: f64,
    }
    let result = db::run(env, Statement::new(sql).bind(after)).await?;
    let row = db::first::<Row>(&result)?;
    Ok(row.map(|row| Deleted { id: row.id as i64, slug: row.slug, slug_is_used: row.slug_is_used != 0.0 }))
}

/// How many rows go at a time, so that no statement runs long.
const PURGE_ROWS: u64 = 200;

/// The hashes of login tokens that the next [`purge_some`] removes from D1.
pub async fn token_hashes(env: &Env, workspace_id: i64) -> Result<Vec<String>, Error> {
    let sql = format!("SELECT token_hash FROM sessions WHERE workspace_id = ?1 ORDER BY rowid LIMIT {PURGE_ROWS}");
    db::column(&db::run(env, Statement::new(sql).bind(workspace_id)).await?)
}

/// Removes some of the rows of a deleted workspace, and its own when no other is left. Those of servers are gone before.
pub async fn purge_some(env: &Env, workspace_id: i64) -> Result<(), Error> {
    let tables = [
        "audit_events",
        "commands",
        "sessions",
        "api_tokens",
        "reset_requests",
        "registration_tokens",
        "idempotency_keys",
        "memberships",
        "groups",
        "users",
    ];
    let mut statements: Vec<Statement> = tables
        .iter()
        .map(|table| {
            // Sessions in the order of their hashes; of the others, sorting them would read all that there are each time.
            let order = if *table == "sessions" { "ORDER BY rowid" } else { "" };
            let rows = format!("SELECT rowid FROM {table} WHERE workspace_id = ?1 {order} LIMIT {PURGE_ROWS}");
            Statement::new(format!("DELETE FROM {table} WHERE rowid IN ({rows})")).bind(workspace_id)
        })
        .collect();
    // It has no rowid.
    let expired = format!(
        "DELETE FROM audit_expired WHERE workspace_id = ?1
         AND link IN (SELECT link FROM audit_expired WHERE workspace_id = ?1 LIMIT {PURGE_ROWS})"
    );
    statements.push(Statement::new(expired).bind(workspace_id));
    let nothing_left: String = tables
        .iter()
        .chain(&["audit_expired"])
        .map(|table| format!(" AND NOT EXISTS (SELECT 1 FROM {table} WHERE workspace_id = ?1)"))
        .collect();
    let rests = [
        "command_counts",
        "command_servers",
        "command_requesters",
        "departed_users",
        "stored_bytes",
        "anonymous_events",
        "revoked_sessions",
        "server_names",
        "server_groups",
        "registration_token_groups",
    ];
    for rest in rests {
        let sql = format!("DELETE FROM {rest} WHERE workspace_id = ?1{nothing_left}");
        statements.push(Statement::new(sql).bind(workspace_id));
    }
    let sql = format!("DELETE FROM workspaces WHERE id = ?1{nothing_left}");
    statements.push(Statement::new(sql).bind(workspace_id));
    db::batch(env, statements).await?;
    Ok(())
}
