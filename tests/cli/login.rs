//! Profiles, and credentials that are not valid.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use farhand_tests::Workspace;
use farhand_tests::client::PASSWORD;
use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::terminal::Terminal;
use super::{Called, Farhand, USER, token_of};

#[tokio::test]
async fn login_asks_for_a_password_without_echo_and_logout_ends_the_session() {
    let workspace = Workspace::new().await;
    let farhand = Farhand::new(&workspace);
    farhand.call(&["whoami"]).await.failure("You are not logged in. Run `farhand login");
    let arguments = format!("login --url {}", farhand.url);
    let mut terminal = Terminal::start(farhand.in_terminal(&arguments));
    terminal.wait_for("Username: ").await;
    terminal.type_text(&format!("{USER}\n")).await;
    terminal.wait_for("Password: ").await;
    terminal.wait_for_no_echo().await;
    terminal.type_text(&format!("{PASSWORD}\n")).await;
    let (code, shown) = terminal.end().await;
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("as boss. Profile: default."), "{shown}");
    assert!(!shown.contains(PASSWORD), "{shown}");

    let (path, profiles) = farhand.profiles();
    assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    let token = profiles["profiles"]["default"]["token"].as_str().unwrap();
    let expected = format!("boss (superuser) at {}\n", farhand.url);
    assert_eq!(farhand.call(&["whoami"]).await.success(), expected);

    farhand.call(&["logout"]).await.success();
    farhand.call(&["whoami"]).await.failure("You are not logged in.");
    let session = workspace.anonymous.with_token(token);
    session.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
}

#[tokio::test]
async fn a_wrong_password_saves_nothing() {
    let workspace = Workspace::new().await;
    let farhand = Farhand::new(&workspace);
    let arguments = format!("login --username {USER} --url {}", farhand.url);
    let mut terminal = Terminal::start(farhand.in_terminal(&arguments));
    terminal.wait_for("Password: ").await;
    terminal.wait_for_no_echo().await;
    terminal.type_text("wrong\n").await;
    let (code, shown) = terminal.end().await;
    assert_eq!(code, 125, "{shown}");
    assert!(shown.contains("farhand: Unable to log in"), "{shown}");
    assert!(!farhand.config.path().join("farhand").exists());
}

#[tokio::test]
async fn tokens_come_from_the_standard_input_or_the_environment() {
    let workspace = Workspace::new().await;
    let mut farhand = Farhand::new(&workspace);
    let login = ["login", "--url", &farhand.url, "--token-stdin", "--profile", "ci"];
    farhand.call_with(&login, "wrong\n").await.failure("Log in again with `farhand login`");
    farhand.call_with(&login, "").await.failure("There is no token on the standard input.");
    let token = token_of(&workspace.admin);
    farhand.call_with(&login, &format!("{token}\n")).await.success();
    let shown = farhand.call(&["-o", "json", "whoami"]).await.json();
    assert_eq!(shown["username"], USER);
    assert!(farhand.call(&["profiles"]).await.success().contains("*        ci"));
    let profiles = farhand.call(&["-o", "json", "profiles"]).await.success();
    assert!(profiles.contains("\"current\": true") && !profiles.contains(&token), "{profiles}");
    // A named profile takes precedence over FARHAND_URL, which names no service here.
    let mut again = farhand.command(&["login", "--token-stdin", "--profile", "ci"]);
    again.env("FARHAND_URL", "http://127.0.0.1:1").stdin(Stdio::piped());
    let mut child = again.spawn().unwrap();
    child.stdin.take().unwrap().write_all(token.as_bytes()).await.unwrap();
    let called = Called::from(&child.wait_with_output().await.unwrap());
    assert!(called.err.contains(&format!("Logged in to {}", farhand.url)), "{called:?}");
    called.success();
    // The profile is deleted, and the API token stays valid.
    farhand.call(&["logout"]).await.success();
    workspace.admin.get("/api/status/").await.expect(200);

    farhand.token = Some(token);
    farhand.call(&["whoami"]).await.success();
    let mut half = farhand.command(&["whoami"]);
    let output = half.env_remove("FARHAND_TOKEN").output().await.unwrap();
    Called::from(&output).failure("Set FARHAND_TOKEN, too.");
}

#[tokio::test]
async fn refusals_say_what_to_do() {
    let workspace = Workspace::new().await;
    let mut farhand = Farhand::admin(&workspace);
    farhand.call(&["run", "nowhere", "--", "id"]).await.failure("server: No such server.");
    workspace.server("idle").await;
    farhand.call(&["run", "idle", "--", "id"]).await.failure("`--queue`");
    farhand.call(&["history", "-s", "nowhere"]).await.failure("`farhand servers` lists them.");
    farhand.call(&["logs", "../../status"]).await.failure("");

    // A revoked token is refused at the next request.
    let body = json!({"name": "short", "expires_at": null});
    let token = workspace.admin.post("/api/auth/tokens/", &body).await.expect(201);
    farhand.token = Some(token["key"].as_str().unwrap().to_owned());
    farhand.call(&["whoami"]).await.success();
    let path = format!("/api/auth/tokens/{}/", token["id"].as_str().unwrap());
    workspace.admin.delete(&path).await.expect(204);
    farhand.call(&["whoami"]).await.failure("Log in again with `farhand login`");
}

#[tokio::test]
async fn without_a_service_the_error_names_the_url() {
    let workspace = Workspace::new().await;
    let mut farhand = Farhand::admin(&workspace);
    // Port 1 of this machine has no server.
    farhand.url = "http://127.0.0.1:1".to_owned();
    farhand.call(&["servers"]).await.failure("Cannot reach http://127.0.0.1:1");
    farhand.url = "http://example.com".to_owned();
    farhand.call(&["servers"]).await.failure("is plain http");
}
