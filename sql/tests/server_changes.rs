//! The limit of rotated keys and deleted servers, counted in the audit log.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use farhand_sql::server_changes::{Changer, limiting_change};
use farhand_sql::statement::{Statement, Value};
use rusqlite::types::Value as Stored;
use rusqlite::{Connection, StatementStatus, params_from_iter};

/// The limit of a user, and of a superuser.
const LIMITS: (i64, i64) = (20, 200);

fn database() -> Connection {
    let database = Connection::open_in_memory().unwrap();
    database.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
    database.execute_batch(include_str!("../../migrations/0001_schema.sql")).unwrap();
    database
}

/// The time of a minute of the day.
fn at(minute: i64) -> String {
    format!("2026-06-01T{:02}:{:02}:00.000000+00:00", minute / 60, minute % 60)
}

fn add(
    database: &Connection,
    workspace: i64,
    (name, action, outcome): (&str, &str, &str),
    minute: i64,
) {
    let sql = "INSERT INTO audit_events (seq, id, workspace_id, occurred_at, actor_type, actor_name, action,
            outcome, details)
        SELECT (?1 << 40) + 1 + (SELECT count(*) FROM audit_events), '', ?1, ?2, 'user', ?3, ?4, ?5, '{}'";
    database.execute(sql, rusqlite::params![workspace, at(minute), name, action, outcome]).unwrap();
}

/// The time that limits a user at a minute, and the number of steps that SQLite needed.
fn limit(
    database: &Connection,
    name: &str,
    is_superuser: bool,
    minute: i64,
) -> (Option<String>, i32) {
    let changer = Changer { workspace: "1", username: ":name", is_superuser: ":is_superuser" };
    let built = Statement::new(format!("SELECT {}", limiting_change(changer)))
        .bind("name", name)
        .bind("is_superuser", is_superuser)
        .bind("since", at(minute - 60))
        .bind("user_limit", LIMITS.0)
        .bind("superuser_limit", LIMITS.1)
        .build()
        .unwrap();
    let stored = built.parameters.into_iter().map(|value| match value {
        Value::Null => Stored::Null,
        Value::Integer(value) => Stored::Integer(value),
        Value::Real(value) => Stored::Real(value),
        Value::Text(value) => Stored::Text(value),
    });
    let mut statement = database.prepare(&built.sql).unwrap();
    let found = statement.query_row(params_from_iter(stored), |row| row.get(0)).unwrap();
    (found, statement.get_status(StatementStatus::VmStep))
}

#[test]
fn the_twentieth_change_of_an_hour_is_the_last_one() {
    let database = database();
    let limit = |minute| limit(&database, "ann", false, minute).0;
    for n in 0..LIMITS.0 {
        assert_eq!(limit(700), None, "{n} changes");
        let action = if n % 2 == 0 { "server.delete" } else { "server.rotate_key" };
        add(&database, 1, ("ann", action, "success"), 650 + n);
    }
    // The first one must be an hour ago.
    assert_eq!(limit(700), Some(at(650)));
    assert_eq!((limit(709), limit(710)), (Some(at(650)), None));
    add(&database, 1, ("ann", "server.delete", "success"), 710);
    assert_eq!(limit(710), Some(at(651)));
}

#[test]
fn only_a_users_own_successful_changes_count() {
    let database = database();
    for _ in 0..LIMITS.0 {
        add(&database, 1, ("bob", "server.delete", "success"), 700);
        add(&database, 1, ("ann", "server.delete", "denied"), 700);
        add(&database, 1, ("ann", "server.update", "success"), 700);
        add(&database, 2, ("ann", "server.delete", "success"), 700);
    }
    assert_eq!(limit(&database, "ann", false, 700).0, None);
    assert_eq!(limit(&database, "bob", false, 700).0, Some(at(700)));
}

#[test]
fn superusers_have_a_limit_of_their_own() {
    let database = database();
    for _ in 0..LIMITS.1 - 1 {
        add(&database, 1, ("boss", "server.rotate_key", "success"), 700);
    }
    assert_eq!(limit(&database, "boss", true, 700).0, None);
    assert_eq!(limit(&database, "boss", false, 700).0, Some(at(700)), "no superuser any more");
    add(&database, 1, ("boss", "server.delete", "success"), 701);
    assert_eq!(limit(&database, "boss", true, 701).0, Some(at(700)));
}

#[test]
fn the_cost_does_not_grow_with_the_audit_log() {
    let database = database();
    for _ in 0..100 {
        add(&database, 1, ("ann", "server.delete", "success"), 100);
    }
    let (_, few) = limit(&database, "ann", false, 700);
    for _ in 0..5_000 {
        add(&database, 1, ("ann", "server.delete", "success"), 100);
    }
    assert_eq!(limit(&database, "ann", false, 700).1, few);
}
