//! Contract 4: what is stored has no usable credential in it.

use std::fs;
use std::path::{Path, PathBuf};

use farhand_tests::agents::ScriptedAgent;
use farhand_tests::client::PASSWORD;
use farhand_tests::{Workspace, eventually, setting};
use serde_json::json;

/// Every file of the state folder, but for the instance's own secrets, which are kept there on purpose.
fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let own = path.file_name().is_some_and(|name| name == "secrets.json" || name == "variables.env");
        if path.is_dir() {
            files_below(&path, found);
        } else if !own {
            found.push(path);
        }
    }
}

fn find(needle: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    files_below(Path::new(&setting("FARHAND_STATE_DIR")), &mut files);
    let holds = |path: &PathBuf| {
        // A file may go while it is looked for.
        fs::read(path).is_ok_and(|bytes| bytes.windows(needle.len()).any(|window| window == needle.as_bytes()))
    };
    files.into_iter().filter(holds).collect()
}

#[tokio::test]
async fn no_credential_is_stored_in_clear() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let marker = farhand_tests::client::unique("marker");
    workspace.admin.post("/api/events/commands/", &json!({"server": "web-1", "line": marker})).await.expect(201);
    agent.next_command().await;
    workspace.session().get("/api/status/").await.expect(200);
    // The search finds what is stored in clear: the line of a command.
    eventually("the marker", || async { (!find(&marker).is_empty()).then_some(()) }).await;
    let token = workspace.admin.authorization.as_ref().unwrap().split('"').nth(1).unwrap().to_owned();
    for secret in [token.as_str(), &workspace.login_token, server["key"].as_str().unwrap(), PASSWORD] {
        assert_eq!(find(secret), Vec::<PathBuf>::new());
    }
}
