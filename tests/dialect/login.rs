//! `login`, `logout`, `whoami`, `username`, `workspace` and `audit` of the command line.

use farhand_tests::alpacon::{Activities, Alpacon, Environment, List, Login, Membership, User};
use farhand_tests::client::PASSWORD;
use farhand_tests::{Api, Workspace};
use serde_json::{Value, json};

const ENV: &str = "/api/auth/env/?client=cli";

#[tokio::test]
async fn log_in_with_a_password_and_log_out() {
    let workspace = Workspace::new().await;
    let cli = Alpacon::cli(&workspace.anonymous);
    let environment: Environment = cli.get(ENV).await;
    assert_eq!(environment.auth0.method, "legacy");
    let body = json!({"workspace_url": "http://x", "username": "boss", "password": PASSWORD});
    let login: Login = cli.post("/api/auth/login/", &body).await;
    assert!(login.expires_at.is_some());
    let cli = Alpacon::cli(&workspace.anonymous.with_token(&login.token));
    cli.api.get("/api/auth/whoami/").await.expect_detail(404, None);
    // The client follows the redirect to the path with a slash.
    let moved = cli.api.get("/api/iam/users/-").await;
    assert_eq!(moved.status, 308);
    let user: User = cli.get("/api/iam/users/-/").await;
    assert_eq!(
        (user.username.as_deref(), user.is_staff, user.is_superuser),
        (Some("boss"), Some(true), Some(true))
    );
    assert_eq!(cli.api.post("/api/auth/logout/", &json!(null)).await.expect(200), json!(null));
    cli.api.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
}

#[tokio::test]
async fn log_in_with_a_token_that_stays_valid_after_logout() {
    let workspace = Workspace::new().await;
    let cli = Alpacon::cli(&workspace.admin);
    let _: Environment = cli.get(ENV).await;
    let _: Value = cli.get("/api/status/").await;
    let wrong = Alpacon::cli(&workspace.anonymous.with_token("wrong"));
    wrong.api.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
    assert_eq!(cli.api.post("/api/auth/logout/", &json!(null)).await.expect(200), json!(null));
    let _: Value = cli.get("/api/status/").await;
    // A bad token is not told that it logged out.
    let refused = wrong.api.post("/api/auth/logout/", &json!(null)).await;
    refused.expect_detail(403, Some("INVALID_TOKEN"));
    // The native API says so to everybody else.
    workspace.admin.post("/api/auth/logout/", &json!(null)).await.expect_detail(403, None);
}

#[tokio::test]
async fn a_workspace_that_does_not_exist_has_no_environment() {
    let workspace = Workspace::new().await;
    let nowhere = workspace.anonymous.with_host("no-such-workspace.local.localhost");
    Alpacon::cli(&nowhere).api.get(ENV).await.expect_detail(404, None);
    // Only the user agent selects the dialect.
    workspace.anonymous.get(ENV).await.expect_detail(404, None);
}

#[tokio::test]
async fn whoami_shows_the_user_and_the_groups() {
    let workspace = Workspace::new().await;
    let group = workspace.group("ops", &[]).await;
    let ann = farhand_tests::Person::new(&workspace, "ann").await;
    workspace.add_member(&group, &ann, "manager").await;
    let cli = Alpacon::cli(&ann.api);
    let user: User = cli.get("/api/iam/users/-/").await;
    assert_eq!(user.id, ann.id.to_string());
    let memberships: List<Membership> =
        cli.get(&format!("/api/iam/memberships/?page=1&page_size=100&user={}", user.id)).await;
    assert_eq!((memberships.count, memberships.next, memberships.previous), (1, None, None));
    let membership = &memberships.results[0];
    assert_eq!(
        (membership.group_name.as_deref(), membership.role.as_deref()),
        (Some("ops"), Some("manager"))
    );
    assert_eq!(membership.user.as_ref().unwrap().name.as_deref(), Some("ann"));
}

#[tokio::test]
async fn a_username_cannot_be_set() {
    let workspace = Workspace::new().await;
    let cli = Alpacon::cli(&workspace.admin);
    let refused = cli.api.post("/api/iam/username/", &json!({"username": "x"})).await.expect(400);
    assert_eq!(refused["code"], "user_username_already_set");
    let anonymous = Alpacon::cli(&workspace.anonymous);
    anonymous.api.post("/api/iam/username/", &json!({})).await.expect_detail(401, None);
}

#[tokio::test]
async fn workspace_preferences_are_objects() {
    let workspace = Workspace::new().await;
    let cli = Alpacon::cli(&workspace.admin);
    for name in ["preferences", "access-control"] {
        let path = format!("/api/workspaces/{name}/-/");
        let shown: Value = cli.get(&path).await;
        assert!(shown.is_object(), "{shown}");
        Alpacon::cli(&workspace.anonymous).api.get(&path).await.expect_detail(401, None);
        cli.api.patch(&path, &json!({})).await.expect_detail(404, None);
    }
}

#[tokio::test]
async fn the_audit_log_has_a_cursor() {
    let workspace = Workspace::new().await;
    for name in ["a", "b", "c"] {
        workspace.user_with(name, &json!({})).await;
    }
    let cli = Alpacon::cli(&workspace.admin);
    let boss = cli.user_id("boss").await;
    let path = format!("/api/audit/activity/?page_size=2&user={boss}");
    let path = path.as_str();
    let first: Activities = cli.get(path).await;
    assert_eq!(first.results.len(), 2);
    let event = &first.results[0];
    assert_eq!(
        (event.app.as_deref(), event.action.as_deref(), event.status_code),
        (Some("user"), Some("create"), Some(200))
    );
    assert_eq!(event.username.as_deref(), Some("boss"));
    assert_eq!(event.user.as_ref().unwrap().name.as_deref(), Some("boss"));
    let next: Activities = cli.get(&format!("{path}&cursor={}", first.next.unwrap())).await;
    assert!(next.results.iter().all(|other| other.id != event.id));
    let idle = format!("/api/audit/activity/?user={}", cli.user_id("a").await);
    let none: Activities = cli.get(&idle).await;
    assert!(none.results.is_empty() && none.next.is_none());
    let of = async |api: &Api, path: &str| Alpacon::cli(api).api.get(path).await;
    of(&workspace.admin, "/api/audit/activity/?user=999999").await.expect_detail(404, None);
    of(&workspace.admin, "/api/audit/activity/?app=iam").await.expect_fields(400, &["app"]);
    let user = workspace.user("plain").await;
    of(&user, path).await.expect_detail(403, None);
    of(&user, "/api/audit/activity/?app=iam").await.expect_detail(403, None);
}
