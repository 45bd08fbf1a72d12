//! A schedule selects servers by their ids, also if its request has names (contract 14.2).

use farhand_tests::Workspace;
use farhand_tests::people::{Person, SERVERS, column, item_path};
use serde_json::{Value, json};

use super::{BATCHES, create, patch, read};

/// Starts a run on request, and returns the ids of its targets.
async fn run(api: &farhand_tests::Api, schedule: &Value) -> Vec<Value> {
    let path = format!("{}run/", item_path(super::SCHEDULES, schedule));
    let batch = api.call("POST", &path).await.expect(201);
    let targets = format!("{}targets/", item_path(BATCHES, &batch));
    column(&api.get(&targets).await.expect(200), "server")
}

/// Without ids, a plain user could rename an own server, and get the commands of staff.
#[tokio::test]
async fn another_server_with_the_name_is_never_a_target() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    let mia = Person::new(&workspace, "mia").await;
    let (database, own) = (workspace.server("db-1").await, workspace.server("mia-box").await);
    let (path, own_path) = (item_path(SERVERS, &database), item_path(SERVERS, &own));
    workspace.admin.patch(&own_path, &json!({"owner": mia.id})).await.expect(200);
    let targets = json!({"servers": ["db-1"]});
    let made = create(&session, json!({"targets": targets, "env": {"PGPASSWORD": "x"}})).await;
    let changed = create(&session, json!({"targets": {"all": true}})).await;
    let changed = patch(&session, &changed, json!({"targets": targets})).await;
    let servers =
        async |schedule: &Value| read(&session, schedule).await["targets"]["servers"].clone();
    assert_eq!(
        (&made["targets"]["servers"], run(&session, &made).await),
        (&json!(["db-1"]), vec![database["id"].clone()])
    );

    workspace.admin.patch(&path, &json!({"name": "db-old"})).await.expect(200);
    mia.api.patch(&own_path, &json!({"name": "db-1"})).await.expect(200);
    for schedule in [&made, &changed] {
        assert_eq!(run(&session, schedule).await, [database["id"].clone()]);
        assert_eq!(servers(schedule).await, json!(["db-old"]), "a response has the current name");
    }

    workspace.admin.delete(&path).await.expect(204);
    for schedule in [&made, &changed] {
        let path = format!("{}run/", item_path(super::SCHEDULES, schedule));
        session.call("POST", &path).await.expect_fields(400, &["servers"]);
        assert_eq!(servers(schedule).await, json!([database["id"]]), "a deleted server has its id");
    }
    assert_eq!(workspace.admin.get(BATCHES).await.expect(200)["count"], 3);
}

#[tokio::test]
async fn a_response_is_a_request_for_the_same_schedule() {
    let workspace = Workspace::new().await;
    let (alice, carol) =
        (Person::new(&workspace, "alice").await, Person::staff(&workspace, "carol").await);
    let servers = [workspace.server("a").await, workspace.server("b").await];
    let group = workspace.group("ops", &[&servers[0], &servers[1]]).await;
    workspace.add_member(&group, &alice, "manager").await;
    // Each server is stored once.
    let targets = json!({"servers": ["b", servers[0]["id"], "a"]});
    let made = create(&alice.api, json!({"targets": targets})).await;
    assert_eq!(made["targets"]["servers"], json!(["b", "a"]));
    let path = item_path(super::SCHEDULES, &made);
    let mut renamed = made.clone();
    renamed["name"] = json!("renamed");
    let changed = carol.api.put(&path, &renamed).await.expect(200);
    assert_eq!((&changed["name"], &changed["targets"]), (&json!("renamed"), &made["targets"]));
    assert_eq!(changed["owner"]["username"], "alice", "the names select the stored servers");
    // The owner does not learn the new name of a server without access.
    workspace
        .admin
        .patch(&item_path(SERVERS, &servers[1]), &json!({"owner": null, "name": "secret"}))
        .await
        .expect(200);
    let membership = workspace.membership(&group, &alice).await.unwrap();
    workspace.admin.delete(&item_path("/api/iam/memberships/", &membership)).await.expect(204);
    let ids = json!([servers[1]["id"], servers[0]["id"]]);
    assert_eq!(read(&alice.api, &made).await["targets"]["servers"], ids);
    assert_eq!(read(&carol.api, &made).await["targets"]["servers"], json!(["secret", "a"]));
}
