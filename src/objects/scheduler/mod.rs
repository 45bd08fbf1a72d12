//! The Durable Object that starts the runs of schedules (contract 14). Each workspace has one
//! scheduler, named by the workspace's id.
//!
//! D1 has everything about a schedule. The object stores only its workspace, the batches that it is
//! about to start, and its alarm, at the first due time of the workspace. Each alarm is a *pass*:
//!
//! 1. Read the schedules that are due, and decide what happens to each ([`decision`]).
//! 2. Write each decision in one transaction, which also inserts the batch of a run that starts.
//! 3. Call the objects of these batches.
//!
//! A pass may stop at any point, and repeat any step: `docs/contributing/schedules.md` says why no
//! run is lost or doubled.
//!
//! [`decision`]: farhand_domain::schedule::decision

mod pass;
mod run;

use std::cell::Cell;
use std::time::Duration;

use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use futures_util::future;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use worker::{DurableObject, Env, Request, Response, State, durable_object};

use crate::objects::{self, alarm::Alarm};
use crate::platform::log;
use crate::platform::{self, internal};
use crate::store::database::Database;
use crate::store::schedule_runs;

/// A pass that does not end within this time was terminated, and is repeated.
const PASS_TIMEOUT: Duration = Duration::from_secs(30);
/// The delay before a failed pass is repeated.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// A change of a schedule is in D1 within this time after the scheduler was notified of it.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);
/// A schedule that was due this long ago has lost its alarm.
const MAX_OVERDUE: Duration = Duration::from_secs(60);
/// The maximum number of workspaces whose schedulers the cron trigger wakes in one run.
const WORKSPACES_PER_STEP: u64 = 50;
/// The storage key of the workspace's id.
const WORKSPACE_KEY: &str = "workspace";

/// A request message to the object. The response is null.
#[derive(Serialize, Deserialize)]
enum SchedulerRequest {
    /// Run a pass at the latest at this time.
    Wake { workspace_id: i64, at: Timestamp },
    /// Delete everything: the workspace was deleted.
    Wipe,
}

/// Makes the scheduler of a workspace run a pass at `at` or earlier.
///
/// # Errors
/// The object did not respond.
pub async fn wake(env: &Env, workspace_id: i64, at: Timestamp) -> Result<(), Error> {
    let request = SchedulerRequest::Wake { workspace_id, at };
    let _: Value =
        objects::call(env, platform::SCHEDULER, &workspace_id.to_string(), &request).await?;
    Ok(())
}

/// Call this before a schedule changes in D1, and [`wake`] with the due time after it. If the
/// second call is lost, the scheduler finds the change within [`CHANGE_TIMEOUT`].
///
/// # Errors
/// The object did not respond.
pub async fn announce_change(env: &Env, workspace_id: i64) -> Result<(), Error> {
    wake(env, workspace_id, platform::now().plus(CHANGE_TIMEOUT)).await
}

/// Deletes everything in the scheduler of a deleted workspace.
///
/// # Errors
/// The object did not respond.
pub async fn wipe(env: &Env, workspace_id: i64) -> Result<(), Error> {
    let name = workspace_id.to_string();
    let _: Value = objects::call(env, platform::SCHEDULER, &name, &SchedulerRequest::Wipe).await?;
    Ok(())
}

/// Wakes the schedulers whose alarm was lost. For the cron trigger.
///
/// # Errors
/// D1 failed.
pub async fn wake_overdue(env: &Env) -> Result<(), Error> {
    let (cell, now) = (Database::cell(env), platform::now());
    let mut after = 0;
    loop {
        let until = now.minus(MAX_OVERDUE);
        let workspaces =
            schedule_runs::overdue_workspaces(&cell, after, until, WORKSPACES_PER_STEP).await?;
        let Some(last) = workspaces.last() else { return Ok(()) };
        after = *last;
        future::join_all(workspaces.into_iter().map(async |workspace_id| {
            if let Err(error) = wake(env, workspace_id, now).await {
                log::error(
                    "scheduler_not_woken",
                    json!({"workspace_id": workspace_id}),
                    &error.detail,
                );
            }
        }))
        .await;
    }
}

#[durable_object]
pub struct Scheduler {
    state: State,
    env: Env,
    alarm: Alarm,
    /// The earliest time of a [`SchedulerRequest::Wake`] during a pass.
    woken_for: Cell<Option<Timestamp>>,
}

impl DurableObject for Scheduler {
    fn new(state: State, env: Env) -> Self {
        Self { state, env, alarm: Alarm::default(), woken_for: Cell::new(None) }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        objects::respond(&mut request, async |message| {
            match message {
                SchedulerRequest::Wake { workspace_id, at } => self.wake(workspace_id, at).await,
                SchedulerRequest::Wipe => self.wipe().await,
            }
            .map_err(internal)?;
            Ok(Value::Null)
        })
        .await
    }

    async fn alarm(&self) -> worker::Result<Response> {
        self.alarm.went_off();
        let storage = self.state.storage();
        let Some(workspace_id) = storage.get::<i64>(WORKSPACE_KEY).await? else {
            return Response::empty();
        };
        let now = platform::now();
        self.woken_for.set(None);
        self.alarm.set(&storage, now.plus(PASS_TIMEOUT)).await?;
        let next = match self.pass(workspace_id, now).await {
            Ok(next) => next,
            Err(error) => {
                log::error(
                    "scheduler_failed",
                    json!({"workspace_id": workspace_id}),
                    &error.detail,
                );
                Some(platform::now().plus(RETRY_DELAY))
            }
        };
        match next.into_iter().chain(self.woken_for.take()).min() {
            Some(next) => self.alarm.set(&storage, next.max(platform::now())).await?,
            None => self.alarm.delete(&storage).await?,
        }
        Response::empty()
    }
}

impl Scheduler {
    async fn wake(&self, workspace_id: i64, at: Timestamp) -> worker::Result<()> {
        let storage = self.state.storage();
        if storage.get::<i64>(WORKSPACE_KEY).await?.is_none() {
            storage.put(WORKSPACE_KEY, workspace_id).await?;
        }
        let earliest = self.woken_for.get().into_iter().chain([at]).min();
        self.woken_for.set(earliest);
        self.alarm.set_by(&storage, at, platform::now()).await
    }

    async fn wipe(&self) -> worker::Result<()> {
        let storage = self.state.storage();
        self.alarm.delete(&storage).await?;
        storage.delete_all().await
    }
}
