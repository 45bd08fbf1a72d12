//! Statements with named parameters.
//!
//! A statement's text has named parameters, such as `:server`. D1 and the storage of objects accept
//! only numbered parameters. So [`Statement::build`] replaces each name with a number: the first
//! name in the text becomes `?1`. A name that occurs twice gets one number.
//!
//! ```
//! use farhand_sql::statement::Statement;
//! let statement = Statement::new("SELECT name FROM servers WHERE workspace_id = :workspace LIMIT :limit + 0")
//!     .bind("workspace", 7)
//!     .bind("limit", 15);
//! let built = statement.build().unwrap();
//! assert_eq!(built.sql, "SELECT name FROM servers WHERE workspace_id = ?1 LIMIT ?2 + 0");
//! ```

use std::borrow::Cow;
use std::fmt;
use std::sync::OnceLock;

use farhand_domain::time::Timestamp;
use serde::Serialize;
use uuid::Uuid;

/// The maximum number of parameters that D1 accepts. A list of values is one parameter: see
/// [`Value::list`].
pub const MAX_PARAMETERS: usize = 100;

/// The value of a parameter. Booleans are 0 or 1. Times and ids are texts.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    Null,
    /// D1 takes the value as a double, so it is not exact above 2^53.
    Integer(i64),
    Real(f64),
    Text(String),
}

impl Value {
    /// Several values as one parameter: a JSON array, for `json_each(:name)`.
    pub fn list<T: Serialize>(values: impl IntoIterator<Item = T>) -> Self {
        let values = values.into_iter().map(|value| serde_json::json!(value)).collect();
        Self::Text(serde_json::Value::Array(values).to_string())
    }
}

macro_rules! value_from {
    ($($type:ty: $value:ident => $made:expr;)+) => {
        $(impl From<$type> for Value {
            fn from($value: $type) -> Self {
                $made
            }
        })+
    };
}

value_from! {
    &str: value => Self::Text(value.to_owned());
    &String: value => Self::Text(value.clone());
    String: value => Self::Text(value);
    Timestamp: value => Self::Text(value.to_string());
    Uuid: value => Self::Text(value.to_string());
    bool: value => Self::Integer(value.into());
    i32: value => Self::Integer(value.into());
    u32: value => Self::Integer(value.into());
    i64: value => Self::Integer(value);
    u64: value => Self::Integer(i64::try_from(value).unwrap_or(i64::MAX));
    f64: value => Self::Real(value);
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// Parameters by name. A function that returns a part of a statement also returns the part's
/// parameters.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Parameters(Vec<(&'static str, Value)>);

impl Parameters {
    /// Adds a parameter.
    pub fn add(&mut self, name: &'static str, value: impl Into<Value>) {
        self.0.push((name, value.into()));
    }

    /// Adds the parameters of another part of the statement.
    pub fn extend(&mut self, more: Self) {
        self.0.extend(more.0);
    }
}

/// A text with numbers instead of names.
#[derive(Clone, PartialEq, Debug)]
struct Numbered {
    sql: String,
    /// The names of `?1`, `?2` ... in order.
    names: Vec<String>,
}

impl Numbered {
    /// Replaces the names of a text by numbers.
    fn new(text: &str) -> Result<Self, Mistake> {
        let mut sql = String::with_capacity(text.len());
        let mut names: Vec<String> = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (token, after) = first_token(rest);
            match token {
                Token::Other(text) => sql.push_str(text),
                Token::Numbered => return Err(Mistake::Numbered),
                Token::Name(name) => {
                    if ends_with_limit(&sql) && !after.trim_start().starts_with('+') {
                        return Err(Mistake::BareLimit(name.to_owned()));
                    }
                    let position = names.iter().position(|earlier| *earlier == name);
                    let index = position.unwrap_or_else(|| {
                        names.push(name.to_owned());
                        names.len() - 1
                    });
                    sql.push_str(&format!("?{}", index + 1));
                }
            }
            rest = after;
        }
        if names.len() > MAX_PARAMETERS {
            return Err(Mistake::TooMany);
        }
        Ok(Self { sql, names })
    }

    /// Puts values into the order of the numbers.
    fn order(names: &[String], parameters: Parameters) -> Result<Vec<Value>, Mistake> {
        let mut values: Vec<Option<Value>> = vec![None; names.len()];
        for (name, value) in parameters.0 {
            let position = names.iter().position(|known| known == name);
            let bound = position.and_then(|position| values.get_mut(position));
            let Some(bound) = bound else { return Err(Mistake::Unused(name.to_owned())) };
            if bound.as_ref().is_some_and(|bound| *bound != value) {
                return Err(Mistake::BoundTwice(name.to_owned()));
            }
            *bound = Some(value);
        }
        let values = values.into_iter().zip(names);
        values.map(|(value, name)| value.ok_or_else(|| Mistake::Missing(name.clone()))).collect()
    }
}

/// A text that is a constant of the program. Its names are replaced by numbers only once, because
/// an object runs some statements for each message of an agent.
#[derive(Debug)]
pub struct FixedText {
    text: &'static str,
    numbered: OnceLock<Result<Numbered, Mistake>>,
}

impl FixedText {
    /// A text whose names are not replaced yet.
    pub const fn new(text: &'static str) -> Self {
        Self { text, numbered: OnceLock::new() }
    }

    fn numbered(&'static self) -> Result<&'static Numbered, Mistake> {
        self.numbered.get_or_init(|| Numbered::new(self.text)).as_ref().map_err(Clone::clone)
    }
}

/// A statement with a constant text: `fixed!("SELECT name FROM t WHERE id = :id").bind("id", id)`.
macro_rules! fixed {
    ($text:expr) => {{
        static TEXT: $crate::statement::FixedText = $crate::statement::FixedText::new($text);
        $crate::statement::Statement::fixed(&TEXT)
    }};
}
pub(crate) use fixed;

#[derive(Clone, Debug)]
enum Text {
    Fixed(&'static FixedText),
    Owned(String),
}

impl Text {
    fn as_str(&self) -> &str {
        match self {
            Self::Fixed(fixed) => fixed.text,
            Self::Owned(text) => text,
        }
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

/// A statement's text with its parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct Statement {
    text: Text,
    parameters: Parameters,
}

impl Statement {
    /// A statement without parameters. `text` must not contain values of a request, which must be
    /// parameters.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: Text::Owned(text.into()), parameters: Parameters::default() }
    }

    /// A statement without parameters, whose text is a constant.
    pub const fn fixed(text: &'static FixedText) -> Self {
        Self { text: Text::Fixed(text), parameters: Parameters(Vec::new()) }
    }

    /// Binds a parameter. `name` is without the colon.
    #[must_use]
    pub fn bind(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.parameters.add(name, value);
        self
    }

    /// Binds the parameters of a part of the statement.
    #[must_use]
    pub fn bind_all(mut self, parameters: Parameters) -> Self {
        self.parameters.0.extend(parameters.0);
        self
    }

    /// Replaces names by numbers, and checks that names and values match.
    ///
    /// # Errors
    /// A [`Mistake`] in the statement is a bug of the program. Any test that runs the statement
    /// finds it.
    pub fn build(self) -> Result<Built, Mistake> {
        let (sql, names) = match self.text {
            Text::Fixed(text) => {
                let Numbered { sql, names } = text.numbered()?;
                (Cow::Borrowed(sql.as_str()), Cow::Borrowed(names.as_slice()))
            }
            Text::Owned(text) => {
                let Numbered { sql, names } = Numbered::new(&text)?;
                (Cow::Owned(sql), Cow::Owned(names))
            }
        };
        let parameters = Numbered::order(&names, self.parameters)?;
        Ok(Built { sql, names, parameters })
    }
}

/// A statement in the form that D1 and the storage of objects accept.
#[derive(Clone, PartialEq, Debug)]
pub struct Built {
    /// The text, with `?1`, `?2` ...
    pub sql: Cow<'static, str>,
    /// The names of `?1`, `?2` ... in order.
    pub names: Cow<'static, [String]>,
    /// The values of `?1`, `?2` ... in order.
    pub parameters: Vec<Value>,
}

/// A mistake in a statement. The text is the parameter's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// A name in the text has no value.
    Missing(String),
    /// A value's name is not in the text.
    Unused(String),
    /// One name has two different values.
    BoundTwice(String),
    /// The text has a `?`.
    Numbered,
    /// A parameter follows LIMIT directly. Then SQLite's plan depends on the value, and SQLite
    /// prepares the statement again for each value. It does not do so for `LIMIT :limit + 0`.
    BareLimit(String),
    /// The statement has more than [`MAX_PARAMETERS`] parameters.
    TooMany,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(name) => write!(f, "the parameter :{name} has no value"),
            Self::Unused(name) => write!(f, "the statement has no parameter :{name}"),
            Self::BoundTwice(name) => write!(f, "the parameter :{name} has two values"),
            Self::Numbered => write!(f, "the statement has a parameter without a name"),
            Self::BareLimit(name) => write!(f, "the parameter :{name} stands alone behind LIMIT"),
            Self::TooMany => write!(f, "the statement has more than {MAX_PARAMETERS} parameters"),
        }
    }
}

impl std::error::Error for Mistake {}

/// A part of a statement's text.
enum Token<'a> {
    /// A parameter's name, without the colon.
    Name(&'a str),
    /// A `?`.
    Numbered,
    /// Anything else. A quoted text or a comment is one token, and cannot contain a parameter.
    Other(&'a str),
}

/// Splits the first token off a text. The text must not be empty.
fn first_token(text: &str) -> (Token<'_>, &str) {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let ends_with = |opening: usize, closing: &str| {
        text[opening..].find(closing).map_or(text.len(), |at| opening + at + closing.len())
    };
    let end = match text.as_bytes()[0] {
        b'?' => return (Token::Numbered, &text[1..]),
        b':' => {
            let name = &text[1..];
            let (name, after) = name.split_at(name.find(|c| !is_name(c)).unwrap_or(name.len()));
            if !name.is_empty() {
                return (Token::Name(name), after);
            }
            1
        }
        b'\'' => ends_with(1, "'"),
        b'"' => ends_with(1, "\""),
        b'-' if text.starts_with("--") => ends_with(2, "\n"),
        b'/' if text.starts_with("/*") => ends_with(2, "*/"),
        b'-' | b'/' => 1,
        _ => text.find(['?', ':', '\'', '"', '-', '/']).unwrap_or(text.len()),
    };
    let (text, after) = text.split_at(end);
    (Token::Other(text), after)
}

fn ends_with_limit(sql: &str) -> bool {
    sql.split_ascii_whitespace().next_back().is_some_and(|word| word.eq_ignore_ascii_case("limit"))
}

#[cfg(test)]
mod tests {
    use rusqlite::types::Value as Stored;
    use rusqlite::{Connection, params_from_iter};

    use super::*;

    fn mistake(text: &str, names: &[&'static str]) -> Option<Mistake> {
        let statement =
            names.iter().fold(Statement::new(text), |statement, name| statement.bind(name, *name));
        statement.build().err()
    }

    #[test]
    fn names_become_numbers_in_the_order_of_the_text() {
        let built = Statement::new("SELECT :b, :a, :b, :a_1 LIMIT :limit + 0 OFFSET :a")
            .bind("a", 1)
            .bind("a_1", true)
            .bind("b", None::<&str>)
            .bind("limit", 0.5)
            .build()
            .unwrap();
        assert_eq!(built.sql, "SELECT ?1, ?2, ?1, ?3 LIMIT ?4 + 0 OFFSET ?2");
        assert_eq!(*built.names, ["b", "a", "a_1", "limit"]);
        assert_eq!(
            built.parameters,
            [Value::Null, Value::Integer(1), Value::Integer(1), Value::Real(0.5)]
        );
    }

    #[test]
    fn a_fixed_text_is_numbered_once() {
        let statement = |name| fixed!("SELECT :b, :a, :b").bind("a", 1).bind(name, 2);
        let built = statement("b").build().unwrap();
        assert_eq!(
            (&*built.sql, &*built.names),
            ("SELECT ?1, ?2, ?1", &["b".into(), "a".into()][..])
        );
        assert_eq!(built.parameters, [Value::Integer(2), Value::Integer(1)]);
        let again = statement("b").build().unwrap();
        assert!(std::ptr::eq(&*built.sql, &*again.sql));
        // A mistake in the values does not concern the next values.
        assert_eq!(statement("c").build(), Err(Mistake::Unused("c".to_owned())));
        assert_eq!(statement("b").build(), Ok(built));
        assert_eq!(fixed!("SELECT ?1").build(), Err(Mistake::Numbered));
        assert_eq!(fixed!("SELECT 1"), Statement::new("SELECT 1"));
    }

    #[test]
    fn quoted_texts_and_comments_contain_no_parameters() {
        let text =
            "SELECT ':a?', 'it''s :a', \"x:a\", 3 - 2 / 1, $: -- :a ?'\n, /* ?:a */ :b /* ' :a";
        let built = Statement::new(text).bind("b", "").build().unwrap();
        assert_eq!(built.sql, text.replace(":b", "?1"));
        assert_eq!(mistake("SELECT 'open :a", &[]), None);
        assert_eq!(Statement::new("").build().unwrap().sql, "");
    }

    #[test]
    fn mistakes_are_found() {
        assert_eq!(mistake("SELECT :a, :b", &["a"]), Some(Mistake::Missing("b".to_owned())));
        assert_eq!(mistake("SELECT ':b'", &["b"]), Some(Mistake::Unused("b".to_owned())));
        assert_eq!(mistake("SELECT :a, ?2", &["a"]), Some(Mistake::Numbered));
        assert_eq!(
            mistake("SELECT 1 LIMIT\n :a OFFSET 1", &["a"]),
            Some(Mistake::BareLimit("a".to_owned()))
        );
        assert_eq!(mistake("SELECT 1 limit :a", &["a"]), Some(Mistake::BareLimit("a".to_owned())));
        assert_eq!(mistake("SELECT :limit, 1 AS no_limit", &["limit"]), None);
        let twice = |value| Statement::new("SELECT :a").bind("a", 1).bind("a", value).build().err();
        assert_eq!(twice(1), None);
        assert_eq!(twice(2), Some(Mistake::BoundTwice("a".to_owned())));
    }

    #[test]
    fn a_statement_has_at_most_the_parameters_that_d1_accepts() {
        let names: Vec<&'static str> = (0..=MAX_PARAMETERS)
            .map(|number| &*Box::leak(format!("p{number}").into_boxed_str()))
            .collect();
        let text =
            |names: &[&str]| names.iter().map(|name| format!(":{name} ")).collect::<String>();
        assert_eq!(mistake(&text(&names[1..]), &names[1..]), None);
        assert_eq!(mistake(&text(&names), &names), Some(Mistake::TooMany));
    }

    #[test]
    fn a_part_of_a_statement_has_its_own_parameters() {
        let mut of_part = Parameters::default();
        of_part.add("now", "noon");
        of_part.add("ids", Value::list(["a", "b"]));
        let part = "id IN (SELECT value FROM json_each(:ids)) AND at < :now";
        let statement = Statement::new(format!("SELECT :now WHERE {part}"))
            .bind("now", "noon")
            .bind_all(of_part);
        let built = statement.build().unwrap();
        assert_eq!(built.parameters, [Value::from("noon"), Value::from(r#"["a","b"]"#)]);
    }

    #[test]
    fn sqlite_accepts_a_built_statement() {
        let built =
            Statement::new("SELECT value || :suffix FROM json_each(:ids) WHERE value <> ':suffix' LIMIT :limit + 0")
                .bind("limit", 2_u32)
                .bind("ids", Value::list(["a", ":suffix", "b", "c"]))
                .bind("suffix", "!")
                .build()
                .unwrap();
        let values = built.parameters.into_iter().map(|value| match value {
            Value::Null => Stored::Null,
            Value::Integer(value) => Stored::Integer(value),
            Value::Real(value) => Stored::Real(value),
            Value::Text(value) => Stored::Text(value),
        });
        let connection = Connection::open_in_memory().unwrap();
        let mut prepared = connection.prepare(&built.sql).unwrap();
        let rows =
            prepared.query_map(params_from_iter(values), |row| row.get::<_, String>(0)).unwrap();
        assert_eq!(rows.map(Result::unwrap).collect::<Vec<_>>(), ["a!", "b!"]);
    }
}
