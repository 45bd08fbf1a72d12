//! What a server's object reads and writes in D1: here of commands, in `d1_server.rs` of the server.
//!
//! Its writes can be repeated and can come late: each carries a revision, and an older one changes nothing.

use farhand_domain::acl::Acl;
use farhand_domain::command::{self, Command, Origin};
use farhand_domain::command_object::{Output, split_result};
use farhand_domain::lifecycle::{Denial, Lifecycle};
use farhand_domain::link::create::bytes_of;
use farhand_domain::link::event::{FromD1, Lacking, ToD1};
use farhand_domain::link::stored_command::StoredCommand;
use farhand_domain::rights::Rights;
use farhand_domain::time::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;
use worker::{Env, Error, Result};

use super::calls::{Create, Refusal};
use super::d1_server;
use crate::platform::{self, Config};
use crate::store::audit::{self, Insert, of_service};
use crate::store::db::{self, Failure, Statement};
use crate::store::servers;

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::RustError(farhand_domain::error::Error::from(failure).detail.into_owned())
    }
}

pub(super) fn own(error: &farhand_domain::error::Error) -> Error {
    Error::RustError(error.detail.to_string())
}

/// Asks D1.
///
/// # Errors
/// D1 did not answer: whether it did what it was asked is not known then.
pub async fn ask(env: &Env, request: &ToD1) -> Result<FromD1> {
    Ok(match request {
        ToD1::Find { workspace, server } => FromD1::Server(d1_server::find_server(env, workspace, *server).await?),
        ToD1::Change(of, change) => FromD1::Server(d1_server::change_server(env, of, change).await?),
        ToD1::Insert { create, life, goes_at_once } => {
            FromD1::Inserted(insert_command(env, create, life, *goes_at_once).await?)
        }
        ToD1::FindRights(commands) => FromD1::Rights(find_rights(env, commands, platform::now()).await?),
        ToD1::Tell { lacking, is_one_by_one } => FromD1::Told(tell(env, lacking, *is_one_by_one).await),
        ToD1::Restore(commands) => {
            send(env, commands.iter().map(restore_command).collect()).await?;
            FromD1::Restored
        }
        ToD1::Unrestore(commands) => {
            send(env, commands.iter().map(unrestore_command).collect()).await?;
            FromD1::Restored
        }
    })
}

/// Writes what D1 lacks, and says what became of each.
async fn tell(env: &Env, lacking: &[Lacking], is_one_by_one: bool) -> Vec<std::result::Result<(), String>> {
    let mut told = Vec::new();
    let at_once = if is_one_by_one { 1 } else { lacking.len().max(1) };
    for group in lacking.chunks(at_once) {
        let written = async {
            let statements: Vec<_> = group.iter().map(update).collect::<Result<_>>()?;
            send(env, statements.concat()).await
        };
        let written = written.await.map_err(|error| error.to_string());
        told.extend(group.iter().map(|_| written.clone()));
    }
    told
}

/// The statements that write something that D1 lacks.
fn update(lacking: &Lacking) -> Result<Vec<Statement>> {
    match lacking {
        Lacking::Command(stored, output) => Ok(update_command(stored, output)),
        Lacking::Withdrawal { workspace_id, id, bytes } => delete_command(*workspace_id, *id, *bytes),
        Lacking::Server { workspace_id, server, facts } => Ok(d1_server::update_server(*workspace_id, *server, facts)),
    }
}

/// The characters of a timestamp that are its day.
const DAY: usize = 10;

/// The columns of `commands` that never change, in the order of what [`command_row`] binds after the workspace.
const COMMAND_COLUMNS: &str =
    "workspace_id, id, server_id, server_name, requested_by, shell, line, username, groupname,
    timeout, added_at, scheduled_at, expires_at, state, status_message, delivered_at, argv, has_inputs";

/// A statement that inserts a command, whose `?1` to `?18` are [`COMMAND_COLUMNS`].
fn command_row(sql: String, workspace_id: i64, command: &Command, origin: &Origin, life: &Lifecycle) -> Statement {
    Statement::new(sql)
        .bind(workspace_id)
        .bind(command.id)
        .bind(command.server)
        .bind(&command.server_name)
        .bind(command.requested_by.as_ref().map(|requester| requester.id))
        .bind(command.shell.as_str())
        .bind(&command.line)
        .bind(&command.username)
        .bind(&command.groupname)
        .bind(life.timeout)
        .bind(life.added_at)
        .bind(life.scheduled_at)
        .bind(life.expires_at)
        .bind(life.state().as_str())
        .bind(life.message())
        .bind(life.delivered_at)
        .bind(command.argv.as_ref().map(|words| json!(words).to_string()))
        .bind(origin.has_inputs)
}

/// The statement that gives D1 a command that it had and may have lost; one that it has stays as it is. Its latest follows with
/// [`update_command`]. Its requester may be lost, and the number somebody else's now, who joined later. The bytes of its output are
/// inserted, so that they do not count as today's.
fn restore_command(stored: &StoredCommand) -> Statement {
    let sql = format!(
        "INSERT INTO commands ({COMMAND_COLUMNS}, output_bytes)
         SELECT w.id, ?2, ?3, ?4,
            (SELECT u.id FROM users u WHERE u.id = ?5 AND u.workspace_id = w.id AND u.date_joined <= ?11),
            ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19
         FROM workspaces w
         WHERE w.id = ?1 AND w.deleted_at IS NULL
            AND NOT EXISTS (SELECT 1 FROM commands c WHERE c.workspace_id = ?1 AND c.id = ?2)"
    );
    command_row(sql, stored.workspace_id, &stored.command, &stored.origin, &stored.life).bind(stored.output_bytes())
}

/// The statement that takes a restored command away again, which nobody has heard of.
fn unrestore_command(stored: &StoredCommand) -> Statement {
    let sql = "DELETE FROM commands WHERE workspace_id = ?1 AND id = ?2 AND revision = 0 AND handled_at IS NULL";
    Statement::new(sql).bind(stored.workspace_id).bind(stored.command.id)
}

/// SQL for the condition that a new command is within its quotas of waiting commands (contract 11, Quotas): `?21` for its
/// requester and `?22` for the workspace. A command that goes out at once, `?26`, does not wait.
const HAS_ROOM: &str = "(?26 OR ?21 > (SELECT count(*) FROM (SELECT 1 FROM commands c INDEXED BY commands_waiting
        WHERE c.workspace_id = ?1 AND c.requested_by = ?5 AND c.delivered_at IS NULL AND c.handled_at IS NULL LIMIT ?21 + 0))
    AND ?22 > (SELECT count(*) FROM (SELECT 1 FROM commands c INDEXED BY commands_waiting
        WHERE c.workspace_id = ?1 AND c.delivered_at IS NULL AND c.handled_at IS NULL LIMIT ?22 + 0)))";

/// SQL for the condition that a workspace `?1` may store `bytes` more on a `day`, of at most `most`.
fn has_bytes_left(bytes: &str, day: &str, most: &str) -> String {
    format!(
        "{bytes} + coalesce((SELECT b.bytes FROM stored_bytes b WHERE b.workspace_id = ?1 AND b.day = {day}), 0) <= {most}"
    )
}

/// Writes a new command, or says why it is not taken: then nothing is written.
async fn insert_command(env: &Env, create: &Create, life: &Lifecycle, goes_at_once: bool) -> Result<Option<Refusal>> {
    let Create { workspace_id, command, origin, key, event, .. } = create;
    let (workspace_id, key, quotas) = (*workspace_id, key.as_ref(), Config::of(env).quotas);
    let requester = command.requested_by.as_ref().map(|requester| requester.id);
    let bytes = bytes_of(command, create.inputs.as_ref());
    let day: String = life.added_at.to_string().chars().take(DAY).collect();
    let sql = format!(
        "INSERT INTO commands ({COMMAND_COLUMNS}, idempotency_key, idempotency_body)
         SELECT w.id, ?2, s.id, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18,
            ?19, ?20
         FROM workspaces w JOIN servers s ON s.id = ?3 AND s.workspace_id = w.id
         WHERE w.id = ?1 AND w.deleted_at IS NULL AND {HAS_ROOM} AND {}
         RETURNING id",
        has_bytes_left("?23", "?24", "?25")
    );
    let insert = command_row(sql, workspace_id, command, origin, life)
        .bind(key.map(|key| key.hash.as_str()))
        .bind(key.map(|key| key.body.as_str()))
        .bind(quotas.waiting_of_user)
        .bind(quotas.waiting_of_workspace)
        .bind(bytes)
        .bind(&day)
        .bind(quotas.bytes_of_day)
        .bind(goes_at_once);
    let mut statements = vec![];
    if let Some(key) = key {
        // One that was used long ago is free again.
        let release = "UPDATE commands SET idempotency_key = NULL, idempotency_body = NULL
            WHERE workspace_id = ?1 AND requested_by = ?2 AND idempotency_key = ?3 AND added_at <= ?4";
        let release = Statement::new(release).bind(workspace_id).bind(requester).bind(&key.hash);
        statements.push(release.bind(life.added_at.plus_seconds(-command::KEY_LASTS)));
    }
    let place = statements.len();
    statements.push(insert);
    statements.push(audit::after_change(workspace_id, event).map_err(|error| own(&error))?);
    // The event is written only with the command.
    let count = "INSERT INTO stored_bytes (workspace_id, day, bytes) SELECT ?1, ?2, ?3 WHERE changes() > 0
        ON CONFLICT (workspace_id, day) DO UPDATE SET bytes = bytes + excluded.bytes";
    statements.push(Statement::new(count).bind(workspace_id).bind(&day).bind(bytes));
    match db::batch(env, statements).await {
        Ok(results) => {
            let made = results.get(place).map(db::column::<String>).transpose().map_err(|error| own(&error))?;
            if made.is_some_and(|made| !made.is_empty()) {
                return Ok(None);
            }
            why_not(env, (workspace_id, command.server), (bytes, &day), quotas.bytes_of_day).await.map(Some)
        }
        Err(Failure::NotUnique(column)) if column == "commands.idempotency_key" => Ok(Some(Refusal::KeyTaken)),
        Err(failure) => Err(failure.into()),
    }
}

/// Why a command was not written.
async fn why_not(
    env: &Env,
    (workspace_id, server): (i64, Uuid),
    (bytes, day): (u64, &str),
    bytes_of_day: i64,
) -> Result<Refusal> {
    let sql = format!(
        "SELECT CASE WHEN {} THEN 'waiting' ELSE 'bytes' END AS body
         FROM workspaces w JOIN servers s ON s.id = ?2 AND s.workspace_id = w.id
         WHERE w.id = ?1 AND w.deleted_at IS NULL",
        has_bytes_left("?3", "?4", "?5")
    );
    let statement = Statement::new(sql).bind(workspace_id).bind(server).bind(bytes).bind(day).bind(bytes_of_day);
    let found = db::column::<String>(&db::run(env, statement).await?).map_err(|error| own(&error))?;
    Ok(match found.first().map(String::as_str) {
        Some("waiting") => Refusal::TooManyWaiting,
        Some(_) => Refusal::TooManyBytes,
        None => Refusal::NoServer,
    })
}

/// What commands are allowed that are about to go out, in their order: the rights of each one's requester, as they are
/// now, or why there are none. `None`: the workspace is deleted, and nothing may go out unless it is undeleted.
///
/// # Errors
/// D1 did not answer.
async fn find_rights(
    env: &Env,
    commands: &[StoredCommand],
    now: Timestamp,
) -> Result<Option<Vec<std::result::Result<Rights, Denial>>>> {
    #[derive(Deserialize)]
    struct Row {
        is_active: bool,
        has_token: bool,
        is_revoked: bool,
        any_account: Option<bool>,
        username: Option<String>,
        is_staff: bool,
        acl: Option<Value>,
    }
    // All are of one server.
    let Some(first) = commands.first() else { return Ok(Some(vec![])) };
    let (workspace_id, server) = (first.workspace_id, first.command.server);
    let asked: Vec<_> = commands
        .iter()
        .map(|stored| {
            json!({
                "user": stored.command.requested_by.as_ref().map(|requester| requester.id),
                "token": stored.origin.api_token,
                "session": stored.origin.session,
            })
        })
        .collect();
    let (reachable, any_account) = (servers::REACHABLE, servers::ANY_ACCOUNT);
    // Whether the token's list has the server is for the list to say, with the rest of it: here `acl_servers` limits
    // nothing.
    let sql = format!(
        "WITH me AS (
            SELECT c.key AS place, ?1 AS workspace_id, u.id AS user_id, u.username, u.is_active, u.is_staff, u.is_superuser,
                c.value ->> 'token' IS NULL OR (t.enabled AND (t.expires_at IS NULL OR t.expires_at > ?4)) AS has_token,
                EXISTS (SELECT 1 FROM revoked_sessions r
                    WHERE r.workspace_id = ?1 AND r.id = c.value ->> 'session') AS is_revoked,
                t.acl, NULL AS acl_servers
            FROM json_each(?3) c
            LEFT JOIN users u ON u.id = c.value ->> 'user' AND u.workspace_id = ?1
            LEFT JOIN api_tokens t ON t.id = c.value ->> 'token' AND t.workspace_id = ?1 AND t.user_id = u.id
        )
        SELECT json_object('is_active', json(iif(me.is_active, 'true', 'false')),
            'has_token', json(iif(me.has_token, 'true', 'false')),
            'is_revoked', json(iif(me.is_revoked, 'true', 'false')), 'username', me.username,
            'is_staff', json(iif(me.is_staff OR me.is_superuser, 'true', 'false')), 'acl', json(me.acl),
            'any_account', json((SELECT iif({any_account}, 'true', 'false')
                FROM servers s WHERE s.id = ?2 AND {reachable}))) AS body
        FROM me WHERE EXISTS (SELECT 1 FROM workspaces w WHERE w.id = ?1 AND w.deleted_at IS NULL) ORDER BY me.place"
    );
    let statement = Statement::new(sql).bind(workspace_id).bind(server).bind(json!(asked).to_string()).bind(now);
    let rows = db::column::<String>(&db::run(env, statement).await?).map_err(|error| own(&error))?;
    if rows.len() < commands.len() {
        return Ok(None);
    }
    let verdict = |row: &String| {
        let row: Row = serde_json::from_str(row)?;
        let Some(username) = row.username.filter(|_| row.is_active) else { return Ok(Err(Denial::Requester)) };
        if !row.has_token {
            return Ok(Err(Denial::Token));
        }
        if row.is_revoked {
            return Ok(Err(Denial::Session));
        }
        let Some(any_account) = row.any_account else { return Ok(Err(Denial::Server)) };
        // A list that this version cannot read allows nothing, and holds up nobody else's commands.
        let Ok(acl) = row.acl.map(serde_json::from_value::<Acl>).transpose() else { return Ok(Err(Denial::Acl)) };
        Ok(Ok(Rights { username, is_staff: row.is_staff, any_account, acl }))
    };
    rows.iter().map(verdict).collect::<Result<_>>().map(Some)
}

/// The statements that tell the latest of a command, and before that what happened to it that the audit log does not know.
fn update_command(stored: &StoredCommand, output: &Output) -> Vec<Statement> {
    let life = &stored.life;
    let outcome = life.outcome();
    let (head, whole) = split_result(output.result.as_deref());
    let update = Statement::new(
        "UPDATE commands SET delivered_at = ?4, acked_at = ?5, handled_at = ?6, state = ?7, status_message = ?8,
            success = ?9, exit_code = ?10, response_delay = ?11, elapsed_time = ?12, output_bytes = ?13,
            result_truncated = ?14, result = ?15, full_result = ?16, revision = ?3
         WHERE workspace_id = ?1 AND id = ?2 AND revision < ?3",
    )
    .bind(stored.workspace_id)
    .bind(stored.command.id)
    .bind(stored.revision)
    .bind(life.delivered_at)
    .bind(life.acked_at)
    .bind(life.handled_at)
    .bind(life.state().as_str())
    .bind(life.message())
    .bind(life.success())
    .bind(outcome.and_then(|outcome| outcome.exit_code))
    .bind(life.response_delay())
    .bind(outcome.and_then(|outcome| outcome.elapsed_time))
    .bind(output.bytes)
    .bind(output.truncated)
    .bind(head)
    .bind(whole);
    of_command(stored).into_iter().chain([update]).collect()
}

/// The statements that remove a command that was never delivered, and its `bytes` from those of its day. If D1 has the command,
/// the audit log is told so.
fn delete_command(workspace_id: i64, id: Uuid, bytes: u64) -> Result<Vec<Statement>> {
    let uncount = "UPDATE stored_bytes SET bytes = max(bytes - ?3, 0) WHERE workspace_id = ?1 AND day = (
        SELECT substr(c.added_at, 1, 10) FROM commands c
        WHERE c.workspace_id = ?1 AND c.id = ?2 AND c.acked_at IS NULL)";
    let event = of_service("command.withdraw").map_err(|error| own(&error))?.on(Some(id.to_string()), None);
    let delete = "DELETE FROM commands WHERE workspace_id = ?1 AND id = ?2 AND acked_at IS NULL";
    let event = audit::after_change(workspace_id, &event).map_err(|error| own(&error))?;
    let uncount = Statement::new(uncount).bind(workspace_id).bind(id).bind(bytes);
    // The event follows the deletion, as it is written only after a change.
    Ok(vec![uncount, Statement::new(delete).bind(workspace_id).bind(id), event])
}

/// Carries statements out in one round trip.
async fn send(env: &Env, statements: Vec<Statement>) -> Result<()> {
    if !statements.is_empty() {
        db::batch(env, statements).await?;
    }
    Ok(())
}

/// The statement for what happened to a command that D1 has not heard of, before it hears of the command: whatever came of a
/// revision that D1 has is there already, so it can be repeated.
fn of_command(stored: &StoredCommand) -> Option<Statement> {
    if stored.events.is_empty() {
        return None;
    }
    let rest = "FROM commands c CROSS JOIN json_each(?3) p
               WHERE c.workspace_id = ?1 AND c.id = ?2 AND c.revision < p.value ->> 'revision' ORDER BY p.key";
    let insert = Insert::whole("c.workspace_id", "(p.value -> 'event')", rest);
    let statement = Statement::new(insert.sql()).bind(stored.workspace_id).bind(stored.command.id);
    Some(statement.bind(json!(stored.events).to_string()))
}
