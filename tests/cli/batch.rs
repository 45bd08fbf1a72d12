//! Batches.

use farhand_tests::{RealAgent, Workspace};
use serde_json::{Value, json};

use super::terminal::Terminal;
use super::{Farhand, add_server};

/// A workspace with two servers that have the label `role=web`, and their agents.
async fn start() -> (Workspace, [RealAgent; 2]) {
    let workspace = Workspace::new().await;
    let agents = [add_server(&workspace, "web-1").await, add_server(&workspace, "web-22").await];
    for name in ["web-1", "web-22"] {
        label(&workspace, name).await;
    }
    (workspace, agents)
}

/// Gives a server the label `role=web`.
async fn label(workspace: &Workspace, name: &str) {
    let found = workspace.admin.get(&format!("/api/servers/?name={name}")).await.expect(200);
    let path = format!("/api/servers/{}/", found["results"][0]["id"].as_str().unwrap());
    workspace.admin.patch(&path, &json!({"labels": {"role": "web"}})).await.expect(200);
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[tokio::test]
async fn a_selector_runs_on_all_matching_servers() {
    let (workspace, _agents) = start().await;
    workspace.server("db-1").await;
    let farhand = Farhand::admin(&workspace);
    let called = farhand.call(&["run", "-l", "role=web", "--", "echo a; printf b"]).await;
    assert_eq!((called.code, called.err.as_str()), (0, ""), "{called:?}");
    assert_eq!(sorted(&called.out), ["web-1  | a", "web-1  | b", "web-22 | a", "web-22 | b"]);

    // The exit code is the highest of the servers, and a message counts them.
    let called = farhand.call(&["run", "-l", "role=web", "--", "exit 4"]).await;
    assert_eq!((called.code, called.out.as_str()), (4, ""), "{called:?}");
    assert!(called.err.contains("2 failed") && called.err.contains("`farhand batch retry "));

    // A server whose agent is not connected is left out, by name, and farhand fails.
    let called = farhand.call(&["run", "--all", "--", "echo a"]).await;
    assert_eq!(called.code, 125, "{called:?}");
    assert_eq!(sorted(&called.out), ["web-1  | a", "web-22 | a"]);
    assert!(called.err.contains("farhand: db-1: "), "{called:?}");
    assert!(called.err.contains("2 success, 1 skipped"), "{called:?}");
    let reject = ["run", "--all", "--on-offline", "reject", "--", "echo a"];
    farhand.call(&reject).await.failure("db-1");
    farhand.call(&["run", "-l", "role=", "--", "id"]).await.failure("");
    farhand.call(&["run", "-l", "role in", "--", "id"]).await.failure("selector");
}

#[tokio::test]
async fn json_has_the_batch() {
    let (workspace, _agents) = start().await;
    let farhand = Farhand::admin(&workspace);
    let run = |format: &'static str| {
        let farhand = &farhand;
        async move {
            let options = ["run", "web-1,web-22", "--max-concurrency", "1", "-o", format];
            farhand.call(&[&options[..], &["--", "echo a"]].concat()).await
        }
    };
    let batch = run("json").await.json();
    assert_eq!((&batch["state"], &batch["counts"]["success"]), (&json!("finished"), &json!(2)));
    assert_eq!(batch["max_concurrency"], 1);
    let called = run("ndjson").await.success();
    let events: Vec<Value> =
        called.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |name: &str| events.iter().filter(|event| event["event"] == name).count();
    assert_eq!((count("end"), count("batch")), (2, 1));
    assert_eq!(events.last().unwrap()["batch"]["state"], "finished");
}

#[tokio::test]
async fn a_dry_run_shows_the_servers_and_runs_nothing() {
    let (workspace, _agents) = start().await;
    let farhand = Farhand::admin(&workspace);
    let dry_run = ["run", "-l", "role=web", "--dry-run", "--as", "root"];
    let shown = farhand.call(&[&dry_run[..], &["--", "id"]].concat()).await.success();
    assert!(shown.starts_with("NAME    AS    CONNECTED\nweb-1   root  yes\n"), "{shown}");
    let plan = farhand.call(&[&dry_run[..], &["-o", "json", "--", "id"]].concat()).await.json();
    assert_eq!((&plan["dry_run"], &plan["total"]), (&json!(true), &json!(2)));
    assert_eq!(farhand.call(&["-o", "json", "batch", "list"]).await.json(), json!([]));
}

#[tokio::test]
async fn a_detached_batch_is_shown_compared_and_retried() {
    let (workspace, _agents) = start().await;
    let farhand = Farhand::admin(&workspace);
    let line = "echo failed; exit 3";
    let id = farhand.call(&["run", "-l", "role=web", "-d", "--", line]).await.success();
    let id = id.trim();
    let called = farhand.call(&["batch", "show", "--follow", id]).await;
    assert_eq!((called.code, called.err.as_str()), (3, ""), "{called:?}");
    assert!(called.out.contains("\nSTATE        finished\n"), "{called:?}");
    assert!(called.out.contains("2: 2 failed"), "{called:?}");
    assert!(farhand.call(&["batch", "show", id]).await.success().contains("2: 2 failed"));
    let listed = farhand.call(&["batch", "list", "--state", "finished"]).await.success();
    assert!(listed.contains(id) && listed.contains(line), "{listed}");
    let targets = farhand.call(&["batch", "targets", id, "--state", "failed"]).await.success();
    assert_eq!(targets.lines().count(), 3, "{targets}");
    assert!(targets.contains("\nweb-22  failed  3"), "{targets}");
    let outputs = farhand.call(&["batch", "outputs", id]).await.success();
    let head = outputs.lines().next().unwrap();
    assert!(head.starts_with("== 2: failed, exit code 3: web-"), "{outputs}");
    assert_eq!(outputs.lines().nth(1), Some("failed"));

    let called = farhand.call(&["batch", "retry", id]).await;
    assert_eq!(called.code, 3, "{called:?}");
    assert_eq!(sorted(&called.out), ["web-1  | failed", "web-22 | failed"]);
    let retried = farhand.call(&["-o", "json", "batch", "list", "-n", "1"]).await.json();
    assert_eq!(retried[0]["retry_of"], id);
    farhand.call(&["batch", "kill", id]).await.failure("has ended");
    farhand.call(&["batch", "show", "../../status"]).await.failure("");
}

#[tokio::test]
async fn a_batch_of_later_is_cancelled() {
    let (workspace, _agents) = start().await;
    let farhand = Farhand::admin(&workspace);
    let later = ["run", "-l", "role=web", "--at", "+2h", "--", "id"];
    let id = farhand.call(&later).await.success();
    farhand.call(&["batch", "cancel", id.trim()]).await.success();
    let called = farhand.call(&["batch", "show", "--follow", id.trim()]).await;
    assert_eq!(called.code, 125, "{called:?}");
    assert!(called.out.contains("2: 2 cancelled"), "{called:?}");
    farhand.call(&["batch", "retry", "-d", id.trim()]).await.success();
}

#[tokio::test]
async fn ctrl_c_kills_the_batch() {
    let (workspace, _agents) = start().await;
    let farhand = Farhand::admin(&workspace);
    let line = "run -l role=web --max-concurrency 1 -- 'echo begun; exec sleep 600'";
    let mut terminal = Terminal::start(farhand.in_terminal(line));
    terminal.wait_for("begun").await;
    terminal.type_text("\x03").await;
    let (code, shown) = terminal.end().await;
    // The command that ran was killed, and the other one never started.
    assert_eq!(code, 143, "{shown}");
    assert!(shown.contains("killed by boss"), "{shown}");
    assert!(shown.contains("1 failed, 1 cancelled"), "{shown}");
}

#[tokio::test]
async fn many_servers_in_a_terminal_are_confirmed() {
    let workspace = Workspace::new().await;
    for number in 0..21 {
        workspace.server(&format!("web-{number}")).await;
    }
    let farhand = Farhand::admin(&workspace);
    let run = "run --all --on-offline queue -d -- id";
    let mut terminal = Terminal::start(farhand.in_terminal(run));
    terminal.wait_for("Type 21 to go on: ").await;
    terminal.type_text("yes\n").await;
    let (code, shown) = terminal.end().await;
    assert_eq!(code, 125, "{shown}");
    assert!(shown.contains("Nothing was run."), "{shown}");
    assert_eq!(farhand.call(&["-o", "json", "batch", "list"]).await.json(), json!([]));

    let mut terminal = Terminal::start(farhand.in_terminal(run));
    terminal.wait_for("Type 21 to go on: ").await;
    terminal.type_text("21\n").await;
    assert_eq!(terminal.end().await.0, 0);
    let (code, shown) =
        Terminal::start(farhand.in_terminal(&run.replace("run", "run --yes"))).end().await;
    assert_eq!(code, 0, "{shown}");
    assert!(!shown.contains("Type 21"), "{shown}");
    // Without a terminal, nothing is asked.
    farhand.call(&["run", "--all", "--on-offline", "queue", "-d", "--", "id"]).await.success();
    let batches = farhand.call(&["-o", "json", "batch", "list"]).await.json();
    assert_eq!(batches.as_array().unwrap().len(), 3);
    for batch in batches.as_array().unwrap() {
        farhand.call(&["batch", "cancel", batch["id"].as_str().unwrap()]).await.success();
    }
}

#[tokio::test]
async fn servers_are_listed_by_their_labels() {
    let workspace = Workspace::new().await;
    workspace.server("web-1").await;
    workspace.server("db-1").await;
    label(&workspace, "web-1").await;
    let farhand = Farhand::admin(&workspace);
    let shown = farhand.call(&["servers", "-l", "role in (web,app)"]).await.success();
    assert!(shown.contains("\nweb-1  offline  role=web  "), "{shown}");
    assert!(!shown.contains("db-1"), "{shown}");
    farhand.call(&["servers", "-l", "role="]).await.success();
    farhand.call(&["servers", "-l", "=web"]).await.failure("label: ");
}
