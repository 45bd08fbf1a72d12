//! The queue of a server's commands: which of them go out to the agent, and when.

use std::time::Duration;

use farhand_domain::command::Inputs;
use farhand_domain::lifecycle::Cancellation;
use farhand_domain::link::stored_command::StoredCommand;
use farhand_domain::rights::Rights;
use farhand_domain::wire::ToAgent;
use serde_json::json;
use uuid::Uuid;
use worker::WebSocket;

use super::d1;
use super::object::{ServerLink, now, wake};
use crate::platform;
use crate::platform::log;

/// How many commands an agent has at most that it did not end; further ones wait here, where they can be taken back. An
/// agent has room for 200 beyond those that run (agent-protocol 4).
pub(super) const WINDOW: u64 = 200;
/// How many commands have their right checked in one go.
const CHECKED_TOGETHER: u64 = 50;
/// How long a check of rights may take before it is taken for dead, in seconds.
const CHECK_WITHIN: i64 = 20;
/// When rights that could not be checked are looked at again, in seconds.
const CHECK_AGAIN: i64 = 2;

impl ServerLink {
    /// Hands out a new command that is allowed, after what comes before it.
    pub(super) async fn hand_out_new(&self, id: Uuid, is_forecast: bool) -> worker::Result<()> {
        let unchecked = self.hand_out_allowed()?;
        let is_waiting = self.allowed.borrow().contains_key(&id);
        if is_forecast
            && is_waiting
            && let Some(waiting) = self.find(id)?
        {
            // Something came in between. D1 is told the truth, and again when it goes out.
            self.allowed.borrow_mut().insert(id, None);
            self.save(&waiting)?;
        }
        if unchecked.is_empty() { Ok(()) } else { self.hand_out().await }
    }

    /// Hands out what is due, in its order (contract 8, 5), once its right was checked. Where somebody else is at it
    /// already, it is done when they are.
    pub(super) async fn hand_out(&self) -> worker::Result<()> {
        loop {
            let unchecked = self.hand_out_allowed()?;
            let Some(first) = unchecked.first() else { return Ok(()) };
            let (workspace, server) = (first.workspace_id, first.command.server);
            if self.checking_since.get().is_some_and(|since| since.plus_seconds(CHECK_WITHIN) > now()) {
                self.checked.wait((), Duration::from_secs(1)).await;
                continue;
            }
            self.checking_since.set(Some(now()));
            let verdicts = d1::find_rights(&self.env, workspace, server, &unchecked, now()).await;
            self.checking_since.set(None);
            self.checked.tell(&());
            // Meanwhile the object may have been wiped.
            if !self.is_used()? {
                return Ok(());
            }
            let verdicts = match verdicts {
                Ok(Some(verdicts)) => verdicts,
                other => {
                    // A deleted workspace's objects are suspended soon. Until then, nothing goes out.
                    if let Err(error) = other {
                        log::trouble("rights_not_checked", json!({"server": self.state.id().name()}), &error);
                    }
                    return self.tables().set_wake(wake::HAND_OUT, Some(now().plus_seconds(CHECK_AGAIN)));
                }
            };
            let mut fresh = Vec::new();
            for (stored, rights) in unchecked.iter().zip(verdicts) {
                let allowed = |rights: Rights| rights.allow(&stored.command, &stored.origin);
                match rights.and_then(allowed) {
                    Ok(()) => fresh.push(stored.command.id),
                    Err(denial) => self.cancel_as(stored.command.id, Cancellation::NotAllowed(denial), None)?,
                }
            }
            self.allowed.borrow_mut().extend(fresh.iter().map(|id| (*id, None)));
            let handed_out = self.hand_out_allowed();
            // What did not go out now is checked again when it does.
            self.allowed.borrow_mut().retain(|id, _| !fresh.contains(id));
            handed_out?;
            if self.open_socket()?.is_none() {
                return Ok(());
            }
        }
    }

    /// Hands out due commands from the front of the queue while they are known to be allowed. Returns those at the front
    /// that are not.
    fn hand_out_allowed(&self) -> worker::Result<Vec<StoredCommand>> {
        loop {
            let Some(socket) = self.open_socket()? else { return Ok(vec![]) };
            let mut due = self.tables().due_waiting(now(), CHECKED_TOGETHER)?;
            if due.is_empty() {
                return Ok(vec![]);
            }
            let room = WINDOW.saturating_sub(self.tables().count_open()?);
            due.truncate(usize::try_from(room).unwrap_or(usize::MAX));
            let allowed =
                due.iter().take_while(|stored| self.allowed.borrow().contains_key(&stored.command.id)).count();
            if allowed == 0 {
                let unchecked = |stored: &StoredCommand| !self.allowed.borrow().contains_key(&stored.command.id);
                return Ok(due.into_iter().take_while(unchecked).collect());
            }
            let is_all = allowed == due.len() && (allowed as u64) < CHECKED_TOGETHER;
            for stored in due.into_iter().take(allowed) {
                if !self.hand_over(&socket, stored)? {
                    return Ok(vec![]);
                }
            }
            if is_all {
                return Ok(vec![]);
            }
        }
    }

    /// Hands a command to the agent. False: the connection went.
    fn hand_over(&self, socket: &WebSocket, mut stored: StoredCommand) -> worker::Result<bool> {
        let inputs = match self.open_inputs(&stored) {
            Ok(inputs) => inputs,
            Err(why) => {
                log::trouble("inputs_not_decrypted", json!({"command": stored.command.id}), &why);
                self.cancel_as(stored.command.id, why, None)?;
                return Ok(true);
            }
        };
        let features = Self::features(socket);
        if let Some(feature) = stored.command.lacks(inputs.as_ref(), features) {
            // Another agent was connected, or none, when the command was created.
            if stored.life.undeliverable(now(), feature) {
                self.note_end(&mut stored)?;
                self.save(&stored)?;
            }
            return Ok(true);
        }
        let undelivered = stored.clone();
        // A connection that was made since then began after the forecast: what went out on it did so later.
        let connected_at = self.facts()?.connected_at;
        let forecast = self.allowed.borrow().get(&stored.command.id).copied().flatten();
        // One that D1 took long for is none: how long the agent has to acknowledge counts from what is noted here.
        let forecast =
            forecast.filter(|at| connected_at.is_none_or(|since| since <= *at) && at.plus_seconds(1) > now());
        if !stored.life.deliver(forecast.unwrap_or_else(now)) {
            return Ok(true);
        }
        let order = stored.command.order(inputs.as_ref(), stored.life.timeout, features);
        let message = serde_json::to_string(&ToAgent::Command { command: Box::new(order) })?;
        // At most once: that it went out is durable before it does.
        match forecast {
            Some(_) => self.tables().save(&stored, now(), true)?,
            None => self.save(&stored)?,
        }
        if socket.send_with_str(message).is_err() {
            // It did not leave, so it was not delivered.
            self.save(&undelivered)?;
            self.disconnected()?;
            return Ok(false);
        }
        self.allowed.borrow_mut().remove(&stored.command.id);
        Ok(true)
    }

    /// Has the queue looked at as soon as can be, if something in it is due.
    pub(super) fn hand_out_soon(&self) -> worker::Result<()> {
        let (tables, now) = (self.tables(), now());
        if tables.due_waiting(now, 1)?.is_empty() { Ok(()) } else { tables.set_wake(wake::HAND_OUT, Some(now)) }
    }

    /// Encrypts a command's inputs for the time that it waits.
    pub(super) fn seal_inputs(&self, id: Uuid, inputs: &Inputs) -> worker::Result<String> {
        let (key, nonce) = platform::secret_key(&self.env)
            .and_then(|key| Ok((key, platform::random()?)))
            .map_err(|error| d1::own(&error))?;
        let sealed = key.seal_inputs(id, &serde_json::to_string(inputs)?, nonce);
        sealed.map_err(|_| worker::Error::RustError("a command's inputs are too long to be encrypted".to_owned()))
    }

    /// A waiting command's inputs; `Err` if they cannot be decrypted.
    pub(super) fn open_inputs(&self, stored: &StoredCommand) -> Result<Option<Inputs>, Cancellation> {
        let Some(sealed) = &stored.inputs else { return Ok(None) };
        let opened = platform::secret_key(&self.env).ok().and_then(|key| key.open_inputs(stored.command.id, sealed));
        let inputs = opened.and_then(|text| serde_json::from_str(&text).ok());
        inputs.map(Some).ok_or(Cancellation::InputsUnreadable)
    }
}
