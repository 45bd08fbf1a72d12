//! A pass of the scheduler: it handles all schedules that are due.

use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use futures_util::future;
use serde_json::json;
use uuid::Uuid;
use worker::Env;

use super::run::DueSchedule;
use super::{RETRY_DELAY, Scheduler};
use crate::objects::audit_sealer;
use crate::objects::batch::calls;
use crate::platform;
use crate::platform::{internal, log};
use crate::store::database::Database;
use crate::store::schedule_runs::{self, Due, StoredSchedule};

/// The maximum number of schedules that are read together.
const SCHEDULES_PER_STEP: u64 = 50;
/// The maximum number of steps of a pass. Further schedules wait for the next pass.
const MAX_STEPS: u32 = 100;
/// The maximum number of concurrent transactions, and of concurrent calls of objects.
const MAX_CONCURRENT: usize = 6;
/// The storage key of the batches whose objects the scheduler must still call.
const STARTING_KEY: &str = "starting";
/// The shortest and the longest time between two checks whether a queued run can start, in seconds.
const MIN_RECHECK: f64 = 2.0;
const MAX_RECHECK: f64 = 60.0;

/// When the next pass is due: at the next due time, and soon while a run waits for the previous
/// one. The longer a run waits, the less often it is checked.
fn next_pass(due: &Due, now: Timestamp) -> Option<Timestamp> {
    let recheck = due.queued.map(|queued| {
        let seconds = (now.seconds_since(queued) / 10.0).clamp(MIN_RECHECK, MAX_RECHECK);
        now.plus_millis((seconds * 1_000.0) as i64)
    });
    due.next_due.into_iter().chain(recheck).min()
}

impl Scheduler {
    /// Handles the schedules that are due at `now`, and returns the time of the next pass. A pass
    /// may take long. So `now` is the time of its beginning, which decides whether a run is missed.
    ///
    /// # Errors
    /// D1 or an object failed. A later pass continues.
    pub(super) async fn pass(
        &self,
        workspace_id: i64,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, Error> {
        self.begin_batches(workspace_id).await?;
        let database = Database::of(&self.env, workspace_id);
        let retry = || platform::now().plus(RETRY_DELAY);
        for _ in 0..MAX_STEPS {
            let due = schedule_runs::due(&database, workspace_id, now, SCHEDULES_PER_STEP).await?;
            if due.schedules.is_empty() {
                let is_unbegun = !self.starting().await?.is_empty();
                let next = next_pass(&due, platform::now());
                return Ok(next.into_iter().chain(is_unbegun.then(retry)).min());
            }
            if !self.step(&database, workspace_id, &due.schedules, now).await? {
                break;
            }
        }
        Ok(Some(retry()))
    }

    /// Handles some schedules, and begins their batches. Returns whether there was anything to do.
    async fn step(
        &self,
        database: &Database,
        workspace_id: i64,
        schedules: &[StoredSchedule],
        now: Timestamp,
    ) -> Result<bool, Error> {
        let env = &self.env;
        let due = DueSchedule::decide(database, env, workspace_id, schedules, now).await?;
        let mut batches = self.starting().await?;
        batches.extend(due.iter().filter_map(DueSchedule::batch));
        if !batches.is_empty() {
            // Stored before D1 inserts the batches: if the object crashes in between, a later pass
            // begins them.
            self.state.storage().put(STARTING_KEY, &batches).await?;
        }
        let results =
            in_chunks(&due, async |due| due.write(database, env, workspace_id).await).await;
        audit_sealer::notify(env, workspace_id).await;
        self.begin_batches(workspace_id).await?;
        results.into_iter().collect::<Result<(), _>>().map(|()| !due.is_empty())
    }

    /// The batches whose objects the scheduler must still call.
    async fn starting(&self) -> Result<Vec<Uuid>, Error> {
        Ok(self.state.storage().get(STARTING_KEY).await?.unwrap_or_default())
    }

    /// Calls the objects of the batches that were about to start. A batch that is not in D1 does
    /// nothing. The next pass repeats calls that fail.
    async fn begin_batches(&self, workspace_id: i64) -> Result<(), Error> {
        let batches = self.starting().await?;
        if batches.is_empty() {
            return Ok(());
        }
        let results =
            in_chunks(&batches, async |batch| begin(&self.env, workspace_id, *batch).await).await;
        let failed = batches.iter().zip(&results).filter(|(_, result)| result.is_err());
        let failed: Vec<Uuid> = failed.map(|(batch, _)| *batch).collect();
        self.state.storage().put(STARTING_KEY, &failed).await.map_err(internal)
    }
}

async fn begin(env: &Env, workspace_id: i64, batch: Uuid) -> Result<(), Error> {
    calls::begin(env, workspace_id, batch).await.inspect_err(|error| {
        log::error("batch_not_begun", json!({"batch": batch}), &error.detail);
    })
}

/// Does some work for each item, for up to [`MAX_CONCURRENT`] items at a time.
async fn in_chunks<T, R>(items: &[T], work: impl AsyncFn(&T) -> R) -> Vec<R> {
    let mut results = Vec::with_capacity(items.len());
    for chunk in items.chunks(MAX_CONCURRENT) {
        results.extend(future::join_all(chunk.iter().map(|item| work(item))).await);
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queued_run_is_checked_less_and_less_often() {
        let now = Timestamp::parse("2026-11-21T12:00:00Z").unwrap();
        let next = |next_due: Option<i64>, queued: Option<i64>| {
            let at = |seconds: Option<i64>| seconds.map(|seconds| now.plus_seconds(seconds));
            let due = Due { schedules: vec![], next_due: at(next_due), queued: at(queued) };
            next_pass(&due, now).map(|next| next.seconds_since(now))
        };
        assert_eq!(next(None, None), None);
        assert_eq!(next(Some(90), None), Some(90.0));
        assert_eq!(next(Some(90), Some(-1)), Some(2.0));
        assert_eq!(next(Some(90), Some(-100)), Some(10.0));
        assert_eq!(next(None, Some(-86_400)), Some(60.0));
        assert_eq!(next(Some(5), Some(-86_400)), Some(5.0));
    }
}
