//! `token` of the command line.

use farhand_tests::alpacon::{Alpacon, ApiToken, List, Scopes};
use farhand_tests::people::column;
use farhand_tests::{Workspace, now};
use serde_json::{Value, json};

const TOKENS: &str = "/api/auth/tokens/";

#[tokio::test]
async fn tokens_are_created_listed_and_deleted() {
    let workspace = Workspace::new().await;
    let cli = Alpacon::cli(&workspace.session());
    let body = json!({"name": "ci", "expires_at": now().plus_seconds(3600)});
    let token: ApiToken = cli.post(TOKENS, &body).await;
    assert!(token.key.is_some());
    let found: List<ApiToken> = cli.get(&format!("{TOKENS}?name=ci")).await;
    assert_eq!((found.count, &found.results[0].id), (1, &token.id));
    let all: Vec<ApiToken> = cli.list(TOKENS, "").await;
    assert_eq!(all.len(), 2);
    assert!(all.iter().all(|token| token.enabled == Some(true)));
    assert_eq!(cli.api.delete(&format!("{TOKENS}{}/", token.id)).await.status, 204);
    let scopes: Scopes = cli.get("/api/auth/tokens/scopes/").await;
    assert_eq!(scopes.wildcards, ["*"]);
}

#[tokio::test]
async fn scopes_that_restrict_are_refused() {
    let workspace = Workspace::new().await;
    let cli = Alpacon::cli(&workspace.session());
    for scopes in [json!(null), json!([]), json!(["*"])] {
        let body = json!({"name": "ci", "expires_at": null, "scopes": scopes});
        let token: ApiToken = cli.post(TOKENS, &body).await;
        let path = format!("{TOKENS}{}/", token.id);
        let _: ApiToken = cli.patch(&path, &json!({"scopes": scopes})).await;
    }
    let before = cli.api.get(TOKENS).await.expect(200)["count"].clone();
    let all: Vec<ApiToken> = cli.list(TOKENS, "").await;
    let path = format!("{TOKENS}{}/", all[0].id);
    for scopes in [json!(["servers:read"]), json!(["*", "x"]), json!("*"), json!({"a": 1})] {
        let body = json!({"name": "ci", "expires_at": null, "scopes": scopes});
        cli.api.post(TOKENS, &body).await.expect_fields(400, &["scopes"]);
        cli.api.put(&path, &body).await.expect_fields(400, &["scopes"]);
        cli.api.patch(&path, &json!({"scopes": scopes})).await.expect_fields(400, &["scopes"]);
    }
    assert_eq!(cli.api.get(TOKENS).await.expect(200)["count"], before);
}

#[tokio::test]
async fn a_duplicate_has_the_limits_of_the_original() {
    let workspace = Workspace::new().await;
    let native = workspace.session();
    let cli = Alpacon::cli(&native);
    let acl = json!({"commands": ["id"], "servers": [], "read_all": true});
    let body = json!({"name": "ci", "expires_at": now().plus_seconds(3600), "acl": acl});
    let original = native.post(TOKENS, &body).await.expect(201);
    let path = format!("{TOKENS}{}/duplicate/", original["id"].as_str().unwrap());
    let named: ApiToken = cli.post(&path, &json!({"name": "cd"})).await;
    let unnamed: ApiToken = cli.post(&path, &json!({})).await;
    assert_ne!(named.key, unnamed.key);
    let show =
        async |token: &ApiToken| native.get(&format!("{TOKENS}{}/", token.id)).await.expect(200);
    let (named, unnamed) = (show(&named).await, show(&unnamed).await);
    assert_eq!((&named["name"], &unnamed["name"]), (&json!("cd"), &json!("Copy of ci")));
    for copy in [&named, &unnamed] {
        assert_eq!((&copy["acl"], &copy["expires_at"]), (&acl, &original["expires_at"]));
        assert_eq!(copy["enabled"], true);
    }
    let original_path = format!("{TOKENS}{}/", original["id"].as_str().unwrap());
    native.patch(&original_path, &json!({"enabled": false})).await.expect(200);
    let disabled: ApiToken = cli.post(&path, &json!({})).await;
    assert_eq!(show(&disabled).await["enabled"], false);
    // It was never enabled: one request created it.
    let events = format!("/api/audit/events/?object={}", disabled.id);
    let events = workspace.admin.get(&events).await.expect(200);
    assert_eq!(column(&events, "action"), ["api_token.create"], "{events}");
    let key = disabled.key.unwrap();
    let as_copy = workspace.anonymous.with_token(&key);
    as_copy.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));

    cli.api.post(&path, &json!({"scopes": ["x"]})).await.expect_fields(400, &["scopes"]);
    // A token of another user does not exist for the caller.
    let other = Alpacon::cli(&workspace.staff("other").await);
    other.api.post(&path, &json!({})).await.expect_detail(404, None);
    // A limited token cannot duplicate, not even itself.
    let limited = native.post(TOKENS, &json!({"name": "l", "expires_at": null, "acl": {}})).await;
    let limited: Value = limited.expect(201);
    let limited = Alpacon::cli(&workspace.anonymous.with_token(limited["key"].as_str().unwrap()));
    limited.api.post(&path, &json!({})).await.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
    let scopes = limited.api.get("/api/auth/tokens/scopes/").await;
    scopes.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
}
