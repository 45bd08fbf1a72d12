//! Resyncs: after D1 was restored to an earlier time, the objects of a workspace's servers write
//! everything to D1 again.

use std::collections::BTreeMap;

use farhand_domain::error::Error;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Janitor, LAST_BATCH_KEY, SERVERS_PER_STEP};
use crate::objects::server_link::calls::{self, ServerLocation};
use crate::platform;
use crate::platform::log;
use crate::store::{Progress, servers, workspaces};

/// The storage key of the running resyncs, by workspace.
const RESYNCS_KEY: &str = "resyncs";

/// The state of a resync. Stored as JSON. The resync calls the objects of the workspace's servers,
/// and then the objects of its deleted servers.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Resync {
    /// The workspace's slug.
    slug: String,
    /// The last server whose object was called.
    after: String,
    /// Whether `after` is a deleted server.
    is_deleted: bool,
    /// The number of objects that began.
    begun: u64,
    /// The number of objects that failed to begin.
    failed: u64,
}

impl Janitor {
    /// The running resyncs, by workspace.
    async fn resyncs(&self) -> Result<BTreeMap<i64, Resync>, Error> {
        Ok(self.state.storage().get(RESYNCS_KEY).await?.unwrap_or_default())
    }

    /// Starts the resync of a workspace from the beginning. Returns false if the workspace does not
    /// exist.
    pub(super) async fn begin_resync(&self, slug: String) -> Result<bool, Error> {
        let Some(id) = workspaces::id_of(&self.cell, &slug, platform::now()).await? else {
            return Ok(false);
        };
        let mut resyncs = self.resyncs().await?;
        resyncs.insert(id, Resync { slug, ..Resync::default() });
        self.state.storage().put(RESYNCS_KEY, resyncs).await?;
        // The objects of batches read D1 again, too.
        self.state.storage().put(LAST_BATCH_KEY, "").await?;
        Ok(true)
    }

    /// Calls the next objects of the first running resync.
    pub(super) async fn resync_next(&self) -> Result<Progress, Error> {
        let Some((id, resync)) = self.resyncs().await?.pop_first() else {
            return Ok(Progress::Done);
        };
        let (database, after, limit) = (self.database(id), &resync.after, SERVERS_PER_STEP);
        let servers = if resync.is_deleted {
            servers::deleted_ids_after(&database, id, after, limit).await?
        } else {
            servers::ids_after(&database, id, after, limit).await?
        };
        let of =
            |server| ServerLocation { workspace: resync.slug.clone(), workspace_id: id, server };
        let failed =
            self.call_all(&servers, |server| calls::LinkRequest::Resync(of(server))).await.len()
                as u64;
        // The operator may have started the resync again during the calls.
        let mut resyncs = self.resyncs().await?;
        let Some(current) = resyncs.get_mut(&id).filter(|current| current.after == resync.after)
        else {
            return Ok(Progress::More);
        };
        current.begun += servers.len() as u64 - failed;
        current.failed += failed;
        match servers.last() {
            Some(last) => current.after.clone_from(last),
            None if !current.is_deleted => {
                (current.is_deleted, current.after) = (true, String::new());
            }
            None => {
                let fields =
                    json!({"workspace_id": id, "servers": current.begun, "failed": current.failed});
                log::event("resync_over", fields);
                resyncs.remove(&id);
            }
        }
        self.state.storage().put(RESYNCS_KEY, resyncs).await?;
        Ok(Progress::More)
    }
}
