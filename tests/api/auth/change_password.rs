//! `/api/auth/change-password/` (contract 4.9 and 4.11).

use farhand_tests::Workspace;
use farhand_tests::client::PASSWORD;
use serde_json::{Value, json};

const PATH: &str = "/api/auth/change-password/";
const NEW: &str = "an entirely other one";

#[tokio::test]
async fn a_change_ends_every_session_and_keeps_api_tokens() {
    let workspace = Workspace::new().await;
    let other = workspace.anonymous.logged_in("boss", PASSWORD).await;
    let reply =
        workspace.session().post(PATH, &json!({"password": PASSWORD, "new_password": NEW})).await;
    assert_eq!((reply.status, reply.text.as_str()), (200, "null"));
    for dead in [&workspace.session(), &other] {
        dead.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
    }
    workspace.admin.get("/api/status/").await.expect(200);
    assert_eq!(workspace.admin.get("/api/auth/sessions/").await.expect(200)["count"], 0);
    workspace.anonymous.log_in("boss", PASSWORD).await.expect_fields(403, &["non_field_errors"]);
    workspace.anonymous.log_in("boss", NEW).await.expect(200);
    // With an API token too, the current password is required.
    let reply =
        workspace.admin.post(PATH, &json!({"password": NEW, "new_password": PASSWORD})).await;
    reply.expect(200);
    workspace.anonymous.log_in("boss", PASSWORD).await.expect(200);
}

#[tokio::test]
async fn callers_change_only_their_own_password() {
    let workspace = Workspace::new().await;
    let user = workspace.user("alice").await;
    user.post(PATH, &json!({"password": PASSWORD, "new_password": NEW})).await.expect(200);
    workspace.session().get("/api/status/").await.expect(200);
    workspace.anonymous.log_in("boss", PASSWORD).await.expect(200);
    workspace.anonymous.log_in("alice", NEW).await.expect(200);
}

#[tokio::test]
async fn all_errors_are_reported_and_nothing_changes() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    let expect_errors = async |body: Value, wrong: &[&str]| {
        session.post(PATH, &body).await.expect_fields(400, wrong)
    };
    expect_errors(json!({}), &["new_password", "password"]).await;
    expect_errors(json!({"password": PASSWORD}), &["new_password"]).await;
    expect_errors(json!({"new_password": NEW}), &["password"]).await;
    expect_errors(json!({"password": "wrong", "new_password": NEW}), &["password"]).await;
    expect_errors(json!({"password": "", "new_password": ""}), &["new_password", "password"]).await;
    expect_errors(json!({"password": 7, "new_password": null}), &["new_password", "password"])
        .await;
    let both = expect_errors(
        json!({"password": "wrong", "new_password": "12345"}),
        &["new_password", "password"],
    )
    .await;
    let messages = both["new_password"].as_array().unwrap();
    let words = ["too short", "too common", "entirely numeric"];
    assert_eq!(messages.len(), words.len(), "{both}");
    for (message, words) in messages.iter().zip(words) {
        assert!(message.as_str().unwrap().contains(words), "{both}");
    }
    for (bad, word) in [
        ("password123", "too common"),
        ("98237465012", "entirely numeric"),
        ("boss@example.com", "too similar to the email address"),
        ("BOSS@EXAMPLE", "too similar to the email address"),
        (&"x1y".repeat(43), "too long"),
        ("Short1!", "too short"),
    ] {
        let body =
            expect_errors(json!({"password": PASSWORD, "new_password": bad}), &["new_password"])
                .await;
        assert!(body["new_password"].to_string().contains(word), "{bad}: {body}");
    }
    session.get("/api/status/").await.expect(200);
    workspace.anonymous.log_in("boss", PASSWORD).await.expect(200);
}

#[tokio::test]
async fn a_password_like_the_username_is_refused() {
    let workspace = Workspace::new().await;
    let user = workspace.user("bartholomew").await;
    for bad in ["bartholomew", "Bartholomew1", "wemolohtrab-x", "1bartholomew!"] {
        let body = user.post(PATH, &json!({"password": PASSWORD, "new_password": bad})).await;
        if bad == "wemolohtrab-x" {
            body.expect(200);
        } else {
            let body = body.expect_fields(400, &["new_password"]);
            assert!(
                body["new_password"].to_string().contains("too similar to the username"),
                "{bad}: {body}"
            );
        }
        if bad == "wemolohtrab-x" {
            return;
        }
    }
}

#[tokio::test]
async fn without_a_credential_a_change_is_403() {
    let workspace = Workspace::new().await;
    let body = json!({"password": PASSWORD, "new_password": NEW});
    workspace.anonymous.post(PATH, &body).await.expect_detail(403, Some("INVALID_AUTHORIZATION"));
    let dead = workspace.anonymous.with_token("unknown");
    dead.post(PATH, &body).await.expect_detail(403, Some("INVALID_TOKEN"));
    dead.post(PATH, &json!({})).await.expect_detail(403, Some("INVALID_TOKEN"));
    workspace.anonymous.log_in("boss", PASSWORD).await.expect(200);
}

#[tokio::test]
async fn of_two_concurrent_changes_one_succeeds() {
    let workspace = Workspace::new().await;
    let (one, two) = (workspace.admin.clone(), workspace.admin.clone());
    let (first, second) = ("the first of the two", "the second of the two");
    let (a, b) = tokio::join!(
        async { one.post(PATH, &json!({"password": PASSWORD, "new_password": first})).await },
        async { two.post(PATH, &json!({"password": PASSWORD, "new_password": second})).await },
    );
    let winner = match (a.status, b.status) {
        (200, 400) => first,
        (400, 200) => second,
        other => panic!("{other:?}: {} {}", a.text, b.text),
    };
    let loser = if a.status == 400 { a } else { b };
    loser.expect_fields(400, &["password"]);
    workspace.anonymous.log_in("boss", winner).await.expect(200);
}
