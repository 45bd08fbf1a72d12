//! Lists. One statement reads a page of items and the number of all items.

use farhand_domain::error::Error;
use farhand_domain::http::page::Page;
use farhand_sql::statement::{Parameters, Statement, Value};
use serde::Deserialize;

use super::db::{self, StatementResult};

/// The statements that read a page of a list.
#[derive(Clone, Debug)]
pub struct List {
    /// The statement for all callers.
    pub select: Select,
    /// A cheaper statement for callers with full access. For other callers its `total` is null, and
    /// they need `select`.
    pub full_access: Option<Select>,
    /// The statement for an API token that can read only what its access control list allows.
    pub narrow: Option<Select>,
}

/// The SQL of a page. It uses `parameters`, and the page's parameters `:page_size` and
/// `:page_offset`.
#[derive(Clone, Debug)]
pub struct Select {
    /// Common table expressions that follow `me`, each preceded by a comma. One of them is `total`,
    /// with the number of all items.
    pub tables: String,
    /// The query for the page's items: one row per item, as JSON text in the column `body`.
    pub items: String,
    /// Pages up to this size are read as one text, which D1 limits to 2 MB. Larger pages are read
    /// as one row per item.
    pub max_in_one_text: u64,
    pub parameters: Parameters,
}

impl Select {
    /// The text of the statement for a page, after the common table `me`. The first row has `total`
    /// and the given `columns`. The items are in the column `body` of that row. On a large page,
    /// each item has a row of its own instead.
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

    /// Binds the parameters of the list and of the page.
    pub fn bind(&self, statement: Statement, page: Page) -> Statement {
        bind_page(statement.bind_all(self.parameters.clone()), page)
    }
}

/// Binds the parameters of a page.
pub fn bind_page(statement: Statement, page: Page) -> Statement {
    statement.bind("page_size", page.size).bind("page_offset", page.offset())
}

/// The number of all items, from the first row of [`Select::text`].
pub fn total(outcome: &StatementResult) -> Result<Option<u64>, Error> {
    #[derive(Deserialize)]
    struct TotalRow {
        total: Option<u64>,
    }
    Ok(db::first::<TotalRow>(outcome)?.and_then(|row| row.total))
}

impl List {
    /// A list of rows of one table.
    ///
    /// - `tables`: further common table expressions, each preceded by a comma.
    /// - `table`: the table with its alias. `object`: SQL for a row as JSON.
    /// - `branches`: the texts after FROM of queries that read the rows. For each caller, at most
    ///   one branch may return rows.
    /// - `order`: the text after ORDER BY.
    pub fn new(
        tables: &str,
        (table, object): (&str, &str),
        branches: &[String],
        order: &str,
        parameters: Parameters,
    ) -> Self {
        let (_, name) = table.split_once(' ').unwrap_or((table, table));
        let count = branches
            .iter()
            .map(|branch| format!("(SELECT count(*) FROM {branch})"))
            .collect::<Vec<_>>()
            .join(" + ");
        let row_id = |branch: &String| {
            format!(
                "SELECT row_id FROM (SELECT {name}.rowid AS row_id FROM {branch} ORDER BY {order}
                    LIMIT :page_size + 0 OFFSET :page_offset)"
            )
        };
        let row_ids = branches.iter().map(row_id).collect::<Vec<_>>().join(" UNION ALL ");
        // Select the page's rowids in the order of an index first, and build objects only for these
        // rows. A page past the end must not read rows: OFFSET would read all rows before it.
        let items = format!(
            "SELECT {object} AS body
             FROM me CROSS JOIN json_each(iif(:page_offset = 0 OR (SELECT total FROM total) > :page_offset,
                (SELECT json_group_array(row_id) FROM ({row_ids})), '[]')) page
             CROSS JOIN {table} ON {name}.rowid = page.value
             ORDER BY page.key"
        );
        let tables = format!("{tables}, total AS (SELECT {count} AS total FROM me)");
        let select = Select { tables, items, max_in_one_text: 0, parameters };
        Self { select, full_access: None, narrow: None }
    }
}

/// Optional filters of a list. Only filters that the client sent are added to the SQL, so that
/// SQLite can pick an index for them.
#[derive(Default, Debug)]
pub struct Filters {
    /// The conditions, each preceded by AND.
    pub sql: String,
    pub parameters: Parameters,
}

impl Filters {
    /// Adds a condition on the parameter `name`, if there is a value.
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

    /// Adds the condition that a text contains all `words`, if there are any. `text` is SQL.
    #[must_use]
    pub fn with_words(self, text: &str, words: &[String]) -> Self {
        let condition = format!(
            "NOT EXISTS (SELECT 1 FROM json_each(:words) w WHERE instr({text}, w.value) = 0)"
        );
        self.with(&condition, "words", (!words.is_empty()).then(|| Value::list(words)))
    }
}
