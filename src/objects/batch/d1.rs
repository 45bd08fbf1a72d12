//! The D1 statements of a batch's object. A request may arrive late or more than once: each write
//! has a condition that makes it harmless then (`farhand_domain::batch::event::Request`).

use farhand_domain::audit::{ActorType, AuditEvent, CredentialType, Source};
use farhand_domain::batch::command_id;
use farhand_domain::batch::event::{Answer, Batch, BatchState, Mark, Position, Request, Rest};
use farhand_domain::batch::limits::Limits;
use farhand_domain::batch::target::{Run, Started, Target, TargetState, Verdict};
use farhand_domain::batch_request::OfflineTargets;
use farhand_domain::command::{Command, CommandSpec, Inputs, Origin, Requester, Shell};
use farhand_domain::command_end::Cancellation;
use farhand_domain::error::Error;
use farhand_domain::lifecycle::Lifecycle;
use farhand_domain::rights::default_account;
use farhand_domain::script::{ScriptCall, ScriptRef};
use farhand_domain::secret::SecretKey;
use farhand_domain::time::Timestamp;
use farhand_domain::wire::Script;
use farhand_sql::command_counts::next_key;
use farhand_sql::statement::{Statement, Value as Parameter};
use farhand_sql::{batch_counts, join_command, target_state};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;
use worker::Env;

use crate::platform;
use crate::store::audit::Insert;
use crate::store::db::{self, params};
use crate::store::permission_rows::{self, PermissionRow};
use crate::store::stored_requester::{self, REQUESTERS, StoredRequester};

/// The columns of a batch that the machine does not need.
#[derive(Clone, Debug)]
pub struct BatchData {
    pub workspace_id: i64,
    pub id: Uuid,
    pub added_at: Timestamp,
    pub timeout: i64,
    pub origin: Origin,
    pub inputs: Option<Inputs>,
    /// Whether the inputs cannot be decrypted: `SECRET_KEY` was replaced.
    is_unreadable: bool,
    requester: Option<Requester>,
    shell: Shell,
    line: String,
    argv: Option<Vec<String>>,
    script: Option<BatchScript>,
    /// `None`: the default account of each server.
    username: Option<String>,
    groupname: String,
}

/// The script of a batch.
#[derive(Clone, Debug)]
struct BatchScript {
    reference: ScriptRef,
    sha256: String,
    /// `None`: the body is long, or its version is lost. Then each server's object reads it.
    payload: Option<Script>,
}

/// Maximum length of a body that a batch sends to the objects of its servers, in bytes. The calls of
/// a wave are in memory together.
const MAX_SENT_BODY: usize = 64 * 1024;

impl BatchScript {
    /// `found`: interpreter, body and SHA-256 of the version.
    fn new(reference: ScriptRef, found: Option<Script>) -> Self {
        let sha256 = found.as_ref().map(|script| script.sha256.clone()).unwrap_or_default();
        let payload = found.filter(|script| script.body.len() <= MAX_SENT_BODY);
        Self { reference, sha256, payload }
    }
}

impl BatchData {
    /// The script for the object of a target's server, if it is short.
    pub fn script(&self) -> Option<Script> {
        self.script.as_ref()?.payload.clone()
    }

    /// The command of a target.
    pub fn command(&self, server: Uuid, run: &Run) -> Command {
        Command {
            id: command_id(self.added_at, self.id, server),
            shell: self.shell,
            line: self.line.clone(),
            argv: self.argv.clone(),
            script: self.script.as_ref().map(|script| script.reference),
            username: run.username.clone(),
            groupname: self.groupname.clone(),
            server,
            server_name: run.server_name.clone(),
            requested_by: self.requester.clone(),
            batch: Some(self.id),
        }
    }

    /// Why a target's command is cancelled.
    pub fn cancellation(&self, started: &Started) -> Cancellation {
        if started.is_server_deleted {
            Cancellation::ServerDeleted
        } else {
            Cancellation::BatchCancelled
        }
    }

    fn requester(&self) -> StoredRequester {
        StoredRequester {
            user: self.requester.as_ref().map(|requester| requester.id),
            api_token: self.origin.api_token,
            session: self.origin.session,
        }
    }

    /// The audit event of a target's command.
    fn event(
        &self,
        command: &Command,
        now: Timestamp,
        key: &SecretKey,
    ) -> Result<AuditEvent, Error> {
        let source = Source { remote_ip: Some(self.origin.remote_ip.clone()), request_id: None };
        let event = AuditEvent::new(platform::new_id(now)?, now, source, "command.create");
        let user = command.requested_by.as_ref();
        let (id, name) =
            (user.map(|user| user.id.to_string()), user.map(|user| user.username.clone()));
        let event = event.with_actor(ActorType::User, id, name);
        let event = match (self.origin.api_token, self.origin.session) {
            (Some(id), _) => event.with_credential(CredentialType::ApiToken, Some(id.to_string())),
            (_, Some(id)) => event.with_credential(CredentialType::Session, Some(id.to_string())),
            (None, None) => event,
        };
        let spec = CommandSpec {
            shell: command.shell,
            line: command.line.clone(),
            argv: None,
            script: self.script.as_ref().map(|script| ScriptCall {
                sha256: Some(script.sha256.clone()),
                ..ScriptCall::from(script.reference)
            }),
            username: Some(command.username.clone()),
            groupname: command.groupname.clone(),
            timeout: self.timeout,
            // The event of the batch has the details of the inputs.
            inputs: None,
        };
        let mut details = spec.audit_details(key)?;
        details["server"] = json!({"id": command.server, "name": command.server_name});
        details["batch"] = json!(self.id);
        Ok(event.with_object(Some(command.id.to_string()), None).details(details))
    }
}

/// Reads a batch; `None`: D1 has no such batch.
///
/// # Errors
/// D1 failed.
pub async fn load(
    env: &Env,
    (workspace_id, id): (i64, Uuid),
) -> Result<Option<(BatchData, Batch)>, Error> {
    #[derive(Deserialize)]
    struct Row {
        state: BatchState,
        stopped_by: Option<String>,
        added_at: Timestamp,
        scheduled_at: Timestamp,
        expires_at: Timestamp,
        finished_at: Option<Timestamp>,
        max_concurrency: u64,
        max_errors: Option<u64>,
        ramp: bool,
        on_offline: OfflineTargets,
        is_workspace_deleted: bool,
        requester: Option<Requester>,
        api_token: Option<Uuid>,
        session: Option<Uuid>,
        remote_ip: Option<String>,
        shell: Shell,
        line: String,
        argv: Option<Vec<String>>,
        script: Option<ScriptRef>,
        script_version: Option<Script>,
        username: Option<String>,
        groupname: String,
        timeout: i64,
        inputs: Option<String>,
        has_inputs: bool,
    }
    let batch = Statement::new(
        "SELECT json_object('state', b.state, 'stopped_by', b.stopped_by, 'added_at', b.added_at,
            'scheduled_at', b.scheduled_at, 'expires_at', b.expires_at, 'finished_at', b.finished_at,
            'max_concurrency', b.max_concurrency, 'max_errors', b.max_errors,
            'ramp', json(iif(b.ramp, 'true', 'false')), 'on_offline', b.on_offline,
            'is_workspace_deleted', json(iif(w.deleted_at IS NULL, 'false', 'true')),
            'requester', (SELECT json_object('id', u.id, 'username', u.username, 'email', u.email)
                FROM users u WHERE u.id = b.requested_by AND u.workspace_id = b.workspace_id),
            'api_token', b.api_token, 'session', b.session, 'remote_ip', b.remote_ip, 'shell', b.shell, 'line', b.line,
            'argv', json(b.argv), 'script', b.script,
            'script_version', json((SELECT json_object('interpreter', v.interpreter, 'body', v.body, 'sha256', v.sha256)
                FROM script_versions v WHERE v.workspace_id = b.workspace_id
                    AND v.script_id = substr(b.script, 1, instr(b.script, '@') - 1)
                    AND v.version = CAST(substr(b.script, instr(b.script, '@') + 1) AS INTEGER))),
            'username', b.username, 'groupname', b.groupname, 'timeout', b.timeout,
            'inputs', b.inputs, 'has_inputs', json(iif(b.has_inputs, 'true', 'false'))) AS body
         FROM batches b JOIN workspaces w ON w.id = b.workspace_id
         WHERE b.id = :id AND b.workspace_id = :workspace_id",
    )
    .bind_all(params! { id, workspace_id });
    let targets = Statement::new(format!(
        "SELECT json_array(t.position, t.server_id, {}, c.exit_code, coalesce(c.handled_at, c.acked_at, c.delivered_at),
            coalesce(s.is_connected, 1), s.id IS NULL, c.username, c.server_name, c.added_at, coalesce(c.revision, 0)) AS body
         FROM batch_targets t {}
         LEFT JOIN servers s ON s.id = t.server_id AND s.workspace_id = t.workspace_id
         WHERE t.workspace_id = :workspace_id AND t.batch_id = :id ORDER BY t.position",
        target_state!(),
        join_command!()
    ))
    .bind_all(params! { id, workspace_id });
    let results = db::batch(env, vec![batch, targets]).await?;
    let [batch, targets] = results.as_slice() else { return Err(unexpected()) };
    let Some(row) = db::first_value::<String>(batch)? else { return Ok(None) };
    let row: Row = serde_json::from_str(&row)?;
    let targets = db::column::<String>(targets)?.into_iter().enumerate();
    let targets = targets.map(|(place, row)| read_target(place, &row)).collect::<Result<_, _>>()?;
    let state = match row.state {
        BatchState::Stopping if row.stopped_by.as_deref() == Some("cancel") => {
            BatchState::Cancelled
        }
        state => state,
    };
    let key = platform::secret_key(env)?;
    let inputs = row.inputs.as_ref().map(|sealed| {
        let text = key.decrypt_inputs(id, sealed)?;
        serde_json::from_str::<Inputs>(&text).ok()
    });
    let data = BatchData {
        workspace_id,
        id,
        added_at: row.added_at,
        timeout: row.timeout,
        origin: Origin {
            api_token: row.api_token,
            session: row.session,
            remote_ip: row.remote_ip.unwrap_or_default(),
            has_inputs: row.has_inputs,
        },
        is_unreadable: inputs == Some(None),
        inputs: inputs.flatten(),
        requester: row.requester,
        shell: row.shell,
        line: row.line,
        argv: row.argv,
        script: row.script.map(|reference| BatchScript::new(reference, row.script_version)),
        username: row.username,
        groupname: row.groupname,
    };
    let batch = Batch {
        state,
        scheduled_at: row.scheduled_at,
        expires_at: row.expires_at,
        finished_at: row.finished_at,
        limits: Limits {
            max_concurrency: row.max_concurrency,
            max_errors: row.max_errors,
            ramp: row.ramp,
        },
        on_offline: row.on_offline,
        is_workspace_deleted: row.is_workspace_deleted,
        targets,
    };
    Ok(Some((data, batch)))
}

fn unexpected() -> Error {
    Error::internal("D1 returned another form")
}

/// Reads a target from the array that [`load`] selects. A deleted server counts as connected, so
/// that its target is checked, and ends.
fn read_target(place: usize, row: &str) -> Result<Target, Error> {
    type Row = (
        usize,
        Uuid,
        TargetState,
        Option<i64>,
        Option<Timestamp>,
        i64,
        i64,
        Option<String>,
        Option<String>,
        Option<Timestamp>,
        i64,
    );
    let (
        position,
        server,
        state,
        exit_code,
        at,
        is_connected,
        is_deleted,
        username,
        name,
        added_at,
        revision,
    ) = serde_json::from_str::<Row>(row)?;
    if position != place {
        return Err(unexpected());
    }
    let mut target = Target::new(server, state);
    (target.exit_code, target.at, target.is_online) = (exit_code, at, is_connected != 0);
    if let (Some(username), Some(server_name), Some(added_at)) = (username, name, added_at) {
        let mut started = Started::new(Run { username, server_name }, added_at, revision > 0);
        started.is_server_deleted = is_deleted != 0;
        target.started = Some(started);
    }
    Ok(target)
}

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
    match request {
        Request::Load => Err(unexpected()),
        Request::Check(positions) => check(env, data, positions).await,
        Request::Insert { runs, started, added_at, marks } => {
            insert(env, (data, batch), runs, (*started, *added_at), marks).await
        }
        Request::Mark(marks) => {
            db::execute_all(env, mark(data, marks)).await?;
            Ok(Answer::Written)
        }
        Request::EndRest(rest) => {
            db::execute_all(env, end_rest(data, *rest)).await?;
            Ok(Answer::Written)
        }
        Request::Finish => finish(env, data).await,
    }
}

/// Checks whether targets may start, after a scheduled batch that is due has become running.
async fn check(env: &Env, data: &BatchData, positions: &[Position]) -> Result<Answer, Error> {
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
    let results = db::batch(env, vec![begin, rows]).await?;
    let rows = db::column::<String>(results.last().ok_or_else(unexpected)?)?;
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
            Ok(run) => Verdict::Ready(run),
        })
    };
    let verdicts = rows.iter().map(verdict).collect::<Result<_, Error>>()?;
    Ok(Answer::Checked(Some(verdicts)))
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
/// later.
async fn insert(
    env: &Env,
    (data, batch): (&BatchData, &Batch),
    runs: &[(Position, Run)],
    (started, added_at): (u64, Timestamp),
    marks: &[Mark],
) -> Result<Answer, Error> {
    let (workspace_id, id) = (data.workspace_id, data.id);
    let (mut commands, mut events) = (Vec::new(), Vec::new());
    let (mut bytes, key) = (0, platform::secret_key(env)?);
    for (position, run) in runs {
        let Some(target) = batch.targets.get(*position as usize) else { continue };
        let command = data.command(target.server, run);
        bytes = command.stored_bytes(data.inputs.as_ref());
        events.push(json!({"command": command.id, "event": data.event(&command, added_at, &key)?}));
        commands.push(json!([position, command.id, run.username, run.server_name]));
    }
    let mut life = Lifecycle::new(added_at, None, Some(batch.expires_at), data.timeout);
    life.deliver(added_at);
    let insert = format!(
        "INSERT INTO commands (seq, workspace_id, id, server_id, server_name, requested_by, shell, line, username,
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
            AND {IS_WAITING}
         RETURNING id",
        next_key(":workspace_id")
    );
    let insert = Statement::new(insert).bind_all(params! {
        id, workspace_id, started, added_at, bytes, commands: Parameter::list(&commands),
        state: life.state().as_str(), status_message: life.message(),
    });
    // A command has one such event, even if D1 carries out the request twice.
    let rest = "FROM (SELECT r.value -> 'event' AS event FROM json_each(:events) r
        CROSS JOIN commands c ON c.workspace_id = :workspace_id AND c.id = r.value ->> 'command'
        WHERE c.added_at = :added_at AND NOT EXISTS (SELECT 1 FROM audit_events a INDEXED BY audit_events_by_object
            WHERE a.workspace_id = :workspace_id AND a.object_id = c.id AND a.action = 'command.create')) e";
    let events_sql = Insert::from_event(":workspace_id", "e.event", rest).sql_of_many();
    let events = Statement::new(events_sql)
        .bind_all(params! { workspace_id, added_at, events: Parameter::list(&events) });
    let was_queued = |(position, _): &&(Position, Run)| {
        let target = batch.targets.get(*position as usize);
        target.is_some_and(|target| target.state == TargetState::Queued)
    };
    let queued: Vec<_> = runs.iter().filter(was_queued).map(|(position, _)| *position).collect();
    // Its command has the state from now on.
    let unqueue = Statement::new(
        "UPDATE batch_targets AS t SET state = NULL, reason = NULL FROM json_each(:queued) q
         WHERE t.workspace_id = :workspace_id AND t.batch_id = :id AND t.position = q.value AND t.state = 'queued'
            AND EXISTS (SELECT 1 FROM commands c WHERE c.workspace_id = t.workspace_id
                AND c.batch_id = t.batch_id AND c.server_id = t.server_id)",
    )
    .bind_all(params! { id, workspace_id, queued: Parameter::list(&queued) });
    let unqueue = if queued.is_empty() { vec![] } else { vec![unqueue] };
    let statements =
        [vec![insert, subtract_pending(data), events], unqueue, mark(data, marks)].concat();
    let results = db::batch(env, statements).await?;
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
         WHERE id = :id AND workspace_id = :workspace_id AND state = 'running'",
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
async fn finish(env: &Env, data: &BatchData) -> Result<Answer, Error> {
    let (id, workspace_id, now) = (data.id, data.workspace_id, platform::now());
    let update = Statement::new(format!(
        "UPDATE batches AS b SET counts = {}, finished_at = :now, inputs = NULL, pending = 0,
            state = iif(b.stopped_by IS 'cancel', 'cancelled', 'finished')
         WHERE b.id = :id AND b.workspace_id = :workspace_id AND b.finished_at IS NULL
            AND NOT EXISTS (SELECT 1 FROM batch_targets t {}
                WHERE t.workspace_id = :workspace_id AND t.batch_id = :id AND {} IN ('pending', 'queued', 'sent', 'running'))",
        batch_counts!(),
        join_command!(),
        target_state!(),
    ))
    .bind_all(params! { id, workspace_id, now });
    let read = Statement::new(
        "SELECT count(*) AS n FROM batches
         WHERE id = :id AND workspace_id = :workspace_id AND finished_at IS NOT NULL",
    )
    .bind_all(params! { id, workspace_id });
    let results = db::batch(env, vec![update, read]).await?;
    let finished = db::first_value::<i64>(results.last().ok_or_else(unexpected)?)?;
    Ok(Answer::Finished(finished == Some(1)))
}
