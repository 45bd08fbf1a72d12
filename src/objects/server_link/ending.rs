//! Commands taken back and killed, and what the audit log has of their end.

use farhand_domain::audit::{Event, Source};
use farhand_domain::lifecycle::{Cancellation, Denial, End, Lifecycle, State as Life};
use farhand_domain::link::stored_command::{Phase, StoredCommand};
use farhand_domain::time::Timestamp;
use farhand_domain::wire::ToAgent;
use serde_json::{Value, json};
use uuid::Uuid;
use worker::WebSocket;

use super::calls::{Answer, ByUser, Refusal, RevokedSessions};
use super::calls::{done, refused};
use super::contest::agent_event;
use super::d1::own;
use super::identity::Known;
use super::object::{ServerLink, now};
use crate::store::audit::of_service;

/// The audit log's name for a command that is taken back.
const CANCEL: &str = "command.cancel";
/// Its name for a command that ended in another way.
const FINISH: &str = "command.finish";
/// Its name for output that came after the end.
const OUTPUT: &str = "command.output";

/// An audit event of a command that no request is the cause of.
fn service_event(stored: &StoredCommand, action: &str) -> worker::Result<Event> {
    let event = of_service(action).map_err(|error| own(&error))?;
    Ok(event.on(Some(stored.command.id.to_string()), None))
}

/// What an audit event says about a command's end, with the hash of its output if that is known to be all.
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

impl ServerLink {
    /// Notes for the audit log how a command ended that timed out or was not delivered.
    pub(super) fn note_end(&self, stored: &mut StoredCommand) -> worker::Result<()> {
        let hash = match stored.life.delivered_at {
            Some(_) => self.tables().output_hash(stored, true)?,
            None => None,
        };
        let event = service_event(stored, FINISH)?.details(told_of_end(stored, hash));
        stored.note(event);
        Ok(())
    }

    /// Notes for the audit log how a command ended by its agent's report. If output is on its way still, its hash follows.
    pub(super) fn note_end_by_agent(
        &self,
        stored: &mut StoredCommand,
        known: &Known,
        source: Source,
    ) -> worker::Result<()> {
        let hash = self.tables().output_hash(stored, false)?;
        stored.lacks_hash = hash.is_none();
        let event = agent_event(FINISH, known, source)?;
        let event = Event { object: service_event(stored, FINISH)?.object, ..event };
        stored.note(event.details(told_of_end(stored, hash)));
        Ok(())
    }

    /// Notes the output of a command whose end the audit log has already.
    pub(super) fn note_output(&self, stored: &mut StoredCommand) -> worker::Result<()> {
        stored.lacks_hash = false;
        let details = told_of_end(stored, self.tables().output_hash(stored, true)?);
        let event = service_event(stored, OUTPUT)?.details(details);
        stored.note(event);
        Ok(())
    }

    /// Cancels a command that waits; `event` is that of the user's who does.
    pub(super) fn cancel_as(&self, id: Uuid, why: Cancellation, event: Option<Event>) -> worker::Result<()> {
        if let Some(mut stored) = self.find(id)?
            && stored.phase == Phase::Accepted
            && stored.life.cancel(now(), why.clone())
        {
            let event = match event {
                Some(event) => Event { action: CANCEL.to_owned(), ..event },
                None => service_event(&stored, CANCEL)?.details(json!({"reason": why.to_string()})),
            };
            stored.note(event);
            self.save(&stored)?;
        }
        Ok(())
    }

    /// Cancels the waiting commands that revoked sessions created.
    pub(super) async fn cancel_of(&self, revoked: &RevokedSessions) -> worker::Result<Answer> {
        if self.is_used()? {
            for stored in self.tables().waiting_commands()? {
                if stored.origin.session.is_some_and(|session| revoked.sessions.contains(&session)) {
                    self.cancel_as(stored.command.id, Cancellation::NotAllowed(Denial::Session), None)?;
                }
            }
            self.arm().await?;
        }
        done(&Value::Null)
    }

    /// Takes a command back that did not go out.
    pub(super) async fn cancel(&self, by: ByUser) -> worker::Result<Answer> {
        let Some(stored) = self.find(by.id)? else { return refused(Refusal::NotFound) };
        match stored.phase {
            // It goes out, or is withdrawn, at this moment.
            Phase::Recording => return refused(Refusal::AlreadySent),
            Phase::Withdrawing => return refused(Refusal::NotFound),
            Phase::Accepted => {}
        }
        match stored.life.state() {
            Life::Waiting => self.cancel_as(by.id, Cancellation::By(by.username), Some(by.event))?,
            Life::Cancelled => {}
            Life::Expired => return refused(Refusal::AlreadyHandled),
            _ if stored.life.delivered_at.is_none() => return refused(Refusal::AlreadyHandled),
            _ => return refused(Refusal::AlreadySent),
        }
        self.until_d1_has_end(by.id).await?;
        self.tell(by.id)
    }

    /// Kills a command that went out; one that did not is taken back (contract 7, Kill).
    pub(super) async fn kill(&self, by: ByUser) -> worker::Result<Answer> {
        let Some(mut stored) = self.find(by.id)? else { return refused(Refusal::NotFound) };
        if stored.life.state() == Life::Waiting {
            return self.cancel(by).await;
        }
        if matches!(stored.life.end, Some(End::Cancelled(_) | End::Expired | End::Undeliverable(_) | End::Finished(_)))
        {
            return refused(Refusal::AlreadyHandled);
        }
        let Some(socket) = self.open_socket()?.filter(Self::can_kill) else { return refused(Refusal::CannotKill) };
        stored.life.kill(&by.username);
        stored.note(by.event);
        self.save(&stored)?;
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
            .filter(|stored| stored.life.killed_by.is_some())
            .try_for_each(|stored| Self::send_kill(socket, stored.command.id))
    }

    /// Notes why commands that were delivered before `before` may never be reported: the agent restarted, or the server was
    /// deleted.
    pub(super) fn doubt(&self, before: Timestamp, mark: fn(&mut Lifecycle, Timestamp) -> bool) -> worker::Result<()> {
        for mut stored in self.tables().open_commands()? {
            let is_older = stored.life.delivered_at.is_some_and(|delivered| delivered < before);
            if is_older && mark(&mut stored.life, now()) {
                self.save(&stored)?;
            }
        }
        Ok(())
    }
}
