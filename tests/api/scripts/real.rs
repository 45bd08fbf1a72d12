//! Scripts that the project's agent really runs on this machine (contract 14.13).

use std::collections::BTreeSet;

use farhand_tests::agents::own_account;
use farhand_tests::commands::{wait_for_status, wait_until_ended};
use farhand_tests::{RealAgent, Workspace, eventually};
use serde_json::{Value, json};

use super::{COMMANDS, call, script};

async fn start() -> (Workspace, RealAgent) {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let agent = RealAgent::start(&workspace, &server).await;
    (workspace, agent)
}

/// Runs a script to its end.
async fn run(workspace: &Workspace, script: &Value, params: Value) -> Value {
    let body = call(script, json!({"username": own_account(), "params": params}));
    let request = workspace.admin.request("POST", COMMANDS).header("Prefer", "wait=30").json(&body);
    let made = workspace.admin.send(request).await.expect(201);
    wait_until_ended(&workspace.admin, made["id"].as_str().unwrap()).await
}

/// The files of scripts that agents of this machine have for a command.
fn files_of(command: &Value) -> BTreeSet<String> {
    let id = command["id"].as_str().unwrap();
    let names = std::fs::read_dir(std::env::temp_dir()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains(id)).collect()
}

#[tokio::test]
async fn hostile_bodies_and_values_run_as_written() {
    let (workspace, _agent) = start().await;
    for body in [
        "'; touch /tmp/farhand-owned; '",
        "\"$(touch /tmp/farhand-owned)\" `id` ${HOME} \\ \\'",
        "EOF\n'EOF'\nFARHAND\n",
        "a\r\nb\t\u{1}\u{7f}\u{2028}é名\n",
        "-n %s %d \\0101\n",
        "no line break at the end",
    ] {
        let made = script(&workspace, body, json!({"interpreter": "cat"})).await;
        let done = run(&workspace, &made, json!({})).await;
        assert_eq!((&done["exit_code"], &done["result"]), (&json!(0), &json!(body)));
        assert!(files_of(&done).is_empty());
    }
    let params = json!([{"name": "A", "type": "string"}, {"name": "B", "type": "boolean", "default": false}]);
    let body = "printf '%s|%s|%s' \"$PARAM_A\" \"$PARAM_B\" \"${PARAM_C-unset}\"";
    let made = script(&workspace, body, json!({"params": params})).await;
    for value in
        ["", "a b", "'; touch /tmp/farhand-owned; '", "$(id)`id`", "\"\n\\\t", "é名\u{1b}[2J", "-n"]
    {
        let done = run(&workspace, &made, json!({"A": value})).await;
        assert_eq!(done["result"], json!(format!("{value}|false|unset")));
    }
    assert!(!std::path::Path::new("/tmp/farhand-owned").exists());
}

#[tokio::test]
async fn the_largest_body_runs() {
    let (workspace, _agent) = start().await;
    let line = "# é ' \" $(id)\n";
    let end = "echo done; exit 3\n";
    let body = line.repeat((256 * 1024 - end.len()) / line.len()) + end;
    let made = script(&workspace, &body, json!({})).await;
    let done = run(&workspace, &made, json!({})).await;
    assert_eq!((&done["exit_code"], &done["result"]), (&json!(3), &json!("done\n")));
    assert_eq!(done["status"]["text"], "Failed");
}

#[tokio::test]
async fn interpreters_get_a_private_file() {
    let (workspace, _agent) = start().await;
    let made = script(
        &workspace,
        "stat -c '%a %U' \"$0\"; false; echo no",
        json!({"interpreter": "/bin/sh -e"}),
    )
    .await;
    let done = run(&workspace, &made, json!({})).await;
    let expected = format!("700 {}\n", own_account());
    assert_eq!((&done["exit_code"], &done["result"]), (&json!(1), &json!(expected)));
    // Standard input belongs to the caller and not to the script.
    let reader = script(&workspace, "read -r line; echo \"<$line>\"; cat", json!({})).await;
    let body = call(&reader, json!({"username": own_account(), "stdin": "one\ntwo\n"}));
    let request = workspace.admin.request("POST", COMMANDS).header("Prefer", "wait=30").json(&body);
    let made = workspace.admin.send(request).await.expect(201);
    let done = wait_until_ended(&workspace.admin, made["id"].as_str().unwrap()).await;
    assert_eq!(done["result"], "<one>\ntwo\n");
    let missing = script(&workspace, "x", json!({"interpreter": "/no/such/program"})).await;
    let done = run(&workspace, &missing, json!({})).await;
    assert_eq!(done["exit_code"], 127);
    assert!(files_of(&done).is_empty());
}

#[tokio::test]
async fn a_kill_removes_the_file() {
    let (workspace, _agent) = start().await;
    let made =
        script(&workspace, "trap '' TERM; echo begun; sleep 600 & wait; sleep 600", json!({}))
            .await;
    let body = call(&made, json!({"username": own_account()}));
    let command = workspace.admin.post(COMMANDS, &body).await.expect(201);
    let id = command["id"].as_str().unwrap();
    wait_for_status(&workspace.admin, id, "Acked").await;
    eventually("the file", || async { (files_of(&command).len() == 1).then_some(()) }).await;
    let path = format!("{COMMANDS}{id}/kill/");
    workspace.admin.post(&path, &json!({})).await.expect(202);
    let done = wait_until_ended(&workspace.admin, id).await;
    assert_eq!(done["exit_code"], 137);
    assert!(files_of(&command).is_empty());
    // The timeout removes the file, too.
    let body = call(&made, json!({"username": own_account(), "timeout": 1}));
    let command = workspace.admin.post(COMMANDS, &body).await.expect(201);
    let done = wait_until_ended(&workspace.admin, command["id"].as_str().unwrap()).await;
    assert_eq!(done["exit_code"], 124);
    assert!(files_of(&command).is_empty());
}

#[tokio::test]
async fn the_next_agent_removes_the_file_after_a_crash() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let agent = RealAgent::start(&workspace, &server).await;
    let made = script(&workspace, "echo begun; sleep 600", json!({})).await;
    let body = call(&made, json!({"username": own_account()}));
    let command = workspace.admin.post(COMMANDS, &body).await.expect(201);
    let id = command["id"].as_str().unwrap();
    wait_for_status(&workspace.admin, id, "Acked").await;
    eventually("the file", || async { (files_of(&command).len() == 1).then_some(()) }).await;
    let _agent = agent.restart_after_crash(&workspace, &server).await;
    wait_for_status(&workspace.admin, id, "Failed").await;
    eventually("no file", || async { files_of(&command).is_empty().then_some(()) }).await;
}
