//! The one way to D1: statements with their parameters, and its errors made alike.

use std::collections::HashMap;

use farhand_domain::error::Error;
use farhand_sql::statement::{Built, Statement, Value};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use wasm_bindgen::JsValue;
use worker::{D1Database, D1PreparedStatement, D1Result, Env};

use crate::platform;
use crate::platform::cost;

/// Parameters by name: `params! { id, name: &new.name }`.
macro_rules! params {
    (@value $name:ident) => { $name };
    (@value $name:ident $value:expr) => { $value };
    ($($name:ident $(: $value:expr)?),* $(,)?) => {{
        #[allow(unused_mut)]
        let mut parameters = farhand_sql::statement::Parameters::default();
        $(parameters.add(stringify!($name), $crate::store::db::params!(@value $name $($value)?));)*
        parameters
    }};
}
pub(crate) use params;

fn prepare(database: &D1Database, statement: Statement) -> Result<D1PreparedStatement, Error> {
    let Built { sql, parameters } = statement.build()?;
    Ok(database.prepare(sql).bind(&parameters.into_iter().map(js_value).collect::<Vec<_>>())?)
}

/// D1 refuses `undefined` and BigInt.
fn js_value(value: Value) -> JsValue {
    match value {
        Value::Null => JsValue::NULL,
        // Exact up to 2^53; ids and sizes do not come near.
        Value::Integer(value) => (value as f64).into(),
        Value::Real(value) => value.into(),
        Value::Text(value) => value.into(),
    }
}

/// Why D1 did not do it.
#[derive(Debug)]
pub enum Failure {
    /// A uniqueness rule, by `table.column` of its last column.
    NotUnique(String),
    /// Anything else.
    Other(Error),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotUnique(what) => Error::internal(format!("D1: not unique: {what}")),
            Failure::Other(error) => error,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// D1's errors have several types and prefixes; their text says what happened.
impl From<worker::Error> for Failure {
    fn from(error: worker::Error) -> Self {
        let text = error.to_string();
        match text.split_once("UNIQUE constraint failed: ") {
            Some((_, columns)) => {
                let columns = columns.split(": ").next().unwrap_or(columns);
                Self::NotUnique(columns.rsplit(", ").next().unwrap_or(columns).trim().to_owned())
            }
            None => Self::Other(Error::internal(format!("D1: {text}"))),
        }
    }
}

/// Runs statements in one round trip and one transaction: all of them or none.
///
/// # Errors
/// D1 did not run them, or a rule refused one.
pub async fn batch(env: &Env, statements: Vec<Statement>) -> Result<Vec<D1Result>, Failure> {
    let database = env.d1(platform::DB)?;
    let prepared: Vec<_> =
        statements.into_iter().map(|statement| prepare(&database, statement)).collect::<Result<_, _>>()?;
    cost::add_d1_call();
    let results = database.batch(prepared).await?;
    cost::add_rows(&results);
    Ok(results)
}

/// Runs one statement.
///
/// # Errors
/// As [`batch`].
pub async fn run(env: &Env, statement: Statement) -> Result<D1Result, Failure> {
    let prepared = prepare(&env.d1(platform::DB)?, statement)?;
    cost::add_d1_call();
    let result = prepared.run().await?;
    cost::add_rows(std::slice::from_ref(&result));
    Ok(result)
}

/// Runs one statement whose result is not used.
pub async fn execute(env: &Env, statement: Statement) -> Result<(), Error> {
    Ok(run(env, statement).await.map(drop)?)
}

/// Runs statements whose results are not used, as [`batch`].
pub async fn execute_all(env: &Env, statements: Vec<Statement>) -> Result<(), Error> {
    Ok(batch(env, statements).await.map(drop)?)
}

/// The rows of a result.
pub fn rows<T: DeserializeOwned>(result: &D1Result) -> Result<Vec<T>, Error> {
    Ok(result.results()?)
}

/// The values of a result that has one column.
pub fn column<T: DeserializeOwned>(result: &D1Result) -> Result<Vec<T>, Error> {
    Ok(rows::<HashMap<String, T>>(result)?.into_iter().flat_map(HashMap::into_values).collect())
}

/// SQL for an object of a table's row as RETURNING takes it, which knows the columns by their bare names only.
pub fn returned(object: &str, alias: &str) -> String {
    object.replace(&format!("{alias}."), "")
}

/// How many rows a statement changed, without those that triggers changed.
pub fn changes(result: &D1Result) -> Result<usize, Error> {
    let meta = result.meta()?;
    meta.and_then(|meta| meta.changes).ok_or_else(|| Error::internal("D1 gave no number of changes"))
}

/// The first value of a result that has one column.
pub fn first_value<T: DeserializeOwned>(result: &D1Result) -> Result<Option<T>, Error> {
    Ok(column(result)?.into_iter().next())
}

/// The first row of a result.
pub fn first<T: DeserializeOwned>(result: &D1Result) -> Result<Option<T>, Error> {
    Ok(rows(result)?.into_iter().next())
}

/// For a boolean of a row: D1 gives 0 and 1.
///
/// # Errors
/// The value is no number.
pub fn boolean<'de, D: Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    Ok(i64::deserialize(value)? != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::rooms::sources;

    #[test]
    fn no_parameter_stands_alone_after_a_limit() {
        let mut limits = 0;
        for file in sources("src") {
            let text = fs::read_to_string(&file).unwrap();
            for parameter in [concat!("LIMIT", " ?"), concat!("LIMIT", " :")] {
                for (at, _) in text.match_indices(parameter) {
                    let rest = text[at + parameter.len()..]
                        .trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
                    assert!(rest.starts_with(" + "), "{}, before {:?}", file.display(), rest.lines().next());
                    limits += 1;
                }
            }
        }
        assert!(limits > 10, "{limits}");
    }
}
