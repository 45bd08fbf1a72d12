//! `token acl` of the command line (contract 21.5).

use farhand_tests::alpacon::{Alpacon, CommandAcl, List, ServerAcl};
use farhand_tests::client::unique;
use farhand_tests::{Api, ScriptedAgent, Workspace};
use futures_util::future;
use serde_json::{Value, json};

const TOKENS: &str = "/api/auth/tokens/";
const COMMANDS: &str = "/api/security/command-acl/";
const SERVERS: &str = "/api/security/server-acl/";

/// A new token of the client's user without limits.
async fn new_token(api: &Api) -> Value {
    let body = json!({"name": unique("ci"), "expires_at": null});
    api.post(TOKENS, &body).await.expect(201)
}

/// The access control list of a token, as the native API shows it.
async fn acl(api: &Api, token: &Value) -> Value {
    let path = format!("{TOKENS}{}/", token["id"].as_str().unwrap());
    api.get(&path).await.expect(200)["acl"].clone()
}

#[tokio::test]
async fn commands_are_allowed_for_the_owners_account() {
    let workspace = Workspace::new().await;
    let native = workspace.session();
    let cli = Alpacon::cli(&native);
    let token = new_token(&native).await;
    let list = format!("{COMMANDS}?token={}&page=1&page_size=100", token["id"].as_str().unwrap());
    let none: List<CommandAcl> = cli.get(&list).await;
    assert_eq!(none.count, 0);

    let body = json!({"token": token["id"], "command": "ls *"});
    let added: CommandAcl = cli.post(COMMANDS, &body).await;
    assert_eq!((added.command.as_deref(), added.username.as_deref()), (Some("ls *"), Some("boss")));
    assert_eq!(acl(&native, &token).await, json!({"commands": ["ls *"], "usernames": ["boss"]}));
    // Adding it again changes nothing, and the id stays the same.
    let again: CommandAcl = cli.post(COMMANDS, &body).await;
    assert_eq!(again.id, added.id);
    let second = json!({"token": token["id"], "command": "id", "username": "", "groupname": ""});
    let _: CommandAcl = cli.post(COMMANDS, &second).await;
    let entries: Vec<CommandAcl> =
        cli.list(COMMANDS, &format!("token={}", token["id"].as_str().unwrap())).await;
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[0].token_name.as_deref(), token["name"].as_str());

    // All commands of a token have the same accounts.
    for (field, value) in [("username", "root"), ("username", "*"), ("groupname", "adm")] {
        let mut body = body.clone();
        body[field] = json!(value);
        cli.api.post(COMMANDS, &body).await.expect_fields(400, &[field]);
    }
    // A pattern that a native list refuses.
    let bad = json!({"token": token["id"], "command": "ls '*'"});
    assert_eq!(cli.api.post(COMMANDS, &bad).await.status, 400);
    let unknown = json!({"token": token["id"], "command": "ls", "scope": "x"});
    cli.api.post(COMMANDS, &unknown).await.expect_fields(400, &["scope"]);

    // The list applies.
    let server = workspace.server("web").await;
    let _agent = ScriptedAgent::connect(&workspace, &server).await;
    let as_token = Alpacon::cli(&workspace.anonymous.with_token(token["key"].as_str().unwrap()));
    let id = as_token.server_id("web").await;
    as_token.start(&id, "ls l", "").await;
    for (line, username) in [("rm -r x", ""), ("ls l", "root"), ("ls; id", "")] {
        let body = Alpacon::command(&id, line, username);
        let refused = as_token.api.post("/api/events/commands/", &body).await;
        refused.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
    }

    // Removing the last command leaves an empty list, which allows nothing.
    for entry in &entries {
        assert_eq!(cli.api.delete(&format!("{COMMANDS}{}/", entry.id)).await.status, 204);
    }
    assert_eq!(acl(&native, &token).await, json!({"commands": [], "usernames": ["boss"]}));
    let refused =
        as_token.api.post("/api/events/commands/", &Alpacon::command(&id, "ls l", "")).await;
    refused.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
    cli.api.delete(&format!("{COMMANDS}{}/", added.id)).await.expect_detail(404, None);
}

#[tokio::test]
async fn commands_are_allowed_for_other_accounts() {
    let workspace = Workspace::new().await;
    let native = workspace.session();
    let cli = Alpacon::cli(&native);
    for (username, expected) in [
        ("*", json!({"commands": ["id"]})),
        ("root", json!({"commands": ["id"], "usernames": ["root"]})),
    ] {
        let token = new_token(&native).await;
        let body = json!({"token": token["id"], "command": "id", "username": username});
        let added: CommandAcl = cli.post(COMMANDS, &body).await;
        assert_eq!(added.username.as_deref(), Some(username));
        assert_eq!(acl(&native, &token).await, expected);
    }
    // Accounts that the owner has set natively are not widened.
    let body = json!({"name": "deploy", "expires_at": null, "acl": {"usernames": ["deploy"]}});
    let token = native.post(TOKENS, &body).await.expect(201);
    for username in ["*", "root", ""] {
        let body = json!({"token": token["id"], "command": "id", "username": username});
        cli.api.post(COMMANDS, &body).await.expect_fields(400, &["username"]);
    }
    assert_eq!(acl(&native, &token).await, json!({"usernames": ["deploy"]}));
}

#[tokio::test]
async fn servers_are_allowed_one_by_one_and_together() {
    let workspace = Workspace::new().await;
    let native = workspace.session();
    let cli = Alpacon::cli(&native);
    let token = new_token(&native).await;
    let mut ids = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        ids.push(workspace.server(name).await["id"].clone());
    }
    // A token without a list of servers gets none by a deletion.
    let both = json!({"token": token["id"], "servers": [ids[0], ids[1]]});
    cli.api.post(&format!("{SERVERS}bulk/delete/"), &both).await.expect_detail(404, None);
    assert_eq!(acl(&native, &token).await, json!(null));

    let added: ServerAcl =
        cli.post(SERVERS, &json!({"token": token["id"], "server": ids[0]})).await;
    assert_eq!(added.server.unwrap().name.as_deref(), Some("a"));
    assert_eq!(added.token.as_deref(), token["id"].as_str());
    let many = json!({"token": token["id"], "servers": ids});
    let all: Vec<ServerAcl> = cli.post(&format!("{SERVERS}bulk/"), &many).await;
    assert_eq!(all.len(), 5);
    let query = format!("token={}", token["id"].as_str().unwrap());
    let listed: Vec<ServerAcl> = cli.list(SERVERS, &query).await;
    let name = |entry: &ServerAcl| entry.server.clone().unwrap().name.unwrap();
    assert_eq!(listed.iter().map(name).collect::<Vec<_>>(), ["a", "b", "c", "d", "e"]);
    assert_eq!(acl(&native, &token).await, json!({"servers": ids}));

    let unknown = json!({"token": token["id"], "server": farhand_tests::people::UNKNOWN_UUID});
    cli.api.post(SERVERS, &unknown).await.expect_fields(400, &["server"]);
    let unknown = json!({"token": token["id"], "servers": [farhand_tests::people::UNKNOWN_UUID]});
    cli.api.post(&format!("{SERVERS}bulk/"), &unknown).await.expect_fields(400, &["servers"]);
    let empty = json!({"token": token["id"], "servers": []});
    cli.api.post(&format!("{SERVERS}bulk/"), &empty).await.expect_fields(400, &["servers"]);

    assert_eq!(cli.api.delete(&format!("{SERVERS}{}/", listed[0].id)).await.status, 204);
    assert_eq!(cli.api.post(&format!("{SERVERS}bulk/delete/"), &many).await.status, 200);
    assert_eq!(acl(&native, &token).await, json!({"servers": []}));
}

#[tokio::test]
async fn concurrent_changes_of_a_list_are_all_kept() {
    let workspace = Workspace::new().await;
    let native = workspace.session();
    let cli = Alpacon::cli(&native);
    let token = new_token(&native).await;
    let add = async |number: u32| {
        let body = json!({"token": token["id"], "command": format!("echo {number}")});
        cli.api.post(COMMANDS, &body).await.expect(201);
    };
    future::join_all((0..4).map(add)).await;
    let list = acl(&native, &token).await;
    assert_eq!(list["commands"].as_array().unwrap().len(), 4, "{list}");
}

#[tokio::test]
async fn lists_of_others_and_limited_tokens_are_refused() {
    let (workspace, elsewhere) = (Workspace::new().await, Workspace::new().await);
    let native = workspace.session();
    let cli = Alpacon::cli(&native);
    let token = new_token(&native).await;
    let server = workspace.server("web").await;
    let command = json!({"token": token["id"], "command": "id"});
    let entry: CommandAcl = cli.post(COMMANDS, &command).await;
    let servers = json!({"token": token["id"], "servers": [server["id"]]});
    let requests = [
        ("POST", COMMANDS.to_owned(), command),
        ("DELETE", format!("{COMMANDS}{}/", entry.id), json!({})),
        ("POST", SERVERS.to_owned(), json!({"token": token["id"], "server": server["id"]})),
        ("POST", format!("{SERVERS}bulk/"), servers.clone()),
        ("POST", format!("{SERVERS}bulk/delete/"), servers),
        ("DELETE", format!("{SERVERS}{}/", entry.id), json!({})),
    ];
    let before = acl(&native, &token).await;
    let strangers = [elsewhere.session(), workspace.staff("other").await];
    let limited = workspace.limited(&json!({})).await;
    for (method, path, body) in &requests {
        for stranger in &strangers {
            let reply = Alpacon::cli(stranger).api.send_json(method, path, body).await;
            reply.expect_detail(404, None);
        }
        let refused = Alpacon::cli(&limited).api.send_json(method, path, body).await;
        refused.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
        let anonymous = Alpacon::cli(&workspace.anonymous).api.send_json(method, path, body).await;
        anonymous.expect_detail(401, None);
    }
    for path in [COMMANDS, SERVERS] {
        let query = format!("token={}", token["id"].as_str().unwrap());
        for stranger in &strangers {
            let none: Vec<Value> = Alpacon::cli(stranger).list(path, &query).await;
            assert!(none.is_empty());
        }
        let refused = Alpacon::cli(&limited).api.get(path).await;
        refused.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
    }
    assert_eq!(acl(&native, &token).await, before);
    // Malformed input is refused only after the credential.
    let bad = json!({"token": "x/../y", "command": ""});
    Alpacon::cli(&workspace.anonymous).api.post(COMMANDS, &bad).await.expect_detail(401, None);
    cli.api.post(COMMANDS, &bad).await.expect_fields(400, &["command", "token"]);
}
