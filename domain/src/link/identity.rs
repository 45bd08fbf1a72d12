//! The server's identity: how its agent is verified, and how the key changes and the server ends.
//!
//! D1 has the server's row, the object the hash of its agent's key, so that reports read nothing
//! from D1. A new key and the deletion of the server go through the object, one after the other: it
//! sets `unsure`, sends the change to D1, and then takes over what D1 has. Until then, also after a
//! cut-off in between, D1 is asked about every call of an agent.

use serde_json::json;

use super::call::{Answer, Identity, OfServer, Refusal, Remove, Rename, Rotate};
use super::event::{D1_WITHIN, Found, FromD1, RequestId, ServerChange, Ticket, ToD1};
use super::machine::Link;
use super::memory::{Asked, Change, FromD1Result, Identified, ThenAgent, ThenChanged};
use super::server_facts::ServerFacts;
use super::state::Known;
use super::store::{Result, Store};
use crate::command_end::Cancellation;
use crate::lifecycle::Lifecycle;

impl<S: Store> Link<S> {
    fn is_shut(&self) -> bool {
        self.server.as_ref().is_some_and(|server| server.is_gone || server.is_suspended)
    }

    /// The server's identity, if D1 certainly has the same.
    fn sure(&self) -> Option<Known> {
        let server = self.server.as_ref()?;
        if server.unsure.is_some() { None } else { server.known.clone() }
    }

    /// Verifies an agent and goes on with its call. The first time D1 is asked, and its answer is
    /// kept.
    pub(super) fn identify(&mut self, identified: Identified) -> Result<()> {
        if self.is_shut() {
            self.refuse(identified.ticket(), Refusal::InvalidAgent);
            return Ok(());
        }
        match self.sure() {
            Some(known) => self.admit(identified, &known),
            None => {
                let Identity { workspace, server, .. } = &identified.identity;
                let request = ToD1::Find { workspace: workspace.clone(), server: *server };
                self.ask(Asked::Find(Box::new(identified)), request);
                Ok(())
            }
        }
    }

    /// Takes D1's answer about the server.
    pub(super) fn found(&mut self, identified: Identified, answer: FromD1Result) -> Result<()> {
        let ticket = identified.ticket();
        let found = match answer {
            Ok(FromD1::Server(found)) => found,
            Ok(_) => None,
            Err(error) => {
                self.reply(ticket, Answer::Failed(error));
                return Ok(());
            }
        };
        let Some(found) = found.filter(|_| !self.is_shut()) else {
            self.refuse(ticket, Refusal::InvalidAgent);
            return Ok(());
        };
        // Another call may have loaded the identity while D1 was asked; keep its result.
        if let Some(known) = self.sure() {
            return self.admit(identified, &known);
        }
        let facts = ServerFacts::beginning(found.commissioned, found.revision);
        let Identity { workspace, server, .. } = &identified.identity;
        let known = Known::found(workspace, *server, found);
        // While a change is under way, this answer may be from before it: it counts for this call
        // only.
        let is_unsure = self.server.as_ref().is_some_and(|server| server.unsure.is_some());
        if known.is_of(&identified.identity) && !is_unsure {
            let state = self.state();
            state.known = Some(known.clone());
            state.facts = facts;
            self.begin_use()?;
        }
        self.admit(identified, &known)
    }

    fn admit(&mut self, identified: Identified, known: &Known) -> Result<()> {
        if !known.is_of(&identified.identity) {
            self.refuse(identified.ticket(), Refusal::InvalidAgent);
            return Ok(());
        }
        match identified.then {
            ThenAgent::Reports(ticket, report) => {
                self.report(ticket, known, identified.source, report)
            }
            ThenAgent::Connects { .. } => self.connect(identified, known),
        }
    }

    /// Learns the identity of the server, which was just created and may be deleted already.
    pub(super) fn adopt(&mut self, ticket: Ticket, of: OfServer) -> Result<()> {
        if self.known().is_some() {
            self.reply(ticket, Answer::NOTHING);
            return Ok(());
        }
        self.change(Change { of, what: ServerChange::Nothing, then: ThenChanged::Done(ticket) })
    }

    /// Learns the new name of the server.
    pub(super) fn rename(&mut self, ticket: Ticket, rename: Rename) -> Result<()> {
        if let Some(known) = self.server.as_mut().and_then(|server| server.known.as_mut())
            && known.named_at.is_none_or(|at| at <= rename.at)
        {
            (known.name, known.named_at) = (rename.name, Some(rename.at));
        }
        self.reply(ticket, Answer::NOTHING);
        Ok(())
    }

    /// Replaces the agent's key. Before the call is answered, the old key is refused and
    /// connections that were made with it are closed.
    pub(super) fn rotate(&mut self, ticket: Ticket, rotate: Rotate) -> Result<()> {
        let Rotate { of, by, key_hash, fingerprint, at, event } = rotate;
        let then = ThenChanged::HasKey(ticket, key_hash.clone());
        let event = Box::new(event);
        self.change(Change {
            of,
            what: ServerChange::Key { by, key_hash, fingerprint, at, event },
            then,
        })
    }

    /// Deletes the server. Repeating the call is harmless.
    pub(super) fn remove(&mut self, ticket: Ticket, remove: Remove) -> Result<()> {
        let Remove { of, by, only_pending, event } = remove;
        let what = ServerChange::Delete { by, only_pending, event: Box::new(event) };
        self.change(Change { of, what, then: ThenChanged::IsGone(ticket) })
    }

    /// Sends a change to D1 when the changes before it are done.
    pub(super) fn change(&mut self, change: Change) -> Result<()> {
        self.changes.push_back(change);
        if self.changes.len() == 1 { self.begin_change() } else { Ok(()) }
    }

    fn begin_change(&mut self) -> Result<()> {
        let Some(Change { of, what, .. }) = self.changes.front() else { return Ok(()) };
        let (of, what) = (of.clone(), what.clone());
        if self.is_gone() {
            // D1 has the server all the same if it was restored to an earlier time.
            if !matches!(what, ServerChange::Delete { .. }) {
                return self.end_change(None);
            }
        } else {
            let look = self.scene.now.plus(D1_WITHIN);
            let state = self.state();
            state.unsure = Some(of.clone());
            state.timers.look = Some(look);
        }
        self.ask(Asked::Change, ToD1::Change(of, what));
        Ok(())
    }

    /// Takes D1's answer to the change under way.
    pub(super) fn change_answered(&mut self, answer: FromD1Result) -> Result<()> {
        let Some(Change { of, .. }) = self.changes.front() else { return Ok(()) };
        let of = of.clone();
        self.seal_soon(of.workspace_id);
        match answer {
            Ok(FromD1::Server(found)) => {
                let key = if self.is_gone() { None } else { self.take_over(&of, found)? };
                self.end_change(key)?;
                self.identify_again()
            }
            // It is unknown whether D1 made the change. The timer has it read again.
            Ok(_) => self.fail_change("D1 gave another answer"),
            Err(error) => self.fail_change(&error),
        }
    }

    /// Verifies agents again about whom D1 is being asked: its answer may be from before the
    /// change.
    fn identify_again(&mut self) -> Result<()> {
        let ids: Vec<RequestId> = self
            .asked
            .iter()
            .filter(|(_, asked)| matches!(asked, Asked::Find(_)))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            if let Some(Asked::Find(identified)) = self.asked.remove(&id) {
                self.identify(*identified)?;
            }
        }
        Ok(())
    }

    fn fail_change(&mut self, error: &str) -> Result<()> {
        let Some(Change { then, .. }) = self.changes.pop_front() else { return Ok(()) };
        match then.ticket() {
            Some(ticket) => self.reply(ticket, Answer::Failed(error.to_owned())),
            None => self.trouble("change_not_known", json!({}), error),
        }
        self.begin_change()
    }

    /// Ends the change under way. `key` is the hash of the agent's key in D1; `None`: D1 has no
    /// such server.
    fn end_change(&mut self, key: Option<String>) -> Result<()> {
        if let Some(change) = self.changes.pop_front() {
            self.changed(change, key)?;
        }
        self.begin_change()
    }

    /// Answers the call that asked for a change. `key` as in `end_change`.
    pub(super) fn changed(&mut self, change: Change, key: Option<String>) -> Result<()> {
        match (change.then, key) {
            (ThenChanged::Done(ticket), _) | (ThenChanged::IsGone(ticket), None) => {
                self.reply(ticket, Answer::NOTHING);
            }
            (ThenChanged::HasKey(ticket, wanted), Some(key)) if key == wanted => {
                self.reply(ticket, Answer::NOTHING);
            }
            (ThenChanged::HasKey(ticket, _), None) => self.refuse(ticket, Refusal::NoServer),
            (ThenChanged::HasKey(ticket, _) | ThenChanged::IsGone(ticket), Some(_)) => {
                self.refuse(ticket, Refusal::NotPermitted);
            }
            (ThenChanged::Resync(ticket), _) => return self.begin_resync(ticket),
            (ThenChanged::Nobody, _) => {}
        }
        Ok(())
    }

    /// A change ended after it was given up. D1 is read after the changes under way, whose answers
    /// may be from before that.
    pub(super) fn changed_late(&mut self, of: OfServer) -> Result<()> {
        if self.server.is_none() || self.is_gone() {
            return Ok(());
        }
        self.change(Change { of, what: ServerChange::Nothing, then: ThenChanged::Nobody })
    }

    /// Asks D1 what became of a change that was cut off.
    pub(super) fn look_into_d1(&mut self) -> Result<()> {
        let unsure = self.server.as_ref().and_then(|server| server.unsure.clone());
        let Some(of) = unsure else {
            self.state().timers.look = None;
            return Ok(());
        };
        self.state().timers.look = Some(self.scene.now.plus(D1_WITHIN));
        if self.changes.is_empty() {
            let then = ThenChanged::Nobody;
            return self.change(Change { of, what: ServerChange::Nothing, then });
        }
        Ok(())
    }

    /// Takes over what D1 has of the server. Returns the hash of its agent's key, if D1 has the
    /// server.
    fn take_over(&mut self, of: &OfServer, found: Option<Found>) -> Result<Option<String>> {
        let state = self.state();
        state.unsure = None;
        state.timers.look = None;
        let Some(found) = found else {
            self.end_server()?;
            return Ok(None);
        };
        let before = state.known.clone();
        if before.is_none() {
            state.facts = ServerFacts::beginning(found.commissioned, found.revision);
        }
        let named_at = before.as_ref().and_then(|before| before.named_at);
        let known = Known { named_at, ..Known::found(&of.workspace, of.server, found) };
        let key = known.key_hash.clone();
        state.known = Some(known);
        if before.is_none_or(|before| before.key_hash != key) {
            self.cut_off("the key was changed")?;
        }
        Ok(Some(key))
    }

    /// The server was deleted: its agent is refused, waiting commands are cancelled, and commands
    /// under way are given up soon.
    fn end_server(&mut self) -> Result<()> {
        let state = self.state();
        state.is_gone = true;
        state.known = None;
        self.cut_off("the server was removed")?;
        self.begin_use()?;
        for stored in self.store.waiting()? {
            self.cancel_as(stored.command.id, Cancellation::ServerDeleted, None)?;
        }
        self.doubt(self.scene.now.plus_millis(1), Lifecycle::server_deleted)?;
        self.wipe_if_unused()
    }

    /// Wipes an object without server and commands.
    pub(super) fn wipe_if_unused(&mut self) -> Result<()> {
        let has_server = self
            .server
            .as_ref()
            .is_none_or(|server| server.known.is_some() || server.unsure.is_some());
        if has_server || self.store.has_commands()? { Ok(()) } else { self.wipe() }
    }

    /// Disconnects the agent and deletes everything.
    pub(super) fn sever(&mut self, ticket: Ticket) -> Result<()> {
        self.close_all("the server was removed");
        self.wipe()?;
        self.reply(ticket, Answer::NOTHING);
        Ok(())
    }

    /// Disconnects the agent and refuses agents until the workspace is undeleted: without an agent
    /// nothing is delivered. An unused object asks D1 about its first agent, and D1 finds no server
    /// in a deleted workspace.
    pub(super) fn suspend(&mut self, ticket: Ticket, is_suspended: bool) -> Result<()> {
        if let Some(server) = &mut self.server {
            server.is_suspended = is_suspended;
            if is_suspended {
                self.cut_off("the workspace was deleted")?;
            }
        }
        self.reply(ticket, Answer::NOTHING);
        Ok(())
    }
}
