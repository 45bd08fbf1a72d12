//! An emulated Alpamon 2.x (agent-protocol): its start, its daily work, and its late reports.
//! Nothing that the service does may cause a warning in its log.

use std::collections::HashSet;
use std::time::Duration;

use farhand_domain::http::endpoints::{Access, ROUTES};
use farhand_tests::agents::{ScriptedAgent, credential, dial, wait_until_connected};
use farhand_tests::alpamon::{
    AgentBehaviour, Alpamon, BACKHAUL, CONTROL, CommandScript, Host, SocketEnd,
};
use farhand_tests::commands::{wait_for_command_within, wait_until_ended_within};
use farhand_tests::{Instance, Workspace, eventually};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

const PATH: &str = "/api/events/commands/";
/// Time limit for steps that are slow on a loaded machine.
const LONG_TIMEOUT: Duration = Duration::from_secs(240);

/// An agent with a fast clock.
fn fast_clock() -> AgentBehaviour {
    AgentBehaviour { second: Duration::from_millis(20), ..AgentBehaviour::default() }
}

#[track_caller]
fn assert_no_complaints(agent: &Alpamon) {
    assert_eq!(agent.log().complaints(), Vec::<String>::new());
}

/// Requests a command, and returns its id.
async fn request_command(workspace: &Workspace, body: &Value) -> String {
    workspace.admin.post(PATH, body).await.expect(201)["id"].as_str().unwrap().to_owned()
}

/// Waits with a long limit until a command has ended.
async fn wait_until_ended(workspace: &Workspace, id: &str) -> Value {
    wait_until_ended_within(LONG_TIMEOUT, &workspace.admin, id).await
}

/// Waits until the API shows a host's facts.
async fn wait_for_facts(workspace: &Workspace, server: &Value, host: &Host) {
    let expected = json!({
        "agent_version": host.version, "load": host.load, "cpu_logical_cores": host.cores,
        "physical_memory": host.memory, "os_name": "Ubuntu", "os_version": host.os_version, "platform": "debian",
    });
    let path = format!("/api/servers/servers/{}/", server["id"].as_str().unwrap());
    let mut shown = Value::Null;
    let is_shown = async {
        loop {
            shown = workspace.admin.get(&path).await.expect(200);
            if expected.as_object().unwrap().iter().all(|(name, value)| shown[name] == *value) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let in_time = tokio::time::timeout(farhand_tests::PATIENCE, is_shown).await.is_ok();
    assert!(in_time, "the API does not show {expected} in {shown}");
}

#[tokio::test]
async fn a_new_host_commits_its_facts() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let agent = Alpamon::connect(&workspace, &server, fast_clock()).await;
    wait_until_connected(&workspace, server["id"].as_str().unwrap(), true).await;
    wait_for_facts(&workspace, &server, &Host::default()).await;
    agent.until_idle(LONG_TIMEOUT).await;
    // After five minutes of its clock, the agent sends heartbeats.
    agent
        .until("a heartbeat", |log| {
            log.calls_of("PATCH", "/api/servers/servers/-/status/").next().is_some()
        })
        .await;
    let log = agent.log();
    assert_eq!(log.commissioned, Some(false));
    assert_eq!(log.calls_of("PUT", "/api/servers/servers/-/commit/").count(), 1);
    assert_eq!(
        log.calls_of("POST", "/api/events/events/").count(),
        2,
        "the events of the start and of the commit"
    );
    assert_no_complaints(&agent);
    agent.leave().await;
    wait_until_connected(&workspace, server["id"].as_str().unwrap(), false).await;
}

#[tokio::test]
async fn a_known_host_reports_only_changes() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let first = Alpamon::connect(&workspace, &server, fast_clock()).await;
    wait_for_facts(&workspace, &server, &Host::default()).await;
    first.leave().await;

    let host = Host {
        version: "2.2.0".into(),
        load: 1.5,
        cores: 16,
        memory: 64 << 30,
        os_version: "26.04".into(),
    };
    let agent = Alpamon::connect(
        &workspace,
        &server,
        AgentBehaviour { host: host.clone(), ..fast_clock() },
    )
    .await;
    wait_for_facts(&workspace, &server, &host).await;
    agent
        .until("the end of its start", |log| {
            log.calls.iter().any(|call| call.path.ends_with("/access-policy/"))
        })
        .await;
    agent.until_idle(LONG_TIMEOUT).await;
    let log = agent.log();
    assert_eq!(log.commissioned, Some(true));
    assert_eq!(log.calls_of("PUT", "/api/servers/servers/-/commit/").count(), 0);
    assert_eq!(log.calls_of("PATCH", "/api/servers/servers/-/sync/").count(), 1);
    assert_no_complaints(&agent);
}

/// An older version requests each category. It sends facts with different methods, depending on
/// whether the service has them.
#[tokio::test]
async fn facts_are_accepted_with_any_method() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let agent = workspace.anonymous.with_authorization(&credential(&server));
    let path = format!("/api/servers/servers/{}/", server["id"].as_str().unwrap());
    let tries = [
        ("POST", "/"),
        ("PUT", "/x/"),
        ("PATCH", "//"),
        ("PATCH", "/"),
        ("PATCH", "/x/"),
        ("POST", ""),
    ];
    for (number, (method, end)) in tries.iter().enumerate() {
        let info = json!({"cpu_logical_cores": number + 1, "physical_memory": 1_000 + number});
        let os = json!({"name": "Debian", "version": format!("{number}"), "platform": "debian", "platform_like": "debian"});
        for (category, facts) in [("info", info), ("os", os)] {
            let status =
                agent.send_json(method, &format!("/api/proc/{category}{end}"), &facts).await.status;
            assert_eq!(status / 100, 2, "{method} {category}{end}");
        }
        eventually(&format!("the facts of {method} {end:?}"), || async {
            let shown = workspace.admin.get(&path).await.expect(200);
            let is_shown = shown["cpu_logical_cores"] == json!(number + 1)
                && shown["physical_memory"] == json!(1_000 + number)
                && shown["os_version"] == json!(number.to_string());
            is_shown.then_some(())
        })
        .await;
    }
}

/// The output and exit code of the command with a number.
fn script_for(number: usize) -> CommandScript {
    let line = format!("{number}: ärger 日本 🦀 ");
    let mut pieces: Vec<String> =
        (0..number % 5).map(|piece| format!("{line}{piece}\n").repeat(number % 11 + 1)).collect();
    if number.is_multiple_of(50) {
        // Many chunks, with characters of several bytes that a careless cut would break.
        pieces.push("é€🦀x".repeat(2_000));
    }
    CommandScript {
        exit_code: if number.is_multiple_of(7) { 3 } else { 0 },
        ..CommandScript::writing(pieces)
    }
}

/// The number in the line of a delivered command.
fn number(order: &Value) -> usize {
    order["line"].as_str().unwrap().trim_start_matches("work ").parse().unwrap()
}

#[tokio::test]
async fn three_hundred_commands_run_without_a_complaint() {
    const ALL: usize = 300;
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    // The first commands wait for the agent, and the last ones are scheduled.
    let body = |number: usize| {
        let mut body = json!({"server": "web-1", "line": format!("work {number}")});
        if number < 30 {
            body["on_offline"] = json!("queue");
        }
        if number >= ALL - 30 {
            body["scheduled_at"] = json!(farhand_tests::now().plus_seconds(2));
        }
        body
    };
    let create = |number: usize| {
        let workspace = &workspace;
        let body = body(number);
        async move { (number, request_command(workspace, &body).await) }
    };
    let mut made: Vec<(usize, String)> =
        stream::iter(0..30).map(create).buffer_unordered(4).collect().await;
    let behaviour = AgentBehaviour {
        runs: Box::new(|order| script_for(number(order))),
        second: Duration::from_millis(100),
        ..AgentBehaviour::default()
    };
    let agent = Alpamon::connect(&workspace, &server, behaviour).await;
    made.extend(stream::iter(30..ALL).map(create).buffer_unordered(8).collect::<Vec<_>>().await);

    let checks = made.iter().map(|(number, id)| {
        let workspace = &workspace;
        async move {
            // Behind much output, an ack may be late. Then the command is stuck until its end
            // arrives.
            let has_result =
                |done: &Value| done["handled_at"].is_string() && done["state"] != "stuck";
            let done = wait_for_command_within(
                LONG_TIMEOUT,
                &workspace.admin,
                id,
                "the result",
                has_result,
            )
            .await;
            let run = script_for(*number);
            let result = run.pieces.concat();
            assert!(done["result"] == json!(result), "{number}: {done}");
            assert_eq!(
                (
                    &done["exit_code"],
                    &done["success"],
                    &done["output_bytes"],
                    &done["result_truncated"]
                ),
                (
                    &json!(run.exit_code),
                    &json!(run.exit_code == 0),
                    &json!(result.len()),
                    &json!(false)
                ),
                "{number}"
            );
        }
    });
    stream::iter(checks).buffer_unordered(8).collect::<Vec<()>>().await;
    agent.until_idle(LONG_TIMEOUT).await;

    let log = agent.log();
    let (delivered, created): (HashSet<String>, HashSet<String>) =
        (log.ids().into_iter().collect(), made.iter().map(|(_, id)| id.clone()).collect());
    assert_eq!((delivered, log.delivered.len()), (created, ALL));
    for kind in ["ack", "fin"] {
        assert_eq!(
            log.calls.iter().filter(|call| call.path.ends_with(&format!("/{kind}/"))).count(),
            ALL,
            "{kind}"
        );
    }
    assert_no_complaints(&agent);

    // Reports overtook each other, but the output is in order.
    let (_, long) = made.iter().find(|(number, _)| *number == 250).unwrap();
    let mut content = String::new();
    let mut next = json!(format!("{PATH}{long}/chunks/?page_size=100"));
    while let Some(url) = next.as_str() {
        let path = &url[url.find("/api/").unwrap()..];
        let page = workspace.admin.get(path).await.expect(200);
        for chunk in page["results"].as_array().unwrap() {
            content.push_str(chunk["content"].as_str().unwrap());
        }
        next = page["next"].clone();
    }
    assert!(content == script_for(250).pieces.concat(), "the chunks differ from the output");
}

#[tokio::test]
async fn an_older_version_and_unusual_output_work() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let runs = |order: &Value| match order["line"].as_str().unwrap() {
        "odd" => {
            CommandScript::writing(["a\u{0}b\u{0}", "\u{FFFD}\u{FFFD}", "\r\n\u{1b}[0m\u{2028}"])
        }
        "nothing" => CommandScript { exit_code: 1, ..CommandScript::default() },
        // A fin of several MB, because each of these bytes takes six in JSON.
        _ => CommandScript::writing([
            "\u{0}".repeat(1 << 20),
            "the last megabyte is all that an agent tells".repeat(1_000),
        ]),
    };
    let behaviour = AgentBehaviour { runs: Box::new(runs), is_older: true, ..fast_clock() };
    let agent = Alpamon::connect(&workspace, &server, behaviour).await;
    let mut done = Vec::new();
    for line in ["odd", "nothing", "much"] {
        let id = request_command(&workspace, &json!({"server": "web-1", "line": line})).await;
        done.push(wait_until_ended(&workspace, &id).await);
    }
    agent.until_idle(LONG_TIMEOUT).await;
    assert_no_complaints(&agent);
    let odd = "a\u{0}b\u{0}\u{FFFD}\u{FFFD}\r\n\u{1b}[0m\u{2028}";
    assert_eq!((&done[0]["result"], &done[0]["output_bytes"]), (&json!(odd), &json!(odd.len())));
    assert_eq!((&done[1]["result"], &done[1]["status"]["text"]), (&json!(""), &json!("Failed")));
    for command in &done {
        assert_eq!(command["exit_code"], json!(null));
    }
    // The result was cut, but all chunks are stored.
    let much = workspace
        .admin
        .get(&format!("{PATH}{}/", done[2]["id"].as_str().unwrap()))
        .await
        .expect(200);
    assert_eq!(
        (&much["output_bytes"], &much["result_truncated"]),
        (&json!((1 << 20) + 44_000), &json!(true))
    );
    assert!(much["result"].as_str().unwrap().len() <= 256 * 1024);
}

#[tokio::test]
async fn commands_beyond_the_agents_limit_wait_in_the_service() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let runs = |_: &Value| CommandScript { is_held: true, ..CommandScript::writing(["x"]) };
    let agent = Alpamon::connect(
        &workspace,
        &server,
        AgentBehaviour { runs: Box::new(runs), ..fast_clock() },
    )
    .await;
    let body = json!({"server": "web-1", "line": "hold", "on_offline": "queue"});
    let creations = (0..230).map(|_| request_command(&workspace, &body));
    let ids: Vec<String> = stream::iter(creations).buffer_unordered(8).collect().await;
    agent.until("as many commands as the agent accepts", |log| log.delivered.len() >= 200).await;
    agent.release();
    for id in &ids {
        assert_eq!(wait_until_ended(&workspace, id).await["status"]["text"], "Success");
    }
    agent.until_idle(LONG_TIMEOUT).await;
    assert_eq!(agent.log().delivered.len(), ids.len());
    assert_no_complaints(&agent);
}

#[tokio::test]
async fn reports_may_arrive_in_any_order_and_twice() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let chunk = |seq: u32| json!({"seq": seq, "content": format!("{seq};")});
    let fin = json!({"success": true, "result": "0;1;2;", "elapsed_time": 0.5, "exit_code": 0});
    let sequences: [&[(&str, Option<Value>)]; 3] = [
        &[
            ("fin", Some(fin.clone())),
            ("chunk", Some(chunk(2))),
            ("chunk", Some(chunk(0))),
            ("ack", None),
            ("chunk", Some(chunk(1))),
        ],
        &[
            ("chunk", Some(chunk(1))),
            ("chunk", Some(chunk(1))),
            ("fin", Some(fin.clone())),
            ("fin", Some(fin.clone())),
            ("ack", None),
            ("ack", None),
            ("chunk", Some(chunk(0))),
            ("chunk", Some(chunk(2))),
        ],
        &[
            ("ack", None),
            ("chunk", Some(chunk(0))),
            ("chunk", Some(chunk(1))),
            ("chunk", Some(chunk(2))),
            ("chunk", Some(chunk(0))),
            ("fin", Some(fin.clone())),
            ("chunk", Some(chunk(2))),
        ],
    ];
    for reports in sequences {
        let id = request_command(&workspace, &json!({"server": "web-1", "line": "id"})).await;
        assert_eq!(agent.next_command().await["id"], json!(id));
        for (kind, body) in reports {
            agent.report(&id, kind, body.as_ref()).await.expect(204);
        }
        let done = workspace.admin.get(&format!("{PATH}{id}/")).await.expect(200);
        assert_eq!(
            (&done["status"]["text"], &done["result"], &done["output_bytes"], &done["exit_code"]),
            (&json!("Success"), &json!("0;1;2;"), &json!(6), &json!(0))
        );
        let moments = ["added_at", "scheduled_at", "delivered_at", "acked_at", "handled_at"];
        let moments: Vec<&str> = moments.iter().map(|name| done[name].as_str().unwrap()).collect();
        assert!(moments.is_sorted(), "{done}");
        let chunks = workspace.admin.get(&format!("{PATH}{id}/chunks/")).await.expect(200);
        assert_eq!(chunks["results"], json!([chunk(0), chunk(1), chunk(2)]));
    }
}

#[tokio::test]
async fn reports_about_another_servers_command_are_rejected() {
    let workspace = Workspace::new().await;
    let (own, other) = (workspace.server("own").await, workspace.server("other").await);
    let mut agent = ScriptedAgent::connect(&workspace, &own).await;
    let stranger = ScriptedAgent::connect(&workspace, &other).await;
    let id = request_command(&workspace, &json!({"server": "own", "line": "id"})).await;
    agent.next_command().await;
    let fin = json!({"success": true, "result": "forged", "elapsed_time": 0.5, "exit_code": 0});
    for (kind, body) in
        [("ack", None), ("chunk", Some(json!({"seq": 0, "content": "forged"}))), ("fin", Some(fin))]
    {
        stranger.report(&id, kind, body.as_ref()).await.expect_detail(404, None);
    }
    let shown = workspace.admin.get(&format!("{PATH}{id}/")).await.expect(200);
    assert_eq!((&shown["status"]["text"], &shown["acked_at"]), (&json!("Sent"), &json!(null)));
    agent.fin(&id, 0, "own").await;
    assert_eq!(workspace.admin.get(&format!("{PATH}{id}/")).await.expect(200)["result"], "own");
}

#[tokio::test]
async fn unused_reports_are_accepted_immediately() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let agent = Alpamon::connect(&workspace, &server, fast_clock()).await;
    let record = json!({"date": "2026-11-21T12:00:00Z", "level": 30, "program": "alpamon", "pid": 1, "msg": "x"});
    for path in [
        "/api/history/logs/",
        "/api/history/logins/1/",
        "/api/metrics/realtime/cpu/",
        "/api/metrics/hourly/disk-usage/",
        "/api/proc/packages/",
        "/api/proc/packages/sync/",
        "/api/proc/time//",
        "/api/servers/servers/-/whatever/",
        "/api/servers/servers/-/whatever/more/",
    ] {
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            agent.report(method, path, Some(&record));
            agent.report(method, path, Some(&json!([record, record])));
            agent.report(method, path, None);
        }
    }
    agent.until_idle(LONG_TIMEOUT).await;
    assert_no_complaints(&agent);
}

#[tokio::test]
async fn a_missing_slash_never_causes_a_redirect() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let id = request_command(&workspace, &json!({"server": "web-1", "line": "id"})).await;
    agent.next_command().await;
    let api = agent.api.clone();
    let chunk = json!({"seq": 0, "content": "x"});
    let fin = json!({"success": true, "result": "x", "elapsed_time": 0.5, "exit_code": 0});
    let event = json!({"reporter": "alpamon", "record": "other", "description": "x"});
    let command = |kind: &str| format!("{PATH}{id}/{kind}/");
    let own = |rest: &str| format!("/api/servers/servers/-/{rest}");
    for (method, path, body, status) in [
        ("GET", own(""), None, 200),
        ("GET", format!("/api/servers/servers/{}/", server["id"].as_str().unwrap()), None, 200),
        ("POST", "/api/events/events/".to_owned(), Some(&event), 204),
        ("PUT", own("commit/"), Some(&event), 200),
        ("PATCH", own("sync/"), Some(&event), 200),
        ("POST", own("sync-check/"), Some(&event), 200),
        ("PATCH", own("status/"), None, 204),
        ("GET", own("access-policy/"), None, 404),
        ("POST", own("whatever/"), Some(&event), 204),
        ("GET", "/api/metrics/config/".to_owned(), None, 200),
        ("GET", "/api/proc/info/-/sync/".to_owned(), None, 200),
        ("GET", "/api/proc/users/sync/".to_owned(), None, 200),
        ("PATCH", "/api/proc/time//".to_owned(), Some(&event), 204),
        ("POST", "/api/proc/users/".to_owned(), Some(&event), 204),
        ("POST", "/api/history/logs/".to_owned(), Some(&event), 204),
        ("POST", "/api/metrics/cpu/".to_owned(), Some(&event), 204),
        ("POST", command("ack"), None, 204),
        ("POST", command("chunk"), Some(&chunk), 204),
        ("POST", command("fin"), Some(&fin), 204),
    ] {
        for path in [path.as_str(), path.trim_end_matches('/')] {
            let answer = match body {
                Some(body) => api.send_json(method, path, body).await,
                None => api.call(method, path).await,
            };
            assert_eq!((answer.status, answer.header("Location")), (status, ""), "{method} {path}");
        }
    }
    assert_eq!(workspace.admin.get(&format!("{PATH}{id}/")).await.expect(200)["result"], "x");
    // Errors are not redirected either: for a wrong key and for an unknown path.
    let wrong = workspace
        .anonymous
        .with_authorization(&credential(&json!({"id": server["id"], "key": "wrong"})));
    wrong.call("POST", "/api/events/events").await.expect_detail(403, Some("INVALID_TOKEN"));
    assert_eq!(api.call("POST", "/api/nowhere").await.status, 404);
    for path in [BACKHAUL, CONTROL] {
        dial(&api, path.trim_end_matches('/')).await.expect("a socket without the slash");
    }
}

#[tokio::test]
async fn alpamon_registers_works_and_unregisters() {
    let workspace = Workspace::new().await;
    let token = json!({"name": "fleet", "uses": 2});
    let token = workspace.admin.post("/api/servers/registration-tokens/", &token).await.expect(201);
    let key = token["key"].as_str().unwrap();
    let server = Alpamon::register(&workspace, key, "Web-1").await.expect(201);
    let twin = Alpamon::register(&workspace, key, "web-1").await.expect(201);
    for (server, name) in [(&server, "web-1"), (&twin, "web-1-2")] {
        assert_eq!(server["name"], name);
        assert_eq!(server.as_object().unwrap().keys().collect::<Vec<_>>(), ["id", "key", "name"]);
    }
    Alpamon::register(&workspace, key, "web-2").await.expect_detail(403, Some("INVALID_TOKEN"));

    let agent = Alpamon::connect(&workspace, &server, fast_clock()).await;
    wait_for_facts(&workspace, &server, &Host::default()).await;
    let id = request_command(&workspace, &json!({"server": "web-1", "line": "work"})).await;
    assert_eq!(wait_until_ended(&workspace, &id).await["result"], "work\n");
    agent.until_idle(LONG_TIMEOUT).await;
    assert_no_complaints(&agent);

    // Another program on the same host unregisters the server while the agent runs.
    let path = format!("/api/servers/servers/{}/", server["id"].as_str().unwrap());
    let of_another = workspace
        .anonymous
        .with_authorization(&credential(&twin))
        .delete(&format!("{path}unregister/"))
        .await;
    of_another.expect_detail(404, None);
    Alpamon::unregister(&workspace, &server).await.expect(204);
    workspace.admin.get(&path).await.expect_detail(404, None);
    agent
        .until("its sockets to be closed and refused", |log| {
            !log.is_open(BACKHAUL) && !log.is_open(CONTROL) && log.refused.contains(&Some(403))
        })
        .await;
    let log = agent.log();
    assert!(
        log.sockets.iter().all(|socket| socket.end != Some(SocketEnd::Quit)),
        "{:?}",
        log.sockets
    );
    agent.api().get("/api/servers/servers/-/").await.expect_detail(403, Some("INVALID_TOKEN"));
    Alpamon::unregister(&workspace, &server).await.expect_detail(403, Some("INVALID_TOKEN"));

    // The agent can also unregister with the path for its own server. The name is free again.
    let twin = workspace.anonymous.with_authorization(&credential(&twin));
    twin.delete("/api/servers/servers/-/unregister/").await.expect(204);
    twin.get("/api/servers/servers/-/").await.expect_detail(403, Some("INVALID_TOKEN"));
    workspace.server("web-1").await;
}

#[tokio::test]
async fn reports_of_agents_read_nothing_from_d1() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let token = json!({"name": "fleet"});
    let token = workspace.admin.post("/api/servers/registration-tokens/", &token).await.expect(201);
    let registered = Alpamon::register(&workspace, token["key"].as_str().unwrap(), "registered")
        .await
        .expect(201);
    let created = workspace.server("created").await;
    // With another hash in D1, every check of a key against D1 fails.
    instance.d1("UPDATE servers SET agent_key_hash = 'another'");
    for server in [&created, &registered] {
        let agent = Alpamon::connect(&workspace, server, fast_clock()).await;
        let id =
            request_command(&workspace, &json!({"server": server["id"], "line": "work"})).await;
        assert_eq!(wait_until_ended(&workspace, &id).await["result"], "work\n");
        agent
            .until("a heartbeat", |log| {
                log.calls.iter().any(|call| call.path.ends_with("/status/"))
            })
            .await;
        agent.until_idle(LONG_TIMEOUT).await;
        assert_no_complaints(&agent);
        agent.leave().await;
        // Now the service already has the host's facts.
        let agent = Alpamon::connect(&workspace, server, fast_clock()).await;
        agent
            .until("the end of its start", |log| {
                log.calls.iter().any(|call| call.path.ends_with("/access-policy/"))
            })
            .await;
        agent.until_idle(LONG_TIMEOUT).await;
        assert_no_complaints(&agent);
    }
    let of_agents: HashSet<&str> = ROUTES
        .iter()
        .filter(|route| route.access == Access::Agent)
        .map(|route| route.path)
        .collect();
    let log = std::fs::read_to_string(instance.state.join("worker.log")).unwrap();
    let lines =
        log.lines().filter_map(|line| serde_json::from_str::<Value>(&line[line.find('{')?..]).ok());
    let lines: Vec<Value> = lines
        .filter(|line| line["route"].as_str().is_some_and(|route| of_agents.contains(route)))
        .collect();
    let routes: HashSet<&str> = lines.iter().map(|line| line["route"].as_str().unwrap()).collect();
    assert!(routes.len() >= 10, "{routes:?}");
    for line in &lines {
        assert_eq!((&line["d1_calls"], &line["rows_read"]), (&json!(0), &json!(0)), "{line}");
    }
}

#[tokio::test]
async fn late_reports_count_and_dropped_ones_leave_stuck_commands() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let (patient, hasty_one) = (workspace.server("patient").await, workspace.server("hasty").await);
    let runs = |order: &Value| CommandScript {
        is_held: true,
        ..CommandScript::writing(["begun\n", order["line"].as_str().unwrap()])
    };
    // The restart takes an unknown time. The patient agent retries for two minutes, and the hasty
    // one gives up after a second.
    let second = Duration::from_secs(4);
    let patient_agent = Alpamon::connect(
        &workspace,
        &patient,
        AgentBehaviour { second, runs: Box::new(runs), ..AgentBehaviour::default() },
    )
    .await;
    let hasty_agent = Alpamon::connect(
        &workspace,
        &hasty_one,
        AgentBehaviour { runs: Box::new(runs), ..fast_clock() },
    )
    .await;
    let mut late = Vec::new();
    for number in 0..6 {
        late.push(
            request_command(
                &workspace,
                &json!({"server": "patient", "line": format!("late {number}")}),
            )
            .await,
        );
    }
    let lost =
        request_command(&workspace, &json!({"server": "hasty", "line": "lost", "timeout": 1}))
            .await;
    for (agent, ids) in [(&patient_agent, late.len()), (&hasty_agent, 1)] {
        agent
            .until("all reports before the end", |log| {
                log.calls.iter().filter(|call| call.path.ends_with("/chunk/")).count() == 2 * ids
                    && log.calls.iter().filter(|call| call.path.ends_with("/ack/")).count() == ids
            })
            .await;
        assert_no_complaints(agent);
    }

    let port = instance.port();
    instance.kill().await;
    patient_agent.release();
    hasty_agent.release();
    hasty_agent.until("the report to be dropped", |log| log.dropped.len() == 1).await;
    patient_agent
        .until("reports to fail", |log| log.calls.iter().any(|call| call.path.ends_with("/fin/")))
        .await;
    let _instance = Instance::restart_at(port, state.path(), &[]).await;

    for (number, id) in late.iter().enumerate() {
        let done = wait_until_ended(&workspace, id).await;
        assert_eq!(
            (&done["status"]["text"], &done["result"]),
            (&json!("Success"), &json!(format!("begun\nlate {number}")))
        );
    }
    patient_agent.until_idle(LONG_TIMEOUT).await;
    let stuck = wait_until_ended(&workspace, &lost).await;
    assert_eq!((&stuck["status"]["text"], &stuck["success"]), (&json!("Stuck"), &json!(false)));

    // Both agents are connected again, and no command was delivered twice.
    for agent in [&patient_agent, &hasty_agent] {
        agent
            .until_within(LONG_TIMEOUT, "both sockets", |log| {
                log.is_open(BACKHAUL) && log.is_open(CONTROL)
            })
            .await;
        let log = agent.log();
        assert_eq!((log.repeated, log.warnings), (vec![], vec![]));
        let answered = log.calls.iter().filter(|call| call.status.is_some());
        let refused: Vec<_> = answered.filter(|call| !call.is_success()).collect();
        assert!(refused.is_empty(), "{refused:?}");
    }
    assert_eq!(patient_agent.log().dropped, Vec::<String>::new());
    let fins = patient_agent
        .log()
        .calls
        .into_iter()
        .filter(|call| call.path.ends_with("/fin/") && call.is_success());
    assert_eq!(fins.count(), late.len(), "each fin was accepted when it first arrived");
    for name in ["patient", "hasty"] {
        let id = request_command(&workspace, &json!({"server": name, "line": "again"})).await;
        assert_eq!(wait_until_ended(&workspace, &id).await["result"], "begun\nagain");
    }
}
