//! The targets of a batch (contract 13.7), and retries (contract 13.10).

use farhand_tests::agents::{ScriptedAgent, wait_until_connected};
use farhand_tests::client::{Api, Workspace};
use farhand_tests::people::{BATCHES, COMMANDS, GROUPS, MEMBERSHIPS, Person, column, item_path};
use farhand_tests::{eventually, far_ahead};
use serde_json::{Value, json};

use super::{create, servers, target_names, waiting};

/// Waits until a batch has ended, and returns it.
pub async fn wait_until_finished(api: &Api, batch: &Value) -> Value {
    let path = item_path(BATCHES, batch);
    eventually("the end of the batch", || async {
        Some(api.get(&path).await.expect(200)).filter(|batch| batch["finished_at"].is_string())
    })
    .await
}

/// Connects an agent to each server.
pub async fn connect_all(workspace: &Workspace, servers: &[Value]) -> Vec<ScriptedAgent> {
    let mut agents = Vec::new();
    for server in servers {
        agents.push(ScriptedAgent::connect(workspace, server).await);
        wait_until_connected(workspace, server["id"].as_str().unwrap(), true).await;
    }
    agents
}

/// Runs the next command of an agent to its end.
pub async fn run_next(agent: &mut ScriptedAgent, code: i32, result: &str) -> String {
    let id = agent.next_command().await["id"].as_str().unwrap().to_owned();
    agent.ack(&id).await;
    agent.fin(&id, code, result).await;
    id
}

#[tokio::test]
async fn targets_show_their_commands() {
    let workspace = Workspace::new().await;
    let all = servers(&workspace, &["a", "b", "c"]).await;
    let mut agents = connect_all(&workspace, &all[..2]).await;
    let body = json!({"targets": {"all": true}, "line": "id"});
    let batch = workspace.admin.post(BATCHES, &body).await.expect(201);
    let one = run_next(&mut agents[0], 0, "uid=0").await;
    let other = run_next(&mut agents[1], 3, "no").await;
    let batch = wait_until_finished(&workspace.admin, &batch).await;
    assert_eq!(batch["state"], "finished");
    let counts = &batch["counts"];
    for (state, number) in
        [("total", 3), ("success", 1), ("failed", 1), ("skipped", 1), ("pending", 0)]
    {
        assert_eq!(counts[state], number, "{state}: {counts}");
    }
    let path = format!("{}targets/", item_path(BATCHES, &batch));
    let list = workspace.admin.get(&path).await.expect(200);
    assert_eq!(column(&list, "server_name"), ["a", "b", "c"]);
    assert_eq!(column(&list, "state"), ["success", "failed", "skipped"]);
    assert_eq!(column(&list, "command"), [json!(one), json!(other), json!(null)]);
    assert_eq!(column(&list, "exit_code"), [json!(0), json!(3), json!(null)]);
    assert_eq!(list["results"][0]["elapsed_time"], 0.25);
    assert!(list["results"][0]["started_at"].is_string(), "{list}");
    assert!(list["results"][0]["handled_at"].is_string(), "{list}");
    assert_eq!(list["results"][0]["reason"], json!(null));
    assert!(list["results"][2]["reason"].is_string(), "{list}");
    // Filters and pages.
    let filtered = workspace.admin.get(&format!("{path}?state=failed,skipped")).await.expect(200);
    assert_eq!(column(&filtered, "server_name"), ["b", "c"]);
    let page = workspace.admin.get(&format!("{path}?page_size=2&page=2")).await.expect(200);
    assert_eq!((&page["count"], column(&page, "server_name")), (&json!(3), vec![json!("c")]));
    let empty = workspace.admin.get(&format!("{path}?state=stuck")).await.expect(200);
    assert_eq!(empty["count"], 0);
    workspace.admin.get(&format!("{path}?state=acked")).await.expect_fields(400, &["state"]);
    workspace.admin.get(&format!("{path}?page=9")).await.expect_detail(404, None);
    // The commands are ordinary commands with the batch's id.
    let commands =
        workspace.admin.get(&format!("{COMMANDS}?batch={}", batch["id"].as_str().unwrap())).await;
    let commands = commands.expect(200);
    assert_eq!(commands["count"], 2);
    assert!(column(&commands, "batch").iter().all(|id| *id == batch["id"]), "{commands}");
    let command = workspace.admin.get(&format!("{COMMANDS}{one}/")).await.expect(200);
    assert_eq!((&command["batch"], &command["line"]), (&batch["id"], &json!("id")));
    let events = workspace.admin.get(&format!("/api/audit/events/?object={one}")).await.expect(200);
    assert!(column(&events, "action").contains(&json!("command.create")), "{events}");
    let other = json!({"server": "c", "line": "id", "on_offline": "queue"});
    let other = workspace.admin.post(COMMANDS, &other).await.expect(201);
    assert_eq!(other["batch"], json!(null));
}

#[tokio::test]
async fn each_batch_has_its_own_targets_and_outputs() {
    let workspace = Workspace::new().await;
    servers(&workspace, &["a", "b"]).await;
    for name in ["a", "b"] {
        let body = json!({"targets": {"servers": [name]}, "line": "id"});
        let batch = workspace.admin.post(BATCHES, &body).await.expect(201);
        wait_until_finished(&workspace.admin, &batch).await;
        let part = |part: &str| format!("{}{part}/", item_path(BATCHES, &batch));
        let targets = workspace.admin.get(&part("targets")).await.expect(200);
        assert_eq!(column(&targets, "server_name"), [name]);
        let outputs = workspace.admin.get(&part("outputs")).await.expect(200);
        assert_eq!(outputs["results"][0]["targets"][0]["server_name"], name);
    }
}

#[tokio::test]
async fn a_retry_repeats_the_targets_without_success() {
    let workspace = Workspace::new().await;
    let all = servers(&workspace, &["a", "b", "c", "d"]).await;
    let mut agents = connect_all(&workspace, &all[..2]).await;
    let mut body = json!({"targets": {"all": true}, "line": "id", "username": "deploy", "name": "one", "max_errors": 3});
    let batch = workspace.admin.post(BATCHES, &body).await.expect(201);
    let retry = |batch: &Value| format!("{}retry-failed/", item_path(BATCHES, batch));
    workspace.admin.call("POST", &retry(&batch)).await.expect_detail(409, Some("BATCH_NOT_ENDED"));
    run_next(&mut agents[0], 0, "ok").await;
    run_next(&mut agents[1], 1, "no").await;
    wait_until_finished(&workspace.admin, &batch).await;
    // A deleted server cannot be repeated.
    workspace.admin.delete(&item_path("/api/servers/servers/", &all[3])).await.expect(204);
    let staff = workspace.staff("sam").await;
    let reply = staff.call("POST", &retry(&batch)).await;
    let repeated = reply.expect(201);
    assert!(reply.header("Location").ends_with(&item_path(BATCHES, &repeated)));
    assert_eq!((&repeated["retry_of"], &repeated["name"]), (&batch["id"], &json!("one")));
    assert_eq!((&repeated["line"], &repeated["username"]), (&json!("id"), &json!("deploy")));
    assert_eq!(
        (&repeated["max_errors"], &repeated["requested_by"]["username"]),
        (&json!(3), &json!("sam"))
    );
    assert_eq!(target_names(&staff, &repeated).await, ["b", "c"]);
    run_next(&mut agents[1], 0, "ok").await;
    let repeated = wait_until_finished(&staff, &repeated).await;
    assert_eq!(
        (&repeated["counts"]["success"], &repeated["counts"]["skipped"]),
        (&json!(1), &json!(1))
    );
    let events = workspace
        .admin
        .get("/api/audit/events/?action=batch.retry&outcome=success")
        .await
        .expect(200);
    assert_eq!(events["results"][0]["details"]["retry_of"], batch["id"]);
    // Nothing is left.
    body["targets"] = json!({"servers": ["a"]});
    let good = workspace.admin.post(BATCHES, &body).await.expect(201);
    run_next(&mut agents[0], 0, "ok").await;
    wait_until_finished(&workspace.admin, &good).await;
    workspace.admin.call("POST", &retry(&good)).await.expect_fields(400, &["non_field_errors"]);
    workspace.admin.post(&retry(&good), &json!({"name": "x"})).await.expect_fields(400, &["name"]);
}

#[tokio::test]
async fn retries_need_the_permission_and_the_inputs() {
    let workspace = Workspace::new().await;
    let all = servers(&workspace, &["a"]).await;
    let mia = Person::new(&workspace, "mia").await;
    let group = json!({"name": "ops", "servers": [all[0]["id"]]});
    let group = workspace.admin.post(GROUPS, &group).await.expect(201);
    let membership = json!({"group": group["id"], "user": mia.id, "role": "manager"});
    let membership = workspace.admin.post(MEMBERSHIPS, &membership).await.expect(201);
    let retry = |batch: &Value| format!("{}retry-failed/", item_path(BATCHES, batch));
    let body = json!({"targets": {"all": true}, "line": "id", "username": "root"});
    let batch = mia.api.post(BATCHES, &body).await.expect(201);
    wait_until_finished(&mia.api, &batch).await;
    let role = json!({"role": "member"});
    workspace.admin.patch(&item_path(MEMBERSHIPS, &membership), &role).await.expect(200);
    mia.api.call("POST", &retry(&batch)).await.expect_detail(403, None);
    let mut with_input = json!({"targets": {"all": true}, "line": "id", "stdin": "x"});
    let batch = workspace.admin.post(BATCHES, &with_input).await.expect(201);
    wait_until_finished(&workspace.admin, &batch).await;
    workspace.admin.call("POST", &retry(&batch)).await.expect_detail(409, Some("INPUTS_DELETED"));
    // A limited token repeats only what its list allows.
    with_input.as_object_mut().unwrap().remove("stdin");
    let batch = workspace.admin.post(BATCHES, &with_input).await.expect(201);
    wait_until_finished(&workspace.admin, &batch).await;
    let token = workspace.limited(&json!({"commands": ["ls"], "read_all": true})).await;
    token.call("POST", &retry(&batch)).await.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
    let token = workspace.limited(&json!({"commands": ["id"]})).await;
    token.call("POST", &retry(&batch)).await.expect(201);
}

#[tokio::test]
async fn concurrent_retries_with_one_key_create_one_batch() {
    let workspace = Workspace::new().await;
    servers(&workspace, &["a"]).await;
    let body = json!({"targets": {"all": true}, "line": "id"});
    let mut ended = Vec::new();
    for _ in 0..2 {
        let batch = workspace.admin.post(BATCHES, &body).await.expect(201);
        ended.push(wait_until_finished(&workspace.admin, &batch).await);
    }
    let retry = async |batch: &Value| {
        let path = format!("{}retry-failed/", item_path(BATCHES, batch));
        let request = workspace.admin.request("POST", &path).header("Idempotency-Key", "again");
        workspace.admin.send(request).await
    };
    let (one, other) = tokio::join!(retry(&ended[0]), retry(&ended[0]));
    assert_eq!(one.expect(201)["id"], other.expect(201)["id"]);
    assert_eq!(workspace.admin.get(BATCHES).await.expect(200)["count"], 3);
    // The same key does not repeat another batch.
    retry(&ended[1]).await.expect_detail(422, Some("IDEMPOTENCY_KEY_REUSED"));
}

#[tokio::test]
async fn cancelled_batches_answer_conflicts() {
    let workspace = Workspace::new().await;
    servers(&workspace, &["a"]).await;
    let path = |batch: &Value, action: &str| format!("{}{action}/", item_path(BATCHES, batch));
    for (action, status) in [("cancel", 200), ("kill", 202)] {
        let mut body = waiting(json!({"all": true}));
        body["scheduled_at"] = json!(far_ahead());
        let scheduled = workspace.admin.post(BATCHES, &body).await.expect(201);
        let open = create(&workspace.admin, json!({"all": true})).await.expect(201);
        for batch in [&scheduled, &open] {
            workspace
                .admin
                .post(&path(batch, action), &json!({"force": true}))
                .await
                .expect_fields(400, &["force"]);
            let stopped = workspace.admin.call("POST", &path(batch, action)).await.expect(status);
            assert_eq!(stopped["stopped_by"], "cancel");
            let ended = wait_until_finished(&workspace.admin, batch).await;
            assert_eq!(
                (&ended["state"], &ended["counts"]["cancelled"]),
                (&json!("cancelled"), &json!(1))
            );
            for again in ["cancel", "kill"] {
                let refused = workspace.admin.call("POST", &path(batch, again)).await;
                refused.expect_detail(409, Some("BATCH_ALREADY_ENDED"));
            }
            let id = batch["id"].as_str().unwrap();
            let events =
                workspace.admin.get(&format!("/api/audit/events/?object={id}")).await.expect(200);
            assert!(
                column(&events, "action").contains(&json!(format!("batch.{action}"))),
                "{events}"
            );
        }
    }
}
