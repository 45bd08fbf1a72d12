//! `/api/auth/logout/` (contract 4.4).

use farhand_tests::Workspace;
use farhand_tests::client::PASSWORD;
use serde_json::json;

const PATH: &str = "/api/auth/logout/";

#[tokio::test]
async fn get_and_post_end_the_session() {
    let workspace = Workspace::new().await;
    for method in ["GET", "POST"] {
        let login = workspace
            .anonymous
            .post("/api/auth/login/", &json!({"username": "boss", "password": PASSWORD}))
            .await;
        let session = workspace.anonymous.with_token(login.expect(200)["token"].as_str().unwrap());
        session.get("/api/status/").await.expect(200);
        let reply = session.call(method, PATH).await;
        assert_eq!((reply.status, reply.text.as_str()), (200, "null"));
        session.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
        session.call(method, PATH).await.expect_detail(403, Some("INVALID_TOKEN"));
    }
    // The user's other sessions stay valid.
    workspace.session().get("/api/status/").await.expect(200);
}

#[tokio::test]
async fn without_a_header_logout_is_403() {
    let workspace = Workspace::new().await;
    for method in ["GET", "POST"] {
        let reply = workspace.anonymous.call(method, PATH).await;
        reply.expect_detail(403, Some("INVALID_AUTHORIZATION"));
    }
}

#[tokio::test]
async fn an_api_token_cannot_log_out() {
    let workspace = Workspace::new().await;
    for method in ["GET", "POST"] {
        workspace.admin.call(method, PATH).await.expect_detail(403, Some("PERMISSION_DENIED"));
        workspace.admin.get("/api/status/").await.expect(200);
    }
    workspace.session().get("/api/status/").await.expect(200);
}

#[tokio::test]
async fn an_empty_body_may_have_any_media_type() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    let request = session
        .request("POST", PATH)
        .header("Content-Type", "text/plain")
        .header("Content-Length", "0");
    session.send(request).await.expect(200);
}
