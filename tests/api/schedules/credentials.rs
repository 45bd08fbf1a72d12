//! What the credential that created a schedule decides (contract 14.7).

use farhand_tests::client::PASSWORD;
use farhand_tests::people::{Person, column, item_path};
use farhand_tests::{Api, Instance, Workspace, now};
use serde_json::{Value, json};

use super::{SCHEDULES, create, make_due, patch, read, wait_for_runs};

const TOKENS: &str = "/api/auth/tokens/";
const SESSIONS: &str = "/api/auth/sessions/";

/// Creates an API token of a user. Returns its path, and a client with it.
async fn token(api: &Api, expires_at: Value) -> (String, Api) {
    let body = json!({"name": "scheduler", "expires_at": expires_at});
    let token = api.post(TOKENS, &body).await.expect(201);
    (item_path(TOKENS, &token), api.with_token(token["key"].as_str().unwrap()))
}

async fn is_enabled(api: &Api, schedule: &Value) -> bool {
    let schedule = read(api, schedule).await;
    let is_enabled = schedule["enabled"] == true;
    assert_eq!(schedule["next_runs"] != json!([]), is_enabled);
    is_enabled
}

#[tokio::test]
async fn an_api_token_that_ends_disables_its_schedules() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    let (disabled, first) = token(&session, Value::Null).await;
    let (deleted, second) = token(&session, Value::Null).await;
    let of_disabled = create(&first, json!({})).await;
    let of_deleted = create(&second, json!({})).await;
    let of_session = create(&session, json!({})).await;
    session.patch(&disabled, &json!({"enabled": false})).await.expect(200);
    session.delete(&deleted).await.expect(204);
    for schedule in [&of_disabled, &of_deleted] {
        assert!(!is_enabled(&session, schedule).await);
        let path = item_path(SCHEDULES, schedule);
        session.patch(&path, &json!({"enabled": true})).await.expect_fields(400, &["enabled"]);
        session.patch(&path, &json!({"name": "still disabled"})).await.expect(200);
    }
    assert!(is_enabled(&session, &of_session).await);
    // A valid token can run its schedules again. A change of another field replaces the credential.
    session.patch(&disabled, &json!({"enabled": true})).await.expect(200);
    assert!(!is_enabled(&session, &of_disabled).await);
    patch(&session, &of_disabled, json!({"enabled": true})).await;
    patch(&session, &of_deleted, json!({"enabled": true, "cron": "0 0 2 1 *"})).await;
    for schedule in [&of_disabled, &of_deleted] {
        assert!(is_enabled(&session, schedule).await);
    }
}

#[tokio::test]
async fn a_revoked_session_disables_its_schedules() {
    let workspace = Workspace::new().await;
    for (number, way) in ["session", "change-password", "set-password"].into_iter().enumerate() {
        for keep in [false, true] {
            let name = format!("user-{number}-{keep}");
            let person = Person::new(&workspace, &name).await;
            let (_, with_token) = token(&person.api, Value::Null).await;
            let (other, of_token) =
                (create(&person.api, json!({})).await, create(&with_token, json!({})).await);
            let logged_out = workspace.anonymous.logged_in(&name, PASSWORD).await;
            let of_logged_out = create(&logged_out, json!({})).await;
            logged_out.call("POST", "/api/auth/logout/").await.expect(200);
            let kept = json!({"password": PASSWORD, "new_password": "an entirely other one", "keep_scheduled": keep});
            match way {
                "session" => {
                    let own = person.api.get(SESSIONS).await.expect(200)["results"][0].clone();
                    let path = format!("{}?keep_scheduled={keep}", item_path(SESSIONS, &own));
                    person.api.delete(&path).await.expect(204);
                }
                "change-password" => {
                    person.api.post("/api/auth/change-password/", &kept).await.expect(200);
                }
                _ => {
                    let body = json!({"password": "an entirely other one", "keep_scheduled": keep});
                    let path = format!("/api/users/users/{name}/");
                    workspace.admin.patch(&path, &body).await.expect(200);
                }
            }
            let admin = &workspace.admin;
            assert_eq!(is_enabled(admin, &other).await, keep, "{way} {keep}");
            assert!(is_enabled(admin, &of_token).await, "{way}: of an API token");
            assert!(
                is_enabled(admin, &of_logged_out).await,
                "{way}: of a session that was logged out"
            );
            let path = item_path(SCHEDULES, &other);
            let enabled = admin.patch(&path, &json!({"enabled": true})).await;
            if keep {
                drop(enabled.expect(200))
            } else {
                drop(enabled.expect_fields(400, &["enabled"]))
            }
        }
    }
}

#[tokio::test]
async fn a_deleted_owner_leaves_disabled_schedules() {
    let workspace = Workspace::new().await;
    let person = Person::new(&workspace, "alice").await;
    let (_, with_token) = token(&person.api, Value::Null).await;
    let schedules = [create(&person.api, json!({})).await, create(&with_token, json!({})).await];
    workspace.admin.delete(&person.path()).await.expect(204);
    for schedule in &schedules {
        let left = read(&workspace.admin, schedule).await;
        assert_eq!((&left["owner"], &left["enabled"]), (&Value::Null, &json!(false)));
    }
}

/// The permission of the owner is checked when a run is due.
#[tokio::test]
async fn a_run_without_permission_is_refused_and_audited() {
    let (instance, _folder) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let alice = Person::new(&workspace, "alice").await;
    let group = workspace.group("ops", &[&server]).await;
    workspace.add_member(&group, &alice, "manager").await;
    let admin = &workspace.admin;
    let on_server =
        json!({"targets": {"servers": [server["id"]]}, "username": "root", "overlap": "allow"});
    let schedule = create(&alice.api, on_server).await;
    let refused = async |count: usize, all_events: u64, reason: &str| {
        let due_at = make_due(&instance, admin, &schedule, 1).await;
        let runs = wait_for_runs(admin, &schedule, count).await;
        let run = &runs[0];
        assert_eq!((&run["outcome"], &run["due_at"]), (&json!("refused"), &due_at), "{run}");
        assert!(run["reason"].as_str().unwrap().contains(reason), "{run}");
        assert_eq!((&run["batch"], &run["started_at"]), (&Value::Null, &Value::Null));
        let events = admin.get("/api/audit/events/?action=schedule.run").await.expect(200);
        assert_eq!(events["count"], all_events);
        let event = &events["results"][0];
        assert_eq!(
            (&event["outcome"], &event["object"]["id"]),
            (&json!("denied"), &schedule["id"])
        );
        assert_eq!(event["details"]["reason"], run["reason"]);
    };
    workspace.remove_member(&group, &alice).await;
    refused(1, 1, "you cannot access them").await;
    // Further refusals for the same reason are only in the run history.
    refused(2, 1, "you cannot access them").await;
    workspace.add_member(&group, &alice, "member").await;
    refused(3, 2, "may name another account").await;
    workspace.remove_member(&group, &alice).await;
    workspace.add_member(&group, &alice, "manager").await;
    admin.patch(&alice.path(), &json!({"is_active": false})).await.expect(200);
    refused(4, 3, "not active").await;
    admin.patch(&alice.path(), &json!({"is_active": true})).await.expect(200);
    assert_eq!(read(admin, &schedule).await["enabled"], true);

    // An API token that has expired disables its schedule.
    let (path, with_token) = token(&workspace.session(), json!(now().plus_seconds(3_600))).await;
    let of_token = create(&with_token, json!({})).await;
    let expired = now().plus_seconds(-1);
    let id = path.trim_end_matches('/').rsplit('/').next().unwrap();
    instance.tamper_with_d1(&format!(
        "UPDATE api_tokens SET expires_at = '{expired}' WHERE id = '{id}'"
    ));
    assert!(!is_enabled(admin, &of_token).await);
    let id = of_token["id"].as_str().unwrap();
    instance
        .tamper_with_d1(&format!("UPDATE schedules SET next_due = '{expired}' WHERE id = '{id}'"));
    // This change also wakes the scheduler.
    let other = create(&workspace.session(), json!({"enabled": false})).await;
    make_due(&instance, admin, &other, 1).await;
    patch(admin, &schedule, json!({"name": "woken"})).await;
    let run = wait_for_runs(admin, &of_token, 1).await.remove(0);
    assert_eq!(run["outcome"], "refused");
    assert!(run["reason"].as_str().unwrap().contains("API token"), "{run}");
    assert_eq!(
        instance.read_d1(&format!("SELECT CAST(enabled AS TEXT) FROM schedules WHERE id = '{id}'")),
        ["0"]
    );
    assert_eq!(column(&admin.get(BATCH_LIST).await.expect(200), "id"), [Value::Null; 0]);
    instance.stop().await;
}

const BATCH_LIST: &str = "/api/events/batches/";
