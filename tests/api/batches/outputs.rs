//! The outputs of a batch (contract 13.8), waiting for its end, and its stream (contract 13.11).

use farhand_tests::client::Workspace;
use farhand_tests::events::{Block, Events};
use farhand_tests::people::{BATCHES, column, item_path};
use serde_json::{Value, json};

use super::targets::{connect_all, run_next, wait_until_finished};
use super::{create, servers};

#[tokio::test]
async fn equal_outputs_are_grouped_largest_first() {
    let workspace = Workspace::new().await;
    let all = servers(&workspace, &["a", "b", "c", "d", "e"]).await;
    let mut agents = connect_all(&workspace, &all[..4]).await;
    let body = json!({"targets": {"all": true}, "line": "id"});
    let batch = workspace.admin.post(BATCHES, &body).await.expect(201);
    let long = "x".repeat(5_000);
    let results = [(0, "same"), (1, "same"), (0, long.as_str()), (0, "same")];
    let mut commands = Vec::new();
    for (agent, (code, result)) in agents.iter_mut().zip(results) {
        commands.push(run_next(agent, code, result).await);
    }
    wait_until_finished(&workspace.admin, &batch).await;
    let path = format!("{}outputs/", item_path(BATCHES, &batch));
    let list = workspace.admin.get(&path).await.expect(200);
    assert_eq!(list["count"], 4);
    let largest = &list["results"][0];
    assert_eq!(
        (&largest["count"], &largest["state"], &largest["exit_code"]),
        (&json!(2), &json!("success"), &json!(0))
    );
    assert_eq!((&largest["result"], &largest["result_truncated"]), (&json!("same"), &json!(false)));
    let targets = json!([
        {"server": all[0]["id"], "server_name": "a", "command": commands[0]},
        {"server": all[3]["id"], "server_name": "d", "command": commands[3]},
    ]);
    assert_eq!(largest["targets"], targets);
    assert_eq!(column(&list, "exit_code")[1..], [json!(1), json!(0), json!(null)]);
    assert_eq!(list["results"][1]["output_sha256"], largest["output_sha256"]);
    let cut = &list["results"][2];
    assert_eq!(cut["result"].as_str().unwrap().chars().count(), 4_096);
    assert_eq!(cut["result_truncated"], true);
    assert!(cut["output_sha256"].is_string() && cut["output_sha256"] != largest["output_sha256"]);
    let skipped = &list["results"][3];
    assert_eq!(
        (&skipped["state"], &skipped["result"], &skipped["output_sha256"]),
        (&json!("skipped"), &json!(null), &json!(null))
    );
    assert_eq!(skipped["targets"][0]["command"], json!(null));
    let page = workspace.admin.get(&format!("{path}?page_size=1&page=2")).await.expect(200);
    assert_eq!(page["results"][0], list["results"][1]);
}

#[tokio::test]
async fn a_batch_without_ends_has_no_outputs() {
    let workspace = Workspace::new().await;
    servers(&workspace, &["a"]).await;
    let batch = create(&workspace.admin, json!({"all": true})).await.expect(201);
    let outputs = workspace.admin.get(&format!("{}outputs/", item_path(BATCHES, &batch))).await;
    assert_eq!(outputs.expect(200)["count"], 0);
}

#[tokio::test]
async fn a_request_can_wait_for_the_end() {
    let workspace = Workspace::new().await;
    let all = servers(&workspace, &["a"]).await;
    let mut agents = connect_all(&workspace, &all).await;
    let body = json!({"targets": {"all": true}, "line": "id"});
    let post = async |wait: &str| {
        let request = workspace.admin.request("POST", BATCHES).header("Prefer", wait).json(&body);
        workspace.admin.send(request).await
    };
    let (reply, _) = tokio::join!(post("wait=30"), run_next(&mut agents[0], 0, "ok"));
    assert_eq!(reply.header("Preference-Applied"), "wait=30");
    let batch = reply.expect(201);
    assert_eq!((&batch["state"], &batch["counts"]["success"]), (&json!("finished"), &json!(1)));
    let reply = post("wait=1").await;
    let batch: Value = reply.expect(201);
    assert_eq!((&batch["state"], &batch["finished_at"]), (&json!("running"), &json!(null)));
}

#[tokio::test]
async fn a_stream_shows_each_change_once_and_resumes() {
    let workspace = Workspace::new().await;
    let all = servers(&workspace, &["a", "b"]).await;
    let mut agents = connect_all(&workspace, &all[..1]).await;
    let body = json!({"targets": {"all": true}, "line": "id"});
    let batch = workspace.admin.post(BATCHES, &body).await.expect(201);
    let path = format!("{}stream/", item_path(BATCHES, &batch));
    let mut events = Events::open(&workspace.admin, &path).await.unwrap();
    let command = run_next(&mut agents[0], 0, "ok").await;
    let seen = changes(&mut events).await;
    let of = |server: &Value| {
        let states = seen.iter().filter(|(_, change)| change["server"] == server["id"]);
        states.map(|(_, change)| change["state"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(of(&all[0]).last(), Some(&json!("success")));
    assert_eq!(of(&all[1]), ["skipped"]);
    let (_, last) = seen.iter().rfind(|(_, change)| change["state"] == "success").unwrap();
    assert_eq!((&last["command"], &last["exit_code"]), (&json!(command), &json!(0)));
    // It resumes after the event that the client names, also after the end.
    let first = seen[0].0.to_string();
    let mut again = Events::resume(&workspace.admin, &path, Some(&first)).await.unwrap();
    assert_eq!(changes(&mut again).await, seen[1..]);
    let bad = workspace.admin.request("GET", &path).header("Last-Event-ID", "x");
    workspace.admin.send(bad).await.expect_fields(400, &["non_field_errors"]);
}

#[tokio::test]
async fn a_stream_can_show_the_newest_output() {
    let workspace = Workspace::new().await;
    let all = servers(&workspace, &["a", "b"]).await;
    let mut agents = connect_all(&workspace, &all[..1]).await;
    let body = json!({"targets": {"all": true}, "line": "id"});
    let batch = workspace.admin.post(BATCHES, &body).await.expect(201);
    let command = agents[0].next_command().await["id"].as_str().unwrap().to_owned();
    agents[0].ack(&command).await;
    agents[0].chunk(&command, 0, &"x".repeat(5_000)).await;
    let path = format!("{}stream/?output=true", item_path(BATCHES, &batch));
    // A stream that resumes shows the output of targets that run already.
    let mut events = Events::resume(&workspace.admin, &path, Some("1000")).await.unwrap();
    let output = |content: &str| {
        Block::Output(json!({"server": all[0]["id"], "command": command, "content": content}))
    };
    assert_eq!(events.next_event().await, Some(output(&"x".repeat(4_096))));
    agents[0].chunk(&command, 1, "ünd mehr\n").await;
    assert_eq!(events.next_event().await, Some(output("ünd mehr\n")));
    agents[0].fin(&command, 0, "").await;
    let end = events.next_event().await;
    assert!(matches!(&end, Some(Block::End(batch)) if batch["counts"]["success"] == 1), "{end:?}");
    let bad = format!("{}stream/?output=maybe", item_path(BATCHES, &batch));
    workspace.admin.get(&bad).await.expect_fields(400, &["output"]);
}

/// The changes until the end of a stream. Asserts that the end event has the finished batch.
async fn changes(events: &mut Events) -> Vec<(u32, Value)> {
    let mut changes = Vec::new();
    loop {
        match events.next_event().await {
            Some(Block::Change { seq, change }) => changes.push((seq, change)),
            Some(Block::End(batch)) => {
                assert_eq!(batch["state"], "finished", "{batch}");
                return changes;
            }
            other => panic!("the stream has no end event: {other:?}"),
        }
    }
}
