//! The error type. An error is shown as one line that says what failed and, if possible, what to
//! do.

use std::fmt;
use std::io;

use serde_json::Value;

/// The exit code for every failure of farhand itself: wrong usage, no connection, a refusal, or a
/// command that ended without an exit code.
pub const EXIT_FAILURE: u8 = 125;
/// The exit code if the reader of the standard output closed it: 128 + SIGPIPE.
const EXIT_BROKEN_PIPE: u8 = 141;

#[derive(Debug)]
pub enum Error {
    /// A failure on this machine.
    Local(String),
    /// There was no complete response.
    Connection(String),
    /// The service refused the request.
    Refused(Refusal),
    /// The reader of the standard output closed it.
    BrokenPipe,
}

pub type Result<T> = std::result::Result<T, Error>;

/// A response with an error status.
#[derive(Debug)]
pub struct Refusal {
    pub status: u16,
    /// The error code (contract 3.10), or "" if the response has none.
    pub code: String,
    /// The field errors of the response, or else its `detail`.
    pub detail: String,
    pub retry_after: Option<String>,
    pub request_id: Option<String>,
}

impl Error {
    pub fn local(message: impl Into<String>) -> Self {
        Self::Local(message.into())
    }

    /// The service sent JSON that this version cannot read.
    pub fn unexpected_response(error: &serde_json::Error) -> Self {
        Self::local(format!(
            "The service sent another response than this version of farhand expects ({error}). Check the URL."
        ))
    }

    /// The error of a file operation. `what` is its verb, such as "read".
    pub fn file(what: &str, path: &std::path::Path, error: &io::Error) -> Self {
        Self::Local(format!("Cannot {what} {}: {error}.", path.display()))
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Self::BrokenPipe => EXIT_BROKEN_PIPE,
            _ => EXIT_FAILURE,
        }
    }

    /// Whether the service responded with this error code.
    pub fn has_code(&self, code: &str) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.code == code)
    }
}

impl From<io::Error> for Error {
    /// Converts the error of a write to the standard output.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::BrokenPipe,
            _ => Self::Local(format!("Cannot write the output: {error}.")),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(message) | Self::Connection(message) => formatter.write_str(message),
            Self::Refused(refusal) => refusal.fmt(formatter),
            Self::BrokenPipe => formatter.write_str("The reader of the output went away."),
        }
    }
}

impl Refusal {
    /// Builds a refusal from the parts of an error response (contract 3.9).
    pub fn parse(
        status: u16,
        code: Option<String>,
        retry_after: Option<String>,
        request_id: Option<String>,
        body: &[u8],
    ) -> Self {
        let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let text = |name: &str| body[name].as_str().map(str::to_owned);
        let fields = fields(&body);
        let detail = match (fields.is_empty(), text("detail")) {
            (false, _) => fields,
            (true, Some(detail)) => detail,
            (true, None) => format!("The service answered with status {status}."),
        };
        let code = text("code").or(code).unwrap_or_default();
        Self { status, code, detail, retry_after, request_id }
    }

    /// What the user can do, or "" if there is no advice.
    fn advice(&self) -> String {
        match (self.code.as_str(), &self.retry_after, &self.request_id) {
            ("INVALID_TOKEN" | "UNAUTHENTICATED", ..) => {
                "Log in again with `farhand login`, or set FARHAND_TOKEN to a valid token.".into()
            }
            ("SERVER_NOT_CONNECTED", ..) => {
                "Start the agent, or let the command wait with `--queue`.".into()
            }
            ("SERVER_PENDING", ..) => "Staff can approve the server.".into(),
            ("HTTPS_REQUIRED", ..) => "Use an https URL.".into(),
            ("CELL_FULL", ..) => "Tell the operator of the service.".into(),
            (_, Some(seconds), _) => format!("Try again in {seconds} s."),
            ("INTERNAL", _, Some(id)) => format!("The operator finds the cause under {id}."),
            ("NOT_FOUND", ..) if self.detail == "Not found." => {
                "Check the URL, the path and the id.".into()
            }
            _ if self.status == 308 => "The path must end with a slash.".into(),
            _ => String::new(),
        }
    }
}

/// All field errors on one line, or "". Errors in `non_field_errors` are shown without a name.
fn fields(body: &Value) -> String {
    let Some(members) = body.as_object() else { return String::new() };
    let messages = members.iter().filter_map(|(name, messages)| {
        let texts: Vec<&str> = messages.as_array()?.iter().filter_map(Value::as_str).collect();
        let text = texts.join(" ");
        Some(if name == "non_field_errors" { text } else { format!("{name}: {text}") })
    });
    messages.collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let advice = self.advice();
        formatter.write_str(&self.detail)?;
        if advice.is_empty() { Ok(()) } else { write!(formatter, " {advice}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, retry_after: Option<&str>, body: &str) -> Error {
        let retry_after = retry_after.map(str::to_owned);
        Error::Refused(Refusal::parse(status, None, retry_after, None, body.as_bytes()))
    }

    #[test]
    fn a_refusal_is_one_line_that_says_what_to_do() {
        let body = r#"{"code": "INVALID_TOKEN", "detail": "Invalid token."}"#;
        assert_eq!(
            refused(403, None, body).to_string(),
            "Invalid token. Log in again with `farhand login`, or set FARHAND_TOKEN to a valid token."
        );
        let body = r#"{"code": "THROTTLED", "detail": "Too many attempts."}"#;
        assert_eq!(
            refused(429, Some("7"), body).to_string(),
            "Too many attempts. Try again in 7 s."
        );
    }

    #[test]
    fn a_full_cell_is_for_the_operator() {
        let body = r#"{"code": "CELL_FULL", "detail": "The database is full.", "request_id": "1"}"#;
        let shown = "The database is full. Tell the operator of the service.";
        assert_eq!(refused(503, Some("3600"), body).to_string(), shown);
    }

    #[test]
    fn field_errors_are_named() {
        let body = r#"{"code": "INVALID_COMMAND", "detail": "Invalid input: server.",
            "server": ["No such server."], "non_field_errors": ["Both."]}"#;
        assert_eq!(refused(400, None, body).to_string(), "Both. server: No such server.");
        assert!(refused(400, None, body).has_code("INVALID_COMMAND"));
    }

    #[test]
    fn a_foreign_answer_is_named_by_its_status() {
        let error = refused(502, None, "<html>Bad gateway</html>");
        assert_eq!(error.to_string(), "The service answered with status 502.");
        assert_eq!((error.exit_code(), Error::BrokenPipe.exit_code()), (125, 141));
    }
}
