//! Lists: one statement reads a page of items, and how many there are.

use farhand_domain::error::Error;
use farhand_domain::page::Page;
use farhand_sql::statement::{Parameters, Statement, Value};
use serde::Deserialize;

use super::db::{self, Outcome};

/// How a page of a list is read.
#[derive(Clone, Debug)]
pub struct List {
    /// The statement for all callers.
    pub select: Select,
    /// A cheaper statement for callers with full access. For others its `total` is null.
    pub full_access: Option<Select>,
    /// The statement for an API token that reads only what its access control list allows.
    pub narrow: Option<Select>,
}

/// The SQL of a page. Its parameters are its own and those of the page: `:page_size` and
/// `:page_offset`.
#[derive(Clone, Debug)]
pub struct Select {
    /// Common tables that follow `me`, each after a comma. One is `total`, with the number of all
    /// items.
    pub tables: String,
    /// The statement for the page's items: a row for each, as JSON text in the column `body`.
    pub items: String,
    /// The largest page whose items are read as one text, which D1 limits to 2 MB. Larger pages are
    /// read as a row for each item.
    pub max_in_one_text: u64,
    /// Its own parameters.
    pub parameters: Parameters,
}

impl Select {
    /// The text of the statement for a page, after the table `me`. Its first row has `total` and
    /// the given `columns`. The items are in the column `body`: of the same row, or if the page is
    /// large of one row each.
    pub fn text(&self, columns: &[&str], page: Page) -> String {
        let Self { tables, items, .. } = self;
        let names: String = columns.iter().map(|column| format!(", {column}")).collect();
        if page.size <= self.max_in_one_text {
            return format!(
                "{tables} SELECT (SELECT total FROM total) AS total,
                 (SELECT group_concat(body, ',') FROM ({items})) AS body{names}"
            );
        }
        let nulls = ", NULL".repeat(columns.len());
        format!(
            "{tables} SELECT (SELECT total FROM total) AS total, NULL AS body{names}
             UNION ALL SELECT NULL, body{nulls} FROM ({items})"
        )
    }

    /// Adds its own parameters and those of the page.
    pub fn bind(&self, statement: Statement, page: Page) -> Statement {
        bind_page(statement.bind_all(self.parameters.clone()), page)
    }
}

/// Adds the parameters of a page.
pub fn bind_page(statement: Statement, page: Page) -> Statement {
    statement.bind("page_size", page.size).bind("page_offset", page.offset())
}

/// The number of all items, from the first row of [`Select::text`].
pub fn total(outcome: &Outcome) -> Result<Option<u64>, Error> {
    #[derive(Deserialize)]
    struct Row {
        total: Option<u64>,
    }
    Ok(db::first::<Row>(outcome)?.and_then(|row| row.total))
}

impl List {
    /// A list of rows. `table` is a table with its alias, and `object` is SQL for one of its rows
    /// as JSON. `ways` are the text after FROM of statements that read these rows; if there are
    /// several, all but one read nothing for a caller. `tables` are further common tables.
    pub fn new(
        tables: &str,
        (table, object): (&str, &str),
        ways: &[String],
        order: &str,
        parameters: Parameters,
    ) -> Self {
        let (_, name) = table.split_once(' ').unwrap_or((table, table));
        let count = ways
            .iter()
            .map(|way| format!("(SELECT count(*) FROM {way})"))
            .collect::<Vec<_>>()
            .join(" + ");
        let place = |way: &String| {
            format!(
                "SELECT place FROM (SELECT {name}.rowid AS place FROM {way} ORDER BY {order}
                    LIMIT :page_size + 0 OFFSET :page_offset)"
            )
        };
        let places = ways.iter().map(place).collect::<Vec<_>>().join(" UNION ALL ");
        // First the rowids of the page, in the order of an index, then their objects. A page past
        // the end is not read: OFFSET would walk over everything before it.
        let items = format!(
            "SELECT {object} AS body
             FROM me CROSS JOIN json_each(iif(:page_offset = 0 OR (SELECT total FROM total) > :page_offset,
                (SELECT json_group_array(place) FROM ({places})), '[]')) page
             CROSS JOIN {table} ON {name}.rowid = page.value
             ORDER BY page.key"
        );
        let tables = format!("{tables}, total AS (SELECT {count} AS total FROM me)");
        let select = Select { tables, items, max_in_one_text: 0, parameters };
        Self { select, full_access: None, narrow: None }
    }
}

/// The filters that a client sent, as conditions that each follow an AND. A filter without a value
/// adds nothing, so that the others can be read by an index.
#[derive(Default, Debug)]
pub struct Filters {
    /// The conditions.
    pub sql: String,
    /// Their parameters.
    pub parameters: Parameters,
}

impl Filters {
    /// Adds a condition with a parameter of that name, if there is a value.
    #[must_use]
    pub fn with(
        mut self,
        condition: &str,
        name: &'static str,
        value: Option<impl Into<Value>>,
    ) -> Self {
        if let Some(value) = value {
            self.sql += &format!(" AND {condition}");
            self.parameters.add(name, value);
        }
        self
    }

    /// Adds the condition that a text has all words, as `:words`.
    #[must_use]
    pub fn with_words(self, text: &str, words: &[String]) -> Self {
        let condition = format!(
            "NOT EXISTS (SELECT 1 FROM json_each(:words) w WHERE instr({text}, w.value) = 0)"
        );
        self.with(&condition, "words", (!words.is_empty()).then(|| Value::list(words)))
    }
}
