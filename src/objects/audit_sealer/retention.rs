//! The deletion of audit events that are old enough. Of a chain's deleted beginning, some hashes
//! are kept for good.

use farhand_domain::audit;
use farhand_domain::audit_chain::{Head, Verifier};
use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use serde_json::json;
use worker::Env;

use super::{AT_ONCE, Chain, Sealer};
use crate::platform;
use crate::platform::log;
use crate::store::audit_chain;

/// Before when events happened that a setting says to delete.
pub(super) fn kept_until(env: &Env, workspace: i64, setting: &str) -> Option<Timestamp> {
    platform::kept_until(env, setting).unwrap_or_else(|error| {
        // An operator must correct the setting. A retry does not help.
        log::trouble("audit_not_deleted", json!({"workspace_id": workspace}), &error.detail);
        None
    })
}

impl Sealer {
    /// Deletes the next events that are older than they are kept, from the first on. True: there
    /// may be more.
    ///
    /// Whatever is to go is looked at before: a break stays where it is, with all that comes after
    /// it.
    pub(super) async fn delete_old(&self) -> Result<bool, Error> {
        let Some(Chain { workspace, head, base, is_deleting, expired, .. }) = self.chain()? else {
            return Ok(false);
        };
        if is_deleting {
            self.delete_up_to(workspace, &base).await?;
        }
        let until = kept_until(&self.env, workspace, platform::AUDIT_RETENTION);
        let Some(until) = until.filter(|_| workspace != audit::CELL) else { return Ok(false) };
        let (first, last) = (base.link + 1, head.link.min(base.link + AT_ONCE as i64));
        if first > last {
            return Ok(false);
        }
        let links = audit_chain::links(&self.env, workspace, (first, last), head.link).await?;
        let mut verifier = Verifier::after(workspace, base.clone()).expired_up_to(expired);
        let anchors = self.anchors(&head, first, last)?;
        for row in &links.rows {
            // Of an expired event nothing is left to be kept.
            if !row.is_expired() && row.occurred_at().is_none_or(|at| at >= until) {
                break;
            }
            let anchor = anchors.get(&row.link).map(String::as_str);
            if let Err(broken) = verifier.take(row, anchor) {
                let fields = json!({"workspace_id": workspace, "link": broken.link});
                log::trouble("audit_chain_broken", fields, &broken.problem);
                break;
            }
        }
        let gone = verifier.last().clone();
        // Meanwhile it may have been wiped.
        if gone.link == base.link || self.chain()?.is_none_or(|chain| chain.base != base) {
            return Ok(false);
        }
        let values = vec![serde_json::to_string(&gone)?.into()];
        self.sql().exec("UPDATE chains SET base = ?, is_deleting = 1", values)?;
        self.sql().exec("DELETE FROM anchors WHERE link < ?", vec![gone.link.into()])?;
        self.delete_up_to(workspace, &gone).await?;
        log::event(
            "audit_retention",
            json!({"workspace_id": workspace, "deleted": gone.link - base.link}),
        );
        Ok(gone.link == last)
    }

    /// Deletes the next anonymous events that are older than they are kept, from the first on.
    /// True: there may be more.
    ///
    /// First the object notes up to which link it does so. A verification accepts that an anonymous
    /// event is gone up to there only.
    pub(super) async fn expire_old(&self) -> Result<bool, Error> {
        let Some(Chain { workspace, expired, .. }) = self.chain()? else { return Ok(false) };
        let Some(until) = kept_until(&self.env, workspace, platform::ANONYMOUS_AUDIT_RETENTION)
        else {
            return Ok(false);
        };
        let mut rows =
            audit_chain::first_anonymous_links(&self.env, workspace, until, AT_ONCE).await?;
        let old =
            rows.iter().take_while(|row| row.occurred_at().is_some_and(|at| at < until)).count();
        rows.truncate(old);
        // Meanwhile it may have been wiped.
        let Some(last) = rows.last().filter(|_| self.chain().is_ok_and(|chain| chain.is_some()))
        else {
            return Ok(false);
        };
        let values = vec![last.link.max(expired).into()];
        self.sql().exec("UPDATE chains SET expired = ?", values)?;
        audit_chain::expire(&self.env, workspace, &rows).await?;
        log::event("audit_retention", json!({"workspace_id": workspace, "anonymous": rows.len()}));
        Ok(rows.len() as u64 == AT_ONCE)
    }

    /// Has D1 delete what is behind the beginning of the chain, and notes that it did.
    pub(super) async fn delete_up_to(&self, workspace: i64, base: &Head) -> Result<(), Error> {
        audit_chain::delete_links(&self.env, workspace, base.link).await?;
        if self.chain()?.is_some_and(|chain| chain.base == *base) {
            self.sql().exec("UPDATE chains SET is_deleting = 0", None)?;
        }
        Ok(())
    }
}
