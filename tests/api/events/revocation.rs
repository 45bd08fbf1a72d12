//! Revoking a session also cancels the waiting commands that the session created (contract 11.5).

use farhand_tests::agents::ScriptedAgent;
use farhand_tests::client::PASSWORD;
use farhand_tests::commands::wait_for_status;
use farhand_tests::mail::reset_link;
use farhand_tests::people::{COMMANDS, UNKNOWN_UUID, item_path};
use farhand_tests::{Api, Instance, Workspace, now};
use serde_json::{Value, json};

const SESSIONS: &str = "/api/auth/sessions/";
const REASON: &str = "the login session that created it was revoked";
const NEW: &str = "an entirely other one";

/// The path of the caller's own session.
async fn own_session(session: &Api) -> String {
    let list = session.get(SESSIONS).await.expect(200);
    let own = list["results"]
        .as_array()
        .unwrap()
        .iter()
        .find(|session| session["current"] == true)
        .unwrap()
        .clone();
    item_path(SESSIONS, &own)
}

async fn post(api: &Api, server: &str, more: Value) -> Value {
    let mut body = json!({"server": server, "line": "id"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    api.post(COMMANDS, &body).await.expect(201)
}

fn later() -> Value {
    json!({"scheduled_at": now().plus_seconds(3_600)})
}

async fn status(workspace: &Workspace, command: &Value) -> Value {
    workspace.admin.get(&item_path(COMMANDS, command)).await.expect(200)["status"].clone()
}

/// Waits until a command is cancelled because of the revocation.
async fn wait_for_cancellation(workspace: &Workspace, what: &str, command: &Value) {
    let ended =
        wait_for_status(&workspace.admin, command["id"].as_str().unwrap(), "Cancelled").await;
    assert!(ended["status"]["message"].as_str().unwrap().contains(REASON), "{what}: {ended}");
    assert_eq!(
        (&ended["delivered_at"], &ended["success"]),
        (&Value::Null, &json!(false)),
        "{what}"
    );
}

/// The ways to revoke sessions. All but the first end all sessions of the user.
const WAYS: [&str; 5] = ["session", "change-password", "put", "patch", "reset"];

/// Revokes sessions in one of the [`WAYS`]. `keep` is the value of `keep_scheduled`; `None` omits
/// it.
async fn revoke(
    workspace: &Workspace,
    username: &str,
    session: &Api,
    way: &str,
    keep: Option<bool>,
) {
    let with = |mut body: Value| {
        if let Some(keep) = keep {
            body["keep_scheduled"] = json!(keep);
        }
        body
    };
    let by_name = format!("/api/users/users/{username}/");
    match way {
        "session" => {
            let query = keep.map(|keep| format!("?keep_scheduled={keep}")).unwrap_or_default();
            session.delete(&format!("{}{query}", own_session(session).await)).await.expect(204);
        }
        "change-password" => {
            let body = with(json!({"password": PASSWORD, "new_password": NEW}));
            session.post("/api/auth/change-password/", &body).await.expect(200);
        }
        "put" => {
            drop(workspace.admin.put(&by_name, &with(json!({"password": NEW}))).await.expect(200))
        }
        "patch" => {
            drop(workspace.admin.patch(&by_name, &with(json!({"password": NEW}))).await.expect(200))
        }
        _ => {
            let email = format!("{username}@example.com");
            let body = json!({"email": email});
            let reset_request =
                async { workspace.anonymous.post("/api/auth/reset-password/", &body).await };
            let path = reset_link(workspace, &email, reset_request).await;
            workspace.anonymous.post(&path, &with(json!({"new_password": NEW}))).await.expect(200);
        }
    }
    session.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
}

#[tokio::test]
async fn a_revocation_cancels_waiting_commands() {
    let workspace = Workspace::new().await;
    let servers = [workspace.server("web-1").await, workspace.server("web-2").await];
    let _agent = ScriptedAgent::connect(&workspace, &servers[0]).await;
    for (number, way) in WAYS.into_iter().enumerate() {
        let keep = if number % 2 == 0 { None } else { Some(false) };
        let username = format!("user-{number}");
        let session = workspace.staff(&username).await;
        let other = workspace.anonymous.logged_in(&username, PASSWORD).await;
        let logged_out = workspace.anonymous.logged_in(&username, PASSWORD).await;
        let token = session
            .post("/api/auth/tokens/", &json!({"name": "x", "expires_at": null}))
            .await
            .expect(201);
        let token = session.with_token(token["key"].as_str().unwrap());
        let mut revoked = vec![post(&session, "web-2", json!({"on_offline": "queue"})).await];
        for server in ["web-1", "web-2"] {
            revoked.push(post(&session, server, later()).await);
        }
        let of_other = post(&other, "web-1", later()).await;
        let mut kept =
            vec![post(&token, "web-1", later()).await, post(&logged_out, "web-2", later()).await];
        logged_out.call("POST", "/api/auth/logout/").await.expect(200);
        kept.push(post(&workspace.session(), "web-1", later()).await);
        if way == "session" {
            kept.push(of_other)
        } else {
            revoked.push(of_other)
        }
        revoke(&workspace, &username, &session, way, keep).await;
        for command in &revoked {
            wait_for_cancellation(&workspace, way, command).await;
        }
        for command in &kept {
            assert_eq!(status(&workspace, command).await["text"], "Scheduled", "{way}");
        }
    }
}

#[tokio::test]
async fn a_revocation_can_keep_waiting_commands() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut kept = Vec::new();
    for (number, way) in WAYS.into_iter().enumerate() {
        let username = format!("user-{number}");
        let session = workspace.staff(&username).await;
        kept.push(post(&session, "web-1", json!({"on_offline": "queue"})).await);
        revoke(&workspace, &username, &session, way, Some(true)).await;
    }
    // Kept commands are delivered in the usual order.
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    for command in &kept {
        assert_eq!(agent.next_command().await["id"], command["id"]);
    }
}

#[tokio::test]
async fn a_malformed_choice_revokes_nothing() {
    let workspace = Workspace::new().await;
    let session = workspace.staff("alice").await;
    let (path, field) = (own_session(&session).await, &["keep_scheduled"][..]);
    session.delete(&format!("{path}?keep_scheduled=maybe")).await.expect_fields(400, field);
    session
        .delete(&format!("{SESSIONS}{UNKNOWN_UUID}/?keep_scheduled=maybe"))
        .await
        .expect_detail(404, None);
    for bad in [json!("yes"), json!(1), Value::Null] {
        let body = json!({"password": PASSWORD, "new_password": NEW, "keep_scheduled": bad});
        session.post("/api/auth/change-password/", &body).await.expect_fields(400, field);
        for method in ["PUT", "PATCH"] {
            let body = json!({"password": NEW, "keep_scheduled": bad});
            workspace
                .admin
                .send_json(method, "/api/users/users/alice/", &body)
                .await
                .expect_fields(400, field);
        }
    }
    session.get("/api/status/").await.expect(200);
    workspace.anonymous.log_in("alice", PASSWORD).await.expect(200);
}

/// The revoking request may end right after D1 has the revocation, and a command may be created
/// concurrently. Then no object receives the cancellation. The permission recheck in D1 alone
/// prevents the delivery.
#[tokio::test]
async fn no_command_of_a_revoked_session_is_delivered() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let (session, other) = (workspace.staff("alice").await, workspace.staff("bob").await);
    let at_its_time = json!({"scheduled_at": now().plus_seconds(8)});
    let queued = post(&session, "web-1", json!({"on_offline": "queue"})).await;
    let scheduled = post(&session, "web-1", at_its_time.clone()).await;
    let kept = post(&other, "web-1", at_its_time).await;
    let id = own_session(&session).await;
    let id = id.trim_end_matches('/').rsplit('/').next().unwrap().to_owned();
    instance.d1(&format!(
        "INSERT INTO revoked_sessions (workspace_id, id, user_id, revoked_at, is_settled)
             SELECT workspace_id, id, user_id, added_at, 1 FROM sessions WHERE id = '{id}'"
    ));
    assert_eq!(
        status(&workspace, &queued).await["text"],
        "Queued",
        "the object did not receive the cancellation"
    );
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    assert_eq!(agent.next_command().await["id"], kept["id"], "only the kept command is delivered");
    assert!(agent.stays_silent().await);
    for command in [&queued, &scheduled] {
        wait_for_cancellation(&workspace, "at delivery", command).await;
    }
}
