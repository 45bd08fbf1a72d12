//! What a server's object reads and writes in D1: commands here, the server in `d1_server.rs`.
//!
//! Its writes can be repeated and can come late: each carries a revision, and D1 ignores an older
//! one.

use farhand_domain::acl::Acl;
use farhand_domain::command::{self, Command, Origin};
use farhand_domain::command_end::Denial;
use farhand_domain::command_object::{Output, split_result};
use farhand_domain::error::Error;
use farhand_domain::lifecycle::Lifecycle;
use farhand_domain::link::event::{FromD1, Lacking, ToD1};
use farhand_domain::link::stored_command::StoredCommand;
use farhand_domain::rights::Rights;
use farhand_domain::time::Timestamp;
use farhand_sql::command_counts::{self, bytes_of_day, next_key};
use farhand_sql::statement::{Parameters, Statement, Value as Parameter};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;
use worker::Env;

use super::calls::{Create, Refusal};
use super::d1_server;
use crate::platform::{self, Config};
use crate::store::audit::{self, of_service};
use crate::store::db::{self, Failure, params};
use crate::store::servers;

/// Sends a request to D1.
///
/// # Errors
/// D1 did not answer. It is unknown whether it carried the request out.
pub async fn ask(env: &Env, request: &ToD1) -> Result<FromD1, Error> {
    Ok(match request {
        ToD1::Find { workspace, server } => {
            FromD1::Server(d1_server::find_server(env, workspace, *server).await?)
        }
        ToD1::Change(of, change) => {
            FromD1::Server(d1_server::change_server(env, of, change).await?)
        }
        ToD1::Insert { create, life } => FromD1::Inserted(insert_command(env, create, life).await?),
        ToD1::FindRights(commands) => {
            FromD1::Rights(find_rights(env, commands, platform::now()).await?)
        }
        ToD1::Tell { lacking, is_one_by_one } => {
            FromD1::Told(tell(env, lacking, *is_one_by_one).await)
        }
        ToD1::Restore(commands) => {
            send(env, commands.iter().map(restore_command).collect()).await?;
            FromD1::Restored
        }
        ToD1::Unrestore(commands) => {
            send(env, commands.iter().flat_map(unrestore_command).collect()).await?;
            FromD1::Restored
        }
    })
}

/// Writes what D1 lacks, and returns the result for each entry.
async fn tell(env: &Env, lacking: &[Lacking], is_one_by_one: bool) -> Vec<Result<(), String>> {
    let mut told = Vec::new();
    let at_once = if is_one_by_one { 1 } else { lacking.len().max(1) };
    for group in lacking.chunks(at_once) {
        let written = async {
            let statements: Vec<_> = group.iter().map(update).collect::<Result<_, Error>>()?;
            send(env, statements.concat()).await
        };
        let written: Result<(), Error> = written.await;
        let written = written.map_err(|error| error.detail.into_owned());
        told.extend(group.iter().map(|_| written.clone()));
    }
    told
}

/// The statements for an entry that D1 lacks.
fn update(lacking: &Lacking) -> Result<Vec<Statement>, Error> {
    match lacking {
        Lacking::Command(stored, output) => update_command(stored, output),
        Lacking::Withdrawal { workspace_id, id } => delete_command(*workspace_id, *id),
        Lacking::Server { workspace_id, server, facts } => {
            d1_server::update_server(*workspace_id, *server, facts)
        }
    }
}

/// The characters of a timestamp that are its day.
const DAY: usize = 10;

/// The columns of `commands` that never change.
const COMMAND_COLUMNS: &str =
    "workspace_id, id, server_id, server_name, requested_by, shell, line, username, groupname,
    timeout, added_at, scheduled_at, expires_at, state, status_message, delivered_at, argv, has_inputs";
/// SQL for the values of [`COMMAND_COLUMNS`] from `shell` on.
const COMMAND_VALUES: &str =
    ":shell, :line, :username, :groupname, :timeout, :added_at, :scheduled_at, :expires_at, :state,
    :status_message, :delivered_at, :argv, :has_inputs";

/// The parameters of a statement that inserts a command.
fn command_row(
    workspace_id: i64,
    command: &Command,
    origin: &Origin,
    life: &Lifecycle,
) -> Parameters {
    params! {
        workspace_id,
        id: command.id,
        server_id: command.server,
        server_name: &command.server_name,
        requested_by: command.requested_by.as_ref().map(|requester| requester.id),
        shell: command.shell.as_str(),
        line: &command.line,
        username: &command.username,
        groupname: &command.groupname,
        timeout: life.timeout,
        added_at: life.added_at,
        scheduled_at: life.scheduled_at,
        expires_at: life.expires_at,
        state: life.state().as_str(),
        status_message: life.message(),
        delivered_at: life.delivered_at,
        argv: command.argv.as_ref().map(|words| json!(words).to_string()),
        has_inputs: origin.has_inputs,
    }
}

/// The statement that inserts a command that D1 may have lost; one that D1 has stays as it is. Its
/// latest state follows with [`update_command`]. The user's number may belong to another user now,
/// who joined later: then the command gets no requester. The output's bytes are inserted with the
/// command, so that they do not count as today's.
fn restore_command(stored: &StoredCommand) -> Statement {
    let sql = format!(
        "INSERT INTO commands (seq, {COMMAND_COLUMNS}, output_bytes)
         SELECT {}, w.id, :id, :server_id, :server_name,
            (SELECT u.id FROM users u
             WHERE u.id = :requested_by AND u.workspace_id = w.id AND u.date_joined <= :added_at),
            {COMMAND_VALUES}, :output_bytes
         FROM workspaces w
         WHERE w.id = :workspace_id AND w.deleted_at IS NULL
            AND NOT EXISTS (SELECT 1 FROM commands c WHERE c.workspace_id = :workspace_id AND c.id = :id)",
        next_key("w.id")
    );
    let row = command_row(stored.workspace_id, &stored.command, &stored.origin, &stored.life);
    Statement::new(sql).bind_all(row).bind("output_bytes", stored.output_bytes())
}

/// The statements that delete a restored command that no update followed.
fn unrestore_command(stored: &StoredCommand) -> Vec<Statement> {
    let StoredCommand { workspace_id, command, .. } = stored;
    deletion(*workspace_id, command.id, "c.id = :id AND c.revision = 0 AND c.handled_at IS NULL")
}

/// The statements that delete a command for which a condition holds.
fn deletion(workspace_id: i64, id: Uuid, which: &str) -> Vec<Statement> {
    command_counts::delete(which)
        .map(|sql| Statement::new(sql).bind_all(params! { workspace_id, id }))
        .to_vec()
}

/// SQL for the condition that a new command is within the quotas of waiting commands of its
/// requester and its workspace (contract 11.4). A command that is inserted as delivered does
/// not count.
const HAS_ROOM: &str = "(:delivered_at IS NOT NULL
    OR :waiting_of_user > (SELECT count(*) FROM (SELECT 1 FROM commands c INDEXED BY commands_waiting
        WHERE c.workspace_id = :workspace_id AND c.requested_by = :requested_by
            AND c.delivered_at IS NULL AND c.handled_at IS NULL LIMIT :waiting_of_user + 0))
    AND :waiting_of_workspace > (SELECT count(*) FROM (SELECT 1 FROM commands c INDEXED BY commands_waiting
        WHERE c.workspace_id = :workspace_id AND c.delivered_at IS NULL AND c.handled_at IS NULL
        LIMIT :waiting_of_workspace + 0)))";
/// SQL for the condition that a workspace may store so many bytes more on a day.
fn has_bytes_left() -> String {
    format!(":bytes + {} <= :bytes_of_day", bytes_of_day(":workspace_id", ":day"))
}

/// Inserts a new command, or returns why not: then nothing is written.
async fn insert_command(
    env: &Env,
    create: &Create,
    life: &Lifecycle,
) -> Result<Option<Refusal>, Error> {
    let Create { workspace_id, command, origin, key, event, .. } = create;
    let (workspace_id, key, quotas) = (*workspace_id, key.as_ref(), Config::of(env).quotas);
    let bytes = command.stored_bytes(create.inputs.as_ref());
    let day: String = life.added_at.to_string().chars().take(DAY).collect();
    let sql = format!(
        "INSERT INTO commands (seq, {COMMAND_COLUMNS}, idempotency_key, idempotency_body, stored_bytes)
         SELECT {}, w.id, :id, s.id, :server_name, :requested_by, {COMMAND_VALUES}, :key, :body, :bytes
         FROM workspaces w JOIN servers s ON s.id = :server_id AND s.workspace_id = w.id
         WHERE w.id = :workspace_id AND w.deleted_at IS NULL AND {HAS_ROOM} AND {}
         RETURNING id",
        next_key("w.id"),
        has_bytes_left()
    );
    let insert = Statement::new(sql)
        .bind_all(command_row(workspace_id, command, origin, life))
        .bind_all(params! {
            key: key.map(|key| key.hash.as_str()),
            body: key.map(|key| key.body.as_str()),
            waiting_of_user: quotas.waiting_of_user,
            waiting_of_workspace: quotas.waiting_of_workspace,
            bytes,
            day: &day,
            bytes_of_day: quotas.bytes_of_day,
        });
    // An expired key is free again.
    let release = key.map(|key| {
        let sql = "UPDATE commands SET idempotency_key = NULL, idempotency_body = NULL
            WHERE workspace_id = :workspace_id AND requested_by = :requested_by AND idempotency_key = :key
                AND added_at <= :until";
        Statement::new(sql).bind_all(params! {
            workspace_id,
            requested_by: command.requested_by.as_ref().map(|requester| requester.id),
            key: &key.hash,
            until: life.added_at.plus_seconds(-command::KEY_LASTS),
        })
    });
    // The event is written only with the command.
    let event = audit::after_change(workspace_id, event)?;
    let statements = release.into_iter().chain([insert, event]).collect();
    match db::batch(env, statements).await {
        Ok(results) => {
            // Only the insertion returns something.
            let returned =
                results.iter().map(db::column::<String>).collect::<Result<Vec<_>, _>>()?;
            if returned.iter().any(|ids| !ids.is_empty()) {
                return Ok(None);
            }
            let of = (workspace_id, command.server);
            why_not(env, of, (bytes, &day), quotas.bytes_of_day).await.map(Some)
        }
        Err(Failure::NotUnique(column)) if column == "commands.idempotency_key" => {
            Ok(Some(Refusal::KeyTaken))
        }
        Err(failure) => Err(failure.into()),
    }
}

/// Why a command was not inserted.
async fn why_not(
    env: &Env,
    (workspace_id, server_id): (i64, Uuid),
    (bytes, day): (u64, &str),
    bytes_of_day: i64,
) -> Result<Refusal, Error> {
    let sql = format!(
        "SELECT CASE WHEN {} THEN 'waiting' ELSE 'bytes' END AS body
         FROM workspaces w JOIN servers s ON s.id = :server_id AND s.workspace_id = w.id
         WHERE w.id = :workspace_id AND w.deleted_at IS NULL",
        has_bytes_left()
    );
    let statement =
        Statement::new(sql).bind_all(params! { workspace_id, server_id, bytes, day, bytes_of_day });
    let found = db::first_value::<String>(&db::run(env, statement).await?)?;
    Ok(match found.as_deref() {
        Some("waiting") => Refusal::TooManyWaiting,
        Some(_) => Refusal::TooManyBytes,
        None => Refusal::NoServer,
    })
}

/// The present rights of each command's requester, in the order of the commands, or why the
/// requester has none. `None`: the workspace is deleted, and nothing may be delivered until it is
/// undeleted.
///
/// # Errors
/// D1 did not answer.
async fn find_rights(
    env: &Env,
    commands: &[StoredCommand],
    now: Timestamp,
) -> Result<Option<Vec<Result<Rights, Denial>>>, Error> {
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
    // All commands are of one server.
    let Some(first) = commands.first() else { return Ok(Some(vec![])) };
    let (workspace_id, server_id) = (first.workspace_id, first.command.server);
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
    // The token's access control list is compared later, with the server in it: here `acl_servers`
    // limits nothing.
    let sql = format!(
        "WITH me AS (
            SELECT c.key AS place, :workspace_id AS workspace_id, u.id AS user_id, u.username, u.is_active, u.is_staff, u.is_superuser,
                c.value ->> 'token' IS NULL OR (t.enabled AND (t.expires_at IS NULL OR t.expires_at > :now)) AS has_token,
                EXISTS (SELECT 1 FROM revoked_sessions r
                    WHERE r.workspace_id = :workspace_id AND r.id = c.value ->> 'session') AS is_revoked,
                t.acl, NULL AS acl_servers
            FROM json_each(:asked) c
            LEFT JOIN users u ON u.id = c.value ->> 'user' AND u.workspace_id = :workspace_id
            LEFT JOIN api_tokens t ON t.id = c.value ->> 'token' AND t.workspace_id = :workspace_id AND t.user_id = u.id
        )
        SELECT json_object('is_active', json(iif(me.is_active, 'true', 'false')),
            'has_token', json(iif(me.has_token, 'true', 'false')),
            'is_revoked', json(iif(me.is_revoked, 'true', 'false')), 'username', me.username,
            'is_staff', json(iif(me.is_staff OR me.is_superuser, 'true', 'false')), 'acl', json(me.acl),
            'any_account', json((SELECT iif({any_account}, 'true', 'false')
                FROM servers s WHERE s.id = :server_id AND {reachable}))) AS body
        FROM me WHERE EXISTS (SELECT 1 FROM workspaces w WHERE w.id = :workspace_id AND w.deleted_at IS NULL) ORDER BY me.place"
    );
    let asked = Parameter::list(asked);
    let statement = Statement::new(sql).bind_all(params! { workspace_id, server_id, asked, now });
    let rows = db::column::<String>(&db::run(env, statement).await?)?;
    if rows.len() < commands.len() {
        return Ok(None);
    }
    let verdict = |row: &String| {
        let row: Row = serde_json::from_str(row)?;
        let Some(username) = row.username.filter(|_| row.is_active) else {
            return Ok(Err(Denial::Requester));
        };
        if !row.has_token {
            return Ok(Err(Denial::Token));
        }
        if row.is_revoked {
            return Ok(Err(Denial::Session));
        }
        let Some(any_account) = row.any_account else { return Ok(Err(Denial::Server)) };
        // A list that this version cannot read allows nothing, and holds up no other commands.
        let Ok(acl) = row.acl.map(serde_json::from_value::<Acl>).transpose() else {
            return Ok(Err(Denial::Acl));
        };
        Ok(Ok(Rights { username, is_staff: row.is_staff, any_account, acl }))
    };
    rows.iter().map(verdict).collect::<Result<_, Error>>().map(Some)
}

/// The statements that write the latest state of a command, and before it the audit events that D1
/// lacks.
fn update_command(stored: &StoredCommand, output: &Output) -> Result<Vec<Statement>, Error> {
    let life = &stored.life;
    let outcome = life.outcome();
    let (head, whole) = split_result(output.result.as_deref());
    let sql = "UPDATE commands SET delivered_at = :delivered_at, acked_at = :acked_at, handled_at = :handled_at,
            state = :state, status_message = :message, success = :success, exit_code = :exit_code,
            response_delay = :response_delay, elapsed_time = :elapsed_time, output_bytes = :output_bytes,
            result_truncated = :truncated, result = :head, full_result = :whole, revision = :revision
         WHERE workspace_id = :workspace_id AND id = :id AND revision < :revision";
    let update = Statement::new(sql).bind_all(params! {
        workspace_id: stored.workspace_id,
        id: stored.command.id,
        revision: stored.revision,
        delivered_at: life.delivered_at,
        acked_at: life.acked_at,
        handled_at: life.handled_at,
        state: life.state().as_str(),
        message: life.message(),
        success: life.success(),
        exit_code: outcome.and_then(|outcome| outcome.exit_code),
        response_delay: life.response_delay(),
        elapsed_time: outcome.and_then(|outcome| outcome.elapsed_time),
        output_bytes: output.bytes,
        truncated: output.truncated,
        head,
        whole,
    });
    let mut statements = audit::pending(
        ("commands", "revision"),
        stored.workspace_id,
        stored.command.id,
        &stored.events,
    )?;
    statements.push(update);
    Ok(statements)
}

/// The statements that delete a withdrawn command. If D1 has the command, they add an audit event.
fn delete_command(workspace_id: i64, id: Uuid) -> Result<Vec<Statement>, Error> {
    let delete = deletion(workspace_id, id, "c.id = :id AND c.acked_at IS NULL");
    // The event follows the deletion, as it is written only after a change.
    let event = of_service("command.withdraw")?.on(Some(id.to_string()), None);
    Ok([delete, vec![audit::after_change(workspace_id, &event)?]].concat())
}

/// Runs statements in one round trip.
async fn send(env: &Env, statements: Vec<Statement>) -> Result<(), Error> {
    if statements.is_empty() { Ok(()) } else { db::execute_all(env, statements).await }
}
