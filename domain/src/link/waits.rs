//! Calls that wait: for a command's end, its output, D1, another call, or a pong.

use std::time::Duration;

use uuid::Uuid;

use super::call::{Created, IdempotencyKey, LinkResponse, ReadLiveFields, Refusal};
use super::event::{Effect, Ticket};
use super::machine::Machine;
use super::memory::{AfterWait, Recording, WaitingCall, WaitsFor};
use super::store::{Result, Store};
use super::stored_command::{Phase, StoredCommand};
use crate::time::Timestamp;

/// How long a call waits for output that the agent sends after the command's end.
const LATE_OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a call waits until D1 has the end that the reply shows.
const D1_COPY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a call waits until another call has recorded its command.
const RECORDED_TIMEOUT: Duration = Duration::from_secs(10);

impl<S: Store> Machine<S> {
    /// Lets a call wait. If `until` is `None`, the wait has no time limit.
    pub(super) fn wait(&mut self, ticket: Ticket, until: Option<Timestamp>, waits_for: WaitsFor) {
        if let Some(until) = until {
            self.effects.push(Effect::StartCallTimer(ticket, until));
        }
        self.waits.insert(ticket, WaitingCall { until, waits_for });
    }

    /// Whether a waiting call will store the response for an Idempotency-Key.
    pub(super) fn is_answer_pending(&self, key: &str) -> bool {
        self.waits.values().any(|wait| wait.key_to_answer() == Some(key))
    }

    /// Ends the wait of a call whose command is being recorded.
    pub(super) fn take_recording(&mut self, ticket: Ticket) -> Option<Recording> {
        match self.waits.remove(&ticket)?.waits_for {
            WaitsFor::Recording(recording) => Some(recording),
            _ => None,
        }
    }

    /// Whether a call is still recording this command.
    pub(super) fn is_recording(&self, id: Uuid) -> bool {
        let is_of = |wait: &WaitingCall| matches!(&wait.waits_for, WaitsFor::Recording(recording) if recording.id == id);
        self.waits.values().any(is_of)
    }

    /// Resumes the calls that wait for a pong of this connection.
    pub(super) fn resume_pong_waits(&mut self, generation: u64) -> Result<()> {
        let waits = |wait: &&WaitingCall| wait.awaited_pong() == Some(generation);
        let tickets: Vec<Ticket> =
            self.waits.iter().filter(|(_, wait)| waits(wait)).map(|(ticket, _)| *ticket).collect();
        tickets.into_iter().try_for_each(|ticket| self.resume(ticket, false))
    }

    /// The commands whose end or withdrawal must reach D1 before a waiting call gets its reply.
    pub(super) fn awaited_in_d1(&self) -> Vec<Uuid> {
        let awaited = |wait: &WaitingCall| match wait.waits_for {
            WaitsFor::D1Copy(id, _) => Some(id),
            _ => None,
        };
        self.waits.values().filter_map(awaited).collect()
    }

    /// Resumes the calls that wait for the changes of this step. A resumed call may make further
    /// changes, so this repeats until no change is left.
    pub(super) fn resume_waiting(&mut self) -> Result<()> {
        while !self.changed_commands.is_empty() || !self.released_keys.is_empty() {
            let commands = std::mem::take(&mut self.changed_commands);
            let keys = std::mem::take(&mut self.released_keys);
            let concerns = |wait: &WaitingCall| {
                wait.awaited_command().is_some_and(|id| commands.contains(&id))
                    || wait.awaited_key().is_some_and(|key| keys.contains(key))
            };
            let tickets: Vec<Ticket> = self
                .waits
                .iter()
                .filter(|(_, wait)| concerns(wait))
                .map(|(ticket, _)| *ticket)
                .collect();
            for ticket in tickets {
                self.resume(ticket, false)?;
            }
        }
        Ok(())
    }

    /// Checks the condition of a waiting call: the call continues, or waits again. `is_timer`: its
    /// timer ran out.
    pub(super) fn resume(&mut self, ticket: Ticket, is_timer: bool) -> Result<()> {
        let Some(wait) = self.waits.remove(&ticket) else { return Ok(()) };
        if is_timer && let Some(until) = wait.until.filter(|until| *until > self.input.now) {
            self.effects.push(Effect::StartCallTimer(ticket, until));
            self.waits.insert(ticket, wait);
            return Ok(());
        }
        let is_timed_out = wait.until.is_some_and(|until| until <= self.input.now);
        match wait.waits_for {
            WaitsFor::Recorded(live) if is_timed_out || !self.is_recording(live.id) => {
                self.answer_live(ticket, live)
            }
            WaitsFor::SendOutcome(recording, stored) => {
                self.send_settled(ticket, recording, stored)
            }
            WaitsFor::FirstAnswer(key, create) => self.replay(ticket, key, create),
            WaitsFor::End(id, then) => match self.find(id)? {
                Some(stored) if !is_timed_out && !stored.life.state().is_final() => {
                    self.waits.insert(
                        ticket,
                        WaitingCall { until: wait.until, waits_for: WaitsFor::End(id, then) },
                    );
                    Ok(())
                }
                _ => {
                    let until = self.input.now.plus(LATE_OUTPUT_TIMEOUT);
                    self.await_output(ticket, id, until, then)
                }
            },
            WaitsFor::Output(id, then) => {
                let until = wait.until.unwrap_or(self.input.now);
                self.await_output(ticket, id, until, then)
            }
            WaitsFor::D1Copy(id, then) => {
                let is_failing = self.server.as_ref().is_some_and(|server| server.failures > 0);
                if is_timed_out || is_failing {
                    return self.finish(ticket, id, then);
                }
                let until = wait.until.unwrap_or(self.input.now);
                self.await_d1_until(ticket, id, until, then)
            }
            WaitsFor::NextOutput(follow, until) => self.follow_until(ticket, follow, until, false),
            WaitsFor::Pong(generation, call) => self.older_ping_ended(generation, *call, !is_timer),
            waits_for @ (WaitsFor::Recording(_) | WaitsFor::Recorded(_)) => {
                self.waits.insert(ticket, WaitingCall { until: wait.until, waits_for });
                Ok(())
            }
        }
    }

    /// Replies with a command's live fields, after the command is recorded.
    pub(super) fn live(&mut self, ticket: Ticket, live: ReadLiveFields) -> Result<()> {
        if self.is_recording(live.id) {
            let until = self.input.now.plus(RECORDED_TIMEOUT);
            self.wait(ticket, Some(until), WaitsFor::Recorded(live));
            return Ok(());
        }
        self.answer_live(ticket, live)
    }

    fn answer_live(&mut self, ticket: Ticket, live: ReadLiveFields) -> Result<()> {
        self.await_end(ticket, live.id, live.wait, AfterWait::Live)
    }

    /// Waits for a command's end if the client requested that (`seconds`), then for its output and
    /// for D1.
    pub(super) fn await_end(
        &mut self,
        ticket: Ticket,
        id: Uuid,
        seconds: Option<u32>,
        then: AfterWait,
    ) -> Result<()> {
        if let Some(seconds) = seconds.filter(|seconds| *seconds > 0)
            && self.find(id)?.is_some_and(|stored| !stored.life.state().is_final())
        {
            let until = self.input.now.plus_seconds(seconds.into());
            self.wait(ticket, Some(until), WaitsFor::End(id, then));
            return Ok(());
        }
        // A call that does not wait for the end does not wait for late output either.
        self.await_d1(ticket, id, then)
    }

    fn await_output(
        &mut self,
        ticket: Ticket,
        id: Uuid,
        until: Timestamp,
        then: AfterWait,
    ) -> Result<()> {
        if until > self.input.now && self.find(id)?.is_some_and(|stored| stored.awaits_output()) {
            self.wait(ticket, Some(until), WaitsFor::Output(id, then));
            return Ok(());
        }
        self.await_d1(ticket, id, then)
    }

    /// Waits until D1 has a command's end, so that a list is not older than the reply
    /// (contract 8.1). If D1 does not answer in time, the call gets its reply without D1, and the
    /// outbox continues.
    pub(super) fn await_d1(&mut self, ticket: Ticket, id: Uuid, then: AfterWait) -> Result<()> {
        self.await_d1_until(ticket, id, self.input.now.plus(D1_COPY_TIMEOUT), then)
    }

    fn await_d1_until(
        &mut self,
        ticket: Ticket,
        id: Uuid,
        until: Timestamp,
        then: AfterWait,
    ) -> Result<()> {
        let lacks = |stored: StoredCommand| match stored.phase {
            Phase::Withdrawing => true,
            _ => stored.life.state().is_final() && !stored.is_flushed,
        };
        if self.find(id)?.is_some_and(lacks) {
            self.wait(ticket, Some(until), WaitsFor::D1Copy(id, then));
            return self.flush();
        }
        self.finish(ticket, id, then)
    }

    fn finish(&mut self, ticket: Ticket, id: Uuid, then: AfterWait) -> Result<()> {
        match then {
            AfterWait::Created(key, stored) => {
                let stored = self.find(id)?.unwrap_or(*stored);
                self.answer_created(ticket, key.as_ref(), &stored, false)
            }
            AfterWait::Live => {
                let answer = self.live_answer(id)?;
                self.reply(ticket, answer);
                Ok(())
            }
            AfterWait::Refuse(refusal) => {
                self.refuse(ticket, refusal);
                Ok(())
            }
            AfterWait::Recovered(key) => {
                let made = self.find(id)?.filter(|stored| stored.phase == Phase::Accepted);
                match made {
                    Some(stored) => self.answer_created(ticket, Some(&key), &stored, true),
                    None => {
                        self.refuse(ticket, Refusal::KeyInUse);
                        self.released_keys.insert(key.hash);
                        Ok(())
                    }
                }
            }
            AfterWait::EndStream(follow) => {
                let now = self.input.now;
                self.follow_until(ticket, follow, now, true)
            }
        }
    }

    /// Replies with a command, and stores the reply for its Idempotency-Key.
    pub(super) fn answer_created(
        &mut self,
        ticket: Ticket,
        key: Option<&IdempotencyKey>,
        stored: &StoredCommand,
        replayed: bool,
    ) -> Result<()> {
        let command = self.command_json(stored)?;
        if let Some(key) = key {
            if self.server.is_some() {
                let text = serde_json::to_string(&command).unwrap_or_default();
                self.store.set_idempotent_answer(&key.hash, &text)?;
            }
            self.released_keys.insert(key.hash.clone());
        }
        self.reply(ticket, LinkResponse::done(Created { command, replayed }));
        Ok(())
    }
}
