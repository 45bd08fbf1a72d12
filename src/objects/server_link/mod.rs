//! The Durable Object of a server: its agent's connections, its commands under way and their
//! output.
//!
//! It is the only place with a total order of what happens to one server. `farhand_domain::link`, a
//! state machine without a platform, makes the decisions. This is the shell: it gives the machine
//! each event and carries out its effects, in one place (`carry_out`). D1 is asked in one place,
//! too (`ask`).
//!
//! A step's writes to the object's SQLite commit together, as there is no `await` between them, and
//! the platform lets nothing out of the object before they are durable.

pub mod calls;
mod d1;
mod d1_server;
mod output_table;
mod sockets;
mod store;
mod tables;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use farhand_domain::link::event::{D1_WITHIN, Effect, Event, Kind, RequestId, Ticket, ToD1};
use farhand_domain::link::machine::{Link, Settings};
use farhand_domain::time::Timestamp;
use farhand_domain::wire::FromAgent;
use futures_channel::oneshot;
use futures_util::future::{self, Either};
use serde_json::json;
use worker::{
    Delay, DurableObject, Env, Request, Response, State, WebSocket, WebSocketIncomingMessage,
    durable_object,
};

use self::calls::{Answer, Ask, IDENTITY_HEADER, Identity, REQUEST_ID_HEADER, Refusal};
use self::tables::Tables;
use crate::objects::alarm::Alarm;
use crate::objects::{self, audit_sealer};
use crate::platform;
use crate::platform::cost::{self, Cost};
use crate::platform::log;

/// How many unfinished commands an agent has at most. It takes 200 beyond those that run
/// (agent-protocol 4.3, contract 7.4).
const WINDOW: u64 = 200;

/// The object.
#[durable_object]
pub struct ServerLink {
    shell: Rc<Shell>,
}

/// Holds the machine. A task keeps it alive after the request that started the task.
struct Shell {
    state: Rc<State>,
    env: Env,
    /// The machine; `None` before the first event.
    link: RefCell<Option<Link<Tables>>>,
    alarm: Rc<Alarm>,
    last_ticket: Cell<Ticket>,
    /// Where the outcomes of calls go.
    calls: RefCell<HashMap<Ticket, oneshot::Sender<Outcome>>>,
    /// The timer of a call. Dropping the sender stops it.
    timers: RefCell<HashMap<Ticket, oneshot::Sender<()>>>,
}

/// The outcome of a call.
enum Outcome {
    Answer(Answer),
    /// The agent's end of its connection.
    Socket(WebSocket),
}

/// The effects that need waiting, in the order in which they are carried out.
#[derive(Default)]
struct Rest {
    alarm: Option<Timestamp>,
    outcomes: Vec<(Ticket, Outcome)>,
    requests: Vec<(RequestId, Box<ToD1>)>,
}

impl DurableObject for ServerLink {
    fn new(state: State, env: Env) -> Self {
        let shell = Shell {
            state: Rc::new(state),
            env,
            link: RefCell::default(),
            alarm: Rc::default(),
            last_ticket: Cell::default(),
            calls: RefCell::default(),
            timers: RefCell::default(),
        };
        Self { shell: Rc::new(shell) }
    }

    async fn fetch(&self, request: Request) -> worker::Result<Response> {
        objects::costed(self.answer(request)).await
    }

    async fn alarm(&self) -> worker::Result<Response> {
        self.shell.alarm.went_off();
        // The requests to D1 end before the handler does: if they are cut off, the platform repeats
        // the alarm.
        let ((), cost) = cost::of(self.shell.clone().run(Event::Alarm)).await;
        // Only this line has the cost of agents' reports: their requests ask nothing of D1.
        if cost != Cost::default() {
            let Cost { d1_calls, rows_read, rows_written, .. } = cost;
            let own_rows = self.shell.take_rows_written();
            log::event(
                "alarm",
                json!({
                    "server": self.shell.state.id().name(),
                    "d1_calls": d1_calls, "rows_read": rows_read, "rows_written": rows_written,
                    // In the object's own storage, since the last such line.
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
        let is_pong =
            serde_json::from_str(&text).is_ok_and(|message: FromAgent| message == FromAgent::Pong);
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
        self.closed(&socket).await;
        Ok(())
    }

    async fn websocket_error(&self, socket: WebSocket, _: worker::Error) -> worker::Result<()> {
        self.closed(&socket).await;
        Ok(())
    }
}

impl ServerLink {
    /// Answers a call of the Worker, or accepts an agent's WebSocket.
    async fn answer(&self, mut request: Request) -> worker::Result<Response> {
        if let Some(identity) = request.headers().get(IDENTITY_HEADER)? {
            let identity: Identity = serde_json::from_str(&identity)?;
            let request_id = request.headers().get(REQUEST_ID_HEADER)?;
            let is_control = request.path().ends_with(Kind::Control.as_str());
            let kind = if is_control { Kind::Control } else { Kind::Backhaul };
            let connects = |ticket| Event::Connect { ticket, identity, kind, request_id };
            return match self.call(connects).await {
                Outcome::Socket(client) => Response::from_websocket(client),
                Outcome::Answer(Answer::Refused(Refusal::InvalidAgent)) => {
                    Ok(Response::empty()?.with_status(403))
                }
                Outcome::Answer(Answer::Failed(cause)) => Err(worker::Error::RustError(cause)),
                Outcome::Answer(_) => Ok(Response::empty()?.with_status(503)),
            };
        }
        let ask: Box<Ask> = serde_json::from_slice(&request.bytes().await?)?;
        match self.call(|ticket| Event::Call { ticket, ask }).await {
            Outcome::Answer(answer) => Response::from_json(&answer),
            Outcome::Socket(_) => {
                Err(worker::Error::RustError("a call got a connection".to_owned()))
            }
        }
    }

    /// Makes a call and waits for its outcome. The rest of its work goes on in the background.
    async fn call(&self, event: impl FnOnce(Ticket) -> Event) -> Outcome {
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
        outcome.unwrap_or_else(|_| Outcome::Answer(Answer::Failed("no answer".to_owned())))
    }

    async fn closed(&self, socket: &WebSocket) {
        if let Some(generation) = sockets::generation(socket) {
            self.shell.clone().run(Event::Closed(generation)).await;
        }
    }
}

impl Shell {
    /// Gives the machine an event immediately. The future carries out the effects that need
    /// waiting.
    fn run(self: Rc<Self>, event: Event) -> Pin<Box<dyn Future<Output = ()>>> {
        let Rest { alarm, outcomes, requests } = self.step(event);
        Box::pin(async move {
            if let Some(at) = alarm {
                let set = self.alarm.set_by(&self.state.storage(), at, platform::now()).await;
                if let Err(error) = set {
                    log::trouble(
                        "alarm_not_set",
                        json!({"server": self.state.id().name()}),
                        &error,
                    );
                }
            }
            // Answers follow the alarm: what is answered must go on after a crash.
            for (ticket, outcome) in outcomes {
                self.timers.borrow_mut().remove(&ticket);
                if let Some(call) = self.calls.borrow_mut().remove(&ticket) {
                    // The caller may be gone.
                    call.send(outcome).ok();
                }
            }
            let asked = requests.into_iter().map(|(id, request)| self.clone().ask(id, request));
            future::join_all(asked).await;
        })
    }

    /// The one place where D1 is asked. The machine ignores answers to requests from before a wipe.
    async fn ask(self: Rc<Self>, id: RequestId, request: Box<ToD1>) {
        let env = self.env.clone();
        let asked = Box::pin(async move {
            let answer = d1::ask(&env, &request).await.map_err(|error| error.detail.into_owned());
            (answer, request)
        });
        let answer = match future::select(asked, Delay::from(D1_WITHIN)).await {
            Either::Left(((answer, _), _)) => answer,
            Either::Right(((), late)) => {
                let shell = self.clone();
                self.state.wait_until(async move {
                    let (_, request) = late.await;
                    shell.run(Event::Late(request)).await;
                });
                Err("D1 did not answer in time".to_owned())
            }
        };
        self.run(Event::Answered { id, answer }).await;
    }

    /// Gives the machine an event, and carries out the effects that need no waiting.
    fn step(self: &Rc<Self>, event: Event) -> Rest {
        let mut rest = Rest::default();
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let scene = sockets::scene(&self.state);
            let mut link = self.link.borrow_mut();
            let effects = match &mut *link {
                Some(link) => link.step(event, scene),
                none => {
                    let tables = Tables::new(self.state.clone(), self.alarm.clone());
                    let link = Link::new(tables, self.settings(), Box::new(random), scene);
                    none.insert(link).step(event, scene)
                }
            };
            drop(link);
            for effect in effects {
                if let Some(event) = self.carry_out(effect, &mut rest) {
                    events.push_back(event);
                }
            }
        }
        rest
    }

    /// Carries out an effect, or adds it to `rest` if it needs waiting. Returns the event that
    /// follows from it, if one does.
    fn carry_out(self: &Rc<Self>, effect: Effect, rest: &mut Rest) -> Option<Event> {
        match effect {
            Effect::Send { kind, generation, message, before } => {
                let sent = sockets::send(&self.state, kind, generation, &message);
                return sent.is_err().then_some(Event::NotSent { generation, before });
            }
            Effect::Close { kind, code, reason } => sockets::close(&self.state, kind, code, reason),
            Effect::Accept { ticket, kind, generation, features } => {
                match sockets::accept(&self.state, kind, generation, features) {
                    Ok(client) => rest.outcomes.push((ticket, Outcome::Socket(client))),
                    Err(error) => {
                        let failed = Answer::Failed(error.to_string());
                        rest.outcomes.push((ticket, Outcome::Answer(failed)));
                        return Some(Event::Closed(generation));
                    }
                }
            }
            Effect::Reply(ticket, answer) => {
                rest.outcomes.push((ticket, Outcome::Answer(answer)));
            }
            Effect::Alarm(at) => rest.alarm = Some(at),
            Effect::Later(ticket, at) if at <= platform::now() => {
                return Some(Event::TimeUp(ticket));
            }
            Effect::Later(ticket, at) => self.set_timer(ticket, at),
            Effect::Ask(id, request) => rest.requests.push((id, request)),
            Effect::Seal(workspace) => {
                let env = self.env.clone();
                self.state.wait_until(async move { audit_sealer::tell(&env, workspace).await });
            }
            Effect::Log { event, mut about, error } => {
                about["server"] = json!(self.state.id().name());
                log::trouble(event, about, &error);
            }
        }
        None
    }

    fn set_timer(self: &Rc<Self>, ticket: Ticket, at: Timestamp) {
        let (stop, stopped) = oneshot::channel();
        self.timers.borrow_mut().insert(ticket, stop);
        // A timer counts whole milliseconds.
        let left = at.as_millis().saturating_sub(platform::now().as_millis()) + 1;
        let shell = self.clone();
        self.state.wait_until(async move {
            let delay = Delay::from(Duration::from_millis(left));
            if let Either::Left(_) = future::select(delay, stopped).await {
                shell.run(Event::TimeUp(ticket)).await;
            }
        });
    }

    /// How many rows were written to the object's storage since this was last called.
    fn take_rows_written(&self) -> usize {
        let link = self.link.borrow();
        self.alarm.take_sets() + link.as_ref().map_or(0, |link| link.store().take_rows_written())
    }

    fn settings(&self) -> Settings {
        Settings {
            ping_every: platform::ping_seconds(&self.env),
            heartbeat_every: platform::heartbeat_seconds(&self.env),
            key: platform::secret_key(&self.env).ok(),
            window: WINDOW,
        }
    }
}

/// Fills bytes from the platform's source.
fn random(bytes: &mut [u8]) -> Result<(), String> {
    platform::fill_random(bytes).map_err(|error| error.detail.into_owned())
}
