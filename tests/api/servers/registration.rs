//! Registration tokens, and agents that register and unregister their own server (contract 6.4;
//! agent-protocol 1.2).

use std::collections::BTreeSet;

use farhand_domain::time::Timestamp;
use farhand_tests::agents::{ScriptedAgent, credential, dial, wait_until_connected};
use farhand_tests::client::PASSWORD;
use farhand_tests::commands::wait_until_ended;
use farhand_tests::people::{
    COMMANDS, SERVERS, UNKNOWN_ID, UNKNOWN_UUID, column, group_path, item_path, keys,
};
use farhand_tests::{Api, Person, Reply, Workspace, eventually, now};
use futures_util::future;
use serde_json::{Value, json};

const TOKENS: &str = "/api/servers/registration-tokens/";
const REGISTER: &str = "/api/servers/servers/register/";
const OWN: &str = "/api/servers/servers/-/";
const DENIED: Option<&str> = Some("PERMISSION_DENIED");
const INVALID: Option<&str> = Some("INVALID_TOKEN");

/// Creates a registration token with additional fields.
async fn create_token(api: &Api, more: Value) -> Value {
    let mut body = json!({"name": "x"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    api.post(TOKENS, &body).await.expect(201)
}

/// A client with a registration token.
fn client_with(workspace: &Workspace, token: &Value) -> Api {
    workspace.anonymous.with_token(token["key"].as_str().unwrap())
}

async fn register(host: &Api, name: &str) -> Reply {
    host.post(REGISTER, &json!({"name": name, "platform": "debian"})).await
}

/// Registers a server, and asserts the fields of the response.
async fn register_server(host: &Api, name: &str) -> Value {
    let made = register(host, name).await.expect(201);
    assert_eq!(keys(&made), ["id", "key", "name"]);
    let key = made["key"].as_str().unwrap();
    assert!(key.len() == 128 && key.bytes().all(|b| b.is_ascii_alphanumeric()));
    made
}

async fn remaining_uses(workspace: &Workspace, token: &Value) -> Value {
    workspace.admin.get(&item_path(TOKENS, token)).await.expect(200)["uses"].clone()
}

async fn count_servers(workspace: &Workspace) -> Value {
    workspace.admin.get(SERVERS).await.expect(200)["count"].clone()
}

/// Otherwise a token could leave a credential behind that is valid after its own expiry.
#[tokio::test]
async fn an_expiring_api_token_leaves_no_credential_behind() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    let (limit, soon) = (now().plus_seconds(3_600), now().plus_seconds(1_800));
    let own = json!({"name": "own", "expires_at": limit});
    let own = session.post("/api/auth/tokens/", &own).await.expect(201);
    let api = workspace.anonymous.with_token(own["key"].as_str().unwrap());
    for path in [TOKENS, "/api/auth/tokens/"] {
        for end in [Value::Null, json!(limit.plus_millis(1))] {
            let refused = api.post(path, &json!({"name": "x", "expires_at": end})).await;
            refused.expect_fields(400, &["expires_at"]);
        }
        for end in [limit, soon] {
            let made = api.post(path, &json!({"name": "x", "expires_at": end})).await.expect(201);
            assert_eq!(made["expires_at"], json!(end));
        }
    }
    // All input errors are reported together, and nothing was created.
    let bad = json!({"name": "x", "expires_at": null, "groups": [999]});
    api.post(TOKENS, &bad).await.expect_fields(400, &["expires_at", "groups"]);
    assert_eq!(create_token(&api, json!({})).await["expires_at"], json!(limit));
    let tokens = workspace.admin.get(TOKENS).await.expect(200);
    assert_eq!(column(&tokens, "expires_at"), [json!(limit), json!(soon), json!(limit)]);
    // A session, and a token without an expiry, have no such limit.
    for api in [&session, &workspace.admin] {
        assert_eq!(create_token(api, json!({"expires_at": null})).await["expires_at"], Value::Null);
        assert!(
            create_token(api, json!({})).await["expires_at"].as_str() > Some(&limit.to_string())
        );
    }
}

#[tokio::test]
async fn a_token_shows_its_key_once() {
    let workspace = Workspace::new().await;
    let staff = Person::staff(&workspace, "steve").await;
    let (one, two) = (workspace.group("one", &[]).await, workspace.group("two", &[]).await);
    let plain = workspace.admin.post(TOKENS, &json!({"name": "plain"})).await.expect(201);
    assert_eq!(
        keys(&plain),
        [
            "added_at",
            "approval",
            "expires_at",
            "groups",
            "id",
            "install",
            "key",
            "label_keys",
            "labels",
            "name",
            "name_pattern",
            "networks",
            "uses"
        ]
    );
    let key = plain["key"].as_str().unwrap();
    assert!(key.len() == 128 && key.bytes().all(|b| b.is_ascii_alphanumeric()));
    let install = plain["install"].as_str().unwrap();
    assert!(
        install.starts_with(" curl ")
            && install.ends_with(&format!("/install.sh | FARHAND_REGISTRATION_TOKEN={key} sh")),
        "{install}"
    );
    // A token expires, unless the request says null.
    let lifetime =
        Timestamp::parse(plain["expires_at"].as_str().unwrap()).unwrap().seconds_since(now());
    assert!((86_300.0..=86_400.0).contains(&lifetime), "{lifetime}");
    for (field, value) in [
        ("name", json!("plain")),
        ("groups", json!([])),
        ("uses", json!(10)),
        ("name_pattern", Value::Null),
        ("networks", Value::Null),
        ("approval", json!(false)),
        ("labels", json!({})),
        ("label_keys", json!([])),
    ] {
        assert_eq!(plain[field], value, "{field}");
    }
    assert!(Timestamp::parse(plain["added_at"].as_str().unwrap()).is_ok());
    let expires_at = now().plus_seconds(3_600);
    let body = json!({"name": "Ä full one", "groups": [two["id"], one["id"], two["id"]], "expires_at": expires_at,
        "uses": 100_000});
    let full = staff.api.post(TOKENS, &body).await.expect(201);
    assert_eq!((&full["name"], &full["uses"]), (&body["name"], &body["uses"]));
    assert_eq!(full["groups"], json!([one["id"], two["id"]]), "ids are ascending and unique");
    assert_eq!(full["expires_at"], json!(expires_at));
    let shown = |token: &Value| {
        let mut shown = token.clone();
        shown.as_object_mut().unwrap().retain(|name, _| name != "key" && name != "install");
        shown
    };
    // Staff see all tokens. The key is never shown again.
    for api in [&workspace.admin, &staff.api] {
        let list = api.get(TOKENS).await.expect(200);
        let expected = json!([shown(&full), shown(&plain)]);
        assert_eq!(
            list,
            json!({"count": 2, "next": null, "previous": null, "results": expected}),
            "newest first"
        );
        for token in [&full, &plain] {
            assert_eq!(api.get(&item_path(TOKENS, token)).await.expect(200), shown(token));
        }
        let page = api.get(&format!("{TOKENS}?page_size=1&page=2")).await.expect(200);
        assert_eq!((column(&page, "id"), &page["count"]), (vec![plain["id"].clone()], &json!(2)));
    }
    // Tokens are created and deleted, but never changed.
    for method in ["PUT", "PATCH", "POST"] {
        assert_eq!(
            workspace
                .admin
                .send_json(method, &item_path(TOKENS, &plain), &json!({"uses": 5}))
                .await
                .status,
            405
        );
    }
    assert_eq!(staff.api.delete(&item_path(TOKENS, &plain)).await.expect(204), Value::Null);
    for method in ["GET", "DELETE"] {
        staff.api.call(method, &item_path(TOKENS, &plain)).await.expect_detail(404, None);
    }
    assert_eq!(workspace.admin.get(TOKENS).await.expect(200)["count"], 1);
}

#[tokio::test]
async fn invalid_fields_create_no_registration_token() {
    let (workspace, elsewhere) = (Workspace::new().await, Workspace::new().await);
    elsewhere.skip_ids().await;
    let theirs = elsewhere.group("ops", &[]).await;
    let group = workspace.group("ops", &[]).await;
    for (bad, field) in [
        (json!({"name": null}), "name"),
        (json!({"name": ""}), "name"),
        (json!({"name": " "}), "name"),
        (json!({"name": 7}), "name"),
        (json!({"name": "x".repeat(129)}), "name"),
        (json!({"name": "a\u{0}"}), "name"),
        (json!({"groups": "ops"}), "groups"),
        (json!({"groups": null}), "groups"),
        (json!({"groups": 7}), "groups"),
        (json!({"groups": ["ops"]}), "groups"),
        (json!({"groups": [null]}), "groups"),
        (json!({"groups": [1.5]}), "groups"),
        (json!({"groups": [0]}), "groups"),
        (json!({"groups": [u64::MAX]}), "groups"),
        (json!({"groups": [UNKNOWN_ID]}), "groups"),
        (json!({"groups": [group["id"], theirs["id"]]}), "groups"),
        (json!({"expires_at": "tomorrow"}), "expires_at"),
        (json!({"expires_at": 7}), "expires_at"),
        (json!({"expires_at": ""}), "expires_at"),
        (json!({"expires_at": "2999-01-01T00:00:00"}), "expires_at"),
        (json!({"expires_at": "2020-01-01T00:00:00Z"}), "expires_at"),
        (json!({"expires_at": now()}), "expires_at"),
        (json!({"uses": 0}), "uses"),
        (json!({"uses": -1}), "uses"),
        (json!({"uses": 100_001}), "uses"),
        (json!({"name_pattern": ""}), "name_pattern"),
        (json!({"name_pattern": "Web-*"}), "name_pattern"),
        (json!({"name_pattern": "web-?"}), "name_pattern"),
        (json!({"name_pattern": ["web-*"]}), "name_pattern"),
        (json!({"networks": "10.0.0.0/8"}), "networks"),
        (json!({"networks": ["10.0.0.0"]}), "networks"),
        (json!({"networks": ["10.0.0.0/33"]}), "networks"),
        (json!({"approval": "yes"}), "approval"),
        (json!({"uses": 1.5}), "uses"),
        (json!({"uses": "5"}), "uses"),
        (json!({"uses": true}), "uses"),
        (json!({"uses": u64::MAX}), "uses"),
    ] {
        let mut body = json!({"name": "x"});
        body.as_object_mut().unwrap().extend(bad.as_object().unwrap().clone());
        let reply = workspace.admin.post(TOKENS, &body).await;
        assert_eq!(reply.status, 400, "{bad}: {}", reply.text);
        reply.expect_fields(400, &[field]);
    }
    workspace.admin.post(TOKENS, &json!({})).await.expect_fields(400, &["name"]);
    let all = json!({"name": "", "groups": 1, "expires_at": "x", "uses": 0});
    workspace
        .admin
        .post(TOKENS, &all)
        .await
        .expect_fields(400, &["expires_at", "groups", "name", "uses"]);
    assert_eq!(workspace.admin.get(TOKENS).await.expect(200)["count"], 0);
    // Groups of other workspaces look like unknown groups.
    let mut texts = Vec::new();
    for id in [&theirs["id"], &json!(UNKNOWN_ID)] {
        let reply = workspace.admin.post(TOKENS, &json!({"name": "x", "groups": [id]})).await;
        texts.push(reply.text.replace(&id.to_string(), "<id>"));
    }
    assert_eq!(texts[0], texts[1]);
    let most =
        json!({"name": "ü".repeat(128), "uses": 1, "expires_at": "2999-01-01T00:00:00+02:00"});
    let made = workspace.admin.post(TOKENS, &most).await.expect(201);
    assert_eq!(made["expires_at"], "2998-12-31T22:00:00.000000+00:00");
    // Names of tokens need not be unique.
    workspace.admin.post(TOKENS, &most).await.expect(201);
}

#[tokio::test]
async fn only_staff_manage_registration_tokens() {
    let (workspace, elsewhere) = (Workspace::new().await, Workspace::new().await);
    let made = create_token(&workspace.admin, json!({})).await;
    let group = workspace.group("ops", &[]).await;
    let owner = Person::new(&workspace, "olga").await;
    workspace.add_member(&group, &owner, "owner").await;
    let path = item_path(TOKENS, &made);
    for api in [&owner.api, &workspace.user("eve").await] {
        for path in
            [TOKENS, &path, &format!("{TOKENS}{UNKNOWN_UUID}/"), &format!("{TOKENS}?page=0")]
        {
            api.get(path).await.expect_detail(403, DENIED);
        }
        for body in [json!({"name": "x"}), json!({}), json!({"name": "x", "groups": [group["id"]]})]
        {
            api.post(TOKENS, &body).await.expect_detail(403, DENIED);
        }
        for path in [&path, &format!("{TOKENS}{UNKNOWN_UUID}/")] {
            api.delete(path).await.expect_detail(403, DENIED);
        }
    }
    let mut texts = Vec::new();
    for path in [
        path.clone(),
        format!("{TOKENS}{UNKNOWN_UUID}/"),
        format!("{TOKENS}nonsense/"),
        format!("{TOKENS}-/"),
    ] {
        for method in ["GET", "DELETE"] {
            let reply = elsewhere.admin.call(method, &path).await;
            reply.expect_detail(404, None);
            texts.push(reply.text);
        }
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    assert_eq!(workspace.admin.get(TOKENS).await.expect(200)["count"], 1);
    register_server(&client_with(&workspace, &made), "web-1").await;
}

#[tokio::test]
async fn only_registration_tokens_register() {
    let workspace = Workspace::new().await;
    let made = create_token(&workspace.admin, json!({"uses": 3})).await;
    let host = client_with(&workspace, &made);
    // A registration token is accepted by no other endpoint.
    for path in [
        "/api/status/",
        "/api/servers/",
        TOKENS,
        COMMANDS,
        "/api/iam/users/-/",
        "/api/auth/sessions/",
    ] {
        host.get(path).await.expect_detail(403, INVALID);
    }
    assert_eq!(
        host.get("/api/auth/is-authenticated/").await.expect(200),
        json!({"authenticated": false})
    );
    host.post("/api/servers/", &json!({"name": "web-1"})).await.expect_detail(403, INVALID);
    host.delete(&item_path(TOKENS, &made)).await.expect_detail(403, INVALID);
    assert_eq!(
        dial(&host, "/ws/servers/backhaul/").await.err(),
        Some(404),
        "the header has the form of a user's token"
    );
    // No other credential can register.
    let server = workspace.server("web-1").await;
    let limited = workspace.limited(&json!({})).await;
    let unknown = workspace.anonymous.with_token(&"A".repeat(128));
    for api in [&workspace.admin, &workspace.session(), &limited, &unknown] {
        register(api, "web-2").await.expect_detail(403, INVALID);
        api.post(REGISTER, &json!({})).await.expect_detail(403, INVALID);
    }
    let agent = workspace.anonymous.with_authorization(&credential(&server));
    register(&agent, "web-2").await.expect_detail(403, Some("INVALID_AUTHORIZATION"));
    for bad in ["nonsense", "token=unquoted", "Bearer x"] {
        register(&workspace.anonymous.with_authorization(bad), "web-2")
            .await
            .expect_detail(403, Some("INVALID_AUTHORIZATION"));
    }
    register(&workspace.anonymous, "web-2").await.expect_detail(401, None);
    let id = json!({"id": made["id"], "key": made["key"]});
    workspace
        .anonymous
        .with_authorization(&credential(&id))
        .get(OWN)
        .await
        .expect_detail(403, INVALID);
    // A token of another workspace is invalid here.
    let elsewhere = Workspace::new().await;
    let theirs = create_token(&elsewhere.admin, json!({})).await;
    register(&workspace.anonymous.with_token(theirs["key"].as_str().unwrap()), "web-2")
        .await
        .expect_detail(403, INVALID);
    assert_eq!(
        (count_servers(&workspace).await, count_servers(&elsewhere).await),
        (json!(1), json!(0))
    );
    assert_eq!(remaining_uses(&workspace, &made).await, 3);
}

#[tokio::test]
async fn a_registered_server_has_no_owner_and_runs_commands() {
    let workspace = Workspace::new().await;
    let staff = Person::staff(&workspace, "steve").await;
    let (one, two) = (workspace.group("one", &[]).await, workspace.group("two", &[]).await);
    let made = create_token(&staff.api, json!({"groups": [two["id"], one["id"]]})).await;
    let body = json!({"name": "Web-1.EXAMPLE", "platform": "rhel", "tags": {"role": "web", "n": 1}, "unknown": []});
    let reply = client_with(&workspace, &made).post(REGISTER, &body).await;
    let server = reply.expect(201);
    assert_eq!(
        (keys(&server), &server["name"]),
        (vec!["id", "key", "name"], &json!("web-1.example"))
    );
    let shown = workspace.admin.get(&item_path(SERVERS, &server)).await.expect(200);
    assert_eq!((&shown["id"], &shown["name"]), (&server["id"], &server["name"]));
    assert_eq!(shown["groups"], json!([one["id"], two["id"]]));
    assert_eq!(shown["owner"], Value::Null, "a registered server has no owner");
    assert_eq!((&shown["is_connected"], &shown["connected_at"]), (&json!(false), &Value::Null));
    for group in [&one, &two] {
        assert_eq!(
            workspace.admin.get(&group_path(group)).await.expect(200)["servers"],
            json!([server["id"]])
        );
    }
    // The server's agent works like any other agent.
    let agent = workspace.anonymous.with_authorization(&credential(&server));
    let own = agent.get(OWN).await.expect(200);
    assert_eq!(
        (&own["id"], &own["name"], &own["commissioned"]),
        (&server["id"], &server["name"], &json!(false))
    );
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    wait_until_connected(&workspace, server["id"].as_str().unwrap(), true).await;
    let posted = staff
        .api
        .post(COMMANDS, &json!({"server": "web-1.example", "line": "id"}))
        .await
        .expect(201);
    let id = posted["id"].as_str().unwrap();
    assert_eq!(agent.next_command().await["id"], id);
    agent.ack(id).await;
    agent.fin(id, 0, "uid=0\n").await;
    let done = staff.api.get(&item_path(COMMANDS, &posted)).await.expect(200);
    assert_eq!((&done["status"]["text"], &done["result"]), (&json!("Success"), &json!("uid=0\n")));
    eventually("the platform", || async {
        let shown = workspace.admin.get(&item_path(SERVERS, &server)).await.expect(200);
        (shown["platform"] == "rhel").then_some(())
    })
    .await;
    // A name is enough.
    let reply = client_with(&workspace, &made).post(REGISTER, &json!({"name": "web-2"})).await;
    assert_eq!(reply.expect(201)["name"], "web-2");
}

#[tokio::test]
async fn invalid_names_use_up_no_registration() {
    let workspace = Workspace::new().await;
    let made = create_token(&workspace.admin, json!({"uses": 2})).await;
    let host = client_with(&workspace, &made);
    let too_long = "a".repeat(65);
    for bad in [
        "",
        " ",
        "a b",
        "a/b",
        "ä",
        "Ä",
        "a\n",
        "a\u{0}",
        UNKNOWN_UUID,
        &UNKNOWN_UUID.to_uppercase(),
        &too_long,
    ] {
        register(&host, bad).await.expect_fields(400, &["name"]);
    }
    for bad in [
        json!({}),
        json!({"name": null}),
        json!({"name": 7}),
        json!({"name": ["a"]}),
        json!({"platform": "debian"}),
    ] {
        host.post(REGISTER, &bad).await.expect_fields(400, &["name"]);
    }
    for body in ["[]", "{", "7"] {
        let request =
            host.request("POST", REGISTER).header("Content-Type", "application/json").body(body);
        assert_eq!(host.send(request).await.status, 400, "{body}");
    }
    assert_eq!(
        (count_servers(&workspace).await, remaining_uses(&workspace, &made).await),
        (json!(0), json!(2))
    );
    // The token is checked before the input.
    workspace.admin.delete(&item_path(TOKENS, &made)).await.expect(204);
    register(&host, "a b").await.expect_detail(403, INVALID);
    for method in ["GET", "PUT", "DELETE"] {
        assert!(matches!(host.call(method, REGISTER).await.status, 403 | 405), "{method}");
    }
    assert_eq!(count_servers(&workspace).await, 0);
}

#[tokio::test]
async fn a_token_registers_exactly_its_number_of_servers() {
    let workspace = Workspace::new().await;
    let made = create_token(&workspace.admin, json!({"uses": 3})).await;
    for left in [2, 1, 0] {
        register_server(&client_with(&workspace, &made), "web").await;
        assert_eq!(remaining_uses(&workspace, &made).await, left);
    }
    register(&client_with(&workspace, &made), "web").await.expect_detail(403, INVALID);
    assert_eq!(
        (count_servers(&workspace).await, remaining_uses(&workspace, &made).await),
        (json!(3), json!(0))
    );
    // The same holds for concurrent registrations.
    for allowed in [1, 7] {
        let before = count_servers(&workspace).await.as_i64().unwrap();
        let made = create_token(&workspace.admin, json!({"uses": allowed})).await;
        let host = client_with(&workspace, &made);
        let names: Vec<String> =
            (0..20).map(|number| format!("at-once-{allowed}-{number}")).collect();
        let replies = future::join_all(names.iter().map(|name| register(&host, name))).await;
        let (good, refused): (Vec<_>, Vec<_>) =
            replies.iter().partition(|reply| reply.status == 201);
        assert_eq!(good.len(), allowed);
        for reply in refused {
            reply.expect_detail(403, INVALID);
        }
        assert_eq!(
            (count_servers(&workspace).await, remaining_uses(&workspace, &made).await),
            (json!(before + good.len() as i64), json!(0))
        );
        // Each registered server is complete.
        for reply in good {
            let agent = workspace.anonymous.with_authorization(&credential(&reply.json()));
            assert_eq!(agent.get(OWN).await.expect(200)["name"], reply.json()["name"]);
        }
    }
    // A token without a number of uses is unlimited.
    let endless = create_token(&workspace.admin, json!({"uses": null, "expires_at": null})).await;
    assert_eq!(endless["expires_at"], Value::Null);
    for _ in 0..5 {
        register_server(&client_with(&workspace, &endless), "web").await;
    }
    assert_eq!(remaining_uses(&workspace, &endless).await, Value::Null);
}

#[tokio::test]
async fn a_token_ends_with_its_expiry_and_its_creator() {
    let workspace = Workspace::new().await;
    let is = async |what: &str, token: &Value, is_alive: bool| {
        let before = count_servers(&workspace).await.as_i64().unwrap();
        let reply = register(&client_with(&workspace, token), "web").await;
        if is_alive {
            assert_eq!(reply.status, 201, "{what}: {}", reply.text);
        } else {
            reply.expect_detail(403, INVALID);
        }
        assert_eq!(count_servers(&workspace).await, before + i64::from(is_alive), "{what}");
    };
    let expires_at = now().plus_seconds(20);
    let expiring = create_token(&workspace.admin, json!({"expires_at": expires_at})).await;
    is("before its expiry", &expiring, true).await;

    let staff = Person::staff(&workspace, "steve").await;
    let made = create_token(&staff.api, json!({})).await;
    is("of staff", &made, true).await;
    for (change, back) in [
        (json!({"is_staff": false}), json!({"is_staff": true})),
        (json!({"is_active": false}), json!({"is_active": true})),
    ] {
        staff.set(&workspace, change.clone()).await;
        is(&change.to_string(), &made, false).await;
        assert_eq!(
            workspace.admin.get(&item_path(TOKENS, &made)).await.expect(200)["id"],
            made["id"]
        );
        staff.set(&workspace, back.clone()).await;
        is(&back.to_string(), &made, true).await;
    }
    staff.set(&workspace, json!({"is_staff": false, "is_superuser": true})).await;
    is("of a superuser", &made, true).await;
    staff.set(&workspace, json!({"is_staff": true, "is_superuser": false})).await;
    // The end of the creator's session does not affect the token.
    let session = workspace.anonymous.logged_in("steve", PASSWORD).await;
    let made = create_token(&session, json!({})).await;
    session.call("POST", "/api/auth/logout/").await.expect(200);
    is("logged out", &made, true).await;
    // Servers and their agents keep working after the token is deleted.
    let server = register_server(&client_with(&workspace, &made), "stays").await;
    workspace.admin.delete(&staff.path()).await.expect(204);
    is("creator deleted", &made, false).await;
    let shown = workspace.admin.get(&item_path(SERVERS, &server)).await.expect(200);
    assert_eq!(shown["owner"], Value::Null);
    workspace.anonymous.with_authorization(&credential(&server)).get(OWN).await.expect(200);

    let made = create_token(&workspace.admin, json!({})).await;
    is("of the superuser", &made, true).await;
    workspace.admin.delete(&item_path(TOKENS, &made)).await.expect(204);
    is("deleted", &made, false).await;

    eventually("the expiry", || async { (now() >= expires_at).then_some(()) }).await;
    is("after its expiry", &expiring, false).await;
}

#[tokio::test]
async fn a_registered_server_joins_the_remaining_groups() {
    let workspace = Workspace::new().await;
    let (one, two) = (workspace.group("one", &[]).await, workspace.group("two", &[]).await);
    let made = create_token(&workspace.admin, json!({"groups": [one["id"], two["id"]]})).await;
    let member = Person::new(&workspace, "max").await;
    workspace.add_member(&two, &member, "member").await;
    workspace.admin.delete(&group_path(&one)).await.expect(204);
    assert_eq!(
        workspace.admin.get(&item_path(TOKENS, &made)).await.expect(200)["groups"],
        json!([two["id"]])
    );
    let server = register_server(&client_with(&workspace, &made), "web").await;
    // Members of the group have access immediately.
    assert_eq!(
        member.api.get(&item_path(SERVERS, &server)).await.expect(200)["groups"],
        json!([two["id"]])
    );
    workspace.admin.delete(&group_path(&two)).await.expect(204);
    let server = register_server(&client_with(&workspace, &made), "web").await;
    assert_eq!(
        workspace.admin.get(&item_path(SERVERS, &server)).await.expect(200)["groups"],
        json!([])
    );
    member.api.get(&item_path(SERVERS, &server)).await.expect_detail(404, None);
    // A new group with the same name is another group.
    let next = workspace.group("two", &[]).await;
    register_server(&client_with(&workspace, &made), "web").await;
    assert_eq!(workspace.admin.get(&group_path(&next)).await.expect(200)["servers"], json!([]));
}

#[tokio::test]
async fn a_taken_name_gets_a_number() {
    let workspace = Workspace::new().await;
    let made = create_token(&workspace.admin, json!({"uses": null})).await;
    let host = client_with(&workspace, &made);
    workspace.server("web").await;
    for (requested, expected) in [
        ("web", "web-2"),
        ("WEB", "web-3"),
        ("web-2", "web-2-2"),
        ("db", "db"),
        ("Db", "db-2"),
        ("-", "-"),
        ("-", "--2"),
    ] {
        assert_eq!(register_server(&host, requested).await["name"], expected, "{requested}");
    }
    // The name is free in another workspace.
    let elsewhere = Workspace::new().await;
    let theirs = create_token(&elsewhere.admin, json!({})).await;
    assert_eq!(
        register_server(&self::client_with(&elsewhere, &theirs), "web").await["name"],
        "web"
    );
    // A long name is cut to make room for the number.
    let longest = "a".repeat(64);
    for expected in
        [longest.clone(), format!("{}-2", &longest[2..]), format!("{}-3", &longest[2..])]
    {
        assert_eq!(register_server(&host, &longest).await["name"], expected);
    }
    // The list shows the same names.
    let list =
        workspace.admin.get(&format!("{SERVERS}?page_size=100&ordering=name")).await.expect(200);
    let names: BTreeSet<String> =
        column(&list, "name").into_iter().map(|name| name.as_str().unwrap().to_owned()).collect();
    assert_eq!(list["count"], names.len());
    assert!(
        names.contains("web-2-2") && names.contains(&format!("{}-3", &longest[2..])),
        "{names:?}"
    );
    workspace.admin.post(SERVERS, &json!({"name": "web-3"})).await.expect_fields(400, &["name"]);
}

#[tokio::test]
async fn concurrent_registrations_get_different_names() {
    let workspace = Workspace::new().await;
    let made = create_token(&workspace.admin, json!({"uses": 40})).await;
    let host = client_with(&workspace, &made);
    for (requested, is_long) in [("web".to_owned(), false), ("b".repeat(64), true)] {
        let replies = future::join_all((0..20).map(|_| register(&host, &requested))).await;
        let names: BTreeSet<String> = replies
            .iter()
            .map(|reply| reply.expect(201)["name"].as_str().unwrap().to_owned())
            .collect();
        let expected: BTreeSet<String> = (1..=20)
            .map(|number| match number {
                1 => requested.clone(),
                _ => {
                    let suffix = format!("-{number}");
                    let kept = if is_long { 64 - suffix.len() } else { requested.len() };
                    format!("{}{suffix}", &requested[..kept])
                }
            })
            .collect();
        assert_eq!(names, expected);
        let ids: BTreeSet<String> =
            replies.iter().map(|reply| reply.json()["id"].to_string()).collect();
        assert_eq!(ids.len(), 20);
        // Each key belongs to the server that is named in the same response.
        for reply in &replies {
            let registered = reply.json();
            let own = workspace
                .anonymous
                .with_authorization(&credential(&registered))
                .get(OWN)
                .await
                .expect(200);
            assert_eq!((&own["id"], &own["name"]), (&registered["id"], &registered["name"]));
        }
    }
    assert_eq!(
        (count_servers(&workspace).await, remaining_uses(&workspace, &made).await),
        (json!(40), json!(0))
    );
}

#[tokio::test]
async fn an_agent_unregisters_its_own_server() {
    let workspace = Workspace::new().await;
    let made = create_token(&workspace.admin, json!({})).await;
    let host = client_with(&workspace, &made);
    let bystander = register_server(&host, "bystander").await;
    for by_id in [true, false] {
        let server = register_server(&host, "web").await;
        assert_eq!(server["name"], "web", "the name of the unregistered server is free");
        let path = if by_id {
            format!("{}unregister/", item_path(SERVERS, &server))
        } else {
            format!("{OWN}unregister/")
        };
        // No other caller can unregister the server.
        let other = workspace.anonymous.with_authorization(&credential(&bystander));
        other
            .delete(&format!("{}unregister/", item_path(SERVERS, &server)))
            .await
            .expect_detail(404, None);
        for api in [&workspace.admin, &host] {
            api.delete(&path).await.expect_detail(404, None);
        }
        workspace.anonymous.delete(&path).await.expect_detail(401, None);
        let wrong = json!({"id": server["id"], "key": bystander["key"]});
        workspace
            .anonymous
            .with_authorization(&credential(&wrong))
            .delete(&path)
            .await
            .expect_detail(403, INVALID);
        workspace.admin.get(&item_path(SERVERS, &server)).await.expect(200);

        let mut agent = ScriptedAgent::connect(&workspace, &server).await;
        for missing in [UNKNOWN_UUID, "nonsense"] {
            agent
                .api
                .delete(&format!("{SERVERS}{missing}/unregister/"))
                .await
                .expect_detail(404, None);
        }
        agent.api.get(OWN).await.expect(200);
        let body = json!({"server": server["id"], "line": "id", "scheduled_at": now().plus_seconds(3_600)});
        let waiting = workspace.admin.post(COMMANDS, &body).await.expect(201);
        assert_eq!(agent.api.delete(&path).await.expect(204), Value::Null);
        for path in [OWN, path.as_str()] {
            let method = if path == OWN { "GET" } else { "DELETE" };
            agent.api.call(method, path).await.expect_detail(403, INVALID);
        }
        assert_eq!(dial(&agent.api, "/ws/servers/backhaul/").await.err(), Some(403));
        assert!(agent.next().await.is_err(), "the service closes the socket");
        workspace.admin.get(&item_path(SERVERS, &server)).await.expect_detail(404, None);
        let ended = wait_until_ended(&workspace.admin, waiting["id"].as_str().unwrap()).await;
        assert_eq!(
            (&ended["status"]["text"], &ended["server_name"]),
            (&json!("Cancelled"), &json!("web"))
        );
    }
    assert_eq!(count_servers(&workspace).await, 1);
    workspace.anonymous.with_authorization(&credential(&bystander)).get(OWN).await.expect(200);
    // A server that staff created is unregistered in the same way.
    let server = workspace.server("by-hand").await;
    let agent = workspace.anonymous.with_authorization(&credential(&server));
    agent.delete(&format!("{OWN}unregister/")).await.expect(204);
    assert_eq!(count_servers(&workspace).await, 1);
}
