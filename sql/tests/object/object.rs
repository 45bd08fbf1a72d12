//! An object's database.

use farhand_domain::time::Timestamp;
use farhand_sql::statement::{Statement, Value};
use rusqlite::types::{Value as Stored, ValueRef};
use rusqlite::{Connection, params_from_iter};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json, json};
use uuid::Uuid;

/// A time some seconds after the beginning of a test.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::parse("2026-11-22T12:00:00Z").unwrap().plus_seconds(seconds)
}

/// An id for each number, in the order of the numbers.
pub fn id(number: u8) -> Uuid {
    Uuid::from_u128(number.into())
}

/// The parameters as the storage of an object gets them: numbers are doubles.
fn as_stored(values: Vec<Value>) -> impl Iterator<Item = Stored> {
    values.into_iter().map(|value| match value {
        Value::Null => Stored::Null,
        Value::Integer(value) => Stored::Real(value as f64),
        Value::Real(value) => Stored::Real(value),
        Value::Text(value) => Stored::Text(value),
    })
}

fn as_json(value: ValueRef<'_>) -> Json {
    match value {
        ValueRef::Null => Json::Null,
        ValueRef::Integer(value) => json!(value),
        ValueRef::Real(value) => json!(value),
        ValueRef::Text(value) => json!(str::from_utf8(value).unwrap()),
        ValueRef::Blob(_) => panic!("no table has a blob"),
    }
}

/// The SQLite database of an object.
pub struct Object(Connection);

impl Object {
    /// A database with the tables that the statements create.
    pub fn new(schema: impl IntoIterator<Item = Statement>) -> Self {
        let object = Self(Connection::open_in_memory().unwrap());
        for statement in schema {
            object.run(statement);
        }
        object
    }

    /// Runs a statement that returns no rows. Returns how many rows it changed.
    pub fn run(&self, statement: Statement) -> usize {
        self.try_run(statement).unwrap()
    }

    pub fn try_run(&self, statement: Statement) -> rusqlite::Result<usize> {
        let built = statement.build().unwrap();
        self.0
            .prepare(&built.sql)
            .unwrap_or_else(|error| panic!("{error}: {}", built.sql))
            .execute(params_from_iter(as_stored(built.parameters)))
    }

    fn query(&self, sql: &str, values: Vec<Value>) -> Vec<Json> {
        let mut prepared = self.0.prepare(sql).unwrap_or_else(|error| panic!("{error}: {sql}"));
        let columns: Vec<String> = prepared.column_names().map(str::to_owned).collect();
        let rows = prepared.query_map(params_from_iter(as_stored(values)), |row| {
            let columns = columns.iter().enumerate();
            let columns = columns.map(|(i, name)| Ok((name.clone(), as_json(row.get_ref(i)?))));
            Ok(Json::Object(columns.collect::<rusqlite::Result<Map<_, _>>>()?))
        });
        rows.unwrap().collect::<Result<_, _>>().unwrap()
    }

    /// The rows of a query. A JSON object has the columns of a row.
    pub fn rows(&self, statement: Statement) -> Vec<Json> {
        let built = statement.build().unwrap();
        self.query(&built.sql, built.parameters)
    }

    /// The first row of a query.
    pub fn row<T: DeserializeOwned>(&self, statement: Statement) -> Option<T> {
        self.rows(statement).into_iter().next().map(|row| serde_json::from_value(row).unwrap())
    }

    /// A column of the rows of a query.
    pub fn column(&self, name: &str, statement: Statement) -> Vec<Json> {
        self.rows(statement).into_iter().map(|mut row| row[name].take()).collect()
    }

    /// A table's rows, in the order of their keys.
    pub fn table(&self, name: &str) -> Vec<Json> {
        self.query(&format!("SELECT * FROM {name} ORDER BY 1"), Vec::new())
    }

    /// How SQLite finds the rows of a statement.
    pub fn plan(&self, statement: Statement) -> String {
        let built = statement.build().unwrap();
        let steps = self.query(&format!("EXPLAIN QUERY PLAN {}", built.sql), built.parameters);
        steps.iter().map(|step| step["detail"].as_str().unwrap()).collect::<Vec<_>>().join("; ")
    }
}
