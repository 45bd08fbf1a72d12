//! The current permissions of stored requesters on servers, for the check before a command is
//! delivered (contract 7.5).

use farhand_domain::access::acl::Acl;
use farhand_domain::access::rights::CommandPermissions;
use farhand_domain::command::end::Denial;
use farhand_domain::fleet::labels::Labels;
use serde::Deserialize;
use serde_json::Value;

use super::servers::{IS_ACCESSIBLE, MAY_USE_ANY_ACCOUNT};

/// The common table `me`, with a row for each row of `requesters`
/// ([`super::stored_requester::REQUESTERS`]). The check applies the token's access control list
/// later, including its servers. So `acl_servers` and `acl_selector` are NULL here, which sets no
/// limit.
pub const ME: &str = "me AS (
    SELECT position, workspace_id, user_id, username, is_active, is_staff, is_superuser, has_token, is_revoked,
        acl, NULL AS acl_servers, NULL AS acl_selector
    FROM requesters
)";

/// SQL for a [`PermissionRow`] as JSON, from `me` and a row of `servers s`, which may be missing
/// (LEFT JOIN).
pub fn object() -> String {
    format!(
        "json_object('is_active', json(iif(me.is_active, 'true', 'false')),
            'has_token', json(iif(me.has_token, 'true', 'false')),
            'is_revoked', json(iif(me.is_revoked, 'true', 'false')), 'username', me.username,
            'is_staff', json(iif(me.is_staff OR me.is_superuser, 'true', 'false')), 'acl', json(me.acl),
            'labels', json(coalesce(s.labels, '{{}}')),
            'any_account', json(CASE WHEN s.id IS NOT NULL AND {IS_ACCESSIBLE}
                THEN iif({MAY_USE_ANY_ACCOUNT}, 'true', 'false') END))"
    )
}

/// The permissions of a requester on a server, as D1 returns them.
#[derive(Debug, Deserialize)]
pub struct PermissionRow {
    is_active: bool,
    /// Whether the request's API token is valid. True for login sessions.
    has_token: bool,
    /// Whether the request's login session was revoked.
    is_revoked: bool,
    /// Whether the requester may run commands as any account of the host. `None` if the requester
    /// cannot access the server.
    any_account: Option<bool>,
    labels: Labels,
    /// `None` if the user does not exist.
    username: Option<String>,
    is_staff: bool,
    acl: Option<Value>,
}

impl PermissionRow {
    /// The permissions, or why the requester has none.
    pub fn permissions(self) -> Result<CommandPermissions, Denial> {
        let username = self.username.filter(|_| self.is_active).ok_or(Denial::Requester)?;
        if !self.has_token {
            return Err(Denial::Token);
        }
        if self.is_revoked {
            return Err(Denial::Session);
        }
        let any_account = self.any_account.ok_or(Denial::Server)?;
        // An access control list that cannot be parsed allows nothing. An error here would block
        // the other commands.
        let acl = self.acl.map(serde_json::from_value::<Acl>).transpose();
        let acl = acl.map_err(|_| Denial::Acl)?;
        let (is_staff, labels) = (self.is_staff, self.labels);
        Ok(CommandPermissions { username, is_staff, any_account, labels, acl })
    }
}
