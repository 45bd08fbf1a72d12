//! The quotas of scripts (contract 11.4 and 14.10).

use farhand_tests::commands::stored_bytes;
use farhand_tests::{Instance, Reply, Workspace};
use serde_json::json;

use super::{SCRIPTS, id_of, path_of};

#[track_caller]
fn expect_quota_error(reply: &Reply) {
    reply.expect_detail(429, Some("QUOTA_EXCEEDED"));
    assert!(reply.header("Retry-After").parse::<u64>().unwrap() >= 1);
}

#[tokio::test]
async fn every_version_counts_for_the_bytes_of_the_day() {
    let (instance, _state) = Instance::new_with(&[("QUOTA_BYTES_PER_DAY", "300000")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let admin = &workspace.admin;
    workspace.server("web-1").await;
    let bytes = || stored_bytes(&instance, "acme");
    let body = |letter: &str| letter.repeat(200_000);
    let beginning = bytes();
    let made = admin.post(SCRIPTS, &json!({"name": "a", "body": body("a")})).await.expect(201);
    let path = path_of(&made);
    // The version's row and event count, too.
    assert!((201_000..201_100).contains(&(bytes() - beginning)), "{}", bytes());
    expect_quota_error(&admin.patch(&path, &json!({"body": body("b")})).await);
    expect_quota_error(&admin.post(SCRIPTS, &json!({"name": "b", "body": body("b")})).await);
    // A version that keeps the body stores it again.
    expect_quota_error(&admin.patch(&path, &json!({"description": "new"})).await);
    assert_eq!(admin.get(&path).await.expect(200)["version"], 1);
    assert_eq!(admin.get(SCRIPTS).await.expect(200)["count"], 1);
    let events = admin.get("/api/audit/events/?action=script.update").await.expect(200);
    assert_eq!(events["count"], 0, "a rejected version leaves no event");
    let before = bytes();
    admin.patch(&path, &json!({"body": "c".repeat(90_000)})).await.expect(200);
    assert!((91_000..91_100).contains(&(bytes() - before)), "{}", bytes());
    // Commands have the same quota.
    let command = |line: &str| json!({"server": "web-1", "line": line, "on_offline": "queue"});
    let refused = admin.post(super::COMMANDS, &command(&"x".repeat(15_000))).await;
    expect_quota_error(&refused);
    admin.post(super::COMMANDS, &command("id")).await.expect(201);
    // What is more than a day old does not count.
    instance.d1("UPDATE quota_bytes SET hour = hour - 25");
    admin.patch(&path, &json!({"body": body("d")})).await.expect(200);
    assert!((201_000..204_000).contains(&bytes()), "{}", bytes());
    expect_quota_error(&admin.patch(&path, &json!({"body": body("e")})).await);
}

#[tokio::test]
async fn a_script_has_at_most_a_thousand_versions() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let admin = &workspace.admin;
    let made = admin.post(SCRIPTS, &json!({"name": "a", "body": "echo 1"})).await.expect(201);
    let (path, id) = (path_of(&made), id_of(&made));
    instance.d1(&format!(
        "UPDATE scripts SET version = 999 WHERE id = '{id}';
         UPDATE script_versions SET version = 999 WHERE script_id = '{id}'"
    ));
    let last = admin.patch(&path, &json!({"body": "echo 2"})).await.expect(200);
    assert_eq!(last["version"], 1_000);
    let refused = admin.patch(&path, &json!({"body": "echo 3"})).await;
    refused.expect_fields(400, &["non_field_errors"]);
    assert_eq!(admin.patch(&path, &json!({"body": "echo 2"})).await.expect(200), last);
    assert_eq!(admin.get(&path).await.expect(200), last);
}
