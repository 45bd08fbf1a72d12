//! Limits the statements of a request to the caller: to the request's workspace and its valid
//! credential.
//!
//! Every statement of a caller begins with the common table `me`. It has one row if the credential
//! is valid in the request's workspace, and no row otherwise. So with an invalid credential, a read
//! finds nothing and a write changes nothing.

use farhand_domain::http::page::Page;
use farhand_domain::people::session;
use farhand_domain::time::Timestamp;
use farhand_sql::statement::{Parameters, Statement, Value};
use serde::Deserialize;

use super::list::Select;

/// The common table `credential`: the caller and the credential. Its parameters are the workspace's
/// `:slug`, the `:token_hash`, `:now`, and `:dead_until`. Sessions that expired by `:dead_until`
/// are invalid. It is slightly before `:now`, because a login token is accepted for some time after
/// its expiry.
///
/// The table `me` follows `credential` and has the same columns. If the endpoint does not accept
/// API tokens with an access control list, `me` is empty for such tokens. So the handler's
/// statement writes nothing for them.
const CREDENTIAL: &str = "WITH credential AS MATERIALIZED (
    SELECT w.id AS workspace_id, u.id AS user_id, u.username, u.email, u.is_staff, u.is_superuser,
        'session' AS kind, s.id AS credential_id, s.refreshed_at AS moved_at, s.expires_at,
        NULL AS acl, NULL AS acl_servers, NULL AS acl_selector, 0 AS reads_narrowly
    FROM workspaces w
    JOIN sessions s ON s.workspace_id = w.id AND s.token_hash = :token_hash AND s.expires_at > :dead_until
    JOIN users u ON u.id = s.user_id AND u.workspace_id = w.id AND u.is_active = 1
    WHERE w.slug = :slug AND w.deleted_at IS NULL
    UNION ALL
    SELECT w.id, u.id, u.username, u.email, u.is_staff, u.is_superuser,
        'api_token', t.id, t.last_used_at, t.expires_at, t.acl, json_extract(t.acl, '$.servers'), t.selector,
        coalesce(t.acl ->> '$.commands', t.acl ->> '$.argv', t.acl ->> '$.scripts', t.acl ->> '$.usernames') IS NOT NULL
            AND NOT coalesce(t.acl ->> '$.read_all', 0)
    FROM workspaces w
    JOIN api_tokens t ON t.workspace_id = w.id AND t.key_hash = :token_hash AND t.enabled = 1
        AND (t.expires_at IS NULL OR t.expires_at > :now)
    JOIN users u ON u.id = t.user_id AND u.workspace_id = w.id AND u.is_active = 1
    WHERE w.slug = :slug AND w.deleted_at IS NULL
)";

/// `me` for endpoints that accept API tokens with an access control list. Such an endpoint first
/// reads the caller, and writes only in a later round trip.
const ME_OR_LIMITED: &str = "me AS (SELECT * FROM credential)";
/// `me` for all other endpoints.
const ME_UNLIMITED: &str = "me AS (SELECT * FROM credential WHERE acl IS NULL)";

/// SQL for the column `workspace`: the workspace's id, or null if it does not exist.
const WORKSPACE: &str =
    "(SELECT id FROM workspaces WHERE slug = :slug AND deleted_at IS NULL) AS workspace";
/// SQL for the caller as JSON, from a table with the columns of `me`. Null if the table is empty.
macro_rules! caller_json {
    ($table:literal) => {
        concat!(
            "(SELECT json_object('workspace_id', workspace_id, 'user_id', user_id, 'username', username, 'email', email,
        'is_staff', json(iif(is_staff, 'true', 'false')), 'is_superuser', json(iif(is_superuser, 'true', 'false')),
        'kind', kind, 'credential_id', credential_id, 'moved_at', moved_at, 'expires_at', expires_at,
        'acl', json(acl))
     FROM ",
            $table,
            ")"
        )
    };
}
pub(super) use caller_json;

/// SQL for the column `me`: the caller as JSON, or null if the credential is invalid.
const ME: &str = concat!(caller_json!("credential"), " AS me");

/// A source of statements on the common table `me`: the credential of a request, or a stored
/// requester ([`super::stored_requester`]).
pub trait CallerTable {
    /// A statement on the common table `me`. With an invalid credential, `me` is empty.
    fn statement(&self, sql: &str) -> Statement;
}

/// The columns about the caller, in the first row of every read for a caller.
#[derive(Deserialize)]
pub struct CallerRow {
    /// The workspace's id; `None` if it does not exist.
    pub workspace: Option<i64>,
    /// The caller as JSON; `None` if the credential is invalid.
    pub me: Option<String>,
}

/// A read for a caller: an SQL expression on the columns of `me`, whose value is JSON text.
#[derive(Clone, Debug)]
pub struct Query {
    sql: String,
    parameters: Parameters,
}

impl Query {
    pub fn new(sql: impl Into<String>, parameters: Parameters) -> Self {
        Self { sql: sql.into(), parameters }
    }

    /// The SQL expression, and its parameters.
    #[allow(dead_code, reason = "schedules read their owners with StoredScope")]
    pub(super) fn into_parts(self) -> (String, Parameters) {
        (self.sql, self.parameters)
    }
}

/// The callers for whom a query is correct.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readers {
    /// All callers.
    All,
    /// Callers that [`Caller::is_history_limited`] does not concern. For others, the query finds
    /// nothing. It is cheaper, because SQLite does not parse the rules of access control lists.
    ///
    /// [`Caller::is_history_limited`]: farhand_domain::caller::Caller::is_history_limited
    Unlimited,
}

/// Whether an endpoint accepts API tokens with an access control list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitedTokens {
    /// The endpoint accepts them.
    Accepted,
    /// The endpoint refuses them: `me` is empty.
    Refused,
}

/// The workspace and the credential of a request.
pub struct Scope<'a> {
    /// The workspace's slug.
    pub workspace: &'a str,
    /// The hash of the credential.
    pub hash: String,
    /// The time that expiries are compared with.
    pub now: Timestamp,
    limited: LimitedTokens,
}

impl CallerTable for Scope<'_> {
    fn statement(&self, sql: &str) -> Statement {
        Scope::statement(self, sql)
    }
}

impl<'a> Scope<'a> {
    pub fn new(workspace: &'a str, hash: String, now: Timestamp, limited: LimitedTokens) -> Self {
        Self { workspace, hash, now, limited }
    }

    /// Copies this scope with another `now`.
    #[must_use]
    pub fn at(&self, now: Timestamp) -> Self {
        Self { workspace: self.workspace, hash: self.hash.clone(), now, limited: self.limited }
    }

    /// The text of a statement on the common tables `credential` and `me`.
    fn text(&self, sql: &str) -> String {
        let me = match self.limited {
            LimitedTokens::Accepted => ME_OR_LIMITED,
            LimitedTokens::Refused => ME_UNLIMITED,
        };
        format!("{CREDENTIAL}, {me}\n{sql}")
    }

    /// A statement on the common tables `credential` and `me`.
    pub fn statement(&self, sql: &str) -> Statement {
        self.values()
            .into_iter()
            .fold(Statement::new(self.text(sql)), |statement, (name, value)| {
                statement.bind(name, value)
            })
    }

    /// The parameters of the common tables.
    pub fn values(&self) -> [(&'static str, Value); 4] {
        [
            ("slug", self.workspace.into()),
            ("token_hash", (&self.hash).into()),
            ("now", self.now.into()),
            ("dead_until", session::oldest_accepted_expiry(self.now).into()),
        ]
    }

    /// The statement that selects only [`CallerRow`].
    pub fn check(&self) -> Statement {
        self.statement(&format!("SELECT {WORKSPACE}, {ME}"))
    }

    /// The statement that selects [`CallerRow`], and the value of the query as `body`.
    pub fn read(&self, Query { sql, parameters }: Query) -> Statement {
        self.statement(&format!("SELECT {WORKSPACE}, {ME}, (SELECT {sql} FROM me) AS body"))
            .bind_all(parameters)
    }

    /// The statement for a page of a list. Its first row also has [`CallerRow`], so that the
    /// database computes caller and total only once.
    pub fn list(&self, select: &Select, page: Page) -> Statement {
        select.bind(self.statement(&select.text(&[WORKSPACE, ME], page)), page)
    }
}
