//! `server`, `server token` and `agent` of the command line.

use farhand_tests::alpacon::{Alpacon, Command, Group, Guide, List, RegistrationToken, Server};
use farhand_tests::{ScriptedAgent, Workspace, now};
use serde_json::{Value, json};

const SERVERS: &str = "/api/servers/servers/";
const TOKENS: &str = "/api/servers/registration-tokens/";
const GUIDE: &str = "/api/servers/registration-methods/token-install/guide/?response_type=json";

#[tokio::test]
async fn servers_have_an_owner_and_groups_with_text_ids() {
    let workspace = Workspace::new().await;
    let web = workspace.server("web").await;
    workspace.server("db").await;
    let group = workspace.group("ops", &[&web]).await;
    let cli = Alpacon::cli(&workspace.admin);
    let servers: Vec<Server> = cli.list(SERVERS, "").await;
    assert_eq!(servers.len(), 2);
    let shown = servers.iter().find(|server| server.name.as_deref() == Some("web")).unwrap();
    assert_eq!(shown.groups, Some(vec![group["id"].to_string()]));
    assert_eq!(shown.owner.as_ref().unwrap().name.as_deref(), Some("boss"));
    assert_eq!(shown.is_connected, Some(false));
    // Smaller pages have numbers, not URLs.
    let page: List<Server> = cli.get(&format!("{SERVERS}?page=1&page_size=1")).await;
    assert_eq!((page.count, page.current, page.next, page.last), (2, 1, Some(2), 2));
    let page: List<Server> = cli.get(&format!("{SERVERS}?page=2&page_size=1")).await;
    assert_eq!((page.next, page.previous), (None, Some(1)));
    cli.api.get(&format!("{SERVERS}?page=3&page_size=1")).await.expect_detail(404, None);
    let none: List<Server> = cli.get(&format!("{SERVERS}?name=nothing")).await;
    assert_eq!((none.count, none.last), (0, 1));
}

#[tokio::test]
async fn a_server_is_updated_as_a_whole_and_deleted() {
    let workspace = Workspace::new().await;
    let web = workspace.server("web").await;
    workspace.group("ops", &[&web]).await;
    let cli = Alpacon::cli(&workspace.admin);
    let path = format!("{SERVERS}{}/", cli.server_id("web").await);
    let mut whole: Value = cli.get(&path).await;
    whole["name"] = json!("web-1");
    for (name, value) in [("commissioned", json!(true)), ("starred", json!(false))] {
        whole[name] = value;
    }
    let changed: Server = cli.patch(&path, &whole).await;
    assert_eq!(changed.name.as_deref(), Some("web-1"));
    let native = workspace.admin.get(&path).await.expect(200);
    assert_eq!((&native["name"], native["groups"].as_array().unwrap().len()), (&json!("web-1"), 1));
    assert_eq!(native["owner"]["username"], "boss");
    whole["unknown"] = json!(1);
    cli.api.patch(&path, &whole).await.expect_fields(400, &["unknown"]);
    assert_eq!(cli.api.delete(&path).await.status, 204);
}

#[tokio::test]
async fn registration_tokens_have_allowed_groups() {
    let workspace = Workspace::new().await;
    let group = workspace.group("ops", &[]).await;
    let cli = Alpacon::cli(&workspace.admin);
    let groups: Vec<Group> = cli.list("/api/iam/groups/", "").await;
    let wanted = vec![groups[0].id.clone()];
    let body =
        json!({"name": "hosts", "allowed_groups": wanted, "expires_at": now().plus_seconds(3600)});
    let token: RegistrationToken = cli.post(TOKENS, &body).await;
    assert!(token.key.is_some() && token.expires_at.is_some() && token.added_at.is_some());
    assert_eq!((token.allowed_groups, token.enabled), (Some(wanted.clone()), Some(true)));
    let native = workspace.admin.get(&format!("{TOKENS}{}/", token.id)).await.expect(200);
    assert_eq!(native["groups"], json!([group["id"]]));
    let _: RegistrationToken =
        cli.post(TOKENS, &json!({"name": "any", "allowed_groups": []})).await;
    // A group that does not exist is refused, and not ignored.
    let bad = json!({"name": "bad", "allowed_groups": ["999999"]});
    assert_eq!(cli.api.post(TOKENS, &bad).await.status, 400);
    let listed: Vec<RegistrationToken> = cli.list(TOKENS, "search=hosts").await;
    let shown = listed.iter().find(|token| token.name.as_deref() == Some("hosts")).unwrap();
    assert_eq!(shown.allowed_groups, Some(wanted));
    assert_eq!(cli.api.delete(&format!("{TOKENS}{}/", token.id)).await.status, 204);
}

#[tokio::test]
async fn the_guide_registers_a_host() {
    let workspace = Workspace::new().await;
    let cli = Alpacon::cli(&workspace.admin);
    let token: RegistrationToken = cli.post(TOKENS, &json!({"name": "hosts"})).await;
    let body =
        json!({"platform": "debian", "server_name": "web 1", "registration_token": token.id});
    let guide: Guide = cli.post(GUIDE, &body).await;
    assert_eq!(guide.platform.as_deref(), Some("debian"));
    assert!(guide.platform_label.unwrap().contains("Debian"));
    assert!(guide.register_command.contains("--token <key>"), "{}", guide.register_command);
    // The name is quoted, because it becomes a part of a shell command.
    assert!(guide.register_command.ends_with("--name 'web 1'"), "{}", guide.register_command);
    assert!(!guide.install_commands.is_empty());
    for (field, bad) in [("platform", "plan9"), ("registration_token", "x/../y"), ("other", "x")] {
        let mut body = body.clone();
        body[field] = json!(bad);
        cli.api.post(GUIDE, &body).await.expect_fields(400, &[field]);
    }
    let user = Alpacon::cli(&workspace.user("plain").await);
    user.api.post(GUIDE, &body).await.expect_detail(403, None);
    let ansible = "/api/servers/registration-methods/ansible/guide/?response_type=json";
    cli.api.post(ansible, &body).await.expect_detail(404, None);
}

#[tokio::test]
async fn actions_are_built_in_commands_of_the_agent() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let cli = Alpacon::cli(&workspace.admin);
    let path = format!("{SERVERS}{}/actions/", cli.server_id("web").await);
    for (action, line) in [
        ("update_information", "commit"),
        ("reboot_system", "reboot"),
        ("shutdown_system", "shutdown"),
        ("upgrade_system", "update"),
        ("restart_agent", "restart"),
        ("shutdown_agent", "quit"),
        ("upgrade_agent", "upgrade"),
    ] {
        let body = if action.ends_with("agent") {
            json!({"action": action})
        } else {
            json!({"action": action, "force": false})
        };
        let command: Command = cli.post(&path, &body).await;
        assert_eq!(command.shell.as_deref(), Some("internal"));
        let received = agent.next_command().await;
        assert_eq!((&received["shell"], &received["line"]), (&json!("internal"), &json!(line)));
    }
    cli.api.post(&path, &json!({"action": "rm -rf /"})).await.expect_fields(400, &["action"]);
    cli.api
        .post(&path, &json!({"action": "reboot_system", "x": 1}))
        .await
        .expect_fields(400, &["x"]);
}

#[tokio::test]
async fn actions_are_for_staff_with_an_unlimited_token() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let path = format!("{SERVERS}{}/actions/", server["id"].as_str().unwrap());
    let body = json!({"action": "reboot_system", "force": true});
    // This list alone would allow built-in commands natively.
    let limited = workspace.limited(&json!({"servers": [server["id"]]})).await;
    let refused = Alpacon::cli(&limited).api.post(&path, &body).await;
    refused.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
    let user = farhand_tests::Person::new(&workspace, "plain").await;
    let group = workspace.group("ops", &[&server]).await;
    workspace.add_member(&group, &user, "owner").await;
    Alpacon::cli(&user.api).api.post(&path, &body).await.expect_detail(403, None);
    Alpacon::cli(&workspace.anonymous).api.post(&path, &body).await.expect_detail(401, None);
    assert!(agent.stays_silent().await);
}
