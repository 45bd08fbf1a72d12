//! `/api/auth/is-authenticated/` always returns 200 (contract 4.4).

use farhand_tests::Workspace;
use serde_json::json;

#[tokio::test]
async fn every_header_gets_a_200() {
    let workspace = Workspace::new().await;
    let path = "/api/auth/is-authenticated/";
    for api in [&workspace.admin, &workspace.session()] {
        assert_eq!(api.get(path).await.expect(200), json!({"authenticated": true}));
    }
    let anonymous = &workspace.anonymous;
    let server = workspace.server("web-1").await;
    let agent = farhand_tests::agents::credential(&server);
    for api in [
        anonymous,
        &anonymous.with_authorization("nonsense"),
        &anonymous.with_token("unknown"),
        &anonymous.with_authorization("token=x"),
        &anonymous.with_authorization(&agent),
    ] {
        assert_eq!(api.get(path).await.expect(200), json!({"authenticated": false}));
    }
    workspace.session().call("POST", "/api/auth/logout/").await.expect(200);
    assert_eq!(workspace.session().get(path).await.expect(200), json!({"authenticated": false}));
}
