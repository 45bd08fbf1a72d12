//! Commands that run scripts, with agents whose every step the test decides (contract 14.12 and
//! 14.13).

use farhand_domain::agent::wire::Script;
use farhand_domain::command::script::carrier::{MAX_CARRIED_BODY, carrier_line};
use farhand_tests::agents::wait_until_connected;
use farhand_tests::commands::{wait_for_status, wait_until_ended};
use farhand_tests::{Instance, ScriptedAgent, Workspace};
use serde_json::{Value, json};

use super::{COMMANDS, SCRIPTS, call, id_of, path_of, script};

const ALL: &str = "kill, replay, argv, script, stdin, cwd";

#[tokio::test]
async fn an_agent_with_the_feature_gets_the_script() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect_with_features(&workspace, &server, ALL).await;
    let params = json!([
        {"name": "TEXT", "type": "string", "required": true},
        {"name": "DEPTH", "type": "integer", "default": 2},
        {"name": "FORCE", "type": "boolean"},
    ]);
    let body = "echo '$PARAM_TEXT' \"é\"\r\n# ' \" \\ `id`\n";
    let more = json!({"params": params, "interpreter": "/bin/sh -eu"});
    let made = script(&workspace, body, more).await;
    let hostile = "'; touch /tmp/owned; $(id) `id`\n\"\\";
    let request =
        call(&made, json!({"params": {"TEXT": hostile, "FORCE": true}, "env": {"B": "c"}}));
    let command = workspace.admin.post(COMMANDS, &request).await.expect(201);
    let label = format!("script:{}@1", made["name"].as_str().unwrap());
    assert_eq!((&command["line"], &command["shell"]), (&json!(label), &json!("system")));
    for hidden in ["script", "params", "env", "body"] {
        assert!(command.get(hidden).is_none(), "{hidden}");
    }
    let order = agent.next_command().await;
    let sent = json!({"interpreter": "/bin/sh -eu", "body": body, "sha256": made["sha256"]});
    assert_eq!((&order["id"], &order["script"]), (&command["id"], &sent));
    let env = json!({"B": "c", "PARAM_TEXT": hostile, "PARAM_DEPTH": "2", "PARAM_FORCE": "true"});
    assert_eq!((&order["env"], &order["line"]), (&env, &json!(label)));
    agent.fin(id_of(&command), 0, "ok").await;
    let done = wait_until_ended(&workspace.admin, id_of(&command)).await;
    assert_eq!((&done["line"], &done["success"]), (&json!(label), &json!(true)));
    // The search finds the label. Without parameters an order has no environment.
    let found = workspace.admin.get(&format!("{COMMANDS}?search=script:")).await.expect(200);
    assert_eq!(found["count"], 1);
    let plain = script(&workspace, "id", json!({})).await;
    workspace.admin.post(COMMANDS, &call(&plain, json!({}))).await.expect(201);
    assert_eq!(agent.next_command().await["env"], Value::Null);
}

#[tokio::test]
async fn an_agent_without_the_feature_gets_a_line() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect_with_kill(&workspace, &server).await;
    // The name is a label. No shell may read it.
    let body = "'; touch /tmp/owned; '".repeat(MAX_CARRIED_BODY / 22);
    let more =
        json!({"name": "a; touch /tmp/owned #", "params": [{"name": "A", "type": "string"}]});
    let made = script(&workspace, &body, more).await;
    let request = call(&made, json!({"params": {"A": "$(id)"}}));
    let command = workspace.admin.post(COMMANDS, &request).await.expect(201);
    assert_eq!(command["line"], "script:a; touch /tmp/owned #@1");
    let order = agent.next_command().await;
    let carried =
        carrier_line(&Script { interpreter: "/bin/sh".into(), body, sha256: String::new() });
    assert!(order["line"] == json!(carried), "another line was sent");
    assert_eq!((&order["allow_sh"], &order["env"]), (&json!(true), &json!({"PARAM_A": "$(id)"})));
    assert!(order.get("script").is_none());
    agent.fin(id_of(&command), 0, "ok").await;
    // A longer body does not fit.
    let long = script(&workspace, &"x".repeat(MAX_CARRIED_BODY + 1), json!({})).await;
    for more in [
        json!({}),
        json!({"on_offline": "queue"}),
        json!({"scheduled_at": farhand_tests::far_ahead()}),
    ] {
        let refused = workspace.admin.post(COMMANDS, &call(&long, more)).await;
        let errors = refused.expect_fields(400, &["script"]);
        assert!(errors["script"][0].as_str().unwrap().contains("92160 bytes"), "{errors}");
    }
    assert_eq!(workspace.admin.get(COMMANDS).await.expect(200)["count"], 1);
    assert!(agent.stays_silent().await);
    // If it was accepted while no agent was connected, it fails at delivery.
    agent.close().await;
    wait_until_connected(&workspace, id_of(&server), false).await;
    let queued = call(&long, json!({"on_offline": "queue"}));
    let command = workspace.admin.post(COMMANDS, &queued).await.expect(201);
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let done = wait_for_status(&workspace.admin, id_of(&command), "Failed").await;
    assert!(done["status"]["message"].as_str().unwrap().contains("92160 bytes"), "{done}");
    assert_eq!(done["delivered_at"], Value::Null);
    assert!(agent.stays_silent().await);
}

#[tokio::test]
async fn a_waiting_command_runs_the_version_of_its_creation() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let made =
        script(&workspace, "echo 1", json!({"params": [{"name": "A", "type": "integer"}]})).await;
    let queue = async |more: Value| {
        let mut body = call(&made, json!({"on_offline": "queue", "params": {"A": 7}}));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        workspace.admin.post(COMMANDS, &body).await
    };
    // More versions than one permission check reads.
    let mut expected = Vec::new();
    for number in 1..=7 {
        if number > 1 {
            let body = json!({"body": format!("echo {number}")});
            workspace.admin.patch(&path_of(&made), &body).await.expect(200);
        }
        expected.push((queue(json!({})).await.expect(201), format!("echo {number}")));
    }
    expected.push((queue(json!({"script_version": 2})).await.expect(201), "echo 2".to_owned()));
    queue(json!({"script_version": 8})).await.expect_fields(400, &["script"]);
    // Later changes and the deletion do not matter.
    workspace.admin.patch(&path_of(&made), &json!({"body": "echo 8"})).await.expect(200);
    workspace.admin.delete(&path_of(&made)).await.expect(204);
    let mut agent = ScriptedAgent::connect_with_features(&workspace, &server, ALL).await;
    for (command, body) in &expected {
        let order = agent.next_command().await;
        assert_eq!((&order["id"], &order["script"]["body"]), (&command["id"], &json!(body)));
        assert_eq!(order["env"], json!({"PARAM_A": "7"}));
    }
    assert!(expected.last().unwrap().0["line"].as_str().unwrap().ends_with("@2"));
}

#[tokio::test]
async fn parameters_are_checked_before_anything_is_stored() {
    let workspace = Workspace::new().await;
    workspace.server("web-1").await;
    let params = json!([
        {"name": "DEPTH", "type": "integer", "required": true},
        {"name": "COLOUR", "type": "choice", "choices": ["red", "blue"]},
    ]);
    let made = script(&workspace, "id", json!({"params": params})).await;
    let admin = &workspace.admin;
    for (params, message) in [
        (json!({}), "DEPTH: This field is required."),
        (json!({"DEPTH": "1"}), "DEPTH: A valid integer is required."),
        (json!({"DEPTH": 1, "COLOUR": "green"}), "COLOUR: Choose one of these: red, blue."),
        (json!({"DEPTH": 1, "OTHER": 1}), "OTHER: The script has no such parameter."),
        (json!([1]), "Not a valid object."),
    ] {
        let body = call(&made, json!({"params": params, "on_offline": "queue"}));
        let errors = admin.post(COMMANDS, &body).await.expect_fields(400, &["params"]);
        assert_eq!(
            (&errors["params"], &errors["code"]),
            (&json!([message]), &json!("INVALID_COMMAND"))
        );
    }
    let queue = json!({"on_offline": "queue", "params": {"DEPTH": 1}});
    for (more, field) in [
        (json!({"line": "id"}), "script"),
        (json!({"argv": ["id"]}), "script"),
        (json!({"script": "clean"}), "script"),
        (json!({"script": uuid::Uuid::nil()}), "script"),
        (json!({"shell": "internal"}), "script"),
        (json!({"script_version": 2}), "script"),
        (json!({"script_version": 0}), "script_version"),
        (json!({"env": {"PARAM_DEPTH": "2"}}), "env"),
    ] {
        let mut body = call(&made, queue.clone());
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        admin.post(COMMANDS, &body).await.expect_fields(400, &[field]);
    }
    let lonely = json!({"server": "web-1", "line": "id", "params": {}, "script_version": 1});
    admin.post(COMMANDS, &lonely).await.expect_fields(400, &["params", "script_version"]);
    assert_eq!(admin.get(COMMANDS).await.expect(200)["count"], 0);
    admin.post(COMMANDS, &call(&made, queue)).await.expect(201);
}

#[tokio::test]
async fn the_audit_log_has_the_version_and_no_values() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    workspace.server("web-1").await;
    let params = json!([{"name": "PASSWORD", "type": "string"}]);
    let made = script(&workspace, "id", json!({"params": params})).await;
    let secret = "correct-horse-battery";
    let body = call(&made, json!({"on_offline": "queue", "params": {"PASSWORD": secret}}));
    let command = workspace.admin.post(COMMANDS, &body).await.expect(201);
    let path = format!("/api/audit/events/?object={}&action=command.create", id_of(&command));
    let event = workspace.admin.get(&path).await.expect(200)["results"][0].clone();
    let details = &event["details"];
    let script = json!({"id": made["id"], "version": 1, "sha256": made["sha256"]});
    assert_eq!((&details["script"], &details["params"]), (&script, &json!(["PARAM_PASSWORD"])));
    assert!(details["params_hmac"].is_string());
    // The value is stored encrypted only.
    let columns = "SELECT group_concat(document, '') FROM commands";
    let stored = instance.read_objects("ServerLink", columns).join("");
    assert!(stored.contains("inputs") && !stored.contains(secret));
    for table in ["commands", "audit_events", "script_versions"] {
        let rows = instance.d1(&format!("SELECT * FROM {table}")).to_string();
        assert!(!rows.contains(secret), "{table}");
    }
}

#[tokio::test]
async fn a_lost_version_ends_its_command() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let (lost, kept) = (
        script(&workspace, "echo lost", json!({})).await,
        script(&workspace, "echo", json!({})).await,
    );
    let queued = json!({"on_offline": "queue"});
    let command = workspace.admin.post(COMMANDS, &call(&lost, queued.clone())).await.expect(201);
    let next = workspace.admin.post(COMMANDS, &call(&kept, queued)).await.expect(201);
    instance.tamper_with_d1(&format!(
        "DELETE FROM script_versions WHERE script_id = '{}'",
        id_of(&lost)
    ));
    let mut agent = ScriptedAgent::connect_with_features(&workspace, &server, ALL).await;
    assert_eq!(agent.next_command().await["id"], next["id"]);
    let ended = wait_for_status(&workspace.admin, id_of(&command), "Cancelled").await;
    let message = ended["status"]["message"].as_str().unwrap();
    assert!(message.contains("the version of its script does not exist any more"), "{message}");
}

#[tokio::test]
async fn an_idempotency_key_returns_the_first_answer() {
    let workspace = Workspace::new().await;
    workspace.server("web-1").await;
    let with_key = async |path: &str, key: &str, body: &Value| {
        let request = workspace.admin.request("POST", path).header("Idempotency-Key", key);
        workspace.admin.send(request.json(body)).await
    };
    let new = json!({"name": "a", "body": "id"});
    let first = with_key(SCRIPTS, "one", &new).await.expect(201);
    let again = with_key(SCRIPTS, "one", &new).await;
    assert_eq!(again.expect(201), first);
    assert_eq!(again.header("Idempotent-Replayed"), "true");
    let other = with_key(SCRIPTS, "one", &json!({"name": "b", "body": "id"})).await;
    other.expect_detail(422, Some("IDEMPOTENCY_KEY_REUSED"));
    assert_eq!(workspace.admin.get(SCRIPTS).await.expect(200)["count"], 1);
    let body = call(&first, json!({"on_offline": "queue"}));
    let command = with_key(COMMANDS, "two", &body).await.expect(201);
    workspace.admin.patch(&path_of(&first), &json!({"body": "x"})).await.expect(200);
    assert_eq!(with_key(COMMANDS, "two", &body).await.expect(201)["id"], command["id"]);
    // Also after the script was deleted.
    workspace.admin.delete(&path_of(&first)).await.expect(204);
    let replayed = with_key(COMMANDS, "two", &body).await;
    assert_eq!(replayed.expect(201)["id"], command["id"]);
    assert_eq!(replayed.header("Idempotent-Replayed"), "true");
    with_key(COMMANDS, "three", &body).await.expect_fields(400, &["script"]);
}
