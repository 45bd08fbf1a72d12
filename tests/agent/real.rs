//! The project's agent, as a process of its own, running real processes on this machine.

use std::process::Stdio;
use std::time::Duration;

use farhand_tests::agents::{own_account, wait_until_connected};
use farhand_tests::processes::Process;
use farhand_tests::{RealAgent, Workspace};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const PATH: &str = "/api/events/commands/";

async fn start() -> (Workspace, Value, RealAgent) {
    let workspace = Workspace::new().await;
    let server = workspace.server("here").await;
    let agent = RealAgent::start(&workspace, &server).await;
    (workspace, server, agent)
}

/// Runs a command to its end.
async fn run(workspace: &Workspace, line: &str) -> Value {
    run_as(workspace, line, &own_account()).await
}

async fn run_as(workspace: &Workspace, line: &str, account: &str) -> Value {
    let body = json!({"server": "here", "line": line, "username": account});
    let request = workspace.admin.request("POST", PATH).header("Prefer", "wait=30").json(&body);
    let done = workspace.admin.send(request).await.expect(201);
    assert!(done["handled_at"].is_string(), "{done}");
    done
}

#[track_caller]
fn check(done: &Value, code: i64, result: &str) {
    let text = if code == 0 { "Success" } else { "Failed" };
    assert_eq!(
        (&done["exit_code"], &done["result"], &done["status"]["text"]),
        (&json!(code), &json!(result), &json!(text))
    );
    assert_eq!((&done["success"], &done["output_bytes"]), (&json!(code == 0), &json!(result.len())));
}

#[tokio::test]
async fn exit_codes_and_output() {
    let (workspace, server, _agent) = start().await;
    check(&run(&workspace, "echo hello").await, 0, "hello\n");
    check(&run(&workspace, "echo out; echo err >&2; exit 3").await, 3, "out\nerr\n");
    check(&run(&workspace, "true").await, 0, "");
    check(&run(&workspace, "kill -9 $$").await, 137, "");
    check(&run(&workspace, "printf '%s|%s' \"two  words\" 'a\"b'").await, 0, "two  words|a\"b");
    check(&run(&workspace, "printf 'c\\nb\\na\\n' | sort | head -n 2").await, 0, "a\nb\n");
    check(&run(&workspace, "printf 'ärger €  🦀\\n日本'").await, 0, "ärger €  🦀\n日本");
    check(&run(&workspace, "printf 'first\nsecond\n'\necho third").await, 0, "first\nsecond\nthird\n");
    check(&run(&workspace, "printf 'a\\000b'").await, 0, "a\u{0}b");
    check(&run(&workspace, "printf 'a\\377b'").await, 0, "a\u{FFFD}b");
    check(&run(&workspace, "cat; echo end").await, 0, "end\n");
    check(&run(&workspace, "id -un").await, 0, &format!("{}\n", own_account()));
    assert_eq!(run(&workspace, "no-such-program-here").await["exit_code"], 127);

    let shown =
        workspace.admin.get(&format!("/api/servers/servers/{}/", server["id"].as_str().unwrap())).await.expect(200);
    assert!(shown["os_name"].is_string() && shown["agent_version"].is_string(), "{shown}");
    assert!(shown["cpu_logical_cores"].as_i64().is_some_and(|cores| cores > 0), "{shown}");
    let list = workspace.admin.get(PATH).await.expect(200);
    assert_eq!(list["count"], 13);
}

#[tokio::test]
async fn two_hundred_kilobytes_arrive_whole() {
    let (workspace, _, _agent) = start().await;
    let done = run(&workspace, "seq -f 'line %07g of many' 1 10000").await;
    let expected: String = (1..=10_000).map(|number| format!("line {number:07} of many\n")).collect();
    assert!(expected.len() >= 200_000);
    assert_eq!((&done["result_truncated"], &done["output_bytes"]), (&json!(false), &json!(expected.len())));
    assert!(done["result"] == json!(expected), "the output is not what was written");
}

#[tokio::test]
async fn more_than_is_kept_is_cut_in_the_middle() {
    let (workspace, _, _agent) = start().await;
    let done = run(&workspace, "echo head; seq 1 200000; echo tail").await;
    let result = done["result"].as_str().unwrap();
    assert!(
        result.len() <= 256 * 1024 && result.starts_with("head\n1\n2\n") && result.ends_with("199999\n200000\ntail\n")
    );
    assert_eq!(done["result_truncated"], true);
    let written: usize = (1..=200_000).map(|number: i32| number.to_string().len() + 1).sum::<usize>() + 10;
    assert_eq!(done["output_bytes"], json!(written));
}

#[tokio::test]
async fn a_command_that_takes_longer_than_a_second() {
    let (workspace, _, _agent) = start().await;
    let body = json!({"server": "here", "line": "echo begun; sleep 1.5; echo done", "username": own_account()});
    let made = workspace.admin.post(PATH, &body).await.expect(201);
    assert_eq!(made["handled_at"], json!(null));
    let path = format!("{PATH}{}/?wait=30", made["id"].as_str().unwrap());
    let done = workspace.admin.get(&path).await.expect(200);
    check(&done, 0, "begun\ndone\n");
    assert!(done["elapsed_time"].as_f64().is_some_and(|seconds| seconds >= 1.5), "{done}");
    assert!(done["response_delay"].as_f64().is_some_and(|seconds| seconds >= 0.0), "{done}");
}

#[tokio::test]
async fn accounts_that_do_not_exist_are_refused() {
    let (workspace, _, _agent) = start().await;
    let done = run_as(&workspace, "id", "no-such-account").await;
    assert_eq!((&done["exit_code"], &done["success"]), (&json!(126), &json!(false)));
    assert!(done["result"].as_str().unwrap().contains("no-such-account"), "{done}");
}

#[tokio::test]
async fn as_root_it_becomes_the_account_and_otherwise_refuses_others() {
    let (workspace, _, _agent) = start().await;
    let line = "id -un; id -gn; echo $HOME $USER; touch /farhand-was-here 2>/dev/null || echo no";
    let done = run_as(&workspace, line, "nobody").await;
    if own_account() == "root" {
        check(&done, 0, "nobody\nnogroup\n/nonexistent nobody\nno\n");
    } else {
        assert_eq!(done["exit_code"], 126);
    }
}

#[tokio::test]
async fn many_at_once() {
    let (workspace, _, _agent) = start().await;
    let lines: Vec<String> = (0..40).map(|number| format!("echo {number}")).collect();
    let runs = futures_util::future::join_all(lines.iter().map(|line| run(&workspace, line))).await;
    for (number, done) in runs.iter().enumerate() {
        check(done, 0, &format!("{number}\n"));
    }
}

#[tokio::test]
async fn the_install_commands_work_when_pasted() {
    let workspace = Workspace::new().await;
    // As a client does that is not a test: with the port in the Host header.
    let port = workspace.admin.url.rsplit(':').next().unwrap();
    let client = workspace.admin.under(&format!("{}:{port}", workspace.admin.host));
    let server = client.post("/api/servers/", &json!({"name": "here"})).await.expect(201);
    let folder = tempfile::tempdir().unwrap();
    let binary = farhand_tests::setting("FARHAND_AGENT");
    let path = format!("{}:{}", binary.rsplit_once('/').unwrap().0, std::env::var("PATH").unwrap());
    let mut shell = tokio::process::Command::new("sh");
    shell.args(["-c", server["install"].as_str().unwrap()]).current_dir(folder.path()).env("PATH", path);
    let _agent = Process::spawn(shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
    wait_until_connected(&workspace, server["id"].as_str().unwrap(), true).await;
    check(&run(&workspace, "echo hello").await, 0, "hello\n");
    let config = std::fs::metadata(folder.path().join("farhand-agent.toml")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&config) & 0o777, 0o600);
}

#[tokio::test]
async fn sigterm_drains() {
    let (workspace, server, mut agent) = start().await;
    let id = server["id"].as_str().unwrap();
    let body = json!({"server": "here", "line": "echo begun; sleep 2; echo done", "username": own_account()});
    let made = workspace.admin.post(PATH, &body).await.expect(201);
    let path = format!("{PATH}{}/", made["id"].as_str().unwrap());
    farhand_tests::eventually("the command to begin", || async {
        (workspace.admin.get(&path).await.expect(200)["status"]["text"] == "Acked").then_some(())
    })
    .await;
    agent.process.signal(Signal::SIGTERM);
    let ended = agent.process.ended(Duration::from_secs(30)).await;
    assert!(ended.success(), "{ended}");
    check(&workspace.admin.get(&path).await.expect(200), 0, "begun\ndone\n");
    wait_until_connected(&workspace, id, false).await;
    workspace.admin.post(PATH, &body).await.expect_detail(503, Some("SERVER_NOT_CONNECTED"));
}

#[tokio::test]
async fn an_agent_that_died_tells_of_its_commands_when_it_is_back() {
    let workspace = Workspace::new().await;
    let server = workspace.server("here").await;
    let (id, key) = (server["id"].as_str().unwrap(), server["key"].as_str().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("agent.toml");
    let port = workspace.anonymous.url.rsplit(':').next().unwrap();
    let url = format!("http://{}:{port}", workspace.anonymous.host);
    std::fs::write(&config, format!("url = \"{url}\"\nid = \"{id}\"\nkey = \"{key}\"\n")).unwrap();
    let start = || {
        let mut agent = tokio::process::Command::new(farhand_tests::setting("FARHAND_AGENT"));
        agent.args(["run", "--config"]).arg(&config);
        Process::spawn(agent.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
    };
    let mut agent = start();
    wait_until_connected(&workspace, id, true).await;
    let log = folder.path().join("log");
    let line = format!("echo $$ >> {}; exec sleep 600", log.display());
    let body = json!({"server": "here", "line": line, "username": own_account()});
    let made = workspace.admin.post(PATH, &body).await.expect(201);
    let begun = || std::fs::read_to_string(&log).unwrap_or_default();
    farhand_tests::eventually("the command to begin", || async { begun().ends_with('\n').then_some(()) }).await;
    agent.signal(Signal::SIGKILL);
    agent.ended(Duration::from_secs(30)).await;
    let _agent = start();
    let path = format!("{PATH}{}/?wait=30", made["id"].as_str().unwrap());
    let done = workspace.admin.get(&path).await.expect(200);
    check(&done, 137, "The agent died while the command ran. What was left of it was killed.");
    // One that ended and that nobody has waited for yet runs no more.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", begun().trim()));
    assert!(stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z ")));
    // Its reports do not wait for its socket, so that may come later.
    farhand_tests::eventually("the agent to be back", || async {
        let body = json!({"server": "here", "line": "true", "username": own_account()});
        (workspace.admin.post(PATH, &body).await.status == 201).then_some(())
    })
    .await;
    check(&run(&workspace, "echo again").await, 0, "again\n");
    assert_eq!(begun().lines().count(), 1);
}
