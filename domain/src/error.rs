//! What a request can be refused with: the one error type of the rules and of the Worker's
//! handlers.
//!
//! An [`Error`] says what is wrong; the Worker's `response` module alone turns it into a status and
//! a body.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// Messages by field (contract 3.9). The key of messages that belong to no field is
/// [`NON_FIELD`].
pub type FieldErrors = BTreeMap<Cow<'static, str>, Vec<Cow<'static, str>>>;

/// The key of messages that belong to no field.
pub const NON_FIELD: &str = "non_field_errors";

/// Makes the codes of names and texts, so that there is one list of them.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The codes that an error body can carry in `code` (contract 3.10): those of contract 3.10
        /// and this project's own, all here.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        impl Code {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The code as clients see it.
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
    /// No such command, or none that the caller can see (contract 3.10).
    CommandNotFound = "COMMAND_NOT_FOUND",
    /// The command's server has no agent connected (contract 3.10).
    ServerNotConnected = "SERVER_NOT_CONNECTED",
    /// The credential is not alive: unknown, expired, disabled, revoked, of another workspace; all
    /// alike.
    InvalidToken = "INVALID_TOKEN",
    /// The Authorization header does not have the form that the endpoint takes.
    InvalidAuthorization = "INVALID_AUTHORIZATION",
    /// The credential is right, its holder may not do this.
    PermissionDenied = "PERMISSION_DENIED",
    /// The API token's access control list does not allow it (contract 4.12).
    ApiTokenAclNotAllowed = "API_TOKEN_ACL_NOT_ALLOWED",
    /// Too many tries; the header Retry-After says when to try again.
    Throttled = "THROTTLED",
    /// The user or the workspace has as many of these as its quota allows (contract 11.4).
    QuotaExceeded = "QUOTA_EXCEEDED",
    /// The command was delivered to the server, and cannot be cancelled any more (contract 7.7).
    EventCommandAlreadySent = "EVENT_COMMAND_ALREADY_SENT",
    /// The command has ended.
    CommandAlreadyHandled = "COMMAND_ALREADY_HANDLED",
    /// The command's agent cannot kill it: it is of another kind, or not connected.
    AgentCannotKill = "AGENT_CANNOT_KILL",
    /// Another agent with this server's identity is connected and alive.
    IdentityConflict = "IDENTITY_CONFLICT",
    /// The server's agent lacks a feature that the command needs: `argv`, `stdin` or `cwd`.
    AgentCannot = "AGENT_CANNOT",
    /// The server was registered with a token that asks for approval, and is not approved yet.
    ServerPending = "SERVER_PENDING",
    /// The Idempotency-Key was used with another body.
    IdempotencyKeyReused = "IDEMPOTENCY_KEY_REUSED",
    /// The first request with the Idempotency-Key was cut off, and what became of it is not known
    /// yet.
    IdempotencyKeyInUse = "IDEMPOTENCY_KEY_IN_USE",
    /// Fields or parameters are invalid. It stands in the header `X-Error-Code` only.
    InvalidInput = "INVALID_INPUT",
    /// There is no Authorization header.
    Unauthenticated = "UNAUTHENTICATED",
    /// No such path, resource or page, or none that the caller can access.
    NotFound = "NOT_FOUND",
    /// The path has other methods.
    MethodNotAllowed = "METHOD_NOT_ALLOWED",
    /// The body is larger than the endpoint takes.
    BodyTooLarge = "BODY_TOO_LARGE",
    /// The body has a media type that the endpoint does not take.
    UnsupportedMediaType = "UNSUPPORTED_MEDIA_TYPE",
    /// Another request changed the same thing at the same time.
    Conflict = "CONFLICT",
    /// A fault of the service.
    Internal = "INTERNAL",
    /// The request came over plain http, to a host that takes https only.
    HttpsRequired = "HTTPS_REQUIRED",
    /// The deployment is not complete: a secret or the database's tables are missing.
    NotSetUp = "NOT_SET_UP",
}

/// The kinds of refusal; each has one status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The input breaks a rule.
    Invalid,
    /// No credential was sent.
    Unauthenticated,
    /// The credential is not good, or not good enough.
    Forbidden,
    /// There is no such thing, or none that the caller can see.
    NotFound,
    /// The path exists, but not with this method.
    MethodNotAllowed,
    /// The request's body is too large.
    TooLarge,
    /// The request's body has a media type that the endpoint does not take.
    UnsupportedMediaType,
    /// The state of things does not allow it.
    Conflict,
    /// What is asked for contradicts what was asked for before.
    Unprocessable,
    /// Too many tries.
    Throttled,
    /// The connection that it takes is not there: the target server has no agent connected, or
    /// another agent holds it.
    NotConnected,
    /// The deployment is not complete.
    NotSetUp,
    /// Our own fault. The detail is for the log, never for the client.
    Internal,
}

impl Kind {
    /// The code of a refusal that names no other.
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
            Self::Internal => Code::Internal,
        }
    }
}

/// A refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// What kind, and so which status.
    pub kind: Kind,
    /// A more specific code than that of the kind ([`Kind::code`]).
    pub code: Option<Code>,
    /// A sentence for the client; for [`Kind::Internal`], for the log only.
    pub detail: Cow<'static, str>,
    /// Messages by field; where there are any, they make the body.
    pub fields: FieldErrors,
    /// Seconds after which another try makes sense.
    pub retry_after: Option<u64>,
    /// The body is `null`: the endpoint tells nobody what is wrong (contract 4.10).
    pub is_silent: bool,
}

/// Both values, or what is wrong with either, told together.
///
/// # Errors
/// The fields' messages of both; or the one that has none.
pub fn both<A, B>(one: Result<A, Error>, other: Result<B, Error>) -> Result<(A, B), Error> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (Err(mut error), Err(more)) if error.kind == more.kind => {
            error.fields.extend(more.fields);
            Err(error)
        }
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// What a library fails with is a fault of the service, and its text is for the log. So `Error` is
/// no `std::error::Error` itself.
impl<E: std::error::Error> From<E> for Error {
    fn from(cause: E) -> Self {
        Self::internal(cause.to_string())
    }
}

impl Error {
    /// A refusal of `kind` with a sentence.
    pub fn new(kind: Kind, detail: impl Into<Cow<'static, str>>) -> Self {
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

    /// The same with a code.
    pub fn code(mut self, code: Code) -> Self {
        self.code = Some(code);
        self
    }

    /// Invalid input, with the messages by field.
    pub fn fields(fields: FieldErrors) -> Self {
        Self { fields, ..Self::new(Kind::Invalid, "Invalid input.") }
    }

    /// Invalid input in one field.
    pub fn field(name: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::fields(FieldErrors::from([(name.into(), vec![message.into()])]))
    }

    /// Nothing here.
    pub fn not_found() -> Self {
        Self::new(Kind::NotFound, "Not found.")
    }

    /// The host name belongs to no workspace of this region.
    pub fn no_workspace() -> Self {
        Self::new(Kind::NotFound, "No workspace has this host name.")
    }

    /// No endpoint has this path.
    pub fn no_path() -> Self {
        Self::new(Kind::NotFound, "There is no such path.")
    }

    /// The one answer for every credential that is not alive (contract 4.1).
    pub fn invalid_token() -> Self {
        Self::new(Kind::Forbidden, "Invalid or expired token.").code(Code::InvalidToken)
    }

    /// The credential is alive, but its holder may not do this. `rule` says in a sentence who may.
    pub fn permission_denied(rule: &'static str) -> Self {
        Self::new(Kind::Forbidden, rule).code(Code::PermissionDenied)
    }

    /// An invalid request to a command endpoint (contract 3.9). The sentence names the bad fields.
    pub fn invalid_command(self) -> Self {
        let names: Vec<&str> = self.fields.keys().map(AsRef::as_ref).collect();
        let detail = format!("Invalid input: {}.", names.join(", "));
        Self { detail: detail.into(), ..self }.code(Code::InvalidCommand)
    }

    /// The API token's access control list does not allow it (contract 4.12).
    pub fn acl_not_allowed() -> Self {
        Self::new(Kind::Forbidden, "The access control list of the API token does not allow this.")
            .code(Code::ApiTokenAclNotAllowed)
    }

    /// The same with the limit that does not allow it.
    pub fn acl_refusal(limit: impl std::fmt::Display) -> Self {
        let detail =
            format!("The access control list of the API token does not allow this: {limit}.");
        Self::new(Kind::Forbidden, detail).code(Code::ApiTokenAclNotAllowed)
    }

    /// Too many tries; another one makes sense after so many seconds.
    pub fn throttled(retry_after: u64) -> Self {
        let error =
            Self::new(Kind::Throttled, "Too many tries. Try again later.").code(Code::Throttled);
        Self { retry_after: Some(retry_after), ..error }
    }

    /// A quota is used up (contract 11.4); another try makes sense after so many seconds.
    pub fn quota_exceeded(detail: impl Into<Cow<'static, str>>, retry_after: u64) -> Self {
        let error = Self::new(Kind::Throttled, detail).code(Code::QuotaExceeded);
        Self { retry_after: Some(retry_after), ..error }
    }

    /// The same, with `null` for a body.
    pub fn silent(self) -> Self {
        Self { is_silent: true, ..self }
    }

    /// Our own fault; `cause` goes to the log.
    pub fn internal(cause: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Internal, cause)
    }
}
