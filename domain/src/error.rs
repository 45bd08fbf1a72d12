//! The error type of this crate and of the Worker's handlers.
//!
//! Only the Worker's module `response` converts an [`Error`] to an HTTP status and a body.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// Messages by field (contract 3.9). The key of messages that belong to no field is
/// [`NON_FIELD`].
pub type FieldErrors = BTreeMap<Cow<'static, str>, Vec<Cow<'static, str>>>;

/// The key of messages that belong to no field.
pub const NON_FIELD: &str = "non_field_errors";

/// Generates [`Code`] from one list of names and texts.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The values of `code` in an error body (contract 3.10).
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        impl Code {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The text in the API.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

codes! {
    /// A request to a command endpoint is invalid (contract 3.10; contract 3.9).
    InvalidCommand = "INVALID_COMMAND",
    /// The command does not exist, or the caller cannot see it (contract 3.10).
    CommandNotFound = "COMMAND_NOT_FOUND",
    /// The agent of the command's server is not connected (contract 3.10).
    ServerNotConnected = "SERVER_NOT_CONNECTED",
    /// The credential is invalid: unknown, expired, disabled, revoked, or of another workspace.
    /// The API does not say which.
    InvalidToken = "INVALID_TOKEN",
    /// The Authorization header does not have the form that the endpoint expects.
    InvalidAuthorization = "INVALID_AUTHORIZATION",
    /// The credential is valid, but its holder may not do this.
    PermissionDenied = "PERMISSION_DENIED",
    /// The API token's access control list does not allow it (contract 4.12).
    ApiTokenAclNotAllowed = "API_TOKEN_ACL_NOT_ALLOWED",
    /// Too many attempts. The header Retry-After says when to try again.
    Throttled = "THROTTLED",
    /// The user or the workspace has used up a quota (contract 11.4).
    QuotaExceeded = "QUOTA_EXCEEDED",
    /// The command was delivered and can no longer be cancelled (contract 7.7).
    EventCommandAlreadySent = "EVENT_COMMAND_ALREADY_SENT",
    /// The command has ended.
    CommandAlreadyHandled = "COMMAND_ALREADY_HANDLED",
    /// The batch has ended.
    BatchAlreadyEnded = "BATCH_ALREADY_ENDED",
    /// The batch has not ended.
    BatchNotEnded = "BATCH_NOT_ENDED",
    /// The inputs of the batch were deleted when it ended, so it cannot be repeated.
    InputsDeleted = "INPUTS_DELETED",
    /// The command's agent is not connected, or does not support kills.
    AgentCannotKill = "AGENT_CANNOT_KILL",
    /// Another agent with this server's identity is connected and alive.
    IdentityConflict = "IDENTITY_CONFLICT",
    /// The server's agent lacks a feature that the command needs: `argv`, `stdin` or `cwd`.
    AgentCannot = "AGENT_CANNOT",
    /// The server was registered with a token that asks for approval, and is not approved yet.
    ServerPending = "SERVER_PENDING",
    /// The Idempotency-Key was used with another body.
    IdempotencyKeyReused = "IDEMPOTENCY_KEY_REUSED",
    /// The first request with the Idempotency-Key was cut off, and its outcome is not known yet.
    IdempotencyKeyInUse = "IDEMPOTENCY_KEY_IN_USE",
    /// Fields or parameters are invalid. Only the header `X-Error-Code` has this code.
    InvalidInput = "INVALID_INPUT",
    /// The request has no Authorization header.
    Unauthenticated = "UNAUTHENTICATED",
    /// The path, resource or page does not exist, or the caller cannot access it.
    NotFound = "NOT_FOUND",
    /// The path exists, but not with this method.
    MethodNotAllowed = "METHOD_NOT_ALLOWED",
    /// The body is larger than the endpoint accepts.
    BodyTooLarge = "BODY_TOO_LARGE",
    /// The endpoint does not accept the media type of the body.
    UnsupportedMediaType = "UNSUPPORTED_MEDIA_TYPE",
    /// Another request changed the same resource concurrently.
    Conflict = "CONFLICT",
    /// A fault of the service.
    Internal = "INTERNAL",
    /// The request came over plain http, but the host accepts only https.
    HttpsRequired = "HTTPS_REQUIRED",
    /// The deployment is incomplete: a secret or the tables in D1 are missing.
    NotSetUp = "NOT_SET_UP",
    /// The database of the cell is nearly full (contract 11.7).
    CellFull = "CELL_FULL",
}

/// The kind of an error. Each kind has one HTTP status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// The input breaks a rule.
    Invalid,
    /// No credential was sent.
    Unauthenticated,
    /// The credential is invalid, or its holder lacks the permission.
    Forbidden,
    /// The resource does not exist, or the caller cannot see it.
    NotFound,
    /// The path exists, but not with this method.
    MethodNotAllowed,
    /// The request's body is too large.
    TooLarge,
    /// The endpoint does not accept the media type of the request's body.
    UnsupportedMediaType,
    /// The current state does not allow the request.
    Conflict,
    /// The request contradicts an earlier one: its Idempotency-Key had another body.
    Unprocessable,
    /// Too many attempts, or a quota is used up.
    Throttled,
    /// The server's agent is not connected.
    NotConnected,
    /// The deployment is incomplete.
    NotSetUp,
    /// The database of the cell is nearly full.
    CellFull,
    /// A fault of the service. The detail is for the log, never for the client.
    Internal,
}

impl ErrorKind {
    /// The code of an error of this kind that has no code of its own.
    pub fn code(self) -> Code {
        match self {
            Self::Invalid => Code::InvalidInput,
            Self::Unauthenticated => Code::Unauthenticated,
            Self::Forbidden => Code::PermissionDenied,
            Self::NotFound => Code::NotFound,
            Self::MethodNotAllowed => Code::MethodNotAllowed,
            Self::TooLarge => Code::BodyTooLarge,
            Self::UnsupportedMediaType => Code::UnsupportedMediaType,
            Self::Conflict => Code::Conflict,
            Self::Unprocessable => Code::IdempotencyKeyReused,
            Self::Throttled => Code::Throttled,
            Self::NotConnected => Code::ServerNotConnected,
            Self::NotSetUp => Code::NotSetUp,
            Self::CellFull => Code::CellFull,
            Self::Internal => Code::Internal,
        }
    }
}

/// Why a request failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// Decides the HTTP status.
    pub kind: ErrorKind,
    /// A more specific code than [`ErrorKind::code`].
    pub code: Option<Code>,
    /// A sentence for the client. If the kind is [`ErrorKind::Internal`], only the log gets it.
    pub detail: Cow<'static, str>,
    /// Messages by field. If there are any, the response body contains them.
    pub fields: FieldErrors,
    /// The header Retry-After, in seconds.
    pub retry_after: Option<u64>,
    /// Whether the body is `null`, so that the response does not reveal the reason (contract 4.10).
    pub is_silent: bool,
}

/// Returns both values, or the errors of both together.
///
/// # Errors
/// The field errors of both, if both have the same kind. Otherwise the first error.
pub fn combine<A, B>(one: Result<A, Error>, other: Result<B, Error>) -> Result<(A, B), Error> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (Err(mut error), Err(more)) if error.kind == more.kind => {
            error.fields.extend(more.fields);
            Err(error)
        }
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// An error of a library is a fault of the service, and only the log gets its text. Rust allows
/// this only because `Error` does not implement `std::error::Error` itself.
impl<E: std::error::Error> From<E> for Error {
    fn from(cause: E) -> Self {
        Self::internal(cause.to_string())
    }
}

impl Error {
    /// An error with a sentence for the client.
    pub fn new(kind: ErrorKind, detail: impl Into<Cow<'static, str>>) -> Self {
        let fields = FieldErrors::new();
        Self {
            kind,
            code: None,
            detail: detail.into(),
            fields,
            retry_after: None,
            is_silent: false,
        }
    }

    /// Adds a code.
    pub fn with_code(mut self, code: Code) -> Self {
        self.code = Some(code);
        self
    }

    /// Invalid input, with the messages by field.
    pub fn fields(fields: FieldErrors) -> Self {
        Self { fields, ..Self::new(ErrorKind::Invalid, "Invalid input.") }
    }

    /// Invalid input in one field.
    pub fn field(name: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::fields(FieldErrors::from([(name.into(), vec![message.into()])]))
    }

    /// The resource does not exist, or the caller cannot see it.
    pub fn not_found() -> Self {
        Self::new(ErrorKind::NotFound, "Not found.")
    }

    /// The host name belongs to no workspace of this region.
    pub fn no_workspace() -> Self {
        Self::new(ErrorKind::NotFound, "No workspace has this host name.")
    }

    /// No endpoint has this path.
    pub fn no_path() -> Self {
        Self::new(ErrorKind::NotFound, "There is no such path.")
    }

    /// The credential is invalid. All invalid credentials get the same response (contract 4.1).
    pub fn invalid_token() -> Self {
        Self::new(ErrorKind::Forbidden, "Invalid or expired token.").with_code(Code::InvalidToken)
    }

    /// The credential is valid, but its holder may not do this. `rule`: a sentence that names who
    /// may do it.
    pub fn permission_denied(rule: &'static str) -> Self {
        Self::new(ErrorKind::Forbidden, rule).with_code(Code::PermissionDenied)
    }

    /// Converts field errors to the form of command endpoints (contract 3.9). The sentence names
    /// the invalid fields.
    pub fn invalid_command(self) -> Self {
        let names: Vec<&str> = self.fields.keys().map(AsRef::as_ref).collect();
        let detail = format!("Invalid input: {}.", names.join(", "));
        Self { detail: detail.into(), ..self }.with_code(Code::InvalidCommand)
    }

    /// The API token's access control list does not allow it (contract 4.12).
    pub fn acl_not_allowed() -> Self {
        Self::new(
            ErrorKind::Forbidden,
            "The access control list of the API token does not allow this.",
        )
        .with_code(Code::ApiTokenAclNotAllowed)
    }

    /// The API token's access control list does not allow it. `limit` names the part of the list
    /// that refused.
    pub fn acl_refusal(limit: impl std::fmt::Display) -> Self {
        let detail =
            format!("The access control list of the API token does not allow this: {limit}.");
        Self::new(ErrorKind::Forbidden, detail).with_code(Code::ApiTokenAclNotAllowed)
    }

    /// Too many attempts. `retry_after` is in seconds.
    pub fn throttled(retry_after: u64) -> Self {
        let error = Self::new(ErrorKind::Throttled, "Too many tries. Try again later.")
            .with_code(Code::Throttled);
        Self { retry_after: Some(retry_after), ..error }
    }

    /// A quota is used up (contract 11.4). `retry_after` is in seconds.
    pub fn quota_exceeded(detail: impl Into<Cow<'static, str>>, retry_after: u64) -> Self {
        let error = Self::new(ErrorKind::Throttled, detail).with_code(Code::QuotaExceeded);
        Self { retry_after: Some(retry_after), ..error }
    }

    /// Makes the body `null`.
    pub fn silent(self) -> Self {
        Self { is_silent: true, ..self }
    }

    /// A fault of the service. `cause` is for the log.
    pub fn internal(cause: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Internal, cause)
    }
}
