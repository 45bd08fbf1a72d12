//! The counts of open batches, which triggers keep, equal the targets that they count.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use farhand_sql::{batch_counts, counted_targets};
use proptest::prelude::*;
use rusqlite::types::Value;
use rusqlite::{Connection, StatementStatus, params, params_from_iter};

/// The number of targets of the batch.
const TARGETS: i64 = 5;
const COMMAND_STATES: [&str; 8] =
    ["waiting", "sent", "acked", "success", "failed", "cancelled", "expired", "stuck"];
const MARKS: [&str; 4] = ["queued", "skipped", "cancelled", "expired"];

/// What happens to a target.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// Its command is inserted, unless it has one, or has ended.
    Insert(&'static str),
    /// D1 lost its command, and gets it again.
    Restore(&'static str),
    Update(&'static str),
    /// It gets a state of its own, unless it has a command, or has ended.
    Mark(&'static str),
    /// Its command is deleted.
    Delete,
}

fn ops() -> impl Strategy<Value = Vec<(i64, Op)>> {
    let command_state = || prop::sample::select(&COMMAND_STATES[..]);
    let op = prop_oneof![
        command_state().prop_map(Op::Insert),
        command_state().prop_map(Op::Restore),
        command_state().prop_map(Op::Update),
        prop::sample::select(&MARKS[..]).prop_map(Op::Mark),
        Just(Op::Delete),
    ];
    prop::collection::vec((0..TARGETS, op), 0..40)
}

fn database() -> Connection {
    let database = Connection::open_in_memory().unwrap();
    database.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
    database.execute_batch(include_str!("../../migrations/0001_schema.sql")).unwrap();
    database
}

fn add_batch(database: &Connection, targets: i64) {
    let sql = format!(
        "INSERT INTO batches (id, workspace_id, name, shell, line, groupname, timeout, max_concurrency, on_offline,
            added_at, scheduled_at, expires_at, state, total, pending)
         VALUES ('b', 1, '', 'system', 'id', '', 60, 50, 'queue', '2026', '2026', '2027', 'running', {targets}, {targets});
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {targets} - 1)
         INSERT INTO batch_targets (workspace_id, batch_id, position, server_id, server_name)
         SELECT 1, 'b', i, 's' || i, '' FROM n"
    );
    database.execute_batch(&sql).unwrap();
}

const INSERT: &str =
    "INSERT INTO commands (seq, workspace_id, id, server_id, server_name, shell, line, username,
        groupname, timeout, added_at, scheduled_at, expires_at, state, status_message, batch_id)
    SELECT (1 << 40) + t.position, 1, 'c' || t.position, t.server_id, '', 'system', 'id', '', '', 60, '2026', '2026', '2027', ?2, '', 'b'
    FROM batch_targets t WHERE t.position = ?1
        AND NOT EXISTS (SELECT 1 FROM commands c WHERE c.batch_id = t.batch_id AND c.server_id = t.server_id)";

fn apply(database: &Connection, target: i64, op: Op) {
    let run = |sql: &str, state: &str| database.execute(sql, params![target, state]).unwrap();
    match op {
        Op::Insert(state) => {
            run(&format!("{INSERT} AND (t.state IS NULL OR t.state = 'queued')"), state);
        }
        Op::Restore(state) => {
            run(INSERT, state);
            run("UPDATE batch_targets SET state = NULL WHERE position = ?1 AND ?2 <> ''", state);
        }
        Op::Update(state) => {
            run("UPDATE commands SET state = ?2 WHERE id = 'c' || ?1", state);
        }
        Op::Mark(state) => {
            run(
                "UPDATE batch_targets AS t SET state = ?2 WHERE position = ?1 AND (t.state IS NULL OR t.state = 'queued')
                    AND NOT EXISTS (SELECT 1 FROM commands c WHERE c.batch_id = t.batch_id AND c.server_id = t.server_id)",
                state,
            );
        }
        Op::Delete => {
            database.execute("DELETE FROM commands WHERE id = 'c' || ?1", [target]).unwrap();
        }
    }
}

/// The kept counts, and those of the targets.
fn counts(database: &Connection) -> (String, String) {
    let sql = concat!("SELECT ", batch_counts!(), ", ", counted_targets!(), " FROM batches b");
    database.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
}

fn finish(database: &Connection) {
    let sql =
        concat!("UPDATE batches AS b SET finished_at = '2027', counts = ", counted_targets!());
    database.execute(sql, []).unwrap();
}

/// Inserts the rows of a table into another database.
fn copy(from: &Connection, to: &Connection, table: &str) {
    let mut rows = from.prepare(&format!("SELECT * FROM {table}")).unwrap();
    let columns = rows.column_count();
    let insert = format!("INSERT INTO {table} VALUES ({})", vec!["?"; columns].join(", "));
    let mut rows = rows.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let values = (0..columns).map(|column| row.get::<_, Value>(column).unwrap());
        to.execute(&insert, params_from_iter(values)).unwrap();
    }
}

fn number(database: &Connection, sql: &str) -> i64 {
    database.query_row(sql, [], |row| row.get(0)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn kept_counts_equal_the_targets(ops in ops()) {
        let database = database();
        add_batch(&database, TARGETS);
        for (target, op) in ops {
            apply(&database, target, op);
            let (kept, counted) = counts(&database);
            prop_assert_eq!(kept, counted, "after {:?} of {}", op, target);
        }
        let (kept, _) = counts(&database);
        finish(&database);
        prop_assert_eq!(counts(&database).0, kept);
        prop_assert_eq!(number(&database, "SELECT count(*) FROM batch_counts"), 0);
    }

    /// An import of an export inserts targets, batches and commands, in this order.
    #[test]
    fn an_import_counts_the_targets(ops in ops(), later in ops()) {
        let [exported, database] = [database(), database()];
        add_batch(&exported, TARGETS);
        for (target, op) in ops {
            apply(&exported, target, op);
        }
        for table in ["batch_targets", "batches", "commands"] {
            copy(&exported, &database, table);
        }
        prop_assert_eq!(counts(&database), counts(&exported));
        for (target, op) in later {
            let (kept, counted) = counts(&database);
            prop_assert_eq!(kept, counted);
            apply(&database, target, op);
        }
    }
}

#[test]
fn a_finished_batch_remembers_that_retention_deleted_commands() {
    let database = database();
    add_batch(&database, TARGETS);
    let lost = || number(&database, "SELECT lost_commands FROM batches");
    apply(&database, 0, Op::Insert("sent"));
    apply(&database, 1, Op::Insert("success"));
    apply(&database, 0, Op::Delete);
    assert_eq!(lost(), 0, "the target may start again");
    finish(&database);
    apply(&database, 1, Op::Delete);
    assert_eq!(lost(), 1);
}

#[test]
fn an_insertion_reads_few_targets() {
    let steps = |targets: i64| {
        let database = database();
        add_batch(&database, targets);
        apply(&database, 1, Op::Mark("queued"));
        let sql = "INSERT INTO commands (seq, workspace_id, id, server_id, server_name, shell, line, username, groupname,
                timeout, added_at, scheduled_at, expires_at, state, status_message, batch_id)
            VALUES (1 << 40, 1, 'c', 's1', '', 'system', 'id', '', '', 60, '2026', '2026', '2027', 'sent', '', 'b')";
        let mut statement = database.prepare(sql).unwrap();
        statement.execute([]).unwrap();
        statement.get_status(StatementStatus::VmStep)
    };
    assert_eq!(steps(1_000), steps(10));
}
