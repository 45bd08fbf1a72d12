//! Calls that wait: for a command's end, its output, D1, another call, or a pong.

use uuid::Uuid;

use super::call::{Answer, Created, Key, Live, Refusal};
use super::event::{Effect, Ticket};
use super::machine::Link;
use super::memory::{Recording, Then, Wait, What};
use super::store::{Result, Store};
use super::stored_command::{Phase, StoredCommand};
use crate::time::Timestamp;

/// How long an answer waits for output that its command's end has overtaken, in milliseconds.
const OUTPUT_FOLLOWS_WITHIN: i64 = 1_000;
/// How long an answer waits for D1 to have the end that it shows, in milliseconds.
const D1_HAS_END_WITHIN: i64 = 1_000;
/// How long a request for a command that is being recorded waits for that, in seconds.
const RECORDED_WITHIN: i64 = 10;

impl<S: Store> Link<S> {
    /// Has a call wait.
    pub(super) fn wait(&mut self, ticket: Ticket, until: Option<Timestamp>, what: What) {
        if let Some(until) = until {
            self.effects.push(Effect::Later(ticket, until));
        }
        self.waits.insert(ticket, Wait { until, what });
    }

    /// Whether a waiting call will store the answer to an Idempotency-Key.
    pub(super) fn is_answering(&self, key: &str) -> bool {
        self.waits.values().any(|wait| wait.answers_to() == Some(key))
    }

    /// Takes the request of a call whose command is being recorded.
    pub(super) fn take_recording(&mut self, ticket: Ticket) -> Option<Recording> {
        match self.waits.remove(&ticket)?.what {
            What::Recording(recording) => Some(recording),
            _ => None,
        }
    }

    /// Whether a call is recording a command.
    pub(super) fn is_recording(&self, id: Uuid) -> bool {
        let is_of =
            |wait: &Wait| matches!(&wait.what, What::Recording(recording) if recording.id == id);
        self.waits.values().any(is_of)
    }

    /// Looks at the calls that wait for a pong of a connection.
    pub(super) fn look_at_connection(&mut self, generation: u64) -> Result<()> {
        let waits = |wait: &&Wait| wait.connection() == Some(generation);
        let tickets: Vec<Ticket> =
            self.waits.iter().filter(|(_, wait)| waits(wait)).map(|(ticket, _)| *ticket).collect();
        tickets.into_iter().try_for_each(|ticket| self.look(ticket, false))
    }

    /// The commands for whose end or withdrawal calls wait until D1 has it.
    pub(super) fn awaited_in_d1(&self) -> Vec<Uuid> {
        let awaited = |wait: &Wait| match wait.what {
            What::D1(id, _) => Some(id),
            _ => None,
        };
        self.waits.values().filter_map(awaited).collect()
    }

    /// Looks at the calls that wait for what this step changed, until none is left. A call that
    /// goes on may change something in turn.
    pub(super) fn look_at_waits(&mut self) -> Result<()> {
        while !self.touched.is_empty() || !self.freed_keys.is_empty() {
            let commands = std::mem::take(&mut self.touched);
            let keys = std::mem::take(&mut self.freed_keys);
            let concerns = |wait: &Wait| {
                wait.command().is_some_and(|id| commands.contains(&id))
                    || wait.wants().is_some_and(|key| keys.contains(key))
            };
            let tickets: Vec<Ticket> = self
                .waits
                .iter()
                .filter(|(_, wait)| concerns(wait))
                .map(|(ticket, _)| *ticket)
                .collect();
            for ticket in tickets {
                self.look(ticket, false)?;
            }
        }
        Ok(())
    }

    /// Looks at a waiting call: it goes on, or waits again. `is_timer`: its timer ran out.
    pub(super) fn look(&mut self, ticket: Ticket, is_timer: bool) -> Result<()> {
        let Some(wait) = self.waits.remove(&ticket) else { return Ok(()) };
        if is_timer && let Some(until) = wait.until.filter(|until| *until > self.scene.now) {
            self.effects.push(Effect::Later(ticket, until));
            self.waits.insert(ticket, wait);
            return Ok(());
        }
        let is_over = wait.until.is_some_and(|until| until <= self.scene.now);
        match wait.what {
            What::Recorded(live) if is_over || !self.is_recording(live.id) => {
                self.show(ticket, live)
            }
            What::Sent(recording, stored) => self.sent(ticket, recording, stored),
            What::Twin(key, create) => self.replay(ticket, key, create),
            What::End(id, then) => match self.find(id)? {
                Some(stored) if !is_over && !stored.life.state().is_final() => {
                    self.waits
                        .insert(ticket, Wait { until: wait.until, what: What::End(id, then) });
                    Ok(())
                }
                _ => {
                    let until = self.scene.now.plus_millis(OUTPUT_FOLLOWS_WITHIN);
                    self.await_output(ticket, id, until, then)
                }
            },
            What::Output(id, then) => {
                let until = wait.until.unwrap_or(self.scene.now);
                self.await_output(ticket, id, until, then)
            }
            What::D1(id, then) => {
                let is_failing = self.server.as_ref().is_some_and(|server| server.failures > 0);
                if is_over || is_failing {
                    return self.proceed(ticket, id, then);
                }
                let until = wait.until.unwrap_or(self.scene.now);
                self.await_d1_until(ticket, id, until, then)
            }
            What::Follow(asked, until) => self.follow_until(ticket, asked, until, false),
            What::Pong(generation, identified) => {
                self.older_answered(generation, *identified, !is_timer)
            }
            what @ (What::Recording(_) | What::Recorded(_)) => {
                self.waits.insert(ticket, Wait { until: wait.until, what });
                Ok(())
            }
        }
    }

    /// Answers with a command's live fields, as soon as it is recorded.
    pub(super) fn live(&mut self, ticket: Ticket, live: Live) -> Result<()> {
        if self.is_recording(live.id) {
            let until = self.scene.now.plus_seconds(RECORDED_WITHIN);
            self.wait(ticket, Some(until), What::Recorded(live));
            return Ok(());
        }
        self.show(ticket, live)
    }

    fn show(&mut self, ticket: Ticket, live: Live) -> Result<()> {
        self.await_end(ticket, live.id, live.wait, Then::Live)
    }

    /// Waits for a command's end if that is asked for, and for what follows it.
    pub(super) fn await_end(
        &mut self,
        ticket: Ticket,
        id: Uuid,
        seconds: Option<u32>,
        then: Then,
    ) -> Result<()> {
        if let Some(seconds) = seconds.filter(|seconds| *seconds > 0)
            && self.find(id)?.is_some_and(|stored| !stored.life.state().is_final())
        {
            let until = self.scene.now.plus_seconds(seconds.into());
            self.wait(ticket, Some(until), What::End(id, then));
            return Ok(());
        }
        // A call that did not wait for the end does not wait for output after it.
        self.await_d1(ticket, id, then)
    }

    fn await_output(
        &mut self,
        ticket: Ticket,
        id: Uuid,
        until: Timestamp,
        then: Then,
    ) -> Result<()> {
        if until > self.scene.now && self.find(id)?.is_some_and(|stored| stored.awaits_output()) {
            self.wait(ticket, Some(until), What::Output(id, then));
            return Ok(());
        }
        self.await_d1(ticket, id, then)
    }

    /// Waits until D1 has a command's end, so that no list lags behind the answer
    /// (contract 8.1). If D1 does not answer, the outbox goes on without the call.
    pub(super) fn await_d1(&mut self, ticket: Ticket, id: Uuid, then: Then) -> Result<()> {
        self.await_d1_until(ticket, id, self.scene.now.plus_millis(D1_HAS_END_WITHIN), then)
    }

    fn await_d1_until(
        &mut self,
        ticket: Ticket,
        id: Uuid,
        until: Timestamp,
        then: Then,
    ) -> Result<()> {
        let lacks = |stored: StoredCommand| match stored.phase {
            Phase::Withdrawing => true,
            _ => stored.life.state().is_final() && !stored.is_flushed,
        };
        if self.find(id)?.is_some_and(lacks) {
            self.wait(ticket, Some(until), What::D1(id, then));
            return self.tell();
        }
        self.proceed(ticket, id, then)
    }

    fn proceed(&mut self, ticket: Ticket, id: Uuid, then: Then) -> Result<()> {
        match then {
            Then::Created(key, stored) => {
                let stored = self.find(id)?.unwrap_or(*stored);
                self.answer_created(ticket, key.as_ref(), &stored, false)
            }
            Then::Live => {
                let answer = self.live_answer(id)?;
                self.reply(ticket, answer);
                Ok(())
            }
            Then::Refuse(refusal) => {
                self.refuse(ticket, refusal);
                Ok(())
            }
            Then::Made(key) => {
                let made = self.find(id)?.filter(|stored| stored.phase == Phase::Accepted);
                match made {
                    Some(stored) => self.answer_created(ticket, Some(&key), &stored, true),
                    None => {
                        self.refuse(ticket, Refusal::KeyTaken);
                        self.freed_keys.insert(key.hash);
                        Ok(())
                    }
                }
            }
            Then::Followed(asked) => {
                let now = self.scene.now;
                self.follow_until(ticket, asked, now, true)
            }
        }
    }

    /// Answers with a command, and stores the answer for its Idempotency-Key.
    pub(super) fn answer_created(
        &mut self,
        ticket: Ticket,
        key: Option<&Key>,
        stored: &StoredCommand,
        replayed: bool,
    ) -> Result<()> {
        let command = self.whole(stored)?;
        if let Some(key) = key {
            if self.server.is_some() {
                let text = serde_json::to_string(&command).unwrap_or_default();
                self.store.set_answer(&key.hash, &text)?;
            }
            self.freed_keys.insert(key.hash.clone());
        }
        self.reply(ticket, Answer::done(Created { command, replayed }));
        Ok(())
    }
}
