//! Commands that wait for their time or for their agent (contract 7.4 and 8).

use farhand_domain::time::Timestamp;
use farhand_tests::agents::{ScriptedAgent, wait_until_connected};
use farhand_tests::{Instance, Workspace, eventually};
use serde_json::{Value, json};

use super::commands::{PATH, assert_status, id_of, path_of, read, time_of, workspace_with_agent};

/// A command for `web-1` with additional fields.
fn body(line: &str, more: &Value) -> Value {
    let mut body = json!({"server": "web-1", "line": line});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The time some seconds from now. The service has the same clock.
fn in_seconds(seconds: i64) -> String {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp::from_millis(since_1970.as_millis() as u64).plus_seconds(seconds).to_string()
}

/// Waits until the list shows a command with a status. The list reads only D1, so the object is not
/// called.
async fn wait_for_listed_status(workspace: &Workspace, command: &Value, status: &str) -> Value {
    eventually(status, || async {
        let list = workspace.admin.get(PATH).await.expect(200);
        let item = list["results"]
            .as_array()
            .unwrap()
            .iter()
            .find(|item| item["id"] == command["id"])
            .cloned()
            .unwrap();
        (item["status"]["text"] == status).then_some(item)
    })
    .await
}

#[tokio::test]
async fn a_time_in_the_past_means_now() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let past = json!({"scheduled_at": "2020-01-01T00:00:00Z"});
    let made = workspace.admin.post(PATH, &body("id", &past)).await.expect(201);
    assert_status(&made, "Sent", "warning", false);
    assert_eq!(made["scheduled_at"], made["added_at"]);
    assert_eq!(agent.next_command().await["id"], made["id"]);
}

#[tokio::test]
async fn a_scheduled_command_is_delivered_at_its_time() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let scheduled_at = in_seconds(20);
    let fields = json!({"scheduled_at": scheduled_at, "env": {"COLOR": "blue"}, "timeout": 60});
    let made = workspace.admin.post(PATH, &body("id", &fields)).await.expect(201);
    assert_status(&made, "Scheduled", "secondary", true);
    assert_eq!(made["scheduled_at"], json!(scheduled_at));
    assert_eq!(time_of(&made, "expires_at").seconds_since(time_of(&made, "scheduled_at")), 3600.0);
    assert!(made["status"]["message"].as_str().unwrap().contains(&scheduled_at), "{made}");
    for field in ["delivered_at", "acked_at", "handled_at", "success"] {
        assert_eq!(made[field], json!(null), "{field}");
    }
    assert_eq!(read(&workspace, &made).await, made);
    // An immediate command does not wait for the scheduled one.
    let now = workspace.admin.post(PATH, &body("now", &json!({}))).await.expect(201);
    assert_eq!(agent.next_command().await["id"], now["id"]);

    let order = agent.next_command().await;
    assert_eq!((&order["id"], &order["env"]), (&made["id"], &json!({"COLOR": "blue"})));
    let sent = read(&workspace, &made).await;
    assert_status(&sent, "Sent", "warning", false);
    assert!(time_of(&sent, "delivered_at") >= time_of(&sent, "scheduled_at"));
    agent.fin(id_of(&made), 0, "done").await;
    assert_status(&read(&workspace, &made).await, "Success", "success", false);
}

#[tokio::test]
async fn only_the_agent_sees_the_environment() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let secret = farhand_tests::client::unique("secret-value");
    let env = json!({"env": {"TOKEN": secret, "EMPTY": ""}});
    let made = workspace.admin.post(PATH, &body("id", &env)).await;
    assert!(!made.text.contains(&secret) && !made.text.contains("\"env\""), "{}", made.text);
    let made = made.expect(201);
    assert_eq!(agent.next_command().await["env"], env["env"]);
    for path in [PATH.to_owned(), path_of(&made)] {
        let reply = workspace.admin.get(&path).await;
        assert!(!reply.text.contains(&secret) && !reply.text.contains("\"env\""), "{}", reply.text);
    }
    // An agent without the kill feature gets no timeout, because it does not know the field.
    let order = workspace.admin.post(PATH, &body("id", &json!({"timeout": 7}))).await.expect(201);
    assert_eq!(order["timeout"], 7);
    assert_eq!(agent.next_command().await.get("timeout"), None);
}

#[tokio::test]
async fn an_agent_with_the_kill_feature_gets_the_timeout() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect_with_kill(&workspace, &server).await;
    workspace.admin.post(PATH, &body("id", &json!({"timeout": 7}))).await.expect(201);
    assert_eq!(agent.next_command().await["timeout"], 7);
    workspace.admin.post(PATH, &body("id", &json!({}))).await.expect(201);
    assert_eq!(agent.next_command().await["timeout"], 1800);
}

#[tokio::test]
async fn a_queued_command_waits_for_its_agent() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut made = Vec::new();
    for number in 0..25 {
        let queued = body(
            &format!("echo {number}"),
            &json!({"on_offline": "queue", "env": {"N": number.to_string()}}),
        );
        made.push(workspace.admin.post(PATH, &queued).await.expect(201));
    }
    assert_status(&made[0], "Queued", "warning", true);
    assert_eq!(
        (&made[0]["delivered_at"], &made[0]["scheduled_at"]),
        (&json!(null), &made[0]["added_at"])
    );
    assert_eq!(read(&workspace, &made[0]).await, made[0]);
    // Without `on_offline`, the command is rejected and not stored.
    workspace
        .admin
        .post(PATH, &body("id", &json!({})))
        .await
        .expect_detail(503, Some("SERVER_NOT_CONNECTED"));
    assert_eq!(workspace.admin.get(PATH).await.expect(200)["count"], 25);

    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    for (number, command) in made.iter().enumerate() {
        let order = agent.next_command().await;
        assert_eq!(order["id"], command["id"], "commands are delivered in order");
        assert_eq!(order["env"], json!({"N": number.to_string()}));
    }
    assert!(agent.stays_silent().await);
    let sent = read(&workspace, &made[24]).await;
    assert_status(&sent, "Sent", "warning", false);
    assert!(time_of(&sent, "delivered_at") > time_of(&sent, "scheduled_at"));
    // With a connected agent, `on_offline` has no effect.
    let now =
        workspace.admin.post(PATH, &body("now", &json!({"on_offline": "queue"}))).await.expect(201);
    assert_status(&now, "Sent", "warning", false);
    assert_eq!(agent.next_command().await["id"], now["id"]);
    // A new connection delivers no command again.
    let mut again = ScriptedAgent::connect(&workspace, &server).await;
    assert!(again.stays_silent().await);
}

#[tokio::test]
async fn an_overdue_scheduled_command_waits_for_its_agent() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let fields = json!({"scheduled_at": in_seconds(5), "on_offline": "reject"});
    let made = workspace.admin.post(PATH, &body("id", &fields)).await.expect(201);
    assert_status(&made, "Scheduled", "secondary", true);
    let queued = wait_for_listed_status(&workspace, &made, "Queued").await;
    assert_status(&queued, "Queued", "warning", true);
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    assert_eq!(agent.next_command().await["id"], made["id"]);
}

#[tokio::test]
async fn an_undelivered_command_expires_without_requests() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let queued = json!({"on_offline": "queue", "expires_at": in_seconds(6)});
    let scheduled = json!({"scheduled_at": in_seconds(5), "expires_at": in_seconds(8)});
    let mut expired = Vec::new();
    for fields in [queued, scheduled] {
        let made = workspace.admin.post(PATH, &body("id", &fields)).await.expect(201);
        assert_eq!(made["expires_at"], fields["expires_at"]);
        expired.push(made);
    }
    for made in &expired {
        let seen = wait_for_listed_status(&workspace, made, "Expired").await;
        assert_status(&seen, "Expired", "danger", false);
        assert_eq!(
            (&seen["success"], &seen["delivered_at"], &seen["result"]),
            (&json!(false), &json!(null), &json!(null))
        );
        assert!(time_of(&seen, "handled_at") >= time_of(&seen, "expires_at"));
        assert_eq!(read(&workspace, made).await, seen);
        let cancel = format!("{}cancel/", path_of(made));
        workspace
            .admin
            .call("POST", &cancel)
            .await
            .expect_detail(409, Some("COMMAND_ALREADY_HANDLED"));
    }
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    assert!(agent.stays_silent().await);
}

#[tokio::test]
async fn waiting_commands_survive_a_crash() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let later = json!({"scheduled_at": in_seconds(20), "env": {"A": "b"}});
    let later = workspace.admin.post(PATH, &body("later", &later)).await.expect(201);
    let queued = workspace
        .admin
        .post(PATH, &body("queued", &json!({"on_offline": "queue"})))
        .await
        .expect(201);
    let short = json!({"on_offline": "queue", "expires_at": in_seconds(10)});
    let short = workspace.admin.post(PATH, &body("short", &short)).await.expect(201);
    instance.kill().await;

    let instance = Instance::restart(state.path()).await;
    let api = workspace.admin.with_url(&instance.url);
    let agent_api = workspace
        .anonymous
        .with_authorization(&farhand_tests::agents::credential(&server))
        .with_url(&instance.url);
    let status = async |command: &Value| {
        api.get(&path_of(command)).await.expect(200)["status"]["text"].clone()
    };
    eventually("the command to expire", || async {
        (status(&short).await == "Expired").then_some(())
    })
    .await;
    let mut agent = ScriptedAgent::connect_to(&agent_api, "/ws/servers/backhaul/").await;
    assert_eq!(agent.next_command().await["id"], queued["id"]);
    let order = agent.next_command().await;
    assert_eq!((&order["id"], &order["env"]), (&later["id"], &json!({"A": "b"})));
    assert!(agent.stays_silent().await);
    assert_eq!(api.get(PATH).await.expect(200)["count"], 3);
}

#[tokio::test]
async fn a_request_waits_for_a_queued_commands_result() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let queued = body("id", &json!({"on_offline": "queue"}));
    let waiting = {
        let api = workspace.admin.clone();
        let request = api.request("POST", PATH).header("Prefer", "wait=30").json(&queued);
        tokio::spawn(async move { api.send(request).await })
    };
    let made = eventually("the command", || async {
        let list = workspace.admin.get(PATH).await.expect(200);
        list["results"].as_array().unwrap().first().cloned()
    })
    .await;
    let path = format!("{}?wait=30", path_of(&made));
    let reading = {
        let api = workspace.admin.clone();
        tokio::spawn(async move { api.get(&path).await })
    };
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    wait_until_connected(&workspace, server["id"].as_str().unwrap(), true).await;
    agent.next_command().await;
    agent.fin(id_of(&made), 0, "done").await;
    let answer = waiting.await.unwrap().expect(201);
    assert_eq!((&answer["id"], &answer["result"]), (&made["id"], &json!("done")));
    assert_eq!(reading.await.unwrap().expect(200)["result"], "done");
}
