//! An incomplete deployment says what is missing (contract 11.3).

use farhand_tests::client::{PASSWORD, new_workspace};
use farhand_tests::{Api, Instance, Workspace};
use serde_json::json;

/// Asserts that every path returns `NOT_SET_UP` with a word of explanation, whatever the host. Two
/// paths are exempt: `/healthz` and `is-authenticated`.
pub(super) async fn assert_not_set_up(operator: &Api, workspace: &Api, word: &str) {
    for api in [
        workspace.clone(),
        workspace.anonymous(),
        workspace.with_host("nobody.local.localhost"),
        operator.clone(),
    ] {
        for path in [
            "/api/status/",
            "/api/nope/",
            "/api/status",
            "/operator/workspaces/",
            "/reset-password/",
            "/",
        ] {
            let refused = api.get(path).await;
            refused.expect_detail(503, Some("NOT_SET_UP"));
            assert!(refused.text.contains(word), "{path}: {}", refused.text);
        }
        assert_eq!(api.get("/healthz").await.expect(200)["status"], "ok");
    }
    // A host name that cannot be a workspace.
    workspace
        .with_host("a.b.c.localhost")
        .get("/api/status/")
        .await
        .expect_detail(503, Some("NOT_SET_UP"));
    workspace.log_in("boss", PASSWORD).await.expect_detail(503, Some("NOT_SET_UP"));
    workspace.call("OPTIONS", "/api/status/").await.expect_detail(503, Some("NOT_SET_UP"));
    operator
        .post("/operator/workspaces/", &new_workspace("new"))
        .await
        .expect_detail(503, Some("NOT_SET_UP"));
    operator.delete("/operator/workspaces/acme/").await.expect_detail(503, Some("NOT_SET_UP"));
    for api in [workspace.clone(), workspace.anonymous(), workspace.with_authorization("nonsense")]
    {
        let answer = api.get("/api/auth/is-authenticated/").await.expect(200);
        assert_eq!(answer, json!({"authenticated": false}));
    }
}

#[tokio::test]
async fn a_database_without_tables_is_reported() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    instance.stop().await;
    std::fs::remove_dir_all(state.path().join("v3/d1")).unwrap();
    let instance = Instance::restart(state.path()).await;
    assert_not_set_up(&instance.operator(), &workspace.admin.with_url(&instance.url), "tables")
        .await;
}

#[tokio::test]
async fn a_missing_secret_is_reported() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let operator = instance.operator();
    instance.stop().await;
    for short in ["", "31-characters-are-not-enough..."] {
        let (_process, url) =
            Instance::serve_unchecked(state.path(), &[("SECRET_KEY", short)]).await;
        assert_not_set_up(&operator.with_url(&url), &workspace.admin.with_url(&url), "SECRET_KEY")
            .await;
    }
}
