//! What a server's object reads and writes of its server in D1. As in `d1.rs`, writes can be repeated and can come late.

use farhand_domain::audit::Event;
use farhand_domain::link::stored_command::PendingEvent;
use farhand_domain::time::Timestamp;
use farhand_domain::wire::HostFacts;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;
use worker::{Env, Result};

use super::d1::own;
use crate::store::audit::{self, Insert};
use crate::store::db::{self, Statement};

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
    change_server_of(env, workspace, server, vec![], "w.deleted_at IS NULL").await
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
    (key_hash, fingerprint, now): (&str, &str, Timestamp),
    event: &Event,
) -> Result<Vec<Statement>> {
    let sql = format!(
        "UPDATE servers AS s SET agent_key_hash = ?4, updated_at = ?5,
            fingerprint = iif(s.fingerprint IS NULL, NULL, ?6)
         WHERE s.id = ?2 AND s.workspace_id = ?1 AND {PERMITTED}"
    );
    let update =
        Statement::new(sql).bind(workspace_id).bind(server).bind(by).bind(key_hash).bind(now).bind(fingerprint);
    Ok(vec![update, audit::after_change(workspace_id, event).map_err(|error| own(&error))?])
}

/// The statements that delete a server, if a user still may; without one, for its own agent or for the service. `only_pending`:
/// only if it is still pending. While there are commands of it,
/// their output stays in its object, which is noted.
pub fn delete_server(
    workspace_id: i64,
    server: Uuid,
    (by, only_pending): (Option<i64>, bool),
    event: &Event,
) -> Result<Vec<Statement>> {
    let is_due = format!(
        "s.id = ?2 AND s.workspace_id = ?1 AND (?3 IS NULL OR {PERMITTED}) AND (NOT ?4 OR s.registration = 'pending')"
    );
    let statement = |sql: String| Statement::new(sql).bind(workspace_id).bind(server).bind(by).bind(only_pending);
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

/// Changes a server, and finds what it is then, in one round trip. In a deleted workspace that may be undeleted, its servers
/// are still there.
///
/// # Errors
/// D1 did not answer; whether it did what it was told is not known then.
pub async fn change_server(env: &Env, workspace: &str, server: Uuid, changes: Vec<Statement>) -> Result<Option<Found>> {
    change_server_of(env, workspace, server, changes, "w.is_purging = 0").await
}

/// The same in a workspace for which a condition holds.
async fn change_server_of(
    env: &Env,
    workspace: &str,
    server: Uuid,
    mut changes: Vec<Statement>,
    condition: &str,
) -> Result<Option<Found>> {
    let sql = format!(
        "SELECT s.workspace_id, s.name, s.agent_key_hash, s.commissioned, s.link_revision
        FROM workspaces w JOIN servers s ON s.id = ?2 AND s.workspace_id = w.id
        WHERE w.slug = ?1 AND {condition}"
    );
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

/// How many audit events of a server wait for D1 at most.
const MAX_EVENTS: usize = 100;

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
    /// The account that its agent reported as the only one that it can use.
    #[serde(default)]
    reported_username: Option<String>,
    /// When a second agent with this server's identity was last refused; `None`: not lately.
    #[serde(default)]
    pub identity_conflict_at: Option<Timestamp>,
    /// Audit events that D1 does not have yet.
    #[serde(default)]
    pub events: Vec<PendingEvent>,
    /// When the agent last sent the load. Absent once that load is dropped.
    #[serde(default)]
    pub load_at: Option<Timestamp>,
    /// The load in D1 is out of date and goes.
    #[serde(default)]
    drops_load: bool,
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

    /// The version of the agent, as it last reported it.
    pub fn agent_version(&self) -> Option<&str> {
        self.agent_version.as_deref()
    }

    /// Adds an audit event to the change at hand. While D1 does not answer, only the first ones are kept.
    pub fn note(&mut self, event: Event) {
        if self.events.len() < MAX_EVENTS {
            self.events.push(PendingEvent { revision: self.revision + 1, event });
        }
    }

    /// What is known of the host, in lower case, a line each: for the search.
    fn folded(&self) -> String {
        let texts = [&self.platform, &self.os_name, &self.os_version, &self.agent_version];
        texts.into_iter().flatten().map(|text| text.to_lowercase()).collect::<Vec<_>>().join("\n")
    }

    /// Takes what an agent tells of itself and its host. What is missing stays as it was. Once an agent has committed, its
    /// server is commissioned (agent-protocol 2).
    pub fn learn(&mut self, told: HostFacts, is_commit: bool, now: Timestamp) {
        fn set<T>(field: &mut Option<T>, value: Option<T>) {
            if value.is_some() {
                *field = value;
            }
        }
        self.commissioned |= is_commit;
        set(&mut self.platform, told.platform);
        set(&mut self.os_name, told.os_name);
        set(&mut self.os_version, told.os_version);
        set(&mut self.cpu_logical_cores, told.cpu_logical_cores);
        set(&mut self.physical_memory, told.physical_memory);
        // A whole report, by commit or sync, has the version. Without an account, the agent can use any.
        if told.version.is_some() || told.default_username.is_some() {
            self.reported_username = told.default_username;
        }
        set(&mut self.agent_version, told.version);
        if told.load.is_some() {
            self.set_load(told.load, now);
        }
    }

    /// Takes the host's load, or drops it.
    pub fn set_load(&mut self, load: Option<f64>, now: Timestamp) {
        (self.load, self.load_at, self.drops_load) = (load, load.map(|_| now), load.is_none());
    }
}

/// The statements that write what is known of a server, and before that its audit events. What its agent did not report stays
/// as it was.
pub fn update_server(workspace_id: i64, server: Uuid, facts: &ServerFacts) -> Vec<Statement> {
    let update = Statement::new(
        "UPDATE servers SET commissioned = ?4, is_connected = ?5, connected_at = ?6, last_seen_at = ?7, remote_ip = ?8,
            agent_version = coalesce(?9, agent_version), platform = coalesce(?10, platform),
            os_name = coalesce(?11, os_name), os_version = coalesce(?12, os_version),
            cpu_logical_cores = coalesce(?13, cpu_logical_cores), physical_memory = coalesce(?14, physical_memory),
            load = CASE WHEN ?17 THEN NULL ELSE coalesce(?15, load) END, folded = ?16, identity_conflict_at = ?18,
            reported_username = iif(?9 IS NULL, coalesce(?19, reported_username), ?19), link_revision = ?3
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
    .bind(facts.drops_load)
    .bind(facts.identity_conflict_at)
    .bind(facts.reported_username.as_deref());
    of_server(workspace_id, server, &facts.events).into_iter().chain([update]).collect()
}

/// The statement for a server's events that D1 does not have, before D1 gets the revision that they belong to. It can be
/// repeated, like [`super::d1::of_command`].
fn of_server(workspace_id: i64, server: Uuid, events: &[PendingEvent]) -> Option<Statement> {
    if events.is_empty() {
        return None;
    }
    let rest = "FROM servers s CROSS JOIN json_each(?3) p
               WHERE s.workspace_id = ?1 AND s.id = ?2 AND s.link_revision < p.value ->> 'revision' ORDER BY p.key";
    let insert = Insert::whole("s.workspace_id", "(p.value -> 'event')", rest);
    Some(Statement::new(insert.sql()).bind(workspace_id).bind(server).bind(json!(events).to_string()))
}
