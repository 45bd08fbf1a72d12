//! The table of users. What a change of a user ends (sessions, tokens, resets) is ended by the
//! table's triggers.

use farhand_domain::audit::{Event, MAX_IDS};
use farhand_domain::caller::Caller;
use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use farhand_domain::user::{Account, Changes, Filter, NewUser, Rank};
use farhand_sql::statement::Statement;
use serde::Deserialize;
use worker::Env;

use super::audit::{self, Insert, Numbered};
use super::batch::Batch;
use super::db::{self, params};
use super::groups::is_only_owner;
use super::idempotency_keys::ReplaySource;
use super::list::{Filters, List};
use super::scope::{Query, Scope};
use super::sessions;

/// SQL for the user object (contract 5.1) of a row of `users u`, as JSON.
pub const OBJECT: &str = "json_object('id', u.id, 'username', u.username, 'email', u.email,
    'first_name', u.first_name, 'last_name', u.last_name,
    'is_active', json(iif(u.is_active, 'true', 'false')), 'is_staff', json(iif(u.is_staff, 'true', 'false')),
    'is_superuser', json(iif(u.is_superuser, 'true', 'false')), 'date_joined', u.date_joined, 'last_login', u.last_login)";

/// Where the answer to a creation is read.
pub const REPLAY: ReplaySource = ReplaySource {
    object: OBJECT,
    row: "users u ON u.workspace_id = me.workspace_id AND u.username = :resource AND u.date_joined = :now",
};

/// The caller's workspace's users, oldest first.
pub fn list(filter: &Filter) -> List {
    let text = "lower(u.username) || ' ' || lower(u.email) || ' ' || u.folded_first_name || ' ' || u.folded_last_name";
    let Filters { sql, parameters } = Filters::default()
        .with("u.username = :username", "username", filter.username.as_ref())
        .with("u.is_active = :is_active", "is_active", filter.is_active)
        .with_words(text, &filter.words);
    let way = format!("users u WHERE u.workspace_id = me.workspace_id{sql}");
    List::new("", ("users u", OBJECT), &[way], "u.id", parameters)
}

/// What a login needs to know.
#[derive(Debug, Deserialize)]
pub struct ForLogin {
    /// The workspace.
    pub workspace_id: i64,
    /// The id of the user of that name who may log in.
    pub user_id: Option<i64>,
    /// The PHC string of the user's password.
    pub password: Option<String>,
}

/// Looks a name up for a login; `None` if there is no such workspace. An inactive user is treated
/// as absent.
pub async fn for_login(
    env: &Env,
    workspace: &str,
    username: &str,
) -> Result<Option<ForLogin>, Error> {
    let sql = "SELECT w.id AS workspace_id, u.id AS user_id, u.password AS password
        FROM workspaces w LEFT JOIN users u ON u.workspace_id = w.id AND u.username = :username AND u.is_active = 1
        WHERE w.slug = :slug AND w.deleted_at IS NULL";
    db::first(
        &db::run(env, Statement::new(sql).bind_all(params! { slug: workspace, username })).await?,
    )
}

/// The user that a request is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// The caller.
    Caller,
    /// By id.
    Id(i64),
    /// By name.
    Username(String),
}

impl Target {
    /// The condition that a row of `users u` is this user, who is `:user`.
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

/// The user object.
pub fn one(target: Target) -> Query {
    target.query(format!("(SELECT {OBJECT} FROM users u WHERE {})", target.condition()))
}

/// A user as somebody who wants to change them sees them.
#[derive(Deserialize)]
pub struct Found {
    /// The user.
    pub account: Account,
    /// Whether the workspace has another active superuser.
    pub has_other: bool,
    /// Whether a group has no other owner.
    pub is_only_owner: bool,
    /// The PHC string of the caller's own password.
    pub password: String,
}

/// A user as [`Found`].
pub fn find(target: &Target) -> Query {
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

/// Which of a name and an address another user than `own_id` has already, as an array of columns.
pub fn taken(username: Option<&String>, email: Option<&String>, own_id: Option<i64>) -> Query {
    let sql = "(SELECT json_group_array(field) FROM (
        SELECT 'username' AS field FROM users
            WHERE workspace_id = me.workspace_id AND username = :username AND id IS NOT :own_id
        UNION ALL
        SELECT 'email' FROM users WHERE workspace_id = me.workspace_id AND email = :email AND id IS NOT :own_id))";
    Query::new(sql, params! { username, email, own_id })
}

/// Creates a user, if the caller's rank is still the given one. The reply is the user.
pub fn insert(
    scope: &Scope<'_>,
    rank: Rank,
    new: &NewUser,
    rest: &Changes,
    password: &str,
    event: &Event,
) -> Result<Batch, Error> {
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
    Ok(Batch::default().change(insert, audit::after_insert_by(scope, Numbered::User, event)?))
}

/// The condition that caller and user are still as a decision found them. [`bind_unchanged`] has
/// its parameters.
const UNCHANGED: &str = "users.id = :id AND users.username = :old_username AND users.email = :old_email
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

/// Changes a user, if caller and user are still what was decided on. The reply is the user. A
/// deactivation or a lower rank ends login tokens. `proved` is the PHC string of the caller's own
/// password, if the caller had to give it. The event is signed by the caller, who may be inactive
/// afterwards.
pub fn update(
    scope: &Scope<'_>,
    caller: &Caller,
    account: &Account,
    changes: &Changes,
    proved: Option<&str>,
    event: &Event,
) -> Result<Batch, Error> {
    let ends_superuser = changes.is_active == Some(false) || changes.is_superuser == Some(false);
    let sql = format!(
        "UPDATE users SET username = coalesce(:username, username), email = coalesce(:email, email),
            first_name = coalesce(:first_name, first_name), last_name = coalesce(:last_name, last_name),
            folded_first_name = coalesce(:folded_first_name, folded_first_name), folded_last_name = coalesce(:folded_last_name, folded_last_name),
            is_active = coalesce(:is_active, is_active), is_staff = coalesce(:is_staff, is_staff),
            is_superuser = coalesce(:is_superuser, is_superuser)
         WHERE {UNCHANGED} AND (:proved IS NULL OR password = :proved)
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
    let ends_sessions = changes.is_active == Some(false) || changes.lower_rank(account);
    let event = update_event(caller.workspace_id, account, changes, event)?;
    let batch = Batch::default()
        .ending(token_hashes(scope, account.id, ends_sessions))
        .change(update, event);
    Ok(match changes.release_servers(account) {
        true => batch.then(release_servers(caller.workspace_id, account, scope.now)),
        false => batch,
    })
}

/// The statement for the audit event of [`update`]. It lists the servers that lose their owner.
fn update_event(
    workspace_id: i64,
    account: &Account,
    changes: &Changes,
    event: &Event,
) -> Result<Statement, Error> {
    if !changes.release_servers(account) {
        return audit::after_change(workspace_id, event);
    }
    let owned = "FROM servers WHERE workspace_id = :workspace_id AND owner_id = :user_id";
    let rest = format!(
        "FROM (SELECT json_set(:event,
            '$.details.released_servers', json((SELECT json_group_array(id) FROM (
                SELECT id {owned} ORDER BY id LIMIT {MAX_IDS}))),
            '$.details.released_servers_total', (SELECT count(*) {owned})) AS event) e
         WHERE changes() > 0"
    );
    let insert = Insert { rest: &rest, ..Insert::whole(":workspace_id", "e.event", "") };
    Ok(Statement::new(insert.sql())
        .bind_all(params! { workspace_id, event: audit::text(event)?, user_id: account.id }))
}

/// The statement that takes a user's servers from them, directly behind their [`update_event`], if
/// that was written.
fn release_servers(workspace_id: i64, account: &Account, now: Timestamp) -> Statement {
    let sql = "UPDATE servers SET owner_id = NULL, updated_at = :now
        WHERE workspace_id = :workspace_id AND owner_id = :user_id AND changes() > 0";
    Statement::new(sql).bind_all(params! { workspace_id, user_id: account.id, now })
}

/// The statement whose `body` is the hashes of a user's login tokens, if they are wanted.
fn token_hashes(scope: &Scope<'_>, user_id: i64, wanted: bool) -> Statement {
    let hashes = sessions::token_hashes("me.workspace_id", ":user_id");
    scope
        .statement(&format!("SELECT {hashes} AS body FROM me WHERE :wanted"))
        .bind_all(params! { user_id, wanted })
}

/// Deletes a user and ends their login tokens, if caller and user are still what was decided on.
/// The event is signed by the caller, who may be the deleted user.
pub fn delete(
    scope: &Scope<'_>,
    caller: &Caller,
    account: &Account,
    event: &Event,
) -> Result<Batch, Error> {
    let is_only_owner = is_only_owner("users");
    // A caller who deletes themself is nobody after the last of these.
    let depart = scope.statement(&format!(
        "INSERT OR IGNORE INTO departed_users (workspace_id, user_id)
         SELECT workspace_id, id FROM users WHERE {UNCHANGED} AND NOT {is_only_owner}"
    ));
    let delete = scope.statement(&format!(
        "DELETE FROM users WHERE {UNCHANGED} AND NOT {is_only_owner} RETURNING username AS body"
    ));
    let rank = caller.rank();
    Ok(Batch::default()
        .ending(token_hashes(scope, account.id, true))
        .then(bind_unchanged(depart, rank, account, true))
        .change(
            bind_unchanged(delete, rank, account, true),
            audit::after_change(caller.workspace_id, event)?,
        ))
}

/// Sets a password in place of `stored`, the PHC string of the one that was checked, or of any. The
/// reply is the user. All login tokens end. Unless the scheduled commands are kept, the sessions
/// count as revoked. The event is signed by the caller, whose session may be one of those.
///
/// With `stored`, the user is the caller; without, the caller must still be a superuser.
pub fn set_password(
    scope: &Scope<'_>,
    caller: &Caller,
    user_id: i64,
    stored: Option<&str>,
    new: &NewPassword<'_>,
    event: &Event,
) -> Result<Batch, Error> {
    let sql = format!(
        "UPDATE users SET password = :hash, password_changed_at = :now
         WHERE id = :user_id AND (:stored IS NULL OR password = :stored)
         AND workspace_id = (SELECT workspace_id FROM me WHERE (:stored IS NULL AND is_superuser) OR user_id = :user_id)
         RETURNING {} AS body",
        db::returned(OBJECT, "u")
    );
    let update = scope.statement(&sql).bind_all(params! { user_id, hash: new.hash, stored });
    let mut batch = Batch::default().ending(token_hashes(scope, user_id, true));
    if !new.keep_scheduled {
        let users = "SELECT id, workspace_id FROM users WHERE id = :user_id AND (:stored IS NULL OR password = :stored)
            AND workspace_id = (SELECT workspace_id FROM me WHERE (:stored IS NULL AND is_superuser) OR user_id = :user_id)";
        let revoke = scope.statement(&sessions::revoke_all(users, ":now", ":dead_until"));
        batch = batch.then(revoke.bind_all(params! { user_id, stored }));
    }
    Ok(batch.change(update, audit::after_change(caller.workspace_id, event)?))
}

/// A password to be set.
#[derive(Clone, Copy, Debug)]
pub struct NewPassword<'a> {
    /// Its PHC string.
    pub hash: &'a str,
    /// Whether the waiting commands of the user's sessions stay.
    pub keep_scheduled: bool,
}

/// Takes a deleted user off some of their commands, in any workspace; when none is left, off the
/// list of those to be done. False: there is no such user.
pub async fn depart_some(env: &Env, most: u64) -> Result<bool, Error> {
    #[derive(Deserialize)]
    struct Row {
        workspace_id: i64,
        user_id: i64,
    }
    let next = Statement::new("SELECT workspace_id, user_id FROM departed_users LIMIT 1");
    let Some(row) = db::first::<Row>(&db::run(env, next).await?)? else { return Ok(false) };
    let bound = |sql: &str| {
        Statement::new(sql).bind_all(params! {
            workspace_id: row.workspace_id, user_id: row.user_id,
        })
    };
    let commands = bound(
        "UPDATE commands SET requested_by = NULL WHERE seq IN (
            SELECT seq FROM commands WHERE workspace_id = :workspace_id AND requested_by = :user_id LIMIT :most + 0)",
    );
    // No list asks for the counter of a user who is gone.
    let count = "DELETE FROM command_counts WHERE workspace_id = :workspace_id AND kind = 'requester' AND key = :key";
    let count = Statement::new(count)
        .bind_all(params! { workspace_id: row.workspace_id, key: row.user_id.to_string() });
    let done = bound(
        "DELETE FROM departed_users WHERE workspace_id = :workspace_id AND user_id = :user_id
         AND NOT EXISTS (SELECT 1 FROM commands WHERE workspace_id = :workspace_id AND requested_by = :user_id)",
    );
    db::batch(env, vec![commands.bind("most", most), count, done]).await?;
    Ok(true)
}
