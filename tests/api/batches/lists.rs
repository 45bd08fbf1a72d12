//! The list of batches, and the filters of commands by batch (contract 13.6).

use farhand_tests::client::Workspace;
use farhand_tests::far_ahead;
use farhand_tests::people::{BATCHES, UNKNOWN_UUID, column};
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
