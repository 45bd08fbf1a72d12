//! The caller: the user of a request, whose credential is valid.

use serde::Deserialize;
use uuid::Uuid;

use crate::access::acl::Acl;
use crate::audit::event::{ActorType, AuditEvent, CredentialType};
use crate::command::request::{Origin, Requester};
use crate::people::user::Rank;
use crate::time::Timestamp;

/// The kind of a caller's credential.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CredentialKind {
    /// A login token.
    Session,
    /// An API token.
    ApiToken,
}

/// The authenticated user and the credential.
#[derive(Clone, Debug, Deserialize)]
pub struct Caller {
    /// The workspace's id.
    pub workspace_id: i64,
    /// The user's id.
    pub user_id: i64,
    /// The user's name.
    pub username: String,
    /// The user's e-mail address.
    pub email: String,
    /// Whether the user manages servers and ordinary users.
    pub is_staff: bool,
    /// Whether the user manages everything.
    pub is_superuser: bool,
    /// The kind of the credential.
    pub kind: CredentialKind,
    /// The id of the session or the API token.
    pub credential_id: Uuid,
    /// When the session's expiry was last extended, or the token's use was last recorded.
    pub moved_at: Option<Timestamp>,
    /// When the session or the API token expires.
    pub expires_at: Option<Timestamp>,
    /// The access control list of the API token, if it has one.
    pub acl: Option<Acl>,
}

impl Caller {
    /// Whether the caller has the permissions of staff.
    pub fn is_staff_or_superuser(&self) -> bool {
        self.rank().is_staff_or_superuser()
    }

    /// When the caller's API token expires, if it does. Tokens that the caller creates or changes
    /// must not expire later.
    pub fn token_expires_at(&self) -> Option<Timestamp> {
        self.expires_at.filter(|_| self.kind == CredentialKind::ApiToken)
    }

    /// Whether the caller can access all servers of the workspace (contract 5.5).
    pub fn has_full_access(&self) -> bool {
        self.is_staff_or_superuser() && !self.acl.as_ref().is_some_and(Acl::limits_servers)
    }

    /// Whether the API token reads only commands that its access control list allows
    /// (contract 4.13).
    pub fn is_history_limited(&self) -> bool {
        self.acl.as_ref().is_some_and(Acl::limits_history)
    }

    /// The caller as the requester of commands.
    pub fn requester(&self) -> Requester {
        Requester { id: self.user_id, username: self.username.clone(), email: self.email.clone() }
    }

    /// The credential for the permission checks of the caller's commands. `has_inputs`: the
    /// commands have inputs.
    pub fn origin(&self, remote_ip: String, has_inputs: bool) -> Origin {
        let id_if = |kind| (self.kind == kind).then_some(self.credential_id);
        Origin {
            api_token: id_if(CredentialKind::ApiToken),
            session: id_if(CredentialKind::Session),
            remote_ip,
            has_inputs,
        }
    }

    /// Adds the caller and the credential to an audit event.
    pub fn attribute(&self, event: AuditEvent) -> AuditEvent {
        let kind = match self.kind {
            CredentialKind::Session => CredentialType::Session,
            CredentialKind::ApiToken => CredentialType::ApiToken,
        };
        let event = event.with_actor(
            ActorType::User,
            Some(self.user_id.to_string()),
            Some(self.username.clone()),
        );
        event.with_credential(kind, Some(self.credential_id.to_string()))
    }

    /// The caller's rank, for rules about users.
    pub fn rank(&self) -> Rank {
        Rank { is_staff: self.is_staff, is_superuser: self.is_superuser }
    }
}
