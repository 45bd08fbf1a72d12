//! Access control lists of API tokens (contract 4.12): the endpoints, networks, servers and
//! commands that they allow.

use farhand_domain::http::endpoints::{Access, ROUTES};
use farhand_tests::agents::ScriptedAgent;
use farhand_tests::{Api, Workspace};
use serde_json::{Value, json};

use crate::api::endpoints::{all, path_of};

const COMMANDS: &str = "/api/events/commands/";
const REFUSED: Option<&str> = Some("API_TOKEN_ACL_NOT_ALLOWED");

/// The user endpoints that a token with an access control list can call, whatever its list
/// (contract 4.12).
pub const ALLOWED: &[(&str, &str)] = &[
    ("GET", "/api/status/"),
    ("POST", "/api/auth/acl-check/"),
    ("GET", "/api/iam/users/-/"),
    ("GET", "/api/servers/"),
    ("GET", "/api/servers/servers/"),
    ("GET", "/api/servers/{id}/"),
    ("GET", "/api/servers/servers/{id}/"),
    ("GET", "/api/events/commands/"),
    ("POST", "/api/events/commands/"),
    ("GET", "/api/events/commands/{id}/"),
    ("DELETE", "/api/events/commands/{id}/"),
    ("POST", "/api/events/commands/{id}/cancel/"),
    ("POST", "/api/events/commands/{id}/kill/"),
    ("GET", "/api/events/commands/{id}/chunks/"),
    ("GET", "/api/events/commands/{id}/output/"),
    ("GET", "/api/events/commands/{id}/stream/"),
    ("GET", "/api/events/batches/"),
    ("POST", "/api/events/batches/"),
    ("GET", "/api/events/batches/{id}/"),
    ("POST", "/api/events/batches/{id}/cancel/"),
    ("POST", "/api/events/batches/{id}/kill/"),
    ("POST", "/api/events/batches/{id}/retry-failed/"),
    ("GET", "/api/events/batches/{id}/targets/"),
    ("GET", "/api/events/batches/{id}/outputs/"),
    ("GET", "/api/events/batches/{id}/stream/"),
    ("GET", "/api/events/scripts/"),
    ("GET", "/api/events/scripts/{id}/"),
    ("GET", "/api/events/scripts/{id}/versions/"),
    ("GET", "/api/events/scripts/{id}/versions/{version}/"),
];

#[tokio::test]
async fn limited_tokens_can_call_only_the_allowed_endpoints() {
    let workspace = Workspace::new().await;
    workspace.server("web-1").await;
    workspace.user_with("alice", &json!({})).await;
    let everything = async || {
        let mut seen = Vec::new();
        for path in ["/api/auth/tokens/", "/api/auth/sessions/", "/api/iam/users/", "/api/servers/"]
        {
            let mut items = workspace.session().get(path).await.expect(200)["results"].clone();
            for item in items.as_array_mut().unwrap() {
                // Using a token updates this field.
                item.as_object_mut().unwrap().remove("last_used_at");
            }
            seen.push(items);
        }
        seen
    };
    // The widest access control list: an object without limits.
    let token = workspace.limited(&json!({})).await;
    token.get("/api/status/").await.expect(200);
    let own =
        workspace.session().get("/api/auth/tokens/").await.expect(200)["results"][0]["id"].clone();
    let session =
        workspace.session().get("/api/auth/sessions/").await.expect(200)["results"][0]["id"]
            .clone();
    let before = everything().await;
    let mut refused = 0;
    for (method, pattern, access) in all() {
        if !matches!(access, Access::User | Access::UserOrAgent) {
            continue;
        }
        let path = match pattern {
            "/api/auth/tokens/{id}/" => format!("/api/auth/tokens/{}/", own.as_str().unwrap()),
            "/api/auth/sessions/{id}/" => {
                format!("/api/auth/sessions/{}/", session.as_str().unwrap())
            }
            _ => path_of(pattern, &workspace.slug).replace("/boss/", "/alice/"),
        };
        // A valid body, so that only the access control list can cause an error.
        let body = json!({"name": "web-9", "expires_at": null, "acl": null, "enabled": true, "first_name": "x",
            "username": "zoe", "email": "zoe@example.com", "password": "an entirely other one"});
        let reply = token.send_json(method, &path, &body).await;
        if ALLOWED.contains(&(method, pattern)) {
            assert_ne!(reply.json()["code"].as_str(), REFUSED, "{method} {path}: {}", reply.text);
            continue;
        }
        assert_eq!(
            (reply.status, reply.json()["code"].as_str()),
            (403, REFUSED),
            "{method} {path}: {}",
            reply.text
        );
        refused += 1;
    }
    assert!(refused > 25, "{refused}");
    let after = everything().await;
    assert_eq!(after, before);
    // The route table allows the same endpoints.
    let served =
        ROUTES.iter().filter(|route| matches!(route.access, Access::User | Access::UserOrAgent));
    let open = served.flat_map(|route| {
        let open = route.methods.iter().filter(|(_, endpoint)| endpoint.accepts_limited_tokens());
        open.map(|(method, _)| (*method, route.path))
    });
    assert_eq!(open.collect::<Vec<_>>(), ALLOWED);
}

#[tokio::test]
async fn an_invalid_list_is_refused_and_the_stored_list_is_kept() {
    let workspace = Workspace::new().await;
    let acl = json!({"commands": ["ls *", "uptime"], "servers": ["01936D3E-7A00-7000-8000-000000000000"],
        "usernames": ["deploy"], "networks": ["10.0.0.0/8", "2001:db8::/32"], "read_only": true});
    let body = json!({"name": "x", "expires_at": null, "acl": acl});
    let made = workspace.session().post("/api/auth/tokens/", &body).await.expect(201);
    let mut stored = acl.clone();
    stored["servers"][0] = json!("01936d3e-7a00-7000-8000-000000000000");
    assert_eq!(made["acl"], stored);
    let path = format!("/api/auth/tokens/{}/", made["id"].as_str().unwrap());
    assert_eq!(workspace.session().get(&path).await.expect(200)["acl"], stored);
    for bad in [
        json!("ls"),
        json!([]),
        json!({"commands": "ls"}),
        json!({"commands": [""]}),
        json!({"commands": ["grep \"*\" x"]}),
        json!({"argv": ["ls"]}),
        json!({"argv": [[]]}),
        json!({"commands": [7]}),
        json!({"commands": ["a\u{0}b"]}),
        json!({"command": ["ls"]}),
        json!({"servers": ["web-1"]}),
        json!({"usernames": [" "]}),
        json!({"networks": ["10.0.0.0/33"]}),
        json!({"networks": ["10.0.0.1"]}),
        json!({"networks": ["nonsense"]}),
        json!({"read_only": "yes"}),
        json!({"commands": vec!["ls"; 101]}),
    ] {
        let body = json!({"name": "y", "expires_at": null, "acl": bad});
        workspace.session().post("/api/auth/tokens/", &body).await.expect_fields(400, &["acl"]);
        workspace.session().patch(&path, &json!({"acl": bad})).await.expect_fields(400, &["acl"]);
    }
    let all = json!({"acl": {"commands": "ls", "servers": [1], "networks": ["x"], "typo": 1}});
    let messages = workspace.session().patch(&path, &all).await.expect_fields(400, &["acl"]);
    assert_eq!(messages["acl"].as_array().unwrap().len(), 4, "all errors are reported: {messages}");
    assert_eq!(workspace.session().get(&path).await.expect(200)["acl"], stored);
}

#[tokio::test]
async fn the_caller_must_be_in_an_allowed_network() {
    let workspace = Workspace::new().await;
    let token = workspace.limited(&json!({"networks": ["10.1.0.0/16", "2001:db8::/32"]})).await;
    for inside in ["10.1.2.3", "::ffff:10.1.2.3", "2001:db8:1::1"] {
        let token = token.from_address(inside);
        token.get("/api/status/").await.expect(200);
        assert_eq!(
            token.get("/api/auth/is-authenticated/").await.expect(200),
            json!({"authenticated": true})
        );
    }
    for outside in ["10.2.0.1", "2001:db9::1", "::1", "127.0.0.1", "nonsense", ""] {
        let token = token.from_address(outside);
        for path in ["/api/status/", "/api/servers/", COMMANDS, "/api/iam/users/-/"] {
            token.get(path).await.expect_detail(403, REFUSED);
        }
        assert_eq!(
            token.get("/api/auth/is-authenticated/").await.expect(200),
            json!({"authenticated": false})
        );
    }
}

#[tokio::test]
async fn a_read_only_token_can_only_read() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let body = json!({"server": "web-1", "line": "uptime"});
    let token = workspace.limited(&json!({"read_only": true})).await;
    token.post(COMMANDS, &body).await.expect_detail(403, REFUSED);
    assert!(agent.stays_silent().await);
    for (method, path) in [
        ("GET", "/api/status/"),
        ("HEAD", "/api/servers/"),
        ("GET", COMMANDS),
        ("OPTIONS", COMMANDS),
    ] {
        assert!(token.call(method, path).await.status < 300, "{method} {path}");
    }
    workspace.limited(&json!({"read_only": false})).await.post(COMMANDS, &body).await.expect(201);
    agent.next_command().await;
}

#[tokio::test]
async fn servers_outside_the_list_are_hidden() {
    let workspace = Workspace::new().await;
    let (one, two) = (workspace.server("web-1").await, workspace.server("web-2").await);
    let (mut agent, mut other) = (
        ScriptedAgent::connect(&workspace, &one).await,
        ScriptedAgent::connect(&workspace, &two).await,
    );
    let run = async |api: &Api, server: &Value| {
        let server = server["id"].clone();
        api.post(COMMANDS, &json!({"server": server, "line": "uptime"})).await
    };
    let hidden = run(&workspace.admin, &two).await.expect(201);
    other.next_command().await;
    let token = workspace.limited(&json!({"servers": [one["id"]]})).await;
    let shown = run(&token, &one).await.expect(201);
    agent.next_command().await;
    run(&token, &two).await.expect_detail(403, REFUSED);
    for name in ["web-2", "nowhere"] {
        token
            .post(COMMANDS, &json!({"server": name, "line": "uptime"}))
            .await
            .expect_detail(403, REFUSED);
    }
    assert!(other.stays_silent().await);

    let ids = |list: &Value| -> Vec<Value> {
        list["results"].as_array().unwrap().iter().map(|item| item["id"].clone()).collect()
    };
    for (path, id) in [("/api/servers/", &one["id"]), (COMMANDS, &shown["id"])] {
        let list = token.get(path).await.expect(200);
        assert_eq!((ids(&list), &list["count"]), (vec![id.clone()], &json!(1)), "{path}");
    }
    let path = |prefix: &str, thing: &Value| format!("{prefix}{}/", thing["id"].as_str().unwrap());
    token.get(&path("/api/servers/servers/", &one)).await.expect(200);
    token.get(&path("/api/servers/servers/", &two)).await.expect_detail(404, None);
    token.get(&path(COMMANDS, &shown)).await.expect(200);
    token.get(&path(COMMANDS, &hidden)).await.expect_detail(404, Some("COMMAND_NOT_FOUND"));
    // An empty list of servers allows no server.
    let nothing = workspace.limited(&json!({"servers": []})).await;
    for path in ["/api/servers/", COMMANDS] {
        assert_eq!(nothing.get(path).await.expect(200)["count"], 0);
    }
}

#[tokio::test]
async fn commands_are_checked_with_account_and_shell() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let acl = json!({"commands": ["ls **", "systemctl restart *.service", "echo a; echo b"], "usernames": ["deploy"]});
    let token = workspace.limited(&acl).await;
    let run = async |line: &str, username: &str, shell: &str| {
        let body = json!({"server": "web-1", "line": line, "username": username, "shell": shell});
        token.post(COMMANDS, &body).await
    };
    for line in ["ls", "ls -l /tmp", "systemctl restart nginx.service", "echo a; echo b"] {
        assert_eq!(run(line, "deploy", "system").await.expect(201)["line"], line);
        assert_eq!(agent.next_command().await["line"], line);
    }
    for line in [
        "systemctl restart -Hhost x.service",
        "systemctl restart ../x.service",
        "ls; id",
        "ls && id",
        "ls $(id)",
        "ls `id`",
        "ls -l\nid",
        "ls -l\tid",
        "ls > /etc/passwd",
        "ls | sh",
        "ls -l \\",
        "ls {a,b}",
        " ls",
        "lsof",
        "id",
        "systemctl restart x;id.service",
    ] {
        run(line, "deploy", "system").await.expect_detail(403, REFUSED);
    }
    for (line, username, shell) in [
        ("ls", "root", "system"),
        ("ls", "boss", "system"),
        ("ls", "deploy", "internal"),
        ("ls", "Deploy", "system"),
    ] {
        run(line, username, shell).await.expect_detail(403, REFUSED);
    }
    // Allowing an account does not allow any group.
    let body = json!({"server": "web-1", "line": "ls", "username": "deploy", "groupname": "root"});
    token.post(COMMANDS, &body).await.expect_detail(403, REFUSED);
    // Without `commands` in the list, every line is allowed. Built-ins are still refused, because
    // they run as the agent's own account.
    let any = workspace.limited(&json!({"usernames": ["deploy"]})).await;
    let mut body =
        json!({"server": "web-1", "line": "ls; id", "username": "deploy", "shell": "internal"});
    any.post(COMMANDS, &body).await.expect_detail(403, REFUSED);
    body["shell"] = json!("system");
    any.post(COMMANDS, &body).await.expect(201);
    agent.next_command().await;
    assert!(agent.stays_silent().await, "no refused command was delivered");
}
