//! Runs the real agent as a process against a simulated service (agent-protocol).

#![allow(clippy::unwrap_used)]

mod lifecycle;
mod support;

use std::process::{Command, Output};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::{User, geteuid};
use serde_json::{Value, json};

use support::{KEY, SERVER, Service, eventually, is_running, own_name};

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farhand-agent"));
    command.args(arguments).env_remove("FARHAND_AGENT_KEY").output().unwrap()
}

#[test]
fn an_invalid_configuration_is_one_line_and_exit_code_2() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "url = \"http://localhost\"\nport = 1\n").unwrap();
    let path = file.path().to_str().unwrap();
    let cases = [
        (
            vec!["run"],
            "farhand-agent: no key is given: put `key` into the config file, or use --key-file or FARHAND_AGENT_KEY",
        ),
        (
            vec!["run", "--config", "/no/such/file"],
            "farhand-agent: /no/such/file: No such file or directory (os error 2)",
        ),
        (vec!["run", "--config", path], "line 2: unknown field `port`"),
    ];
    for (arguments, expected) in cases {
        let output = run(&arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(expected) && error.lines().count() == 1, "{error}");
        assert_eq!(output.status.code(), Some(2));
    }
    // A key cannot be an argument, because every account on the host could read it.
    assert_eq!(run(&["run", "--key", "x"]).status.code(), Some(2));
}

#[test]
fn version_and_help_are_printed() {
    let version = run(&["--version"]);
    assert_eq!(
        String::from_utf8(version.stdout).unwrap(),
        format!("farhand-agent {} ({})\n", env!("CARGO_PKG_VERSION"), env!("FARHAND_COMMIT"))
    );
    for arguments in [&["--help"][..], &["run", "--help"]] {
        let help = run(arguments);
        assert!(help.status.success() && !help.stdout.is_empty());
    }
}

#[test]
fn a_policy_is_checked_without_a_service() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let rules = "deny_accounts = [\"root\"]\nallow_internal = [\"ping\"]\nmax_timeout = 3600";
    std::fs::write(at("accounts"), rules).unwrap();
    std::fs::write(at("argv"), "allow_argv = [[\"systemctl\", \"restart\", \"web-*\"]]").unwrap();
    std::fs::write(at("broken"), "deny_accounts = [\"rooot\"]").unwrap();
    let check = |name: &str, arguments: &str| {
        let file = at(name);
        let arguments: Vec<_> =
            ["policy", "check", &file].into_iter().chain(arguments.split(' ')).collect();
        let output = run(&arguments);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    };
    for (name, arguments, code, expected) in [
        ("accounts", "--draft --user nobody -- rm -rf /", 0, "allowed\n"),
        ("accounts", "--draft -- id", 1, "refused: The host's policy refuses it (deny_accounts)"),
        ("accounts", "--draft --user nobody --timeout 3601 -- id", 1, "(max_timeout)"),
        ("accounts", "--draft --shell internal -- ping", 0, "allowed\n"),
        ("accounts", "--draft --shell internal -- restart", 1, "(allow_internal)"),
        ("argv", "--draft --argv -- systemctl restart web-1", 0, "allowed\n"),
        ("argv", "--draft --argv -- systemctl restart sshd", 1, "(allow_argv)"),
        ("argv", "--draft -- systemctl restart web-1", 1, "(allow_argv)"),
        ("accounts", "--draft --user no-such-account -- id", 2, "There is no account"),
        ("broken", "--draft -- id", 2, "deny_accounts names \"rooot\""),
        ("missing", "--draft -- id", 2, "the file does not exist"),
        ("accounts", "--draft --shell other -- id", 2, "--shell"),
        ("accounts", "--draft", 2, "<LINE>"),
    ] {
        let (ended, text) = check(name, arguments);
        assert!(ended == code && text.contains(expected), "{name} {arguments}: {ended} {text}");
    }
    // Without --draft, the file must be one that an agent accepts.
    let (code, text) = check("accounts", "--user nobody -- id");
    match geteuid().is_root() {
        true => assert_eq!((code, text.as_str()), (0, "allowed\n")),
        false => assert!(code == 2 && text.contains("its owner is not root"), "{text}"),
    }
}

#[tokio::test]
async fn the_agent_checks_in_and_then_connects() {
    let mut service = Service::start(true).await;
    // DNS does not resolve this name. The agent treats it as a name of this host.
    service.url = format!("http://acme.localhost:{}", service.port);
    let _agent = service.agent();
    let _socket = service.socket().await;
    service
        .until(|calls| calls.iter().any(|seen| seen.call == "PATCH /api/servers/servers/-/status/"))
        .await;
    let calls = service.calls();
    let expected = [
        "GET /api/servers/servers/-/",
        "POST /api/events/events/",
        "PATCH /api/servers/servers/-/sync/",
        "POST /api/servers/servers/-/sync-check/",
        "GET /api/metrics/config/",
        "GET /ws/servers/backhaul/",
        "PATCH /api/servers/servers/-/status/",
    ];
    assert_eq!(calls.iter().map(|seen| seen.call.as_str()).collect::<Vec<_>>(), expected);
    for seen in &calls {
        assert_eq!(seen.headers["authorization"], format!("id=\"{SERVER}\", key=\"{KEY}\""));
        assert_eq!(
            seen.headers["user-agent"],
            format!("farhand-agent/{}", env!("CARGO_PKG_VERSION"))
        );
        assert_eq!(seen.headers["host"], format!("acme.localhost:{}", service.port));
        let announced =
            seen.call.contains("/ws/").then_some("kill, replay, argv, script, stdin, cwd");
        assert_eq!(seen.headers.get("x-agent-features").map(String::as_str), announced);
        if !seen.call.starts_with("GET") {
            assert_eq!(seen.headers["content-type"], "application/json");
            assert!(seen.headers.contains_key("content-length"));
        }
    }
    assert_eq!(calls[5].headers["origin"], service.url);
    assert_eq!(
        (&calls[1].body["record"], &calls[1].body["reporter"]),
        (&json!("started"), &json!("farhand-agent"))
    );
    let facts = &calls[2].body;
    assert_eq!(facts["version"], env!("CARGO_PKG_VERSION"));
    assert!(
        facts["load"].is_number() && facts["info"]["physical_memory"].as_u64() > Some(0),
        "{facts}"
    );
    assert!(
        facts["info"]["cpu_logical_cores"].as_u64() > Some(0) && facts["os"].is_object(),
        "{facts}"
    );
    assert!(calls[3].body["hashes"]["os"].is_string());
    assert!(calls[6].body["load"].as_f64().is_some_and(|load| load >= 0.0), "{}", calls[6].body);
}

#[tokio::test]
async fn a_new_server_is_committed() {
    let mut service = Service::start(false).await;
    let _agent = service.agent();
    let _socket = service.socket().await;
    let calls = service.calls();
    assert_eq!(calls[1].body["record"], "committed");
    assert_eq!(calls[2].call, "PUT /api/servers/servers/-/commit/");
    assert!(calls[2].body["info"]["hostname"].is_string());
    assert!(calls[2].body["policy"]["mode"].is_string(), "{}", calls[2].body);
}

#[tokio::test]
async fn a_change_of_the_policy_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.toml");
    let mut service = Service::start(true).await;
    let _agent = service.agent_with(&["--policy", policy.to_str().unwrap()], None);
    let _socket = service.socket().await;
    let reported = |calls: &[support::Seen]| -> Vec<Value> {
        let syncs = calls.iter().filter(|seen| seen.call == "PATCH /api/servers/servers/-/sync/");
        syncs.map(|seen| seen.body["policy"].clone()).collect()
    };
    // The policy must exist, so the agent refuses every command.
    let broken = json!({"mode": "custom", "sha256": null});
    assert_eq!(reported(&service.calls()), [broken]);
    if !geteuid().is_root() {
        return;
    }
    let text = "deny_accounts = [\"root\"]\n";
    std::fs::write(&policy, text).unwrap();
    service.until(|calls| reported(calls).len() > 1).await;
    let sha256 = farhand_domain::hash::sha256(text);
    assert_eq!(reported(&service.calls())[1], json!({"mode": "accounts", "sha256": sha256}));
}

#[tokio::test]
async fn without_a_required_policy_every_command_is_refused() {
    let mut service = Service::start(true).await;
    service.settings = "require_policy = true";
    let agent = service.agent();
    let mut socket = service.socket().await;
    for id in [socket.command("echo x").await, socket.builtin("ping").await] {
        let fin = service.fin(id).await;
        let reason = fin["reason"].as_str().unwrap();
        assert_eq!((&fin["exit_code"], &fin["result"]), (&json!(126), &json!("")));
        assert!(reason.contains("require_policy is set"), "{fin}");
    }
    eventually(|| agent.log().contains("require_policy is set")).await;
}

#[tokio::test]
async fn the_agent_waits_until_the_service_knows_it() {
    let mut service = Service::start(true).await;
    service.respond("/api/servers/servers/-/", &[403]);
    let agent = service.agent();
    // The second attempt comes after ten seconds.
    let _socket = service.socket().await;
    let calls: Vec<_> = service.calls().into_iter().map(|seen| seen.call).collect();
    assert_eq!(
        calls[..3],
        ["GET /api/servers/servers/-/", "GET /api/servers/servers/-/", "POST /api/events/events/"]
    );
    assert!(agent.log().contains("the id or the key is wrong"), "{}", agent.log());
}

#[tokio::test]
async fn the_agent_connects_by_tls() {
    let mut service = Service::start_tls().await;
    let _agent = service.agent();
    let mut socket = service.socket().await;
    let id = socket.command("echo over TLS").await;
    assert_eq!(service.fin(id).await["result"], "over TLS\n");
}

#[tokio::test]
async fn an_untrusted_certificate_is_refused() {
    let service = Service::start_tls().await;
    let mut other = Service::start(true).await;
    other.url = service.url.clone();
    let agent = other.agent();
    eventually(|| agent.log().contains("certificate")).await;
    assert!(service.calls().is_empty());
}

#[tokio::test]
async fn a_command_is_reported_by_ack_chunks_and_fin() {
    let mut service = Service::start(true).await;
    let agent = service.agent();
    let mut socket = service.socket().await;
    let id = socket
        .command(
            "i=0; while [ $i -lt 2000 ]; do echo \"line $i ä€\"; i=$((i+1)); done; env; exit 3",
        )
        .await;
    let fin = service.fin(id).await;
    assert_eq!((&fin["success"], &fin["exit_code"]), (&json!(false), &json!(3)));
    assert!(fin["elapsed_time"].as_f64() > Some(0.0));
    let reports = service.reports(id);
    let kinds: Vec<_> = reports.iter().map(|(kind, _)| kind.as_str()).collect();
    let chunks = reports.len() - 2;
    assert!(chunks >= 2);
    assert_eq!(kinds, [&["ack"], vec!["chunk"; chunks].as_slice(), &["fin"]].concat());
    assert_eq!(fin["chunks"], chunks);
    assert_eq!(reports[0].1, Value::Null);
    let mut text = String::new();
    for (seq, (_, chunk)) in reports[1..=chunks].iter().enumerate() {
        assert_eq!(chunk["seq"], seq);
        text += chunk["content"].as_str().unwrap();
    }
    assert_eq!(fin["result"], text);
    assert!(text.starts_with("line 0 ä€\nline 1 ä€\n") && text.contains("\nline 1999 ä€\n"));
    assert!(!text.contains("leaked") && !text.contains(KEY));
    // The system log has a record of the command.
    eventually(|| !agent.records().is_empty()).await;
    let records = agent.records();
    assert!(records.len() == 1 && records[0].contains(&format!("command={id}")), "{records:?}");
    let expected = format!("account={} requested_by=alice line=i=0; while", own_name());
    assert!(records[0].contains(&expected), "{records:?}");
    // The agent's own log has the id of the command, but not the line.
    let log = agent.log();
    assert!(log.contains(&id.to_string()) && log.contains("exit code 3"), "{log}");
    assert!(!log.contains("line 1") && !log.contains("while") && !log.contains(KEY), "{log}");
}

#[tokio::test]
async fn a_repeated_command_runs_once() {
    let mut service = Service::start(true).await;
    let agent = service.agent();
    let mut socket = service.socket().await;
    let id = socket.command("echo once").await;
    service.fin(id).await;
    socket.command_with(id, &own_name(), "echo again").await;
    // The agent sends the ack and the fin again.
    service.until(|_| service.fins(id).len() == 2).await;
    assert!(agent.log().contains("not run again"), "{}", agent.log());
    let fins = service.fins(id);
    assert_eq!((&fins[0]["result"], &fins[0]), (&json!("once\n"), &fins[1]));
    let kinds: Vec<_> = service.reports(id).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, ["ack", "chunk", "fin", "ack", "fin"]);
}

#[tokio::test]
async fn a_refused_command_gets_an_ack_and_a_fin() {
    let mut service = Service::start(true).await;
    let _agent = service.agent();
    let mut socket = service.socket().await;
    let id = socket.command_as("", "id").await;
    let fin = service.fin(id).await;
    assert_eq!((&fin["success"], &fin["exit_code"]), (&json!(false), &json!(126)));
    assert_eq!(
        (&fin["result"], &fin["reason"]),
        (&json!(""), &json!("The command names no account to run as."))
    );
    assert_eq!(service.reports(id)[0].0, "ack");
}

#[tokio::test]
async fn root_runs_a_command_as_its_account() {
    if !geteuid().is_root() {
        return;
    }
    let mut service = Service::start(true).await;
    let _agent = service.agent();
    let mut socket = service.socket().await;
    let id = socket.command_as("nobody", "id -un").await;
    assert_eq!(service.fin(id).await["result"], "nobody\n");
}

#[tokio::test]
async fn an_agent_without_root_runs_commands_as_itself_only() {
    // If the tests run as root, start the agent as another account. Otherwise the agent does not
    // run as root anyway.
    let nobody = geteuid().is_root().then(|| User::from_name("nobody").unwrap().unwrap());
    let mut service = Service::start(true).await;
    let _agent = service.agent_with(&[], nobody.as_ref());
    let mut socket = service.socket().await;
    let id = socket.command_as("root", "id -un").await;
    let fin = service.fin(id).await;
    assert_eq!(fin["exit_code"], 126);
    assert!(fin["reason"].as_str().unwrap().contains("cannot run a command as root"), "{fin}");
    let own = nobody.map_or_else(own_name, |user| user.name);
    let id = socket.command_as(&own, "id -un").await;
    assert_eq!(service.fin(id).await["result"], format!("{own}\n"));
    // When it checks in, the agent reports the only account that it can use.
    let calls = service.calls();
    let sync = calls.iter().find(|seen| seen.call.ends_with("/sync/")).unwrap();
    assert_eq!(sync.body["default_username"], own);
}

#[tokio::test]
async fn an_agent_that_runs_as_root_reports_no_default_account() {
    let mut service = Service::start(true).await;
    let _agent = service.agent();
    let _socket = service.socket().await;
    let calls = service.calls();
    let sync = calls.iter().find(|seen| seen.call.ends_with("/sync/")).unwrap();
    let expected = (!geteuid().is_root()).then(own_name);
    assert_eq!(sync.body.get("default_username"), expected.map(|name| json!(name)).as_ref());
}

#[tokio::test]
async fn a_refused_key_is_logged() {
    let mut service = Service::start(true).await;
    service.respond("/ws/", &[403]);
    let agent = service.agent();
    // The second attempt comes after five seconds.
    let _socket = service.socket().await;
    let log = agent.log();
    assert!(
        log.contains(
            "the service refuses the key: it is wrong, or the server is deleted; next attempt in"
        ),
        "{log}"
    );
}

#[tokio::test]
async fn a_named_policy_must_exist() {
    let mut service = Service::start(true).await;
    let agent = service.agent_with(&["--policy", "/no/such/policy.toml"], None);
    let mut socket = service.socket().await;
    let id = socket.command("echo x").await;
    let fin = service.fin(id).await;
    let reason = fin["reason"].as_str().unwrap();
    assert_eq!((&fin["exit_code"], &fin["result"]), (&json!(126), &json!("")));
    assert!(reason.contains("/no/such/policy.toml") && reason.contains("does not exist"), "{fin}");
    eventually(|| {
        agent
            .records()
            .iter()
            .any(|record| record.contains("refused: ") && record.contains("line=echo x"))
    })
    .await;
}

#[tokio::test]
async fn builtins_obey_the_policy() {
    // A policy that root does not own refuses every command.
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.toml");
    std::fs::write(&policy, "allow_internal = [\"ping\"]").unwrap();
    let mut service = Service::start(true).await;
    let _agent = service.agent_with(&["--policy", policy.to_str().unwrap()], None);
    let mut socket = service.socket().await;
    let refused = socket.builtin("version").await;
    let fin = service.fin(refused).await;
    assert_eq!(fin["exit_code"], 126, "{fin}");
    let is_root = geteuid().is_root();
    let rule = if is_root { "allow_internal" } else { "its owner is not root" };
    assert!(fin["reason"].as_str().unwrap().contains(rule), "{fin}");
    let allowed = socket.builtin("ping").await;
    assert_eq!(service.fin(allowed).await["exit_code"], if is_root { 0 } else { 126 });
}

#[tokio::test]
async fn a_fin_is_sent_until_it_is_accepted() {
    let mut service = Service::start(true).await;
    let _agent = service.agent();
    let mut socket = service.socket().await;
    service.respond("/fin/", &[503, 500]);
    let id = socket.command("echo x").await;
    let fins =
        |reports: &[(String, Value)]| reports.iter().filter(|(kind, _)| kind == "fin").count();
    eventually(|| fins(&service.reports(id)) == 3).await;
    let kinds: Vec<_> = service.reports(id).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, ["ack", "chunk", "fin", "fin", "fin"]);
}

#[tokio::test]
async fn commands_continue_while_the_agent_reconnects() {
    let mut service = Service::start(true).await;
    let _agent = service.agent();
    let mut socket = service.socket().await;
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let id = socket
        .command(&format!(
            "echo begun; until [ -e {} ]; do sleep 0.02; done; echo ended",
            go.display()
        ))
        .await;
    service.wrote(id, "begun").await;
    // Drops the connection without a close frame.
    drop(socket);
    let mut socket = service.socket().await;
    std::fs::write(&go, "").unwrap();
    assert_eq!(service.fin(id).await["result"], "begun\nended\n");
    let id = socket.command("echo again").await;
    assert_eq!(service.fin(id).await["result"], "again\n");
}

#[tokio::test]
async fn pings_are_answered_and_unknown_messages_ignored() {
    let mut service = Service::start(true).await;
    let agent = service.agent();
    let mut socket = service.socket().await;
    socket.send(json!({"query": "dance"})).await;
    socket.send(json!([1])).await;
    socket.send(json!({"query": "ping"})).await;
    let pong = socket.next().await.unwrap();
    assert_eq!(pong["query"], "pong");
    assert!(pong["timestamp"].is_f64(), "{pong}");
    assert!(agent.log().contains("WARN"));
    socket.send(json!({"query": "reconnect"})).await;
    assert_eq!(socket.next().await, Err(1000));
    let mut socket = service.socket().await;
    socket.send(json!({"query": "ping"})).await;
    assert_eq!(socket.next().await.unwrap()["query"], "pong");
}

#[tokio::test]
async fn quit_ends_the_process_after_its_commands() {
    let mut service = Service::start(true).await;
    let mut agent = service.agent();
    let mut socket = service.socket().await;
    let id = socket.command("echo begun; sleep 0.5; echo ended").await;
    service.wrote(id, "begun").await;
    socket.send(json!({"query": "quit"})).await;
    assert_eq!(socket.next().await, Err(1000));
    assert_eq!(agent.exit().await.code(), Some(0));
    assert_eq!(service.fin(id).await["result"], "begun\nended\n");
}

#[tokio::test]
async fn sigterm_lets_commands_end() {
    let mut service = Service::start(true).await;
    let mut agent = service.agent();
    let mut socket = service.socket().await;
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let id = socket
        .command(&format!(
            "echo begun; until [ -e {} ]; do sleep 0.02; done; echo ended",
            go.display()
        ))
        .await;
    service.wrote(id, "begun").await;
    agent.signal(Signal::SIGTERM);
    assert_eq!(socket.next().await, Err(1000));
    std::fs::write(&go, "").unwrap();
    assert_eq!(agent.exit().await.code(), Some(0));
    let fin = service.fin(id).await;
    assert_eq!((&fin["success"], &fin["result"]), (&json!(true), &json!("begun\nended\n")));
}

#[tokio::test]
async fn sigterm_stops_commands_after_the_drain_time() {
    let mut service = Service::start(true).await;
    let mut agent = service.agent_with(&["--drain-seconds", "1"], None);
    let mut socket = service.socket().await;
    let id = socket.command("echo $$; exec sleep 60").await;
    service.wrote(id, "\n").await;
    // The service accepts the command's fin only at the second attempt.
    service.respond("/fin/", &[503]);
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.exit().await.code(), Some(0));
    let fin = service.fin(id).await;
    assert_eq!((&fin["success"], &fin["exit_code"]), (&json!(false), &json!(143)));
    let result = fin["result"].as_str().unwrap();
    assert!(result.ends_with("The agent was stopped.\n"), "{result}");
    assert!(!is_running(result.lines().next().unwrap()));
    assert_eq!(service.reports(id).iter().filter(|(kind, _)| kind == "fin").count(), 2);
}

#[tokio::test]
async fn a_second_signal_exits_immediately() {
    let mut service = Service::start(true).await;
    let mut agent = service.agent();
    let mut socket = service.socket().await;
    let id = socket.command("echo $$; trap '' TERM; while :; do sleep 1; done").await;
    service.wrote(id, "\n").await;
    let chunk = service.reports(id)[1].1["content"].as_str().unwrap().to_owned();
    agent.signal(Signal::SIGTERM);
    assert_eq!(socket.next().await, Err(1000));
    agent.signal(Signal::SIGINT);
    let began = std::time::Instant::now();
    assert_eq!(agent.exit().await.code(), Some(1));
    assert!(began.elapsed() < Duration::from_secs(5));
    eventually(|| !is_running(chunk.trim())).await;
}

#[tokio::test]
async fn sigterm_during_check_in_exits() {
    let service = Service::start(true).await;
    service.respond("/api/servers/servers/-/", &[503, 503]);
    let mut agent = service.agent();
    service.until(|calls| !calls.is_empty()).await;
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.exit().await.code(), Some(0));
}

#[tokio::test]
async fn a_command_runs_although_its_ack_is_refused() {
    let mut service = Service::start(true).await;
    let _agent = service.agent();
    let mut socket = service.socket().await;
    // The service refuses the first two acks. The command runs anyway.
    service.respond("/ack/", &[500, 500]);
    let directory = tempfile::tempdir().unwrap();
    let ran = directory.path().join("ran");
    let id = socket.command(&format!("touch {}", ran.display())).await;
    service.acked(id).await;
    eventually(|| ran.exists()).await;
    service.fin(id).await;
    let kinds: Vec<_> = service.reports(id).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, ["ack", "ack", "ack", "fin"]);
}

#[tokio::test]
async fn a_killed_command_ends_after_its_last_process() {
    let mut service = Service::start(true).await;
    let _agent = service.agent();
    let mut socket = service.socket().await;
    // The background process ignores TERM.
    let id = socket
        .command("(trap '' TERM; echo $$; sleep 60; sleep 60) & sleep 60 & echo $!; wait")
        .await;
    service.wrote(id, "\n").await;
    eventually(|| service.reports(id).iter().filter(|(kind, _)| kind == "chunk").count() > 0).await;
    socket.kill(id).await;
    socket.kill(id).await;
    let fin = service.fin(id).await;
    assert_eq!((&fin["success"], &fin["exit_code"]), (&json!(false), &json!(137)));
    let result = fin["result"].as_str().unwrap();
    assert!(result.ends_with("\nThe command was killed.\n"), "{result}");
    assert!(result.lines().take(2).all(|pid| !is_running(pid)), "{result}");
    // A kill of an ended or unknown command changes nothing.
    socket.kill(id).await;
    socket.kill(uuid::Uuid::nil()).await;
    // Kill only after the command has written, because a kill before its process starts gives
    // another result.
    let next = socket.command("echo x; exec sleep 60").await;
    service.wrote(next, "x\n").await;
    socket.kill(next).await;
    let fin = service.fin(next).await;
    assert_eq!(
        (&fin["exit_code"], &fin["result"]),
        (&json!(143), &json!("x\n\nThe command was killed.\n"))
    );
    let fins = service.fins(id);
    assert!(fins.iter().all(|fin| *fin == fins[0]), "{fins:#?}");
}

#[tokio::test]
async fn a_kill_works_while_the_service_accepts_no_output() {
    let mut service = Service::start(true).await;
    let _agent = service.agent();
    let mut socket = service.socket().await;
    // The service refuses chunks for seven seconds. The agent's buffers are full in less than one
    // second.
    service.respond("/chunk/", &[503, 503, 503]);
    let id = socket.command("echo $$; exec yes").await;
    let pid = service.first_line(id).await;
    assert!(is_running(&pid));
    socket.kill(id).await;
    eventually(|| !is_running(&pid)).await;
    assert_eq!(service.fins(id), [] as [Value; 0]);
    let fin = service.fin(id).await;
    assert_eq!((&fin["exit_code"], &fin["success"]), (&json!(143), &json!(false)));
    let chunks = service.reports(id).iter().filter(|(kind, _)| kind == "chunk").count();
    assert_eq!(fin["chunks"], chunks - 3, "a repeated chunk counts once");
}

#[tokio::test]
async fn a_waiting_command_can_be_killed() {
    let mut service = Service::start(true).await;
    service.settings = "max_running = 1";
    let _agent = service.agent();
    let mut socket = service.socket().await;
    let directory = tempfile::tempdir().unwrap();
    let (go, ran) = (directory.path().join("go"), directory.path().join("ran"));
    let first = socket
        .command(&format!("echo begun; until [ -e {} ]; do sleep 0.02; done", go.display()))
        .await;
    service.wrote(first, "begun").await;
    let second = socket.command(&format!("touch {}", ran.display())).await;
    socket.kill(second).await;
    let fin = service.fin(second).await;
    assert_eq!((&fin["success"], &fin["exit_code"]), (&json!(false), &json!(143)));
    assert_eq!(fin["reason"], "The command was killed before it ran.");
    std::fs::write(&go, "").unwrap();
    assert_eq!(service.fin(first).await["exit_code"], 0);
    let third = socket.command("true").await;
    service.fin(third).await;
    assert!(!ran.exists());
}

#[tokio::test]
async fn a_timeout_is_a_kill() {
    let mut service = Service::start(true).await;
    let _agent = service.agent();
    let mut socket = service.socket().await;
    let id = socket.command_within(1, "echo $$; sleep 60 & echo $!; wait").await;
    let quick = socket.command_within(60, "echo quick").await;
    let fin = service.fin(id).await;
    assert_eq!((&fin["success"], &fin["exit_code"]), (&json!(false), &json!(124)));
    let result = fin["result"].as_str().unwrap();
    assert!(
        result.ends_with("\nThe command was killed: its timeout of 1 s was over.\n"),
        "{result}"
    );
    assert!(result.lines().take(2).all(|pid| !is_running(pid)), "{result}");
    assert_eq!(service.fin(quick).await["result"], "quick\n");
}

#[tokio::test]
async fn commands_of_a_killed_agent_fail() {
    let mut service = Service::start(true).await;
    service.settings = "max_running = 1";
    let mut agent = service.agent();
    let mut socket = service.socket().await;
    let directory = tempfile::tempdir().unwrap();
    let (log, ran) = (directory.path().join("log"), directory.path().join("ran"));
    let line = format!("echo begun >> {}; echo $$; sleep 60 & echo $!; wait", log.display());
    let running = socket.command(&line).await;
    service.wrote(running, "\n").await;
    let pid = service.first_line(running).await;
    let waiting = socket.command(&format!("touch {}", ran.display())).await;
    service.acked(waiting).await;
    agent.kill_and_restart();
    let mut socket = service.socket().await;
    let fin = service.fin(running).await;
    assert!(!is_running(&pid), "its fin was sent before its process had ended");
    assert_eq!((&fin["success"], &fin["exit_code"]), (&json!(false), &json!(137)));
    assert_eq!(
        fin["result"],
        "The agent died while the command ran. Its remaining processes were killed."
    );
    let fin = service.fin(waiting).await;
    assert_eq!((&fin["success"], &fin["exit_code"]), (&json!(false), &json!(137)));
    assert_eq!(fin["reason"], "The agent died before the command ran. It was not run.");
    // Neither command runs again when the service sends it again.
    for id in [running, waiting] {
        let before = service.fins(id).len();
        socket.command_with(id, &own_name(), &line).await;
        service.until(|_| service.fins(id).len() > before).await;
    }
    let next = socket.command("echo next").await;
    assert_eq!(service.fin(next).await["result"], "next\n");
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "begun\n");
    assert!(!ran.exists());
}

#[tokio::test]
async fn a_fin_that_was_not_accepted_is_sent_after_a_restart() {
    let mut service = Service::start(true).await;
    let mut agent = service.agent();
    let mut socket = service.socket().await;
    service.respond("/fin/", &[503; 3]);
    let id = socket.command("echo kept; exit 3").await;
    service.fin(id).await;
    agent.kill_and_restart();
    let mut socket = service.socket().await;
    service.until(|_| service.fins(id).len() == 4).await;
    let fins = service.fins(id);
    assert!(
        fins.iter()
            .all(|fin| *fin == fins[0] && fin["result"] == "kept\n" && fin["exit_code"] == 3),
        "{fins:#?}"
    );
    // The service has accepted the fin. The agent sends it again only if the command is repeated.
    let next = socket.command("true").await;
    service.fin(next).await;
    agent.kill_and_restart();
    let mut socket = service.socket().await;
    let last = socket.command("true").await;
    service.fin(last).await;
    assert_eq!(service.fins(id).len(), 4);
    socket.command_with(id, &own_name(), "echo again").await;
    service.until(|_| service.fins(id).len() == 5).await;
    assert_eq!(service.fins(id)[4], fins[0]);
}

#[tokio::test]
async fn a_fin_that_cannot_be_sent_before_exit_is_kept() {
    let mut service = Service::start(true).await;
    let mut agent = service.agent();
    let mut socket = service.socket().await;
    // More refusals than the agent makes attempts before it exits.
    service.respond("/fin/", &[503; 30]);
    let id = socket.command("echo kept").await;
    service.fin(id).await;
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.exit().await.code(), Some(0));
    assert!(agent.log().contains("are kept for the next start"), "{}", agent.log());
    let before = service.fins(id).len();
    service.clear_responses();
    agent.restart();
    service.until(|_| service.fins(id).len() > before).await;
    assert_eq!(service.fins(id)[before]["result"], "kept\n");
}

#[tokio::test]
async fn no_command_runs_twice_after_the_agent_is_killed() {
    let mut service = Service::start(true).await;
    let mut agent = service.agent();
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let line = |number: usize| format!("echo {number} >> {}; echo done", log.display());
    let mut ids = Vec::new();
    for round in 0..12 {
        let mut socket = service.socket().await;
        for _ in 0..4 {
            ids.push(socket.command(&line(ids.len())).await);
        }
        // Each round waits longer: from before the agent receives the first command until after the
        // last command ends.
        tokio::time::sleep(Duration::from_millis(round * 2)).await;
        agent.kill_and_restart();
    }
    // Send every command again. The agent reports commands that it has already received, and runs
    // the other commands now.
    let mut socket = service.socket().await;
    for (number, id) in ids.iter().enumerate() {
        socket.command_with(*id, &own_name(), &line(number)).await;
    }
    for id in &ids {
        service.fin(*id).await;
    }
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    for (number, id) in ids.iter().enumerate() {
        let fins = service.fins(*id);
        assert!(fins.iter().all(|fin| *fin == fins[0]), "{fins:#?}");
        let ran = text.lines().filter(|line| *line == number.to_string()).count();
        match fins[0]["reason"].as_str().or(fins[0]["result"].as_str()).unwrap() {
            "done\n" => assert_eq!(ran, 1),
            "The agent died before the command ran. It was not run." => assert_eq!(ran, 0),
            other => assert!(
                ran <= 1 && other.starts_with("The agent died while the command ran. "),
                "{other} {ran}"
            ),
        }
    }
}

#[tokio::test]
async fn without_a_state_folder_replay_is_not_announced() {
    let mut service = Service::start(true).await;
    let agent = service.agent_with(&["--state-dir", "/dev/null/state"], None);
    let mut socket = service.socket().await;
    let calls = service.calls();
    let handshake = calls.iter().find(|seen| seen.call.contains("/ws/")).unwrap();
    assert_eq!(handshake.headers["x-agent-features"], "kill, argv, script, stdin, cwd");
    assert!(
        agent
            .log()
            .contains("ERROR commands are not remembered across a restart: /dev/null/state/")
    );
    let id = socket.command("echo all the same").await;
    assert_eq!(service.fin(id).await["result"], "all the same\n");
    let id = socket.command("exec sleep 60").await;
    service.acked(id).await;
    socket.kill(id).await;
    assert_eq!(service.fin(id).await["exit_code"], 143);
}

#[tokio::test]
async fn the_state_is_private_and_has_no_key_and_no_line() {
    use std::os::unix::fs::MetadataExt;
    let mut service = Service::start(true).await;
    let agent = service.agent();
    let mut socket = service.socket().await;
    let id = socket.command("echo shown").await;
    service.fin(id).await;
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&agent.state()), 0o700);
    for entry in std::fs::read_dir(agent.state()).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
        let content = std::fs::read_to_string(&path).unwrap();
        assert!(!content.contains(KEY) && !content.contains("echo shown"), "{content}");
    }
}
