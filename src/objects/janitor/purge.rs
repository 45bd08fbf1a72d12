//! Steps of the janitor that delete: they purge workspaces after their grace period, delete servers
//! that were not approved in time, remove deleted users from commands, and cancel the commands of
//! revoked sessions.

use farhand_domain::access::registration_token::APPROVAL_TIMEOUT;
use farhand_domain::batch::machine::LOG_TTL;
use farhand_domain::error::Error;
use futures_util::future;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Janitor, LAST_UNAPPROVED_KEY, OBJECT_TIMEOUT, SERVERS_PER_STEP, in_time};
use crate::objects::server_link::calls::{self, DeleteServer, RevokedSessions, ServerLocation};
use crate::objects::{audit_sealer, batch, scheduler};
use crate::platform;
use crate::platform::log;
use crate::store::audit::service_event;
use crate::store::workspaces::WorkspaceToPurge;
use crate::store::{Progress, login_tokens, open_batches, servers, sessions, users, workspaces};

/// The storage key of the user whose revoked sessions the last step handled.
const LAST_REVOKED_KEY: &str = "revoked";
/// The storage key of the workspace that the last step purged.
const LAST_PURGED_KEY: &str = "last";
/// The maximum number of commands that one step detaches from a deleted user.
const COMMANDS_PER_STEP: u64 = 200;

impl Janitor {
    /// Disconnects the agents of servers and wipes the servers' objects. Returns the servers whose
    /// objects failed.
    pub(super) async fn disconnect_and_wipe(&self, servers: &[String]) -> Vec<String> {
        self.call_all(servers, |_| calls::LinkRequest::DisconnectAndWipe).await
    }

    /// Removes a deleted user from some of the commands that the user requested.
    pub(super) async fn detach_deleted_user(&self) -> Result<Progress, Error> {
        users::detach_deleted_user(&self.cell, COMMANDS_PER_STEP).await
    }

    /// Cancels the waiting commands that the revoked sessions of one user created.
    pub(super) async fn cancel_revoked_commands(&self) -> Result<Progress, Error> {
        let storage = self.state.storage();
        let after: (i64, i64) = storage.get(LAST_REVOKED_KEY).await?.unwrap_or_default();
        // Each step takes the next user, so a failing object does not block other users.
        let Some(revoked) = sessions::next_revoked(&self.cell, after).await? else {
            return Ok(Progress::Done);
        };
        storage.put(LAST_REVOKED_KEY, (revoked.workspace_id, revoked.user_id)).await?;
        let objects: Vec<Uuid> =
            revoked.servers.iter().filter_map(|id| Uuid::try_parse(id).ok()).collect();
        for batch in objects.chunks(SERVERS_PER_STEP as usize) {
            let cancelled = batch.iter().map(|object| {
                let sessions = RevokedSessions { sessions: revoked.sessions.clone() };
                let message = calls::LinkRequest::CancelOfSessions(sessions);
                self.call_in_time::<Value>(OBJECT_TIMEOUT, *object, message)
            });
            future::try_join_all(cancelled).await.map_err(Error::internal)?;
        }
        sessions::mark_cancelled(&self.database(revoked.workspace_id), &revoked).await?;
        Ok(Progress::More)
    }

    /// Deletes some of the pending servers that were not approved in time.
    pub(super) async fn delete_unapproved(&self) -> Result<Progress, Error> {
        let storage = self.state.storage();
        let Some(after) = storage.get::<String>(LAST_UNAPPROVED_KEY).await? else {
            return Ok(Progress::Done);
        };
        let before = platform::now().plus_seconds(-APPROVAL_TIMEOUT);
        let unapproved = servers::unapproved(&self.cell, before, &after, SERVERS_PER_STEP).await?;
        let Some(last) = unapproved.last() else {
            storage.delete(LAST_UNAPPROVED_KEY).await?;
            return Ok(Progress::Done);
        };
        // Stored before the calls, so a failing object does not block other servers. The next pass
        // tries its server again.
        storage.put(LAST_UNAPPROVED_KEY, &last.id).await?;
        for server in unapproved {
            let Ok(object) = Uuid::try_parse(&server.id) else { continue };
            let event = service_event("server.delete")?
                .with_object(Some(server.id.clone()), Some(&server.name));
            let event = event.details(json!({"reason": "not approved in time"}));
            let of = ServerLocation {
                workspace: server.workspace,
                workspace_id: server.workspace_id,
                server: object,
            };
            let remove = DeleteServer { of, by: None, only_pending: true, event };
            // The object refuses if the server was approved concurrently. That is not an error.
            let message = calls::LinkRequest::DeleteServer(remove);
            let removed = in_time(
                OBJECT_TIMEOUT,
                calls::call_or_refusal::<Value>(&self.env, object, &message),
            )
            .await;
            if let Err(cause) = removed {
                log::error("object_not_called", json!({"server": server.id}), &cause);
            }
        }
        Ok(Progress::More)
    }

    /// Runs one purge step for the next workspace.
    pub(super) async fn purge_next(&self) -> Result<Progress, Error> {
        let storage = self.state.storage();
        let last: i64 = storage.get(LAST_PURGED_KEY).await?.unwrap_or(0);
        // Each step takes the next workspace, so a failing workspace does not block other
        // workspaces.
        let Some(workspace) = workspaces::next_to_purge(&self.cell, last).await? else {
            return Ok(Progress::Done);
        };
        storage.put(LAST_PURGED_KEY, workspace.id).await?;
        self.purge_step(&workspace).await?;
        Ok(Progress::More)
    }

    async fn purge_step(&self, workspace: &WorkspaceToPurge) -> Result<(), Error> {
        let database = &self.database(workspace.id);
        // Wipe the objects before deleting the rows: only the rows contain the names of the
        // objects.
        let mut ids = servers::ids_after(database, workspace.id, "", SERVERS_PER_STEP).await?;
        if ids.is_empty() {
            ids = servers::deleted_ids_after(database, workspace.id, "", SERVERS_PER_STEP).await?;
        }
        if !ids.is_empty() {
            let failed = self.disconnect_and_wipe(&ids).await;
            ids.retain(|id| !failed.contains(id));
            servers::delete(database, workspace.id, &ids).await?;
            return if failed.is_empty() {
                Ok(())
            } else {
                Err(Error::internal("objects were not wiped"))
            };
        }
        let recent = platform::now().minus(LOG_TTL * 2);
        let batches =
            open_batches::not_ended_by(database, workspace.id, recent, SERVERS_PER_STEP).await?;
        if !batches.is_empty() {
            let wiped =
                batches.iter().map(|of| batch::calls::wipe(&self.env, of.workspace_id, of.id));
            let wiped = async { future::try_join_all(wiped).await.map(drop) };
            in_time(OBJECT_TIMEOUT, wiped).await.map_err(Error::internal)?;
            return open_batches::delete(database, &batches).await;
        }
        if workspace.slug_is_used {
            // A new workspace uses this slug, so its KV keys have the same prefix and must be kept.
            // Delete only the keys of the purged workspace's tokens.
            for hash in workspaces::token_hashes(database, workspace.id).await? {
                login_tokens::delete(&self.env, &workspace.slug, &hash).await?;
            }
        } else if login_tokens::purge(&self.env, &workspace.slug).await? == Progress::More {
            return Ok(());
        }
        scheduler::wipe(&self.env, workspace.id).await?;
        audit_sealer::wipe(&self.env, workspace.id).await?;
        workspaces::purge_rows(database, workspace.id).await
    }
}
