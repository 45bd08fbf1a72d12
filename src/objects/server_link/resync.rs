//! What a server's object does when D1 was taken back to an earlier moment (docs/operations.md, Restore): it takes over what D1
//! says of the server, and tells D1 of all its commands again. What D1 does not have any more it gets as new.

use farhand_domain::link::stored_command::Phase;
use farhand_domain::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use worker::Result;

use super::calls::{Answer, OfServer};
use super::d1;
use super::object::{BATCH, ServerLink, fact, now, wake};
use crate::platform::log;

/// When what D1 did not take is told again, in seconds.
const AGAIN: i64 = 5;

/// How far D1 was given the commands again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Resynced {
    /// When that was asked for: another time begins anew.
    run: Timestamp,
    /// The last command that it was given.
    after: String,
}

impl ServerLink {
    /// Begins to tell D1 everything again. Where the object is at it already, it begins anew.
    pub(super) async fn resync(&self, of: OfServer) -> Result<Answer> {
        if self.is_used()? && !self.is_gone()? {
            self.change(&of, vec![]).await?;
        }
        // D1 may have said that there is no such server, of which there was nothing.
        if self.is_used()? {
            let mut facts = self.facts()?;
            facts.flushed = 0;
            self.tables().set_fact(fact::SERVER, &facts)?;
            self.tables().set_fact(fact::RESYNCED, &Resynced { run: now(), after: String::new() })?;
            self.wake_for_resync(Some(now()))?;
            self.arm().await?;
        }
        Ok(Answer::Done(Value::Null))
    }

    fn wake_for_resync(&self, at: Option<Timestamp>) -> Result<()> {
        self.tables().set_wake(wake::RESYNC, at)
    }

    /// Gives D1 the next commands that it may lack, and notes that it is to be told of them. Their latest follows by `flush`.
    pub(super) async fn resync_some(&self) -> Result<()> {
        let tables = self.tables();
        let Some(resynced) = tables.fact::<Resynced>(fact::RESYNCED)? else { return self.wake_for_resync(None) };
        let some = tables.accepted_after(&resynced.after, BATCH)?;
        let Some(last) = some.last() else {
            tables.delete_fact(fact::RESYNCED)?;
            tables.set_wake(wake::FLUSH, Some(now()))?;
            return self.wake_for_resync(None);
        };
        // Before D1 is told: retention does not take what D1 is to be told of.
        for stored in &some {
            tables.mark_unflushed(stored.command.id)?;
        }
        let sent = d1::send(&self.env, some.iter().map(d1::restore_command).collect()).await;
        // Meanwhile the object may have been wiped.
        if !self.is_used()? {
            return Ok(());
        }
        if let Err(error) = sent {
            log::trouble("d1_not_told", json!({"server": self.state.id().name()}), &error);
            return self.wake_for_resync(Some(now().plus_seconds(AGAIN)));
        }
        // A request may have taken its command back meanwhile, and D1 have heard of that before this.
        let mut withdrawn = Vec::new();
        for stored in &some {
            if tables.command(stored.command.id)?.is_none_or(|stored| stored.phase != Phase::Accepted) {
                withdrawn.push(d1::unrestore_command(stored));
            }
        }
        if let Err(error) = d1::send(&self.env, withdrawn).await {
            log::trouble("d1_not_told", json!({"server": self.state.id().name()}), &error);
        }
        if !self.is_used()? || tables.fact::<Resynced>(fact::RESYNCED)?.as_ref() != Some(&resynced) {
            return Ok(());
        }
        tables.set_fact(fact::RESYNCED, &Resynced { after: last.command.id.to_string(), ..resynced })?;
        tables.set_wake(wake::FLUSH, Some(now()))?;
        self.wake_for_resync(Some(now()))
    }
}
