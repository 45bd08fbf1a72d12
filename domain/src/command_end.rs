//! How and why a command ends (contract 7.11 and 7.12).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::features::Feature;

/// Why a command was cancelled; its display completes "Cancelled at ...".
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Cancellation {
    /// A user took it back, by name.
    By(String),
    /// When it was to go out, it was not allowed any more (contract 7.5: its right is checked
    /// again).
    NotAllowed(Denial),
    /// Its server was deleted.
    ServerDeleted,
    /// Its environment or input could not be decrypted when it was due: the service has another
    /// `SECRET_KEY`.
    InputsUnreadable,
}

impl fmt::Display for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::By(username) => write!(f, "by {username}"),
            Self::NotAllowed(denial) => write!(f, "as {denial}"),
            Self::ServerDeleted => write!(f, "as its server was deleted"),
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
    /// The API token that it was made with was disabled or deleted, or expired.
    Token,
    /// The login session that it was made with was revoked.
    Session,
    /// Its requester does not reach the server.
    Server,
    /// Its requester may not run commands as that account or group there.
    Account,
    /// Its requester may not use the agent's built-ins.
    Internal,
    /// The API token's access control list does not allow it.
    Acl,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requester => "its requester is not active any more",
            Self::Token => "the API token that it was made with is not valid any more",
            Self::Session => "the login session that created it was revoked",
            Self::Server => "its requester does not reach the server any more",
            Self::Account => "its requester may not run commands as that account any more",
            Self::Internal => "its requester may not use the agent's built-in commands any more",
            Self::Acl => "the access control list of its API token does not allow it any more",
        })
    }
}

/// How a command ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum End {
    /// It never went out.
    Cancelled(Cancellation),
    /// It was not delivered by its latest time.
    Expired,
    /// It was not delivered: the agent that connected lacks a feature that it needs.
    Undeliverable(Feature),
    /// The agent gave up on it, or never took it: no result came in time. A late result still
    /// replaces this.
    Stuck,
    /// The agent reported the end.
    Finished(Outcome),
}

/// What the agent reported of the end.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Whether it ended well.
    pub success: bool,
    /// The exit code, where the agent tells it.
    pub exit_code: Option<i64>,
    /// Seconds.
    pub elapsed_time: Option<f64>,
    /// Why the agent did not run it, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The most characters of [`Outcome::reason`].
pub const MAX_REASON: usize = 500;

impl Outcome {
    /// A reason as it is kept: one line of bounded length that ends like a sentence. `None` if
    /// nothing is left of it.
    pub fn reason(text: &str) -> Option<String> {
        let line: String =
            text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_REASON).collect();
        let line = line.trim();
        let end = if line.ends_with(['.', '!', '?']) { "" } else { "." };
        (!line.is_empty()).then(|| format!("{line}{end}"))
    }
}
