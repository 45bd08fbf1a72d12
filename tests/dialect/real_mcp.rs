//! The real MCP server, unmodified. It needs Python 3.12, so `npm test` leaves it out:
//! docs/contributing/testing.md says how to run it.

use std::process::Stdio;

use farhand_tests::agents::own_account;
use farhand_tests::client::unique;
use farhand_tests::processes::Process;
use farhand_tests::{Instance, PATIENCE, RealAgent, ScriptedAgent, Workspace, setting};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

/// The running program, which speaks JSON-RPC over its standard input and output.
struct McpServer {
    _process: Process,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    last_id: u64,
}

impl McpServer {
    /// Starts the program `FARHAND_ALPACON_MCP` with a token for the workspace `here`.
    async fn start(folder: &std::path::Path, url: &str, token: &str) -> Self {
        let config = folder.join(".alpacon-mcp/token.json");
        // The program accepts only regions that it knows. The URL decides.
        let tokens = json!({"us1": {"here": {"token": token, "url": url}}});
        std::fs::create_dir(folder.join(".alpacon-mcp")).unwrap();
        std::fs::write(&config, tokens.to_string()).unwrap();
        let mut command = Command::new(setting("FARHAND_ALPACON_MCP"));
        command
            .env("HOME", folder)
            // It writes its log to the current folder.
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut process = Process::spawn(&mut command);
        let input = process.child().stdin.take().unwrap();
        let output = BufReader::new(process.child().stdout.take().unwrap()).lines();
        let mut server = Self { _process: process, input, output, last_id: 0 };
        let client = json!({"protocolVersion": "2025-03-26", "capabilities": {},
            "clientInfo": {"name": "farhand-tests", "version": "1"}});
        server.request("initialize", client).await;
        server.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        server
    }

    async fn send(&mut self, message: &Value) {
        self.input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    /// Sends a request, and returns its result.
    async fn request(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        loop {
            let line = tokio::time::timeout(PATIENCE, self.output.next_line()).await;
            let line = line.expect("the program responds").unwrap().expect("the program runs");
            let mut message: Value = serde_json::from_str(&line).unwrap();
            if message["id"] == id {
                assert!(message["error"].is_null(), "{message}");
                return message["result"].take();
            }
        }
    }

    /// Calls a tool for the workspace.
    async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let mut arguments = arguments;
        arguments["workspace"] = json!("here");
        arguments["region"] = json!("us1");
        let params = json!({"name": tool, "arguments": arguments});
        let result = self.request("tools/call", params).await;
        let text = result["content"][0]["text"].as_str().unwrap();
        serde_json::from_str(text).unwrap_or_else(|_| panic!("{tool}: {text}"))
    }

    /// Calls a tool that must succeed, and returns its data.
    async fn data(&mut self, tool: &str, arguments: Value) -> Value {
        let mut answer = self.call(tool, arguments).await;
        assert_eq!(answer["status"], "success", "{tool}: {answer}");
        answer["data"].take()
    }
}

#[tokio::test]
#[ignore = "needs FARHAND_ALPACON_MCP"]
async fn the_real_mcp_server_works() {
    let slug = unique("mcp");
    let vars = [("ALPACON_MCP", "1"), ("DEFAULT_WORKSPACE", slug.as_str())];
    let (instance, folder) = Instance::new_with(&vars).await;
    let workspace = Workspace::create_with(&instance.operator(), &slug).await;
    let server = workspace.server("web").await;
    let _agent = RealAgent::start(&workspace, &server).await;
    let other = workspace.server("db").await;
    let mut scripted = ScriptedAgent::connect(&workspace, &other).await;
    let id = server["id"].clone();
    let header = workspace.admin.authorization.clone().unwrap();
    let token = header.strip_prefix("token=\"").unwrap().trim_end_matches('"').to_owned();
    let mut mcp = McpServer::start(folder.path(), &workspace.admin.url, &token).await;

    let servers = mcp.data("list_servers", json!({})).await;
    assert_eq!(servers["count"], 2, "{servers}");
    let shown = mcp.data("get_server", json!({"server_id": id})).await;
    assert_eq!(shown["name"], "web");

    let command = |line: &str| json!({"server_id": id, "command": line, "username": own_account()});
    let done = mcp.call("execute_command", command("echo hi; exit 3")).await;
    let text = done.to_string();
    assert!(text.contains("hi\\n") && text.contains("\"exit_code\":3"), "{done}");
    let mut described = command("true");
    described["purpose"] = json!("check that commands run");
    let done = mcp.call("execute_command", described).await;
    assert!(done.to_string().contains("\"exit_code\":0"), "{done}");
    let many = json!({"server_ids": [other["id"]], "command": "id"});
    mcp.call("execute_command_multi_server", many).await;
    let received = scripted.next_command().await;
    assert_eq!((&received["line"], &received["user"]), (&json!("id"), &json!("boss")));
    let commands = mcp.data("list_commands", json!({"server_id": id})).await;
    assert_eq!(commands["count"], 2, "{commands}");

    mcp.data("update_information", json!({"server_id": other["id"]})).await;
    assert_eq!(scripted.next_command().await["line"], "commit");

    for (tool, count) in [
        ("list_iam_users", 1),
        ("list_iam_groups", 0),
        ("list_iam_memberships", 0),
        ("list_api_tokens", 1),
        ("list_command_acls", 0),
        ("list_server_acls", 0),
        ("list_registration_tokens", 0),
    ] {
        let list = mcp.data(tool, json!({})).await;
        let counted = list["count"].as_u64().or(list.as_array().map(|list| list.len() as u64));
        assert_eq!(counted, Some(count), "{tool}: {list}");
    }
    let new = json!({"name": "hosts", "description": "of the web team"});
    let token = mcp.data("create_registration_token", new).await;
    let guide = json!({"token_id": token["id"], "platform": "debian"});
    let guide = mcp.data("get_registration_guide", guide).await;
    assert!(guide["register_command"].as_str().unwrap().contains("alpamon register"), "{guide}");
    mcp.data("list_activity_logs", json!({})).await;

    // Outside of Farhand's domain: the tool reports 404, and the program goes on.
    let refused = mcp.call("list_webhooks", json!({})).await;
    assert!(refused.to_string().contains("404"), "{refused}");
    mcp.data("list_servers", json!({})).await;
}
