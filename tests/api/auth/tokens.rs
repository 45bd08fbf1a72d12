//! `/api/auth/tokens/` (spec.md, API token; contract 4).

use farhand_domain::time::Timestamp;
use farhand_tests::Workspace;
use farhand_tests::eventually;
use serde_json::json;

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
    assert_eq!((&made["name"], &made["enabled"], &made["acl"]), (&json!("deploy ä"), &json!(true), &json!(null)));
    assert_eq!(made["expires_at"], "2999-01-01T00:00:00.000000+00:00");
    assert!(Timestamp::parse(made["updated_at"].as_str().unwrap()).is_ok());
    assert_eq!(farhand_domain::id::parse(made["id"].as_str().unwrap()).unwrap().get_version_num(), 7);

    let list = workspace.session().get(PATH).await.expect(200);
    assert_eq!((&list["count"], &list["results"][0]["id"]), (&json!(2), &made["id"]), "newest first");
    assert!(list["results"].as_array().unwrap().iter().all(|token| token.get("key").is_none()));
    let mut shown = made.clone();
    shown.as_object_mut().unwrap().remove("key");
    assert_eq!(list["results"][0], shown);

    workspace.anonymous.with_token(key).get("/api/status/").await.expect(200);
}

#[tokio::test]
async fn bad_fields_change_nothing() {
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
        (json!({"name": "x", "expires_at": 4102444800_i64}), &["expires_at"]),
        (json!({"name": "x", "expires_at": null, "acl": {"read_only": true}}), &["acl"]),
    ] {
        session.post(PATH, &body).await.expect_fields(400, wrong);
    }
    assert_eq!(session.get(PATH).await.expect(200)["count"], 1);
    session.post(PATH, &json!({"name": "x".repeat(128), "expires_at": null})).await.expect(201);
}

#[tokio::test]
async fn bad_input_of_a_bad_credential_is_403() {
    let workspace = Workspace::new().await;
    let nobody = workspace.anonymous.with_token("unknown");
    nobody.post(PATH, &json!({})).await.expect_detail(403, Some("INVALID_TOKEN"));
    nobody.get(&format!("{PATH}?page=0")).await.expect_detail(403, Some("INVALID_TOKEN"));
    nobody.call("DELETE", &format!("{PATH}nonsense/")).await.expect_detail(403, Some("INVALID_TOKEN"));
    workspace.anonymous.post(PATH, &json!({})).await.expect_detail(401, None);
}

#[tokio::test]
async fn a_deleted_token_is_refused_at_the_next_request() {
    let workspace = Workspace::new().await;
    let made = workspace.session().post(PATH, &json!({"name": "x", "expires_at": null})).await.expect(201);
    let token = workspace.anonymous.with_token(made["key"].as_str().unwrap());
    token.get("/api/status/").await.expect(200);
    let path = format!("{PATH}{}/", made["id"].as_str().unwrap());
    let deleted = workspace.session().call("DELETE", &path).await;
    assert_eq!((deleted.status, deleted.text.as_str()), (204, ""));
    token.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
    token.post("/api/servers/", &json!({"name": "web-1"})).await.expect_detail(403, Some("INVALID_TOKEN"));
    workspace.session().call("DELETE", &path).await.expect_detail(404, None);
    assert_eq!(workspace.session().get(PATH).await.expect(200)["count"], 1);
    assert_eq!(workspace.session().get("/api/servers/").await.expect(200)["count"], 0);
}

#[tokio::test]
async fn an_expired_token_is_refused() {
    let workspace = Workspace::new().await;
    let soon = |seconds: i64| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
        Timestamp::from_millis(now.try_into().unwrap()).plus_seconds(seconds).to_string()
    };
    let made = workspace.session().post(PATH, &json!({"name": "x", "expires_at": soon(2)})).await.expect(201);
    let token = workspace.anonymous.with_token(made["key"].as_str().unwrap());
    token.get("/api/status/").await.expect(200);
    eventually("the token's end", || async { (token.get("/api/status/").await.status != 200).then_some(()) }).await;
    token.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
}

#[tokio::test]
async fn ids_of_others_and_of_nothing_are_404() {
    let (one, two) = (Workspace::new().await, Workspace::new().await);
    let made = one.admin.post(PATH, &json!({"name": "x", "expires_at": null})).await.expect(201);
    let id = made["id"].as_str().unwrap();
    two.admin.call("DELETE", &format!("{PATH}{id}/")).await.expect_detail(404, None);
    for missing in ["01936d3e-7a00-7000-8000-000000000000", "nonsense", "-", "1", &id.replace('-', ""), "%00"] {
        one.admin.call("DELETE", &format!("{PATH}{missing}/")).await.expect_detail(404, None);
    }
    one.anonymous.with_token(made["key"].as_str().unwrap()).get("/api/status/").await.expect(200);
}

#[tokio::test]
async fn a_tokens_use_is_noted() {
    let workspace = Workspace::new().await;
    let made = workspace.session().post(PATH, &json!({"name": "x", "expires_at": null})).await.expect(201);
    assert_eq!(made["last_used_at"], json!(null));
    workspace.anonymous.with_token(made["key"].as_str().unwrap()).get("/api/status/").await.expect(200);
    eventually("the token's use", || async {
        let list = workspace.session().get(PATH).await.expect(200);
        list["results"][0]["last_used_at"].is_string().then_some(())
    })
    .await;
}
