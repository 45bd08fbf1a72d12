//! Quotas of users and workspaces (contract 11.4).

use farhand_tests::client::PASSWORD;
use farhand_tests::commands::{count_commands, stored_bytes};
use farhand_tests::{Api, Events, Instance, Reply, ScriptedAgent, Workspace, eventually};
use serde_json::{Value, json};

use super::commands::{PATH, id_of, path_of};

/// Asserts an error for an exceeded quota.
#[track_caller]
fn expect_quota_error(reply: &Reply) {
    reply.expect_detail(429, Some("QUOTA_EXCEEDED"));
    assert!(reply.header("Retry-After").parse::<u64>().unwrap() >= 1);
}

/// A command that waits for its agent.
fn queued(line: &str) -> Value {
    json!({"server": "web-1", "line": line, "on_offline": "queue"})
}

async fn stored_commands(instance: &Instance) -> Value {
    instance.d1("SELECT count(*) AS n FROM commands")[0]["n"].clone()
}

#[tokio::test]
async fn waiting_commands_are_limited() {
    let quotas = [("QUOTA_WAITING_PER_USER", "3"), ("QUOTA_WAITING_PER_WORKSPACE", "5")];
    let (instance, _state) = Instance::new_with(&quotas).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let staff = workspace.staff("sam").await;
    let mut made = Vec::new();
    for number in 0..3 {
        made.push(workspace.admin.post(PATH, &queued(&format!("echo {number}"))).await.expect(201));
    }
    expect_quota_error(&workspace.admin.post(PATH, &queued("echo 3")).await);
    // The rejected command is stored neither in D1 nor in the server's object.
    assert_eq!(stored_commands(&instance).await, 3);
    for number in 0..2 {
        staff.post(PATH, &queued(&format!("echo {number}"))).await.expect(201);
    }
    expect_quota_error(&staff.post(PATH, &queued("echo 2")).await);
    // A replay creates no new command, and a rejected request does not use up its key.
    let with_key = async |line: &str| {
        let request =
            staff.request("POST", PATH).header("Idempotency-Key", "one").json(&queued(line));
        staff.send(request).await
    };
    expect_quota_error(&with_key("echo 2").await);
    // A cancelled command makes room, as soon as D1 has the change.
    workspace.admin.delete(&path_of(&made[0])).await.expect(204);
    eventually("room", || async { (with_key("echo 2").await.status == 201).then_some(()) }).await;
    with_key("echo 2").await.expect(201);
    expect_quota_error(&workspace.admin.post(PATH, &queued("echo 3")).await);
    // An immediate command does not count as waiting.
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    for _ in 0..5 {
        let command = agent.next_command().await;
        agent.fin(command["id"].as_str().unwrap(), 0, "done").await;
    }
    for _ in 0..6 {
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": "id"})).await.expect(201);
    }
    let other = Workspace::create_with(&instance.operator(), "other").await;
    other.server("web-1").await;
    other.admin.post(PATH, &queued("id")).await.expect(201);
}

#[tokio::test]
async fn stored_bytes_are_limited() {
    let (instance, _state) = Instance::new_with(&[("QUOTA_BYTES_PER_DAY", "10000")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let run = async |line: String, env: Value| {
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": line, "env": env})).await
    };
    run("l".repeat(2_000), json!({"A": "e".repeat(1_000)})).await.expect(201);
    expect_quota_error(&run("l".repeat(7_000), json!({})).await);
    let made = run("id".to_owned(), json!({})).await.expect(201);
    agent.next_command().await;
    agent.next_command().await;
    agent.fin(id_of(&made), 0, &"o".repeat(6_000)).await;
    let bytes = || stored_bytes(&instance, "acme");
    eventually("D1 to have the output", || async { (bytes() > 9_000).then_some(()) }).await;
    expect_quota_error(&run("l".repeat(1_000), json!({})).await);
    let late = run("id".to_owned(), json!({})).await.expect(201);
    assert_eq!(stored_commands(&instance).await, 3);
    // Output counts too, whether its command is already in the counters or not.
    let before = bytes();
    count_commands(&instance, "acme");
    assert_eq!(bytes(), before);
    expect_quota_error(&run("l".repeat(1_000), json!({})).await);
    agent.next_command().await;
    agent.fin(id_of(&late), 0, "output").await;
    eventually("D1 to have the output", || async { (bytes() == before + 6).then_some(()) }).await;
    // Each day counts separately, with and without the counters.
    for sql in [
        "UPDATE counted_commands SET day = '2020-01-01'",
        "UPDATE commands SET added_at = '2020-01-01T00:00:00.000000+00:00', handled_at = '2020-01-01T00:00:00.000000+00:00'",
    ] {
        instance.d1(sql);
        run("l".repeat(7_000), json!({})).await.expect(201);
        // The line, and the empty environment as stored.
        assert!((7_000..7_050).contains(&bytes()), "{}", bytes());
        expect_quota_error(&run("l".repeat(7_000), json!({})).await);
    }
    count_commands(&instance, "acme");
    assert!((7_000..7_050).contains(&bytes()), "{}", bytes());
}

#[tokio::test]
async fn tokens_and_sessions_of_a_user_are_limited() {
    let quotas = [("QUOTA_TOKENS_PER_USER", "3"), ("QUOTA_SESSIONS_PER_USER", "2")];
    let (instance, _state) = Instance::new_with(&quotas).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let token = |name: &str| json!({"name": name, "expires_at": null});
    const TOKENS: &str = "/api/auth/tokens/";
    // The workspace was created with one token.
    let made = workspace.admin.post(TOKENS, &token("two")).await.expect(201);
    workspace.admin.post(TOKENS, &token("three")).await.expect(201);
    expect_quota_error(&workspace.admin.post(TOKENS, &token("four")).await);
    let events = workspace.admin.get("/api/audit/events/?action=api_token.create").await;
    assert_eq!(events.expect(200)["count"], 3, "a rejected token leaves no event");
    workspace.admin.delete(&format!("{TOKENS}{}/", made["id"].as_str().unwrap())).await.expect(204);
    workspace.admin.post(TOKENS, &token("four")).await.expect(201);
    let alice = workspace.user("alice").await;
    alice.post(TOKENS, &token("one")).await.expect(201);

    // A third session ends the oldest one.
    let boss = workspace.session();
    let second = workspace.anonymous.logged_in("boss", PASSWORD).await;
    boss.get("/api/status/").await.expect(200);
    let third = workspace.anonymous.logged_in("boss", PASSWORD).await;
    boss.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
    second.get("/api/status/").await.expect(200);
    assert_eq!(third.get("/api/auth/sessions/").await.expect(200)["count"], 2);
    alice.get("/api/status/").await.expect(200);
}

#[tokio::test]
async fn live_streams_of_a_user_are_limited() {
    let (instance, _state) = Instance::new_with(&[("QUOTA_STREAMS_PER_USER", "2")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let (admin, session) = (&workspace.admin, workspace.session());
    let command = admin.post(PATH, &json!({"server": "web-1", "line": "id"})).await.expect(201);
    let batch = json!({"targets": {"all": true}, "line": "id", "username": "root"});
    let batch = admin.post("/api/events/batches/", &batch).await.expect(201);
    let path = format!("{}stream/", path_of(&command));
    let batch = format!("/api/events/batches/{}/stream/", id_of(&batch));
    let open = async |api: &Api, path: &str| Events::open(api, path).await;
    // The credentials of a user, and both kinds of streams, count together.
    let mut first = open(admin, &path).await.unwrap();
    let mut second = open(&session, &path).await.unwrap();
    for path in [&path, &batch] {
        expect_quota_error(&open(admin, path).await.err().unwrap());
    }
    // Other requests go on, and so do other users.
    admin.get(&path_of(&command)).await.expect(200);
    let other = workspace.staff("sam").await;
    drop((open(&other, &path).await.unwrap(), open(&other, &batch).await.unwrap()));
    // A stream that ends makes room.
    for _ in 0..2 {
        let command = agent.next_command().await;
        agent.fin(id_of(&command), 0, "done").await;
    }
    first.rest().await;
    second.rest().await;
    eventually("room", || async { open(admin, &path).await.ok() }).await.rest().await;
}
