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

use serde_json::json;

use super::call::{
    ClaimedIdentity, DeleteServer, LinkResponse, Refusal, Rename, ReplaceKey, ServerLocation,
};
use super::event::{D1_TIMEOUT, D1Answer, D1Request, D1Server, RequestId, ServerChange, Ticket};
use super::machine::LinkMachine;
use super::memory::{
    AfterChange, AfterVerification, D1Result, PendingRequest, QueuedChange, UnverifiedCall,
};
use super::server_facts::ServerFacts;
use super::state::ServerIdentity;
use super::store::{Result, Store};
use crate::command_end::Cancellation;
use crate::lifecycle::Lifecycle;

impl<S: Store> LinkMachine<S> {
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
                let request =
                    D1Request::FindServer { workspace: workspace.clone(), server: *server };
                self.request_d1(PendingRequest::VerifyAgent(Box::new(call)), request);
                Ok(())
            }
        }
    }

    /// Handles D1's answer about the server.
    pub(super) fn server_found(&mut self, call: UnverifiedCall, answer: D1Result) -> Result<()> {
        let ticket = call.ticket();
        let found = match answer {
            Ok(D1Answer::Server(found)) => found,
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
        let facts = ServerFacts::beginning(found.commissioned, found.revision);
        let ClaimedIdentity { workspace, server, .. } = &call.claimed;
        let identity = ServerIdentity::from_d1(workspace, *server, found);
        // While a change is in progress, this answer may be older than the change. So it is valid
        // only for this call.
        let is_unsure = self.server.as_ref().is_some_and(|server| server.unconfirmed.is_some());
        if identity.matches(&call.claimed) && !is_unsure {
            let state = self.state();
            state.identity = Some(identity.clone());
            state.facts = facts;
            self.ensure_tables()?;
        }
        self.admit(call, &identity)
    }

    fn admit(&mut self, call: UnverifiedCall, identity: &ServerIdentity) -> Result<()> {
        if !identity.matches(&call.claimed) {
            self.refuse(call.ticket(), Refusal::InvalidAgent);
            return Ok(());
        }
        match call.then {
            AfterVerification::Report(ticket, report) => {
                self.report(ticket, identity, call.source, report)
            }
            AfterVerification::Connect { .. } => self.connect(call, identity),
        }
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

    /// Replaces the agent's key. Before the reply, the object refuses the old key, and closes the
    /// connections that were opened with it.
    pub(super) fn rotate(&mut self, ticket: Ticket, rotate: ReplaceKey) -> Result<()> {
        let ReplaceKey { of, by, key_hash, fingerprint, at, event } = rotate;
        let then = AfterChange::ReplyIfKey(ticket, key_hash.clone());
        let event = Box::new(event);
        self.queue_change(QueuedChange {
            of,
            change: ServerChange::ReplaceKey { by, key_hash, fingerprint, at, event },
            then,
        })
    }

    /// Deletes the server. The call can be repeated.
    pub(super) fn remove(&mut self, ticket: Ticket, remove: DeleteServer) -> Result<()> {
        let DeleteServer { of, by, only_pending, event } = remove;
        let what = ServerChange::Delete { by, only_pending, event: Box::new(event) };
        self.queue_change(QueuedChange {
            of,
            change: what,
            then: AfterChange::ReplyIfDeleted(ticket),
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
        if self.is_server_deleted() {
            // D1 may have the server again, if D1 was restored to an earlier time.
            if !matches!(change, ServerChange::Delete { .. }) {
                return self.finish_change(None);
            }
        } else {
            let answered_by = self.input.now.plus(D1_TIMEOUT);
            let state = self.state();
            state.unconfirmed = Some(of.clone());
            state.timers.revalidate = Some(answered_by);
        }
        self.request_d1(PendingRequest::Change, D1Request::ChangeServer(of, change));
        Ok(())
    }

    /// Handles D1's answer to the change in progress.
    pub(super) fn change_answered(&mut self, answer: D1Result) -> Result<()> {
        let Some(QueuedChange { of, .. }) = self.queued_changes.front() else { return Ok(()) };
        let of = of.clone();
        self.request_seal(of.workspace_id);
        match answer {
            Ok(D1Answer::Server(found)) => {
                let key =
                    if self.is_server_deleted() { None } else { self.apply_identity(&of, found)? };
                self.finish_change(key)?;
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

    /// Finishes the change in progress. `key` is the hash of the agent's key in D1; `None`: D1 has
    /// no such server.
    fn finish_change(&mut self, key: Option<String>) -> Result<()> {
        if let Some(change) = self.queued_changes.pop_front() {
            self.answer_change(change, key)?;
        }
        self.send_next_change()
    }

    /// Replies to the call that requested a change. `key`: see [`Self::finish_change`].
    pub(super) fn answer_change(
        &mut self,
        change: QueuedChange,
        key: Option<String>,
    ) -> Result<()> {
        match (change.then, key) {
            (AfterChange::Reply(ticket), _) | (AfterChange::ReplyIfDeleted(ticket), None) => {
                self.reply(ticket, LinkResponse::EMPTY);
            }
            (AfterChange::ReplyIfKey(ticket, wanted), Some(key)) if key == wanted => {
                self.reply(ticket, LinkResponse::EMPTY);
            }
            (AfterChange::ReplyIfKey(ticket, _), None) => self.refuse(ticket, Refusal::NoServer),
            (AfterChange::ReplyIfKey(ticket, _) | AfterChange::ReplyIfDeleted(ticket), Some(_)) => {
                self.refuse(ticket, Refusal::NotPermitted);
            }
            (AfterChange::BeginResync(ticket), _) => return self.begin_resync(ticket),
            (AfterChange::Nothing, _) => {}
        }
        Ok(())
    }

    /// Handles a change that ended after it had been reported as failed. Reads D1 again after the
    /// queued changes, because their answers may be older.
    pub(super) fn change_ended_late(&mut self, of: ServerLocation) -> Result<()> {
        if self.server.is_none() || self.is_server_deleted() {
            return Ok(());
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

    /// Applies the server's row in D1. Returns the hash of its agent's key, or `None` if D1 has no
    /// such server.
    fn apply_identity(
        &mut self,
        of: &ServerLocation,
        found: Option<D1Server>,
    ) -> Result<Option<String>> {
        let state = self.state();
        state.unconfirmed = None;
        state.timers.revalidate = None;
        let Some(found) = found else {
            self.end_server()?;
            return Ok(None);
        };
        let before = state.identity.clone();
        if before.is_none() {
            state.facts = ServerFacts::beginning(found.commissioned, found.revision);
        }
        let named_at = before.as_ref().and_then(|before| before.named_at);
        let identity =
            ServerIdentity { named_at, ..ServerIdentity::from_d1(&of.workspace, of.server, found) };
        let key = identity.key_hash.clone();
        state.identity = Some(identity);
        if before.is_none_or(|before| before.key_hash != key) {
            self.disconnect("the key was changed")?;
        }
        Ok(Some(key))
    }

    /// The server was deleted: refuses its agent, and cancels waiting commands. Marks delivered
    /// commands, which soon end as stuck.
    fn end_server(&mut self) -> Result<()> {
        let state = self.state();
        state.is_deleted = true;
        state.identity = None;
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
