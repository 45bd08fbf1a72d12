//! Which connection counts when several agents have one identity (agent-protocol 5), and what the audit log says about
//! connections.

use std::time::Duration;

use farhand_domain::audit::{ActorType, CredentialType, Event, Source};
use farhand_domain::contest::Contest;
use farhand_domain::time::Timestamp;
use farhand_domain::wire::{HostFacts, ToAgent};
use serde_json::json;
use worker::{Result, WebSocket};

use super::d1::own;
use super::d1_server::ServerFacts;
use super::identity::Known;
use super::object::{BACKHAUL, CONTROL, ServerLink, fact, now};
use crate::store::audit::of_service;

/// How long an older connection may take to prove that its agent is alive.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How often a conflict is recorded at most, in seconds.
const RECORD_EVERY: i64 = 60;
/// How long a conflict is shown after the last refusal that was recorded, in seconds.
const SHOWN_FOR: i64 = 600;

/// An audit event that a server's agent caused, with its server as the object.
pub(super) fn agent_event(action: &str, known: &Known, source: Source) -> Result<Event> {
    let id = Some(known.server.to_string());
    let event = of_service(action).map_err(|error| own(&error))?;
    let event = event.by(ActorType::Agent, id.clone(), Some(known.name.clone()));
    let event = event.with(CredentialType::AgentKey, id.clone()).on(id, Some(&known.name));
    Ok(Event { source, ..event })
}

/// The event of an agent that connects from another address than before.
pub(super) fn connect_event(known: &Known, source: Source, before: &ServerFacts) -> Result<Option<Event>> {
    if source.remote_ip.as_deref().unwrap_or_default() == before.remote_ip.as_deref().unwrap_or_default() {
        return Ok(None);
    }
    let details = json!({
        "remote_ip": source.remote_ip, "previous_remote_ip": before.remote_ip, "agent_version": before.agent_version(),
    });
    Ok(Some(agent_event("server.connect", known, source)?.details(details)))
}

/// The event of an agent that reports another version than before.
pub(super) fn upgrade_event(
    known: &Known,
    source: Source,
    before: &ServerFacts,
    facts: &HostFacts,
) -> Result<Option<Event>> {
    let (Some(version), Some(previous)) = (&facts.version, before.agent_version()) else { return Ok(None) };
    if version == previous {
        return Ok(None);
    }
    let details = json!({
        "remote_ip": source.remote_ip, "agent_version": version, "previous_agent_version": previous,
    });
    Ok(Some(agent_event("server.connect", known, source)?.details(details)))
}

fn contest_of(tag: &str) -> &'static str {
    if tag == CONTROL { fact::CONTROL_CONTEST } else { fact::BACKHAUL_CONTEST }
}

impl ServerLink {
    /// The number of the open control connection.
    pub(super) fn open_control(&self) -> Result<Option<u64>> {
        Ok(self.tables().fact::<Option<u64>>(fact::CONTROL_OPEN)?.flatten())
    }

    /// The connection of a kind that a newer one would replace.
    fn older(&self, tag: &str) -> Result<Option<WebSocket>> {
        if tag == BACKHAUL {
            return self.open_socket();
        }
        let Some(open) = self.open_control()? else { return Ok(None) };
        Ok(self.socket_of(tag, open))
    }

    fn contest(&self, tag: &str) -> Result<Contest> {
        Ok(self.tables().fact(contest_of(tag))?.unwrap_or_default())
    }

    /// Whether connections of a kind replaced each other so often that the older one may stay.
    pub(super) fn is_contested(&self, tag: &str) -> Result<bool> {
        Ok(self.is_used()? && self.contest(tag)?.is_open(now()) && self.older(tag)?.is_some())
    }

    /// Asks the older agent whether it is alive. Nothing comes back on a control connection, so the backhaul is asked for both.
    pub(super) async fn older_answers(&self, tag: &str) -> Result<bool> {
        let before = self.pongs.get();
        let asked = self.open_generation()?;
        let Some(socket) = self.open_socket()? else { return Ok(false) };
        if socket.send_with_str(serde_json::to_string(&ToAgent::Ping)?).is_ok() {
            self.ponged.wait((), ANSWER_WITHIN).await;
        }
        let answers = self.is_used()? && self.pongs.get() != before && self.open_generation()? == asked;
        if !answers && tag == BACKHAUL && self.is_used()? {
            // The older agent is dead, and its control connection with it.
            for contest in [fact::BACKHAUL_CONTEST, fact::CONTROL_CONTEST] {
                self.tables().set_fact(contest, &Contest::default())?;
            }
        }
        Ok(answers && self.older(tag)?.is_some())
    }

    /// Notes that a connection is about to replace an older one, if there is one.
    pub(super) fn note_replacement(&self, tag: &str) -> Result<()> {
        if self.older(tag)?.is_some() {
            let mut contest = self.contest(tag)?;
            contest.note_replacement(now());
            self.tables().set_fact(contest_of(tag), &contest)?;
        }
        Ok(())
    }

    /// Notes that a connection was refused, as the older agent is alive.
    pub(super) fn note_conflict(&self, known: &Known, source: Source, tag: &str) -> Result<()> {
        let (now, facts) = (now(), self.facts()?);
        let mut contest = self.contest(tag)?;
        contest.note_refusal(now);
        self.tables().set_fact(contest_of(tag), &contest)?;
        if facts.identity_conflict_at.is_some_and(|at| at <= now && at.plus_seconds(RECORD_EVERY) > now) {
            return Ok(());
        }
        let details = json!({"remote_ip": source.remote_ip, "connected_remote_ip": facts.remote_ip});
        let event = agent_event("server.conflict", known, source)?.details(details);
        self.change_facts(|facts| {
            facts.identity_conflict_at = Some(now);
            facts.note(event);
        })
    }

    /// Takes a conflict off the server that was not seen for long.
    pub(super) fn clear_old_conflict(&self, now: Timestamp) -> Result<()> {
        match self.facts()?.identity_conflict_at {
            Some(at) if at.plus_seconds(SHOWN_FOR) <= now => {
                self.change_facts(|facts| facts.identity_conflict_at = None)
            }
            _ => Ok(()),
        }
    }
}
