//! Scripts (contract 14.10 to 14.13).

mod batches;
mod delivery;
mod limits;
mod quotas;
mod real;
mod resource;

use farhand_tests::Workspace;
use serde_json::{Value, json};

const SCRIPTS: &str = "/api/events/scripts/";
const COMMANDS: &str = "/api/events/commands/";

/// Creates a script with this body and further fields.
async fn script(workspace: &Workspace, body: &str, more: Value) -> Value {
    let mut new = json!({"name": farhand_tests::client::unique("script"), "body": body});
    new.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    workspace.admin.post(SCRIPTS, &new).await.expect(201)
}

fn path_of(script: &Value) -> String {
    format!("{SCRIPTS}{}/", script["id"].as_str().unwrap())
}

fn id_of(object: &Value) -> &str {
    object["id"].as_str().unwrap()
}

/// A command that runs a script on the server `web-1`.
fn call(script: &Value, more: Value) -> Value {
    let mut body = json!({"server": "web-1", "script": script["id"], "username": "deploy"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}
