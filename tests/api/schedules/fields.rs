//! The fields of a schedule (contract 14.1 and 14.2).

use farhand_tests::Workspace;
use farhand_tests::people::{Person, UNKNOWN_UUID, column, item_path};
use serde_json::{Value, json};

use super::{SCHEDULES, create, read, yearly};

#[tokio::test]
async fn a_new_schedule_shows_its_fields_and_their_defaults() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    let body =
        json!({"cron": "30 2 * * *", "name": "nightly", "targets": {"all": true}, "line": "id"});
    let made = session.post(SCHEDULES, &body).await.expect(201);
    assert_eq!(
        farhand_domain::id::parse(made["id"].as_str().unwrap()).unwrap().get_version_num(),
        7
    );
    assert_eq!(made["owner"]["username"], "boss");
    assert_eq!(made["next_runs"].as_array().unwrap().len(), 5);
    let mut fields = made.clone();
    for computed in ["id", "owner", "next_runs", "added_at", "updated_at"] {
        fields.as_object_mut().unwrap().remove(computed);
    }
    let expected = json!({
        "name": "nightly", "cron": "30 2 * * *", "timezone": "UTC", "enabled": true, "starts_at": null,
        "ends_at": null, "misfire": "run_once", "overlap": "skip", "last_run": null,
        "targets": {"servers": [], "groups": [], "selector": null, "all": true},
        "shell": "system", "line": "id", "argv": null, "script": null, "script_version": null, "username": null, "groupname": "", "timeout": 1800,
        "max_concurrency": 50, "max_errors": null, "ramp": false, "on_offline": "skip",
    });
    assert_eq!(fields, expected);
    assert_eq!(read(&session, &made).await, made);
    assert_eq!(session.get(SCHEDULES).await.expect(200)["results"], json!([made]));
    let header = session.post(SCHEDULES, &yearly(json!({}))).await;
    let path = item_path(SCHEDULES, &header.expect(201));
    assert!(header.header("Location").ends_with(&path), "{}", header.header("Location"));
}

#[tokio::test]
async fn a_schedule_keeps_what_its_request_had_and_hides_its_inputs() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    workspace.server("db-1").await;
    let sent = json!({
        "timezone": "Europe/Berlin", "targets": {"servers": ["db-1"], "selector": "env=prod", "groups": [], "all": false},
        "line": null, "argv": ["backup", "--all disks"], "username": "root", "groupname": "backup", "timeout": 60,
        "max_concurrency": "25%", "max_errors": 1, "ramp": true, "on_offline": "queue", "enabled": false,
        "starts_at": "2027-01-01T00:00:00Z", "ends_at": "2028-01-01T01:00:00+01:00", "misfire": "skip", "overlap": "queue",
    });
    let mut with_inputs = sent.clone();
    for (name, value) in
        [("env", json!({"TOKEN": "s3cret"})), ("stdin", json!("s3cret")), ("cwd", json!("/tmp"))]
    {
        with_inputs[name] = value;
    }
    let made = create(&session, with_inputs).await;
    for (name, value) in sent.as_object().unwrap() {
        let expected = match name.as_str() {
            "starts_at" => json!("2027-01-01T00:00:00.000000+00:00"),
            "ends_at" => json!("2028-01-01T00:00:00.000000+00:00"),
            _ => value.clone(),
        };
        assert_eq!(made[name], expected, "{name}");
    }
    assert_eq!(made["next_runs"], json!([]), "a disabled schedule has no next runs");
    assert!(!made.to_string().contains("s3cret"));
    assert!(!session.get(SCHEDULES).await.text.contains("s3cret"));
    let events = workspace.admin.get("/api/audit/events/?action=schedule.create").await;
    assert!(!events.text.contains("s3cret"), "{}", events.text);
    // A response is a valid request body.
    let same = session.put(&item_path(SCHEDULES, &made), &made).await.expect(200);
    assert_eq!(same["argv"], made["argv"]);
}

#[tokio::test]
async fn invalid_fields_create_no_schedule() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    for (bad, wrong) in [
        (json!({"name": null}), &["name"][..]),
        (json!({"name": " "}), &["name"]),
        (json!({"name": "x".repeat(129)}), &["name"]),
        (json!({"cron": null}), &["cron"]),
        (json!({"cron": ""}), &["cron"]),
        (json!({"cron": "* * * *"}), &["cron"]),
        (json!({"cron": "* * * * * *"}), &["cron"]),
        (json!({"cron": "60 * * * *"}), &["cron"]),
        (json!({"cron": "0 0 30 2 *"}), &["cron"]),
        (json!({"cron": "@reboot"}), &["cron"]),
        (json!({"cron": "*".repeat(2_000)}), &["cron"]),
        (json!({"cron": 5}), &["cron"]),
        (json!({"timezone": "Mars/Olympus"}), &["timezone"]),
        (json!({"timezone": "+02:00"}), &["timezone"]),
        (json!({"timezone": ""}), &["timezone"]),
        (json!({"timezone": "Europe/Berlin\u{0}"}), &["timezone"]),
        (json!({"enabled": 1}), &["enabled"]),
        (json!({"starts_at": "2027-01-01T00:00:00"}), &["starts_at"]),
        (json!({"ends_at": "soon"}), &["ends_at"]),
        (
            json!({"starts_at": "2027-01-02T00:00:00Z", "ends_at": "2027-01-01T00:00:00Z"}),
            &["ends_at"],
        ),
        (json!({"misfire": "run_all"}), &["misfire"]),
        (json!({"overlap": "wait"}), &["overlap"]),
        (json!({"targets": {}}), &["targets"]),
        (json!({"targets": {"selector": "env in"}}), &["selector"]),
        (json!({"targets": {"servers": [UNKNOWN_UUID]}}), &["servers"]),
        (json!({"targets": {"servers": ["nowhere"], "groups": [99]}}), &["groups", "servers"]),
        (json!({"line": ""}), &["line"]),
        (json!({"argv": ["ls"]}), &["argv"]),
        (json!({"max_concurrency": 0}), &["max_concurrency"]),
        (json!({"timeout": 0}), &["timeout"]),
        (json!({"scheduled_at": "2027-01-01T00:00:00Z"}), &["scheduled_at"]),
        (json!({"expires_at": "2027-01-01T00:00:00Z"}), &["expires_at"]),
        (json!({"dry_run": true}), &["dry_run"]),
        (json!({"id": UNKNOWN_UUID}), &["id"]),
        (json!({"next_run": null}), &["next_run"]),
    ] {
        session.post(SCHEDULES, &yearly(bad)).await.expect_fields(400, wrong);
    }
    session
        .post(SCHEDULES, &json!({}))
        .await
        .expect_fields(400, &["cron", "line", "name", "targets"]);
    let refusal = session.post(SCHEDULES, &yearly(json!({"cron": "0 25 * * *"}))).await;
    let message = &refusal.expect_fields(400, &["cron"])["cron"][0];
    assert_eq!(message, r#"Character 3, hour: "25" is outside 0-23."#);
    assert_eq!(session.get(SCHEDULES).await.expect(200)["count"], 0);
}

/// The targets are selected for each run, so a selector may match no server yet.
#[tokio::test]
async fn a_schedule_may_select_servers_that_do_not_exist_yet() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    create(&session, json!({"targets": {"selector": "role=web"}})).await;
    create(&session, json!({"targets": {"all": true}})).await;
}

#[tokio::test]
async fn a_caller_cannot_schedule_what_the_caller_may_not_run() {
    let workspace = Workspace::new().await;
    let (alice, server) = (Person::new(&workspace, "alice").await, workspace.server("web-1").await);
    let group = workspace.group("ops", &[&server]).await;
    workspace.add_member(&group, &alice, "member").await;
    for refused in
        [json!({"username": "root"}), json!({"groupname": "wheel"}), json!({"shell": "internal"})]
    {
        let body = yearly(refused);
        alice.api.post(SCHEDULES, &body).await.expect_detail(403, Some("PERMISSION_DENIED"));
    }
    let elsewhere = workspace.server("web-2").await;
    let body = yearly(json!({"targets": {"servers": [elsewhere["id"]]}}));
    alice.api.post(SCHEDULES, &body).await.expect_fields(400, &["servers"]);
    let denied =
        workspace.admin.get("/api/audit/events/?action=schedule.create&outcome=denied").await;
    // The first one is the event. The others are counted for the event of the next minute.
    assert_eq!(denied.expect(200)["count"], 1);
    create(&alice.api, json!({"username": "alice"})).await;
    let limited = workspace.limited(&json!({"commands": ["id"]})).await;
    for (method, path) in [("GET", SCHEDULES), ("POST", SCHEDULES)] {
        let reply = limited.send_json(method, path, &yearly(json!({}))).await;
        reply.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
    }
    assert_eq!(workspace.admin.get(SCHEDULES).await.expect(200)["count"], 1);
}

#[tokio::test]
async fn schedules_are_seen_by_their_owner_and_by_staff() {
    let workspace = Workspace::new().await;
    let (alice, bob) = (workspace.user("alice").await, workspace.user("bob").await);
    let staff = workspace.staff("carol").await;
    let first = create(&alice, json!({"name": "first"})).await;
    let second = create(&alice, json!({"name": "second", "enabled": false})).await;
    let other = create(&bob, json!({"name": "other"})).await;
    let names = async |api: &farhand_tests::Api, query: &str| {
        column(&api.get(&format!("{SCHEDULES}{query}")).await.expect(200), "name")
    };
    assert_eq!(names(&alice, "").await, ["second", "first"]);
    assert_eq!(names(&bob, "").await, ["other"]);
    assert_eq!(names(&staff, "").await, ["other", "second", "first"]);
    assert_eq!(names(&alice, "?enabled=false").await, ["second"]);
    assert_eq!(names(&staff, "?enabled=true").await, ["other", "first"]);
    assert_eq!(names(&staff, "?name=first&page_size=1").await, ["first"]);
    assert_eq!(names(&alice, "?name=other").await, [Value::Null; 0]);
    alice.get(&format!("{SCHEDULES}?enabled=perhaps")).await.expect_fields(400, &["enabled"]);
    for schedule in [&first, &second] {
        let path = item_path(SCHEDULES, schedule);
        for (method, path) in [
            ("GET", path.clone()),
            ("GET", format!("{path}runs/")),
            ("PATCH", path.clone()),
            ("PUT", path.clone()),
            ("DELETE", path.clone()),
            ("POST", format!("{path}run/")),
        ] {
            let reply = bob.send_json(method, &path, &json!({"name": 7})).await;
            reply.expect_detail(404, Some("NOT_FOUND"));
        }
        assert_eq!(read(&staff, schedule).await, read(&alice, schedule).await);
    }
    staff.delete(&item_path(SCHEDULES, &other)).await.expect(204);
    assert_eq!(names(&bob, "").await, [Value::Null; 0]);
}
