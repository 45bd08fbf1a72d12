//! The list of batches, and the filters of commands by batch (contract 13.6).

use farhand_tests::client::{Api, Workspace};
use farhand_tests::people::{BATCHES, UNKNOWN_UUID, column, item_path};
use farhand_tests::{Instance, far_ahead};
use serde_json::{Value, json};

use super::{servers, waiting};

#[tokio::test]
async fn batches_are_listed_newest_first_with_filters() {
    let workspace = Workspace::new().await;
    servers(&workspace, &["a"]).await;
    let staff = workspace.staff("sam").await;
    let mut body = waiting(json!({"all": true}));
    let mut made = Vec::new();
    for (api, name) in [(&workspace.admin, "one"), (&staff, "two"), (&workspace.admin, "three")] {
        body["name"] = json!(name);
        made.push(api.post(BATCHES, &body).await.expect(201));
    }
    body["scheduled_at"] = json!(far_ahead());
    body["name"] = json!("later");
    made.push(workspace.admin.post(BATCHES, &body).await.expect(201));
    let names = async |query: &str| {
        let list = workspace.admin.get(&format!("{BATCHES}?{query}")).await.expect(200);
        assert_eq!(list["count"], list["results"].as_array().unwrap().len(), "{query}");
        column(&list, "name")
    };
    assert_eq!(names("").await, ["later", "three", "two", "one"]);
    assert_eq!(names("state=scheduled").await, ["later"]);
    assert_eq!(names("state=running,stopping").await, ["three", "two", "one"]);
    assert_eq!(names("state=finished,cancelled").await, [""; 0]);
    let sam = made[1]["requested_by"]["id"].clone();
    assert_eq!(names(&format!("requested_by={sam}")).await, ["two"]);
    assert_eq!(names("requested_by=99").await, [""; 0]);
    assert_eq!(names("name=one&state=running").await, ["one"]);
    assert_eq!(names(&format!("schedule={UNKNOWN_UUID}")).await, [""; 0]);
    let page = workspace.admin.get(&format!("{BATCHES}?page_size=3&page=2")).await.expect(200);
    assert_eq!((&page["count"], column(&page, "name")), (&json!(4), vec![json!("one")]));
    workspace.admin.get(&format!("{BATCHES}?page=3")).await.expect_detail(404, None);
    let wrong = format!("{BATCHES}?state=queued&requested_by=boss&schedule=x&page=0");
    workspace
        .admin
        .get(&wrong)
        .await
        .expect_fields(400, &["page", "requested_by", "schedule", "state"]);
}

#[tokio::test]
async fn counts_always_sum_to_total() {
    let workspace = Workspace::new().await;
    servers(&workspace, &["a", "b", "c"]).await;
    workspace.admin.post(BATCHES, &waiting(json!({"all": true}))).await.expect(201);
    let list = workspace.admin.get(BATCHES).await.expect(200);
    let counts: Value = list["results"][0]["counts"].clone();
    let others = counts.as_object().unwrap().iter().filter(|(name, _)| *name != "total");
    assert_eq!(others.map(|(_, number)| number.as_i64().unwrap()).sum::<i64>(), 3);
    assert_eq!(counts["total"], 3);
}

#[tokio::test]
async fn servers_are_listed_in_pages_of_up_to_a_thousand() {
    let workspace = Workspace::new().await;
    servers(&workspace, &["a", "b"]).await;
    let list = workspace.admin.get("/api/servers/?page_size=5000").await.expect(200);
    assert_eq!((&list["count"], &list["next"]), (&json!(2), &json!(null)));
    let commands = workspace.admin.get("/api/events/commands/?page_size=5000").await.expect(200);
    assert_eq!(commands["count"], 0);
}

/// The list of a token that is limited to servers reads a bounded number of rows.
#[tokio::test]
async fn a_token_with_servers_lists_the_newest_batches() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let all = servers(&workspace, &["a", "b"]).await;
    let path = item_path("/api/servers/servers/", &all[0]);
    workspace.admin.patch(&path, &json!({"labels": {"env": "prod"}})).await.expect(200);
    let batch = workspace.admin.post(BATCHES, &waiting(json!({"all": true}))).await.expect(201);
    let id = batch["id"].as_str().unwrap();
    let columns = "workspace_id, requested_by, shell, line, groupname, timeout, max_concurrency, on_offline, scheduled_at,
        expires_at, finished_at, state, total, pending, counts";
    instance.tamper_with_d1(&format!(
        "INSERT INTO batches (id, name, added_at, {columns})
         WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1001)
         SELECT printf('01936d3e-7a00-7000-8000-%012d', n), 'old', printf('2020-01-01T00:00:00.%06d+00:00', n),
            workspace_id, requested_by, shell, line, groupname, timeout, max_concurrency, on_offline, scheduled_at,
            expires_at, added_at, 'finished', 10, 0, json_object('total', 10, 'pending', 0, 'queued', 0, 'sent', 0, 'running', 0, 'success', 0, 'failed', 0,
                'cancelled', 0, 'expired', 0, 'stuck', 0, 'skipped', 10)
         FROM n, batches WHERE id = '{id}';
         INSERT INTO batch_targets (workspace_id, batch_id, position, server_id, server_name)
         SELECT b.workspace_id, b.id, t.position, t.server_id, t.server_name FROM batches b, batch_targets t
         WHERE b.name = 'old' AND t.batch_id = '{id}'"
    ));
    let count = async |api: &Api| api.get(BATCHES).await.expect(200)["count"].clone();
    assert_eq!(count(&workspace.admin).await, 1_002);
    let limited = [
        workspace.limited(&json!({"servers": [all[0]["id"]]})).await,
        workspace.limited(&json!({"selector": "env=prod"})).await,
        workspace.limited(&json!({"servers": [all[0]["id"]], "commands": ["id"]})).await,
    ];
    let nothing = [
        workspace.limited(&json!({"servers": []})).await,
        workspace.limited(&json!({"selector": "env=test"})).await,
    ];
    for token in &limited {
        assert_eq!(count(token).await, 1_000);
        let filtered = token.get(&format!("{BATCHES}?state=running")).await.expect(200);
        assert_eq!(column(&filtered, "id"), [batch["id"].clone()]);
        let last = token.get(&format!("{BATCHES}?page_size=100&page=10")).await.expect(200);
        assert_eq!(last["results"].as_array().unwrap().len(), 100);
    }
    for token in &nothing {
        assert_eq!(count(token).await, 0);
    }
    // Of large batches it reads fewer: 100,000 targets in all.
    instance.tamper_with_d1("UPDATE batches SET total = 5000");
    for token in &limited {
        assert_eq!(count(token).await, 20);
    }
    assert_eq!(count(&workspace.admin).await, 1_002);
}
