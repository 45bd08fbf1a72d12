//! The Authorization header in its three forms: a user's token, an agent's id and key, and the
//! operator's bearer token.

use uuid::Uuid;

use crate::error::{Code, Error, ErrorKind};
use crate::id;
use crate::secret::Secret;

/// Maximum length of a header that is read, in bytes (contract 4.1).
const MAX_LENGTH: usize = 512;

/// The error message of users' endpoints for a malformed header.
const USER_FORM: &str = "The Authorization header must be: token=\"<API_TOKEN>\", with the double quotes, and at most 512 bytes long.";
/// The error message of agents' endpoints for a malformed header.
const AGENT_FORM: &str =
    "The Authorization header must be: id=\"<server id>\", key=\"<agent key>\".";

/// An agent's credential (agent-protocol 1.1).
#[derive(Clone, Debug)]
pub struct AgentCredential {
    /// The id of the server that the agent claims to be.
    pub server: Uuid,
    /// The agent's key.
    pub key: Secret,
}

fn malformed(detail: &'static str) -> Error {
    Error::new(ErrorKind::Forbidden, detail).with_code(Code::InvalidAuthorization)
}

fn unauthenticated() -> Error {
    Error::new(ErrorKind::Unauthenticated, "Authentication credentials were not provided.")
}

/// Returns the text between double quotes. It must not be empty, or contain a quote or a control
/// character.
fn quoted(text: &str) -> Option<&str> {
    text.strip_prefix('"')?
        .strip_suffix('"')
        .filter(|inner| !inner.is_empty() && !inner.contains(|c: char| c == '"' || c.is_control()))
}

/// Reads `token="<value>"`, a login token or an API token (contract 4.1).
///
/// # Errors
/// [`ErrorKind::Unauthenticated`] without a header, [`ErrorKind::Forbidden`] if it has another
/// form.
pub fn parse_user(header: Option<&str>) -> Result<Secret, Error> {
    let header = header.ok_or_else(unauthenticated)?;
    let value = (header.len() <= MAX_LENGTH)
        .then(|| header.strip_prefix("token=").and_then(quoted))
        .flatten();
    value.map(Secret::new).ok_or_else(|| malformed(USER_FORM))
}

/// Reads `id="<server uuid>", key="<agent key>"` (agent-protocol 1.1).
///
/// # Errors
/// [`ErrorKind::Unauthenticated`] without a header. [`ErrorKind::NotFound`] for a user's token:
/// agents' paths do not exist for users. [`ErrorKind::Forbidden`] if it has another form.
pub fn parse_agent(header: Option<&str>) -> Result<AgentCredential, Error> {
    let header = header.ok_or_else(unauthenticated)?;
    let parse = || {
        let (id, key) = header.strip_prefix("id=")?.split_once(", key=")?;
        Some(AgentCredential { server: id::parse(quoted(id)?)?, key: Secret::new(quoted(key)?) })
    };
    if parse_user(Some(header)).is_ok() {
        return Err(Error::not_found());
    }
    (header.len() <= MAX_LENGTH).then(parse).flatten().ok_or_else(|| malformed(AGENT_FORM))
}

/// Whether a header has the form of an agent's credential. For paths that users and agents share.
pub fn is_agent(header: Option<&str>) -> bool {
    header.is_some_and(|header| header.starts_with("id="))
}

/// Reads `Bearer <OPERATOR_TOKEN>` (contract 2.1).
///
/// # Errors
/// [`ErrorKind::Unauthenticated`] without a header, [`ErrorKind::Forbidden`] if it has another
/// form.
pub fn parse_operator(header: Option<&str>) -> Result<Secret, Error> {
    let header = header.ok_or_else(unauthenticated)?;
    let value = header
        .strip_prefix("Bearer ")
        .filter(|value| !value.is_empty() && header.len() <= MAX_LENGTH);
    value
        .map(Secret::new)
        .ok_or_else(|| malformed("The Authorization header must be: Bearer <OPERATOR_TOKEN>."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused<T>(result: Result<T, Error>, kind: ErrorKind) {
        assert_eq!(result.err().map(|e| e.kind), Some(kind));
    }

    #[test]
    fn a_users_token_is_in_double_quotes() {
        assert_eq!(parse_user(Some("token=\"abc\"")).unwrap().expose(), "abc");
        refused(parse_user(None), ErrorKind::Unauthenticated);
        for bad in [
            "",
            "token=abc",
            "token=\"\"",
            "token=\"",
            "token=\"a\"b\"",
            "token='abc'",
            "token=\"abc",
            "token=abc\"",
            "token = \"abc\"",
            "TOKEN=\"abc\"",
            "Bearer abc",
            "token \"abc\"",
            "id=\"abc\", key=\"d\"",
            "token=\"abc\" ",
            "token=\"a\u{1}c\"",
        ] {
            refused(parse_user(Some(bad)), ErrorKind::Forbidden);
        }
        let fits = format!("token=\"{}\"", "x".repeat(512 - 8));
        assert!(parse_user(Some(&fits)).is_ok());
        let long = format!("token=\"{}\"", "x".repeat(512 - 7));
        refused(parse_user(Some(&long)), ErrorKind::Forbidden);
    }

    #[test]
    fn an_agent_sends_id_and_key() {
        let id = "01936d3e-7a00-7000-8000-000000000000";
        let read = parse_agent(Some(&format!("id=\"{id}\", key=\"k\""))).unwrap();
        assert_eq!((read.server.to_string().as_str(), read.key.expose()), (id, "k"));
        refused(parse_agent(None), ErrorKind::Unauthenticated);
        refused(parse_agent(Some("token=\"k\"")), ErrorKind::NotFound);
        for bad in [
            format!("id=\"{id}\",key=\"k\""),
            format!("id=\"{id}\""),
            "id=\"x\", key=\"k\"".into(),
            format!("id=\"{id}\", key=\"\""),
            "token=k".into(),
        ] {
            refused(parse_agent(Some(&bad)), ErrorKind::Forbidden);
        }
    }

    #[test]
    fn the_operator_sends_a_bearer_token() {
        assert_eq!(parse_operator(Some("Bearer abc")).unwrap().expose(), "abc");
        refused(parse_operator(None), ErrorKind::Unauthenticated);
        for bad in ["Bearer ", "bearer abc", "abc", "token=\"abc\""] {
            refused(parse_operator(Some(bad)), ErrorKind::Forbidden);
        }
    }
}
