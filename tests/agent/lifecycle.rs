//! The project's agent from registration to removal, and its built-ins, with the real service.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Stdio;

use farhand_tests::agents::{own_account, wait_until_connected};
use farhand_tests::commands::wait_for_command;
use farhand_tests::processes::Process;
use farhand_tests::{PATIENCE, Workspace, eventually, secrets, setting};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

const COMMANDS: &str = "/api/events/commands/";
const TOKENS: &str = "/api/servers/registration-tokens/";

/// The workspace's URL in the agent's configuration.
fn url(workspace: &Workspace) -> String {
    let port = workspace.anonymous.url.rsplit(':').next().unwrap();
    format!("http://{}:{port}", workspace.anonymous.host)
}

/// The agent's program, without environment variables that would affect it.
fn program(arguments: &[&dyn AsRef<OsStr>]) -> Command {
    let mut command = Command::new(setting("FARHAND_AGENT"));
    for variable in ["FARHAND_AGENT_KEY", "FARHAND_REGISTRATION_TOKEN", "STATE_DIRECTORY"] {
        command.env_remove(variable);
    }
    command
        .args(arguments.iter().map(|argument| argument.as_ref()))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Runs a command to its end. Returns exit code, standard output and standard error.
async fn run_program(command: &mut Command) -> (i32, String, String) {
    let output = tokio::time::timeout(PATIENCE, command.output())
        .await
        .expect("the program did not end in time")
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// A host: a folder with the agent's configuration file.
struct AgentFolder {
    folder: TempDir,
}

impl AgentFolder {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// A host that is configured for a server whose `key` is known.
    fn of(workspace: &Workspace, server: &Value) -> Self {
        let host = Self::new();
        let (url, id, key) =
            (url(workspace), server["id"].as_str().unwrap(), server["key"].as_str().unwrap());
        std::fs::write(host.config(), format!("url = \"{url}\"\nid = \"{id}\"\nkey = \"{key}\"\n"))
            .unwrap();
        host
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("agent.toml")
    }

    fn run(&self, more: &[&str]) -> Process {
        let mut command = program(&[&"run", &"--config", &self.config()]);
        Process::spawn(command.args(more).stdout(Stdio::null()).stderr(Stdio::null()))
    }

    async fn register(
        &self,
        workspace: &Workspace,
        registration_token: &str,
        name: &str,
    ) -> (i32, String, String) {
        let mut command = program(&[
            &"register",
            &"--url",
            &url(workspace),
            &"--name",
            &name,
            &"--config",
            &self.config(),
        ]);
        let output =
            run_program(command.env("FARHAND_REGISTRATION_TOKEN", registration_token)).await;
        if let Some(key) = self.config_value("key") {
            secrets::record("key", &key);
            assert!(
                ![&output.1, &output.2]
                    .iter()
                    .any(|text| text.contains(&key) || text.contains(registration_token))
            );
        }
        output
    }

    /// Registers with more arguments.
    async fn register_with(
        &self,
        workspace: &Workspace,
        token: &str,
        more: &[&str],
    ) -> (i32, String, String) {
        let mut command =
            program(&[&"register", &"--url", &url(workspace), &"--config", &self.config()]);
        let output = run_program(command.args(more).env("FARHAND_REGISTRATION_TOKEN", token)).await;
        if let Some(key) = self.config_value("key") {
            secrets::record("key", &key);
        }
        output
    }

    async fn unregister(&self, more: &[&str]) -> (i32, String, String) {
        run_program(program(&[&"unregister", &"--config", &self.config()]).args(more)).await
    }

    async fn status(&self) -> (i32, Value) {
        let (code, out, errors) =
            run_program(&mut program(&[&"status", &"--json", &"--config", &self.config()])).await;
        (code, serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{errors}")))
    }

    /// A value in the configuration file, or `None`.
    fn config_value(&self, name: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.config()).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""))?;
        line.strip_suffix('"').map(str::to_owned)
    }
}

/// Creates a registration token, and returns its key.
async fn registration_token(workspace: &Workspace, more: &Value) -> String {
    let mut body = json!({"name": "hosts"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    workspace.admin.post(TOKENS, &body).await.expect(201)["key"].as_str().unwrap().to_owned()
}

/// Runs a command or a built-in to its end.
async fn run(workspace: &Workspace, server: &str, shell: &str, line: &str) -> Value {
    let body = json!({"server": server, "shell": shell, "line": line, "username": own_account()});
    let request = workspace.admin.request("POST", COMMANDS).header("Prefer", "wait=30").json(&body);
    let done = workspace.admin.send(request).await.expect(201);
    assert!(done["handled_at"].is_string(), "{done}");
    done
}

#[track_caller]
fn assert_ended(done: &Value, code: i64, result: &str) {
    assert_eq!((&done["exit_code"], &done["result"]), (&json!(code), &json!(result)), "{done}");
    assert_eq!(
        (&done["success"], &done["output_bytes"]),
        (&json!(code == 0), &json!(result.len())),
        "{done}"
    );
}

#[tokio::test]
async fn built_ins_of_the_agent_work() {
    let workspace = Workspace::new().await;
    let server = workspace.server("here").await;
    let host = AgentFolder::of(&workspace, &server);
    let _agent = host.run(&[]);
    wait_until_connected(&workspace, server["id"].as_str().unwrap(), true).await;
    assert_ended(&run(&workspace, "here", "internal", "ping").await, 0, "pong");
    let version = run(&workspace, "here", "internal", "version").await;
    let shown = workspace.admin.get("/api/servers/").await.expect(200);
    assert_eq!(version["result"], shown["results"][0]["agent_version"]);
    assert_ended(
        &run(&workspace, "here", "internal", "dance").await,
        127,
        "This agent has no such built-in.",
    );
    // A policy must allow it.
    let upgrade = run(&workspace, "here", "internal", "upgrade").await;
    assert_eq!(upgrade["exit_code"], 126);
    let message = upgrade["status"]["message"].as_str().unwrap();
    assert!(message.contains("(allow_internal)"), "{upgrade}");
}

#[tokio::test]
async fn a_restart_loses_no_command_and_repeats_none() {
    let workspace = Workspace::new().await;
    let server = workspace.server("here").await;
    let id = server["id"].as_str().unwrap();
    let host = AgentFolder::of(&workspace, &server);
    let _agent = host.run(&["--drain-seconds", "600"]);
    wait_until_connected(&workspace, id, true).await;
    let pid = host.status().await.1["pid"].clone();
    let (go, log) = (host.folder.path().join("go"), host.folder.path().join("log"));
    let line = format!(
        "until [ -e {} ]; do sleep 0.05; done; echo ran | tee -a {}",
        go.display(),
        log.display()
    );
    let body =
        json!({"server": "here", "line": line, "username": own_account(), "on_offline": "queue"});
    let made = workspace.admin.post(COMMANDS, &body).await.expect(201);
    let path = format!("{COMMANDS}{}/", made["id"].as_str().unwrap());
    let acked = |command: &Value| command["acked_at"].is_string();
    wait_for_command(&workspace.admin, made["id"].as_str().unwrap(), "the command to begin", acked)
        .await;
    assert_ended(&run(&workspace, "here", "internal", "restart").await, 0, "restarting");
    // A restarting agent takes no commands. This command waits for the restarted agent.
    wait_until_connected(&workspace, id, false).await;
    let next = workspace.admin.post(COMMANDS, &body).await.expect(201);
    assert_eq!(workspace.admin.get(&path).await.expect(200)["handled_at"], json!(null));
    std::fs::write(&go, "").unwrap();
    for made in [&made, &next] {
        let path = format!("{COMMANDS}{}/?wait=30", made["id"].as_str().unwrap());
        assert_ended(&workspace.admin.get(&path).await.expect(200), 0, "ran\n");
    }
    wait_until_connected(&workspace, id, true).await;
    assert_eq!(host.status().await.1["pid"], pid);
    assert_ended(&run(&workspace, "here", "internal", "restart").await, 0, "restarting");
    eventually("the agent to be back", || async {
        (workspace
            .admin
            .post(COMMANDS, &json!({"server": "here", "shell": "internal", "line": "ping"}))
            .await
            .status
            == 201)
            .then_some(())
    })
    .await;
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "ran\nran\n");
}

#[tokio::test]
async fn the_status_includes_the_services_view() {
    let workspace = Workspace::new().await;
    let server = workspace.server("here").await;
    let id = server["id"].as_str().unwrap();
    let host = AgentFolder::of(&workspace, &server);
    let (code, status) = host.status().await;
    assert_eq!((code, &status["name"], &status["service"]), (3, &json!("here"), &json!("ok")));
    let _agent = host.run(&[]);
    wait_until_connected(&workspace, id, true).await;
    let (code, status) = host.status().await;
    assert_eq!((code, &status["running"], &status["id"]), (0, &json!(true), &json!(id)));
    let config = std::fs::read_to_string(host.config()).unwrap();
    std::fs::write(host.config(), config.replace(server["key"].as_str().unwrap(), "another"))
        .unwrap();
    let (code, status) = host.status().await;
    assert_eq!((code, &status["service"]), (4, &json!("refused")));
}

#[tokio::test]
async fn a_host_registers_with_labels() {
    let workspace = Workspace::new().await;
    let more = json!({"labels": {"env": "prod"}, "label_keys": ["role", "a.b/c"]});
    let token = registration_token(&workspace, &more).await;
    let host = AgentFolder::new();
    let labels = async || {
        let path = format!("/api/servers/servers/{}/", host.config_value("id").unwrap());
        workspace.admin.get(&path).await.expect(200)["labels"].clone()
    };
    // The program refuses some labels, and the service refuses others. Nothing is left.
    for (more, code, expected) in [
        (&["--label", "role"][..], 2, "KEY=VALUE"),
        (&["--label", "Role=web"], 2, "Not a valid key"),
        (&["--label", "role=a b"], 2, "Not a valid value"),
        (&["--label", "role=a", "--label", "role=b"], 2, "label \"role\" is given twice"),
        (&["--label", "env=test"], 1, "do not allow the label env"),
    ] {
        let (ended, _, errors) = host.register_with(&workspace, &token, more).await;
        assert!(ended == code && errors.contains(expected), "{more:?}: {ended} {errors}");
        assert!(!host.config().exists());
    }
    let more = ["--name", "web-1", "--label", "role=web", "--label", "a.b/c="];
    let (code, out, errors) = host.register_with(&workspace, &token, &more).await;
    assert_eq!((code, errors.as_str()), (0, ""), "{out}");
    assert_eq!(labels().await, json!({"env": "prod", "role": "web", "a.b/c": ""}));
    // The file contains the labels, and the agent runs with this file.
    let id = host.config_value("id").unwrap();
    let agent = host.run(&[]);
    wait_until_connected(&workspace, &id, true).await;
    drop(agent);
    // The next registration uses the labels in the file, unless flags replace them.
    let more = ["--name", "web-2", "--force", "--label", "role=db"];
    assert_eq!(host.register_with(&workspace, &token, &more).await.0, 0);
    assert_eq!(labels().await, json!({"env": "prod", "role": "db", "a.b/c": ""}));
    let (_, help, _) = run_program(&mut program(&[&"register", &"--help"])).await;
    assert!(help.contains("--label <KEY=VALUE>"), "{help}");
}

#[tokio::test]
async fn a_host_registers_runs_commands_and_unregisters() {
    let workspace = Workspace::new().await;
    let registration_token = registration_token(&workspace, &json!({})).await;
    let (one, other) = (AgentFolder::new(), AgentFolder::new());
    for (host, name) in [(&one, "web-1"), (&other, "web-1-2")] {
        let (code, out, errors) = host.register(&workspace, &registration_token, "Web-1").await;
        assert_eq!((code, errors.as_str()), (0, ""));
        let id = host.config_value("id").unwrap();
        assert!(out.starts_with(&format!("registered as {name}, with the id {id}\n")), "{out}");
        let shown = workspace.admin.get(&format!("/api/servers/servers/{id}/")).await.expect(200);
        assert_eq!((&shown["name"], &shown["owner"]), (&json!(name), &json!(null)));
        // Registration stored the host's facts before its agent ran.
        assert!(shown["platform"].is_string(), "{shown}");
        assert_eq!(
            std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(host.config()).unwrap())
                & 0o777,
            0o600
        );
    }
    let id = one.config_value("id").unwrap();
    let mut agent = one.run(&[]);
    wait_until_connected(&workspace, &id, true).await;
    assert_ended(&run(&workspace, "web-1", "system", "echo hello").await, 0, "hello\n");
    let (code, out, _) = one.unregister(&[]).await;
    assert!(code == 0 && out.starts_with(&format!("server {id} is unregistered\n")), "{out}");
    assert!(out.contains("still runs here: stop it") && !one.config().exists(), "{out}");
    workspace.admin.get(&format!("/api/servers/servers/{id}/")).await.expect_detail(404, None);
    agent.signal(nix::sys::signal::Signal::SIGTERM);
    agent.wait_for_exit(PATIENCE).await;
    // The name is free again. The other host is still registered under its own name.
    let (code, out, _) = one.register(&workspace, &registration_token, "web-1").await;
    assert!(code == 0 && out.starts_with("registered as web-1,"), "{out}");
    assert_eq!(other.status().await.1["name"], "web-1-2");
}

#[tokio::test]
async fn a_refused_registration_is_reported_and_leaves_no_file() {
    let workspace = Workspace::new().await;
    let registration_token = registration_token(&workspace, &json!({"uses": 1})).await;
    let host = AgentFolder::new();
    let refused = async |registration_token: &str, name: &str, expected: &str| {
        let (code, out, errors) = host.register(&workspace, registration_token, name).await;
        assert_eq!((code, out.as_str(), errors.lines().count()), (1, "", 1), "{errors}");
        assert!(errors.contains(expected), "{errors}");
        assert_eq!(std::fs::read_dir(host.folder.path()).unwrap().count(), 0);
    };
    refused("nonsense", "web-1", "not registered: status 403: ").await;
    refused(&registration_token, "a b", "not registered: status 400: name: ").await;
    // Neither attempt used up the token.
    assert_eq!(host.register(&workspace, &registration_token, "web-1").await.0, 0);
    let config = std::fs::read(host.config()).unwrap();
    let (code, _, errors) = host.register(&workspace, &registration_token, "web-2").await;
    assert!(code == 1 && errors.contains("a file is there already"), "{errors}");
    assert_eq!(std::fs::read(host.config()).unwrap(), config);
    std::fs::remove_file(host.config()).unwrap();
    refused(&registration_token, "web-2", "not registered: status 403: ").await;
    assert_eq!(workspace.admin.get("/api/servers/").await.expect(200)["count"], 1);
}

#[tokio::test]
async fn a_deleted_server_is_unregistered_only_by_force() {
    let workspace = Workspace::new().await;
    let server = workspace.server("here").await;
    let host = AgentFolder::of(&workspace, &server);
    workspace
        .admin
        .delete(&format!("/api/servers/servers/{}/", server["id"].as_str().unwrap()))
        .await
        .expect(204);
    assert_eq!(host.status().await.0, 4);
    let (code, _, errors) = host.unregister(&[]).await;
    assert!(code == 1 && errors.contains("with --force") && host.config().exists(), "{errors}");
    let (code, out, _) = host.unregister(&["--force"]).await;
    assert!(code == 0 && !host.config().exists(), "{out}");
}
