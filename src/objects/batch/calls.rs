//! Calls to a batch's object, from the Worker and from the objects of servers. The object's name is
//! the batch's id.

use farhand_domain::batch::target::{Change, TargetState};
use farhand_domain::error::Error;
use farhand_domain::link::event::BatchNotice;
use farhand_domain::time::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;
use worker::Env;

use crate::objects;
use crate::platform::{self, log};

/// A request message with the batch that it is for.
#[derive(Debug, Serialize, Deserialize)]
pub struct BatchEnvelope {
    /// The workspace's id.
    pub workspace_id: i64,
    /// The batch's id.
    pub batch: Uuid,
    /// What to do.
    pub message: BatchRequest,
}

/// A request message to the object.
#[derive(Debug, Serialize, Deserialize)]
pub enum BatchRequest {
    /// Read the batch from D1, and begin or continue it.
    Reload,
    /// Kill the commands that run. D1 has the batch as cancelled.
    Kill {
        /// The name of the user who kills it.
        username: String,
    },
    /// Wait for the events after this number. Returns [`Followed`].
    Follow {
        /// The number of the last event that the caller has; 0: none.
        after: u64,
        /// How long to wait if there is no event, in milliseconds.
        wait_millis: u64,
    },
    /// Delete everything: the workspace is purged.
    Wipe,
    /// A server's object: D1 has this state of a target's command.
    Changed(Change),
    /// A server's object: the server connected, and a target waits for it.
    Connected(Uuid),
}

/// A change of state, for `stream/`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BatchEvent {
    /// The number of the event in the batch, from 1 on.
    pub seq: u64,
    /// The server; `None`: the batch itself has ended. This is the last event.
    pub server: Option<Uuid>,
    /// The state of the target or of the batch.
    pub state: String,
    /// The target's command; `None`: it has none.
    pub command: Option<Uuid>,
    /// The exit code, if the command has ended and its agent reported it.
    pub exit_code: Option<i64>,
    /// When the target reached the state.
    pub at: Timestamp,
}

/// The answer to [`BatchRequest::Follow`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Followed {
    /// The next events.
    pub events: Vec<BatchEvent>,
    /// Whether no further events follow.
    pub is_finished: bool,
}

/// Begins a batch that was just created, or continues it.
///
/// # Errors
/// The object did not respond. The hourly pass of the janitor begins the batch later.
pub async fn begin(env: &Env, workspace_id: i64, batch: Uuid) -> Result<(), Error> {
    call::<Value>(env, workspace_id, batch, BatchRequest::Reload).await.map(drop)
}

/// Notifies the object that the batch was cancelled in D1.
///
/// # Errors
/// The object did not respond. It finds out later.
pub async fn reload(env: &Env, workspace_id: i64, batch: Uuid) -> Result<(), Error> {
    begin(env, workspace_id, batch).await
}

/// Kills the commands that run. D1 must have the batch as cancelled.
///
/// # Errors
/// The object did not respond.
pub async fn kill(env: &Env, workspace_id: i64, batch: Uuid, username: &str) -> Result<(), Error> {
    let message = BatchRequest::Kill { username: username.to_owned() };
    call::<Value>(env, workspace_id, batch, message).await.map(drop)
}

/// Deletes everything in the object of a batch whose workspace is purged.
///
/// # Errors
/// The object did not respond.
pub async fn wipe(env: &Env, workspace_id: i64, batch: Uuid) -> Result<(), Error> {
    call::<Value>(env, workspace_id, batch, BatchRequest::Wipe).await.map(drop)
}

/// Waits for the events after `after`.
///
/// # Errors
/// The object did not respond.
pub async fn follow(
    env: &Env,
    workspace_id: i64,
    batch: Uuid,
    after: u64,
    wait_millis: u64,
) -> Result<Followed, Error> {
    call(env, workspace_id, batch, BatchRequest::Follow { after, wait_millis }).await
}

/// Passes on what a server's object knows about a target. If the call fails, the batch reads D1.
pub async fn notify(env: &Env, notice: BatchNotice) {
    let BatchNotice { workspace_id, batch, server, command } = notice;
    let message = match command {
        None => BatchRequest::Connected(server),
        Some((state, exit_code, at)) => {
            let state = TargetState::from(state);
            BatchRequest::Changed(Change { server, state, exit_code, at })
        }
    };
    if let Err(error) = call::<Value>(env, workspace_id, batch, message).await {
        log::error("batch_not_notified", json!({"batch": batch, "server": server}), &error.detail);
    }
}

async fn call<T: DeserializeOwned>(
    env: &Env,
    workspace_id: i64,
    batch: Uuid,
    message: BatchRequest,
) -> Result<T, Error> {
    let envelope = BatchEnvelope { workspace_id, batch, message };
    objects::call(env, platform::BATCH, &batch.to_string(), &envelope).await
}
