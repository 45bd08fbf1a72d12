//! The Durable Object of a batch. It starts the batch's commands, and follows them to their end.
//!
//! The state machine in `farhand_domain::batch` makes the decisions and never calls the platform.
//! This module passes each event to the machine and carries out the effects, in the order of
//! `farhand_domain::turn`. D1 is the machine's memory, so the object stores only its identity and the
//! events for `stream/`.

pub mod calls;
mod d1;
mod data;
mod log;

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use farhand_domain::batch::command_id;
use farhand_domain::batch::event::{
    Answer, CALL_TIMEOUT, Call, D1_TIMEOUT, Effect, Event, Position, Request as D1Request,
    RequestId, Work,
};
use farhand_domain::batch::machine::Machine;
use farhand_domain::error::Error;
use farhand_domain::link::call::{BatchCommand, LinkRequest, UserAction};
use farhand_domain::time::Timestamp;
use farhand_domain::turn::{Platform, Turn};
use futures_channel::oneshot;
use futures_util::future::{self, Either};
use serde_json::{Value, json};
use uuid::Uuid;
use worker::{Delay, DurableObject, Env, Request, Response, State, durable_object};

use self::calls::{BatchEnvelope, BatchRequest, Followed};
use self::data::BatchData;
use self::log::{Identity, Log};
use crate::objects::alarm::Alarm;
use crate::objects::server_link::calls::call_or_refusal;
use crate::objects::{self, audit_sealer};
use crate::platform::cost::{self, Cost};
use crate::platform::{self, internal, log as platform_log};
use crate::store::audit::service_event;

/// The delay before events are stored, so that several share a row.
const LOG_DELAY: Duration = Duration::from_millis(100);
/// Maximum time for which a call waits for events, in milliseconds.
const MAX_FOLLOW_MILLIS: u64 = 30_000;

#[durable_object]
pub struct Batch {
    shell: BatchShell,
}

/// Acts for the machine. Background tasks have a clone of it, because they outlive the request that
/// starts them.
#[derive(Clone)]
struct BatchShell(Rc<Shared>);

/// What the clones share.
struct Shared {
    state: State,
    env: Env,
    alarm: Alarm,
    /// `None` until the first event.
    inner: RefCell<Option<Inner>>,
    /// Calls that wait for events.
    followers: RefCell<Vec<oneshot::Sender<()>>>,
    is_storing: Cell<bool>,
    /// The cost of the requests to D1 since the object started.
    cost: Cell<Cost>,
}

/// What the object has in memory.
struct Inner {
    identity: Identity,
    machine: Machine,
    log: Log,
    /// The columns of the batch that the machine does not need.
    data: Option<Rc<BatchData>>,
}

impl DurableObject for Batch {
    fn new(state: State, env: Env) -> Self {
        let shared = Shared {
            state,
            env,
            alarm: Alarm::default(),
            inner: RefCell::default(),
            followers: RefCell::default(),
            is_storing: Cell::default(),
            cost: Cell::default(),
        };
        Self { shell: BatchShell(Rc::new(shared)) }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        let shell = &self.shell;
        objects::respond(&mut request, async |envelope: BatchEnvelope| {
            let BatchEnvelope { workspace_id, batch, message } = envelope;
            let is_new = shell.open((workspace_id, batch)).map_err(internal)?;
            let event = match message {
                BatchRequest::Reload => Event::Reload,
                BatchRequest::Kill { username } => {
                    shell.store_kill(username).map_err(internal)?;
                    Event::Kill
                }
                BatchRequest::Wipe => {
                    shell.wipe().await;
                    return Ok(Value::Null);
                }
                BatchRequest::Changed(change) => Event::Changed(change),
                BatchRequest::Connected(server) => Event::Connected { server },
                BatchRequest::Follow { after, wait_millis } => {
                    if is_new {
                        shell.start(Event::Reload).await;
                    }
                    let followed = shell.follow(after, wait_millis.min(MAX_FOLLOW_MILLIS)).await;
                    return Ok(json!(followed.map_err(internal)?));
                }
            };
            shell.start(event).await;
            Ok(Value::Null)
        })
        .await
    }

    async fn alarm(&self) -> worker::Result<Response> {
        self.shell.alarm.went_off();
        if let Some(Identity { workspace_id, batch, .. }) = log::identity(&self.shell.sql())? {
            self.shell.open((workspace_id, batch))?;
            self.shell.clone().run(Event::Alarm).await.await;
        }
        Response::empty()
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

impl Deref for BatchShell {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Platform for BatchShell {
    type Event = Event;
    type Effect = Effect;
    type Reply = Infallible;
    type Request = Work;
    type Pending = Task;

    fn step(&mut self, event: Event) -> Vec<Effect> {
        let Some(Inner { identity, machine, log, data }) = &mut *self.inner.borrow_mut() else {
            return Vec::new();
        };
        let now = platform::now();
        let step = machine.step(event, now);
        if let (Some(batch), Some(data)) = (machine.batch(), data) {
            log.record(identity.batch, data.added_at, batch, step.changed, now);
        }
        step.effects
    }

    fn carry_out(&mut self, effect: Effect, turn: &mut Turn<Self>) {
        match effect {
            Effect::SetAlarm(at) => turn.set_alarm(at),
            Effect::Then(work) => turn.request(work),
        }
    }

    async fn set_alarm(&mut self, at: Timestamp) {
        let set = self.alarm.set_by(&self.state.storage(), at, platform::now()).await;
        if let Err(error) = set {
            platform_log::error("alarm_not_set", json!({"batch": self.name()}), &error);
        }
    }

    fn reply(&mut self, reply: Infallible) {
        match reply {}
    }

    fn send(&mut self, work: Work) -> Task {
        let shell = self.clone();
        match work {
            Work::Request(id, request) => Box::pin(shell.query(id, request)),
            // A call may take long, so neither the alarm nor a request waits for it.
            Work::Call(position, call) => {
                self.state.wait_until(shell.call(position, call));
                Box::pin(future::ready(()))
            }
            Work::Wipe => Box::pin(async move { shell.wipe().await }),
        }
    }
}

impl BatchShell {
    fn sql(&self) -> worker::SqlStorage {
        self.state.storage().sql()
    }

    /// Reads or creates what is in memory. Returns whether nothing was there.
    fn open(&self, (workspace_id, batch): (i64, Uuid)) -> worker::Result<bool> {
        if self.inner.borrow().is_some() {
            return Ok(false);
        }
        let sql = self.sql();
        let identity = match log::identity(&sql)? {
            Some(identity) => identity,
            None => {
                let identity = Identity { workspace_id, batch, kill: None };
                log::store_identity(&sql, &identity)?;
                identity
            }
        };
        let machine = Machine::new(identity.kill.is_some(), platform::now());
        let log = Log::load(&sql)?;
        *self.inner.borrow_mut() = Some(Inner { identity, machine, log, data: None });
        Ok(true)
    }

    fn store_kill(&self, username: String) -> worker::Result<()> {
        let mut inner = self.inner.borrow_mut();
        let Some(inner) = &mut *inner else { return Ok(()) };
        // A repeated kill changes nothing.
        inner.identity.kill.get_or_insert(username);
        log::store_identity(&self.sql(), &inner.identity)
    }

    /// Handles an event. Its requests continue in the background.
    async fn start(&self, event: Event) {
        let work = self.clone().run(event).await;
        self.state.wait_until(work);
    }

    /// Handles the turn of an event. The returned task waits for its requests.
    async fn run(mut self, event: Event) -> Task {
        let turn = Turn::begin(&mut self, event);
        self.store_log_soon();
        let requests = turn.end(&mut self).await;
        Box::pin(async move { drop(future::join_all(requests).await) })
    }

    fn name(&self) -> Option<Uuid> {
        self.inner.borrow().as_ref().map(|inner| inner.identity.batch)
    }

    /// Sends a request to D1 and passes the answer to the machine.
    async fn query(self, id: RequestId, request: D1Request) {
        let answer = self.call_d1(&request).await.map_err(|error| error.detail.into_owned());
        if let Err(error) = &answer {
            platform_log::error("batch_d1_failed", json!({"batch": self.name()}), error);
        }
        let is_finished = matches!(answer, Ok(Answer::Finished(true)));
        self.clone().run(Event::Answered { id, answer }).await.await;
        if is_finished {
            self.log_cost();
        }
    }

    async fn call_d1(&self, request: &D1Request) -> Result<Answer, Error> {
        let (identity, data, batch) = match &*self.inner.borrow() {
            Some(Inner { identity, data, machine, .. }) => {
                (identity.clone(), data.clone(), machine.batch().cloned())
            }
            None => return Err(Error::internal("the object was wiped")),
        };
        let of = (identity.workspace_id, identity.batch);
        let work = cost::measure(async {
            if *request == D1Request::Load {
                let loaded = data::load(&self.env, of).await?;
                let (data, batch) = loaded.map_or((None, None), |(data, batch)| {
                    (Some(Rc::new(data)), Some(Box::new(batch)))
                });
                if let Some(inner) = &mut *self.inner.borrow_mut() {
                    inner.data = data;
                }
                return Ok(Answer::Loaded(batch));
            }
            let (Some(data), Some(batch)) = (data, batch) else {
                return Err(Error::internal("the batch was not read"));
            };
            d1::query(&self.env, &data, &batch, request).await
        });
        let (answer, cost) = match future::select(pin!(work), pin!(Delay::from(D1_TIMEOUT))).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => return Err(Error::internal("D1 did not answer in time")),
        };
        self.cost.set(self.cost.get() + cost);
        if matches!(&answer, Ok(Answer::Inserted(inserted)) if !inserted.is_empty()) {
            let env = self.env.clone();
            self.state.wait_until(async move { audit_sealer::notify(&env, of.0).await });
        }
        answer
    }

    /// Calls a server's object for a target, and passes the outcome to the machine.
    async fn call(self, position: Position, call: Call) {
        let outcome = match self.message(position, call) {
            Ok((server, message)) => {
                let work = call_or_refusal::<Value>(&self.env, server, &message);
                match future::select(pin!(work), pin!(Delay::from(CALL_TIMEOUT))).await {
                    // A refusal is final: a kill comes too late, or its agent cannot kill.
                    Either::Left((answer, _)) => answer.map(drop),
                    Either::Right(_) => Err(Error::internal("the server's object did not answer")),
                }
            }
            Err(error) => Err(error),
        };
        if let Err(error) = &outcome {
            let about = json!({"batch": self.name(), "position": position});
            platform_log::error("batch_call_failed", about, &error.detail);
        }
        let is_done = outcome.is_ok();
        self.run(Event::Called { position, call, is_done }).await.await;
    }

    /// The message to a target's server.
    fn message(&self, position: Position, call: Call) -> Result<(Uuid, LinkRequest), Error> {
        let missing = || Error::internal("the batch was read again");
        let inner = self.inner.borrow();
        let Inner { identity, machine, data, .. } = inner.as_ref().ok_or_else(missing)?;
        let batch = machine.batch().ok_or_else(missing)?;
        let target = batch.targets.get(position as usize).ok_or_else(missing)?;
        let started = target.started.as_ref().ok_or_else(missing)?;
        let data = data.as_ref().ok_or_else(missing)?;
        let id = command_id(data.added_at, identity.batch, target.server);
        let message = match call {
            Call::Start | Call::Cancel => LinkRequest::RunOfBatch(Box::new(BatchCommand {
                workspace_id: identity.workspace_id,
                command: data.command(target.server, &started.run),
                origin: data.origin.clone(),
                inputs: data.inputs.clone(),
                script: data.script(),
                timeout: data.timeout,
                added_at: started.added_at,
                expires_at: batch.expires_at,
                output_limit: data.output_limit.get(),
                // Without the limit of a check, the server's object checks again.
                checked_at: started.checked_at.filter(|_| data.output_limit.get().is_some()),
                cancellation: (call == Call::Cancel).then(|| data.cancellation(started)),
            })),
            Call::Kill => {
                let username = identity.kill.clone().ok_or_else(missing)?;
                let event = service_event("command.kill")?.with_object(Some(id.to_string()), None);
                let event = event.details(json!({"batch": identity.batch, "username": username}));
                LinkRequest::KillOfBatch(UserAction { id, username, event })
            }
        };
        Ok((target.server, message))
    }

    /// Stores the collected events after a short time, and wakes the calls that wait for them.
    fn store_log_soon(&self) {
        let is_unstored = self.inner.borrow().as_ref().is_some_and(|inner| inner.log.is_unstored());
        if !is_unstored || self.is_storing.replace(true) {
            return;
        }
        let shell = self.clone();
        self.state.wait_until(async move {
            Delay::from(LOG_DELAY).await;
            shell.is_storing.set(false);
            let stored = match &mut *shell.inner.borrow_mut() {
                Some(inner) => inner.log.store(&shell.sql()),
                None => Ok(()),
            };
            if let Err(error) = stored {
                platform_log::error("batch_log_lost", json!({"batch": shell.name()}), &error);
            }
            for follower in shell.followers.take() {
                // This fails if the caller stopped waiting, which is harmless.
                follower.send(()).ok();
            }
        });
    }

    /// Waits for events after a number.
    async fn follow(&self, after: u64, wait_millis: u64) -> worker::Result<Followed> {
        let until = platform::now().plus_millis(wait_millis.cast_signed());
        loop {
            let (followed, is_over) = match &*self.inner.borrow() {
                Some(inner) => (inner.log.follow(&self.sql(), after)?, inner.machine.is_gone()),
                None => (Followed::default(), true),
            };
            let left = until.as_millis().saturating_sub(platform::now().as_millis());
            if !followed.events.is_empty() || followed.is_finished || is_over || left == 0 {
                let is_finished = followed.is_finished || is_over;
                return Ok(Followed { is_finished, ..followed });
            }
            let (sender, woken) = oneshot::channel();
            self.followers.borrow_mut().push(sender);
            future::select(woken, Delay::from(Duration::from_millis(left))).await;
        }
    }

    /// Deletes everything in the object.
    async fn wipe(&self) {
        self.inner.take();
        self.followers.take();
        let storage = self.state.storage();
        let (alarm, all) = future::join(self.alarm.delete(&storage), storage.delete_all()).await;
        if let Err(error) = alarm.and(all) {
            platform_log::error("object_not_wiped", json!({}), &error);
        }
    }

    /// Writes a line with what the batch cost.
    fn log_cost(&self) {
        let Cost { d1_calls, rows_read, rows_written, .. } = self.cost.get();
        let targets = self
            .inner
            .borrow()
            .as_ref()
            .and_then(|inner| inner.machine.batch().map(|batch| batch.targets.len()));
        platform_log::event(
            "batch_finished",
            json!({
                "batch": self.name(), "targets": targets,
                "d1_calls": d1_calls, "rows_read": rows_read, "rows_written": rows_written,
            }),
        );
    }
}
