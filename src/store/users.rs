//! The table of users. What a change of a user ends (sessions, tokens, resets) is ended by the table's triggers.

use farhand_domain::audit::{Event, MAX_IDS};
use farhand_domain::caller::Caller;
use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use farhand_domain::user::{Account, Changes, Filter, NewUser, Rank};
use serde::Deserialize;
use serde_json::json;
use worker::Env;

use super::audit::{self, Insert, Numbered};
use super::batch::Batch;
use super::db::{self, Parameter, Selection, Statement};
use super::groups::is_only_owner;
use super::idempotency_keys::ReplaySource;
use super::scope::Scope;
use super::sessions;

/// SQL for the user object (contract 5) of a row of `users u`, as JSON.
pub const OBJECT: &str = "json_object('id', u.id, 'username', u.username, 'email', u.email,
    'first_name', u.first_name, 'last_name', u.last_name,
    'is_active', json(iif(u.is_active, 'true', 'false')), 'is_staff', json(iif(u.is_staff, 'true', 'false')),
    'is_superuser', json(iif(u.is_superuser, 'true', 'false')), 'date_joined', u.date_joined, 'last_login', u.last_login)";

/// Where the answer to a creation is read.
pub const REPLAY: ReplaySource = ReplaySource {
    object: OBJECT,
    row: "users u ON u.workspace_id = me.workspace_id AND u.username = ?7 AND u.date_joined = ?3",
};

/// The caller's workspace's users, oldest first.
pub fn list(filter: Filter) -> Selection {
    let way = "users u WHERE u.workspace_id = me.workspace_id AND (?7 IS NULL OR u.username = ?7)
        AND (?8 IS NULL OR u.is_active = ?8)
        AND NOT EXISTS (SELECT 1 FROM json_each(?9) w
            WHERE instr(lower(u.username) || ' ' || lower(u.email) || ' ' || u.folded_first_name || ' '
                || u.folded_last_name, w.value) = 0)";
    let parameters = vec![filter.username.into(), filter.is_active.into(), json!(filter.words).to_string().into()];
    Selection::of("", ("users u", OBJECT), &[way.to_owned()], "u.id", parameters)
}

/// What a login needs to know.
#[derive(Debug)]
pub struct ForLogin {
    /// The workspace.
    pub workspace_id: i64,
    /// The user of that name who may log in: the id, and the PHC string of the password.
    pub user: Option<(i64, String)>,
}

/// Looks a name up for a login; `None` where there is no such workspace. An inactive user is as good as none.
pub async fn for_login(env: &Env, workspace: &str, username: &str) -> Result<Option<ForLogin>, Error> {
    let sql = "SELECT w.id AS workspace_id, u.id AS id, u.password AS password
        FROM workspaces w LEFT JOIN users u ON u.workspace_id = w.id AND u.username = ?2 AND u.is_active = 1
        WHERE w.slug = ?1 AND w.deleted_at IS NULL";
    #[derive(Deserialize)]
    struct Row {
        workspace_id: f64,
        id: Option<f64>,
        password: Option<String>,
    }
    let result = db::run(env, Statement::new(sql).bind(workspace).bind(username)).await?;
    let found = |row: Row| ForLogin {
        workspace_id: row.workspace_id as i64,
        user: row.id.map(|id| id as i64).zip(row.password),
    };
    Ok(db::first::<Row>(&result)?.map(found))
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
    /// SQL for the condition that a row of `users u` is it, and its parameter `?5`.
    fn condition(&self) -> (&'static str, Parameter) {
        match self {
            Self::Caller => {
                ("u.workspace_id = me.workspace_id AND u.id = me.user_id AND ?5 IS NULL", None::<i64>.into())
            }
            Self::Id(id) => ("u.workspace_id = me.workspace_id AND u.id = ?5", (*id).into()),
            Self::Username(name) => ("u.workspace_id = me.workspace_id AND u.username = ?5", name.into()),
        }
    }
}

/// SQL for a user as JSON, and its parameter.
pub fn one(target: &Target) -> (String, Parameter) {
    let (condition, parameter) = target.condition();
    (format!("(SELECT {OBJECT} FROM users u WHERE {condition})"), parameter)
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

/// SQL for [`Found`] as JSON, and its parameter.
pub fn find(target: &Target) -> (String, Parameter) {
    let (condition, parameter) = target.condition();
    let sql = format!(
        "(SELECT json_object('account', {OBJECT},
            'has_other', json(iif(EXISTS (SELECT 1 FROM users o WHERE o.workspace_id = u.workspace_id AND o.id <> u.id
                AND o.is_superuser = 1 AND o.is_active = 1), 'true', 'false')),
            'is_only_owner', json(iif({}, 'true', 'false')),
            'password', (SELECT p.password FROM users p WHERE p.workspace_id = me.workspace_id AND p.id = me.user_id))
          FROM users u WHERE {condition})",
        is_only_owner("u")
    );
    (sql, parameter)
}

/// SQL for which of a name `?5` and an address `?6` somebody has already, but for the user `?7`, as an array of columns.
pub const TAKEN: &str = "(SELECT json_group_array(field) FROM (
    SELECT 'username' AS field FROM users WHERE workspace_id = me.workspace_id AND username = ?5 AND id IS NOT ?7
    UNION ALL
    SELECT 'email' FROM users WHERE workspace_id = me.workspace_id AND email = ?6 AND id IS NOT ?7))";

/// Creates a user, if the caller's rank is still the given one. The reply is the user.
pub fn insert(
    scope: &Scope<'_>,
    rank: Rank,
    new: &NewUser,
    rest: &Changes,
    password: &str,
    event: &Event,
) -> Result<Batch, Error> {
    let (first_name, last_name) =
        (rest.first_name.as_deref().unwrap_or_default(), rest.last_name.as_deref().unwrap_or_default());
    let insert = scope
        .statement(&format!(
            "INSERT INTO users (workspace_id, id, username, email, password, first_name, last_name, folded_first_name,
                folded_last_name, is_active, is_staff, is_superuser, date_joined)
             SELECT workspace_id, (SELECT w.last_user_id + 1 FROM workspaces w WHERE w.id = me.workspace_id), ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17 FROM me
             WHERE is_staff = ?5 AND is_superuser = ?6
             RETURNING {} AS body",
            db::returned(OBJECT, "u")
        ))
        .bind(rank.is_staff)
        .bind(rank.is_superuser)
        .bind(&new.username)
        .bind(&new.email)
        .bind(password)
        .bind(first_name)
        .bind(last_name)
        .bind(first_name.to_lowercase())
        .bind(last_name.to_lowercase())
        .bind(rest.is_active.unwrap_or(true))
        .bind(rest.is_staff.unwrap_or(false))
        .bind(rest.is_superuser.unwrap_or(false))
        .bind(scope.now);
    Ok(Batch::default().change(insert, audit::after_insert_by(scope, Numbered::User, event)?))
}

/// SQL for the condition that caller and user are still what a decision on them was made of: `?5` and `?6` the caller's
/// rank, `?7` the user's id, `?8` to `?12` name, address, activity and rank, `?13` whether no superuser goes.
const UNCHANGED: &str = "users.id = ?7 AND users.username = ?8 AND users.email = ?9 AND users.is_active = ?10
    AND users.is_staff = ?11 AND users.is_superuser = ?12
    AND users.workspace_id = (SELECT workspace_id FROM me WHERE is_staff = ?5 AND is_superuser = ?6)
    AND (?13 OR EXISTS (SELECT 1 FROM users o WHERE o.workspace_id = users.workspace_id AND o.id <> users.id
        AND o.is_superuser = 1 AND o.is_active = 1))";

fn bind_unchanged(statement: Statement, rank: Rank, account: &Account, ends_superuser: bool) -> Statement {
    statement
        .bind(rank.is_staff)
        .bind(rank.is_superuser)
        .bind(account.id)
        .bind(&account.username)
        .bind(&account.email)
        .bind(account.is_active)
        .bind(account.is_staff)
        .bind(account.is_superuser)
        .bind(!(ends_superuser && account.is_active && account.is_superuser))
}

/// Changes a user, if caller and user are still what was decided on. The reply is the user. A deactivation or a lower rank ends
/// login tokens. `proved` is the PHC string of the caller's own password, if the caller had to give it. The event is signed by
/// the caller, who may be inactive afterwards.
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
        "UPDATE users SET username = coalesce(?14, username), email = coalesce(?15, email),
            first_name = coalesce(?16, first_name), last_name = coalesce(?17, last_name),
            folded_first_name = coalesce(?18, folded_first_name), folded_last_name = coalesce(?19, folded_last_name),
            is_active = coalesce(?20, is_active), is_staff = coalesce(?21, is_staff),
            is_superuser = coalesce(?22, is_superuser)
         WHERE {UNCHANGED} AND (?23 IS NULL OR password = ?23)
         RETURNING {} AS body",
        db::returned(OBJECT, "u")
    );
    let update = bind_unchanged(scope.statement(&sql), caller.rank(), account, ends_superuser)
        .bind(changes.username.as_ref())
        .bind(changes.email.as_ref())
        .bind(changes.first_name.as_ref())
        .bind(changes.last_name.as_ref())
        .bind(changes.first_name.as_ref().map(|name| name.to_lowercase()))
        .bind(changes.last_name.as_ref().map(|name| name.to_lowercase()))
        .bind(changes.is_active)
        .bind(changes.is_staff)
        .bind(changes.is_superuser)
        .bind(proved);
    let ends_sessions = changes.is_active == Some(false) || changes.lower_rank(account);
    let event = update_event(caller.workspace_id, account, changes, event)?;
    let batch = Batch::default().ending(token_hashes(scope, account.id, ends_sessions)).change(update, event);
    Ok(match changes.release_servers(account) {
        true => batch.then(release_servers(caller.workspace_id, account, scope.now)),
        false => batch,
    })
}

/// The statement for the audit event of [`update`]. It lists the servers that lose their owner.
fn update_event(workspace_id: i64, account: &Account, changes: &Changes, event: &Event) -> Result<Statement, Error> {
    if !changes.release_servers(account) {
        return audit::after_change(workspace_id, event);
    }
    let owned = "FROM servers WHERE workspace_id = ?1 AND owner_id = ?3";
    let rest = format!(
        "FROM (SELECT json_set(?2,
            '$.details.released_servers', json((SELECT json_group_array(id) FROM (
                SELECT id {owned} ORDER BY id LIMIT {MAX_IDS}))),
            '$.details.released_servers_total', (SELECT count(*) {owned})) AS event) e
         WHERE changes() > 0"
    );
    let insert = Insert { rest: &rest, ..Insert::whole("?1", "e.event", "") };
    Ok(Statement::new(insert.sql()).bind(workspace_id).bind(audit::text(event)?).bind(account.id))
}

/// The statement that takes a user's servers from them, directly behind their [`update_event`], if that was written.
fn release_servers(workspace_id: i64, account: &Account, now: Timestamp) -> Statement {
    let sql = "UPDATE servers SET owner_id = NULL, updated_at = ?3
        WHERE workspace_id = ?1 AND owner_id = ?2 AND changes() > 0";
    Statement::new(sql).bind(workspace_id).bind(account.id).bind(now)
}

/// The statement whose `body` is the hashes of a user's login tokens, if they are wanted.
fn token_hashes(scope: &Scope<'_>, user_id: i64, wanted: bool) -> Statement {
    let hashes = sessions::token_hashes("me.workspace_id", "?5");
    scope.statement(&format!("SELECT {hashes} AS body FROM me WHERE ?6")).bind(user_id).bind(wanted)
}

/// Deletes a user and ends their login tokens, if caller and user are still what was decided on. The event is signed by the
/// caller, who may be the deleted user.
pub fn delete(scope: &Scope<'_>, caller: &Caller, account: &Account, event: &Event) -> Result<Batch, Error> {
    let is_only_owner = is_only_owner("users");
    // A caller who deletes themself is nobody after the last of these.
    let depart = scope.statement(&format!(
        "INSERT OR IGNORE INTO departed_users (workspace_id, user_id)
         SELECT workspace_id, id FROM users WHERE {UNCHANGED} AND NOT {is_only_owner}"
    ));
    let delete = scope
        .statement(&format!("DELETE FROM users WHERE {UNCHANGED} AND NOT {is_only_owner} RETURNING username AS body"));
    let rank = caller.rank();
    Ok(Batch::default()
        .ending(token_hashes(scope, account.id, true))
        .then(bind_unchanged(depart, rank, account, true))
        .change(bind_unchanged(delete, rank, account, true), audit::after_change(caller.workspace_id, event)?))
}

/// Sets a password in place of `stored`, the PHC string of the one that was checked, or of any. The reply is the user. All login
/// tokens end. Unless the scheduled commands are kept, the sessions count as revoked. The event is signed by the caller, whose
/// session may be one of those.
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
        "UPDATE users SET password = ?6, password_changed_at = ?8
         WHERE id = ?5 AND (?7 IS NULL OR password = ?7)
         AND workspace_id = (SELECT workspace_id FROM me WHERE (?7 IS NULL AND is_superuser) OR user_id = ?5)
         RETURNING {} AS body",
        db::returned(OBJECT, "u")
    );
    let update = scope.statement(&sql).bind(user_id).bind(new.hash).bind(stored).bind(scope.now);
    let mut batch = Batch::default().ending(token_hashes(scope, user_id, true));
    if !new.keep_scheduled {
        let users = "SELECT id, workspace_id FROM users WHERE id = ?5 AND (?6 IS NULL OR password = ?6)
            AND workspace_id = (SELECT workspace_id FROM me WHERE (?6 IS NULL AND is_superuser) OR user_id = ?5)";
        let revoke = scope.statement(&sessions::revoke_all(users, "?3", "?4"));
        batch = batch.then(revoke.bind(user_id).bind(stored));
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

/// Takes a deleted user off some of their commands, in any workspace; when none is left, off the list of those to be done.
/// False: there is no such user.
pub async fn depart_some(env: &Env, most: u64) -> Result<bool, Error> {
    #[derive(Deserialize)]
    struct Row {
        workspace_id: f64,
        user_id: f64,
    }
    let next = Statement::new("SELECT workspace_id, user_id FROM departed_users LIMIT 1");
    let Some(row) = db::first::<Row>(&db::run(env, next).await?)? else { return Ok(false) };
    let bound = |sql: &str| Statement::new(sql).bind(row.workspace_id).bind(row.user_id);
    let commands = bound(
        "UPDATE commands SET requested_by = NULL WHERE seq IN (
            SELECT seq FROM commands WHERE workspace_id = ?1 AND requested_by = ?2 LIMIT ?3 + 0)",
    );
    let done = bound(
        "DELETE FROM departed_users WHERE workspace_id = ?1 AND user_id = ?2
         AND NOT EXISTS (SELECT 1 FROM commands WHERE workspace_id = ?1 AND requested_by = ?2)",
    );
    db::batch(env, vec![commands.bind(most), done]).await?;
    Ok(true)
}
