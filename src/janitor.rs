//! The Durable Object that clears deleted workspaces away, to the last row, key and object, and takes deleted users off the
//! commands that they asked for. There is one for the region cell.
//!
//! What is to be purged is told by D1 alone: the row of a deleted workspace stays, marked, until nothing else is left of
//! it. The alarm is set before the mark, so whatever is cut off in between, the object looks again, finds the row and
//! goes on. Each alarm does one bounded step, for one workspace after the other.

use std::time::Duration;

use farhand_domain::error::Error;
use serde_json::Value;
use uuid::Uuid;
use worker::{DurableObject, Env, Method, Request, RequestInit, Response, State, console_error, durable_object};

use crate::link_calls::{self, Ask};
use crate::objects;
use crate::platform::{self, internal};
use crate::store::workspaces::{self, Deleted};
use crate::store::{login_tokens, servers, users};

/// How many servers are cut off side by side.
const SERVERS: u64 = 50;
/// How many servers are cut off before a deletion is answered; what is beyond that follows within seconds, and is refused
/// by the name of the workspace, which is gone.
const SERVERS_AT_ONCE: u64 = 500;
/// How many commands a deleted user is taken off at a time.
const COMMANDS: u64 = 200;
/// The name of the one object.
const NAME: &str = "janitor";
/// Between two steps of a purge.
const STEP: Duration = Duration::from_millis(10);
/// To the next look after a deletion was asked for, and after a step that failed.
const RETRY: Duration = Duration::from_secs(5);
/// The storage key of the workspace that had the last step.
const LAST: &str = "last";

/// Deletes a workspace. Everything in it is refused when this returns, and the rest is purged after. False: there is none.
///
/// # Errors
/// The object could not be reached, or D1 not be told. The workspace may be deleted all the same.
pub async fn delete_workspace(env: &Env, slug: &str) -> Result<bool, Error> {
    let stub = objects::stub(env, platform::JANITOR, NAME)?;
    let mut init = RequestInit::new();
    init.with_method(Method::Post).with_body(Some(slug.into()));
    let request = Request::new_with_init(objects::ORIGIN, &init).map_err(internal)?;
    match stub.fetch_with_request(request).await.map_err(internal)?.status_code() {
        204 => Ok(true),
        404 => Ok(false),
        _ => Err(Error::internal("the janitor failed")),
    }
}

/// Has the object look for what is to be done.
///
/// # Errors
/// It could not be reached.
pub async fn wake(env: &Env) -> Result<(), Error> {
    let stub = objects::stub(env, platform::JANITOR, NAME)?;
    match stub.fetch_with_str(objects::ORIGIN).await.map_err(internal)?.status_code() {
        204 => Ok(()),
        _ => Err(Error::internal("the janitor failed")),
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
        let slug = request.text().await?;
        self.state.storage().set_alarm(RETRY).await?;
        if slug.is_empty() {
            return Ok(Response::empty()?.with_status(204));
        }
        let status = match self.delete(&slug).await {
            Ok(true) => 204,
            Ok(false) => 404,
            Err(error) => {
                console_error!("deletion of workspace {slug}: {}", error.detail);
                500
            }
        };
        Ok(Response::empty()?.with_status(status))
    }

    async fn alarm(&self) -> worker::Result<Response> {
        let next = match self.step().await {
            Ok(true) => Some(STEP),
            Ok(false) => None,
            Err(error) => {
                console_error!("purge: {}", error.detail);
                Some(RETRY)
            }
        };
        if let Some(delay) = next {
            self.state.storage().set_alarm(delay).await?;
        }
        Response::empty()
    }
}

impl Janitor {
    /// Marks a workspace as deleted and cuts its agents off.
    async fn delete(&self, slug: &str) -> Result<bool, Error> {
        let Some(id) = workspaces::mark_deleted(&self.env, slug, platform::now()).await? else { return Ok(false) };
        let mut after = String::new();
        // Those that are gone have no agent, and can wait.
        for _ in 0..SERVERS_AT_ONCE / SERVERS {
            let ids = servers::ids_after(&self.env, id, &after, SERVERS).await?;
            self.sever(&ids).await?;
            match ids.last() {
                Some(last) => after.clone_from(last),
                None => break,
            }
        }
        Ok(true)
    }

    /// Wipes the objects of servers, which cuts their agents off.
    async fn sever(&self, servers: &[String]) -> Result<(), Error> {
        let ids = servers.iter().filter_map(|id| Uuid::try_parse(id).ok());
        let severed = ids.map(|id| link_calls::ask::<Value>(&self.env, id, &Ask::Sever));
        futures_util::future::try_join_all(severed).await.map(drop)
    }

    /// Does one step for a deleted user, and one for the next workspace that is to be purged. False: there is neither.
    async fn step(&self) -> Result<bool, Error> {
        let storage = self.state.storage();
        let last: i64 = storage.get(LAST).await.map_err(internal)?.unwrap_or(0);
        let departed = users::depart_some(&self.env, COMMANDS).await?;
        // The next one, and not the same again: one that fails must not hold the others up.
        let Some(deleted) = workspaces::next_deleted(&self.env, last).await? else { return Ok(departed) };
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
            self.sever(&ids).await?;
            return servers::delete(&self.env, deleted.id, &ids).await;
        }
        if deleted.slug_is_used {
            // The entries of the workspace that was made since begin alike, and stay.
            for hash in workspaces::token_hashes(&self.env, deleted.id).await? {
                login_tokens::delete(&self.env, &deleted.slug, &hash).await?;
            }
        } else if !login_tokens::purge_some(&self.env, &deleted.slug).await? {
            return Ok(());
        }
        workspaces::purge_some(&self.env, deleted.id).await
    }
}
