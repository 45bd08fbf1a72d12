//! The millionth workspace. Its keys are above 2^53, so JavaScript would round them
//! (`sql/src/numbering.rs`).

use farhand_tests::agents::ScriptedAgent;
use farhand_tests::{Instance, Workspace, commands, eventually};
use serde_json::json;

use super::backup::export;

const COMMANDS: &str = "/api/events/commands/";

#[tokio::test]
async fn a_workspace_with_a_high_number_works() {
    let (instance, folder) = Instance::new().await;
    instance.tamper_with_d1(
        "DELETE FROM sqlite_sequence WHERE name = 'workspaces';
         INSERT INTO sqlite_sequence (name, seq) VALUES ('workspaces', 999999)",
    );
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    assert_eq!(instance.d1("SELECT id FROM workspaces")[0]["id"], 1_000_000);
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let mut ids = Vec::new();
    for line in ["first zookeeper", "second zookeeper"] {
        let body = json!({"server": "web-1", "line": line});
        let made = workspace.admin.post(COMMANDS, &body).await.expect(201);
        assert_eq!(agent.next_command().await["id"], made["id"]);
        let id = made["id"].as_str().unwrap().to_owned();
        agent.fin(&id, 0, line).await;
        commands::wait_until_ended(&workspace.admin, &id).await;
        ids.push(json!(id));
    }
    ids.reverse();
    for query in ["", "?search=zookeeper", "?page_size=1"] {
        let list = workspace.admin.get(&format!("{COMMANDS}{query}")).await.expect(200);
        let found: Vec<_> = list["results"].as_array().unwrap().iter().collect();
        assert_eq!(list["count"], 2, "{query}");
        assert_eq!(found[0]["id"], ids[0], "{query}");
    }
    eventually("the seals", || async {
        let found = workspace.admin.post("/api/audit/verify/", &json!({})).await.expect(200);
        assert_eq!(found["valid"], true, "{found}");
        (found["unsealed"] == 0 && found["links"].as_i64() > Some(2)).then_some(())
    })
    .await;
    drop(agent);
    let keys = instance.read_d1(
        "SELECT CAST(seq AS TEXT) FROM commands
         UNION ALL SELECT CAST(seq AS TEXT) FROM audit_events WHERE workspace_id = 1000000",
    );
    assert!(keys.len() > 4, "{keys:?}");
    instance.stop_when_d1_is_current().await;
    let file = folder.path().join("export.sql");
    export(folder.path(), &file).await;
    let exported = std::fs::read_to_string(file).unwrap();
    for key in keys {
        assert!(
            key.starts_with("10995116277760000") && exported.contains(&format!("'{key}'")),
            "{key}"
        );
    }
}
