//! The Durable Object that clears a deleted workspace away, to the last row, key and object. There is one for the region
//! cell.
//!
//! Its invariant: a purge that was taken is in its own storage until nothing is left of the workspace, so that it goes
//! on whatever is cut off in between.

use farhand_domain::error::Error;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;
use worker::{DurableObject, Env, Method, Request, RequestInit, Response, State, console_error, durable_object};

use crate::link_calls::{self, Ask};
use crate::platform::{self, internal};
use crate::store::db::{self, Statement};
use crate::store::{login_tokens, workspaces};

/// How many servers are cut off side by side.
const SERVERS: u64 = 50;
/// Milliseconds between two steps of a purge.
const STEP: i64 = 10;
/// Milliseconds to the next try after a step that failed.
const RETRY: i64 = 5_000;
/// The storage key of the purges at hand.
const PURGES: &str = "purges";

/// A workspace to be cleared away. It is marked as deleted already.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Purge {
    /// Its id.
    pub workspace_id: i64,
    /// Its slug, under which its login tokens are in KV.
    pub slug: String,
}

/// Has a workspace cleared away; returns when its agents are cut off.
///
/// # Errors
/// The object could not be reached. The purge may go on all the same.
pub async fn ask(env: &Env, purge: &Purge) -> Result<(), Error> {
    let namespace = env.durable_object(platform::JANITOR).map_err(internal)?;
    let stub = namespace.get_by_name("janitor").map_err(internal)?;
    let mut init = RequestInit::new();
    init.with_method(Method::Post).with_body(Some(serde_json::to_string(purge).map_err(internal)?.into()));
    let request = Request::new_with_init("https://janitor.invalid", &init).map_err(internal)?;
    let response = stub.fetch_with_request(request).await.map_err(internal)?;
    if response.status_code() == 204 { Ok(()) } else { Err(Error::internal("the janitor failed")) }
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
        let purge: Purge = serde_json::from_slice(&request.bytes().await?)?;
        let mut purges = self.purges().await?;
        if !purges.contains(&purge) {
            purges.push(purge.clone());
            self.state.storage().put(PURGES, &purges).await?;
        }
        self.state.storage().set_alarm(STEP).await?;
        let status = match self.sever_all(&purge).await {
            Ok(()) => 204,
            Err(error) => {
                console_error!("purge of workspace {}: {}", purge.workspace_id, error.detail);
                500
            }
        };
        Ok(Response::empty()?.with_status(status))
    }

    async fn alarm(&self) -> worker::Result<Response> {
        let purges = self.purges().await?;
        let Some(purge) = purges.first() else { return Response::empty() };
        match self.step(purge).await {
            Ok(true) => {
                // Another purge may have been taken meanwhile.
                let mut purges = self.purges().await?;
                purges.retain(|other| other != purge);
                self.state.storage().put(PURGES, &purges).await?;
                if !purges.is_empty() {
                    self.state.storage().set_alarm(STEP).await?;
                }
            }
            Ok(false) => self.state.storage().set_alarm(STEP).await?,
            Err(error) => {
                console_error!("purge of workspace {}: {}", purge.workspace_id, error.detail);
                self.state.storage().set_alarm(RETRY).await?;
            }
        }
        Response::empty()
    }
}

impl Janitor {
    async fn purges(&self) -> worker::Result<Vec<Purge>> {
        Ok(self.state.storage().get(PURGES).await?.unwrap_or_default())
    }

    /// Wipes the objects of all servers, which cuts their agents off. No new server can come: no credential of the
    /// workspace is alive.
    async fn sever_all(&self, purge: &Purge) -> Result<(), Error> {
        #[derive(Deserialize)]
        struct Row {
            id: String,
        }
        let mut after = String::new();
        loop {
            let sql = "SELECT id FROM servers WHERE workspace_id = ?1 AND id > ?2 ORDER BY id LIMIT ?3";
            let page = Statement::new(sql).bind(purge.workspace_id).bind(&after).bind(SERVERS);
            let rows: Vec<Row> = db::rows(&db::run(&self.env, page).await?)?;
            let Some(last) = rows.last() else { return Ok(()) };
            after.clone_from(&last.id);
            let servers = rows.iter().filter_map(|row| Uuid::try_parse(&row.id).ok());
            let severed = servers.map(|server| link_calls::ask::<Value>(&self.env, server, &Ask::Sever));
            futures_util::future::try_join_all(severed).await?;
        }
    }

    /// Clears some more away. True: nothing is left.
    async fn step(&self, purge: &Purge) -> Result<bool, Error> {
        // Objects first: once the rows of the servers are gone, nobody knows their names.
        self.sever_all(purge).await?;
        if !login_tokens::purge_some(&self.env, &purge.slug).await? {
            return Ok(false);
        }
        workspaces::purge_some(&self.env, purge.workspace_id).await
    }
}
