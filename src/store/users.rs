//! The D1 table of users. If a change of a user invalidates sessions, API tokens or reset requests,
//! triggers of the table do this.

use farhand_domain::access::caller::Caller;
use farhand_domain::audit::event::{AuditEvent, MAX_IDS};
use farhand_domain::error::Error;
use farhand_domain::people::user::{Account, NewUser, Rank, UserChanges, UserFilter};
use farhand_domain::time::Timestamp;
use farhand_sql::statement::Statement;
use serde::Deserialize;

use super::audit::{self, Insert, NumberedResource};
use super::database::Database;
use super::db::{self, params};
use super::groups::is_only_owner;
use super::idempotency_keys::ReplaySource;
use super::list::{Filters, List};
use super::scope::{Query, Scope};
use super::transaction::Transaction;
use super::{Progress, sessions};

/// SQL for the user object (contract 5.1) of a row of `users u`, as JSON.
pub const OBJECT: &str = "json_object('id', u.id, 'username', u.username, 'email', u.email,
    'first_name', u.first_name, 'last_name', u.last_name,
    'is_active', json(iif(u.is_active, 'true', 'false')), 'is_staff', json(iif(u.is_staff, 'true', 'false')),
    'is_superuser', json(iif(u.is_superuser, 'true', 'false')), 'date_joined', u.date_joined, 'last_login', u.last_login)";

/// Reads the response to a creation.
pub const REPLAY: ReplaySource = ReplaySource {
    object: OBJECT,
    row: "users u ON u.workspace_id = me.workspace_id AND u.username = :resource AND u.date_joined = :now",
};

/// The users of the caller's workspace, oldest first.
pub fn list(filter: &UserFilter) -> List {
    let text = "lower(u.username) || ' ' || lower(u.email) || ' ' || u.folded_first_name || ' ' || u.folded_last_name";
    let Filters { sql, parameters } = Filters::default()
        .with("u.username = :username", "username", filter.username.as_ref())
        .with("u.is_active = :is_active", "is_active", filter.is_active)
        .with_words(text, &filter.words);
    let rows = format!("users u WHERE u.workspace_id = me.workspace_id{sql}");
    List::new("", ("users u", OBJECT), &[rows], "u.id", parameters)
}

/// The data that the checks of a login need.
#[derive(Debug, Deserialize)]
pub struct UserForLogin {
    pub workspace_id: i64,
    /// The active user with this name.
    pub user_id: Option<i64>,
    /// The PHC string of the user's password.
    pub password: Option<String>,
    /// The user's e-mail address.
    pub email: Option<String>,
    /// When the user logged in last.
    pub last_login: Option<Timestamp>,
}

/// Looks up a username for a login. Returns `None` if the workspace does not exist. An inactive
/// user is treated as absent.
pub async fn for_login(
    database: &Database,
    workspace: &str,
    username: &str,
) -> Result<Option<UserForLogin>, Error> {
    let sql = "SELECT w.id AS workspace_id, u.id AS user_id, u.password AS password, u.email AS email,
            u.last_login AS last_login
        FROM workspaces w LEFT JOIN users u ON u.workspace_id = w.id AND u.username = :username AND u.is_active = 1
        WHERE w.slug = :slug AND w.deleted_at IS NULL";
    db::first(
        &db::run(database, Statement::new(sql).bind_all(params! { slug: workspace, username }))
            .await?,
    )
}

/// Maximum number of superusers that get a mail about one act.
const MAX_NOTIFIED: u64 = 100;

/// The e-mail addresses of a workspace's active superusers.
pub async fn addresses_of_superusers(
    database: &Database,
    workspace_id: i64,
) -> Result<Vec<String>, Error> {
    let sql = "SELECT email FROM users WHERE workspace_id = :workspace_id AND is_superuser = 1 AND is_active = 1
        ORDER BY id LIMIT :limit + 0";
    let statement = Statement::new(sql).bind_all(params! { workspace_id, limit: MAX_NOTIFIED });
    db::column(&db::run(database, statement).await?)
}

/// The user that a request names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UserRef {
    /// The caller.
    Caller,
    /// The user with this id.
    Id(i64),
    /// The user with this name.
    Username(String),
}

impl UserRef {
    /// SQL for the condition that a row of `users u` is this user. The parameter is `:user`.
    fn condition(&self) -> &'static str {
        match self {
            Self::Caller => "u.workspace_id = me.workspace_id AND u.id = me.user_id",
            Self::Id(_) => "u.workspace_id = me.workspace_id AND u.id = :user",
            Self::Username(_) => "u.workspace_id = me.workspace_id AND u.username = :user",
        }
    }

    fn query(&self, sql: String) -> Query {
        Query::new(
            sql,
            match self {
                Self::Caller => params! {},
                Self::Id(id) => params! { user: *id },
                Self::Username(name) => params! { user: name },
            },
        )
    }
}

/// Reads the user object of a user.
pub fn by_ref(target: UserRef) -> Query {
    target.query(format!("(SELECT {OBJECT} FROM users u WHERE {})", target.condition()))
}

/// The data that the checks of a user change need.
#[derive(Deserialize)]
pub struct UserForChange {
    /// The user to be changed.
    pub account: Account,
    /// Whether the workspace has another active superuser.
    pub has_other: bool,
    /// Whether the user is the only owner of a group.
    pub is_only_owner: bool,
    /// The PHC string of the caller's own password.
    pub password: String,
}

/// Reads a user as [`UserForChange`].
pub fn for_change(target: &UserRef) -> Query {
    target.query(format!(
        "(SELECT json_object('account', {OBJECT},
            'has_other', json(iif(EXISTS (SELECT 1 FROM users o WHERE o.workspace_id = u.workspace_id AND o.id <> u.id
                AND o.is_superuser = 1 AND o.is_active = 1), 'true', 'false')),
            'is_only_owner', json(iif({}, 'true', 'false')),
            'password', (SELECT p.password FROM users p WHERE p.workspace_id = me.workspace_id AND p.id = me.user_id))
          FROM users u WHERE {})",
        is_only_owner("u"),
        target.condition()
    ))
}

/// The names of the fields (`username`, `email`) whose value belongs to a user other than `own_id`,
/// as a JSON array.
pub fn duplicate_fields(
    username: Option<&String>,
    email: Option<&String>,
    own_id: Option<i64>,
) -> Query {
    let sql = "(SELECT json_group_array(field) FROM (
        SELECT 'username' AS field FROM users
            WHERE workspace_id = me.workspace_id AND username = :username AND id IS NOT :own_id
        UNION ALL
        SELECT 'email' FROM users WHERE workspace_id = me.workspace_id AND email = :email AND id IS NOT :own_id))";
    Query::new(sql, params! { username, email, own_id })
}

/// Creates a user, if the caller's staff and superuser flags still equal `rank`. The reply is the
/// user.
pub fn insert(
    scope: &Scope<'_>,
    rank: Rank,
    new: &NewUser,
    rest: &UserChanges,
    password: &str,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let (first_name, last_name) = (
        rest.first_name.as_deref().unwrap_or_default(),
        rest.last_name.as_deref().unwrap_or_default(),
    );
    let insert = scope
        .statement(&format!(
            "INSERT INTO users (workspace_id, id, username, email, password, first_name, last_name, folded_first_name,
                folded_last_name, is_active, is_staff, is_superuser, date_joined)
             SELECT workspace_id, (SELECT w.last_user_id + 1 FROM workspaces w WHERE w.id = me.workspace_id),
                :username, :email, :password, :first_name, :last_name, :folded_first_name, :folded_last_name,
                :is_active, :is_staff, :is_superuser, :now
             FROM me WHERE is_staff = :caller_is_staff AND is_superuser = :caller_is_superuser
             RETURNING {} AS body",
            db::returned(OBJECT, "u")
        ))
        .bind_all(params! {
            caller_is_staff: rank.is_staff, caller_is_superuser: rank.is_superuser,
            username: &new.username, email: &new.email, password, first_name, last_name,
            folded_first_name: first_name.to_lowercase(),
            folded_last_name: last_name.to_lowercase(), is_active: rest.is_active.unwrap_or(true),
            is_staff: rest.is_staff.unwrap_or(false),
            is_superuser: rest.is_superuser.unwrap_or(false),
        });
    Ok(Transaction::default()
        .change(insert, audit::after_insert_by(scope, NumberedResource::User, event)?))
}

/// SQL for the condition that caller and user are unchanged since they were read, and that the
/// workspace keeps an active superuser. [`bind_unchanged`] binds its parameters.
const IS_UNCHANGED: &str = "users.id = :id AND users.username = :old_username AND users.email = :old_email
    AND users.is_active = :was_active AND users.is_staff = :was_staff AND users.is_superuser = :was_superuser
    AND users.workspace_id = (
        SELECT workspace_id FROM me WHERE is_staff = :caller_is_staff AND is_superuser = :caller_is_superuser)
    AND (:keeps_superuser OR EXISTS (SELECT 1 FROM users o WHERE o.workspace_id = users.workspace_id
        AND o.id <> users.id AND o.is_superuser = 1 AND o.is_active = 1))";

fn bind_unchanged(
    statement: Statement,
    rank: Rank,
    account: &Account,
    ends_superuser: bool,
) -> Statement {
    statement.bind_all(params! {
        caller_is_staff: rank.is_staff, caller_is_superuser: rank.is_superuser, id: account.id,
        old_username: &account.username, old_email: &account.email,
        was_active: account.is_active, was_staff: account.is_staff,
        was_superuser: account.is_superuser,
        keeps_superuser: !(ends_superuser && account.is_active && account.is_superuser),
    })
}

/// Changes a user, if caller and user are unchanged since they were read. The reply is the user. A
/// deactivation or a lower rank ends the user's login tokens.
///
/// `proved` is the PHC string of the caller's own password, if the caller had to enter it. The
/// audit event contains the caller and does not read `me`, because the caller may be inactive after
/// the change.
pub fn update(
    scope: &Scope<'_>,
    caller: &Caller,
    account: &Account,
    changes: &UserChanges,
    proved: Option<&str>,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let ends_superuser = changes.is_active == Some(false) || changes.is_superuser == Some(false);
    let sql = format!(
        "UPDATE users SET username = coalesce(:username, username), email = coalesce(:email, email),
            first_name = coalesce(:first_name, first_name), last_name = coalesce(:last_name, last_name),
            folded_first_name = coalesce(:folded_first_name, folded_first_name), folded_last_name = coalesce(:folded_last_name, folded_last_name),
            is_active = coalesce(:is_active, is_active), is_staff = coalesce(:is_staff, is_staff),
            is_superuser = coalesce(:is_superuser, is_superuser)
         WHERE {IS_UNCHANGED} AND (:proved IS NULL OR password = :proved)
         RETURNING {} AS body",
        db::returned(OBJECT, "u")
    );
    let update = bind_unchanged(scope.statement(&sql), caller.rank(), account, ends_superuser)
        .bind_all(params! {
            username: changes.username.as_ref(), email: changes.email.as_ref(),
            first_name: changes.first_name.as_ref(), last_name: changes.last_name.as_ref(),
            folded_first_name: changes.first_name.as_ref().map(|name| name.to_lowercase()),
            folded_last_name: changes.last_name.as_ref().map(|name| name.to_lowercase()),
            is_active: changes.is_active, is_staff: changes.is_staff,
            is_superuser: changes.is_superuser, proved,
        });
    let ends_sessions = changes.is_active == Some(false) || changes.lowers_rank(account);
    let event = update_event(caller.workspace_id, account, changes, event)?;
    let transaction = Transaction::default()
        .ending(token_hashes(scope, account.id, ends_sessions))
        .change(update, event);
    Ok(match changes.releases_servers(account) {
        true => transaction.then(release_servers(caller.workspace_id, account, scope.now)),
        false => transaction,
    })
}

/// The statement for the audit event of [`update`]. The event lists the servers that lose their
/// owner.
fn update_event(
    workspace_id: i64,
    account: &Account,
    changes: &UserChanges,
    event: &AuditEvent,
) -> Result<Statement, Error> {
    if !changes.releases_servers(account) {
        return audit::after_change(workspace_id, event);
    }
    let owned_servers = "FROM servers WHERE workspace_id = :workspace_id AND owner_id = :user_id";
    let rest = format!(
        "FROM (SELECT json_set(:event,
            '$.details.released_servers', json((SELECT json_group_array(id) FROM (
                SELECT id {owned_servers} ORDER BY id LIMIT {MAX_IDS}))),
            '$.details.released_servers_total', (SELECT count(*) {owned_servers})) AS event) e
         WHERE changes() > 0"
    );
    let insert = Insert { rest: &rest, ..Insert::from_event(":workspace_id", "e.event", "") };
    Ok(Statement::new(insert.sql())
        .bind_all(params! { workspace_id, event: audit::text(event)?, user_id: account.id }))
}

/// The statement that removes a user as the owner of servers. It must directly follow
/// [`update_event`], and changes something only if that event was written.
fn release_servers(workspace_id: i64, account: &Account, now: Timestamp) -> Statement {
    let sql = "UPDATE servers SET owner_id = NULL, updated_at = :now
        WHERE workspace_id = :workspace_id AND owner_id = :user_id AND changes() > 0";
    Statement::new(sql).bind_all(params! { workspace_id, user_id: account.id, now })
}

/// The statement that selects the hashes of a user's login tokens as `body`, if `wanted`.
fn token_hashes(scope: &Scope<'_>, user_id: i64, wanted: bool) -> Statement {
    let hashes = sessions::token_hashes("me.workspace_id", ":user_id");
    scope
        .statement(&format!("SELECT {hashes} AS body FROM me WHERE :wanted"))
        .bind_all(params! { user_id, wanted })
}

/// Deletes a user and ends the user's login tokens, if caller and user are unchanged since they
/// were read. The audit event does not read `me`: the caller may be the deleted user.
pub fn delete(
    scope: &Scope<'_>,
    caller: &Caller,
    account: &Account,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let is_only_owner = is_only_owner("users");
    // `me` is empty after the deletion if the caller is the deleted user. So this statement comes
    // first.
    let insert_deleted = scope.statement(&format!(
        "INSERT OR IGNORE INTO deleted_users (workspace_id, user_id)
         SELECT workspace_id, id FROM users WHERE {IS_UNCHANGED} AND NOT {is_only_owner}"
    ));
    let delete = scope.statement(&format!(
        "DELETE FROM users WHERE {IS_UNCHANGED} AND NOT {is_only_owner} RETURNING username AS body"
    ));
    let rank = caller.rank();
    Ok(Transaction::default()
        .ending(token_hashes(scope, account.id, true))
        .then(bind_unchanged(insert_deleted, rank, account, true))
        .change(
            bind_unchanged(delete, rank, account, true),
            audit::after_change(caller.workspace_id, event)?,
        ))
}

/// Sets a user's password. The reply is the user. All login tokens of the user end. Unless
/// `keep_scheduled`, the sessions are marked as revoked.
///
/// `stored` is the PHC string of the password that was checked. With `stored`, the user is the
/// caller, and nothing changes if another PHC string is stored by now. Without `stored`, the caller
/// must still be a superuser. The audit event does not read `me`: the caller's own session may end.
pub fn set_password(
    scope: &Scope<'_>,
    caller: &Caller,
    user_id: i64,
    stored: Option<&str>,
    new: &NewPassword<'_>,
    event: &AuditEvent,
) -> Result<Transaction, Error> {
    let sql = format!(
        "UPDATE users SET password = :hash, password_changed_at = :now
         WHERE id = :user_id AND (:stored IS NULL OR password = :stored)
         AND workspace_id = (SELECT workspace_id FROM me WHERE (:stored IS NULL AND is_superuser) OR user_id = :user_id)
         RETURNING {} AS body",
        db::returned(OBJECT, "u")
    );
    let update = scope.statement(&sql).bind_all(params! { user_id, hash: new.hash, stored });
    let mut transaction = Transaction::default().ending(token_hashes(scope, user_id, true));
    if !new.keep_scheduled {
        let users = "SELECT id, workspace_id FROM users WHERE id = :user_id AND (:stored IS NULL OR password = :stored)
            AND workspace_id = (SELECT workspace_id FROM me WHERE (:stored IS NULL AND is_superuser) OR user_id = :user_id)";
        let revoke = scope.statement(&sessions::revoke_all(users, ":now", ":dead_until"));
        transaction = transaction.then(revoke.bind_all(params! { user_id, stored }));
    }
    Ok(transaction.change(update, audit::after_change(caller.workspace_id, event)?))
}

/// A password to be set.
#[derive(Clone, Copy, Debug)]
pub struct NewPassword<'a> {
    /// The PHC string.
    pub hash: &'a str,
    /// Whether the waiting commands that the user's sessions created are kept.
    pub keep_scheduled: bool,
}

/// Removes one deleted user, of any workspace, from up to `limit` commands that the user requested.
/// If no such command is left, deletes the user's row in `deleted_users`.
pub async fn detach_deleted_user(database: &Database, limit: u64) -> Result<Progress, Error> {
    #[derive(Deserialize)]
    struct DeletedUser {
        workspace_id: i64,
        user_id: i64,
    }
    let next = Statement::new("SELECT workspace_id, user_id FROM deleted_users LIMIT 1");
    let Some(user) = db::first::<DeletedUser>(&db::run(database, next).await?)? else {
        return Ok(Progress::Done);
    };
    let statement = |sql: &str| {
        Statement::new(sql).bind_all(params! {
            workspace_id: user.workspace_id, user_id: user.user_id,
        })
    };
    let detach = statement(
        "UPDATE commands SET requested_by = NULL WHERE seq IN (
            SELECT seq FROM commands WHERE workspace_id = :workspace_id AND requested_by = :user_id LIMIT :limit + 0)",
    );
    // No list reads the counter of a deleted user.
    let delete_counter = "DELETE FROM command_counts WHERE workspace_id = :workspace_id AND kind = 'requester' AND key = :key";
    let delete_counter = Statement::new(delete_counter)
        .bind_all(params! { workspace_id: user.workspace_id, key: user.user_id.to_string() });
    let finish = statement(
        "DELETE FROM deleted_users WHERE workspace_id = :workspace_id AND user_id = :user_id
         AND NOT EXISTS (SELECT 1 FROM commands WHERE workspace_id = :workspace_id AND requested_by = :user_id)",
    );
    db::batch(database, vec![detach.bind("limit", limit), delete_counter, finish]).await?;
    Ok(Progress::More)
}
