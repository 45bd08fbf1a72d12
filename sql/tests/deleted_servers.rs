//! Deleted servers and their restoration, on the tables of migrations/.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::collections::BTreeSet;

use farhand_domain::link::server_facts::UNDELETED_REVISIONS;
use farhand_sql::deleted_servers::{FORGET, KEPT, keep, rejoin, restore};
use farhand_sql::statement::{Statement, Value};
use rusqlite::types::Value as Stored;
use rusqlite::{Connection, params_from_iter};

/// The columns that an undeleted server does not get back unchanged: its name may be another one, and
/// its object writes the others.
const NOT_KEPT: [&str; 6] =
    ["name", "updated_at", "link_revision", "is_connected", "load", "identity_conflict_at"];

const NOW: &str = "2026-06-01T00:00:00.000000+00:00";
const IN_A_WEEK: &str = "2026-06-08T00:00:00.000000+00:00";

fn database() -> Connection {
    let database = Connection::open_in_memory().unwrap();
    database.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
    database.execute_batch(include_str!("../../migrations/0001_schema.sql")).unwrap();
    let rows = format!(
        "INSERT INTO users (workspace_id, id, username, email, password, date_joined)
            VALUES (1, 7, 'ann', 'ann@example.com', '', '{NOW}');
         INSERT INTO groups (workspace_id, id, name, display_name, description, folded_display_name,
            folded_description, added_at, updated_at)
            VALUES (1, 3, 'kept', '', '', '', '', '{NOW}', '{NOW}'), (1, 4, 'lost', '', '', '', '', '{NOW}', '{NOW}');
         INSERT INTO servers (id, workspace_id, name, agent_key_hash, next_key_hash, owner_id, labels, added_at,
            updated_at, is_connected, load)
            VALUES ('s', 1, 'web-1', 'hash', 'next', 7, '{{\"env\":\"prod\"}}', '{NOW}', '{NOW}', 1, 0.5);
         INSERT INTO server_groups (workspace_id, group_id, server_id) VALUES (1, 3, 's'), (1, 4, 's');"
    );
    database.execute_batch(&rows).unwrap();
    database
}

fn execute(database: &Connection, text: &str, values: &[(&'static str, Value)]) -> usize {
    let bind = |statement: Statement, (name, value): &(&'static str, Value)| {
        statement.bind(name, value.clone())
    };
    let built = values.iter().fold(Statement::new(text), bind).build().unwrap();
    let stored = built.parameters.into_iter().map(|value| match value {
        Value::Null => Stored::Null,
        Value::Integer(value) => Stored::Integer(value),
        Value::Real(value) => Stored::Real(value),
        Value::Text(value) => Stored::Text(value),
    });
    database.execute(&built.sql, params_from_iter(stored)).unwrap()
}

fn delete(database: &Connection, purge_at: Option<&str>) -> usize {
    let values = [("at", NOW.into()), ("purge_at", purge_at.into()), ("by", 7_i64.into())];
    let kept = execute(database, &keep("s.id = 's'"), &values);
    database.execute("DELETE FROM servers WHERE id = 's'", []).unwrap();
    kept
}

fn undelete(database: &Connection, name: &str, at: &str) -> usize {
    let of: [(&str, Value); 2] = [("workspace_id", 1_i64.into()), ("server_id", "s".into())];
    let mut values = of.to_vec();
    values.extend([("name", name.into()), ("at", at.into())]);
    let restored = execute(database, &restore("true"), &values);
    execute(database, &rejoin("false"), &of);
    execute(database, FORGET, &of);
    restored
}

fn text(database: &Connection, sql: &str) -> String {
    database.query_row(sql, [], |row| row.get(0)).unwrap()
}

fn columns(database: &Connection, table: &str) -> BTreeSet<String> {
    let sql = format!("SELECT name FROM pragma_table_info('{table}')");
    let mut statement = database.prepare(&sql).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

#[test]
fn every_column_of_a_server_is_kept_or_is_meant_not_to_be() {
    let database = database();
    let kept = KEPT.split(',').map(str::trim).chain(NOT_KEPT).map(str::to_owned);
    assert_eq!(columns(&database, "servers"), kept.collect(), "add the column to KEPT");
    let missing: Vec<_> = columns(&database, "servers")
        .difference(&columns(&database, "deleted_servers"))
        .cloned()
        .collect();
    assert!(missing.is_empty(), "add to the table deleted_servers: {missing:?}");
}

#[test]
fn an_undeleted_server_is_as_before_without_a_connection() {
    let database = database();
    let server = "SELECT json_array(name, agent_key_hash, next_key_hash, owner_id, json(labels), added_at) FROM servers";
    let before = text(&database, server);
    assert_eq!(delete(&database, Some(IN_A_WEEK)), 1);
    let deleted =
        "SELECT json_array(deleted_by, deleted_at, purge_at, json(groups)) FROM deleted_servers";
    assert_eq!(text(&database, deleted), format!(r#"["ann","{NOW}","{IN_A_WEEK}",[3,4]]"#));
    database.execute("DELETE FROM groups WHERE id = 4", []).unwrap();
    assert_eq!(undelete(&database, "web-1", NOW), 1);
    assert_eq!(text(&database, server), before);
    let connection =
        "SELECT json_array(is_connected, load, updated_at, link_revision) FROM servers";
    assert_eq!(text(&database, connection), format!(r#"[0,null,"{NOW}",{UNDELETED_REVISIONS}]"#));
    assert_eq!(text(&database, "SELECT json_group_array(group_id) FROM server_groups"), "[3]");
    assert_eq!(text(&database, "SELECT '' || count(*) FROM deleted_servers"), "0");
    assert_eq!(undelete(&database, "web-1", NOW), 0, "it is not deleted any more");
}

#[test]
fn a_server_is_not_restored_with_a_taken_name_or_too_late() {
    let database = database();
    delete(&database, Some(IN_A_WEEK));
    let other = format!(
        "INSERT INTO servers (id, workspace_id, name, agent_key_hash, added_at, updated_at)
            VALUES ('o', 1, 'web-1', '', '{NOW}', '{NOW}'), ('e', 2, 'web-2', '', '{NOW}', '{NOW}')"
    );
    database.execute_batch(&other).unwrap();
    assert_eq!(undelete(&database, "web-1", NOW), 0);
    assert_eq!(undelete(&database, "web-2", IN_A_WEEK), 0);
    assert_eq!(text(&database, "SELECT '' || count(*) FROM deleted_servers"), "1");
    assert_eq!(undelete(&database, "web-2", NOW), 1, "another workspace may have the name");
}

#[test]
fn without_a_grace_period_nothing_is_kept() {
    let database = database();
    assert_eq!(delete(&database, None), 0);
    assert_eq!(undelete(&database, "web-1", NOW), 0);
}

#[test]
fn an_owner_who_lost_a_rank_or_was_deleted_gets_nothing_back() {
    for change in ["UPDATE users SET is_staff = 0 WHERE id = 7", "DELETE FROM users WHERE id = 7"] {
        let database = database();
        database.execute("UPDATE users SET is_staff = 1 WHERE id = 7", []).unwrap();
        delete(&database, Some(IN_A_WEEK));
        database.execute(change, []).unwrap();
        undelete(&database, "web-1", NOW);
        let owner = text(&database, "SELECT coalesce(owner_id, 'none') FROM servers");
        assert_eq!(owner, "none", "{change}");
    }
}
