//! Cancelling and killing commands, and the audit events of their end.

use serde_json::{Value, json};
use uuid::Uuid;

use super::call::{LinkResponse, Refusal, RevokedSessions, UserAction};
use super::event::{ConnectionKind, Effect, Ticket};
use super::machine::Machine;
use super::memory::{AfterWait, Disconnected};
use super::state::ServerIdentity;
use super::store::{Result, Store};
use super::stored_command::{Phase, StoredCommand};
use crate::agent::wire::MessageToAgent;
use crate::audit::event::{AuditEvent, Source};
use crate::command::end::{Cancellation, Denial};
use crate::command::lifecycle::{Lifecycle, State as Life};
use crate::time::Timestamp;

/// The audit action for a cancelled command.
const CANCEL_ACTION: &str = "command.cancel";
/// The audit action for a command that ended in another way.
const FINISH_ACTION: &str = "command.finish";
/// The audit action for output that arrived after the end.
const OUTPUT_ACTION: &str = "command.output";

/// The details of an audit event about a command's end. `hash`: the SHA-256 of the output, if the
/// output is complete.
fn finish_details(stored: &StoredCommand, hash: Option<String>) -> Value {
    let mut details = json!({
        "state": stored.life.state().as_str(),
        "exit_code": stored.life.outcome().and_then(|outcome| outcome.exit_code),
        "server": {"id": stored.command.server, "name": stored.command.server_name},
    });
    if let Some(hash) = hash {
        details["output_bytes"] = json!(stored.output_bytes());
        details["output_sha256"] = json!(hash);
    }
    details
}

impl<S: Store> Machine<S> {
    /// An audit event with the service as the actor and a command as the object.
    fn command_event(&mut self, stored: &StoredCommand, action: &str) -> Result<AuditEvent> {
        let event = self.service_event(action)?;
        Ok(event.with_object(Some(stored.command.id.to_string()), None))
    }

    /// Adds the audit event for the end of a command that timed out or was not delivered.
    pub(super) fn add_finish_event(&mut self, stored: &mut StoredCommand) -> Result<()> {
        let hash = match stored.life.delivered_at {
            Some(_) => self.store.output_hash(stored, true)?,
            None => None,
        };
        let event =
            self.command_event(stored, FINISH_ACTION)?.details(finish_details(stored, hash));
        stored.add_event(event);
        Ok(())
    }

    /// Adds the audit event for the end of a command that its agent reported. If output is still
    /// missing, an event with the output's hash follows.
    pub(super) fn add_agent_finish_event(
        &mut self,
        stored: &mut StoredCommand,
        server: &ServerIdentity,
        source: Source,
    ) -> Result<()> {
        let hash = self.store.output_hash(stored, false)?;
        stored.lacks_hash = hash.is_none();
        let object = self.command_event(stored, FINISH_ACTION)?.object;
        let event = AuditEvent { object, ..self.agent_event(FINISH_ACTION, server, source)? };
        stored.add_event(event.details(finish_details(stored, hash)));
        Ok(())
    }

    /// Adds the audit event with the output's hash. The command's end has its event already.
    pub(super) fn add_output_event(&mut self, stored: &mut StoredCommand) -> Result<()> {
        stored.lacks_hash = false;
        let details = finish_details(stored, self.store.output_hash(stored, true)?);
        let event = self.command_event(stored, OUTPUT_ACTION)?.details(details);
        stored.add_event(event);
        Ok(())
    }

    /// Cancels a waiting command. `event`: the audit event of the user who cancels it; `None`: the
    /// service cancels it.
    pub(super) fn cancel_by_id(
        &mut self,
        id: Uuid,
        why: Cancellation,
        event: Option<AuditEvent>,
    ) -> Result<()> {
        match self.find(id)? {
            Some(stored) if stored.phase == Phase::Accepted => {
                self.cancel_stored(stored, why, event)
            }
            _ => Ok(()),
        }
    }

    /// Like [`Self::cancel_by_id`], for a command that was read already. The stored command may
    /// still be in the phase `Recording`.
    pub(super) fn cancel_stored(
        &mut self,
        mut stored: StoredCommand,
        why: Cancellation,
        event: Option<AuditEvent>,
    ) -> Result<()> {
        if stored.life.cancel(self.input.now, why.clone()) {
            let event = match event {
                Some(event) => AuditEvent { action: CANCEL_ACTION.to_owned(), ..event },
                None => {
                    let event = self.command_event(&stored, CANCEL_ACTION)?;
                    event.details(json!({"reason": why.to_string()}))
                }
            };
            stored.add_event(event);
            self.save(&stored)?;
        }
        Ok(())
    }

    /// Cancels the waiting commands that were created with revoked sessions.
    pub(super) fn cancel_of_sessions(
        &mut self,
        ticket: Ticket,
        revoked: &RevokedSessions,
    ) -> Result<()> {
        if self.server.is_some() {
            for stored in self.store.waiting()? {
                let session = stored.origin.session;
                if session.is_some_and(|session| revoked.sessions.contains(&session)) {
                    let why = Cancellation::NotAllowed(Denial::Session);
                    self.cancel_by_id(stored.command.id, why, None)?;
                }
            }
        }
        self.reply(ticket, LinkResponse::EMPTY);
        Ok(())
    }

    /// Cancels a command for a user. A delivered command is refused.
    pub(super) fn cancel(&mut self, ticket: Ticket, by: UserAction) -> Result<()> {
        let Some(stored) = self.find(by.id)? else {
            self.refuse(ticket, Refusal::NotFound);
            return Ok(());
        };
        let refusal = match (stored.phase, stored.life.state()) {
            // The command is about to be delivered or withdrawn.
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
        self.cancel_by_id(by.id, Cancellation::By(by.username), Some(by.event))?;
        self.await_d1(ticket, by.id, AfterWait::Live)
    }

    /// Kills a delivered command for a user. A waiting command is cancelled (contract 7.8).
    pub(super) fn kill(
        &mut self,
        ticket: Ticket,
        by: UserAction,
        disconnected: Disconnected,
    ) -> Result<()> {
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
        let generation = match (self.backhaul(), disconnected) {
            (Some((generation, features)), _) if features.kill => Some(generation),
            (None, Disconnected::Wait) => None,
            _ => {
                self.refuse(ticket, Refusal::CannotKill);
                return Ok(());
            }
        };
        stored.add_event(by.event);
        self.save(&stored)?;
        if let Some(generation) = generation {
            self.send_kill(generation, by.id);
        }
        let answer = self.live_answer(by.id)?;
        self.reply(ticket, answer);
        Ok(())
    }

    /// Sends the kill message once. [`Self::send_kills`] repeats it when the agent connects.
    fn send_kill(&mut self, generation: u64, id: Uuid) {
        let message = MessageToAgent::Kill { id };
        self.effects.push(Effect::Send {
            kind: ConnectionKind::Backhaul,
            generation,
            message,
            before: None,
        });
    }

    /// Repeats the kill messages for running commands to an agent that has just connected.
    pub(super) fn send_kills(&mut self, generation: u64) -> Result<()> {
        for stored in self.store.open_commands()? {
            if stored.life.killed_by.is_some() {
                self.send_kill(generation, stored.command.id);
            }
        }
        Ok(())
    }

    /// Marks the running commands that were delivered before `before`. The agent may never report
    /// their end, because it restarted or because the server was deleted.
    pub(super) fn mark_delivered_before(
        &mut self,
        before: Timestamp,
        mark: fn(&mut Lifecycle, Timestamp) -> bool,
    ) -> Result<()> {
        for mut stored in self.store.open_commands()? {
            let is_older = stored.life.delivered_at.is_some_and(|delivered| delivered < before);
            if is_older && mark(&mut stored.life, self.input.now) {
                self.save(&stored)?;
            }
        }
        Ok(())
    }
}
