//! The MCP server: its own default group, and its token without quotes.

use farhand_tests::alpacon::{Alpacon, Command, CommandAcl, List, Server};
use farhand_tests::client::unique;
use farhand_tests::{Instance, ScriptedAgent, Workspace};
use serde_json::json;

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
