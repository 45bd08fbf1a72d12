//! `npm start`, as a user runs it: two instances side by side, each with a port and a state folder of its own.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use farhand_tests::client::PASSWORD;
use farhand_tests::processes::Process;
use farhand_tests::{Api, eventually};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Runs `npm start` and returns what it printed until it served.
async fn npm_start(port: u16, state: &Path, variables: &[(&str, &str)]) -> (Process, String) {
    let mut command = Command::new("npm");
    command
        .args(["start", "--silent"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env("PORT", port.to_string())
        .env("STATE_DIR", state)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut process = Process::spawn(&mut command);
    let mut lines = BufReader::new(process.child().stdout.take().unwrap()).lines();
    let mut printed = String::new();
    let read = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            printed.push_str(&line);
            printed.push('\n');
            if line.contains("Ctrl-C") {
                return true;
            }
        }
        false
    };
    let served = tokio::time::timeout(Duration::from_secs(180), read).await.expect("npm start did not serve");
    assert!(served, "npm start ended: {printed}");
    (process, printed)
}

/// The processes of which some argument or variable names a folder: what an instance started, and what that started.
fn processes_of(state: &Path) -> Vec<String> {
    let needle = state.to_str().unwrap().as_bytes();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) =
            entry.file_name().to_str().filter(|name| name.bytes().all(|b| b.is_ascii_digit())).map(str::to_owned)
        else {
            continue;
        };
        if pid == std::process::id().to_string() {
            continue;
        }
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let command = read("cmdline");
        let names = |bytes: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
        if names(&command) || names(&read("environ")) {
            found.push(format!("{pid} {}", String::from_utf8_lossy(&command).replace('\0', " ")));
        }
    }
    found
}

async fn stop(mut process: Process, port: u16, state: &Path) {
    assert!(!processes_of(state).is_empty());
    process.signal(Signal::SIGTERM);
    process.ended(Duration::from_secs(60)).await;
    eventually("everything to end", || async {
        (processes_of(state).is_empty() && TcpListener::bind(("127.0.0.1", port)).is_ok()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_demo_runs_a_command_on_this_machine_and_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (state, port) = (folder.path().join("state"), free_port());
    let (process, printed) = npm_start(port, &state, &[]).await;
    let url = format!("http://127.0.0.1:{port}");

    let file = state.join("demo.json");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    let facts: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let mut names: Vec<&String> = facts.as_object().unwrap().keys().collect();
    names.sort();
    assert_eq!(names, ["api_token", "password", "server", "url", "username"]);
    assert_eq!(facts["url"], url);
    for field in ["url", "username", "password"] {
        assert!(printed.contains(facts[field].as_str().unwrap()), "{field}: {printed}");
    }
    let api = Api::new(&url, &format!("127.0.0.1:{port}"));
    api.post("/api/auth/login/", &json!({"username": facts["username"], "password": facts["password"]}))
        .await
        .expect(200);

    // The printed line, as it stands.
    let line = printed.lines().find(|line| line.starts_with("curl ")).expect("a curl line");
    let output = Command::new("sh").args(["-c", line]).output().await.unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!((&answer["result"], &answer["success"]), (&json!(format!("hello from {hostname}")), &json!(true)));
    stop(process, port, &state).await;

    // A second start, on another port, has it all again.
    let port = free_port();
    let (process, _) = npm_start(port, &state, &[]).await;
    let again: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let mut expected = facts.clone();
    expected["url"] = json!(format!("http://127.0.0.1:{port}"));
    assert_eq!(again, expected);
    let api = Api::new(expected["url"].as_str().unwrap(), "demo.local.localhost");
    let kept = api.with_token(facts["api_token"].as_str().unwrap()).get("/api/events/commands/").await.expect(200);
    assert_eq!((&kept["count"], &kept["results"][0]["id"]), (&json!(1), &answer["id"]));
    stop(process, port, &state).await;
}

#[tokio::test]
async fn without_the_demo_and_with_variables_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (state, port) = (folder.path().join("state"), free_port());
    let variables = [
        ("DEMO", "0"),
        ("OPERATOR_TOKEN", "operator-of-this-instance"),
        ("REGION", "eu9"),
        ("SERVICE_DOMAIN", "farhand.example"),
        ("DEFAULT_WORKSPACE", ""),
        ("DEPLOYMENT", "cloud"),
        ("WEB_CLIENT_URL", "https://console.example/app"),
    ];
    let (process, _) = npm_start(port, &state, &variables).await;
    assert!(!state.join("demo.json").exists());
    let api = Api::new(&format!("http://127.0.0.1:{port}"), "farhand.example");
    let operator = api.with("Bearer operator-of-this-instance");
    assert_eq!(operator.get("/operator/workspaces/").await.expect(200)["count"], 0);
    let body =
        json!({"slug": "acme", "admin": {"username": "boss", "email": "boss@example.com", "password": PASSWORD}});
    let made = operator.post("/operator/workspaces/", &body).await.expect(201);
    assert_eq!((&made["region"], &made["base_url"]), (&json!("eu9"), &json!("http://acme.eu9.farhand.example")));
    // No default workspace: the bare domain has none.
    api.get("/api/status/").await.expect_detail(404, None);
    let acme = api.under("acme.eu9.farhand.example");
    acme.get("/api/status/").await.expect_detail(401, None);
    acme.under("acme.local.localhost").get("/api/status/").await.expect_detail(404, None);
    // spec.md: login is for on-prem deployments only.
    acme.post("/api/auth/login/", &json!({"username": "boss", "password": PASSWORD})).await.expect_detail(404, None);
    acme.get("/api/auth/login/").await.expect_detail(404, None);
    let preflight = acme.request("OPTIONS", "/api/status/").header("Origin", "https://console.example");
    assert_eq!(acme.send(preflight).await.header("Access-Control-Allow-Origin"), "https://console.example");
    stop(process, port, &state).await;
}
