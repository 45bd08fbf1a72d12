//! How a batch starts its commands and ends.

use farhand_domain::time::Timestamp;
use farhand_tests::agents::{RealAgent, own_account};
use farhand_tests::commands::wait_until_ended;
use farhand_tests::people::{COMMANDS, Person, SERVERS, item_path};
use farhand_tests::{eventually, now};
use serde_json::json;

use super::fleet::Fleet;

/// The time some seconds from now.
fn in_seconds(seconds: i64) -> String {
    now().plus_seconds(seconds).to_string()
}

#[tokio::test]
async fn a_batch_runs_once_on_each_server() {
    let mut fleet = Fleet::new(4, 4).await;
    let batch = fleet.batch(json!({"timeout": 77, "stdin": "hello"})).await;
    assert_eq!((&batch["state"], &batch["counts"]["total"]), (&json!("running"), &json!(4)));
    let mut ids = Vec::new();
    for place in 0..4 {
        let order = fleet.run(place).await;
        assert_eq!((&order["line"], &order["stdin"]), (&json!("uptime"), &json!("hello")));
        assert_eq!(order["timeout"], 77);
        ids.push(order["id"].as_str().unwrap().to_owned());
    }
    fleet.wait_for_count(&batch, "running", 4).await;
    for (place, id) in ids.iter().enumerate() {
        fleet.agents[&place].fin(id, i32::from(place == 3), "output\n").await;
    }
    let ended = fleet.wait_until_ended(&batch).await;
    assert_eq!((&ended["state"], &ended["stopped_by"]), (&json!("finished"), &json!(null)));
    assert_eq!((&ended["counts"]["success"], &ended["counts"]["failed"]), (&json!(3), &json!(1)));
    let targets = fleet.targets(&batch).await;
    for (place, target) in targets.iter().enumerate() {
        assert_eq!(target["command"], json!(ids[place]));
        assert_eq!(target["exit_code"], i32::from(place == 3));
        let command =
            fleet.workspace.admin.get(&format!("{COMMANDS}{}/", ids[place])).await.expect(200);
        assert_eq!(command["server"], fleet.servers[place]["id"]);
        assert_eq!(command["requested_by"]["id"], batch["requested_by"]["id"]);
        assert_eq!(command["expires_at"], batch["expires_at"]);
    }
    assert!(fleet.are_silent().await);
    // Each command has one audit event of its creation and one of its end.
    for id in &ids {
        eventually("the audit events", || async {
            let path = format!("/api/audit/events/?object={id}&page_size=100");
            let events = fleet.workspace.admin.get(&path).await.expect(200);
            let events = events["results"].as_array().unwrap();
            let count =
                |action: &str| events.iter().filter(|event| event["action"] == action).count();
            (count("command.create") == 1 && count("command.finish") == 1).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn offline_targets_are_skipped() {
    let mut fleet = Fleet::new(3, 1).await;
    let batch = fleet.batch(json!({})).await;
    fleet.finish(0, 0).await;
    let ended = fleet.wait_until_ended(&batch).await;
    assert_eq!((&ended["counts"]["success"], &ended["counts"]["skipped"]), (&json!(1), &json!(2)));
    let targets = fleet.targets(&batch).await;
    assert_eq!(targets[1]["command"], json!(null));
    assert_eq!(targets[1]["reason"], json!("Its server was offline."));
}

#[tokio::test]
async fn a_queued_target_starts_when_its_server_connects() {
    let mut fleet = Fleet::new(3, 1).await;
    let expires_at = in_seconds(25);
    let fields = json!({"on_offline": "queue", "max_concurrency": 1, "expires_at": expires_at});
    let batch = fleet.batch(fields).await;
    // Queued targets hold no slot.
    fleet.wait_for_count(&batch, "queued", 2).await;
    fleet.finish(0, 0).await;
    fleet.connect(2).await;
    fleet.finish(2, 0).await;
    let ended = fleet.wait_until_ended(&batch).await;
    assert_eq!((&ended["counts"]["success"], &ended["counts"]["expired"]), (&json!(2), &json!(1)));
    let targets = fleet.targets(&batch).await;
    assert_eq!(targets[1]["command"], json!(null));
    assert!(targets[1]["reason"].as_str().unwrap().contains("expires_at"), "{}", targets[1]);
    // A server that connects later gets nothing.
    fleet.connect(1).await;
    assert!(fleet.are_silent().await);
}

#[tokio::test]
async fn a_scheduled_batch_begins_at_its_time() {
    let mut fleet = Fleet::new(2, 2).await;
    let scheduled_at = in_seconds(8);
    let batch = fleet.batch(json!({"scheduled_at": scheduled_at})).await;
    assert_eq!(batch["state"], "scheduled");
    for place in 0..2 {
        let order = fleet.finish(place, 0).await;
        let command = wait_until_ended(&fleet.workspace.admin, order["id"].as_str().unwrap()).await;
        let added_at = Timestamp::parse(command["added_at"].as_str().unwrap()).unwrap();
        assert!(added_at >= Timestamp::parse(&scheduled_at).unwrap(), "{command}");
    }
    let ended = fleet.wait_until_ended(&batch).await;
    assert_eq!(ended["counts"]["success"], 2);
}

#[tokio::test]
async fn permissions_are_checked_again_before_each_start() {
    let mut fleet = Fleet::new(2, 2).await;
    let mut person = Person::staff(&fleet.workspace, "carol").await;
    let token = person.with_api_token().await;
    let before = json!({"username": "root", "scheduled_at": in_seconds(12)});
    let by_token = fleet.batch_of(&token, before.clone()).await;
    let by_session = fleet.batch_of(&person.api, before).await;
    // Without staff rank, carol keeps the first server, and loses access to the second one. Her
    // sessions end without `keep_scheduled`.
    person.own(&fleet.workspace, &fleet.servers[0]).await;
    let sessions = person.api.get("/api/auth/sessions/").await.expect(200);
    let session = item_path("/api/auth/sessions/", &sessions["results"][0]);
    person.api.delete(&session).await.expect(204);
    person.api =
        fleet.workspace.anonymous.logged_in("carol", farhand_tests::client::PASSWORD).await;
    person.demote(&fleet.workspace).await;

    let order = fleet.finish(0, 0).await;
    assert_eq!(order["user"], "root");
    let ended = fleet.wait_until_ended(&by_token).await;
    assert_eq!(
        (&ended["counts"]["success"], &ended["counts"]["cancelled"]),
        (&json!(1), &json!(1))
    );
    let targets = fleet.targets(&by_token).await;
    assert!(targets[1]["reason"].as_str().unwrap().contains("has no access"), "{}", targets[1]);
    let ended = fleet.wait_until_ended(&by_session).await;
    assert_eq!(ended["counts"]["cancelled"], 2);
    let targets = fleet.targets(&by_session).await;
    assert!(targets[0]["reason"].as_str().unwrap().contains("revoked"), "{}", targets[0]);
    assert!(fleet.are_silent().await);
}

#[tokio::test]
async fn each_server_has_its_own_default_account() {
    let mut fleet = Fleet::new(2, 2).await;
    let path = item_path(SERVERS, &fleet.servers[0]);
    fleet.workspace.admin.patch(&path, &json!({"default_username": "deploy"})).await.expect(200);
    let batch = fleet.batch(json!({})).await;
    assert_eq!(fleet.finish(0, 0).await["user"], "deploy");
    assert_eq!(fleet.finish(1, 0).await["user"], batch["requested_by"]["username"]);
    fleet.wait_until_ended(&batch).await;
}

#[tokio::test]
async fn targets_of_deleted_servers_end() {
    let mut fleet = Fleet::new(3, 2).await;
    let batch = fleet.batch(json!({"on_offline": "queue", "max_concurrency": 1})).await;
    fleet.wait_for_count(&batch, "sent", 1).await;
    fleet.delete(1).await;
    fleet.delete(2).await;
    fleet.finish(0, 0).await;
    let ended = fleet.wait_until_ended(&batch).await;
    assert_eq!(
        (&ended["counts"]["success"], &ended["counts"]["cancelled"]),
        (&json!(1), &json!(2))
    );
}

#[tokio::test]
async fn an_agent_without_a_feature_fails_its_target() {
    let mut fleet = Fleet::new(2, 2).await;
    let batch = fleet.batch(json!({"cwd": "/tmp"})).await;
    let ended = fleet.wait_until_ended(&batch).await;
    assert_eq!(ended["counts"]["failed"], 2);
    let targets = fleet.targets(&batch).await;
    let reason = targets[0]["reason"].as_str().unwrap();
    assert!(reason.contains("another directory"), "{reason}");
    assert!(fleet.are_silent().await);
}

#[tokio::test]
async fn a_command_waits_in_the_object_if_its_agent_has_just_left() {
    let mut fleet = Fleet::new(1, 1).await;
    let batch =
        fleet.batch(json!({"scheduled_at": in_seconds(4), "expires_at": in_seconds(60)})).await;
    fleet.agents.remove(&0).unwrap().close().await;
    let ended = eventually("the start", || async {
        let read = fleet.read(&batch).await;
        (read["counts"]["pending"] == 0).then_some(read)
    })
    .await;
    // The disconnection reached D1 in time, or not: then the command waits.
    if ended["counts"]["skipped"] == 0 {
        fleet.connect(0).await;
        fleet.finish(0, 0).await;
        assert_eq!(fleet.wait_until_ended(&batch).await["counts"]["success"], 1);
    }
}

#[tokio::test]
async fn a_real_agent_runs_a_batch() {
    let fleet = Fleet::new(1, 0).await;
    let _agent = RealAgent::start(&fleet.workspace, &fleet.servers[0]).await;
    let fields = json!({"line": "cat; echo $GREETING", "username": own_account(), "stdin": "in\n",
        "env": {"GREETING": "hello"}});
    let batch = fleet.batch(fields).await;
    let ended = fleet.wait_until_ended(&batch).await;
    assert_eq!(ended["counts"]["success"], 1);
    let targets = fleet.targets(&batch).await;
    let path = format!("{COMMANDS}{}/", targets[0]["command"].as_str().unwrap());
    assert_eq!(fleet.workspace.admin.get(&path).await.expect(200)["result"], "in\nhello\n");
}
