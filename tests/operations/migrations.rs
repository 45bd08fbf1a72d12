//! The migrations of a local D1 (`scripts/migrate.mjs`).

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use farhand_tests::PATIENCE;
use farhand_tests::listeners::{Listener, listeners_of_group};
use farhand_tests::processes::Process;
use rusqlite::Connection;
use tokio::process::Command;

use super::ROOT;

/// The folder of D1 in a state folder.
const D1: &str = "v3/d1/miniflare-D1DatabaseObject";
const STATEMENTS: &str = "SELECT name || ' ' || sql FROM sqlite_master WHERE sql IS NOT NULL";
const APPLIED: &str = "SELECT name FROM d1_migrations";

fn migrate(state: &Path, project: &Path) -> Command {
    let mut command = Command::new("node");
    command.current_dir(ROOT).arg("scripts/migrate.mjs").arg(state).arg(project);
    command
}

async fn run(mut command: Command) -> Output {
    command.stdin(Stdio::null()).kill_on_drop(true);
    tokio::time::timeout(4 * PATIENCE, command.output()).await.expect("it did not end").unwrap()
}

/// The texts that a query returns from the D1 of a state folder.
fn texts(state: &Path, sql: &str) -> BTreeSet<String> {
    let files = std::fs::read_dir(state.join(D1)).unwrap().map(|entry| entry.unwrap().path());
    let mut databases = files.filter(|file| {
        file.extension().is_some_and(|end| end == "sqlite")
            && file.file_stem().is_some_and(|name| name != "metadata")
    });
    let database = Connection::open(databases.next().unwrap()).unwrap();
    let mut statement = database.prepare(sql).unwrap();
    statement.query_map((), |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// A statement without its comments and blanks, which wrangler changes.
fn stripped(sql: &str) -> String {
    sql.lines().flat_map(|line| line.split("--").next().unwrap().split_whitespace()).collect()
}

#[tokio::test]
async fn they_are_those_of_wrangler_and_open_no_port() {
    let [ours, theirs] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    // An update of an existing database does not run a migration twice.
    for _ in 0..2 {
        let mut process = Process::spawn(&mut migrate(ours.path(), ROOT.as_ref()));
        let (group, mut seen) = (process.id(), BTreeSet::new());
        let status = loop {
            seen.append(&mut listeners_of_group(group));
            if let Some(status) = process.child().try_wait().unwrap() {
                break status;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        assert!(status.success());
        assert!(seen.iter().all(|one| matches!(one, Listener::Unix(_))), "{seen:?}");
        assert!(!seen.is_empty(), "the sockets were not noticed");
    }

    let mut wrangler = Command::new("node_modules/.bin/wrangler");
    wrangler
        .args(["d1", "migrations", "apply", "DB", "--local", "--persist-to"])
        .arg(theirs.path())
        .env("WRANGLER_SEND_METRICS", "false")
        .env("WRANGLER_LOG_PATH", theirs.path().join("wrangler.log"))
        .env("CI", "true")
        .current_dir(ROOT);
    let output = run(wrangler).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all = |state: &Path| -> BTreeSet<String> {
        texts(state, STATEMENTS).iter().map(|sql| stripped(sql)).collect()
    };
    assert_eq!(all(ours.path()), all(theirs.path()));
    assert_eq!(texts(ours.path(), APPLIED), texts(theirs.path(), APPLIED));
}

/// A project with the given migrations, by name.
fn project(migrations: &[(&str, &str)]) -> tempfile::TempDir {
    let project = tempfile::tempdir().unwrap();
    let folder = project.path().join("migrations");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(format!("{ROOT}wrangler.toml"), project.path().join("wrangler.toml")).unwrap();
    for (name, sql) in migrations {
        std::fs::write(folder.join(name), sql).unwrap();
    }
    project
}

const GOOD: (&str, &str) = ("0001_good.sql", "CREATE TABLE good (id INTEGER);");

#[tokio::test]
async fn a_migration_that_fails_changes_nothing() {
    let bad = "CREATE TABLE half (id INTEGER);\nINSERT INTO missing VALUES (1);";
    let [state, project] = [tempfile::tempdir().unwrap(), project(&[GOOD, ("0002_bad.sql", bad)])];

    let output = run(migrate(state.path(), project.path())).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("0002_bad.sql") && errors.contains("no such table"), "{errors}");
    assert_eq!(texts(state.path(), APPLIED), BTreeSet::from([GOOD.0.to_owned()]));
    let tables = texts(state.path(), "SELECT name FROM sqlite_master");
    assert!(tables.contains("good") && !tables.contains("half"), "{tables:?}");
}

/// An older version starts with the state of a newer one (docs/how-to/upgrade.md).
#[tokio::test]
async fn an_older_version_keeps_a_newer_schema() {
    let later = ("0002_later.sql", "ALTER TABLE good ADD COLUMN later TEXT;");
    let state = tempfile::tempdir().unwrap();
    let all = |sql| texts(state.path(), sql);

    let new = project(&[GOOD, later]);
    assert!(run(migrate(state.path(), new.path())).await.status.success());
    let [schema, applied] = [all(STATEMENTS), all(APPLIED)];
    assert_eq!(applied, BTreeSet::from([GOOD.0, later.0].map(str::to_owned)));

    for version in [project(&[GOOD]), new] {
        assert!(run(migrate(state.path(), version.path())).await.status.success());
        assert_eq!([all(STATEMENTS), all(APPLIED)], [schema.clone(), applied.clone()]);
    }
}
