//! Deletes old audit events. At the beginning of a chain, whole entries are deleted, and the hash
//! of the last deleted entry is kept. Within a chain, anonymous events are deleted, and their
//! hashes and digests are kept.

use farhand_domain::audit::chain::{ChainEnd, Verifier};
use farhand_domain::audit::event::CELL;
use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use farhand_sql::object::audit_sealer as tables;
use serde_json::json;
use worker::Env;

use super::{BATCH, Chain, Sealer};
use crate::platform;
use crate::platform::log;
use crate::store::Progress;
use crate::store::audit_chain;

/// The time before which a retention setting deletes events. Returns `None` if the setting keeps
/// all events. An invalid setting keeps all events and is logged.
pub(super) fn kept_until(env: &Env, workspace: i64, setting: &str) -> Option<Timestamp> {
    platform::retention_cutoff(env, setting).unwrap_or_else(|error| {
        // Not an error of this pass: a retry does not help. An operator must correct the setting.
        log::error("audit_not_deleted", json!({"workspace_id": workspace}), &error.detail);
        None
    })
}

impl Sealer {
    /// Deletes old events from the beginning of the chain, up to one batch.
    ///
    /// Each entry is verified before it is deleted. An invalid entry and all entries after it are
    /// kept, as evidence.
    pub(super) async fn delete_old(&self) -> Result<Progress, Error> {
        let Some(Chain { workspace, head, base, is_deleting, expired, .. }) = self.chain()? else {
            return Ok(Progress::Done);
        };
        if is_deleting {
            self.delete_up_to(workspace, &base).await?;
        }
        let until = kept_until(&self.env, workspace, platform::AUDIT_RETENTION);
        let Some(until) = until.filter(|_| workspace != CELL) else {
            return Ok(Progress::Done);
        };
        let (first, last) = (base.link + 1, head.link.min(base.link + BATCH as i64));
        if first > last {
            return Ok(Progress::Done);
        }
        let links =
            audit_chain::links(&self.database(workspace), workspace, (first, last), head.link)
                .await?;
        let mut verifier = Verifier::after(workspace, base.clone()).expired_up_to(expired);
        let anchors = self.anchors(&head, first, last)?;
        for row in &links.rows {
            // An expired event has no time. It was old enough when it expired.
            if !row.is_expired() && row.occurred_at().is_none_or(|at| at >= until) {
                break;
            }
            let anchor = anchors.get(&row.link).map(String::as_str);
            if let Err(broken) = verifier.take(row, anchor) {
                let fields = json!({"workspace_id": workspace, "link": broken.link});
                log::error("audit_chain_broken", fields, &broken.problem);
                break;
            }
        }
        let new_base = verifier.last().clone();
        // The object may have been wiped while it awaited D1.
        if new_base.link == base.link || self.chain()?.is_none_or(|chain| chain.base != base) {
            return Ok(Progress::Done);
        }
        self.exec(tables::begin_deletion(serde_json::to_string(&new_base)?))?;
        self.exec(tables::delete_anchors_before(new_base.link))?;
        self.delete_up_to(workspace, &new_base).await?;
        log::event(
            "audit_retention",
            json!({"workspace_id": workspace, "deleted": new_base.link - base.link}),
        );
        Ok(if new_base.link == last { Progress::More } else { Progress::Done })
    }

    /// Deletes the content of old anonymous events, up to one batch. Their chain entries are kept.
    ///
    /// First stores the number of the last entry that this affects. A verification accepts a
    /// missing anonymous event only up to that number.
    pub(super) async fn expire_old(&self) -> Result<Progress, Error> {
        let Some(Chain { workspace, expired, .. }) = self.chain()? else {
            return Ok(Progress::Done);
        };
        let Some(until) = kept_until(&self.env, workspace, platform::ANONYMOUS_AUDIT_RETENTION)
        else {
            return Ok(Progress::Done);
        };
        let mut rows =
            audit_chain::first_anonymous_links(&self.database(workspace), workspace, until, BATCH)
                .await?;
        let old =
            rows.iter().take_while(|row| row.occurred_at().is_some_and(|at| at < until)).count();
        rows.truncate(old);
        // The object may have been wiped while it awaited D1.
        let Some(last) = rows.last().filter(|_| self.chain().is_ok_and(|chain| chain.is_some()))
        else {
            return Ok(Progress::Done);
        };
        self.exec(tables::set_expired(last.link.max(expired)))?;
        audit_chain::expire(&self.database(workspace), workspace, &rows).await?;
        log::event("audit_retention", json!({"workspace_id": workspace, "anonymous": rows.len()}));
        Ok(if rows.len() as u64 == BATCH { Progress::More } else { Progress::Done })
    }

    /// Deletes the entries up to `base` from D1, and then stores that this is done.
    pub(super) async fn delete_up_to(&self, workspace: i64, base: &ChainEnd) -> Result<(), Error> {
        audit_chain::delete_links(&self.database(workspace), workspace, base.link).await?;
        if self.chain()?.is_some_and(|chain| chain.base == *base) {
            self.exec(tables::end_deletion())?;
        }
        Ok(())
    }
}
