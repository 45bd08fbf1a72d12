//! Cancelling and killing commands, and the audit events of their end.

use serde_json::{Value, json};
use uuid::Uuid;

use super::call::{Answer, ByUser, Refusal, RevokedSessions};
use super::event::{Effect, Kind, Ticket};
use super::machine::Link;
use super::memory::Then;
use super::state::Known;
use super::store::{Result, Store};
use super::stored_command::{Phase, StoredCommand};
use crate::audit::{Event, Source};
use crate::command_end::{Cancellation, Denial};
use crate::lifecycle::{Lifecycle, State as Life};
use crate::time::Timestamp;
use crate::wire::ToAgent;

/// The audit action of a cancelled command.
const CANCEL: &str = "command.cancel";
/// The audit action of a command that ended in another way.
const FINISH: &str = "command.finish";
/// The audit action of output that came after the end.
const OUTPUT: &str = "command.output";

/// The details of an audit event about a command's end. They have the hash of the output if it is
/// known to be complete.
fn told_of_end(stored: &StoredCommand, hash: Option<String>) -> Value {
    let mut told = json!({
        "state": stored.life.state().as_str(),
        "exit_code": stored.life.outcome().and_then(|outcome| outcome.exit_code),
        "server": {"id": stored.command.server, "name": stored.command.server_name},
    });
    if let Some(hash) = hash {
        told["output_bytes"] = json!(stored.output_bytes());
        told["output_sha256"] = json!(hash);
    }
    told
}

impl<S: Store> Link<S> {
    /// An audit event of the service about a command.
    fn command_event(&mut self, stored: &StoredCommand, action: &str) -> Result<Event> {
        let event = self.service_event(action)?;
        Ok(event.on(Some(stored.command.id.to_string()), None))
    }

    /// Adds the audit event for the end of a command that timed out or was not delivered.
    pub(super) fn note_end(&mut self, stored: &mut StoredCommand) -> Result<()> {
        let hash = match stored.life.delivered_at {
            Some(_) => self.store.output_hash(stored, true)?,
            None => None,
        };
        let event = self.command_event(stored, FINISH)?.details(told_of_end(stored, hash));
        stored.note(event);
        Ok(())
    }

    /// Adds the audit event for the end of a command that its agent reported. If output is still on
    /// its way, an event with its hash follows.
    pub(super) fn note_end_by_agent(
        &mut self,
        stored: &mut StoredCommand,
        known: &Known,
        source: Source,
    ) -> Result<()> {
        let hash = self.store.output_hash(stored, false)?;
        stored.lacks_hash = hash.is_none();
        let object = self.command_event(stored, FINISH)?.object;
        let event = Event { object, ..self.agent_event(FINISH, known, source)? };
        stored.note(event.details(told_of_end(stored, hash)));
        Ok(())
    }

    /// Adds the audit event with the output's hash, for a command whose end has its event already.
    pub(super) fn note_output(&mut self, stored: &mut StoredCommand) -> Result<()> {
        stored.lacks_hash = false;
        let details = told_of_end(stored, self.store.output_hash(stored, true)?);
        let event = self.command_event(stored, OUTPUT)?.details(details);
        stored.note(event);
        Ok(())
    }

    /// Cancels a waiting command. `event` is the audit event of the user who cancels it, if one
    /// does.
    pub(super) fn cancel_as(
        &mut self,
        id: Uuid,
        why: Cancellation,
        event: Option<Event>,
    ) -> Result<()> {
        match self.find(id)? {
            Some(stored) if stored.phase == Phase::Accepted => {
                self.cancel_accepted(stored, why, event)
            }
            _ => Ok(()),
        }
    }

    /// The same for a command that is at hand. It need not be stored as accepted yet.
    pub(super) fn cancel_accepted(
        &mut self,
        mut stored: StoredCommand,
        why: Cancellation,
        event: Option<Event>,
    ) -> Result<()> {
        if stored.life.cancel(self.scene.now, why.clone()) {
            let event = match event {
                Some(event) => Event { action: CANCEL.to_owned(), ..event },
                None => {
                    let event = self.command_event(&stored, CANCEL)?;
                    event.details(json!({"reason": why.to_string()}))
                }
            };
            stored.note(event);
            self.save(&stored)?;
        }
        Ok(())
    }

    /// Cancels the waiting commands that revoked sessions created.
    pub(super) fn cancel_of(&mut self, ticket: Ticket, revoked: &RevokedSessions) -> Result<()> {
        if self.server.is_some() {
            for stored in self.store.waiting()? {
                let session = stored.origin.session;
                if session.is_some_and(|session| revoked.sessions.contains(&session)) {
                    let why = Cancellation::NotAllowed(Denial::Session);
                    self.cancel_as(stored.command.id, why, None)?;
                }
            }
        }
        self.reply(ticket, Answer::NOTHING);
        Ok(())
    }

    /// Cancels a command that was not delivered.
    pub(super) fn cancel(&mut self, ticket: Ticket, by: ByUser) -> Result<()> {
        let Some(stored) = self.find(by.id)? else {
            self.refuse(ticket, Refusal::NotFound);
            return Ok(());
        };
        let refusal = match (stored.phase, stored.life.state()) {
            // It is about to be delivered or withdrawn.
            (Phase::Recording, _) => Some(Refusal::AlreadySent),
            (Phase::Withdrawing, _) => Some(Refusal::NotFound),
            (Phase::Accepted, Life::Waiting | Life::Cancelled) => None,
            (Phase::Accepted, Life::Expired) => Some(Refusal::AlreadyHandled),
            (Phase::Accepted, _) if stored.life.delivered_at.is_none() => {
                Some(Refusal::AlreadyHandled)
            }
            (Phase::Accepted, _) => Some(Refusal::AlreadySent),
        };
        if let Some(refusal) = refusal {
            self.refuse(ticket, refusal);
            return Ok(());
        }
        self.cancel_as(by.id, Cancellation::By(by.username), Some(by.event))?;
        self.await_d1(ticket, by.id, Then::Live)
    }

    /// Kills a delivered command. A waiting one is cancelled (contract 7.8).
    pub(super) fn kill(&mut self, ticket: Ticket, by: ByUser) -> Result<()> {
        let Some(mut stored) = self.find(by.id)? else {
            self.refuse(ticket, Refusal::NotFound);
            return Ok(());
        };
        if stored.life.state() == Life::Waiting {
            return self.cancel(ticket, by);
        }
        if !stored.life.kill(&by.username) {
            self.refuse(ticket, Refusal::AlreadyHandled);
            return Ok(());
        }
        let Some((generation, _)) = self.backhaul().filter(|(_, features)| features.kill) else {
            self.refuse(ticket, Refusal::CannotKill);
            return Ok(());
        };
        stored.note(by.event);
        self.save(&stored)?;
        self.send_kill(generation, by.id);
        let answer = self.live_answer(by.id)?;
        self.reply(ticket, answer);
        Ok(())
    }

    /// If it does not arrive, it is sent again when the agent connects.
    fn send_kill(&mut self, generation: u64, id: Uuid) {
        let message = ToAgent::Kill { id };
        self.effects.push(Effect::Send { kind: Kind::Backhaul, generation, message, before: None });
    }

    /// Repeats pending kills to an agent that has connected.
    pub(super) fn send_kills(&mut self, generation: u64) -> Result<()> {
        for stored in self.store.open()? {
            if stored.life.killed_by.is_some() {
                self.send_kill(generation, stored.command.id);
            }
        }
        Ok(())
    }

    /// Notes why commands that were delivered before `before` may never be reported: the agent
    /// restarted, or the server was deleted.
    pub(super) fn doubt(
        &mut self,
        before: Timestamp,
        mark: fn(&mut Lifecycle, Timestamp) -> bool,
    ) -> Result<()> {
        for mut stored in self.store.open()? {
            let is_older = stored.life.delivered_at.is_some_and(|delivered| delivered < before);
            if is_older && mark(&mut stored.life, self.scene.now) {
                self.save(&stored)?;
            }
        }
        Ok(())
    }
}
