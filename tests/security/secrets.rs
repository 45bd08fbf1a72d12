//! Contract 4.2: credentials are not stored in clear. `leaks.rs` searches for all that the tests
//! had to do with; here are those that are sent where none belongs, and what that search must find.

use farhand_tests::agents::ScriptedAgent;
use farhand_tests::client::{PASSWORD, unique};
use farhand_tests::{Workspace, eventually, secrets};
use serde_json::json;

#[tokio::test]
async fn a_credential_in_the_wrong_place_is_not_kept_either() {
    let workspace = Workspace::new().await;
    // A password where the username belongs.
    let password = unique("typed-in-the-wrong-field");
    secrets::note("password", &password);
    workspace.anonymous.log_in(&password, PASSWORD).await.expect_fields(403, &["non_field_errors"]);
    // Tokens in headers that are refused.
    for header in
        [format!("Bearer {}", workspace.login_token), format!("token={}", workspace.login_token)]
    {
        workspace
            .anonymous
            .with(&header)
            .get("/api/status/")
            .await
            .expect_detail(403, Some("INVALID_AUTHORIZATION"));
    }
    // A password that is refused, and one that was replaced.
    let session = workspace.session();
    let change = |old: &str, new: &str| json!({"password": old, "new_password": new});
    let path = "/api/auth/change-password/";
    session
        .post(path, &change("not the right password", "an entirely other one"))
        .await
        .expect_fields(400, &["password"]);
    session.post(path, &change(PASSWORD, "an entirely other one")).await.expect(200);
}

#[tokio::test]
async fn what_is_stored_in_clear_can_be_found() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let marker = unique("marker");
    workspace
        .admin
        .post("/api/events/commands/", &json!({"server": "web-1", "line": marker}))
        .await
        .expect(201);
    assert_eq!(agent.next_command().await["line"], marker);
    secrets::note("marker", &marker);
    // It is in D1 as well as in the object.
    eventually("the command in D1", || async {
        let list = workspace.admin.get("/api/events/commands/").await.expect(200);
        (list["results"][0]["line"] == marker.as_str()).then_some(())
    })
    .await;
}
