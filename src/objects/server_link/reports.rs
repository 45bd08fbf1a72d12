//! What an agent reports.

use farhand_domain::audit::Source;
use farhand_domain::lifecycle::Lifecycle;
use farhand_domain::link::stored_command::StoredCommand;
use farhand_domain::time::Timestamp;
use serde_json::Value;
use uuid::Uuid;

use super::calls::{AgentCall, Answer, OfServer, Refusal, Remove, Report};
use super::contest::{agent_event, upgrade_event};
use super::identity::Known;
use super::object::{ServerLink, fact, now};
use crate::platform;

/// How long after it connected an agent may still report that its process began, in seconds.
const START_IS_TOLD_WITHIN: i64 = 60;

impl ServerLink {
    pub(super) async fn agent(&self, call: AgentCall) -> worker::Result<Answer> {
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
            Report::Ack { command } => self.on_command(&known, command, source, |stored| Ok(stored.life.ack(now())))?,
            Report::Chunk { command, chunk } => match self.tables().command(command)? {
                None => Self::unknown(&known, command),
                Some(stored) => {
                    let now = now();
                    let is_taken = stored.takes_chunk(chunk.seq.into(), now);
                    let is_new = is_taken && self.tables().add_chunk(&stored, &chunk, now)?;
                    // Until the end D1 need not know how much output there is: who reads the command asks here.
                    if is_new && stored.life.outcome().is_some() {
                        self.flush_soon()?;
                    }
                    self.output_came.tell(&command);
                    Answer::Done(Value::Null)
                }
            },
            Report::Fin { command, fin } => {
                let answer = self.on_command(&known, command, source, |stored| Ok(stored.finish(fin, now())))?;
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
        change: impl FnOnce(&mut StoredCommand) -> worker::Result<bool>,
    ) -> worker::Result<Answer> {
        let Some(mut stored) = self.find(id)? else { return Ok(Self::unknown(known, id)) };
        let before = stored.life.state();
        if change(&mut stored)? {
            let state = stored.life.state();
            if state.is_final() && state != before {
                self.note_end_by_agent(&mut stored, known, source)?;
            }
            self.save(&stored)?;
        }
        Ok(Answer::Done(Value::Null))
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
    pub(super) fn settle_start(&self, now: Timestamp) -> worker::Result<()> {
        let Some(started) = self.tables().fact::<Option<Timestamp>>(fact::STARTED)?.flatten() else { return Ok(()) };
        self.tables().set_fact(fact::STARTED, &None::<Timestamp>)?;
        if started.plus_seconds(START_IS_TOLD_WITHIN) > now {
            self.doubt(started, Lifecycle::agent_restarted)
        } else {
            Ok(())
        }
    }

    /// Notes that the agent is there; D1 hears of it now and then.
    pub(super) fn seen(&self) -> worker::Result<()> {
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
}
