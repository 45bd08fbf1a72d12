//! Limits of registration tokens, and servers that wait for approval (contract 6.4 and 6.5).

use farhand_domain::fleet::fingerprint;
use farhand_domain::secret::Secret;
use farhand_tests::agents::{ScriptedAgent, credential, wait_until_connected};
use farhand_tests::people::{COMMANDS, SERVERS, UNKNOWN_UUID, USERS, column, item_path};
use farhand_tests::{Api, Instance, Person, Reply, Workspace, eventually, now};
use serde_json::{Value, json};

const TOKENS: &str = "/api/servers/registration-tokens/";
const REGISTER: &str = "/api/servers/servers/register/";
const DENIED: Option<&str> = Some("PERMISSION_DENIED");
const PENDING: Option<&str> = Some("SERVER_PENDING");

/// A client with a new registration token that has some limits.
async fn registering_client(workspace: &Workspace, limits: Value) -> Api {
    let mut body = json!({"name": "x"});
    body.as_object_mut().unwrap().extend(limits.as_object().unwrap().clone());
    let token = workspace.admin.post(TOKENS, &body).await.expect(201);
    workspace.anonymous.with_token(token["key"].as_str().unwrap())
}

async fn register(host: &Api, name: &str) -> Reply {
    host.post(REGISTER, &json!({"name": name, "platform": "debian"})).await
}

async fn read_server(workspace: &Workspace, server: &Value) -> Value {
    workspace.admin.get(&item_path(SERVERS, server)).await.expect(200)
}

fn approve_path(server: &Value) -> String {
    format!("{}approve/", item_path(SERVERS, server))
}

/// The fingerprint of an agent's key, as the host shows it.
fn fingerprint_of(server: &Value) -> String {
    fingerprint::from_key(&Secret::new(server["key"].as_str().unwrap()))
}

#[tokio::test]
async fn a_token_registers_only_names_that_match_its_pattern() {
    let workspace = Workspace::new().await;
    let host =
        registering_client(&workspace, json!({"name_pattern": "web-*.example", "uses": 3})).await;
    for bad in ["payroll-db", "web-1", "web-1.examples", "xweb-1.example", "web.example"] {
        let reply = register(&host, bad).await;
        reply.expect_detail(403, DENIED);
        assert!(
            reply.json()["detail"].as_str().unwrap().contains("name_pattern"),
            "{}",
            reply.text
        );
    }
    register(&host, "not a name").await.expect_fields(400, &["name"]);
    for (requested, name) in [
        ("web-1.example", "web-1.example"),
        ("WEB-.example", "web-.example"),
        ("web-1.example", "web-1.example-2"),
    ] {
        assert_eq!(
            register(&host, requested).await.expect(201)["name"],
            name,
            "rejected requests use up nothing"
        );
    }
    register(&host, "web-4.example").await.expect_detail(403, Some("INVALID_TOKEN"));
    let servers = workspace.admin.get(&format!("{SERVERS}?ordering=name")).await.expect(200);
    assert_eq!(column(&servers, "registration"), vec![json!("active"); 3]);
}

#[tokio::test]
async fn a_token_registers_only_from_its_networks() {
    let workspace = Workspace::new().await;
    let body = json!({"name": "x", "networks": ["10.1.2.3/8", "2001:db8::/32"]});
    let token = workspace.admin.post(TOKENS, &body).await.expect(201);
    assert_eq!(token["networks"], json!(["10.0.0.0/8", "2001:db8::/32"]));
    let host = workspace.anonymous.with_token(token["key"].as_str().unwrap());
    for bad in ["192.0.2.1", "11.0.0.1", "2001:db9::1"] {
        let reply = register(&host.from_address(bad), "web").await;
        reply.expect_detail(403, DENIED);
        assert!(reply.json()["detail"].as_str().unwrap().contains("networks"), "{}", reply.text);
        // The network is checked before the input.
        register(&host.from_address(bad), "not a name").await.expect_detail(403, DENIED);
    }
    for (good, name) in
        [("10.255.0.1", "web"), ("2001:db8:1::1", "web-2"), ("::ffff:10.0.0.1", "web-3")]
    {
        assert_eq!(register(&host.from_address(good), "web").await.expect(201)["name"], name);
    }
    let nowhere = self::registering_client(&workspace, json!({"networks": []})).await;
    register(&nowhere.from_address("10.0.0.1"), "web").await.expect_detail(403, DENIED);
}

#[tokio::test]
async fn a_pending_server_runs_nothing_until_staff_approve_it() {
    let workspace = Workspace::new().await;
    let group = workspace.group("ops", &[]).await;
    let (member, manager) =
        (Person::new(&workspace, "max").await, Person::new(&workspace, "mia").await);
    workspace.add_member(&group, &member, "member").await;
    workspace.add_member(&group, &manager, "manager").await;
    let outsider = workspace.user("eve").await;
    let staff = workspace.staff("steve").await;
    let host =
        registering_client(&workspace, json!({"approval": true, "groups": [group["id"]]})).await;
    let server = register(&host, "payroll-db").await.expect(201);
    let (path, right) = (approve_path(&server), fingerprint_of(&server));
    // Staff see the fingerprint of the key on the host. Other users do not.
    for (api, shown) in
        [(&workspace.admin, json!(right)), (&staff, json!(right)), (&member.api, Value::Null)]
    {
        let one = api.get(&item_path(SERVERS, &server)).await.expect(200);
        assert_eq!((&one["registration"], &one["fingerprint"]), (&json!("pending"), &shown));
        let list = api.get(SERVERS).await.expect(200);
        assert_eq!(column(&list, "fingerprint"), std::slice::from_ref(&shown));
    }
    // The agent can connect, but receives no commands.
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    wait_until_connected(&workspace, server["id"].as_str().unwrap(), true).await;
    let later =
        json!({"server": "payroll-db", "line": "id", "scheduled_at": now().plus_seconds(60)});
    let secret =
        json!({"server": "payroll-db", "line": "id", "env": {"DB_PASSWORD": "confidential"}});
    for body in [json!({"server": "payroll-db", "line": "id"}), later, secret.clone()] {
        for api in [&workspace.admin, &manager.api, &member.api] {
            api.post(COMMANDS, &body).await.expect_detail(409, PENDING);
        }
    }
    // The permission is checked before the state of the server.
    let as_root = json!({"server": "payroll-db", "line": "id", "username": "root"});
    member.api.post(COMMANDS, &as_root).await.expect_detail(403, DENIED);
    outsider.post(COMMANDS, &secret).await.expect_fields(400, &["server"]);
    assert!(agent.stays_silent().await);
    // Only staff can approve, and only with the right fingerprint.
    let body = json!({"fingerprint": right});
    for api in [&member.api, &manager.api] {
        for body in [&body, &json!({}), &json!({"fingerprint": "AAAA-AAAA"})] {
            api.post(&path, body).await.expect_detail(403, DENIED);
        }
    }
    outsider.post(&path, &body).await.expect_detail(404, None);
    staff.post(&format!("{SERVERS}{UNKNOWN_UUID}/approve/"), &body).await.expect_detail(404, None);
    for bad in [
        json!({}),
        json!({"fingerprint": null}),
        json!({"fingerprint": "AAAA-AAAA"}),
        json!({"fingerprint": 7}),
    ] {
        staff.post(&path, &bad).await.expect_fields(400, &["fingerprint"]);
    }
    assert_eq!(read_server(&workspace, &server).await["registration"], "pending");
    let typed = json!({"fingerprint": right.to_lowercase().replace('-', "")});
    let approved = staff.post(&path, &typed).await.expect(200);
    assert_eq!(
        (&approved["registration"], &approved["fingerprint"]),
        (&json!("active"), &Value::Null)
    );
    assert_eq!(approved, read_server(&workspace, &server).await);
    let made = workspace.admin.post(COMMANDS, &secret).await.expect(201);
    assert_eq!(agent.next_command().await["id"], made["id"]);
    // A second approval changes nothing. Another fingerprint is rejected, and so is an approval of
    // a server that needs none.
    assert_eq!(staff.post(&path, &body).await.expect(200)["registration"], "active");
    staff
        .post(&path, &json!({"fingerprint": "AAAA-AAAA"}))
        .await
        .expect_fields(400, &["fingerprint"]);
    let other = workspace.server("by-hand").await;
    assert_eq!((&other["registration"], &other["fingerprint"]), (&json!("active"), &Value::Null));
    staff.post(&approve_path(&other), &body).await.expect_fields(400, &["fingerprint"]);
    let events = workspace.admin.get("/api/audit/events/?action=server.approve").await.expect(200);
    // The member and the manager caused the denied events.
    let is_done = |event: &&Value| event["outcome"] == "success";
    let done: Vec<&Value> = events["results"].as_array().unwrap().iter().filter(is_done).collect();
    let [event] = done.as_slice() else { panic!("{events}") };
    assert_eq!((&event["actor"]["name"], &event["object"]["id"]), (&json!("steve"), &server["id"]));
    assert_eq!(event["details"]["fingerprint"], json!(right));
}

#[tokio::test]
async fn a_new_key_has_a_new_fingerprint() {
    let workspace = Workspace::new().await;
    let host = registering_client(&workspace, json!({"approval": true})).await;
    let server = register(&host, "web").await.expect(201);
    let rotated = workspace
        .admin
        .call("POST", &format!("{}rotate-key/", item_path(SERVERS, &server)))
        .await
        .expect(200);
    let new = fingerprint_of(&rotated);
    assert_eq!(
        (&rotated["fingerprint"], &read_server(&workspace, &server).await["fingerprint"]),
        (&json!(new), &json!(new))
    );
    let old = json!({"fingerprint": fingerprint_of(&server)});
    workspace.admin.post(&approve_path(&server), &old).await.expect_fields(400, &["fingerprint"]);
    workspace.admin.post(&approve_path(&server), &json!({"fingerprint": new})).await.expect(200);
}

#[tokio::test]
async fn a_pending_server_gets_no_name_of_another_server() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let (plain, approving) = (
        registering_client(&workspace, json!({"uses": null})).await,
        registering_client(&workspace, json!({"approval": true, "uses": null})).await,
    );
    for name in ["deleted", "renamed", "taken"] {
        workspace.server(name).await;
    }
    let servers = workspace.admin.get(&format!("{SERVERS}?ordering=name")).await.expect(200);
    let [deleted, renamed, _] = servers["results"].as_array().unwrap().as_slice() else {
        panic!("{servers}")
    };
    workspace.admin.delete(&item_path(SERVERS, deleted)).await.expect(204);
    workspace
        .admin
        .patch(&item_path(SERVERS, renamed), &json!({"name": "another"}))
        .await
        .expect(200);
    for (requested, name) in [
        ("deleted", "deleted-2"),
        ("renamed", "renamed-2"),
        ("taken", "taken-2"),
        ("fresh", "fresh"),
    ] {
        assert_eq!(register(&approving, requested).await.expect(201)["name"], name);
    }
    // A server that was never approved reserves no name.
    let fresh = workspace.admin.get(&format!("{SERVERS}?name=fresh")).await.expect(200)["results"]
        [0]
    .clone();
    workspace.admin.delete(&item_path(SERVERS, &fresh)).await.expect(204);
    assert_eq!(register(&approving, "fresh").await.expect(201)["name"], "fresh");
    // Without approval, only names of existing servers count.
    assert_eq!(register(&plain, "renamed").await.expect(201)["name"], "renamed");
    // After 30 days, the name of a deleted server is free.
    let days_ago = |days: i64| now().plus_seconds(-days * 24 * 3600);
    instance.d1(&format!(
        "UPDATE server_names SET freed_at = '{}' WHERE name = 'deleted'",
        days_ago(29)
    ));
    assert_eq!(register(&approving, "deleted").await.expect(201)["name"], "deleted-3");
    instance.d1(&format!(
        "UPDATE server_names SET freed_at = '{}' WHERE name = 'deleted'",
        days_ago(31)
    ));
    assert_eq!(register(&approving, "deleted").await.expect(201)["name"], "deleted");
    // The reservation is deleted when the next name is reserved.
    workspace.admin.delete(&item_path(SERVERS, renamed)).await.expect(204);
    let names = instance.d1("SELECT name FROM server_names ORDER BY name");
    assert_eq!(names, json!([{"name": "another"}, {"name": "renamed"}]));
}

#[tokio::test]
async fn a_server_without_approval_is_deleted_after_a_day() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let approving = registering_client(&workspace, json!({"approval": true})).await;
    let mut servers = Vec::new();
    for name in ["old", "young", "approved"] {
        servers.push(register(&approving, name).await.expect(201));
    }
    let [old, young, approved] = servers.as_slice() else { panic!("{servers:?}") };
    let body = json!({"fingerprint": fingerprint_of(approved)});
    workspace.admin.post(&approve_path(approved), &body).await.expect(200);
    for (name, seconds) in
        [("old", 24 * 3600 + 1), ("young", 24 * 3600 - 600), ("approved", 48 * 3600)]
    {
        let added_at = now().plus_seconds(-seconds);
        instance.d1(&format!("UPDATE servers SET added_at = '{added_at}' WHERE name = '{name}'"));
    }
    // The cron trigger fires when an instance starts.
    instance.stop_when_d1_is_current().await;
    let instance = Instance::restart(state.path()).await;
    let admin = workspace.admin.with_url(&instance.url);
    eventually("the deletion", || async {
        (admin.get(&item_path(SERVERS, old)).await.status == 404).then_some(())
    })
    .await;
    for kept in [young, approved] {
        admin.get(&item_path(SERVERS, kept)).await.expect(200);
    }
    let agent = workspace.anonymous.with_url(&instance.url).with_authorization(&credential(old));
    agent.get("/api/servers/servers/-/").await.expect_detail(403, Some("INVALID_TOKEN"));
    let events = admin.get("/api/audit/events/?action=server.delete").await.expect(200);
    assert_eq!(events["count"], 1, "{events}");
    let event = &events["results"][0];
    assert_eq!(
        (&event["actor"]["type"], &event["object"]["name"]),
        (&json!("service"), &json!("old"))
    );
    admin.get(USERS).await.expect(200);
}
