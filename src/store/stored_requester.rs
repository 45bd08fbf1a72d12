//! The common table `me` for work without a request: for the requester of a stored command, batch
//! or schedule, whose permissions are checked again (contract 7.5).
#![allow(dead_code, reason = "schedules read their owners with StoredScope")]

use farhand_domain::access::caller::Caller;
use farhand_domain::command::end::Denial;
use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use farhand_sql::quotas;
use farhand_sql::statement::{Parameters, Statement, Value};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::db::{self, StatementResult, params};
use super::scope::{CallerTable, Query, caller_json};
use crate::platform::Quotas;

/// The common table `requesters`, with a row for each of some stored requesters. It has the columns
/// of `me`, and also:
///
/// - `position`: the requester's index.
/// - `is_active`: whether the user is active. Null or 0: the user is inactive or deleted.
/// - `has_token`: whether the API token is valid. 1 for requests with a login session.
/// - `is_revoked`: whether the login session was revoked.
///
/// [`parameters`] binds its parameters.
pub const REQUESTERS: &str = "requesters AS MATERIALIZED (
    SELECT c.key AS position, CAST(:workspace_id AS INTEGER) AS workspace_id, u.id AS user_id, u.username, u.email,
        u.is_active, u.is_staff, u.is_superuser,
        iif(c.value ->> 'token' IS NULL, 'session', 'api_token') AS kind,
        coalesce(c.value ->> 'token', c.value ->> 'session') AS credential_id,
        NULL AS moved_at, t.expires_at,
        c.value ->> 'token' IS NULL OR coalesce(t.enabled AND (t.expires_at IS NULL OR t.expires_at > :now), 0) AS has_token,
        EXISTS (SELECT 1 FROM revoked_sessions r
            WHERE r.workspace_id = :workspace_id AND r.id = c.value ->> 'session') AS is_revoked,
        t.acl, json_extract(t.acl, '$.servers') AS acl_servers, t.selector AS acl_selector
    FROM json_each(:credentials) c
    LEFT JOIN users u ON u.id = c.value ->> 'user' AND u.workspace_id = :workspace_id
    LEFT JOIN api_tokens t ON t.id = c.value ->> 'token' AND t.workspace_id = :workspace_id AND t.user_id = u.id
)";

/// The common table `me`, from one row of `requesters`: empty if the credential is not valid any
/// more, or the workspace is deleted.
const ME: &str = "me AS (
    SELECT * FROM requesters WHERE is_active AND has_token AND NOT is_revoked
        AND EXISTS (SELECT 1 FROM workspaces w WHERE w.id = :workspace_id AND w.deleted_at IS NULL)
)";

/// A user and the credential of a former request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredRequester {
    /// The user's id. `None`: the user was deleted.
    pub user: Option<i64>,
    /// The id of the API token, if the request had one.
    pub api_token: Option<Uuid>,
    /// The id of the login session, if the request had one.
    pub session: Option<Uuid>,
}

/// The parameters of [`REQUESTERS`].
pub fn parameters(
    workspace_id: i64,
    requesters: impl IntoIterator<Item = StoredRequester>,
    now: Timestamp,
) -> Parameters {
    let credentials = Value::list(requesters.into_iter().map(
        |StoredRequester { user, api_token, session }| json!({"user": user, "token": api_token, "session": session}),
    ));
    params! { workspace_id, credentials, now }
}

/// The credential of one stored requester, for statements on `me`.
#[derive(Clone, Copy, Debug)]
pub struct StoredScope {
    pub workspace_id: i64,
    pub requester: StoredRequester,
    /// The time that expiries are compared with.
    pub now: Timestamp,
}

impl CallerTable for StoredScope {
    fn statement(&self, sql: &str) -> Statement {
        Statement::new(format!("WITH {REQUESTERS}, {ME}\n{sql}")).bind_all(parameters(
            self.workspace_id,
            [self.requester],
            self.now,
        ))
    }
}

/// The statement that reads how many bytes of output each requester's next command may keep, in the
/// order of `requesters` (contract 11.4).
pub fn output_limits(
    limits: Quotas,
    workspace_id: i64,
    requesters: impl IntoIterator<Item = StoredRequester>,
    now: Timestamp,
) -> Statement {
    // Commands that wait for a server often have the same requester.
    let sql = format!(
        "WITH {REQUESTERS}, limits AS MATERIALIZED (
            SELECT r.user_id, (SELECT {} FROM {} u) AS output_limit
            FROM (SELECT DISTINCT workspace_id, user_id, coalesce(is_staff OR is_superuser, 0) AS is_staff
                FROM requesters) r)
         SELECT l.output_limit FROM requesters r JOIN limits l ON l.user_id IS r.user_id ORDER BY r.position",
        quotas::output_limit("r.is_staff"),
        quotas::usage("r.workspace_id", "r.user_id", ":now")
    );
    Statement::new(sql).bind_all(parameters(workspace_id, requesters, now)).bind_all(
        params! { output_of_day: limits.output_of_day, output_of_user: limits.output_of_user },
    )
}

/// The result of [`StoredScope::read`].
#[derive(Debug)]
pub struct StoredRead {
    /// The requester as a caller.
    pub caller: Caller,
    /// The value of the query. `None`: it found nothing.
    pub body: Option<String>,
}

impl StoredScope {
    /// The statement that reads the requester, and a query for the requester.
    pub fn read(&self, query: Query) -> Statement {
        let (sql, parameters) = query.into_parts();
        let me = caller_json!("me");
        self.statement(&format!(
            "SELECT {me} AS me, is_active, has_token, is_revoked, (SELECT {sql} FROM me) AS body FROM requesters"
        ))
        .bind_all(parameters)
    }

    /// Reads the result of [`StoredScope::read`]. The inner error says why the requester has no
    /// permission any more. Returns `None` if the workspace is deleted.
    ///
    /// # Errors
    /// D1 returned another form.
    pub fn result(outcome: &StatementResult) -> Result<Option<Result<StoredRead, Denial>>, Error> {
        #[derive(Deserialize)]
        struct Row {
            me: Option<String>,
            is_active: Option<i64>,
            has_token: i64,
            is_revoked: i64,
            body: Option<String>,
        }
        let row =
            db::first::<Row>(outcome)?.ok_or_else(|| Error::internal("D1 returned no row"))?;
        if row.is_active.is_none_or(|is_active| is_active == 0) {
            return Ok(Some(Err(Denial::Requester)));
        }
        if row.has_token == 0 {
            return Ok(Some(Err(Denial::Token)));
        }
        if row.is_revoked != 0 {
            return Ok(Some(Err(Denial::Session)));
        }
        let Some(me) = row.me else { return Ok(None) };
        // An access control list that cannot be parsed allows nothing.
        let Ok(caller) = serde_json::from_str(&me) else { return Ok(Some(Err(Denial::Acl))) };
        Ok(Some(Ok(StoredRead { caller, body: row.body })))
    }
}
