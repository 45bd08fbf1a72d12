//! Access to D1: runs statements, counts their cost, and converts results and errors. All SQL of
//! the Worker goes through this file.

use std::collections::HashMap;

use farhand_domain::error::Error;
use farhand_sql::statement::{Built, Statement, Value};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::json;
use serde_json::value::RawValue;
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};

use super::database::Database;
use crate::platform::cost::{self, Cost};

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

#[wasm_bindgen]
extern "C" {
    /// The result of [`Database::run_list`].
    type ListOutcome;
    #[wasm_bindgen(method, getter)]
    fn outcome(this: &ListOutcome) -> String;
    #[wasm_bindgen(method, getter)]
    fn items(this: &ListOutcome) -> JsValue;
}

/// The result of a statement.
#[derive(Deserialize)]
pub struct StatementResult {
    rows_read: Option<u64>,
    rows_written: Option<u64>,
    changes: Option<usize>,
    /// The bytes of the database after the statement.
    size_after: Option<u64>,
    /// A JSON array of objects.
    rows: Box<RawValue>,
}

impl StatementResult {
    /// Adds the cost of the statement, and remembers the size of the database.
    fn record(&self, database: &Database) {
        let (rows_read, rows_written) =
            (self.rows_read.unwrap_or(0), self.rows_written.unwrap_or(0));
        cost::add(Cost { rows_read, rows_written, ..Cost::default() });
        if let Some(size) = self.size_after {
            database.remember_size(size);
        }
    }
}

/// The items of a list's page: a JSON array, as a JavaScript string. It goes from D1 into the
/// response without a copy into wasm memory.
pub struct Items(JsValue);

impl From<String> for Items {
    fn from(json: String) -> Self {
        Self(json.into())
    }
}

impl AsRef<JsValue> for Items {
    fn as_ref(&self) -> &JsValue {
        &self.0
    }
}

/// Serializes statements for `d1.js`: their texts, separated by NUL, and their parameters.
fn build(statements: impl IntoIterator<Item = Statement>) -> Result<(String, String), Error> {
    let (mut texts, mut parameters) = (Vec::new(), Vec::new());
    for statement in statements {
        let built = statement.build()?;
        texts.push(built.sql);
        parameters.push(json_values(built.parameters)?.into());
    }
    Ok((texts.join("\0"), serde_json::Value::Array(parameters).to_string()))
}

/// The statement of a list's page. The items are in the column `body` of all rows, the other
/// columns in the first row. The statement can run several times with different parameters.
pub struct PageStatement {
    /// A JavaScript string.
    text: JsValue,
    names: Vec<String>,
    values: Vec<serde_json::Value>,
}

impl PageStatement {
    /// Converts the text into a JavaScript string once, for all runs.
    pub fn new(statement: Statement) -> Result<Self, Error> {
        let Built { sql, names, parameters } = statement.build()?;
        Ok(Self {
            text: (&*sql).into(),
            names: names.into_owned(),
            values: json_values(parameters)?,
        })
    }

    /// The parameters for `d1.js`. The values in `current` replace the values of [`Self::new`].
    fn parameters(&self, current: &[(&str, Value)]) -> Result<String, Error> {
        let value = |(name, value): (&String, &serde_json::Value)| {
            let replaced = current.iter().find(|(current, _)| current == name);
            replaced.map_or_else(|| Ok(value.clone()), |(_, value)| json_value(value.clone()))
        };
        let values = self.names.iter().zip(&self.values).map(value);
        Ok(json!([values.collect::<Result<Vec<_>, Error>>()?]).to_string())
    }
}

/// The largest integer that every double can hold exactly.
const MAX_EXACT: u64 = 1 << 53;

/// A value as JSON. D1 takes every number as a double, which is exact up to 2^53. Ids and sizes are
/// far smaller. Keys are larger in some workspaces, and must be text ([`farhand_sql::numbering`]).
///
/// # Errors
/// The value is an integer that D1 would round.
fn json_value(value: Value) -> Result<serde_json::Value, Error> {
    Ok(match value {
        Value::Null => serde_json::Value::Null,
        Value::Integer(value) if value.unsigned_abs() > MAX_EXACT => {
            return Err(Error::internal(format!("D1 would round the integer {value}")));
        }
        Value::Integer(value) => json!(value),
        Value::Real(value) => json!(value),
        Value::Text(value) => serde_json::Value::String(value),
    })
}

fn json_values(values: Vec<Value>) -> Result<Vec<serde_json::Value>, Error> {
    values.into_iter().map(json_value).collect()
}

/// The reason why D1 did not run a statement.
#[derive(Debug)]
pub enum Failure {
    /// A uniqueness rule was violated. The text is `table.column` of the rule's last column.
    NotUnique(String),
    /// A statement wrote null into a column that allows none. The text is `table.column`.
    NotNull(String),
    /// Anything else.
    Other(Error),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotUnique(what) => Error::internal(format!("D1: not unique: {what}")),
            Failure::NotNull(what) => Error::internal(format!("D1: null: {what}")),
            Failure::Other(error) => error,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// D1's errors have several types and prefixes. Only the text of an error shows which rule was
/// violated.
impl From<JsValue> for Failure {
    fn from(error: JsValue) -> Self {
        let text = error
            .dyn_ref()
            .map_or_else(|| format!("{error:?}"), |error: &js_sys::Error| error.message().into());
        // The last column of the violated rule.
        let column = |rule: &str| {
            let (_, columns) = text.split_once(rule)?;
            let columns = columns.split(": ").next().unwrap_or(columns);
            Some(columns.rsplit(", ").next().unwrap_or(columns).trim().to_owned())
        };
        column("UNIQUE constraint failed: ").map(Self::NotUnique).unwrap_or_else(|| {
            let null = column("NOT NULL constraint failed: ").map(Self::NotNull);
            null.unwrap_or_else(|| Self::Other(Error::internal(format!("D1: {text}"))))
        })
    }
}

/// Runs statements in one round trip and one transaction: all of them or none.
///
/// # Errors
/// D1 did not run them, or a statement violated a rule of the schema.
pub async fn batch(
    database: &Database,
    statements: Vec<Statement>,
) -> Result<Vec<StatementResult>, Failure> {
    let (texts, parameters) = build(statements)?;
    cost::add_d1_call();
    let json = database.run(&texts, &parameters).await?;
    let outcomes: Vec<StatementResult> =
        serde_json::from_str(&json.as_string().unwrap_or_default()).map_err(Error::from)?;
    outcomes.iter().for_each(|outcome| outcome.record(database));
    Ok(outcomes)
}

/// Runs one statement.
///
/// # Errors
/// See [`batch`].
pub async fn run(database: &Database, statement: Statement) -> Result<StatementResult, Failure> {
    let outcome = batch(database, vec![statement]).await?.pop();
    outcome.ok_or_else(|| Error::internal("D1 returned no result").into())
}

/// Runs the statement of a list's page. The values in `current` replace the statement's own values.
/// Returns the first row and the items.
///
/// # Errors
/// See [`batch`].
pub async fn run_page(
    database: &Database,
    statement: &PageStatement,
    current: &[(&str, Value)],
) -> Result<(StatementResult, Items), Failure> {
    cost::add_d1_call();
    let page = database.run_list(&statement.text, &statement.parameters(current)?).await?;
    let page: ListOutcome = page.unchecked_into();
    let outcome: StatementResult = serde_json::from_str(&page.outcome()).map_err(Error::from)?;
    outcome.record(database);
    Ok((outcome, Items(page.items())))
}

/// Runs one statement whose result is not used.
pub async fn execute(database: &Database, statement: Statement) -> Result<(), Error> {
    Ok(run(database, statement).await.map(drop)?)
}

/// Runs statements whose results are not used, in one transaction: see [`batch`].
pub async fn execute_all(database: &Database, statements: Vec<Statement>) -> Result<(), Error> {
    Ok(batch(database, statements).await.map(drop)?)
}

/// The rows of a result.
pub fn rows<T: DeserializeOwned>(outcome: &StatementResult) -> Result<Vec<T>, Error> {
    Ok(serde_json::from_str(outcome.rows.get())?)
}

/// The values of a result that has one column.
pub fn column<T: DeserializeOwned>(outcome: &StatementResult) -> Result<Vec<T>, Error> {
    Ok(rows::<HashMap<String, T>>(outcome)?.into_iter().flat_map(HashMap::into_values).collect())
}

/// Adapts SQL for a row's object to a RETURNING clause: removes the table's alias from the columns,
/// because RETURNING accepts only their bare names.
pub fn returned(object: &str, alias: &str) -> String {
    object.replace(&format!("{alias}."), "")
}

/// The number of rows that a statement changed, without rows that triggers changed.
pub fn changes(outcome: &StatementResult) -> Result<usize, Error> {
    outcome.changes.ok_or_else(|| Error::internal("D1 gave no number of changes"))
}

/// The first value of a result that has one column.
pub fn first_value<T: DeserializeOwned>(outcome: &StatementResult) -> Result<Option<T>, Error> {
    Ok(column(outcome)?.into_iter().next())
}

/// The first row of a result.
pub fn first<T: DeserializeOwned>(outcome: &StatementResult) -> Result<Option<T>, Error> {
    Ok(rows(outcome)?.into_iter().next())
}

/// Deserializes a boolean of a row, which D1 returns as 0 or 1.
///
/// # Errors
/// The value is not a number.
pub fn boolean<'de, D: Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    Ok(i64::deserialize(value)? != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::structure_tests::sources;

    #[test]
    fn an_integer_that_d1_would_round_is_refused() {
        for exact in [0, 1 << 53, -(1 << 53)] {
            assert_eq!(json_value(Value::Integer(exact)).unwrap(), json!(exact));
        }
        for rounded in [(1 << 53) + 1, -(1 << 53) - 1, 8_192 << 40 | 1, i64::MAX, i64::MIN] {
            assert!(json_value(Value::Integer(rounded)).is_err(), "{rounded}");
            assert!(json_values(vec![Value::Null, Value::Integer(rounded)]).is_err());
        }
    }

    #[test]
    fn every_parameter_after_a_limit_is_part_of_a_sum() {
        let mut limits = 0;
        for file in sources("src") {
            let text = fs::read_to_string(&file).unwrap();
            for parameter in [concat!("LIMIT", " ?"), concat!("LIMIT", " :")] {
                for (at, _) in text.match_indices(parameter) {
                    let rest = text[at + parameter.len()..]
                        .trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
                    assert!(
                        rest.starts_with(" + "),
                        "{}, before {:?}",
                        file.display(),
                        rest.lines().next()
                    );
                    limits += 1;
                }
            }
        }
        assert!(limits > 10, "{limits}");
    }
}
