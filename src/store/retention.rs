//! The end of commands that are over for long (contract 7.13; docs/contributing/retention.md): found
//! by their ids, and removed with what is noted of servers and requesters for their sake alone.
//!
//! A command ends after it was created, and its id begins with the time of its creation. So what
//! ended long ago is among the first ids. Commands that were created long ago and have not ended,
//! or ended later, are read and left.

use std::collections::BTreeSet;

use farhand_domain::error::Error;
use farhand_domain::id;
use farhand_domain::time::Timestamp;
use farhand_sql::command_counts;
use farhand_sql::statement::{Statement, Value};
use serde::Deserialize;
use worker::Env;

use super::db::{self, params};

/// How many workspaces are looked at in one go.
const WORKSPACES: u64 = 500;

/// A command that is to go.
#[derive(Clone, Debug, Deserialize)]
pub struct Due {
    /// Its id.
    pub id: String,
    /// Its server.
    pub server_id: String,
    /// The user who asked for it.
    pub requested_by: Option<i64>,
}

/// What a look through some workspaces found.
#[derive(Debug, Deserialize)]
pub struct Looked {
    /// The first of them that has commands that are to go.
    pub found: Option<i64>,
    /// The last of them; `None` where there was none.
    pub last: Option<i64>,
}

/// Looks through the next workspaces after one for commands that were over at a moment.
pub async fn next_workspace(env: &Env, after: i64, until: Timestamp) -> Result<Looked, Error> {
    let sql = format!(
        "WITH next AS (SELECT id FROM workspaces WHERE id > :after AND deleted_at IS NULL ORDER BY id LIMIT {WORKSPACES})
         SELECT (SELECT n.id FROM next n WHERE EXISTS (
                SELECT 1 FROM commands c INDEXED BY commands_by_id
                WHERE c.workspace_id = n.id AND c.id < :created_before AND c.handled_at <= :until)
            ORDER BY n.id LIMIT 1) AS found, (SELECT max(id) FROM next) AS last"
    );
    let result = db::run(
        env,
        Statement::new(sql)
            .bind_all(params! { after, until, created_before: created_before(until) }),
    )
    .await?;
    db::first(&result)?.ok_or_else(|| Error::internal("D1 gave no row"))
}

/// The lowest id that a command can have that was created at a moment.
fn created_before(until: Timestamp) -> String {
    id::new(until, [0; 10]).to_string()
}

/// The first commands of a workspace after an id that were over at a moment, so many.
pub async fn find(
    env: &Env,
    workspace_id: i64,
    after: &str,
    until: Timestamp,
    most: u64,
) -> Result<Vec<Due>, Error> {
    let sql = "SELECT c.id, c.server_id, c.requested_by FROM commands c INDEXED BY commands_by_id
        WHERE c.workspace_id = :workspace_id AND c.id > :after AND c.id < :created_before AND c.handled_at <= :until
        ORDER BY c.id LIMIT :most + 0";
    let statement = Statement::new(sql).bind_all(params! {
        workspace_id, after, until, created_before: created_before(until), most,
    });
    db::rows(&db::run(env, statement).await?)
}

/// Removes commands of which the objects have nothing any more, all of them or none, from the
/// counters of lists too; the triggers take them out of the search. What is noted for the sake of
/// commands alone goes with the last of these: the counters that are 0; the names of a server
/// without commands, who had some on it, and that it is gone, as its object has wiped itself.
pub async fn delete(
    env: &Env,
    workspace_id: i64,
    commands: &[&Due],
    until: Timestamp,
) -> Result<(), Error> {
    let list = |of: &dyn Fn(&Due) -> Option<String>| {
        Value::list(commands.iter().filter_map(|due| of(due)).collect::<BTreeSet<_>>())
    };
    let ids = list(&|due| Some(due.id.clone()));
    let servers = list(&|due| Some(due.server_id.clone()));
    let requesters = list(&|due| due.requested_by.map(|id| id.to_string()));
    let delete = |rows: String, list: &Value| {
        Statement::new(format!("DELETE FROM {rows}"))
            .bind_all(params! { workspace_id, list: list.clone() })
    };
    let counters = |kind: &str, keys: &Value| {
        let rows = format!(
            "command_counts WHERE workspace_id = :workspace_id AND kind = '{kind}'
             AND key IN (SELECT value FROM json_each(:list)) AND total = 0"
        );
        delete(rows, keys)
    };
    let of_server_without_commands = |rows: &str, server: &str| {
        let rows = format!(
            "{rows} WHERE workspace_id = :workspace_id
             AND {server} IN (SELECT s.value FROM json_each(:list) s WHERE NOT EXISTS (
                SELECT 1 FROM commands c INDEXED BY commands_by_server
                WHERE c.workspace_id = :workspace_id AND c.server_id = s.value))"
        );
        delete(rows, &servers)
    };
    let which = "c.id IN (SELECT value FROM json_each(:ids)) AND c.handled_at <= :until";
    let mut statements = command_counts::delete(which)
        .map(|sql| Statement::new(sql).bind_all(params! { workspace_id, ids: ids.clone(), until }))
        .to_vec();
    statements.extend([
        counters("server", &servers),
        counters("requester", &requesters),
        of_server_without_commands(
            "command_servers INDEXED BY command_servers_by_server",
            "server_id",
        ),
        of_server_without_commands(
            "command_requesters INDEXED BY command_requesters_by_server",
            "server_id",
        ),
        of_server_without_commands("gone_servers", "id"),
    ]);
    db::execute_all(env, statements).await
}
