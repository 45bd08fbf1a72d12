//! `DEPLOYMENT=cloud`: endpoints that contract 4.15 marks as on-prem only do not exist. All other
//! endpoints exist.

use farhand_domain::http::endpoints::{Access, ROUTES};
use farhand_tests::client::PASSWORD;
use farhand_tests::{Instance, Workspace};
use serde_json::json;

use crate::api::endpoints::{all, path_of};

/// The endpoints that contract 4.15 marks as on-prem only.
const ON_PREM_ONLY: &[(&str, &str)] = &[
    ("POST", "/api/auth/login/"),
    ("POST", "/api/auth/change-password/"),
    ("PUT", "/api/users/users/{username}/"),
    ("PATCH", "/api/users/users/{username}/"),
];

#[test]
fn the_route_table_marks_the_on_prem_endpoints() {
    let marked = ROUTES.iter().flat_map(|route| {
        let marked = route.methods.iter().filter(|(_, endpoint)| endpoint.is_on_prem_only());
        marked.map(|(method, _)| (*method, route.path))
    });
    assert_eq!(marked.collect::<Vec<_>>(), ON_PREM_ONLY);
}

#[tokio::test]
async fn on_prem_endpoints_are_404_in_the_cloud() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    workspace.user_with("alice", &json!({})).await;
    instance.stop().await;
    let instance = Instance::restart_with(state.path(), &[("DEPLOYMENT", "cloud")]).await;
    let (anonymous, admin) =
        (workspace.anonymous.with_url(&instance.url), workspace.admin.with_url(&instance.url));
    // Valid requests with valid credentials, which would succeed on-prem.
    let body =
        json!({"username": "boss", "password": PASSWORD, "new_password": "an entirely other one"});
    for (method, pattern) in ON_PREM_ONLY {
        let path = path_of(pattern, "acme").replace("/boss/", "/alice/");
        for api in [&anonymous, &admin, &anonymous.with_authorization("nonsense")] {
            api.send_json(method, &path, &body).await.expect_detail(404, None);
        }
    }
    // If a path has no method left, all methods return 404.
    for path in ["/api/auth/login/", "/api/auth/change-password/"] {
        for method in ["GET", "OPTIONS", "DELETE"] {
            assert_eq!(admin.call(method, path).await.status, 404, "{method} {path}");
        }
    }
    let allow = admin.call("POST", "/api/users/users/alice/").await;
    assert_eq!((allow.status, allow.header("Allow")), (405, "GET, DELETE, HEAD, OPTIONS"));
    // Everything else works: existing login tokens, API tokens, users by name, password resets.
    let session = workspace.session().with_url(&instance.url);
    for (method, pattern, access) in all() {
        if method != "GET"
            || access != Access::User
            || pattern == "/api/auth/logout/"
            || pattern.contains("{id}")
        {
            continue;
        }
        let path = path_of(pattern, "acme");
        for api in [&admin, &session] {
            assert_eq!(api.get(&path).await.status, 200, "{path}");
        }
    }
    assert_eq!(
        anonymous
            .post("/api/auth/reset-password/", &json!({"email": "x@example.com"}))
            .await
            .status,
        200
    );
    session.call("POST", "/api/auth/logout/").await.expect(200);
    // None of the rejected requests changed anything.
    instance.stop().await;
    let instance = Instance::restart(state.path()).await;
    workspace.anonymous.with_url(&instance.url).log_in("alice", PASSWORD).await.expect(200);
    workspace.anonymous.with_url(&instance.url).log_in("boss", PASSWORD).await.expect(200);
}
