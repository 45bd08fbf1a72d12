//! The project's agent as a child process, with real commands on this machine.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use farhand_tests::agents::{own_account, wait_until_connected};
use farhand_tests::commands::wait_for_status;
use farhand_tests::processes::Process;
use farhand_tests::{RealAgent, Workspace};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
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
fn assert_ended(done: &Value, code: i64, result: &str) {
    let text = if code == 0 { "Success" } else { "Failed" };
    assert_eq!(
        (&done["exit_code"], &done["result"], &done["status"]["text"]),
        (&json!(code), &json!(result), &json!(text))
    );
    assert_eq!(
        (&done["success"], &done["output_bytes"]),
        (&json!(code == 0), &json!(result.len()))
    );
}

#[tokio::test]
async fn exit_codes_and_output_are_reported() {
    let (workspace, server, _agent) = start().await;
    assert_ended(&run(&workspace, "echo hello").await, 0, "hello\n");
    assert_ended(&run(&workspace, "echo out; echo err >&2; exit 3").await, 3, "out\nerr\n");
    assert_ended(&run(&workspace, "true").await, 0, "");
    assert_ended(&run(&workspace, "kill -9 $$").await, 137, "");
    assert_ended(
        &run(&workspace, "printf '%s|%s' \"two  words\" 'a\"b'").await,
        0,
        "two  words|a\"b",
    );
    assert_ended(&run(&workspace, "printf 'c\\nb\\na\\n' | sort | head -n 2").await, 0, "a\nb\n");
    assert_ended(&run(&workspace, "printf 'ärger €  🦀\\n日本'").await, 0, "ärger €  🦀\n日本");
    assert_ended(
        &run(&workspace, "printf 'first\nsecond\n'\necho third").await,
        0,
        "first\nsecond\nthird\n",
    );
    assert_ended(&run(&workspace, "printf 'a\\000b'").await, 0, "a\u{0}b");
    assert_ended(&run(&workspace, "printf 'a\\377b'").await, 0, "a\u{FFFD}b");
    assert_ended(&run(&workspace, "cat; echo end").await, 0, "end\n");
    assert_ended(&run(&workspace, "id -un").await, 0, &format!("{}\n", own_account()));
    assert_eq!(run(&workspace, "no-such-program-here").await["exit_code"], 127);

    let shown = workspace
        .admin
        .get(&format!("/api/servers/servers/{}/", server["id"].as_str().unwrap()))
        .await
        .expect(200);
    assert!(shown["os_name"].is_string() && shown["agent_version"].is_string(), "{shown}");
    assert!(shown["cpu_logical_cores"].as_i64().is_some_and(|cores| cores > 0), "{shown}");
    let list = workspace.admin.get(PATH).await.expect(200);
    assert_eq!(list["count"], 13);
}

#[tokio::test]
async fn a_result_of_200_kilobytes_arrives_complete() {
    let (workspace, _, _agent) = start().await;
    let done = run(&workspace, "seq -f 'line %07g of many' 1 10000").await;
    let expected: String =
        (1..=10_000).map(|number| format!("line {number:07} of many\n")).collect();
    assert!(expected.len() >= 200_000);
    assert_eq!(
        (&done["result_truncated"], &done["output_bytes"]),
        (&json!(false), &json!(expected.len()))
    );
    assert!(done["result"] == json!(expected), "the result differs from the written output");
}

#[tokio::test]
async fn longer_results_are_cut_in_the_middle() {
    let (workspace, _, _agent) = start().await;
    let done = run(&workspace, "echo head; seq 1 200000; echo tail").await;
    let result = done["result"].as_str().unwrap();
    assert!(
        result.len() <= 256 * 1024
            && result.starts_with("head\n1\n2\n")
            && result.ends_with("199999\n200000\ntail\n")
    );
    assert_eq!(done["result_truncated"], true);
    let written: usize =
        (1..=200_000).map(|number: i32| number.to_string().len() + 1).sum::<usize>() + 10;
    assert_eq!(done["output_bytes"], json!(written));
}

#[tokio::test]
async fn a_command_may_take_longer_than_a_second() {
    let (workspace, _, _agent) = start().await;
    let body = json!({"server": "here", "line": "echo begun; sleep 1.5; echo done", "username": own_account()});
    let made = workspace.admin.post(PATH, &body).await.expect(201);
    assert_eq!(made["handled_at"], json!(null));
    let path = format!("{PATH}{}/?wait=30", made["id"].as_str().unwrap());
    let done = workspace.admin.get(&path).await.expect(200);
    assert_ended(&done, 0, "begun\ndone\n");
    assert!(done["elapsed_time"].as_f64().is_some_and(|seconds| seconds >= 1.5), "{done}");
    assert!(done["response_delay"].as_f64().is_some_and(|seconds| seconds >= 0.0), "{done}");
}

#[tokio::test]
async fn unknown_accounts_are_refused() {
    let (workspace, _, _agent) = start().await;
    let done = run_as(&workspace, "id", "no-such-account").await;
    assert_eq!((&done["exit_code"], &done["success"]), (&json!(126), &json!(false)));
    let message = done["status"]["message"].as_str().unwrap();
    assert!(message.ends_with("There is no account no-such-account on this server."), "{done}");
    assert_eq!((&done["result"], &done["output_bytes"]), (&json!(""), &json!(0)));
    // The list, which reads D1, shows the same.
    farhand_tests::eventually("the list to show the same", || async {
        let shown = workspace.admin.get(PATH).await.expect(200)["results"][0].clone();
        (shown["result"] == "" && shown["status"] == done["status"]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn only_an_agent_as_root_runs_other_accounts() {
    let (workspace, _, _agent) = start().await;
    let line = "id -un; id -gn; echo $HOME $USER; touch /farhand-was-here 2>/dev/null || echo no";
    let done = run_as(&workspace, line, "nobody").await;
    if own_account() == "root" {
        assert_ended(&done, 0, "nobody\nnogroup\n/nonexistent nobody\nno\n");
    } else {
        assert_eq!(done["exit_code"], 126);
    }
}

#[tokio::test]
async fn concurrent_commands_do_not_mix_their_output() {
    let (workspace, _, _agent) = start().await;
    let lines: Vec<String> = (0..40).map(|number| format!("echo {number}")).collect();
    let runs = futures_util::future::join_all(lines.iter().map(|line| run(&workspace, line))).await;
    for (number, done) in runs.iter().enumerate() {
        assert_ended(done, 0, &format!("{number}\n"));
    }
}

#[tokio::test]
async fn sigterm_drains_the_agent() {
    let (workspace, server, mut agent) = start().await;
    let id = server["id"].as_str().unwrap();
    let body = json!({"server": "here", "line": "echo begun; sleep 2; echo done", "username": own_account()});
    let made = workspace.admin.post(PATH, &body).await.expect(201);
    let path = format!("{PATH}{}/", made["id"].as_str().unwrap());
    wait_for_status(&workspace.admin, made["id"].as_str().unwrap(), "Acked").await;
    agent.process.signal(Signal::SIGTERM);
    let ended = agent.process.wait_for_exit(Duration::from_secs(30)).await;
    assert!(ended.success(), "{ended}");
    assert_ended(&workspace.admin.get(&path).await.expect(200), 0, "begun\ndone\n");
    wait_until_connected(&workspace, id, false).await;
    workspace.admin.post(PATH, &body).await.expect_detail(503, Some("SERVER_NOT_CONNECTED"));
}

/// Starts an agent with a configuration file. With `has_cgroups` false, it cannot create control
/// groups, and uses supervisors for commands instead.
fn spawn_agent(config: &Path, has_cgroups: bool) -> Process {
    let binary = farhand_tests::setting("FARHAND_AGENT");
    let mut agent = if has_cgroups || own_account() != "root" {
        tokio::process::Command::new(&binary)
    } else {
        // Hides the control groups under an empty file system, for this process only.
        let mut unshared = tokio::process::Command::new("unshare");
        let hide = "mount -t tmpfs none /sys/fs/cgroup && exec \"$0\" \"$@\"";
        unshared.args(["--mount", "sh", "-c", hide, &binary]);
        unshared
    };
    agent.args(["run", "--config"]).arg(config);
    Process::spawn(agent.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
}

fn write_config(workspace: &Workspace, server: &Value, folder: &Path) -> PathBuf {
    let config = folder.join("agent.toml");
    let (id, key) = (server["id"].as_str().unwrap(), server["key"].as_str().unwrap());
    let port = workspace.anonymous.url.rsplit(':').next().unwrap();
    let url = format!("http://{}:{port}", workspace.anonymous.host);
    std::fs::write(&config, format!("url = \"{url}\"\nid = \"{id}\"\nkey = \"{key}\"\n")).unwrap();
    config
}

/// True if a process runs. Zombies do not count.
fn is_running(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

async fn test_restart_after_death(has_cgroups: bool) {
    let workspace = Workspace::new().await;
    let server = workspace.server("here").await;
    let id = server["id"].as_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = write_config(&workspace, &server, folder.path());
    let mut agent = spawn_agent(&config, has_cgroups);
    wait_until_connected(&workspace, id, true).await;
    let log = folder.path().join("log");
    // One process leaves the command's session and its parent, and ignores SIGTERM.
    let escaped = format!("echo $$ >> {}; trap \"\" TERM; sleep 600; sleep 600", log.display());
    let line =
        format!("setsid setsid -f sh -c '{escaped}'; echo $$ >> {}; exec sleep 600", log.display());
    let body = json!({"server": "here", "line": line, "username": own_account()});
    let made = workspace.admin.post(PATH, &body).await.expect(201);
    let begun = || std::fs::read_to_string(&log).unwrap_or_default();
    farhand_tests::eventually("the command to begin", || async {
        (begun().lines().count() == 2).then_some(())
    })
    .await;
    agent.signal(Signal::SIGKILL);
    agent.wait_for_exit(Duration::from_secs(30)).await;
    assert!(begun().lines().all(is_running), "a process died with the agent");
    let _agent = spawn_agent(&config, has_cgroups);
    let path = format!("{PATH}{}/?wait=30", made["id"].as_str().unwrap());
    let done = workspace.admin.get(&path).await.expect(200);
    assert_ended(
        &done,
        137,
        "The agent died while the command ran. Its remaining processes were killed.",
    );
    assert!(!begun().lines().any(is_running));
    // The agent may report before its socket is open.
    farhand_tests::eventually("the agent to be back", || async {
        let body = json!({"server": "here", "line": "true", "username": own_account()});
        (workspace.admin.post(PATH, &body).await.status == 201).then_some(())
    })
    .await;
    assert_ended(&run(&workspace, "echo again").await, 0, "again\n");
    assert_eq!(begun().lines().count(), 2);
}

#[tokio::test]
async fn a_restarted_agent_reports_commands_of_the_dead_one() {
    test_restart_after_death(true).await;
}

#[tokio::test]
async fn a_restarted_agent_reports_supervised_commands() {
    test_restart_after_death(false).await;
}

/// Processes that leave the command's session are killed with the command at a timeout or a kill.
/// They survive a normal end.
async fn test_escaped_processes(has_cgroups: bool) {
    let workspace = Workspace::new().await;
    let server = workspace.server("here").await;
    let folder = tempfile::tempdir().unwrap();
    let config = write_config(&workspace, &server, folder.path());
    let _agent = spawn_agent(&config, has_cgroups);
    wait_until_connected(&workspace, server["id"].as_str().unwrap(), true).await;
    let run_escaping_command = async |line: &str, timeout: i64| {
        let log = folder.path().join(timeout.to_string());
        let escape =
            format!("setsid setsid -f sh -c 'echo $$ > {0}; exec sleep 600'", log.display());
        let line = format!("{escape}; until [ -s {} ]; do sleep 0.02; done; {line}", log.display());
        let body =
            json!({"server": "here", "line": line, "username": own_account(), "timeout": timeout});
        let made = workspace.admin.post(PATH, &body).await.expect(201);
        farhand_tests::eventually("the command to begin", || async {
            std::fs::read_to_string(&log).is_ok_and(|text| text.ends_with('\n')).then_some(())
        })
        .await;
        let escaped = std::fs::read_to_string(&log).unwrap().trim().to_owned();
        (made["id"].as_str().unwrap().to_owned(), escaped)
    };
    let wait_until_ended =
        async |id: &str| workspace.admin.get(&format!("{PATH}{id}/?wait=30")).await.expect(200);

    let (id, escaped) = run_escaping_command("sleep 600", 10).await;
    assert_eq!(wait_until_ended(&id).await["exit_code"], 124);
    assert!(!is_running(&escaped), "the process survived the timeout");

    let (id, escaped) = run_escaping_command("sleep 600", 600).await;
    workspace.admin.post(&format!("{PATH}{id}/kill/"), &json!({})).await;
    assert_eq!(wait_until_ended(&id).await["exit_code"], 143);
    assert!(!is_running(&escaped), "the process survived the kill");

    let (id, escaped) = run_escaping_command("exit 3", 601).await;
    assert_eq!(wait_until_ended(&id).await["exit_code"], 3);
    assert!(is_running(&escaped), "the process was killed after a normal end");
    nix::sys::signal::kill(Pid::from_raw(escaped.parse().unwrap()), Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn no_process_escapes_a_timeout_or_a_kill() {
    test_escaped_processes(true).await;
}

#[tokio::test]
async fn no_process_escapes_a_supervisor() {
    test_escaped_processes(false).await;
}
