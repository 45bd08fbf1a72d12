//! Commands that wait: for their time, or for their agent (contract 7.4 and 8).

use farhand_domain::time::Timestamp;
use farhand_tests::agents::{ScriptedAgent, wait_until_connected};
use farhand_tests::{Instance, Workspace, eventually};
use serde_json::{Value, json};

use super::commands::{PATH, has_status, id_of, moment, path_of, read, workspace_with_agent};

/// A command of `web-1` with further fields.
fn body(line: &str, more: &Value) -> Value {
    let mut body = json!({"server": "web-1", "line": line});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A moment that many seconds from now, by this machine's clock, which is the service's too.
fn in_seconds(seconds: i64) -> String {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp::from_millis(since_1970.as_millis() as u64).plus_seconds(seconds).to_string()
}

/// What the list tells of a command once it has a status. The list is read from D1 alone, and wakes
/// nobody.
async fn listed(workspace: &Workspace, command: &Value, status: &str) -> Value {
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
async fn a_past_time_means_now() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let past = json!({"scheduled_at": "2020-01-01T00:00:00Z"});
    let made = workspace.admin.post(PATH, &body("id", &past)).await.expect(201);
    has_status(&made, "Sent", "warning", false);
    assert_eq!(made["scheduled_at"], made["added_at"]);
    assert_eq!(agent.next_command().await["id"], made["id"]);
}

#[tokio::test]
async fn a_scheduled_command_goes_out_when_its_time_has_come() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let scheduled_at = in_seconds(20);
    let fields = json!({"scheduled_at": scheduled_at, "env": {"COLOR": "blue"}, "timeout": 60});
    let made = workspace.admin.post(PATH, &body("id", &fields)).await.expect(201);
    has_status(&made, "Scheduled", "secondary", true);
    assert_eq!(made["scheduled_at"], json!(scheduled_at));
    assert_eq!(moment(&made, "expires_at").seconds_since(moment(&made, "scheduled_at")), 3600.0);
    assert!(made["status"]["message"].as_str().unwrap().contains(&scheduled_at), "{made}");
    for field in ["delivered_at", "acked_at", "handled_at", "success"] {
        assert_eq!(made[field], json!(null), "{field}");
    }
    assert_eq!(read(&workspace, &made).await, made);
    // What is immediate does not wait for it.
    let now = workspace.admin.post(PATH, &body("now", &json!({}))).await.expect(201);
    assert_eq!(agent.next_command().await["id"], now["id"]);

    let order = agent.next_command().await;
    assert_eq!((&order["id"], &order["env"]), (&made["id"], &json!({"COLOR": "blue"})));
    let sent = read(&workspace, &made).await;
    has_status(&sent, "Sent", "warning", false);
    assert!(moment(&sent, "delivered_at") >= moment(&sent, "scheduled_at"));
    agent.fin(id_of(&made), 0, "done").await;
    has_status(&read(&workspace, &made).await, "Success", "success", false);
}

#[tokio::test]
async fn an_environment_is_for_the_agent_alone() {
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
    // Agents that cannot kill are not told of a timeout: they would not know the field.
    let order = workspace.admin.post(PATH, &body("id", &json!({"timeout": 7}))).await.expect(201);
    assert_eq!(order["timeout"], 7);
    assert_eq!(agent.next_command().await.get("timeout"), None);
}

#[tokio::test]
async fn an_agent_that_kills_is_told_of_the_timeout() {
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
    has_status(&made[0], "Queued", "warning", true);
    assert_eq!(
        (&made[0]["delivered_at"], &made[0]["scheduled_at"]),
        (&json!(null), &made[0]["added_at"])
    );
    assert_eq!(read(&workspace, &made[0]).await, made[0]);
    // What rejects is rejected still, and stores nothing.
    workspace
        .admin
        .post(PATH, &body("id", &json!({})))
        .await
        .expect_detail(503, Some("SERVER_NOT_CONNECTED"));
    assert_eq!(workspace.admin.get(PATH).await.expect(200)["count"], 25);

    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    for (number, command) in made.iter().enumerate() {
        let order = agent.next_command().await;
        assert_eq!(order["id"], command["id"], "in their order");
        assert_eq!(order["env"], json!({"N": number.to_string()}));
    }
    assert!(agent.stays_silent().await);
    let sent = read(&workspace, &made[24]).await;
    has_status(&sent, "Sent", "warning", false);
    assert!(moment(&sent, "delivered_at") > moment(&sent, "scheduled_at"));
    // With the agent there, queueing changes nothing.
    let now =
        workspace.admin.post(PATH, &body("now", &json!({"on_offline": "queue"}))).await.expect(201);
    has_status(&now, "Sent", "warning", false);
    assert_eq!(agent.next_command().await["id"], now["id"]);
    // A connection that is renewed brings nothing again.
    let mut again = ScriptedAgent::connect(&workspace, &server).await;
    assert!(again.stays_silent().await);
}

#[tokio::test]
async fn a_scheduled_command_waits_for_its_agent_whatever_on_offline_says() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let fields = json!({"scheduled_at": in_seconds(5), "on_offline": "reject"});
    let made = workspace.admin.post(PATH, &body("id", &fields)).await.expect(201);
    has_status(&made, "Scheduled", "secondary", true);
    let queued = listed(&workspace, &made, "Queued").await;
    has_status(&queued, "Queued", "warning", true);
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    assert_eq!(agent.next_command().await["id"], made["id"]);
}

#[tokio::test]
async fn what_is_not_delivered_in_time_expires_with_nobody_looking() {
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
        let seen = listed(&workspace, made, "Expired").await;
        has_status(&seen, "Expired", "danger", false);
        assert_eq!(
            (&seen["success"], &seen["delivered_at"], &seen["result"]),
            (&json!(false), &json!(null), &json!(null))
        );
        assert!(moment(&seen, "handled_at") >= moment(&seen, "expires_at"));
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
async fn what_waits_survives_a_killed_service_and_goes_out_by_itself() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
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
    let api = workspace.admin.on(&instance.url);
    let agent_api =
        workspace.anonymous.with(&farhand_tests::agents::credential(&server)).on(&instance.url);
    let status = async |command: &Value| {
        api.get(&path_of(command)).await.expect(200)["status"]["text"].clone()
    };
    eventually("what expired meanwhile", || async {
        (status(&short).await == "Expired").then_some(())
    })
    .await;
    let mut agent = ScriptedAgent::over(&agent_api, "/ws/servers/backhaul/").await;
    assert_eq!(agent.next_command().await["id"], queued["id"]);
    let order = agent.next_command().await;
    assert_eq!((&order["id"], &order["env"]), (&later["id"], &json!({"A": "b"})));
    assert!(agent.stays_silent().await);
    assert_eq!(api.get(PATH).await.expect(200)["count"], 3);
}

#[tokio::test]
async fn waiting_for_a_queued_command_ends_with_its_result() {
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
