//! The SQL condition for reads with an access control list agrees with the rule of
//! [`farhand_domain::access::acl::Acl`], for random lists and commands.

// In a test, a failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

use farhand_domain::access::acl::Acl;
use farhand_domain::command::request::{Command, Shell};
use proptest::prelude::*;
use proptest::sample::select;
use rusqlite::Connection;
use serde_json::json;
use uuid::Uuid;

/// The Worker's own SQL, compiled from the same file.
#[path = "../../src/store/within_acl.rs"]
#[allow(dead_code)]
mod within_acl;

/// A text of pieces that change what a star matches.
fn text(most: usize) -> impl Strategy<Value = String> {
    let pieces = vec![
        "a", "b", "*", "*", "**", "***", " ", " ", " *", " ** ", "-", " -x", "?", "[", ".", "..",
        "/", "/..", "/.*", "=", ":", ",", "'", "\"", "\\", ";", "#", "é", "\u{a0}", "\u{2003}",
        "\u{2028}", "\n", "\t", "\u{fdd0}", "\u{fdd3}", "a b",
    ];
    prop::collection::vec(select(pieces), 0..=most).prop_map(|pieces| pieces.concat())
}

/// A pattern, and a text for each of its stars.
fn pattern() -> impl Strategy<Value = (String, Vec<String>)> {
    (text(6), prop::collection::vec(text(2), 8))
}

/// The pattern with a text for each run of stars.
fn filled(pattern: &str, texts: &[String]) -> String {
    let mut texts = texts.iter();
    let mut filled = String::new();
    for part in pattern.split_inclusive('*') {
        filled.push_str(part.trim_end_matches('*'));
        if part.ends_with('*') {
            filled.push_str(texts.next().map_or("", String::as_str));
        }
    }
    filled
}

struct Database {
    connection: Connection,
    sql: String,
}

impl Database {
    fn new() -> Self {
        let connection = Connection::open_in_memory().unwrap();
        let patterns = format!("({})", within_acl::line_patterns("me.acl"));
        let lists = format!("({})", within_acl::word_lists("me.acl"));
        let condition = within_acl::within("me.acl", &patterns, &lists);
        let sql = format!(
            "SELECT count(*) FROM (SELECT ?1 AS acl LIMIT -1) me CROSS JOIN (
                SELECT ?2 AS line, ?3 AS argv, NULL AS script, 'system' AS shell, '' AS groupname, 'deploy' AS username,
                    0 AS has_inputs LIMIT -1) c WHERE {condition}"
        );
        Self { connection, sql }
    }

    fn allows(&self, acl: &Acl, line: &str, argv: Option<&[String]>) -> bool {
        let (acl, argv) = (acl.json().unwrap(), argv.map(|argv| json!(argv).to_string()));
        let mut statement = self.connection.prepare_cached(&self.sql).unwrap();
        statement.query_row((acl, line, argv), |row| row.get::<_, i64>(0)).unwrap() == 1
    }
}

fn command(line: &str, argv: Option<&[String]>) -> Command {
    Command {
        id: Uuid::nil(),
        shell: Shell::System,
        line: line.to_owned(),
        argv: argv.map(<[String]>::to_vec),
        script: None,
        username: "deploy".to_owned(),
        groupname: String::new(),
        server: Uuid::nil(),
        server_name: "web-1".to_owned(),
        requested_by: None,
        batch: None,
    }
}

#[test]
fn lines_agree() {
    let database = Database::new();
    let mut allowed = 0;
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 4_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let cases = (prop::collection::vec(pattern(), 1..3), text(5));
    let counter = std::cell::Cell::new(0);
    runner
        .run(&cases, |(patterns, other)| {
            // Not `Acl::read`: stored lists can have patterns that are refused today.
            let list: Vec<_> = patterns.iter().map(|(pattern, _)| pattern).collect();
            let acl: Acl = serde_json::from_value(json!({"commands": list})).unwrap();
            let (pattern, texts) = &patterns[0];
            let bare = pattern.trim_end_matches('*').trim_end_matches(' ').to_owned();
            for line in [filled(pattern, texts), bare, other] {
                let is_allowed = acl.allows_command(&command(&line, None), false);
                prop_assert_eq!(
                    database.allows(&acl, &line, None),
                    is_allowed,
                    "{:?} {:?}",
                    list,
                    line
                );
                counter.set(counter.get() + u32::from(is_allowed));
            }
            Ok(())
        })
        .unwrap();
    allowed += counter.get();
    assert!(allowed > 1_000, "{allowed}");
}

#[test]
fn words_agree() {
    let database = Database::new();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 4_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let counter = std::cell::Cell::new(0);
    runner
        .run(&prop::collection::vec(pattern(), 1..4), |patterns| {
            let list: Vec<_> = patterns.iter().map(|(pattern, _)| pattern).collect();
            let acl: Acl = serde_json::from_value(json!({"argv": [list, ["*", "b*"]]})).unwrap();
            let words: Vec<_> =
                patterns.iter().map(|(pattern, texts)| filled(pattern, texts)).collect();
            let is_allowed = acl.allows_command(&command("", Some(&words)), false);
            prop_assert_eq!(
                database.allows(&acl, "", Some(&words)),
                is_allowed,
                "{:?} {:?}",
                list,
                words
            );
            counter.set(counter.get() + u32::from(is_allowed));
            Ok(())
        })
        .unwrap();
    assert!(counter.get() > 400, "{}", counter.get());
}
