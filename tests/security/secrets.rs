//! Contract 4.2: credentials are not stored in plain text. `leaks.rs` searches for them. The tests
//! here send credentials in wrong places, and store the marker that the search must find.

use farhand_tests::agents::ScriptedAgent;
use farhand_tests::client::{PASSWORD, unique};
use farhand_tests::{Workspace, eventually, secrets};
use serde_json::json;

#[tokio::test]
async fn credentials_in_wrong_places_are_not_stored() {
    let workspace = Workspace::new().await;
    // A password in the field for the user name.
    let password = unique("typed-in-the-wrong-field");
    secrets::record("password", &password);
    workspace.anonymous.log_in(&password, PASSWORD).await.expect_fields(403, &["non_field_errors"]);
    // Tokens in malformed headers.
    for header in
        [format!("Bearer {}", workspace.login_token), format!("token={}", workspace.login_token)]
    {
        workspace
            .anonymous
            .with_authorization(&header)
            .get("/api/status/")
            .await
            .expect_detail(403, Some("INVALID_AUTHORIZATION"));
    }
    // A wrong current password, and a password that is replaced.
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
async fn a_marker_for_the_search_is_stored_in_plain_text() {
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
    secrets::record("marker", &marker);
    // The search must find the marker in D1 as well as in the object.
    eventually("the command in D1", || async {
        let list = workspace.admin.get("/api/events/commands/").await.expect(200);
        (list["results"][0]["line"] == marker.as_str()).then_some(())
    })
    .await;
}
