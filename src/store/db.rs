//! The one way to D1: statements with their parameters, and its errors made alike.

use std::collections::HashMap;

use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use farhand_sql::statement::{Built, Value};
use serde::de::DeserializeOwned;
use uuid::Uuid;
use wasm_bindgen::JsValue;
use worker::{D1PreparedStatement, D1Result, Env};

use crate::platform::cost;
use crate::platform::{self, internal};

/// A parameter of a statement.
///
/// D1 takes numbers as JavaScript's, booleans as 0 and 1, and refuses `undefined` and BigInt; here nothing else can be
/// made.
#[derive(Clone, Debug)]
pub struct Parameter(JsValue);

impl From<&str> for Parameter {
    fn from(value: &str) -> Self {
        Self(value.into())
    }
}

impl From<&String> for Parameter {
    fn from(value: &String) -> Self {
        Self(value.as_str().into())
    }
}

impl From<String> for Parameter {
    fn from(value: String) -> Self {
        Self(value.into())
    }
}

impl From<Timestamp> for Parameter {
    fn from(value: Timestamp) -> Self {
        value.to_string().into()
    }
}

impl From<Uuid> for Parameter {
    fn from(value: Uuid) -> Self {
        value.to_string().into()
    }
}

impl From<bool> for Parameter {
    fn from(value: bool) -> Self {
        Self(f64::from(u8::from(value)).into())
    }
}

impl From<f64> for Parameter {
    fn from(value: f64) -> Self {
        Self(value.into())
    }
}

impl From<i64> for Parameter {
    fn from(value: i64) -> Self {
        // Exact up to 2^53; ids and sizes do not come near.
        Self((value as f64).into())
    }
}

impl From<u64> for Parameter {
    fn from(value: u64) -> Self {
        Self((value as f64).into())
    }
}

impl<T: Into<Parameter>> From<Option<T>> for Parameter {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self(JsValue::NULL), Into::into)
    }
}

impl From<Value> for Parameter {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self(JsValue::NULL),
            Value::Integer(value) => value.into(),
            Value::Real(value) => value.into(),
            Value::Text(value) => value.into(),
        }
    }
}

/// A statement with its parameters `?1`, `?2` ... in order.
#[derive(Clone, Debug)]
pub struct Statement {
    sql: String,
    parameters: Vec<JsValue>,
}

impl From<Built> for Statement {
    fn from(built: Built) -> Self {
        let parameters = built.parameters.into_iter().map(|value| Parameter::from(value).0).collect();
        Self { sql: built.sql, parameters }
    }
}

impl Statement {
    /// A statement without parameters yet. No text of a request may be in `sql`, and no parameter alone after a LIMIT: SQLite
    /// plans by its value, and so prepares the statement anew each time. `LIMIT ?1 + 0` it keeps.
    pub fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), parameters: Vec::new() }
    }

    /// The same with its next parameter.
    pub fn bind(mut self, value: impl Into<Parameter>) -> Self {
        self.parameters.push(value.into().0);
        self
    }

    fn prepare(self, database: &worker::D1Database) -> Result<D1PreparedStatement, Error> {
        database.prepare(self.sql).bind(&self.parameters).map_err(internal)
    }
}

/// What a list of the caller's is read with. `?5` and `?6` are the page's size and offset.
#[derive(Debug)]
pub struct Selection {
    /// Common tables that follow `me`, each after a comma; among them `total`, with the number of all items.
    pub tables: String,
    /// A statement for the page's items, one in a row, as JSON text in the column `body`.
    pub items: String,
    /// The same two for those who reach all servers, where these are much shorter; for others `total` is null.
    pub of_all: Option<(String, String)>,
    /// Their parameters, from `?7` on. The statement for the items has them all.
    pub parameters: Vec<Parameter>,
    /// What an API token reads instead that reads only what its access control list allows.
    pub narrow: Option<Box<Selection>>,
}

impl Selection {
    /// A list of rows of a `table` under a name, in an order, each shown as `object`. `ways` give those rows, each with its
    /// FROM and WHERE after the word FROM; of several, all but one give none to a caller. `tables` are further common tables.
    pub fn of(
        tables: &str,
        (table, object): (&str, &str),
        ways: &[String],
        order: &str,
        parameters: Vec<Parameter>,
    ) -> Self {
        let (_, name) = table.split_once(' ').unwrap_or((table, table));
        let count = ways.iter().map(|way| format!("(SELECT count(*) FROM {way})")).collect::<Vec<_>>().join(" + ");
        let place = |way: &String| {
            format!(
                "SELECT place FROM (SELECT {name}.rowid AS place FROM {way} ORDER BY {order} LIMIT ?5 + 0 OFFSET ?6)"
            )
        };
        let places = ways.iter().map(place).collect::<Vec<_>>().join(" UNION ALL ");
        // The page's rows first, in the order of an index; then their objects. A page past the end is not read: OFFSET would
        // walk over all that comes before it.
        Self {
            tables: format!("{tables}, total AS (SELECT {count} AS total FROM me)"),
            items: format!(
                "SELECT {object} AS body
                 FROM me CROSS JOIN json_each(iif(?6 = 0 OR (SELECT total FROM total) > ?6,
                    (SELECT json_group_array(place) FROM ({places})), '[]')) page
                 CROSS JOIN {table} ON {name}.rowid = page.value
                 ORDER BY page.key"
            ),
            of_all: None,
            narrow: None,
            parameters,
        }
    }
}

/// The filters of a list that are asked for: each is a condition after an AND, with its parameter from `?7` on. One that is not
/// asked for is not there, so that what is can go by an index.
#[derive(Default, Debug)]
pub struct Filters {
    /// The conditions.
    pub sql: String,
    /// Their parameters.
    pub parameters: Vec<Parameter>,
}

impl Filters {
    /// Adds a condition, in which `?` is the value, if there is one.
    pub fn add(&mut self, condition: &str, value: Option<impl Into<Parameter>>) {
        if let Some(value) = value {
            self.parameters.push(value.into());
            let number = format!("?{}", 6 + self.parameters.len());
            self.sql += &format!(" AND {}", condition.replace('?', &number));
        }
    }
}

/// Why D1 did not do it.
#[derive(Debug)]
pub enum Failure {
    /// A uniqueness rule, by `table.column` of its last column.
    NotUnique(String),
    /// The rules refused it.
    Refused(Error),
    /// Anything else.
    Other(String),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotUnique(what) => Error::internal(format!("D1: not unique: {what}")),
            Failure::Refused(error) => error,
            Failure::Other(cause) => Error::internal(format!("D1: {cause}")),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// Errors of D1 come as several types with several prefixes; what they say is in their text.
fn failure(error: &worker::Error) -> Failure {
    let text = error.to_string();
    match text.split_once("UNIQUE constraint failed: ") {
        Some((_, columns)) => {
            let columns = columns.split(": ").next().unwrap_or(columns);
            Failure::NotUnique(columns.rsplit(", ").next().unwrap_or(columns).trim().to_owned())
        }
        None => Failure::Other(text),
    }
}

/// Carries statements out in one round trip and one transaction: all of them or none.
///
/// # Errors
/// Where D1 did not do it.
pub async fn batch(env: &Env, statements: Vec<Statement>) -> Result<Vec<D1Result>, Failure> {
    let database = env.d1(platform::DB).map_err(|error| failure(&error))?;
    let prepared: Vec<_> =
        statements.into_iter().map(|statement| statement.prepare(&database)).collect::<Result<_, _>>()?;
    cost::add_d1_call();
    let results = database.batch(prepared).await.map_err(|error| failure(&error))?;
    cost::add_rows(&results);
    Ok(results)
}

/// Carries one statement out.
///
/// # Errors
/// Where D1 did not do it.
pub async fn run(env: &Env, statement: Statement) -> Result<D1Result, Failure> {
    let database = env.d1(platform::DB).map_err(|error| failure(&error))?;
    let prepared = statement.prepare(&database)?;
    cost::add_d1_call();
    let result = prepared.run().await.map_err(|error| failure(&error))?;
    cost::add_rows(std::slice::from_ref(&result));
    Ok(result)
}

/// The rows of a result.
///
/// # Errors
/// Rows of another form: our own fault.
pub fn rows<T: DeserializeOwned>(result: &D1Result) -> Result<Vec<T>, Error> {
    result.results().map_err(internal)
}

/// The values of a result that has one column.
///
/// # Errors
/// Rows of another form: our own fault.
pub fn column<T: DeserializeOwned>(result: &D1Result) -> Result<Vec<T>, Error> {
    Ok(rows::<HashMap<String, T>>(result)?.into_iter().flat_map(HashMap::into_values).collect())
}

/// SQL for an object of a table's row as RETURNING takes it, which knows the columns by their bare names only.
pub fn returned(object: &str, alias: &str) -> String {
    object.replace(&format!("{alias}."), "")
}

/// The id that a statement returned: of the row that it made, changed or found, if there was one.
///
/// # Errors
/// Rows of another form: our own fault.
pub fn returned_id(result: &D1Result) -> Result<Option<i64>, Error> {
    Ok(column::<f64>(result)?.first().map(|id| *id as i64))
}

/// How many rows a statement changed, without those that triggers changed.
///
/// # Errors
/// D1 did not report it.
pub fn changes(result: &D1Result) -> Result<usize, Error> {
    let meta = result.meta().map_err(internal)?;
    meta.and_then(|meta| meta.changes).ok_or_else(|| Error::internal("D1 gave no number of changes"))
}

/// The first row of a result.
///
/// # Errors
/// Rows of another form: our own fault.
pub fn first<T: DeserializeOwned>(result: &D1Result) -> Result<Option<T>, Error> {
    Ok(rows(result)?.into_iter().next())
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
            for (at, name) in text.match_indices(concat!("LIMIT", " ?")) {
                let rest = text[at + name.len()..].trim_start_matches(|c: char| c.is_ascii_digit());
                assert!(rest.starts_with(" + "), "{}, before {:?}", file.display(), rest.lines().next());
                limits += 1;
            }
        }
        assert!(limits > 10, "{limits}");
    }
}
