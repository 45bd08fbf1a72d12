//! The quotas of bytes, on the real schema (contract 11.4).
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use farhand_domain::command::output::MAX_KEPT;
use farhand_domain::limits::quota::{COUNTED_ACTIONS, STAFF_OUTPUT};
use farhand_sql::quotas::{
    GUARD, add_bytes, bytes_left, count_commands, never_fits, output_limit, require_room,
    retry_after, usage,
};
use farhand_sql::statement::{Statement, Value};
use rusqlite::types::{FromSql, Value as Stored};
use rusqlite::{Connection, params_from_iter};

/// The parts of an hour, for times in tests.
const HOUR: i64 = 3_600;
const WORKSPACE: i64 = 1;
const ALICE: i64 = 7;
const BOB: i64 = 8;

fn database() -> Connection {
    let database = Connection::open_in_memory().unwrap();
    database.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
    database.execute_batch(include_str!("../../migrations/0001_schema.sql")).unwrap();
    database
}

/// The time some seconds ago, as the service writes it.
fn ago(database: &Connection, seconds: i64) -> String {
    let sql = "SELECT strftime('%Y-%m-%dT%H:%M:%S.000000+00:00', 'now', '-' || ?1 || ' seconds')";
    database.query_row(sql, [seconds], |row| row.get(0)).unwrap()
}

fn now(database: &Connection) -> String {
    ago(database, 0)
}

/// The parameters as D1 passes them: numbers are doubles.
fn as_d1(values: Vec<Value>) -> Vec<Stored> {
    let values = values.into_iter().map(|value| match value {
        Value::Null => Stored::Null,
        Value::Integer(value) => Stored::Real(value as f64),
        Value::Real(value) => Stored::Real(value),
        Value::Text(value) => Stored::Text(value),
    });
    values.collect()
}

fn value<T: FromSql>(database: &Connection, statement: Statement) -> T {
    let built = statement.build().unwrap();
    let row =
        database.query_row(&built.sql, params_from_iter(as_d1(built.parameters)), |row| row.get(0));
    row.unwrap_or_else(|error| panic!("{error}: {}", built.sql))
}

fn execute(database: &Connection, statement: Statement) -> rusqlite::Result<usize> {
    let built = statement.build().unwrap();
    database.execute(&built.sql, params_from_iter(as_d1(built.parameters)))
}

/// A command of a user, which was created some seconds ago.
fn add_command(database: &Connection, id: i64, user: i64, stored: i64, seconds: i64) {
    let sql = "INSERT INTO commands (seq, workspace_id, id, server_id, server_name, requested_by, shell, line, username,
            groupname, timeout, added_at, scheduled_at, expires_at, state, status_message, stored_bytes)
         VALUES ((1 << 40) + ?1, 1, ?1, 's', '', ?2, 'system', 'id', '', '', 60, ?4, ?4, ?4, 'sent', '', ?3)";
    let at = ago(database, seconds);
    database.execute(sql, rusqlite::params![id, user, stored, at]).unwrap();
}

/// The end of a command, some seconds ago.
fn end_command(database: &Connection, id: i64, output: i64, skipped: i64, seconds: i64) {
    let sql =
        "UPDATE commands SET handled_at = ?2, output_bytes = ?3, output_skipped = ?4 WHERE id = ?1";
    let at = ago(database, seconds);
    database.execute(sql, rusqlite::params![id.to_string(), at, output, skipped]).unwrap();
}

/// Adds the uncounted commands to the counters, as the sealer does.
fn count(database: &Connection) {
    for sql in count_commands() {
        execute(database, Statement::new(sql).bind("workspace_id", WORKSPACE)).unwrap();
    }
}

/// `stored`, `output`, and the same of a user.
fn used(database: &Connection, user: i64) -> [i64; 4] {
    let usage = usage(":workspace_id", ":user", ":now");
    let sql = format!(
        "SELECT json_array(u.stored, u.output, u.user_stored, u.user_output) FROM {usage} u"
    );
    let statement = Statement::new(sql)
        .bind("workspace_id", WORKSPACE)
        .bind("user", user)
        .bind("now", now(database));
    serde_json::from_str(&value::<String>(database, statement)).unwrap()
}

/// What `sql` on a row of usage `u` selects, with quotas of 1,000 bytes, and 100 for each user.
fn with_quotas(database: &Connection, sql: &str, user: i64) -> i64 {
    let usage = usage(":workspace_id", ":user", ":now");
    let statement = Statement::new(format!("SELECT {sql} FROM {usage} u"))
        .bind("workspace_id", WORKSPACE)
        .bind("user", user)
        .bind("now", now(database));
    let limits = ["bytes_of_day", "output_of_day"].into_iter().map(|name| (name, 1_000));
    let limits = limits.chain(["bytes_of_user", "output_of_user"].map(|name| (name, 100)));
    let statement = limits
        .filter(|(name, _)| sql.contains(&format!(":{name}")))
        .fold(statement, |statement, (name, limit)| statement.bind(name, limit));
    value(database, statement)
}

#[test]
fn a_day_slides_whether_commands_are_counted_or_not() {
    let database = database();
    add_command(&database, 1, ALICE, 100, 26 * HOUR);
    add_command(&database, 2, ALICE, 20, 23 * HOUR);
    add_command(&database, 3, BOB, 3, 0);
    end_command(&database, 1, 1_000, 0, 23 * HOUR);
    end_command(&database, 2, 500, 100, 0);
    end_command(&database, 3, 7, 7, 0);
    let expected = [23, 1_400, 20, 1_400];
    assert_eq!(used(&database, ALICE), expected);
    assert_eq!(used(&database, BOB), [23, 1_400, 3, 0]);
    count(&database);
    assert_eq!(used(&database, ALICE), expected);
    assert_eq!(used(&database, BOB), [23, 1_400, 3, 0]);
    // Counting again adds nothing.
    count(&database);
    assert_eq!(used(&database, ALICE), expected);
    // A deleted command still counts.
    database.execute("DELETE FROM commands WHERE id = '2'", []).unwrap();
    assert_eq!(used(&database, ALICE), expected);
}

#[test]
fn a_row_is_used_again_when_its_hour_is_over_a_day_ago() {
    let database = database();
    let rows = "INSERT INTO quota_bytes SELECT 1, 0, (unixepoch() / 3600 - ?1) % 25, unixepoch() / 3600 - ?1, 10, 1";
    for hours in [24, 23, 1] {
        database.execute(rows, [hours]).unwrap();
    }
    assert_eq!(used(&database, ALICE), [30, 3, 0, 0]);
    // The slot of the current hour has bytes from 25 hours ago.
    database.execute(rows, [25]).unwrap();
    assert_eq!(used(&database, ALICE), [30, 3, 0, 0]);
    add_command(&database, 1, ALICE, 5, 0);
    count(&database);
    assert_eq!(used(&database, ALICE), [35, 3, 5, 0]);
    assert_eq!(
        value::<i64>(
            &database,
            Statement::new("SELECT count(*) FROM quota_bytes WHERE user_id = 0")
        ),
        4
    );
}

#[test]
fn output_of_a_counted_command_is_added_once() {
    let database = database();
    add_command(&database, 1, ALICE, 10, 0);
    count(&database);
    end_command(&database, 1, 300, 100, 0);
    assert_eq!(used(&database, ALICE), [10, 200, 10, 200]);
    // A flush with the same output, and one with later output.
    end_command(&database, 1, 300, 100, 0);
    end_command(&database, 1, 350, 100, 0);
    assert_eq!(used(&database, ALICE), [10, 250, 10, 250]);
    // At most 16 MiB are kept.
    end_command(&database, 1, 20 << 20, 0, 0);
    assert_eq!(used(&database, ALICE)[1], MAX_KEPT as i64);
}

#[test]
fn a_tenth_is_kept_for_staff_and_half_of_it_for_superusers() {
    let database = database();
    let left = |user, rank: &str| with_quotas(&database, &bytes_left(rank), user);
    let of_staff = || (left(ALICE, "1"), left(ALICE, "2"));
    assert_eq!((left(ALICE, "0"), of_staff()), (100, (950, 1_000)));
    add_command(&database, 1, ALICE, 90, 0);
    assert_eq!((left(ALICE, "0"), left(BOB, "0"), of_staff()), (10, 100, (860, 910)));
    add_command(&database, 2, BOB, 780, 0);
    assert_eq!((left(ALICE, "0"), left(BOB, "0"), of_staff()), (10, -680, (80, 130)));
    add_command(&database, 3, 9, 30, 0);
    // Nine tenths are used up.
    assert_eq!((left(ALICE, "0"), of_staff()), (0, (50, 100)));
    add_command(&database, 4, 9, 50, 0);
    assert_eq!((left(ALICE, "0"), of_staff()), (-50, (0, 50)));
}

#[test]
fn output_is_limited_by_what_is_left_and_staff_keep_some_of_each_command() {
    let database = database();
    let limit = |user, is_staff: &str| with_quotas(&database, &output_limit(is_staff), user);
    assert_eq!(limit(ALICE, "0"), 100);
    assert_eq!(limit(ALICE, "1"), STAFF_OUTPUT as i64);
    add_command(&database, 1, ALICE, 0, 0);
    end_command(&database, 1, 60, 0, 0);
    assert_eq!((limit(ALICE, "0"), limit(BOB, "0")), (40, 100));
    end_command(&database, 1, 5_000, 0, 0);
    assert_eq!((limit(ALICE, "0"), limit(BOB, "0")), (0, 0));
    assert_eq!(limit(BOB, "1"), STAFF_OUTPUT as i64);
    // What was left out does not count.
    end_command(&database, 1, 5_000, 4_990, 0);
    assert_eq!((limit(ALICE, "0"), limit(BOB, "0")), (90, 100));
    let of = |output: &str| output_limit("1").replace(":output_of_day", output);
    assert_eq!(with_quotas(&database, &of("100000000"), ALICE), MAX_KEPT as i64);
    assert_eq!(with_quotas(&database, &of("300000"), ALICE), 299_990);
}

#[test]
fn the_wait_ends_when_enough_bytes_are_a_day_old() {
    let database = database();
    let wait = |bytes: i64, user: i64, rank: &str| {
        let sql = retry_after(":bytes", ":workspace_id", ":user", rank, ":now");
        let statement = Statement::new(format!("SELECT {sql}"))
            .bind("bytes", bytes)
            .bind("workspace_id", WORKSPACE)
            .bind("user", user)
            .bind("now", now(&database));
        let statement = statement.bind("bytes_of_day", 1_000).bind("bytes_of_user", 100);
        value::<Option<i64>>(&database, statement)
    };
    // In the seconds until the next full hour, and full hours after it.
    let until = |hours: i64| {
        let left = value::<i64>(&database, Statement::new("SELECT 3600 - unixepoch() % 3600"));
        let exact = left + (hours - 1) * HOUR;
        exact - 5..=exact + 5
    };
    add_command(&database, 1, ALICE, 90, 20 * HOUR);
    count(&database);
    add_command(&database, 2, ALICE, 10, 10 * HOUR);
    assert!(until(5).contains(&wait(1, ALICE, "0").unwrap()), "{:?}", wait(1, ALICE, "0"));
    assert!(until(5).contains(&wait(90, ALICE, "0").unwrap()));
    assert!(until(15).contains(&wait(91, ALICE, "0").unwrap()));
    assert_eq!(wait(101, ALICE, "0"), None);
    // The workspace's quota, of others and of staff.
    add_command(&database, 3, BOB, 790, 3 * HOUR);
    assert!(until(5).contains(&wait(50, 9, "0").unwrap()));
    assert!(until(15).contains(&wait(205, 9, "2").unwrap()));
    let never = |bytes: &str, rank: &str| with_quotas(&database, &never_fits(bytes, rank), 9);
    assert_eq!((never("100", "0"), never("101", "0")), (0, 1));
    assert_eq!((never("950", "1"), never("951", "1")), (0, 1));
    assert_eq!((never("1000", "2"), never("1001", "2")), (0, 1));
}

/// The common table `me`.
fn me(user: i64, rank: i64) -> String {
    format!(
        "WITH me AS (SELECT 1 AS workspace_id, {user} AS user_id, {rank} > 0 AS is_staff, {rank} > 1 AS is_superuser)"
    )
}

#[test]
fn other_rows_count_for_the_user_and_the_workspace_if_they_were_written() {
    let database = database();
    let add = || {
        let sql = format!("{} {}", me(ALICE, 0), add_bytes());
        let statement = Statement::new(sql).bind("stored_bytes", 40).bind("now", now(&database));
        execute(&database, statement).unwrap();
    };
    database.execute("UPDATE users SET id = id", []).unwrap();
    add();
    assert_eq!(used(&database, ALICE), [0; 4]);
    for _ in 0..2 {
        add_command(&database, used(&database, ALICE)[0] + 1, BOB, 0, 0);
        add();
    }
    assert_eq!(used(&database, ALICE), [80, 0, 80, 0]);
    assert_eq!(used(&database, BOB), [80, 0, 0, 0]);
}

#[test]
fn a_statement_aborts_the_changes_of_callers_without_bytes_left() {
    let database = database();
    let guard = |user: i64, rank: i64| {
        let sql = format!("{} {}", me(user, rank), require_room());
        let statement = Statement::new(sql).bind("now", now(&database));
        execute(&database, statement.bind("bytes_of_day", 1_000).bind("bytes_of_user", 100))
    };
    assert_eq!(guard(ALICE, 0), Ok(0));
    add_command(&database, 1, ALICE, 100, 0);
    let error = guard(ALICE, 0).unwrap_err().to_string();
    assert!(error.contains(&format!("NOT NULL constraint failed: {GUARD}")), "{error}");
    assert_eq!((guard(BOB, 0), guard(ALICE, 1)), (Ok(0), Ok(0)));
    // Staff can still change everything if the users' part of the quota is used up, and superusers
    // if that of staff is.
    add_command(&database, 2, 9, 800, 0);
    assert!(guard(BOB, 0).is_err());
    assert_eq!((guard(BOB, 1), guard(BOB, 2)), (Ok(0), Ok(0)));
    add_command(&database, 3, 9, 50, 0);
    assert!(guard(BOB, 1).is_err());
    assert_eq!(guard(BOB, 2), Ok(0));
    add_command(&database, 4, 9, 50, 0);
    assert!(guard(BOB, 2).is_err());
}

fn add_event(
    database: &Connection,
    number: i64,
    action: &str,
    actor: &str,
    outcome: &str,
    at: &str,
) {
    let sql = "INSERT INTO audit_events (seq, id, workspace_id, occurred_at, actor_type, actor_id, action, outcome, details)
        VALUES ((1 << 40) + ?1, ?1, 1, ?5, ?3, 7, ?2, ?4, '{\"a\":\"b\"}')";
    database.execute(sql, rusqlite::params![number, action, actor, outcome, at]).unwrap();
}

#[test]
fn events_of_changes_count_and_others_do_not() {
    let database = database();
    let at = now(&database);
    let mut number = 0;
    let mut add = |action: &str, actor: &str, outcome: &str, at: &str| {
        number += 1;
        add_event(&database, number, action, actor, outcome, at);
    };
    for action in [
        "session.login",
        "session.logout",
        "session.delete",
        "user.change_password",
        "user.set_password",
        "user.reset_password",
        "command.create",
        "command.cancel",
        "command.kill",
        "command.finish",
        "batch.cancel",
        "batch.kill",
        "api_token.delete",
        "user.delete",
        "server.delete",
        "server.rotate_key",
    ] {
        add(action, "user", "success", &at);
    }
    add("user.update", "user", "denied", &at);
    add("user.update", "user", "failure", &at);
    add("server.update", "agent", "success", &at);
    add("user.update", "user", "success", &ago(&database, 26 * HOUR));
    assert_eq!(used(&database, ALICE), [0; 4]);
    for action in COUNTED_ACTIONS {
        add(action, "user", "success", &at);
    }
    let bytes = COUNTED_ACTIONS.len() as i64 * (750 + 9);
    assert_eq!(used(&database, ALICE), [bytes, 0, bytes, 0]);
    database.execute("DELETE FROM users", []).unwrap();
}
