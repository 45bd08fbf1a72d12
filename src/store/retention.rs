//! The end of commands that are over for long (contract 6, Delete; docs/scaling.md): found by the index of when they were
//! handled, and removed with what is noted of servers and requesters for their sake alone.

use std::collections::BTreeSet;

use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use farhand_sql::statement::Statement;
use serde::{Deserialize, Serialize};
use serde_json::json;
use worker::Env;

use super::db::{self, params};

/// How many workspaces are looked at in one go.
const WORKSPACES: u64 = 500;
/// How many commands of a requester, or of a server, are looked at to find whether one of them is of both.
const LOOKED_AT: u64 = 50;

/// A place among the commands of a workspace, in the order in which they ended.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct Place {
    /// When the command ended; empty: before all.
    pub handled_at: String,
    /// Its id.
    pub id: String,
}

/// A command that is to go.
#[derive(Clone, Debug, Deserialize)]
pub struct Due {
    /// Its id.
    pub id: String,
    /// Its server.
    pub server_id: String,
    /// The user who asked for it.
    pub requested_by: Option<i64>,
    /// Its shell.
    pub shell: String,
    /// When it ended.
    pub handled_at: String,
}

impl Due {
    /// Its place.
    pub fn place(&self) -> Place {
        Place { handled_at: self.handled_at.clone(), id: self.id.clone() }
    }
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
                SELECT 1 FROM commands c INDEXED BY commands_by_handled WHERE c.workspace_id = n.id AND c.handled_at <= :until)
            ORDER BY n.id LIMIT 1) AS found, (SELECT max(id) FROM next) AS last"
    );
    let result = db::run(env, Statement::new(sql).bind_all(params! { after, until })).await?;
    db::first(&result)?.ok_or_else(|| Error::internal("D1 gave no row"))
}

/// The first commands of a workspace after a place that were over at a moment, so many.
pub async fn find(env: &Env, workspace_id: i64, after: &Place, until: Timestamp, most: u64) -> Result<Vec<Due>, Error> {
    let sql = "SELECT c.id, c.server_id, c.requested_by, c.shell, c.handled_at
        FROM commands c INDEXED BY commands_by_handled
        WHERE c.workspace_id = :workspace_id AND c.handled_at <= :until AND (c.handled_at, c.id) > (:after_handled_at, :after_id)
        ORDER BY c.handled_at, c.id LIMIT :most + 0";
    let statement = Statement::new(sql).bind_all(params! {
        workspace_id, until, after_handled_at: &after.handled_at, after_id: &after.id, most,
    });
    db::rows(&db::run(env, statement).await?)
}

/// Removes commands of which the objects have nothing any more, all of them or none; the triggers take them out of lists'
/// counters and of the search. What is noted for the sake of commands alone goes with the last of these:
///
/// - the counters that are 0;
/// - that a server is gone: its object has wiped itself;
/// - that a requester had commands on a server, where that is seen: the server or the requester has no command left, or so
///   few that all of them can be looked at. Else the row stays until the server has none, and nobody finds anything by it.
///
/// A command that is made at the same time is there before or after all of this, and is counted anew.
pub async fn delete(env: &Env, workspace_id: i64, commands: &[&Due], until: Timestamp) -> Result<(), Error> {
    let ids: Vec<_> = commands.iter().map(|due| due.id.as_str()).collect();
    let servers: BTreeSet<_> = commands.iter().map(|due| due.server_id.as_str()).collect();
    let pairs: BTreeSet<_> =
        commands.iter().filter_map(|due| Some((due.requested_by?, due.server_id.as_str()))).collect();
    let shells: BTreeSet<_> = commands.iter().map(|due| due.shell.as_str()).collect();
    let requesters: BTreeSet<_> =
        commands.iter().map(|due| due.requested_by.map(|id| id.to_string()).unwrap_or_default()).collect();
    let list = |sql: String, list: serde_json::Value| db::Statement::new(sql).bind(workspace_id).bind(list.to_string());
    let has_none = "NOT EXISTS (SELECT 1 FROM commands c INDEXED BY commands_by_server
        WHERE c.workspace_id = ?1 AND c.server_id = s.value)";
    // Which of the two has few is told by the counters.
    let few_of_requester = format!(
        "SELECT c.server_id = p.value ->> 1 AS is_it FROM commands c INDEXED BY commands_by_requester
         WHERE c.workspace_id = ?1 AND c.requested_by = p.value ->> 0 LIMIT {LOOKED_AT}"
    );
    let few_of_server = format!(
        "SELECT c.requested_by IS p.value ->> 0 AS is_it FROM commands c INDEXED BY commands_by_server
         WHERE c.workspace_id = ?1 AND c.server_id = p.value ->> 1 LIMIT {LOOKED_AT}"
    );
    let total_of_requester = "coalesce((SELECT n.total FROM command_counts n WHERE n.workspace_id = ?1
        AND n.kind = 'requester' AND n.key = p.value ->> 0 || ''), 0)";
    let total_of_server = "coalesce((SELECT sum(n.total) FROM command_servers n WHERE n.workspace_id = ?1
        AND n.server_id = p.value ->> 1), 0)";
    let counts = |kind: &str| {
        format!(
            "DELETE FROM command_counts WHERE workspace_id = ?1 AND kind = '{kind}'
             AND key IN (SELECT value FROM json_each(?2)) AND total = 0"
        )
    };
    let statements = vec![
        list(
            "DELETE FROM commands INDEXED BY commands_by_id WHERE workspace_id = ?1
             AND id IN (SELECT value FROM json_each(?2)) AND handled_at <= ?3"
                .to_owned(),
            json!(ids),
        )
        .bind(until),
        // By counters that are there still. Of a pair the index wants each side on its own.
        list(
            format!(
                "WITH over AS MATERIALIZED (
                    SELECT p.value ->> 0 AS user_id, p.value ->> 1 AS server_id FROM json_each(?2) p
                    WHERE CASE WHEN {total_of_requester} <= {LOOKED_AT}
                            THEN NOT EXISTS (SELECT 1 FROM ({few_of_requester}) WHERE is_it)
                        WHEN {total_of_server} <= {LOOKED_AT}
                            THEN NOT EXISTS (SELECT 1 FROM ({few_of_server}) WHERE is_it)
                        ELSE 0 END)
                 DELETE FROM command_requesters WHERE workspace_id = ?1
                 AND user_id IN (SELECT user_id FROM over) AND server_id IN (SELECT server_id FROM over)
                 AND (+user_id, +server_id) IN (SELECT user_id, server_id FROM over)"
            ),
            json!(pairs),
        ),
        list(counts("shell"), json!(shells)),
        list(counts("requester"), json!(requesters)),
        list(
            "DELETE FROM command_servers WHERE workspace_id = ?1 AND server_id IN (SELECT value FROM json_each(?2))
             AND total = 0"
                .to_owned(),
            json!(servers),
        ),
        list(
            format!(
                "DELETE FROM command_requesters INDEXED BY command_requesters_by_server WHERE workspace_id = ?1
                 AND server_id IN (SELECT s.value FROM json_each(?2) s WHERE {has_none})"
            ),
            json!(servers),
        ),
        list(
            format!(
                "DELETE FROM gone_servers WHERE workspace_id = ?1
                 AND id IN (SELECT s.value FROM json_each(?2) s WHERE {has_none})"
            ),
            json!(servers),
        ),
    ];
    db::execute_all(env, statements).await
}
