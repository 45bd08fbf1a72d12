//! The Durable Object that puts a workspace's audit events into a chain of hashes, and looks along
//! it (`docs/audit.md`). Each workspace has one, under its id; the region cell's own events have
//! that of 0.
//!
//! Events are written by whoever makes a change, in its transaction, and not linked then: D1 has no
//! hash function, and writers would race for the last hash. The object alone makes hashes, in the
//! order in which the rows were written:
//!
//! 1. It reads the next rows behind the end of the chain.
//! 2. It stores the new end of the chain, and the seals of these rows, in its own storage.
//! 3. It writes the seals to D1, and then deletes its copy of them.
//!
//! If it is cut off in between, the next alarm writes the stored seals; D1 keeps a seal that it
//! has. So the end of the chain and some of its hashes are stored outside of D1, and an attacker
//! who rewrites all of D1 is detected.

mod retention;
mod verify;

use std::cell::Cell;
use std::time::Duration;

use farhand_domain::audit;
use farhand_domain::audit_chain::{Broken, Head, Seals, seal};
use farhand_domain::error::{Error, Kind};
use farhand_domain::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use worker::{DurableObject, Env, Request, Response, SqlStorage, State, durable_object};

use crate::objects::{self, alarm::Alarm};
use crate::platform::cost;
use crate::platform::hints::Hints;
use crate::platform::log;
use crate::platform::{self, internal};
use crate::store::audit_chain::{self, Unsealed};

/// How often an isolate tells the object of a workspace that there are events.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How long the object waits after it was told, in milliseconds: longer, so that what comes untold
/// meanwhile is there.
const SEAL_AFTER: i64 = 2_000;
/// How many rows are sealed in one go.
const AT_ONCE: u64 = 200;
/// How many commands are added to the counters of lists at a time, at least. A list counts those
/// that are not added yet.
const COUNTED_AT_ONCE: u64 = 200;
/// How many goes an alarm takes before it makes room for another one.
const GOES: u32 = 10;
/// When an alarm that failed tries again, in seconds.
const RETRY: i64 = 5;
/// Of how many links one's hash is kept for good.
const ANCHOR_EVERY: i64 = 100;
/// How often a look along a chain is begun anew where old links go meanwhile.
const TRIES: u32 = 3;

thread_local! {
    /// Workspaces whose objects were told.
    static TOLD: Hints<i64> = Hints::new(TELL_EVERY);
}

/// What the object can be asked.
#[derive(Serialize, Deserialize)]
enum Ask {
    /// Seal what there is, soon.
    Seal(i64),
    /// Look along the workspace's chain, from a link on. Answers with [`Verification`], or nothing
    /// where old links went all the while.
    Verify(i64, i64),
    /// Forget everything: the workspace is gone.
    Wipe,
}

/// What a look along a chain found.
#[derive(Debug, Serialize, Deserialize)]
pub struct Verification {
    /// Whether all that was looked at is as it was sealed.
    pub valid: bool,
    /// How many links were found good.
    pub links: i64,
    /// How many events are not sealed yet.
    pub unsealed: u64,
    /// How many of the good links are of anonymous events that were deleted because of their age.
    pub expired: i64,
    /// The first link that is not as it should be.
    pub first_broken: Option<Broken>,
    /// Where there is more to look at.
    pub next_link: Option<i64>,
}

fn name_of(workspace: i64) -> String {
    workspace.to_string()
}

/// Notifies the sealer of a workspace that there are events, unless this isolate did so within the
/// last second. If the call fails, the janitor's next hourly pass notifies the sealer.
pub async fn tell(env: &Env, workspace: i64) {
    let now = platform::now();
    if !TOLD.with(|told| told.is_new(workspace, now)) {
        return;
    }
    let asked: Result<Option<Verification>, Error> =
        ask(env, workspace, &Ask::Seal(workspace)).await;
    if let Err(error) = asked {
        TOLD.with(|told| told.forget(&workspace));
        log::trouble("sealer_not_told", json!({"workspace_id": workspace}), &error.detail);
    }
}

/// The next workspaces after one that have events to be sealed or deleted: those whose objects were
/// never told, and those whose events grew old.
///
/// # Errors
/// D1 did not answer.
pub async fn to_be_told(env: &Env, after: i64, limit: u64) -> Result<Vec<i64>, Error> {
    let kept_until = |setting| retention::kept_until(env, audit::CELL, setting);
    let old = audit_chain::KeptUntil {
        all: kept_until(platform::AUDIT_RETENTION),
        anonymous: kept_until(platform::ANONYMOUS_AUDIT_RETENTION),
    };
    audit_chain::workspaces_to_seal(env, after, old, limit).await
}

/// Looks along the chain of a workspace, from a link on.
///
/// # Errors
/// D1 or the object did not answer; 409 where old links went all the while.
pub async fn verify(env: &Env, workspace: i64, first: i64) -> Result<Verification, Error> {
    let found: Option<Verification> = ask(env, workspace, &Ask::Verify(workspace, first)).await?;
    found.ok_or_else(|| {
        Error::new(Kind::Conflict, "Old events are being deleted at the same time. Try again.")
    })
}

/// Has the object of a workspace that is gone forget everything.
///
/// # Errors
/// It could not be reached.
pub async fn wipe(env: &Env, workspace: i64) -> Result<(), Error> {
    ask(env, workspace, &Ask::Wipe).await.map(drop)
}

async fn ask(env: &Env, workspace: i64, ask: &Ask) -> Result<Option<Verification>, Error> {
    objects::call(env, platform::SEALER, &name_of(workspace), ask).await
}

const SCHEMA: [&str; 2] = [
    // The one row: of which workspace it is, where its chain ends, and the seals that D1 may not
    // have yet; the last link of those that were deleted, and whether D1 may still have to delete
    // them; the link up to which anonymous events may be expired.
    "CREATE TABLE IF NOT EXISTS chains (
        workspace INTEGER PRIMARY KEY, head TEXT NOT NULL, pending TEXT NOT NULL, base TEXT NOT NULL, is_deleting INTEGER NOT NULL,
        expired INTEGER NOT NULL DEFAULT 0
    )",
    // Hashes of links.
    "CREATE TABLE IF NOT EXISTS anchors (link INTEGER PRIMARY KEY, hash TEXT NOT NULL)",
];

/// What the object knows of its chain.
struct Chain {
    workspace: i64,
    head: Head,
    pending: Option<Seals>,
    base: Head,
    is_deleting: bool,
    expired: i64,
}

/// The object.
#[durable_object]
pub struct Sealer {
    state: State,
    env: Env,
    alarm: Alarm,
    /// When it was last told that there are events.
    told_at: Cell<Option<Timestamp>>,
}

impl DurableObject for Sealer {
    fn new(state: State, env: Env) -> Self {
        Self { state, env, alarm: Alarm::default(), told_at: Cell::new(None) }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        let answer = objects::respond(&mut request, async |ask| match ask {
            Ask::Seal(workspace) => self.begin(workspace).await.map(|()| None).map_err(internal),
            Ask::Verify(workspace, first) => {
                tried(async || self.verify(workspace, first).await).await
            }
            Ask::Wipe => self.wipe().await.map(|()| None).map_err(internal),
        });
        objects::with_cost_header(answer).await
    }

    async fn alarm(&self) -> worker::Result<Response> {
        self.alarm.went_off();
        let worked = match self.seal_all().await {
            Ok(false) => self.delete_old().await,
            worked => worked,
        };
        let worked = match worked {
            Ok(false) => self.expire_old().await,
            worked => worked,
        };
        let now = platform::now();
        let next = match worked {
            Ok(true) => Some(now),
            // What came shortly after it was last told of is told of with that.
            Ok(false) => self.told_at.get().and_then(|told| waits_until(told, now)),
            Err(error) => {
                log::trouble(
                    "sealer_failed",
                    json!({"workspace_id": self.state.id().name()}),
                    &error.detail,
                );
                Some(now.plus_seconds(RETRY))
            }
        };
        if let Some(next) = next {
            self.alarm.set_by(&self.state.storage(), next, now).await?;
        }
        Response::empty()
    }
}

/// Until when what was told at a time is still waited for. Nothing is told later than now, but by a
/// clock that went wrong.
fn waits_until(told: Timestamp, now: Timestamp) -> Option<Timestamp> {
    Some(told.plus_millis(SEAL_AFTER)).filter(|until| told <= now && now < *until)
}

/// Does something that others may get in the way of, until it is done, or was tried [`TRIES`]
/// times.
async fn tried<T>(work: impl AsyncFn() -> Result<Option<T>, Error>) -> Result<Option<T>, Error> {
    for _ in 0..TRIES {
        if let Some(done) = work().await? {
            return Ok(Some(done));
        }
    }
    Ok(None)
}

impl Sealer {
    fn sql(&self) -> SqlStorage {
        self.state.storage().sql()
    }

    /// Sets the alarm, and where it was never used, notes of which workspace it is.
    async fn begin(&self, workspace: i64) -> worker::Result<()> {
        for statement in SCHEMA {
            self.sql().exec(statement, None)?;
        }
        let sql = "INSERT OR IGNORE INTO chains (workspace, head, pending, base, is_deleting) VALUES (?1, ?2, 'null', ?2, 0)";
        let beginning = serde_json::to_string(&Head::default())?;
        self.sql().exec(sql, vec![workspace.into(), beginning.into()])?;
        let now = platform::now();
        self.told_at.set(Some(now));
        self.alarm.set_by(&self.state.storage(), now.plus_millis(SEAL_AFTER), now).await
    }

    async fn wipe(&self) -> worker::Result<()> {
        let storage = self.state.storage();
        self.alarm.delete(&storage).await?;
        storage.delete_all().await
    }

    /// What is known of the chain; `None` where nothing was ever sealed.
    fn chain(&self) -> Result<Option<Chain>, Error> {
        #[derive(Deserialize)]
        struct Stored {
            workspace: f64,
            head: String,
            pending: String,
            base: String,
            is_deleting: f64,
            expired: f64,
        }
        let tables =
            self.sql().exec("SELECT name FROM sqlite_master WHERE name = 'chains'", None)?;
        if tables.to_array::<serde_json::Value>()?.is_empty() {
            return Ok(None);
        }
        let rows = self.sql().exec(
            "SELECT workspace, head, pending, base, is_deleting, expired FROM chains",
            None,
        )?;
        let Some(stored) = rows.to_array::<Stored>()?.into_iter().next() else { return Ok(None) };
        Ok(Some(Chain {
            workspace: stored.workspace as i64,
            head: serde_json::from_str(&stored.head)?,
            pending: serde_json::from_str(&stored.pending)?,
            base: serde_json::from_str(&stored.base)?,
            is_deleting: stored.is_deleting != 0.0,
            expired: stored.expired as i64,
        }))
    }

    /// Stores where the chain ends, and the seals that D1 does not have yet, at once.
    fn note(&self, head: &Head, pending: Option<&Seals>) -> worker::Result<()> {
        if let Some(seals) = pending {
            for link in (seals.first..=seals.last).filter(|link| link % ANCHOR_EVERY == 0) {
                let values = vec![link.into(), seals.hash(link).unwrap_or_default().into()];
                self.sql()
                    .exec("INSERT OR IGNORE INTO anchors (link, hash) VALUES (?, ?)", values)?;
            }
        }
        let values =
            vec![serde_json::to_string(head)?.into(), serde_json::to_string(&pending)?.into()];
        self.sql().exec("UPDATE chains SET head = ?, pending = ?", values)?;
        Ok(())
    }

    /// Seals what there is. True: there may be more.
    async fn seal_all(&self) -> Result<bool, Error> {
        for _ in 0..GOES {
            let (sealed, cost) = cost::of(self.seal_some()).await;
            let Some((workspace, sealed)) = sealed? else { return Ok(false) };
            log::event(
                "sealed",
                json!({
                    "workspace_id": workspace, "links": sealed,
                    "d1_calls": cost.d1_calls, "rows_read": cost.rows_read, "rows_written": cost.rows_written,
                }),
            );
            if sealed < AT_ONCE {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Seals the next events; returns whose and how many. `None`: there are none.
    async fn seal_some(&self) -> Result<Option<(i64, u64)>, Error> {
        let Some(Chain { workspace, head, pending, .. }) = self.chain()? else { return Ok(None) };
        if let Some(pending) = pending {
            self.tell_d1(workspace, &head, &pending).await?;
        }
        let Unsealed { rows, uncounted } =
            audit_chain::unsealed(&self.env, workspace, head.link, AT_ONCE).await?;
        if uncounted >= COUNTED_AT_ONCE {
            audit_chain::count_commands(&self.env, workspace).await?;
        }
        if rows.is_empty() {
            if head.link == 0 {
                // Told of a workspace that is gone.
                self.wipe().await?;
            }
            return Ok(None);
        }
        // Meanwhile it may have been wiped.
        if self.chain()?.is_none_or(|chain| chain.head != head) {
            return Ok(None);
        }
        let Some((seals, head)) = seal(workspace, &head, &rows) else { return Ok(None) };
        self.note(&head, Some(&seals))?;
        self.tell_d1(workspace, &head, &seals).await?;
        Ok(Some((workspace, (seals.last - seals.first + 1).cast_unsigned())))
    }

    /// Writes seals to D1, and deletes the copy of them.
    async fn tell_d1(&self, workspace: i64, head: &Head, seals: &Seals) -> Result<(), Error> {
        audit_chain::write_seals(&self.env, workspace, seals).await?;
        if self.chain()?.is_some_and(|chain| chain.head == *head) {
            self.note(head, None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn what_never_succeeds_is_tried_no_longer() {
        for (succeeds_at, expected) in [(1, Some(1)), (TRIES, Some(TRIES)), (TRIES + 1, None)] {
            let tries = Cell::new(0);
            let work = async || {
                tries.set(tries.get() + 1);
                Ok((tries.get() == succeeds_at).then_some(tries.get()))
            };
            assert_eq!(tried(work).now_or_never().unwrap().unwrap(), expected);
            assert_eq!(tries.get(), succeeds_at.min(TRIES));
        }
        let tries = Cell::new(0);
        let work = async || {
            tries.set(tries.get() + 1);
            Err::<Option<()>, _>(Error::not_found())
        };
        assert!(tried(work).now_or_never().unwrap().is_err());
        assert_eq!(tries.get(), 1);
    }

    #[test]
    fn what_was_told_is_waited_for_by_a_clock_that_is_right() {
        let now = Timestamp::parse("2026-11-21T12:00:00Z").unwrap();
        let until = |millis: i64| waits_until(now.plus_millis(millis), now);
        assert_eq!(until(0), Some(now.plus_millis(SEAL_AFTER)));
        assert_eq!(until(500 - SEAL_AFTER), Some(now.plus_millis(500)));
        assert_eq!(until(-SEAL_AFTER), None);
        assert_eq!(until(3_600_000), None);
    }
}
