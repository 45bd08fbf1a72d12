//! The endpoints of scripts and their versions (contract 14.10).

use farhand_domain::hash::sha256;
use farhand_tests::client::{PASSWORD, unique};
use farhand_tests::people::keys;
use farhand_tests::{Api, Instance, Workspace};
use serde_json::{Value, json};

use super::{COMMANDS, SCRIPTS, call, path_of, script};

#[tokio::test]
async fn staff_create_scripts_and_everybody_reads_them() {
    let workspace = Workspace::new().await;
    let params = json!([{"name": "KEEP", "type": "integer", "default": 3, "required": false}]);
    let body = "#!/bin/sh\nrm -r \"$OLD-$PARAM_KEEP\" 'é'\r\n";
    let new =
        json!({"name": "Clean up", "description": "Räumt auf", "body": body, "params": params});
    let reply = workspace.admin.post(SCRIPTS, &new).await;
    let made = reply.expect(201);
    assert!(reply.header("Location").ends_with(&path_of(&made)));
    for (field, value) in [
        ("name", json!("Clean up")),
        ("interpreter", json!("/bin/sh")),
        ("body", json!(body)),
        ("body_bytes", json!(body.len())),
        ("sha256", json!(sha256(body))),
        ("params", params),
        ("version", json!(1)),
    ] {
        assert_eq!(made[field], value, "{field}");
    }
    assert_eq!(made["owner"]["username"], "boss");
    assert_eq!(made["added_at"], made["updated_at"]);
    let carl = workspace.user("carl").await;
    let mut without_body = made.clone();
    without_body["body"] = Value::Null;
    assert_eq!(carl.get(&path_of(&made)).await.expect(200), without_body);
    // A list has no bodies.
    let mut shown = made.clone();
    shown.as_object_mut().unwrap().remove("body");
    for query in ["", "?name=Clean%20up", "?search=RÄUMT%20clean"] {
        let list = carl.get(&format!("{SCRIPTS}{query}")).await.expect(200);
        assert_eq!(list["results"], json!([shown]), "{query}");
    }
    for query in ["?name=clean%20up", "?search=other"] {
        assert_eq!(carl.get(&format!("{SCRIPTS}{query}")).await.expect(200)["count"], 0);
    }
    let second = script(&workspace, "id", json!({})).await;
    let list = carl.get(SCRIPTS).await.expect(200);
    assert_eq!(list["results"][0]["id"], second["id"], "newest first");
    let page = carl.get(&format!("{SCRIPTS}?page=2&page_size=1")).await.expect(200);
    assert_eq!((&page["count"], &page["results"][0]["id"]), (&json!(2), &made["id"]));
}

#[tokio::test]
async fn only_staff_change_scripts() {
    let workspace = Workspace::new().await;
    let made = script(&workspace, "id", json!({})).await;
    let (carl, staff) = (workspace.user("carl").await, workspace.staff("sam").await);
    let new = json!({"name": "other", "body": "id"});
    carl.post(SCRIPTS, &new).await.expect_detail(403, Some("PERMISSION_DENIED"));
    // The permission is checked before the input.
    carl.post(SCRIPTS, &json!({"zzz": 1})).await.expect_detail(403, Some("PERMISSION_DENIED"));
    for body in [json!({"body": "id -u"}), json!({"zzz": 1})] {
        let refused = carl.patch(&path_of(&made), &body).await;
        refused.expect_detail(403, Some("PERMISSION_DENIED"));
    }
    carl.put(&path_of(&made), &new).await.expect_detail(403, Some("PERMISSION_DENIED"));
    carl.delete(&path_of(&made)).await.expect_detail(403, Some("PERMISSION_DENIED"));
    assert_eq!(workspace.admin.get(&path_of(&made)).await.expect(200), made);
    assert_eq!(staff.post(SCRIPTS, &new).await.expect(201)["owner"]["username"], "sam");
    assert_eq!(staff.patch(&path_of(&made), &json!({"body": "x"})).await.expect(200)["version"], 2);
}

#[tokio::test]
async fn a_body_is_shown_to_staff_authors_and_users_whose_list_or_schedule_names_it() {
    let workspace = Workspace::new().await;
    let sam = workspace.staff("sam").await;
    let made = sam.post(SCRIPTS, &json!({"name": "a", "body": "echo 1"})).await.expect(201);
    let path = path_of(&made);
    workspace.admin.patch(&path, &json!({"body": "echo 2"})).await.expect(200);
    // The latest version, version 1 and version 2, as a caller sees them.
    let bodies = async |api: &Api| {
        let mut bodies = Vec::new();
        for version in ["", "versions/1/", "versions/2/"] {
            let reply = api.get(&format!("{path}{version}")).await;
            bodies.push(match reply.status {
                404 => json!(404),
                _ => reply.expect(200)["body"].clone(),
            });
        }
        json!(bodies)
    };
    let all = json!(["echo 2", "echo 1", "echo 2"]);
    let none = json!([null, null, null]);
    let carl = workspace.user("carl").await;
    assert_eq!((bodies(&sam).await, bodies(&carl).await), (all.clone(), none.clone()));

    // An author who is no longer staff.
    let id = made["owner"]["id"].as_i64().unwrap();
    let demotion = json!({"is_staff": false});
    workspace.admin.patch(&format!("/api/iam/users/{id}/"), &demotion).await.expect(200);
    let sam = workspace.anonymous.logged_in("sam", PASSWORD).await;
    assert_eq!(bodies(&sam).await, json!([null, "echo 1", null]));

    let script = made["id"].as_str().unwrap();
    let pinned = format!("{script}@1");
    for (entry, expected) in [(script, all.clone()), (pinned.as_str(), json!([404, "echo 1", 404]))]
    {
        let token = json!({"name": "t", "expires_at": null, "acl": {"scripts": [entry]}});
        let token = carl.post("/api/auth/tokens/", &token).await.expect(201);
        let token = workspace.anonymous.with_token(token["key"].as_str().unwrap());
        assert_eq!(bodies(&token).await, expected);
    }
    for (more, expected) in
        [(json!({}), all), (json!({"script_version": 1}), json!([null, "echo 1", null]))]
    {
        let mut schedule =
            json!({"name": "s", "cron": "0 0 1 1 *", "targets": {"all": true}, "script": script});
        schedule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let schedule = carl.post("/api/events/schedules/", &schedule).await.expect(201);
        assert_eq!(bodies(&carl).await, expected);
        assert_eq!(bodies(&workspace.user(&unique("u")).await).await, none);
        let schedule = format!("/api/events/schedules/{}/", schedule["id"].as_str().unwrap());
        carl.delete(&schedule).await.expect(204);
    }
    assert_eq!(bodies(&carl).await, none);
}

#[tokio::test]
async fn a_change_creates_a_version_that_never_changes() {
    let workspace = Workspace::new().await;
    let first = script(&workspace, "echo 1", json!({"description": "d"})).await;
    let path = path_of(&first);
    let staff = workspace.staff("sam").await;
    let second = staff.patch(&path, &json!({"body": "echo 2", "name": "second"})).await.expect(200);
    assert_eq!(
        (&second["version"], &second["name"], &second["body"], &second["description"]),
        (&json!(2), &json!("second"), &json!("echo 2"), &json!("d"))
    );
    assert_eq!((&second["owner"], &second["added_at"]), (&first["owner"], &first["added_at"]));
    assert!(second["updated_at"].as_str() > first["updated_at"].as_str());
    // A request that changes nothing creates no version.
    for body in [json!({}), json!({"body": "echo 2"}), json!({"params": [], "name": "second"})] {
        assert_eq!(staff.patch(&path, &body).await.expect(200), second, "{body}");
    }
    assert_eq!(staff.put(&path, &second).await.expect(200), second);
    // A PUT sets the defaults.
    let third = staff.put(&path, &json!({"name": "third", "body": "echo 3"})).await.expect(200);
    assert_eq!((&third["version"], &third["description"]), (&json!(3), &json!("")));
    let versions = staff.get(&format!("{path}versions/")).await.expect(200);
    assert_eq!(versions["count"], 3);
    let numbers: Vec<_> =
        versions["results"].as_array().unwrap().iter().map(|v| v["version"].clone()).collect();
    assert_eq!(numbers, [json!(3), json!(2), json!(1)]);
    assert!(versions["results"][0].get("body").is_none());
    let shown = staff.get(&format!("{path}versions/1/")).await.expect(200);
    for field in ["name", "description", "interpreter", "body", "sha256", "params", "body_bytes"] {
        assert_eq!(shown[field], first[field], "{field}");
    }
    assert_eq!((&shown["script"], &shown["version"]), (&first["id"], &json!(1)));
    assert_eq!(shown["author"]["username"], "boss");
    let shown = staff.get(&format!("{path}versions/2/")).await.expect(200);
    assert_eq!((&shown["author"]["username"], &shown["body"]), (&json!("sam"), &json!("echo 2")));
    for bad in ["0", "4", "01", "x", "-1", "99999999999999999999"] {
        staff.get(&format!("{path}versions/{bad}/")).await.expect_detail(404, Some("NOT_FOUND"));
    }
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let reply = staff.call(method, &format!("{path}versions/1/")).await;
        assert_eq!(reply.status, 405, "{method}");
    }
}

#[tokio::test]
async fn concurrent_changes_create_one_version_each() {
    let workspace = Workspace::new().await;
    let made = script(&workspace, "echo 0", json!({})).await;
    let path = path_of(&made);
    let changes = (1..=6).map(|number| {
        let (api, path) = (workspace.admin.clone(), path.clone());
        tokio::spawn(async move {
            api.patch(&path, &json!({"body": format!("echo {number}")})).await.status
        })
    });
    let mut done = 0;
    for change in changes.collect::<Vec<_>>() {
        let status = change.await.unwrap();
        assert!(status == 200 || status == 409, "{status}");
        done += u64::from(status == 200);
    }
    let versions = workspace.admin.get(&format!("{path}versions/")).await.expect(200);
    assert_eq!(versions["count"], done + 1);
    let shown = workspace.admin.get(&path).await.expect(200);
    assert_eq!(shown["version"], done + 1);
}

#[tokio::test]
async fn a_deleted_script_is_hidden_and_its_history_stays() {
    let workspace = Workspace::new().await;
    workspace.server("web-1").await;
    let new = json!({"name": "clean", "body": "id"});
    let made = workspace.admin.post(SCRIPTS, &new).await.expect(201);
    let path = path_of(&made);
    workspace.admin.patch(&path, &json!({"body": "id -u"})).await.expect(200);
    let queued = call(&made, json!({"on_offline": "queue"}));
    let waiting = workspace.admin.post(COMMANDS, &queued).await.expect(201);
    workspace.admin.delete(&path).await.expect(204);
    for (method, body) in
        [("GET", None), ("PUT", Some(&new)), ("PATCH", Some(&new)), ("DELETE", None)]
    {
        let reply = match body {
            Some(body) => workspace.admin.send_json(method, &path, body).await,
            None => workspace.admin.call(method, &path).await,
        };
        reply.expect_detail(404, Some("NOT_FOUND"));
    }
    assert_eq!(workspace.admin.get(SCRIPTS).await.expect(200)["count"], 0);
    let refused = workspace.admin.post(COMMANDS, &queued).await;
    refused.expect_fields(400, &["script"]);
    let pinned = call(&made, json!({"on_offline": "queue", "script_version": 1}));
    workspace.admin.post(COMMANDS, &pinned).await.expect_fields(400, &["script"]);
    // The versions stay, and so does the command.
    assert_eq!(workspace.admin.get(&format!("{path}versions/")).await.expect(200)["count"], 2);
    let shown = workspace.admin.get(&format!("{path}versions/2/")).await.expect(200);
    assert_eq!(shown["body"], "id -u");
    let command = format!("{COMMANDS}{}/", waiting["id"].as_str().unwrap());
    assert_eq!(workspace.admin.get(&command).await.expect(200)["line"], "script:clean@2");
    // The name is free again.
    let second = workspace.admin.post(SCRIPTS, &new).await.expect(201);
    assert!(second["id"] != made["id"] && second["version"] == 1);
}

#[tokio::test]
async fn names_are_unique_and_input_is_checked() {
    let workspace = Workspace::new().await;
    let admin = &workspace.admin;
    admin.post(SCRIPTS, &json!({"name": "a", "body": "id"})).await.expect(201);
    let other = admin.post(SCRIPTS, &json!({"name": "b", "body": "id"})).await.expect(201);
    admin.post(SCRIPTS, &json!({"name": "a", "body": "x"})).await.expect_fields(400, &["name"]);
    admin.patch(&path_of(&other), &json!({"name": "a"})).await.expect_fields(400, &["name"]);
    assert_eq!(admin.get(&path_of(&other)).await.expect(200), other);
    for (body, fields) in [
        (json!({}), &["body", "name"][..]),
        (json!({"name": "c", "body": "a\u{0}b"}), &["body"]),
        (json!({"name": "c", "body": "x".repeat(256 * 1024 + 1)}), &["body"]),
        (json!({"name": "c", "body": "id", "interpreter": "sh -c 'id'"}), &["interpreter"]),
        (
            json!({"name": "c", "body": "id", "params": [{"name": "a", "type": "string"}]}),
            &["params"],
        ),
        (
            json!({"name": "c", "body": "id", "params": [{"name": "A", "type": "string", "zzz": 1}]}),
            &["zzz"],
        ),
        (json!({"name": "c", "body": "id", "zzz": 1}), &["zzz"]),
    ] {
        admin.post(SCRIPTS, &body).await.expect_fields(400, fields);
    }
    admin
        .post(SCRIPTS, &json!({"name": "c", "body": "x".repeat(1 << 20)}))
        .await
        .expect_detail(413, None);
    for query in ["page=0", "page_size=x", "search=%00"] {
        assert_eq!(admin.get(&format!("{SCRIPTS}?{query}")).await.status, 400, "{query}");
    }
    assert_eq!(admin.get(SCRIPTS).await.expect(200)["count"], 2);
    // The largest body is stored and returned unchanged.
    let largest = "é".repeat(128 * 1024);
    let made = admin.post(SCRIPTS, &json!({"name": "c", "body": largest})).await.expect(201);
    assert!(admin.get(&path_of(&made)).await.expect(200)["body"] == json!(largest));
}

#[tokio::test]
async fn scripts_of_a_workspace_are_limited() {
    let (instance, _state) = Instance::new_with(&[("QUOTA_SCRIPTS_PER_WORKSPACE", "2")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let other = Workspace::create_with(&instance.operator(), "other").await;
    let new = |name: &str| json!({"name": name, "body": "id"});
    let first = workspace.admin.post(SCRIPTS, &new("a")).await.expect(201);
    workspace.admin.post(SCRIPTS, &new("b")).await.expect(201);
    let refused = workspace.admin.post(SCRIPTS, &new("c")).await;
    refused.expect_detail(429, Some("QUOTA_EXCEEDED"));
    assert!(refused.header("Retry-After").parse::<u64>().unwrap() > 0);
    // A change does not create a script, and another workspace has its own quota.
    workspace.admin.patch(&path_of(&first), &json!({"body": "x"})).await.expect(200);
    other.admin.post(SCRIPTS, &new("c")).await.expect(201);
    workspace.admin.delete(&path_of(&first)).await.expect(204);
    workspace.admin.post(SCRIPTS, &new("c")).await.expect(201);
}

#[tokio::test]
async fn scripts_of_another_workspace_do_not_exist() {
    let (one, two) = (Workspace::new().await, Workspace::new().await);
    two.server("web-1").await;
    let made = script(&one, "id", json!({})).await;
    let path = path_of(&made);
    for reply in [
        two.admin.get(&path).await,
        two.admin.patch(&path, &json!({"body": "x"})).await,
        two.admin.put(&path, &json!({"name": "x", "body": "x"})).await,
        two.admin.delete(&path).await,
        two.admin.get(&format!("{path}versions/")).await,
        two.admin.get(&format!("{path}versions/1/")).await,
    ] {
        reply.expect_detail(404, Some("NOT_FOUND"));
    }
    assert_eq!(two.admin.get(SCRIPTS).await.expect(200)["count"], 0);
    let body = call(&made, json!({"on_offline": "queue"}));
    two.admin.post(COMMANDS, &body).await.expect_fields(400, &["script"]);
    assert_eq!(one.admin.get(&path).await.expect(200), made);
    // The same name is free there.
    let same = json!({"name": made["name"], "body": "id"});
    two.admin.post(SCRIPTS, &same).await.expect(201);
}

/// The newest audit event of a script.
async fn event(workspace: &Workspace, script: &Value, action: &str) -> Value {
    let path =
        format!("/api/audit/events/?object={}&action={action}", script["id"].as_str().unwrap());
    workspace.admin.get(&path).await.expect(200)["results"][0].clone()
}

#[tokio::test]
async fn changes_are_audited_without_the_body() {
    let workspace = Workspace::new().await;
    let new = json!({"name": "clean", "body": "secret-body-1", "params": [{"name": "A", "type": "string"}]});
    let made = workspace.admin.post(SCRIPTS, &new).await.expect(201);
    let created = event(&workspace, &made, "script.create").await;
    assert_eq!(
        (&created["object"]["name"], &created["object"]["type"], &created["details"]["sha256"]),
        (&json!("clean"), &json!("script"), &made["sha256"])
    );
    assert_eq!(created["details"]["params"], json!(["A"]));
    let changed = workspace
        .admin
        .patch(&path_of(&made), &json!({"body": "secret-body-2", "name": "clean"}))
        .await
        .expect(200);
    let updated = event(&workspace, &made, "script.update").await;
    let details = json!({"fields": ["body"], "version": 2, "sha256": changed["sha256"]});
    assert_eq!(updated["details"], details);
    workspace.admin.delete(&path_of(&made)).await.expect(204);
    let deleted = event(&workspace, &made, "script.delete").await;
    assert_eq!(deleted["object"]["name"], "clean");
    let carl = workspace.user("carl").await;
    carl.post(SCRIPTS, &new).await.expect(403);
    let path = "/api/audit/events/?action=script.create&outcome=denied";
    let denied = workspace.admin.get(path).await.expect(200);
    assert_eq!(denied["results"][0]["actor"]["name"], "carl");
    for event in [created, updated, deleted] {
        assert!(!event.to_string().contains("secret-body"), "{event}");
        assert!(keys(&event["details"]).iter().all(|key| *key != "body"));
    }
}

#[tokio::test]
async fn a_deleted_owner_is_null() {
    let workspace = Workspace::new().await;
    let sam = workspace.staff("sam").await;
    let made = sam.post(SCRIPTS, &json!({"name": "a", "body": "id"})).await.expect(201);
    let id = made["owner"]["id"].as_i64().unwrap();
    workspace.admin.delete(&format!("/api/iam/users/{id}/")).await.expect(204);
    let shown = workspace.admin.get(&path_of(&made)).await.expect(200);
    assert_eq!(shown["owner"], Value::Null);
    let version = workspace.admin.get(&format!("{}versions/1/", path_of(&made))).await;
    assert_eq!(version.expect(200)["author"], Value::Null);
}
