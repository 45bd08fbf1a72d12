//! The D1 statements of a batch's object. A request may arrive late or more than once: each write
//! has a condition that makes it harmless then (`farhand_domain::batch::event::Request`).

use farhand_domain::access::rights::default_account;
use farhand_domain::batch::command_id;
use farhand_domain::batch::event::{Answer, Batch, Mark, Position, Request, Rest};
use farhand_domain::batch::target::{Run, TargetState, Verdict};
use farhand_domain::command::end::Cancellation;
use farhand_domain::command::lifecycle::Lifecycle;
use farhand_domain::error::Error;
use farhand_domain::secret::SecretKey;
use farhand_domain::time::Timestamp;
use farhand_sql::command_counts::next_key;
use farhand_sql::quotas;
use farhand_sql::statement::{Statement, Value as Parameter};
use farhand_sql::{counted_targets, join_command, target_state};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;
use worker::Env;

use super::data::{BatchData, unexpected};
use crate::platform::{self, Config, Quotas};
use crate::store::audit::Insert;
use crate::store::database::Database;
use crate::store::db::{self, params};
use crate::store::permission_rows::{self, PermissionRow};
use crate::store::stored_requester::{self, REQUESTERS};

/// Sends a request of the machine, except [`Request::Load`].
///
/// # Errors
/// D1 failed. It is unknown whether D1 ran the request's statements.
pub async fn query(
    env: &Env,
    data: &BatchData,
    batch: &Batch,
    request: &Request,
) -> Result<Answer, Error> {
    let database = &Database::of(env, data.workspace_id);
    match request {
        Request::Load => Err(unexpected()),
        Request::Check(positions) => {
            check(database, &Config::from_env(env).quotas, data, positions).await
        }
        Request::Insert { runs, started, added_at, marks } => {
            let key = platform::secret_key(env)?;
            insert(database, &key, (data, batch), runs, (*started, *added_at), marks).await
        }
        Request::Mark(marks) => {
            db::execute_all(database, mark(data, marks)).await?;
            Ok(Answer::Written)
        }
        Request::EndRest(rest) => {
            db::execute_all(database, end_rest(data, *rest)).await?;
            Ok(Answer::Written)
        }
        Request::Finish => finish(database, data).await,
    }
}

/// Checks whether targets may start, after a scheduled batch that is due has become running.
async fn check(
    database: &Database,
    limits: &Quotas,
    data: &BatchData,
    positions: &[Position],
) -> Result<Answer, Error> {
    #[derive(Deserialize)]
    struct Row {
        permission: PermissionRow,
        server: Option<Uuid>,
        server_name: String,
        is_connected: bool,
        is_pending: bool,
        default_username: Option<String>,
    }
    let (id, workspace_id, now) = (data.id, data.workspace_id, platform::now());
    let begin = Statement::new(
        "UPDATE batches SET state = 'running'
         WHERE id = :id AND workspace_id = :workspace_id AND state = 'scheduled' AND scheduled_at <= :now",
    )
    .bind_all(params! { id, workspace_id, now });
    let (me, object) = (permission_rows::ME, permission_rows::object());
    let sql = format!(
        "WITH {REQUESTERS}, {me}
         SELECT json_object('permission', {object}, 'server', s.id, 'server_name', coalesce(s.name, t.server_name),
            'is_connected', json(iif(s.is_connected, 'true', 'false')),
            'is_pending', json(iif(s.registration = 'pending', 'true', 'false')),
            'default_username', coalesce(s.default_username, s.reported_username)) AS body
         FROM me CROSS JOIN json_each(:positions) p
         CROSS JOIN batch_targets t ON t.workspace_id = :workspace_id AND t.batch_id = :id AND t.position = p.value
         LEFT JOIN servers s ON s.id = t.server_id AND s.workspace_id = t.workspace_id
         WHERE EXISTS (SELECT 1 FROM batches b JOIN workspaces w ON w.id = b.workspace_id AND w.deleted_at IS NULL
            WHERE b.id = :id AND b.workspace_id = :workspace_id AND b.state = 'running')
         ORDER BY p.key"
    );
    let rows = Statement::new(sql)
        .bind_all(params! { id, positions: Parameter::list(positions) })
        .bind_all(stored_requester::parameters(workspace_id, [data.requester()], now));
    let results = db::batch(database, vec![begin, rows, room(limits, data)]).await?;
    let [_, rows, room] = results.as_slice() else { return Err(unexpected()) };
    let rows = db::column::<String>(rows)?;
    let room = db::first_value::<String>(room)?.ok_or_else(unexpected)?;
    let (mut bytes_left, output_limit) = serde_json::from_str::<(i64, u64)>(&room)?;
    data.output_limit.set(Some(output_limit));
    if rows.len() < positions.len() {
        return Ok(Answer::Checked(None));
    }
    let verdict = |row: &String| {
        let row: Row = serde_json::from_str(row)?;
        let cancelled = |why: Cancellation| Verdict::Refused(format!("Cancelled, {why}."));
        let Some(server) = row.server else {
            return Ok(cancelled(Cancellation::ServerDeleted));
        };
        if data.is_unreadable {
            return Ok(cancelled(Cancellation::InputsUnreadable));
        }
        if row.is_pending {
            return Ok(Verdict::Refused("Its server waits for approval.".to_owned()));
        }
        let run = row.permission.permissions().and_then(|permissions| {
            let username = data.username.clone().unwrap_or_else(|| {
                let default = row.default_username.as_deref();
                default_account(default, permissions.any_account, &permissions.username).to_owned()
            });
            let run = Run { username, server_name: row.server_name.clone() };
            permissions.allow(&data.command(server, &run), &data.origin).map(|()| run)
        });
        Ok(match run {
            Err(denial) => cancelled(Cancellation::NotAllowed(denial)),
            Ok(_) if !row.is_connected => Verdict::Offline,
            Ok(run) => {
                let bytes = data.command(server, &run).stored_bytes(data.inputs.as_ref());
                bytes_left = bytes_left.saturating_sub_unsigned(bytes);
                if bytes_left < 0 {
                    let reason = "Cancelled, as the quota of bytes is used up.";
                    return Ok(Verdict::Refused(reason.to_owned()));
                }
                Verdict::Ready(run)
            }
        })
    };
    let verdicts = rows.iter().map(verdict).collect::<Result<_, Error>>()?;
    Ok(Answer::Checked(Some(verdicts)))
}

/// The statement that reads how many bytes the requester may still store, and how many bytes of
/// output a command may keep, as `[bytes_left, output_limit]` (contract 11.4).
fn room(limits: &Quotas, data: &BatchData) -> Statement {
    let rank = "coalesce(iif(r.is_superuser, 2, r.is_staff), 0)";
    let sql = format!(
        "WITH {REQUESTERS}
         SELECT (SELECT json_array({}, {}) FROM {} u) AS body FROM requesters r",
        quotas::bytes_left(rank),
        quotas::output_limit(rank),
        quotas::usage("r.workspace_id", "r.user_id", ":now")
    );
    let requester = [data.requester()];
    Statement::new(sql)
        .bind_all(stored_requester::parameters(data.workspace_id, requester, platform::now()))
        .bind_all(params! {
            bytes_of_day: limits.bytes_of_day, bytes_of_user: limits.bytes_of_user,
            output_of_day: limits.output_of_day, output_of_user: limits.output_of_user,
        })
}

/// SQL for the condition that a row of `batch_targets t` has no command and has not ended.
const IS_WAITING: &str = "(t.state IS NULL OR t.state = 'queued') AND NOT EXISTS (SELECT 1 FROM commands c
    WHERE c.workspace_id = t.workspace_id AND c.batch_id = t.batch_id AND c.server_id = t.server_id)";

/// The statement that subtracts the rows that the statement before it changed from the number of
/// pending targets.
fn subtract_pending(data: &BatchData) -> Statement {
    Statement::new(
        "UPDATE batches SET pending = max(pending - changes(), 0)
         WHERE id = :id AND workspace_id = :workspace_id AND changes() > 0",
    )
    .bind_all(params! { id: data.id, workspace_id: data.workspace_id })
}

/// Inserts the commands of a wave with their audit events, as delivered: they are sent a moment
/// later. Inserts none if the requester's credential is not valid any more: the check of the
/// targets may be some seconds old.
async fn insert(
    database: &Database,
    key: &SecretKey,
    (data, batch): (&BatchData, &Batch),
    runs: &[(Position, Run)],
    (started, added_at): (u64, Timestamp),
    marks: &[Mark],
) -> Result<Answer, Error> {
    let (workspace_id, id) = (data.workspace_id, data.id);
    let (mut commands, mut events) = (Vec::new(), Vec::new());
    let mut bytes = 0;
    for (position, run) in runs {
        let Some(target) = batch.targets.get(*position as usize) else { continue };
        let command = data.command(target.server, run);
        bytes = command.stored_bytes(data.inputs.as_ref());
        events.push(json!({"command": command.id, "event": data.event(&command, added_at, key)?}));
        commands.push(json!([position, command.id, run.username, run.server_name]));
    }
    let mut life = Lifecycle::new(added_at, None, Some(batch.expires_at), data.timeout);
    life.deliver(added_at);
    let insert = format!(
        "WITH {REQUESTERS}
         INSERT INTO commands (seq, workspace_id, id, server_id, server_name, requested_by, shell, line, username,
            groupname, timeout, added_at, scheduled_at, expires_at, state, status_message, delivered_at, argv,
            has_inputs, batch_id, script, stored_bytes)
         SELECT {} - 1 + row_number() OVER (), b.workspace_id, r.value ->> 1, s.id, r.value ->> 3, b.requested_by,
            b.shell, b.line, r.value ->> 2, b.groupname, b.timeout, :added_at, :added_at, b.expires_at, :state,
            :status_message, :added_at, b.argv, b.has_inputs, b.id, b.script, :bytes
         FROM batches b
         CROSS JOIN workspaces w ON w.id = b.workspace_id AND w.deleted_at IS NULL
         CROSS JOIN json_each(:commands) r
         CROSS JOIN batch_targets t ON t.workspace_id = b.workspace_id AND t.batch_id = b.id AND t.position = r.value ->> 0
         CROSS JOIN servers s ON s.id = t.server_id AND s.workspace_id = t.workspace_id
         WHERE b.id = :id AND b.workspace_id = :workspace_id AND b.state = 'running'
            AND :started = (SELECT count(*) FROM commands c INDEXED BY commands_by_batch
                WHERE c.workspace_id = :workspace_id AND c.batch_id = :id)
            AND (b.max_errors IS NULL OR b.max_errors >= (SELECT count(*) FROM commands c INDEXED BY commands_by_batch
                WHERE c.workspace_id = :workspace_id AND c.batch_id = :id AND c.state IN ('failed', 'expired', 'stuck')))
            AND EXISTS (SELECT 1 FROM requesters WHERE is_active AND has_token AND NOT is_revoked)
            AND {IS_WAITING}
         RETURNING id",
        next_key(":workspace_id")
    );
    let insert = Statement::new(insert).bind_all(params! {
        id, workspace_id, started, added_at, bytes, commands: Parameter::list(&commands),
        state: life.state().as_str(), status_message: life.message(),
    });
    let requester = [data.requester()];
    let insert =
        insert.bind_all(stored_requester::parameters(workspace_id, requester, platform::now()));
    // A command has one such event, even if D1 carries out the request twice.
    let rest = "FROM (SELECT r.value -> 'event' AS event FROM json_each(:events) r
        CROSS JOIN commands c ON c.workspace_id = :workspace_id AND c.id = r.value ->> 'command'
        WHERE c.added_at = :added_at AND NOT EXISTS (SELECT 1 FROM audit_events a INDEXED BY audit_events_by_object
            WHERE a.workspace_id = :workspace_id AND a.object_id = c.id AND a.action = 'command.create')) e";
    let events_sql = Insert::from_event(":workspace_id", "e.event", rest).sql_of_many();
    let events = Statement::new(events_sql)
        .bind_all(params! { workspace_id, added_at, events: Parameter::list(&events) });
    let statements = [vec![insert, subtract_pending(data), events], mark(data, marks)].concat();
    let results = db::batch(database, statements).await?;
    let inserted = db::column::<Uuid>(results.first().ok_or_else(unexpected)?)?;
    let is_inserted = |position: &&(Position, Run)| {
        let target = batch.targets.get(position.0 as usize);
        target
            .is_some_and(|target| inserted.contains(&command_id(data.added_at, id, target.server)))
    };
    Ok(Answer::Inserted(runs.iter().filter(is_inserted).map(|(position, _)| *position).collect()))
}

/// The statements that set the states of waiting targets. Targets whose server has connected do not
/// become queued: their server does not notify the batch.
fn mark(data: &BatchData, marks: &[Mark]) -> Vec<Statement> {
    if marks.is_empty() {
        return vec![];
    }
    let update = |marks: Vec<Value>, condition: &str| {
        let sql = format!(
            "UPDATE batch_targets AS t SET state = m.value ->> 1, reason = m.value ->> 2 FROM json_each(:marks) m
             WHERE t.workspace_id = :workspace_id AND t.batch_id = :id AND t.position = m.value ->> 0
                AND {IS_WAITING} AND {condition}"
        );
        Statement::new(sql).bind_all(params! {
            id: data.id, workspace_id: data.workspace_id, marks: Parameter::list(marks),
        })
    };
    let (queued, ended): (Vec<_>, Vec<_>) =
        marks.iter().partition(|mark| mark.state == TargetState::Queued);
    let rows = |marks: Vec<&Mark>| {
        marks
            .into_iter()
            .map(|mark| json!([mark.position, mark.state.as_str(), mark.reason]))
            .collect::<Vec<_>>()
    };
    let is_offline = "NOT EXISTS (SELECT 1 FROM servers s
        WHERE s.id = t.server_id AND s.workspace_id = t.workspace_id AND s.is_connected)";
    vec![update(rows(ended), "true"), subtract_pending(data), update(rows(queued), is_offline)]
}

/// The statements that end all waiting targets.
fn end_rest(data: &BatchData, rest: Rest) -> Vec<Statement> {
    let (id, workspace_id) = (data.id, data.workspace_id);
    // After a restore of D1, a late request must not end a batch that goes on.
    let condition = match rest {
        Rest::Cancelled => "b.stopped_by = 'cancel'",
        Rest::TooManyErrors => "b.state = 'stopping'",
        Rest::Expired => "b.expires_at <= :now",
    };
    let stop = Statement::new(
        "UPDATE batches SET state = 'stopping', stopped_by = 'errors'
         WHERE id = :id AND workspace_id = :workspace_id AND state IN ('scheduled', 'running')",
    )
    .bind_all(params! { id, workspace_id });
    let end = Statement::new(format!(
        "UPDATE batch_targets AS t SET state = :state, reason = :reason
         WHERE t.workspace_id = :workspace_id AND t.batch_id = :id AND {IS_WAITING}
            AND EXISTS (SELECT 1 FROM batches b WHERE b.id = :id AND b.workspace_id = :workspace_id
                AND b.finished_at IS NULL AND {condition})"
    ))
    .bind_all(params! {
        id, workspace_id, state: rest.state().as_str(), reason: rest.reason(),
    });
    let end = if rest == Rest::Expired { end.bind("now", platform::now()) } else { end };
    let stop = (rest == Rest::TooManyErrors).then_some(stop);
    stop.into_iter().chain([end, subtract_pending(data)]).collect()
}

/// Stores the final counts, if all targets have ended.
async fn finish(database: &Database, data: &BatchData) -> Result<Answer, Error> {
    let (id, workspace_id, now) = (data.id, data.workspace_id, platform::now());
    let update = Statement::new(format!(
        "UPDATE batches AS b SET counts = {}, finished_at = :now, inputs = NULL, pending = 0,
            state = iif(b.stopped_by IS 'cancel', 'cancelled', 'finished')
         WHERE b.id = :id AND b.workspace_id = :workspace_id AND b.finished_at IS NULL
            AND NOT EXISTS (SELECT 1 FROM batch_targets t {}
                WHERE t.workspace_id = :workspace_id AND t.batch_id = :id AND {} IN ('pending', 'queued', 'sent', 'running'))",
        counted_targets!(),
        join_command!(),
        target_state!(),
    ))
    .bind_all(params! { id, workspace_id, now });
    let read = Statement::new(
        "SELECT count(*) AS n FROM batches
         WHERE id = :id AND workspace_id = :workspace_id AND finished_at IS NOT NULL",
    )
    .bind_all(params! { id, workspace_id });
    let results = db::batch(database, vec![update, read]).await?;
    let finished = db::first_value::<i64>(results.last().ok_or_else(unexpected)?)?;
    Ok(Answer::Finished(finished == Some(1)))
}
