//! Creation of batches (contract 13.1 to 13.4).

use farhand_tests::agents::{ScriptedAgent, wait_until_connected};
use farhand_tests::client::Workspace;
use farhand_tests::far_ahead;
use farhand_tests::people::{BATCHES, GROUPS, MEMBERSHIPS, Person, item_path};
use serde_json::{Value, json};

use super::{create, selected, servers, target_names, waiting};

#[tokio::test]
async fn a_batch_shows_what_was_requested() {
    let workspace = Workspace::new().await;
    servers(&workspace, &["a", "b", "c", "d", "e"]).await;
    let body = json!({
        "targets": {"all": true}, "argv": ["echo", "a b"], "username": "deploy", "groupname": "www",
        "timeout": 60, "on_offline": "queue", "max_concurrency": "30%", "max_errors": "30%", "ramp": true,
        "name": "greet",
    });
    let reply = workspace.admin.post(BATCHES, &body).await;
    let batch = reply.expect(201);
    assert!(reply.header("Location").ends_with(&item_path(BATCHES, &batch)), "{:?}", reply.headers);
    for (field, value) in [
        ("name", json!("greet")),
        ("shell", json!("system")),
        ("line", json!("echo 'a b'")),
        ("username", json!("deploy")),
        ("groupname", json!("www")),
        ("timeout", json!(60)),
        ("max_concurrency", json!(2)),
        ("max_errors", json!(1)),
        ("ramp", json!(true)),
        ("on_offline", json!("queue")),
        ("schedule", json!(null)),
        ("retry_of", json!(null)),
        ("stopped_by", json!(null)),
        ("finished_at", json!(null)),
    ] {
        assert_eq!(batch[field], value, "{field}");
    }
    assert_eq!(batch["requested_by"]["username"], "boss");
    assert_eq!(batch["scheduled_at"], batch["added_at"]);
    assert_eq!(batch["counts"]["total"], 5);
    let read = workspace.admin.get(&item_path(BATCHES, &batch)).await.expect(200);
    assert_eq!((&read["id"], &read["line"]), (&batch["id"], &batch["line"]));
}

#[tokio::test]
async fn defaults_and_a_start_in_the_future() {
    let workspace = Workspace::new().await;
    servers(&workspace, &["a"]).await;
    let at = "2036-01-01T00:00:00.000000+00:00";
    let refused = json!({"targets": {"all": true}, "line": "id", "scheduled_at": at});
    workspace.admin.post(BATCHES, &refused).await.expect_fields(400, &["scheduled_at"]);
    let at = far_ahead();
    let body = json!({"targets": {"all": true}, "line": "id", "scheduled_at": at});
    let batch = workspace.admin.post(BATCHES, &body).await.expect(201);
    assert_eq!((&batch["state"], &batch["username"]), (&json!("scheduled"), &json!(null)));
    assert_eq!((&batch["max_concurrency"], &batch["max_errors"]), (&json!(50), &json!(null)));
    assert_eq!((&batch["on_offline"], &batch["name"]), (&json!("skip"), &json!("")));
    assert_eq!(batch["counts"]["pending"], 1);
    assert!(batch["expires_at"].as_str() > batch["scheduled_at"].as_str());
}

#[tokio::test]
async fn a_selection_is_a_union_and_frozen() {
    let workspace = Workspace::new().await;
    let all = servers(&workspace, &["a", "b", "c", "d"]).await;
    let group = workspace
        .admin
        .post(GROUPS, &json!({"name": "ops", "servers": [all[2]["id"]]}))
        .await
        .expect(201);
    for (server, env) in [(0, "prod"), (1, "test")] {
        let path = item_path("/api/servers/servers/", &all[server]);
        workspace.admin.patch(&path, &json!({"labels": {"env": env}})).await.expect(200);
    }
    let admin = &workspace.admin;
    assert_eq!(selected(admin, json!({"servers": ["d", all[0]["id"], "a"]})).await, ["a", "d"]);
    assert_eq!(selected(admin, json!({"groups": [group["id"]]})).await, ["c"]);
    assert_eq!(selected(admin, json!({"selector": "env=prod"})).await, ["a"]);
    assert_eq!(selected(admin, json!({"selector": "env"})).await, ["a", "b"]);
    assert_eq!(selected(admin, json!({"all": true})).await, ["a", "b", "c", "d"]);
    let union = json!({"servers": ["d"], "groups": [group["id"]], "selector": "env=test"});
    assert_eq!(selected(admin, union.clone()).await, ["b", "c", "d"]);
    let batch = create(admin, union).await.expect(201);
    let group_path = format!("{GROUPS}{}/", group["id"]);
    admin.patch(&group_path, &json!({"servers": []})).await.expect(200);
    servers(&workspace, &["e"]).await;
    assert_eq!(target_names(admin, &batch).await, ["b", "c", "d"]);
}

#[tokio::test]
async fn selections_contain_only_servers_that_the_caller_can_access() {
    let workspace = Workspace::new().await;
    let all = servers(&workspace, &["a", "b", "c"]).await;
    let ids: Vec<&Value> = all[..2].iter().map(|server| &server["id"]).collect();
    let group =
        workspace.admin.post(GROUPS, &json!({"name": "ops", "servers": ids})).await.expect(201);
    let member = Person::new(&workspace, "mia").await;
    let membership = json!({"group": group["id"], "user": member.id, "role": "member"});
    workspace.admin.post(MEMBERSHIPS, &membership).await.expect(201);
    assert_eq!(selected(&member.api, json!({"all": true})).await, ["a", "b"]);
    assert_eq!(selected(&member.api, json!({"selector": "!env"})).await, ["a", "b"]);
    assert_eq!(selected(&member.api, json!({"groups": [group["id"]]})).await, ["a", "b"]);
    let outside = create(&member.api, json!({"servers": ["a", "c"]})).await;
    let body = outside.expect_fields(400, &["servers"]);
    assert!(body["servers"][0].as_str().unwrap().contains(": c."), "{body}");
}

#[tokio::test]
async fn a_dry_run_creates_nothing() {
    let workspace = Workspace::new().await;
    let all = servers(&workspace, &["a", "b"]).await;
    let path = item_path("/api/servers/servers/", &all[0]);
    workspace.admin.patch(&path, &json!({"default_username": "web"})).await.expect(200);
    let _agent = ScriptedAgent::connect(&workspace, &all[1]).await;
    wait_until_connected(&workspace, all[1]["id"].as_str().unwrap(), true).await;
    let body =
        json!({"targets": {"all": true}, "line": "id", "dry_run": true, "max_errors": "50%"});
    let plan = workspace.admin.post(BATCHES, &body).await.expect(200);
    let expected = json!({
        "dry_run": true, "total": 2, "max_concurrency": 50, "max_errors": 1, "targets": [
            {"server": all[0]["id"], "server_name": "a", "username": "web", "is_connected": false},
            {"server": all[1]["id"], "server_name": "b", "username": "boss", "is_connected": true},
        ],
    });
    assert_eq!(plan, expected);
    assert_eq!(workspace.admin.get(BATCHES).await.expect(200)["count"], 0);
}

#[tokio::test]
async fn inputs_are_never_shown() {
    let workspace = Workspace::new().await;
    servers(&workspace, &["a"]).await;
    let mut body = waiting(json!({"all": true}));
    body["env"] = json!({"API_KEY": "s3cret-value"});
    body["stdin"] = json!("s3cret-input");
    body["cwd"] = json!("/srv");
    let reply = workspace.admin.post(BATCHES, &body).await;
    let batch = reply.expect(201);
    let read = workspace.admin.get(&item_path(BATCHES, &batch)).await;
    let events = workspace.admin.get("/api/audit/events/?action=batch.create").await;
    for text in [&reply.text, &read.text, &events.text] {
        assert!(!text.contains("s3cret"), "{text}");
    }
    let details = &events.expect(200)["results"][0]["details"];
    assert_eq!((&details["env"], &details["cwd"]), (&json!(["API_KEY"]), &json!("/srv")));
}

#[tokio::test]
async fn a_creation_is_audited() {
    let workspace = Workspace::new().await;
    servers(&workspace, &["a", "b"]).await;
    let mut body = waiting(json!({"servers": ["a"], "selector": "!env"}));
    body["name"] = json!("greet");
    let batch = workspace.admin.post(BATCHES, &body).await.expect(201);
    let path =
        format!("/api/audit/events/?action=batch.create&object={}", batch["id"].as_str().unwrap());
    let events = workspace.admin.get(&path).await.expect(200);
    assert_eq!(events["count"], 1, "{events}");
    let event = &events["results"][0];
    assert_eq!((&event["object"]["name"], &event["outcome"]), (&json!("greet"), &json!("success")));
    assert_eq!(event["actor"]["name"], "boss");
    let details = &event["details"];
    assert_eq!((&details["line"], &details["total"]), (&json!("id"), &json!(2)));
    assert_eq!(details["targets"]["selector"], "!env");
    assert_eq!(details["targets"]["servers"], json!(["a"]));
}
