//! What must be true when all is quiet: D1 answers everything, and alarms go off until nothing is
//! due for long.

use farhand_domain::link::call::{Answer, Ask, Forget, Live};
use farhand_domain::link::event::Event;
use farhand_domain::link::stored_command::Phase;
use uuid::Uuid;

use super::world::{Check, What, World};
use crate::ensure;

/// It is quiet when nothing is due for so long, in seconds.
const QUIET: i64 = 60;
/// How many steps that takes at most.
const STEPS: u32 = 400;

impl World {
    /// Lets everything come to its end.
    pub fn settle(&mut self) -> Check {
        self.crash = None;
        self.d1.denied.clear();
        if self.history.needs_resync {
            self.drain()?;
            self.resync()?;
        }
        // An alarm that a crash has taken is set by the next call.
        self.call(What::Other, Ask::Live(Live { id: Uuid::max(), wait: None }))?;
        self.drain()?;
        // Who was not answered asks again: who purges workspaces, and retention.
        if self.calls.values().any(|call| call.is_dead && matches!(call.what, What::Sever)) {
            self.call(What::Sever, Ask::Sever)?;
        }
        let is_dead =
            |what: &What| if let What::Forget { ids } = what { ids.clone() } else { vec![] };
        let ids: Vec<Uuid> = self
            .calls
            .values()
            .filter(|call| call.is_dead)
            .flat_map(|call| is_dead(&call.what))
            .collect();
        let ids: Vec<Uuid> =
            ids.into_iter().filter(|id| !self.store().rows.contains_key(id)).collect();
        if !ids.is_empty() {
            self.call(
                What::Forget { ids: ids.clone() },
                Ask::Forget(Forget { ids, until: self.now }),
            )?;
        }
        for _ in 0..STEPS {
            self.drain()?;
            let end = self.now.plus_seconds(QUIET);
            let later = self.laters.values().copied().min();
            let Some(at) = [later, self.alarm].into_iter().flatten().min().filter(|at| *at <= end)
            else {
                return self.check_quiet();
            };
            self.now = self.now.max(at).plus_millis(1);
            if later == Some(at) { self.time_is_up_first()? } else { self.alarm_goes_off(0)? }
        }
        Err("it does not come to rest".to_owned())
    }

    fn time_is_up_first(&mut self) -> Check {
        let first =
            self.laters.values().enumerate().min_by_key(|(_, at)| **at).map(|(place, _)| place);
        first.map_or(Ok(()), |place| self.time_is_up(place))
    }

    /// D1 answers everything, the runtime reports what closed, and the agent answers its pings.
    fn drain(&mut self) -> Check {
        for _ in 0..STEPS {
            self.now = self.now.plus_millis(1);
            if !self.flights.is_empty() {
                self.answer(0, 0)?;
            } else if let Some(socket) = self.sockets.iter_mut().find(|socket| socket.closes) {
                socket.closes = false;
                let generation = socket.generation;
                self.step(Event::Closed(generation))?;
            } else {
                return Ok(());
            }
        }
        Err("D1 is asked again and again".to_owned())
    }

    fn check_quiet(&mut self) -> Check {
        for (ticket, call) in &self.calls {
            ensure!(
                call.is_dead || call.answer.is_some(),
                "call {ticket} is not answered: {:?}",
                call.what
            );
        }
        let store = self.link.store();
        for row in store.rows.values() {
            let id = row.command.command.id;
            ensure!(
                row.command.phase == Phase::Accepted,
                "command {id} is {:?}",
                row.command.phase
            );
            ensure!(row.is_flushed(), "D1 does not have the latest of {id}");
            let told = self.d1.commands.get(&id).ok_or(format!("D1 does not have {id}"))?;
            ensure!(
                told.life == row.command.life,
                "D1 has another life: {:?}, {:?}",
                told.life,
                row.command.life
            );
        }
        // D1 may have been taken back to when it had a command that was withdrawn after that.
        for id in self.d1.commands.keys().filter(|_| !self.history.was_taken_back) {
            ensure!(store.rows.contains_key(id), "D1 has {id}, which was refused");
        }
        for call in self.calls.values() {
            if let (What::Create { id, .. }, Some(Answer::Refused(_) | Answer::Failed(_))) =
                (&call.what, &call.answer)
            {
                ensure!(!store.rows.contains_key(id), "a refused command is there");
            }
        }
        self.check_server()?;
        let is_exempt = self.history.was_taken_back || self.history.was_severed;
        for (id, times) in &self.d1.events {
            ensure!(*times == 1, "an event is {times} times in D1: {id}");
        }
        for id in &self.history.noted {
            ensure!(is_exempt || self.d1.events.contains_key(id), "D1 lacks the event {id}");
        }
        Ok(())
    }

    fn check_server(&self) -> Check {
        let store = self.link.store();
        let Some(state) = &store.state else {
            ensure!(store.rows.is_empty() && store.answers.is_empty(), "something is left over");
            return Ok(());
        };
        ensure!(state.unconfirmed.is_none(), "what D1 says is not sure");
        ensure!(state.resync.is_none(), "the resync is not over");
        let Some(known) = &state.identity else {
            ensure!(!store.rows.is_empty(), "an object without a server is left over");
            return Ok(());
        };
        let row = self.d1.server.as_ref().ok_or("D1 has no such server")?;
        ensure!(row.key_hash == known.key_hash, "D1 has another key");
        ensure!(row.revision == state.facts.revision, "D1 does not know the latest of the server");
        let facts = [&row.facts, &state.facts]
            .map(|facts| (facts.is_connected, facts.agent_version.clone()));
        // An object that was wiped does not know what D1 was told before it was taken back.
        ensure!(facts[0] == facts[1] || self.history.was_taken_back, "D1 has other facts");
        Ok(())
    }
}
