//! What a server's object reads and writes in D1. Its writes can be repeated and can come late: each carries a revision,
//! and an older one changes nothing.

use farhand_domain::acl::Acl;
use farhand_domain::audit::Event;
use farhand_domain::command::{self, Command, Output, Rights, split_result};
use farhand_domain::lifecycle::{Denial, Lifecycle};
use farhand_domain::time::Timestamp;
use farhand_domain::wire::HostFacts;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;
use worker::{Env, Error, Result};

use super::audit;
use super::db::{self, Failure, Statement};
use super::servers;
use crate::audit::of_service;
use crate::link_calls::Key;
use crate::server_link_sql::Held;

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::RustError(farhand_domain::error::Error::from(failure).detail.into_owned())
    }
}

fn own(error: &farhand_domain::error::Error) -> Error {
    Error::RustError(error.detail.to_string())
}

/// What D1 knows of a server that its object must know.
#[derive(Debug)]
pub struct Found {
    /// The workspace.
    pub workspace_id: i64,
    /// The server's name.
    pub name: String,
    /// The hash of its agent's key.
    pub key_hash: String,
    /// Whether an agent was here before.
    pub commissioned: bool,
    /// The last revision of the object's reports.
    pub revision: i64,
}

/// Finds a server in a workspace that exists.
pub async fn find_server(env: &Env, workspace: &str, server: Uuid) -> Result<Option<Found>> {
    change_server(env, workspace, server, vec![]).await
}

/// SQL for the condition that the user `?3` may still change a row of `servers s` (contract 5): they are active, and staff or
/// its owner. A change waits for its turn, and the right to it may be gone meanwhile.
const PERMITTED: &str =
    "EXISTS (SELECT 1 FROM users u WHERE u.id = ?3 AND u.workspace_id = s.workspace_id AND u.is_active = 1
    AND (u.is_superuser = 1 OR u.is_staff = 1 OR s.owner_id = u.id))";

/// The statements that give a server's agent another key, if a user still may.
pub fn update_key(
    workspace_id: i64,
    server: Uuid,
    by: i64,
    (key_hash, now): (&str, Timestamp),
    event: &Event,
) -> Result<Vec<Statement>> {
    let sql = format!(
        "UPDATE servers AS s SET agent_key_hash = ?4, key_hashed_at = ?5, updated_at = ?5
         WHERE s.id = ?2 AND s.workspace_id = ?1 AND {PERMITTED}"
    );
    let update = Statement::new(sql).bind(workspace_id).bind(server).bind(by).bind(key_hash).bind(now);
    Ok(vec![update, audit::after_change(workspace_id, event).map_err(|error| own(&error))?])
}

/// Another hash of the same key of a server's agent: the pepper was rotated.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rehash {
    /// The one before.
    pub from: String,
    /// The one from now on.
    pub to: String,
    /// When it was made.
    pub at: Timestamp,
}

/// The statement that stores a server's key by another hash. Where it has another key by now, it stays.
pub fn rehash_key(workspace_id: i64, server: Uuid, rehash: &Rehash) -> Statement {
    let sql = "UPDATE servers SET agent_key_hash = ?4, key_hashed_at = ?5
        WHERE id = ?2 AND workspace_id = ?1 AND agent_key_hash = ?3";
    Statement::new(sql).bind(workspace_id).bind(server).bind(&rehash.from).bind(&rehash.to).bind(rehash.at)
}

/// The statements that delete a server, if a user still may; without one, for its own agent. While there are commands of it,
/// their output stays in its object, which is noted.
pub fn delete_server(workspace_id: i64, server: Uuid, by: Option<i64>, event: &Event) -> Result<Vec<Statement>> {
    let is_due = format!("s.id = ?2 AND s.workspace_id = ?1 AND (?3 IS NULL OR {PERMITTED})");
    let statement = |sql: String| Statement::new(sql).bind(workspace_id).bind(server).bind(by);
    Ok(vec![
        statement(format!(
            "INSERT INTO gone_servers (workspace_id, id)
             SELECT s.workspace_id, s.id FROM servers s WHERE {is_due}
             AND EXISTS (SELECT 1 FROM commands c WHERE c.workspace_id = s.workspace_id AND c.server_id = s.id)
             ON CONFLICT (workspace_id, id) DO NOTHING"
        )),
        statement(format!("DELETE FROM servers AS s WHERE {is_due}")),
        audit::after_change(workspace_id, event).map_err(|error| own(&error))?,
    ])
}

/// Changes a server in a workspace that exists, and finds what it is then, in one round trip.
///
/// # Errors
/// D1 did not answer; whether it did what it was told is not known then.
pub async fn change_server(
    env: &Env,
    workspace: &str,
    server: Uuid,
    mut changes: Vec<Statement>,
) -> Result<Option<Found>> {
    let sql = "SELECT s.workspace_id, s.name, s.agent_key_hash, s.commissioned, s.link_revision
        FROM workspaces w JOIN servers s ON s.id = ?2 AND s.workspace_id = w.id
        WHERE w.slug = ?1 AND w.deleted_at IS NULL";
    #[derive(Deserialize)]
    struct Row {
        workspace_id: f64,
        name: String,
        agent_key_hash: String,
        commissioned: f64,
        link_revision: f64,
    }
    changes.push(Statement::new(sql).bind(workspace).bind(server));
    let results = db::batch(env, changes).await?;
    let row = results.last().map(db::first::<Row>).transpose().map_err(|error| own(&error))?.flatten();
    Ok(row.map(|row| Found {
        workspace_id: row.workspace_id as i64,
        name: row.name,
        key_hash: row.agent_key_hash,
        commissioned: row.commissioned != 0.0,
        revision: row.link_revision as i64,
    }))
}

/// What an object knows of its host and connection.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct ServerFacts {
    /// An agent was here and told what its host is.
    pub commissioned: bool,
    /// A socket is open.
    pub is_connected: bool,
    /// Since when.
    pub connected_at: Option<Timestamp>,
    /// When the agent last said something.
    pub last_seen_at: Option<Timestamp>,
    /// From where it connected.
    pub remote_ip: Option<String>,
    agent_version: Option<String>,
    platform: Option<String>,
    os_name: Option<String>,
    os_version: Option<String>,
    cpu_logical_cores: Option<i64>,
    physical_memory: Option<i64>,
    load: Option<f64>,
    /// Counts the changes.
    pub revision: i64,
    /// The revision that D1 has.
    #[serde(default)]
    pub flushed: i64,
}

impl ServerFacts {
    /// What an object knows that has just begun, of a server of which D1 has a revision already.
    pub fn beginning(commissioned: bool, revision: i64) -> Self {
        Self { commissioned, revision, flushed: revision, ..Self::default() }
    }

    /// What is known of the host, in lower case, a line each: for the search.
    fn folded(&self) -> String {
        let texts = [&self.platform, &self.os_name, &self.os_version, &self.agent_version];
        texts.into_iter().flatten().map(|text| text.to_lowercase()).collect::<Vec<_>>().join("\n")
    }

    /// Takes what an agent tells of itself and its host. What is missing stays as it was. Once an agent has committed, its
    /// server is commissioned (agent-protocol 2).
    pub fn learn(&mut self, told: HostFacts, is_commit: bool) {
        fn set<T>(field: &mut Option<T>, value: Option<T>) {
            if value.is_some() {
                *field = value;
            }
        }
        self.commissioned |= is_commit;
        set(&mut self.agent_version, told.version);
        set(&mut self.platform, told.platform);
        set(&mut self.os_name, told.os_name);
        set(&mut self.os_version, told.os_version);
        set(&mut self.cpu_logical_cores, told.cpu_logical_cores);
        set(&mut self.physical_memory, told.physical_memory);
        set(&mut self.load, told.load);
    }
}

/// The statement that tells what is known of a server. What its agent did not tell stays as it was.
pub fn update_server(workspace_id: i64, server: Uuid, facts: &ServerFacts) -> Statement {
    Statement::new(
        "UPDATE servers SET commissioned = ?4, is_connected = ?5, connected_at = ?6, last_seen_at = ?7, remote_ip = ?8,
            agent_version = coalesce(?9, agent_version), platform = coalesce(?10, platform),
            os_name = coalesce(?11, os_name), os_version = coalesce(?12, os_version),
            cpu_logical_cores = coalesce(?13, cpu_logical_cores), physical_memory = coalesce(?14, physical_memory),
            load = coalesce(?15, load), folded = ?16, link_revision = ?3
         WHERE id = ?2 AND workspace_id = ?1 AND link_revision < ?3",
    )
    .bind(workspace_id)
    .bind(server)
    .bind(facts.revision)
    .bind(facts.commissioned)
    .bind(facts.is_connected)
    .bind(facts.connected_at)
    .bind(facts.last_seen_at)
    .bind(facts.remote_ip.as_deref())
    .bind(facts.agent_version.as_deref())
    .bind(facts.platform.as_deref())
    .bind(facts.os_name.as_deref())
    .bind(facts.os_version.as_deref())
    .bind(facts.cpu_logical_cores)
    .bind(facts.physical_memory)
    .bind(facts.load)
    .bind(facts.folded())
}

/// What became of a new command in D1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recorded {
    /// It is there.
    Yes,
    /// Its workspace or its server is gone.
    NoServer,
    /// Its Idempotency-Key is another command's.
    KeyTaken,
}

/// The columns of `commands` that never change, in the order of what [`command_row`] binds after the workspace.
const COMMAND_COLUMNS: &str =
    "workspace_id, id, server_id, server_name, requested_by, shell, line, username, groupname,
    timeout, added_at, scheduled_at, expires_at, state, status_message, delivered_at";

/// A statement that inserts a command, whose `?1` to `?16` are [`COMMAND_COLUMNS`].
fn command_row(sql: String, workspace_id: i64, command: &Command, life: &Lifecycle) -> Statement {
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
}

/// The statement that gives D1 a command that it had and may have lost; one that it has stays as it is. Its latest follows with
/// [`update_command`]. Its requester may be lost, and the number somebody else's now, who joined later.
pub fn restore_command(held: &Held) -> Statement {
    let sql = format!(
        "INSERT INTO commands ({COMMAND_COLUMNS})
         SELECT w.id, ?2, ?3, ?4,
            (SELECT u.id FROM users u WHERE u.id = ?5 AND u.workspace_id = w.id AND u.date_joined <= ?11),
            ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16
         FROM workspaces w
         WHERE w.id = ?1 AND w.deleted_at IS NULL
            AND NOT EXISTS (SELECT 1 FROM commands c WHERE c.workspace_id = ?1 AND c.id = ?2)"
    );
    command_row(sql, held.workspace_id, &held.command, &held.life)
}

/// The statement that takes a restored command away again, which nobody has heard of.
pub fn unrestore_command(held: &Held) -> Statement {
    let sql = "DELETE FROM commands WHERE workspace_id = ?1 AND id = ?2 AND revision = 0 AND handled_at IS NULL";
    Statement::new(sql).bind(held.workspace_id).bind(held.command.id)
}

/// Writes a new command. Where it is not written, nothing is.
pub async fn insert_command(
    env: &Env,
    workspace_id: i64,
    command: &Command,
    life: &Lifecycle,
    key: Option<&Key>,
    event: &Event,
) -> Result<Recorded> {
    let requester = command.requested_by.as_ref().map(|requester| requester.id);
    let sql = format!(
        "INSERT INTO commands ({COMMAND_COLUMNS}, idempotency_key, idempotency_body)
         SELECT w.id, ?2, s.id, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18
         FROM workspaces w JOIN servers s ON s.id = ?3 AND s.workspace_id = w.id
         WHERE w.id = ?1 AND w.deleted_at IS NULL
         RETURNING id"
    );
    let insert = command_row(sql, workspace_id, command, life)
        .bind(key.map(|key| key.hash.as_str()))
        .bind(key.map(|key| key.body.as_str()));
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
    match db::batch(env, statements).await {
        Ok(results) => {
            let made = results.get(place).map(db::column::<String>).transpose().map_err(|error| own(&error))?;
            Ok(if made.is_some_and(|made| !made.is_empty()) { Recorded::Yes } else { Recorded::NoServer })
        }
        Err(Failure::NotUnique(column)) if column == "commands.idempotency_key" => Ok(Recorded::KeyTaken),
        Err(failure) => Err(failure.into()),
    }
}

/// What commands are allowed that are about to go out, in their order: the rights of each one's requester, as they are
/// now, or why there are none.
///
/// # Errors
/// D1 did not answer.
pub async fn find_rights(
    env: &Env,
    workspace_id: i64,
    server: Uuid,
    commands: &[Held],
    now: Timestamp,
) -> Result<Vec<Result<Rights, Denial>>> {
    #[derive(Deserialize)]
    struct Row {
        is_active: bool,
        has_token: bool,
        any_account: Option<bool>,
        username: Option<String>,
        is_staff: bool,
        acl: Option<Value>,
    }
    let asked: Vec<_> = commands
        .iter()
        .map(|held| {
            json!({
                "user": held.command.requested_by.as_ref().map(|requester| requester.id),
                "token": held.origin.as_ref().and_then(|origin| origin.api_token),
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
                t.acl, NULL AS acl_servers
            FROM json_each(?3) c
            LEFT JOIN users u ON u.id = c.value ->> 'user' AND u.workspace_id = ?1
            LEFT JOIN api_tokens t ON t.id = c.value ->> 'token' AND t.workspace_id = ?1 AND t.user_id = u.id
        )
        SELECT json_object('is_active', json(iif(me.is_active, 'true', 'false')),
            'has_token', json(iif(me.has_token, 'true', 'false')), 'username', me.username,
            'is_staff', json(iif(me.is_staff OR me.is_superuser, 'true', 'false')), 'acl', json(me.acl),
            'any_account', json((SELECT iif({any_account}, 'true', 'false')
                FROM servers s WHERE s.id = ?2 AND {reachable}))) AS body
        FROM me ORDER BY me.place"
    );
    let statement = Statement::new(sql).bind(workspace_id).bind(server).bind(json!(asked).to_string()).bind(now);
    let rows = db::column::<String>(&db::run(env, statement).await?).map_err(|error| own(&error))?;
    let verdict = |row: &String| {
        let row: Row = serde_json::from_str(row)?;
        let Some(username) = row.username.filter(|_| row.is_active) else { return Ok(Err(Denial::Requester)) };
        if !row.has_token {
            return Ok(Err(Denial::Token));
        }
        let Some(any_account) = row.any_account else { return Ok(Err(Denial::Server)) };
        // A list that this version cannot read allows nothing, and holds up nobody else's commands.
        let Ok(acl) = row.acl.map(serde_json::from_value::<Acl>).transpose() else { return Ok(Err(Denial::Acl)) };
        Ok(Ok(Rights { username, is_staff: row.is_staff, any_account, acl }))
    };
    rows.iter().map(verdict).collect()
}

/// The statements that tell the latest of a command, and before that what happened to it that the audit log does not know.
pub fn update_command(held: &Held, output: &Output) -> Vec<Statement> {
    let life = &held.life;
    let outcome = life.outcome();
    let (head, whole) = split_result(output.result.as_deref());
    let update = Statement::new(
        "UPDATE commands SET delivered_at = ?4, acked_at = ?5, handled_at = ?6, state = ?7, status_message = ?8,
            success = ?9, exit_code = ?10, response_delay = ?11, elapsed_time = ?12, output_bytes = ?13,
            result_truncated = ?14, result = ?15, full_result = ?16, revision = ?3
         WHERE workspace_id = ?1 AND id = ?2 AND revision < ?3",
    )
    .bind(held.workspace_id)
    .bind(held.command.id)
    .bind(held.revision)
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
    audit::of_command(held).into_iter().chain([update]).collect()
}

/// The statements that remove a command that was never delivered; D1 may have been told that it would be. Where there is one,
/// the audit log is told so.
pub fn delete_command(workspace_id: i64, id: Uuid) -> Result<Vec<Statement>> {
    let event = of_service("command.withdraw").map_err(|error| own(&error))?.on(Some(id.to_string()), None);
    let delete = "DELETE FROM commands WHERE workspace_id = ?1 AND id = ?2 AND acked_at IS NULL";
    let event = audit::after_change(workspace_id, &event).map_err(|error| own(&error))?;
    Ok(vec![Statement::new(delete).bind(workspace_id).bind(id), event])
}

/// Carries statements out in one round trip.
pub async fn send(env: &Env, statements: Vec<Statement>) -> Result<()> {
    if !statements.is_empty() {
        db::batch(env, statements).await?;
    }
    Ok(())
}
