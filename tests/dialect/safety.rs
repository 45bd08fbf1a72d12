//! The dialect grants nothing: every row of its table needs a valid credential of the workspace.
//! `tests/security/isolation.rs` calls the native endpoints in both dialects, too.

use farhand_domain::dialect::table::TABLE;
use farhand_tests::alpacon::{Alpacon, CLI, MCP};
use farhand_tests::people::UNKNOWN_UUID;
use farhand_tests::{Api, Workspace, client};
use serde_json::{Value, json};

/// Rows that need no credential: the first request of a client, the login, and the WebSocket, whose
/// path has a secret.
const OPEN: [&str; 3] = ["/api/auth/env/", "/api/auth/login/", "/ws/events/{channel}/{secret}/"];

fn path_of(pattern: &str) -> String {
    pattern.replace("{id}", UNKNOWN_UUID).replace("{user}", "1")
}

async fn send(api: &Api, method: &str, pattern: &str) -> farhand_tests::Reply {
    let path = path_of(pattern);
    if method == "GET" {
        api.get(&path).await
    } else {
        api.send_json(method, &path, &json!({})).await
    }
}

/// Everything of a workspace that these requests could change.
async fn contents(workspace: &Workspace) -> Vec<String> {
    let mut seen = Vec::new();
    for list in ["iam/users", "iam/groups", "servers/servers", "auth/tokens", "events/commands"] {
        let session = workspace.session();
        let mut list = session.get(&format!("/api/{list}/?page_size=100")).await.expect(200);
        for item in list["results"].as_array_mut().unwrap() {
            item.as_object_mut().unwrap().remove("last_used_at");
        }
        seen.push(list.to_string());
    }
    seen
}

#[tokio::test]
async fn each_row_rejects_invalid_credentials() {
    let (here, elsewhere) = (Workspace::new().await, Workspace::new().await);
    let before = (contents(&here).await, contents(&elsewhere).await);
    let with = |header: &str| here.anonymous.with_authorization(header);
    let token = here.admin.authorization.clone().unwrap();
    let credentials = [
        (here.anonymous.clone(), 401, None),
        (with("nonsense"), 403, Some("INVALID_AUTHORIZATION")),
        (with(&token.replace('"', "")), 403, Some("INVALID_AUTHORIZATION")),
        (with("id=\"x\", key=\"y\""), 403, Some("INVALID_AUTHORIZATION")),
        (here.anonymous.with_token("short"), 403, Some("INVALID_TOKEN")),
        (here.anonymous.with_token(&"A".repeat(128)), 403, Some("INVALID_TOKEN")),
        (with(elsewhere.admin.authorization.as_deref().unwrap()), 403, Some("INVALID_TOKEN")),
    ];
    for row in TABLE.iter().filter(|row| !OPEN.contains(&row.path)) {
        for (api, status, code) in &credentials {
            for user_agent in [CLI, MCP] {
                let reply =
                    send(&api.with_user_agent(Some(user_agent)), row.method, row.path).await;
                // Contract 4.1: logout without a credential is 403.
                let (status, code) = match (*status, row.path) {
                    (401, "/api/auth/logout/") => (403, Some("INVALID_AUTHORIZATION")),
                    (status, _) => (status, code.or(client::code_of(status))),
                };
                let what = format!("{} {}: {}", row.method, row.path, reply.text);
                assert_eq!((reply.status, reply.json()["code"].as_str()), (status, code), "{what}");
            }
        }
    }
    assert_eq!((contents(&here).await, contents(&elsewhere).await), before);
}

#[tokio::test]
async fn a_limited_token_reaches_only_endpoints_that_accept_it() {
    let workspace = Workspace::new().await;
    let limited = Alpacon::cli(&workspace.limited(&json!({"read_only": true})).await);
    let accepted = [
        ("GET", "/api/servers/servers/"),
        ("GET", "/api/servers/servers/{id}/"),
        ("GET", "/api/events/commands/"),
        ("GET", "/api/events/commands/{id}/"),
        ("GET", "/api/events/commands/{id}/{user}/"),
        ("GET", "/api/events/commands/{id}/chunks/"),
        ("POST", "/api/events/sessions/"),
        ("POST", "/api/events/subscriptions/"),
        ("GET", "/api/workspaces/preferences/-/"),
        ("GET", "/api/workspaces/access-control/-/"),
        // It answers what it would answer to the user's other tokens.
        ("POST", "/api/iam/username/"),
        ("POST", "/api/auth/logout/"),
    ];
    for row in TABLE.iter().filter(|row| !OPEN.contains(&row.path)) {
        let reply = send(&limited.api, row.method, row.path).await;
        let code: Value =
            reply.text.parse::<Value>().map(|body| body["code"].clone()).unwrap_or_default();
        let is_refused = reply.status == 403 && code == "API_TOKEN_ACL_NOT_ALLOWED";
        let what = format!("{} {}: {} {}", row.method, row.path, reply.status, reply.text);
        assert_eq!(is_refused, !accepted.contains(&(row.method, row.path)), "{what}");
    }
    let _: Value = limited.get("/api/iam/users/-/").await;
}

#[tokio::test]
async fn own_replies_have_the_headers_of_the_api() {
    let workspace = Workspace::new().await;
    let cli = Alpacon::cli(&workspace.admin);
    for (path, status) in [
        ("/api/auth/env/", 200),
        ("/api/security/command-acl/", 200),
        ("/api/security/command-acl/?page=x", 400),
        ("/api/auth/tokens/scopes/", 200),
    ] {
        let origin = format!("http://{}", cli.api.host);
        let request = cli.api.request("GET", path).header("Origin", &origin);
        let reply = cli.api.send(request.header("X-Request-Id", "abc")).await;
        assert_eq!(reply.status, status, "{}", reply.text);
        assert_eq!(reply.header("X-Request-Id"), "abc");
        assert_eq!(reply.header("Access-Control-Allow-Origin"), origin, "{path}");
        assert_eq!(reply.header("Cache-Control"), "no-store");
    }
    let head = cli.api.call("HEAD", "/api/auth/tokens/scopes/").await;
    assert_eq!((head.status, head.text.as_str()), (200, ""));
}
