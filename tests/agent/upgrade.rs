//! The agent's upgrade by itself (contract 17.4): a real agent that was built with a throw-away
//! release key.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use farhand_tests::agents::{own_account, wait_until_connected};
use farhand_tests::commands::wait_for_command;
use farhand_tests::processes::Process;
use farhand_tests::releases::{ARCH, VERSION, sign};
use farhand_tests::{PATIENCE, Releases, eventually, eventually_within, setting};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

const COMMANDS: &str = "/api/events/commands/";
const NEW: &str = "99.0.0";
/// Longer than a new program has for its first connection.
const TRIAL: Duration = Duration::from_secs(90);

/// A host with its own copy of the agent's program.
struct Host {
    folder: TempDir,
    server: Value,
}

impl Host {
    async fn new(releases: &Releases) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = releases.workspace.server("here").await;
        let (id, key) = (server["id"].as_str().unwrap(), server["key"].as_str().unwrap());
        let text = format!("url = \"{}\"\nid = \"{id}\"\nkey = \"{key}\"\n", releases.instance.url);
        let host = Self { folder, server };
        fs::write(host.path("agent.toml"), text).unwrap();
        install(Path::new(&setting("FARHAND_AGENT_WITH_KEY")), &host.path("farhand-agent"));
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn id(&self) -> &str {
        self.server["id"].as_str().unwrap()
    }

    /// The path of a file beside the program.
    fn beside(&self, kind: &str) -> PathBuf {
        self.path(&format!(".farhand-agent.{}.{kind}", self.id()))
    }

    /// Writes a policy. Only root can own one.
    fn set_policy(&self, text: &str) {
        fs::write(self.path("policy.toml"), text).unwrap();
        fs::set_permissions(self.path("policy.toml"), PermissionsExt::from_mode(0o644)).unwrap();
    }

    /// Starts the agent, with the policy.
    fn start(&self) -> Process {
        let log = fs::File::options().append(true).create(true).open(self.path("log")).unwrap();
        let mut agent = Command::new(self.path("farhand-agent"));
        agent.args(["run", "--drain-seconds", "60", "--config"]).arg(self.path("agent.toml"));
        agent.arg("--policy").arg(self.path("policy.toml"));
        Process::spawn(agent.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn program(&self) -> Vec<u8> {
        fs::read(self.path("farhand-agent")).unwrap()
    }

    /// The names in the folder that belong to an upgrade.
    fn leftovers(&self) -> Vec<String> {
        let names = fs::read_dir(self.folder.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with('.')).collect()
    }
}

/// Copies a program with `install`. If this process wrote the file, a process that another test
/// forks could inherit it open for writing, and the program could not be executed.
fn install(from: &Path, to: &Path) {
    let status =
        std::process::Command::new("install").args(["-m", "755"]).args([from, to]).status();
    assert!(status.unwrap().success());
}

/// A program that is another file than the agent, and behaves as the agent of the host. `check` is
/// a shell command for its connection check.
fn new_program(check: &str) -> Vec<u8> {
    let agent = setting("FARHAND_AGENT_WITH_KEY");
    // `exec -a` keeps the path of this file as the program's own path.
    format!(
        "#!/bin/bash\n[[ \"$*\" != *--check-connection* ]] || {{ {check}; }}\nexec -a \"$0\" {agent} \"$@\"\n"
    )
    .into_bytes()
}

/// Runs a built-in to its end.
async fn run(releases: &Releases, line: &str) -> Value {
    let body = json!({"server": "here", "shell": "internal", "line": line});
    let request = releases.workspace.admin.request("POST", COMMANDS);
    let request = request.header("Prefer", "wait=60").json(&body);
    let done = releases.workspace.admin.send(request).await.expect(201);
    assert!(done["handled_at"].is_string(), "{done}");
    done
}

fn is_root() -> bool {
    if own_account() != "root" {
        eprintln!("not tested: only root can own a policy, which must allow an upgrade");
    }
    own_account() == "root"
}

#[tokio::test]
async fn what_is_refused_changes_nothing() {
    if !is_root() {
        return;
    }
    let releases = Releases::start(&[]).await;
    let host = Host::new(&releases).await;
    host.set_policy("");
    let _agent = host.start();
    wait_until_connected(&releases.workspace, host.id(), true).await;
    let pid = pid_of(&host);
    let old = host.program();
    releases.offer(NEW, &new_program("true"));
    let expect = async |line: &str, code: i64, why: &str| {
        let done = run(&releases, line).await;
        let text = format!("{}{}", done["result"], done["status"]["message"]);
        assert!(done["exit_code"] == code && text.contains(why), "{line}: {done}");
        assert!(host.program() == old && host.leftovers().is_empty(), "{:?}", host.leftovers());
        assert_eq!(
            (pid_of(&host), run(&releases, "ping").await["result"].clone()),
            (pid, json!("pong"))
        );
    };
    let line = format!("upgrade {NEW}");
    // The policy.
    for policy in ["", "allow_internal = [\"ping\"]"] {
        host.set_policy(policy);
        expect(&line, 126, "(allow_internal)").await;
    }
    host.set_policy("allow_internal = [\"upgrade\", \"ping\"]");
    // The version.
    expect("upgrade 0.0.1", 1, "0.0.1 is older than").await;
    expect("upgrade latest", 1, "the version must have the form 1.2.3").await;
    expect("upgrade ../../x", 1, "the version must have the form 1.2.3").await;
    expect("upgrade 98.0.0", 1, "the service has no /agent/98.0.0/").await;
    expect("upgrade 1 2", 127, "no such built-in").await;
    // The service offers its own version, which the agent has.
    expect("upgrade", 0, &format!("already {VERSION}")).await;
    // The signature.
    let file = releases.file(NEW, "");
    let (signature, program) = (releases.file(NEW, ".sig"), fs::read(&file).unwrap());
    let wrong = "is not from the release key";
    for bad in [
        "".to_owned(),
        "AAAA".to_owned(),
        sign("98.0.0", ARCH, &program),
        sign(NEW, "riscv64", &program),
        sign(NEW, ARCH, b"another program"),
    ] {
        fs::write(&signature, bad).unwrap();
        expect(&line, 1, wrong).await;
    }
    releases.offer(NEW, &program);
    fs::write(&file, [&program[..], b"# changed\n"].concat()).unwrap();
    expect(&line, 1, wrong).await;
    fs::remove_file(&signature).unwrap();
    expect(&line, 1, "the service has no").await;
    // The new program.
    releases.offer(NEW, &new_program("echo 'no route' >&2; exit 1"));
    expect(&line, 1, "99.0.0 cannot connect: exit status: 1: no route").await;
    releases.offer(NEW, b"\x7fELF but not really");
    expect(&line, 1, "cannot connect: it cannot be started").await;
    releases.offer(NEW, &new_program("kill -9 $$"));
    expect(&line, 1, "cannot connect: signal: 9").await;
    // A check that uses the key: the service refuses the new program.
    let bad_key = "FARHAND_AGENT_KEY=wrong exec \"$(dirname \"$0\")/farhand-agent\" \"$@\"";
    releases.offer(NEW, &new_program(bad_key));
    expect(&line, 1, "the service refuses the key").await;
}

/// The process number of the host's agent, from its state.
fn pid_of(host: &Host) -> i64 {
    let output = std::process::Command::new(setting("FARHAND_AGENT_WITH_KEY"))
        .args(["status", "--json", "--config"])
        .arg(host.path("agent.toml"))
        .output()
        .unwrap();
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    status["pid"].as_i64().unwrap()
}

#[tokio::test]
async fn an_upgrade_replaces_the_program_and_loses_no_command() {
    if !is_root() {
        return;
    }
    let releases = Releases::start(&[]).await;
    let workspace = &releases.workspace;
    let host = Host::new(&releases).await;
    host.set_policy("allow_internal = [\"upgrade\", \"ping\"]");
    let _agent = host.start();
    wait_until_connected(workspace, host.id(), true).await;
    let pid = pid_of(&host);
    let new = new_program("true");
    releases.offer(NEW, &new);
    // A command that runs at this moment ends before the restart.
    let go = host.path("go");
    let line = format!("until [ -e {} ]; do sleep 0.05; done; echo ran", go.display());
    let body = json!({"server": "here", "line": line, "username": own_account()});
    let running = workspace.admin.post(COMMANDS, &body).await.expect(201);
    let id = running["id"].as_str().unwrap();
    let is_acked = |command: &Value| command["acked_at"].is_string();
    wait_for_command(&workspace.admin, id, "the command to begin", is_acked).await;
    // Staged by a batch.
    let batch =
        json!({"targets": {"all": true}, "shell": "internal", "line": format!("upgrade {NEW}")});
    let batch = workspace.admin.post("/api/events/batches/", &batch).await.expect(201);
    let path = format!("/api/events/batches/{}/", batch["id"].as_str().unwrap());
    eventually("the batch to end", || async {
        let batch = workspace.admin.get(&path).await.expect(200);
        (batch["state"] == "finished").then_some(())
    })
    .await;
    let outputs = workspace.admin.get(&format!("{path}outputs/")).await.expect(200);
    let result = format!("upgraded from {VERSION} to {NEW}, restarting");
    assert_eq!(outputs["results"][0]["result"], result, "{outputs}");
    assert!(host.program() == new);
    fs::write(&go, "").unwrap();
    let done = workspace.admin.get(&format!("{COMMANDS}{id}/?wait=60")).await.expect(200);
    assert_eq!((&done["result"], &done["success"]), (&json!("ran\n"), &json!(true)), "{done}");
    // The new program is the same process, and the old one is deleted after it connected.
    eventually("the old program to be deleted", || async {
        (host.log().contains("first start") && host.leftovers().is_empty()).then_some(())
    })
    .await;
    wait_until_connected(workspace, host.id(), true).await;
    assert_eq!(pid_of(&host), pid);
    assert_eq!(run(&releases, "ping").await["result"], "pong");
    assert!(host.program() == new);
}

#[tokio::test]
async fn a_new_program_that_does_not_connect_is_replaced_by_the_old_one() {
    let releases = Releases::start(&[]).await;
    let host = Host::new(&releases).await;
    host.set_policy("");
    let old = new_program("true");
    let text = fs::read_to_string(host.path("agent.toml")).unwrap();
    let unreachable = text.replace(&releases.instance.url, "http://127.0.0.1:9");
    // The state right after an upgrade: `previous` is the old program.
    let upgraded = || {
        fs::write(host.path("old"), &old).unwrap();
        install(&host.path("old"), &host.beside("previous"));
        fs::write(host.path("agent.toml"), &unreachable).unwrap();
        let _ = fs::remove_file(host.path("farhand-agent"));
        install(Path::new(&setting("FARHAND_AGENT_WITH_KEY")), &host.path("farhand-agent"));
    };
    let new = host.program();
    let has_begun = || async { host.beside("tried").exists().then_some(()) };
    let is_back = || async { (host.program() == old && host.leftovers().is_empty()).then_some(()) };

    // It ends before it connected, and goes back when it starts again.
    upgraded();
    let mut first = host.start();
    eventually("the trial to begin", has_begun).await;
    first.signal(Signal::SIGKILL);
    first.wait_for_exit(PATIENCE).await;
    assert!(host.program() == new);
    fs::write(host.path("agent.toml"), &text).unwrap();
    let mut second = host.start();
    eventually("the old program to be back", is_back).await;
    wait_until_connected(&releases.workspace, host.id(), true).await;
    assert!(host.log().contains("ended before it connected: the previous version returns"));
    second.signal(Signal::SIGTERM);
    second.wait_for_exit(PATIENCE).await;

    // It runs and does not connect for a minute.
    upgraded();
    let _third = host.start();
    eventually("the trial to begin", has_begun).await;
    fs::write(host.path("agent.toml"), &text).unwrap();
    eventually_within(TRIAL, "the old program to be back", is_back).await;
    assert!(host.log().contains("did not connect within 60 s: the previous version returns"));
    wait_until_connected(&releases.workspace, host.id(), true).await;
}
