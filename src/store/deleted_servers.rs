//! The D1 table of deleted servers, which can be undeleted until their purge (contract 6.6). The
//! objects of the servers write it.

use farhand_domain::error::Error;
use farhand_domain::fleet::server::ServerList;
use farhand_domain::time::Timestamp;
use farhand_sql::statement::Statement;
use serde::Deserialize;
use uuid::Uuid;

use super::database::Database;
use super::db::{self, params};
use super::list::{Filters, List};
use super::scope::Query;
use super::servers::{self, IS_ACCESSIBLE, OBJECT};

/// The data that the checks of an undeletion need.
#[derive(Debug, Deserialize)]
pub struct DeletedServer {
    pub workspace_id: i64,
    /// The name that the server had.
    pub name: String,
    /// Whether a server has the name that the deleted server would get.
    pub is_name_taken: bool,
}

/// Reads a deleted server as [`DeletedServer`]. `new_name`: its name from now on; `None`: the name
/// that it had.
pub fn for_undeletion(id: Uuid, new_name: Option<&str>) -> Query {
    let sql = format!(
        "(SELECT json_object('workspace_id', s.workspace_id, 'name', s.name, 'is_name_taken',
            json(iif(EXISTS (SELECT 1 FROM servers o WHERE o.workspace_id = s.workspace_id
                AND o.name = coalesce(:new_name, s.name)), 'true', 'false')))
          FROM deleted_servers s WHERE s.id = :id AND s.purge_at > :now AND {IS_ACCESSIBLE})"
    );
    Query::new(sql, params! { id, new_name })
}

/// Lists the deleted servers that the caller can access.
pub fn list(list: &ServerList) -> List {
    let in_group = "EXISTS (SELECT 1 FROM json_each(s.groups) g WHERE g.value = :group)";
    let Filters { sql: filters, parameters } = servers::filters(list, in_group);
    let object = format!(
        "json_set({OBJECT}, '$.groups', json(s.groups), '$.deleted_at', s.deleted_at,
            '$.deleted_by', s.deleted_by, '$.purge_at', s.purge_at)"
    );
    let branch = format!("deleted_servers s WHERE {IS_ACCESSIBLE} AND s.purge_at > :now{filters}");
    let order = servers::order(list);
    List::new("", ("deleted_servers s", &object), &[branch], &order, parameters)
}

/// Deletes the rows of servers that cannot be undeleted any more.
pub async fn purge(database: &Database, now: Timestamp) -> Result<(), Error> {
    let sql = "DELETE FROM deleted_servers WHERE purge_at <= :now";
    db::run(database, Statement::new(sql).bind("now", now)).await?;
    Ok(())
}
