//! Cancelling and killing a running batch.

use farhand_tests::agents::wait_until_connected;
use farhand_tests::client::Api;
use farhand_tests::people::{Person, USERS, item_path};
use serde_json::{Value, json};

use super::fleet::{Fleet, PATH};

async fn stop(api: &Api, batch: &Value, how: &str) -> farhand_tests::client::Reply {
    api.call("POST", &format!("{}{how}/", item_path(PATH, batch))).await
}

#[tokio::test]
async fn a_cancelled_batch_starts_nothing_more_and_its_commands_go_on() {
    let mut fleet = Fleet::new(4, 3).await;
    let batch = fleet.batch(json!({"max_concurrency": 2, "on_offline": "queue"})).await;
    let orders = [fleet.run(0).await, fleet.run(1).await];
    fleet.wait_for_count(&batch, "running", 2).await;
    stop(&fleet.workspace.admin, &batch, "cancel").await.expect(200);
    let stopping = fleet.wait_for_count(&batch, "cancelled", 2).await;
    assert_eq!(
        (&stopping["state"], &stopping["stopped_by"]),
        (&json!("stopping"), &json!("cancel"))
    );
    for (place, order) in orders.iter().enumerate() {
        fleet.agents[&place].fin(order["id"].as_str().unwrap(), 0, "").await;
    }
    let ended = fleet.wait_until_ended(&batch).await;
    assert_eq!((&ended["state"], &ended["stopped_by"]), (&json!("cancelled"), &json!("cancel")));
    assert_eq!(ended["counts"]["success"], 2);
    let targets = fleet.targets(&batch).await;
    assert_eq!(targets[2]["command"], json!(null));
    assert_eq!(targets[2]["reason"], json!("The batch was cancelled."));
    fleet.connect(3).await;
    assert!(fleet.are_silent().await);
}

#[tokio::test]
async fn a_killed_batch_also_kills_what_runs() {
    let mut fleet = Fleet::new(3, 3).await;
    let batch = fleet.batch(json!({"max_concurrency": 2})).await;
    let orders = [fleet.run(0).await, fleet.run(1).await];
    stop(&fleet.workspace.admin, &batch, "kill").await.expect(202);
    for (place, order) in orders.iter().enumerate() {
        let agent = fleet.agents.get_mut(&place).unwrap();
        let message = agent.next().await.unwrap();
        assert_eq!((&message["query"], &message["id"]), (&json!("kill"), &order["id"]));
        agent.fin(order["id"].as_str().unwrap(), 137, "").await;
    }
    let ended = fleet.wait_until_ended(&batch).await;
    assert_eq!(ended["state"], "cancelled");
    assert_eq!((&ended["counts"]["failed"], &ended["counts"]["cancelled"]), (&json!(2), &json!(1)));
    assert!(fleet.are_silent().await);
}

#[tokio::test]
async fn a_killed_batch_kills_what_runs_on_a_disconnected_agent_when_it_returns() {
    let mut fleet = Fleet::new(1, 1).await;
    let batch = fleet.batch(json!({})).await;
    let order = fleet.run(0).await;
    fleet.wait_for_count(&batch, "running", 1).await;
    fleet.agents.remove(&0).unwrap().close().await;
    wait_until_connected(&fleet.workspace, fleet.id(0), false).await;
    // A kill of the single command is refused.
    let path = item_path("/api/events/commands/", &order);
    let refused = fleet.workspace.admin.call("POST", &format!("{path}kill/")).await;
    refused.expect_detail(409, Some("AGENT_CANNOT_KILL"));
    stop(&fleet.workspace.admin, &batch, "kill").await.expect(202);
    fleet.connect(0).await;
    let agent = fleet.agents.get_mut(&0).unwrap();
    let message = agent.next().await.unwrap();
    assert_eq!((&message["query"], &message["id"]), (&json!("kill"), &order["id"]));
    agent.fin(order["id"].as_str().unwrap(), 137, "").await;
    let ended = fleet.wait_until_ended(&batch).await;
    assert_eq!((&ended["state"], &ended["counts"]["failed"]), (&json!("cancelled"), &json!(1)));
}

#[tokio::test]
async fn commands_that_were_not_delivered_are_cancelled_with_their_batch() {
    let fleet = Fleet::new(1, 1).await;
    // The agent's 200 places are taken, so the command of the batch waits in the server's object.
    for _ in 0..200 {
        let body = json!({"server": fleet.id(0), "line": "sleep 1000"});
        fleet.workspace.admin.post("/api/events/commands/", &body).await.expect(201);
    }
    let batch = fleet.batch(json!({})).await;
    fleet.wait_for_count(&batch, "queued", 1).await;
    stop(&fleet.workspace.admin, &batch, "cancel").await.expect(200);
    let ended = fleet.wait_until_ended(&batch).await;
    assert_eq!((&ended["state"], &ended["counts"]["cancelled"]), (&json!("cancelled"), &json!(1)));
    let targets = fleet.targets(&batch).await;
    assert!(targets[0]["command"].is_string(), "{}", targets[0]);
    assert!(targets[0]["reason"].as_str().unwrap().contains("its batch was cancelled"));
}

/// A check of the next targets is valid for some seconds. The insertion of their commands checks the
/// credential again.
#[tokio::test]
async fn a_batch_without_a_valid_credential_starts_nothing_more() {
    const SESSIONS: &str = "/api/auth/sessions/";
    const TOKENS: &str = "/api/auth/tokens/";
    for way in ["session", "disabled", "deleted", "inactive"] {
        let mut fleet = Fleet::new(3, 3).await;
        let staff = Person::staff(&fleet.workspace, "sam").await;
        let new = json!({"name": "ci", "expires_at": null});
        let token = staff.api.post(TOKENS, &new).await.expect(201);
        let api = match way {
            "session" => staff.api.clone(),
            _ => fleet.workspace.anonymous.with_token(token["key"].as_str().unwrap()),
        };
        let batch = fleet.batch_of(&api, json!({"max_concurrency": 1})).await;
        let order = fleet.run(0).await;
        let token = item_path(TOKENS, &token);
        match way {
            "session" => {
                let sessions = staff.api.get(SESSIONS).await.expect(200);
                let own = item_path(SESSIONS, &sessions["results"][0]);
                staff.api.delete(&own).await.expect(204)
            }
            "disabled" => staff.api.patch(&token, &json!({"enabled": false})).await.expect(200),
            "deleted" => staff.api.delete(&token).await.expect(204),
            _ => {
                let user = format!("{USERS}{}/", staff.id);
                fleet.workspace.admin.patch(&user, &json!({"is_active": false})).await.expect(200)
            }
        };
        fleet.agents[&0].fin(order["id"].as_str().unwrap(), 0, "").await;
        let ended = fleet.wait_until_ended(&batch).await;
        assert_eq!(
            (&ended["counts"]["success"], &ended["counts"]["cancelled"]),
            (&json!(1), &json!(2)),
            "{way}"
        );
        for target in &fleet.targets(&batch).await[1..] {
            assert_eq!(
                (&target["command"], &target["started_at"]),
                (&json!(null), &json!(null)),
                "{way}"
            );
            assert!(
                target["reason"].as_str().unwrap().starts_with("Cancelled, "),
                "{way}: {target}"
            );
        }
        assert!(fleet.are_silent().await, "{way}");
    }
}
