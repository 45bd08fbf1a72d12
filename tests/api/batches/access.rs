//! Who can read and stop a batch (contract 13.6 and 13.9), and tokens with an access control list
//! (contract 4.12 and 4.13).

use farhand_tests::client::{Api, Workspace};
use farhand_tests::people::{BATCHES, GROUPS, MEMBERSHIPS, Person, column, item_path};
use serde_json::{Value, json};

use super::{create, selected, servers, target_names, waiting};

/// The paths of a batch that can be read.
fn reads(batch: &Value) -> [String; 3] {
    ["", "targets/", "outputs/"].map(|part| format!("{}{part}", item_path(BATCHES, batch)))
}

/// Asserts that nothing of a batch can be read or changed.
async fn is_hidden_from(api: &Api, batch: &Value) {
    for path in reads(batch) {
        api.get(&path).await.expect_detail(404, None);
    }
    for action in ["cancel", "kill", "retry-failed"] {
        let path = format!("{}{action}/", item_path(BATCHES, batch));
        api.call("POST", &path).await.expect_detail(404, None);
    }
    let list = api.get(BATCHES).await.expect(200);
    assert!(!column(&list, "id").contains(&batch["id"]), "{list}");
}

#[tokio::test]
async fn the_requester_and_staff_see_a_batch() {
    let workspace = Workspace::new().await;
    let all = servers(&workspace, &["a"]).await;
    let (mia, tom) = (Person::new(&workspace, "mia").await, Person::new(&workspace, "tom").await);
    let group = json!({"name": "ops", "servers": [all[0]["id"]]});
    let group = workspace.admin.post(GROUPS, &group).await.expect(201);
    for person in [&mia, &tom] {
        let membership = json!({"group": group["id"], "user": person.id, "role": "manager"});
        workspace.admin.post(MEMBERSHIPS, &membership).await.expect(201);
    }
    let batch = create(&mia.api, json!({"all": true})).await.expect(201);
    let staff = workspace.staff("sam").await;
    for api in [&mia.api, &staff, &workspace.admin] {
        for path in reads(&batch) {
            api.get(&path).await.expect(200);
        }
        assert_eq!(column(&api.get(BATCHES).await.expect(200), "id"), [batch["id"].clone()]);
    }
    is_hidden_from(&tom.api, &batch).await;
    let other = Workspace::new().await;
    is_hidden_from(&other.admin, &batch).await;
    let read = staff.get(&item_path(BATCHES, &batch)).await.expect(200);
    assert_eq!((&read["state"], &read["stopped_by"]), (&json!("running"), &json!(null)));
}

#[tokio::test]
async fn targets_on_servers_without_access_are_left_out() {
    let workspace = Workspace::new().await;
    let all = servers(&workspace, &["a", "b", "c"]).await;
    let mia = Person::new(&workspace, "mia").await;
    let ids: Vec<&Value> = all.iter().map(|server| &server["id"]).collect();
    let group = json!({"name": "ops", "servers": ids});
    let group = workspace.admin.post(GROUPS, &group).await.expect(201);
    let membership = json!({"group": group["id"], "user": mia.id, "role": "member"});
    workspace.admin.post(MEMBERSHIPS, &membership).await.expect(201);
    let batch = create(&mia.api, json!({"all": true})).await.expect(201);
    assert_eq!(target_names(&mia.api, &batch).await, ["a", "b", "c"]);
    let group_path = format!("{GROUPS}{}/", group["id"]);
    workspace.admin.patch(&group_path, &json!({"servers": [ids[1]]})).await.expect(200);
    assert_eq!(target_names(&mia.api, &batch).await, ["b"]);
    assert_eq!(target_names(&workspace.admin, &batch).await, ["a", "b", "c"]);
    // The batch itself stays readable, with the counts of all targets.
    let read = mia.api.get(&item_path(BATCHES, &batch)).await.expect(200);
    assert_eq!(read["counts"]["total"], 3);
    workspace.admin.patch(&group_path, &json!({"servers": []})).await.expect(200);
    assert_eq!(target_names(&mia.api, &batch).await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_limited_token_creates_only_what_its_list_allows() {
    let workspace = Workspace::new().await;
    let all = servers(&workspace, &["a", "b", "c"]).await;
    for (server, env) in [(0, "prod"), (1, "test")] {
        let path = item_path("/api/servers/servers/", &all[server]);
        workspace.admin.patch(&path, &json!({"labels": {"env": env}})).await.expect(200);
    }
    let everything = json!({"all": true});
    let refused = async |acl: Value, more: Value| {
        let token = workspace.limited(&acl).await;
        let mut body = waiting(everything.clone());
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = token.post(BATCHES, &body).await;
        reply.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
        reply.json()["detail"].as_str().unwrap().to_owned()
    };
    for (acl, more, limit) in [
        (json!({"commands": ["ls *"]}), json!({}), "commands"),
        (json!({"commands": ["id"]}), json!({"env": {}}), "env"),
        (json!({"argv": [["id"]]}), json!({}), "commands"),
        (json!({"usernames": ["deploy"]}), json!({}), "usernames"),
        (json!({"max_targets": 2}), json!({}), "max_targets"),
    ] {
        let detail = refused(acl, more).await;
        assert!(detail.contains(limit), "{limit}: {detail}");
    }
    workspace
        .limited(&json!({"read_only": true}))
        .await
        .post(BATCHES, &waiting(everything.clone()))
        .await
        .expect(403);
    workspace
        .limited(&json!({"networks": ["192.0.2.0/24"]}))
        .await
        .post(BATCHES, &waiting(everything.clone()))
        .await
        .expect(403);
    // Selections are limited to the servers of the list.
    let of = async |acl: Value| selected(&workspace.limited(&acl).await, everything.clone()).await;
    assert_eq!(of(json!({"servers": [all[0]["id"], all[2]["id"]]})).await, ["a", "c"]);
    assert_eq!(of(json!({"selector": "env=prod"})).await, ["a"]);
    assert_eq!(of(json!({"max_targets": 3})).await, ["a", "b", "c"]);
    let token = workspace.limited(&json!({"servers": [all[0]["id"]]})).await;
    create(&token, json!({"servers": ["a", "b"]})).await.expect_fields(400, &["servers"]);
    create(&token, json!({"servers": ["a"]})).await.expect(201);
}

#[tokio::test]
async fn a_limited_token_reads_and_stops_only_batches_that_its_list_allows() {
    let workspace = Workspace::new().await;
    let all = servers(&workspace, &["a", "b"]).await;
    let admin = &workspace.admin;
    let batch = async |line: &str, username: Value, servers: &[&str]| {
        let mut body = waiting(json!({"servers": servers}));
        (body["line"], body["username"]) = (json!(line), username);
        admin.post(BATCHES, &body).await.expect(201)
    };
    let id = batch("id", json!("deploy"), &["a", "b"]).await;
    let ls = batch("ls", json!("deploy"), &["a"]).await;
    let root = batch("id", json!("root"), &["a"]).await;
    let default = batch("id", json!(null), &["b"]).await;
    let sees = async |acl: Value| {
        let token = workspace.limited(&acl).await;
        let list = token.get(BATCHES).await.expect(200);
        let mut seen = Vec::new();
        for (name, batch) in [("id", &id), ("ls", &ls), ("root", &root), ("default", &default)] {
            let is_listed = column(&list, "id").contains(&batch["id"]);
            let status = token.get(&item_path(BATCHES, batch)).await.status;
            assert_eq!(is_listed, status == 200, "{acl} {name}");
            if is_listed {
                seen.push(name);
            }
        }
        assert_eq!(list["count"], seen.len());
        seen
    };
    assert_eq!(sees(json!({})).await, ["id", "ls", "root", "default"]);
    assert_eq!(sees(json!({"commands": ["id"]})).await, ["id", "root", "default"]);
    assert_eq!(
        sees(json!({"commands": ["id"], "read_all": true})).await,
        ["id", "ls", "root", "default"]
    );
    assert_eq!(sees(json!({"argv": [["id"]]})).await, [""; 0]);
    assert_eq!(sees(json!({"usernames": ["deploy"]})).await, ["id", "ls"]);
    assert_eq!(sees(json!({"servers": [all[1]["id"]]})).await, ["id", "default"]);
    assert_eq!(sees(json!({"servers": []})).await, [""; 0]);
    // A token on one of two servers sees one target, and cannot stop the batch.
    let token = workspace.limited(&json!({"servers": [all[1]["id"]]})).await;
    assert_eq!(target_names(&token, &id).await, ["b"]);
    let cancel = |batch: &Value| format!("{}cancel/", item_path(BATCHES, batch));
    let denied = Some("API_TOKEN_ACL_NOT_ALLOWED");
    token.call("POST", &cancel(&id)).await.expect_detail(403, denied);
    token.call("POST", &cancel(&ls)).await.expect_detail(404, None);
    token.call("POST", &cancel(&default)).await.expect(200);
    let reads_all = workspace.limited(&json!({"commands": ["id"], "read_all": true})).await;
    reads_all.call("POST", &cancel(&ls)).await.expect_detail(403, denied);
    let read_only = workspace.limited(&json!({"read_only": true})).await;
    read_only.call("POST", &cancel(&ls)).await.expect_detail(403, denied);
    // A token reads a batch without username only if it created the batch.
    let accounts = workspace.limited(&json!({"usernames": ["boss"]})).await;
    let own = create(&accounts, json!({"servers": ["a"]})).await.expect(201);
    assert_eq!(column(&accounts.get(BATCHES).await.expect(200), "id"), [own["id"].clone()]);
    assert_eq!(target_names(&accounts, &own).await, ["a"]);
}
