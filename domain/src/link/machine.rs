//! The machine: its memory, and the dispatch of events and calls.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use super::call::{AgentReport, LinkRequest, LinkResponse, Refusal};
use super::event::{ConnectionKind, Effect, Event, Request, RequestId, StepInput, Ticket};
use super::memory::{
    AfterVerification, D1Result, Disconnected, PendingRequest, QueuedChange, UnverifiedCall,
    WaitingCall,
};
use super::server_facts::ServerFacts;
use super::state::{Plan, ServerIdentity, ServerState};
use super::store::{PlatformFailure, Result, Store};
use super::stored_command::StoredCommand;
use crate::agent::features::Features;
use crate::audit::event::{ActorType, AuditEvent, Source};
use crate::id;
use crate::secret::SecretKey;

/// Delay of the alarm after a failed step.
const FAILED_STEP_RETRY_DELAY: Duration = Duration::from_secs(60);

/// Settings of the deployment.
#[derive(Clone)]
pub struct Settings {
    /// Seconds between two pings.
    pub ping_every: i64,
    /// Seconds between two heartbeats of the agent.
    pub heartbeat_every: i64,
    /// The key that encrypts inputs. Without it, commands with inputs fail.
    pub key: Option<SecretKey>,
    /// How long a deleted server can be undeleted.
    pub server_grace: Duration,
    /// Maximum number of unfinished commands that the agent has. Further commands wait in the
    /// object, where they can be cancelled.
    pub max_open_commands: u64,
}

/// Fills a slice with random bytes.
pub type Random = Box<dyn FnMut(&mut [u8]) -> std::result::Result<(), String>>;

/// The machine of one server.
pub struct Machine<S> {
    pub(super) store: S,
    pub(super) settings: Settings,
    random: Random,
    /// The server's state, without its commands; `None`: this object was never used, or was wiped.
    pub(super) server: Option<ServerState>,
    /// The copy of `server` that is in the storage.
    saved_server: Option<ServerState>,
    is_loaded: bool,
    pub(super) plan: Plan,
    pub(super) input: StepInput,
    pub(super) effects: Vec<Effect>,
    pub(super) waits: BTreeMap<Ticket, WaitingCall>,
    /// Commands that this step changed. At the end of the step, the calls that wait for them
    /// resume.
    pub(super) changed_commands: BTreeSet<Uuid>,
    /// Hashes of Idempotency-Keys whose response was stored in this step, or whose request was
    /// given up. At the end of the step, the calls that wait for them resume.
    pub(super) released_keys: BTreeSet<String>,
    /// Requests to D1 that have no answer yet.
    pub(super) requests: BTreeMap<RequestId, PendingRequest>,
    last_request: RequestId,
    /// Changes of the server. The first change is in progress. The other changes follow one by one.
    pub(super) queued_changes: VecDeque<QueuedChange>,
}

impl<S> fmt::Debug for Machine<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("server", &self.server).finish_non_exhaustive()
    }
}

impl<S: Store> Machine<S> {
    /// Creates a machine. Its first step reads the storage.
    pub fn new(store: S, settings: Settings, random: Random, input: StepInput) -> Self {
        Self {
            store,
            settings,
            random,
            is_loaded: false,
            saved_server: None,
            server: None,
            plan: Plan::default(),
            input,
            effects: Vec::new(),
            waits: BTreeMap::new(),
            changed_commands: BTreeSet::new(),
            released_keys: BTreeSet::new(),
            requests: BTreeMap::new(),
            last_request: 0,
            queued_changes: VecDeque::new(),
        }
    }

    /// The storage, for tests.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The timers that are not stored, or `None` if the state is not loaded. For tests.
    pub fn plan(&self) -> Option<Plan> {
        self.is_loaded.then_some(self.plan)
    }

    /// Handles an event: writes to the storage, and returns the effects.
    pub fn step(&mut self, event: Event, input: StepInput) -> Vec<Effect> {
        self.input = input;
        let ticket = match &event {
            Event::Call { ticket, .. }
            | Event::Connect { ticket, .. }
            | Event::CallTimer(ticket) => Some(*ticket),
            _ => None,
        };
        if let Err(failed) = self.handle(event) {
            self.drop_memory(ticket, &failed);
        }
        std::mem::take(&mut self.effects)
    }

    /// Handles a failure of the storage. The memory may now differ from the storage, so this drops
    /// the memory as a crash does. It also discards the step's effects, and fails every call.
    fn drop_memory(&mut self, ticket: Option<Ticket>, failed: &PlatformFailure) {
        let answered =
            std::mem::take(&mut self.effects).into_iter().filter_map(|effect| match effect {
                Effect::Reply(ticket, _) | Effect::Accept { ticket, .. } => Some(ticket),
                _ => None,
            });
        let waiting = std::mem::take(&mut self.waits).into_keys();
        let verifying =
            std::mem::take(&mut self.requests).into_values().filter_map(|request| match request {
                PendingRequest::VerifyAgent(call) => Some(call.ticket()),
                _ => None,
            });
        let changing = std::mem::take(&mut self.queued_changes)
            .into_iter()
            .filter_map(|change| change.then.ticket());
        let tickets: BTreeSet<_> =
            answered.chain(waiting).chain(verifying).chain(changing).chain(ticket).collect();
        for ticket in tickets {
            self.reply(ticket, LinkResponse::Failed(failed.0.clone()));
        }
        self.changed_commands.clear();
        self.released_keys.clear();
        self.is_loaded = false;
        self.log_error("step_failed", json!({}), &failed.0);
        // The alarm repeats the work that is due.
        self.effects.push(Effect::SetAlarm(self.input.now.plus(FAILED_STEP_RETRY_DELAY)));
    }

    fn handle(&mut self, event: Event) -> Result<()> {
        if !self.is_loaded {
            self.server = self.store.server()?;
            self.saved_server = self.server.clone();
            self.plan = Plan::default();
            if self.server.is_some() {
                self.plan_flush()?;
                self.schedule_delivery()?;
            }
            self.is_loaded = true;
        }
        let noticed = self.notice_lost_sockets().and_then(|()| self.end_old_key());
        let dispatched = noticed.and_then(|()| self.dispatch(event));
        let resumed = self.resume_waiting();
        let saved = self.save_state();
        dispatched.and(resumed).and(saved).and_then(|()| self.set_alarm())
    }

    fn dispatch(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Call { ticket, message } => self.call(ticket, *message),
            Event::Connect { ticket, identity, kind, request_id } => {
                let source = identity.source(request_id);
                let then = AfterVerification::Connect { ticket, kind, was_pinged: false };
                self.verify_agent(UnverifiedCall { claimed: identity, source, then })
            }
            Event::Closed(generation) => self.connection_closed(generation),
            Event::Pong(generation) => self.pong_received(generation),
            Event::NotSent { generation, before } => self.not_sent(generation, before),
            Event::Alarm => self.alarm(),
            Event::Answered { id, answer } => self.d1_answered(id, answer),
            Event::EndedLate(request) => self.request_ended_late(*request),
            Event::CallTimer(ticket) => self.resume(ticket, true),
        }
    }

    fn d1_answered(&mut self, id: RequestId, answer: D1Result) -> Result<()> {
        let Some(request) = self.requests.remove(&id) else { return Ok(()) };
        match request {
            PendingRequest::Insert(ticket) => self.inserted(ticket, answer),
            PendingRequest::CheckPermissions(commands) => {
                self.permissions_answered(&commands, answer)
            }
            PendingRequest::Flush(entries) => self.flush_answered(entries, answer),
            PendingRequest::Change => self.change_answered(answer),
            PendingRequest::VerifyAgent(call) => self.server_found(*call, answer),
            PendingRequest::Restore(resync, commands) => self.restored(resync, &commands, answer),
            PendingRequest::Unawaited => {
                if let Err(error) = answer {
                    self.log_error("d1_not_written", json!({}), &error);
                }
                Ok(())
            }
        }
    }

    /// Handles a request to D1 that ended after it had been reported as failed.
    fn request_ended_late(&mut self, request: Request) -> Result<()> {
        match request {
            Request::InsertCommand { create, life, .. } => self.inserted_late(*create, life)?,
            Request::ChangeServer(of, change) => self.change_ended_late(of, &change)?,
            Request::Restore(commands) => self.restored_late(&commands)?,
            // These change nothing, or D1 ignores them because their revision is older.
            Request::FindServer { .. }
            | Request::FindPermissions(_)
            | Request::Flush { .. }
            | Request::DeleteRestored(_) => {}
        }
        Ok(())
    }

    fn call(&mut self, ticket: Ticket, message: LinkRequest) -> Result<()> {
        match message {
            LinkRequest::Create(create) => self.create(ticket, create),
            LinkRequest::RunOfBatch(command) => self.run_of_batch(ticket, *command),
            LinkRequest::Replay(key) => self.replay(ticket, key, None),
            LinkRequest::ReadLiveFields(live) => self.live(ticket, live),
            LinkRequest::Cancel(by) => self.cancel(ticket, by),
            LinkRequest::CancelOfSessions(revoked) => self.cancel_of_sessions(ticket, &revoked),
            LinkRequest::Kill(by) => self.kill(ticket, by, Disconnected::Refuse),
            LinkRequest::KillOfBatch(by) => self.kill(ticket, by, Disconnected::Wait),
            LinkRequest::ReadOutput(page) => self.output_page(ticket, &page),
            LinkRequest::FollowOutput(follow) => self.follow(ticket, follow),
            LinkRequest::InitIdentity(of) => self.init_identity(ticket, of),
            LinkRequest::Rename(rename) => self.rename(ticket, rename),
            LinkRequest::ReplaceKey(rotate) => self.rotate(ticket, rotate),
            LinkRequest::DeleteServer(remove) => self.remove(ticket, remove),
            LinkRequest::UndeleteServer(undelete) => self.undelete(ticket, undelete),
            LinkRequest::Resync(of) => self.resync(ticket, of),
            LinkRequest::HandleReport(AgentReport { identity, report, request_id }) => {
                let source = identity.source(Some(request_id));
                let then = AfterVerification::Report(ticket, report);
                self.verify_agent(UnverifiedCall { claimed: identity, source, then })
            }
            LinkRequest::DeleteOldCommands(request) => self.delete_old_commands(ticket, request),
            LinkRequest::DisconnectAndWipe => self.disconnect_and_wipe(ticket),
            LinkRequest::Suspend(is_suspended) => self.suspend(ticket, is_suspended),
        }
    }

    pub(super) fn reply(&mut self, ticket: Ticket, answer: LinkResponse) {
        self.effects.push(Effect::Reply(ticket, answer));
    }

    pub(super) fn refuse(&mut self, ticket: Ticket, refusal: Refusal) {
        self.reply(ticket, LinkResponse::Refused(refusal));
    }

    pub(super) fn request_d1(&mut self, pending: PendingRequest, request: Request) {
        self.last_request += 1;
        self.requests.insert(self.last_request, pending);
        self.effects.push(Effect::Request(self.last_request, Box::new(request)));
    }

    /// Whether a request of this kind has no answer yet.
    pub(super) fn is_request_pending(&self, is_of_kind: impl Fn(&PendingRequest) -> bool) -> bool {
        self.requests.values().any(is_of_kind)
    }

    pub(super) fn log_error(&mut self, event: &'static str, fields: Value, error: &str) {
        self.effects.push(Effect::Log { event, fields, error: error.to_owned() });
    }

    /// The server's state, without its commands. Creates the state if the object was unused.
    pub(super) fn state(&mut self) -> &mut ServerState {
        self.server.get_or_insert_default()
    }

    /// The server's identity, if the object has loaded it.
    pub(super) fn identity(&self) -> Option<&ServerIdentity> {
        self.server.as_ref()?.identity.as_ref()
    }

    pub(super) fn is_server_deleted(&self) -> bool {
        self.server.as_ref().is_some_and(|server| server.is_deleted)
    }

    pub(super) fn find(&self, id: Uuid) -> Result<Option<StoredCommand>> {
        if self.server.is_some() { self.store.command(id) } else { Ok(None) }
    }

    /// Changes the facts of the host and the connection, and schedules a flush.
    pub(super) fn change_facts(&mut self, change: impl FnOnce(&mut ServerFacts)) {
        let facts = &mut self.state().facts;
        change(facts);
        facts.revision += 1;
        self.schedule_flush();
    }

    /// The open backhaul connection, and its agent's features.
    pub(super) fn backhaul(&self) -> Option<(u64, Features)> {
        let open = self.server.as_ref()?.backhaul.open?;
        self.input.backhaul.filter(|(generation, _)| *generation == open)
    }

    /// The number of the open connection of a kind.
    pub(super) fn open_of(&self, kind: ConnectionKind) -> Option<u64> {
        match kind {
            ConnectionKind::Backhaul => self.backhaul().map(|(generation, _)| generation),
            ConnectionKind::Control => {
                let open = self.server.as_ref()?.control.open?;
                self.input.control.filter(|generation| *generation == open)
            }
        }
    }

    pub(super) fn random<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        (self.random)(&mut bytes).map_err(PlatformFailure)?;
        Ok(bytes)
    }

    /// An audit event of the service itself.
    pub(super) fn service_event(&mut self, action: &str) -> Result<AuditEvent> {
        let id = id::new(self.input.now, self.random()?);
        let event = AuditEvent::new(id, self.input.now, Source::default(), action);
        Ok(event.with_actor(ActorType::Service, None, None))
    }

    fn save_state(&mut self) -> Result<()> {
        if let Some(server) = &self.server
            && self.saved_server.as_ref() != Some(server)
        {
            self.store.save_state(server, self.saved_server.is_none())?;
            self.saved_server = Some(server.clone());
        }
        Ok(())
    }

    /// Creates the tables. Call this before anything else is stored.
    pub(super) fn ensure_tables(&mut self) -> Result<()> {
        self.state();
        self.save_state()
    }

    /// Deletes everything, and replies to all waiting calls. Ignores the answers to pending
    /// requests to D1.
    pub(super) fn wipe(&mut self) -> Result<()> {
        self.store.wipe()?;
        (self.server, self.saved_server, self.plan) = (None, None, Plan::default());
        let requests = std::mem::take(&mut self.requests);
        // A change of the server that this step began is not sent any more.
        let is_change = |id: &RequestId| matches!(requests.get(id), Some(PendingRequest::Change));
        self.effects.retain(|effect| !matches!(effect, Effect::Request(id, _) if is_change(id)));
        for request in requests.into_values() {
            if let PendingRequest::VerifyAgent(call) = request {
                self.refuse(call.ticket(), Refusal::InvalidAgent);
            }
        }
        for (ticket, wait) in std::mem::take(&mut self.waits) {
            self.refuse(ticket, wait.refusal());
        }
        for change in std::mem::take(&mut self.queued_changes) {
            self.answer_change(change, None)?;
        }
        Ok(())
    }
}
