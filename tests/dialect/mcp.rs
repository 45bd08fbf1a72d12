//! The MCP server: its own default group, and its token without quotes.

use farhand_tests::alpacon::{
    Alpacon, Command, CommandAcl, Guide, List, RegistrationToken, Server,
};
use farhand_tests::client::unique;
use farhand_tests::{Instance, ScriptedAgent, Workspace};
use serde_json::{Value, json};

const COMMANDS: &str = "/api/events/commands/";

#[tokio::test]
async fn its_default_group_is_none() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let mcp = Alpacon::mcp(&workspace.admin);
    let id = mcp.server_id("web").await;
    let mut body = Alpacon::command(&id, "id", "");
    for (name, sent) in [("alpacon", ""), ("adm", "adm")] {
        body["groupname"] = json!(name);
        let started: Vec<Command> = mcp.post(COMMANDS, &body).await;
        assert_eq!(started[0].groupname.as_deref(), Some(sent));
        agent.next_command().await;
    }
    // For the command line, the name means that group.
    body["groupname"] = json!("alpacon");
    let started: Vec<Command> = Alpacon::cli(&workspace.admin).post(COMMANDS, &body).await;
    assert_eq!(started[0].groupname.as_deref(), Some("alpacon"));
    let acls: List<CommandAcl> = mcp.get("/api/security/command-acl/").await;
    assert_eq!(acls.count, 0);
}

#[tokio::test]
async fn its_own_names_of_fields_are_known() {
    let workspace = Workspace::new().await;
    let native = workspace.session();
    let mcp = Alpacon::mcp(&native);
    let new_token = async || {
        let body = json!({"name": unique("ci"), "expires_at": null, "acl": {"commands": ["id"]}});
        native.post("/api/auth/tokens/", &body).await.expect(201)["id"].clone()
    };
    let (first, _second) = (new_token().await, new_token().await);
    for path in ["/api/security/command-acl/", "/api/security/server-acl/"] {
        let query = format!("{path}?api_token={}", first.as_str().unwrap());
        let selected: List<Value> = mcp.get(&query).await;
        assert_eq!(selected.count, i64::from(path.contains("command")));
        let query = format!("{path}?service_token={}", first.as_str().unwrap());
        mcp.api.get(&query).await.expect_fields(400, &["service_token"]);
    }
    let body = json!({"service_token": first, "command": "id", "username": "", "groupname": ""});
    let refused = mcp.api.post("/api/security/command-acl/", &body).await;
    refused.expect_fields(400, &["service_token", "token"]);

    let body = json!({"name": "hosts", "description": "of the web team"});
    let token: RegistrationToken = mcp.post("/api/servers/registration-tokens/", &body).await;
    let guide = "/api/servers/registration-methods/token-install/guide/?response_type=json";
    let body = json!({"platform": "suse", "token": token.id});
    let shown: Guide = mcp.post(guide, &body).await;
    assert!(shown.register_command.ends_with("--token <key>"), "{}", shown.register_command);
    let both = json!({"platform": "suse", "token": token.id, "registration_token": token.id});
    mcp.api.post(guide, &both).await.expect_fields(400, &["registration_token"]);
}

#[tokio::test]
async fn its_token_without_quotes_needs_a_setting() {
    let (instance, _folder) = Instance::new_with(&[("ALPACON_MCP", "1")]).await;
    let here = Workspace::create_with(&instance.operator(), &unique("t")).await;
    let shared = Workspace::new().await;
    let unquoted = |workspace: &Workspace| {
        let header = workspace.admin.authorization.clone().unwrap().replace('"', "");
        workspace.anonymous.with_authorization(&header)
    };
    let list: List<Server> = Alpacon::mcp(&unquoted(&here)).get("/api/servers/servers/").await;
    assert_eq!(list.count, 0);
    let list: List<Server> = Alpacon::mcp(&here.admin).get("/api/servers/servers/").await;
    assert_eq!(list.count, 0);
    let malformed = Some("INVALID_AUTHORIZATION");
    for refused in
        [Alpacon::mcp(&unquoted(&shared)).api, Alpacon::cli(&unquoted(&here)).api, unquoted(&here)]
    {
        refused.get("/api/servers/servers/").await.expect_detail(403, malformed);
    }
    let wrong = here.anonymous.with_authorization("token=wrong");
    let refused = Alpacon::mcp(&wrong).api.get("/api/servers/servers/").await;
    refused.expect_detail(403, Some("INVALID_TOKEN"));
}
