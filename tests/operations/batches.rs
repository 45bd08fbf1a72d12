//! Batches over restarts, deleted workspaces, and D1's Time Travel.

use farhand_tests::agents::{ScriptedAgent, credential};
use farhand_tests::client::{Api, Workspace};
use farhand_tests::people::{BATCHES, item_path};
use farhand_tests::{Instance, eventually, now};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::backup::replace_folder;

const BACKHAUL: &str = "/ws/servers/backhaul/";

/// Creates a batch on all servers that waits for offline servers.
async fn create(admin: &Api, more: Value) -> Value {
    let expires_at = now().plus_seconds(3_000).to_string();
    let mut body = json!({"targets": {"all": true}, "line": "id", "on_offline": "queue",
        "expires_at": expires_at});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    admin.post(BATCHES, &body).await.expect(201)
}

/// Connects the agent of a server to an instance.
async fn connect(instance: &Instance, workspace: &Workspace, server: &Value) -> ScriptedAgent {
    let api = workspace.anonymous.with_url(&instance.url);
    ScriptedAgent::connect_to(&api.with_authorization(&credential(server)), BACKHAUL).await
}

/// Runs the next command of an agent.
async fn run_next(agent: &mut ScriptedAgent) -> Value {
    let order = agent.next_command().await;
    agent.fin(order["id"].as_str().unwrap(), 0, "").await;
    order
}

/// Waits until a batch has ended with this number of successes.
async fn wait_for_successes(admin: &Api, batch: &Value, successes: u64) {
    eventually("the batch's end", || async {
        let batch = admin.get(&item_path(BATCHES, batch)).await.expect(200);
        (batch["finished_at"].is_string() && batch["counts"]["success"] == successes).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_hourly_pass_begins_a_batch_whose_object_was_never_called() {
    let (instance, folder) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let batch = create(&workspace.admin, json!({})).await;
    instance.stop_when_d1_is_current().await;
    std::fs::remove_dir_all(folder.path().join("v3/do/farhand-Batch")).unwrap();

    // The pass runs when an instance starts.
    let instance = Instance::restart(folder.path()).await;
    let mut agent = connect(&instance, &workspace, &server).await;
    run_next(&mut agent).await;
    wait_for_successes(&workspace.admin.with_url(&instance.url), &batch, 1).await;
}

#[tokio::test]
async fn a_batch_waits_while_its_workspace_is_deleted() {
    let (instance, _folder) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let scheduled_at = now().plus_seconds(6).to_string();
    let batch = create(&workspace.admin, json!({"scheduled_at": scheduled_at})).await;
    let path = "/operator/workspaces/acme/";
    instance.operator().delete(path).await.expect(204);
    // The batch becomes due, and nothing starts.
    eventually("the batch to be due", || async {
        (scheduled_at < now().to_string()).then_some(())
    })
    .await;
    assert!(instance.read_d1("SELECT id FROM commands").is_empty());
    instance.operator().call("POST", &format!("{path}undelete/")).await.expect(200);
    let mut agent = connect(&instance, &workspace, &server).await;
    run_next(&mut agent).await;
    wait_for_successes(&workspace.admin, &batch, 1).await;
}

#[tokio::test]
async fn after_time_travel_nothing_runs_twice_and_the_batch_ends() {
    let (instance, folder) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let servers = [workspace.server("web-1").await, workspace.server("web-2").await];
    let mut first = connect(&instance, &workspace, &servers[0]).await;
    farhand_tests::agents::wait_until_connected(
        &workspace,
        servers[0]["id"].as_str().unwrap(),
        true,
    )
    .await;
    let batch = create(&workspace.admin, json!({"max_concurrency": 1})).await;
    let order = first.next_command().await;
    instance.stop_when_d1_is_current().await;
    let d1 = folder.path().join("v3/d1/miniflare-D1DatabaseObject");
    let copied = TempDir::new().unwrap();
    replace_folder(&d1, copied.path());

    // Both targets run after the time to which D1 is restored.
    let instance = Instance::restart(folder.path()).await;
    let first = connect(&instance, &workspace, &servers[0]).await;
    first.fin(order["id"].as_str().unwrap(), 0, "").await;
    let mut second = connect(&instance, &workspace, &servers[1]).await;
    run_next(&mut second).await;
    wait_for_successes(&workspace.admin.with_url(&instance.url), &batch, 2).await;
    instance.stop_when_d1_is_current().await;
    replace_folder(copied.path(), &d1);

    let instance = Instance::restart(folder.path()).await;
    let mut agents = [
        connect(&instance, &workspace, &servers[0]).await,
        connect(&instance, &workspace, &servers[1]).await,
    ];
    let resync = "/operator/workspaces/acme/resync/";
    instance.operator().post(resync, &json!({})).await.expect(202);
    wait_for_successes(&workspace.admin.with_url(&instance.url), &batch, 2).await;
    for agent in &mut agents {
        assert!(agent.stays_silent().await);
    }
}
