//! Incomplete deployments (contract 11.3): every request gets 503 `NOT_SET_UP`, and the response
//! says what to do.

use std::cell::Cell;

use farhand_domain::error::{Code, Error, ErrorKind};
use farhand_sql::statement::Statement;
use serde_json::json;

use crate::http::request::Call;
use crate::http::response::Reply;
use crate::platform;
use crate::store::database::Database;
use crate::store::db;

/// Part of D1's error message if a statement names a missing table.
const MISSING_TABLE: &str = "no such table";

thread_local! {
    /// Whether D1 is known to have tables. If so, the isolate stops checking, because tables are
    /// never dropped.
    static HAS_TABLES: Cell<bool> = const { Cell::new(false) };
}

fn not_set_up_error(detail: &'static str) -> Error {
    Error::new(ErrorKind::NotSetUp, detail).with_code(Code::NotSetUp)
}

fn no_tables_error() -> Error {
    not_set_up_error(
        "The database has no tables. `npm run deploy` applies the migrations, and on your machine `npm run dev`. \
         docs/operations.md describes it.",
    )
}

fn is_missing_table(error: &Error) -> bool {
    error.kind == ErrorKind::Internal && error.detail.contains(MISSING_TABLE)
}

/// Refuses requests while the secret `SECRET_KEY` is missing or too short. `/healthz` needs no
/// secret.
///
/// # Errors
/// 503 `NOT_SET_UP`.
pub fn require_secrets(call: &Call) -> Result<(), Error> {
    if call.path == "/healthz" || platform::secret_key(&call.env).is_ok() {
        return Ok(());
    }
    Err(not_set_up_error(
        "The secret SECRET_KEY is missing or has fewer than 32 characters. Set it with `npx wrangler secret put SECRET_KEY`, \
         for example to the output of `openssl rand -base64 32`. On your machine, `npm run dev` sets it.",
    ))
}

/// Replaces the error of a request by 503 `NOT_SET_UP` if the database has no tables. If the error
/// came before any call of D1, checks this with an extra query, until D1 is known to have tables.
/// `is-authenticated` responds with `false` instead of an error.
///
/// # Errors
/// The error of the request, or 503 `NOT_SET_UP`.
pub async fn explain(
    call: &Call,
    outcome: Result<Reply, Error>,
    has_asked_d1: bool,
) -> Result<Reply, Error> {
    let error = match outcome {
        Err(error) if error.kind == ErrorKind::NotSetUp => error,
        Err(error) if is_missing_table(&error) => no_tables_error(),
        Err(_) if !has_asked_d1 && !has_tables(&call.database).await => no_tables_error(),
        other => {
            HAS_TABLES.set(HAS_TABLES.get() || has_asked_d1);
            return other;
        }
    };
    if call.path == "/api/auth/is-authenticated/" {
        return Reply::ok(&json!({"authenticated": false}));
    }
    Err(error)
}

async fn has_tables(database: &Database) -> bool {
    if !HAS_TABLES.get() {
        let probe = db::run(database, Statement::new("SELECT id FROM workspaces LIMIT 1"))
            .await
            .map_err(Error::from);
        HAS_TABLES.set(!probe.is_err_and(|error| is_missing_table(&error)));
    }
    HAS_TABLES.get()
}
