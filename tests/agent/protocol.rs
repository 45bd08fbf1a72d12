//! The agent protocol, sections 1 to 5, from the agent's side.

use std::time::Duration;

use farhand_tests::agents::{ScriptedAgent, credential, dial, wait_until_connected};
use farhand_tests::{Api, Instance, Workspace, eventually};
use serde_json::{Value, json};

const OWN: &str = "/api/servers/servers/-/";

async fn agent_of_a_new_server() -> (Workspace, Value, Api) {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let api = workspace.anonymous.with_authorization(&credential(&server));
    (workspace, server, api)
}

/// The facts that an agent of version 2 sends.
fn facts() -> Value {
    json!({
        "version": "2.1.0", "load": 0.75,
        "info": {"hostname": "web", "cpu_type": "x86_64", "cpu_brand": "x", "cpu_physical_cores": 2, "cpu_logical_cores": 4, "physical_memory": 8_589_934_592_u64},
        "os": {"name": "Ubuntu", "version": "24.04", "platform": "ubuntu", "platform_like": "debian"},
    })
}

#[tokio::test]
async fn an_agent_starts_and_reports_its_facts() {
    let (workspace, server, agent) = agent_of_a_new_server().await;
    let id = server["id"].as_str().unwrap();
    let own = agent.get(OWN).await.expect(200);
    assert_eq!(
        (&own["commissioned"], &own["id"], &own["name"]),
        (&json!(false), &server["id"], &json!("web-1"))
    );
    assert_eq!(agent.get(&format!("/api/servers/servers/{id}/")).await.expect(200), own);
    let event = json!({"reporter": "alpamon", "record": "started", "description": "x"});
    assert_eq!(agent.post("/api/events/events/", &event).await.status / 100, 2);
    assert_eq!(agent.send_json("PUT", &format!("{OWN}commit/"), &facts()).await.status / 100, 2);
    assert_eq!(agent.get(OWN).await.expect(200)["commissioned"], true);

    let every = json!({"hashes": {"users": "sha256:0", "os": "sha256:1", "info": "sha256:2", "groups": "sha256:3"}});
    for (body, required) in [
        (every, json!(["info", "os"])),
        (json!({"hashes": {"info": "sha256:x"}}), json!(["info"])),
        (json!({"hashes": {"groups": "sha256:x", "users": "sha256:y"}}), json!([])),
        (json!({"hashes": "none"}), json!([])),
        (json!([1]), json!([])),
    ] {
        let check = agent.post(&format!("{OWN}sync-check/"), &body).await;
        assert_eq!(check.expect(200)["sync_required"], required, "{body}");
    }
    let unreadable = agent
        .request("POST", &format!("{OWN}sync-check/"))
        .header("Content-Type", "application/json");
    assert_eq!(agent.send(unreadable.body("{")).await.expect(200)["sync_required"], json!([]));
    assert_eq!(
        agent.get("/api/metrics/config/").await.expect(200),
        json!([{"type": "status", "interval": 300}])
    );
    assert_eq!(agent.call("PATCH", &format!("{OWN}status/")).await.status / 100, 2);

    let shown = eventually("the server's facts", || async {
        let server = workspace.admin.get(&format!("/api/servers/servers/{id}/")).await.expect(200);
        server["agent_version"].is_string().then_some(server)
    })
    .await;
    let expected = json!({
        "agent_version": "2.1.0", "load": 0.75, "cpu_logical_cores": 4, "physical_memory": 8_589_934_592_u64,
        "os_name": "Ubuntu", "os_version": "24.04", "platform": "debian",
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&shown[field], value, "{field}");
    }
    // A later sync changes the facts in it.
    agent
        .send_json("PATCH", &format!("{OWN}sync/"), &json!({"version": "2.2.0", "load": 1.5}))
        .await
        .expect(200);
    eventually("the new facts", || async {
        let server = workspace.admin.get(&format!("/api/servers/servers/{id}/")).await.expect(200);
        (server["agent_version"] == "2.2.0"
            && server["load"] == 1.5
            && server["os_name"] == "Ubuntu")
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_policy_of_a_host_is_shown_filtered_and_audited() {
    let (workspace, server, agent) = agent_of_a_new_server().await;
    workspace.server("web-2").await;
    let admin = &workspace.admin;
    let path = format!("/api/servers/servers/{}/", server["id"].as_str().unwrap());
    let shows = async |policy: &Value| {
        eventually("the policy", || async {
            (admin.get(&path).await.expect(200)["policy"] == *policy).then_some(())
        })
        .await;
    };
    let report = async |method: &str, call: &str, policy: &Value| {
        let body = json!({"version": "2.1.0", "policy": policy});
        agent.send_json(method, &format!("{OWN}{call}/"), &body).await.expect(200);
        shows(policy).await;
    };
    let accounts = json!({"mode": "accounts", "sha256": "0a".repeat(32)});
    let none = json!({"mode": "none", "sha256": null});
    assert_eq!(admin.get(&path).await.expect(200)["policy"], Value::Null);
    report("PUT", "commit", &accounts).await;
    // A partial report changes nothing.
    agent.send_json("PUT", "/api/proc/os/", &json!({"name": "Debian"})).await.expect(204);
    report("PATCH", "sync", &none).await;
    for (query, count) in [("none", 1), ("accounts", 0), ("open", 0)] {
        let list = admin.get(&format!("/api/servers/?policy={query}")).await.expect(200);
        assert_eq!(list["count"], count, "{query}");
    }
    let wrong = admin.get("/api/servers/?policy=lax").await.expect(400);
    assert_eq!(wrong["policy"], json!(["Use open, accounts, argv, custom or none."]));
    // An agent that does not report it.
    agent
        .send_json("PATCH", &format!("{OWN}sync/"), &json!({"version": "2.0.0"}))
        .await
        .expect(200);
    shows(&Value::Null).await;
    let events = eventually("the audit events", || async {
        let list = admin.get("/api/audit/events/?action=server.policy").await.expect(200);
        let found = list["results"].as_array().unwrap().clone();
        (found.len() == 2).then_some(found)
    })
    .await;
    assert_eq!(events[1]["details"], json!({"policy": none, "previous_policy": accounts}));
    assert_eq!(events[0]["details"], json!({"policy": null, "previous_policy": none}));
    assert_eq!(
        (&events[1]["actor"]["type"], &events[1]["object"]["id"]),
        (&json!("agent"), &server["id"])
    );
}

#[tokio::test]
async fn a_heartbeat_refreshes_the_load() {
    let (instance, _state) = Instance::new_with(&[("AGENT_HEARTBEAT_SECONDS", "1")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let agent = workspace.anonymous.with_authorization(&credential(&server));
    assert_eq!(
        agent.get("/api/metrics/config/").await.expect(200),
        json!([{"type": "status", "interval": 1}])
    );
    let path = format!("/api/servers/servers/{}/", server["id"].as_str().unwrap());
    let load = async || workspace.admin.get(&path).await.expect(200)["load"].clone();
    agent
        .send_json("PATCH", &format!("{OWN}sync/"), &json!({"version": "2.2.0", "load": 0.5}))
        .await
        .expect(200);
    // No restart and no other sync: only the repeated heartbeats of an agent.
    for expected in [1.25, 7.5, 0.0] {
        eventually("the new load", || async {
            let heartbeat = agent
                .send_json("PATCH", &format!("{OWN}status/"), &json!({"load": expected}))
                .await;
            assert_eq!(heartbeat.status, 204);
            (load().await == json!(expected)).then_some(())
        })
        .await;
    }
    for odd in [json!({"load": "high"}), json!({"load": -1}), json!([1])] {
        assert_eq!(agent.send_json("PATCH", &format!("{OWN}status/"), &odd).await.status, 204);
    }
    // Alpamon's heartbeats have no load. A load that is not refreshed disappears soon.
    eventually("the load to disappear", || async {
        assert_eq!(agent.call("PATCH", &format!("{OWN}status/")).await.status, 204);
        load().await.is_null().then_some(())
    })
    .await;
}

#[tokio::test]
async fn invalid_facts_are_dropped_and_the_rest_is_stored() {
    let (workspace, server, agent) = agent_of_a_new_server().await;
    let odd = json!({"version": 7, "load": "high", "info": [], "os": {"name": "x".repeat(5_000), "version": null}, "more": {"a": 1}});
    agent.send_json("PUT", &format!("{OWN}commit/"), &odd).await.expect(200);
    let path = format!("/api/servers/servers/{}/", server["id"].as_str().unwrap());
    let shown = eventually("the facts", || async {
        let server = workspace.admin.get(&path).await.expect(200);
        server["os_name"].is_string().then_some(server)
    })
    .await;
    assert_eq!((shown["os_name"].as_str().unwrap().len(), &shown["load"]), (200, &json!(null)));
}

#[tokio::test]
async fn unused_reports_are_204_and_unknown_requests_404() {
    let (_, _, agent) = agent_of_a_new_server().await;
    for path in [
        "/api/history/logs/",
        "/api/proc/packages/",
        "/api/proc/users/sync/",
        "/api/metrics/cpu/",
        "/api/servers/servers/-/whatever/x/",
    ] {
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            agent.send_json(method, path, &json!([{"x": 1}])).await.expect(204);
        }
    }
    for path in [
        "/api/servers/servers/-/access-policy/",
        "/api/history/logs/",
        "/api/metrics/cpu/",
        "/api/proc/packages/",
    ] {
        agent.get(path).await.expect_detail(404, None);
    }
    for (category, empty) in
        [("info", json!({})), ("os", json!({})), ("time", json!({})), ("packages", json!([]))]
    {
        assert_eq!(agent.get(&format!("/api/proc/{category}/sync/")).await.expect(200), empty);
        assert_eq!(agent.get(&format!("/api/proc/{category}/x/sync/")).await.expect(200), empty);
    }
}

#[tokio::test]
async fn an_agent_is_never_redirected() {
    let (_, _, agent) = agent_of_a_new_server().await;
    agent.get("/api/servers/servers/-").await.expect(200);
    agent.call("POST", "/api/events/events").await.expect(204);
}

#[tokio::test]
async fn an_agent_sees_only_its_own_server() {
    let (workspace, server, agent) = agent_of_a_new_server().await;
    let other = workspace.server("web-2").await;
    let path = |server: &Value| format!("/api/servers/servers/{}/", server["id"].as_str().unwrap());
    agent.get(&path(&server)).await.expect(200);
    agent.get(&path(&other)).await.expect_detail(404, None);
    for path in [
        "/api/status/",
        "/api/servers/",
        "/api/events/commands/",
        "/api/iam/users/-/",
        "/api/auth/tokens/",
    ] {
        agent.get(path).await.expect_detail(403, Some("INVALID_AUTHORIZATION"));
    }
    let key_as_token = workspace.anonymous.with_token(server["key"].as_str().unwrap());
    key_as_token.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
    // The key of one server with the id of another.
    let mixed = json!({"id": other["id"], "key": server["key"]});
    let mixed = workspace.anonymous.with_authorization(&credential(&mixed));
    mixed.get(OWN).await.expect_detail(403, Some("INVALID_TOKEN"));
    assert_eq!(dial(&mixed, "/ws/servers/backhaul/").await.err(), Some(403));
}

#[tokio::test]
async fn malformed_reports_are_400_and_change_nothing() {
    let (workspace, server, _) = agent_of_a_new_server().await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let made = workspace
        .admin
        .post("/api/events/commands/", &json!({"server": "web-1", "line": "id"}))
        .await
        .expect(201);
    let id = agent.next_command().await["id"].as_str().unwrap().to_owned();
    for (kind, bad) in [
        ("chunk", json!({})),
        ("chunk", json!({"seq": -1, "content": "x"})),
        ("chunk", json!({"seq": 0, "content": 7})),
        ("chunk", json!([])),
        ("fin", json!({})),
        ("fin", json!({"success": "yes"})),
        ("fin", json!({"success": true, "result": 7})),
        ("fin", json!({"success": true, "exit_code": "0"})),
    ] {
        agent.report(&id, kind, Some(&bad)).await.expect_fields(400, &["non_field_errors"]);
    }
    for missing in ["01936d3e-7a00-7000-8000-000000000000", "nonsense"] {
        agent.report(missing, "ack", None).await.expect_detail(404, None);
        agent
            .report(missing, "fin", Some(&json!({"success": true})))
            .await
            .expect_detail(404, None);
    }
    let too_large = json!({"success": true, "result": "x".repeat(16 << 20)});
    agent.report(&id, "fin", Some(&too_large)).await.expect_detail(413, None);
    let shown = workspace
        .admin
        .get(&format!("/api/events/commands/{}/", made["id"].as_str().unwrap()))
        .await
        .expect(200);
    assert_eq!(shown["status"]["text"], "Sent");
    // Numbers that no host can send are dropped, and the report is accepted.
    let odd = json!({"success": false, "elapsed_time": -1, "exit_code": 1_u64 << 40});
    agent.report(&id, "fin", Some(&odd)).await.expect(204);
    let shown = workspace
        .admin
        .get(&format!("/api/events/commands/{}/", made["id"].as_str().unwrap()))
        .await
        .expect(200);
    assert_eq!(
        (&shown["exit_code"], &shown["elapsed_time"], &shown["success"]),
        (&json!(null), &json!(null), &json!(false))
    );
}

#[tokio::test]
async fn a_command_rejected_by_the_agent_fails() {
    let (workspace, server, _) = agent_of_a_new_server().await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let run = json!({"server": "web-1", "line": "id"});
    for (body, result) in [
        (json!({"reason": "no signature"}), "The agent refused it: no signature"),
        (json!({}), "The agent refused it"),
    ] {
        workspace.admin.post("/api/events/commands/", &run).await.expect(201);
        let id = agent.next_command().await["id"].as_str().unwrap().to_owned();
        for _ in 0..2 {
            agent.report(&id, "reject", Some(&body)).await.expect(204);
        }
        let shown = workspace.admin.get(&format!("/api/events/commands/{id}/")).await.expect(200);
        assert_eq!((&shown["status"]["text"], &shown["result"]), (&json!("Failed"), &json!("")));
        let message = shown["status"]["message"].as_str().unwrap();
        assert!(message.ends_with(&format!(" {result}.")), "{message}");
        assert_eq!((&shown["success"], &shown["exit_code"]), (&json!(false), &json!(null)));
    }
    let unknown = "01936d3e-7a00-7000-8000-000000000000";
    agent.report(unknown, "reject", Some(&json!({"reason": "x"}))).await.expect_detail(404, None);
}

#[tokio::test]
async fn a_large_chunk_is_stored_completely() {
    let (workspace, server, _) = agent_of_a_new_server().await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    workspace
        .admin
        .post("/api/events/commands/", &json!({"server": "web-1", "line": "id"}))
        .await
        .expect(201);
    let id = agent.next_command().await["id"].as_str().unwrap().to_owned();
    agent.chunk(&id, 0, &"é".repeat(1_500_000)).await;
    agent.chunk(&id, 1, "end").await;
    agent.report(&id, "fin", Some(&json!({"success": true}))).await.expect(204);
    let shown = workspace.admin.get(&format!("/api/events/commands/{id}/")).await.expect(200);
    assert_eq!(
        (&shown["output_bytes"], &shown["result_truncated"]),
        (&json!(3_000_003), &json!(true))
    );
    assert!(shown["result"].as_str().unwrap().ends_with("ééend"));
}

#[tokio::test]
async fn a_newer_connection_replaces_the_older() {
    let (workspace, server, _) = agent_of_a_new_server().await;
    let id = server["id"].as_str().unwrap();
    let mut first = ScriptedAgent::connect(&workspace, &server).await;
    let mut second = ScriptedAgent::connect(&workspace, &server).await;
    assert_eq!(first.next().await, Err(Some(1000)), "a replaced socket is closed without `quit`");
    workspace
        .admin
        .post("/api/events/commands/", &json!({"server": "web-1", "line": "id"}))
        .await
        .expect(201);
    second.next_command().await;
    wait_until_connected(&workspace, id, true).await;
    second.close().await;
    wait_until_connected(&workspace, id, false).await;
}

#[tokio::test]
async fn a_server_shows_its_connection() {
    let (workspace, server, _) = agent_of_a_new_server().await;
    let id = server["id"].as_str().unwrap();
    let agent = ScriptedAgent::connect(&workspace, &server).await;
    wait_until_connected(&workspace, id, true).await;
    let shown = workspace.admin.get(&format!("/api/servers/servers/{id}/")).await.expect(200);
    assert_eq!(shown["remote_ip"], "127.0.0.1");
    assert!(shown["connected_at"].is_string() && shown["last_seen_at"].is_string());
    agent.close().await;
    wait_until_connected(&workspace, id, false).await;
}

#[tokio::test]
async fn a_control_socket_stays_open_beside_the_backhaul() {
    let (workspace, server, api) = agent_of_a_new_server().await;
    let control = dial(&api, "/ws/servers/control/").await.unwrap();
    // The control socket is not a connection for commands.
    workspace
        .admin
        .post("/api/events/commands/", &json!({"server": "web-1", "line": "id"}))
        .await
        .expect(503);
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    workspace
        .admin
        .post("/api/events/commands/", &json!({"server": "web-1", "line": "id"}))
        .await
        .expect(201);
    agent.next_command().await;
    drop(control);
}

#[tokio::test]
async fn sockets_require_an_agent_and_an_upgrade() {
    let (workspace, _, api) = agent_of_a_new_server().await;
    for path in ["/ws/servers/backhaul/", "/ws/servers/control/"] {
        api.get(path).await.expect_fields(400, &["non_field_errors"]);
        assert_eq!(dial(&workspace.anonymous, path).await.err(), Some(401));
        assert_eq!(dial(&workspace.admin, path).await.err(), Some(404));
        assert_eq!(dial(&api.with_host("elsewhere.example"), path).await.err(), Some(404));
    }
}

#[tokio::test]
async fn nonsense_on_the_socket_is_ignored() {
    let (workspace, server, _) = agent_of_a_new_server().await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    for message in [
        json!({"query": "dance"}),
        json!([]),
        json!("x"),
        json!({"query": "pong", "timestamp": 1.5}),
        json!({"query": "command"}),
    ] {
        agent.send(&message).await;
    }
    workspace
        .admin
        .post("/api/events/commands/", &json!({"server": "web-1", "line": "id"}))
        .await
        .expect(201);
    agent.next_command().await;
}

#[tokio::test]
async fn an_agent_that_answers_no_ping_is_disconnected() {
    let (instance, _state) = Instance::new_with(&[("AGENT_PING_SECONDS", "2")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let (silent, alive) = (workspace.server("silent").await, workspace.server("alive").await);
    let mut silent_agent = ScriptedAgent::connect(&workspace, &silent).await;
    let mut alive_agent = ScriptedAgent::connect(&workspace, &alive).await;
    let mut control = ScriptedAgent::connect_to(&silent_agent.api, "/ws/servers/control/").await;
    assert_eq!(silent_agent.next().await, Ok(json!({"query": "ping"})));
    assert_eq!(
        control.next().await,
        Ok(json!({"query": "ping"})),
        "the service pings control sockets too"
    );

    let answering = async {
        loop {
            match alive_agent.next().await {
                Ok(message) => assert_eq!(message, json!({"query": "ping"})),
                Err(code) => panic!("the service closed the socket with {code:?}"),
            }
            alive_agent.send(&json!({"query": "pong", "timestamp": 1.5})).await;
        }
    };
    let disconnected = async {
        while silent_agent.next().await.is_ok() {}
        let id = silent["id"].as_str().unwrap();
        wait_until_connected(&workspace, id, false).await;
    };
    tokio::select! {
        () = answering => {}
        done = tokio::time::timeout(Duration::from_secs(90), disconnected) => done.expect("the silent agent was not disconnected"),
    }
    wait_until_connected(&workspace, alive["id"].as_str().unwrap(), true).await;
    workspace
        .admin
        .post("/api/events/commands/", &json!({"server": "silent", "line": "id"}))
        .await
        .expect(503);
    workspace
        .admin
        .post("/api/events/commands/", &json!({"server": "alive", "line": "id"}))
        .await
        .expect(201);
}
