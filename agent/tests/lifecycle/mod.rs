//! Registration, installation, status, built-ins and restarts of the real agent.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::{KEY, PATIENCE, SERVER, Service, copy_program, eventually, own_name};

const TOKEN: &str = "tOkEnToKeNtOkEn";
const PROGRAM: &str = env!("CARGO_BIN_EXE_farhand-agent");
/// The fingerprint of [`KEY`].
const FINGERPRINT: &str = "KR4V-ZORD";
const REGISTER: &str = "/api/servers/servers/register/";

/// Creates a command for the agent's program, without the environment variables that the agent
/// reads.
fn program(arguments: &[&dyn AsRef<OsStr>]) -> Command {
    let mut command = Command::new(PROGRAM);
    for variable in ["FARHAND_AGENT_KEY", "FARHAND_REGISTRATION_TOKEN", "STATE_DIRECTORY"] {
        command.env_remove(variable);
    }
    command
        .args(arguments.iter().map(|argument| argument.as_ref()))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Runs a command to its end. Returns its exit code, stdout and stderr, and checks that they
/// contain no credential.
async fn end(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = tokio::time::timeout(PATIENCE, command.output())
        .await
        .expect("the program does not end")
        .unwrap();
    let (out, errors) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(
        ![&out, &errors].iter().any(|text| text.contains(KEY) || text.contains(TOKEN)),
        "{out}{errors}"
    );
    (status.code().unwrap(), out, errors)
}

fn registered() -> Value {
    json!({"id": SERVER, "key": KEY, "name": "web-1"})
}

fn register(service: &Service, config: &Path) -> Command {
    let mut command =
        program(&[&"register", &"--url", &service.url, &"--name", &"Web-1", &"--config", &config]);
    command.env("FARHAND_REGISTRATION_TOKEN", TOKEN);
    command
}

fn calls(service: &Service) -> Vec<String> {
    service.calls().into_iter().map(|seen| seen.call).collect()
}

fn names(folder: &Path) -> Vec<String> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Writes an agent's config file.
fn write_config(service: &Service, path: &Path) {
    fs::write(path, format!("url = {:?}\nid = {SERVER:?}\nkey = {KEY:?}\n", service.url)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

#[tokio::test]
async fn register_writes_a_config_file_that_works() {
    let mut service = Service::start(true).await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("etc/farhand/agent.toml");
    service.respond_with(REGISTER, 201, &registered(), || {});
    let (code, out, errors) = end(&mut register(&service, &config)).await;
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(out.starts_with(&format!("registered as web-1, with the id {SERVER}\n")), "{out}");
    let seen = service.calls().remove(0);
    assert_eq!(seen.call, format!("POST {REGISTER}"));
    assert_eq!(seen.headers["authorization"], format!("token=\"{TOKEN}\""));
    assert_eq!((&seen.body["name"], &seen.body["tags"]), (&json!("Web-1"), &json!({})));
    assert!(seen.body.as_object().unwrap().contains_key("platform"), "{}", seen.body);
    let metadata = fs::metadata(&config).unwrap();
    assert_eq!((metadata.mode() & 0o777, metadata.uid()), (0o600, geteuid().as_raw()));
    assert_eq!(names(config.parent().unwrap()), ["agent.toml"]);
    let mut agent = program(&[&"run", &"--config", &config]).stderr(Stdio::null()).spawn().unwrap();
    let mut socket = service.socket().await;
    let id = socket.command("echo registered").await;
    assert_eq!(service.fin(id).await["result"], "registered\n");
    agent.kill().await.unwrap();
}

#[tokio::test]
async fn token_file_and_host_name_are_used() {
    let service = Service::start(true).await;
    let folder = tempfile::tempdir().unwrap();
    let (token, config) = (folder.path().join("token"), folder.path().join("agent.toml"));
    fs::write(&token, format!("{TOKEN}\n")).unwrap();
    service.respond_with(REGISTER, 201, &registered(), || {});
    let command = &mut program(&[
        &"register",
        &"--url",
        &service.url,
        &"--config",
        &config,
        &"--token-file",
        &token,
    ]);
    // The file overrides the variable.
    let (code, _, errors) = end(command.env("FARHAND_REGISTRATION_TOKEN", "another")).await;
    assert_eq!(code, 0, "{errors}");
    assert!(errors.contains("chmod 600") && errors.lines().count() == 1, "{errors}");
    let seen = service.calls().remove(0);
    assert_eq!(seen.headers["authorization"], format!("token=\"{TOKEN}\""));
    assert_eq!(seen.body["name"], nix::unistd::gethostname().unwrap().to_str().unwrap());
}

#[tokio::test]
async fn a_refused_registration_is_one_line_and_leaves_no_file() {
    let service = Service::start(true).await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("agent.toml");
    for (status, body, expected) in [
        (
            403,
            json!({"detail": "The token is not\nvalid.", "code": "INVALID_TOKEN"}),
            "not registered: status 403: The token is not valid.",
        ),
        (400, json!({"name": ["Too long."]}), "not registered: status 400: name: Too long."),
        (200, registered(), "not registered: status 200"),
        (308, Value::Null, "not registered: status 308 (is that the workspace's address?)"),
        (
            201,
            json!({"id": SERVER, "name": "web-1"}),
            "it is unknown whether the server was registered",
        ),
    ] {
        service.respond_with(REGISTER, status, &body, || {});
        let (code, out, errors) = end(&mut register(&service, &config)).await;
        assert_eq!((code, out.as_str(), errors.lines().count()), (1, "", 1), "{errors}");
        assert!(errors.starts_with("farhand-agent: ") && errors.contains(expected), "{errors}");
        assert!(names(folder.path()).is_empty());
    }
    let mut unreachable = Service::start(true).await;
    unreachable.url = "http://127.0.0.1:1".to_owned();
    let (code, _, errors) = end(&mut register(&unreachable, &config)).await;
    assert!(code == 1 && errors.contains("http://127.0.0.1:1 is unreachable"), "{errors}");
    assert!(names(folder.path()).is_empty());
}

#[tokio::test]
async fn an_existing_file_prevents_registration_without_force() {
    let service = Service::start(true).await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("agent.toml");
    fs::write(&config, "kept").unwrap();
    let (code, _, errors) = end(&mut register(&service, &config)).await;
    assert!(
        code == 1 && errors.contains("a file is there already") && errors.lines().count() == 1,
        "{errors}"
    );
    assert_eq!((fs::read_to_string(&config).unwrap().as_str(), calls(&service).len()), ("kept", 0));
    let (code, _, errors) = end(&mut register(&service, Path::new("/dev/null/agent.toml"))).await;
    assert!(code == 1 && errors.lines().count() == 1, "{errors}");
    assert_eq!(calls(&service).len(), 0);
    service.respond_with(REGISTER, 201, &registered(), || {});
    assert_eq!(end(register(&service, &config).arg("--force")).await.0, 0);
    assert!(fs::read_to_string(&config).unwrap().contains(KEY));
    assert_eq!(fs::metadata(&config).unwrap().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_server_is_unregistered_if_its_file_is_not_written() {
    let service = Service::start(true).await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("agent.toml");
    for (status, expected) in
        [(204, "the server is unregistered again"), (500, "stays in the workspace: status 500")]
    {
        // Another registration writes the file first.
        let path = config.clone();
        service.respond_with(REGISTER, 201, &registered(), move || {
            fs::write(path, "another").unwrap();
        });
        service.respond("/unregister/", &[status]);
        let (code, _, errors) = end(&mut register(&service, &config)).await;
        assert_eq!((code, errors.lines().count()), (1, 1), "{errors}");
        assert!(errors.contains(expected), "{errors}");
        assert_eq!(
            (fs::read_to_string(&config).unwrap().as_str(), names(folder.path()).len()),
            ("another", 1)
        );
        let last = service.calls().pop().unwrap();
        assert_eq!(last.call, "DELETE /api/servers/servers/-/unregister/");
        assert_eq!(last.headers["authorization"], format!("id=\"{SERVER}\", key=\"{KEY}\""));
        fs::remove_file(&config).unwrap();
    }
}

#[tokio::test]
async fn unregister_deletes_the_config_file_and_the_state() {
    let mut service = Service::start(true).await;
    let mut agent = service.agent();
    let mut socket = service.socket().await;
    let id = socket.command("true").await;
    service.fin(id).await;
    agent.signal(Signal::SIGTERM);
    agent.exit().await;
    let config = agent.config();
    let command = |more: &[&str]| {
        let mut command = program(&[&"unregister", &"--config", &config]);
        command.args(more);
        command
    };
    for status in [403, 500, 200, 404] {
        service.respond("/unregister/", &[status]);
        let (code, _, errors) = end(&mut command(&[])).await;
        assert_eq!((code, errors.lines().count()), (1, 1), "{errors}");
        assert_eq!(errors.contains("with --force"), status == 403, "{errors}");
        assert!(config.exists() && agent.state().exists());
    }
    service.respond("/unregister/", &[204]);
    let (code, out, _) = end(&mut command(&[])).await;
    assert!(code == 0 && out.starts_with(&format!("server {SERVER} is unregistered\n")), "{out}");
    assert!(!config.exists() && !agent.state().parent().unwrap().exists());
    let last = service.calls().pop().unwrap();
    assert_eq!(last.call, "DELETE /api/servers/servers/-/unregister/");
    assert_eq!(last.headers["authorization"], format!("id=\"{SERVER}\", key=\"{KEY}\""));
    // The config file is deleted.
    assert_eq!(end(&mut command(&[])).await.0, 2);
}

#[tokio::test]
async fn force_unregisters_a_deleted_server() {
    let service = Service::start(true).await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("agent.toml");
    write_config(&service, &config);
    service.respond("/unregister/", &[403]);
    let (code, out, _) =
        end(&mut program(&[&"unregister", &"--config", &config, &"--force"])).await;
    assert!(code == 0 && out.contains("the service does not know server"), "{out}");
    assert!(!config.exists());
}

/// Runs `status`. Returns its exit code and its JSON.
async fn status(config: &Path) -> (i32, Value) {
    let (code, out, errors) =
        end(&mut program(&[&"status", &"--json", &"--config", &config])).await;
    (code, serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{errors}")))
}

#[tokio::test]
async fn status_shows_the_agent_and_the_service() {
    let mut service = Service::start(true).await;
    service.settings = "max_running = 1";
    let mut agent = service.agent();
    let mut socket = service.socket().await;
    let config = agent.config();
    let running = socket.command("echo $$; exec sleep 600").await;
    let process = service.first_line(running).await;
    let waiting = socket.command("true").await;
    service.acked(waiting).await;
    let (code, json) = status(&config).await;
    let expected = json!({
        "url": service.url, "id": SERVER, "fingerprint": FINGERPRINT, "name": "web-1", "service": "ok", "running": true, "pid": agent.pid(),
        "commands": {"running": 1, "waiting": 1, "unreported": 0}, "version": env!("CARGO_PKG_VERSION"),
    });
    assert_eq!((code, json), (0, expected));
    service.respond("/api/servers/servers/-/", &[403]);
    let (code, json) = status(&config).await;
    assert_eq!((code, &json["service"], &json["name"]), (4, &json!("refused"), &Value::Null));
    service.respond("/api/servers/servers/-/", &[502]);
    let (code, json) = status(&config).await;
    assert_eq!(
        (code, &json["service"], &json["running"]),
        (1, &json!("unreachable"), &json!(true))
    );
    let (code, text, _) = end(&mut program(&[&"status", &"--config", &config])).await;
    assert!(
        code == 0
            && text.contains("takes the key of web-1")
            && text.contains(&agent.pid().to_string()),
        "{text}"
    );
    agent.signal(Signal::SIGKILL);
    agent.exit().await;
    kill(Pid::from_raw(process.parse().unwrap()), Signal::SIGKILL).unwrap();
    let (code, json) = status(&config).await;
    assert_eq!(
        (code, &json["running"], &json["pid"], &json["service"]),
        (3, &json!(false), &Value::Null, &json!("ok"))
    );
    assert_eq!(json["commands"], json!({"running": 1, "waiting": 1, "unreported": 0}));
}

#[tokio::test]
async fn invalid_arguments_are_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("agent.toml");
    let unusable = folder.path().join("unusable");
    fs::write(&unusable, "to ken").unwrap();
    let cases: &[&[&dyn AsRef<OsStr>]] = &[
        &[&"register"],
        &[&"register", &"--url", &"http://localhost:1", &"--config", &config],
        &[&"register", &"--url", &"http://localhost:1", &"--config", &config, &"--token", &"x"],
        &[&"register", &"--url", &"localhost", &"--config", &config, &"--token-file", &"/dev/null"],
        &[
            &"register",
            &"--url",
            &"http://localhost:1",
            &"--config",
            &config,
            &"--token-file",
            &"/dev/null",
        ],
        &[
            &"register",
            &"--url",
            &"http://localhost:1",
            &"--config",
            &config,
            &"--token-file",
            &unusable,
        ],
        &[
            &"register",
            &"--url",
            &"http://localhost:1",
            &"--config",
            &config,
            &"--token-file",
            &"/no/such/file",
        ],
        &[&"unregister", &"--config", &config],
        &[&"status", &"--config", &config],
        &[&"install", &"--config", &"/etc/a b", &"--prefix", &folder.path()],
        &[&"install", &"--user", &"no-such-account", &"--prefix", &folder.path()],
        &[&"install", &"--user", &"root", &"--prefix", &folder.path()],
    ];
    for arguments in cases {
        let (code, out, errors) = end(&mut program(arguments)).await;
        assert!(code == 2 && out.is_empty() && !errors.is_empty(), "{code} {out}{errors}");
    }
    assert_eq!(names(folder.path()), ["unusable"]);
}

#[tokio::test]
async fn install_writes_a_valid_unit() {
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("etc/systemd/system/farhand-agent.service");
    let binary = folder.path().join("usr/local/bin/farhand-agent");
    for user in [None, Some("daemon")] {
        let mut command = program(&[
            &"install",
            &"--config",
            &"/etc/farhand/web-1.toml",
            &"--prefix",
            &folder.path(),
        ]);
        let (code, out, errors) =
            end(command.args(user.map(|user| ["--user", user]).iter().flatten())).await;
        assert_eq!((code, errors.as_str()), (0, ""));
        assert!(out.contains(unit.to_str().unwrap()), "{out}");
        let text = fs::read_to_string(&unit).unwrap();
        let has = |line: &str| text.lines().any(|other| other == line);
        assert!(
            has("ExecStart=/usr/local/bin/farhand-agent run --config /etc/farhand/web-1.toml"),
            "{text}"
        );
        assert!(has("ConditionPathExists=/etc/farhand/web-1.toml"), "{text}");
        assert_eq!(
            (has("User=daemon"), has("NoNewPrivileges=yes")),
            (user.is_some(), user.is_some())
        );
        assert_eq!(fs::metadata(&unit).unwrap().mode() & 0o777, 0o644);
        assert_eq!(fs::metadata(&binary).unwrap().mode() & 0o777, 0o755);
        assert_eq!(fs::read(&binary).unwrap(), fs::read(PROGRAM).unwrap());
        verify(
            folder.path(),
            &text.replace(
                "=/usr/local/bin/",
                &format!("={}/usr/local/bin/", folder.path().display()),
            ),
        )
        .await;
    }
    assert_eq!(names(unit.parent().unwrap()), ["farhand-agent.service"]);
    // The first installation wrote an open policy, which another choice does not replace.
    let policy = folder.path().join("etc/farhand/policy.toml");
    let open = fs::read_to_string(&policy).unwrap();
    assert!(open.contains("Mode \"open\"") && !open.lines().any(|line| line.starts_with("deny")));
    let install = |mode: &str| {
        let arguments: [&dyn AsRef<OsStr>; 5] =
            [&"install", &"--config", &"/etc/farhand/web-1.toml", &"--prefix", &folder.path()];
        let mut command = program(&arguments);
        command.env("FARHAND_POLICY", mode);
        command
    };
    let (code, out, _) = end(&mut install("accounts")).await;
    assert!(code == 0 && out.contains("exists and stays"), "{out}");
    assert_eq!(fs::read_to_string(&policy).unwrap(), open);
    fs::remove_file(&policy).unwrap();
    let (code, _, errors) = end(&mut install("root")).await;
    assert!(code == 2 && errors.contains("FARHAND_POLICY: \"root\" is not open"), "{errors}");
    assert!(!policy.exists());
    let (code, out, _) = end(&mut install("accounts")).await;
    assert!(code == 0 && out.contains("no command runs as root"), "{out}");
    assert!(fs::read_to_string(&policy).unwrap().contains("deny_accounts = [\"root\"]"));
    let uninstall = || program(&[&"uninstall", &"--prefix", &folder.path()]);
    let (code, out, _) = end(&mut uninstall()).await;
    assert!(code == 0 && out.contains("is removed"), "{out}");
    assert!(!unit.exists() && binary.exists());
    let (code, out, _) = end(&mut uninstall()).await;
    assert!(code == 0 && out.contains("nothing to do"), "{out}");
}

/// Checks a unit with systemd, if systemd is installed. The unit tests in `install.rs` also check
/// the lines.
async fn verify(folder: &Path, unit: &str) {
    let copy = folder.join("farhand-agent.service");
    fs::write(&copy, unit).unwrap();
    let mut command = Command::new("systemd-analyze");
    match command.args(["verify", "--man=no"]).arg(&copy).output().await {
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            // systemd may also report errors in other units of this machine.
            let about =
                errors.lines().filter(|line| line.contains("farhand-agent")).collect::<Vec<_>>();
            assert!(about.is_empty(), "{about:#?}");
        }
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}"),
    }
    fs::remove_file(copy).unwrap();
}

#[tokio::test]
async fn an_account_installs_below_its_home() {
    let service = Service::start(true).await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("agent.toml");
    write_config(&service, &config);
    let run = |action: &'static str| {
        let mut command = program(&[&action, &"--own-account"]);
        // Without systemctl, so that the test does not change this account's services.
        command.env("HOME", folder.path()).env("PATH", "/no/such/folder");
        command
    };
    let (unit, binary) = (
        folder.path().join(".config/systemd/user/farhand-agent.service"),
        folder.path().join(".local/bin/farhand-agent"),
    );
    let how = format!("start the agent with {} run --config", binary.display());
    let (code, out, _) = end(run("install").arg("--config").arg(&config).arg("--no-start")).await;
    assert!(code == 0 && out.contains(&how), "{out}");
    let (code, _, errors) = end(run("install").arg("--config").arg(&config)).await;
    assert!(code == 1 && errors.contains(&how) && errors.lines().count() == 1, "{errors}");
    assert_eq!(fs::read(&binary).unwrap(), fs::read(PROGRAM).unwrap());
    let text = fs::read_to_string(&unit).unwrap();
    let start = format!("ExecStart={} run --config {}\n", binary.display(), config.display());
    assert!(text.contains(&start), "{text}");
    verify(folder.path(), &text).await;
    let (code, out, _) = end(&mut run("uninstall")).await;
    assert!(code == 0 && out.contains("is removed") && !unit.exists() && binary.exists(), "{out}");
}

#[tokio::test]
async fn configure_writes_a_file_that_the_service_accepts() {
    let service = Service::start(true).await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("agent.toml");
    let configure = |id: &str| {
        let mut command = program(&[&"configure", &"--url", &service.url, &"--config", &config]);
        command.arg("--id").arg(id).env("FARHAND_AGENT_KEY", KEY);
        command
    };
    service.respond("/-/", &[403]);
    let (code, _, errors) = end(&mut configure(SERVER)).await;
    assert!(code == 1 && errors.contains("refuses the key"), "{errors}");
    assert_eq!(names(folder.path()), [""; 0]);
    service.respond_with("/-/", 200, &registered(), || {});
    let (code, out, _) = end(&mut configure(SERVER)).await;
    assert!(code == 0 && out.starts_with("this host is web-1\n"), "{out}");
    assert_eq!(fs::metadata(&config).unwrap().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&config).unwrap();
    assert!(text.contains(KEY) && text.contains(SERVER), "{text}");
    let other = "01936d3e-7a00-7000-8000-00000000ffff";
    let (code, _, errors) = end(&mut configure(other)).await;
    assert!(code == 1 && errors.contains("--force"), "{errors}");
    for (arguments, why) in [
        (&["--id", "web-1"][..], "is not the UUID of a server"),
        (&["--id", SERVER], "no key is given"),
        (&["--id", SERVER, "--key-file", "/no/such/file"], "/no/such/file"),
    ] {
        let mut command = program(&[&"configure", &"--url", &service.url, &"--config", &config]);
        let (code, _, errors) = end(command.args(arguments)).await;
        assert!(code == 2 && errors.contains(why), "{errors}");
    }
    assert_eq!(fs::read_to_string(&config).unwrap(), text);
}

#[tokio::test]
async fn a_connection_check_takes_no_commands() {
    let service = Service::start(true).await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("agent.toml");
    write_config(&service, &config);
    let check = || program(&[&"run", &"--config", &config, &"--check-connection"]);
    service.respond_with("/-/", 200, &registered(), || {});
    let (code, out, errors) = end(&mut check()).await;
    assert!(code == 0 && out.contains("accepts the key"), "{out}{errors}");
    assert_eq!(calls(&service), ["GET /api/servers/servers/-/", "GET /ws/servers/control/"]);
    service.respond_with("/-/", 200, &registered(), || {});
    service.respond("/ws/", &[502]);
    let (code, _, errors) = end(&mut check()).await;
    assert!(code == 1 && errors.contains("no WebSocket: status 502"), "{errors}");
    service.respond("/-/", &[403]);
    let (code, _, errors) = end(&mut check()).await;
    assert!(code == 1 && errors.contains("refuses the key"), "{errors}");
}

#[tokio::test]
async fn install_and_uninstall_need_root() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = folder.path().join("farhand-agent");
    copy_program(Path::new(PROGRAM), &copy);
    for action in ["install", "uninstall"] {
        let mut command = Command::new(&copy);
        if geteuid().is_root() {
            let nobody = User::from_name("nobody").unwrap().unwrap();
            command.uid(nobody.uid.as_raw()).gid(nobody.gid.as_raw());
        }
        let (code, _, errors) = end(command.arg(action)).await;
        assert_eq!(
            (code, errors.as_str()),
            (1, "farhand-agent: this needs root: run it with sudo\n")
        );
    }
}

#[tokio::test]
async fn builtins_do_not_wait_behind_commands() {
    let mut service = Service::start(true).await;
    service.settings = "max_running = 1";
    let _agent = service.agent();
    let mut socket = service.socket().await;
    let first = socket.command("echo begun; exec sleep 600").await;
    service.wrote(first, "begun").await;
    let waiting = socket.command("true").await;
    for (line, code, result) in [
        ("ping", 0, "pong"),
        (" version ", 0, env!("CARGO_PKG_VERSION")),
        ("dance", 127, "This agent has no such built-in."),
    ] {
        let id = socket.builtin(line).await;
        let fin = service.fin(id).await;
        assert_eq!(
            (&fin["exit_code"], &fin["result"], &fin["success"]),
            (&json!(code), &json!(result), &json!(code == 0))
        );
        assert_eq!(service.reports(id)[0].0, "ack");
    }
    let id = socket.builtin("upgrade").await;
    let fin = service.fin(id).await;
    assert!(
        fin["exit_code"] == 126 && fin["reason"].as_str().unwrap().contains("allow_internal"),
        "{fin}"
    );
    assert!(service.fins(first).is_empty() && service.fins(waiting).is_empty());
}

#[tokio::test]
async fn a_restart_waits_for_running_and_waiting_commands() {
    let mut service = Service::start(true).await;
    service.settings = "max_running = 1";
    let agent = service.agent_with(&["--drain-seconds", "600"], None);
    let mut socket = service.socket().await;
    let folder = tempfile::tempdir().unwrap();
    let (go, log) = (folder.path().join("go"), folder.path().join("log"));
    let line = format!(
        "echo begun; until [ -e {} ]; do sleep 0.02; done; echo one >> {}",
        go.display(),
        log.display()
    );
    let running = socket.command(&line).await;
    service.wrote(running, "begun").await;
    let second = format!("echo two >> {}", log.display());
    let waiting = socket.command(&second).await;
    service.acked(waiting).await;
    let restart = socket.builtin("restart").await;
    let fin = service.fin(restart).await;
    assert_eq!((&fin["success"], &fin["result"]), (&json!(true), &json!("restarting")));
    assert_eq!(socket.next().await, Err(1000));
    assert!(service.fins(running).is_empty() && service.fins(waiting).is_empty());
    fs::write(&go, "").unwrap();
    let mut socket = service.socket().await;
    for id in [running, waiting] {
        assert_eq!(service.fin(id).await["exit_code"], 0);
    }
    // The process number and the state are the same as before.
    assert_eq!(status(&agent.config()).await.1["pid"], agent.pid());
    for (id, line) in [(running, line.as_str()), (waiting, second.as_str())] {
        let before = service.fins(id).len();
        socket.command_with(id, &own_name(), line).await;
        service.until(|_| service.fins(id).len() > before).await;
    }
    let next = socket.command("echo next").await;
    assert_eq!(service.fin(next).await["result"], "next\n");
    assert_eq!(fs::read_to_string(&log).unwrap(), "one\ntwo\n");
    assert!(service.fins(restart).iter().all(|fin| fin["result"] == "restarting"));
}

#[tokio::test]
async fn a_restart_stops_commands_after_the_drain_time() {
    let mut service = Service::start(true).await;
    service.settings = "max_running = 1";
    let _agent = service.agent_with(&["--drain-seconds", "1"], None);
    let mut socket = service.socket().await;
    let running = socket.command("echo begun; exec sleep 600").await;
    service.wrote(running, "begun").await;
    let waiting = socket.command("true").await;
    service.acked(waiting).await;
    socket.builtin("restart").await;
    let _socket = service.socket().await;
    let fin = service.fin(running).await;
    assert_eq!(
        (&fin["exit_code"], &fin["result"]),
        (&json!(143), &json!("begun\n\nThe agent was stopped.\n"))
    );
    assert_eq!(
        service.fin(waiting).await["reason"],
        "The agent was stopped before the command ran."
    );
}

#[tokio::test]
async fn a_restart_starts_the_current_program_file() {
    let mut service = Service::start(true).await;
    service.copies = true;
    let agent = service.agent();
    let mut socket = service.socket().await;
    let program = agent.program();
    let (beside, log) = (program.with_extension("new"), program.with_extension("log"));
    let replace = |script: &str| {
        let written = program.with_extension("sh");
        fs::write(&written, format!("#!/bin/sh\n{script}\n")).unwrap();
        copy_program(&written, &beside);
        fs::rename(&beside, &program).unwrap();
    };
    // The agent does not start a program that fails.
    replace("exit 7");
    let id = socket.builtin("restart").await;
    let fin = service.fin(id).await;
    assert!(
        fin["exit_code"] == 1 && fin["result"].as_str().unwrap().contains("stays as it is"),
        "{fin}"
    );
    let id = socket.builtin("ping").await;
    assert_eq!(service.fin(id).await["result"], "pong");
    replace(&format!("echo \"$@\" >> {}; exec {PROGRAM} \"$@\"", log.display()));
    let id = socket.builtin("restart").await;
    assert_eq!(service.fin(id).await["result"], "restarting");
    let mut socket = service.socket().await;
    let started = fs::read_to_string(&log).unwrap();
    assert_eq!(started, format!("--version\nrun --config {}\n", agent.config().display()));
    let id = socket.command("echo new").await;
    assert_eq!(service.fin(id).await["result"], "new\n");
    assert_eq!(status(&agent.config()).await.1["pid"], agent.pid());
}

#[tokio::test]
async fn a_signal_turns_a_restart_into_an_exit() {
    let mut service = Service::start(true).await;
    let mut agent = service.agent();
    let mut socket = service.socket().await;
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let id = socket
        .command(&format!("echo begun; until [ -e {} ]; do sleep 0.02; done", go.display()))
        .await;
    service.wrote(id, "begun").await;
    socket.builtin("restart").await;
    assert_eq!(socket.next().await, Err(1000));
    agent.signal(Signal::SIGTERM);
    eventually(|| agent.log().contains("SIGTERM: the agent exits, and is not restarted")).await;
    fs::write(&go, "").unwrap();
    assert_eq!(agent.exit().await.code(), Some(0));
    assert_eq!(service.fin(id).await["exit_code"], 0);
}

#[tokio::test]
async fn without_a_state_folder_the_agent_does_not_restart() {
    let mut service = Service::start(true).await;
    let _agent = service.agent_with(&["--state-dir", "/dev/null/state"], None);
    let mut socket = service.socket().await;
    let id = socket.builtin("restart").await;
    let fin = service.fin(id).await;
    assert!(
        fin["exit_code"] == 1 && fin["result"].as_str().unwrap().contains("stays as it is"),
        "{fin}"
    );
    let id = socket.builtin("ping").await;
    assert_eq!(service.fin(id).await["result"], "pong");
}
