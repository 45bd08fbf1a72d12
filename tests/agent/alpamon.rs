//! An unmodified Alpamon 2.x (agent-protocol): its start, its day's work, and what it reports late.
//! Whatever it does, it sees nothing that its log would complain of.

use std::collections::HashSet;
use std::time::Duration;

use farhand_domain::endpoints::{Access, ROUTES};
use farhand_tests::agents::{ScriptedAgent, credential, dial, wait_until_connected};
use farhand_tests::alpamon::{
    AgentBehaviour, Alpamon, BACKHAUL, CONTROL, CommandScript, Host, SocketEnd,
};
use farhand_tests::commands::{wait_for_command_within, wait_until_ended_within};
use farhand_tests::{Instance, Workspace, eventually};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

const PATH: &str = "/api/events/commands/";
/// How long a test waits for what takes its time on a slow machine.
const LONG: Duration = Duration::from_secs(240);

/// AgentBehaviour of an agent whose clock is fast.
fn hasty() -> AgentBehaviour {
    AgentBehaviour { second: Duration::from_millis(20), ..AgentBehaviour::default() }
}

#[track_caller]
fn check_clean(agent: &Alpamon) {
    assert_eq!(agent.log().complaints(), Vec::<String>::new());
}

/// ScriptChooser a command; returns its id.
async fn create(workspace: &Workspace, body: &Value) -> String {
    workspace.admin.post(PATH, body).await.expect(201)["id"].as_str().unwrap().to_owned()
}

/// A command once it has ended.
async fn wait_until_ended(workspace: &Workspace, id: &str) -> Value {
    wait_until_ended_within(LONG, &workspace.admin, id).await
}

/// Waits until a server shows a host's facts.
async fn shows(workspace: &Workspace, server: &Value, host: &Host) {
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
    assert!(in_time, "{expected} does not show in {shown}");
}

#[tokio::test]
async fn one_that_was_never_here_commits() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let agent = Alpamon::connect(&workspace, &server, hasty()).await;
    wait_until_connected(&workspace, server["id"].as_str().unwrap(), true).await;
    shows(&workspace, &server, &Host::default()).await;
    agent.until_idle(LONG).await;
    // Five minutes of its clock are over: heartbeats come.
    agent
        .until("a heartbeat", |log| {
            log.calls_of("PATCH", "/api/servers/servers/-/status/").next().is_some()
        })
        .await;
    let log = agent.log();
    assert_eq!(log.commissioned, Some(false));
    assert_eq!(log.calls_of("PUT", "/api/servers/servers/-/commit/").count(), 1);
    assert_eq!(log.calls_of("POST", "/api/events/events/").count(), 2, "started, and committed");
    check_clean(&agent);
    agent.leave().await;
    wait_until_connected(&workspace, server["id"].as_str().unwrap(), false).await;
}

#[tokio::test]
async fn one_that_was_here_before_tells_what_changed() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let first = Alpamon::connect(&workspace, &server, hasty()).await;
    shows(&workspace, &server, &Host::default()).await;
    first.leave().await;

    let host = Host {
        version: "2.2.0".into(),
        load: 1.5,
        cores: 16,
        memory: 64 << 30,
        os_version: "26.04".into(),
    };
    let agent =
        Alpamon::connect(&workspace, &server, AgentBehaviour { host: host.clone(), ..hasty() })
            .await;
    shows(&workspace, &server, &host).await;
    agent
        .until("the end of its start", |log| {
            log.calls.iter().any(|call| call.path.ends_with("/access-policy/"))
        })
        .await;
    agent.until_idle(LONG).await;
    let log = agent.log();
    assert_eq!(log.commissioned, Some(true));
    assert_eq!(log.calls_of("PUT", "/api/servers/servers/-/commit/").count(), 0);
    assert_eq!(log.calls_of("PATCH", "/api/servers/servers/-/sync/").count(), 1);
    check_clean(&agent);
}

/// An older version asks for each category, and tells its facts by the methods that it has for what
/// is there and what is not.
#[tokio::test]
async fn facts_are_taken_by_any_method() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let agent = workspace.anonymous.with(&credential(&server));
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

/// What the command with a number writes, and how it ends.
fn work(number: usize) -> CommandScript {
    let line = format!("{number}: ärger 日本 🦀 ");
    let mut pieces: Vec<String> =
        (0..number % 5).map(|piece| format!("{line}{piece}\n").repeat(number % 11 + 1)).collect();
    if number.is_multiple_of(50) {
        // Many chunks, cut between bytes of a character where nobody pays attention.
        pieces.push("é€🦀x".repeat(2_000));
    }
    CommandScript {
        exit_code: if number.is_multiple_of(7) { 3 } else { 0 },
        ..CommandScript::writing(pieces)
    }
}

/// The number in an order's line.
fn number(order: &Value) -> usize {
    order["line"].as_str().unwrap().trim_start_matches("work ").parse().unwrap()
}

#[tokio::test]
async fn a_days_work() {
    const ALL: usize = 300;
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    // The first wait for the agent; the last are for later.
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
        async move { (number, create(workspace, &body).await) }
    };
    let mut made: Vec<(usize, String)> =
        stream::iter(0..30).map(create).buffer_unordered(4).collect().await;
    let behaviour = AgentBehaviour {
        runs: Box::new(|order| work(number(order))),
        second: Duration::from_millis(100),
        ..AgentBehaviour::default()
    };
    let agent = Alpamon::connect(&workspace, &server, behaviour).await;
    made.extend(stream::iter(30..ALL).map(create).buffer_unordered(8).collect::<Vec<_>>().await);

    let checks = made.iter().map(|(number, id)| {
        let workspace = &workspace;
        async move {
            // An acknowledgement behind much output may come late: then the command is stuck until
            // its end comes.
            let has_result =
                |done: &Value| done["handled_at"].is_string() && done["state"] != "stuck";
            let done =
                wait_for_command_within(LONG, &workspace.admin, id, "the result", has_result).await;
            let run = work(*number);
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
    agent.until_idle(LONG).await;

    let log = agent.log();
    let (came, created): (HashSet<String>, HashSet<String>) =
        (log.ids().into_iter().collect(), made.iter().map(|(_, id)| id.clone()).collect());
    assert_eq!((came, log.delivered.len()), (created, ALL));
    for kind in ["ack", "fin"] {
        assert_eq!(
            log.calls.iter().filter(|call| call.path.ends_with(&format!("/{kind}/"))).count(),
            ALL,
            "{kind}"
        );
    }
    check_clean(&agent);

    // Reports overtook each other, and the output is in order.
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
    assert!(content == work(250).pieces.concat(), "the chunks are not the output");
}

#[tokio::test]
async fn an_older_one_and_odd_output() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let runs = |order: &Value| match order["line"].as_str().unwrap() {
        "odd" => {
            CommandScript::writing(["a\u{0}b\u{0}", "\u{FFFD}\u{FFFD}", "\r\n\u{1b}[0m\u{2028}"])
        }
        "nothing" => CommandScript { exit_code: 1, ..CommandScript::default() },
        // A fin of some MB, as each of these is six bytes in JSON.
        _ => CommandScript::writing([
            "\u{0}".repeat(1 << 20),
            "the last megabyte is all that an agent tells".repeat(1_000),
        ]),
    };
    let behaviour = AgentBehaviour { runs: Box::new(runs), is_older: true, ..hasty() };
    let agent = Alpamon::connect(&workspace, &server, behaviour).await;
    let mut done = Vec::new();
    for line in ["odd", "nothing", "much"] {
        let id = create(&workspace, &json!({"server": "web-1", "line": line})).await;
        done.push(wait_until_ended(&workspace, &id).await);
    }
    agent.until_idle(LONG).await;
    check_clean(&agent);
    let odd = "a\u{0}b\u{0}\u{FFFD}\u{FFFD}\r\n\u{1b}[0m\u{2028}";
    assert_eq!((&done[0]["result"], &done[0]["output_bytes"]), (&json!(odd), &json!(odd.len())));
    assert_eq!((&done[1]["result"], &done[1]["status"]["text"]), (&json!(""), &json!("Failed")));
    for command in &done {
        assert_eq!(command["exit_code"], json!(null));
    }
    // All chunks came by now, though its result was cut.
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
async fn more_than_it_has_room_for_waits_in_the_service() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let runs = |_: &Value| CommandScript { is_held: true, ..CommandScript::writing(["x"]) };
    let agent =
        Alpamon::connect(&workspace, &server, AgentBehaviour { runs: Box::new(runs), ..hasty() })
            .await;
    let body = json!({"server": "web-1", "line": "hold", "on_offline": "queue"});
    let creations = (0..230).map(|_| create(&workspace, &body));
    let ids: Vec<String> = stream::iter(creations).buffer_unordered(8).collect().await;
    agent.until("as many as it has room for", |log| log.delivered.len() >= 200).await;
    agent.release();
    for id in &ids {
        assert_eq!(wait_until_ended(&workspace, id).await["status"]["text"], "Success");
    }
    agent.until_idle(LONG).await;
    assert_eq!(agent.log().delivered.len(), ids.len());
    check_clean(&agent);
}

#[tokio::test]
async fn reports_in_any_order_and_twice() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let chunk = |seq: u32| json!({"seq": seq, "content": format!("{seq};")});
    let fin = json!({"success": true, "result": "0;1;2;", "elapsed_time": 0.5, "exit_code": 0});
    let delivered: [&[(&str, Option<Value>)]; 3] = [
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
    for reports in delivered {
        let id = create(&workspace, &json!({"server": "web-1", "line": "id"})).await;
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
async fn of_another_servers_command_nothing_is_taken() {
    let workspace = Workspace::new().await;
    let (own, other) = (workspace.server("own").await, workspace.server("other").await);
    let mut agent = ScriptedAgent::connect(&workspace, &own).await;
    let stranger = ScriptedAgent::connect(&workspace, &other).await;
    let id = create(&workspace, &json!({"server": "own", "line": "id"})).await;
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
async fn reports_of_no_use_are_taken_at_once() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let agent = Alpamon::connect(&workspace, &server, hasty()).await;
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
    agent.until_idle(LONG).await;
    check_clean(&agent);
}

#[tokio::test]
async fn whatever_slash_is_missing_it_is_never_redirected() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let id = create(&workspace, &json!({"server": "web-1", "line": "id"})).await;
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
    // Nor is one whose key is wrong, or who asks for what is not there.
    let wrong = workspace.anonymous.with(&credential(&json!({"id": server["id"], "key": "wrong"})));
    wrong.call("POST", "/api/events/events").await.expect_detail(403, Some("INVALID_TOKEN"));
    assert_eq!(api.call("POST", "/api/nowhere").await.status, 404);
    for path in [BACKHAUL, CONTROL] {
        dial(&api, path.trim_end_matches('/')).await.expect("a socket without the slash");
    }
}

#[tokio::test]
async fn one_registers_itself_works_and_unregisters() {
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

    let agent = Alpamon::connect(&workspace, &server, hasty()).await;
    shows(&workspace, &server, &Host::default()).await;
    let id = create(&workspace, &json!({"server": "web-1", "line": "work"})).await;
    assert_eq!(wait_until_ended(&workspace, &id).await["result"], "work\n");
    agent.until_idle(LONG).await;
    check_clean(&agent);

    // Another program on its host unregisters it while it runs.
    let path = format!("/api/servers/servers/{}/", server["id"].as_str().unwrap());
    let of_another =
        workspace.anonymous.with(&credential(&twin)).delete(&format!("{path}unregister/")).await;
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

    // The other form of the path; and the name is free again.
    let twin = workspace.anonymous.with(&credential(&twin));
    twin.delete("/api/servers/servers/-/unregister/").await.expect(204);
    twin.get("/api/servers/servers/-/").await.expect_detail(403, Some("INVALID_TOKEN"));
    workspace.server("web-1").await;
}

#[tokio::test]
async fn its_reports_cost_no_read_of_d1() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
    let token = json!({"name": "fleet"});
    let token = workspace.admin.post("/api/servers/registration-tokens/", &token).await.expect(201);
    let registered = Alpamon::register(&workspace, token["key"].as_str().unwrap(), "registered")
        .await
        .expect(201);
    let created = workspace.server("created").await;
    // Who asks D1 for the key of an agent is misled.
    instance.d1("UPDATE servers SET agent_key_hash = 'another'");
    for server in [&created, &registered] {
        let agent = Alpamon::connect(&workspace, server, hasty()).await;
        let id = create(&workspace, &json!({"server": server["id"], "line": "work"})).await;
        assert_eq!(wait_until_ended(&workspace, &id).await["result"], "work\n");
        agent
            .until("a heartbeat", |log| {
                log.calls.iter().any(|call| call.path.ends_with("/status/"))
            })
            .await;
        agent.until_idle(LONG).await;
        check_clean(&agent);
        agent.leave().await;
        // As the one that was here before.
        let agent = Alpamon::connect(&workspace, server, hasty()).await;
        agent
            .until("the end of its start", |log| {
                log.calls.iter().any(|call| call.path.ends_with("/access-policy/"))
            })
            .await;
        agent.until_idle(LONG).await;
        check_clean(&agent);
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
    let told: HashSet<&str> = lines.iter().map(|line| line["route"].as_str().unwrap()).collect();
    assert!(told.len() >= 10, "{told:?}");
    for line in &lines {
        assert_eq!((&line["d1_calls"], &line["rows_read"]), (&json!(0), &json!(0)), "{line}");
    }
}

#[tokio::test]
async fn what_is_late_after_an_outage_is_taken_and_what_was_dropped_ends_as_stuck() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
    let (patient, hasty_one) = (workspace.server("patient").await, workspace.server("hasty").await);
    let runs = |order: &Value| CommandScript {
        is_held: true,
        ..CommandScript::writing(["begun\n", order["line"].as_str().unwrap()])
    };
    // The service may take some time to come back. One still tries after two minutes, the other
    // gives up in a second.
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
        AgentBehaviour { runs: Box::new(runs), ..hasty() },
    )
    .await;
    let mut late = Vec::new();
    for number in 0..6 {
        late.push(
            create(&workspace, &json!({"server": "patient", "line": format!("late {number}")}))
                .await,
        );
    }
    let lost = create(&workspace, &json!({"server": "hasty", "line": "lost", "timeout": 1})).await;
    for (agent, ids) in [(&patient_agent, late.len()), (&hasty_agent, 1)] {
        agent
            .until("all that comes before the end", |log| {
                log.calls.iter().filter(|call| call.path.ends_with("/chunk/")).count() == 2 * ids
                    && log.calls.iter().filter(|call| call.path.ends_with("/ack/")).count() == ids
            })
            .await;
        check_clean(agent);
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
    patient_agent.until_idle(LONG).await;
    let stuck = wait_until_ended(&workspace, &lost).await;
    assert_eq!((&stuck["status"]["text"], &stuck["success"]), (&json!("Stuck"), &json!(false)));

    // Both are back, and nothing came twice.
    for agent in [&patient_agent, &hasty_agent] {
        agent
            .until_within(LONG, "both sockets", |log| log.is_open(BACKHAUL) && log.is_open(CONTROL))
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
    assert_eq!(fins.count(), late.len(), "each was taken the first time that it arrived");
    for name in ["patient", "hasty"] {
        let id = create(&workspace, &json!({"server": name, "line": "again"})).await;
        assert_eq!(wait_until_ended(&workspace, &id).await["result"], "begun\nagain");
    }
}
