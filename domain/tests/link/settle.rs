//! Lets all pending work finish: D1 answers everything, and alarms go off until nothing is due for
//! a minute. Then it checks what must be true in that state.

use farhand_domain::link::call::{DeleteOldCommands, LinkRequest, LinkResponse, ReadLiveFields};
use farhand_domain::link::event::Event;
use farhand_domain::link::stored_command::Phase;
use uuid::Uuid;

use super::world::{Call, CallKind, Check, World};
use crate::ensure;

/// All work has finished if nothing is due for this number of seconds.
const QUIET: i64 = 60;
/// Maximum number of steps until all work has finished.
const STEPS: u32 = 400;

impl World {
    /// Lets all pending work finish, and checks the final state.
    pub fn settle(&mut self) -> Check {
        self.crash = None;
        self.d1.denied.clear();
        if self.history.needs_resync {
            self.drain()?;
            self.resync()?;
        }
        // A batch repeats calls that got no reply.
        let is_unanswered = |call: &&Call| !matches!(call.answer, Some(LinkResponse::Done(_)));
        let kinds: Vec<CallKind> =
            self.calls.values().filter(is_unanswered).map(|call| call.kind.clone()).collect();
        for kind in kinds {
            if let CallKind::RunOfBatch(command) = kind
                && self.d1.commands.contains_key(&command.command.id)
            {
                self.call(CallKind::Other, LinkRequest::RunOfBatch(command))?;
            }
        }
        // If a crash lost the alarm, this call sets it again.
        self.call(
            CallKind::Other,
            LinkRequest::ReadLiveFields(ReadLiveFields { id: Uuid::max(), wait: None }),
        )?;
        self.drain()?;
        // The purge of workspaces and retention repeat calls that got no reply.
        if self
            .calls
            .values()
            .any(|call| call.is_dead && matches!(call.kind, CallKind::DisconnectAndWipe))
        {
            self.call(CallKind::DisconnectAndWipe, LinkRequest::DisconnectAndWipe)?;
        }
        let ids_to_delete = |kind: &CallKind| {
            if let CallKind::DeleteOld { ids } = kind { ids.clone() } else { vec![] }
        };
        let ids: Vec<Uuid> = self
            .calls
            .values()
            .filter(|call| call.is_dead)
            .flat_map(|call| ids_to_delete(&call.kind))
            .collect();
        let ids: Vec<Uuid> =
            ids.into_iter().filter(|id| !self.store().rows.contains_key(id)).collect();
        if !ids.is_empty() {
            self.call(
                CallKind::DeleteOld { ids: ids.clone() },
                LinkRequest::DeleteOldCommands(DeleteOldCommands { ids, until: self.now }),
            )?;
        }
        for _ in 0..STEPS {
            self.drain()?;
            let end = self.now.plus_seconds(QUIET);
            let later = self.call_timers.values().copied().min();
            let Some(at) = [later, self.alarm].into_iter().flatten().min().filter(|at| *at <= end)
            else {
                return self.check_quiet();
            };
            self.now = self.now.max(at).plus_millis(1);
            if later == Some(at) { self.time_is_up_first()? } else { self.alarm_goes_off(0)? }
        }
        Err("the work does not finish".to_owned())
    }

    fn time_is_up_first(&mut self) -> Check {
        let first = self
            .call_timers
            .values()
            .enumerate()
            .min_by_key(|(_, at)| **at)
            .map(|(place, _)| place);
        first.map_or(Ok(()), |place| self.time_is_up(place))
    }

    /// D1 answers all requests, and the runtime reports the connections that closed.
    fn drain(&mut self) -> Check {
        for _ in 0..STEPS {
            self.now = self.now.plus_millis(1);
            if !self.d1_calls.is_empty() {
                self.answer(0, 0)?;
            } else if let Some(socket) =
                self.sockets.iter_mut().find(|socket| socket.must_report_close)
            {
                socket.must_report_close = false;
                let generation = socket.generation;
                self.step(Event::Closed(generation))?;
            } else {
                return Ok(());
            }
        }
        Err("requests to D1 do not end".to_owned())
    }

    fn check_quiet(&mut self) -> Check {
        for (ticket, call) in &self.calls {
            ensure!(
                call.is_dead || call.answer.is_some(),
                "call {ticket} is not answered: {:?}",
                call.kind
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
            ensure!(row.is_flushed(), "D1 does not have the latest revision of {id}");
            let in_d1 = self.d1.commands.get(&id).ok_or(format!("D1 does not have {id}"))?;
            ensure!(
                in_d1.life == row.command.life,
                "D1 has another lifecycle of the command: {:?}, {:?}",
                in_d1.life,
                row.command.life
            );
        }
        // The snapshot may have a command that was withdrawn later.
        for id in self.d1.commands.keys().filter(|_| !self.history.was_restored) {
            ensure!(store.rows.contains_key(id), "D1 has {id}, which was refused");
        }
        for call in self.calls.values() {
            if let (
                CallKind::Create { id, .. },
                Some(LinkResponse::Refused(_) | LinkResponse::Failed(_)),
            ) = (&call.kind, &call.answer)
            {
                ensure!(!store.rows.contains_key(id), "a refused command is still stored");
            }
        }
        self.check_server()?;
        let is_exempt = self.history.was_restored || self.history.was_wiped;
        for (id, times) in &self.d1.events {
            ensure!(*times == 1, "an event is {times} times in D1: {id}");
        }
        for id in &self.history.event_ids {
            ensure!(is_exempt || self.d1.events.contains_key(id), "D1 lacks the event {id}");
        }
        Ok(())
    }

    fn check_server(&self) -> Check {
        let store = self.link.store();
        let Some(state) = &store.state else {
            ensure!(store.rows.is_empty() && store.answers.is_empty(), "a wiped object has rows");
            return Ok(());
        };
        ensure!(state.unconfirmed.is_none(), "the server is still unconfirmed");
        ensure!(state.resync.is_none(), "the resync has not ended");
        let Some(known) = &state.identity else {
            ensure!(!store.rows.is_empty(), "an object without server and commands is not wiped");
            return Ok(());
        };
        let row = self.d1.server.as_ref().ok_or("D1 has no such server")?;
        ensure!(
            row.key_hash == known.key_hash && row.next_key == known.next_key,
            "D1 has another key"
        );
        let is_valid = |key: &str| {
            known.key_hash == key
                || known.next_key.as_ref().is_some_and(|next| next.key_hash == key)
        };
        ensure!(
            self.sockets.iter().all(|socket| !socket.is_open || is_valid(&socket.key)),
            "an agent with another key is connected"
        );
        ensure!(
            row.revision == state.facts.revision,
            "D1 does not have the latest revision of the server"
        );
        let facts = [&row.facts, &state.facts]
            .map(|facts| (facts.is_connected, facts.agent_version.clone()));
        // An object does not have the facts that D1 had before it was restored, or before the server
        // was undeleted. A fact that the agent did not report keeps its value in D1.
        let is_exempt = self.history.was_restored || self.history.was_undeleted;
        ensure!(facts[0] == facts[1] || is_exempt, "D1 has other facts");
        ensure!(row.facts.is_connected == state.facts.is_connected, "D1 has another connection");
        Ok(())
    }
}
