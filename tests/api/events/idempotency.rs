//! `Idempotency-Key` of commands (contract 3.11): a repeated request runs once.

use farhand_tests::agents::{ScriptedAgent, credential};
use farhand_tests::client::PASSWORD;
use farhand_tests::instance::change_objects;
use farhand_tests::{Api, Instance, Reply, Workspace, eventually};
use serde_json::{Value, json};

use super::commands::{PATH, id_of, path_of, workspace_with_agent};

async fn post(api: &Api, key: &str, body: &Value) -> Reply {
    api.send(api.request("POST", PATH).header("Idempotency-Key", key).json(body)).await
}

fn is_replayed(reply: &Reply) -> bool {
    reply.header("Idempotent-Replayed") == "true"
}

#[tokio::test]
async fn twenty_concurrent_requests_create_one_command() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let body = json!({"server": "web-1", "line": "once"});
    let posts = (0..20).map(|_| post(&workspace.admin, "a-key", &body));
    let replies = futures_util::future::join_all(posts).await;
    let first = replies[0].expect(201);
    for reply in &replies {
        assert_eq!(reply.expect(201), first);
    }
    assert_eq!(replies.iter().filter(|reply| !is_replayed(reply)).count(), 1);
    assert_eq!(agent.next_command().await["id"], first["id"]);
    assert!(agent.stays_silent().await);
    assert_eq!(workspace.admin.get(PATH).await.expect(200)["count"], 1);
}

#[tokio::test]
async fn a_replay_returns_the_first_response() {
    let (workspace, _, agent) = workspace_with_agent().await;
    let body = json!({"server": "web-1", "line": "once", "env": {"A": "b"}});
    let first = post(&workspace.admin, "k", &body).await;
    assert!(!is_replayed(&first));
    let made = first.expect(201);
    agent.fin(id_of(&made), 0, "done").await;
    // The same JSON in another notation.
    let text = "{ \"env\": {\"A\":\"b\"},\n \"line\":\"once\", \"server\": \"web-1\" }";
    for api in [&workspace.admin, &workspace.session()] {
        let request = api
            .request("POST", PATH)
            .header("Idempotency-Key", "k")
            .header("Content-Type", "application/json");
        let again = api.send(request.body(text)).await;
        assert!(is_replayed(&again));
        assert_eq!(again.expect(201), made);
    }
    assert_eq!(workspace.admin.get(&path_of(&made)).await.expect(200)["status"]["text"], "Success");
    agent.close().await;
    // The replay does not need the server to be connected.
    eventually("the connection's end", || async {
        (workspace.admin.get("/api/servers/").await.expect(200)["results"][0]["is_connected"]
            == false)
            .then_some(())
    })
    .await;
    assert_eq!(post(&workspace.admin, "k", &body).await.expect(201), made);
    post(&workspace.admin, "other", &body).await.expect_detail(503, Some("SERVER_NOT_CONNECTED"));
}

#[tokio::test]
async fn repeated_waiting_requests_all_get_the_result() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let body = json!({"server": "web-1", "line": "once"});
    let posts = (0..5).map(|_| {
        let api = workspace.admin.clone();
        let request = api
            .request("POST", PATH)
            .header("Idempotency-Key", "k")
            .header("Prefer", "wait=30")
            .json(&body);
        tokio::spawn(async move { api.send(request).await })
    });
    let posts: Vec<_> = posts.collect();
    let order = agent.next_command().await;
    agent.fin(id_of(&order), 0, "done").await;
    for reply in posts {
        let answer = reply.await.unwrap().expect(201);
        assert_eq!((&answer["id"], &answer["result"]), (&order["id"], &json!("done")));
    }
    assert!(agent.stays_silent().await);
}

#[tokio::test]
async fn a_key_with_another_body_is_refused() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let other = workspace.server("web-2").await;
    let mut other_agent = ScriptedAgent::connect(&workspace, &other).await;
    let body = json!({"server": "web-1", "line": "once"});
    let made = post(&workspace.admin, "k", &body).await.expect(201);
    agent.next_command().await;
    for changed in [
        json!({"server": "web-1", "line": "twice"}),
        json!({"server": "web-2", "line": "once"}),
        json!({"server": "web-1", "line": "once", "timeout": 60}),
        json!({"server": "web-1", "line": "once", "env": {}}),
        json!({"server": made["server"], "line": "once"}),
    ] {
        post(&workspace.admin, "k", &changed)
            .await
            .expect_detail(422, Some("IDEMPOTENCY_KEY_REUSED"));
    }
    // Concurrent requests with one key for different servers: one of them creates a command.
    let bodies = [json!({"server": "web-1", "line": "x"}), json!({"server": "web-2", "line": "x"})];
    let replies = futures_util::future::join_all(
        bodies.iter().map(|body| post(&workspace.admin, "both", body)),
    )
    .await;
    let mut statuses: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 422]);
    let winner = if replies[0].status == 201 { &mut agent } else { &mut other_agent };
    assert_eq!(winner.next_command().await["line"], "x");
    assert!(agent.stays_silent().await && other_agent.stays_silent().await);
    assert_eq!(workspace.admin.get(PATH).await.expect(200)["count"], 2);
}

#[tokio::test]
async fn keys_belong_to_their_user_and_workspace() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let staff = workspace.staff("alice").await;
    let body = json!({"server": "web-1", "line": "once"});
    let made = post(&workspace.admin, "k", &body).await.expect(201);
    let others = post(&staff, "k", &body).await;
    assert!(!is_replayed(&others));
    assert_ne!(others.expect(201)["id"], made["id"]);
    agent.next_command().await;
    agent.next_command().await;
    // Keys also belong to their workspace.
    let (elsewhere, _, _agent) = workspace_with_agent().await;
    assert!(!is_replayed(&post(&elsewhere.admin, "k", &body).await));
}

#[tokio::test]
async fn only_a_201_is_remembered() {
    let workspace = Workspace::new().await;
    let body = json!({"server": "web-1", "line": "once"});
    post(&workspace.admin, "k", &body).await.expect_fields(400, &["server"]);
    let server = workspace.server("web-1").await;
    post(&workspace.admin, "k", &body).await.expect_detail(503, Some("SERVER_NOT_CONNECTED"));
    post(&workspace.admin, "k", &json!({"server": "web-1", "line": ""}))
        .await
        .expect_fields(400, &["line"]);
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let made = post(&workspace.admin, "k", &body).await;
    assert!(!is_replayed(&made));
    assert_eq!(agent.next_command().await["id"], made.expect(201)["id"]);
    assert!(is_replayed(&post(&workspace.admin, "k", &body).await));
}

#[tokio::test]
async fn malformed_keys_are_refused() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let body = json!({"server": "web-1", "line": "id"});
    for bad in ["", "a b", "a\tb", &"x".repeat(129)] {
        post(&workspace.admin, bad, &body).await.expect_fields(400, &["non_field_errors"]);
    }
    let api = &workspace.admin;
    let request = api.request("POST", PATH).header("Idempotency-Key", "é".as_bytes()).json(&body);
    api.send(request).await.expect_fields(400, &["non_field_errors"]);
    assert!(agent.stays_silent().await);
    for good in ["!", "~", &"x".repeat(128)] {
        post(api, good, &body).await.expect(201);
        agent.next_command().await;
    }
}

#[tokio::test]
async fn a_key_of_an_interrupted_request_returns_its_command() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let body = json!({"server": "web-1", "line": "once"});
    let waiting = {
        let api = workspace.admin.clone();
        let request = api
            .request("POST", PATH)
            .header("Idempotency-Key", "k")
            .header("Prefer", "wait=60")
            .json(&body);
        tokio::spawn(async move {
            request.send().await.and_then(reqwest::Response::error_for_status).is_ok()
        })
    };
    let order = agent.next_command().await;
    instance.kill().await;
    assert!(!waiting.await.unwrap(), "the request must not get a response");

    let instance = Instance::restart(state.path()).await;
    let api = workspace.admin.with_url(&instance.url);
    let again = post(&api, "k", &body).await;
    assert_eq!(again.expect(201)["id"], order["id"]);
    assert!(is_replayed(&again));
    let agent_api =
        workspace.anonymous.with_authorization(&credential(&server)).with_url(&instance.url);
    let mut agent = ScriptedAgent::connect_to(&agent_api, "/ws/servers/backhaul/").await;
    assert!(agent.stays_silent().await);
    assert_eq!(api.get(PATH).await.expect(200)["count"], 1);
}

#[tokio::test]
async fn the_list_agrees_with_the_replay_after_a_crash() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let keys = ["a", "b", "c", "d"];
    let waiting = keys.map(|key| {
        let body = json!({"server": "web-1", "line": key});
        let request = workspace
            .admin
            .request("POST", PATH)
            .header("Idempotency-Key", key)
            .header("Prefer", "wait=60")
            .json(&body);
        tokio::spawn(async move {
            request.send().await.and_then(reqwest::Response::error_for_status).is_ok()
        })
    });
    let mut orders = Vec::new();
    for _ in keys {
        orders.push(agent.next_command().await);
    }
    instance.kill().await;
    for request in waiting {
        assert!(!request.await.unwrap(), "the request must not get a response");
    }
    let instance = Instance::restart(state.path()).await;
    let api = workspace.admin.with_url(&instance.url);
    let agent_api =
        workspace.anonymous.with_authorization(&credential(&server)).with_url(&instance.url);
    let agent = ScriptedAgent::connect_to(&agent_api, "/ws/servers/backhaul/").await;
    for order in &orders {
        let key = order["line"].as_str().unwrap();
        agent.fin(id_of(order), 0, "done").await;
        let again = post(&api, key, &json!({"server": "web-1", "line": key})).await.expect(201);
        assert_eq!(again["state"], "success");
        // A response waits up to a second for the list, which a slow machine may need.
        eventually("the list", || async {
            let list = api.get(PATH).await.expect(200);
            let mut listed = list["results"].as_array().unwrap().iter();
            listed
                .any(|item| item["id"] == order["id"] && item["status"] == again["status"])
                .then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_key_is_free_again_after_a_day() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    workspace.server("web-1").await;
    let body = |line: &str| json!({"server": "web-1", "line": line, "on_offline": "queue"});
    let made = post(&workspace.admin, "old", &body("once")).await.expect(201);
    let young = post(&workspace.admin, "young", &body("once")).await.expect(201);
    let id = id_of(&made);
    // Makes both keys older: one by more than a day, the other by a little less.
    let aged = |seconds: i64, column: &str| {
        format!("strftime('%Y-%m-%dT%H:%M:%f000+00:00', {column}, '-{seconds} seconds')")
    };
    let (more, less) = (24 * 3600 + 60, 24 * 3600 - 900);
    let change = format!(
        "UPDATE commands SET added_at = iif(id = '{id}', {}, {}) RETURNING id",
        aged(more, "added_at"),
        aged(less, "added_at")
    );
    assert_eq!(instance.d1(&change).as_array().unwrap().len(), 2);
    instance.stop().await;
    let change = format!(
        "UPDATE answers SET expires_at = iif(command = '{id}', {}, {})",
        aged(more, "expires_at"),
        aged(less, "expires_at")
    );
    assert_eq!(change_objects(state.path(), "ServerLink", &change), 2);

    let instance = Instance::restart(state.path()).await;
    let api = workspace.admin.with_url(&instance.url);
    let again = post(&api, "young", &body("once")).await;
    assert!(is_replayed(&again));
    assert_eq!(again.expect(201), young);
    post(&api, "young", &body("other")).await.expect_detail(422, Some("IDEMPOTENCY_KEY_REUSED"));
    let other = post(&api, "old", &body("other")).await;
    assert!(!is_replayed(&other));
    assert_ne!(other.expect(201)["id"], made["id"]);
    post(&api, "old", &body("once")).await.expect_detail(422, Some("IDEMPOTENCY_KEY_REUSED"));
    assert_eq!(api.get(PATH).await.expect(200)["count"], 3);
}

#[tokio::test]
async fn a_replay_needs_access_to_the_command() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let alice = workspace.staff("alice").await;
    let limited = json!({"name": "x", "expires_at": null, "acl": {"commands": ["ls *"]}});
    let limited = alice.post("/api/auth/tokens/", &limited).await.expect(201);
    let limited = alice.with_token(limited["key"].as_str().unwrap());
    let body = json!({"server": "web-1", "line": "id"});
    let made = post(&alice, "k", &body).await.expect(201);
    agent.next_command().await;
    post(&limited, "k", &body).await.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
    assert_eq!(post(&alice, "k", &body).await.expect(201), made);

    let id = alice.get("/api/iam/users/-/").await.expect(200)["id"].clone();
    workspace
        .admin
        .patch(&format!("/api/iam/users/{id}/"), &json!({"is_staff": false}))
        .await
        .expect(200);
    let alice = workspace.anonymous.logged_in("alice", PASSWORD).await;
    alice.get(&path_of(&made)).await.expect_detail(404, Some("COMMAND_NOT_FOUND"));
    for api in [&alice, &limited] {
        post(api, "k", &body).await.expect_fields(400, &["server"]);
    }
    assert!(agent.stays_silent().await);
}
