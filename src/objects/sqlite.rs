//! Runs statements in the SQLite database of an object. `farhand_sql::object` has the statements.

use farhand_sql::statement::{Built, Statement, Value};
use serde::de::DeserializeOwned;
use worker::{Error, Result, SqlCursor, SqlStorage, SqlStorageValue};

/// Runs a statement. The cursor has its rows and its cost.
///
/// # Errors
/// The storage failed, or the statement has a mistake.
pub fn exec(storage: &SqlStorage, statement: Statement) -> Result<SqlCursor> {
    let built = statement.build().map_err(|mistake| Error::RustError(mistake.to_string()))?;
    let Built { sql, parameters, .. } = built;
    let parameters: Vec<SqlStorageValue> = parameters.into_iter().map(stored).collect();
    storage.exec(&sql, parameters)
}

/// Runs statements that return no rows.
///
/// # Errors
/// Those of [`exec`].
pub fn exec_all(
    storage: &SqlStorage,
    statements: impl IntoIterator<Item = Statement>,
) -> Result<()> {
    statements.into_iter().try_for_each(|statement| exec(storage, statement).map(drop))
}

/// Runs a query and returns all rows.
///
/// # Errors
/// Those of [`exec`], or a row is no `T`.
pub fn rows<T: DeserializeOwned>(storage: &SqlStorage, statement: Statement) -> Result<Vec<T>> {
    exec(storage, statement)?.to_array()
}

/// Whether a query returns a row.
///
/// # Errors
/// Those of [`exec`].
pub fn has_rows(storage: &SqlStorage, statement: Statement) -> Result<bool> {
    Ok(!rows::<serde_json::Value>(storage, statement)?.is_empty())
}

fn stored(value: Value) -> SqlStorageValue {
    match value {
        Value::Null => SqlStorageValue::Null,
        Value::Integer(value) => SqlStorageValue::Integer(value),
        Value::Real(value) => SqlStorageValue::Float(value),
        Value::Text(value) => SqlStorageValue::String(value),
    }
}
