//! The server's identity: how the object verifies the agent, replaces its key, and deletes the
//! server.
//!
//! D1 has the server's row. The object keeps the hash of the agent's key, so that a report needs no
//! read from D1. The object makes all changes of the key, and the deletion of the server, one at a
//! time:
//! 1. The object sets `unconfirmed`.
//! 2. It sends the change to D1.
//! 3. It applies the row that D1 returns.
//!
//! Until step 3 is done, the object verifies each call of an agent in D1, even if a crash cut off
//! the change.
//!
//! A new key is the *next key* at first: both keys are valid. When an agent connects with it, or
//! when the time of the old key is over, a change makes it the only key and closes all connections.

use serde_json::json;

use super::call::{
    ClaimedIdentity, DeleteServer, LinkResponse, Refusal, Rename, ReplaceKey, ReplacedKey,
    ServerLocation, UndeleteServer,
};
use super::event::{Answer, D1_TIMEOUT, D1Server, Request, RequestId, ServerChange, Ticket};
use super::machine::Machine;
use super::memory::{
    AfterChange, AfterVerification, D1Result, PendingRequest, QueuedChange, UnverifiedCall,
};
use super::server_facts::ServerFacts;
use super::state::ServerIdentity;
use super::store::{Result, Store};
use crate::command::end::Cancellation;
use crate::command::lifecycle::Lifecycle;

/// The reason for closing connections that were opened with a key that is no longer valid.
const KEY_CHANGED: &str = "the key was changed";

/// The facts of an object that begins with this row.
fn first_facts(found: &D1Server) -> ServerFacts {
    ServerFacts::beginning(found.commissioned, found.is_connected, found.revision)
}

impl<S: Store> Machine<S> {
    fn refuses_agents(&self) -> bool {
        self.server.as_ref().is_some_and(|server| server.is_deleted || server.is_suspended)
    }

    /// The server's identity, if it certainly equals the row in D1.
    fn confirmed_identity(&self) -> Option<ServerIdentity> {
        let server = self.server.as_ref()?;
        if server.unconfirmed.is_some() { None } else { server.identity.clone() }
    }

    /// Verifies an agent and continues its call. The first verification reads the identity from D1,
    /// and stores it.
    pub(super) fn verify_agent(&mut self, call: UnverifiedCall) -> Result<()> {
        if self.refuses_agents() {
            self.refuse(call.ticket(), Refusal::InvalidAgent);
            return Ok(());
        }
        match self.confirmed_identity() {
            Some(identity) => self.admit(call, &identity),
            None => {
                let ClaimedIdentity { workspace, server, .. } = &call.claimed;
                let request = Request::FindServer { workspace: workspace.clone(), server: *server };
                self.request_d1(PendingRequest::VerifyAgent(Box::new(call)), request);
                Ok(())
            }
        }
    }

    /// Handles D1's answer about the server.
    pub(super) fn server_found(&mut self, call: UnverifiedCall, answer: D1Result) -> Result<()> {
        let ticket = call.ticket();
        let found = match answer {
            Ok(Answer::Server(found)) => found,
            Ok(_) => None,
            Err(error) => {
                self.reply(ticket, LinkResponse::Failed(error));
                return Ok(());
            }
        };
        let Some(found) = found.filter(|_| !self.refuses_agents()) else {
            self.refuse(ticket, Refusal::InvalidAgent);
            return Ok(());
        };
        // Another call may have loaded the identity in the meantime. Keep its result.
        if let Some(identity) = self.confirmed_identity() {
            return self.admit(call, &identity);
        }
        let facts = first_facts(&found);
        let ClaimedIdentity { workspace, server, .. } = &call.claimed;
        let identity = ServerIdentity::from_d1(workspace, *server, found);
        // While a change is in progress, this answer may be older than the change. So it is valid
        // only for this call.
        let is_unsure = self.server.as_ref().is_some_and(|server| server.unconfirmed.is_some());
        if identity.matches(&call.claimed, self.input.now) && !is_unsure {
            let (state, is_pending) = (self.state(), facts.is_pending());
            state.set_identity(identity.clone());
            state.facts = facts;
            self.ensure_tables()?;
            if is_pending {
                self.schedule_flush();
            }
        }
        self.admit(call, &identity)
    }

    fn admit(&mut self, call: UnverifiedCall, identity: &ServerIdentity) -> Result<()> {
        let key_hash = &call.claimed.key_hash;
        if !identity.matches(&call.claimed, self.input.now) {
            self.refuse(call.ticket(), Refusal::InvalidAgent);
            return Ok(());
        }
        match call.then {
            AfterVerification::Report(ticket, report) => {
                self.report(ticket, identity, call.source, report)
            }
            AfterVerification::Connect { .. } if identity.is_next_key(key_hash) => {
                let change = ServerChange::TakeNextKey(key_hash.clone());
                let (of, then) = (identity.location(), AfterChange::Connect(Box::new(call)));
                self.queue_change(QueuedChange { of, change, then })
            }
            AfterVerification::Connect { .. } => {
                // A change of the key that was cut off: D1 has it, and the object does not know yet.
                if let Some(known) = self.identity()
                    && known.key_hash != identity.key_hash
                {
                    let named_at = known.named_at;
                    self.disconnect(KEY_CHANGED)?;
                    // The confirmation closes the new connection if it finds yet another key.
                    self.state().set_identity(ServerIdentity { named_at, ..identity.clone() });
                }
                self.connect(call, identity)
            }
        }
    }

    /// Refuses the old key if its time is over: closes the connections that were opened with it,
    /// and makes the next key the only one. Until D1 has done that, the timer repeats it.
    pub(super) fn end_old_key(&mut self) -> Result<()> {
        let now = self.input.now;
        let Some(server) = &mut self.server else { return Ok(()) };
        if server.timers.old_key.is_none_or(|at| at > now) {
            return Ok(());
        }
        server.timers.old_key = Some(now.plus(D1_TIMEOUT));
        let Some(identity) = server.identity.clone() else { return Ok(()) };
        let Some(next) = &identity.next_key else { return Ok(()) };
        let (of, key_hash) = (identity.location(), next.key_hash.clone());
        self.disconnect(KEY_CHANGED)?;
        let (change, then) = (ServerChange::TakeNextKey(key_hash), AfterChange::Nothing);
        self.queue_change(QueuedChange { of, change, then })
    }

    /// Loads the identity of a new server. It may be deleted already.
    pub(super) fn init_identity(&mut self, ticket: Ticket, of: ServerLocation) -> Result<()> {
        if self.identity().is_some() {
            self.reply(ticket, LinkResponse::EMPTY);
            return Ok(());
        }
        self.queue_change(QueuedChange {
            of,
            change: ServerChange::ReadOnly,
            then: AfterChange::Reply(ticket),
        })
    }

    /// Stores the new name of the server.
    pub(super) fn rename(&mut self, ticket: Ticket, rename: Rename) -> Result<()> {
        if let Some(identity) = self.server.as_mut().and_then(|server| server.identity.as_mut())
            && identity.named_at.is_none_or(|at| at <= rename.at)
        {
            (identity.name, identity.named_at) = (rename.name, Some(rename.at));
        }
        self.reply(ticket, LinkResponse::EMPTY);
        Ok(())
    }

    /// Replaces the agent's key. If the old key is refused immediately, the connections that were
    /// opened with it are closed before the reply.
    pub(super) fn rotate(&mut self, ticket: Ticket, rotate: ReplaceKey) -> Result<()> {
        let ReplaceKey { of, by, key_hash, fingerprint, old_key_valid_until, at, event } = rotate;
        let then = AfterChange::ReplyIfKey(ticket, key_hash.clone());
        let event = Box::new(event);
        self.queue_change(QueuedChange {
            of,
            change: ServerChange::ReplaceKey {
                by,
                old_key_valid_until,
                key_hash,
                fingerprint,
                at,
                event,
            },
            then,
        })
    }

    /// Deletes the server. The call can be repeated.
    pub(super) fn remove(&mut self, ticket: Ticket, remove: DeleteServer) -> Result<()> {
        let DeleteServer { of, by, only_pending, event } = remove;
        let (at, grace) = (self.input.now, self.settings.server_grace);
        // A server that was never approved is not worth keeping.
        let purge_at = Some(at.plus(grace)).filter(|_| !grace.is_zero() && !only_pending);
        let event = Box::new(event);
        self.queue_change(QueuedChange {
            of,
            change: ServerChange::Delete { by, only_pending, at, purge_at, event },
            then: AfterChange::ReplyIfDeleted(ticket),
        })
    }

    /// Restores the deleted server. Its agent can connect again. What was cancelled stays cancelled.
    pub(super) fn undelete(&mut self, ticket: Ticket, undelete: UndeleteServer) -> Result<()> {
        let UndeleteServer { of, by, name, event } = undelete;
        let (at, event) = (self.input.now, Box::new(event));
        self.queue_change(QueuedChange {
            of,
            change: ServerChange::Undelete { by, name, at, event },
            then: AfterChange::ReplyIfUndeleted(ticket),
        })
    }

    /// Sends a change to D1, after the changes before it.
    pub(super) fn queue_change(&mut self, change: QueuedChange) -> Result<()> {
        self.queued_changes.push_back(change);
        if self.queued_changes.len() == 1 { self.send_next_change() } else { Ok(()) }
    }

    fn send_next_change(&mut self) -> Result<()> {
        let Some(QueuedChange { of, change, .. }) = self.queued_changes.front() else {
            return Ok(());
        };
        let (of, change) = (of.clone(), change.clone());
        match change {
            ServerChange::Undelete { .. } => self.set_unconfirmed(&of),
            _ if !self.is_certainly_deleted() => self.set_unconfirmed(&of),
            // D1 may have the server again, if D1 was restored to an earlier time.
            ServerChange::Delete { .. } => {}
            _ => return self.finish_change(None),
        }
        self.request_d1(PendingRequest::Change, Request::ChangeServer(of, change));
        Ok(())
    }

    fn set_unconfirmed(&mut self, of: &ServerLocation) {
        let answered_by = self.input.now.plus(D1_TIMEOUT);
        let state = self.state();
        state.unconfirmed = Some(of.clone());
        state.timers.revalidate = Some(answered_by);
    }

    /// Whether the server was deleted, and no undeletion is in progress or was cut off.
    fn is_certainly_deleted(&self) -> bool {
        self.server.as_ref().is_some_and(|server| server.is_deleted && server.unconfirmed.is_none())
    }

    /// Handles D1's answer to the change in progress.
    pub(super) fn change_answered(&mut self, answer: D1Result) -> Result<()> {
        let Some(QueuedChange { of, .. }) = self.queued_changes.front() else { return Ok(()) };
        let of = of.clone();
        self.request_seal(of.workspace_id);
        match answer {
            Ok(Answer::Server(found)) => {
                if self.is_certainly_deleted() {
                    self.finish_change(None)?;
                } else {
                    self.apply_identity(&of, found)?;
                    self.finish_change(self.identity().cloned())?;
                }
                self.reverify_agents()
            }
            // It is unknown whether D1 made the change. The timer reads the server again.
            Ok(_) => self.change_failed("D1 gave another answer"),
            Err(error) => self.change_failed(&error),
        }
    }

    /// Repeats the pending verifications, because their answers may be older than the change.
    fn reverify_agents(&mut self) -> Result<()> {
        let ids: Vec<RequestId> = self
            .requests
            .iter()
            .filter(|(_, request)| matches!(request, PendingRequest::VerifyAgent(_)))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            if let Some(PendingRequest::VerifyAgent(call)) = self.requests.remove(&id) {
                self.verify_agent(*call)?;
            }
        }
        Ok(())
    }

    fn change_failed(&mut self, error: &str) -> Result<()> {
        let Some(QueuedChange { then, .. }) = self.queued_changes.pop_front() else {
            return Ok(());
        };
        match then.ticket() {
            Some(ticket) => self.reply(ticket, LinkResponse::Failed(error.to_owned())),
            None => self.log_error("change_not_known", json!({}), error),
        }
        self.send_next_change()
    }

    /// Finishes the change in progress. `server` is the server in D1; `None`: D1 has no such
    /// server.
    fn finish_change(&mut self, server: Option<ServerIdentity>) -> Result<()> {
        let change = self.queued_changes.pop_front();
        // Sent first, because the reply may queue a change itself.
        self.send_next_change()?;
        change.map_or(Ok(()), |change| self.answer_change(change, server))
    }

    /// Replies to the call that requested a change. `server`: see [`Self::finish_change`].
    pub(super) fn answer_change(
        &mut self,
        change: QueuedChange,
        server: Option<ServerIdentity>,
    ) -> Result<()> {
        match (change.then, server) {
            (AfterChange::Reply(ticket), _)
            | (AfterChange::ReplyIfDeleted(ticket), None)
            | (AfterChange::ReplyIfUndeleted(ticket), Some(_)) => {
                self.reply(ticket, LinkResponse::EMPTY);
            }
            (AfterChange::ReplyIfKey(ticket, wanted), Some(server))
                if server.key_hash == wanted || server.is_next_key(&wanted) =>
            {
                let old_key_valid_until = server.next_key.map(|next| next.old_key_valid_until);
                self.reply(ticket, LinkResponse::done(ReplacedKey { old_key_valid_until }));
            }
            (AfterChange::ReplyIfKey(ticket, _), None) => self.refuse(ticket, Refusal::NoServer),
            (AfterChange::ReplyIfKey(ticket, _) | AfterChange::ReplyIfDeleted(ticket), Some(_))
            | (AfterChange::ReplyIfUndeleted(ticket), None) => {
                self.refuse(ticket, Refusal::NotPermitted);
            }
            (AfterChange::Connect(call), Some(_)) => return self.verify_agent(*call),
            (AfterChange::Connect(call), None) => {
                self.refuse(call.ticket(), Refusal::InvalidAgent);
            }
            (AfterChange::BeginResync(ticket), _) => return self.begin_resync(ticket),
            (AfterChange::Nothing, _) => {}
        }
        Ok(())
    }

    /// Handles a change that ended after it had been reported as failed. Reads D1 again after the
    /// queued changes, because their answers may be older.
    pub(super) fn change_ended_late(
        &mut self,
        of: ServerLocation,
        change: &ServerChange,
    ) -> Result<()> {
        if self.server.is_none() {
            return Ok(());
        }
        match change {
            ServerChange::Undelete { .. } => self.set_unconfirmed(&of),
            _ if self.is_certainly_deleted() => return Ok(()),
            _ => {}
        }
        self.queue_change(QueuedChange {
            of,
            change: ServerChange::ReadOnly,
            then: AfterChange::Nothing,
        })
    }

    /// Reads the server from D1 again, after a change that was cut off.
    pub(super) fn revalidate_identity(&mut self) -> Result<()> {
        let unsure = self.server.as_ref().and_then(|server| server.unconfirmed.clone());
        let Some(of) = unsure else {
            self.state().timers.revalidate = None;
            return Ok(());
        };
        self.state().timers.revalidate = Some(self.input.now.plus(D1_TIMEOUT));
        if self.queued_changes.is_empty() {
            let then = AfterChange::Nothing;
            return self.queue_change(QueuedChange { of, change: ServerChange::ReadOnly, then });
        }
        Ok(())
    }

    /// Applies the server's row in D1; `None`: D1 has no such server.
    fn apply_identity(&mut self, of: &ServerLocation, found: Option<D1Server>) -> Result<()> {
        let state = self.state();
        state.unconfirmed = None;
        state.timers.revalidate = None;
        let Some(found) = found else { return self.end_server() };
        state.is_deleted = false;
        let before = state.identity.clone();
        if before.is_none() {
            state.facts = first_facts(&found);
        } else {
            // The server was undeleted before the object knew of its deletion.
            state.facts.continue_after(found.revision);
        }
        let is_pending = state.facts.is_pending();
        let named_at = before.as_ref().and_then(|before| before.named_at);
        let identity =
            ServerIdentity { named_at, ..ServerIdentity::from_d1(&of.workspace, of.server, found) };
        let is_same_key = before.is_some_and(|before| before.key_hash == identity.key_hash);
        state.set_identity(identity);
        if is_pending {
            self.schedule_flush();
        }
        if is_same_key { Ok(()) } else { self.disconnect(KEY_CHANGED) }
    }

    /// The server was deleted: refuses its agent, and cancels waiting commands. Marks delivered
    /// commands, which soon end as stuck.
    fn end_server(&mut self) -> Result<()> {
        let state = self.state();
        state.is_deleted = true;
        (state.identity, state.timers.old_key) = (None, None);
        self.disconnect("the server was removed")?;
        self.ensure_tables()?;
        for stored in self.store.waiting()? {
            self.cancel_by_id(stored.command.id, Cancellation::ServerDeleted, None)?;
        }
        self.mark_delivered_before(self.input.now.plus_millis(1), Lifecycle::mark_server_deleted)?;
        self.wipe_if_unused()
    }

    /// Wipes the object if it has no server and no commands.
    pub(super) fn wipe_if_unused(&mut self) -> Result<()> {
        let has_server = self
            .server
            .as_ref()
            .is_none_or(|server| server.identity.is_some() || server.unconfirmed.is_some());
        if has_server || self.store.has_commands()? { Ok(()) } else { self.wipe() }
    }

    pub(super) fn disconnect_and_wipe(&mut self, ticket: Ticket) -> Result<()> {
        self.close_sockets("the server was removed");
        self.wipe()?;
        self.reply(ticket, LinkResponse::EMPTY);
        Ok(())
    }

    /// Disconnects the agent and refuses agents until the workspace is undeleted. Without an agent
    /// nothing is delivered. An unused object stores nothing: it verifies its first agent in D1,
    /// and D1 finds no server in a deleted workspace.
    pub(super) fn suspend(&mut self, ticket: Ticket, is_suspended: bool) -> Result<()> {
        if let Some(server) = &mut self.server {
            server.is_suspended = is_suspended;
            if is_suspended {
                self.disconnect("the workspace was deleted")?;
            }
        }
        self.reply(ticket, LinkResponse::EMPTY);
        Ok(())
    }
}
