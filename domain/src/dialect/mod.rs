//! The dialect of Alpacon's own clients, `alpacon-cli` and `alpacon-mcp` (contract 21).
//!
//! The dialect rewrites their requests into native requests, and the native responses into the
//! form that they read. [`table`] has one row for each endpoint. The Worker sends the native
//! requests through the ordinary dispatch, so the dialect grants nothing.

pub mod acl;
pub mod body;
pub mod pages;
pub mod reply;
pub mod table;

use crate::secret::Secret;

/// A client whose dialect the service speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Client {
    /// `alpacon-cli`, the command line.
    Cli,
    /// `alpacon-mcp`, the MCP server.
    Mcp,
}

impl Client {
    /// The client, by the `User-Agent` header of its request. `None`: any other client, which gets
    /// the native API.
    pub fn from_user_agent(header: &str) -> Option<Self> {
        if header.starts_with("alpacon-cli/") {
            Some(Self::Cli)
        } else if header.starts_with("alpacon-mcp/") {
            Some(Self::Mcp)
        } else {
            None
        }
    }

    /// The Authorization header with quotes around the token, if `alpacon-mcp` sent it without
    /// quotes. The deployment must allow this form (`ALPACON_MCP=1`).
    pub fn quote_token(self, header: &str, is_allowed: bool) -> Option<Secret> {
        let token = header.strip_prefix("token=").filter(|_| is_allowed && self == Self::Mcp)?;
        let is_bare = !token.is_empty() && !token.contains('"');
        is_bare.then(|| Secret::new(format!("token=\"{token}\"")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_agent_selects_the_client() {
        for (header, client) in [
            ("alpacon-cli/1.11.1", Some(Client::Cli)),
            ("alpacon-mcp/0.5", Some(Client::Mcp)),
            ("alpacon-cli", None),
            ("Alpacon-CLI/1.11.1", None),
            (" alpacon-cli/1", None),
            ("curl/8 alpacon-cli/1", None),
            ("alpamon/2.0.0", None),
            ("", None),
        ] {
            assert_eq!(Client::from_user_agent(header), client, "{header}");
        }
    }

    #[test]
    fn only_the_mcp_server_may_leave_the_quotes_out() {
        let quoted = |client: Client, header, is_allowed| {
            client.quote_token(header, is_allowed).map(|header| header.expose().to_owned())
        };
        assert_eq!(quoted(Client::Mcp, "token=abc", true).as_deref(), Some("token=\"abc\""));
        assert_eq!(quoted(Client::Mcp, "token=abc", false), None);
        assert_eq!(quoted(Client::Cli, "token=abc", true), None);
        for other in ["token=\"abc\"", "token=", "Bearer abc", "token=\"abc", ""] {
            assert_eq!(quoted(Client::Mcp, other, true), None, "{other}");
        }
    }
}
