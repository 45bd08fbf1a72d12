//! Commands that get no report of their end (contract 7.12).

use std::time::Duration;

use farhand_tests::agents::{ScriptedAgent, credential};
use farhand_tests::{Workspace, eventually_within};
use serde_json::{Value, json};

use super::commands::{PATH, assert_status, id_of, read, time_of, workspace_with_agent};

/// Waits until the list shows a command as stuck. The list reads only D1, so the object is not
/// called.
async fn wait_for_stuck(workspace: &Workspace, command: &Value) -> Value {
    eventually_within(Duration::from_secs(100), "the command to be stuck", || async {
        let list = workspace.admin.get(PATH).await.expect(200);
        let item = list["results"]
            .as_array()
            .unwrap()
            .iter()
            .find(|item| item["id"] == command["id"])
            .cloned()
            .unwrap();
        (item["status"]["text"] == "Stuck").then_some(item)
    })
    .await
}

async fn start_command(workspace: &Workspace, agent: &mut ScriptedAgent, timeout: i64) -> Value {
    let body = json!({"server": "web-1", "line": "sleep 600", "timeout": timeout});
    let made = workspace.admin.post(PATH, &body).await.expect(201);
    agent.next_command().await;
    agent.ack(id_of(&made)).await;
    made
}

#[tokio::test]
async fn a_command_is_stuck_a_minute_past_its_timeout() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let long = start_command(&workspace, &mut agent, 1_800).await;
    let short = start_command(&workspace, &mut agent, 2).await;
    let seen = wait_for_stuck(&workspace, &short).await;
    assert_status(&seen, "Stuck", "danger", false);
    assert_eq!((&seen["success"], &seen["result"]), (&json!(false), &json!(null)));
    assert!(
        time_of(&seen, "handled_at").seconds_since(time_of(&seen, "acked_at")) >= 62.0,
        "{seen}"
    );
    assert_status(&read(&workspace, &long).await, "Acked", "warning", false);
    // A late ack changes nothing, and a late result counts.
    agent.ack(id_of(&short)).await;
    assert_eq!(read(&workspace, &short).await, seen);
    agent.fin(id_of(&short), 3, "late").await;
    let done = read(&workspace, &short).await;
    assert_status(&done, "Failed", "danger", false);
    assert_eq!((&done["exit_code"], &done["result"]), (&json!(3), &json!("late")));
}

#[tokio::test]
async fn a_command_is_stuck_a_minute_after_an_agent_restart() {
    let (workspace, server, mut agent) = workspace_with_agent().await;
    let lost = start_command(&workspace, &mut agent, 1_800).await;
    let reported = start_command(&workspace, &mut agent, 1_800).await;
    // A new connection alone is not enough, because agents renew their socket while commands run.
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    // The agent's process restarts: it reports the start, and connects.
    let api = workspace.anonymous.with_authorization(&credential(&server));
    let event = json!({"reporter": "alpamon", "record": "started", "description": "x"});
    let after = start_command(&workspace, &mut agent, 1_800).await;
    api.post("/api/events/events/", &event).await.expect(204);
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let new = start_command(&workspace, &mut agent, 1_800).await;
    // The new process reports the end of this command.
    agent.fin(id_of(&reported), 137, "The agent was restarted.").await;
    for command in [&lost, &after] {
        let seen = wait_for_stuck(&workspace, command).await;
        assert_status(&seen, "Stuck", "danger", false);
        let message = seen["status"]["message"].as_str().unwrap();
        assert!(
            message.starts_with("Its agent restarted at ")
                && message.contains(" and reported no result;"),
            "{message}"
        );
    }
    assert_status(&read(&workspace, &reported).await, "Failed", "danger", false);
    assert_status(&read(&workspace, &new).await, "Acked", "warning", false);
}

#[tokio::test]
async fn a_late_start_report_affects_only_earlier_commands() {
    let (workspace, server, mut agent) = workspace_with_agent().await;
    let lost = start_command(&workspace, &mut agent, 1_800).await;
    // The new process connects and gets a command before its report of the start arrives.
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let new = start_command(&workspace, &mut agent, 1_800).await;
    let api = workspace.anonymous.with_authorization(&credential(&server));
    let event = json!({"reporter": "alpamon", "record": "started", "description": "x"});
    api.post("/api/events/events/", &event).await.expect(204);
    // Other events have no effect.
    for record in [json!("committed"), json!(7), json!(null)] {
        api.post("/api/events/events/", &json!({"reporter": "alpamon", "record": record}))
            .await
            .expect(204);
    }
    wait_for_stuck(&workspace, &lost).await;
    assert_status(&read(&workspace, &new).await, "Acked", "warning", false);
}
