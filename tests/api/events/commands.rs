//! `/api/events/commands/` (contract 7 and 8).

use std::time::{Duration, Instant};

use farhand_domain::time::Timestamp;
use farhand_tests::agents::{ScriptedAgent, wait_until_connected};
use farhand_tests::{Events, Instance, Workspace, eventually, eventually_within, far_ahead, now};
use serde_json::{Value, json};

pub const PATH: &str = "/api/events/commands/";

pub async fn workspace_with_agent() -> (Workspace, Value, ScriptedAgent) {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let agent = ScriptedAgent::connect(&workspace, &server).await;
    (workspace, server, agent)
}

pub fn path_of(command: &Value) -> String {
    format!("{PATH}{}/", command["id"].as_str().unwrap())
}

pub fn id_of(command: &Value) -> &str {
    command["id"].as_str().unwrap()
}

/// Reads a command, and waits until the list shows the same. The list may be up to a second behind.
pub async fn read(workspace: &Workspace, command: &Value) -> Value {
    let one = workspace.admin.get(&path_of(command)).await.expect(200);
    eventually("the list to show the same", || async {
        let list = workspace.admin.get(&format!("{PATH}?page_size=100")).await.expect(200);
        let item = list["results"]
            .as_array()
            .unwrap()
            .iter()
            .find(|item| item["id"] == command["id"])
            .cloned();
        (item.expect("the command is in the list") == one).then_some(())
    })
    .await;
    one
}

#[track_caller]
pub fn assert_status(command: &Value, text: &str, color: &str, cancellable: bool) {
    let status = &command["status"];
    assert_eq!(
        (&status["text"], &status["color"], &status["cancellable"]),
        (&json!(text), &json!(color), &json!(cancellable))
    );
    assert!(status["message"].as_str().is_some_and(|message| !message.is_empty()), "{status}");
    assert_eq!(status.as_object().unwrap().len(), 4, "{status}");
}

#[track_caller]
pub fn time_of(command: &Value, field: &str) -> Timestamp {
    Timestamp::parse(command[field].as_str().unwrap_or_else(|| panic!("{field}: {command}")))
        .unwrap()
}

#[tokio::test]
async fn a_command_runs_from_post_to_result() {
    let (workspace, server, mut agent) = workspace_with_agent().await;
    let me = workspace.admin.get("/api/iam/users/-/").await.expect(200);
    let body = json!({"server": server["id"], "line": "uname -a | tr a-z A-Z", "username": "deploy", "groupname": "www"});
    let made = workspace.admin.post(PATH, &body).await.expect(201);
    assert_status(&made, "Sent", "warning", false);
    assert_eq!(
        (&made["line"], &made["shell"]),
        (&json!("uname -a | tr a-z A-Z"), &json!("system"))
    );
    assert_eq!((&made["server"], &made["server_name"]), (&server["id"], &json!("web-1")));
    assert_eq!(
        (&made["username"], &made["groupname"], &made["timeout"]),
        (&json!("deploy"), &json!("www"), &json!(1800))
    );
    assert_eq!(
        made["requested_by"],
        json!({"id": me["id"], "username": "boss", "email": "boss@example.com"})
    );
    assert_eq!(made["added_at"], made["scheduled_at"]);
    assert_eq!(time_of(&made, "expires_at").seconds_since(time_of(&made, "scheduled_at")), 3600.0);
    for unknown in [
        "success",
        "result",
        "exit_code",
        "elapsed_time",
        "response_delay",
        "acked_at",
        "handled_at",
    ] {
        assert_eq!(made[unknown], json!(null), "{unknown}");
    }
    assert_eq!(read(&workspace, &made).await, made, "POST and GET return the same");

    // The message to the agent:
    let order = agent.next_command().await;
    let expected = json!({
        "id": made["id"], "shell": "system", "line": "uname -a | tr a-z A-Z", "user": "deploy", "group": "www",
        "env": null, "allow_sh": true, "data": null, "requested_by": "boss",
    });
    assert_eq!(order, expected);

    agent.ack(id_of(&made)).await;
    let acked = read(&workspace, &made).await;
    assert_status(&acked, "Acked", "warning", false);
    let delay = acked["response_delay"].as_f64().unwrap();
    assert_eq!(delay, time_of(&acked, "acked_at").seconds_since(time_of(&acked, "delivered_at")));

    agent.chunk(id_of(&made), 0, "LINUX\n").await;
    agent.fin(id_of(&made), 0, "LINUX\n").await;
    let done = read(&workspace, &made).await;
    assert_status(&done, "Success", "success", false);
    assert_eq!(
        (&done["success"], &done["exit_code"], &done["elapsed_time"]),
        (&json!(true), &json!(0), &json!(0.25))
    );
    assert_eq!(
        (&done["result"], &done["result_truncated"], &done["output_bytes"]),
        (&json!("LINUX\n"), &json!(false), &json!(6))
    );
    let moments = ["added_at", "scheduled_at", "delivered_at", "acked_at", "handled_at"]
        .map(|field| time_of(&done, field));
    assert!(moments.is_sorted(), "{done}");
    let mut keys: Vec<&String> = done.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(
        keys,
        [
            "acked_at",
            "added_at",
            "batch",
            "delivered_at",
            "elapsed_time",
            "exit_code",
            "expires_at",
            "groupname",
            "handled_at",
            "id",
            "line",
            "output_bytes",
            "output_skipped",
            "output_truncated",
            "requested_by",
            "response_delay",
            "result",
            "result_truncated",
            "scheduled_at",
            "server",
            "server_name",
            "shell",
            "state",
            "status",
            "success",
            "timeout",
            "username"
        ]
    );
}

#[tokio::test]
async fn a_server_name_and_the_command_alias_are_accepted() {
    let (workspace, server, mut agent) = workspace_with_agent().await;
    let made =
        workspace.admin.post(PATH, &json!({"server": "web-1", "command": "id"})).await.expect(201);
    assert_eq!(
        (&made["server"], &made["line"], &made["username"]),
        (&server["id"], &json!("id"), &json!("boss"))
    );
    let order = agent.next_command().await;
    assert_eq!(
        (&order["user"], &order["group"]),
        (&json!("boss"), &json!("")),
        "the caller's own account, never root"
    );
    let upper = server["id"].as_str().unwrap().to_uppercase();
    let both =
        json!({"server": upper, "command": "id", "line": "id", "shell": "internal", "timeout": 5});
    let made = workspace.admin.post(PATH, &both).await.expect(201);
    assert_eq!(made["timeout"], 5);
    let order = agent.next_command().await;
    assert_eq!((&order["shell"], &order["allow_sh"]), (&json!("internal"), &json!(false)));
}

#[tokio::test]
async fn a_nonzero_exit_code_means_failed() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let made =
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": "exit 3"})).await.expect(201);
    agent.next_command().await;
    agent.ack(id_of(&made)).await;
    agent.fin(id_of(&made), 3, "").await;
    let done = read(&workspace, &made).await;
    assert_status(&done, "Failed", "danger", false);
    assert_eq!(
        (&done["success"], &done["exit_code"], &done["result"]),
        (&json!(false), &json!(3), &json!(""))
    );
}

#[tokio::test]
async fn an_offline_server_is_503_and_nothing_is_stored() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let command = json!({"server": "web-1", "line": "id"});
    workspace.admin.post(PATH, &command).await.expect_detail(503, Some("SERVER_NOT_CONNECTED"));
    let agent = ScriptedAgent::connect(&workspace, &server).await;
    let id = server["id"].as_str().unwrap();
    farhand_tests::agents::wait_until_connected(&workspace, id, true).await;
    agent.close().await;
    farhand_tests::agents::wait_until_connected(&workspace, id, false).await;
    workspace.admin.post(PATH, &command).await.expect_detail(503, Some("SERVER_NOT_CONNECTED"));
    assert_eq!(workspace.admin.get(PATH).await.expect(200)["count"], 0);
    // The input is checked before the server's state.
    let bad = json!({"server": "web-1", "line": ""});
    workspace.admin.post(PATH, &bad).await.expect_fields(400, &["line"]);
}

#[tokio::test]
async fn invalid_fields_create_no_command() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let with = |changes: Value| {
        let mut body = json!({"server": "web-1", "line": "id"});
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        body
    };
    for (body, wrong) in [
        (json!({}), &["line", "server"][..]),
        (json!({"line": "id"}), &["server"]),
        (json!({"server": "web-1"}), &["line"]),
        (with(json!({"server": "nowhere"})), &["server"]),
        (with(json!({"server": "01936d3e-7a00-7000-8000-000000000000"})), &["server"]),
        (with(json!({"server": 7})), &["server"]),
        (with(json!({"line": ""})), &["line"]),
        (with(json!({"line": " \n\t"})), &["line"]),
        (with(json!({"line": "a\u{0}b"})), &["line"]),
        (with(json!({"line": "x".repeat(16_385)})), &["line"]),
        (with(json!({"line": ["id"]})), &["line"]),
        (with(json!({"command": "ls"})), &["command"]),
        (json!({"server": "web-1", "command": ""}), &["command"]),
        (with(json!({"shell": "bash"})), &["shell"]),
        (with(json!({"shell": "System"})), &["shell"]),
        (with(json!({"username": ""})), &["username"]),
        (with(json!({"username": "a b"})), &["username"]),
        (with(json!({"groupname": "a:b"})), &["groupname"]),
        (with(json!({"timeout": 0})), &["timeout"]),
        (with(json!({"timeout": 86_401})), &["timeout"]),
        (with(json!({"scheduled_at": "2999-01-01T00:00:00"})), &["scheduled_at"]),
        (with(json!({"expires_at": "2020-01-01T00:00:00Z"})), &["expires_at"]),
        (
            with(
                json!({"scheduled_at": "2999-01-01T00:00:00Z", "expires_at": "2998-01-01T00:00:00Z"}),
            ),
            &["expires_at", "scheduled_at"],
        ),
        (with(json!({"scheduled_at": now().plus_seconds(401 * 86_400)})), &["scheduled_at"]),
        (
            with(json!({"scheduled_at": far_ahead(), "expires_at": now().plus_seconds(60)})),
            &["expires_at"],
        ),
        (with(json!({"scheduled_for": "2999-01-01T00:00:00Z"})), &["scheduled_for"]),
        (with(json!({"run_after": [], "data": ""})), &["data", "run_after"]),
        (with(json!({"on_offline": "wait"})), &["on_offline"]),
        (with(json!({"env": {"A": 1}})), &["env"]),
        (with(json!({"env": ["A=b"]})), &["env"]),
        (
            with(json!({"env": [], "line": "", "timeout": "1", "on_offline": 1})),
            &["env", "line", "on_offline", "timeout"],
        ),
    ] {
        let reply = workspace.admin.post(PATH, &body).await;
        reply.expect_fields(400, wrong);
        assert_eq!(reply.json()["code"], "INVALID_COMMAND", "{body}");
        assert_eq!(reply.header("X-Error-Code"), "INVALID_COMMAND", "{body}");
    }
    assert_eq!(workspace.admin.get(PATH).await.expect(200)["count"], 0);
    assert!(agent.stays_silent().await);
    // The longest line arrives complete.
    let longest = "é".repeat(16_384);
    let made = workspace.admin.post(PATH, &with(json!({"line": longest}))).await.expect(201);
    assert_eq!(agent.next_command().await["line"], json!(longest));
    assert_eq!(read(&workspace, &made).await["line"], json!(longest));
}

#[tokio::test]
async fn a_command_is_found_only_by_its_id() {
    let (workspace, _, _agent) = workspace_with_agent().await;
    let other = Workspace::new().await;
    let made =
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": "id"})).await.expect(201);
    other.admin.get(&path_of(&made)).await.expect_detail(404, Some("COMMAND_NOT_FOUND"));
    for missing in ["01936d3e-7a00-7000-8000-000000000000", "nonsense", "-", "1"] {
        workspace
            .admin
            .get(&format!("{PATH}{missing}/"))
            .await
            .expect_detail(404, Some("COMMAND_NOT_FOUND"));
    }
    workspace.admin.get(&path_of(&made)).await.expect(200);
}

#[tokio::test]
async fn the_list_shows_the_latest_first() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    for number in 0..17 {
        let body = json!({"server": "web-1", "line": format!("echo {number}")});
        workspace.admin.post(PATH, &body).await.expect(201);
        assert_eq!(
            agent.next_command().await["line"],
            format!("echo {number}"),
            "commands are delivered in order"
        );
    }
    let lines = |body: &Value| -> Vec<String> {
        body["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["line"].as_str().unwrap().to_owned())
            .collect()
    };
    let expected: Vec<String> = (0..17).rev().map(|number| format!("echo {number}")).collect();
    let first = workspace.admin.get(PATH).await.expect(200);
    assert_eq!((&first["count"], lines(&first).as_slice()), (&json!(17), &expected[..15]));
    let second = workspace.admin.get(&format!("{PATH}?page=2")).await.expect(200);
    assert_eq!((lines(&second).as_slice(), &second["next"]), (&expected[15..], &json!(null)));
    let all = workspace.admin.get(&format!("{PATH}?page_size=100")).await.expect(200);
    assert_eq!(lines(&all), expected);
    workspace.admin.get(&format!("{PATH}?page=3")).await.expect_detail(404, None);
    workspace.admin.get(&format!("{PATH}?page=x")).await.expect_fields(400, &["page"]);
}

#[tokio::test]
async fn waiting_ends_with_the_result_or_the_time_limit() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let post = |wait: &'static str| {
        let request = workspace
            .admin
            .request("POST", PATH)
            .header("Prefer", wait)
            .json(&json!({"server": "web-1", "line": "id"}));
        workspace.admin.send(request)
    };
    let (reply, ()) = futures_util::join!(post("wait=30"), async {
        let id = agent.next_command().await["id"].as_str().unwrap().to_owned();
        agent.ack(&id).await;
        agent.fin(&id, 0, "done").await;
    });
    let done = reply.expect(201);
    assert_eq!((&done["status"]["text"], &done["result"]), (&json!("Success"), &json!("done")));

    let late = post("wait=1").await.expect(201);
    assert_status(&late, "Sent", "warning", false);
    let id = id_of(&late).to_owned();
    let waiting = format!("{PATH}{id}/?wait=30");
    let (reply, ()) = futures_util::join!(workspace.admin.get(&waiting), async {
        agent.next_command().await;
        agent.fin(&id, 1, "late").await;
    });
    assert_status(&reply.expect(200), "Failed", "danger", false);
    // For an ended command, `wait` returns immediately. An invalid value is rejected.
    workspace.admin.get(&format!("{PATH}{id}/?wait=60")).await.expect(200);
    for bad in ["61", "-1", "x", ""] {
        workspace.admin.get(&format!("{PATH}{id}/?wait={bad}")).await.expect_fields(400, &["wait"]);
    }
}

#[tokio::test]
async fn reports_may_come_late_twice_and_in_any_order() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let run = async |reports: &[&str], agent: &mut ScriptedAgent| {
        let made =
            workspace.admin.post(PATH, &json!({"server": "web-1", "line": "id"})).await.expect(201);
        agent.next_command().await;
        for report in reports {
            match *report {
                "ack" => agent.ack(id_of(&made)).await,
                "fin" => agent.fin(id_of(&made), 0, "onetwo").await,
                "other fin" => agent.fin(id_of(&made), 9, "other").await,
                "0" => agent.chunk(id_of(&made), 0, "one").await,
                "1" => agent.chunk(id_of(&made), 1, "two").await,
                other => panic!("{other}"),
            }
        }
        let mut done = read(&workspace, &made).await;
        let moments = ["delivered_at", "acked_at", "handled_at"].map(|field| time_of(&done, field));
        assert!(moments.is_sorted(), "{done}");
        // Fields that differ between two commands.
        for own in [
            "id",
            "added_at",
            "scheduled_at",
            "expires_at",
            "delivered_at",
            "acked_at",
            "handled_at",
            "response_delay",
        ] {
            done[own] = json!(null);
        }
        done["status"]["message"] = json!(null);
        done
    };
    let usual = run(&["ack", "0", "1", "fin"], &mut agent).await;
    assert_eq!((&usual["result"], &usual["output_bytes"]), (&json!("onetwo"), &json!(6)));
    for order in [
        &["fin", "ack", "1", "0"][..],
        &["1", "fin", "0", "ack"],
        &["ack", "ack", "0", "0", "1", "1", "fin", "fin"],
        &["0", "1", "fin", "other fin", "ack"],
    ] {
        assert_eq!(run(order, &mut agent).await, usual, "{order:?}");
    }
}

#[tokio::test]
async fn a_missing_result_is_built_from_chunks() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    for fin in [json!({"success": true}), json!({"success": true, "result": "", "elapsed_time": 1})]
    {
        let made =
            workspace.admin.post(PATH, &json!({"server": "web-1", "line": "id"})).await.expect(201);
        agent.next_command().await;
        agent.chunk(id_of(&made), 1, "\u{1F980} two").await;
        agent.report(id_of(&made), "fin", Some(&fin)).await.expect(204);
        agent.chunk(id_of(&made), 0, "one\u{0}\n").await;
        let done = read(&workspace, &made).await;
        assert_eq!(
            (&done["result"], &done["output_bytes"]),
            (&json!("one\u{0}\n\u{1F980} two"), &json!(13))
        );
        assert_eq!(done["exit_code"], json!(null));
    }
}

#[tokio::test]
async fn long_output_is_cut_and_marked() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let finish = async |output: String, agent: &mut ScriptedAgent| {
        let made =
            workspace.admin.post(PATH, &json!({"server": "web-1", "line": "id"})).await.expect(201);
        agent.next_command().await;
        agent.fin(id_of(&made), 0, &output).await;
        made
    };
    // Longer than in a list, but complete in the command itself.
    let middling = "é".repeat(4_097);
    let made = finish(middling.clone(), &mut agent).await;
    let one = workspace.admin.get(&path_of(&made)).await.expect(200);
    assert_eq!((&one["result"], &one["result_truncated"]), (&json!(middling), &json!(false)));
    let item = eventually("the list", || async {
        let list = workspace.admin.get(PATH).await.expect(200);
        Some(list["results"][0].clone()).filter(|item| item["result"].is_string())
    })
    .await;
    assert_eq!(
        (&item["result"], &item["result_truncated"]),
        (&json!("é".repeat(4_096)), &json!(true))
    );
    assert_eq!(item["output_bytes"], 2 * 4_097);
    // Longer than the stored maximum.
    let long = format!("head{}tail", "x".repeat(3 << 20));
    let made = finish(long.clone(), &mut agent).await;
    let one = workspace.admin.get(&path_of(&made)).await.expect(200);
    let result = one["result"].as_str().unwrap();
    assert!(
        result.len() <= 256 * 1024 && result.starts_with("head") && result.ends_with("tail"),
        "{}",
        result.len()
    );
    assert!(result.contains(" bytes cut ..."));
    assert_eq!(
        (&one["result_truncated"], &one["output_bytes"]),
        (&json!(true), &json!(long.len()))
    );
}

#[tokio::test]
async fn only_the_servers_own_agent_can_report() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let other = workspace.server("web-2").await;
    let stranger = ScriptedAgent::connect(&workspace, &other).await;
    let made =
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": "id"})).await.expect(201);
    agent.next_command().await;
    let fin = json!({"success": true, "result": "forged", "elapsed_time": 0, "exit_code": 0});
    stranger.report(id_of(&made), "ack", None).await.expect_detail(404, None);
    stranger
        .report(id_of(&made), "chunk", Some(&json!({"seq": 0, "content": "forged"})))
        .await
        .expect_detail(404, None);
    stranger.report(id_of(&made), "fin", Some(&fin)).await.expect_detail(404, None);
    assert_status(&read(&workspace, &made).await, "Sent", "warning", false);
}

#[tokio::test]
async fn reconnects_lose_and_repeat_no_command() {
    let (workspace, server, agent) = workspace_with_agent().await;
    let bodies: Vec<Value> = (0..30)
        .map(|number| json!({"server": "web-1", "line": format!("echo {number}")}))
        .collect();
    let posts = async {
        let mut replies = Vec::new();
        for body in &bodies {
            replies.push(workspace.admin.post(PATH, body).await);
        }
        replies
    };
    // The agent reconnects repeatedly, and records the commands of each socket.
    let churn = async {
        let (mut agent, mut delivered) = (agent, Vec::new());
        for _ in 0..10 {
            let newer = ScriptedAgent::connect(&workspace, &server).await;
            while let Ok(message) = agent.next().await {
                // From the fourth connection on, the service first checks whether the older one is
                // alive.
                if message["query"] != "ping" {
                    delivered.push(message["command"]["id"].as_str().unwrap().to_owned());
                }
            }
            agent = newer;
        }
        (agent, delivered)
    };
    let (replies, (mut last, mut delivered)) = futures_util::join!(posts, churn);
    let mut accepted: Vec<String> = Vec::new();
    for reply in &replies {
        match reply.status {
            201 => accepted.push(id_of(&reply.json()).to_owned()),
            _ => reply.expect_detail(503, Some("SERVER_NOT_CONNECTED")),
        }
    }
    // Earlier commands on the last socket arrive before this one.
    let end =
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": "end"})).await.expect(201);
    accepted.push(id_of(&end).to_owned());
    while delivered.last().is_none_or(|id| id != id_of(&end)) {
        delivered.push(id_of(&last.next_command().await).to_owned());
    }
    let mut once = delivered.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), delivered.len(), "no command is delivered twice");
    let list = workspace.admin.get(&format!("{PATH}?page_size=100")).await.expect(200);
    let mut listed: Vec<String> = list["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|command| id_of(command).to_owned())
        .collect();
    listed.sort();
    accepted.sort();
    assert_eq!(listed, accepted, "the list has exactly the accepted commands");
    assert!(delivered.iter().all(|id| accepted.contains(id)));
}

#[tokio::test]
async fn accepted_commands_survive_a_crash() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let mut accepted = Vec::new();
    for number in 0..6 {
        let body = json!({"server": "web-1", "line": format!("echo {number}")});
        let made = workspace.admin.post(PATH, &body).await.expect(201);
        agent.next_command().await;
        if number % 3 > 0 {
            agent.ack(id_of(&made)).await;
        }
        if number % 3 > 1 {
            agent.fin(id_of(&made), 0, "done").await;
        }
        accepted.push(made);
    }
    instance.kill().await;

    let instance = Instance::restart(state.path()).await;
    let api = workspace.admin.with_url(&instance.url);
    for (number, made) in accepted.iter().enumerate() {
        let found = api.get(&path_of(made)).await.expect(200);
        // An unacknowledged command is stuck after a minute, which a slow machine may need for the
        // restart.
        let expected: &[&str] = [&["Sent", "Stuck"][..], &["Acked"], &["Success"]][number % 3];
        assert!(
            expected.contains(&found["status"]["text"].as_str().unwrap()),
            "a report was lost: {found}"
        );
    }
    // The agent's socket is lost, but its reports are accepted.
    api.post(PATH, &json!({"server": "web-1", "line": "id"}))
        .await
        .expect_detail(503, Some("SERVER_NOT_CONNECTED"));
    eventually("the connection's end", || async {
        (api.get("/api/servers/").await.expect(200)["results"][0]["is_connected"] == false)
            .then_some(())
    })
    .await;
    let agent_api = agent.api.with_url(&instance.url);
    let fin = json!({"success": true, "result": "late", "elapsed_time": 1.0, "exit_code": 0});
    for unacknowledged in [&accepted[0], &accepted[3]] {
        agent_api.post(&format!("{}fin/", path_of(unacknowledged)), &fin).await.expect(204);
    }
    assert_eq!(api.get(&path_of(&accepted[0])).await.expect(200)["result"], "late");
    assert_eq!(api.get(PATH).await.expect(200)["count"], 6);
    // A new socket delivers no command again.
    let mut again = ScriptedAgent::connect_to(&agent_api, "/ws/servers/backhaul/").await;
    assert!(again.stays_silent().await);
    api.post(PATH, &json!({"server": "web-1", "line": "new"})).await.expect(201);
    assert_eq!(again.next_command().await["line"], "new");
}

#[tokio::test]
async fn commands_posted_together_run_once_each() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let bodies: Vec<Value> = (0..20)
        .map(|number| json!({"server": "web-1", "line": format!("echo {number}")}))
        .collect();
    let replies =
        futures_util::future::join_all(bodies.iter().map(|body| workspace.admin.post(PATH, body)))
            .await;
    let mut accepted: Vec<String> =
        replies.iter().map(|reply| id_of(&reply.expect(201)).to_owned()).collect();
    let mut delivered = Vec::new();
    for _ in 0..20 {
        delivered.push(id_of(&agent.next_command().await).to_owned());
    }
    assert!(agent.stays_silent().await);
    accepted.sort();
    delivered.sort();
    assert_eq!(accepted, delivered);
    assert_eq!(workspace.admin.get(PATH).await.expect(200)["count"], 20);
}

#[tokio::test]
async fn an_unacknowledged_command_is_stuck_without_requests() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    for _ in 0..3 {
        workspace
            .admin
            .post(PATH, &json!({"server": "web-1", "line": "earlier"}))
            .await
            .expect(201);
        agent.next_command().await;
    }
    let made =
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": "id"})).await.expect(201);
    agent.next_command().await;
    // The list reads only D1, so only its alarm makes the server's object run.
    let stuck = eventually_within(Duration::from_secs(90), "the command to be stuck", || async {
        let item = workspace.admin.get(PATH).await.expect(200)["results"][0].clone();
        (item["status"]["text"] == "Stuck").then_some(item)
    })
    .await;
    assert_status(&stuck, "Stuck", "danger", false);
    assert_eq!(
        (&stuck["success"], &stuck["acked_at"], &stuck["result"]),
        (&json!(false), &json!(null), &json!(null))
    );
    let waited = time_of(&stuck, "handled_at").seconds_since(time_of(&stuck, "delivered_at"));
    assert!(waited >= 60.0, "{waited}");
    assert_eq!(read(&workspace, &made).await, stuck);
    // The service pings the agent once for all unacknowledged commands.
    assert_eq!(agent.next().await, Ok(json!({"query": "ping"})));
    assert!(tokio::time::timeout(Duration::from_millis(500), agent.next()).await.is_err());
    agent.send(&json!({"query": "pong", "timestamp": 1.5})).await;
    // A late result counts.
    agent.fin(id_of(&made), 0, "late").await;
    let done = read(&workspace, &made).await;
    assert_status(&done, "Success", "success", false);
    assert!(time_of(&done, "handled_at") > time_of(&stuck, "handled_at"));
}

#[tokio::test]
async fn a_command_that_d1_rejects_is_not_accepted() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    wait_until_connected(&workspace, server["id"].as_str().unwrap(), true).await;
    let body = |line: &str| json!({"server": "web-1", "line": line});
    let queued = json!({"server": "web-1", "line": "queued", "on_offline": "queue"});
    let lock = instance.lock_d1().await;
    // D1 accepts neither the insertion nor, for a while, its deletion.
    for body in [&body("lost"), &queued] {
        workspace.admin.post(PATH, body).await.expect_detail(500, None);
    }
    assert!(agent.stays_silent().await);
    drop(lock);
    let made = eventually("D1 to accept writes", || async {
        let reply = workspace.admin.post(PATH, &body("id")).await;
        (reply.status == 201).then(|| reply.json())
    })
    .await;
    assert_eq!(agent.next_command().await["id"], made["id"]);
    assert!(agent.stays_silent().await);
    assert_eq!(workspace.admin.get(PATH).await.expect(200)["count"], 1);
}

/// A command's item in the list.
async fn list_item(workspace: &Workspace, id: &str) -> Value {
    let list = workspace.admin.get(&format!("{PATH}?page_size=100")).await.expect(200);
    list["results"]
        .as_array()
        .unwrap()
        .iter()
        .find(|item| item["id"] == id)
        .cloned()
        .expect("the command is in the list")
}

#[tokio::test]
async fn a_command_without_account_uses_the_servers() {
    let (workspace, server, mut agent) = workspace_with_agent().await;
    let path = format!("/api/servers/servers/{}/", id_of(&server));
    let member = workspace.user("ann").await;
    let group = workspace
        .admin
        .post("/api/iam/groups/", &json!({"name": "ops", "servers": [server["id"]]}))
        .await;
    let ann =
        workspace.admin.get("/api/iam/users/?username=ann").await.expect(200)["results"][0]["id"]
            .clone();
    let membership = json!({"group": group.expect(201)["id"], "user": ann, "role": "member"});
    workspace.admin.post("/api/iam/memberships/", &membership).await.expect(201);
    let mut runs_as = async |api: &farhand_tests::Api| {
        let made = api.post(PATH, &json!({"server": "web-1", "line": "id"})).await.expect(201);
        let order = agent.next_command().await;
        assert_eq!(order["user"], made["username"]);
        agent.fin(id_of(&made), 0, "").await;
        made["username"].as_str().unwrap().to_owned()
    };
    assert_eq!(server["default_username"], json!(null));
    assert_eq!(
        (runs_as(&workspace.admin).await, runs_as(&member).await),
        ("boss".into(), "ann".into())
    );
    // A member may run only as their own name, so a default with another name does not apply to
    // them.
    for (name, of_admin) in [("deploy", "deploy"), ("ann", "ann"), ("root", "root")] {
        let set =
            workspace.admin.patch(&path, &json!({"default_username": name})).await.expect(200);
        assert_eq!(set["default_username"], name);
        assert_eq!(
            (runs_as(&workspace.admin).await, runs_as(&member).await),
            (of_admin.into(), "ann".into())
        );
    }
    for bad in [json!(""), json!("a b"), json!("-x"), json!(1), json!("x".repeat(65))] {
        workspace
            .admin
            .patch(&path, &json!({"default_username": bad}))
            .await
            .expect_fields(400, &["default_username"]);
    }
    member
        .patch(&path, &json!({"default_username": "ann"}))
        .await
        .expect_detail(403, Some("PERMISSION_DENIED"));
    let events = workspace.admin.get("/api/audit/events/?action=server.update").await.expect(200);
    let last = events["results"]
        .as_array()
        .unwrap()
        .iter()
        .find(|event| event["outcome"] == "success")
        .unwrap();
    assert_eq!(
        last["details"],
        json!({"fields": ["default_username"], "default_username": "root"})
    );

    // Without a configured account, the reported one counts, unless it is root.
    workspace.admin.patch(&path, &json!({"default_username": null})).await.expect(200);
    let credential =
        workspace.anonymous.with_authorization(&farhand_tests::agents::credential(&server));
    let report = async |name: &str| {
        let body = json!({"version": "1", "default_username": name});
        credential.send_json("PATCH", "/api/servers/servers/-/sync/", &body).await.expect(200);
    };
    let shown = async |expected: Value| {
        eventually("the server's account", || async {
            (workspace.admin.get(&path).await.expect(200)["default_username"] == expected)
                .then_some(())
        })
        .await;
    };
    report("svc").await;
    shown(json!("svc")).await;
    assert_eq!(runs_as(&workspace.admin).await, "svc");
    for odd in ["root", "", "a b", "-x"] {
        report(odd).await;
    }
    workspace.admin.patch(&path, &json!({"default_username": "deploy"})).await.expect(200);
    report("other").await;
    assert_eq!(runs_as(&workspace.admin).await, "deploy");
    workspace.admin.patch(&path, &json!({"default_username": null})).await.expect(200);
    shown(json!("other")).await;
    // Partial reports do not change the account. A complete report without an account removes it,
    // because the agent runs as root now.
    let part = json!({"name": "Debian", "version": "12"});
    credential.send_json("PUT", "/api/proc/os/sync/", &part).await.expect(204);
    credential
        .send_json("PATCH", "/api/servers/servers/-/sync/", &json!({"load": 0.5}))
        .await
        .expect(200);
    eventually("the load", || async {
        (workspace.admin.get(&path).await.expect(200)["load"] == 0.5).then_some(())
    })
    .await;
    shown(json!("other")).await;
    credential
        .send_json("PATCH", "/api/servers/servers/-/sync/", &json!({"version": "2"}))
        .await
        .expect(200);
    shown(json!(null)).await;
    assert_eq!(runs_as(&workspace.admin).await, "boss");
}

#[tokio::test]
async fn the_message_shows_why_an_agent_did_not_run_it() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let made =
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": "id"})).await.expect(201);
    agent.next_command().await;
    let reason = "There is no account boss on this server.";
    let fin = json!({"success": false, "result": "", "elapsed_time": 0, "exit_code": 126, "chunks": 0, "reason": reason});
    agent.report(id_of(&made), "fin", Some(&fin)).await.expect(204);
    let done = read(&workspace, &made).await;
    assert_status(&done, "Failed", "danger", false);
    assert_eq!((&done["result"], &done["exit_code"]), (&json!(""), &json!(126)));
    assert!(done["status"]["message"].as_str().unwrap().ends_with(reason), "{done}");
    assert_eq!(list_item(&workspace, id_of(&made)).await["status"], done["status"]);
}

#[tokio::test]
async fn the_list_never_lags_behind_a_response() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    // A response waits up to a second for the list. Only after that, on a slow machine, the list
    // may be behind.
    let agree = async |shown: &Value, requested_at: Instant| {
        let may_lag = requested_at.elapsed() >= Duration::from_secs(1);
        eventually("the list", || async {
            let item = list_item(&workspace, id_of(shown)).await;
            let fields = ["status", "handled_at", "success", "exit_code", "output_bytes"];
            let is_same = fields.iter().all(|field| item[*field] == shown[*field]);
            assert!(is_same || may_lag, "{item}, not {shown}");
            is_same.then_some(())
        })
        .await;
    };
    for round in 0..50 {
        let mut requested_at = Instant::now();
        let body = json!({"server": "web-1", "line": "id"});
        let later = json!({"server": "web-1", "line": "id", "scheduled_at": far_ahead()});
        match round % 7 {
            0 => {
                let request =
                    workspace.admin.request("POST", PATH).header("Prefer", "wait=30").json(&body);
                let reports = async {
                    let id = agent.next_command().await["id"].as_str().unwrap().to_owned();
                    agent.fin(&id, 0, "done").await;
                };
                let (done, ()) = tokio::join!(workspace.admin.send(request), reports);
                agree(&done.expect(201), requested_at).await;
            }
            case @ 1..=3 => {
                let made = workspace.admin.post(PATH, &body).await.expect(201);
                agent.next_command().await;
                let path = path_of(&made);
                let done = if case == 1 {
                    let fin = agent.fin(id_of(&made), 3, "failed");
                    let waited = format!("{path}?wait=30");
                    let (done, ()) = tokio::join!(workspace.admin.get(&waited), fin);
                    done.expect(200)
                } else {
                    agent.fin(id_of(&made), 3, "failed").await;
                    if case == 2 {
                        workspace.admin.get(&path).await.expect(200)
                    } else {
                        let mut events = Events::open(&workspace.admin, &format!("{path}stream/"))
                            .await
                            .ok()
                            .unwrap();
                        let (_, end) = events.rest().await;
                        // The end event comes seconds after the end, when the list has it.
                        requested_at = Instant::now();
                        end
                    }
                };
                assert!(done["handled_at"].is_string(), "{done}");
                agree(&done, requested_at).await;
            }
            case => {
                let made = workspace.admin.post(PATH, &later).await.expect(201);
                let path = path_of(&made);
                match case {
                    4 | 5 => {
                        let verb = if case == 4 { "cancel" } else { "kill" };
                        let done = workspace
                            .admin
                            .post(&format!("{path}{verb}/"), &json!({}))
                            .await
                            .expect(200);
                        agree(&done, requested_at).await;
                    }
                    _ => {
                        workspace.admin.delete(&path).await.expect(204);
                        let may_lag = requested_at.elapsed() >= Duration::from_secs(1);
                        eventually("the list", || async {
                            let is_cancelled = list_item(&workspace, id_of(&made)).await["status"]
                                ["text"]
                                == "Cancelled";
                            assert!(is_cancelled || may_lag);
                            is_cancelled.then_some(())
                        })
                        .await;
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn a_response_does_not_wait_long_for_d1() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let made =
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": "id"})).await.expect(201);
    agent.next_command().await;
    // The stream has read everything that it needs from D1 before the lock.
    let mut events =
        Events::open(&workspace.admin, &format!("{}stream/", path_of(&made))).await.ok().unwrap();
    let lock = instance.lock_d1().await;
    let fin = json!({"success": true, "elapsed_time": 0, "exit_code": 0, "chunks": 0});
    agent.report(id_of(&made), "fin", Some(&fin)).await.expect(204);
    let reported = std::time::Instant::now();
    let (_, done) = events.rest().await;
    assert_status(&done, "Success", "success", false);
    assert!(reported.elapsed() < Duration::from_secs(20), "{:?}", reported.elapsed());
    drop(lock);
    eventually("the list to have the end", || async {
        (list_item(&workspace, id_of(&made)).await["status"]["text"] == "Success").then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_command_is_looked_up_before_the_input_check() {
    let (workspace, _, _agent) = workspace_with_agent().await;
    let outsider = workspace.user("outsider").await;
    let made =
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": "id"})).await.expect(201);
    let unknown = format!("{PATH}01936d3e-7a00-7000-8000-000000000000/");
    for (api, path) in [(&workspace.admin, unknown), (&outsider, path_of(&made))] {
        for question in ["?wait=61", "?wait=x", "chunks/?page=0", "chunks/?seq__gte=x"] {
            api.get(&format!("{path}{question}"))
                .await
                .expect_detail(404, Some("COMMAND_NOT_FOUND"));
        }
        let request = api.request("GET", &format!("{path}stream/")).header("Last-Event-ID", "x");
        api.send(request).await.expect_detail(404, Some("COMMAND_NOT_FOUND"));
    }
}

#[tokio::test]
async fn the_state_is_the_same_everywhere() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let check = async |id: &str, state: &str| {
        let path = format!("{PATH}{id}/");
        let one = workspace.admin.get(&path).await;
        assert_eq!(one.expect(200)["state"], state, "{id}");
        let list = eventually("the list to have the command", || async {
            let list = workspace.admin.get(&format!("{PATH}?state={state}")).await;
            list.text.contains(id).then_some(list)
        })
        .await;
        assert_eq!(list.expect(200)["results"][0]["state"], state);
        // Both have the same fields in the same order.
        let names = |text: &str| -> Vec<String> {
            text.split('"')
                .filter(|name| {
                    ["shell", "state", "status", "text", "email", "handled_at"].contains(name)
                })
                .map(str::to_owned)
                .collect()
        };
        assert_eq!(names(&one.text), names(&list.text)[..names(&one.text).len()]);
    };
    let body = json!({"server": "web-1", "line": "id", "scheduled_at": far_ahead()});
    let scheduled = workspace.admin.post(PATH, &body).await;
    assert_eq!(scheduled.expect(201)["state"], "scheduled");
    let id = scheduled.json()["id"].as_str().unwrap().to_owned();
    check(&id, "scheduled").await;
    workspace.admin.delete(&format!("{PATH}{id}/")).await.expect(204);
    check(&id, "cancelled").await;
    for (exit, state) in [(0, "success"), (3, "failed")] {
        let made =
            workspace.admin.post(PATH, &json!({"server": "web-1", "line": "id"})).await.expect(201);
        let id = made["id"].as_str().unwrap();
        assert_eq!(made["state"], "sent");
        agent.next_command().await;
        agent.ack(id).await;
        check(id, "acked").await;
        agent.fin(id, exit, "").await;
        check(id, state).await;
    }
}

#[tokio::test]
async fn a_new_command_has_location_and_applied_preference() {
    let (workspace, _, _agent) = workspace_with_agent().await;
    let body = json!({"server": "web-1", "line": "id"});
    for (preference, applied) in [("wait=0", "wait=0"), ("wait=abc", ""), ("respond-async", "")] {
        let request =
            workspace.admin.request("POST", PATH).header("Prefer", preference).json(&body);
        let made = workspace.admin.send(request).await;
        let id = made.expect(201)["id"].as_str().unwrap().to_owned();
        assert_eq!(made.header("Preference-Applied"), applied, "{preference}");
        assert!(
            made.header("Location").ends_with(&format!("{PATH}{id}/")),
            "{}",
            made.header("Location")
        );
        let path = made
            .header("Location")
            .find("/api/")
            .map(|at| made.header("Location")[at..].to_owned());
        assert_eq!(workspace.admin.get(&path.unwrap()).await.expect(200)["id"], id);
    }
}

#[tokio::test]
async fn a_refusal_names_the_rule() {
    let (workspace, _, _agent) = workspace_with_agent().await;
    let server = workspace.admin.get("/api/servers/").await.expect(200)["results"][0]["id"].clone();
    let group = json!({"name": "ops", "servers": [server]});
    let group = workspace.admin.post("/api/iam/groups/", &group).await.expect(201);
    let carl = workspace.user("carl").await;
    let id = carl.get("/api/iam/users/-/").await.expect(200)["id"].clone();
    let membership = json!({"group": group["id"], "user": id});
    workspace.admin.post("/api/iam/memberships/", &membership).await.expect(201);
    for (more, rule) in [
        (json!({"username": "root"}), "may name another account"),
        (json!({"shell": "internal"}), "the shell internal"),
    ] {
        let mut body = json!({"server": server, "line": "id"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = carl.post(PATH, &body).await;
        reply.expect_detail(403, Some("PERMISSION_DENIED"));
        assert!(reply.json()["detail"].as_str().unwrap().contains(rule), "{}", reply.text);
    }
}
