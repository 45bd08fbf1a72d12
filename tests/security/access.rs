//! Access of staff, an owner and an ordinary user to servers and commands (contract 5.5 and 5.6).

use farhand_tests::agents::ScriptedAgent;
use farhand_tests::client::PASSWORD;
use farhand_tests::people::{SERVERS, column, item_path};
use farhand_tests::{Api, Person, Workspace};
use serde_json::{Value, json};

const COMMANDS: &str = "/api/events/commands/";

struct People {
    workspace: Workspace,
    staff: Api,
    owner: Api,
    outsider: Api,
    server: Value,
}

async fn people() -> People {
    let workspace = Workspace::new().await;
    let (staff, owner) = (workspace.staff("staff").await, Person::new(&workspace, "owner").await);
    let outsider = workspace.user("outsider").await;
    let server = workspace.server("web-1").await;
    owner.own(&workspace, &server).await;
    workspace.server("web-2").await;
    People { workspace, staff, owner: owner.api, outsider, server }
}

fn names(list: &Value) -> Vec<&str> {
    list["results"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn owners_see_their_servers_and_staff_see_all() {
    let people = people().await;
    let id = people.server["id"].as_str().unwrap();
    for (api, expected) in [
        (&people.staff, &["web-2", "web-1"][..]),
        (&people.owner, &["web-1"]),
        (&people.outsider, &[]),
    ] {
        let list = api.get("/api/servers/").await.expect(200);
        assert_eq!((names(&list).as_slice(), &list["count"]), (expected, &json!(expected.len())));
        let status = if expected.contains(&"web-1") { 200 } else { 404 };
        assert_eq!(api.get(&format!("/api/servers/servers/{id}/")).await.status, status);
    }
    let shown = people.owner.get(&format!("/api/servers/servers/{id}/")).await.expect(200);
    assert_eq!(shown["owner"]["username"], "owner");
    // Only staff create servers. The permission is checked before the input.
    for body in [
        json!({"name": "web-3"}),
        json!({"name": "Not A Name"}),
        json!({}),
        json!({"name": "web-1"}),
    ] {
        for api in [&people.owner, &people.outsider] {
            api.post("/api/servers/", &body).await.expect_detail(403, Some("PERMISSION_DENIED"));
        }
    }
    people
        .staff
        .post("/api/servers/", &json!({"name": "Not A Name"}))
        .await
        .expect_fields(400, &["name"]);
    people.staff.post("/api/servers/", &json!({"name": "web-3"})).await.expect(201);
}

#[tokio::test]
async fn commands_follow_the_access_to_their_server() {
    let people = people().await;
    let mut agent = ScriptedAgent::connect(&people.workspace, &people.server).await;
    let run = |api: &Api, body: Value| {
        let api = api.clone();
        async move { api.post(COMMANDS, &body).await }
    };
    // Staff and the owner may run as any account. The default is their own name.
    for (api, name) in [(&people.staff, "staff"), (&people.owner, "owner")] {
        run(api, json!({"server": "web-1", "line": "id"})).await.expect(201);
        assert_eq!(agent.next_command().await["user"], name);
        let body = json!({"server": "web-1", "line": "id", "username": "root", "groupname": "adm"});
        let made = run(api, body).await.expect(201);
        assert_eq!(made["requested_by"]["username"], name);
        let order = agent.next_command().await;
        assert_eq!((&order["user"], &order["group"]), (&json!("root"), &json!("adm")));
    }
    // Built-ins of the agent are for staff.
    let internal = json!({"server": "web-1", "line": "ping", "shell": "internal"});
    run(&people.staff, internal.clone()).await.expect(201);
    assert_eq!(agent.next_command().await["shell"], "internal");
    run(&people.owner, internal).await.expect_detail(403, Some("PERMISSION_DENIED"));
    // A server without access looks like one that does not exist.
    for server in [json!("web-1"), people.server["id"].clone(), json!("nowhere")] {
        run(&people.outsider, json!({"server": server, "line": "id"}))
            .await
            .expect_fields(400, &["server"]);
    }
    run(&people.owner, json!({"server": "web-2", "line": "id"}))
        .await
        .expect_fields(400, &["server"]);
    run(&people.staff, json!({"server": "web-2", "line": "id"}))
        .await
        .expect_detail(503, Some("SERVER_NOT_CONNECTED"));
    assert!(agent.stays_silent().await);

    for (api, count) in [(&people.staff, 5), (&people.owner, 5), (&people.outsider, 0)] {
        let list = api.get(COMMANDS).await.expect(200);
        assert_eq!(
            (&list["count"], list["results"].as_array().unwrap().len()),
            (&json!(count), count)
        );
    }
    let any = people.staff.get(COMMANDS).await.expect(200)["results"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    people.owner.get(&format!("{COMMANDS}{any}/")).await.expect(200);
    people
        .outsider
        .get(&format!("{COMMANDS}{any}/"))
        .await
        .expect_detail(404, Some("COMMAND_NOT_FOUND"));
}

#[tokio::test]
async fn a_demotion_ends_sessions_and_releases_servers() {
    let workspace = Workspace::new().await;
    let admin = &workspace.admin;
    let invalid = Some("INVALID_TOKEN");
    // Name, rank before, update, and whether the update is a demotion.
    let cases = [
        ("staff", json!({"is_staff": true}), json!({"is_staff": false}), true),
        ("superuser", json!({"is_superuser": true}), json!({"is_superuser": false}), true),
        (
            "both",
            json!({"is_staff": true, "is_superuser": true}),
            json!({"is_superuser": false}),
            true,
        ),
        ("promoted", json!({"is_staff": true}), json!({"is_superuser": true}), false),
        ("renamed", json!({"is_staff": true}), json!({"first_name": "X"}), false),
        (
            "keeper",
            json!({"is_staff": true}),
            json!({"is_staff": false, "keep_servers": true}),
            true,
        ),
        (
            "thief",
            json!({"is_staff": true}),
            json!({"is_staff": false, "keep_servers": false}),
            true,
        ),
    ];
    for (name, rank, change, is_lower) in cases {
        let user = workspace.user_with(name, &rank).await;
        let path = format!("/api/iam/users/{}/", user["id"]);
        let (first, second) = (
            workspace.anonymous.logged_in(name, PASSWORD).await,
            workspace.anonymous.logged_in(name, PASSWORD).await,
        );
        let token = first
            .post("/api/auth/tokens/", &json!({"name": "x", "expires_at": null}))
            .await
            .expect(201);
        let token = workspace.anonymous.with_token(token["key"].as_str().unwrap());
        let mut servers = Vec::new();
        for number in 0..2 {
            servers.push(
                first
                    .post("/api/servers/", &json!({"name": format!("{name}-{number}")}))
                    .await
                    .expect(201),
            );
        }
        let server = item_path(SERVERS, &servers[0]);
        admin.patch(&path, &change).await.expect(200);
        for session in [&first, &second] {
            let reply = session.get("/api/status/").await;
            if is_lower {
                reply.expect_detail(403, invalid);
            } else {
                reply.expect(200);
            }
        }
        token.get("/api/status/").await.expect(200);
        let keeps = !is_lower || name == "keeper";
        let owner = admin.get(&server).await.expect(200)["owner"].clone();
        assert_eq!(owner.is_null(), !keeps, "{name}: {owner}");
        // After a demotion, only the owner keeps access to the server.
        if is_lower && name != "both" {
            let new = workspace.anonymous.logged_in(name, PASSWORD).await;
            for api in [&new, &token] {
                let rotate = format!("{server}rotate-key/");
                let root = json!({"server": servers[1]["id"], "line": "id", "username": "root"});
                if keeps {
                    api.call("POST", &rotate).await.expect(200);
                    api.post(COMMANDS, &root)
                        .await
                        .expect_detail(503, Some("SERVER_NOT_CONNECTED"));
                } else {
                    api.call("POST", &rotate).await.expect_detail(404, None);
                    api.delete(&server).await.expect_detail(404, None);
                    api.post(COMMANDS, &root).await.expect_fields(400, &["server"]);
                }
            }
        }
        let details = admin
            .get(&format!("/api/audit/events/?action=user.update&object={}", user["id"]))
            .await
            .expect(200);
        let details = column(&details, "details").remove(0);
        for rank in ["is_staff", "is_superuser"] {
            let (old, new) = (details["old"][rank].clone(), details[rank].clone());
            let expected = if change[rank].is_null() {
                Value::Null
            } else {
                json!(!change[rank].as_bool().unwrap())
            };
            assert_eq!((old, &new), (expected, &change[rank]), "{name} {rank}: {details}");
        }
        let released =
            (details["released_servers"].clone(), details["released_servers_total"].clone());
        let ids: Vec<&Value> = servers.iter().map(|server| &server["id"]).collect();
        let expected = if keeps { (Value::Null, Value::Null) } else { (json!(ids), json!(2)) };
        assert_eq!(released, expected, "{name}");
    }
    // A PUT without the rank is a demotion too. Superusers can demote themselves.
    let user = workspace.user_with("put", &json!({"is_staff": true})).await;
    let session = workspace.anonymous.logged_in("put", PASSWORD).await;
    let server = session.post("/api/servers/", &json!({"name": "put"})).await.expect(201);
    let whole = json!({"username": "put", "email": "put@example.com"});
    let path = format!("/api/iam/users/{}/", user["id"]);
    admin
        .put(&path, &json!({"username": "put", "email": "put@example.com", "keep_servers": 1}))
        .await
        .expect_fields(400, &["keep_servers"]);
    admin.put(&path, &whole).await.expect(200);
    session.get("/api/status/").await.expect_detail(403, invalid);
    assert_eq!(admin.get(&item_path(SERVERS, &server)).await.expect(200)["owner"], Value::Null);
    workspace.user_with("own", &json!({"is_superuser": true})).await;
    let own = workspace.anonymous.logged_in("own", PASSWORD).await;
    let server = own.post("/api/servers/", &json!({"name": "own"})).await.expect(201);
    own.patch("/api/iam/users/-/", &json!({"is_superuser": false})).await.expect(200);
    own.get("/api/status/").await.expect_detail(403, invalid);
    assert_eq!(admin.get(&item_path(SERVERS, &server)).await.expect(200)["owner"], Value::Null);
}

#[tokio::test]
async fn tokens_are_private_and_end_with_their_user() {
    let people = people().await;
    let path = "/api/auth/tokens/";
    let made =
        people.owner.post(path, &json!({"name": "mine", "expires_at": null})).await.expect(201);
    let single = format!("{path}{}/", made["id"].as_str().unwrap());
    for other in [&people.outsider, &people.staff, &people.workspace.admin] {
        other.call("DELETE", &single).await.expect_detail(404, None);
        assert!(!names(&other.get(path).await.expect(200)).contains(&"mine"));
    }
    let token = people.workspace.anonymous.with_token(made["key"].as_str().unwrap());
    token.get("/api/status/").await.expect(200);
    let id = people.owner.get("/api/iam/users/-/").await.expect(200)["id"].clone();
    let user = format!("/api/iam/users/{id}/");
    people.workspace.admin.patch(&user, &json!({"is_active": false})).await.expect(200);
    for dead in [&token, &people.owner] {
        dead.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
        dead.post("/api/servers/", &json!({"name": "x"}))
            .await
            .expect_detail(403, Some("INVALID_TOKEN"));
    }
    let login = json!({"username": "owner", "password": PASSWORD});
    people
        .workspace
        .anonymous
        .post("/api/auth/login/", &login)
        .await
        .expect_fields(403, &["non_field_errors"]);
}
