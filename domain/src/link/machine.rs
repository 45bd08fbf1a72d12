//! The machine: its memory, and the dispatch of events and calls.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use serde_json::{Value, json};
use uuid::Uuid;

use super::call::{AgentCall, Answer, Ask, Refusal};
use super::event::{Effect, Event, Kind, RequestId, Scene, Ticket, ToD1};
use super::memory::{Asked, Change, FromD1Result, Identified, ThenAgent, Wait};
use super::server_facts::ServerFacts;
use super::state::{Known, Plan, ServerState};
use super::store::{Failed, Result, Store};
use super::stored_command::StoredCommand;
use crate::audit::{ActorType, Event as AuditEvent, Source};
use crate::features::Features;
use crate::id;
use crate::secret::SecretKey;

/// How long after a failed step the alarm tries again, in seconds.
const AFTER_FAILURE: i64 = 60;

/// Settings of the deployment.
#[derive(Clone)]
pub struct Settings {
    /// Seconds between two pings.
    pub ping_every: i64,
    /// Seconds between two heartbeats of the agent.
    pub heartbeat_every: i64,
    /// The key that encrypts inputs; `None`: there is none, and commands with inputs fail.
    pub key: Option<SecretKey>,
    /// How many unfinished commands an agent has at most. Further ones wait in the object, where
    /// they can be cancelled.
    pub window: u64,
}

/// A source of random bytes.
pub type Random = Box<dyn FnMut(&mut [u8]) -> std::result::Result<(), String>>;

/// The machine of one server.
pub struct Link<S> {
    pub(super) store: S,
    pub(super) settings: Settings,
    random: Random,
    /// The state beside the commands; `None`: this object was never used, or was wiped.
    pub(super) server: Option<ServerState>,
    stored: Option<ServerState>,
    is_loaded: bool,
    pub(super) plan: Plan,
    pub(super) scene: Scene,
    pub(super) effects: Vec<Effect>,
    /// The waiting calls.
    pub(super) waits: BTreeMap<Ticket, Wait>,
    /// Commands and Idempotency-Keys that this step changed. At its end it looks at the calls that
    /// wait for them.
    pub(super) touched: BTreeSet<Uuid>,
    pub(super) freed_keys: BTreeSet<String>,
    /// Requests to D1 without an answer yet.
    pub(super) asked: BTreeMap<RequestId, Asked>,
    last_request: RequestId,
    /// Changes of the server: the first one is under way, the others follow one by one.
    pub(super) changes: VecDeque<Change>,
}

impl<S> fmt::Debug for Link<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("server", &self.server).finish_non_exhaustive()
    }
}

impl<S: Store> Link<S> {
    /// A machine on a storage, which the first step reads.
    pub fn new(store: S, settings: Settings, random: Random, scene: Scene) -> Self {
        Self {
            store,
            settings,
            random,
            is_loaded: false,
            stored: None,
            server: None,
            plan: Plan::default(),
            scene,
            effects: Vec::new(),
            waits: BTreeMap::new(),
            touched: BTreeSet::new(),
            freed_keys: BTreeSet::new(),
            asked: BTreeMap::new(),
            last_request: 0,
            changes: VecDeque::new(),
        }
    }

    /// The storage.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// When the alarm has something to do; `None`: the state is not loaded.
    pub fn plan(&self) -> Option<Plan> {
        self.is_loaded.then_some(self.plan)
    }

    /// Takes an event, writes to the storage, and returns the effects.
    pub fn step(&mut self, event: Event, scene: Scene) -> Vec<Effect> {
        self.scene = scene;
        let ticket = match &event {
            Event::Call { ticket, .. } | Event::Connect { ticket, .. } | Event::TimeUp(ticket) => {
                Some(*ticket)
            }
            _ => None,
        };
        if let Err(failed) = self.take(event) {
            self.forget_all(ticket, &failed);
        }
        std::mem::take(&mut self.effects)
    }

    /// The storage failed, so the memory may differ from what is stored. The memory is dropped as
    /// after a crash, the step's effects are not carried out, and every call fails.
    fn forget_all(&mut self, ticket: Option<Ticket>, failed: &Failed) {
        let in_effects =
            std::mem::take(&mut self.effects).into_iter().filter_map(|effect| match effect {
                Effect::Reply(ticket, _) | Effect::Accept { ticket, .. } => Some(ticket),
                _ => None,
            });
        let waiting = std::mem::take(&mut self.waits).into_keys();
        let unknown =
            std::mem::take(&mut self.asked).into_values().filter_map(|asked| match asked {
                Asked::Find(identified) => Some(identified.ticket()),
                _ => None,
            });
        let changing =
            std::mem::take(&mut self.changes).into_iter().filter_map(|change| change.then.ticket());
        let tickets: BTreeSet<_> =
            in_effects.chain(waiting).chain(unknown).chain(changing).chain(ticket).collect();
        for ticket in tickets {
            self.reply(ticket, Answer::Failed(failed.0.clone()));
        }
        self.touched.clear();
        self.freed_keys.clear();
        self.is_loaded = false;
        self.trouble("step_failed", json!({}), &failed.0);
        // The alarm tries again what is due.
        self.effects.push(Effect::Alarm(self.scene.now.plus_seconds(AFTER_FAILURE)));
    }

    fn take(&mut self, event: Event) -> Result<()> {
        if !self.is_loaded {
            self.server = self.store.server()?;
            self.stored = self.server.clone();
            self.plan = Plan::default();
            if self.server.is_some() {
                self.plan_telling()?;
                self.hand_out_soon()?;
            }
            self.is_loaded = true;
        }
        let taken = self.notice_lost_sockets().and_then(|()| self.dispatch(event));
        let looked = self.look_at_waits();
        let saved = self.save_server();
        taken.and(looked).and(saved).and_then(|()| self.set_alarm())
    }

    fn dispatch(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Call { ticket, ask } => self.call(ticket, *ask),
            Event::Connect { ticket, identity, kind, request_id } => {
                let source = identity.source(request_id);
                let then = ThenAgent::Connects { ticket, kind, was_asked: false };
                self.identify(Identified { identity, source, then })
            }
            Event::Closed(generation) => self.closed(generation),
            Event::Pong(generation) => self.pong(generation),
            Event::NotSent { generation, before } => self.not_sent(generation, before),
            Event::Alarm => self.alarm(),
            Event::Answered { id, answer } => self.answered(id, answer),
            Event::Late(request) => self.late(*request),
            Event::TimeUp(ticket) => self.look(ticket, true),
        }
    }

    fn answered(&mut self, id: RequestId, answer: FromD1Result) -> Result<()> {
        let Some(asked) = self.asked.remove(&id) else { return Ok(()) };
        match asked {
            Asked::Insert(ticket) => self.inserted(ticket, answer),
            Asked::Rights(commands) => self.checked(&commands, answer),
            Asked::Tell(told) => self.told(told, answer),
            Asked::Change => self.change_answered(answer),
            Asked::Find(identified) => self.found(*identified, answer),
            Asked::Restore(resync, commands) => self.restored(resync, &commands, answer),
            Asked::Nothing => {
                if let Err(error) = answer {
                    self.trouble("d1_not_told", json!({}), &error);
                }
                Ok(())
            }
        }
    }

    /// A request to D1 that was given up has ended after all.
    fn late(&mut self, request: ToD1) -> Result<()> {
        match request {
            ToD1::Insert { create, life, .. } => self.inserted_late(*create, life)?,
            ToD1::Change(of, _) => self.changed_late(of)?,
            ToD1::Restore(commands) => self.restored_late(&commands)?,
            // These change nothing, or D1 ignores them because of their older revision.
            ToD1::Find { .. } | ToD1::FindRights(_) | ToD1::Tell { .. } | ToD1::Unrestore(_) => {}
        }
        Ok(())
    }

    fn call(&mut self, ticket: Ticket, ask: Ask) -> Result<()> {
        match ask {
            Ask::Create(create) => self.create(ticket, create),
            Ask::Replay(key) => self.replay(ticket, key, None),
            Ask::Live(live) => self.live(ticket, live),
            Ask::Cancel(by) => self.cancel(ticket, by),
            Ask::CancelOf(revoked) => self.cancel_of(ticket, &revoked),
            Ask::Kill(by) => self.kill(ticket, by),
            Ask::Chunks(asked) => self.tell_chunks(ticket, &asked),
            Ask::Follow(asked) => self.follow(ticket, asked),
            Ask::Adopt(of) => self.adopt(ticket, of),
            Ask::Rename(rename) => self.rename(ticket, rename),
            Ask::Rotate(rotate) => self.rotate(ticket, rotate),
            Ask::Remove(remove) => self.remove(ticket, remove),
            Ask::Resync(of) => self.resync(ticket, of),
            Ask::Agent(AgentCall { identity, report, request_id }) => {
                let source = identity.source(Some(request_id));
                let then = ThenAgent::Reports(ticket, report);
                self.identify(Identified { identity, source, then })
            }
            Ask::Forget(forget) => self.forget(ticket, forget),
            Ask::Sever => self.sever(ticket),
            Ask::Suspend(is_suspended) => self.suspend(ticket, is_suspended),
        }
    }

    pub(super) fn reply(&mut self, ticket: Ticket, answer: Answer) {
        self.effects.push(Effect::Reply(ticket, answer));
    }

    pub(super) fn refuse(&mut self, ticket: Ticket, refusal: Refusal) {
        self.reply(ticket, Answer::Refused(refusal));
    }

    pub(super) fn ask(&mut self, asked: Asked, request: ToD1) {
        self.last_request += 1;
        self.asked.insert(self.last_request, asked);
        self.effects.push(Effect::Ask(self.last_request, Box::new(request)));
    }

    /// Whether a request of a kind is under way.
    pub(super) fn is_asking(&self, is_of_kind: impl Fn(&Asked) -> bool) -> bool {
        self.asked.values().any(is_of_kind)
    }

    pub(super) fn trouble(&mut self, event: &'static str, about: Value, error: &str) {
        self.effects.push(Effect::Log { event, about, error: error.to_owned() });
    }

    /// The state beside the commands. From now on the object is in use.
    pub(super) fn state(&mut self) -> &mut ServerState {
        self.server.get_or_insert_default()
    }

    /// The server's identity, if the object knows it.
    pub(super) fn known(&self) -> Option<&Known> {
        self.server.as_ref()?.known.as_ref()
    }

    pub(super) fn is_gone(&self) -> bool {
        self.server.as_ref().is_some_and(|server| server.is_gone)
    }

    pub(super) fn find(&self, id: Uuid) -> Result<Option<StoredCommand>> {
        if self.server.is_some() { self.store.command(id) } else { Ok(None) }
    }

    /// Changes the facts of host and connection, and schedules a flush.
    pub(super) fn change_facts(&mut self, change: impl FnOnce(&mut ServerFacts)) {
        let facts = &mut self.state().facts;
        change(facts);
        facts.revision += 1;
        self.tell_soon();
    }

    /// The open backhaul connection, and its agent's features.
    pub(super) fn backhaul(&self) -> Option<(u64, Features)> {
        let open = self.server.as_ref()?.backhaul.open?;
        self.scene.backhaul.filter(|(generation, _)| *generation == open)
    }

    /// The number of the open connection of a kind.
    pub(super) fn open_of(&self, kind: Kind) -> Option<u64> {
        match kind {
            Kind::Backhaul => self.backhaul().map(|(generation, _)| generation),
            Kind::Control => {
                let open = self.server.as_ref()?.control.open?;
                self.scene.control.filter(|generation| *generation == open)
            }
        }
    }

    pub(super) fn random<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        (self.random)(&mut bytes).map_err(Failed)?;
        Ok(bytes)
    }

    /// An audit event of the service itself.
    pub(super) fn service_event(&mut self, action: &str) -> Result<AuditEvent> {
        let id = id::new(self.scene.now, self.random()?);
        let event = AuditEvent::new(id, self.scene.now, Source::default(), action);
        Ok(event.by(ActorType::Service, None, None))
    }

    fn save_server(&mut self) -> Result<()> {
        if let Some(server) = &self.server
            && self.stored.as_ref() != Some(server)
        {
            self.store.save_server(server, self.stored.is_none())?;
            self.stored = Some(server.clone());
        }
        Ok(())
    }

    /// Creates the tables. To be called before anything else is stored.
    pub(super) fn begin_use(&mut self) -> Result<()> {
        self.state();
        self.save_server()
    }

    /// Deletes everything, and answers all waiting calls. Answers of D1 to earlier requests are
    /// ignored.
    pub(super) fn wipe(&mut self) -> Result<()> {
        self.store.wipe()?;
        (self.server, self.stored, self.plan) = (None, None, Plan::default());
        for asked in std::mem::take(&mut self.asked).into_values() {
            if let Asked::Find(identified) = asked {
                self.refuse(identified.ticket(), Refusal::InvalidAgent);
            }
        }
        for (ticket, wait) in std::mem::take(&mut self.waits) {
            self.refuse(ticket, wait.refusal());
        }
        for change in std::mem::take(&mut self.changes) {
            self.changed(change, None)?;
        }
        Ok(())
    }
}
