//! Who calls, once a credential was found to be alive.

use serde::Deserialize;
use uuid::Uuid;

use crate::acl::Acl;
use crate::audit::{ActorType, CredentialType, Event};
use crate::time::Timestamp;
use crate::user::Rank;

/// What kind of credential it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A login token.
    Session,
    /// An API token.
    ApiToken,
}

/// The authenticated user, and by which credential.
#[derive(Clone, Debug, Deserialize)]
pub struct Caller {
    /// The workspace.
    pub workspace_id: i64,
    /// The user's id.
    pub user_id: i64,
    /// The user's name.
    pub username: String,
    /// The user's e-mail address.
    pub email: String,
    /// Staff manage servers and ordinary users.
    pub is_staff: bool,
    /// Superusers manage everything.
    pub is_superuser: bool,
    /// The kind of credential.
    pub kind: Kind,
    /// The session's or the API token's id.
    pub credential_id: Uuid,
    /// When the session's expiry was moved, or the token's use was noted.
    pub moved_at: Option<Timestamp>,
    /// When the session ends, or the token expires.
    pub expires_at: Option<Timestamp>,
    /// What the API token is limited to, where it is.
    pub acl: Option<Acl>,
}

impl Caller {
    /// Whether the caller has the rights of staff.
    pub fn is_staff_or_superuser(&self) -> bool {
        self.rank().is_staff_or_superuser()
    }

    /// When the caller's API token expires, if it does: no token that it creates or changes may end
    /// later.
    pub fn token_expires_at(&self) -> Option<Timestamp> {
        self.expires_at.filter(|_| self.kind == Kind::ApiToken)
    }

    /// Whether the caller reaches all of the workspace's servers (contract 5.5).
    pub fn reaches_all(&self) -> bool {
        self.is_staff_or_superuser() && self.acl.as_ref().is_none_or(|acl| acl.servers.is_none())
    }

    /// Whether the API token reads only commands that its list allows (contract 4.13).
    pub fn reads_narrowly(&self) -> bool {
        self.acl.as_ref().is_some_and(Acl::reads_narrowly)
    }

    /// The caller's event.
    pub fn sign(&self, event: Event) -> Event {
        let kind = match self.kind {
            Kind::Session => CredentialType::Session,
            Kind::ApiToken => CredentialType::ApiToken,
        };
        let event =
            event.by(ActorType::User, Some(self.user_id.to_string()), Some(self.username.clone()));
        event.with(kind, Some(self.credential_id.to_string()))
    }

    /// The caller's rank.
    pub fn rank(&self) -> Rank {
        Rank { is_staff: self.is_staff, is_superuser: self.is_superuser }
    }
}
