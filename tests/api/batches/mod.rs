//! Batches (contract 13).

mod access;
mod creation;
mod fleet;
mod idempotency;
mod limits;
mod lists;
mod outputs;
mod refusals;
mod running;
mod stopping;
mod targets;

use farhand_tests::client::{Api, Reply, Workspace};
use farhand_tests::people::{BATCHES, column, item_path};
use serde_json::{Value, json};

/// Creates servers without agents, in the order of their names.
async fn servers(workspace: &Workspace, names: &[&str]) -> Vec<Value> {
    let mut servers = Vec::new();
    for name in names {
        servers.push(workspace.server(name).await);
    }
    servers
}

/// The body of a batch that stays open: its targets are offline and wait.
fn waiting(targets: Value) -> Value {
    json!({"targets": targets, "line": "id", "on_offline": "queue"})
}

/// Requests a batch that stays open.
async fn create(api: &Api, targets: Value) -> Reply {
    api.post(BATCHES, &waiting(targets)).await
}

/// The names of the servers that a selection selects, by a dry run.
async fn selected(api: &Api, targets: Value) -> Vec<Value> {
    let mut body = waiting(targets);
    body["dry_run"] = json!(true);
    let plan = api.post(BATCHES, &body).await.expect(200);
    assert_eq!(plan["total"], plan["targets"].as_array().unwrap().len());
    column(&json!({"results": plan["targets"]}), "server_name")
}

/// The names of a batch's targets.
async fn target_names(api: &Api, batch: &Value) -> Vec<Value> {
    let path = format!("{}targets/?page_size=1000", item_path(BATCHES, batch));
    column(&api.get(&path).await.expect(200), "server_name")
}
