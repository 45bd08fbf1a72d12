//! What is deleted for good: workspaces after their grace period, what deleted users and revoked
//! sessions left, servers that nobody approved.

use farhand_domain::error::Error;
use farhand_domain::registration_token::APPROVED_WITHIN;
use futures_util::future;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{BEGINS_WITHIN, Janitor, SERVERS, UNAPPROVED, in_time};
use crate::objects::audit_sealer;
use crate::objects::server_link::calls::{self, OfServer, Remove, RevokedSessions};
use crate::platform;
use crate::platform::log;
use crate::store::audit::of_service;
use crate::store::workspaces::{self, Deleted};
use crate::store::{login_tokens, servers, sessions, users};

/// The storage key of the user whose revoked sessions were looked at last.
const REVOKED: &str = "revoked";
/// The storage key of the workspace that had the last step.
const LAST: &str = "last";
/// How many commands a deleted user is taken off at a time.
const COMMANDS: u64 = 200;

impl Janitor {
    /// Wipes the objects of servers, which cuts their agents off. Returns the servers whose objects
    /// failed.
    pub(super) async fn sever(&self, servers: &[String]) -> Vec<String> {
        self.failing(servers, |_| calls::Ask::Sever).await
    }

    /// Does one step for a deleted user. False: there is none.
    pub(super) async fn depart(&self) -> Result<bool, Error> {
        users::depart_some(&self.env, COMMANDS).await
    }

    /// Cancels the waiting commands that a user's revoked sessions created. False: no session is
    /// left.
    pub(super) async fn cancel_some(&self) -> Result<bool, Error> {
        let storage = self.state.storage();
        let after: (i64, i64) = storage.get(REVOKED).await?.unwrap_or_default();
        // The next user, and not the same again: one whose server's object fails must not hold up
        // the others.
        let Some(revoked) = sessions::next_revoked(&self.env, after).await? else {
            return Ok(false);
        };
        storage.put(REVOKED, (revoked.workspace_id, revoked.user_id)).await?;
        let objects: Vec<Uuid> =
            revoked.servers.iter().filter_map(|id| Uuid::try_parse(id).ok()).collect();
        for some in objects.chunks(SERVERS as usize) {
            let cancelled = some.iter().map(|object| {
                let ask = RevokedSessions { sessions: revoked.sessions.clone() };
                self.within::<Value>(BEGINS_WITHIN, *object, calls::Ask::CancelOf(ask))
            });
            future::try_join_all(cancelled).await.map_err(Error::internal)?;
        }
        sessions::settle(&self.env, &revoked).await?;
        Ok(true)
    }

    /// Deletes pending servers that were not approved in time. False: none is left.
    pub(super) async fn remove_unapproved(&self) -> Result<bool, Error> {
        let storage = self.state.storage();
        let Some(after) = storage.get::<String>(UNAPPROVED).await? else { return Ok(false) };
        let before = platform::now().plus_seconds(-APPROVED_WITHIN);
        let due = servers::unapproved(&self.env, before, &after, SERVERS).await?;
        let Some(last) = due.last() else {
            storage.delete(UNAPPROVED).await?;
            return Ok(false);
        };
        // A server whose object fails is for the next hour, and holds up no other.
        storage.put(UNAPPROVED, &last.id).await?;
        for server in due {
            let Ok(object) = Uuid::try_parse(&server.id) else { continue };
            let event =
                of_service("server.delete")?.on(Some(server.id.clone()), Some(&server.name));
            let event = event.details(json!({"reason": "not approved in time"}));
            let of = OfServer {
                workspace: server.workspace,
                workspace_id: server.workspace_id,
                server: object,
            };
            let remove = Remove { of, by: None, only_pending: true, event };
            // A refusal: it was approved just now.
            let ask = calls::Ask::Remove(remove);
            let removed =
                in_time(BEGINS_WITHIN, calls::try_ask::<Value>(&self.env, object, &ask)).await;
            if let Err(cause) = removed {
                log::trouble("object_not_told", json!({"server": server.id}), &cause);
            }
        }
        Ok(true)
    }

    /// Does one step for the next workspace that is to be purged. False: there is none.
    pub(super) async fn purge(&self) -> Result<bool, Error> {
        let storage = self.state.storage();
        let last: i64 = storage.get(LAST).await?.unwrap_or(0);
        // The next one, and not the same again: one that fails must not hold the others up.
        let Some(deleted) = workspaces::next_deleted(&self.env, last).await? else {
            return Ok(false);
        };
        storage.put(LAST, deleted.id).await?;
        self.purge_some(&deleted).await?;
        Ok(true)
    }

    async fn purge_some(&self, deleted: &Deleted) -> Result<(), Error> {
        // Objects first: once the rows of the servers are gone, nobody knows their names.
        let mut ids = servers::ids_after(&self.env, deleted.id, "", SERVERS).await?;
        if ids.is_empty() {
            ids = servers::gone_ids_after(&self.env, deleted.id, "", SERVERS).await?;
        }
        if !ids.is_empty() {
            let failed = self.sever(&ids).await;
            ids.retain(|id| !failed.contains(id));
            servers::delete(&self.env, deleted.id, &ids).await?;
            return if failed.is_empty() {
                Ok(())
            } else {
                Err(Error::internal("objects were not wiped"))
            };
        }
        if deleted.slug_is_used {
            // The entries of the workspace that was made since begin alike, and stay.
            for hash in workspaces::token_hashes(&self.env, deleted.id).await? {
                login_tokens::delete(&self.env, &deleted.slug, &hash).await?;
            }
        } else if !login_tokens::purge_some(&self.env, &deleted.slug).await? {
            return Ok(());
        }
        audit_sealer::wipe(&self.env, deleted.id).await?;
        workspaces::purge_some(&self.env, deleted.id).await
    }
}
