//! What a server's object does when D1 was taken back to an earlier moment (docs/operations.md, Restore): it takes over what D1
//! says of the server, and tells D1 of all its commands again. What D1 does not have any more it gets as new.

use farhand_domain::time::Timestamp;
use serde_json::{Value, json};
use worker::Result;

use super::{BATCH, ServerLink, fact, now, wake};
use crate::link_calls::{Answer, OfServer};
use crate::log;
use crate::store::server_link as d1;

/// When what D1 did not take is told again, in seconds.
const AGAIN: i64 = 5;

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
            self.tables().set_fact(fact::RESYNCED, &"")?;
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
        let Some(after) = tables.fact::<String>(fact::RESYNCED)? else { return self.wake_for_resync(None) };
        let some = tables.accepted_after(&after, BATCH)?;
        let Some(last) = some.last() else {
            tables.delete_fact(fact::RESYNCED)?;
            tables.set_wake(wake::FLUSH, Some(now()))?;
            return self.wake_for_resync(None);
        };
        let sent = d1::send(&self.env, some.iter().map(d1::restore_command).collect()).await;
        // Meanwhile the object may have been wiped.
        if !self.is_used()? {
            return Ok(());
        }
        if let Err(error) = sent {
            log::trouble("d1_not_told", json!({"server": self.state.id().name()}), &error);
            return self.wake_for_resync(Some(now().plus_seconds(AGAIN)));
        }
        for held in &some {
            tables.mark_unflushed(held.command.id)?;
        }
        tables.set_fact(fact::RESYNCED, &last.command.id.to_string())?;
        tables.set_wake(wake::FLUSH, Some(now()))?;
        self.wake_for_resync(Some(now()))
    }
}
