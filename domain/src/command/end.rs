//! How and why a command ends (contract 7.11 and 7.12).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::agent::features::Feature;

/// Why a command was cancelled. Its display completes the sentence "Cancelled ...".
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Cancellation {
    /// The user with this name cancelled it.
    By(String),
    /// The permission check before the delivery failed (contract 7.5).
    NotAllowed(Denial),
    /// Its server was deleted.
    ServerDeleted,
    /// Its batch was cancelled.
    BatchCancelled,
    /// The inputs could not be decrypted when the command was due, because `SECRET_KEY` was
    /// changed.
    InputsUnreadable,
}

impl fmt::Display for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::By(username) => write!(f, "by {username}"),
            Self::NotAllowed(denial) => write!(f, "as {denial}"),
            Self::ServerDeleted => write!(f, "as its server was deleted"),
            Self::BatchCancelled => write!(f, "as its batch was cancelled"),
            Self::InputsUnreadable => {
                write!(
                    f,
                    "as its environment or input cannot be decrypted: the service's SECRET_KEY was replaced"
                )
            }
        }
    }
}

/// Why a command may not run (contract 5.6 and 7.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Denial {
    /// Its requester was deactivated or deleted.
    Requester,
    /// The API token of its request was disabled or deleted, or has expired.
    Token,
    /// The login session of its request was revoked.
    Session,
    /// Its requester has no access to the server.
    Server,
    /// Its requester may not run commands as this account or group on the server.
    Account,
    /// Its requester may not use the agent's built-ins.
    Builtin,
    /// The API token's access control list does not allow it.
    Acl,
    /// The version of the script that it runs is not stored any more.
    Script,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requester => "its requester is not active any more",
            Self::Token => "the API token that created it is not valid any more",
            Self::Session => "the login session that created it was revoked",
            Self::Server => "its requester has no access to the server any more",
            Self::Account => "its requester may not run commands as that account any more",
            Self::Builtin => "its requester may not use the agent's built-in commands any more",
            Self::Acl => "the access control list of its API token does not allow it any more",
            Self::Script => "the version of its script does not exist any more",
        })
    }
}

/// How a command ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum End {
    /// It was cancelled before the delivery.
    Cancelled(Cancellation),
    /// It was not delivered by `expires_at`.
    Expired,
    /// It was not delivered, because the connected agent lacks this feature.
    Undeliverable(Feature),
    /// It was delivered, but no result arrived in time. A late result replaces this end.
    Stuck,
    /// The agent reported the end.
    Finished(Outcome),
}

/// The result that the agent reported.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Whether the agent reported success.
    pub success: bool,
    /// The exit code, if the agent reported it.
    pub exit_code: Option<i64>,
    /// How long it ran, in seconds, if the agent reported it.
    pub elapsed_time: Option<f64>,
    /// Why the agent did not run it: one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Maximum length of [`Outcome::reason`], in characters, without the full stop that is added.
pub const MAX_REASON: usize = 500;

impl Outcome {
    /// Converts an agent's reason to one line of bounded length that ends like a sentence. Returns
    /// `None` if the text is blank.
    pub fn reason(text: &str) -> Option<String> {
        let line: String =
            text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_REASON).collect();
        let line = line.trim();
        let end = if line.ends_with(['.', '!', '?']) { "" } else { "." };
        (!line.is_empty()).then(|| format!("{line}{end}"))
    }
}
