//! The queue: which of the waiting commands are delivered to the agent, and when.

use std::result::Result as Answered;

use serde_json::json;
use uuid::Uuid;

use super::event::{Effect, FromD1, Kind, ToD1};
use super::machine::Link;
use super::memory::Asked;
use super::store::{Result, Store};
use super::stored_command::StoredCommand;
use crate::command_end::Cancellation;
use crate::features::Features;
use crate::wire::ToAgent;

/// How many commands one permission check covers at most.
const CHECKED_TOGETHER: u64 = 50;
/// When a failed permission check is repeated, in seconds.
const CHECK_AGAIN: i64 = 2;

impl<S: Store> Link<S> {
    /// Delivers what is due, in order (contract 8.5), after a permission check.
    pub(super) fn hand_out(&mut self) -> Result<()> {
        self.hand_out_with(&[])
    }

    /// Delivers due commands from the front of the queue, up to the first one that is not among the
    /// `allowed`. If there is none before that, D1 is asked for the permission of those at the
    /// front.
    pub(super) fn hand_out_with(&mut self, allowed: &[Uuid]) -> Result<()> {
        loop {
            let Some((generation, features)) = self.backhaul() else { return Ok(()) };
            let due = self.store.due_waiting(self.scene.now, CHECKED_TOGETHER)?;
            let room = self.settings.window.saturating_sub(self.store.count_open()?);
            let due: Vec<_> =
                due.into_iter().take(usize::try_from(room).unwrap_or(usize::MAX)).collect();
            let is_allowed = |stored: &&StoredCommand| allowed.contains(&stored.command.id);
            let ready = due.iter().take_while(is_allowed).count();
            if ready == 0 {
                let unchecked: Vec<_> =
                    due.into_iter().take_while(|stored| !is_allowed(&stored)).collect();
                if !unchecked.is_empty() {
                    // If no answer comes, the alarm repeats the check.
                    self.plan.hand_out = Some(self.scene.now);
                    if !self.is_asking(|asked| matches!(asked, Asked::Rights(_))) {
                        self.ask(Asked::Rights(unchecked.clone()), ToD1::FindRights(unchecked));
                    }
                }
                return Ok(());
            }
            for stored in due.into_iter().take(ready) {
                self.hand_over(generation, features, stored)?;
            }
        }
    }

    /// Takes D1's answer to a permission check.
    pub(super) fn checked(
        &mut self,
        commands: &[StoredCommand],
        answer: Answered<FromD1, String>,
    ) -> Result<()> {
        let verdicts = match answer {
            Ok(FromD1::Rights(Some(verdicts))) => verdicts,
            // A deleted workspace's objects are suspended soon. Until then nothing is delivered.
            other => {
                if let Err(error) = other {
                    self.trouble("rights_not_checked", json!({}), &error);
                }
                self.plan.hand_out = Some(self.scene.now.plus_seconds(CHECK_AGAIN));
                return Ok(());
            }
        };
        self.plan.hand_out = None;
        let mut allowed = Vec::new();
        for (stored, rights) in commands.iter().zip(verdicts) {
            let id = stored.command.id;
            match rights.and_then(|rights| rights.allow(&stored.command, &stored.origin)) {
                Ok(()) => allowed.push(id),
                Err(denial) => self.cancel_as(id, Cancellation::NotAllowed(denial), None)?,
            }
        }
        self.hand_out_with(&allowed)
    }

    /// Delivers a command to the agent, or ends it if that is impossible. It need not be stored as
    /// accepted yet.
    pub(super) fn hand_over(
        &mut self,
        generation: u64,
        features: Features,
        mut stored: StoredCommand,
    ) -> Result<()> {
        let id = stored.command.id;
        let inputs = match self.open_inputs(&stored) {
            Ok(inputs) => inputs,
            Err(why) => {
                self.trouble("inputs_not_decrypted", json!({"command": id}), &why.to_string());
                return self.cancel_accepted(stored, why, None);
            }
        };
        if let Some(feature) = stored.command.lacks(inputs.as_ref(), features) {
            // Another agent was connected, or none, when the command was created.
            if stored.life.undeliverable(self.scene.now, feature) {
                self.note_end(&mut stored)?;
                self.save(&stored)?;
            }
            return Ok(());
        }
        let before = stored.clone();
        // At most once: `delivered_at` is durable before the message leaves.
        if stored.life.deliver(self.scene.now) {
            let order = stored.command.order(inputs.as_ref(), stored.life.timeout, features);
            self.save(&stored)?;
            self.effects.push(Effect::Send {
                kind: Kind::Backhaul,
                generation,
                message: ToAgent::Command { command: Box::new(order) },
                before: Some(Box::new(before)),
            });
        }
        Ok(())
    }

    /// A message did not leave: the connection is gone, and a command in it was not delivered.
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
            self.hand_out_soon()?;
        }
        if self.server.as_ref().is_some_and(|server| server.backhaul.open == Some(generation)) {
            self.disconnected()?;
        }
        Ok(())
    }

    /// Has the alarm look at the queue immediately, if something in it is due.
    pub(super) fn hand_out_soon(&mut self) -> Result<()> {
        let now = self.scene.now;
        if !self.store.due_waiting(now, 1)?.is_empty() {
            self.plan.hand_out = Some(now);
        }
        Ok(())
    }

    /// Whether a new command would be delivered immediately: no due command waits, and the agent
    /// has room for it.
    pub(super) fn has_room(&self) -> Result<bool> {
        let is_first = self.store.due_waiting(self.scene.now, 1)?.is_empty();
        Ok(is_first && self.store.count_open()? < self.settings.window)
    }
}
