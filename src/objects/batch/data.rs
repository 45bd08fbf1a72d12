//! Reads a batch from D1.

use std::cell::Cell;

use farhand_domain::agent::wire::Script;
use farhand_domain::audit::event::{ActorType, AuditEvent, CredentialType, Source};
use farhand_domain::batch::command_id;
use farhand_domain::batch::event::{Batch, BatchState};
use farhand_domain::batch::limits::Limits;
use farhand_domain::batch::request::OfflineTargets;
use farhand_domain::batch::target::{Run, Started, Target, TargetState};
use farhand_domain::command::end::Cancellation;
use farhand_domain::command::request::{Command, CommandSpec, Inputs, Origin, Requester, Shell};
use farhand_domain::command::script::{ScriptCall, ScriptRef};
use farhand_domain::error::Error;
use farhand_domain::secret::SecretKey;
use farhand_domain::time::Timestamp;
use farhand_sql::statement::Statement;
use farhand_sql::{join_command, target_state};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;
use worker::Env;

use crate::platform;
use crate::store::database::Database;
use crate::store::db::{self, params};
use crate::store::stored_requester::StoredRequester;

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
    pub is_unreadable: bool,
    requester: Option<Requester>,
    shell: Shell,
    line: String,
    argv: Option<Vec<String>>,
    script: Option<BatchScript>,
    /// `None`: the default account of each server.
    pub username: Option<String>,
    groupname: String,
    /// The bytes of output that each command may keep, as the last check of targets said; `None`:
    /// no check since the batch was read.
    pub output_limit: Cell<Option<u64>>,
}

/// The script of a batch.
#[derive(Clone, Debug)]
struct BatchScript {
    reference: ScriptRef,
    sha256: String,
    /// `None`: the body is long, or its version is lost. Then each server's object reads it.
    payload: Option<Script>,
}

/// Maximum length of a body that a batch sends to the objects of its servers, in bytes. The calls
/// of a wave are in memory together.
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

    /// The requester, for permission checks.
    pub fn requester(&self) -> StoredRequester {
        StoredRequester {
            user: self.requester.as_ref().map(|requester| requester.id),
            api_token: self.origin.api_token,
            session: self.origin.session,
        }
    }

    /// The audit event of a target's command.
    pub fn event(
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

/// The error if D1 returned something unexpected.
pub fn unexpected() -> Error {
    Error::internal("D1 returned another form")
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
    let results = db::batch(&Database::of(env, workspace_id), vec![batch, targets]).await?;
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
        output_limit: Cell::default(),
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
