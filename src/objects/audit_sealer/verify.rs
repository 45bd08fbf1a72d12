//! Verifies a chain: reads its entries from D1 and compares them with the stored hashes.

use std::collections::HashMap;

use farhand_domain::audit::chain::{ChainDamage, ChainEnd, ChainEntry, Problem, Verifier};
use farhand_domain::error::Error;
use farhand_sql::object::audit_sealer as tables;
use serde::Deserialize;

use super::{Chain, Sealer, Verification};
use crate::objects::sqlite;
use crate::store::audit_chain;

/// The number of entries that one query reads.
const PAGE: i64 = 1_000;
/// A verification stops after this many entries. The next call continues.
const MAX_VERIFIED: i64 = 20_000;

impl Sealer {
    /// The stored hashes of entries from `first` to `last`, and the hash of the chain's last entry.
    pub(super) fn anchors(
        &self,
        head: &ChainEnd,
        first: i64,
        last: i64,
    ) -> Result<HashMap<i64, String>, Error> {
        #[derive(Deserialize)]
        struct AnchorRow {
            link: f64,
            hash: String,
        }
        let rows: Vec<AnchorRow> = sqlite::rows(&self.sql(), tables::anchors(first, last))?;
        let mut anchors: HashMap<_, _> =
            rows.into_iter().map(|row| (row.link as i64, row.hash)).collect();
        anchors.insert(head.link, head.hash.clone());
        Ok(anchors)
    }

    /// Verifies about [`MAX_VERIFIED`] entries of the chain, beginning with the entry `first`.
    /// Returns `None` if old entries were deleted at the same time, because the rows that were read
    /// may lack them.
    pub(super) async fn verify(
        &self,
        workspace: i64,
        first: i64,
    ) -> Result<Option<Verification>, Error> {
        let chain = self.chain()?;
        let ends = |chain: &Chain| (chain.base.clone(), chain.head.clone());
        let (base, head) = chain.as_ref().map(ends).unwrap_or_default();
        if let Some(chain) = &chain {
            if let Some(pending) = &chain.pending {
                audit_chain::write_seals(&self.database(workspace), workspace, pending).await?;
            }
            if chain.is_deleting {
                self.delete_up_to(workspace, &base).await?;
            }
        }
        let mut result = Verification {
            valid: true,
            links: 0,
            unsealed: 0,
            expired: 0,
            first_broken: None,
            next_link: None,
        };
        let mut next = first.max(base.link + 1).min(head.link + 1);
        loop {
            let last = head.link.min(next + PAGE - 1);
            let links =
                audit_chain::links(&self.database(workspace), workspace, (next, last), head.link)
                    .await?;
            if self.chain()?.is_some_and(|chain| chain.base != base) {
                return Ok(None);
            }
            result.unsealed = links.unsealed;
            let verified =
                self.verify_page(workspace, (&base, &head), (next, last), &links, &mut result);
            if let Err(broken) = verified? {
                (result.valid, result.first_broken) = (false, Some(broken));
                return Ok(Some(result));
            }
            if last >= head.link {
                return Ok(Some(result));
            }
            next = last + 1;
            if result.links >= MAX_VERIFIED {
                result.next_link = Some(next);
                return Ok(Some(result));
            }
        }
    }

    /// Verifies the entries from `first` to `last`, and counts the valid ones in `result`. Returns
    /// the first invalid entry as the inner error.
    fn verify_page(
        &self,
        workspace: i64,
        (base, head): (&ChainEnd, &ChainEnd),
        (first, last): (i64, i64),
        links: &audit_chain::Links,
        result: &mut Verification,
    ) -> Result<Result<(), ChainDamage>, Error> {
        let foreign = |row: &ChainEntry| ChainDamage {
            link: row.link,
            event: row.id().map(str::to_owned),
            problem: Problem::Foreign,
        };
        let mut verifier = match links.before.as_slice() {
            [] if first == base.link + 1 => Verifier::after(workspace, base.clone()),
            [row, ..] if first == base.link + 1 => return Ok(Err(foreign(row))),
            [row, twin] if twin.link == row.link && row.link == first - 1 => {
                return Ok(Err(foreign(row)));
            }
            [row, ..] if row.link == first - 1 => Verifier::after(
                workspace,
                ChainEnd { link: row.link, hash: row.hash.clone().unwrap_or_default() },
            ),
            _ => {
                return Ok(Err(ChainDamage {
                    link: first - 1,
                    event: None,
                    problem: Problem::Missing,
                }));
            }
        };
        // Read the state again: while D1 was read, events may have expired or been sealed.
        let (end, expired) = self.chain()?.map_or((0, 0), |chain| (chain.head.link, chain.expired));
        verifier = verifier.expired_up_to(expired);
        let anchors = if first <= last { self.anchors(head, first, last)? } else { HashMap::new() };
        for row in &links.rows {
            let anchor = anchors.get(&row.link).map(String::as_str);
            if let Err(broken) = verifier.take(row, anchor) {
                return Ok(Err(broken));
            }
            result.links += 1;
            result.expired += i64::from(row.is_expired());
        }
        if verifier.last().link < last {
            return Ok(Err(verifier.missing()));
        }
        // An entry after the end of the chain is foreign, unless it was sealed while D1 was read.
        match &links.beyond {
            Some(row) if last >= head.link && row.link > end => Ok(Err(foreign(row))),
            _ => Ok(Ok(())),
        }
    }
}
