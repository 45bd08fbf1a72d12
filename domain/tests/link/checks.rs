//! What must be true after every step.

use farhand_domain::lifecycle::{Lifecycle, State};
use farhand_domain::link::call::{Answer, Created, Forgotten};
use farhand_domain::link::event::{FromD1, Kind, RequestId, ServerChange, ToD1};
use farhand_domain::link::state::Plan;
use farhand_domain::link::store::Store;
use farhand_domain::link::stored_command::{Phase, Stage};
use farhand_domain::time::Timestamp;
use uuid::Uuid;

use super::world::{Check, WINDOW, What, World};
use crate::ensure;

/// How long D1 may take: what it is asked about is not due before that.
const D1_WITHIN: i64 = 31;
/// The longest delay before a failed flush is repeated, in seconds.
const SLOWEST_RETRY: i64 = 61;

/// The kind of a request, if there is never more than one of it under way.
fn single(request: &ToD1) -> Option<&'static str> {
    match request {
        ToD1::Find { .. } | ToD1::Insert { .. } | ToD1::Unrestore(_) => None,
        ToD1::Change(..) => Some("change"),
        ToD1::FindRights(_) => Some("rights"),
        ToD1::Tell { .. } => Some("tell"),
        ToD1::Restore(_) => Some("restore"),
    }
}

/// Whether a life came forward from another.
fn is_forward(before: &Lifecycle, after: &Lifecycle) -> bool {
    fn stays<T: PartialEq>(before: Option<&T>, after: Option<&T>) -> bool {
        before.is_none() || before == after
    }
    let was_stuck = before.state() == State::Stuck;
    stays(before.delivered_at.as_ref(), after.delivered_at.as_ref())
        && stays(before.acked_at.as_ref(), after.acked_at.as_ref())
        && (was_stuck || stays(before.handled_at.as_ref(), after.handled_at.as_ref()))
        && (was_stuck && after.end.is_some() || stays(before.end.as_ref(), after.end.as_ref()))
        && stays(before.killed_by.as_ref(), after.killed_by.as_ref())
        && stays(before.restarted_at.as_ref(), after.restarted_at.as_ref())
        && stays(before.server_deleted_at.as_ref(), after.server_deleted_at.as_ref())
        && (before.added_at, before.scheduled_at, before.expires_at)
            == (after.added_at, after.scheduled_at, after.expires_at)
}

impl World {
    /// Nothing goes to a connection that does not count.
    pub fn check_may_send(&self, kind: Kind, generation: u64) -> Check {
        let state = self.store().state.as_ref().ok_or("a message is sent by an unused object")?;
        ensure!(!state.is_deleted && !state.is_suspended, "a message is sent after the end");
        let is_known =
            |socket: &&super::world::Socket| socket.generation == generation && socket.kind == kind;
        let socket =
            self.sockets.iter().rev().find(is_known).ok_or("a message is sent to no connection")?;
        ensure!(
            !self.history.revoked.contains(&socket.key),
            "a message is sent to an agent with a revoked key"
        );
        Ok(())
    }

    /// A command is sent.
    pub fn check_send(&mut self, id: Uuid) -> Check {
        let row = self.store().rows.get(&id).ok_or("an unknown command is sent")?;
        let (life, now) = (row.command.life.clone(), self.now);
        ensure!(life.delivered_at.is_some(), "a command is sent before that is stored");
        ensure!(row.command.phase == Phase::Accepted, "a command is sent that is not accepted");
        ensure!(life.state() == State::Sent, "a command is sent that is {:?}", life.state());
        ensure!(
            life.scheduled_at <= now && now < life.expires_at,
            "a command is sent at a wrong time"
        );
        let is_checked = match &self.answered {
            Some((_, request, _)) if matches!(&**request, ToD1::Insert { create, .. } if create.command.id == id) => {
                life.is_immediate()
            }
            Some((sent_at, request, FromD1::Rights(Some(verdicts)))) => {
                let ToD1::FindRights(commands) = &**request else {
                    return Err("another answer".to_owned());
                };
                let place = commands.iter().position(|stored| stored.command.id == id);
                place.is_some_and(|place| verdicts[place].is_ok()) && *sent_at >= life.scheduled_at
            }
            _ => false,
        };
        ensure!(is_checked, "a command is sent without a check of its right");
        let sent = self.sent.entry(id).or_default();
        *sent += 1;
        ensure!(*sent == 1, "a command is sent twice");
        Ok(())
    }

    /// What was sent in one step was the front of the queue, in its order.
    pub fn check_order(&self, sent: &[Uuid]) -> Check {
        if !self.history.given_back.is_empty() {
            return Ok(());
        }
        let key =
            |id: &Uuid| self.store().rows.get(id).map(|row| (row.command.life.scheduled_at, *id));
        let keys: Vec<_> = sent.iter().filter_map(key).collect();
        ensure!(keys.is_sorted(), "commands are sent in a wrong order");
        let Some(last) = keys.last() else { return Ok(()) };
        let waits = |row: &&super::store::Row| {
            row.command.stage() == Some(Stage::Waiting) && row.command.life.is_due(self.now)
        };
        let mut waiting = self.store().rows.values().filter(waits);
        let is_first =
            waiting.all(|row| (row.command.life.scheduled_at, row.command.command.id) > *last);
        ensure!(is_first, "a command is sent before another one whose turn it is");
        Ok(())
    }

    /// D1 is asked one thing of a kind after the other.
    pub fn check_ask(&self, request: &ToD1, others: &[(RequestId, Box<ToD1>)]) -> Check {
        let Some(kind) = single(request) else { return Ok(()) };
        let under_way =
            self.flights.iter().filter(|flight| flight.is_awaited()).map(|flight| &*flight.request);
        let is_alone = under_way
            .chain(others.iter().map(|(_, request)| &**request))
            .all(|other| single(other) != Some(kind));
        ensure!(is_alone, "D1 is asked for two of {kind} at a time");
        Ok(())
    }

    /// A call is answered.
    pub fn check_reply(&mut self, what: &What, answer: &Answer) -> Check {
        let Answer::Done(told) = answer else { return Ok(()) };
        match what {
            What::Create { id, key } => self.check_created(Some(*id), key.as_ref(), told)?,
            What::Replay { key } => self.check_created(None, Some(key), told)?,
            What::Agent { key } => {
                ensure!(
                    !self.history.revoked.contains(key),
                    "a report with a revoked key is accepted"
                );
            }
            What::Rotate { key } => self.revoke_other_keys(key)?,
            What::Resync => {
                let ticket =
                    self.calls.iter().filter(|(_, call)| matches!(call.what, What::Resync));
                let is_later = ticket
                    .filter(|(_, call)| call.answer.is_some())
                    .any(|(ticket, _)| *ticket > self.history.taken_back_at);
                self.history.needs_resync &= !is_later;
            }
            What::Forget { .. } => {
                let forgotten: Forgotten =
                    serde_json::from_value(told.clone()).map_err(|error| error.to_string())?;
                for id in forgotten.ids {
                    ensure!(!self.store().rows.contains_key(&id), "a forgotten command is there");
                    // Retention deletes it from D1.
                    self.d1.commands.remove(&id);
                    self.history.forgotten.insert(id);
                }
            }
            What::Connect { .. } => {
                return Err("a connection is answered, and not accepted".to_owned());
            }
            What::Sever | What::Other => {}
        }
        Ok(())
    }

    fn check_created(
        &mut self,
        own: Option<Uuid>,
        key: Option<&(String, String)>,
        told: &serde_json::Value,
    ) -> Check {
        let created: Created =
            serde_json::from_value(told.clone()).map_err(|error| error.to_string())?;
        let id = created.id().map_err(|error| error.detail.to_string())?;
        ensure!(created.replayed || own == Some(id), "another command is answered");
        let is_exempt = self.history.was_taken_back
            || self.history.forgotten.contains(&id)
            || self.history.was_severed;
        ensure!(
            is_exempt || self.d1.commands.contains_key(&id),
            "a command is answered that D1 does not have"
        );
        if let Some(key) = key {
            // A call can be answered long after its key was stored.
            let added_at = created.command.get("added_at").and_then(|text| text.as_str());
            let added_at = added_at
                .and_then(|text| Timestamp::parse(text).ok())
                .ok_or("a command without a time")?;
            let (made, at) = *self.history.made.entry(key.clone()).or_insert((id, added_at));
            let is_forgotten = self.history.forgotten.contains(&made) || self.history.was_severed;
            let is_over = at.plus_seconds(23 * 60 * 60) <= self.now || is_forgotten;
            ensure!(made == id || is_over, "an Idempotency-Key made two commands");
        }
        Ok(())
    }

    /// A new key is in force: no other one is accepted any more, unless it is still on its way.
    fn revoke_other_keys(&mut self, key: &str) -> Check {
        let is_waiting = |hash: &str| {
            let is_of = |what: &What| matches!(what, What::Rotate { key } if key == hash);
            self.calls
                .values()
                .any(|call| is_of(&call.what) && call.answer.is_none() && !call.is_dead)
        };
        let is_under_way = |hash: &str| {
            let is_of = |change: &ServerChange| matches!(change, ServerChange::Key { key_hash, .. } if key_hash == hash);
            self.flights
                .iter()
                .any(|flight| matches!(&*flight.request, ToD1::Change(_, change) if is_of(change)))
        };
        let is_late = |hash: &str| self.history.late_keys.contains(hash);
        let is_coming = |hash: &str| is_waiting(hash) || is_under_way(hash) || is_late(hash);
        let others = (0..=self.keys).map(|number| format!("key-{number}"));
        let revoked: Vec<_> = others.filter(|other| other != key && !is_coming(other)).collect();
        self.history.revoked.extend(revoked);
        let is_cut_off = self
            .sockets
            .iter()
            .all(|socket| !socket.is_there || !self.history.revoked.contains(&socket.key));
        ensure!(is_cut_off, "an agent with a revoked key is connected");
        Ok(())
    }

    /// What is stored is as it should be.
    pub fn check(&mut self) -> Check {
        let store = self.link.store();
        let open = store.count_open().map_err(|error| error.0)?;
        ensure!(open <= WINDOW, "{open} commands are open");
        for (id, row) in &store.rows {
            let entry =
                self.history.lives.entry(*id).or_insert_with(|| (0, row.command.life.clone()));
            if entry.0 != row.command.revision {
                let mut before = entry.1.clone();
                if self.history.given_back.contains(id) {
                    before.delivered_at = None;
                }
                let after = &row.command.life;
                ensure!(is_forward(&before, after), "a life went back: {before:?}, {after:?}");
                *entry = (row.command.revision, after.clone());
                self.history.noted.extend(row.command.events.iter().map(|noted| noted.event.id));
            }
            let told = self.d1.commands.get(id).map_or(0, |told| told.revision);
            ensure!(told <= row.command.revision, "D1 has a revision that there is not");
        }
        for id in &self.history.given_back {
            let is_back =
                store.rows.get(id).is_none_or(|row| row.command.life.delivered_at.is_none());
            ensure!(is_back, "a command that was not sent is lost");
        }
        for (key, (answer, _)) in &store.answers {
            let is_there = store.rows.contains_key(&answer.command);
            ensure!(is_there, "the answer to {key} is left over");
        }
        self.check_timers()
    }

    /// What is to be done has a timer, and the alarm is set for it.
    fn check_timers(&self) -> Check {
        let store = self.link.store();
        let Some(state) = &store.state else {
            ensure!(store.rows.is_empty(), "an unused object has commands");
            return Ok(());
        };
        let timers = &state.timers;
        let lacks_facts = state.identity.is_some() && state.facts.revision > state.facts.flushed;
        let is_unflushed =
            lacks_facts || store.next_unflushed().map_err(|error| error.0)?.is_some();
        ensure!(
            timers.revalidate.is_some() || state.unconfirmed.is_none(),
            "what is not sure is not looked at"
        );
        ensure!(timers.resync.is_some() || state.resync.is_none(), "the resync does not go on");
        let is_there = |open: u64| {
            self.sockets.iter().any(|socket| socket.is_there && socket.generation == open)
        };
        let mut is_queue_due = false;
        if state.backhaul.open.is_some_and(is_there) {
            ensure!(timers.ping.is_some(), "the agent is not pinged");
            // One whose time comes now has a time of its own.
            let waits = |row: &super::store::Row| {
                let is_waiting = row.command.stage() == Some(Stage::Waiting)
                    && row.command.life.is_due(self.now);
                is_waiting && row.due_at.is_none_or(|at| at > self.now)
            };
            let is_waiting = store.rows.values().any(waits);
            let has_room = store.count_open().map_err(|error| error.0)? < WINDOW;
            is_queue_due = is_waiting && has_room;
        }
        // A machine that is not loaded plans it when its alarm goes off, which was set before.
        let longest = self.now.plus_seconds(SLOWEST_RETRY);
        let plan = self.link.plan().unwrap_or(Plan {
            flush: is_unflushed.then_some(longest),
            deliver: is_queue_due.then_some(longest),
        });
        ensure!(plan.flush.is_some() || !is_unflushed, "D1 is not told");
        ensure!(plan.deliver.is_some() || !is_queue_due, "the queue is not looked at");
        let asked = |kind: &str| {
            self.flights.iter().any(|flight| {
                flight.is_awaited() && single(&flight.request).is_some_and(|of| of == kind)
            })
        };
        let later = self.now.plus_seconds(D1_WITHIN);
        let unless = |at: Option<Timestamp>, kinds: &[&str]| {
            let is_asked = self.history.is_fresh || kinds.iter().any(|kind| asked(kind));
            at.map(|at| if is_asked { at.max(later) } else { at })
        };
        let due = [
            timers.ping,
            timers.pong,
            unless(plan.flush, &["tell", "restore"]),
            unless(plan.deliver, &["rights"]),
            unless(timers.revalidate, &["change"]),
            unless(timers.resync, &["restore", "tell"]),
            store.next_due().map_err(|error| error.0)?,
        ];
        if let Some(due) = due.into_iter().flatten().min()
            && !self.is_alarm_lost
        {
            ensure!(
                self.alarm.is_some_and(|at| at <= due),
                "the alarm is not set: {:?}, {timers:?}",
                self.alarm
            );
        }
        Ok(())
    }
}
