//! Commands in a server's object: taken, queued, handed out, taken back, killed and followed.

use std::pin::pin;
use std::time::Duration;

use farhand_domain::audit::{Event, Source};
use farhand_domain::command::{self, Inputs, KEY_LASTS, OnOffline};
use farhand_domain::lifecycle::{Cancellation, Denial, End, Lifecycle, State as Life};
use farhand_domain::rights::Rights;
use farhand_domain::time::Timestamp;
use farhand_domain::wire::ToAgent;
use futures_util::future::{self, Either};
use serde::Serialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;
use worker::{Delay, WebSocket};

use super::calls::{
    Answer, ByUser, ChunkPage, Chunks, Create, Created, Follow, Followed, Key, Live, Refusal, RevokedSessions,
};
use super::connection::agent_event;
use super::d1::{self, Recorded};
use super::identity::Known;
use super::tables::{Held, Most, NewHeld, Phase};
use super::{GATHER, GATHER_REPORTS, ServerLink, fact, now, wake};
use crate::platform;
use crate::platform::log;
use crate::store::audit::of_service;

/// How long a command may take to be recorded before it is withdrawn, in seconds: only after a crash does it.
const RECORD_WITHIN: i64 = 30;
/// How long a question for a command that is just being recorded waits for that.
const RECORDED_WITHIN: Duration = Duration::from_secs(10);
/// How long a request may be at something in D1 before it is taken for dead, in seconds.
const ABANDONED: i64 = 120;
/// How many commands an agent has at most that it did not end; further ones wait here, where they can be taken back. An
/// agent has room for 200 beyond those that run (agent-protocol 4).
const WINDOW: u64 = 200;
/// How many commands have their right checked in one go.
const CHECKED_TOGETHER: u64 = 50;
/// How long a check of rights may take before it is taken for dead, in seconds.
const CHECK_WITHIN: i64 = 20;
/// When rights that could not be checked are looked at again, in seconds.
const CHECK_AGAIN: i64 = 2;
/// How much output a follower is told at once: so many chunks, and not many more than so many bytes.
const TOLD_AT_ONCE: (u64, usize) = (1_000, 256 * 1024);
/// How long an answer waits for output that its command's end has overtaken, in milliseconds.
const OUTPUT_FOLLOWS_WITHIN: i64 = 1_000;
/// How long an answer waits for D1 to have the end that it shows, in milliseconds.
const D1_HAS_END_WITHIN: i64 = 1_000;

/// The audit log's name for a command that is taken back.
const CANCEL: &str = "command.cancel";
/// Its name for a command that ended in another way.
const FINISH: &str = "command.finish";

/// Its name for output that came after the end.
const OUTPUT: &str = "command.output";

/// An audit event of a command that no request is the cause of.
fn service_event(held: &Held, action: &str) -> worker::Result<Event> {
    let event = of_service(action).map_err(|error| worker::Error::RustError(error.detail.into_owned()))?;
    Ok(event.on(Some(held.command.id.to_string()), None))
}

/// What an audit event says about a command's end, with the hash of its output if that is known to be all.
fn told_of_end(held: &Held, hash: Option<String>) -> Value {
    let mut told = json!({
        "state": held.life.state().as_str(),
        "exit_code": held.life.outcome().and_then(|outcome| outcome.exit_code),
        "server": {"id": held.command.server, "name": held.command.server_name},
    });
    if let Some(hash) = hash {
        told["output_bytes"] = json!(held.output_bytes());
        told["output_sha256"] = json!(hash);
    }
    told
}

impl ServerLink {
    /// Notes for the audit log how a command ended that timed out or was not delivered.
    pub(super) fn note_end(&self, held: &mut Held) -> worker::Result<()> {
        let hash = match held.life.delivered_at {
            Some(_) => self.tables().output_hash(held, true)?,
            None => None,
        };
        let event = service_event(held, FINISH)?.details(told_of_end(held, hash));
        held.note(event);
        Ok(())
    }

    /// Notes for the audit log how a command ended by its agent's report. If output is on its way still, its hash follows.
    pub(super) fn note_end_by_agent(&self, held: &mut Held, known: &Known, source: Source) -> worker::Result<()> {
        let hash = self.tables().output_hash(held, false)?;
        held.lacks_hash = hash.is_none();
        let event = agent_event(FINISH, known, source)?;
        let event = Event { object: service_event(held, FINISH)?.object, ..event };
        held.note(event.details(told_of_end(held, hash)));
        Ok(())
    }

    /// Notes the output of a command whose end the audit log has already.
    pub(super) fn note_output(&self, held: &mut Held) -> worker::Result<()> {
        held.lacks_hash = false;
        let details = told_of_end(held, self.tables().output_hash(held, true)?);
        let event = service_event(held, OUTPUT)?.details(details);
        held.note(event);
        Ok(())
    }
}

/// A way to say that it will not be done.
fn refused(refusal: Refusal) -> worker::Result<Answer> {
    Ok(Answer::Refused(refusal))
}

fn done(value: &impl Serialize) -> worker::Result<Answer> {
    Ok(Answer::Done(serde_json::to_value(value)?))
}

impl ServerLink {
    // Taking.

    /// Takes a command, or answers once more what was answered to the same request before.
    pub(super) async fn create(&self, create: Create) -> worker::Result<Answer> {
        let Some(key) = create.key.clone() else { return self.take(create).await };
        // Last, as nothing may come in between this and the note that the key is taken.
        if let Some(answer) = self.replayed(&key).await? {
            return Ok(answer);
        }
        self.answering.borrow_mut().insert(key.hash.clone(), now());
        let answer = self.take(create).await;
        self.answering.borrow_mut().remove(&key.hash);
        if let Ok(Answer::Done(created)) = &answer
            && self.is_used()?
        {
            self.tables().set_answer(&key.hash, &created["command"].to_string())?;
        }
        self.answered.tell(&key.hash);
        answer
    }

    /// Tells the first answer to a key.
    pub(super) async fn replay(&self, key: Key) -> worker::Result<Answer> {
        Ok(self.replayed(&key).await?.unwrap_or(Answer::Refused(Refusal::NotFound)))
    }

    /// The first answer to a key, when there is one; `None` where the key is free.
    async fn replayed(&self, key: &Key) -> worker::Result<Option<Answer>> {
        loop {
            if !self.is_used()? {
                return Ok(None);
            }
            let tables = self.tables();
            let Some(stored) = tables.answer(&key.hash, now())? else {
                // It may be taken without being noted: between the request's first steps.
                if self.is_answering(&key.hash) {
                    self.answered.wait(key.hash.clone(), Duration::from_secs(1)).await;
                    continue;
                }
                return Ok(None);
            };
            if stored.body != key.body {
                return refused(Refusal::KeyReused).map(Some);
            }
            let command = match stored.answer {
                Some(answer) => serde_json::from_str(&answer)?,
                None if self.is_answering(&key.hash) => {
                    self.answered.wait(key.hash.clone(), Duration::from_secs(5)).await;
                    continue;
                }
                // Its request died before it was answered. What it made, if it came that far, is the answer.
                None => {
                    self.until_d1_has_end(stored.command).await?;
                    let made = tables.command(stored.command)?.filter(|held| held.phase == Phase::Accepted);
                    let Some(held) = made else { return refused(Refusal::KeyTaken).map(Some) };
                    let command = self.whole(&held)?;
                    tables.set_answer(&key.hash, &Value::Object(command.clone()).to_string())?;
                    command
                }
            };
            return done(&Created { command, replayed: true }).map(Some);
        }
    }

    /// Whether a request at hand will answer to a key.
    fn is_answering(&self, key: &str) -> bool {
        let mut answering = self.answering.borrow_mut();
        answering.retain(|_, since| since.plus_seconds(ABANDONED) > now());
        answering.contains_key(key)
    }

    /// Takes a command: into its own tables, into D1, and out to the agent where it is due, in this order. Where it does
    /// not come that far it is withdrawn, and nothing of it stays.
    async fn take(&self, create: Create) -> worker::Result<Answer> {
        if self.is_gone()? {
            return refused(Refusal::NoServer);
        }
        let (id, wait) = (create.command.id, create.wait);
        let socket = self.open_socket()?;
        let is_connected = socket.is_some();
        if let Some(socket) = &socket
            && let Some(feature) = create.command.lacks(create.inputs.as_ref(), Self::features(socket))
        {
            return refused(Refusal::AgentCannot(feature));
        }
        let life = Lifecycle::new(now(), create.scheduled_at, create.expires_at, create.timeout);
        let is_immediate = life.scheduled_at == life.added_at;
        let must_go = is_immediate && create.on_offline == OnOffline::Reject;
        if must_go && !is_connected {
            self.arm_if_used().await?;
            return refused(Refusal::NotConnected);
        }
        self.recording.borrow_mut().insert(id);
        let taken = self.take_in(&create, &life, is_immediate).await;
        self.recording.borrow_mut().remove(&id);
        self.recorded.tell(&id);
        if let Some(refusal) = taken? {
            return refused(refusal);
        }
        let Some(mut held) = self.find(id)? else { return refused(Refusal::NoServer) };
        if must_go && held.life.state() == Life::Waiting && self.open_socket()?.is_none() {
            self.withdraw(&create).await?;
            return refused(Refusal::NotConnected);
        }
        // It is accepted, so nothing that fails now may look as if it were not.
        if let Err(error) = self.arm().await {
            log::trouble("alarm_not_set", json!({"command": id}), &error);
        }
        let waited = async {
            if let Some(seconds) = wait {
                self.wait_for_end(&held, seconds).await?;
            }
            self.until_d1_has_end(id).await
        };
        if let Err(error) = waited.await {
            log::trouble("answer_cut_off", json!({"command": id}), &error);
        }
        held = self.find(id)?.unwrap_or(held);
        done(&Created { command: self.whole(&held)?, replayed: false })
    }

    /// Records a command and accepts it, or says why not; then nothing of it stays.
    async fn take_in(&self, create: &Create, life: &Lifecycle, is_immediate: bool) -> worker::Result<Option<Refusal>> {
        let (id, epoch) = (create.command.id, self.epoch.get());
        let forecast = if is_immediate { self.forecast(life)? } else { None };
        let recorded = self.record(create, life, forecast.as_ref()).await;
        if self.epoch.get() != epoch {
            return Ok(Some(Refusal::NoServer));
        }
        // Deleted meanwhile, with all that waited.
        if self.is_gone()? {
            self.withdraw(create).await?;
            self.forget_if_unused().await?;
            return Ok(Some(Refusal::NoServer));
        }
        let accepted = match recorded {
            Ok(Recorded::Yes) => self.accept(id, is_immediate, forecast.and_then(|life| life.delivered_at)).await,
            Ok(Recorded::NoServer) => {
                self.tables().delete_command(id)?;
                self.forget_if_unused().await?;
                return Ok(Some(Refusal::NoServer));
            }
            Ok(refused @ (Recorded::KeyTaken | Recorded::TooManyWaiting | Recorded::TooManyBytes)) => {
                self.tables().delete_command(id)?;
                return Ok(Some(match refused {
                    Recorded::TooManyWaiting => Refusal::TooManyWaiting,
                    Recorded::TooManyBytes => Refusal::TooManyBytes,
                    _ => Refusal::KeyTaken,
                }));
            }
            Err(error) => Err(error),
        };
        if !matches!(accepted, Ok(true)) {
            self.withdraw(create).await?;
        }
        Ok(if accepted? { None } else { Some(Refusal::NotConnected) })
    }

    /// What will be true of a new command that can go out as soon as it is recorded: D1 is told that at once, and need not
    /// be told again.
    fn forecast(&self, life: &Lifecycle) -> worker::Result<Option<Lifecycle>> {
        let is_next = self.open_socket()?.is_some() && self.tables().has_room(now(), WINDOW)?;
        let mut forecast = life.clone();
        Ok((is_next && forecast.deliver(life.added_at)).then_some(forecast))
    }

    /// Writes a new command here and then in D1, there with what is forecast of it.
    async fn record(
        &self,
        create: &Create,
        life: &Lifecycle,
        forecast: Option<&Lifecycle>,
    ) -> worker::Result<Recorded> {
        let inputs = create.inputs.as_ref().map(|inputs| self.seal_inputs(create.command.id, inputs)).transpose()?;
        self.begin_use()?;
        let tables = self.tables();
        tables.insert_command(&NewHeld {
            workspace_id: create.workspace_id,
            command: &create.command,
            life,
            origin: &create.origin,
            inputs: inputs.as_deref(),
            due_at: life.added_at.plus_seconds(RECORD_WITHIN),
        })?;
        if let Some(key) = &create.key {
            tables.insert_answer(&key.hash, &key.body, create.command.id, life.added_at.plus_seconds(KEY_LASTS))?;
        }
        self.arm().await?;
        let told = forecast.unwrap_or(life);
        let workspace = create.workspace_id;
        let recorded = d1::insert_command(&self.env, create, told).await;
        self.seal_later(workspace);
        recorded
    }

    /// Accepts a recorded command, and hands it out if its time has come. `forecast` is when D1 was told that it would go
    /// out. False: it is not there any more.
    async fn accept(&self, id: Uuid, is_immediate: bool, forecast: Option<Timestamp>) -> worker::Result<bool> {
        let Some(held) = self.find(id)?.filter(|held| held.phase == Phase::Recording) else { return Ok(false) };
        self.tables().accept(&held, now())?;
        if is_immediate {
            // Its right was checked with the request.
            self.allowed.borrow_mut().insert(id, forecast);
            let handed_out = self.hand_out_new(id, forecast.is_some()).await;
            self.allowed.borrow_mut().remove(&id);
            handed_out?;
        }
        Ok(true)
    }

    /// Takes back a command that was never delivered and that nobody knows of: from D1, and then from here. Where D1 does
    /// not answer, the alarm tries again.
    async fn withdraw(&self, create: &Create) -> worker::Result<()> {
        let id = create.command.id;
        let delete = || {
            let bytes = d1::bytes_of(&create.command, create.inputs.as_ref());
            d1::delete_command(create.workspace_id, id, bytes)
        };
        // One that was handed over stays, whatever failed after that.
        let found = self.find(id)?;
        if found.is_none() {
            // The alarm has taken it back already. What D1 has of it may have come there after that.
            d1::send(&self.env, delete()?).await.ok();
        }
        let waiting = found.filter(|held| held.life.state() == Life::Waiting);
        let Some(mut held) = waiting else { return Ok(()) };
        held.phase = Phase::Withdrawing;
        self.save(&held)?;
        self.arm().await?;
        if d1::send(&self.env, delete()?).await.is_ok() && self.is_used()? {
            self.tables().delete_command(id)?;
        }
        Ok(())
    }

    /// Tells whether a request is still recording a command.
    pub(super) fn is_recording(&self, held: &Held, now: Timestamp) -> bool {
        let mut recording = self.recording.borrow_mut();
        if held.life.added_at.plus_seconds(ABANDONED) <= now {
            recording.remove(&held.command.id);
        }
        recording.contains(&held.command.id)
    }

    // Handing out.

    /// Hands out a new command that is allowed, after what comes before it.
    async fn hand_out_new(&self, id: Uuid, is_forecast: bool) -> worker::Result<()> {
        let unchecked = self.hand_out_allowed()?;
        let is_waiting = self.allowed.borrow().contains_key(&id);
        if is_forecast
            && is_waiting
            && let Some(waiting) = self.find(id)?
        {
            // Something came in between. D1 is told the truth, and again when it goes out.
            self.allowed.borrow_mut().insert(id, None);
            self.save(&waiting)?;
        }
        if unchecked.is_empty() { Ok(()) } else { self.hand_out().await }
    }

    /// Hands out what is due, in its order (contract 8, 5), once its right was checked. Where somebody else is at it
    /// already, it is done when they are.
    pub(super) async fn hand_out(&self) -> worker::Result<()> {
        loop {
            let unchecked = self.hand_out_allowed()?;
            let Some(first) = unchecked.first() else { return Ok(()) };
            let (workspace, server) = (first.workspace_id, first.command.server);
            if self.checking_since.get().is_some_and(|since| since.plus_seconds(CHECK_WITHIN) > now()) {
                self.checked.wait((), Duration::from_secs(1)).await;
                continue;
            }
            self.checking_since.set(Some(now()));
            let verdicts = d1::find_rights(&self.env, workspace, server, &unchecked, now()).await;
            self.checking_since.set(None);
            self.checked.tell(&());
            // Meanwhile the object may have been wiped.
            if !self.is_used()? {
                return Ok(());
            }
            let verdicts = match verdicts {
                Ok(Some(verdicts)) => verdicts,
                other => {
                    // A deleted workspace's objects are suspended soon. Until then, nothing goes out.
                    if let Err(error) = other {
                        log::trouble("rights_not_checked", json!({"server": self.state.id().name()}), &error);
                    }
                    return self.tables().set_wake(wake::HAND_OUT, Some(now().plus_seconds(CHECK_AGAIN)));
                }
            };
            let mut fresh = Vec::new();
            for (held, rights) in unchecked.iter().zip(verdicts) {
                let allowed =
                    |rights: Rights| held.origin.as_ref().map_or(Ok(()), |origin| rights.allow(&held.command, origin));
                match rights.and_then(allowed) {
                    Ok(()) => fresh.push(held.command.id),
                    Err(denial) => self.cancel_as(held.command.id, Cancellation::NotAllowed(denial), None)?,
                }
            }
            self.allowed.borrow_mut().extend(fresh.iter().map(|id| (*id, None)));
            let handed_out = self.hand_out_allowed();
            // What did not go out now is checked again when it does.
            self.allowed.borrow_mut().retain(|id, _| !fresh.contains(id));
            handed_out?;
            if self.open_socket()?.is_none() {
                return Ok(());
            }
        }
    }

    /// Hands out due commands from the front of the queue while they are known to be allowed. Returns those at the front
    /// that are not.
    fn hand_out_allowed(&self) -> worker::Result<Vec<Held>> {
        loop {
            let Some(socket) = self.open_socket()? else { return Ok(vec![]) };
            let mut due = self.tables().due_waiting(now(), CHECKED_TOGETHER)?;
            if due.is_empty() {
                return Ok(vec![]);
            }
            let room = WINDOW.saturating_sub(self.tables().count_open()?);
            due.truncate(usize::try_from(room).unwrap_or(usize::MAX));
            let allowed = due.iter().take_while(|held| self.allowed.borrow().contains_key(&held.command.id)).count();
            if allowed == 0 {
                let unchecked = |held: &Held| !self.allowed.borrow().contains_key(&held.command.id);
                return Ok(due.into_iter().take_while(unchecked).collect());
            }
            let is_all = allowed == due.len() && (allowed as u64) < CHECKED_TOGETHER;
            for held in due.into_iter().take(allowed) {
                if !self.hand_over(&socket, held)? {
                    return Ok(vec![]);
                }
            }
            if is_all {
                return Ok(vec![]);
            }
        }
    }

    /// Encrypts a command's inputs for the time that it waits.
    fn seal_inputs(&self, id: Uuid, inputs: &Inputs) -> worker::Result<String> {
        let (key, nonce) = platform::secret_key(&self.env)
            .and_then(|key| Ok((key, platform::random()?)))
            .map_err(|error| worker::Error::RustError(error.detail.to_string()))?;
        let sealed = key.seal_inputs(id, &serde_json::to_string(inputs)?, nonce);
        sealed.map_err(|_| worker::Error::RustError("a command's inputs are too long to be encrypted".to_owned()))
    }

    /// A waiting command's inputs; `Err` if they cannot be decrypted.
    pub(super) fn open_inputs(&self, held: &Held) -> Result<Option<Inputs>, Cancellation> {
        let Some(sealed) = &held.inputs else { return Ok(None) };
        let opened = platform::secret_key(&self.env).ok().and_then(|key| key.open_inputs(held.command.id, sealed));
        let inputs = opened.and_then(|text| serde_json::from_str(&text).ok());
        inputs.map(Some).ok_or(Cancellation::InputsUnreadable)
    }

    /// Hands a command to the agent. False: the connection went.
    fn hand_over(&self, socket: &WebSocket, mut held: Held) -> worker::Result<bool> {
        let inputs = match self.open_inputs(&held) {
            Ok(inputs) => inputs,
            Err(why) => {
                log::trouble("inputs_not_decrypted", json!({"command": held.command.id}), &why);
                self.cancel_as(held.command.id, why, None)?;
                return Ok(true);
            }
        };
        let features = Self::features(socket);
        if let Some(feature) = held.command.lacks(inputs.as_ref(), features) {
            // Another agent was connected, or none, when the command was created.
            if held.life.undeliverable(now(), feature) {
                self.note_end(&mut held)?;
                self.save(&held)?;
            }
            return Ok(true);
        }
        let undelivered = held.clone();
        // A connection that was made since then began after the forecast: what went out on it did so later.
        let connected_at = self.facts()?.connected_at;
        let forecast = self.allowed.borrow().get(&held.command.id).copied().flatten();
        // One that D1 took long for is none: how long the agent has to acknowledge counts from what is noted here.
        let forecast =
            forecast.filter(|at| connected_at.is_none_or(|since| since <= *at) && at.plus_seconds(1) > now());
        if !held.life.deliver(forecast.unwrap_or_else(now)) {
            return Ok(true);
        }
        let order = held.command.order(inputs.as_ref(), held.life.timeout, features);
        let message = serde_json::to_string(&ToAgent::Command { command: Box::new(order) })?;
        // At most once: that it went out is durable before it does.
        match forecast {
            Some(_) => self.tables().save(&held, now(), true)?,
            None => self.save(&held)?,
        }
        if socket.send_with_str(message).is_err() {
            // It did not leave, so it was not delivered.
            self.save(&undelivered)?;
            self.disconnected()?;
            return Ok(false);
        }
        self.allowed.borrow_mut().remove(&held.command.id);
        Ok(true)
    }

    /// Has the queue looked at as soon as can be, if something in it is due.
    pub(super) fn hand_out_soon(&self) -> worker::Result<()> {
        let (tables, now) = (self.tables(), now());
        if tables.due_waiting(now, 1)?.is_empty() { Ok(()) } else { tables.set_wake(wake::HAND_OUT, Some(now)) }
    }

    // Taking back and killing.

    /// Cancels a command that waits; `event` is that of the user's who does.
    pub(super) fn cancel_as(&self, id: Uuid, why: Cancellation, event: Option<Event>) -> worker::Result<()> {
        if let Some(mut held) = self.find(id)?
            && held.phase == Phase::Accepted
            && held.life.cancel(now(), why.clone())
        {
            let event = match event {
                Some(event) => Event { action: CANCEL.to_owned(), ..event },
                None => service_event(&held, CANCEL)?.details(json!({"reason": why.to_string()})),
            };
            held.note(event);
            self.save(&held)?;
        }
        Ok(())
    }

    /// Cancels the waiting commands that revoked sessions created.
    pub(super) async fn cancel_of(&self, revoked: &RevokedSessions) -> worker::Result<Answer> {
        if self.is_used()? {
            for held in self.tables().waiting_commands()? {
                let session = held.origin.as_ref().and_then(|origin| origin.session);
                if session.is_some_and(|session| revoked.sessions.contains(&session)) {
                    self.cancel_as(held.command.id, Cancellation::NotAllowed(Denial::Session), None)?;
                }
            }
            self.arm().await?;
        }
        done(&Value::Null)
    }

    /// Takes a command back that did not go out.
    pub(super) async fn cancel(&self, by: ByUser) -> worker::Result<Answer> {
        let Some(held) = self.find(by.id)? else { return refused(Refusal::NotFound) };
        match held.phase {
            // It goes out, or is withdrawn, at this moment.
            Phase::Recording => return refused(Refusal::AlreadySent),
            Phase::Withdrawing => return refused(Refusal::NotFound),
            Phase::Accepted => {}
        }
        match held.life.state() {
            Life::Waiting => self.cancel_as(by.id, Cancellation::By(by.username), Some(by.event))?,
            Life::Cancelled => {}
            Life::Expired => return refused(Refusal::AlreadyHandled),
            _ if held.life.delivered_at.is_none() => return refused(Refusal::AlreadyHandled),
            _ => return refused(Refusal::AlreadySent),
        }
        self.until_d1_has_end(by.id).await?;
        self.tell(by.id)
    }

    /// Kills a command that went out; one that did not is taken back (contract 7, Kill).
    pub(super) async fn kill(&self, by: ByUser) -> worker::Result<Answer> {
        let Some(mut held) = self.find(by.id)? else { return refused(Refusal::NotFound) };
        if held.life.state() == Life::Waiting {
            return self.cancel(by).await;
        }
        if matches!(held.life.end, Some(End::Cancelled(_) | End::Expired | End::Undeliverable(_) | End::Finished(_))) {
            return refused(Refusal::AlreadyHandled);
        }
        let Some(socket) = self.open_socket()?.filter(Self::can_kill) else { return refused(Refusal::CannotKill) };
        held.life.kill(&by.username);
        held.note(by.event);
        self.save(&held)?;
        Self::send_kill(&socket, by.id)?;
        self.arm().await?;
        self.tell(by.id)
    }

    fn send_kill(socket: &WebSocket, id: Uuid) -> worker::Result<()> {
        // Where it does not arrive, the next connection's beginning sends it again.
        socket.send_with_str(serde_json::to_string(&ToAgent::Kill { id })?).ok();
        Ok(())
    }

    /// Asks an agent that comes back once more to kill what it was asked to.
    pub(super) fn send_kills(&self, socket: &WebSocket) -> worker::Result<()> {
        let open = if Self::can_kill(socket) { self.tables().open_commands()? } else { vec![] };
        open.iter()
            .filter(|held| held.life.killed_by.is_some())
            .try_for_each(|held| Self::send_kill(socket, held.command.id))
    }

    /// Notes why commands that were delivered before `before` may never be reported: the agent restarted, or the server was
    /// deleted.
    pub(super) fn doubt(&self, before: Timestamp, mark: fn(&mut Lifecycle, Timestamp) -> bool) -> worker::Result<()> {
        for mut held in self.tables().open_commands()? {
            let is_older = held.life.delivered_at.is_some_and(|delivered| delivered < before);
            if is_older && mark(&mut held.life, now()) {
                self.save(&held)?;
            }
        }
        Ok(())
    }

    // Telling.

    pub(super) fn find(&self, id: Uuid) -> worker::Result<Option<Held>> {
        if self.is_used()? { self.tables().command(id) } else { Ok(None) }
    }

    /// Stores what changed of a command, has D1 told of it, and those who wait for its end.
    pub(super) fn save(&self, held: &Held) -> worker::Result<()> {
        self.tables().save(held, now(), false)?;
        let state = held.life.state();
        if state.is_final() {
            self.ended.tell(&held.command.id);
            self.output_came.tell(&held.command.id);
        }
        // What may end at any moment is told with its end.
        let wait = if matches!(state, Life::Sent | Life::Acked) { GATHER_REPORTS } else { GATHER };
        self.flush_at(now().plus_millis(wait))
    }

    fn live_fields(&self, held: &Held) -> worker::Result<Map<String, Value>> {
        Ok(command::live_fields(&held.life, &self.tables().output(held)?, now()))
    }

    /// The whole command object.
    fn whole(&self, held: &Held) -> worker::Result<Map<String, Value>> {
        Ok(command::object(&held.command, self.live_fields(held)?))
    }

    /// Tells the live fields of a command that was accepted.
    fn tell(&self, id: Uuid) -> worker::Result<Answer> {
        match self.find(id)?.filter(|held| held.phase == Phase::Accepted) {
            Some(held) => done(&self.live_fields(&held)?),
            None => refused(Refusal::NotFound),
        }
    }

    /// Tells the live fields of a command, if asked to when it has ended.
    pub(super) async fn live(&self, live: Live) -> worker::Result<Answer> {
        if self.recording.borrow().contains(&live.id) {
            self.recorded.wait(live.id, RECORDED_WITHIN).await;
        }
        if let (Some(held), Some(seconds)) = (self.find(live.id)?, live.wait) {
            self.wait_for_end(&held, seconds).await?;
        }
        self.until_d1_has_end(live.id).await?;
        self.tell(live.id)
    }

    /// Waits for a command's end, and then a moment for output that the end has overtaken (agent-protocol 4).
    async fn wait_for_end(&self, held: &Held, seconds: u32) -> worker::Result<()> {
        let id = held.command.id;
        if seconds == 0 || held.life.state().is_final() {
            return Ok(());
        }
        self.ended.wait(id, Duration::from_secs(seconds.into())).await;
        let until = now().plus_millis(OUTPUT_FOLLOWS_WITHIN);
        while let Some(held) = self.find(id)?.filter(Held::awaits_output) {
            let left = until.seconds_since(now());
            if left <= 0.0 {
                break;
            }
            self.output_came.wait(held.command.id, Duration::from_secs_f64(left)).await;
        }
        Ok(())
    }

    /// If a command has ended, waits until D1 has that state, so that no list lags behind the answer (contract 11, Answers). If
    /// D1 does not answer within a second, the alarm goes on.
    async fn until_d1_has_end(&self, id: Uuid) -> worker::Result<()> {
        let until = now().plus_millis(D1_HAS_END_WITHIN);
        while self.find(id)?.is_some_and(|held| held.life.state().is_final() && !held.is_flushed) {
            let left = until.seconds_since(now());
            if left <= 0.0 {
                break;
            }
            let longest = Delay::from(Duration::from_secs_f64(left));
            if let Either::Left((flushed, _)) = future::select(pin!(self.flush()), longest).await
                && let Err(error) = flushed
            {
                log::trouble("d1_not_told", json!({"command": id}), &error);
                break;
            }
            if self.is_used()? && self.tables().fact::<u32>(fact::FAILURES)?.unwrap_or(0) > 0 {
                break;
            }
        }
        self.arm_if_used().await
    }

    /// Tells a page of a command's output.
    pub(super) fn chunks(&self, asked: &Chunks) -> worker::Result<Answer> {
        let Some(held) = self.find(asked.id)? else { return refused(Refusal::NotFound) };
        let tables = self.tables();
        let most = Most { chunks: asked.limit, bytes: usize::MAX, until_gap: false };
        let chunks = match tables.find_chunk(&held, asked.from, asked.offset)? {
            Some(first) => tables.chunks(&held, first, most)?,
            None => vec![],
        };
        done(&ChunkPage { count: tables.count_chunks(&held, asked.from)?, chunks })
    }

    /// Tells the next of a command's output, when there is some, or that there is no more.
    pub(super) async fn follow(&self, asked: Follow) -> worker::Result<Answer> {
        let until = now().plus_millis(asked.wait_millis);
        loop {
            let Some(held) = self.find(asked.id)? else { return refused(Refusal::NotFound) };
            let tables = self.tables();
            let settles_at = held.settles_at();
            let is_settled = settles_at.is_some_and(|at| at <= now());
            let most = Most { chunks: TOLD_AT_ONCE.0, bytes: TOLD_AT_ONCE.1, until_gap: !is_settled };
            let first = tables.find_chunk(&held, asked.from, 0)?;
            // What comes after a gap waits until the gap is filled.
            let chunks = match first {
                Some(first) if first == asked.from || is_settled || asked.skips_gap => {
                    tables.chunks(&held, first, most)?
                }
                _ => vec![],
            };
            let has_more = match chunks.last() {
                Some(last) => tables.find_chunk(&held, u64::from(last.seq) + 1, 0)?.is_some(),
                None => first.is_some(),
            };
            let is_over = is_settled && !has_more;
            if is_over {
                self.until_d1_has_end(asked.id).await?;
            }
            let left = until.seconds_since(now());
            if !chunks.is_empty() || is_over || left <= 0.0 {
                let end = if is_over { Some(self.end(&held)?) } else { None };
                return done(&Followed { chunks, has_more, end });
            }
            let settles_in = settles_at.map_or(left, |at| at.seconds_since(now()));
            let longest = Duration::from_secs_f64(left.min(settles_in).max(0.01));
            self.output_came.wait(asked.id, longest).await;
        }
    }

    /// What a stream tells at its end: the live fields, and whether it lacks some of the output.
    fn end(&self, held: &Held) -> worker::Result<Map<String, Value>> {
        let mut end = self.live_fields(held)?;
        end.insert("output_truncated".to_owned(), held.lacks_output().into());
        Ok(end)
    }
}
