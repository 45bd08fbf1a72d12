//! Lists, API tokens, the audit log, and `farhand api`.

use farhand_tests::Workspace;
use serde_json::json;

use super::{Called, Farhand, start};

#[tokio::test]
async fn history_and_servers() {
    let (workspace, _agent) = start("here").await;
    let farhand = Farhand::admin(&workspace);
    farhand.call(&["run", "here", "--", "echo one"]).await.success();
    assert_eq!(farhand.call(&["run", "here", "--", "exit 3"]).await.code, 3);
    // Lists show a change within a second (contract 8.1).
    farhand_tests::eventually("both commands in the list", || async {
        let shown = farhand.call(&["history", "-s", "here", "--since", "1h"]).await.success();
        (shown.contains("success") && shown.contains("failed")).then_some(())
    })
    .await;
    let shown = farhand.call(&["history", "--failed", "--by", "boss"]).await.success();
    assert!(shown.contains("exit 3") && !shown.contains("echo one"), "{shown}");
    let found = farhand.call(&["-o", "json", "history", "--exit-code", "3"]).await.json();
    assert_eq!((found.as_array().unwrap().len(), &found[0]["line"]), (1, &json!("exit 3")));
    let lines = farhand.call(&["-o", "ndjson", "history", "-n", "1"]).await.success();
    assert_eq!(lines.lines().count(), 1);
    farhand.call(&["history", "--state", "nonsense"]).await.failure("state: ");

    let shown = farhand.call(&["servers", "--connected"]).await.success();
    assert!(shown.starts_with("NAME") && shown.contains("\nhere  connected"), "{shown}");
    assert_eq!(farhand.call(&["servers", "--offline"]).await.success().lines().count(), 1);
}

#[tokio::test]
async fn a_deleted_server_is_listed_and_undeleted() {
    let workspace = Workspace::new().await;
    let farhand = Farhand::admin(&workspace);
    let server = workspace.server("web-1").await;
    let id = server["id"].as_str().unwrap();
    workspace.admin.delete(&format!("/api/servers/servers/{id}/")).await.expect(204);
    farhand.call(&["servers", "undelete", "web-2"]).await.failure("no deleted server");
    let shown = farhand.call(&["servers", "--deleted"]).await.success();
    assert!(shown.contains("web-1") && shown.contains("boss") && shown.contains(id), "{shown}");
    workspace.server("web-1").await;
    farhand.call(&["servers", "undelete", "web-1"]).await.failure("Send another name.");
    let called = farhand.call(&["servers", "undelete", "web-1", "--name", "web-3"]).await;
    assert!(called.err.contains("Undeleted web-3."), "{called:?}");
    assert_eq!(called.success().trim(), id);
    assert_eq!(farhand.call(&["servers", "--deleted"]).await.success().lines().count(), 1);
}

#[tokio::test]
async fn tables_have_no_escape_sequences_of_others() {
    let (workspace, _agent) = start("here").await;
    let farhand = Farhand::admin(&workspace);
    let called = farhand.call(&["run", "here", "--", "printf '\x1b[31mred\x1b[0m\\n'"]).await;
    // The output of a command is printed unchanged.
    assert_eq!(called.success(), "\x1b[31mred\x1b[0m\n");
    let shown = farhand_tests::eventually("the command in the list", || async {
        let shown = farhand.call(&["history"]).await.success();
        shown.contains("red").then_some(shown)
    })
    .await;
    assert!(!shown.contains('\x1b') && shown.contains("\\u{1b}[31m"), "{shown:?}");
    let json = farhand.call(&["-o", "json", "history"]).await.success();
    assert!(!json.contains('\x1b') && json.contains("\\u001b[31m"), "{json:?}");
}

#[tokio::test]
async fn tokens_are_created_with_limits_and_deleted() {
    let (workspace, _agent) = start("here").await;
    let mut farhand = Farhand::admin(&workspace);
    let create = ["tokens", "create", "ci", "--expires", "1d", "--allow", "echo *", "-s", "here"];
    let called = farhand.call(&create).await;
    assert!(called.err.contains("The key is shown only now:"), "{called:?}");
    let key = called.success().trim().to_owned();
    assert_eq!(key.len(), 128);
    farhand_tests::secrets::record_in(&json!({"key": key}));
    let shown = farhand.call(&["tokens", "list"]).await.success();
    assert!(shown.contains("commands,servers") && !shown.contains(&key), "{shown}");

    let changed = farhand.call(&["-o", "json", "tokens", "check"]).await.json();
    assert_eq!(changed[0]["no_longer_allows"], json!(["echo -x"]), "{changed}");
    let check =
        async |line: &str| farhand.call(&["tokens", "check", "ci", "-s", "here", "--", line]).await;
    assert_eq!(check("echo a").await.success(), "Allowed.\n");
    let refused = check("echo -n").await;
    assert!(
        refused.out.starts_with("Refused. ") && refused.out.contains("commands[0]"),
        "{refused:?}"
    );

    let admin = farhand.token.replace(key);
    let called = farhand.call(&["run", "here", "--", "echo", "allowed"]).await;
    assert_eq!(called.success(), "allowed\n");
    farhand.call(&["run", "here", "--", "id"]).await.failure("");
    farhand.call(&["tokens", "list"]).await.failure("");
    farhand.token = admin;
    let deleted = farhand.call(&["-o", "json", "tokens", "delete", "ci"]).await.json();
    assert_eq!(deleted["deleted"], true);
    farhand.call(&["tokens", "delete", "ci"]).await.failure("You have no token \"ci\".");
    let called = farhand.call(&["-o", "json", "tokens", "create", "x", "--expires", "never"]).await;
    assert_eq!(called.json()["expires_at"], json!(null));
}

#[tokio::test]
async fn users_groups_and_the_audit_log() {
    let workspace = Workspace::new().await;
    let farhand = Farhand::admin(&workspace);
    workspace.group("web", &[]).await;
    let shown = farhand.call(&["users"]).await.success();
    assert!(shown.contains("boss") && shown.contains("superuser"), "{shown}");
    assert!(farhand.call(&["groups"]).await.success().contains("web"));
    let listed = ["audit", "list", "--action", "group.create"];
    farhand_tests::eventually("the event", || async {
        farhand.call(&listed).await.success().contains("group.create").then_some(())
    })
    .await;
    assert!(farhand.call(&["audit", "verify"]).await.success().starts_with("Valid: "));
    assert_eq!(farhand.call(&["-o", "json", "audit", "verify"]).await.json()["valid"], true);

    let mut member = Farhand::new(&workspace);
    member.token = Some(super::token_of(&workspace.user("carl").await));
    member.call(&["audit", "list"]).await.failure("");
}

#[tokio::test]
async fn any_request() {
    let workspace = Workspace::new().await;
    let farhand = Farhand::admin(&workspace);
    assert_eq!(farhand.call(&["api", "get", "/api/status/"]).await.json(), json!({"status": "ok"}));
    let body = r#"{"name": "web-1"}"#;
    let created =
        farhand.call_with(&["api", "POST", "/api/servers/", "-d", "-"], body).await.json();
    assert_eq!(created["name"], "web-1");
    let path = format!("/api/servers/{}/", created["id"].as_str().unwrap());
    let file = farhand.config.path().join("body.json");
    std::fs::write(&file, r#"{"name": "web-2"}"#).unwrap();
    let data = format!("@{}", file.display());
    assert_eq!(farhand.call(&["api", "PATCH", &path, "-d", &data]).await.json()["name"], "web-2");
    assert_eq!(farhand.call(&["api", "DELETE", &path]).await.success(), "");
    farhand.call(&["api", "GET", &path]).await.failure("Check the URL, the path and the id.");
    farhand.call(&["api", "POST", "/api/servers/", "-d", "{"]).await.failure("");
    farhand.call(&["api", "GET", "//example.com/"]).await.failure("");
}

#[tokio::test]
async fn completions_and_manual_pages() {
    let workspace = Workspace::new().await;
    let farhand = Farhand::new(&workspace);
    for shell in ["bash", "zsh", "fish"] {
        assert!(farhand.call(&["completions", shell]).await.success().contains("farhand"));
    }
    assert!(farhand.call(&["man"]).await.success().contains(".TH farhand 1"));
    let folder = farhand.config.path().to_str().unwrap();
    farhand.call(&["man", "--dir", folder]).await.success();
    assert!(farhand.config.path().join("farhand-run.1").exists());
    let help = Called::from(&farhand.command(&["--help"]).output().await.unwrap());
    assert!(help.success().contains("Exit codes:"));
}
