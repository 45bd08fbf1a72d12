//! `npm start` as a user runs it: several instances, each with its own port and state folder.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use farhand_tests::client::PASSWORD;
use farhand_tests::instance::state_folder;
use farhand_tests::{Api, Instance};
use serde_json::{Value, json};
use tokio::process::Command;

#[tokio::test]
async fn the_demo_runs_a_command_and_survives_a_restart() {
    let folder = state_folder();
    let state = folder.path().join("state");
    let instance = Instance::start(&state, &[]).await;
    let (url, printed) = (&instance.url, &instance.printed);

    let file = state.join("demo.json");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    // Other users of this machine cannot read any other state either.
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&state), 0o700);
    let mut files =
        vec![state.join("worker.log"), state.join("agent.log"), state.join("secrets.json")];
    for folder in ["v3/d1/miniflare-D1DatabaseObject", "v3/do/farhand-ServerLink"] {
        files.extend(
            std::fs::read_dir(state.join(folder)).unwrap().map(|entry| entry.unwrap().path()),
        );
    }
    assert!(files.len() > 5, "{files:?}");
    for file in files {
        assert_eq!(mode(&file) & 0o077, 0, "{}", file.display());
    }
    let facts: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let mut names: Vec<&String> = facts.as_object().unwrap().keys().collect();
    names.sort();
    assert_eq!(names, ["api_token", "password", "server", "url", "username"]);
    assert_eq!(facts["url"], *url);
    for field in ["url", "username", "password"] {
        assert!(printed.contains(facts[field].as_str().unwrap()), "{field}: {printed}");
    }
    let api = Api::new(url, url.strip_prefix("http://").unwrap());
    api.post(
        "/api/auth/login/",
        &json!({"username": facts["username"], "password": facts["password"]}),
    )
    .await
    .expect(200);

    // Runs the printed line unchanged. It names no account, because the agent can use the server's
    // default account.
    let line = printed
        .lines()
        .find(|line| line.starts_with("curl "))
        .expect("npm start prints a curl line");
    let output = Command::new("sh").args(["-c", line]).output().await.unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    // The printed line waits for 10 s, but a slow machine may need longer.
    let command = format!("/api/events/commands/{}/?wait=60", answer["id"].as_str().unwrap());
    let answer =
        api.with_token(facts["api_token"].as_str().unwrap()).get(&command).await.expect(200);
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(
        (&answer["result"], &answer["success"]),
        (&json!(format!("hello from {hostname}")), &json!(true))
    );
    assert!(!line.contains("\"username\""), "{line}");
    instance.stop().await;

    // A second start on another port finds the same state.
    let instance = Instance::start(&state, &[]).await;
    let again: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let mut expected = facts.clone();
    expected["url"] = json!(instance.url);
    assert_eq!(again, expected);
    let api = Api::new(expected["url"].as_str().unwrap(), "demo.local.localhost");
    let kept = api
        .with_token(facts["api_token"].as_str().unwrap())
        .get("/api/events/commands/")
        .await
        .expect(200);
    assert_eq!((&kept["count"], &kept["results"][0]["id"]), (&json!(1), &answer["id"]));

    // Users who follow the documentation change the demo's server: they rename it, then rotate its
    // key, then delete it.
    let admin = api.with_token(facts["api_token"].as_str().unwrap());
    let servers = admin.get("/api/servers/").await.expect(200);
    let path = format!("/api/servers/servers/{}/", servers["results"][0]["id"].as_str().unwrap());
    admin.patch(&path, &json!({"name": "renamed"})).await.expect(200);
    admin.call("POST", &format!("{path}rotate-key/")).await.expect(200);
    instance.stop().await;
    let instance = Instance::start(&state, &[]).await;
    assert!(instance.printed.contains("\"server\":\"renamed\""), "{}", instance.printed);
    admin.with_url(&instance.url).delete(&path).await.expect(204);
    instance.stop().await;
    let instance = Instance::start(&state, &[]).await;
    let servers = admin.with_url(&instance.url).get("/api/servers/").await.expect(200);
    assert_eq!(
        (&servers["count"], &servers["results"][0]["is_connected"]),
        (&json!(1), &json!(true))
    );
    instance.stop().await;
}

#[tokio::test]
async fn variables_configure_an_instance_without_the_demo() {
    let folder = state_folder();
    let state = folder.path().join("state");
    let variables = [
        ("DEMO", "0"),
        ("OPERATOR_TOKEN", "operator-of-this-instance-of-a-test"),
        ("REGION", "eu9"),
        ("SERVICE_DOMAIN", "farhand.example"),
        ("DEFAULT_WORKSPACE", ""),
        ("DEPLOYMENT", "cloud"),
        ("WEB_CLIENT_URL", "https://console.example/app"),
        ("ALLOW_HTTP", "1"),
    ];
    let instance = Instance::start(&state, &variables).await;
    assert!(!state.join("demo.json").exists());
    let api = Api::new(&instance.url, "farhand.example");
    let operator = api.with_authorization("Bearer operator-of-this-instance-of-a-test");
    assert_eq!(operator.get("/operator/workspaces/").await.expect(200)["count"], 0);
    let body = json!({"slug": "acme", "admin": {"username": "boss", "email": "boss@example.com", "password": PASSWORD}});
    let made = operator.post("/operator/workspaces/", &body).await.expect(201);
    let port = instance.url.rsplit(':').next().unwrap();
    assert_eq!(
        (&made["region"], &made["base_url"]),
        (&json!("eu9"), &json!(format!("http://acme.eu9.farhand.example:{port}")))
    );
    // There is no default workspace, so the bare domain serves no API.
    api.get("/api/status/").await.expect_detail(404, None);
    let acme = api.with_host("acme.eu9.farhand.example");
    acme.get("/api/status/").await.expect_detail(401, None);
    acme.with_host("acme.local.localhost").get("/api/status/").await.expect_detail(404, None);
    // Contract 4.15: only on-prem deployments have login.
    acme.post("/api/auth/login/", &json!({"username": "boss", "password": PASSWORD}))
        .await
        .expect_detail(404, None);
    acme.get("/api/auth/login/").await.expect_detail(404, None);
    let preflight =
        acme.request("OPTIONS", "/api/status/").header("Origin", "https://console.example");
    assert_eq!(
        acme.send(preflight).await.header("Access-Control-Allow-Origin"),
        "https://console.example"
    );
    instance.stop().await;
}

#[tokio::test]
async fn short_secrets_are_refused() {
    let folder = state_folder();
    let state = folder.path().join("state");
    let short = "only-31-characters-of-a-secret!";
    assert_eq!(short.len(), 31);
    for name in ["OPERATOR_TOKEN", "SECRET_KEY", "OPERATOR_TOKEN_PREVIOUS", "SECRET_KEY_PREVIOUS"] {
        let printed = Instance::expect_failed_start(&state, &[("DEMO", "0"), (name, short)]).await;
        assert!(printed.contains(&format!("{name} has fewer than 32 characters")), "{printed}");
        assert!(!printed.contains(short), "{printed}");
    }
    assert!(!state.join("secrets.json").exists());

    // A deployed Worker does not check its secrets at start. With a short operator token, it has no
    // operator API.
    let instance = Instance::start(&state, &[("DEMO", "0")]).await;
    instance.stop().await;
    let (_process, url) = Instance::serve_unchecked(&state, &[("OPERATOR_TOKEN", short)]).await;
    let operator = Api::new(&url, "127.0.0.1").with_authorization(&format!("Bearer {short}"));
    operator.get("/operator/workspaces/").await.expect_detail(404, None);
}

#[tokio::test]
async fn invalid_settings_are_refused_before_the_build() {
    let folder = state_folder();
    let state = folder.path().join("state");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let in_use = format!("port {port} of 127.0.0.1 is in use");
    for (port, message) in [
        ("abc", "PORT is abc, which is not a port number"),
        ("0.5", "PORT is 0.5, which is not a port number"),
        ("70000", "PORT is 70000, which is not a port number"),
        (port.as_str(), in_use.as_str()),
    ] {
        let printed = Instance::expect_failed_start(&state, &[("PORT", port)]).await;
        assert!(printed.contains(message), "{printed}");
        assert!(!printed.contains("[1/"), "a build step was started: {printed}");
    }
    // Without a Rust compiler, the start fails before any step too.
    let node = std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .find(|folder| folder.join("node").exists())
        .unwrap();
    let tools = tempfile::tempdir().unwrap();
    for (tool, target) in [
        ("node", node.join("node")),
        ("npm", node.join("npm")),
        ("sh", "/bin/sh".into()),
        ("env", "/usr/bin/env".into()),
    ] {
        std::os::unix::fs::symlink(target, tools.path().join(tool)).unwrap();
    }
    let printed =
        Instance::expect_failed_start(&state, &[("PATH", tools.path().to_str().unwrap())]).await;
    assert!(printed.contains("no rustc on PATH; install Rust 1."), "{printed}");
    // A compiler that is older than `rust-version`, and a compiler that fails.
    let rustc = tools.path().join("rustc");
    for (script, message) in [
        ("echo 'rustc 1.9.0 (of a test)'", "rustc 1.9.0 is too old; Farhand needs 1."),
        (
            "echo 'toolchain is not installed' >&2; exit 1",
            "rustc --version failed: toolchain is not installed",
        ),
    ] {
        std::fs::write(&rustc, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&rustc, std::fs::Permissions::from_mode(0o755)).unwrap();
        let printed =
            Instance::expect_failed_start(&state, &[("PATH", tools.path().to_str().unwrap())])
                .await;
        assert!(printed.contains(message), "{printed}");
    }
    assert!(!state.exists());
}
