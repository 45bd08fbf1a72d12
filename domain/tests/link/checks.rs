//! The invariants, checked after every step.

use farhand_domain::agent::wire::AgentCommand;
use farhand_domain::command::lifecycle::{Lifecycle, State};
use farhand_domain::command::script::carrier::carrier_line;
use farhand_domain::link::call::{CHECK_VALIDITY, Created, DeletedCommands, LinkResponse};
use farhand_domain::link::event::{
    Answer, BatchNotice, ConnectionKind, NextKey, Request, ServerChange,
};
use farhand_domain::link::state::Plan;
use farhand_domain::link::store::Store;
use farhand_domain::link::stored_command::{Phase, Stage};
use farhand_domain::time::Timestamp;
use uuid::Uuid;

use super::d1::script_of;
use super::world::{CallKind, Check, MAX_OPEN, World};
use crate::ensure;

/// Maximum delay of a timer that waits for D1, in seconds.
const D1_TIMEOUT: i64 = 31;
/// Maximum delay before a failed flush is repeated, in seconds.
const MAX_RETRY_DELAY: i64 = 61;

/// The kind of a request, if at most one request of this kind may be pending.
fn single(request: &Request) -> Option<&'static str> {
    match request {
        Request::FindServer { .. } | Request::InsertCommand { .. } | Request::DeleteRestored(_) => {
            None
        }
        Request::ChangeServer(..) => Some("change"),
        Request::FindPermissions(_) => Some("rights"),
        Request::Flush { .. } => Some("flush"),
        Request::Restore(_) => Some("restore"),
    }
}

/// Whether a life only moved forward: no field that was set has changed, except for a stuck end.
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
    /// Whether the object has a server, and its workspace is not deleted.
    pub fn is_in_use(&self) -> bool {
        let state = self.store().state.as_ref();
        state.is_some_and(|state| !state.is_deleted && !state.is_suspended)
    }

    /// Checks that a message may be sent: the object is in use, and the agent's key is not revoked.
    pub fn check_may_send(&self, kind: ConnectionKind, generation: u64) -> Check {
        ensure!(
            self.is_in_use() || self.history.was_in_use,
            "a message is sent for a deleted server or workspace"
        );
        let is_known =
            |socket: &&super::world::Socket| socket.generation == generation && socket.kind == kind;
        let socket =
            self.sockets.iter().rev().find(is_known).ok_or("a message is sent to no connection")?;
        ensure!(
            !self.history.revoked.contains(&socket.key),
            "a message is sent to an agent with a revoked key"
        );
        ensure!(!self.is_expired(&socket.key), "a message is sent to an agent with an expired key");
        Ok(())
    }

    /// Whether this is the old key, and its time is over. While a change is not confirmed, D1 may
    /// have another time.
    fn is_expired(&self, key: &str) -> bool {
        let state = self.store().state.as_ref().filter(|state| state.unconfirmed.is_none());
        state.and_then(|state| state.identity.as_ref()).is_some_and(|identity| {
            let is_over = |next: &NextKey| next.old_key_valid_until <= self.now;
            identity.key_hash == key && identity.next_key.as_ref().is_some_and(is_over)
        })
    }

    /// Checks that a command may be sent: it is stored as delivered, is due and permitted, and was
    /// not sent before.
    pub fn check_send(&mut self, order: &AgentCommand) -> Check {
        let id = order.id;
        let row = self.store().rows.get(&id).ok_or("an unknown command is sent")?;
        let (life, now) = (row.command.life.clone(), self.now);
        ensure!(life.delivered_at.is_some(), "a command is sent before its delivery is stored");
        ensure!(row.command.phase == Phase::Accepted, "a command is sent that is not accepted");
        ensure!(life.state() == State::Sent, "a command is sent that is {:?}", life.state());
        ensure!(
            life.scheduled_at <= now && now < life.expires_at,
            "a command is sent at a wrong time"
        );
        match (row.command.command.script, &order.script) {
            (None, None) => {}
            (Some(script), Some(sent)) => {
                ensure!(*sent == script_of(script), "another script is sent");
            }
            (Some(script), None) => {
                let carried = carrier_line(&script_of(script));
                ensure!(
                    order.allow_sh && order.line == carried,
                    "a script is sent without its body"
                );
            }
            (None, Some(_)) => return Err("a script is sent that was not requested".to_owned()),
        }
        let is_checked_by_batch = self.calls.values().any(|call| {
            matches!(&call.kind, CallKind::RunOfBatch(command) if command.command.id == id
                && command.checked_at.is_some_and(|at| at.plus(CHECK_VALIDITY) > now))
        });
        let is_checked = match &self.answered {
            _ if is_checked_by_batch => true,
            Some((_, request, _)) if matches!(&**request, Request::InsertCommand { create, .. } if create.command.id == id) => {
                life.is_immediate()
            }
            Some((sent_at, request, Answer::Permissions(Some(verdicts)))) => {
                let Request::FindPermissions(commands) = &**request else {
                    return Err("another answer".to_owned());
                };
                let place = commands.iter().position(|stored| stored.command.id == id);
                place.is_some_and(|place| verdicts.permissions[place].is_ok())
                    && *sent_at >= life.scheduled_at
            }
            _ => false,
        };
        ensure!(is_checked, "a command is sent without a permission check");
        let sent = self.sent.entry(id).or_default();
        *sent += 1;
        ensure!(*sent == 1, "a command is sent twice");
        Ok(())
    }

    /// Checks that D1 has the state of the command of which a batch is notified.
    pub fn check_notice(&self, notice: &BatchNotice) -> Check {
        let Some((state, ..)) = notice.command else { return Ok(()) };
        let is_of = |row: &&super::store::Row| row.command.command.batch == Some(notice.batch);
        let mut rows = self.store().rows.values().filter(is_of);
        let has = |row: &super::store::Row| {
            let id = row.command.command.id;
            // Retention deletes no command of an open batch, but these tests do.
            self.history.deleted.contains(&id)
                || self.d1.commands.get(&id).is_some_and(|row| row.life.state() == state)
        };
        let is_exempt = self.history.was_restored || self.history.was_wiped;
        ensure!(is_exempt || rows.any(has), "a batch is notified of a state that D1 does not have");
        Ok(())
    }

    /// Checks that the commands that a step sent were the front of the queue, in order.
    pub fn check_order(&self, sent: &[Uuid]) -> Check {
        if !self.history.unsent.is_empty() {
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
        ensure!(is_first, "a command is sent before an earlier one");
        Ok(())
    }

    /// Checks that at most one request of each kind in [`single`] is pending.
    pub fn check_request(&self, request: &Request) -> Check {
        let Some(kind) = single(request) else { return Ok(()) };
        let is_alone = self
            .d1_calls
            .iter()
            .filter(|d1_call| d1_call.is_awaited())
            .all(|d1_call| single(&d1_call.request) != Some(kind));
        ensure!(is_alone, "two requests of the kind {kind} are pending");
        Ok(())
    }

    /// Checks that a call may get this reply.
    pub fn check_reply(&mut self, what: &CallKind, answer: &LinkResponse) -> Check {
        let LinkResponse::Done(result) = answer else { return Ok(()) };
        match what {
            CallKind::Create { id, key } => self.check_created(Some(*id), key.as_ref(), result)?,
            CallKind::Replay { key } => self.check_created(None, Some(key), result)?,
            CallKind::Agent { key } => {
                ensure!(
                    !self.history.revoked.contains(key),
                    "a report with a revoked key is accepted"
                );
                ensure!(!self.is_expired(key), "a report with an expired key is accepted");
            }
            // A change that ended late may have set another key. The object reads D1 again, and then
            // closes connections.
            CallKind::Rotate { .. } if self.has_late_key() && !self.is_confirmed() => {}
            CallKind::Rotate { key } => self.revoke_other_keys(key)?,
            CallKind::Resync => {
                let ticket =
                    self.calls.iter().filter(|(_, call)| matches!(call.kind, CallKind::Resync));
                let is_later = ticket
                    .filter(|(_, call)| call.answer.is_some())
                    .any(|(ticket, _)| *ticket > self.history.restored_at);
                self.history.needs_resync &= !is_later;
            }
            CallKind::DeleteOld { .. } => {
                let deleted: DeletedCommands =
                    serde_json::from_value(result.clone()).map_err(|error| error.to_string())?;
                for id in deleted.ids {
                    ensure!(
                        !self.store().rows.contains_key(&id),
                        "a deleted command is still stored"
                    );
                    // Retention deletes it from D1.
                    self.d1.commands.remove(&id);
                    self.history.deleted.insert(id);
                }
            }
            CallKind::Connect { .. } => {
                return Err(
                    "a connection call has a reply, but the connection is not accepted".to_owned()
                );
            }
            CallKind::RunOfBatch(command) => {
                let id = command.command.id;
                let is_stored = self.store().rows.contains_key(&id);
                ensure!(is_stored || self.history.deleted.contains(&id), "{id} is not stored");
            }
            CallKind::DisconnectAndWipe | CallKind::Other => {}
        }
        Ok(())
    }

    fn check_created(
        &mut self,
        own: Option<Uuid>,
        key: Option<&(String, String)>,
        result: &serde_json::Value,
    ) -> Check {
        let created: Created =
            serde_json::from_value(result.clone()).map_err(|error| error.to_string())?;
        let id = created.id().map_err(|error| error.detail.to_string())?;
        ensure!(created.replayed || own == Some(id), "the reply is about another command");
        let is_exempt = self.history.was_restored
            || self.history.deleted.contains(&id)
            || self.history.was_wiped;
        ensure!(
            is_exempt || self.d1.commands.contains_key(&id),
            "the reply is about a command that D1 does not have"
        );
        if let Some(key) = key {
            // A call can get its reply long after its key was stored.
            let added_at = created.command.get("added_at").and_then(|text| text.as_str());
            let added_at = added_at
                .and_then(|text| Timestamp::parse(text).ok())
                .ok_or("a command without a time")?;
            let (first_id, at) =
                *self.history.keyed_commands.entry(key.clone()).or_insert((id, added_at));
            let is_deleted = self.history.deleted.contains(&first_id) || self.history.was_wiped;
            let is_over = at.min(added_at).plus_seconds(23 * 60 * 60) <= at.max(added_at);
            let is_free = is_over || is_deleted;
            ensure!(first_id == id || is_free, "an Idempotency-Key created two commands");
        }
        Ok(())
    }

    /// Whether the object knows the server's row in D1.
    pub fn is_confirmed(&self) -> bool {
        self.store().state.as_ref().is_some_and(|state| state.unconfirmed.is_none())
    }

    /// Whether a change that had timed out set the key that D1 has.
    fn has_late_key(&self) -> bool {
        let server = self.d1.server.as_ref();
        server.is_some_and(|server| self.history.late_keys.contains(&server.key_hash))
    }

    /// After the reply to a key change, and after a connection with a key, all other keys are
    /// revoked, unless D1 has them or a change to one of them is still pending.
    pub fn revoke_other_keys(&mut self, key: &str) -> Check {
        let is_waiting = |hash: &str| {
            let is_of = |what: &CallKind| matches!(what, CallKind::Rotate { key } if key == hash);
            self.calls
                .values()
                .any(|call| is_of(&call.kind) && call.answer.is_none() && !call.is_dead)
        };
        let is_under_way = |hash: &str| {
            let is_of = |change: &ServerChange| matches!(change, ServerChange::ReplaceKey { key_hash, .. } if key_hash == hash);
            self.d1_calls.iter().any(
                |d1_call| matches!(&*d1_call.request, Request::ChangeServer(_, change) if is_of(change)),
            )
        };
        let is_late = |hash: &str| self.history.late_keys.contains(hash);
        let is_in_d1 = |hash: &str| {
            self.d1.server.iter().chain(&self.d1.deleted_server).any(|server| {
                let is_next = |next: &NextKey| next.key_hash == hash;
                server.key_hash == hash || server.next_key.as_ref().is_some_and(is_next)
            })
        };
        let is_coming =
            |hash: &str| is_in_d1(hash) || is_waiting(hash) || is_under_way(hash) || is_late(hash);
        let others = (0..=self.keys).map(|number| format!("key-{number}"));
        let revoked: Vec<_> = others.filter(|other| other != key && !is_coming(other)).collect();
        self.history.revoked.extend(revoked);
        let is_cut_off = self
            .sockets
            .iter()
            .all(|socket| !socket.is_open || !self.history.revoked.contains(&socket.key));
        ensure!(is_cut_off, "an agent with a revoked key is connected");
        Ok(())
    }

    /// Checks that the stored commands and responses are valid.
    pub fn check(&mut self) -> Check {
        let store = self.link.store();
        let open = store.count_open().map_err(|error| error.0)?;
        ensure!(open <= MAX_OPEN, "{open} commands are open");
        for (id, row) in &store.rows {
            let entry =
                self.history.lives.entry(*id).or_insert_with(|| (0, row.command.life.clone()));
            if entry.0 != row.command.revision {
                let mut before = entry.1.clone();
                if self.history.unsent.contains(id) {
                    before.delivered_at = None;
                }
                let after = &row.command.life;
                ensure!(is_forward(&before, after), "a life went back: {before:?}, {after:?}");
                *entry = (row.command.revision, after.clone());
                self.history
                    .event_ids
                    .extend(row.command.events.iter().map(|pending| pending.event.id));
            }
            let in_d1 = self.d1.commands.get(id).map_or(0, |row| row.revision);
            ensure!(
                in_d1 <= row.command.revision,
                "D1 has a revision that the object does not have"
            );
        }
        for id in &self.history.unsent {
            let is_back =
                store.rows.get(id).is_none_or(|row| row.command.life.delivered_at.is_none());
            ensure!(is_back, "a command that was not sent counts as delivered");
        }
        for (key, (answer, _)) in &store.answers {
            let has_command = store.rows.contains_key(&answer.command);
            ensure!(has_command, "the answer to {key} has no command");
        }
        self.check_timers()
    }

    /// Checks that pending work has a timer, and that the alarm is set for the earliest timer.
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
            "no timer confirms the server"
        );
        let next_key = state.identity.as_ref().and_then(|identity| identity.next_key.as_ref());
        ensure!(timers.old_key.is_some() || next_key.is_none(), "no timer ends the old key");
        ensure!(timers.resync.is_some() || state.resync.is_none(), "no timer continues the resync");
        let is_open = |open: u64| {
            self.sockets.iter().any(|socket| socket.is_open && socket.generation == open)
        };
        let mut is_queue_due = false;
        if state.backhaul.open.is_some_and(is_open) {
            ensure!(timers.ping.is_some(), "no timer pings the agent");
            // A command that becomes due now has its own due time.
            let waits = |row: &super::store::Row| {
                let is_waiting = row.command.stage() == Some(Stage::Waiting)
                    && row.command.life.is_due(self.now);
                is_waiting && row.timer_at.is_none_or(|at| at > self.now)
            };
            let is_waiting = store.rows.values().any(waits);
            let has_room = store.count_open().map_err(|error| error.0)? < MAX_OPEN;
            is_queue_due = is_waiting && has_room;
        }
        // A machine that has not loaded its state computes the plan when the alarm goes off.
        let longest = self.now.plus_seconds(MAX_RETRY_DELAY);
        let plan = self.link.plan().unwrap_or(Plan {
            flush: is_unflushed.then_some(longest),
            deliver: is_queue_due.then_some(longest),
        });
        ensure!(plan.flush.is_some() || !is_unflushed, "no timer flushes the outbox");
        ensure!(plan.deliver.is_some() || !is_queue_due, "no timer delivers due commands");
        let asked = |kind: &str| {
            self.d1_calls.iter().any(|d1_call| {
                d1_call.is_awaited() && single(&d1_call.request).is_some_and(|of| of == kind)
            })
        };
        let later = self.now.plus_seconds(D1_TIMEOUT);
        let unless = |at: Option<Timestamp>, kinds: &[&str]| {
            let is_asked = self.history.is_fresh || kinds.iter().any(|kind| asked(kind));
            at.map(|at| if is_asked { at.max(later) } else { at })
        };
        let due = [
            timers.ping,
            timers.pong,
            timers.old_key,
            unless(plan.flush, &["flush", "restore"]),
            unless(plan.deliver, &["rights"]),
            unless(timers.revalidate, &["change"]),
            unless(timers.resync, &["restore", "flush"]),
            store.next_timer().map_err(|error| error.0)?,
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
