//! Quotas of users and workspaces (contract 11.4).

use farhand_tests::client::PASSWORD;
use farhand_tests::commands::{count_commands, output_bytes, stored_bytes};
use farhand_tests::{
    Api, Events, Instance, Person, Reply, ScriptedAgent, Workspace, eventually, far_ahead,
};
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

/// An ordinary member who can access a server.
async fn member(workspace: &Workspace, server: &Value, username: &str) -> Api {
    let user = workspace.user_with(username, &json!({})).await;
    let group = json!({"name": username, "servers": [server["id"]]});
    let group = workspace.admin.post("/api/iam/groups/", &group).await.expect(201);
    let membership = json!({"group": group["id"], "user": user["id"], "role": "member"});
    workspace.admin.post("/api/iam/memberships/", &membership).await.expect(201);
    workspace.anonymous.logged_in(username, PASSWORD).await
}

#[tokio::test]
async fn stored_bytes_are_limited_for_a_day_that_slides() {
    let quotas = [("QUOTA_BYTES_PER_DAY", "40000"), ("QUOTA_BYTES_PER_USER", "6000")];
    let (instance, _state) = Instance::new_with(&quotas).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let (alice, bob) =
        (member(&workspace, &server, "alice").await, member(&workspace, &server, "bob").await);
    let run = async |api: &Api, line: usize| {
        let body = json!({"server": "web-1", "line": "l".repeat(line), "on_offline": "queue"});
        api.post(PATH, &body).await
    };
    // A command counts its line, its inputs and 2,500 bytes. A user has a share.
    let inputs = json!({"server": "web-1", "line": "id", "on_offline": "queue", "env": {"A": "e".repeat(1_000)}});
    alice.post(PATH, &inputs).await.expect(201);
    let refused = run(&alice, 2).await;
    expect_quota_error(&refused);
    let wait: u64 = refused.header("Retry-After").parse().unwrap();
    assert!((24 * 3_600..=25 * 3_600).contains(&wait), "{wait}");
    run(&bob, 2).await.expect(201);
    // A refused command leaves nothing.
    assert_eq!(stored_commands(&instance).await, 2);
    // Staff use the rest. A tenth of it is theirs alone.
    let before = stored_bytes(&instance, "acme");
    count_commands(&instance, "acme");
    assert_eq!(stored_bytes(&instance, "acme"), before, "counted or not");
    while stored_bytes(&instance, "acme") + 2_502 <= 36_000 {
        run(&workspace.admin, 500).await.expect(201);
    }
    expect_quota_error(&run(&bob, 2).await);
    run(&workspace.admin, 2).await.expect(201);
    // What is more than a day old does not count.
    count_commands(&instance, "acme");
    instance.d1("UPDATE quota_bytes SET hour = hour - 24");
    expect_quota_error(&run(&bob, 2).await);
    instance.d1("UPDATE quota_bytes SET hour = hour - 1");
    assert_eq!(stored_bytes(&instance, "acme"), 0);
    run(&bob, 2).await.expect(201);
}

#[tokio::test]
async fn output_beyond_its_quota_is_left_out_and_commands_go_on() {
    let quotas = [("QUOTA_OUTPUT_BYTES_PER_DAY", "10000")];
    let (instance, _state) = Instance::new_with(&quotas).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let alice = member(&workspace, &server, "alice").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let mut run = async |api: &Api, chunks: &[usize], result: &str| {
        let made = api.post(PATH, &json!({"server": "web-1", "line": "yes"})).await.expect(201);
        agent.next_command().await;
        for (seq, length) in chunks.iter().enumerate() {
            agent.chunk(id_of(&made), seq as u32, &"o".repeat(*length)).await;
        }
        agent.fin(id_of(&made), 0, result).await;
        let shown = api.get(&format!("{}?wait=10", path_of(&made))).await.expect(200);
        let kept = shown["result"].as_str().unwrap().len();
        let [bytes, skipped] = ["output_bytes", "output_skipped"].map(|name| shown[name].clone());
        assert_eq!(shown["output_truncated"], skipped != 0, "{shown}");
        let message = shown["status"]["message"].as_str().unwrap();
        assert_eq!(message.contains("quota of output"), skipped != 0, "{message}");
        // The list says the same, once D1 has the end.
        eventually("the list", || async {
            let list = api.get(PATH).await.expect(200);
            let item =
                list["results"].as_array().unwrap().iter().find(|item| item["id"] == made["id"]);
            let item = item.unwrap().clone();
            let fields = ["status", "output_bytes", "output_skipped", "output_truncated"];
            fields.iter().all(|field| item[*field] == shown[*field]).then_some(())
        })
        .await;
        (kept, bytes, skipped)
    };
    // The share of a user is a tenth. Whole chunks are kept.
    assert_eq!(run(&alice, &[600, 600], "").await, (600, json!(1_200), json!(600)));
    assert_eq!(output_bytes(&instance, "acme"), 600);
    assert_eq!(run(&alice, &[], &"r".repeat(500)).await, (400, json!(500), json!(100)));
    assert_eq!(run(&alice, &[1], "").await, (0, json!(1), json!(1)));
    assert_eq!(output_bytes(&instance, "acme"), 1_000);
    // Staff have no share, and keep 256 KiB of each command when the quota is used up.
    assert_eq!(run(&workspace.admin, &[20_000], "").await, (20_000, json!(20_000), json!(0)));
    let more = 300_000;
    assert_eq!(
        run(&workspace.admin, &[200_000, 100_000], "").await,
        (200_000, json!(more), json!(100_000))
    );
    assert_eq!(run(&alice, &[1], "").await, (0, json!(1), json!(1)));
}

#[tokio::test]
async fn changes_count_for_a_users_share_and_nobody_is_locked_out() {
    let (instance, _state) = Instance::new_with(&[("QUOTA_BYTES_PER_USER", "4000")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let (alice, bob) = (workspace.user("alice").await, workspace.user("bob").await);
    const ME: &str = "/api/iam/users/-/";
    const TOKENS: &str = "/api/auth/tokens/";
    let token = alice.post(TOKENS, &json!({"name": "one", "expires_at": null})).await.expect(201);
    let mut changes = 0;
    let refused = loop {
        let changed = alice.patch(ME, &json!({"first_name": format!("a{changes}")})).await;
        if changed.status != 200 {
            break changed;
        }
        changes += 1;
        assert!(changes < 10, "no change is refused");
    };
    expect_quota_error(&refused);
    assert_eq!(alice.get(ME).await.expect(200)["first_name"], format!("a{}", changes - 1));
    let events = workspace.admin.get("/api/audit/events/?action=user.update&actor=alice").await;
    assert_eq!(events.expect(200)["count"], changes, "a refused change leaves no event");
    // Nothing else that grows.
    let path = format!("{TOKENS}{}/", token["id"].as_str().unwrap());
    expect_quota_error(&alice.patch(&path, &json!({"name": "two"})).await);
    expect_quota_error(&alice.post(TOKENS, &json!({"name": "two", "expires_at": null})).await);
    // What ends something, sign-in and passwords always work, and others go on.
    alice.delete(&path).await.expect(204);
    let again = workspace.anonymous.logged_in("alice", PASSWORD).await;
    assert!(again.call("POST", "/api/auth/logout/").await.status < 300);
    let body = json!({"password": PASSWORD, "new_password": "correct horse battery 11"});
    alice.post("/api/auth/change-password/", &body).await.expect(200);
    bob.patch(ME, &json!({"first_name": "b"})).await.expect(200);
    for number in 0..10 {
        let body = json!({"first_name": format!("c{number}")});
        workspace.admin.patch(ME, &body).await.expect(200);
    }
}

/// A staff session must not take the tools from the superusers who stop it.
#[tokio::test]
async fn changes_of_staff_leave_superusers_their_part_of_the_quota() {
    let (instance, _state) = Instance::new_with(&[("QUOTA_BYTES_PER_DAY", "100000")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    workspace.server("web-1").await;
    let steve = Person::staff(&workspace, "steve").await;
    let mut changes = 0;
    let refused = loop {
        let body = json!({"first_name": format!("s{changes}")});
        let changed = steve.api.patch("/api/iam/users/-/", &body).await;
        if changed.status != 200 {
            break changed;
        }
        changes += 1;
        assert!(changes < 200, "no change is refused");
    };
    expect_quota_error(&refused);
    let waiting = json!({"server": "web-1", "line": "id", "scheduled_at": far_ahead()});
    expect_quota_error(&steve.api.post(PATH, &waiting).await);
    workspace.admin.post(PATH, &waiting).await.expect(201);
    workspace.admin.patch(&steve.path(), &json!({"is_active": false})).await.expect(200);
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
    let batch =
        json!({"targets": {"all": true}, "line": "id", "username": "root", "on_offline": "queue"});
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
