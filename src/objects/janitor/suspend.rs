//! Suspensions: the objects of a deleted workspace's servers are told to take no agents, and those
//! of an undeleted one to take them again.

use std::collections::BTreeMap;
use std::ops::Bound;

use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::{BEGINS_WITHIN, Janitor, Progress, RETRY, SERVERS, SERVERS_AT_ONCE};
use crate::objects::server_link::calls;
use crate::platform::log;
use crate::platform::{self, internal};
use crate::store::servers;
use crate::store::workspaces;

/// How many servers whose objects failed are noted to be tried again, before none are added.
const MAX_FAILED: usize = 500;
/// The storage key of the workspaces whose servers' objects are to be suspended or resumed.
const SUSPENSIONS: &str = "suspensions";
/// The storage key of the workspace that had the last step of that.
const LAST_SUSPENSION: &str = "last_suspension";

/// How far the objects of a workspace's servers were suspended or resumed.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
struct Suspension {
    /// Which request asked for it: another one begins from the start.
    run: Uuid,
    /// The last server that was asked.
    after: String,
    /// The servers whose objects failed, the next to try first.
    failed: Vec<String>,
    /// When those are tried again, if that failed.
    retry_at: Option<Timestamp>,
}

impl Janitor {
    /// The workspaces, by slug, whose servers' objects are to be suspended or resumed, as D1 has
    /// the workspace then. Stored before D1 is changed, so that a cut between the two is repaired
    /// by the alarm.
    async fn suspensions(&self) -> Result<BTreeMap<String, Suspension>, Error> {
        Ok(self.state.storage().get(SUSPENSIONS).await?.unwrap_or_default())
    }

    pub(super) async fn begin_suspension(&self, slug: &str) -> Result<(), Error> {
        let suspension =
            Suspension { run: platform::new_id(platform::now())?, ..Suspension::default() };
        let mut suspensions = self.suspensions().await?;
        suspensions.insert(slug.to_owned(), suspension);
        self.state.storage().put(SUSPENSIONS, suspensions).await.map_err(internal)
    }

    /// Suspends or resumes the first servers of a workspace before its operator is answered. The
    /// alarm does the rest, and what failed.
    pub(super) async fn suspend_first(&self, slug: &str) -> Result<(), Error> {
        // The alarm may have gone by before D1 was changed.
        self.begin_suspension(slug).await?;
        let until = platform::now().plus_seconds(BEGINS_WITHIN as i64);
        for _ in 0..SERVERS_AT_ONCE / SERVERS {
            match self.suspend_some(slug).await {
                Ok(Progress::More) if platform::now() < until => {}
                Ok(_) => break,
                Err(error) => {
                    log::trouble("janitor_failed", json!({}), &error.detail);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Does one step for the next workspace whose servers are to be suspended or resumed, and not
    /// the same again: one that fails must not hold up the others.
    pub(super) async fn suspend_next(&self) -> Result<Progress, Error> {
        let storage = self.state.storage();
        let last: String = storage.get(LAST_SUSPENSION).await?.unwrap_or_default();
        let (suspensions, now) = (self.suspensions().await?, platform::now());
        let is_due = |(_, suspension): &(&String, &Suspension)| {
            suspension.retry_at.is_none_or(|at| at <= now)
        };
        let mut after =
            suspensions.range::<str, _>((Bound::Excluded(last.as_str()), Bound::Unbounded));
        let Some((slug, _)) = after.find(is_due).or_else(|| suspensions.iter().find(is_due)) else {
            return Ok(if suspensions.is_empty() { Progress::Done } else { Progress::Retry });
        };
        storage.put(LAST_SUSPENSION, slug).await?;
        self.suspend_some(slug).await?;
        Ok(Progress::More)
    }

    /// Suspends or resumes the next servers of a workspace, as D1 has the workspace.
    async fn suspend_some(&self, slug: &str) -> Result<Progress, Error> {
        let Some(mut suspension) = self.suspensions().await?.remove(slug) else {
            return Ok(Progress::Done);
        };
        let before = suspension.clone();
        let standing = workspaces::standing(&self.env, slug).await?;
        let is_suspended = standing.is_some_and(|standing| standing.is_deleted);
        let mut ids = match standing {
            Some(standing) if suspension.failed.len() < MAX_FAILED => {
                servers::ids_after(&self.env, standing.id, &suspension.after, SERVERS).await?
            }
            Some(_) => Vec::new(),
            // The purge wipes the objects.
            None => {
                suspension.failed.clear();
                Vec::new()
            }
        };
        let is_retry = ids.is_empty();
        if is_retry {
            ids =
                suspension.failed.drain(..suspension.failed.len().min(SERVERS as usize)).collect();
        } else if let Some(last) = ids.last() {
            suspension.after.clone_from(last);
        }
        let is_over = ids.is_empty();
        let failed = self.failing(&ids, |_| calls::Ask::Suspend(is_suspended)).await;
        let progress = match (is_over, is_retry && !failed.is_empty()) {
            (true, _) => Progress::Done,
            (false, true) => Progress::Retry,
            (false, false) => Progress::More,
        };
        suspension.failed.extend(failed);
        suspension.retry_at = (progress == Progress::Retry)
            .then(|| platform::now().plus_seconds(RETRY.as_secs() as i64));
        // Another request may have begun again in between; then these servers come again.
        let mut suspensions = self.suspensions().await?;
        if suspensions.get(slug) != Some(&before) {
            return Ok(Progress::More);
        }
        if is_over {
            suspensions.remove(slug);
        } else {
            suspensions.insert(slug.to_owned(), suspension);
        }
        self.state.storage().put(SUSPENSIONS, suspensions).await?;
        Ok(progress)
    }
}
