//! Commands that a server's object takes in: into its own tables, into D1, and out to the agent.

use std::time::Duration;

use farhand_domain::command::{KEY_LASTS, OnOffline};
use farhand_domain::lifecycle::{Lifecycle, State as Life};
use farhand_domain::link::stored_command::{Phase, StoredCommand};
use farhand_domain::time::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use super::calls::{Answer, Create, Created, Key, Refusal};
use super::calls::{done, refused};
use super::d1;
use super::object::{ServerLink, now};
use super::outbox::{GATHER, GATHER_REPORTS};
use super::queue::WINDOW;
use crate::platform::log;

/// How long a command may take to be recorded before it is withdrawn, in seconds: only after a crash does it.
const RECORD_WITHIN: i64 = 30;
/// How long a request may be at something in D1 before it is taken for dead, in seconds.
const ABANDONED: i64 = 120;

impl ServerLink {
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
                    let made = tables.command(stored.command)?.filter(|stored| stored.phase == Phase::Accepted);
                    let Some(stored) = made else { return refused(Refusal::KeyTaken).map(Some) };
                    let command = self.whole(&stored)?;
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
    pub(super) async fn take(&self, create: Create) -> worker::Result<Answer> {
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
        let Some(mut stored) = self.find(id)? else { return refused(Refusal::NoServer) };
        if must_go && stored.life.state() == Life::Waiting && self.open_socket()?.is_none() {
            self.withdraw(&create).await?;
            return refused(Refusal::NotConnected);
        }
        // It is accepted, so nothing that fails now may look as if it were not.
        if let Err(error) = self.arm().await {
            log::trouble("alarm_not_set", json!({"command": id}), &error);
        }
        let waited = async {
            if let Some(seconds) = wait {
                self.wait_for_end(&stored, seconds).await?;
            }
            self.until_d1_has_end(id).await
        };
        if let Err(error) = waited.await {
            log::trouble("answer_cut_off", json!({"command": id}), &error);
        }
        stored = self.find(id)?.unwrap_or(stored);
        done(&Created { command: self.whole(&stored)?, replayed: false })
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
            Ok(None) => self.accept(id, is_immediate, forecast.and_then(|life| life.delivered_at)).await,
            Ok(Some(refusal)) => {
                self.tables().delete_command(id)?;
                if refusal == Refusal::NoServer {
                    self.forget_if_unused().await?;
                }
                return Ok(Some(refusal));
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

    /// Writes a new command here and then in D1, there with what is forecast of it; or says why D1 does not take it.
    async fn record(
        &self,
        create: &Create,
        life: &Lifecycle,
        forecast: Option<&Lifecycle>,
    ) -> worker::Result<Option<Refusal>> {
        let inputs = create.inputs.as_ref().map(|inputs| self.seal_inputs(create.command.id, inputs)).transpose()?;
        self.begin_use()?;
        let tables = self.tables();
        let (command, origin) = (create.command.clone(), create.origin.clone());
        let new = StoredCommand::new(create.workspace_id, command, origin, inputs, life.clone());
        tables.insert_command(&new, life.added_at.plus_seconds(RECORD_WITHIN))?;
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
        let Some(stored) = self.find(id)?.filter(|stored| stored.phase == Phase::Recording) else { return Ok(false) };
        self.tables().accept(&stored, now())?;
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
        let waiting = found.filter(|stored| stored.life.state() == Life::Waiting);
        let Some(mut stored) = waiting else { return Ok(()) };
        stored.phase = Phase::Withdrawing;
        self.save(&stored)?;
        self.arm().await?;
        if d1::send(&self.env, delete()?).await.is_ok() && self.is_used()? {
            self.tables().delete_command(id)?;
        }
        Ok(())
    }

    /// Tells whether a request is still recording a command.
    pub(super) fn is_recording(&self, stored: &StoredCommand, now: Timestamp) -> bool {
        let mut recording = self.recording.borrow_mut();
        if stored.life.added_at.plus_seconds(ABANDONED) <= now {
            recording.remove(&stored.command.id);
        }
        recording.contains(&stored.command.id)
    }

    pub(super) fn find(&self, id: Uuid) -> worker::Result<Option<StoredCommand>> {
        if self.is_used()? { self.tables().command(id) } else { Ok(None) }
    }

    /// Stores what changed of a command, has D1 told of it, and those who wait for its end.
    pub(super) fn save(&self, stored: &StoredCommand) -> worker::Result<()> {
        self.tables().save(stored, now(), false)?;
        let state = stored.life.state();
        if state.is_final() {
            self.ended.tell(&stored.command.id);
            self.output_came.tell(&stored.command.id);
        }
        // What may end at any moment is told with its end.
        let wait = if matches!(state, Life::Sent | Life::Acked) { GATHER_REPORTS } else { GATHER };
        self.flush_at(now().plus_millis(wait))
    }
}
