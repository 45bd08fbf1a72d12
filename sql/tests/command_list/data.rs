//! A database with the real schema, and functions that read lists from it.

use farhand_domain::command::list::CommandList;
use farhand_domain::fleet::selector::Selector;
use farhand_sql::command_list::{ListSql, sql};
use farhand_sql::selector::terms;
use farhand_sql::statement::{Built, Statement, Value};
use farhand_sql::{command_counts, quotas};
use rusqlite::types::Value as Stored;
use rusqlite::{Connection, StatementStatus, params_from_iter};

/// The current time of all lists.
pub const NOW: &str = "2026-06-01T00:00:00.000000+00:00";

/// An empty database with the schema.
pub fn database() -> Connection {
    let database = Connection::open_in_memory().unwrap();
    database.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
    database.execute_batch(include_str!("../../../migrations/0001_schema.sql")).unwrap();
    database
}

/// Adds the uncounted commands of a workspace to its counters, as the sealer does.
pub fn count(database: &Connection, workspace: i64) {
    execute(database, quotas::count_commands(), |statement| {
        statement.bind("workspace_id", workspace)
    });
}

/// Deletes a command, as the service does.
pub fn delete(database: &Connection, workspace: i64, id: &str) {
    let bind = |statement: Statement| statement.bind("workspace_id", workspace).bind("id", id);
    execute(database, command_counts::delete("c.id = :id"), bind);
}

fn execute<const N: usize>(
    database: &Connection,
    texts: [String; N],
    bind: impl Fn(Statement) -> Statement,
) {
    for text in texts {
        let built = bind(Statement::new(text)).build().unwrap();
        database.execute(&built.sql, params_from_iter(stored(built.parameters))).unwrap();
    }
}

/// Pseudo-random numbers from a seed, the same in each run (xorshift).
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }

    pub fn once_in(&mut self, times: usize) -> bool {
        self.roll(times) == 0
    }

    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.roll(all.len())]
    }
}

/// The caller who reads a list.
#[derive(Clone, Debug)]
pub struct Me {
    pub workspace: i64,
    pub user: i64,
    pub is_staff: bool,
    pub is_superuser: bool,
    /// The servers on the API token's access control list.
    pub acl_servers: Option<Vec<String>>,
    /// The selector of the API token's access control list.
    pub selector: Option<Selector>,
}

impl Me {
    pub fn superuser(workspace: i64) -> Self {
        Self { is_superuser: true, ..Self::ordinary(workspace, 1) }
    }

    pub fn ordinary(workspace: i64, user: i64) -> Self {
        Self {
            workspace,
            user,
            is_staff: false,
            is_superuser: false,
            acl_servers: None,
            selector: None,
        }
    }

    pub fn has_full_access(&self) -> bool {
        (self.is_staff || self.is_superuser)
            && self.acl_servers.is_none()
            && self.selector.is_none()
    }

    /// The common table `me`.
    fn table(&self) -> String {
        let Self { workspace, user, is_staff, is_superuser, acl_servers, selector } = self;
        let selector = selector
            .as_ref()
            .map_or("NULL".to_owned(), |selector| format!("'{}'", terms(selector)));
        let acl_servers = acl_servers
            .as_ref()
            .map_or("NULL".to_owned(), |servers| format!("'{}'", serde_json::json!(servers)));
        format!(
            "me AS MATERIALIZED (SELECT {workspace} AS workspace_id, {user} AS user_id, {is_staff} AS is_staff,
                {is_superuser} AS is_superuser, {acl_servers} AS acl_servers, {selector} AS acl_selector, NULL AS acl, 0 AS reads_narrowly)"
        )
    }
}

/// Parses a query as the Worker does.
pub fn list_of(query: &[(&str, String)]) -> CommandList {
    let query: Vec<_> =
        query.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    CommandList::from_query(&query).unwrap()
}

/// The two statements of a list.
#[derive(Clone, Copy, Debug)]
pub enum Variant {
    ForAll,
    FullAccess,
}

/// The statement of a page. Without a caller, the table `me` is empty.
pub fn statement(
    list: &CommandList,
    me: Option<&Me>,
    variant: Variant,
    limit: u64,
    offset: u64,
) -> Built {
    let ListSql { tables, items, full_access, parameters } =
        sql(list, offset, "json_object('id', c.id, 'now', :now)");
    let (tables, items) = match variant {
        Variant::ForAll => (tables, items),
        Variant::FullAccess => full_access.unwrap(),
    };
    let table =
        me.map_or_else(|| Me::superuser(1).table().replace(')', " WHERE false)"), Me::table);
    let text = format!(
        "WITH {table}{tables} SELECT (SELECT total FROM total) AS total, NULL AS body UNION ALL SELECT NULL, body FROM ({items})"
    );
    let statement = Statement::new(text).bind_all(parameters);
    statement.bind("now", NOW).bind("page_size", limit).bind("page_offset", offset).build().unwrap()
}

/// The result of a list's statement.
#[derive(PartialEq, Debug)]
pub struct Page {
    pub total: Option<i64>,
    pub ids: Vec<String>,
    /// The steps of SQLite's virtual machine.
    pub steps: i32,
}

pub fn stored(values: Vec<Value>) -> Vec<Stored> {
    let stored = values.into_iter().map(|value| match value {
        Value::Null => Stored::Null,
        Value::Integer(value) => Stored::Integer(value),
        Value::Real(value) => Stored::Real(value),
        Value::Text(value) => Stored::Text(value),
    });
    stored.collect()
}

pub fn run(database: &Connection, built: Built) -> Page {
    let mut prepared = database
        .prepare_cached(&built.sql)
        .unwrap_or_else(|error| panic!("{error}: {}", built.sql));
    let mut page = Page { total: None, ids: vec![], steps: 0 };
    let mut rows = prepared.query(params_from_iter(stored(built.parameters))).unwrap();
    while let Some(row) = rows.next().unwrap() {
        page.total = page.total.or(row.get(0).unwrap());
        if let Some(body) = row.get::<_, Option<String>>(1).unwrap() {
            let item: serde_json::Value = serde_json::from_str(&body).unwrap();
            page.ids.push(item["id"].as_str().unwrap().to_owned());
        }
    }
    drop(rows);
    page.steps = prepared.get_status(StatementStatus::VmStep);
    prepared.reset_status(StatementStatus::VmStep);
    page
}
