//! `/api/users/users/<username>/`: users by name, and superusers who set passwords (contract 4.9).

use farhand_tests::Workspace;
use farhand_tests::client::PASSWORD;
use serde_json::json;

const ALICE: &str = "/api/users/users/alice/";
const NEW: &str = "an entirely other one";

#[tokio::test]
async fn a_superuser_sets_a_password_without_the_current_one() {
    let workspace = Workspace::new().await;
    for (method, password) in [("PUT", NEW), ("PATCH", "yet another of those")] {
        let alice = match method {
            "PUT" => workspace.user("alice").await,
            _ => workspace.anonymous.logged_in("alice", NEW).await,
        };
        let made = alice
            .post("/api/auth/tokens/", &json!({"name": method, "expires_at": null}))
            .await
            .expect(201);
        let user = workspace
            .admin
            .send_json(method, ALICE, &json!({"password": password}))
            .await
            .expect(200);
        assert_eq!(user, workspace.admin.get(ALICE).await.expect(200), "the user object");
        alice.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
        let token = workspace.anonymous.with_token(made["key"].as_str().unwrap());
        token.get("/api/status/").await.expect(200);
        workspace
            .anonymous
            .log_in("alice", PASSWORD)
            .await
            .expect_fields(403, &["non_field_errors"]);
        workspace.anonymous.log_in("alice", password).await.expect(200);
    }
    // Superusers can set their own password. All their sessions end, the calling one included.
    let session = workspace.session();
    session.patch("/api/users/users/boss/", &json!({"password": NEW})).await.expect(200);
    session.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
    workspace.anonymous.log_in("boss", NEW).await.expect(200);
}

#[tokio::test]
async fn an_invalid_password_changes_nothing() {
    let workspace = Workspace::new().await;
    let alice = workspace.user("alice").await;
    for body in [
        json!({}),
        json!({"password": null}),
        json!({"password": ""}),
        json!({"password": 12345678}),
        json!({"password": "Short1!"}),
        json!({"password": "password123"}),
        json!({"password": "98237465012"}),
        json!({"password": "alice@example.com"}),
        json!({"password": "x1y".repeat(43)}),
    ] {
        for method in ["PUT", "PATCH"] {
            workspace.admin.send_json(method, ALICE, &body).await.expect_fields(400, &["password"]);
        }
    }
    let other_field = json!({"new_password": NEW});
    for method in ["PUT", "PATCH"] {
        workspace
            .admin
            .send_json(method, ALICE, &other_field)
            .await
            .expect_fields(400, &["new_password", "password"]);
    }
    let messages = workspace
        .admin
        .put(ALICE, &json!({"password": "12345"}))
        .await
        .expect_fields(400, &["password"]);
    assert_eq!(messages["password"].as_array().unwrap().len(), 3, "{messages}");
    alice.get("/api/status/").await.expect(200);
    workspace.anonymous.log_in("alice", PASSWORD).await.expect(200);
}

#[tokio::test]
async fn only_superusers_set_passwords() {
    let workspace = Workspace::new().await;
    let (alice, staff) = (workspace.user("alice").await, workspace.staff("steve").await);
    for api in [&alice, &staff] {
        for body in [json!({"password": NEW}), json!({})] {
            for path in [ALICE, "/api/users/users/boss/", "/api/users/users/nobody-here/"] {
                for method in ["PUT", "PATCH"] {
                    api.send_json(method, path, &body)
                        .await
                        .expect_detail(403, Some("PERMISSION_DENIED"));
                }
            }
        }
        assert_eq!(api.get(ALICE).await.expect(200)["username"], "alice");
    }
    workspace.anonymous.log_in("alice", PASSWORD).await.expect(200);
    workspace
        .admin
        .patch("/api/users/users/nobody-here/", &json!({"password": NEW}))
        .await
        .expect_detail(404, None);
    // Another workspace has no user of that name.
    let elsewhere = Workspace::new().await;
    elsewhere.admin.patch(ALICE, &json!({"password": NEW})).await.expect_detail(404, None);
    // Deleting by name needs the same permission as deleting by id.
    alice.delete(ALICE).await.expect_detail(403, Some("PERMISSION_DENIED"));
    assert_eq!(staff.delete(ALICE).await.status, 204);
}
