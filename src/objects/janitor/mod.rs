//! The Durable Object that works in the background of the region cell; there is one. It purges
//! deleted workspaces (rows, keys and objects), removes deleted users from the commands that they
//! requested, deletes commands that ended long ago, and notifies sealers of audit events that they
//! did not hear of.
//!
//! What is to be purged is told by D1 alone: the row of a deleted workspace stays, marked, until
//! nothing else is left of it. The alarm is set before the mark, so whatever is cut off in between,
//! the object looks again, finds the row and goes on. Each alarm does one bounded step of each kind
//! of work, for one workspace after the other.
//!
//! A deleted workspace is purged after its grace period. Until then the objects of its servers are
//! suspended: they keep what they have, and take no agent.
//!
//! Old commands are looked for in passes, which the clock begins (wrangler.toml, triggers): through
//! each workspace in turn, in the order of their ids. First the server's object forgets them, then
//! D1; so one that was cut off in between is found again. A pass goes by each command once: one
//! whose object does not answer is for the next pass.

mod old_commands;
mod purge;
mod resync;
mod suspend;

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use farhand_domain::audit::Event;
use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use futures_util::future::{self, Either};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;
use worker::{Delay, DurableObject, Env, Request, Response, State, durable_object};

use crate::objects::audit_sealer;
use crate::objects::server_link::calls;
use crate::objects::{self, alarm::Alarm};
use crate::platform;
use crate::platform::log;
use crate::store::workspaces;
use crate::store::{servers, sessions};

/// How many servers are cut off side by side.
const SERVERS: u64 = 50;
/// How many servers are cut off before a deletion is answered; what is beyond that follows within
/// seconds, and is refused by the name of the workspace, which is gone.
const SERVERS_AT_ONCE: u64 = 500;
/// How many sealers are notified concurrently.
const SEALERS: u64 = 50;
/// The name of the one object.
const NAME: &str = "janitor";
/// Between two steps of a purge.
const STEP: Duration = Duration::from_millis(10);
/// To the next look after a deletion was asked for, and after a step that failed.
const RETRY: Duration = Duration::from_secs(5);
/// The storage key of the pass over old commands that is under way.
const PASS: &str = "pass";
/// How long an object may take to begin a resync or a suspension, to cancel commands of revoked
/// sessions, or to delete a server, in seconds.
const BEGINS_WITHIN: u64 = 20;
/// The storage key of the last workspace whose sealer was notified, while there are more.
const SEALED: &str = "sealed";
/// The storage key of the last pending server that was looked at, while there are more.
const UNAPPROVED: &str = "unapproved";

/// What the object can be asked.
#[derive(Serialize, Deserialize)]
enum Ask {
    /// Delete the workspace with that slug, to be purged from then on, which may be now, and write
    /// the audit event. Answers whether there was one.
    DeleteWorkspace(String, (Timestamp, bool), Box<Event>),
    /// Undelete the workspace with that slug, and write the audit event. Answers whether there was
    /// one to undelete.
    UndeleteWorkspace(String, Box<Event>),
    /// Look for what is to be done.
    Look,
    /// Cancel the waiting commands of revoked login sessions.
    CancelRevoked,
    /// Begin the hourly pass: old commands, and sealers to be notified.
    BeginPass,
    /// Have the objects of the workspace with that slug tell D1 everything again. Answers whether
    /// there is one.
    Resync(String),
}

/// What a step left to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    /// The next step can follow immediately.
    More,
    /// Objects failed, and are tried again later.
    Retry,
    /// Nothing.
    Done,
}

/// Where a pass over old commands is.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Pass {
    /// The workspace.
    workspace: i64,
    /// The id of the last command in it that was done.
    after: String,
    /// How often D1 failed at the next ones.
    failures: u32,
    /// How many commands it deleted.
    deleted: u64,
    /// Until when commands must have been over, from its beginning on: what comes of age meanwhile
    /// is for the next one, or this one might never be through with a busy workspace.
    #[serde(default)]
    until: Option<Timestamp>,
    /// The servers whose objects did not answer in time. They are left alone until the next pass.
    #[serde(default)]
    silent: BTreeSet<String>,
}

/// Deletes a workspace. Everything in it is refused when this returns, and its data is purged from
/// the given time on, or, if the flag is set, now. False: there is none.
///
/// # Errors
/// The object could not be reached, or D1 not be told. The workspace may be deleted all the same.
pub async fn delete_workspace(
    env: &Env,
    slug: &str,
    purge: (Timestamp, bool),
    event: Event,
) -> Result<bool, Error> {
    ask(env, &Ask::DeleteWorkspace(slug.to_owned(), purge, Box::new(event))).await
}

/// Makes a deleted workspace a live one again. False: there is none, or its purge has begun.
///
/// # Errors
/// The object could not be reached, or D1 did not answer. The workspace may be live all the same.
pub async fn undelete_workspace(env: &Env, slug: &str, event: Event) -> Result<bool, Error> {
    ask(env, &Ask::UndeleteWorkspace(slug.to_owned(), Box::new(event))).await
}

/// Has the object look for what is to be done.
///
/// # Errors
/// It could not be reached.
pub async fn wake(env: &Env) -> Result<(), Error> {
    ask(env, &Ask::Look).await.map(drop)
}

/// Has the waiting commands of revoked login sessions cancelled. D1 knows which sessions those are;
/// the look that each hour brings finds what this call did not reach.
///
/// # Errors
/// The object could not be reached.
pub async fn cancel_revoked(env: &Env) -> Result<(), Error> {
    ask(env, &Ask::CancelRevoked).await.map(drop)
}

/// Has old commands deleted, and events sealed of which no sealer knows. If the object is at it
/// already, it goes on.
///
/// # Errors
/// The object could not be reached.
pub async fn begin_pass(env: &Env) -> Result<(), Error> {
    ask(env, &Ask::BeginPass).await.map(drop)
}

/// Has the objects of a workspace's servers tell D1 everything again, in the background. False:
/// there is no such workspace.
///
/// # Errors
/// The object could not be reached, or D1 not be asked.
pub async fn resync(env: &Env, slug: &str) -> Result<bool, Error> {
    ask(env, &Ask::Resync(slug.to_owned())).await
}

async fn ask(env: &Env, ask: &Ask) -> Result<bool, Error> {
    objects::call(env, platform::JANITOR, NAME, ask).await
}

/// Awaits an answer for so many seconds at most.
async fn in_time<T>(
    seconds: u64,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, String> {
    let limit = Delay::from(Duration::from_secs(seconds));
    match future::select(pin!(answer), pin!(limit)).await {
        Either::Left((answer, _)) => answer.map_err(|error| error.detail.into_owned()),
        Either::Right(_) => Err("no answer".to_owned()),
    }
}

/// The object.
#[durable_object]
pub struct Janitor {
    state: State,
    env: Env,
    alarm: Alarm,
}

impl DurableObject for Janitor {
    fn new(state: State, env: Env) -> Self {
        Self { state, env, alarm: Alarm::default() }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        objects::respond(&mut request, async |ask| {
            let storage = self.state.storage();
            let delay = if matches!(ask, Ask::CancelRevoked) { STEP } else { RETRY };
            self.set_alarm(delay).await?;
            match ask {
                Ask::DeleteWorkspace(slug, purge, event) => self.delete(slug, purge, &event).await,
                Ask::UndeleteWorkspace(slug, event) => self.undelete(slug, &event).await,
                Ask::Look | Ask::CancelRevoked => Ok(true),
                Ask::BeginPass => {
                    if storage.get::<i64>(SEALED).await?.is_none() {
                        storage.put(SEALED, -1).await?;
                    }
                    workspaces::begin_due_purges(&self.env, platform::now()).await?;
                    sessions::forget_revoked(&self.env, platform::now()).await?;
                    storage.put(UNAPPROVED, "").await?;
                    if storage.get::<Pass>(PASS).await?.is_none() {
                        storage.put(PASS, Pass::default()).await?;
                    }
                    Ok(true)
                }
                Ask::Resync(slug) => self.begin_resync(slug).await,
            }
        })
        .await
    }

    async fn alarm(&self) -> worker::Result<Response> {
        self.alarm.went_off();
        // None of them holds up another one.
        let suspended = self.suspend_next().await;
        let needs_retry = matches!(suspended, Ok(Progress::Retry));
        let steps = [
            suspended.map(|progress| progress == Progress::More),
            self.cancel_some().await,
            self.remove_unapproved().await,
            self.depart().await,
            self.purge().await,
            self.go_on_with_pass().await,
            self.resync_some().await,
            self.seal_some().await,
        ];
        let mut next = steps.iter().any(|step| matches!(step, Ok(true))).then_some(STEP);
        if needs_retry && next.is_none() {
            next = Some(RETRY);
        }
        for error in steps.into_iter().filter_map(Result::err) {
            log::trouble("janitor_failed", json!({}), &error.detail);
            next = Some(RETRY);
        }
        if let Some(delay) = next {
            self.set_alarm(delay).await?;
        }
        Response::empty()
    }
}

impl Janitor {
    /// Sets the alarm, also if it goes off earlier: what a request is about to change must be
    /// there.
    async fn set_alarm(&self, delay: Duration) -> worker::Result<()> {
        let at = platform::now().plus_millis(delay.as_millis() as i64);
        self.alarm.set(&self.state.storage(), at).await
    }

    /// Marks a workspace as deleted and disconnects its agents.
    async fn delete(
        &self,
        slug: String,
        purge: (Timestamp, bool),
        event: &Event,
    ) -> Result<bool, Error> {
        self.begin_suspension(&slug).await?;
        let marked =
            workspaces::mark_deleted(&self.env, &slug, purge, event, platform::now()).await?;
        let Some(id) = marked else { return Ok(false) };
        if workspaces::standing(&self.env, &slug).await?.is_some_and(|standing| standing.id == id) {
            self.suspend_first(&slug).await?;
            return Ok(true);
        }
        // It is being purged.
        let mut after = String::new();
        // Deleted servers have no agent, and can wait.
        for _ in 0..SERVERS_AT_ONCE / SERVERS {
            let ids = servers::ids_after(&self.env, id, &after, SERVERS).await?;
            // The purge wipes those that fail now.
            self.sever(&ids).await;
            match ids.last() {
                Some(last) => after.clone_from(last),
                None => break,
            }
        }
        Ok(true)
    }

    /// Makes a deleted workspace a live one again, and lets its agents connect.
    async fn undelete(&self, slug: String, event: &Event) -> Result<bool, Error> {
        self.begin_suspension(&slug).await?;
        let is_undeleted = workspaces::undelete(&self.env, &slug, event).await?.is_some();
        if is_undeleted {
            self.suspend_first(&slug).await?;
        }
        Ok(is_undeleted)
    }

    /// Tells the next sealers of events. False: all were told.
    async fn seal_some(&self) -> Result<bool, Error> {
        let storage = self.state.storage();
        let Some(after) = storage.get(SEALED).await? else { return Ok(false) };
        let workspaces = audit_sealer::to_be_told(&self.env, after, SEALERS).await?;
        let Some(last) = workspaces.last() else {
            storage.delete(SEALED).await?;
            return Ok(false);
        };
        // Stored first: a sealer that does not answer is for the next hour, and holds up no other.
        storage.put(SEALED, last).await?;
        let told = future::join_all(
            workspaces.iter().map(|workspace| audit_sealer::tell(&self.env, *workspace)),
        );
        if let Err(cause) = in_time(BEGINS_WITHIN, async { Ok(told.await) }).await {
            log::trouble("sealer_not_told", json!({"after": after}), &cause);
        }
        Ok(true)
    }

    /// Asks the objects of servers concurrently, and returns the servers whose objects failed.
    async fn failing(&self, servers: &[String], ask: impl Fn(Uuid) -> calls::Ask) -> Vec<String> {
        let asked = servers.iter().map(async |server| {
            // Ids of another form no object ever had.
            let object = Uuid::try_parse(server).ok()?;
            let cause = self.within::<Value>(BEGINS_WITHIN, object, ask(object)).await.err()?;
            log::trouble("object_not_told", json!({"server": server}), &cause);
            Some(server.clone())
        });
        future::join_all(asked).await.into_iter().flatten().collect()
    }

    /// Asks a server's object something, which it must answer in time.
    async fn within<T: DeserializeOwned>(
        &self,
        seconds: u64,
        object: Uuid,
        ask: calls::Ask,
    ) -> Result<T, String> {
        in_time(seconds, calls::ask::<T>(&self.env, object, &ask)).await
    }
}
