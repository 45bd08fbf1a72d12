//! Runs of schedules with real agents (contract 14.5 and 14.6).

use std::time::Duration;

use farhand_domain::time::Timestamp;
use farhand_tests::agents::{RealAgent, own_account};
use farhand_tests::people::{Person, item_path};
use farhand_tests::{Workspace, eventually_within};
use serde_json::{Value, json};

use super::{BATCHES, SCHEDULES, create, patch, read, runs, runs_path, wait_for_batch};

fn time(value: &Value) -> Timestamp {
    Timestamp::parse(value.as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn a_schedule_runs_when_it_is_due() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    let servers = [workspace.server("web-1").await, workspace.server("web-2").await];
    let _agents = [
        RealAgent::start(&workspace, &servers[0]).await,
        RealAgent::start(&workspace, &servers[1]).await,
    ];
    let body = json!({
        "name": "minutely", "cron": "* * * * *", "line": "cat; echo $WHO", "username": own_account(),
        "env": {"WHO": "scheduled"}, "stdin": "input of ",
    });
    let made = create(&session, body).await;
    let due = made["next_runs"][0].clone();
    let run = eventually_within(Duration::from_secs(75), "a run", || async {
        runs(&session, &made).await.last().cloned()
    })
    .await;
    assert_eq!(
        (&run["outcome"], &run["reason"], &run["due_at"]),
        (&json!("started"), &Value::Null, &due)
    );
    let lag = time(&run["started_at"]).seconds_since(time(&run["due_at"]));
    assert!((0.0..2.0).contains(&lag), "the run started {lag} s late");
    let batch = wait_for_batch(&session, &run["batch"]).await;
    assert_eq!((&batch["schedule"], &batch["name"]), (&made["id"], &json!("minutely")));
    assert_eq!((&batch["counts"]["success"], &batch["counts"]["total"]), (&json!(2), &json!(2)));
    assert_eq!(batch["requested_by"]["username"], "boss");
    let targets =
        session.get(&format!("{BATCHES}{}/targets/", run["batch"].as_str().unwrap())).await;
    let command = targets.expect(200)["results"][0]["command"].clone();
    let path = format!("/api/events/commands/{}/", command.as_str().unwrap());
    let command = session.get(&path).await.expect(200);
    assert_eq!(command["result"], "input of scheduled\n");
    assert_eq!(command["batch"], batch["id"]);
    let after = read(&session, &made).await;
    assert!(time(&after["next_runs"][0]) > time(&due));
    assert_eq!(after["last_run"]["outcome"], "started");
    let event = workspace.admin.get("/api/audit/events/?action=batch.create").await.expect(200);
    let event = &event["results"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&event["actor"]["name"], &event["details"]["schedule"]),
        (&json!("boss"), &made["id"])
    );
    patch(&session, &made, json!({"enabled": false})).await;
}

#[tokio::test]
async fn a_run_on_request_is_a_batch_of_the_caller() {
    let workspace = Workspace::new().await;
    let (alice, carol) =
        (Person::new(&workspace, "alice").await, Person::staff(&workspace, "carol").await);
    let server = workspace.server("web-1").await;
    let agent = RealAgent::start(&workspace, &server).await;
    let group = workspace.group("ops", &[&server]).await;
    workspace.add_member(&group, &alice, "manager").await;
    let body = json!({"line": "echo ran", "username": own_account(), "enabled": false});
    let made = create(&alice.api, body).await;
    let path = format!("{}run/", item_path(SCHEDULES, &made));
    let reply = alice.api.call("POST", &path).await;
    let batch = reply.expect(201);
    assert!(reply.header("Location").ends_with(&item_path(BATCHES, &batch)));
    assert_eq!(
        (&batch["schedule"], &batch["requested_by"]["username"]),
        (&made["id"], &json!("alice"))
    );
    let ended = wait_for_batch(&alice.api, &batch["id"]).await;
    assert_eq!(ended["counts"]["success"], 1);
    let history = runs(&alice.api, &made).await;
    assert_eq!(history.len(), 1);
    assert_eq!((&history[0]["batch"], &history[0]["outcome"]), (&batch["id"], &json!("started")));
    assert_eq!(history[0]["due_at"], history[0]["started_at"]);
    // Staff run it as themselves.
    let of_staff = carol.api.call("POST", &path).await.expect(201);
    assert_eq!(of_staff["requested_by"]["username"], "carol");
    wait_for_batch(&carol.api, &of_staff["id"]).await;
    assert_eq!(runs(&alice.api, &made).await.len(), 2);
    assert_eq!(read(&alice.api, &made).await["owner"]["username"], "alice");
    // The same key creates one batch.
    let repeat = async || {
        let request = alice.api.request("POST", &path).header("Idempotency-Key", "once");
        alice.api.send(request).await
    };
    let (first, again) = (repeat().await, repeat().await);
    assert_eq!(first.expect(201)["id"], again.expect(201)["id"]);
    assert_eq!(again.header("Idempotent-Replayed"), "true");
    alice.api.post(&path, &json!({"line": "other"})).await.expect_fields(400, &["line"]);
    // A plain member may not name another account any more.
    wait_for_batch(&alice.api, &first.json()["id"]).await;
    let membership = workspace.membership(&group, &alice).await.unwrap();
    workspace.admin.delete(&item_path("/api/iam/memberships/", &membership)).await.expect(204);
    let refused = alice.api.call("POST", &path).await;
    refused.expect_fields(400, &["targets"]);
    workspace.add_member(&group, &alice, "member").await;
    alice.api.call("POST", &path).await.expect_detail(403, Some("PERMISSION_DENIED"));
    repeat().await.expect_detail(403, Some("PERMISSION_DENIED"));
    assert_eq!(runs(&alice.api, &made).await.len(), 3);
    alice
        .api
        .get(&format!("{}?page=2", runs_path(&made)))
        .await
        .expect_detail(404, Some("NOT_FOUND"));
    alice.api.get(&format!("{}?page=0", runs_path(&made))).await.expect_fields(400, &["page"]);
    drop(agent);
}
