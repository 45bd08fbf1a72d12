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

pub mod calls;
mod commands;
mod connection;
mod d1;
mod identity;
mod resync;
mod retention;
mod tables;
mod waiting;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use farhand_domain::audit::Source;
use farhand_domain::features::Features;
use farhand_domain::lifecycle::{self, Lifecycle, Outcome, State as Life};
use farhand_domain::output;
use farhand_domain::time::Timestamp;
use farhand_domain::wire::{Fin, FromAgent, ToAgent};
use futures_util::future;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;
use worker::{
    DurableObject, Env, Request, Response, ScheduledTime, State, WebSocket, WebSocketIncomingMessage, WebSocketPair,
    durable_object,
};

use self::calls::{
    AgentCall, Answer, Ask, IDENTITY_HEADER, Identity, OfServer, REQUEST_ID_HEADER, Refusal, Remove, Report,
};
use self::connection::{agent_event, connect_event, upgrade_event};
use self::d1::ServerFacts;
use self::identity::Known;
use self::tables::{Held, Phase, Tables, Unflushed};
use self::waiting::Waiting;
use crate::objects;
use crate::objects::audit_sealer;
use crate::platform;
use crate::platform::cost::{self, Cost};
use crate::platform::log;

/// How long changes gather before they go to D1 together, in milliseconds. Lists follow within a second (contract 8).
const GATHER: i64 = 300;
/// How long a command that is under way waits for its next report, to go to D1 together with it, in milliseconds: most are over
/// within a moment. What remains of the second is for the way there.
const GATHER_REPORTS: i64 = 800;
/// How late an alarm that this object set may be before it is set again, in milliseconds.
const LATE_ALARM: i64 = 5_000;
/// How long an agent may take to answer a ping, in seconds.
const PONG_WITHIN: i64 = 60;
/// How many commands go to D1, or are looked at, in one go.
const BATCH: u32 = 50;
/// When an alarm that failed is tried again, in seconds.
const AFTER_FAILURE: u64 = 60;
/// After how many failures in a row D1 is told of each thing alone, so that one that it refuses holds no other up.
const TOGETHER: u32 = 3;
/// How long after it connected an agent may still report that its process began, in seconds.
const START_IS_TOLD_WITHIN: i64 = 60;
/// The farthest that an alarm is set, in seconds: the platform takes none past the year 2189.
const FARTHEST: i64 = 30 * 24 * 60 * 60;
/// When a command that a request at hand is recording is looked at again, in seconds.
const LOOK_AGAIN: i64 = 30;
/// The largest number of bytes that an agent is believed: as far as JSON counts.
const MAX_COUNT: u64 = 1 << 53;
/// How long a flush may take before it is taken for dead, in seconds.
const FLUSH_WITHIN: i64 = 60;
/// The slowest that a failing flush is tried again, in seconds.
const SLOWEST_RETRY: i64 = 60;

const BACKHAUL: &str = "backhaul";
const CONTROL: &str = "control";

/// Names of facts.
mod fact {
    /// Who the server is: `Known`.
    pub const KNOWN: &str = "known";
    /// True while D1 is being told of another key or of the server's end, and is the only one who knows.
    pub const UNSURE: &str = "unsure";
    /// Of which server that is: `OfServer`.
    pub const ASKED: &str = "asked";
    /// True when the server was deleted. What went out to it stays.
    pub const GONE: &str = "gone";
    /// True while the workspace is deleted, and may be undeleted.
    pub const SUSPENDED: &str = "suspended";
    /// What is known of its host: `ServerFacts`.
    pub const SERVER: &str = "server";
    /// The number of the last connection.
    pub const GENERATION: &str = "generation";
    /// The number of the open connection, or null.
    pub const OPEN: &str = "open";
    /// When the agent last reported that its process began, while it is not known whether the open connection is of that
    /// process; or null.
    pub const STARTED: &str = "started";
    /// The number of the open control connection, or null.
    pub const CONTROL_OPEN: &str = "control_open";
    /// How often connections of the backhaul replaced each other lately: `Contest`.
    pub const BACKHAUL_CONTEST: &str = "backhaul_contest";
    /// The same of the control connection.
    pub const CONTROL_CONTEST: &str = "control_contest";
    /// How often flushing failed in a row.
    pub const FAILURES: &str = "failures";
    /// The last command that D1 was given again, while there are more.
    pub const RESYNCED: &str = "resynced";
}

/// Names of wakes.
mod wake {
    /// D1 has not everything.
    pub const FLUSH: &str = "flush";
    /// The agent is to be pinged.
    pub const PING: &str = "ping";
    /// The agent has not answered.
    pub const PONG: &str = "pong";
    /// Commands are due.
    pub const HAND_OUT: &str = "hand_out";
    /// Somebody who was telling D1 of a change of the server may have died over it.
    pub const LOOK: &str = "look";
    /// D1 is being given all commands again.
    pub const RESYNC: &str = "resync";
}

/// Something that D1 lacks.
enum Lacking {
    /// The latest of a command.
    Change(Held),
    /// That a command was withdrawn.
    Removal(Held),
    /// What is known of the host, by its revision.
    Facts(i64),
}

/// What a socket carries through hibernation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Attachment {
    generation: u64,
    /// What its agent can do.
    #[serde(default)]
    features: Features,
}

/// The object.
#[durable_object]
pub struct ServerLink {
    state: State,
    env: Env,
    tables: Tables,
    /// When the alarm goes off, in milliseconds, or sooner; `None` where it is not known.
    armed: Cell<Option<i64>>,
    /// Counts the alarms that went off, so that one that does so meanwhile is noticed.
    alarms: Cell<u64>,
    /// Whether the tables are known to exist.
    has_tables: Cell<bool>,
    /// Counts what wiped the object, so that an `await` in between is noticed.
    epoch: Cell<u64>,
    /// Who waits for a command's end.
    ended: Waiting<Uuid>,
    /// Who waits for a command's output, or its end.
    output_came: Waiting<Uuid>,
    /// Commands that a request at hand is recording.
    recording: RefCell<HashSet<Uuid>>,
    /// Who waits for that.
    recorded: Waiting<Uuid>,
    /// Commands whose right was checked just now; and when they are to go out, where D1 was told that already.
    allowed: RefCell<HashMap<Uuid, Option<Timestamp>>>,
    /// Since when rights are being checked.
    checking_since: Cell<Option<Timestamp>>,
    /// Who waits for that.
    checked: Waiting<()>,
    /// Idempotency-Keys that a request at hand will answer to, and since when it is at it.
    answering: RefCell<HashMap<String, Timestamp>>,
    /// Who waits for such an answer.
    answered: Waiting<String>,
    /// Whether all that is stored is being forgotten.
    is_wiping: Cell<bool>,
    /// Counts the changes of the server that D1 was told of.
    changes: Cell<u64>,
    /// Since when D1 is being told of one.
    changing_since: Cell<Option<Timestamp>>,
    /// Who waits for that.
    changed: Waiting<()>,
    /// Counts the pongs on the open connection.
    pongs: Cell<u64>,
    /// Who waits for a pong, or for the connection's end.
    ponged: Waiting<()>,
    /// Since when D1 is being sent what it lacks.
    flushing_since: Cell<Option<Timestamp>>,
    /// Who waits for the end of that.
    flushed: Waiting<()>,
}

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

fn now() -> Timestamp {
    platform::now()
}

impl ServerLink {
    /// Answers what the Worker asks, or takes an agent's WebSocket.
    async fn answer(&self, mut request: Request) -> worker::Result<Response> {
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

    /// Has audit events sealed that D1 was told of. Nothing waits for that.
    fn seal_later(&self, workspace: i64) {
        let env = self.env.clone();
        self.state.wait_until(async move { audit_sealer::tell(&env, workspace).await });
    }

    fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Whether this object was ever used. One that was not makes no tables, whoever asks.
    fn is_used(&self) -> worker::Result<bool> {
        if self.is_wiping.get() {
            return Ok(false);
        }
        if !self.has_tables.get() {
            self.has_tables.set(self.tables().exist()?);
        }
        Ok(self.has_tables.get())
    }

    fn begin_use(&self) -> worker::Result<()> {
        if !self.is_used()? {
            self.tables().create()?;
            self.has_tables.set(true);
        }
        Ok(())
    }

    /// Sets the alarm for the earliest of all that is due.
    async fn arm(&self) -> worker::Result<()> {
        let Some(due_at) = self.tables().next_due()? else { return Ok(()) };
        let due_at = woken_at(due_at, now());
        let due = i64::try_from(due_at.as_millis()).unwrap_or(i64::MAX);
        let now = i64::try_from(now().as_millis()).unwrap_or(i64::MAX);
        // One that should have gone off long ago is not relied on. Nor is one of the past that this object found, and did not
        // set itself: if the runtime died, it may come much later than the object can see.
        let reliable = if self.armed.get().is_some() { now - LATE_ALARM } else { now };
        let due = if due > reliable { due } else { now };
        if self.armed.get().is_some_and(|armed| armed <= due && armed > reliable) {
            return Ok(());
        }
        let alarms = self.alarms.get();
        self.armed.set(Some(due));
        let set = self.set_alarm(due, reliable).await;
        if set.is_err() || self.alarms.get() != alarms {
            self.armed.set(None);
        }
        set
    }

    /// Sets the alarm for a time in milliseconds, unless it is set for an earlier one that is after `reliable`.
    async fn set_alarm(&self, due: i64, reliable: i64) -> worker::Result<()> {
        let storage = self.state.storage();
        let set_for = storage.get_alarm().await?;
        // Meanwhile somebody else may be at it for an earlier one.
        let is_earliest = self.armed.get().is_none_or(|armed| armed >= due);
        if is_earliest && set_for.is_none_or(|set_for| set_for > due || set_for <= reliable) {
            let date = worker::js_sys::Date::new(&(due as f64).into());
            storage.set_alarm(ScheduledTime::new(date)).await?;
        }
        Ok(())
    }

    /// The alarm that was set went off, or was taken back.
    fn disarmed(&self) {
        self.armed.set(None);
        self.alarms.set(self.alarms.get() + 1);
    }

    async fn arm_if_used(&self) -> worker::Result<()> {
        if self.is_used()? { self.arm().await } else { Ok(()) }
    }

    /// Notes that D1 lacks something. What comes within the next moments goes along.
    fn flush_soon(&self) -> worker::Result<()> {
        self.flush_at(now().plus_millis(GATHER))
    }

    /// Has D1 told by a time at the latest, unless it was told in vain and is to be left alone for longer.
    fn flush_at(&self, at: Timestamp) -> worker::Result<()> {
        let tables = self.tables();
        let farthest = now().plus_millis(GATHER_REPORTS);
        if tables.wake(wake::FLUSH)?.is_none_or(|planned| at < planned && planned <= farthest) {
            tables.set_wake(wake::FLUSH, Some(at))?;
        }
        Ok(())
    }

    // What is known.

    fn facts(&self) -> worker::Result<ServerFacts> {
        Ok(self.tables().fact(fact::SERVER)?.unwrap_or_default())
    }

    /// Changes what is known of the host and the connection, and has D1 told.
    fn change_facts(&self, change: impl FnOnce(&mut ServerFacts)) -> worker::Result<()> {
        let mut facts = self.facts()?;
        change(&mut facts);
        facts.revision += 1;
        self.tables().set_fact(fact::SERVER, &facts)?;
        self.flush_soon()
    }

    /// Notes that the agent is there; D1 hears of it now and then.
    fn seen(&self) -> worker::Result<()> {
        let (now, facts) = (now(), self.facts()?);
        let told = facts.last_seen_at.is_some_and(|seen| seen.plus_seconds(self.seen_every()) > now);
        if told { Ok(()) } else { self.change_facts(|facts| facts.last_seen_at = Some(now)) }
    }

    /// How late `last_seen_at` and `load` may be in D1, in seconds: less than the shortest pause between two heartbeats,
    /// which come up to a tenth early.
    fn seen_every(&self) -> i64 {
        (platform::heartbeat_seconds(&self.env) * 4 / 5).max(1)
    }

    /// Takes the load of a heartbeat. A heartbeat without a load drops a load that is older than two heartbeats.
    fn heartbeat(&self, load: Option<f64>) -> worker::Result<()> {
        let (now, facts) = (now(), self.facts()?);
        let is_older = |seconds| facts.load_at.is_none_or(|at| at.plus_seconds(seconds) <= now);
        let is_due = match load {
            Some(_) => is_older(self.seen_every()),
            None => facts.load_at.is_some() && is_older(2 * platform::heartbeat_seconds(&self.env)),
        };
        if is_due { self.change_facts(|facts| facts.set_load(load, now)) } else { Ok(()) }
    }

    // The connection.

    /// The open connection's number.
    fn open_generation(&self) -> worker::Result<Option<u64>> {
        Ok(if self.is_used()? { self.tables().fact::<Option<u64>>(fact::OPEN)?.flatten() } else { None })
    }

    fn attachment(socket: &WebSocket) -> Option<Attachment> {
        socket.deserialize_attachment().ok().flatten()
    }

    fn generation_of(socket: &WebSocket) -> Option<u64> {
        Self::attachment(socket).map(|attachment| attachment.generation)
    }

    /// What the agent at a socket announced that it can do.
    fn features(socket: &WebSocket) -> Features {
        Self::attachment(socket).map(|attachment| attachment.features).unwrap_or_default()
    }

    fn can_kill(socket: &WebSocket) -> bool {
        Self::features(socket).kill
    }

    fn is_open(&self, socket: &WebSocket) -> worker::Result<bool> {
        let open = self.open_generation()?;
        Ok(open.is_some() && Self::generation_of(socket) == open)
    }

    /// The socket on which commands go out. Where the runtime lost it without a word, that is noticed here.
    fn open_socket(&self) -> worker::Result<Option<WebSocket>> {
        let Some(open) = self.open_generation()? else { return Ok(None) };
        let sockets = self.state.get_websockets_with_tag(BACKHAUL);
        let socket = sockets.into_iter().find(|socket| Self::generation_of(socket) == Some(open));
        if socket.is_none() {
            self.disconnected()?;
        }
        Ok(socket)
    }

    fn disconnected(&self) -> worker::Result<()> {
        let tables = self.tables();
        self.ponged.tell(&());
        tables.set_fact(fact::OPEN, &None::<u64>)?;
        tables.set_wake(wake::PING, None)?;
        tables.set_wake(wake::PONG, None)?;
        self.change_facts(|facts| facts.is_connected = false)
    }

    async fn socket_ended(&self, socket: &WebSocket) -> worker::Result<()> {
        if self.is_open(socket)? {
            self.disconnected()?;
            self.arm().await?;
        } else if self.is_used()? && Self::generation_of(socket) == self.open_control()? {
            self.tables().set_fact(fact::CONTROL_OPEN, &None::<u64>)?;
        }
        Ok(())
    }

    /// Accepts an agent's WebSocket. A newer backhaul wins, and the older one is closed with 1000, unless two hosts with one
    /// identity replace each other (agent-protocol 5).
    async fn take_socket(
        &self,
        identity: &Identity,
        path: &str,
        request_id: Option<String>,
    ) -> worker::Result<Response> {
        let tag = if path.ends_with(CONTROL) { CONTROL } else { BACKHAUL };
        let refused = |status| Ok(Response::empty()?.with_status(status));
        let Some(known) = self.authenticate(identity).await? else { return refused(403) };
        let source = Source { remote_ip: Some(identity.remote_ip.clone()).filter(|ip| !ip.is_empty()), request_id };
        if self.is_contested(tag)? {
            if self.older_answers(tag).await? {
                self.note_conflict(&known, source, tag)?;
                self.arm().await?;
                return refused(503);
            }
            // The key may have been changed while the older connection was asked.
            if self.authenticate(identity).await?.is_none() {
                return refused(403);
            }
        }
        self.note_replacement(tag)?;
        let WebSocketPair { client, server } = WebSocketPair::new()?;
        for older in self.state.get_websockets_with_tag(tag) {
            // One that is closing already refuses; that is fine.
            older.close(Some(1000), Some("replaced")).ok();
        }
        self.state.accept_websocket_with_tags(&server, &[tag]);
        let tables = self.tables();
        let generation = tables.fact::<u64>(fact::GENERATION)?.unwrap_or(0) + 1;
        server.serialize_attachment(Attachment { generation, features: identity.features })?;
        tables.set_fact(fact::GENERATION, &generation)?;
        tables.set_fact(if tag == CONTROL { fact::CONTROL_OPEN } else { fact::OPEN }, &Some(generation))?;
        if tag == BACKHAUL {
            let now = now();
            tables.set_wake(wake::PING, Some(now.plus_seconds(platform::ping_seconds(&self.env))))?;
            tables.set_wake(wake::PONG, None)?;
            let connect = connect_event(&known, source, &self.facts()?)?;
            self.change_facts(|facts| {
                facts.is_connected = true;
                facts.connected_at = Some(now);
                facts.last_seen_at = Some(now);
                facts.remote_ip = Some(identity.remote_ip.clone());
                connect.into_iter().for_each(|event| facts.note(event));
            })?;
            self.settle_start(now)?;
            self.send_kills(&server)?;
            self.hand_out_soon()?;
            self.arm().await?;
        }
        Response::from_websocket(client)
    }

    /// The agent reports that its process began. It does so before it connects, and its report may be late: a connection that
    /// was just opened may be of that process already, or of the one before it.
    fn started(&self) -> worker::Result<()> {
        let (now, facts) = (now(), self.facts()?);
        let recent = |since: &Timestamp| since.plus_seconds(START_IS_TOLD_WITHIN) > now;
        let opened = facts.connected_at.filter(recent).filter(|_| facts.is_connected);
        self.tables().set_fact(fact::STARTED, &opened.map(|_| now))?;
        self.doubt(opened.unwrap_or(now), Lifecycle::agent_restarted)
    }

    /// The agent connects. Had its process begun shortly before, then whatever went out before that was to another one.
    fn settle_start(&self, now: Timestamp) -> worker::Result<()> {
        let Some(started) = self.tables().fact::<Option<Timestamp>>(fact::STARTED)?.flatten() else { return Ok(()) };
        self.tables().set_fact(fact::STARTED, &None::<Timestamp>)?;
        if started.plus_seconds(START_IS_TOLD_WITHIN) > now {
            self.doubt(started, Lifecycle::agent_restarted)
        } else {
            Ok(())
        }
    }

    /// Sends a ping and expects an answer.
    fn ping(&self, now: Timestamp) -> worker::Result<()> {
        let tables = self.tables();
        self.clear_old_conflict(now)?;
        let Some(socket) = self.open_socket()? else { return Ok(()) };
        let message = serde_json::to_string(&ToAgent::Ping)?;
        for socket in self.state.get_websockets_with_tag(CONTROL).iter().chain([&socket]) {
            // A socket that cannot be written to is found by its missing answer.
            socket.send_with_str(&message).ok();
        }
        if tables.wake(wake::PONG)?.is_none() {
            tables.set_wake(wake::PONG, Some(now.plus_seconds(PONG_WITHIN)))?;
        }
        tables.set_wake(wake::PING, Some(now.plus_seconds(platform::ping_seconds(&self.env))))
    }

    // The agent's reports.

    async fn agent(&self, call: AgentCall) -> worker::Result<Answer> {
        let AgentCall { identity, report, request_id } = call;
        let source = Source {
            remote_ip: Some(identity.remote_ip.clone()).filter(|ip| !ip.is_empty()),
            request_id: Some(request_id).filter(|id| !id.is_empty()),
        };
        let Some(known) = self.authenticate(&identity).await? else {
            return Ok(Answer::Refused(Refusal::InvalidAgent));
        };
        // Notices a connection that the runtime lost.
        self.open_socket()?;
        self.seen()?;
        let answer = match report {
            Report::Whoami => self.whoami(&known)?,
            Report::Seen => Answer::Done(Value::Null),
            Report::Started => {
                self.started()?;
                Answer::Done(Value::Null)
            }
            Report::Ack { command } => self.on_command(&known, command, source, |held| Ok(held.life.ack(now())))?,
            Report::Chunk { command, chunk } => match self.tables().command(command)? {
                None => Self::unknown(&known, command),
                Some(held) => {
                    let now = now();
                    let is_taken = held.takes_chunk(chunk.seq.into(), now);
                    let is_new = is_taken && self.tables().add_chunk(&held, &chunk, now)?;
                    // Until the end D1 need not know how much output there is: who reads the command asks here.
                    if is_new && held.life.outcome().is_some() {
                        self.flush_soon()?;
                    }
                    self.output_came.tell(&command);
                    Answer::Done(Value::Null)
                }
            },
            Report::Fin { command, fin } => {
                let answer = self.on_command(&known, command, source, |held| Ok(finish(held, fin)))?;
                // There may be room for another one now.
                self.hand_out_soon()?;
                answer
            }
            Report::Facts { facts, is_commit } => {
                let upgrade = upgrade_event(&known, source, &self.facts()?, &facts)?;
                self.change_facts(|known| {
                    known.learn(facts, is_commit, now());
                    upgrade.into_iter().for_each(|event| known.note(event));
                })?;
                Answer::Done(Value::Null)
            }
            Report::Heartbeat { load } => {
                self.heartbeat(load)?;
                Answer::Done(Value::Null)
            }
            Report::Unregister => {
                let event = agent_event("server.unregister", &known, source)?;
                let Known { workspace, workspace_id, server, .. } = known;
                let of = OfServer { workspace, workspace_id, server };
                return self.remove(Remove { of, by: None, only_pending: false, event }).await;
            }
        };
        self.arm().await?;
        Ok(answer)
    }

    /// Changes a command by a report. One that changes nothing, being late or repeated, is as good as any.
    fn on_command(
        &self,
        known: &Known,
        id: Uuid,
        source: Source,
        change: impl FnOnce(&mut Held) -> worker::Result<bool>,
    ) -> worker::Result<Answer> {
        let Some(mut held) = self.find(id)? else { return Ok(Self::unknown(known, id)) };
        let before = held.life.state();
        if change(&mut held)? {
            let state = held.life.state();
            if state.is_final() && state != before {
                self.note_end_by_agent(&mut held, known, source)?;
            }
            self.save(&held)?;
        }
        Ok(Answer::Done(Value::Null))
    }

    // The alarm.

    /// Does everything that is due, and sets the alarm for what is next.
    async fn wake_up(&self) -> worker::Result<()> {
        if !self.is_used()? {
            return Ok(());
        }
        let now = now();
        let tables = self.tables();
        let is_due = |name: &str| Ok::<_, worker::Error>(tables.wake(name)?.is_some_and(|due| due <= now));
        if is_due(wake::LOOK)? {
            self.look_into_d1().await?;
            if !self.is_used()? {
                return Ok(());
            }
        }
        if is_due(wake::PONG)? {
            self.give_up_silent_agent()?;
        }
        if is_due(wake::PING)? {
            self.ping(now)?;
        }
        self.look_at_due_commands(now)?;
        if is_due(wake::RESYNC)? {
            self.resync_some().await?;
            if !self.is_used()? {
                return Ok(());
            }
        }
        // Also notices a connection that the runtime lost.
        self.open_socket()?;
        tables.set_wake(wake::HAND_OUT, None)?;
        let is_flush_due = is_due(wake::FLUSH)?;
        // Side by side: a slow answer of D1 to one must not hold up the other.
        let flush = async { if is_flush_due { self.flush().await } else { Ok(()) } };
        let (handed_out, flushed) = future::join(self.hand_out(), flush).await;
        self.forget_if_unused().await?;
        self.arm_if_used().await?;
        handed_out.and(flushed)
    }

    /// Closes a connection whose agent did not answer a ping.
    fn give_up_silent_agent(&self) -> worker::Result<()> {
        if let Some(socket) = self.open_socket()? {
            socket.close(Some(1001), Some("no answer to a ping")).ok();
            self.disconnected()?;
        }
        self.tables().set_wake(wake::PONG, None)
    }

    fn look_at_due_commands(&self, now: Timestamp) -> worker::Result<()> {
        let tables = self.tables();
        let mut is_silent = false;
        for mut held in tables.due_commands(now, BATCH)? {
            let id = held.command.id;
            match held.phase {
                Phase::Recording if self.is_recording(&held, now) => {
                    tables.postpone(id, Some(now.plus_seconds(LOOK_AGAIN)))?;
                    continue;
                }
                // Its request died before it was answered.
                Phase::Recording => held.phase = Phase::Withdrawing,
                Phase::Withdrawing => {}
                Phase::Accepted if held.lacks_hash && held.life.outcome().is_some() => {
                    if held.hash_due_at().is_some_and(|at| at > now) {
                        tables.postpone(id, held.hash_due_at())?;
                        continue;
                    }
                    self.note_output(&mut held)?;
                }
                Phase::Accepted => {
                    is_silent |= held.life.state() == Life::Sent;
                    if !held.life.give_up_if_overdue(now) {
                        // Its time has come: it goes out now, or waits for the agent.
                        tables.postpone(id, held.life.deadline(now))?;
                        continue;
                    }
                    self.note_end(&mut held)?;
                }
            }
            self.save(&held)?;
        }
        // An agent that took a command and says nothing may be gone.
        if is_silent && tables.wake(wake::PONG)?.is_none() {
            self.ping(now)?;
        }
        Ok(())
    }

    /// Writes to D1 what it lacks, one flush after the other.
    async fn flush(&self) -> worker::Result<()> {
        while self.flushing_since.get().is_some_and(|since| since.plus_seconds(FLUSH_WITHIN) > now()) {
            self.flushed.wait((), Duration::from_secs(1)).await;
        }
        if !self.is_used()? {
            return Ok(());
        }
        let _flushing = Flushing::begin(self);
        self.flush_now().await
    }

    /// Writes to D1 what it lacks, all in one round trip. A failure is tried again later, slower each time.
    async fn flush_now(&self) -> worker::Result<()> {
        let tables = self.tables();
        let (facts, known) = (self.facts()?, self.known()?);
        let (mut lacking, mut workspaces) = (Vec::new(), HashSet::new());
        for held in tables.unflushed_commands(now().plus_millis(-GATHER_REPORTS), BATCH)? {
            if held.phase == Phase::Withdrawing || !held.events.is_empty() {
                workspaces.insert(held.workspace_id);
            }
            lacking.push(match held.phase {
                Phase::Withdrawing => {
                    // Inputs that cannot be decrypted stay counted until the day is over.
                    let inputs = self.open_inputs(&held).unwrap_or(None);
                    let bytes = d1::bytes_of(&held.command, inputs.as_ref());
                    (d1::delete_command(held.workspace_id, held.command.id, bytes)?, Lacking::Removal(held))
                }
                _ => (d1::update_command(&held, &tables.output(&held)?), Lacking::Change(held)),
            });
        }
        if let Some(known) = &known
            && facts.revision > facts.flushed
        {
            if !facts.events.is_empty() {
                workspaces.insert(known.workspace_id);
            }
            let update = d1::update_server(known.workspace_id, known.server, &facts);
            lacking.push((update, Lacking::Facts(facts.revision)));
        }
        let failures = tables.fact::<u32>(fact::FAILURES)?.unwrap_or(0);
        let groups: Vec<Vec<_>> =
            if failures < TOGETHER { vec![lacking] } else { lacking.into_iter().map(|one| vec![one]).collect() };
        let mut failure = None;
        for group in groups {
            let (statements, told): (Vec<_>, Vec<_>) = group.into_iter().unzip();
            let sent = d1::send(&self.env, statements.concat()).await;
            // Meanwhile the object may have been wiped.
            if !self.is_used()? {
                return Ok(());
            }
            match sent {
                Ok(()) => told.iter().try_for_each(|lacking| self.d1_knows(lacking))?,
                Err(error) => failure = Some(error),
            }
        }
        for workspace in workspaces {
            self.seal_later(workspace);
        }
        if let Some(error) = failure {
            log::trouble("d1_not_told", json!({"server": self.state.id().name(), "try": failures + 1}), &error);
            tables.set_fact(fact::FAILURES, &(failures + 1))?;
            let delay = (1 << (failures + 1).min(6)).min(SLOWEST_RETRY);
            return tables.set_wake(wake::FLUSH, Some(now().plus_seconds(delay)));
        }
        if failures > 0 {
            tables.set_fact(fact::FAILURES, &0)?;
        }
        let facts = self.facts()?;
        let lacks_facts = known.is_some() && facts.revision > facts.flushed;
        let next = match tables.next_unflushed()? {
            _ if lacks_facts => Some(now()),
            Some(Unflushed::Now) => Some(now()),
            Some(Unflushed::After(report)) => Some(report.plus_millis(GATHER_REPORTS)),
            None => None,
        };
        tables.set_wake(wake::FLUSH, next)
    }

    /// Notes what D1 was told.
    fn d1_knows(&self, lacking: &Lacking) -> worker::Result<()> {
        let tables = self.tables();
        match lacking {
            Lacking::Change(held) => tables.mark_flushed(held),
            Lacking::Removal(held) => tables.delete_command(held.command.id),
            Lacking::Facts(revision) => {
                let mut facts = self.facts()?;
                facts.flushed = *revision;
                facts.events.retain(|noted| noted.revision > *revision);
                tables.set_fact(fact::SERVER, &facts)
            }
        }
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
                self.close_sockets("the workspace was deleted");
                if self.open_generation()?.is_some() {
                    self.disconnected()?;
                }
            }
            self.arm().await?;
        }
        Ok(Answer::Done(Value::Null))
    }

    /// Closes all of the agent's connections.
    fn close_sockets(&self, why: &str) {
        for tag in [BACKHAUL, CONTROL] {
            for socket in self.state.get_websockets_with_tag(tag) {
                // One that is closing already refuses; that is fine.
                socket.close(Some(1000), Some(why)).ok();
            }
        }
    }

    /// Forgets all that is stored, and lets everybody go who waits. Until that is done the object is as if it had never been
    /// used, and takes nothing in.
    async fn wipe(&self) -> worker::Result<()> {
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

/// The time in which a flush runs. It may be dropped before its end.
struct Flushing<'a>(&'a ServerLink);

impl<'a> Flushing<'a> {
    fn begin(link: &'a ServerLink) -> Self {
        link.flushing_since.set(Some(now()));
        Self(link)
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.flushing_since.set(None);
        self.0.flushed.tell(&());
    }
}

/// When to be woken for what is due; for what is very far away, on the way there.
fn woken_at(due_at: Timestamp, now: Timestamp) -> Timestamp {
    due_at.min(now.plus_seconds(FARTHEST))
}

/// Ends a command by its agent's report.
fn finish(held: &mut Held, fin: Fin) -> bool {
    let safe = |code: &i64| i32::try_from(*code).is_ok();
    let outcome = Outcome {
        success: fin.success,
        exit_code: fin.exit_code.filter(safe),
        elapsed_time: fin.elapsed_time.filter(|seconds| *seconds >= 0.0).map(lifecycle::in_micros),
        reason: fin.reason.as_deref().filter(|_| !fin.success).and_then(Outcome::reason),
    };
    let changed = held.life.finish(now(), outcome);
    if changed {
        held.chunk_total = fin.chunks.map(u64::from);
        held.output_at = Some(now());
        held.result_bytes = fin.output_bytes.filter(|bytes| *bytes <= MAX_COUNT).unwrap_or(0);
    }
    if changed && let Some(result) = fin.result {
        held.result_bytes = held.result_bytes.max(result.len() as u64);
        let (kept, cut) = output::result(&result);
        (held.result, held.result_cut) = (Some(kept), cut);
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_alarm_is_too_far_for_the_platform() {
        let at = |text: &str| Timestamp::parse(text).unwrap();
        let now = at("2026-11-21T00:00:00Z");
        assert_eq!(woken_at(at("2026-11-22T00:00:00Z"), now), at("2026-11-22T00:00:00Z"));
        let far = woken_at(at("9999-12-31T23:59:59Z"), now);
        assert!(far > now && far < at("2189-01-01T00:00:00Z"));
    }
}
