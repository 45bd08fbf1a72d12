//! Why a server's object refuses a call, and the error that a client gets.

use serde::{Deserialize, Serialize};

use crate::agent::features::Feature;
use crate::error::{Code, Error, ErrorKind};

/// Why the object refuses a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Refusal {
    /// The agent's id or key is wrong.
    InvalidAgent,
    /// Another agent with the same identity is connected and alive (agent-protocol 5.2).
    IdentityInUse,
    /// The object has no such command.
    NotFound,
    /// No agent is connected, and nothing was stored.
    NotConnected,
    /// The server was deleted, and nothing was stored.
    NoServer,
    /// The user lost the permission while the change was waiting for earlier ones.
    NotPermitted,
    /// The command was already delivered.
    AlreadySent,
    /// The command has ended.
    AlreadyHandled,
    /// The command's agent is not connected, or cannot kill.
    CannotKill,
    /// The connected agent lacks a feature that the command needs, and nothing was stored.
    AgentCannot(Feature),
    /// The Idempotency-Key was used with another body.
    KeyReused,
    /// The Idempotency-Key was used for a command of another server, or its first request was cut
    /// off a moment ago. Nothing was stored.
    KeyInUse,
    /// The user or the workspace has as many waiting commands as the quota allows. Nothing was
    /// stored.
    TooManyWaiting,
    /// The user or the workspace stored as many bytes in 24 hours as the quota allows. Nothing was
    /// stored.
    TooManyBytes {
        /// The seconds until the command fits.
        retry_after: u64,
    },
}

/// The header Retry-After, in seconds, if a quota of waiting commands is used up.
const WAITING_RETRY_AFTER: u64 = 60;

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let conflict = |detail| Self::new(ErrorKind::Conflict, detail);
        match refusal {
            Refusal::InvalidAgent => Self::invalid_token(),
            Refusal::IdentityInUse => {
                conflict("Another agent with this server's identity is connected.")
            }
            Refusal::NotFound => Self::not_found(),
            Refusal::NotConnected => {
                Self::new(ErrorKind::NotConnected, "The server is not connected.")
                    .with_code(Code::ServerNotConnected)
            }
            Refusal::NotPermitted => {
                Self::permission_denied("You may no longer change this server.")
            }
            Refusal::NoServer => Self::field("server", "No such server."),
            Refusal::AlreadySent => conflict("The command was already sent to the server.")
                .with_code(Code::EventCommandAlreadySent),
            Refusal::AlreadyHandled => {
                conflict("The command has ended.").with_code(Code::CommandAlreadyHandled)
            }
            Refusal::CannotKill => {
                conflict("The command's agent is not connected, or cannot kill commands.")
                    .with_code(Code::AgentCannotKill)
            }
            Refusal::AgentCannot(Feature::Script) => Self::field(
                "script",
                format!(
                    "The server's agent {}. Upgrade it, or shorten the script.",
                    Feature::Script
                ),
            ),
            Refusal::AgentCannot(feature) => {
                let detail = format!(
                    "The server's agent {feature}. Upgrade it, or send the command without."
                );
                Self::new(ErrorKind::Conflict, detail).with_code(Code::AgentCannot)
            }
            Refusal::KeyReused => Self::new(
                ErrorKind::Unprocessable,
                "The Idempotency-Key was used with another request body.",
            )
            .with_code(Code::IdempotencyKeyReused),
            Refusal::KeyInUse => conflict(
                "The first request with this Idempotency-Key was cut off; try again in a minute.",
            )
            .with_code(Code::IdempotencyKeyInUse),
            Refusal::TooManyWaiting => Self::quota_exceeded(
                "Too many commands wait, of yours or of the workspace. Cancel some, or wait until they have run.",
                WAITING_RETRY_AFTER,
            ),
            Refusal::TooManyBytes { retry_after } => Self::quota_exceeded(
                "You or the workspace stored as many bytes in 24 hours as the quota allows.",
                retry_after,
            ),
        }
    }
}
