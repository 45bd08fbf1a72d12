//! How commands end that nobody ends (contract 7.12).

use std::time::Duration;

use farhand_tests::agents::{ScriptedAgent, credential};
use farhand_tests::{Workspace, eventually_within};
use serde_json::{Value, json};

use super::commands::{PATH, has_status, id_of, moment, read, workspace_with_agent};

/// What the list tells of a command once it is stuck. The list is read from D1 alone, and wakes
/// nobody.
async fn stuck(workspace: &Workspace, command: &Value) -> Value {
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

async fn run(workspace: &Workspace, agent: &mut ScriptedAgent, timeout: i64) -> Value {
    let body = json!({"server": "web-1", "line": "sleep 600", "timeout": timeout});
    let made = workspace.admin.post(PATH, &body).await.expect(201);
    agent.next_command().await;
    agent.ack(id_of(&made)).await;
    made
}

#[tokio::test]
async fn a_command_is_stuck_a_minute_past_its_timeout() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let long = run(&workspace, &mut agent, 1_800).await;
    let short = run(&workspace, &mut agent, 2).await;
    let seen = stuck(&workspace, &short).await;
    has_status(&seen, "Stuck", "danger", false);
    assert_eq!((&seen["success"], &seen["result"]), (&json!(false), &json!(null)));
    assert!(moment(&seen, "handled_at").seconds_since(moment(&seen, "acked_at")) >= 62.0, "{seen}");
    has_status(&read(&workspace, &long).await, "Acked", "warning", false);
    // A late acknowledgement changes nothing, a late result does.
    agent.ack(id_of(&short)).await;
    assert_eq!(read(&workspace, &short).await, seen);
    agent.fin(id_of(&short), 3, "late").await;
    let done = read(&workspace, &short).await;
    has_status(&done, "Failed", "danger", false);
    assert_eq!((&done["exit_code"], &done["result"]), (&json!(3), &json!("late")));
}

#[tokio::test]
async fn a_command_is_stuck_a_minute_after_its_agent_started_anew() {
    let (workspace, server, mut agent) = workspace_with_agent().await;
    let lost = run(&workspace, &mut agent, 1_800).await;
    let reported = run(&workspace, &mut agent, 1_800).await;
    // A redial alone is no reason: agents keep running while a socket is renewed.
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    // Its process ends, and begins again: it tells so, and connects.
    let api = workspace.anonymous.with(&credential(&server));
    let event = json!({"reporter": "alpamon", "record": "started", "description": "x"});
    let after = run(&workspace, &mut agent, 1_800).await;
    api.post("/api/events/events/", &event).await.expect(204);
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let new = run(&workspace, &mut agent, 1_800).await;
    // One whose end the new process knows of.
    agent.fin(id_of(&reported), 137, "The agent was restarted.").await;
    for command in [&lost, &after] {
        let seen = stuck(&workspace, command).await;
        has_status(&seen, "Stuck", "danger", false);
        let message = seen["status"]["message"].as_str().unwrap();
        assert!(
            message.starts_with("Its agent restarted at ")
                && message.contains(" and reported no result;"),
            "{message}"
        );
    }
    has_status(&read(&workspace, &reported).await, "Failed", "danger", false);
    has_status(&read(&workspace, &new).await, "Acked", "warning", false);
}

#[tokio::test]
async fn a_start_that_is_told_late_concerns_what_went_out_before_the_connection() {
    let (workspace, server, mut agent) = workspace_with_agent().await;
    let lost = run(&workspace, &mut agent, 1_800).await;
    // The new process connects, gets a command, and only then its report of the start arrives.
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let new = run(&workspace, &mut agent, 1_800).await;
    let api = workspace.anonymous.with(&credential(&server));
    let event = json!({"reporter": "alpamon", "record": "started", "description": "x"});
    api.post("/api/events/events/", &event).await.expect(204);
    // Events of other kinds mean nothing here.
    for record in [json!("committed"), json!(7), json!(null)] {
        api.post("/api/events/events/", &json!({"reporter": "alpamon", "record": record}))
            .await
            .expect(204);
    }
    stuck(&workspace, &lost).await;
    has_status(&read(&workspace, &new).await, "Acked", "warning", false);
}
