//! Batches that run scripts (contract 13 and 14.12).

use farhand_tests::commands::wait_until_ended;
use farhand_tests::{ScriptedAgent, Workspace, eventually};
use serde_json::{Value, json};

use super::{COMMANDS, id_of, path_of, script};

const BATCHES: &str = "/api/events/batches/";
const ALL: &str = "kill, replay, argv, script, stdin, cwd";

/// A workspace with two servers and their agents.
async fn start() -> (Workspace, Vec<ScriptedAgent>) {
    let workspace = Workspace::new().await;
    let mut agents = Vec::new();
    for name in ["web-1", "web-2"] {
        let server = workspace.server(name).await;
        agents.push(ScriptedAgent::connect_with_features(&workspace, &server, ALL).await);
        farhand_tests::agents::wait_until_connected(&workspace, id_of(&server), true).await;
    }
    (workspace, agents)
}

fn batch(script: &Value, more: Value) -> Value {
    let mut body = json!({"targets": {"all": true}, "script": script["id"], "username": "deploy"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

async fn wait_until_finished(workspace: &Workspace, batch: &Value) -> Value {
    let path = format!("{BATCHES}{}/", id_of(batch));
    eventually("the batch's end", || async {
        let shown = workspace.admin.get(&path).await.expect(200);
        shown["finished_at"].is_string().then_some(shown)
    })
    .await
}

#[tokio::test]
async fn each_target_gets_the_frozen_script() {
    let (workspace, mut agents) = start().await;
    let params = json!({"params": [{"name": "A", "type": "string"}]});
    let made = script(&workspace, "echo 1", params).await;
    // Short bodies travel with the calls of the batch. Each server's object reads a long one.
    let long = "# ".repeat(50_000);
    for body in ["echo 2", &long] {
        let made = workspace.admin.patch(&path_of(&made), &json!({"body": body})).await.expect(200);
        let request = batch(&made, json!({"params": {"A": "$(id)"}}));
        let created = workspace.admin.post(BATCHES, &request).await.expect(201);
        let label = format!("script:{}@{}", made["name"].as_str().unwrap(), made["version"]);
        assert_eq!(created["line"], json!(label));
        for agent in &mut agents {
            let order = agent.next_command().await;
            assert!(order["script"]["body"] == json!(body), "another body");
            assert_eq!(order["env"], json!({"PARAM_A": "$(id)"}));
            agent.fin(id_of(&order), 0, "ok").await;
            let command = wait_until_ended(&workspace.admin, id_of(&order)).await;
            assert_eq!(command["line"], json!(label));
            let path = format!("/api/audit/events/?object={}&action=command.create", id_of(&order));
            let event = workspace.admin.get(&path).await.expect(200)["results"][0].clone();
            let script =
                json!({"id": made["id"], "version": made["version"], "sha256": made["sha256"]});
            assert_eq!(event["details"]["script"], script);
        }
        let done = wait_until_finished(&workspace, &created).await;
        assert_eq!((&done["state"], &done["counts"]["success"]), (&json!("finished"), &json!(2)));
        let path = format!("/api/audit/events/?object={}&action=batch.create", id_of(&created));
        let event = workspace.admin.get(&path).await.expect(200)["results"][0].clone();
        assert_eq!(event["details"]["script"]["version"], made["version"]);
        assert_eq!(event["details"]["params"], json!(["PARAM_A"]));
    }
}

#[tokio::test]
async fn a_retry_runs_the_same_version() {
    let (workspace, mut agents) = start().await;
    let params = json!({"params": [{"name": "A", "type": "string"}]});
    let made = script(&workspace, "echo 1", params).await;
    let run = async |agents: &mut [ScriptedAgent], more: Value| {
        let created = workspace.admin.post(BATCHES, &batch(&made, more)).await.expect(201);
        for agent in agents {
            let order = agent.next_command().await;
            agent.fin(id_of(&order), 1, "no").await;
        }
        wait_until_finished(&workspace, &created).await;
        format!("{BATCHES}{}/retry-failed/", id_of(&created))
    };
    let with_params = run(&mut agents, json!({"params": {"A": "x"}})).await;
    let without = run(&mut agents, json!({})).await;
    workspace.admin.patch(&path_of(&made), &json!({"body": "echo 2"})).await.expect(200);
    // The values were deleted when the batch ended.
    workspace
        .admin
        .post(&with_params, &Value::Null)
        .await
        .expect_detail(409, Some("INPUTS_DELETED"));
    let again = workspace.admin.post(&without, &Value::Null).await.expect(201);
    assert!(again["line"].as_str().unwrap().ends_with("@1"));
    for agent in &mut agents {
        let order = agent.next_command().await;
        assert_eq!(order["script"]["body"], "echo 1");
        agent.fin(id_of(&order), 0, "ok").await;
    }
    wait_until_finished(&workspace, &again).await;
    // A deleted script cannot run again.
    workspace.admin.delete(&path_of(&made)).await.expect(204);
    workspace.admin.post(&without, &Value::Null).await.expect_fields(400, &["script"]);
}

#[tokio::test]
async fn batches_with_scripts_are_checked() {
    let (workspace, mut agents) = start().await;
    let params = json!({"params": [{"name": "A", "type": "integer", "required": true}]});
    let (made, other) =
        (script(&workspace, "id", params).await, script(&workspace, "id", json!({})).await);
    let admin = &workspace.admin;
    admin.post(BATCHES, &batch(&made, json!({}))).await.expect_fields(400, &["params"]);
    let unknown = json!({"id": uuid::Uuid::nil()});
    admin.post(BATCHES, &batch(&unknown, json!({}))).await.expect_fields(400, &["script"]);
    let version = json!({"script_version": 2, "params": {"A": 1}});
    admin.post(BATCHES, &batch(&made, version)).await.expect_fields(400, &["script"]);
    admin.post(BATCHES, &batch(&made, json!({"line": "id"}))).await.expect_fields(400, &["script"]);
    let limited = workspace.limited(&json!({"scripts": [made["id"]]})).await;
    let refused = Some("API_TOKEN_ACL_NOT_ALLOWED");
    limited.post(BATCHES, &batch(&other, json!({}))).await.expect_detail(403, refused);
    limited.post(BATCHES, &batch(&unknown, json!({}))).await.expect_detail(403, refused);
    let line = json!({"targets": {"all": true}, "line": "id", "username": "deploy"});
    limited.post(BATCHES, &line).await.expect_detail(403, refused);
    assert_eq!(admin.get(BATCHES).await.expect(200)["count"], 0);
    let created =
        limited.post(BATCHES, &batch(&made, json!({"params": {"A": 1}}))).await.expect(201);
    for agent in &mut agents {
        let order = agent.next_command().await;
        assert_eq!(order["env"], json!({"PARAM_A": "1"}));
        agent.fin(id_of(&order), 0, "ok").await;
    }
    wait_until_finished(&workspace, &created).await;
    // The token reads what it ran, and no other batch.
    assert_eq!(limited.get(BATCHES).await.expect(200)["count"], 1);
    assert_eq!(limited.get(COMMANDS).await.expect(200)["count"], 2);
    let own = admin.post(BATCHES, &batch(&other, json!({}))).await.expect(201);
    let path = format!("{BATCHES}{}/", id_of(&own));
    limited.get(&path).await.expect_detail(404, None);
    assert_eq!(limited.get(BATCHES).await.expect(200)["count"], 1);
}
