//! Objects that tell D1 everything again, after D1 was taken back to an earlier moment.

use std::collections::BTreeMap;

use farhand_domain::error::Error;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Janitor, SERVERS};
use crate::objects::server_link::calls::{self, OfServer};
use crate::platform;
use crate::platform::log;
use crate::store::servers;
use crate::store::workspaces;

/// The storage key of the workspaces whose servers' objects are to tell D1 everything again.
const RESYNCS: &str = "resyncs";

/// How far the objects of a workspace's servers were told to tell D1 everything again.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Resync {
    /// The workspace's slug.
    slug: String,
    /// The last server that was told, first of those that are there, then of those that are gone.
    after: String,
    are_gone: bool,
    /// How many servers were told.
    told: u64,
    /// How many could not be.
    failed: u64,
}

impl Janitor {
    async fn resyncs(&self) -> Result<BTreeMap<i64, Resync>, Error> {
        Ok(self.state.storage().get(RESYNCS).await?.unwrap_or_default())
    }

    pub(super) async fn begin_resync(&self, slug: String) -> Result<bool, Error> {
        let Some(id) = workspaces::id_of(&self.env, &slug, platform::now()).await? else {
            return Ok(false);
        };
        let mut resyncs = self.resyncs().await?;
        resyncs.insert(id, Resync { slug, ..Resync::default() });
        self.state.storage().put(RESYNCS, resyncs).await?;
        Ok(true)
    }

    /// Tells the next objects of a workspace to tell D1 everything again. False: none are to be
    /// told.
    pub(super) async fn resync_some(&self) -> Result<bool, Error> {
        let Some((id, resync)) = self.resyncs().await?.pop_first() else { return Ok(false) };
        let servers = match resync.are_gone {
            false => servers::ids_after(&self.env, id, &resync.after, SERVERS).await?,
            true => servers::gone_ids_after(&self.env, id, &resync.after, SERVERS).await?,
        };
        let of = |server| OfServer { workspace: resync.slug.clone(), workspace_id: id, server };
        let failed =
            self.failing(&servers, |server| calls::Ask::Resync(of(server))).await.len() as u64;
        // Meanwhile it may have been asked for anew.
        let mut resyncs = self.resyncs().await?;
        let Some(current) = resyncs.get_mut(&id).filter(|current| current.after == resync.after)
        else {
            return Ok(true);
        };
        current.told += servers.len() as u64 - failed;
        current.failed += failed;
        match servers.last() {
            Some(last) => current.after.clone_from(last),
            None if !current.are_gone => (current.are_gone, current.after) = (true, String::new()),
            None => {
                let fields =
                    json!({"workspace_id": id, "servers": current.told, "failed": current.failed});
                log::event("resync_over", fields);
                resyncs.remove(&id);
            }
        }
        self.state.storage().put(RESYNCS, resyncs).await?;
        Ok(true)
    }
}
