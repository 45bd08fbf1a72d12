//! Requests for batches that are refused, and change nothing (contract 13.1 to 13.4).

use farhand_tests::agents::{ScriptedAgent, wait_until_connected};
use farhand_tests::client::Workspace;
use farhand_tests::commands::stored_bytes;
use farhand_tests::people::{BATCHES, GROUPS, MEMBERSHIPS, Person, UNKNOWN_UUID, item_path};
use farhand_tests::{Instance, eventually, far_ahead};
use serde_json::{Value, json};

use super::{create, selected, servers, waiting};

/// The body of a batch with other fields.
fn with(more: Value) -> Value {
    let mut body = waiting(json!({"all": true}));
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn bad_fields_are_400() {
    let workspace = Workspace::new().await;
    servers(&workspace, &["a"]).await;
    for (more, field) in [
        (json!({"targets": null}), "targets"),
        (json!({"targets": {}}), "targets"),
        (json!({"targets": "all"}), "targets"),
        (json!({"targets": {"all": "yes"}}), "all"),
        (json!({"targets": {"servers": "a"}}), "servers"),
        (json!({"targets": {"groups": ["a"]}}), "groups"),
        (json!({"targets": {"selector": "env="}, "x": 1}), "x"),
        (json!({"targets": {"selector": "env in ("}}), "selector"),
        (json!({"targets": {"all": true, "label": "x"}}), "label"),
        (json!({"server": "a"}), "server"),
        (json!({"server": null}), "server"),
        (json!({"line": ""}), "line"),
        (json!({"line": null}), "line"),
        (json!({"argv": ["id"]}), "argv"),
        (json!({"shell": "bash"}), "shell"),
        (json!({"username": ""}), "username"),
        (json!({"timeout": 0}), "timeout"),
        (json!({"max_concurrency": 0}), "max_concurrency"),
        (json!({"max_concurrency": 5_001}), "max_concurrency"),
        (json!({"max_concurrency": "0%"}), "max_concurrency"),
        (json!({"max_concurrency": "101%"}), "max_concurrency"),
        (json!({"max_errors": -1}), "max_errors"),
        (json!({"max_errors": "1"}), "max_errors"),
        (json!({"ramp": "yes"}), "ramp"),
        (json!({"on_offline": "drop"}), "on_offline"),
        (json!({"name": "x".repeat(129)}), "name"),
        (json!({"dry_run": 1}), "dry_run"),
        (json!({"expires_at": "2020-01-01T00:00:00Z"}), "expires_at"),
        (json!({"scheduled_at": "tomorrow"}), "scheduled_at"),
        (json!({"batch": "x"}), "batch"),
    ] {
        workspace.admin.post(BATCHES, &with(more)).await.expect_fields(400, &[field]);
    }
    let nothing = workspace.admin.post(BATCHES, &json!({})).await;
    nothing.expect_fields(400, &["line", "targets"]);
    assert_eq!(workspace.admin.get(BATCHES).await.expect(200)["count"], 0);
}

#[tokio::test]
async fn unknown_servers_and_groups_are_400() {
    let workspace = Workspace::new().await;
    let other = Workspace::new().await;
    servers(&workspace, &["a"]).await;
    let foreign = other.server("b").await;
    let foreign_group = other.admin.post(GROUPS, &json!({"name": "ops"})).await.expect(201);
    for unknown in [json!("b"), json!(UNKNOWN_UUID), foreign["id"].clone()] {
        let refused = create(&workspace.admin, json!({"servers": ["a", unknown]})).await;
        refused.expect_fields(400, &["servers"]);
    }
    let refused =
        create(&workspace.admin, json!({"all": true, "groups": [foreign_group["id"]]})).await;
    refused.expect_fields(400, &["groups"]);
    let both = create(&workspace.admin, json!({"servers": ["b"], "groups": [99]})).await;
    both.expect_fields(400, &["groups", "servers"]);
}

#[tokio::test]
async fn a_selection_without_servers_is_400() {
    let workspace = Workspace::new().await;
    for targets in [json!({"all": true}), json!({"selector": "env"})] {
        create(&workspace.admin, targets).await.expect_fields(400, &["targets"]);
    }
    let user = workspace.user("ursula").await;
    workspace.server("a").await;
    create(&user, json!({"all": true})).await.expect_fields(400, &["targets"]);
}

#[tokio::test]
async fn an_account_that_is_refused_on_one_server_refuses_the_batch() {
    let workspace = Workspace::new().await;
    let all = servers(&workspace, &["a", "b"]).await;
    let user = Person::new(&workspace, "mia").await;
    for (server, role) in [(0, "manager"), (1, "member")] {
        let group = json!({"name": role, "servers": [all[server]["id"]]});
        let group = workspace.admin.post(GROUPS, &group).await.expect(201);
        let membership = json!({"group": group["id"], "user": user.id, "role": role});
        workspace.admin.post(MEMBERSHIPS, &membership).await.expect(201);
    }
    let refused = user.api.post(BATCHES, &with(json!({"username": "root"}))).await;
    refused.expect_detail(403, None);
    assert!(
        refused.json()["detail"].as_str().unwrap().ends_with("The server is b."),
        "{}",
        refused.text
    );
    user.api.post(BATCHES, &with(json!({"groupname": "www"}))).await.expect_detail(403, None);
    user.api.post(BATCHES, &with(json!({"shell": "internal"}))).await.expect_detail(403, None);
    let allowed = json!({"targets": {"servers": ["a"]}, "username": "root"});
    user.api.post(BATCHES, &with(allowed)).await.expect(201);
    user.api.post(BATCHES, &with(json!({}))).await.expect(201);
    let denied = workspace.admin.get("/api/audit/events/?action=batch.create&outcome=denied").await;
    let denied = denied.expect(200);
    // The first one is the event. The others are counted for the event of the next minute.
    assert_eq!(denied["count"], 1);
    assert_eq!(denied["results"][0]["details"]["code"], "PERMISSION_DENIED");
    assert_eq!(denied["results"][0]["details"]["total"], 2);
}

#[tokio::test]
async fn offline_targets_are_refused_on_request() {
    let workspace = Workspace::new().await;
    let all = servers(&workspace, &["a", "b"]).await;
    let _agent = ScriptedAgent::connect(&workspace, &all[0]).await;
    wait_until_connected(&workspace, all[0]["id"].as_str().unwrap(), true).await;
    let reject = |targets: Value| with(json!({"targets": targets, "on_offline": "reject"}));
    let refused = workspace.admin.post(BATCHES, &reject(json!({"all": true}))).await;
    refused.expect_detail(503, Some("SERVER_NOT_CONNECTED"));
    assert_eq!(workspace.admin.get(BATCHES).await.expect(200)["count"], 0);
    let mut later = reject(json!({"all": true}));
    later["scheduled_at"] = json!(far_ahead());
    workspace.admin.post(BATCHES, &later).await.expect(201);
    let mut dry_run = reject(json!({"servers": ["a"]}));
    dry_run["dry_run"] = json!(true);
    workspace.admin.post(BATCHES, &dry_run).await.expect(200);
}

#[tokio::test]
async fn pending_servers_are_selected_only_by_name_and_refused() {
    let workspace = Workspace::new().await;
    servers(&workspace, &["a"]).await;
    let group = workspace.admin.post(GROUPS, &json!({"name": "ops"})).await.expect(201);
    let token = json!({"name": "hosts", "approval": true, "groups": [group["id"]], "labels": {"env": "prod"}});
    let token = workspace.admin.post("/api/servers/registration-tokens/", &token).await.expect(201);
    let host = workspace.anonymous.with_token(token["key"].as_str().unwrap());
    let server = json!({"name": "new", "platform": "debian"});
    let server = host.post("/api/servers/servers/register/", &server).await.expect(201);
    assert_eq!(selected(&workspace.admin, json!({"all": true})).await, ["a"]);
    for targets in [json!({"selector": "env=prod"}), json!({"groups": [group["id"]]})] {
        create(&workspace.admin, targets).await.expect_fields(400, &["targets"]);
    }
    for named in [json!("new"), server["id"].clone()] {
        let refused = create(&workspace.admin, json!({"servers": ["a", named]})).await;
        refused.expect_detail(409, Some("SERVER_PENDING"));
    }
    assert_eq!(workspace.admin.get(BATCHES).await.expect(200)["count"], 0);
}

#[tokio::test]
async fn quotas_limit_open_batches_waiting_targets_and_bytes() {
    let quotas = [
        ("QUOTA_BATCHES_PER_USER", "2"),
        ("QUOTA_BATCHES_PER_WORKSPACE", "3"),
        ("QUOTA_WAITING_PER_WORKSPACE", "20"),
        ("QUOTA_BYTES_PER_DAY", "50000"),
    ];
    let (instance, _state) = Instance::new_with(&quotas).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    servers(&workspace, &["a", "b"]).await;
    let at = far_ahead();
    let body = |line: &str| json!({"targets": {"all": true}, "line": line, "scheduled_at": at});
    // Its commands would be more than the whole quota.
    let long = workspace.admin.post(BATCHES, &body(&"x".repeat(16_000))).await;
    long.expect_fields(400, &["targets"]);
    workspace.admin.post(BATCHES, &body("id")).await.expect(201);
    // Of two concurrent requests, one gets the last place.
    let (first, second) = (body("id"), body("ls"));
    let (one, other) =
        tokio::join!(workspace.admin.post(BATCHES, &first), workspace.admin.post(BATCHES, &second));
    let mut statuses = [one.status, other.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 429]);
    let staff = workspace.staff("sam").await;
    staff.post(BATCHES, &body("id")).await.expect(201);
    staff.post(BATCHES, &body("id")).await.expect_detail(429, Some("QUOTA_EXCEEDED"));
    // Six pending targets leave room for 14 commands.
    let command = json!({"server": "a", "line": "id", "scheduled_at": at});
    for _ in 0..14 {
        workspace.admin.post("/api/events/commands/", &command).await.expect(201);
    }
    let full = workspace.admin.post("/api/events/commands/", &command).await;
    full.expect_detail(429, Some("QUOTA_EXCEEDED"));
}

#[tokio::test]
async fn pending_targets_leave_no_room_for_more_than_the_quota() {
    let (instance, _state) = Instance::new_with(&[("QUOTA_WAITING_PER_WORKSPACE", "3")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    servers(&workspace, &["a", "b"]).await;
    let body = json!({"targets": {"all": true}, "line": "id", "scheduled_at": far_ahead()});
    workspace.admin.post(BATCHES, &body).await.expect(201);
    workspace.admin.post(BATCHES, &body).await.expect_detail(429, Some("QUOTA_EXCEEDED"));
}

/// The rows of targets that end skipped cost as much as those of others.
#[tokio::test]
async fn targets_without_a_command_count_for_the_bytes_of_the_day() {
    let (instance, _state) = Instance::new_with(&[("QUOTA_BYTES_PER_DAY", "12000")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    servers(&workspace, &["a", "b"]).await;
    let body = json!({"targets": {"all": true}, "line": "id", "on_offline": "skip"});
    for _ in 0..2 {
        let path = item_path(BATCHES, &workspace.admin.post(BATCHES, &body).await.expect(201));
        eventually("the batch's end", || async {
            let batch = workspace.admin.get(&path).await.expect(200);
            (batch["counts"]["skipped"] == 2 && batch["finished_at"].is_string()).then_some(())
        })
        .await;
    }
    // The changes that prepared the test count, too.
    let stored = stored_bytes(&instance, "acme");
    let refused = workspace.admin.post(BATCHES, &body).await;
    refused.expect_detail(429, Some("QUOTA_EXCEEDED"));
    assert!(!refused.header("Retry-After").is_empty());
    assert_eq!(workspace.admin.get(BATCHES).await.expect(200)["count"], 2);
    assert_eq!(stored_bytes(&instance, "acme"), stored, "a refused batch counts nothing");
}
