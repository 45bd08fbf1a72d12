//! What a caller's statements are limited to: the workspace, and a credential that is alive in it.
//!
//! Every statement begins with the common table `me`, which has one row if the credential is alive
//! in the request's workspace and none otherwise. So a read finds nothing and a write changes
//! nothing for a dead credential.

use farhand_domain::page::Page;
use farhand_domain::session;
use farhand_domain::time::Timestamp;
use farhand_sql::statement::{Parameters, Statement, Value};
use serde::Deserialize;

use super::list::Select;

/// The first common tables. Their parameters are the workspace's `:slug`, the `:token_hash`,
/// `:now`, and `:dead_until`: now less the time that a login token is taken past its expiry.
///
/// `credential` is who calls. `me` is the same, but empty for an API token with an access control
/// list where the endpoint is not on the list of what such a token may reach: what a handler writes
/// is then refused in the same statement.
const CREDENTIAL: &str = "WITH credential AS MATERIALIZED (
    SELECT w.id AS workspace_id, u.id AS user_id, u.username, u.email, u.is_staff, u.is_superuser,
        'session' AS kind, s.id AS credential_id, s.refreshed_at AS moved_at, s.expires_at,
        NULL AS acl, NULL AS acl_servers, 0 AS reads_narrowly
    FROM workspaces w
    JOIN sessions s ON s.workspace_id = w.id AND s.token_hash = :token_hash AND s.expires_at > :dead_until
    JOIN users u ON u.id = s.user_id AND u.workspace_id = w.id AND u.is_active = 1
    WHERE w.slug = :slug AND w.deleted_at IS NULL
    UNION ALL
    SELECT w.id, u.id, u.username, u.email, u.is_staff, u.is_superuser,
        'api_token', t.id, t.last_used_at, t.expires_at, t.acl, json_extract(t.acl, '$.servers'),
        coalesce(t.acl ->> '$.commands', t.acl ->> '$.argv', t.acl ->> '$.usernames') IS NOT NULL
            AND NOT coalesce(t.acl ->> '$.read_all', 0)
    FROM workspaces w
    JOIN api_tokens t ON t.workspace_id = w.id AND t.key_hash = :token_hash AND t.enabled = 1
        AND (t.expires_at IS NULL OR t.expires_at > :now)
    JOIN users u ON u.id = t.user_id AND u.workspace_id = w.id AND u.is_active = 1
    WHERE w.slug = :slug AND w.deleted_at IS NULL
)";

/// `me` where the endpoint takes API tokens with an access control list. Such an endpoint writes
/// nothing in the round trip that tells who calls.
const ME_OR_LIMITED: &str = "me AS (SELECT * FROM credential)";
/// `me` everywhere else.
const ME_UNLIMITED: &str = "me AS (SELECT * FROM credential WHERE acl IS NULL)";

/// The workspace's id; null if it does not exist.
const WORKSPACE: &str =
    "(SELECT id FROM workspaces WHERE slug = :slug AND deleted_at IS NULL) AS workspace";
/// The caller; null if the credential is not alive.
const ME: &str =
    "(SELECT json_object('workspace_id', workspace_id, 'user_id', user_id, 'username', username, 'email', email,
        'is_staff', json(iif(is_staff, 'true', 'false')), 'is_superuser', json(iif(is_superuser, 'true', 'false')),
        'kind', kind, 'credential_id', credential_id, 'moved_at', moved_at, 'expires_at', expires_at,
        'acl', json(acl))
     FROM credential) AS me";

/// Who calls: every statement that is read for a caller has these columns in its first row.
#[derive(Deserialize)]
pub struct Who {
    /// The workspace's id; `None` if it does not exist.
    pub workspace: Option<i64>,
    /// The caller as JSON; `None` if the credential is not alive.
    pub me: Option<String>,
}

/// What is read for a caller: SQL for it as JSON text, on the columns of `me`, with its parameters.
#[derive(Clone, Debug)]
pub struct Query {
    sql: String,
    parameters: Parameters,
}

impl Query {
    /// A query with its parameters.
    pub fn new(sql: impl Into<String>, parameters: Parameters) -> Self {
        Self { sql: sql.into(), parameters }
    }
}

/// Whether an endpoint takes API tokens with an access control list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limited {
    /// It does.
    Taken,
    /// It does not: `me` is empty for them.
    Refused,
}

/// A workspace, and a credential in it.
pub struct Scope<'a> {
    /// The workspace's slug.
    pub workspace: &'a str,
    /// The hash of the credential.
    pub hash: String,
    /// The time that its expiry is compared with.
    pub now: Timestamp,
    limited: Limited,
}

impl<'a> Scope<'a> {
    /// The scope of a credential whose hash is given.
    pub fn new(workspace: &'a str, hash: String, now: Timestamp, limited: Limited) -> Self {
        Self { workspace, hash, now, limited }
    }

    /// The same at another time.
    #[must_use]
    pub fn at(&self, now: Timestamp) -> Self {
        Self { workspace: self.workspace, hash: self.hash.clone(), now, limited: self.limited }
    }

    /// The text of a statement on the common tables `credential` and `me`.
    fn text(&self, sql: &str) -> String {
        let me = match self.limited {
            Limited::Taken => ME_OR_LIMITED,
            Limited::Refused => ME_UNLIMITED,
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
            ("dead_until", session::dead_until(self.now).into()),
        ]
    }

    /// The statement that selects [`Who`] alone.
    pub fn check(&self) -> Statement {
        self.statement(&format!("SELECT {WORKSPACE}, {ME}"))
    }

    /// The statement that selects [`Who`], and the query's JSON as `body`.
    pub fn read(&self, Query { sql, parameters }: Query) -> Statement {
        self.statement(&format!("SELECT {WORKSPACE}, {ME}, (SELECT {sql} FROM me) AS body"))
            .bind_all(parameters)
    }

    /// The statement for a page of a list, whose first row has [`Who`] as well. So who calls, and
    /// how many items there are, is found once.
    pub fn list(&self, select: &Select, page: Page) -> Statement {
        select.bind(self.statement(&select.text(&[WORKSPACE, ME], page)), page)
    }
}
