//! New commands: stored here, inserted into D1, then accepted and delivered.

use std::time::Duration;

use uuid::Uuid;

use super::call::{
    BatchCommand, CHECK_VALIDITY, Create, Created, IdempotencyKey, LinkResponse, Refusal,
};
use super::event::{Answer, Request, Ticket};
use super::machine::Machine;
use super::memory::{AfterWait, D1Result, PendingRequest, Recording, WaitsFor};
use super::store::{PlatformFailure, Result, Store};
use super::stored_command::{Phase, StoredCommand};
use crate::command::end::Cancellation;
use crate::command::lifecycle::{Lifecycle, State as Life};
use crate::command::request::{IDEMPOTENCY_KEY_TTL, Inputs, OnOffline};

/// A command whose recording is not finished after this time is withdrawn. Only after a crash does
/// recording take so long.
const RECORDING_TIMEOUT: Duration = Duration::from_secs(60);

impl<S: Store> Machine<S> {
    /// Creates a command, or replays the response to an earlier request with the same key.
    pub(super) fn create(&mut self, ticket: Ticket, create: Box<Create>) -> Result<()> {
        match create.key.clone() {
            Some(key) => self.replay(ticket, key, Some(create)),
            None => self.record(ticket, create),
        }
    }

    /// Replays the response for an Idempotency-Key. If the key is new, creates the command. If the
    /// key is new and `create` is `None`, refuses the call.
    pub(super) fn replay(
        &mut self,
        ticket: Ticket,
        key: IdempotencyKey,
        create: Option<Box<Create>>,
    ) -> Result<()> {
        let stored = match self.server {
            Some(_) => self.store.idempotent_request(&key.hash, self.input.now)?,
            None => None,
        };
        let Some(stored) = stored else {
            return match create {
                Some(create) => self.record(ticket, create),
                None => {
                    self.refuse(ticket, Refusal::NotFound);
                    Ok(())
                }
            };
        };
        if stored.body != key.body {
            self.refuse(ticket, Refusal::KeyReused);
            return Ok(());
        }
        if let Some(answer) = stored.answer {
            let command = serde_json::from_str(&answer)
                .map_err(|error| PlatformFailure(error.to_string()))?;
            self.reply(ticket, LinkResponse::done(Created { command, replayed: true }));
            return Ok(());
        }
        if self.is_answer_pending(&key.hash) {
            self.wait(ticket, None, WaitsFor::FirstAnswer(key, create));
            return Ok(());
        }
        // A crash lost the first request. If it created its command, reply with that command.
        self.await_d1(ticket, stored.command, AfterWait::Recovered(key))
    }

    /// Stores a new command and sends it to D1, or refuses it.
    fn record(&mut self, ticket: Ticket, mut create: Box<Create>) -> Result<()> {
        if self.is_server_deleted() {
            self.refuse(ticket, Refusal::NoServer);
            return Ok(());
        }
        let now = self.input.now;
        let backhaul = self.backhaul();
        let features = backhaul.map(|(_, features)| features);
        let script = create.script.take();
        let lacks =
            |features| create.command.lacks(create.inputs.as_ref(), script.as_ref(), features);
        if let Some(feature) = features.and_then(lacks) {
            self.refuse(ticket, Refusal::AgentCannot(feature));
            return Ok(());
        }
        let mut life = Lifecycle::new(now, create.scheduled_at, create.expires_at, create.timeout);
        let must_deliver_now = life.is_immediate() && create.on_offline == OnOffline::Reject;
        if must_deliver_now && backhaul.is_none() {
            self.refuse(ticket, Refusal::NotConnected);
            return Ok(());
        }
        let inputs = match &create.inputs {
            Some(inputs) => Some(self.encrypt_inputs(create.command.id, inputs)?),
            None => None,
        };
        self.ensure_tables()?;
        let is_loaded = create.command.script.is_none() || script.is_some();
        let is_inserted_as_delivered =
            life.is_immediate() && is_loaded && backhaul.is_some() && self.has_room()?;
        let (command, origin) = (create.command.clone(), create.origin.clone());
        let new = StoredCommand::new(create.workspace_id, command, origin, inputs, life.clone());
        self.store.insert(&new, now.plus(RECORDING_TIMEOUT))?;
        if let Some(key) = &create.key {
            let until = now.plus_seconds(IDEMPOTENCY_KEY_TTL);
            self.store.insert_idempotent_request(&key.hash, &key.body, create.command.id, until)?;
        }
        if is_inserted_as_delivered {
            life.deliver(now);
        }
        let Create { workspace_id, wait, .. } = *create;
        let recording = Recording {
            id: create.command.id,
            workspace_id,
            key: create.key.clone(),
            wait,
            must_deliver_now,
            is_inserted_as_delivered,
            script,
        };
        self.wait(ticket, None, WaitsFor::Recording(recording));
        self.request_d1(PendingRequest::Insert(ticket), Request::InsertCommand { create, life });
        Ok(())
    }

    /// Accepts a command of a batch, which D1 has, and delivers or cancels it. The command may be
    /// known already, because the batch repeats calls without an answer.
    pub(super) fn run_of_batch(&mut self, ticket: Ticket, new: BatchCommand) -> Result<()> {
        let id = new.command.id;
        if let Some(stored) = self.find(id)? {
            if stored.life.state().is_final() {
                // D1 may have lost the end: it was restored to an earlier time.
                self.store.mark_unflushed(id)?;
                self.schedule_flush();
            } else if let Some(why) = new.cancellation {
                self.cancel_by_id(id, why, None)?;
            }
            self.reply(ticket, LinkResponse::EMPTY);
            return Ok(());
        }
        let is_deleted = self.is_server_deleted().then_some(Cancellation::ServerDeleted);
        let cancellation = new.cancellation.or(is_deleted);
        let inputs = match &new.inputs {
            Some(inputs) if cancellation.is_none() => Some(self.encrypt_inputs(id, inputs)?),
            _ => None,
        };
        self.ensure_tables()?;
        let now = self.input.now;
        let life = Lifecycle::new(new.added_at, None, Some(new.expires_at), new.timeout);
        let stored = StoredCommand {
            phase: Phase::Accepted,
            output_limit: new.output_limit,
            ..StoredCommand::new(new.workspace_id, new.command, new.origin, inputs, life)
        };
        self.store.insert(&stored, now)?;
        self.store.accept(&stored, now)?;
        let is_checked = new.checked_at.is_some_and(|at| at.plus(CHECK_VALIDITY) > now);
        let is_loaded = stored.command.script.is_none() || new.script.is_some();
        let is_ready = is_checked && is_loaded && stored.life.is_due(now);
        let can_deliver = is_ready && self.has_room_for(id)?;
        match (cancellation, self.backhaul().filter(|_| can_deliver)) {
            (Some(why), _) => self.cancel_stored(stored, why, None)?,
            (None, Some((generation, features))) => {
                self.deliver(generation, features, stored, new.script)?;
            }
            (None, None) => {
                self.schedule_delivery()?;
                // D1 has the command as delivered, but it waits. The outbox corrects D1.
                self.save(&stored)?;
            }
        }
        self.reply(ticket, LinkResponse::EMPTY);
        Ok(())
    }

    /// Handles D1's answer to the insertion of a command.
    pub(super) fn inserted(&mut self, ticket: Ticket, answer: D1Result) -> Result<()> {
        let Some(recording) = self.take_recording(ticket) else { return Ok(()) };
        let id = recording.id;
        self.changed_commands.insert(id);
        if let Some(key) = &recording.key {
            self.released_keys.insert(key.hash.clone());
        }
        // D1 stores an audit event with the command.
        self.request_seal(recording.workspace_id);
        match answer {
            Ok(Answer::Inserted(Err(refusal))) => {
                self.store.delete(id)?;
                self.refuse(ticket, refusal);
                if refusal == Refusal::NoServer { self.wipe_if_unused() } else { Ok(()) }
            }
            Err(error) => {
                self.withdraw(id)?;
                self.reply(ticket, LinkResponse::Failed(error));
                Ok(())
            }
            // The server was deleted in the meantime, and its waiting commands were cancelled.
            Ok(_) if self.is_server_deleted() => {
                self.withdraw(id)?;
                self.await_d1(ticket, id, AfterWait::Refuse(Refusal::NoServer))
            }
            Ok(Answer::Inserted(Ok(output_limit))) => self.accept(ticket, recording, output_limit),
            Ok(_) => self.accept(ticket, recording, None),
        }
    }

    /// Accepts a command that D1 has, and delivers it if it is due. `output_limit`: the bytes of its
    /// output that may be kept, if it is delivered now.
    fn accept(
        &mut self,
        ticket: Ticket,
        mut recording: Recording,
        output_limit: Option<u64>,
    ) -> Result<()> {
        let id = recording.id;
        let now = self.input.now;
        let Some(stored) = self.find(id)?.filter(|stored| stored.phase == Phase::Recording) else {
            self.refuse(ticket, Refusal::NoServer);
            return Ok(());
        };
        let stored = StoredCommand { phase: Phase::Accepted, output_limit, ..stored };
        let script = recording.script.take();
        let is_loaded = stored.command.script.is_none() || script.is_some();
        let is_due_now = stored.life.is_immediate() && stored.life.is_due(now) && is_loaded;
        match self.backhaul().filter(|_| is_due_now) {
            // The permission was checked with the request.
            Some((generation, features)) if self.has_room()? => {
                self.deliver(generation, features, stored.clone(), script)?;
            }
            _ => {
                self.store.accept(&stored, now)?;
                // The command may have become due while it was recorded.
                self.schedule_delivery()?;
                if recording.is_inserted_as_delivered {
                    // D1 has the command as delivered, but it waits. The outbox corrects D1.
                    self.save(&stored)?;
                }
            }
        }
        let stored = Box::new(stored);
        if recording.must_deliver_now {
            // If the message cannot be sent, the shell reports it in this turn. Wait for the
            // report.
            self.wait(ticket, Some(now), WaitsFor::SendOutcome(recording, stored));
            return Ok(());
        }
        self.await_end(ticket, id, recording.wait, AfterWait::Created(recording.key, stored))
    }

    /// Continues a command that must be delivered now or refused, after its message was sent or
    /// not.
    pub(super) fn send_settled(
        &mut self,
        ticket: Ticket,
        recording: Recording,
        stored: Box<StoredCommand>,
    ) -> Result<()> {
        let id = recording.id;
        let waits = self.find(id)?.is_some_and(|stored| stored.life.state() == Life::Waiting);
        if waits && self.backhaul().is_none() {
            self.released_keys.extend(recording.key.map(|key| key.hash));
            self.withdraw(id)?;
            return self.await_d1(ticket, id, AfterWait::Refuse(Refusal::NotConnected));
        }
        self.await_end(ticket, id, recording.wait, AfterWait::Created(recording.key, stored))
    }

    /// Withdraws a command that was not delivered and whose client got no 201. Deletes the command
    /// from D1, and then from the object.
    pub(super) fn withdraw(&mut self, id: Uuid) -> Result<()> {
        let found = self.find(id)?;
        if let Some(mut stored) = found.filter(|stored| stored.life.state() == Life::Waiting) {
            stored.phase = Phase::Withdrawing;
            self.save(&stored)?;
            self.flush()?;
        }
        Ok(())
    }

    /// Handles an insertion that ended after it had been reported as failed. D1 may have the
    /// command now, so its withdrawal is written again.
    pub(super) fn inserted_late(&mut self, create: Create, life: Lifecycle) -> Result<()> {
        let id = create.command.id;
        if self.find(id)?.is_none() {
            self.ensure_tables()?;
            let Create { workspace_id, command, origin, .. } = create;
            // It was never delivered, even if D1 has it as delivered.
            let life = Lifecycle { delivered_at: None, ..life };
            let new = StoredCommand::new(workspace_id, command, origin, None, life);
            self.store.insert(&new, self.input.now)?;
        }
        self.withdraw(id)
    }

    /// Stores a changed command, and schedules a flush. At the end of the step, the calls that wait
    /// for the command resume.
    pub(super) fn save(&mut self, stored: &StoredCommand) -> Result<()> {
        self.store.save(stored, self.input.now)?;
        self.changed_commands.insert(stored.command.id);
        self.schedule_flush_for(stored.life.state());
        Ok(())
    }

    /// Encrypts a command's inputs for the storage.
    fn encrypt_inputs(&mut self, id: Uuid, inputs: &Inputs) -> Result<String> {
        let nonce = self.random()?;
        let Some(key) = &self.settings.key else {
            return Err(PlatformFailure("there is no SECRET_KEY".to_owned()));
        };
        let text =
            serde_json::to_string(inputs).map_err(|error| PlatformFailure(error.to_string()))?;
        key.encrypt_inputs(id, &text, nonce).map_err(|_| {
            PlatformFailure("a command's inputs are too long to be encrypted".to_owned())
        })
    }

    /// The decrypted inputs of a waiting command. If they cannot be decrypted, the error is the
    /// reason to cancel the command.
    pub(super) fn decrypt_inputs(
        &self,
        stored: &StoredCommand,
    ) -> std::result::Result<Option<Inputs>, Cancellation> {
        let Some(sealed) = &stored.inputs else { return Ok(None) };
        let key = self.settings.key.as_ref();
        let opened = key.and_then(|key| key.decrypt_inputs(stored.command.id, sealed));
        let inputs = opened.and_then(|text| serde_json::from_str(&text).ok());
        inputs.map(Some).ok_or(Cancellation::InputsUnreadable)
    }
}
