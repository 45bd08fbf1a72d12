//! The Durable Object of a server: its agent's connection, and its commands on their way to it and back.
//!
//! It is the only place with a total order of what happens to one server. Its invariants:
//! - What matters is in its own SQLite before anything else hears of it; memory holds who is waiting, and a copy of small
//!   things of which that is the only writer.
//! - A command goes to a socket at most once: `delivered_at` is durable before the message leaves.
//! - A socket whose attachment is of another generation than the open one is ignored.
//! - D1 has every accepted command before the client has its answer, and every change of it shortly after: what D1 does
//!   not have is told by `flushed < revision` and sent again, by alarm, until it does.
//! - There is one alarm, for the earliest of all that is due.

mod alarm;
mod answers;
pub mod calls;
mod commands;
mod commands_table;
mod connection;
mod contest;
mod d1;
mod d1_server;
mod ending;
mod identity;
mod object;
mod outbox;
mod output_table;
mod queue;
mod reports;
mod resync;
mod retention;
mod tables;
mod waiting;

use std::cell::{Cell, RefCell};
use std::time::Duration;

use farhand_domain::wire::FromAgent;
use serde_json::{Value, json};
use worker::{DurableObject, Env, Request, Response, State, WebSocket, WebSocketIncomingMessage};

use self::calls::{Answer, Ask, IDENTITY_HEADER, Identity, REQUEST_ID_HEADER};
use self::object::{ServerLink, fact, wake};
use self::tables::Tables;
use self::waiting::Waiting;
use crate::objects;
use crate::platform::cost::{self, Cost};
use crate::platform::log;

/// When an alarm that failed is tried again, in seconds.
const AFTER_FAILURE: u64 = 60;

impl DurableObject for ServerLink {
    fn new(state: State, env: Env) -> Self {
        Self {
            tables: Tables::new(state.storage().sql()),
            state,
            env,
            armed: Cell::new(None),
            alarms: Cell::new(0),
            has_tables: Cell::new(false),
            epoch: Cell::new(0),
            ended: Waiting::default(),
            output_came: Waiting::default(),
            recording: RefCell::default(),
            recorded: Waiting::default(),
            allowed: RefCell::default(),
            checking_since: Cell::new(None),
            checked: Waiting::default(),
            answering: RefCell::default(),
            answered: Waiting::default(),
            is_wiping: Cell::new(false),
            changes: Cell::new(0),
            changing_since: Cell::new(None),
            changed: Waiting::default(),
            pongs: Cell::new(0),
            ponged: Waiting::default(),
            flushing_since: Cell::new(None),
            flushed: Waiting::default(),
        }
    }

    async fn fetch(&self, request: Request) -> worker::Result<Response> {
        objects::costed(self.answer(request)).await
    }

    async fn alarm(&self) -> worker::Result<Response> {
        self.disarmed();
        let (woken, cost) = cost::of(self.wake_up()).await;
        // What the agents' reports cost is seen here only: their requests ask nothing of D1.
        if cost != Cost::default() {
            let Cost { d1_calls, rows_read, rows_written, .. } = cost;
            log::event(
                "alarm",
                json!({
                    "server": self.state.id().name(),
                    "d1_calls": d1_calls, "rows_read": rows_read, "rows_written": rows_written,
                }),
            );
        }
        // The runtime gives an alarm up that fails again and again; what is due would then wait for somebody to call.
        if let Err(error) = woken {
            log::trouble("alarm_failed", json!({"server": self.state.id().name()}), &error);
            self.state.storage().set_alarm(Duration::from_secs(AFTER_FAILURE)).await?;
            // That is later than what was armed before it.
            self.disarmed();
        }
        Response::empty()
    }

    async fn websocket_message(&self, socket: WebSocket, message: WebSocketIncomingMessage) -> worker::Result<()> {
        let WebSocketIncomingMessage::String(text) = message else { return Ok(()) };
        let is_pong = serde_json::from_str::<FromAgent>(&text).is_ok_and(|message| message == FromAgent::Pong);
        if is_pong && self.is_open(&socket)? {
            self.pongs.set(self.pongs.get() + 1);
            self.ponged.tell(&());
            self.tables().set_wake(wake::PONG, None)?;
            self.seen()?;
            self.arm().await?;
        }
        Ok(())
    }

    async fn websocket_close(&self, socket: WebSocket, _: usize, _: String, _: bool) -> worker::Result<()> {
        self.socket_ended(&socket).await
    }

    async fn websocket_error(&self, socket: WebSocket, _: worker::Error) -> worker::Result<()> {
        self.socket_ended(&socket).await
    }
}

impl ServerLink {
    /// Answers what the Worker asks, or takes an agent's WebSocket.
    pub(super) async fn answer(&self, mut request: Request) -> worker::Result<Response> {
        if let Some(identity) = request.headers().get(IDENTITY_HEADER)? {
            let identity: Identity = serde_json::from_str(&identity)?;
            let request_id = request.headers().get(REQUEST_ID_HEADER)?;
            return self.take_socket(&identity, &request.path(), request_id).await;
        }
        let ask: Ask = serde_json::from_slice(&request.bytes().await?)?;
        let answer = match ask {
            Ask::Create(create) => self.create(*create).await,
            Ask::Replay(key) => self.replay(key).await,
            Ask::Live(live) => self.live(live).await,
            Ask::Cancel(by) => self.cancel(by).await,
            Ask::CancelOf(revoked) => self.cancel_of(&revoked).await,
            Ask::Kill(by) => self.kill(by).await,
            Ask::Chunks(asked) => self.chunks(&asked),
            Ask::Follow(asked) => self.follow(asked).await,
            Ask::Adopt(server) => self.adopt(server).await,
            Ask::Rename(rename) => self.rename(rename),
            Ask::Rotate(rotate) => self.rotate(rotate).await,
            Ask::Remove(remove) => self.remove(remove).await,
            Ask::Resync(server) => self.resync(server).await,
            Ask::Agent(call) => self.agent(call).await,
            Ask::Forget(forget) => self.forget(forget).await,
            Ask::Sever => self.sever().await,
            Ask::Suspend(is_suspended) => self.suspend(is_suspended).await,
        };
        Response::from_json(&answer.unwrap_or_else(|error| Answer::Failed(error.to_string())))
    }

    /// Forgets everything: the workspace is gone, or all that there was of the server, and its agent with it.
    async fn sever(&self) -> worker::Result<Answer> {
        self.close_sockets("the server was removed");
        self.wipe().await?;
        Ok(Answer::Done(Value::Null))
    }

    /// Disconnects the agent and takes none until the workspace is undeleted. Without an agent nothing is delivered. An object
    /// that was never used asks D1 about its first agent, and D1 refuses those of a deleted workspace.
    async fn suspend(&self, is_suspended: bool) -> worker::Result<Answer> {
        if self.is_used()? {
            self.tables().set_fact(fact::SUSPENDED, &is_suspended)?;
            if is_suspended {
                self.cut_off("the workspace was deleted")?;
            }
            self.arm().await?;
        }
        Ok(Answer::Done(Value::Null))
    }

    /// Forgets all that is stored, and lets everybody go who waits. Until that is done the object is as if it had never been
    /// used, and takes nothing in.
    pub(super) async fn wipe(&self) -> worker::Result<()> {
        self.epoch.set(self.epoch.get() + 1);
        self.is_wiping.set(true);
        let storage = self.state.storage();
        let forgotten = async {
            storage.delete_alarm().await?;
            storage.delete_all().await
        }
        .await;
        self.is_wiping.set(false);
        self.has_tables.set(false);
        self.tables.drop_copies();
        self.disarmed();
        self.ended.clear();
        self.output_came.clear();
        self.answered.clear();
        self.answering.borrow_mut().clear();
        self.changed.clear();
        self.ponged.clear();
        self.flushed.clear();
        self.allowed.borrow_mut().clear();
        forgotten
    }
}
