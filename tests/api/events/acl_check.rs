//! `POST /api/auth/acl-check/` (contract 4.14).

use farhand_tests::people::Person;
use farhand_tests::{Api, Workspace};
use serde_json::{Value, json};

const CHECK: &str = "/api/auth/acl-check/";
const COMMANDS: &str = "/api/events/commands/";
const TOKENS: &str = "/api/auth/tokens/";
const REFUSED: Option<&str> = Some("API_TOKEN_ACL_NOT_ALLOWED");

/// Checks a command as `deploy` on `web-1` with additional fields, and returns the verdict.
async fn check(api: &Api, fields: &Value) -> Value {
    let mut body = json!({"server": "web-1", "username": "deploy"});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    api.post(CHECK, &body).await.expect(200)
}

#[track_caller]
fn expect_verdict(verdict: &Value, expected: Option<&str>) {
    match expected {
        None => assert_eq!(*verdict, json!({"allowed": true, "reason": null})),
        Some(part) => {
            let reason = verdict["reason"].as_str().unwrap_or_default();
            assert!(
                verdict["allowed"] == false && reason.contains(part) && reason.ends_with('.'),
                "{part}: {verdict}"
            );
        }
    }
}

#[tokio::test]
async fn a_list_is_checked_without_running_anything() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let admin = workspace.session();
    let acl = json!({"commands": ["ls **", "cat /log/*"], "argv": [["df", "..."], ["cat", "/log/*"]], "usernames": ["deploy"], "servers": [server["id"]],
        "networks": ["192.0.2.0/24"]});
    for (fields, reason) in [
        (json!({"line": "ls -l"}), None),
        (json!({"command": "ls"}), None),
        (json!({"argv": ["df", "a b"]}), None),
        (json!({"server": server["id"], "line": "ls"}), None),
        (json!({"line": "ls # x"}), Some("commands")),
        (json!({"line": "df"}), Some("commands")),
        (json!({"argv": ["ls"]}), Some("argv")),
        (
            json!({"line": "cat /log/a /etc/b"}),
            Some(
                "the line (commands[1] does not: a * that touches another character matches no blank)",
            ),
        ),
        (json!({"argv": ["cat", "/log/../b"]}), Some("(argv[1] does not: ")),
        (json!({"line": "ls", "username": "root"}), Some("usernames")),
        (json!({"line": "ls", "username": null}), Some("usernames")),
        (json!({"line": "ls", "server": "web-9"}), Some("server")),
    ] {
        let mut fields = fields;
        fields["acl"] = acl.clone();
        expect_verdict(&check(&admin, &fields).await, reason);
    }
    let other = json!({"acl": {"servers": []}, "line": "ls"});
    expect_verdict(&check(&admin, &other).await, Some("servers"));
    expect_verdict(
        &check(&admin, &json!({"acl": {"read_only": true}, "line": "ls"})).await,
        Some("read_only"),
    );
    expect_verdict(&check(&admin, &json!({"acl": {}, "line": "ls; id"})).await, None);
    // An ordinary user may name only their own account, whatever the list says.
    let person = Person::new(&workspace, "mia").await;
    expect_verdict(&check(&person.api, &json!({"acl": {}, "line": "ls"})).await, Some("server"));
    workspace.add_member(&workspace.group("ops", &[&server]).await, &person, "member").await;
    expect_verdict(&check(&person.api, &json!({"acl": {}, "line": "ls"})).await, Some("account"));
    expect_verdict(
        &check(&person.api, &json!({"acl": {}, "line": "ls", "username": null})).await,
        None,
    );
    assert_eq!(admin.get(COMMANDS).await.expect(200)["count"], 0);
}

#[tokio::test]
async fn a_check_without_account_uses_the_one_that_would_run() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let path = format!("/api/servers/servers/{}/", server["id"].as_str().unwrap());
    let person = Person::new(&workspace, "mia").await;
    workspace.add_member(&workspace.group("ops", &[&server]).await, &person, "member").await;
    let acl = json!({"usernames": ["deploy"]});
    let limited = workspace.limited(&acl).await;
    for (default, of_admin, of_member) in [
        (json!(null), "boss", "mia"),
        (json!("deploy"), "deploy", "mia"),
        (json!("root"), "root", "mia"),
    ] {
        workspace.admin.patch(&path, &json!({"default_username": default})).await.expect(200);
        for (api, runs_as) in [(&workspace.admin, of_admin), (&person.api, of_member)] {
            for username in ["deploy", "boss", "mia", "root"] {
                let fields =
                    json!({"acl": {"usernames": [username]}, "line": "id", "username": null});
                expect_verdict(
                    &check(api, &fields).await,
                    (username != runs_as).then_some("usernames"),
                );
            }
            let body = json!({"server": "web-1", "line": "id", "on_offline": "queue"});
            assert_eq!(api.post(COMMANDS, &body).await.expect(201)["username"], runs_as);
        }
        // The check agrees with the creation of a command by the same token.
        let body = json!({"server": "web-1", "line": "id", "on_offline": "queue"});
        let verdict =
            limited.post(CHECK, &json!({"server": "web-1", "line": "id"})).await.expect(200);
        let made = limited.post(COMMANDS, &body).await;
        assert_eq!(made.status == 201, verdict["allowed"] == true, "{default}: {}", made.text);
        assert_eq!(made.status == 201, of_admin == "deploy", "{default}: {}", made.text);
    }
}

#[tokio::test]
async fn callers_check_their_own_tokens() {
    let workspace = Workspace::new().await;
    let admin = workspace.session();
    workspace.server("web-1").await;
    let new = json!({"name": "ci", "expires_at": null, "acl": {"commands": ["ls **"]}});
    let token = admin.post(TOKENS, &new).await.expect(201);
    let of_token = async |api: &Api, line: &str| {
        check(api, &json!({"token": token["id"], "line": line})).await
    };
    expect_verdict(&of_token(&admin, "ls -l").await, None);
    expect_verdict(&of_token(&admin, "id").await, Some("commands"));
    // A limited token may check itself. Both forms of the check agree with the creation of a
    // command.
    let limited = workspace.anonymous.with_token(token["key"].as_str().unwrap());
    for line in ["ls -l", "ls; id", "ls 'a'", "lsof"] {
        let verdict = check(&limited, &json!({"line": line})).await;
        assert_eq!(verdict, of_token(&limited, line).await);
        assert_eq!(verdict, check(&limited, &json!({"line": line, "acl": new["acl"]})).await);
        let body =
            json!({"server": "web-1", "username": "deploy", "line": line, "on_offline": "queue"});
        let made = limited.post(COMMANDS, &body).await;
        assert_eq!(made.status == 201, verdict["allowed"] == true, "{line}: {}", made.text);
        assert!(
            made.status == 201
                || made.json()["detail"].as_str().unwrap().contains("no pattern in commands")
        );
    }
    // It may not check other tokens.
    let other = admin.post(TOKENS, &json!({"name": "b", "expires_at": null})).await.expect(201);
    let base = json!({"server": "web-1", "line": "ls"});
    let with = |name: &str, value: &Value| {
        let mut body = base.clone();
        body[name] = value.clone();
        body
    };
    limited.post(CHECK, &with("token", &other["id"])).await.expect_detail(403, REFUSED);
    limited.post(CHECK, &with("acl", &json!({}))).await.expect_detail(403, REFUSED);
    expect_verdict(&check(&admin, &json!({"token": other["id"], "line": "id; ls"})).await, None);
    let person = Person::new(&workspace, "mia").await;
    person.api.post(CHECK, &with("token", &token["id"])).await.expect_fields(400, &["token"]);
    admin
        .patch(&format!("{TOKENS}{}/", token["id"].as_str().unwrap()), &json!({"enabled": false}))
        .await
        .expect(200);
    expect_verdict(&of_token(&admin, "ls").await, Some("disabled"));
    // Invalid input:
    admin.post(CHECK, &base).await.expect_fields(400, &["acl"]);
    admin
        .post(CHECK, &with("acl", &json!({"commands": ["'*'"]})))
        .await
        .expect_fields(400, &["acl"]);
    admin.post(CHECK, &with("token", &json!("x"))).await.expect_fields(400, &["token"]);
    admin.post(CHECK, &json!({"acl": {}})).await.expect_fields(400, &["line", "server"]);
}
