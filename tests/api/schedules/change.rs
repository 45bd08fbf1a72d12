//! Changes of a schedule, and its owner (contract 14.4).

use farhand_tests::Workspace;
use farhand_tests::people::{Person, UNKNOWN_UUID, item_path};
use serde_json::json;

use super::{SCHEDULES, create, patch, read, yearly};

#[tokio::test]
async fn a_patch_keeps_and_a_put_resets_what_is_not_sent() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    let made = create(
        &session,
        json!({"timezone": "Asia/Tokyo", "timeout": 60, "env": {"A": "1"}, "overlap": "allow"}),
    )
    .await;
    let path = item_path(SCHEDULES, &made);
    let changed = patch(&session, &made, json!({"argv": ["date"], "overlap": "queue"})).await;
    let mut expected = made.clone();
    for (name, value) in [
        ("argv", json!(["date"])),
        ("line", json!(null)),
        ("overlap", json!("queue")),
        ("updated_at", changed["updated_at"].clone()),
    ] {
        expected[name] = value;
    }
    assert_eq!(changed, expected);
    assert!(changed["updated_at"].as_str() > made["updated_at"].as_str());
    let replaced = session.put(&path, &yearly(json!({"name": "new"}))).await.expect(200);
    assert_eq!(
        (&replaced["name"], &replaced["timezone"], &replaced["timeout"], &replaced["overlap"]),
        (&json!("new"), &json!("UTC"), &json!(1_800), &json!("skip"))
    );
    assert_eq!((&replaced["id"], &replaced["added_at"]), (&made["id"], &made["added_at"]));
    for (bad, wrong) in [
        (json!({"cron": "x"}), &["cron"][..]),
        (json!({"timezone": "x"}), &["timezone"]),
        (json!({"argv": ["ls"], "line": "ls"}), &["argv"]),
        (json!({"schedule": "x"}), &["schedule"]),
    ] {
        session.patch(&path, &bad).await.expect_fields(400, wrong);
    }
    session
        .put(&path, &json!({"name": "x"}))
        .await
        .expect_fields(400, &["cron", "line", "targets"]);
    assert_eq!(read(&session, &made).await, replaced);
    let missing = format!("{SCHEDULES}{UNKNOWN_UUID}/");
    session.patch(&missing, &json!({"cron": "x"})).await.expect_detail(404, Some("NOT_FOUND"));
    session.delete(&path).await.expect(204);
    session.get(&path).await.expect_detail(404, Some("NOT_FOUND"));
    session.delete(&path).await.expect_detail(404, Some("NOT_FOUND"));
}

#[tokio::test]
async fn who_changes_more_than_the_name_becomes_the_owner() {
    let workspace = Workspace::new().await;
    let (alice, carol) =
        (Person::new(&workspace, "alice").await, Person::staff(&workspace, "carol").await);
    let made = create(&alice.api, json!({})).await;
    let owner = |schedule: serde_json::Value| schedule["owner"]["username"].clone();
    let changed = patch(&carol.api, &made, json!({"name": "renamed", "enabled": false})).await;
    assert_eq!((&changed["name"], &changed["enabled"]), (&json!("renamed"), &json!(false)));
    assert_eq!(owner(changed), "alice");
    assert_eq!(owner(patch(&carol.api, &made, json!({"cron": made["cron"]})).await), "alice");
    assert_eq!(owner(patch(&carol.api, &made, json!({"cron": "0 1 1 1 *"})).await), "carol");
    alice.api.get(&item_path(SCHEDULES, &made)).await.expect_detail(404, Some("NOT_FOUND"));
    let events = workspace.admin.get("/api/audit/events/?action=schedule.update").await.expect(200);
    let details = &events["results"][0]["details"];
    assert_eq!(details["fields"], json!(["cron"]));
    assert_eq!(details["previous_owner"], json!(alice.id));
    assert_eq!(events["results"][0]["object"]["name"], "renamed");
    // The new owner's permission counts.
    let bob = Person::new(&workspace, "bob").await;
    let server = workspace.server("web-1").await;
    let group = workspace.group("ops", &[&server]).await;
    workspace.add_member(&group, &bob, "member").await;
    let own = create(&bob.api, json!({})).await;
    let as_root = patch(&carol.api, &own, json!({"enabled": true, "name": "x"})).await;
    assert_eq!(owner(as_root), "bob");
    let path = item_path(SCHEDULES, &own);
    let root = json!({"username": "root"});
    bob.api.patch(&path, &root).await.expect_detail(403, Some("PERMISSION_DENIED"));
    assert_eq!(owner(patch(&carol.api, &own, root).await), "carol");
}
