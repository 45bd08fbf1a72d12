//! `Idempotency-Key` on requests that create resources (contract 3.11). `api/events/idempotency.rs`
//! tests commands.

use farhand_tests::client::{PASSWORD, new_workspace, unique};
use farhand_tests::instance::change_d1;
use farhand_tests::{Api, Instance, Reply, Workspace, eventually, far_ahead};
use serde_json::{Value, json};

async fn post(api: &Api, path: &str, key: &str, body: &Value) -> Reply {
    api.send(api.request("POST", path).header("Idempotency-Key", key).json(body)).await
}

/// For each creating endpoint: path, body, and the fields that only the first response shows.
async fn creations(workspace: &Workspace) -> Vec<(&'static str, Value, &'static [&'static str])> {
    let user = workspace.user_with("carl", &json!({})).await;
    let group = workspace.admin.post("/api/iam/groups/", &json!({"name": "ops"})).await.expect(201);
    vec![
        ("/api/auth/tokens/", json!({"name": "x", "expires_at": null}), &["key"]),
        (
            "/api/iam/users/",
            json!({"username": "anna", "email": "anna@example.com", "password": "correct horse battery"}),
            &[],
        ),
        ("/api/iam/groups/", json!({"name": "web"}), &[]),
        ("/api/iam/memberships/", json!({"group": group["id"], "user": user["id"]}), &[]),
        ("/api/servers/", json!({"name": "web-1"}), &["key", "install", "install_alpamon"]),
        ("/api/servers/registration-tokens/", json!({"name": "x"}), &["key", "install"]),
        (
            "/api/events/batches/",
            json!({"targets": {"all": true}, "line": "id", "scheduled_at": far_ahead()}),
            &[],
        ),
        (
            "/api/events/schedules/",
            json!({"name": "x", "cron": "@daily", "targets": {"all": true}, "line": "id"}),
            &[],
        ),
        ("/api/events/scripts/", json!({"name": "x", "body": "id"}), &[]),
    ]
}

#[tokio::test]
async fn a_repeated_request_creates_once_and_hides_secrets() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    for (path, body, hidden) in creations(&workspace).await {
        let key = format!("key-of-{path}");
        let first = post(&session, path, &key, &body).await;
        let mut made = first.expect(201);
        assert_eq!(first.header("Idempotent-Replayed"), "", "{path}");
        let location = first.header("Location");
        let location = &location[location.find("/api/").unwrap()..];
        assert!(location.starts_with(path), "{path}: {location}");
        assert_eq!(session.get(location).await.expect(200)["id"], made["id"], "{path}");
        let count = session.get(path).await.expect(200)["count"].clone();
        let again = post(&session, path, &key, &body).await;
        for name in hidden {
            assert!(made[*name].is_string(), "{path} {name}");
            made[*name] = Value::Null;
        }
        assert_eq!(again.expect(201), made, "{path}");
        assert_eq!(again.header("Idempotent-Replayed"), "true", "{path}");
        assert_eq!(again.header("Location"), first.header("Location"), "{path}");
        assert_eq!(session.get(path).await.expect(200)["count"], count, "{path}");
        // The key with another body, and with another endpoint.
        let mut other = body.clone();
        other["name"] = json!("other");
        if path == "/api/iam/memberships/" || path == "/api/iam/users/" {
            other = body.clone();
            other["role"] = json!("manager");
            if path == "/api/iam/users/" {
                other = json!({"username": "otto", "email": "otto@example.com", "password": "correct horse battery"});
            }
        }
        post(&session, path, &key, &other).await.expect_detail(422, Some("IDEMPOTENCY_KEY_REUSED"));
        if path != "/api/iam/groups/" {
            let group = json!({"name": "else"});
            let reused = post(&session, "/api/iam/groups/", &key, &group).await;
            reused.expect_detail(422, Some("IDEMPOTENCY_KEY_REUSED"));
        }
        // A malformed key creates nothing.
        post(&session, path, "a b", &other).await.expect_fields(400, &["non_field_errors"]);
        assert_eq!(session.get(path).await.expect(200)["count"], count, "{path}");
    }
}

#[tokio::test]
async fn only_one_of_two_concurrent_requests_creates() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    for (path, body, hidden) in creations(&workspace).await {
        let before = session.get(path).await.expect(200)["count"].as_u64().unwrap();
        let replies =
            futures_util::future::join_all((0..6).map(|_| post(&session, path, "twins", &body)))
                .await;
        // A key belongs to one endpoint, so each endpoint has its own.
        if path != "/api/auth/tokens/" {
            assert!(replies.iter().all(|reply| reply.status == 422), "{path}");
            let replies =
                futures_util::future::join_all((0..6).map(|_| post(&session, path, path, &body)))
                    .await;
            assert_replays(path, hidden, &replies);
        } else {
            assert_replays(path, hidden, &replies);
        }
        assert_eq!(session.get(path).await.expect(200)["count"], before + 1, "{path}");
    }
}

#[track_caller]
fn assert_replays(path: &str, hidden: &[&str], replies: &[Reply]) {
    let first =
        replies.iter().find(|reply| reply.header("Idempotent-Replayed") != "true").expect(path);
    let id = first.expect(201)["id"].clone();
    for reply in replies {
        assert_eq!(reply.expect(201)["id"], id, "{path}");
        let is_replayed = reply.header("Idempotent-Replayed") == "true";
        assert!(hidden.iter().all(|name| reply.json()[*name].is_null() == is_replayed), "{path}");
    }
    assert_eq!(
        replies.iter().filter(|reply| reply.header("Idempotent-Replayed") != "true").count(),
        1,
        "{path}"
    );
}

#[tokio::test]
async fn keys_belong_to_users_and_only_a_201_is_remembered() {
    let workspace = Workspace::new().await;
    let (boss, staff) = (workspace.session(), workspace.staff("bob").await);
    let body = json!({"name": "web-1"});
    post(&boss, "/api/servers/", "k", &body).await.expect(201);
    // Keys belong to users. For bob, the key is new and the name is taken.
    post(&staff, "/api/servers/", "k", &body).await.expect_fields(400, &["name"]);
    let other = json!({"name": "web-2"});
    let made = post(&staff, "/api/servers/", "k", &other).await.expect(201);
    // Without the permission to create, a caller gets no replay.
    let bob = staff.get("/api/iam/users/-/").await.expect(200)["id"].clone();
    workspace
        .admin
        .patch(&format!("/api/iam/users/{bob}/"), &json!({"is_staff": false}))
        .await
        .expect(200);
    let demoted = workspace.anonymous.logged_in("bob", PASSWORD).await;
    let refused = post(&demoted, "/api/servers/", "k", &other).await;
    refused.expect_detail(403, Some("PERMISSION_DENIED"));
    assert!(!refused.text.contains(made["id"].as_str().unwrap()));
}

#[tokio::test]
async fn a_key_creates_one_workspace() {
    const PATH: &str = "/operator/workspaces/";
    let operator = Api::operator();
    let (key, slug) = (unique("key"), unique("once"));
    let body = new_workspace(&slug);
    post(&operator, PATH, "a b", &body).await.expect_fields(400, &["non_field_errors"]);
    // Only a 201 is stored for a replay.
    let mut invalid = body.clone();
    invalid["admin"]["password"] = json!("12345");
    post(&operator, PATH, &key, &invalid).await.expect_fields(400, &["password"]);
    let first = post(&operator, PATH, &key, &body).await;
    let made = first.expect(201);
    assert_eq!(first.header("Idempotent-Replayed"), "");
    let again = post(&operator, PATH, &key, &body).await;
    assert_eq!((again.expect(201), again.header("Idempotent-Replayed")), (made.clone(), "true"));
    assert!(!again.text.contains(PASSWORD));
    assert_eq!(again.header("Location"), first.header("Location"));
    // The key with another body, another key, and no key.
    post(&operator, PATH, &key, &new_workspace(&unique("once")))
        .await
        .expect_detail(422, Some("IDEMPOTENCY_KEY_REUSED"));
    post(&operator, PATH, &unique("key"), &body).await.expect_fields(400, &["slug"]);
    operator.post(PATH, &body).await.expect_fields(400, &["slug"]);
    // Only the operator gets a replay.
    post(&operator.with_authorization(&format!("Bearer {}", "x".repeat(40))), PATH, &key, &body)
        .await
        .expect(403);
    // One workspace exists, its audit log has one creation, and its superuser can log in.
    let api = Api::at(&format!("{slug}.local.localhost")).logged_in("boss", PASSWORD).await;
    assert_eq!(api.get("/api/iam/users/-/").await.expect(200)["id"], made["admin"]["id"]);
    let created = api.get("/api/audit/events/?action=workspace.create").await.expect(200);
    assert_eq!(created["count"], 1);

    // Of two concurrent requests, one creates the resource. The same holds if their bodies differ.
    let (key, body) = (unique("twins"), new_workspace(&unique("twins")));
    let replies =
        futures_util::future::join_all((0..4).map(|_| post(&operator, PATH, &key, &body))).await;
    let made = replies[0].expect(201);
    assert!(replies.iter().all(|reply| reply.expect(201) == made));
    assert_eq!(
        replies.iter().filter(|reply| reply.header("Idempotent-Replayed") != "true").count(),
        1
    );
    let key = unique("bodies");
    let bodies: Vec<_> = (0..4).map(|_| new_workspace(&unique("bodies"))).collect();
    let replies =
        futures_util::future::join_all(bodies.iter().map(|body| post(&operator, PATH, &key, body)))
            .await;
    let statuses: Vec<_> = replies.iter().map(|reply| reply.status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 422).count(), 3, "{statuses:?}");
}

#[tokio::test]
async fn one_pass_deletes_more_rows_than_one_statement() {
    let (instance, state) = Instance::new().await;
    instance.stop().await;
    let insert = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500)
        INSERT INTO idempotency_keys (workspace_id, user_id, key_hash, request_hash, answer, added_at)
        SELECT 0, 0, 'key' || i, '', '{}', iif(i <= 10, '2999', '2020') || '-01-01T00:00:00.000000+00:00' FROM n";
    assert_eq!(change_d1(state.path(), insert), 2_500);
    // The restart runs the hourly pass.
    let instance = Instance::restart(state.path()).await;
    let left = || instance.read_d1("SELECT CAST(count(*) AS TEXT) FROM idempotency_keys");
    eventually("the expired rows to go", || async { (left() == ["10"]).then_some(()) }).await;
}
