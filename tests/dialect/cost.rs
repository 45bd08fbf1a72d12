//! What the requests of `exec` cost: each is one native request, with the native number of D1
//! calls.

use std::path::Path;

use farhand_tests::alpacon::Alpacon;
use farhand_tests::client::unique;
use farhand_tests::{Api, ScriptedAgent, Workspace, eventually, instance_setting};
use serde_json::{Value, json};

/// Sends a request, and returns the D1 calls of each native request that it caused, by the log.
async fn d1_calls(api: &Api, method: &str, path: &str, body: Option<&Value>) -> Vec<u64> {
    let id = unique("cost");
    let request = api.request(method, path).header("X-Request-Id", &id);
    let request = body.into_iter().fold(request, |request, body| request.json(body));
    let reply = api.send(request).await;
    assert!(reply.status < 300, "{method} {path}: {} {}", reply.status, reply.text);
    let log = Path::new(&instance_setting("FARHAND_STATE_DIR")).join("worker.log");
    eventually("the request's line", || async {
        let text = std::fs::read_to_string(&log).unwrap();
        let lines = text.lines().filter(|line| line.contains(&id));
        let lines = lines.filter_map(|line| line[line.find('{')?..].parse::<Value>().ok());
        let lines = lines.filter(|line| line["event"] == "request" && line["request_id"] == *id);
        let calls: Vec<u64> = lines.filter_map(|line| line["d1_calls"].as_u64()).collect();
        (!calls.is_empty()).then_some(calls)
    })
    .await
}

#[tokio::test]
async fn the_requests_of_exec_cost_what_native_ones_cost() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let _agent = ScriptedAgent::connect(&workspace, &server).await;
    let native = &workspace.admin;
    let cli = Alpacon::cli(native);
    let id = cli.server_id("web").await;
    let command = cli.start(&id, "id", "").await.id;
    let body = Alpacon::command(&id, "id", "");
    let native_body = json!({"server": id, "line": "id"});
    let own = format!("/api/events/commands/{command}/");
    for (method, path, body) in [
        ("GET", "/api/servers/servers/?name=web".to_owned(), None),
        ("POST", "/api/events/commands/".to_owned(), Some((&body, &native_body))),
        ("GET", own.clone(), None),
        ("GET", format!("{own}chunks/?ordering=seq&page=1&page_size=100"), None),
        ("GET", "/api/events/commands/?page=1&page_size=15".to_owned(), None),
        ("GET", "/api/iam/users/-/".to_owned(), None),
    ] {
        let of_cli = d1_calls(&cli.api, method, &path, body.map(|(body, _)| body)).await;
        let of_native = d1_calls(native, method, &path, body.map(|(_, body)| body)).await;
        assert_eq!(of_cli, of_native, "{method} {path}");
    }
}
