//! The Durable Object that seals the audit events of a workspace in a hash chain, and verifies that
//! chain (`docs/audit.md`). Each workspace has one sealer, named by the workspace's id. The sealer
//! of the region cell's events has the name 0.
//!
//! A change writes its audit event in its own transaction, without a hash: D1 has no hash function,
//! and concurrent writers would compete for the last hash. Only the sealer computes hashes, in the
//! order in which the events were written:
//!
//! 1. It reads the next events after the end of the chain.
//! 2. It stores the new end of the chain and the seals of these events in its own storage.
//! 3. It writes the seals to D1, and then deletes its copy of them.
//!
//! If the object dies between these steps, the next alarm writes the stored seals. D1 ignores a
//! seal that it already has. The object stores the end of the chain and some of the chain's hashes
//! outside of D1. So it detects an attacker who rewrites everything in D1.

mod retention;
mod verify;

use std::cell::Cell;
use std::time::Duration;

use farhand_domain::audit::chain::{ChainDamage, ChainEnd, Seals, seal};
use farhand_domain::audit::event::CELL;
use farhand_domain::error::{Error, ErrorKind};
use farhand_domain::time::Timestamp;
use farhand_sql::object::audit_sealer as tables;
use farhand_sql::statement::Statement;
use serde::{Deserialize, Serialize};
use serde_json::json;
use worker::{DurableObject, Env, Request, Response, SqlStorage, State, durable_object};

use crate::objects::{self, alarm::Alarm, sqlite};
use crate::platform::cost;
use crate::platform::hints::Hints;
use crate::platform::log;
use crate::platform::{self, internal};
use crate::store::Progress;
use crate::store::audit_chain::{self, UnsealedWork};
use crate::store::database::Database;

/// An isolate notifies the sealer of a workspace at most once in this interval.
const NOTIFY_INTERVAL: Duration = Duration::from_secs(1);
/// The milliseconds from a notification to the sealing. It is longer than [`NOTIFY_INTERVAL`]:
/// events within that interval cause no further notification, and must be sealed, too.
const SEAL_DELAY_MILLIS: i64 = 2_000;
/// The maximum number of events that are sealed, or chain entries that are deleted, in one step.
const BATCH: u64 = 200;
/// The sealer adds commands to the counters of lists when the counters lack at least this many.
/// Until then, each list counts the missing commands itself.
const MIN_UNCOUNTED: u64 = 200;
/// The maximum number of sealing steps in one alarm.
const MAX_STEPS_PER_ALARM: u32 = 10;
/// The seconds before a failed alarm is repeated.
const RETRY_SECONDS: i64 = 5;
/// The object stores the hash of one in this many chain entries.
const ANCHOR_INTERVAL: i64 = 100;
/// The maximum number of tries of a verification, which fail if old entries are deleted at the same
/// time.
const VERIFY_TRIES: u32 = 3;

thread_local! {
    /// The workspaces whose sealers this isolate has just notified.
    static NOTIFIED: Hints<i64> = Hints::new(NOTIFY_INTERVAL);
}

/// A request message to the object. The first number is the workspace id.
#[derive(Serialize, Deserialize)]
enum SealerRequest {
    /// Seal the workspace's pending events soon.
    Seal(i64),
    /// Verify the chain, beginning with this entry. The response is a [`Verification`], or null if
    /// old entries were deleted during every try.
    Verify(i64, i64),
    /// Delete everything: the workspace was deleted.
    Wipe,
}

/// The outcome of a verification.
#[derive(Debug, Serialize, Deserialize)]
pub struct Verification {
    /// Whether all checked entries are as they were sealed.
    pub valid: bool,
    /// The number of valid entries.
    pub links: i64,
    /// The number of events that are not sealed yet.
    pub unsealed: u64,
    /// How many of the valid entries belong to anonymous events that were deleted because of their
    /// age.
    pub expired: i64,
    /// The first invalid entry.
    pub first_broken: Option<ChainDamage>,
    /// The entry at which the next call should continue. `None` if the end was reached, or if an
    /// entry is invalid.
    pub next_link: Option<i64>,
}

fn name_of(workspace: i64) -> String {
    workspace.to_string()
}

/// Notifies the sealer of a workspace of new events, unless this isolate did so within the last
/// second. If the call fails, the janitor's next hourly pass notifies the sealer.
pub async fn notify(env: &Env, workspace: i64) {
    let now = platform::now();
    if !NOTIFIED.with(|notified| notified.is_new(workspace, now)) {
        return;
    }
    if let Err(error) = call(env, workspace, &SealerRequest::Seal(workspace)).await {
        NOTIFIED.with(|notified| notified.forget(&workspace));
        log::error("sealer_not_notified", json!({"workspace_id": workspace}), &error.detail);
    }
}

/// Finds workspaces whose sealers have work, in the order of their ids, after the id `after`. They
/// have events that are not sealed, or events that are old enough to be deleted.
///
/// # Errors
/// D1 failed.
pub async fn workspaces_with_work(env: &Env, after: i64, limit: u64) -> Result<Vec<i64>, Error> {
    let kept_until = |setting| retention::kept_until(env, CELL, setting);
    let old = audit_chain::RetentionCutoffs {
        all: kept_until(platform::AUDIT_RETENTION),
        anonymous: kept_until(platform::ANONYMOUS_AUDIT_RETENTION),
    };
    audit_chain::workspaces_to_seal(&Database::cell(env), after, old, limit).await
}

/// Verifies the chain of a workspace, beginning with the entry `first`.
///
/// # Errors
/// D1 failed, or the object did not respond. 409 if old entries were deleted during every try.
pub async fn verify(env: &Env, workspace: i64, first: i64) -> Result<Verification, Error> {
    let verified = call(env, workspace, &SealerRequest::Verify(workspace, first)).await?;
    verified.ok_or_else(|| {
        Error::new(ErrorKind::Conflict, "Old events are being deleted at the same time. Try again.")
    })
}

/// Deletes everything in the sealer of a deleted workspace.
///
/// # Errors
/// The object did not respond.
pub async fn wipe(env: &Env, workspace: i64) -> Result<(), Error> {
    call(env, workspace, &SealerRequest::Wipe).await.map(drop)
}

async fn call(
    env: &Env,
    workspace: i64,
    request: &SealerRequest,
) -> Result<Option<Verification>, Error> {
    objects::call(env, platform::SEALER, &name_of(workspace), request).await
}

/// The state of the chain. The object stores it.
struct Chain {
    workspace: i64,
    /// The last sealed entry.
    head: ChainEnd,
    /// Seals that D1 may not have yet.
    pending: Option<Seals>,
    /// The last entry that was deleted because of its age. The chain begins after it.
    base: ChainEnd,
    /// Whether D1 may still have entries up to `base`.
    is_deleting: bool,
    /// Anonymous events up to this entry may be expired.
    expired: i64,
}

#[durable_object]
pub struct Sealer {
    state: State,
    env: Env,
    alarm: Alarm,
    /// When the object was last notified of events.
    notified_at: Cell<Option<Timestamp>>,
}

impl DurableObject for Sealer {
    fn new(state: State, env: Env) -> Self {
        Self { state, env, alarm: Alarm::default(), notified_at: Cell::new(None) }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        let response = objects::respond(&mut request, async |message| match message {
            SealerRequest::Seal(workspace) => {
                self.schedule(workspace).await.map(|()| None).map_err(internal)
            }
            SealerRequest::Verify(workspace, first) => {
                retry_until_done(async || self.verify(workspace, first).await).await
            }
            SealerRequest::Wipe => self.wipe().await.map(|()| None).map_err(internal),
        });
        objects::with_cost_header(response).await
    }

    async fn alarm(&self) -> worker::Result<Response> {
        self.alarm.went_off();
        let now = platform::now();
        let next = match self.work().await {
            Ok(Progress::More | Progress::Retry) => Some(now),
            Ok(Progress::Done) => self.notified_at.get().and_then(|at| seal_again_at(at, now)),
            Err(error) => {
                log::error(
                    "sealer_failed",
                    json!({"workspace_id": self.state.id().name()}),
                    &error.detail,
                );
                Some(now.plus_seconds(RETRY_SECONDS))
            }
        };
        if let Some(next) = next {
            self.alarm.set_by(&self.state.storage(), next, now).await?;
        }
        Response::empty()
    }
}

/// The time of another sealing after a notification within the last [`SEAL_DELAY_MILLIS`]: events
/// may follow that cause no notification. Ignores a notification in the future, because the clock
/// was wrong then.
fn seal_again_at(notified_at: Timestamp, now: Timestamp) -> Option<Timestamp> {
    Some(notified_at.plus_millis(SEAL_DELAY_MILLIS))
        .filter(|again_at| notified_at <= now && now < *again_at)
}

/// Repeats work until it returns a value, at most [`VERIFY_TRIES`] times.
async fn retry_until_done<T>(
    work: impl AsyncFn() -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    for _ in 0..VERIFY_TRIES {
        if let Some(done) = work().await? {
            return Ok(Some(done));
        }
    }
    Ok(None)
}

impl Sealer {
    /// The database of a workspace, or of the cell.
    fn database(&self, workspace: i64) -> Database {
        Database::of(&self.env, workspace)
    }

    fn sql(&self) -> SqlStorage {
        self.state.storage().sql()
    }

    /// Runs a statement that returns no rows.
    fn exec(&self, statement: Statement) -> worker::Result<()> {
        sqlite::exec(&self.sql(), statement).map(drop)
    }

    /// Sets the alarm. If the object was never used, first stores an empty chain.
    async fn schedule(&self, workspace: i64) -> worker::Result<()> {
        sqlite::exec_all(&self.sql(), tables::schema())?;
        let beginning = serde_json::to_string(&ChainEnd::default())?;
        self.exec(tables::insert_chain(workspace, beginning))?;
        let now = platform::now();
        self.notified_at.set(Some(now));
        self.alarm.set_by(&self.state.storage(), now.plus_millis(SEAL_DELAY_MILLIS), now).await
    }

    async fn wipe(&self) -> worker::Result<()> {
        let storage = self.state.storage();
        self.alarm.delete(&storage).await?;
        storage.delete_all().await
    }

    /// Reads the state of the chain. Returns `None` if the object was never used, or was wiped.
    fn chain(&self) -> Result<Option<Chain>, Error> {
        #[derive(Deserialize)]
        struct ChainRow {
            workspace: f64,
            head: String,
            pending: String,
            base: String,
            is_deleting: f64,
            expired: f64,
        }
        if !sqlite::has_rows(&self.sql(), tables::find_tables())? {
            return Ok(None);
        }
        let rows: Vec<ChainRow> = sqlite::rows(&self.sql(), tables::chain())?;
        let Some(row) = rows.into_iter().next() else { return Ok(None) };
        Ok(Some(Chain {
            workspace: row.workspace as i64,
            head: serde_json::from_str(&row.head)?,
            pending: serde_json::from_str(&row.pending)?,
            base: serde_json::from_str(&row.base)?,
            is_deleting: row.is_deleting != 0.0,
            expired: row.expired as i64,
        }))
    }

    /// Stores the end of the chain and the seals that D1 does not have yet. These writes commit
    /// together, because there is no `await` between them.
    fn store_head(&self, head: &ChainEnd, pending: Option<&Seals>) -> worker::Result<()> {
        if let Some(seals) = pending {
            for link in (seals.first..=seals.last).filter(|link| link % ANCHOR_INTERVAL == 0) {
                self.exec(tables::insert_anchor(link, seals.hash(link).unwrap_or_default()))?;
            }
        }
        let (head, pending) = (serde_json::to_string(head)?, serde_json::to_string(&pending)?);
        self.exec(tables::set_head(head, pending))
    }

    /// Seals pending events, deletes old events, and expires old anonymous events, in this order.
    async fn work(&self) -> Result<Progress, Error> {
        if self.seal_pending().await? == Progress::More
            || self.delete_old().await? == Progress::More
        {
            return Ok(Progress::More);
        }
        self.expire_old().await
    }

    /// Seals pending events, up to [`MAX_STEPS_PER_ALARM`] batches.
    async fn seal_pending(&self) -> Result<Progress, Error> {
        for _ in 0..MAX_STEPS_PER_ALARM {
            let (sealed, cost) = cost::measure(self.seal_batch()).await;
            let Some((workspace, sealed)) = sealed? else { return Ok(Progress::Done) };
            log::event(
                "sealed",
                json!({
                    "workspace_id": workspace, "links": sealed,
                    "d1_calls": cost.d1_calls, "rows_read": cost.rows_read, "rows_written": cost.rows_written,
                }),
            );
            if sealed < BATCH {
                return Ok(Progress::Done);
            }
        }
        Ok(Progress::More)
    }

    /// Seals the next events. Returns the workspace and the number of sealed events, or `None` if
    /// there were none.
    async fn seal_batch(&self) -> Result<Option<(i64, u64)>, Error> {
        let Some(Chain { workspace, head, pending, .. }) = self.chain()? else { return Ok(None) };
        if let Some(pending) = pending {
            self.flush_seals(workspace, &head, &pending).await?;
        }
        let UnsealedWork { rows, uncounted } =
            audit_chain::unsealed(&self.database(workspace), workspace, head.link, BATCH).await?;
        if uncounted >= MIN_UNCOUNTED {
            audit_chain::count_commands(&self.database(workspace), workspace).await?;
        }
        if rows.is_empty() {
            if head.link == 0 {
                // Every notification follows an event. Without events, the workspace was deleted.
                self.wipe().await?;
            }
            return Ok(None);
        }
        // The object may have been wiped while it awaited D1.
        if self.chain()?.is_none_or(|chain| chain.head != head) {
            return Ok(None);
        }
        let Some((seals, head)) = seal(workspace, &head, &rows) else { return Ok(None) };
        self.store_head(&head, Some(&seals))?;
        self.flush_seals(workspace, &head, &seals).await?;
        Ok(Some((workspace, (seals.last - seals.first + 1).cast_unsigned())))
    }

    /// Writes seals to D1, and then deletes the object's copy of them.
    async fn flush_seals(
        &self,
        workspace: i64,
        head: &ChainEnd,
        seals: &Seals,
    ) -> Result<(), Error> {
        audit_chain::write_seals(&self.database(workspace), workspace, seals).await?;
        if self.chain()?.is_some_and(|chain| chain.head == *head) {
            self.store_head(head, None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn work_is_repeated_until_it_is_done_or_fails_or_the_tries_are_used_up() {
        for (succeeds_at, expected) in
            [(1, Some(1)), (VERIFY_TRIES, Some(VERIFY_TRIES)), (VERIFY_TRIES + 1, None)]
        {
            let tries = Cell::new(0);
            let work = async || {
                tries.set(tries.get() + 1);
                Ok((tries.get() == succeeds_at).then_some(tries.get()))
            };
            assert_eq!(retry_until_done(work).now_or_never().unwrap().unwrap(), expected);
            assert_eq!(tries.get(), succeeds_at.min(VERIFY_TRIES));
        }
        let tries = Cell::new(0);
        let work = async || {
            tries.set(tries.get() + 1);
            Err::<Option<()>, _>(Error::not_found())
        };
        assert!(retry_until_done(work).now_or_never().unwrap().is_err());
        assert_eq!(tries.get(), 1);
    }

    #[test]
    fn the_sealer_seals_again_after_a_recent_notification() {
        let now = Timestamp::parse("2026-11-21T12:00:00Z").unwrap();
        let again_at = |millis: i64| seal_again_at(now.plus_millis(millis), now);
        assert_eq!(again_at(0), Some(now.plus_millis(SEAL_DELAY_MILLIS)));
        assert_eq!(again_at(500 - SEAL_DELAY_MILLIS), Some(now.plus_millis(500)));
        assert_eq!(again_at(-SEAL_DELAY_MILLIS), None);
        // The clock was an hour ahead at that time.
        assert_eq!(again_at(3_600_000), None);
    }
}
