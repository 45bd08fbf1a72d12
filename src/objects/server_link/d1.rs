//! The D1 statements of a server's object about commands. `d1_server.rs` has the statements about
//! the server.
//!
//! A write may arrive late or more than once. Each update carries a revision, and its statement
//! ignores a revision that is not newer than the stored one.

use std::collections::BTreeMap;

use farhand_domain::agent::wire::Script;
use farhand_domain::command::end::Denial;
use farhand_domain::command::lifecycle::Lifecycle;
use farhand_domain::command::object::{Output, split_result};
use farhand_domain::command::request::{Command, IDEMPOTENCY_KEY_TTL, Origin};
use farhand_domain::command::script::ScriptRef;
use farhand_domain::error::Error;
use farhand_domain::hash::sha256;
use farhand_domain::limits::quota::DAY_SECONDS;
use farhand_domain::link::event::{Answer, OutboxEntry, Request, Verdicts};
use farhand_domain::link::stored_command::StoredCommand;
use farhand_domain::time::Timestamp;
use farhand_sql::batches;
use farhand_sql::command_counts::{self, next_key};
use farhand_sql::quotas;
use farhand_sql::statement::{Parameters, Statement};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;
use worker::Env;

use super::calls::{Create, Refusal};
use super::d1_server;
use crate::platform::{self, Config, Quotas};
use crate::store::audit::{self, service_event};
use crate::store::database::Database;
use crate::store::db::{self, Failure, params};
use crate::store::permission_rows::{self, PermissionRow};
use crate::store::scripts;
use crate::store::stored_requester::{self, REQUESTERS, StoredRequester};

/// Sends a request to D1.
///
/// # Errors
/// D1 failed. It is unknown whether D1 ran the request's statements.
pub async fn query(env: &Env, request: &Request) -> Result<Answer, Error> {
    let (database, quotas) = (&database_of(env, request), &Config::from_env(env).quotas);
    Ok(match request {
        Request::FindServer { workspace, server } => {
            Answer::Server(d1_server::find_server(database, workspace, *server).await?)
        }
        Request::ChangeServer(of, change) => {
            Answer::Server(d1_server::change_server(database, quotas, of, change).await?)
        }
        Request::InsertCommand { create, life } => {
            Answer::Inserted(insert_command(database, quotas, create, life).await?)
        }
        Request::FindPermissions(commands) => {
            Answer::Permissions(find_rights(database, quotas, commands, platform::now()).await?)
        }
        Request::Flush { entries, is_one_by_one } => {
            let (results, waiting) = flush(database, entries, *is_one_by_one).await;
            Answer::Flushed(results, waiting)
        }
        Request::Restore(commands) => {
            send(database, commands.iter().flat_map(restore_command).collect()).await?;
            Answer::Restored
        }
        Request::DeleteRestored(commands) => {
            send(database, commands.iter().flat_map(unrestore_command).collect()).await?;
            Answer::Restored
        }
    })
}

/// The database of a request's workspace. All commands and entries of a request are of one server.
fn database_of(env: &Env, request: &Request) -> Database {
    let workspace_id = match request {
        Request::FindServer { workspace, .. } => return Database::of_slug(env, workspace),
        Request::ChangeServer(of, _) => Some(of.workspace_id),
        Request::InsertCommand { create, .. } => Some(create.workspace_id),
        Request::FindPermissions(commands)
        | Request::Restore(commands)
        | Request::DeleteRestored(commands) => commands.first().map(|stored| stored.workspace_id),
        Request::Flush { entries, .. } => entries.first().map(|entry| match entry {
            OutboxEntry::Command(stored, _) => stored.workspace_id,
            OutboxEntry::Withdrawal { workspace_id, .. }
            | OutboxEntry::Server { workspace_id, .. } => *workspace_id,
        }),
    };
    // A request without commands and entries runs no statement.
    workspace_id.map_or_else(|| Database::cell(env), |id| Database::of(env, id))
}

/// Writes outbox entries to D1: all in one transaction, or each in a transaction of its own if
/// `is_one_by_one`. Returns the result of each entry, in the order of `entries`, and the batches
/// that wait for the server, if an entry says that it is connected.
async fn flush(
    database: &Database,
    entries: &[OutboxEntry],
    is_one_by_one: bool,
) -> (Vec<Result<(), String>>, Vec<Uuid>) {
    let (mut results, mut waiting) = (Vec::new(), Vec::new());
    let chunk_size = if is_one_by_one { 1 } else { entries.len().max(1) };
    for entries in entries.chunks(chunk_size) {
        let written = async {
            let statements: Vec<_> =
                entries.iter().map(flush_entry).collect::<Result<_, Error>>()?;
            let statements = statements.concat();
            if statements.is_empty() {
                return Ok(vec![]);
            }
            let outcomes = db::batch(database, statements).await?;
            let ids = outcomes.iter().map(db::column::<Uuid>).collect::<Result<Vec<_>, _>>()?;
            Ok(ids.concat())
        };
        let written: Result<Vec<Uuid>, Error> = written.await;
        let written = written.map_err(|error| error.detail.into_owned());
        results.extend(entries.iter().map(|_| written.clone().map(drop)));
        waiting.extend(written.unwrap_or_default());
    }
    (results, waiting)
}

/// The statements that write one outbox entry.
fn flush_entry(entry: &OutboxEntry) -> Result<Vec<Statement>, Error> {
    match entry {
        OutboxEntry::Command(stored, output) => update_command(stored, output),
        OutboxEntry::Withdrawal { workspace_id, id } => delete_command(*workspace_id, *id),
        OutboxEntry::Server { workspace_id, server, facts } => {
            let mut statements = d1_server::update_server(*workspace_id, *server, facts)?;
            if facts.is_connected {
                statements.push(waiting_batches(*workspace_id, *server));
            }
            Ok(statements)
        }
    }
}

/// The statement that selects the batches with a target that waits for this server. No other
/// statement of a flush returns rows.
fn waiting_batches(workspace_id: i64, server_id: Uuid) -> Statement {
    let sql = "SELECT batch_id FROM batch_targets INDEXED BY batch_targets_queued
        WHERE workspace_id = :workspace_id AND server_id = :server_id AND state = 'queued'";
    Statement::new(sql).bind_all(params! { workspace_id, server_id })
}

/// The columns of `commands` that an insertion sets.
const COMMAND_COLUMNS: &str =
    "workspace_id, id, server_id, server_name, requested_by, shell, line, username, groupname,
    timeout, added_at, scheduled_at, expires_at, state, status_message, delivered_at, argv, has_inputs, script,
    batch_id";
/// SQL for the values of [`COMMAND_COLUMNS`] from `shell` on.
const COMMAND_VALUES: &str =
    ":shell, :line, :username, :groupname, :timeout, :added_at, :scheduled_at, :expires_at, :state,
    :status_message, :delivered_at, :argv, :has_inputs, :script, :batch_id";

/// The parameters of a statement that inserts a command.
fn insert_parameters(
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
        script: command.script.map(|script| script.to_string()),
        batch_id: command.batch,
    }
}

/// The statements that insert a command again after D1 lost it. [`update_command`] later writes the
/// command's latest state.
///
/// After D1 was restored, the requester's id may belong to a user who joined later than the
/// command. Then the command gets no requester. The statement also sets `output_bytes`, so that
/// old output does not count towards today's quota.
fn restore_command(stored: &StoredCommand) -> Vec<Statement> {
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
    let parameters =
        insert_parameters(stored.workspace_id, &stored.command, &stored.origin, &stored.life);
    let insert = Statement::new(sql).bind_all(parameters);
    let insert = insert.bind("output_bytes", stored.output_bytes());
    [insert]
        .into_iter()
        .chain(stored.command.batch.map(|batch| clear_target(stored, batch)))
        .collect()
}

/// The statement that clears the state of a restored command's target. It must not count beside the
/// command's state. Reads all targets of the batch, as no index has their servers.
fn clear_target(stored: &StoredCommand, batch: Uuid) -> Statement {
    let StoredCommand { workspace_id, command, .. } = stored;
    Statement::new(
        "UPDATE batch_targets AS t SET state = NULL, reason = NULL
         WHERE t.workspace_id = :workspace_id AND t.batch_id = :batch AND t.server_id = :server AND t.state IS NOT NULL
            AND EXISTS (SELECT 1 FROM commands c WHERE c.workspace_id = :workspace_id AND c.id = :id)",
    )
    .bind_all(params! { workspace_id: *workspace_id, batch, server: command.server, id: command.id })
}

/// The statements that delete a restored command, if no update has followed its restoration.
fn unrestore_command(stored: &StoredCommand) -> Vec<Statement> {
    let StoredCommand { workspace_id, command, .. } = stored;
    deletion(*workspace_id, command.id, "c.id = :id AND c.revision = 0 AND c.handled_at IS NULL")
}

/// The statements that delete a command and correct the counters of lists. `condition` is SQL on
/// `commands c` and compares `c.id` with `:id`.
fn deletion(workspace_id: i64, id: Uuid, condition: &str) -> Vec<Statement> {
    command_counts::delete(condition)
        .map(|sql| Statement::new(sql).bind_all(params! { workspace_id, id }))
        .to_vec()
}

/// SQL for the condition that a new command fits into the two quotas of waiting commands: the
/// requester's and the workspace's (contract 11.4). A command that is inserted as delivered does
/// not count as waiting. Commands of batches do not count, but pending targets of batches do.
fn has_room() -> String {
    format!(
        "(:delivered_at IS NOT NULL
          OR :waiting_of_user > (SELECT count(*) FROM (SELECT 1 FROM commands c INDEXED BY commands_waiting
            WHERE c.workspace_id = :workspace_id AND c.requested_by = :requested_by AND c.batch_id IS NULL
                AND c.delivered_at IS NULL AND c.handled_at IS NULL LIMIT :waiting_of_user + 0))
          AND :waiting_of_workspace > {} + {})",
        batches::pending_targets(":workspace_id"),
        batches::waiting_commands(":workspace_id")
    )
}

/// SQL for the rank of the requester of a command: see [`quotas::RANK_OF_ME`].
const RANK: &str = "coalesce((SELECT iif(r.is_superuser, 2, r.is_staff) FROM users r
    WHERE r.id = :requested_by AND r.workspace_id = :workspace_id), 0)";

/// SQL for the bytes of the last 24 hours, as a table (contract 11.4).
fn usage() -> String {
    quotas::usage(":workspace_id", ":requested_by", ":added_at")
}

/// Inserts a new command. Returns the bytes of output that it may keep, or a refusal if nothing was
/// written.
async fn insert_command(
    database: &Database,
    limits: &Quotas,
    create: &Create,
    life: &Lifecycle,
) -> Result<Result<Option<u64>, Refusal>, Error> {
    #[derive(Deserialize)]
    struct InsertedRow {
        output_limit: Option<u64>,
    }
    let Create { workspace_id, command, origin, key, event, .. } = create;
    let (workspace_id, key) = (*workspace_id, key.as_ref());
    let bytes = command.stored_bytes(create.inputs.as_ref());
    let sql = format!(
        "INSERT INTO commands (seq, {COMMAND_COLUMNS}, idempotency_key, idempotency_body, stored_bytes, output_limit)
         SELECT {}, w.id, :id, s.id, :server_name, :requested_by, {COMMAND_VALUES}, :key, :body, :bytes, {}
         FROM workspaces w CROSS JOIN servers s ON s.id = :server_id AND s.workspace_id = w.id CROSS JOIN {} u
         WHERE w.id = :workspace_id AND w.deleted_at IS NULL AND {} AND :bytes <= {}
         RETURNING output_limit",
        next_key("w.id"),
        quotas::output_limit(RANK),
        usage(),
        has_room(),
        quotas::bytes_left(RANK)
    );
    let insert = Statement::new(sql)
        .bind_all(insert_parameters(workspace_id, command, origin, life))
        .bind_all(params! {
            key: key.map(|key| key.hash.as_str()),
            body: key.map(|key| key.body.as_str()),
            waiting_of_user: limits.waiting_of_user,
            waiting_of_workspace: limits.waiting_of_workspace,
            bytes,
            bytes_of_day: limits.bytes_of_day,
            bytes_of_user: limits.bytes_of_user,
            output_of_day: limits.output_of_day,
            output_of_user: limits.output_of_user,
        });
    // Release an expired Idempotency-Key, so that it can be used again.
    let release = key.map(|key| {
        let sql = "UPDATE commands SET idempotency_key = NULL, idempotency_body = NULL
            WHERE workspace_id = :workspace_id AND requested_by = :requested_by AND idempotency_key = :key
                AND added_at <= :until";
        Statement::new(sql).bind_all(params! {
            workspace_id,
            requested_by: command.requested_by.as_ref().map(|requester| requester.id),
            key: &key.hash,
            until: life.added_at.plus_seconds(-IDEMPOTENCY_KEY_TTL),
        })
    });
    // The audit event is written only if the statement before it inserted the command.
    let event = audit::after_change(workspace_id, event)?;
    let statements = release.into_iter().chain([insert, event]).collect();
    match db::batch(database, statements).await {
        Ok(results) => {
            // Only the insertion returns rows.
            let returned =
                results.iter().map(db::first::<InsertedRow>).collect::<Result<Vec<_>, _>>()?;
            match returned.into_iter().flatten().next() {
                Some(inserted) => Ok(Ok(inserted.output_limit)),
                None => find_refusal(database, limits, create, bytes, life.added_at).await.map(Err),
            }
        }
        Err(Failure::NotUnique(column)) if column == "commands.idempotency_key" => {
            Ok(Err(Refusal::KeyInUse))
        }
        Err(failure) => Err(failure.into()),
    }
}

/// Finds out why a command was not inserted.
async fn find_refusal(
    database: &Database,
    limits: &Quotas,
    create: &Create,
    bytes: u64,
    added_at: Timestamp,
) -> Result<Refusal, Error> {
    #[derive(Deserialize)]
    struct RefusalRow {
        fits: i64,
        retry_after: Option<u64>,
    }
    let sql = format!(
        "SELECT :bytes <= {} AS fits, {} AS retry_after
         FROM workspaces w CROSS JOIN servers s ON s.id = :server_id AND s.workspace_id = w.id CROSS JOIN {} u
         WHERE w.id = :workspace_id AND w.deleted_at IS NULL",
        quotas::bytes_left(RANK),
        quotas::retry_after(":bytes", ":workspace_id", ":requested_by", RANK, ":added_at"),
        usage()
    );
    let statement = Statement::new(sql).bind_all(params! {
        workspace_id: create.workspace_id, server_id: create.command.server, bytes, added_at,
        requested_by: create.command.requested_by.as_ref().map(|requester| requester.id),
        bytes_of_day: limits.bytes_of_day, bytes_of_user: limits.bytes_of_user,
    });
    Ok(match db::first::<RefusalRow>(&db::run(database, statement).await?)? {
        Some(row) if row.fits != 0 => Refusal::TooManyWaiting,
        Some(row) => Refusal::TooManyBytes { retry_after: row.retry_after.unwrap_or(DAY_SECONDS) },
        None => Refusal::NoServer,
    })
}

/// Maximum number of scripts that one permission check reads. Together they have up to 1 MiB.
const MAX_SCRIPTS_TOGETHER: usize = 4;

/// A row of [`scripts::for_delivery`].
#[derive(Deserialize)]
struct ScriptRow {
    id: Uuid,
    version: i64,
    #[serde(flatten)]
    script: Script,
}

impl ScriptRow {
    fn into_entry(self) -> (ScriptRef, Script) {
        (ScriptRef { id: self.id, version: self.version }, self.script)
    }
}

/// Rechecks the permission to run each of these commands, which are all for one server, and reads
/// the scripts of the first commands. Returns `None` if the workspace is deleted: nothing may be
/// delivered unless it is undeleted.
///
/// # Errors
/// D1 failed.
async fn find_rights(
    database: &Database,
    limits: &Quotas,
    commands: &[StoredCommand],
    now: Timestamp,
) -> Result<Option<Verdicts>, Error> {
    let Some(first) = commands.first() else { return Ok(Some(Verdicts::default())) };
    let (workspace_id, server_id) = (first.workspace_id, first.command.server);
    let requesters = commands.iter().map(|stored| StoredRequester {
        user: stored.command.requested_by.as_ref().map(|requester| requester.id),
        api_token: stored.origin.api_token,
        session: stored.origin.session,
    });
    let (me, object) = (permission_rows::ME, permission_rows::object());
    let sql = format!(
        "WITH {REQUESTERS}, {me}
        SELECT {object} AS body FROM me
        LEFT JOIN servers s ON s.id = :server_id AND s.workspace_id = me.workspace_id
        WHERE EXISTS (SELECT 1 FROM workspaces w WHERE w.id = :workspace_id AND w.deleted_at IS NULL) ORDER BY me.position"
    );
    let requesters: Vec<_> = requesters.collect();
    let statement = Statement::new(sql)
        .bind_all(params! { server_id })
        .bind_all(stored_requester::parameters(workspace_id, requesters.iter().copied(), now));
    let output = stored_requester::output_limits(*limits, workspace_id, requesters, now);
    let mut wanted: Vec<_> = Vec::new();
    for script in commands.iter().filter_map(|stored| stored.command.script) {
        if !wanted.contains(&script) && wanted.len() < MAX_SCRIPTS_TOGETHER {
            wanted.push(script);
        }
    }
    let read_scripts = (!wanted.is_empty()).then(|| scripts::for_delivery(workspace_id, &wanted));
    let statements = [statement, output].into_iter().chain(read_scripts).collect();
    let outcomes = db::batch(database, statements).await?;
    let mut outcomes = outcomes.iter();
    let rows = outcomes.next().map(db::column::<String>).transpose()?.unwrap_or_default();
    if rows.len() < commands.len() {
        return Ok(None);
    }
    let output_limits = outcomes.next().map(db::column::<u64>).transpose()?.unwrap_or_default();
    let scripts = outcomes.next().map(db::rows::<ScriptRow>).transpose()?.unwrap_or_default();
    let scripts: BTreeMap<_, _> = scripts.into_iter().map(ScriptRow::into_entry).collect();
    let is_lost = |script| wanted.contains(&script) && !scripts.contains_key(&script);
    let verdict = |(row, stored): (&String, &StoredCommand)| {
        let permissions = serde_json::from_str::<PermissionRow>(row)?.permissions();
        let is_lost = stored.command.script.is_some_and(is_lost);
        Ok(permissions.and_then(|found| if is_lost { Err(Denial::Script) } else { Ok(found) }))
    };
    let permissions = rows.iter().zip(commands).map(verdict).collect::<Result<_, Error>>()?;
    Ok(Some(Verdicts { permissions, scripts, output_limits }))
}

/// The statements that write a command's pending audit events, and then its latest state.
fn update_command(stored: &StoredCommand, output: &Output) -> Result<Vec<Statement>, Error> {
    let (life, loss) = (&stored.life, stored.output_loss());
    let outcome = life.outcome();
    let (head, full_result) = split_result(output.result.as_deref());
    let sql = "UPDATE commands SET delivered_at = :delivered_at, acked_at = :acked_at, handled_at = :handled_at,
            state = :state, status_message = :message, success = :success, exit_code = :exit_code,
            response_delay = :response_delay, elapsed_time = :elapsed_time, output_bytes = :output_bytes,
            output_skipped = :output_skipped, result_truncated = :truncated, result = :head, full_result = :full_result,
            result_sha256 = iif(batch_id IS NULL, NULL, :result_sha256), revision = :revision
         WHERE workspace_id = :workspace_id AND id = :id AND revision < :revision";
    let update = Statement::new(sql).bind_all(params! {
        workspace_id: stored.workspace_id,
        id: stored.command.id,
        revision: stored.revision,
        delivered_at: life.delivered_at,
        acked_at: life.acked_at,
        handled_at: life.handled_at,
        state: life.state().as_str(),
        message: loss.explain(life.message()),
        success: life.success(),
        exit_code: outcome.and_then(|outcome| outcome.exit_code),
        response_delay: life.response_delay(),
        elapsed_time: outcome.and_then(|outcome| outcome.elapsed_time),
        output_bytes: output.bytes,
        output_skipped: loss.skipped,
        truncated: output.truncated,
        head,
        full_result,
        result_sha256: stored.command.batch.and(output.result.as_deref()).map(sha256),
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

/// The statements that delete a withdrawn command, with an audit event if D1 has the command.
fn delete_command(workspace_id: i64, id: Uuid) -> Result<Vec<Statement>, Error> {
    let delete = deletion(workspace_id, id, "c.id = :id AND c.acked_at IS NULL");
    // The event is written only if the statement before it, which deletes the command, changed a
    // row.
    let event = service_event("command.withdraw")?.with_object(Some(id.to_string()), None);
    Ok([delete, vec![audit::after_change(workspace_id, &event)?]].concat())
}

/// Runs statements in one transaction and one round trip.
async fn send(database: &Database, statements: Vec<Statement>) -> Result<(), Error> {
    if statements.is_empty() { Ok(()) } else { db::execute_all(database, statements).await }
}
