//! The form of the `Authorization` header, and when an error is 401 or 403 (contract 4.1).

use farhand_tests::Workspace;

#[tokio::test]
async fn no_header_is_401() {
    let workspace = Workspace::new().await;
    let reply = workspace.anonymous.get("/api/status/").await;
    reply.expect_detail(401, None);
    assert!(reply.header("WWW-Authenticate").starts_with("token "));
}

#[tokio::test]
async fn a_malformed_header_is_403_and_explains_the_form() {
    let workspace = Workspace::new().await;
    let token = &workspace.login_token;
    for bad in [
        format!("token={token}"),
        format!("token='{token}'"),
        format!("Token=\"{token}\""),
        format!("token \"{token}\""),
        format!("Bearer {token}"),
        format!("Bearer \"{token}\""),
        format!("\"{token}\""),
        format!("token=\"{token}\", x"),
        format!("token=\"{token}{}\"", "x".repeat(400)),
        "token=\"\"".to_owned(),
        "token=".to_owned(),
        "nonsense".to_owned(),
    ] {
        let reply = workspace.anonymous.with_authorization(&bad).get("/api/status/").await;
        reply.expect_detail(403, Some("INVALID_AUTHORIZATION"));
        assert!(
            reply.json()["detail"].as_str().unwrap().contains("token=\"<API_TOKEN>\""),
            "{}",
            reply.text
        );
        assert!(!reply.text.contains(token));
    }
    workspace.session().get("/api/status/").await.expect(200);
}

#[tokio::test]
async fn every_invalid_credential_gets_the_same_response() {
    let workspace = Workspace::new().await;
    let token = &workspace.login_token;
    let changed = format!("{}{}", &token[..127], if token.ends_with('A') { 'B' } else { 'A' });
    let mut texts = Vec::new();
    for unknown in ["x", &"A".repeat(128), &changed, &token[..127], "%00", "' OR 1=1 --"] {
        let reply = workspace.anonymous.with_token(unknown).get("/api/status/").await;
        reply.expect_detail(403, Some("INVALID_TOKEN"));
        texts.push(reply.text);
    }
    workspace.session().call("POST", "/api/auth/logout/").await.expect(200);
    texts.push(workspace.session().get("/api/status/").await.text);
    texts.dedup();
    assert_eq!(texts.len(), 1, "{texts:?}");
}
