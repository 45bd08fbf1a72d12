//! Deleted servers, and `POST /api/servers/servers/<id>/undelete/` (contract 6.6).

use farhand_tests::agents::{ScriptedAgent, credential, dial, wait_until_connected};
use farhand_tests::people::{COMMANDS, SERVERS, UNKNOWN_UUID, column, item_path};
use farhand_tests::{Api, Instance, Person, Workspace, far_ahead};
use serde_json::{Value, json};

use crate::api::events::commands::{id_of, time_of};

const DELETED: &str = "/api/servers/servers/?deleted=true";

fn undelete_path(server: &Value) -> String {
    format!("{}undelete/", item_path(SERVERS, server))
}

async fn names(api: &Api, query: &str) -> Vec<Value> {
    column(&api.get(query).await.expect(200), "name")
}

#[tokio::test]
async fn a_deleted_server_can_be_undeleted() {
    let workspace = Workspace::new().await;
    let admin = &workspace.admin;
    let group = workspace.group("ops", &[]).await;
    let body = json!({"name": "web-1", "groups": [group["id"]], "labels": {"env": "prod"}});
    let server = admin.post(SERVERS, &body).await.expect(201);
    let path = item_path(SERVERS, &server);
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let run = json!({"server": server["id"], "line": "id"});
    let ended = admin.post(COMMANDS, &run).await.expect(201);
    agent.next_command().await;
    agent.fin(id_of(&ended), 0, "done\n").await;
    let waits = json!({"server": server["id"], "line": "id", "scheduled_at": far_ahead()});
    let waits = admin.post(COMMANDS, &waits).await.expect(201);
    let before = admin.get(&path).await.expect(200);
    admin.delete(&path).await.expect(204);

    // For other requests it does not exist, and its agent is refused.
    admin.get(&path).await.expect_detail(404, None);
    admin.post(&format!("{path}rotate-key/"), &json!({})).await.expect_detail(404, None);
    assert!(names(admin, SERVERS).await.is_empty());
    let of_agent = workspace.anonymous.with_authorization(&credential(&server));
    assert_eq!(dial(&of_agent, "/ws/servers/backhaul/").await.err(), Some(403));
    let listed = admin.get(DELETED).await.expect(200)["results"][0].clone();
    assert_eq!(
        (&listed["id"], &listed["groups"], &listed["labels"], &listed["deleted_by"]),
        (&server["id"], &before["groups"], &before["labels"], &json!("boss"))
    );
    let kept = time_of(&listed, "purge_at").seconds_since(time_of(&listed, "deleted_at"));
    assert_eq!(kept, 7.0 * 86_400.0);

    let undeleted = admin.call("POST", &undelete_path(&server)).await.expect(200);
    for field in ["id", "name", "owner", "groups", "labels", "added_at", "platform"] {
        assert_eq!(undeleted[field], before[field], "{field}");
    }
    assert_eq!(undeleted["is_connected"], false);
    assert!(names(admin, DELETED).await.is_empty());
    admin.call("POST", &undelete_path(&server)).await.expect_detail(404, None);
    // Its agent connects again with its key. What was cancelled stays cancelled.
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    wait_until_connected(&workspace, server["id"].as_str().unwrap(), true).await;
    let state = async |command: &Value| {
        admin.get(&format!("{COMMANDS}{}/", id_of(command))).await.expect(200)["state"].clone()
    };
    assert_eq!((state(&ended).await, state(&waits).await), (json!("success"), json!("cancelled")));
    let again = admin.post(COMMANDS, &run).await.expect(201);
    assert_eq!(agent.next_command().await["id"], again["id"]);
}

#[tokio::test]
async fn the_name_of_a_deleted_server_is_free() {
    let workspace = Workspace::new().await;
    let admin = &workspace.admin;
    let old = workspace.server("web-1").await;
    admin.delete(&item_path(SERVERS, &old)).await.expect(204);
    let new = workspace.server("web-1").await;
    let path = undelete_path(&old);
    admin.post(&path, &json!({})).await.expect_detail(409, Some("CONFLICT"));
    admin.post(&path, &json!({"name": "web-1"})).await.expect_detail(409, Some("CONFLICT"));
    admin.post(&path, &json!({"name": "Web 1"})).await.expect_fields(400, &["name"]);
    let named = admin.post(&path, &json!({"name": "web-2"})).await.expect(200);
    assert_eq!((&named["id"], &named["name"]), (&old["id"], &json!("web-2")));
    // The list has the names at the deletion.
    for server in [&old, &new] {
        admin.delete(&item_path(SERVERS, server)).await.expect(204);
    }
    admin.post(&undelete_path(&new), &json!({})).await.expect(200);
    assert_eq!(names(admin, DELETED).await, [json!("web-2")]);
    assert_eq!(names(admin, &format!("{DELETED}&name=web-1")).await, [] as [Value; 0]);
}

#[tokio::test]
async fn only_staff_see_and_undelete_deleted_servers() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let owner = Person::new(&workspace, "max").await;
    let body = json!({"owner": owner.id});
    workspace.admin.patch(&item_path(SERVERS, &server), &body).await.expect(200);
    owner.api.delete(&item_path(SERVERS, &server)).await.expect(204);
    owner.api.get(DELETED).await.expect_detail(403, Some("PERMISSION_DENIED"));
    let refused = owner.api.post(&undelete_path(&server), &json!({})).await;
    refused.expect_detail(403, Some("PERMISSION_DENIED"));
    workspace.admin.get("/api/servers/?deleted=maybe").await.expect_fields(400, &["deleted"]);
    for id in [UNKNOWN_UUID, "nonsense"] {
        let path = format!("{SERVERS}{id}/undelete/");
        workspace.admin.call("POST", &path).await.expect_detail(404, None);
    }
    let staff = workspace.staff("ann").await;
    assert_eq!(names(&staff, DELETED).await, [json!("web-1")]);
    let undeleted = staff.call("POST", &undelete_path(&server)).await.expect(200);
    assert_eq!(undeleted["owner"]["username"], "max");
    // A server that unregisters itself is kept, too.
    let agent = workspace.anonymous.with_authorization(&credential(&server));
    agent.delete(&format!("{SERVERS}-/unregister/")).await.expect(204);
    let listed = staff.get(DELETED).await.expect(200)["results"][0].clone();
    assert_eq!((&listed["name"], &listed["deleted_by"]), (&json!("web-1"), &Value::Null));
}

#[tokio::test]
async fn without_a_grace_period_nothing_is_kept() {
    let (instance, _state) = Instance::new_with(&[("SERVER_GRACE_DAYS", "0")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    workspace.admin.delete(&item_path(SERVERS, &server)).await.expect(204);
    assert!(names(&workspace.admin, DELETED).await.is_empty());
    workspace.admin.call("POST", &undelete_path(&server)).await.expect_detail(404, None);
}
