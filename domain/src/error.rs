//! What a request can be refused with: the one error type of the rules and of the Worker's handlers.
//!
//! An [`Error`] says what is wrong; the Worker's `response` module alone turns it into a status and a body.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// Messages by field (spec.md, Error body on 400). The key of messages that belong to no field is
/// [`NON_FIELD`].
pub type FieldErrors = BTreeMap<Cow<'static, str>, Vec<Cow<'static, str>>>;

/// The key of messages that belong to no field.
pub const NON_FIELD: &str = "non_field_errors";

/// Makes the codes of names and texts, so that there is one list of them.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The codes that an error body can carry in `code` (contract 3): those of spec.md and this project's own, all here.
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
    /// The line or the shell of a command cannot be run (spec.md).
    InvalidCommand = "INVALID_COMMAND",
    /// No such command, or none that the caller can see (spec.md).
    CommandNotFound = "COMMAND_NOT_FOUND",
    /// The command's server has no agent connected (spec.md).
    ServerNotConnected = "SERVER_NOT_CONNECTED",
    /// The credential is not alive: unknown, expired, disabled, revoked, of another workspace; all alike.
    InvalidToken = "INVALID_TOKEN",
    /// The Authorization header does not have the form that the endpoint takes.
    InvalidAuthorization = "INVALID_AUTHORIZATION",
    /// The credential is right, its holder may not do this.
    PermissionDenied = "PERMISSION_DENIED",
    /// The API token's access control list does not allow it (spec.md).
    ApiTokenAclNotAllowed = "API_TOKEN_ACL_NOT_ALLOWED",
    /// Too many tries; the header Retry-After says when to try again.
    Throttled = "THROTTLED",
    /// The command was delivered to the server, and cannot be cancelled any more (spec.md).
    EventCommandAlreadySent = "EVENT_COMMAND_ALREADY_SENT",
    /// The command has ended.
    CommandAlreadyHandled = "COMMAND_ALREADY_HANDLED",
    /// The command's agent cannot kill it: it is of another kind, or not connected.
    AgentCannotKill = "AGENT_CANNOT_KILL",
    /// The Idempotency-Key was used with another body.
    IdempotencyKeyReused = "IDEMPOTENCY_KEY_REUSED",
    /// The first request with the Idempotency-Key was cut off, and what became of it is not known yet.
    IdempotencyKeyInUse = "IDEMPOTENCY_KEY_IN_USE",
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
    /// The target server has no agent connected.
    NotConnected,
    /// Our own fault. The detail is for the log, never for the client.
    Internal,
}

/// A refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// What kind, and so which status.
    pub kind: Kind,
    /// The code of the body, where it has one.
    pub code: Option<Code>,
    /// A sentence for the client; for [`Kind::Internal`], for the log only.
    pub detail: Cow<'static, str>,
    /// Messages by field; where there are any, they make the body.
    pub fields: FieldErrors,
    /// Seconds after which another try makes sense.
    pub retry_after: Option<u64>,
    /// The body is `null`: the endpoint tells nobody what is wrong (spec.md, reset-password).
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

impl Error {
    /// A refusal of `kind` with a sentence.
    pub fn new(kind: Kind, detail: impl Into<Cow<'static, str>>) -> Self {
        let fields = FieldErrors::new();
        Self { kind, code: None, detail: detail.into(), fields, retry_after: None, is_silent: false }
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

    /// The one answer for every credential that is not alive (contract 4).
    pub fn invalid_token() -> Self {
        Self::new(Kind::Forbidden, "Invalid or expired token.").code(Code::InvalidToken)
    }

    /// The credential is alive, but its holder may not do this.
    pub fn permission_denied() -> Self {
        Self::new(Kind::Forbidden, "You do not have permission to perform this action.").code(Code::PermissionDenied)
    }

    /// The API token's access control list does not allow it (contract 4).
    pub fn acl_not_allowed() -> Self {
        Self::new(Kind::Forbidden, "The access control list of the API token does not allow this.")
            .code(Code::ApiTokenAclNotAllowed)
    }

    /// Too many tries; another one makes sense after so many seconds.
    pub fn throttled(retry_after: u64) -> Self {
        let error = Self::new(Kind::Throttled, "Too many tries. Try again later.").code(Code::Throttled);
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
