//! Schedules.

use farhand_tests::{Workspace, eventually};
use serde_json::json;

use super::{Farhand, start};

#[tokio::test]
async fn a_schedule_is_created_run_changed_and_deleted() {
    let (workspace, _agent) = start("here").await;
    let farhand = Farhand::admin(&workspace);
    let create = ["schedules", "create", "nightly", "--cron", "30 2 * * mon-fri"];
    let options = ["--timezone", "Asia/Seoul", "-s", "here", "--overlap", "queue", "--max-errors"];
    let called = farhand.call(&[&create[..], &options, &["0", "--", "echo", "a b"]].concat()).await;
    assert!(called.err.contains("Created nightly. Next run: "), "{called:?}");
    let id = called.success();
    let id = id.trim();
    let shown = farhand.call(&["schedules", "show", "nightly"]).await.success();
    for line in [
        "TIMES      30 2 * * mon-fri (Asia/Seoul)",
        "SERVERS    here",
        "LINE       echo 'a b'",
        "OVERLAP    queue",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    let schedule = farhand.call(&["-o", "json", "schedules", "show", id]).await.json();
    assert_eq!(
        (&schedule["max_errors"], &schedule["targets"]["servers"]),
        (&json!(0), &json!(["here"]))
    );

    let batch = farhand.call(&["schedules", "run", "nightly"]).await.success();
    let called = farhand.call(&["batch", "show", "--follow", batch.trim()]).await;
    assert!(called.success().contains("1: 1 success"));
    eventually("the run in the list", || async {
        let runs = farhand.call(&["schedules", "runs", "nightly"]).await.success();
        (runs.contains("started") && runs.contains(batch.trim())).then_some(())
    })
    .await;

    let called = farhand.call(&["schedules", "disable", "nightly"]).await;
    assert!(called.err.contains("nightly is disabled. Next run: none."), "{called:?}");
    let listed = farhand.call(&["schedules", "list"]).await.success();
    assert!(listed.contains("nightly  no "), "{listed}");
    farhand.call(&["schedules", "enable", id]).await.success();
    let deleted = farhand.call(&["-o", "ndjson", "schedules", "delete", "nightly"]).await.json();
    assert_eq!(deleted, json!({"id": id, "deleted": true}));
    farhand.call(&["schedules", "show", "nightly"]).await.failure("You have no schedule");
}

#[tokio::test]
async fn wrong_schedules_are_refused() {
    let workspace = Workspace::new().await;
    let farhand = Farhand::admin(&workspace);
    let create = |cron: &'static str| {
        ["schedules", "create", "x", "--cron", cron, "--all", "--disabled", "--", "id"]
    };
    farhand.call(&create("61 * * * *")).await.failure("cron: ");
    let both = ["schedules", "create", "x", "--cron", "@daily", "--all", "-s", "a", "--", "id"];
    assert_eq!(farhand.call(&both).await.code, 125);
    let called = farhand.call(&create("@daily")).await;
    assert!(called.err.contains("Next run: none."), "{called:?}");
    called.success();
    // Two schedules may have one name.
    farhand.call(&create("@weekly")).await.success();
    farhand.call(&["schedules", "delete", "x"]).await.failure("2 schedules have the name");
}
