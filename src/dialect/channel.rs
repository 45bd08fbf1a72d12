//! The Durable Object of a channel: one client's WebSocket for live events (contract 21.6).
//!
//! The row in its database has the credential that opened the channel. An alarm checks this
//! credential every [`CHECK_INTERVAL`] and closes the socket if it is no longer valid. Each group
//! of events is sent only after a check that the caller can read its command.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use farhand_sql::object::channel::{self as table, NewChannel};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;
use worker::{
    Delay, DurableObject, Env, Request, Response, SqlStorage, State, WebSocket,
    WebSocketIncomingMessage, WebSocketPair, durable_object,
};

use crate::api::output_follower::OutputFollower;
use crate::auth::credential::Watch;
use crate::objects::{self, sqlite};
use crate::platform::{self, log};
use crate::store::commands;
use crate::store::scope::Query;

/// How long the secret in the URL of the WebSocket is valid.
const SECRET_TTL: Duration = Duration::from_secs(60);
/// How often the credential is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// How often D1 is asked for commands that ended.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// How long after its end a command is still sent. It takes a second until D1 has the end.
const MAX_DELAY_SECONDS: i64 = 60;
/// The maximum number of subscriptions of a channel at a time. A subscription to output ends with
/// its command.
pub const MAX_SUBSCRIPTIONS: usize = 20;
/// The close code if the credential is no longer valid.
const POLICY_VIOLATION: u16 = 1008;
/// The close code if the object cannot continue. The client then polls.
const TRY_AGAIN: u16 = 1013;

/// The header of a request for the WebSocket, with the workspace and the hash of the secret as
/// JSON.
pub const SECRET_HEADER: &str = "X-Farhand-Channel";

/// The credential that opened the channel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// The slug of the workspace.
    pub workspace: String,
    pub token_hash: String,
    pub remote_ip: String,
}

/// What a subscription sends.
#[derive(Debug, Serialize, Deserialize)]
pub enum Subscription {
    /// The output of a command, and its end. `resource` is the command object.
    Output { command: Uuid, resource: Map<String, Value> },
    /// The ends of the commands of a server.
    Ends { server: Uuid },
}

/// The outcome of a request to subscribe.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Subscribed {
    Yes,
    /// The channel has [`MAX_SUBSCRIPTIONS`].
    TooMany,
    /// The channel has no socket, or belongs to another token.
    NoChannel,
}

/// A request message.
#[derive(Debug, Serialize, Deserialize)]
pub enum Message {
    /// Creates the channel.
    Open { owner: Owner, secret_hash: String },
    /// Subscribes. The response is a [`Subscribed`].
    Subscribe { token_hash: String, subscription: Subscription },
}

/// Sends a channel a request message.
///
/// # Errors
/// The object did not respond, or failed.
pub async fn call<T: DeserializeOwned>(
    env: &Env,
    channel: Uuid,
    message: &Message,
) -> Result<T, Error> {
    objects::call(env, platform::CHANNEL, &channel.to_string(), message).await
}

#[durable_object]
pub struct Channel {
    shell: Rc<ChannelShell>,
}

/// Used through an `Rc`, because the subscriptions outlive the request that starts them.
struct ChannelShell {
    state: State,
    env: Env,
    /// The commands and servers whose events are sent.
    subscriptions: RefCell<BTreeSet<Uuid>>,
    /// The ends that were sent.
    ended: RefCell<BTreeSet<Uuid>>,
}

impl DurableObject for Channel {
    fn new(state: State, env: Env) -> Self {
        let (subscriptions, ended) = Default::default();
        Self { shell: Rc::new(ChannelShell { state, env, subscriptions, ended }) }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        if let Some(sent) = request.headers().get(SECRET_HEADER)? {
            let (workspace, secret_hash): (String, String) = serde_json::from_str(&sent)?;
            return self.shell.connect(&workspace, &secret_hash).await;
        }
        objects::respond(&mut request, async |message: Message| {
            Ok(match message {
                Message::Open { owner, secret_hash } => {
                    self.shell.open(&owner, &secret_hash).await?;
                    Value::Null
                }
                Message::Subscribe { token_hash, subscription } => {
                    json!(self.shell.subscribe(&token_hash, subscription)?)
                }
            })
        })
        .await
    }

    /// Checks the credential, or ends a channel without a socket.
    async fn alarm(&self) -> worker::Result<Response> {
        let shell = &self.shell;
        match (shell.socket(), shell.owner()?) {
            (Some(socket), Some((owner, _))) => {
                match shell.watch(&owner, commands::any()).read(platform::now()).await {
                    Ok(Some(_)) => {}
                    Ok(None) => {
                        shell.close(&socket, POLICY_VIOLATION, "the credential is not valid")
                    }
                    Err(error) => shell.fail(&error),
                }
            }
            _ => {
                shell.state.storage().delete_all().await?;
                return Response::empty();
            }
        }
        // Also after a close: the next alarm deletes the channel.
        shell.state.storage().set_alarm(CHECK_INTERVAL).await?;
        Response::empty()
    }

    async fn websocket_message(
        &self,
        _: WebSocket,
        _: WebSocketIncomingMessage,
    ) -> worker::Result<()> {
        // Clients send nothing.
        Ok(())
    }

    async fn websocket_close(
        &self,
        _: WebSocket,
        _: usize,
        _: String,
        _: bool,
    ) -> worker::Result<()> {
        self.shell.state.storage().delete_all().await
    }

    async fn websocket_error(&self, _: WebSocket, _: worker::Error) -> worker::Result<()> {
        self.shell.state.storage().delete_all().await
    }
}

impl ChannelShell {
    fn sql(&self) -> SqlStorage {
        self.state.storage().sql()
    }

    fn socket(&self) -> Option<WebSocket> {
        self.state.get_websockets().into_iter().next()
    }

    /// Stores the credential. Without a connection, the alarm deletes the channel.
    async fn open(&self, owner: &Owner, secret_hash: &str) -> worker::Result<()> {
        let new = NewChannel {
            workspace: &owner.workspace,
            token_hash: &owner.token_hash,
            remote_ip: &owner.remote_ip,
            secret_hash,
            opened_at: platform::now(),
        };
        sqlite::exec_all(&self.sql(), [table::schema(), table::insert(new)])?;
        self.state.storage().set_alarm(SECRET_TTL).await
    }

    /// Whether the channel was opened. The ids in requests are the client's, and an object that was
    /// never opened stores nothing.
    fn exists(&self) -> worker::Result<bool> {
        sqlite::has_rows(&self.sql(), table::find_table())
    }

    /// The owner, and when the channel was opened.
    fn owner(&self) -> worker::Result<Option<(Owner, Timestamp)>> {
        #[derive(Deserialize)]
        struct Row {
            opened_at: Timestamp,
            #[serde(flatten)]
            owner: Owner,
        }
        if !self.exists()? {
            return Ok(None);
        }
        let rows: Vec<Row> = sqlite::rows(&self.sql(), table::find())?;
        Ok(rows.into_iter().next().map(|row| (row.owner, row.opened_at)))
    }

    /// Opens the WebSocket, if the secret is right, fresh and unused. Otherwise 404.
    async fn connect(&self, workspace: &str, secret_hash: &str) -> worker::Result<Response> {
        let missing = || Ok(Response::empty()?.with_status(404));
        if !self.exists()? {
            return missing();
        }
        let since = platform::now().plus_seconds(-(SECRET_TTL.as_secs() as i64));
        let use_secret = table::use_secret(workspace, secret_hash, since);
        if !sqlite::has_rows(&self.sql(), use_secret)? {
            return missing();
        }
        let WebSocketPair { client, server } = WebSocketPair::new()?;
        self.state.accept_web_socket(&server);
        self.state.storage().set_alarm(CHECK_INTERVAL).await?;
        Response::from_websocket(client)
    }

    /// Starts to send events, unless an equal subscription sends them already.
    fn subscribe(
        self: &Rc<Self>,
        token_hash: &str,
        wanted: Subscription,
    ) -> worker::Result<Subscribed> {
        let owner = self.owner()?.filter(|(owner, _)| owner.token_hash == token_hash);
        let Some((owner, opened_at)) = owner.filter(|_| self.socket().is_some()) else {
            return Ok(Subscribed::NoChannel);
        };
        let target = match &wanted {
            Subscription::Output { command, .. } => *command,
            Subscription::Ends { server } => *server,
        };
        {
            let mut subscriptions = self.subscriptions.borrow_mut();
            if subscriptions.contains(&target) {
                return Ok(Subscribed::Yes);
            }
            if subscriptions.len() >= MAX_SUBSCRIPTIONS {
                return Ok(Subscribed::TooMany);
            }
            subscriptions.insert(target);
        }
        let shell = self.clone();
        self.state.wait_until(async move {
            let sent = match wanted {
                Subscription::Output { command, resource } => {
                    shell.send_output(&owner, command, resource).await
                }
                Subscription::Ends { server } => shell.send_ends(&owner, server, opened_at).await,
            };
            shell.subscriptions.borrow_mut().remove(&target);
            if let Err(error) = sent {
                shell.fail(&error);
            }
        });
        Ok(Subscribed::Yes)
    }

    /// A watch for the credential, and for what it can read.
    fn watch(&self, owner: &Owner, query: Query) -> Watch {
        let Owner { workspace, token_hash, remote_ip } = owner.clone();
        Watch::new(self.env.clone(), workspace, token_hash, remote_ip, query)
    }

    /// Sends the output of a command as it arrives, and then its end.
    async fn send_output(
        &self,
        owner: &Owner,
        id: Uuid,
        resource: Map<String, Value>,
    ) -> Result<(), Error> {
        let watch = self.watch(owner, commands::is_readable(id));
        let mut follower = OutputFollower::new(watch, resource, 0, platform::now())?;
        while self.socket().is_some() {
            let Some(events) = follower.next_events().await? else {
                self.close_as_unreadable();
                return Ok(());
            };
            let has_ended = events.end.is_some();
            if !events.was_checked && !follower.can_still_read(platform::now()).await? {
                self.close_as_unreadable();
                return Ok(());
            }
            for chunk in &events.chunks {
                self.send(
                    "command_output",
                    &json!({"command_id": id, "seq": chunk.seq, "content": chunk.content}),
                );
            }
            if has_ended {
                self.send_end(id);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends the ends of a server's commands that the caller can read.
    async fn send_ends(
        &self,
        owner: &Owner,
        server: Uuid,
        opened_at: Timestamp,
    ) -> Result<(), Error> {
        while self.socket().is_some() {
            let now = platform::now();
            let since = opened_at.max(now.plus_seconds(-MAX_DELAY_SECONDS));
            let watch = self.watch(owner, commands::ended_since(server, since, now));
            let Some(ended) = watch.read(now).await? else {
                self.close_as_unreadable();
                return Ok(());
            };
            for id in serde_json::from_str::<Vec<Uuid>>(&ended)? {
                self.send_end(id);
            }
            Delay::from(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Sends the end of a command once.
    fn send_end(&self, command: Uuid) {
        if self.ended.borrow_mut().insert(command) {
            self.send("command_fin", &json!({"id": command}));
        }
    }

    fn send(&self, event: &str, payload: &Value) {
        if let Some(socket) = self.socket() {
            let frame = json!({"event_type": event, "payload": payload}).to_string();
            // This fails if the socket is closing, which is harmless.
            socket.send_with_str(frame).ok();
        }
    }

    fn close(&self, socket: &WebSocket, code: u16, reason: &str) {
        // This fails if the socket is already closing, which is harmless.
        socket.close(Some(code), Some(reason)).ok();
    }

    /// Closes the socket, because the caller can no longer read something.
    fn close_as_unreadable(&self) {
        if let Some(socket) = self.socket() {
            self.close(&socket, POLICY_VIOLATION, "no longer readable");
        }
    }

    /// Closes the socket after a failure.
    fn fail(&self, error: &Error) {
        log::error("channel_cut_off", json!({}), &error.detail);
        if let Some(socket) = self.socket() {
            self.close(&socket, TRY_AGAIN, "try again");
        }
    }
}
