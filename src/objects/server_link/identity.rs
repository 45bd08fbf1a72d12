//! Who the server is, in its object: how its agent is known, and how that changes and ends.
//!
//! D1 has the server's row, the object the hash of its agent's key, so that an agent's reports read nothing from D1. Whoever
//! changes the key or deletes the server does so here, and one after the other: first it is noted that what is known may not
//! be true any more, then D1 is told, and then what D1 says is taken over. Until that is done, and also when it is cut off in
//! between, D1 is asked about every call of an agent.

use std::time::Duration;

use farhand_domain::lifecycle::{Cancellation, Lifecycle};
use farhand_domain::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::calls::{Answer, Identity, OfServer, Refusal, Remove, Rename, Rotate};
use super::d1_server::{self, Found, ServerFacts};
use super::object::{ServerLink, fact, now, wake};
use crate::platform::log;
use crate::store::db::Statement;

/// Who a server is, and the hash of its agent's key: the proof of every call of an agent, without a look into D1.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Known {
    pub workspace: String,
    pub workspace_id: i64,
    pub server: Uuid,
    pub name: String,
    /// Since when it has that name; `None` where that was not told.
    #[serde(default)]
    pub named_at: Option<Timestamp>,
    pub key_hash: String,
}

/// How long telling D1 of a change may take before it is taken for dead, in seconds.
const CHANGE_WITHIN: i64 = 30;

impl ServerLink {
    /// Tells whether an agent is this server's own. The first time D1 is asked, and its answer kept.
    pub(super) async fn authenticate(&self, identity: &Identity) -> worker::Result<Option<Known>> {
        if self.is_gone()? || self.is_suspended()? {
            return Ok(None);
        }
        if let Some(known) = self.sure()? {
            return Ok(proven(known, identity));
        }
        let epoch = self.epoch.get();
        let found = d1_server::find_server(&self.env, &identity.workspace, identity.server).await?;
        if self.epoch.get() != epoch || self.is_gone()? || self.is_suspended()? {
            return Ok(None);
        }
        // Another call may have been first, and what that told is not to be forgotten.
        if let Some(known) = self.sure()? {
            return Ok(proven(known, identity));
        }
        let Some(found) = found else { return Ok(None) };
        let revision = ServerFacts::beginning(found.commissioned, found.revision);
        let known = known_of(&identity.workspace, identity.server, found);
        if !is_of(identity, &known) {
            return Ok(None);
        }
        // While D1 is being told of a change, this may be what it said before: it is good for this call, and no other.
        if self.is_unsure()? {
            return Ok(Some(known));
        }
        self.begin_use()?;
        self.tables().set_fact(fact::KNOWN, &known)?;
        self.tables().set_fact(fact::SERVER, &revision)?;
        Ok(proven(known, identity))
    }

    /// Who this server is, if that was ever learnt.
    pub(super) fn known(&self) -> worker::Result<Option<Known>> {
        if self.is_used()? { self.tables().fact(fact::KNOWN) } else { Ok(None) }
    }

    /// The same, if D1 is sure to say so too.
    fn sure(&self) -> worker::Result<Option<Known>> {
        if self.is_unsure()? { Ok(None) } else { self.known() }
    }

    fn is_unsure(&self) -> worker::Result<bool> {
        Ok(self.is_used()? && self.tables().fact::<bool>(fact::UNSURE)?.unwrap_or(false))
    }

    /// Whether the server was deleted, or the object is being wiped.
    pub(super) fn is_gone(&self) -> worker::Result<bool> {
        Ok(self.is_wiping.get() || self.is_used()? && self.tables().fact::<bool>(fact::GONE)?.unwrap_or(false))
    }

    /// Whether the server's workspace is deleted.
    fn is_suspended(&self) -> worker::Result<bool> {
        Ok(self.is_used()? && self.tables().fact::<bool>(fact::SUSPENDED)?.unwrap_or(false))
    }

    /// Learns who the server is, which was just made, and may be gone again.
    pub(super) async fn adopt(&self, of: OfServer) -> worker::Result<Answer> {
        if self.known()?.is_none() {
            self.change(&of, vec![]).await?;
        }
        Ok(Answer::Done(Value::Null))
    }

    /// Learns that the server has another name.
    pub(super) fn rename(&self, rename: Rename) -> worker::Result<Answer> {
        if let Some(mut known) = self.known()?
            && known.named_at.is_none_or(|at| at <= rename.at)
        {
            (known.name, known.named_at) = (rename.name, Some(rename.at));
            self.tables().set_fact(fact::KNOWN, &known)?;
        }
        Ok(Answer::Done(Value::Null))
    }

    /// Gives the agent another key. The old one is refused, and whoever is connected with it cut off, before this answers.
    pub(super) async fn rotate(&self, rotate: Rotate) -> worker::Result<Answer> {
        let Rotate { of, by, key_hash, fingerprint, at, event } = rotate;
        let changes = d1_server::update_key(of.workspace_id, of.server, by, (&key_hash, &fingerprint, at), &event)?;
        Ok(match self.change(&of, changes).await? {
            None => Answer::Refused(Refusal::NoServer),
            Some(key) if key == key_hash => Answer::Done(Value::Null),
            Some(_) => Answer::Refused(Refusal::NotPermitted),
        })
    }

    /// Deletes the server. Doing it again does no harm.
    pub(super) async fn remove(&self, remove: Remove) -> worker::Result<Answer> {
        let Remove { of, by, only_pending, event } = remove;
        let changes = d1_server::delete_server(of.workspace_id, of.server, (by, only_pending), &event)?;
        if self.is_gone()? {
            // D1 has it nevertheless where it was taken back to an earlier moment.
            d1_server::change_server(&self.env, &of.workspace, of.server, changes).await?;
            self.seal_later(of.workspace_id);
            return Ok(Answer::Done(Value::Null));
        }
        Ok(match self.change(&of, changes).await? {
            None => Answer::Done(Value::Null),
            Some(_) => Answer::Refused(Refusal::NotPermitted),
        })
    }

    /// Tells D1 of a change, and takes over what it says then: the hash of the agent's key, or `None` where there is no server.
    /// One change after the other.
    pub(super) async fn change(&self, of: &OfServer, changes: Vec<Statement>) -> worker::Result<Option<String>> {
        while self.changing_since.get().is_some_and(|since| since.plus_seconds(CHANGE_WITHIN) > now()) {
            self.changed.wait((), Duration::from_secs(1)).await;
        }
        if self.is_gone()? {
            return Ok(None);
        }
        let (began, epoch, turn) = (now(), self.epoch.get(), self.changes.get() + 1);
        self.changes.set(turn);
        self.changing_since.set(Some(began));
        let found = async {
            self.begin_use()?;
            self.tables().set_fact(fact::UNSURE, &true)?;
            self.tables().set_fact(fact::ASKED, of)?;
            self.tables().set_wake(wake::LOOK, Some(began.plus_seconds(CHANGE_WITHIN)))?;
            self.arm().await?;
            d1_server::change_server(&self.env, &of.workspace, of.server, changes).await
        }
        .await;
        self.seal_later(of.workspace_id);
        let is_latest = self.changes.get() == turn;
        if is_latest {
            self.changing_since.set(None);
        }
        // Meanwhile the object may have been wiped.
        let key = if self.epoch.get() != epoch {
            Ok(None)
        } else if is_latest {
            match found {
                Ok(found) => self.take_over(of, found).await,
                Err(error) => Err(error),
            }
        } else if self.is_gone()? {
            Ok(None)
        } else {
            // D1 took so long that others went ahead, and nobody knows which of them was the last there: it is asked again.
            self.tables().set_fact(fact::UNSURE, &true)?;
            self.tables().set_wake(wake::LOOK, Some(now()))?;
            self.arm().await?;
            found.map(|found| found.map(|found| found.key_hash))
        };
        self.changed.tell(&());
        key
    }

    /// Looks what became of a change over which somebody died.
    pub(super) async fn look_into_d1(&self) -> worker::Result<()> {
        let tables = self.tables();
        tables.set_wake(wake::LOOK, Some(now().plus_seconds(CHANGE_WITHIN)))?;
        let is_changing = self.changing_since.get().is_some_and(|since| since.plus_seconds(CHANGE_WITHIN) > now());
        if let Some(of) = tables.fact::<OfServer>(fact::ASKED)?
            && !is_changing
            && let Err(error) = self.change(&of, vec![]).await
        {
            // The next look is set. What else is due does not wait for it.
            log::trouble("change_not_known", json!({"server": of.server}), &error);
        }
        Ok(())
    }

    /// Takes over what D1 says of the server.
    async fn take_over(&self, of: &OfServer, found: Option<Found>) -> worker::Result<Option<String>> {
        let tables = self.tables();
        tables.set_fact(fact::UNSURE, &false)?;
        tables.set_wake(wake::LOOK, None)?;
        let Some(found) = found else {
            self.end_server().await?;
            return Ok(None);
        };
        let before = self.known()?;
        let facts = ServerFacts::beginning(found.commissioned, found.revision);
        let known = Known {
            named_at: before.as_ref().and_then(|before| before.named_at),
            ..known_of(&of.workspace, of.server, found)
        };
        tables.set_fact(fact::KNOWN, &known)?;
        if before.is_none() {
            tables.set_fact(fact::SERVER, &facts)?;
        }
        if before.is_none_or(|before| before.key_hash != known.key_hash) {
            self.cut_off("the key was changed")?;
        }
        self.arm().await?;
        Ok(Some(known.key_hash))
    }

    /// The server is gone: nobody is its agent any more, what waited is taken back, and what is under way is given up soon.
    async fn end_server(&self) -> worker::Result<()> {
        let (tables, now) = (self.tables(), now());
        tables.set_fact(fact::GONE, &true)?;
        tables.delete_fact(fact::KNOWN)?;
        self.cut_off("the server was removed")?;
        for stored in tables.waiting_commands()? {
            self.cancel_as(stored.command.id, Cancellation::ServerDeleted, None)?;
        }
        self.doubt(now.plus_millis(1), Lifecycle::server_deleted)?;
        self.forget_if_unused().await?;
        self.arm_if_used().await
    }

    /// Leaves nothing in an object that has no server, or none any more, and nothing of one.
    pub(super) async fn forget_if_unused(&self) -> worker::Result<()> {
        let is_unused =
            self.is_used()? && self.known()?.is_none() && !self.is_unsure()? && self.tables().has_no_commands()?;
        if is_unused {
            self.wipe().await?;
        }
        Ok(())
    }

    /// What an agent is told of its own server.
    pub(super) fn whoami(&self, known: &Known) -> worker::Result<Answer> {
        let commissioned = self.facts()?.commissioned;
        Ok(Answer::Done(json!({"id": known.server, "name": known.name, "commissioned": commissioned})))
    }
}

/// Tells whether an agent is a server's own.
fn is_of(identity: &Identity, known: &Known) -> bool {
    identity.workspace == known.workspace && identity.key_hash == known.key_hash
}

/// The identity, if an agent is this server's own.
fn proven(known: Known, identity: &Identity) -> Option<Known> {
    is_of(identity, &known).then_some(known)
}

/// What is known of a server that D1 has.
fn known_of(workspace: &str, server: Uuid, found: Found) -> Known {
    Known {
        workspace: workspace.to_owned(),
        workspace_id: found.workspace_id,
        server,
        name: found.name,
        named_at: None,
        key_hash: found.key_hash,
    }
}
