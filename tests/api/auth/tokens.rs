//! `/api/auth/tokens/` (contract 4.8).

use farhand_domain::time::Timestamp;
use farhand_tests::people::{column, item_path};
use farhand_tests::{Workspace, eventually, now};
use serde_json::{Value, json};

const PATH: &str = "/api/auth/tokens/";

#[tokio::test]
async fn a_new_token_shows_its_key_once() {
    let workspace = Workspace::new().await;
    let made = workspace
        .session()
        .post(PATH, &json!({"name": "deploy ä", "expires_at": "2999-01-01T02:00:00+02:00"}))
        .await
        .expect(201);
    let key = made["key"].as_str().unwrap();
    assert!(key.len() == 128 && key.bytes().all(|b| b.is_ascii_alphanumeric()));
    assert_eq!(
        (&made["name"], &made["enabled"], &made["acl"]),
        (&json!("deploy ä"), &json!(true), &json!(null))
    );
    assert_eq!(made["expires_at"], "2999-01-01T00:00:00.000000+00:00");
    assert!(Timestamp::parse(made["updated_at"].as_str().unwrap()).is_ok());
    assert_eq!(
        farhand_domain::id::parse(made["id"].as_str().unwrap()).unwrap().get_version_num(),
        7
    );

    let list = workspace.session().get(PATH).await.expect(200);
    assert_eq!(
        (&list["count"], &list["results"][0]["id"]),
        (&json!(2), &made["id"]),
        "newest first"
    );
    assert!(list["results"].as_array().unwrap().iter().all(|token| token.get("key").is_none()));
    let mut shown = made.clone();
    shown.as_object_mut().unwrap().remove("key");
    assert_eq!(list["results"][0], shown);

    workspace.anonymous.with_token(key).get("/api/status/").await.expect(200);
}

#[tokio::test]
async fn invalid_fields_create_no_token() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    for (body, wrong) in [
        (json!({}), &["expires_at", "name"][..]),
        (json!({"name": "x"}), &["expires_at"]),
        (json!({"expires_at": null}), &["name"]),
        (json!({"name": "", "expires_at": null}), &["name"]),
        (json!({"name": null, "expires_at": null}), &["name"]),
        (json!({"name": 7, "expires_at": null}), &["name"]),
        (json!({"name": "x".repeat(129), "expires_at": null}), &["name"]),
        (json!({"name": "a\u{0}b", "expires_at": null}), &["name"]),
        (json!({"name": "x", "expires_at": "2020-01-01T00:00:00Z"}), &["expires_at"]),
        (json!({"name": "x", "expires_at": "2999-01-01T00:00:00"}), &["expires_at"]),
        (json!({"name": "x", "expires_at": "tomorrow"}), &["expires_at"]),
        (json!({"name": "x", "expires_at": "9999-12-31T23:59:60Z"}), &["expires_at"]),
        // 16,000 bytes as text, and six times as many in JSON.
        (
            json!({"name": "x", "expires_at": null, "acl": {"commands": ["\u{1}".repeat(16_000)]}}),
            &["acl"],
        ),
        (
            json!({"name": "x", "expires_at": null, "acl": {"commands": vec!["x".repeat(8_000); 5]}}),
            &["acl"],
        ),
        (
            json!({"name": "x", "expires_at": null, "acl": {"commands": ["*a*b*c*d*e*f*g*h*"]}}),
            &["acl"],
        ),
        (
            json!({"name": "x", "expires_at": null, "acl": {"argv": vec![vec!["x"; 256]; 4]}}),
            &["acl"],
        ),
        (json!({"name": "x", "expires_at": 4102444800_i64}), &["expires_at"]),
        (json!({"name": "x", "expires_at": null, "acl": {"read_only": "yes"}}), &["acl"]),
    ] {
        session.post(PATH, &body).await.expect_fields(400, wrong);
    }
    assert_eq!(session.get(PATH).await.expect(200)["count"], 1);
    session.post(PATH, &json!({"name": "x".repeat(128), "expires_at": null})).await.expect(201);
}

#[tokio::test]
async fn a_token_can_be_read_changed_and_replaced() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    let acl = json!({"commands": ["ls *"], "read_only": false});
    let body =
        json!({"name": "x", "expires_at": "2999-01-01T00:00:00Z", "acl": acl, "enabled": true});
    let mut token = session.post(PATH, &body).await.expect(201);
    assert_eq!((&token["enabled"], &token["acl"]), (&json!(true), &acl), "a new token is enabled");
    let key = workspace.anonymous.with_token(token["key"].as_str().unwrap());
    token.as_object_mut().unwrap().remove("key");
    let path = format!("{PATH}{}/", token["id"].as_str().unwrap());
    assert_eq!(session.get(&path).await.expect(200), token);

    // A change keeps all other fields, and updates `updated_at`.
    let change = async |method: &str, body: Value, expected: Value| {
        let before = session.get(&path).await.expect(200);
        let changed = session.send_json(method, &path, &body).await.expect(200);
        assert!(changed["updated_at"].as_str() > before["updated_at"].as_str(), "{changed}");
        let mut wanted = before.clone();
        wanted.as_object_mut().unwrap().extend(expected.as_object().unwrap().clone());
        for moved in ["updated_at", "last_used_at"] {
            wanted[moved] = changed[moved].clone();
        }
        assert_eq!(changed, wanted);
        assert_eq!(session.get(&path).await.expect(200), changed);
        assert!(changed.get("key").is_none());
    };
    change("PATCH", json!({"name": "y"}), json!({"name": "y"})).await;
    change("PATCH", json!({"enabled": false}), json!({"enabled": false})).await;
    key.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
    change("PATCH", json!({"enabled": true}), json!({"enabled": true})).await;
    key.get("/api/status/").await.expect(200);
    change("PATCH", json!({"expires_at": null}), json!({"expires_at": null})).await;
    let time = json!("2998-01-01T00:00:00.000000+00:00");
    change(
        "PATCH",
        json!({"expires_at": "2998-01-01T01:00:00+01:00"}),
        json!({"expires_at": time}),
    )
    .await;
    change("PATCH", json!({"acl": null}), json!({"acl": null})).await;
    change("PATCH", json!({"acl": {"read_only": true}}), json!({"acl": {"read_only": true}})).await;
    let all = json!({"name": "z", "enabled": false, "expires_at": null, "acl": {"usernames": ["deploy"]}});
    change("PATCH", all.clone(), all).await;
    // PUT resets omitted fields to the values of a new token.
    let plain = json!({"name": "w", "enabled": true, "expires_at": null, "acl": null});
    change("PUT", json!({"name": "w", "expires_at": null}), plain).await;
    key.get("/api/status/").await.expect(200);
}

#[tokio::test]
async fn invalid_changes_change_nothing() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    let made = session.post(PATH, &json!({"name": "x", "expires_at": null})).await.expect(201);
    let path = format!("{PATH}{}/", made["id"].as_str().unwrap());
    let before = session.get(&path).await.expect(200);
    for (body, wrong) in [
        (json!({"name": ""}), &["name"][..]),
        (json!({"name": null}), &["name"]),
        (json!({"name": "x".repeat(129)}), &["name"]),
        (json!({"enabled": null}), &["enabled"]),
        (json!({"enabled": "true"}), &["enabled"]),
        (json!({"enabled": 1}), &["enabled"]),
        (json!({"expires_at": "2020-01-01T00:00:00Z"}), &["expires_at"]),
        (json!({"expires_at": "2999-01-01T00:00:00"}), &["expires_at"]),
        (json!({"acl": []}), &["acl"]),
        (json!({"acl": {"command": ["ls"]}}), &["acl"]),
        (
            json!({"name": 7, "enabled": 7, "expires_at": 7, "acl": 7}),
            &["acl", "enabled", "expires_at", "name"],
        ),
    ] {
        session.patch(&path, &body).await.expect_fields(400, wrong);
    }
    for (body, wrong) in [
        (json!({}), &["expires_at", "name"][..]),
        (json!({"name": "y"}), &["expires_at"]),
        (json!({"expires_at": null}), &["name"]),
        (json!({"name": "y", "expires_at": null, "enabled": null}), &["enabled"]),
    ] {
        session.put(&path, &body).await.expect_fields(400, wrong);
    }
    assert_eq!(session.get(&path).await.expect(200), before);
}

#[tokio::test]
async fn a_page_may_exceed_the_largest_text_of_the_database() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    let acl = json!({"commands": vec!["x".repeat(16_000); 2]});
    for number in 0..70 {
        let body = json!({"name": number.to_string(), "expires_at": null, "acl": acl});
        session.post(PATH, &body).await.expect(201);
    }
    let reply = session.get(&format!("{PATH}?page_size=100")).await;
    assert!(reply.text.len() > 2_000_000, "{}", reply.text.len());
    let list = reply.expect(200);
    let names: Vec<&str> = list["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["name"].as_str().unwrap())
        .collect();
    let numbers = (0..70).rev().map(|number| number.to_string());
    assert!(numbers.chain(["test".to_owned()]).eq(names), "the items are in order");
}

#[tokio::test]
async fn tokens_can_be_filtered() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    for name in ["a", "b", "a", "%"] {
        session.post(PATH, &json!({"name": name, "expires_at": null})).await.expect(201);
    }
    let newest =
        session.get(&format!("{PATH}?name=a")).await.expect(200)["results"][0]["id"].clone();
    session
        .patch(&format!("{PATH}{}/", newest.as_str().unwrap()), &json!({"enabled": false}))
        .await
        .expect(200);
    let count = async |query: &str| {
        let list = session.get(&format!("{PATH}?{query}")).await.expect(200);
        assert_eq!(list["count"], list["results"].as_array().unwrap().len());
        list["count"].as_u64().unwrap()
    };
    assert_eq!(count("").await, 5, "including the token of the test");
    assert_eq!(count("name=a").await, 2);
    assert_eq!(count("name=A").await, 0, "the name must match exactly");
    assert_eq!(count("name=%25").await, 1, "`%` is not a wildcard");
    assert_eq!(count("name=").await, 0);
    assert_eq!(count("enabled=false").await, 1);
    assert_eq!(count("enabled=TRUE").await, 4);
    assert_eq!(count("enabled=1&name=a").await, 1);
    let page = session.get(&format!("{PATH}?name=a&page_size=1")).await.expect(200);
    assert!(page["next"].as_str().unwrap().contains("name=a"), "{page}");
    session.get(&format!("{PATH}?enabled=maybe")).await.expect_fields(400, &["enabled"]);
    session.get(&format!("{PATH}?enabled=&page=x")).await.expect_fields(400, &["enabled", "page"]);
}

#[tokio::test]
async fn the_credential_is_checked_before_the_input() {
    let workspace = Workspace::new().await;
    let nobody = workspace.anonymous.with_token("unknown");
    nobody.post(PATH, &json!({})).await.expect_detail(403, Some("INVALID_TOKEN"));
    nobody.get(&format!("{PATH}?page=0")).await.expect_detail(403, Some("INVALID_TOKEN"));
    nobody
        .call("DELETE", &format!("{PATH}nonsense/"))
        .await
        .expect_detail(403, Some("INVALID_TOKEN"));
    workspace.anonymous.post(PATH, &json!({})).await.expect_detail(401, None);
}

#[tokio::test]
async fn a_deleted_token_is_refused_at_the_next_request() {
    let workspace = Workspace::new().await;
    let made =
        workspace.session().post(PATH, &json!({"name": "x", "expires_at": null})).await.expect(201);
    let token = workspace.anonymous.with_token(made["key"].as_str().unwrap());
    token.get("/api/status/").await.expect(200);
    let path = format!("{PATH}{}/", made["id"].as_str().unwrap());
    let deleted = workspace.session().call("DELETE", &path).await;
    assert_eq!((deleted.status, deleted.text.as_str()), (204, ""));
    token.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
    token
        .post("/api/servers/", &json!({"name": "web-1"}))
        .await
        .expect_detail(403, Some("INVALID_TOKEN"));
    workspace.session().call("DELETE", &path).await.expect_detail(404, None);
    assert_eq!(workspace.session().get(PATH).await.expect(200)["count"], 1);
    assert_eq!(workspace.session().get("/api/servers/").await.expect(200)["count"], 0);
}

#[tokio::test]
async fn an_expired_token_is_refused() {
    let workspace = Workspace::new().await;
    let soon = |seconds: i64| {
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
        Timestamp::from_millis(now.try_into().unwrap()).plus_seconds(seconds).to_string()
    };
    let made = workspace
        .session()
        .post(PATH, &json!({"name": "x", "expires_at": soon(10)}))
        .await
        .expect(201);
    let token = workspace.anonymous.with_token(made["key"].as_str().unwrap());
    token.get("/api/status/").await.expect(200);
    eventually("the token's end", || async {
        (token.get("/api/status/").await.status != 200).then_some(())
    })
    .await;
    token.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
}

#[tokio::test]
async fn other_and_unknown_tokens_are_404() {
    let (one, two) = (Workspace::new().await, Workspace::new().await);
    let made = one.admin.post(PATH, &json!({"name": "x", "expires_at": null})).await.expect(201);
    let id = made["id"].as_str().unwrap();
    let user = one.user("alice").await;
    for method in ["GET", "PUT", "PATCH", "DELETE"] {
        for other in [&two.admin, &user] {
            // The id is checked before the input.
            for body in [
                json!({}),
                json!({"name": "mine", "enabled": false, "expires_at": null}),
                json!({"name": 7}),
            ] {
                other
                    .send_json(method, &format!("{PATH}{id}/"), &body)
                    .await
                    .expect_detail(404, None);
            }
        }
        for missing in [
            "01936d3e-7a00-7000-8000-000000000000",
            "nonsense",
            "-",
            "1",
            &id.replace('-', ""),
            "%00",
        ] {
            one.admin.call(method, &format!("{PATH}{missing}/")).await.expect_detail(404, None);
        }
    }
    one.anonymous.with_token(made["key"].as_str().unwrap()).get("/api/status/").await.expect(200);
}

#[tokio::test]
async fn the_last_use_of_a_token_is_recorded() {
    let workspace = Workspace::new().await;
    let made =
        workspace.session().post(PATH, &json!({"name": "x", "expires_at": null})).await.expect(201);
    assert_eq!(made["last_used_at"], json!(null));
    workspace
        .anonymous
        .with_token(made["key"].as_str().unwrap())
        .get("/api/status/")
        .await
        .expect(200);
    eventually("the token's use", || async {
        let list = workspace.session().get(PATH).await.expect(200);
        list["results"][0]["last_used_at"].is_string().then_some(())
    })
    .await;
}

/// Otherwise a token could avoid its own expiry.
#[tokio::test]
async fn an_expiring_token_creates_none_that_outlives_it() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    let limit = now().plus_seconds(3_600);
    let (sooner, later) = (json!(now().plus_seconds(1_800)), json!(limit.plus_millis(1)));
    let own = session.post(PATH, &json!({"name": "own", "expires_at": limit})).await.expect(201);
    let api = workspace.anonymous.with_token(own["key"].as_str().unwrap());
    let made = async |body: Value| session.post(PATH, &body).await.expect(201);
    let endless = made(json!({"name": "endless", "expires_at": null})).await;
    let short = made(json!({"name": "short", "expires_at": sooner})).await;
    for token in [&endless, &short] {
        session.patch(&item_path(PATH, token), &json!({"enabled": false})).await.expect(200);
    }
    let tokens = async || session.get(PATH).await.expect(200);
    let before = tokens().await;
    for end in [&Value::Null, &later] {
        api.post(PATH, &json!({"name": "new", "expires_at": end}))
            .await
            .expect_fields(400, &["expires_at"]);
        for token in [&own, &endless, &short] {
            let path = item_path(PATH, token);
            api.patch(&path, &json!({"expires_at": end})).await.expect_fields(400, &["expires_at"]);
            api.patch(&path, &json!({"expires_at": end, "enabled": false}))
                .await
                .expect_fields(400, &["expires_at"]);
            api.put(&path, &json!({"name": "new", "expires_at": end}))
                .await
                .expect_fields(400, &["expires_at"]);
        }
    }
    api.patch(&item_path(PATH, &endless), &json!({"enabled": true}))
        .await
        .expect_fields(400, &["enabled"]);
    api.patch(&item_path(PATH, &endless), &json!({"enabled": true, "name": "x"}))
        .await
        .expect_fields(400, &["enabled"]);
    let after = tokens().await;
    assert_eq!(column(&before, "expires_at"), column(&after, "expires_at"));
    assert_eq!(column(&before, "enabled"), column(&after, "enabled"));
    assert_eq!(column(&before, "updated_at"), column(&after, "updated_at"));
    let events = workspace
        .admin
        .get("/api/audit/events/?action=api_token.update&page_size=50")
        .await
        .expect(200);
    assert_eq!(events["count"], 2, "a rejected change leaves no event: {events}");
    api.patch(&format!("{PATH}01936d3e-7a00-7000-8000-000000000000/"), &json!({"enabled": true}))
        .await
        .expect(404);
    // An expiry up to the token's own is allowed, and so are changes of other fields.
    let same = api.post(PATH, &json!({"name": "same", "expires_at": limit})).await.expect(201);
    api.patch(&item_path(PATH, &same), &json!({"expires_at": sooner})).await.expect(200);
    api.patch(&item_path(PATH, &same), &json!({"expires_at": limit, "enabled": true}))
        .await
        .expect(200);
    api.patch(&item_path(PATH, &short), &json!({"enabled": true})).await.expect(200);
    api.put(&item_path(PATH, &endless), &json!({"name": "endless", "expires_at": sooner}))
        .await
        .expect(200);
    api.patch(&item_path(PATH, &own), &json!({"name": "renamed", "enabled": true}))
        .await
        .expect(200);
    let test = column(&tokens().await, "name").iter().position(|name| name == "test").unwrap();
    let test = tokens().await["results"][test].clone();
    api.patch(&item_path(PATH, &test), &json!({"name": "test-2", "enabled": true}))
        .await
        .expect(200);
    // Sessions and tokens without an expiry have no such limit.
    for api in [&session, &workspace.admin] {
        api.patch(&item_path(PATH, &own), &json!({"expires_at": later})).await.expect(200);
        api.patch(&item_path(PATH, &own), &json!({"expires_at": null})).await.expect(200);
    }
}
