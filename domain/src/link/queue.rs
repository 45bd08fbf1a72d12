//! The queue: which of the waiting commands are delivered to the agent, and when.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::event::{Answer, ConnectionKind, Effect, Request, Verdicts};
use super::machine::Machine;
use super::memory::{D1Result, PendingRequest};
use super::store::{Result, Store};
use super::stored_command::StoredCommand;
use crate::agent::features::Features;
use crate::agent::wire::{MessageToAgent, Script};
use crate::command::end::Cancellation;
use crate::command::script::ScriptRef;

/// Maximum number of commands in one permission check.
const MAX_CHECKED_TOGETHER: u64 = 50;
/// The delay before a failed permission check is repeated.
const CHECK_RETRY_DELAY: Duration = Duration::from_secs(2);

impl<S: Store> Machine<S> {
    /// Delivers the due commands in order (contract 8.5), after a permission check.
    pub(super) fn deliver_due(&mut self) -> Result<()> {
        self.deliver_allowed(&BTreeMap::new(), &BTreeMap::new())
    }

    /// Delivers due commands from the front of the queue, up to the first command that is not
    /// `allowed`. If the first due command is not allowed, requests a permission check for the
    /// commands at the front. `allowed` has the bytes of output that each command may keep.
    /// `scripts`: the scripts of the allowed commands.
    fn deliver_allowed(
        &mut self,
        allowed: &BTreeMap<Uuid, Option<u64>>,
        scripts: &BTreeMap<ScriptRef, Script>,
    ) -> Result<()> {
        loop {
            let Some((generation, features)) = self.backhaul() else { return Ok(()) };
            let due = self.store.due_waiting(self.input.now, MAX_CHECKED_TOGETHER)?;
            let room = self.settings.max_open_commands.saturating_sub(self.store.count_open()?);
            let due: Vec<_> =
                due.into_iter().take(usize::try_from(room).unwrap_or(usize::MAX)).collect();
            let is_allowed = |stored: &&StoredCommand| allowed.contains_key(&stored.command.id);
            let ready = due.iter().take_while(is_allowed).count();
            if ready == 0 {
                let unchecked: Vec<_> =
                    due.into_iter().take_while(|stored| !is_allowed(&stored)).collect();
                if !unchecked.is_empty() {
                    // If no answer comes, the alarm repeats the check.
                    self.plan.deliver = Some(self.input.now);
                    if !self.is_request_pending(|request| {
                        matches!(request, PendingRequest::CheckPermissions(_))
                    }) {
                        self.request_d1(
                            PendingRequest::CheckPermissions(unchecked.clone()),
                            Request::FindPermissions(unchecked),
                        );
                    }
                }
                return Ok(());
            }
            for stored in due.into_iter().take(ready) {
                let script = stored.command.script.and_then(|script| scripts.get(&script)).cloned();
                let output_limit = allowed.get(&stored.command.id).copied().flatten();
                let stored = StoredCommand { output_limit, ..stored };
                self.deliver(generation, features, stored, script)?;
            }
        }
    }

    /// Handles D1's answer to a permission check.
    pub(super) fn permissions_answered(
        &mut self,
        commands: &[StoredCommand],
        answer: D1Result,
    ) -> Result<()> {
        let Verdicts { permissions, scripts, output_limits } = match answer {
            Ok(Answer::Permissions(Some(verdicts))) => verdicts,
            // D1 gave no answer, or the workspace is deleted. The objects of a deleted workspace
            // are suspended soon. Until then nothing is delivered.
            other => {
                if let Err(error) = other {
                    self.log_error("rights_not_checked", json!({}), &error);
                }
                self.plan.deliver = Some(self.input.now.plus(CHECK_RETRY_DELAY));
                return Ok(());
            }
        };
        self.plan.deliver = None;
        let mut allowed = BTreeMap::new();
        for (position, (stored, rights)) in commands.iter().zip(permissions).enumerate() {
            let id = stored.command.id;
            // A script that is not in this answer is in the answer to the next check.
            let is_loaded =
                stored.command.script.is_none_or(|script| scripts.contains_key(&script));
            match rights.and_then(|rights| rights.allow(&stored.command, &stored.origin)) {
                Ok(()) if !is_loaded => {}
                Ok(()) => {
                    allowed.insert(id, output_limits.get(position).copied());
                }
                Err(denial) => self.cancel_by_id(id, Cancellation::NotAllowed(denial), None)?,
            }
        }
        self.deliver_allowed(&allowed, &scripts)
    }

    /// Delivers a command to the agent, or ends it if the agent cannot run it. The stored command
    /// may still be in the phase `Recording`. `script`: the script, if the command runs one.
    pub(super) fn deliver(
        &mut self,
        generation: u64,
        features: Features,
        mut stored: StoredCommand,
        script: Option<Script>,
    ) -> Result<()> {
        let id = stored.command.id;
        let inputs = match self.decrypt_inputs(&stored) {
            Ok(inputs) => inputs,
            Err(why) => {
                self.log_error("inputs_not_decrypted", json!({"command": id}), &why.to_string());
                return self.cancel_stored(stored, why, None);
            }
        };
        if let Some(feature) = stored.command.lacks(inputs.as_ref(), script.as_ref(), features) {
            // When the command was created, another agent was connected, or none.
            if stored.life.fail_undeliverable(self.input.now, feature) {
                self.add_finish_event(&mut stored)?;
                self.save(&stored)?;
            }
            return Ok(());
        }
        let before = stored.clone();
        // At most once: `delivered_at` is durable before the message leaves.
        if stored.life.deliver(self.input.now) {
            let timeout = stored.life.timeout;
            let order = stored.command.order(inputs.as_ref(), script, timeout, features);
            self.save(&stored)?;
            self.effects.push(Effect::Send {
                kind: ConnectionKind::Backhaul,
                generation,
                message: MessageToAgent::Command { command: Box::new(order) },
                before: Some(Box::new(before)),
            });
        }
        Ok(())
    }

    /// A message was not sent because the connection is closed. A command in it waits again.
    pub(super) fn not_sent(
        &mut self,
        generation: u64,
        before: Option<Box<StoredCommand>>,
    ) -> Result<()> {
        if let Some(before) = before
            && let Some(stored) = self.find(before.command.id)?
        {
            self.save(&StoredCommand { revision: stored.revision, ..*before })?;
            // Another connection may be open already.
            self.schedule_delivery()?;
        }
        if self.server.as_ref().is_some_and(|server| server.backhaul.open == Some(generation)) {
            self.disconnected()?;
        }
        Ok(())
    }

    /// Sets the delivery timer to now if a waiting command is due.
    pub(super) fn schedule_delivery(&mut self) -> Result<()> {
        let now = self.input.now;
        if !self.store.due_waiting(now, 1)?.is_empty() {
            self.plan.deliver = Some(now);
        }
        Ok(())
    }

    /// Whether a new command can be delivered immediately: no due command waits before it, and the
    /// agent has room.
    pub(super) fn has_room(&self) -> Result<bool> {
        let is_first = self.store.due_waiting(self.input.now, 1)?.is_empty();
        self.has_room_if(is_first)
    }

    /// Whether an accepted command can be delivered immediately.
    pub(super) fn has_room_for(&self, id: Uuid) -> Result<bool> {
        let due = self.store.due_waiting(self.input.now, 1)?;
        self.has_room_if(due.iter().all(|stored| stored.command.id == id))
    }

    fn has_room_if(&self, is_first: bool) -> Result<bool> {
        Ok(is_first && self.store.count_open()? < self.settings.max_open_commands)
    }
}
