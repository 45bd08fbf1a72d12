//! `/api/auth/sessions/` (contract 4.7).

use farhand_domain::time::Timestamp;
use farhand_tests::client::PASSWORD;
use farhand_tests::mail::{key_of, mail_to};
use farhand_tests::{Api, Instance, Workspace, eventually};
use serde_json::{Value, json};

const PATH: &str = "/api/auth/sessions/";
const OTHER: &str = "an entirely other one";

fn ids(list: &Value) -> Vec<&str> {
    list["results"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect()
}

/// Logs in from an address with a `User-Agent` header.
async fn log_in_as(api: &Api, user_agent: &str, address: &str) -> Api {
    let body = json!({"username": "boss", "password": PASSWORD});
    let api = api.from_address(address);
    let login = api
        .send(api.request("POST", "/api/auth/login/").header("User-Agent", user_agent).json(&body))
        .await;
    api.with_token(login.expect(200)["token"].as_str().unwrap())
}

fn path_of(session: &Value) -> String {
    format!("{PATH}{}/", session["id"].as_str().unwrap())
}

#[tokio::test]
async fn callers_see_their_own_sessions_newest_first() {
    let workspace = Workspace::new().await;
    let second = log_in_as(&workspace.anonymous, "curl/8 (ä)", "2001:db8::7").await;
    let list = second.get(PATH).await.expect(200);
    assert_eq!(
        (&list["count"], &list["next"], &list["previous"]),
        (&json!(2), &Value::Null, &Value::Null)
    );
    let [newest, oldest] = list["results"].as_array().unwrap().as_slice() else { panic!("{list}") };
    let mut keys: Vec<&String> = newest.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(keys, ["added_at", "current", "expires_at", "id", "remote_ip", "user_agent"]);
    assert_eq!((&newest["current"], &oldest["current"]), (&json!(true), &json!(false)));
    assert_eq!(newest["remote_ip"], "2001:db8::7");
    assert!(newest["user_agent"].as_str().unwrap().starts_with("curl/8"), "{newest}");
    assert_eq!(oldest["remote_ip"], "127.0.0.1");
    let moment = |name: &str| Timestamp::parse(newest[name].as_str().unwrap()).unwrap();
    assert_eq!(moment("expires_at").seconds_since(moment("added_at")), 14.0 * 24.0 * 3600.0);
    assert_eq!(
        farhand_domain::id::parse(newest["id"].as_str().unwrap()).unwrap().get_version_num(),
        7
    );

    // The other session sees itself as current. An API token has no session, and sees both.
    let other = workspace.session().get(PATH).await.expect(200);
    assert_eq!(ids(&other), ids(&list));
    assert_eq!(
        (&other["results"][0]["current"], &other["results"][1]["current"]),
        (&json!(false), &json!(true))
    );
    let by_token = workspace.admin.get(PATH).await.expect(200);
    assert!(
        by_token["results"].as_array().unwrap().iter().all(|session| session["current"] == false),
        "{by_token}"
    );

    assert_eq!(second.get(&path_of(newest)).await.expect(200), *newest);
    let page = second.get(&format!("{PATH}?page=2&page_size=1")).await.expect(200);
    assert_eq!((ids(&page), &page["count"]), (vec![oldest["id"].as_str().unwrap()], &json!(2)));
}

#[tokio::test]
async fn a_deleted_session_is_refused_at_the_next_request() {
    let workspace = Workspace::new().await;
    let other = workspace.anonymous.logged_in("boss", PASSWORD).await;
    let list = workspace.session().get(PATH).await.expect(200);
    let path = path_of(&list["results"][0]);
    let reply = workspace.session().delete(&path).await;
    assert_eq!((reply.status, reply.text.as_str()), (204, ""));
    other.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
    other
        .post("/api/servers/", &json!({"name": "web-1"}))
        .await
        .expect_detail(403, Some("INVALID_TOKEN"));
    assert_eq!(workspace.admin.get("/api/servers/").await.expect(200)["count"], 0);
    for method in ["GET", "DELETE"] {
        workspace.session().call(method, &path).await.expect_detail(404, None);
    }
    assert_eq!(workspace.session().get(PATH).await.expect(200)["count"], 1);
    // Deleting the current session logs out.
    let own = path_of(&workspace.session().get(PATH).await.expect(200)["results"][0]);
    assert_eq!(workspace.session().delete(&own).await.status, 204);
    workspace.session().delete(&own).await.expect_detail(403, Some("INVALID_TOKEN"));
    // An API token can list and delete its owner's sessions too.
    workspace.anonymous.logged_in("boss", PASSWORD).await;
    let last = path_of(&workspace.admin.get(PATH).await.expect(200)["results"][0]);
    assert_eq!(workspace.admin.delete(&last).await.status, 204);
    assert_eq!(workspace.admin.get(PATH).await.expect(200)["count"], 0);
}

#[tokio::test]
async fn other_and_unknown_sessions_are_404() {
    let (workspace, elsewhere) = (Workspace::new().await, Workspace::new().await);
    let user = workspace.user("alice").await;
    let theirs = path_of(&user.get(PATH).await.expect(200)["results"][0]);
    for other in [&workspace.admin, &workspace.session(), &elsewhere.admin] {
        for method in ["GET", "DELETE"] {
            other.call(method, &theirs).await.expect_detail(404, None);
        }
        assert!(
            !ids(&other.get(PATH).await.expect(200)).contains(&theirs.rsplit('/').nth(1).unwrap())
        );
    }
    for missing in ["01936d3e-7a00-7000-8000-000000000000", "nonsense", "-", "1"] {
        user.delete(&format!("{PATH}{missing}/")).await.expect_detail(404, None);
    }
    user.get("/api/status/").await.expect(200);
}

#[tokio::test]
async fn a_concurrent_refresh_never_revives_an_ended_session() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    workspace.user_with("alice", &json!({})).await;
    let alice = async || workspace.anonymous.logged_in("alice", PASSWORD).await;
    for how in [
        "logout by GET",
        "logout by POST",
        "session delete",
        "change-password",
        "superuser",
        "reset",
        "deactivation",
        "deletion",
    ] {
        let reset = match how {
            "reset" => {
                let body = json!({"email": "alice@example.com"});
                workspace.anonymous.post("/api/auth/reset-password/", &body).await.expect(200);
                let mail = mail_to(&instance.state.join("worker.log"), "alice@example.com").await;
                format!("/api/auth/reset-password/confirm/{}/", key_of(mail.link()))
            }
            _ => String::new(),
        };
        let session = alice().await;
        let path = path_of(&session.get(PATH).await.expect(200)["results"][0]);
        // Each request of an aged session moves its expiry in D1 and KV.
        let aged = |column: &str| {
            format!("{column} = strftime('%Y-%m-%dT%H:%M:%f000+00:00', {column}, '-1 hours')")
        };
        instance.d1(&format!(
            "UPDATE sessions SET {}, {}",
            aged("expires_at"),
            aged("refreshed_at")
        ));
        let requests: Vec<_> = (0..12)
            .map(|_| {
                let session = session.clone();
                tokio::spawn(async move { session.get("/api/status/").await.status })
            })
            .collect();
        let (admin, user) = (&workspace.admin, "/api/users/users/alice/");
        let end = match how {
            "logout by GET" => session.get("/api/auth/logout/").await,
            "logout by POST" => session.call("POST", "/api/auth/logout/").await,
            "session delete" => session.delete(&path).await,
            "change-password" => {
                let body = json!({"password": PASSWORD, "new_password": OTHER});
                session.post("/api/auth/change-password/", &body).await
            }
            "superuser" => admin.put(user, &json!({"password": OTHER})).await,
            "reset" => workspace.anonymous.post(&reset, &json!({"new_password": OTHER})).await,
            "deactivation" => {
                let id = admin.get(user).await.expect(200)["id"].to_string();
                let reply = admin
                    .patch(&format!("/api/iam/users/{id}/"), &json!({"is_active": false}))
                    .await;
                reply.expect(200);
                admin.patch(&format!("/api/iam/users/{id}/"), &json!({"is_active": true})).await
            }
            _ => admin.delete(user).await,
        };
        assert!(end.status < 300, "{how}: {} {}", end.status, end.text);
        session.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
        for request in requests {
            assert!([200, 403].contains(&request.await.unwrap()), "{how}");
        }
        // After all concurrent requests, the session is still ended, and its KV entry disappears.
        session.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
        let sessions = "SELECT s.id FROM sessions s JOIN users u ON u.id = s.user_id WHERE u.username = 'alice'";
        assert_eq!(instance.d1(sessions), json!([]), "{how}");
        eventually("the KV entry to be deleted", || async {
            session.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
            // Only the superuser's own session is left.
            (instance.kv_entries(&workspace.slug).len() == 1).then_some(())
        })
        .await;
        if how != "deletion" {
            admin.put(user, &json!({"password": PASSWORD})).await.expect(200);
        }
    }
}

#[tokio::test]
async fn expired_sessions_are_hidden_and_deleted_at_login() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let id = workspace.session().get(PATH).await.expect(200)["results"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let old = "strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now', '-601 seconds')";
    instance.d1(&format!("UPDATE sessions SET expires_at = {old}"));
    assert_eq!(workspace.admin.get(PATH).await.expect(200)["count"], 0);
    for method in ["GET", "DELETE"] {
        workspace.admin.call(method, &format!("{PATH}{id}/")).await.expect_detail(404, None);
    }
    workspace.anonymous.logged_in("boss", PASSWORD).await;
    assert_eq!(instance.d1(&format!("SELECT id FROM sessions WHERE id = '{id}'")), json!([]));
}
