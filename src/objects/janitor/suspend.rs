//! Suspensions: the objects of a deleted workspace's servers refuse agents. When the workspace is
//! undeleted, they accept agents again.

use std::collections::BTreeMap;
use std::ops::Bound;

use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::{Janitor, OBJECT_TIMEOUT, RETRY_DELAY, SERVERS_BEFORE_RESPONSE, SERVERS_PER_STEP};
use crate::objects::server_link::calls;
use crate::platform::log;
use crate::platform::{self, internal};
use crate::store::{Progress, servers, workspaces};

/// When this many objects of a workspace have failed, they are retried before further objects are
/// called.
const MAX_FAILED: usize = 500;
/// The storage key of the running suspensions, by slug.
const SUSPENSIONS_KEY: &str = "suspensions";
/// The storage key of the workspace that the last step handled.
const LAST_SUSPENSION_KEY: &str = "last_suspension";

/// The state of a running suspension or resumption of a workspace. It is a suspension if the
/// workspace is deleted in D1, otherwise a resumption. Stored as JSON.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
struct Suspension {
    /// Identifies the request that started the suspension. A new request starts from the beginning.
    run: Uuid,
    /// The last server whose object was called.
    after: String,
    /// The servers whose objects failed. The first one is retried next.
    failed: Vec<String>,
    /// When to retry the failed servers, if a retry has failed.
    retry_at: Option<Timestamp>,
}

impl Janitor {
    /// The running suspensions, by slug.
    async fn suspensions(&self) -> Result<BTreeMap<String, Suspension>, Error> {
        Ok(self.state.storage().get(SUSPENSIONS_KEY).await?.unwrap_or_default())
    }

    /// Starts a suspension from the beginning. Call this before D1 is changed. If the janitor dies
    /// in between, the alarm makes the objects consistent with D1.
    pub(super) async fn begin_suspension(&self, slug: &str) -> Result<(), Error> {
        let suspension =
            Suspension { run: platform::new_id(platform::now())?, ..Suspension::default() };
        let mut suspensions = self.suspensions().await?;
        suspensions.insert(slug.to_owned(), suspension);
        self.state.storage().put(SUSPENSIONS_KEY, suspensions).await.map_err(internal)
    }

    /// Suspends or resumes the first servers of a workspace, before the response to the operator.
    /// The alarm handles the remaining servers and the servers that failed.
    pub(super) async fn suspend_first(&self, slug: &str) -> Result<(), Error> {
        // Start again: the alarm may have finished the suspension before D1 was changed.
        self.begin_suspension(slug).await?;
        let until = platform::now().plus_seconds(OBJECT_TIMEOUT.as_secs() as i64);
        for _ in 0..SERVERS_BEFORE_RESPONSE / SERVERS_PER_STEP {
            match self.suspend_step(slug).await {
                Ok(Progress::More) if platform::now() < until => {}
                Ok(_) => break,
                Err(error) => {
                    log::error("janitor_failed", json!({}), &error.detail);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Runs one step of a running suspension. Each step takes the next workspace, so a failing
    /// workspace does not block other workspaces.
    pub(super) async fn suspend_next(&self) -> Result<Progress, Error> {
        let storage = self.state.storage();
        let last: String = storage.get(LAST_SUSPENSION_KEY).await?.unwrap_or_default();
        let (suspensions, now) = (self.suspensions().await?, platform::now());
        let is_due = |(_, suspension): &(&String, &Suspension)| {
            suspension.retry_at.is_none_or(|at| at <= now)
        };
        let mut after =
            suspensions.range::<str, _>((Bound::Excluded(last.as_str()), Bound::Unbounded));
        let Some((slug, _)) = after.find(is_due).or_else(|| suspensions.iter().find(is_due)) else {
            return Ok(if suspensions.is_empty() { Progress::Done } else { Progress::Retry });
        };
        storage.put(LAST_SUSPENSION_KEY, slug).await?;
        self.suspend_step(slug).await?;
        Ok(Progress::More)
    }

    /// Suspends the next servers of a workspace if it is deleted in D1, otherwise resumes them.
    async fn suspend_step(&self, slug: &str) -> Result<Progress, Error> {
        let Some(mut suspension) = self.suspensions().await?.remove(slug) else {
            return Ok(Progress::Done);
        };
        let before = suspension.clone();
        let workspace = workspaces::slug_holder(&self.cell, slug).await?;
        let is_suspended = workspace.is_some_and(|workspace| workspace.is_deleted);
        let mut ids = match workspace {
            Some(workspace) if suspension.failed.len() < MAX_FAILED => {
                let after = &suspension.after;
                servers::ids_after(
                    &self.database(workspace.id),
                    workspace.id,
                    after,
                    SERVERS_PER_STEP,
                )
                .await?
            }
            Some(_) => Vec::new(),
            // The purge has begun, and wipes the objects.
            None => {
                suspension.failed.clear();
                Vec::new()
            }
        };
        let is_retry = ids.is_empty();
        if is_retry {
            let retried = suspension.failed.len().min(SERVERS_PER_STEP as usize);
            ids = suspension.failed.drain(..retried).collect();
        } else if let Some(last) = ids.last() {
            suspension.after.clone_from(last);
        }
        let is_done = ids.is_empty();
        let failed = self.call_all(&ids, |_| calls::LinkRequest::Suspend(is_suspended)).await;
        let progress = match (is_done, is_retry && !failed.is_empty()) {
            (true, _) => Progress::Done,
            (false, true) => Progress::Retry,
            (false, false) => Progress::More,
        };
        suspension.failed.extend(failed);
        suspension.retry_at = (progress == Progress::Retry)
            .then(|| platform::now().plus_seconds(RETRY_DELAY.as_secs() as i64));
        // Another request may have restarted the suspension during the calls. Then these servers
        // are called again.
        let mut suspensions = self.suspensions().await?;
        if suspensions.get(slug) != Some(&before) {
            return Ok(Progress::More);
        }
        if is_done {
            suspensions.remove(slug);
        } else {
            suspensions.insert(slug.to_owned(), suspension);
        }
        self.state.storage().put(SUSPENSIONS_KEY, suspensions).await?;
        Ok(progress)
    }
}
