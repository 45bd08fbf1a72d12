//! The Durable Object of a server. It holds the agent's connections, the commands and their output.
//!
//! All events of a server pass through its object, so they have a total order. The state machine in
//! `farhand_domain::link` makes the decisions and never calls the platform. This module passes each
//! event to the machine and carries out the effects that the machine returns, in the order of
//! `farhand_domain::turn`. Only `LinkShell::query_d1` calls D1.

pub mod calls;
mod chunk_sums;
mod d1;
mod d1_server;
mod output_table;
mod sockets;
mod store;
mod tables;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Deref;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use farhand_domain::agent::wire::MessageFromAgent;
use farhand_domain::link::event::{
    ConnectionKind, D1_TIMEOUT, Effect, Event, Request as D1Request, RequestId, Ticket,
};
use farhand_domain::link::machine::{Machine, Settings};
use farhand_domain::time::Timestamp;
use farhand_domain::turn::{Platform, Turn};
use futures_channel::oneshot;
use futures_util::future::{self, Either};
use serde_json::json;
use worker::{
    Delay, DurableObject, Env, Request, Response, State, WebSocket, WebSocketIncomingMessage,
    durable_object,
};

use self::calls::{
    ClaimedIdentity, IDENTITY_HEADER, LinkRequest, LinkResponse, REQUEST_ID_HEADER, Refusal,
};
use self::tables::Tables;
use crate::objects::alarm::Alarm;
use crate::objects::batch::calls::notify as notify_batch;
use crate::objects::{self, audit_sealer};
use crate::platform;
use crate::platform::cost::{self, Cost};
use crate::platform::log;

/// The maximum number of commands that are delivered to an agent and have not ended (contract 7.4).
/// Alpamon queues up to this many commands behind the running ones (agent-protocol 4.3).
const MAX_OPEN_COMMANDS: u64 = 200;

#[durable_object]
pub struct ServerLink {
    shell: LinkShell,
}

/// Acts for the machine. Background tasks have a clone of it, because they outlive the request that
/// starts them.
#[derive(Clone)]
struct LinkShell(Rc<Shared>);

/// What the clones share.
struct Shared {
    state: Rc<State>,
    env: Env,
    /// The machine; `None` until the first event.
    link: RefCell<Option<Machine<Tables>>>,
    alarm: Rc<Alarm>,
    last_ticket: Cell<Ticket>,
    /// Calls that have no outcome yet.
    calls: RefCell<HashMap<Ticket, oneshot::Sender<CallOutcome>>>,
    /// The timers of calls. Dropping a sender stops its timer.
    timers: RefCell<HashMap<Ticket, oneshot::Sender<()>>>,
}

/// The outcome of a call.
enum CallOutcome {
    Answer(LinkResponse),
    /// The agent's end of its connection.
    Socket(WebSocket),
}

impl DurableObject for ServerLink {
    fn new(state: State, env: Env) -> Self {
        let shared = Shared {
            state: Rc::new(state),
            env,
            link: RefCell::default(),
            alarm: Rc::default(),
            last_ticket: Cell::default(),
            calls: RefCell::default(),
            timers: RefCell::default(),
        };
        Self { shell: LinkShell(Rc::new(shared)) }
    }

    async fn fetch(&self, request: Request) -> worker::Result<Response> {
        objects::with_cost_header(self.respond(request)).await
    }

    async fn alarm(&self) -> worker::Result<Response> {
        self.shell.alarm.went_off();
        // The handler waits for the requests to D1. If the object dies before they end, the
        // platform runs the alarm again.
        let ((), cost) = cost::measure(self.shell.clone().run(Event::Alarm)).await;
        // Requests with agents' reports do not call D1, so only this line contains the cost of
        // reports.
        if cost != Cost::default() {
            let Cost { d1_calls, rows_read, rows_written, .. } = cost;
            let own_rows = self.shell.take_rows_written();
            log::event(
                "alarm",
                json!({
                    "server": self.shell.state.id().name(),
                    "d1_calls": d1_calls, "rows_read": rows_read, "rows_written": rows_written,
                    // Rows written to the object's own storage since the previous such line.
                    "object_rows_written": own_rows,
                }),
            );
        }
        Response::empty()
    }

    async fn websocket_message(
        &self,
        socket: WebSocket,
        message: WebSocketIncomingMessage,
    ) -> worker::Result<()> {
        let WebSocketIncomingMessage::String(text) = message else { return Ok(()) };
        let is_pong = serde_json::from_str(&text)
            .is_ok_and(|message: MessageFromAgent| message == MessageFromAgent::Pong);
        if let Some(generation) = sockets::generation(&socket).filter(|_| is_pong) {
            self.shell.clone().run(Event::Pong(generation)).await;
        }
        Ok(())
    }

    async fn websocket_close(
        &self,
        socket: WebSocket,
        _: usize,
        _: String,
        _: bool,
    ) -> worker::Result<()> {
        self.on_closed(&socket).await;
        Ok(())
    }

    async fn websocket_error(&self, socket: WebSocket, _: worker::Error) -> worker::Result<()> {
        self.on_closed(&socket).await;
        Ok(())
    }
}

impl ServerLink {
    /// Responds to a call from the Worker, or accepts an agent's WebSocket.
    async fn respond(&self, mut request: Request) -> worker::Result<Response> {
        if let Some(identity) = request.headers().get(IDENTITY_HEADER)? {
            let identity: ClaimedIdentity = serde_json::from_str(&identity)?;
            let request_id = request.headers().get(REQUEST_ID_HEADER)?;
            let is_control = request.path().ends_with(ConnectionKind::Control.as_str());
            let kind = if is_control { ConnectionKind::Control } else { ConnectionKind::Backhaul };
            let connects = |ticket| Event::Connect { ticket, identity, kind, request_id };
            return match self.call(connects).await {
                CallOutcome::Socket(client) => Response::from_websocket(client),
                CallOutcome::Answer(LinkResponse::Refused(Refusal::InvalidAgent)) => {
                    Ok(Response::empty()?.with_status(403))
                }
                CallOutcome::Answer(LinkResponse::Failed(cause)) => {
                    Err(worker::Error::RustError(cause))
                }
                CallOutcome::Answer(_) => Ok(Response::empty()?.with_status(503)),
            };
        }
        let message: Box<LinkRequest> = serde_json::from_slice(&request.bytes().await?)?;
        match self.call(|ticket| Event::Call { ticket, message }).await {
            CallOutcome::Answer(answer) => Response::from_json(&answer),
            CallOutcome::Socket(_) => {
                Err(worker::Error::RustError("a call got a connection".to_owned()))
            }
        }
    }

    /// Passes a call to the machine and waits for its outcome. Remaining work continues in the
    /// background after that.
    async fn call(&self, event: impl FnOnce(Ticket) -> Event) -> CallOutcome {
        let ticket = self.shell.last_ticket.get() + 1;
        self.shell.last_ticket.set(ticket);
        let (sender, outcome) = oneshot::channel();
        self.shell.calls.borrow_mut().insert(ticket, sender);
        let work = self.shell.clone().run(event(ticket));
        let outcome = match future::select(outcome, work).await {
            Either::Left((outcome, work)) => {
                self.shell.state.wait_until(work);
                outcome
            }
            Either::Right(((), outcome)) => outcome.await,
        };
        outcome
            .unwrap_or_else(|_| CallOutcome::Answer(LinkResponse::Failed("no answer".to_owned())))
    }

    async fn on_closed(&self, socket: &WebSocket) {
        if let Some(generation) = sockets::generation(socket) {
            self.shell.clone().run(Event::Closed(generation)).await;
        }
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

impl Deref for LinkShell {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Platform for LinkShell {
    type Event = Event;
    type Effect = Effect;
    type Reply = (Ticket, CallOutcome);
    type Request = (RequestId, Box<D1Request>);
    type Pending = Task;

    fn step(&mut self, event: Event) -> Vec<Effect> {
        let input = sockets::input(&self.state);
        match &mut *self.link.borrow_mut() {
            Some(link) => link.step(event, input),
            none => {
                let tables = Tables::new(self.state.clone(), self.alarm.clone());
                let link = Machine::new(tables, self.settings(), Box::new(random), input);
                none.insert(link).step(event, input)
            }
        }
    }

    fn carry_out(&mut self, effect: Effect, turn: &mut Turn<Self>) {
        match effect {
            Effect::Send { kind, generation, message, before } => {
                if sockets::send(&self.state, kind, generation, &message).is_err() {
                    turn.cause(Event::NotSent { generation, before });
                }
            }
            Effect::Close { kind, code, reason } => sockets::close(&self.state, kind, code, reason),
            Effect::Accept { ticket, kind, generation, features } => {
                match sockets::accept(&self.state, kind, generation, features) {
                    Ok(client) => turn.reply((ticket, CallOutcome::Socket(client))),
                    Err(error) => {
                        let failed = LinkResponse::Failed(error.to_string());
                        turn.reply((ticket, CallOutcome::Answer(failed)));
                        turn.cause(Event::Closed(generation));
                    }
                }
            }
            Effect::Reply(ticket, answer) => turn.reply((ticket, CallOutcome::Answer(answer))),
            Effect::SetAlarm(at) => turn.set_alarm(at),
            Effect::StartCallTimer(ticket, at) if at <= platform::now() => {
                turn.cause(Event::CallTimer(ticket));
            }
            Effect::StartCallTimer(ticket, at) => self.set_timer(ticket, at),
            Effect::Request(id, request) => turn.request((id, request)),
            Effect::RequestSeal(workspace) => {
                let env = self.env.clone();
                self.state.wait_until(async move { audit_sealer::notify(&env, workspace).await });
            }
            Effect::NotifyBatch(notice) => {
                let env = self.env.clone();
                self.state.wait_until(async move { notify_batch(&env, notice).await });
            }
            Effect::Log { event, mut fields, error } => {
                fields["server"] = json!(self.state.id().name());
                log::error(event, fields, &error);
            }
        }
    }

    async fn set_alarm(&mut self, at: Timestamp) {
        let set = self.alarm.set_by(&self.state.storage(), at, platform::now()).await;
        if let Err(error) = set {
            log::error("alarm_not_set", json!({"server": self.state.id().name()}), &error);
        }
    }

    fn reply(&mut self, (ticket, outcome): (Ticket, CallOutcome)) {
        self.timers.borrow_mut().remove(&ticket);
        if let Some(call) = self.calls.borrow_mut().remove(&ticket) {
            // This fails if the caller stopped waiting, which is harmless.
            call.send(outcome).ok();
        }
    }

    fn send(&mut self, (id, request): (RequestId, Box<D1Request>)) -> Task {
        Box::pin(self.clone().query_d1(id, request))
    }
}

impl LinkShell {
    /// Begins the turn of an event. The returned future ends it, and waits for its requests.
    fn run(mut self, event: Event) -> Task {
        let turn = Turn::begin(&mut self, event);
        Box::pin(async move {
            let requests = turn.end(&mut self).await;
            future::join_all(requests).await;
        })
    }

    /// Sends a request to D1 and passes the response to the machine. After [`D1_TIMEOUT`] the
    /// machine gets a failure. If the request ends later, it gets [`Event::EndedLate`]. The
    /// machine ignores responses to requests that it sent before a wipe.
    async fn query_d1(self, id: RequestId, request: Box<D1Request>) {
        let env = self.env.clone();
        let query = Box::pin(async move {
            let answer = d1::query(&env, &request).await.map_err(|error| error.detail.into_owned());
            (answer, request)
        });
        let answer = match future::select(query, Delay::from(D1_TIMEOUT)).await {
            Either::Left(((answer, _), _)) => answer,
            Either::Right(((), late)) => {
                let shell = self.clone();
                self.state.wait_until(async move {
                    let (_, request) = late.await;
                    shell.run(Event::EndedLate(request)).await;
                });
                Err("D1 did not answer in time".to_owned())
            }
        };
        self.run(Event::Answered { id, answer }).await;
    }

    fn set_timer(&self, ticket: Ticket, at: Timestamp) {
        let (stop, stopped) = oneshot::channel();
        self.timers.borrow_mut().insert(ticket, stop);
        // Rounded up: the timer has whole milliseconds and must not end before `at`.
        let millis_left = at.as_millis().saturating_sub(platform::now().as_millis()) + 1;
        let shell = self.clone();
        self.state.wait_until(async move {
            let delay = Delay::from(Duration::from_millis(millis_left));
            if let Either::Left(_) = future::select(delay, stopped).await {
                shell.run(Event::CallTimer(ticket)).await;
            }
        });
    }

    /// Returns the number of rows written to the object's storage since the last call.
    fn take_rows_written(&self) -> usize {
        let link = self.link.borrow();
        self.alarm.take_sets() + link.as_ref().map_or(0, |link| link.store().take_rows_written())
    }

    fn settings(&self) -> Settings {
        Settings {
            ping_every: platform::ping_seconds(&self.env),
            heartbeat_every: platform::heartbeat_seconds(&self.env),
            key: platform::secret_key(&self.env).ok(),
            server_grace: platform::server_grace(&self.env),
            max_open_commands: MAX_OPEN_COMMANDS,
        }
    }
}

fn random(bytes: &mut [u8]) -> Result<(), String> {
    platform::fill_random(bytes).map_err(|error| error.detail.into_owned())
}
