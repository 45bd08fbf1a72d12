//! The D1 table of password reset requests.

use farhand_domain::audit::event::AuditEvent;
use farhand_domain::error::Error;
use farhand_domain::people::session;
use farhand_domain::people::user::Account;
use farhand_domain::time::Timestamp;
use farhand_sql::statement::Statement;
use serde::Deserialize;
use uuid::Uuid;

use super::anonymous_events;
use super::audit::{self, Insert};
use super::database::Database;
use super::db::{self, params};
use super::users::NewPassword;
use super::{sessions, users};

/// The maximum number of requests of one address that have not expired (contract 4.10).
const MAX_PENDING: u64 = 5;
/// The seconds after which a request expires: 24 hours (contract 4.10).
const LIFETIME_SECONDS: i64 = 24 * 3600;
/// The maximum number of expired requests that each new request deletes. It is more than one, so
/// that expired requests do not accumulate.
const PURGED_PER_REQUEST: u64 = 20;

/// The outcome of [`insert`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResetOutcome {
    /// The workspace does not exist.
    NoWorkspace,
    /// The address has the maximum number of pending requests.
    TooMany,
    /// The request is stored, whether or not a user has the address. The field is the workspace id.
    Stored(i64),
}

/// A request to be stored.
#[derive(Debug)]
pub struct NewResetRequest<'a> {
    pub id: Uuid,
    /// The email address.
    pub address: &'a str,
    /// The keyed hash of the address.
    pub address_hash: &'a str,
    /// The audit event. Its object is the user with the address, if there is one.
    pub event: &'a AuditEvent,
}

/// Stores a request for an address, unless too many are pending. The work is the same whether or
/// not a user has the address, so that its duration reveals nothing.
pub async fn insert(
    database: &Database,
    workspace: &str,
    new: NewResetRequest<'_>,
    now: Timestamp,
) -> Result<ResetOutcome, Error> {
    let NewResetRequest { id, address, address_hash, event } = new;
    let exists =
        Statement::new("SELECT id FROM workspaces WHERE slug = :slug AND deleted_at IS NULL")
            .bind("slug", workspace);
    let purge = Statement::new(
        "DELETE FROM reset_requests WHERE id IN (SELECT r.id FROM workspaces w
            JOIN reset_requests r ON r.workspace_id = w.id AND r.expires_at <= :now
            WHERE w.slug = :slug AND w.deleted_at IS NULL LIMIT :limit + 0)",
    );
    let purge = purge.bind_all(params! { slug: workspace, now, limit: PURGED_PER_REQUEST });
    let insert = Statement::new(
        "INSERT INTO reset_requests (id, workspace_id, address_hash, user_id, requested_at, expires_at)
         SELECT :id, w.id, :address_hash, (SELECT u.id FROM users u WHERE u.workspace_id = w.id AND u.email = :address AND u.is_active = 1),
            :now, :expires_at
         FROM workspaces w WHERE w.slug = :slug AND w.deleted_at IS NULL AND :max_pending > (
            SELECT count(*) FROM reset_requests r
            WHERE r.workspace_id = w.id AND r.address_hash = :address_hash AND r.expires_at > :now)
         RETURNING id",
    )
    .bind_all(params! {
        slug: workspace, id, address_hash, address, now,
        expires_at: now.plus_seconds(LIFETIME_SECONDS), max_pending: MAX_PENDING,
    });
    let events = anonymous_events::after_reset_request(id, event, now)?;
    let statements = [exists, purge, insert].into_iter().chain(events).collect::<Vec<_>>();
    let results = db::batch(database, statements).await?;
    let [exists, _, inserted, ..] = results.as_slice() else {
        return Err(Error::internal("D1 returned no result"));
    };
    let Some(workspace_id) = db::first_value(exists)? else { return Ok(ResetOutcome::NoWorkspace) };
    let is_stored = db::first_value::<String>(inserted)?.is_some();
    Ok(if is_stored { ResetOutcome::Stored(workspace_id) } else { ResetOutcome::TooMany })
}

/// SQL that selects the request `:id` as `r`, if it can still set a password at `:now`, with its
/// user as `u` and its workspace as `w`.
const OPEN_REQUEST: &str = "FROM reset_requests r
    JOIN workspaces w ON w.id = r.workspace_id AND w.deleted_at IS NULL
    JOIN users u ON u.id = r.user_id AND u.workspace_id = r.workspace_id AND u.is_active = 1
    WHERE r.id = :id AND r.expires_at > :now";

/// Finds the user whose password a request can set. Returns `None` if the request is not open.
pub async fn find(
    database: &Database,
    workspace: &str,
    id: Uuid,
    now: Timestamp,
) -> Result<Option<Account>, Error> {
    let sql = format!("SELECT {} AS body {OPEN_REQUEST} AND w.slug = :slug", users::OBJECT);
    let result =
        db::run(database, Statement::new(sql).bind_all(params! { id, now, slug: workspace }))
            .await?;
    Ok(db::first_value::<String>(&result)?.map(|body| serde_json::from_str(&body)).transpose()?)
}

/// The recipient and the content of the mail for a request.
#[derive(Debug, Deserialize)]
pub struct Recipient {
    /// The slug of the workspace.
    pub workspace: String,
    /// The display name of the workspace.
    pub workspace_name: String,
    pub username: String,
    /// The address that the mail is sent to.
    pub email: String,
    pub requested_at: Timestamp,
    /// When the link expires.
    pub expires_at: Timestamp,
}

/// Looks up the recipient of the mail for a request. Returns `None` if the address is unknown, or
/// if the request was used, invalidated or has expired.
pub async fn recipient(
    database: &Database,
    id: Uuid,
    now: Timestamp,
) -> Result<Option<Recipient>, Error> {
    let sql = format!(
        "SELECT w.slug AS workspace, w.name AS workspace_name, u.username AS username, u.email AS email,
            r.requested_at AS requested_at, r.expires_at AS expires_at {OPEN_REQUEST}"
    );
    db::first(&db::run(database, Statement::new(sql).bind_all(params! { id, now })).await?)
}

/// Sets the password of a request's user, and writes the audit event. Triggers end the user's
/// sessions and invalidate the user's requests, so of two concurrent uses of a request only one
/// succeeds. Returns the workspace's id and the hashes of the revoked login tokens. Returns `None`
/// if the request is not open.
pub async fn consume(
    database: &Database,
    workspace: &str,
    id: Uuid,
    new: &NewPassword<'_>,
    event: &AuditEvent,
    now: Timestamp,
) -> Result<Option<(i64, Vec<String>)>, Error> {
    let hashes = sessions::token_hashes("u.workspace_id", "u.id");
    let hashes =
        Statement::new(format!("SELECT {hashes} AS body {OPEN_REQUEST} AND w.slug = :slug"));
    let update = Statement::new(format!(
        "UPDATE users SET password = :hash, password_changed_at = :now
         WHERE (workspace_id, id) = (SELECT u.workspace_id, u.id {OPEN_REQUEST} AND w.slug = :slug) RETURNING workspace_id"
    ));
    let (hashes, update) = (
        hashes.bind_all(params! { id, now, slug: workspace }),
        update.bind_all(params! { id, now, slug: workspace }),
    );
    // The update's trigger has invalidated the request, so this query takes the user's id from the
    // event.
    let rest = "FROM workspaces w JOIN users u ON u.workspace_id = w.id AND u.id = :event ->> '$.object.id'
        WHERE w.slug = :slug AND w.deleted_at IS NULL AND changes() > 0";
    let insert_event = Insert::from_event("u.workspace_id", ":event", rest);
    let insert_event = Statement::new(insert_event.sql()).bind_all(params! {
        event: audit::text(event)?, slug: workspace,
    });
    let mut statements = vec![hashes, update.bind("hash", new.hash), insert_event];
    if !new.keep_scheduled {
        let users = format!("SELECT u.id, u.workspace_id {OPEN_REQUEST} AND w.slug = :slug");
        let revoke = Statement::new(sessions::revoke_all(&users, ":now", ":dead_until"));
        let revoke = revoke.bind_all(params! {
            id, now, slug: workspace, dead_until: session::oldest_accepted_expiry(now),
        });
        statements.insert(0, revoke);
    }
    let results = db::batch(database, statements).await?;
    let [.., hashes, updated, _] = results.as_slice() else {
        return Err(Error::internal("D1 returned no result"));
    };
    let Some(workspace_id) = db::first_value(updated)? else { return Ok(None) };
    let hashes = sessions::read_token_hashes(db::first_value(hashes)?)?;
    Ok(Some((workspace_id, hashes)))
}
