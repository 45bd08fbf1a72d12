//! The Durable Object that clears deleted workspaces away, to the last row, key and object, takes deleted users off the
//! commands that they asked for, and deletes commands that are over for long. There is one for the region cell.
//!
//! What is to be purged is told by D1 alone: the row of a deleted workspace stays, marked, until nothing else is left of
//! it. The alarm is set before the mark, so whatever is cut off in between, the object looks again, finds the row and
//! goes on. Each alarm does one bounded step of each kind of work, for one workspace after the other.
//!
//! A deleted workspace is purged after its grace period. Until then the objects of its servers are suspended: they keep what
//! they have, and take no agent.
//!
//! Old commands are looked for in passes, which the clock begins (wrangler.toml, triggers): through each workspace in turn, in
//! the order in which its commands ended. First the server's object forgets them, then D1; so one that was cut off in between
//! is found again. A pass goes by each command once: one whose object does not answer is for the next pass.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::pin::pin;
use std::time::Duration;

use farhand_domain::audit::Event;
use farhand_domain::error::Error;
use farhand_domain::registration_token::APPROVED_WITHIN;
use farhand_domain::time::Timestamp;
use futures_util::future::{self, Either};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;
use worker::{Delay, DurableObject, Env, Request, Response, State, durable_object};

use crate::objects;
use crate::objects::audit_sealer;
use crate::objects::server_link::calls::{self, Forget, Forgotten, OfServer, Remove, RevokedSessions};
use crate::platform::cost;
use crate::platform::log;
use crate::platform::{self, internal};
use crate::store::audit::of_service;
use crate::store::retention::{self, Due, Place};
use crate::store::workspaces::{self, Deleted};
use crate::store::{login_tokens, servers, sessions, users};

/// How many servers are cut off side by side.
const SERVERS: u64 = 50;
/// How many servers are cut off before a deletion is answered; what is beyond that follows within seconds, and is refused
/// by the name of the workspace, which is gone.
const SERVERS_AT_ONCE: u64 = 500;
/// How many commands a deleted user is taken off at a time.
const COMMANDS: u64 = 200;
/// How many old commands are deleted at a time.
const OLD_COMMANDS: u64 = 100;
/// How long an object may take to forget some, in seconds.
const FORGETS_WITHIN: u64 = 20;
/// How often D1 is told of the same ones, before they are left to the next pass.
const TRIES: u32 = 3;
/// The name of the one object.
const NAME: &str = "janitor";
/// Between two steps of a purge.
const STEP: Duration = Duration::from_millis(10);
/// To the next look after a deletion was asked for, and after a step that failed.
const RETRY: Duration = Duration::from_secs(5);
/// The storage key of the workspace that had the last step.
const LAST: &str = "last";
/// The storage key of the pass over old commands that is under way.
const PASS: &str = "pass";
/// The storage key of the workspaces whose servers' objects are to tell D1 everything again.
const RESYNCS: &str = "resyncs";
/// The storage key of the workspaces whose servers' objects are to be suspended or resumed.
const SUSPENSIONS: &str = "suspensions";
/// The storage key of the workspace that had the last step of that.
const LAST_SUSPENSION: &str = "last_suspension";
/// How many servers whose objects failed are noted to be tried again, before none are added.
const MAX_FAILED: usize = 500;
/// How long an object may take to begin with that, to cancel commands of revoked sessions, or to delete a server, in seconds.
const BEGINS_WITHIN: u64 = 20;
/// The storage key of the last pending server that was looked at, while there are more.
const UNAPPROVED: &str = "unapproved";
/// The storage key of the user whose revoked sessions were looked at last.
const REVOKED: &str = "revoked";

/// What the object can be asked.
#[derive(Serialize, Deserialize)]
enum Ask {
    /// Delete the workspace with that slug, to be purged from then on, which may be now, and write the audit event. Answers whether
    /// there was one.
    DeleteWorkspace(String, (Timestamp, bool), Box<Event>),
    /// Undelete the workspace with that slug, and write the audit event. Answers whether there was one to undelete.
    UndeleteWorkspace(String, Box<Event>),
    /// Look for what is to be done.
    Look,
    /// Cancel the waiting commands of revoked login sessions.
    CancelRevoked,
    /// Look for old commands.
    BeginPass,
    /// Have the objects of the workspace with that slug tell D1 everything again. Answers whether there is one.
    Resync(String),
}

/// How far the objects of a workspace's servers were told to tell D1 everything again.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Resync {
    /// The workspace's slug.
    slug: String,
    /// The last server that was told, first of those that are there, then of those that are gone.
    after: String,
    are_gone: bool,
    /// How many servers were told.
    told: u64,
    /// How many could not be.
    failed: u64,
}

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
    /// The last command in it that was done.
    after: Place,
    /// How often D1 failed at the next ones.
    failures: u32,
    /// How many commands it deleted.
    deleted: u64,
    /// Until when commands must have been over, from its beginning on: what comes of age meanwhile is for the next one, or
    /// this one might never be through with a busy workspace.
    #[serde(default)]
    until: Option<Timestamp>,
    /// The servers whose objects did not answer in time. They are left alone until the next pass.
    #[serde(default)]
    silent: BTreeSet<String>,
}

/// Deletes a workspace. Everything in it is refused when this returns, and its data is purged from the given time on, or, if the
/// flag is set, now. False: there is none.
///
/// # Errors
/// The object could not be reached, or D1 not be told. The workspace may be deleted all the same.
pub async fn delete_workspace(env: &Env, slug: &str, purge: (Timestamp, bool), event: Event) -> Result<bool, Error> {
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

/// Has the waiting commands of revoked login sessions cancelled. D1 knows which sessions those are; the look that each hour
/// brings finds what this call did not reach.
///
/// # Errors
/// The object could not be reached.
pub async fn cancel_revoked(env: &Env) -> Result<(), Error> {
    ask(env, &Ask::CancelRevoked).await.map(drop)
}

/// Has old commands deleted. Where the object is at it already, it goes on.
///
/// # Errors
/// The object could not be reached.
pub async fn delete_old_commands(env: &Env) -> Result<(), Error> {
    ask(env, &Ask::BeginPass).await.map(drop)
}

/// Has the objects of a workspace's servers tell D1 everything again, in the background. False: there is no such workspace.
///
/// # Errors
/// The object could not be reached, or D1 not be asked.
pub async fn resync(env: &Env, slug: &str) -> Result<bool, Error> {
    ask(env, &Ask::Resync(slug.to_owned())).await
}

async fn ask(env: &Env, ask: &Ask) -> Result<bool, Error> {
    objects::ask(env, platform::JANITOR, NAME, ask).await
}

/// Awaits an answer for so many seconds at most.
async fn in_time<T>(seconds: u64, answer: impl Future<Output = Result<T, Error>>) -> Result<T, String> {
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
}

impl DurableObject for Janitor {
    fn new(state: State, env: Env) -> Self {
        Self { state, env }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        objects::answer(&mut request, async |ask| {
            let storage = self.state.storage();
            let delay = if matches!(ask, Ask::CancelRevoked) { STEP } else { RETRY };
            storage.set_alarm(delay).await.map_err(internal)?;
            match ask {
                Ask::DeleteWorkspace(slug, purge, event) => self.delete(slug, purge, &event).await,
                Ask::UndeleteWorkspace(slug, event) => self.undelete(slug, &event).await,
                Ask::Look | Ask::CancelRevoked => Ok(true),
                Ask::BeginPass => {
                    workspaces::begin_due_purges(&self.env, platform::now()).await?;
                    sessions::forget_revoked(&self.env, platform::now()).await?;
                    storage.put(UNAPPROVED, "").await.map_err(internal)?;
                    if storage.get::<Pass>(PASS).await.map_err(internal)?.is_none() {
                        storage.put(PASS, Pass::default()).await.map_err(internal)?;
                    }
                    Ok(true)
                }
                Ask::Resync(slug) => self.begin_resync(slug).await,
            }
        })
        .await
    }

    async fn alarm(&self) -> worker::Result<Response> {
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
            self.state.storage().set_alarm(delay).await?;
        }
        Response::empty()
    }
}

impl Janitor {
    /// Marks a workspace as deleted and disconnects its agents.
    async fn delete(&self, slug: String, purge: (Timestamp, bool), event: &Event) -> Result<bool, Error> {
        self.begin_suspension(&slug).await?;
        let marked = workspaces::mark_deleted(&self.env, &slug, purge, event, platform::now()).await?;
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

    /// The workspaces, by slug, whose servers' objects are to be suspended or resumed, as D1 has the workspace then. Stored before
    /// D1 is changed, so that a cut between the two is repaired by the alarm.
    async fn suspensions(&self) -> Result<BTreeMap<String, Suspension>, Error> {
        Ok(self.state.storage().get(SUSPENSIONS).await.map_err(internal)?.unwrap_or_default())
    }

    async fn begin_suspension(&self, slug: &str) -> Result<(), Error> {
        let suspension = Suspension { run: platform::new_id(platform::now())?, ..Suspension::default() };
        let mut suspensions = self.suspensions().await?;
        suspensions.insert(slug.to_owned(), suspension);
        self.state.storage().put(SUSPENSIONS, suspensions).await.map_err(internal)
    }

    /// Suspends or resumes the first servers of a workspace before its operator is answered. The alarm does the rest, and what
    /// failed.
    async fn suspend_first(&self, slug: &str) -> Result<(), Error> {
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

    /// Does one step for the next workspace whose servers are to be suspended or resumed, and not the same again: one that fails
    /// must not hold up the others.
    async fn suspend_next(&self) -> Result<Progress, Error> {
        let storage = self.state.storage();
        let last: String = storage.get(LAST_SUSPENSION).await.map_err(internal)?.unwrap_or_default();
        let (suspensions, now) = (self.suspensions().await?, platform::now());
        let is_due = |(_, suspension): &(&String, &Suspension)| suspension.retry_at.is_none_or(|at| at <= now);
        let mut after = suspensions.range::<str, _>((Bound::Excluded(last.as_str()), Bound::Unbounded));
        let Some((slug, _)) = after.find(is_due).or_else(|| suspensions.iter().find(is_due)) else {
            return Ok(if suspensions.is_empty() { Progress::Done } else { Progress::Retry });
        };
        storage.put(LAST_SUSPENSION, slug).await.map_err(internal)?;
        self.suspend_some(slug).await?;
        Ok(Progress::More)
    }

    /// Suspends or resumes the next servers of a workspace, as D1 has the workspace.
    async fn suspend_some(&self, slug: &str) -> Result<Progress, Error> {
        let Some(mut suspension) = self.suspensions().await?.remove(slug) else { return Ok(Progress::Done) };
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
            ids = suspension.failed.drain(..suspension.failed.len().min(SERVERS as usize)).collect();
        } else if let Some(last) = ids.last() {
            suspension.after.clone_from(last);
        }
        let is_over = ids.is_empty();
        let failed = self.failing(&ids, || calls::Ask::Suspend(is_suspended)).await;
        let progress = match (is_over, is_retry && !failed.is_empty()) {
            (true, _) => Progress::Done,
            (false, true) => Progress::Retry,
            (false, false) => Progress::More,
        };
        suspension.failed.extend(failed);
        suspension.retry_at =
            (progress == Progress::Retry).then(|| platform::now().plus_seconds(RETRY.as_secs() as i64));
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
        self.state.storage().put(SUSPENSIONS, suspensions).await.map_err(internal)?;
        Ok(progress)
    }

    /// Asks the objects of servers concurrently, and returns the servers whose objects failed.
    async fn failing(&self, servers: &[String], ask: impl Fn() -> calls::Ask) -> Vec<String> {
        let asked = servers.iter().map(async |server| {
            // Ids of another form no object ever had.
            let object = Uuid::try_parse(server).ok()?;
            let cause = self.within::<Value>(BEGINS_WITHIN, object, ask()).await.err()?;
            log::trouble("object_not_told", json!({"server": server}), &cause);
            Some(server.clone())
        });
        future::join_all(asked).await.into_iter().flatten().collect()
    }

    /// Wipes the objects of servers, which cuts their agents off. Returns the servers whose objects failed.
    async fn sever(&self, servers: &[String]) -> Vec<String> {
        self.failing(servers, || calls::Ask::Sever).await
    }

    /// Does one step for a deleted user. False: there is none.
    async fn depart(&self) -> Result<bool, Error> {
        users::depart_some(&self.env, COMMANDS).await
    }

    /// Cancels the waiting commands that a user's revoked sessions created. False: no session is left.
    async fn cancel_some(&self) -> Result<bool, Error> {
        let storage = self.state.storage();
        let after: (i64, i64) = storage.get(REVOKED).await.map_err(internal)?.unwrap_or_default();
        // The next user, and not the same again: one whose server's object fails must not hold up the others.
        let Some(revoked) = sessions::next_revoked(&self.env, after).await? else { return Ok(false) };
        storage.put(REVOKED, (revoked.workspace_id, revoked.user_id)).await.map_err(internal)?;
        let objects: Vec<Uuid> = revoked.servers.iter().filter_map(|id| Uuid::try_parse(id).ok()).collect();
        for some in objects.chunks(SERVERS as usize) {
            let cancelled = some.iter().map(|object| {
                let ask = RevokedSessions { sessions: revoked.sessions.clone() };
                self.within::<Value>(BEGINS_WITHIN, *object, calls::Ask::CancelOf(ask))
            });
            future::try_join_all(cancelled).await.map_err(Error::internal)?;
        }
        sessions::settle(&self.env, &revoked).await?;
        Ok(true)
    }

    /// Deletes pending servers that were not approved in time. False: none is left.
    async fn remove_unapproved(&self) -> Result<bool, Error> {
        let storage = self.state.storage();
        let Some(after) = storage.get::<String>(UNAPPROVED).await.map_err(internal)? else { return Ok(false) };
        let before = platform::now().plus_seconds(-APPROVED_WITHIN);
        let due = servers::unapproved(&self.env, before, &after, SERVERS).await?;
        let Some(last) = due.last() else {
            storage.delete(UNAPPROVED).await.map_err(internal)?;
            return Ok(false);
        };
        // A server whose object fails is for the next hour, and holds up no other.
        storage.put(UNAPPROVED, &last.id).await.map_err(internal)?;
        for server in due {
            let Ok(object) = Uuid::try_parse(&server.id) else { continue };
            let event = of_service("server.delete")?.on(Some(server.id.clone()), Some(&server.name));
            let event = event.details(json!({"reason": "not approved in time"}));
            let of = OfServer { workspace: server.workspace, workspace_id: server.workspace_id as i64, server: object };
            let remove = Remove { of, by: None, only_pending: true, event };
            // A refusal: it was approved just now.
            let ask = calls::Ask::Remove(remove);
            let removed = in_time(BEGINS_WITHIN, calls::try_ask::<Value>(&self.env, object, &ask)).await;
            if let Err(cause) = removed {
                log::trouble("object_not_told", json!({"server": server.id}), &cause);
            }
        }
        Ok(true)
    }

    /// Does one step for the next workspace that is to be purged. False: there is none.
    async fn purge(&self) -> Result<bool, Error> {
        let storage = self.state.storage();
        let last: i64 = storage.get(LAST).await.map_err(internal)?.unwrap_or(0);
        // The next one, and not the same again: one that fails must not hold the others up.
        let Some(deleted) = workspaces::next_deleted(&self.env, last).await? else { return Ok(false) };
        storage.put(LAST, deleted.id).await.map_err(internal)?;
        self.purge_some(&deleted).await?;
        Ok(true)
    }

    async fn purge_some(&self, deleted: &Deleted) -> Result<(), Error> {
        // Objects first: once the rows of the servers are gone, nobody knows their names.
        let mut ids = servers::ids_after(&self.env, deleted.id, "", SERVERS).await?;
        if ids.is_empty() {
            ids = servers::gone_ids_after(&self.env, deleted.id, "", SERVERS).await?;
        }
        if !ids.is_empty() {
            let failed = self.sever(&ids).await;
            ids.retain(|id| !failed.contains(id));
            servers::delete(&self.env, deleted.id, &ids).await?;
            return if failed.is_empty() { Ok(()) } else { Err(Error::internal("objects were not wiped")) };
        }
        if deleted.slug_is_used {
            // The entries of the workspace that was made since begin alike, and stay.
            for hash in workspaces::token_hashes(&self.env, deleted.id).await? {
                login_tokens::delete(&self.env, &deleted.slug, &hash).await?;
            }
        } else if !login_tokens::purge_some(&self.env, &deleted.slug).await? {
            return Ok(());
        }
        audit_sealer::wipe(&self.env, deleted.id).await?;
        workspaces::purge_some(&self.env, deleted.id).await
    }

    async fn resyncs(&self) -> Result<BTreeMap<i64, Resync>, Error> {
        Ok(self.state.storage().get(RESYNCS).await.map_err(internal)?.unwrap_or_default())
    }

    async fn begin_resync(&self, slug: String) -> Result<bool, Error> {
        let Some(id) = workspaces::id_of(&self.env, &slug, platform::now()).await? else { return Ok(false) };
        let mut resyncs = self.resyncs().await?;
        resyncs.insert(id, Resync { slug, ..Resync::default() });
        self.state.storage().put(RESYNCS, resyncs).await.map_err(internal)?;
        Ok(true)
    }

    /// Tells the next objects of a workspace to tell D1 everything again. False: none are to be told.
    async fn resync_some(&self) -> Result<bool, Error> {
        let Some((id, resync)) = self.resyncs().await?.pop_first() else { return Ok(false) };
        let servers = match resync.are_gone {
            false => servers::ids_after(&self.env, id, &resync.after, SERVERS).await?,
            true => servers::gone_ids_after(&self.env, id, &resync.after, SERVERS).await?,
        };
        let told = future::join_all(servers.iter().map(|server| self.resync_of(server, id, &resync.slug))).await;
        let failed = told.into_iter().filter(|told| !told).count() as u64;
        // Meanwhile it may have been asked for anew.
        let mut resyncs = self.resyncs().await?;
        let Some(current) = resyncs.get_mut(&id).filter(|current| current.after == resync.after) else {
            return Ok(true);
        };
        current.told += servers.len() as u64 - failed;
        current.failed += failed;
        match servers.last() {
            Some(last) => current.after.clone_from(last),
            None if !current.are_gone => (current.are_gone, current.after) = (true, String::new()),
            None => {
                let fields = json!({"workspace_id": id, "servers": current.told, "failed": current.failed});
                log::event("resync_over", fields);
                resyncs.remove(&id);
            }
        }
        self.state.storage().put(RESYNCS, resyncs).await.map_err(internal)?;
        Ok(true)
    }

    /// Tells one object; false where it does not answer.
    async fn resync_of(&self, server: &str, workspace_id: i64, workspace: &str) -> bool {
        // Ids of another form no object ever had.
        let Ok(object) = Uuid::try_parse(server) else { return true };
        let of = OfServer { workspace: workspace.to_owned(), workspace_id, server: object };
        let told = self.within::<Value>(BEGINS_WITHIN, object, calls::Ask::Resync(of)).await;
        if let Err(cause) = &told {
            log::trouble("object_not_told", json!({"server": server}), cause);
        }
        told.is_ok()
    }

    /// Asks a server's object something, which it must answer in time.
    async fn within<T: DeserializeOwned>(&self, seconds: u64, object: Uuid, ask: calls::Ask) -> Result<T, String> {
        in_time(seconds, calls::ask::<T>(&self.env, object, &ask)).await
    }

    /// Deletes the next old commands of the pass. False: there is no pass, or it is through.
    async fn go_on_with_pass(&self) -> Result<bool, Error> {
        let storage = self.state.storage();
        let Some(mut pass) = storage.get::<Pass>(PASS).await.map_err(internal)? else { return Ok(false) };
        let until = match platform::kept_until(&self.env, platform::COMMAND_RETENTION) {
            Ok(Some(until)) => pass.until.map_or(until, |first| first.min(until)),
            kept => {
                self.end_pass(&pass).await?;
                return kept.map(|_| false);
            }
        };
        pass.until = Some(until);
        let found = retention::find(&self.env, pass.workspace, &pass.after, until, OLD_COMMANDS);
        let (due, looked) = cost::of(found).await;
        let due = due?;
        let Some(last) = due.last() else {
            let next = retention::next_workspace(&self.env, pass.workspace, until).await?;
            let Some(next) = next.found.or(next.last) else {
                self.end_pass(&pass).await?;
                return Ok(false);
            };
            pass = Pass { workspace: next as i64, after: Place::default(), failures: 0, ..pass };
            storage.put(PASS, &pass).await.map_err(internal)?;
            return Ok(true);
        };
        let (forgotten, is_all) = self.forget(&due, until, &mut pass.silent).await;
        let deleted = retention::delete(&self.env, pass.workspace, &forgotten, until);
        let (deleted, cost) = cost::of(deleted).await;
        let cost = looked + cost;
        pass.failures = if deleted.is_err() { pass.failures + 1 } else { 0 };
        if deleted.is_ok() {
            pass.deleted += forgotten.len() as u64;
        }
        if (is_all && deleted.is_ok()) || pass.failures >= TRIES {
            (pass.after, pass.failures) = (last.place(), 0);
        }
        storage.put(PASS, &pass).await.map_err(internal)?;
        deleted?;
        log::event(
            "retention",
            json!({
                "workspace_id": pass.workspace, "found": due.len(), "deleted": forgotten.len(),
                "d1_calls": cost.d1_calls, "rows_read": cost.rows_read, "rows_written": cost.rows_written,
            }),
        );
        Ok(true)
    }

    /// Ends the pass.
    async fn end_pass(&self, pass: &Pass) -> Result<(), Error> {
        self.state.storage().delete(PASS).await.map_err(internal)?;
        log::event("retention_over", json!({"deleted": pass.deleted}));
        Ok(())
    }

    /// Has objects forget commands, but for the `silent` ones, to which those are added that do not answer in time. Returns the
    /// commands of which they have nothing any more, and whether that is all that can be done now.
    async fn forget<'a>(
        &self,
        due: &'a [Due],
        until: Timestamp,
        silent: &mut BTreeSet<String>,
    ) -> (Vec<&'a Due>, bool) {
        let mut by_server: BTreeMap<&str, Vec<&Due>> = BTreeMap::new();
        for command in due.iter().filter(|due| !silent.contains(&due.server_id)) {
            by_server.entry(&command.server_id).or_default().push(command);
        }
        let asked = by_server
            .into_iter()
            .map(async |(server, commands)| (server, self.forget_of(server, commands, until).await));
        let mut forgotten = Vec::new();
        let mut is_all = true;
        for (server, of_server) in future::join_all(asked).await {
            match of_server {
                Ok((some, is_all_of_server)) => {
                    forgotten.extend(some);
                    is_all &= is_all_of_server;
                }
                Err(problem) => {
                    log::trouble("commands_not_forgotten", json!({"server": server}), &problem);
                    silent.insert(server.to_owned());
                }
            }
        }
        (forgotten, is_all)
    }

    /// The same for commands of one server.
    async fn forget_of<'a>(
        &self,
        server: &str,
        commands: Vec<&'a Due>,
        until: Timestamp,
    ) -> Result<(Vec<&'a Due>, bool), String> {
        // Ids of another form no object ever had.
        let Ok(object) = Uuid::try_parse(server) else { return Ok((commands, true)) };
        let ids = commands.iter().filter_map(|due| Uuid::try_parse(&due.id).ok()).collect();
        let ask = calls::Ask::Forget(Forget { ids, until });
        let Forgotten { ids, is_all } = self.within(FORGETS_WITHIN, object, ask).await?;
        let is_forgotten = |due: &&Due| Uuid::try_parse(&due.id).map_or(true, |id| ids.contains(&id));
        Ok((commands.into_iter().filter(is_forgotten).collect(), is_all))
    }
}
