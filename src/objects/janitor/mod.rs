//! The Durable Object that does the background work of the region cell, which has one janitor. It
//!
//! - suspends and purges deleted workspaces (rows, KV keys and objects),
//! - removes deleted users from the commands that they requested,
//! - cancels the waiting commands of revoked sessions,
//! - deletes commands that ended long ago, servers that were not approved in time, and deleted
//!   servers that cannot be undeleted any more,
//! - notifies sealers of pending audit events, in case an earlier notification failed,
//! - starts resyncs,
//! - calls the objects of batches that have not ended, in case nothing called them.
//!
//! Each alarm does one bounded step of each kind of work, for one workspace or user at a time.
//!
//! A deleted workspace is purged after its grace period. Until then the objects of its servers are
//! suspended: they keep their data and refuse agents. D1 alone decides what to purge: the marked
//! row of the workspace is the last one to be deleted. The object sets its alarm before it writes
//! the mark. If it crashes in between, the alarm finds the row and continues.
//!
//! The cron trigger (wrangler.toml) starts a pass over old commands, which goes through the
//! workspaces in the order of their ids. A command is deleted first in the object of its server,
//! and then in D1. If the janitor crashes in between, it finds the command in D1 again. A pass
//! visits each command once. If an object does not respond, its commands wait for the next pass.

mod old_commands;
mod purge;
mod resync;
mod suspend;

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use farhand_domain::audit::event::AuditEvent;
use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use futures_util::future::{self, Either};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;
use worker::{Delay, DurableObject, Env, Request, Response, State, durable_object};

use crate::objects::server_link::calls;
use crate::objects::{self, alarm::Alarm};
use crate::objects::{audit_sealer, batch, scheduler};
use crate::platform;
use crate::platform::log;
use crate::store::database::Database;
use crate::store::workspaces::Deletion;
use crate::store::{Progress, deleted_servers, open_batches, servers, sessions, workspaces};

/// The maximum number of servers whose objects one step calls concurrently.
const SERVERS_PER_STEP: u64 = 50;
/// The maximum number of servers that are disconnected before the response to the deletion of a
/// workspace. Further servers follow within seconds. Requests of their agents are refused even
/// before that, because the workspace is deleted.
const SERVERS_BEFORE_RESPONSE: u64 = 500;
/// The maximum number of batches whose objects one step calls concurrently.
const BATCHES_PER_STEP: u64 = 50;
/// The maximum number of sealers that one step notifies concurrently.
const SEALERS_PER_STEP: u64 = 50;
/// The name of the object.
const NAME: &str = "janitor";
/// The delay between two steps.
const STEP_DELAY: Duration = Duration::from_millis(10);
/// The delay before work that a call requested, and after a step that failed.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// The timeout for calls to the objects of servers and to sealers.
const OBJECT_TIMEOUT: Duration = Duration::from_secs(20);
/// The storage key of the current pass over old commands.
const PASS_KEY: &str = "pass";
/// The storage key of the last workspace whose sealer was notified in this pass.
const LAST_SEALED_KEY: &str = "sealed";
/// The storage key of the last batch whose object was called in this pass.
const LAST_BATCH_KEY: &str = "batch";
/// The storage key of the last pending server that was checked in this pass.
const LAST_UNAPPROVED_KEY: &str = "unapproved";

/// A request message to the object. The response is a boolean.
#[derive(Serialize, Deserialize)]
enum JanitorRequest {
    /// Delete the workspace with this slug, and write the audit event. The response says whether
    /// this changed something.
    DeleteWorkspace(String, Deletion, Box<AuditEvent>),
    /// Undelete the workspace with this slug, and write the audit event. The response says whether
    /// the workspace existed and was deleted.
    UndeleteWorkspace(String, Box<AuditEvent>),
    /// Check for work.
    Wake,
    /// Cancel the waiting commands of revoked login sessions.
    CancelRevoked,
    /// Start the hourly pass.
    BeginPass,
    /// Start a resync of all servers of the workspace with this slug. The response says whether the
    /// workspace exists.
    Resync(String),
}

/// The state of a pass over old commands. Stored as JSON.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Pass {
    /// The current workspace.
    workspace: i64,
    /// The id of the last visited command in this workspace.
    after: String,
    /// The number of consecutive failures of the deletion in D1.
    failures: u32,
    /// The number of deleted commands.
    deleted: u64,
    /// Commands that ended by this time are old. The time is fixed when the pass starts. Otherwise
    /// commands that become old later could keep a pass over a busy workspace running forever.
    #[serde(default)]
    until: Option<Timestamp>,
    /// The servers whose objects did not respond in time. The pass does not call them again.
    #[serde(default)]
    silent: BTreeSet<String>,
}

/// Deletes a workspace. When this returns, all requests to the workspace are refused. Returns false
/// if no workspace with this slug meets the condition of the deletion.
///
/// # Errors
/// The object did not respond, or D1 failed. The workspace may be deleted nevertheless.
pub async fn delete_workspace(
    env: &Env,
    slug: &str,
    deletion: Deletion,
    event: AuditEvent,
) -> Result<bool, Error> {
    call(env, &JanitorRequest::DeleteWorkspace(slug.to_owned(), deletion, Box::new(event))).await
}

/// Undeletes a workspace. Returns false if no such deleted workspace exists, or if its purge has
/// begun.
///
/// # Errors
/// The object did not respond, or D1 failed. The workspace may be undeleted nevertheless.
pub async fn undelete_workspace(env: &Env, slug: &str, event: AuditEvent) -> Result<bool, Error> {
    call(env, &JanitorRequest::UndeleteWorkspace(slug.to_owned(), Box::new(event))).await
}

/// Makes the janitor check for work.
///
/// # Errors
/// The object did not respond.
pub async fn wake(env: &Env) -> Result<(), Error> {
    call(env, &JanitorRequest::Wake).await.map(drop)
}

/// Makes the janitor cancel the waiting commands of revoked login sessions. The janitor reads the
/// sessions from D1. If this call fails, the next hourly pass cancels them.
///
/// # Errors
/// The object did not respond.
pub async fn cancel_revoked(env: &Env) -> Result<(), Error> {
    call(env, &JanitorRequest::CancelRevoked).await.map(drop)
}

/// Starts the hourly pass. A pass over old commands that is still running continues.
///
/// # Errors
/// The object did not respond.
pub async fn begin_pass(env: &Env) -> Result<(), Error> {
    call(env, &JanitorRequest::BeginPass).await.map(drop)
}

/// Makes the objects of a workspace's servers write everything to D1 again, in the background.
/// Returns false if the workspace does not exist.
///
/// # Errors
/// The object did not respond, or D1 failed.
pub async fn resync(env: &Env, slug: &str) -> Result<bool, Error> {
    call(env, &JanitorRequest::Resync(slug.to_owned())).await
}

async fn call(env: &Env, request: &JanitorRequest) -> Result<bool, Error> {
    objects::call(env, platform::JANITOR, NAME, request).await
}

/// Awaits a response until a timeout.
async fn in_time<T>(
    timeout: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, String> {
    match future::select(pin!(answer), pin!(Delay::from(timeout))).await {
        Either::Left((answer, _)) => answer.map_err(|error| error.detail.into_owned()),
        Either::Right(_) => Err("no answer".to_owned()),
    }
}

#[durable_object]
pub struct Janitor {
    state: State,
    env: Env,
    cell: Database,
    alarm: Alarm,
}

impl DurableObject for Janitor {
    fn new(state: State, env: Env) -> Self {
        Self { state, cell: Database::cell(&env), env, alarm: Alarm::default() }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        objects::respond(&mut request, async |message| {
            let storage = self.state.storage();
            let is_urgent = matches!(message, JanitorRequest::CancelRevoked);
            self.set_alarm(if is_urgent { STEP_DELAY } else { RETRY_DELAY }).await?;
            match message {
                JanitorRequest::DeleteWorkspace(slug, deletion, event) => {
                    self.delete_workspace(slug, deletion, &event).await
                }
                JanitorRequest::UndeleteWorkspace(slug, event) => {
                    self.undelete_workspace(slug, &event).await
                }
                JanitorRequest::Wake | JanitorRequest::CancelRevoked => Ok(true),
                JanitorRequest::BeginPass => {
                    if storage.get::<i64>(LAST_SEALED_KEY).await?.is_none() {
                        storage.put(LAST_SEALED_KEY, -1).await?;
                    }
                    workspaces::begin_due_purges(&self.cell, platform::now()).await?;
                    sessions::purge_revoked(&self.cell, platform::now()).await?;
                    deleted_servers::purge(&self.cell, platform::now()).await?;
                    storage.put(LAST_UNAPPROVED_KEY, "").await?;
                    storage.put(LAST_BATCH_KEY, "").await?;
                    if storage.get::<Pass>(PASS_KEY).await?.is_none() {
                        storage.put(PASS_KEY, Pass::default()).await?;
                    }
                    Ok(true)
                }
                JanitorRequest::Resync(slug) => self.begin_resync(slug).await,
            }
        })
        .await
    }

    async fn alarm(&self) -> worker::Result<Response> {
        self.alarm.went_off();
        // A step that fails does not prevent the other steps. They are boxed, because
        // V8 compiles large functions slowly (docs/contributing/performance.md).
        let steps = [
            Box::pin(self.suspend_next()).await,
            Box::pin(self.cancel_revoked_commands()).await,
            Box::pin(self.delete_unapproved()).await,
            Box::pin(self.detach_deleted_user()).await,
            Box::pin(self.purge_next()).await,
            Box::pin(self.continue_pass()).await,
            Box::pin(self.resync_next()).await,
            Box::pin(self.notify_sealers()).await,
            Box::pin(self.wake_batches()).await,
        ];
        let has_any = |wanted: Progress| {
            steps.iter().any(|step| step.as_ref().is_ok_and(|progress| *progress == wanted))
        };
        let mut delay = if has_any(Progress::More) {
            Some(STEP_DELAY)
        } else if has_any(Progress::Retry) {
            Some(RETRY_DELAY)
        } else {
            None
        };
        for error in steps.into_iter().filter_map(Result::err) {
            log::error("janitor_failed", json!({}), &error.detail);
            delay = Some(RETRY_DELAY);
        }
        if let Some(delay) = delay {
            self.set_alarm(delay).await?;
        }
        Response::empty()
    }
}

impl Janitor {
    /// The database of a workspace.
    fn database(&self, workspace_id: i64) -> Database {
        Database::of(&self.env, workspace_id)
    }

    /// Sets the alarm, even if it is set for an earlier time. The earlier alarm might run before
    /// the change is made that this alarm should find.
    async fn set_alarm(&self, delay: Duration) -> worker::Result<()> {
        let at = platform::now().plus_millis(delay.as_millis() as i64);
        self.alarm.set(&self.state.storage(), at).await
    }

    /// Marks a workspace as deleted and disconnects its agents.
    async fn delete_workspace(
        &self,
        slug: String,
        deletion: Deletion,
        event: &AuditEvent,
    ) -> Result<bool, Error> {
        self.begin_suspension(&slug).await?;
        let marked =
            workspaces::mark_deleted(&self.cell, &slug, deletion, event, platform::now()).await?;
        let Some(id) = marked else { return Ok(false) };
        let holder = workspaces::slug_holder(&self.cell, &slug).await?;
        if holder.is_some_and(|holder| holder.id == id) {
            self.suspend_first(&slug).await?;
            return Ok(true);
        }
        // The purge has begun. Objects of deleted servers have no agent, so the purge handles them.
        let (database, mut after) = (self.database(id), String::new());
        for _ in 0..SERVERS_BEFORE_RESPONSE / SERVERS_PER_STEP {
            let ids = servers::ids_after(&database, id, &after, SERVERS_PER_STEP).await?;
            // If an object fails now, the purge wipes it later.
            self.disconnect_and_wipe(&ids).await;
            match ids.last() {
                Some(last) => after.clone_from(last),
                None => break,
            }
        }
        Ok(true)
    }

    /// Undeletes a workspace and lets its agents connect.
    async fn undelete_workspace(&self, slug: String, event: &AuditEvent) -> Result<bool, Error> {
        self.begin_suspension(&slug).await?;
        let Some(id) = workspaces::undelete(&self.cell, &slug, event).await? else {
            return Ok(false);
        };
        // Batches that were open go on.
        self.state.storage().put(LAST_BATCH_KEY, "").await?;
        self.suspend_first(&slug).await?;
        // If this call fails, the next hourly pass wakes the scheduler.
        if let Err(error) = scheduler::wake(&self.env, id, platform::now()).await {
            log::error("scheduler_not_woken", json!({"workspace_id": id}), &error.detail);
        }
        Ok(true)
    }

    /// Notifies the next sealers that have work.
    async fn notify_sealers(&self) -> Result<Progress, Error> {
        let storage = self.state.storage();
        let Some(after) = storage.get(LAST_SEALED_KEY).await? else { return Ok(Progress::Done) };
        let workspaces =
            audit_sealer::workspaces_with_work(&self.env, after, SEALERS_PER_STEP).await?;
        let Some(last) = workspaces.last() else {
            storage.delete(LAST_SEALED_KEY).await?;
            return Ok(Progress::Done);
        };
        // Stored before the calls, so a failing sealer does not block other sealers. The next pass
        // notifies it again.
        storage.put(LAST_SEALED_KEY, last).await?;
        let notified = future::join_all(
            workspaces.iter().map(|workspace| audit_sealer::notify(&self.env, *workspace)),
        );
        if let Err(cause) = in_time(OBJECT_TIMEOUT, async { Ok(notified.await) }).await {
            log::error("sealer_not_notified", json!({"after": after}), &cause);
        }
        Ok(Progress::More)
    }

    /// Calls the objects of the next batches that have not ended.
    async fn wake_batches(&self) -> Result<Progress, Error> {
        let storage = self.state.storage();
        let Some(after) = storage.get::<String>(LAST_BATCH_KEY).await? else {
            return Ok(Progress::Done);
        };
        let batches = open_batches::open_after(&self.cell, &after, BATCHES_PER_STEP).await?;
        let Some(last) = batches.last() else {
            storage.delete(LAST_BATCH_KEY).await?;
            return Ok(Progress::Done);
        };
        // Stored before the calls, so a failing object does not block other batches.
        storage.put(LAST_BATCH_KEY, last.id).await?;
        let woken = batches.iter().map(async |batch| {
            let call = batch::calls::begin(&self.env, batch.workspace_id, batch.id);
            if let Err(cause) = in_time(OBJECT_TIMEOUT, call).await {
                log::error("batch_not_begun", json!({"batch": batch.id}), &cause);
            }
        });
        future::join_all(woken).await;
        Ok(Progress::More)
    }

    /// Calls the objects of servers concurrently. Returns the servers whose objects failed.
    async fn call_all(
        &self,
        servers: &[String],
        message: impl Fn(Uuid) -> calls::LinkRequest,
    ) -> Vec<String> {
        let failed = servers.iter().map(async |server| {
            // Objects are named by UUIDs. A server with another id has no object.
            let object = Uuid::try_parse(server).ok()?;
            let cause =
                self.call_in_time::<Value>(OBJECT_TIMEOUT, object, message(object)).await.err()?;
            log::error("object_not_called", json!({"server": server}), &cause);
            Some(server.clone())
        });
        future::join_all(failed).await.into_iter().flatten().collect()
    }

    /// Calls the object of a server. Fails if the object does not respond before the timeout.
    async fn call_in_time<T: DeserializeOwned>(
        &self,
        timeout: Duration,
        object: Uuid,
        message: calls::LinkRequest,
    ) -> Result<T, String> {
        in_time(timeout, calls::call::<T>(&self.env, object, &message)).await
    }
}
