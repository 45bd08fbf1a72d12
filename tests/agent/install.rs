//! The install script (contract 17.1), on hosts on which nothing of Farhand was installed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use farhand_tests::agents::{own_account, wait_until_connected};
use farhand_tests::clean_host::end;
use farhand_tests::processes::Process;
use farhand_tests::releases::{ARCH, VERSION, public_key, sha256};
use farhand_tests::{CleanHost, Releases, Workspace, secrets, setting};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

const TOKENS: &str = "/api/servers/registration-tokens/";
const CONFIG: &str = "/etc/farhand/agent.toml";
const BINARY: &str = "/usr/local/bin/farhand-agent";
const POLICY: &str = "/etc/farhand/policy.toml";
const UNIT: &str = "/etc/systemd/system/farhand-agent.service";

/// The address of the workspace for hosts.
fn url(workspace: &Workspace) -> String {
    let port = workspace.anonymous.url.rsplit(':').next().unwrap();
    format!("http://{}:{port}", workspace.anonymous.host)
}

/// Only root can create a clean host. The other tests of the script also run as another account.
fn clean_host() -> Option<CleanHost> {
    if own_account() == "root" {
        return Some(CleanHost::new());
    }
    eprintln!("not tested: only root can create a host without files of Farhand");
    None
}

/// Creates a registration token, and returns its key.
async fn registration_token(workspace: &Workspace, more: Value) -> String {
    let mut body = json!({"name": "hosts"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let made = workspace.admin.post(TOKENS, &body).await.expect(201);
    made["key"].as_str().unwrap().to_owned()
}

/// Downloads the script and runs it with variables and arguments.
fn script(workspace: &Workspace, variables: &str, arguments: &str) -> String {
    format!("curl -fsSL {}/install.sh | {variables} sh -s -- {arguments}", url(workspace))
}

/// The only server of a workspace.
async fn only_server(workspace: &Workspace) -> Value {
    let list = workspace.admin.get("/api/servers/").await.expect(200);
    assert_eq!(list["count"], 1, "{list}");
    list["results"][0].clone()
}

/// Starts the installed agent as the script says, runs a command, and ends the agent.
async fn assert_works(host: &CleanHost, workspace: &Workspace, id: &str) {
    let mut agent = host.command(&format!("exec {BINARY} run --config {CONFIG}"));
    let agent = Process::spawn(agent.stdout(Stdio::null()).stderr(Stdio::null()));
    wait_until_connected(workspace, id, true).await;
    let body = json!({"server": id, "line": "echo $((20 + 3))", "username": own_account()});
    let request = workspace.admin.request("POST", "/api/events/commands/");
    let request = request.header("Prefer", "wait=30").json(&body);
    let done = workspace.admin.send(request).await.expect(201);
    assert_eq!(done["result"], "23\n", "{done}");
    drop(agent);
    wait_until_connected(workspace, id, false).await;
}

#[tokio::test]
async fn the_install_line_works_when_pasted_and_again_after_a_rotation() {
    let Some(host) = clean_host() else { return };
    let workspace = Workspace::new().await;
    let server = workspace.admin.post("/api/servers/", &json!({"name": "web-1"})).await.expect(201);
    let id = server["id"].as_str().unwrap();
    let ended = host.run(server["install"].as_str().unwrap()).await;
    assert_eq!(ended.code, 0, "{}", ended.text);
    let hint = format!("start the agent with {BINARY} run --config {CONFIG}");
    assert!(ended.text.contains(&hint) && ended.text.contains("this host is web-1"), "{ended:?}");
    assert_eq!(host.files(), [CONFIG, POLICY, UNIT, BINARY]);
    assert!(ended.text.contains("mode open: it limits nothing"), "{ended:?}");
    let policy = json!({"mode": "open", "sha256": sha256(&fs::read(host.path(POLICY)).unwrap())});
    let offered = fs::read(setting("FARHAND_AGENT")).unwrap();
    assert!(fs::read(host.path(BINARY)).unwrap() == offered, "another program is installed");
    let mode = |path: &str| fs::metadata(host.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(CONFIG), mode(POLICY), mode(BINARY)), (0o600, 0o644, 0o755));
    assert_works(&host, &workspace, id).await;
    assert_eq!(only_server(&workspace).await["policy"], policy);

    // A second run of an old line: the service refuses its key, and the file stays.
    let text = fs::read_to_string(host.path(CONFIG)).unwrap();
    let rotated = format!("/api/servers/servers/{id}/rotate-key/");
    let rotated = workspace.admin.post(&rotated, &json!({"now": true})).await.expect(200);
    let refused = host.run(server["install"].as_str().unwrap()).await;
    assert!(refused.code == 1 && refused.text.contains("refuses the key"), "{refused:?}");
    assert_eq!(fs::read_to_string(host.path(CONFIG)).unwrap(), text);
    // The new line replaces the key, and keeps other settings.
    fs::write(host.path(CONFIG), format!("{text}max_running = 3\n")).unwrap();
    let ended = host.run(rotated["install"].as_str().unwrap()).await;
    assert_eq!(ended.code, 0, "{}", ended.text);
    let new = fs::read_to_string(host.path(CONFIG)).unwrap();
    assert!(new.contains(rotated["key"].as_str().unwrap()) && new.contains("max_running = 3"));
    assert!(!new.contains(server["key"].as_str().unwrap()));
    assert_works(&host, &workspace, id).await;

    // The line of another server does not take the host over.
    let other = workspace.server("web-2").await;
    let refused = host.run(other["install"].as_str().unwrap()).await;
    assert!(refused.code == 1 && refused.text.contains("not of server"), "{refused:?}");
    assert_eq!(fs::read_to_string(host.path(CONFIG)).unwrap(), new);
}

#[tokio::test]
async fn a_registration_token_registers_once() {
    let Some(host) = clean_host() else { return };
    let workspace = Workspace::new().await;
    let token = registration_token(&workspace, json!({"label_keys": ["role", "env"]})).await;
    host.write("/root/token", &format!("{token}\n"), 0o600);
    let arguments = "--token-file /root/token --name db-1 --label role=db --label env=prod";
    let ended = host.run(&script(&workspace, "", arguments)).await;
    assert_eq!(ended.code, 0, "{}", ended.text);
    assert!(!ended.text.contains(&token) && !ended.text.contains("warning"), "{ended:?}");
    let server = only_server(&workspace).await;
    assert_eq!(
        (&server["name"], &server["labels"]),
        (&json!("db-1"), &json!({"role": "db", "env": "prod"}))
    );
    record_key(&host);
    // Again: the same server, the same program.
    for variables in ["", &format!("FARHAND_REGISTRATION_TOKEN={token}")] {
        let ended = host.run(&script(&workspace, variables, "--name db-1")).await;
        assert_eq!(ended.code, 0, "{}", ended.text);
        assert!(!ended.text.contains("downloading"), "{ended:?}");
        assert_eq!(only_server(&workspace).await["id"], server["id"]);
    }
    assert_works(&host, &workspace, server["id"].as_str().unwrap()).await;
    // An older program is upgraded.
    fs::write(host.path(BINARY), "#!/bin/sh\n").unwrap();
    let ended = host.run(&script(&workspace, "", "")).await;
    assert!(ended.code == 0 && ended.text.contains("downloading the agent"), "{ended:?}");
    assert!(fs::read(host.path(BINARY)).unwrap() == fs::read(setting("FARHAND_AGENT")).unwrap());

    // A token on the command line works, with a warning.
    let Some(second) = clean_host() else { return };
    let ended = second.run(&script(&workspace, "", &format!("--token {token} --name db-2"))).await;
    assert!(ended.code == 0 && ended.text.contains("warning: --token"), "{ended:?}");
    record_key(&second);
}

/// Records the key of an installed agent as a secret of this run.
fn record_key(host: &CleanHost) {
    let text = fs::read_to_string(host.path(CONFIG)).unwrap();
    let key = text.lines().find_map(|line| line.strip_prefix("key = \"")).unwrap();
    secrets::record("key", key.trim_end_matches('"'));
}

#[tokio::test]
async fn systemd_starts_the_agent_and_a_current_agent_is_left_alone() {
    let Some(host) = clean_host() else { return };
    let host = host.with_systemd();
    let workspace = Workspace::new().await;
    let token = workspace.admin.post(TOKENS, &json!({"name": "hosts"})).await.expect(201);
    let ended = host.run(token["install"].as_str().unwrap()).await;
    assert!(ended.code == 0 && ended.text.contains("the agent runs"), "{ended:?}");
    only_server(&workspace).await;
    record_key(&host);
    let calls = || fs::read_to_string(host.path("/systemctl.log")).unwrap();
    let started = "daemon-reload\nenable farhand-agent.service\nrestart farhand-agent.service\n";
    assert_eq!(calls(), started);
    let unit = fs::read_to_string(host.path(UNIT)).unwrap();
    assert!(unit.contains(&format!("ExecStart={BINARY} run --config {CONFIG}\n")), "{unit}");
    fs::write(host.path("/is-active"), "").unwrap();
    fs::write(host.path("/systemctl.log"), "").unwrap();
    let ended = host.run(&script(&workspace, "", "")).await;
    assert!(ended.code == 0 && ended.text.contains("already runs"), "{ended:?}");
    assert_eq!(calls(), "is-active --quiet farhand-agent.service\n");
    // A policy that is chosen later is written, unless there is one.
    let chosen = script(&workspace, "FARHAND_POLICY=accounts", "");
    let ended = host.run(&chosen).await;
    assert!(ended.code == 0 && ended.text.contains("already runs"), "{ended:?}");
    fs::remove_file(host.path(POLICY)).unwrap();
    let ended = host.run(&chosen).await;
    assert!(ended.code == 0 && ended.text.contains("no command runs as root"), "{ended:?}");
    assert!(fs::read_to_string(host.path(POLICY)).unwrap().contains("deny_accounts = [\"root\"]"));
    // With another program, it is upgraded and restarted.
    fs::write(host.path(BINARY), "#!/bin/sh\n").unwrap();
    let ended = host.run(&script(&workspace, "", "")).await;
    assert!(ended.code == 0 && calls().ends_with(started), "{ended:?}");
}

#[tokio::test]
async fn a_failure_is_one_line_and_leaves_nothing_behind() {
    let Some(host) = clean_host() else { return };
    let releases = Releases::start(&[]).await;
    let workspace = &releases.workspace;
    let token = registration_token(workspace, json!({"name_pattern": "web-*"})).await;
    let variables = format!("FARHAND_REGISTRATION_TOKEN={token}");
    let local = format!("curl -fsSL {}/install.sh > /opt/install.sh", url(workspace));
    assert_eq!(host.run(&local).await.code, 0);
    let before = host.files();
    let expect = async |script: String, message: &str| {
        expect_failure(&host, &script, message, &before).await;
    };
    let run = |arguments: &str| format!("{variables} sh /opt/install.sh {arguments}");
    expect("sh /opt/install.sh".to_owned(), "this host is not registered").await;
    expect("FARHAND_KEY=x sh /opt/install.sh".to_owned(), "belong together").await;
    expect(format!("FARHAND_POLICY=none {}", run("")), "FARHAND_POLICY: none is not open").await;
    expect(format!("FARHAND_POLICY=argv {}", run("--user")), "only root can write").await;
    expect(run("--token-file /no/such/file"), "/no/such/file cannot be read").await;
    expect(run("--no-such-option"), "unknown option --no-such-option").await;
    expect(run("--label"), "--label needs a value").await;
    expect(run("--label 'a=$(id)'"), "a label has the form").await;
    let unprivileged = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    expect(format!("{unprivileged} {}", run("").replace(&variables, "env")), "this needs root")
        .await;
    let uname = |script: &str| format!("uname() {{ {script}; }}; set --; . /opt/install.sh");
    expect(uname("if [ $1 = -m ]; then echo riscv64; else echo Linux; fi"), "architecture riscv64")
        .await;
    expect(uname("echo Darwin"), "this is for Linux, not for Darwin").await;
    // The service and the way to it.
    expect(format!("{variables} unshare --net sh /opt/install.sh"), "cannot download").await;
    expect(run("--name db-1"), "not registered: status 403").await;
    let unknown = format!("FARHAND_REGISTRATION_TOKEN={} sh /opt/install.sh", "x".repeat(128));
    expect(unknown, "not registered: status 403").await;
    let id = "01936d3e-7a00-7000-8000-000000000000";
    let unknown = format!("FARHAND_SERVER={id} FARHAND_KEY=x sh /opt/install.sh");
    expect(unknown, "refuses the key").await;
    // The files of the service.
    let checksum = releases.file(VERSION, ".sha256");
    let good = fs::read_to_string(&checksum).unwrap();
    fs::write(&checksum, good.replacen(&good[..1], if &good[..1] == "0" { "1" } else { "0" }, 1))
        .unwrap();
    expect(run(""), "the checksum of").await;
    fs::write(&checksum, &good).unwrap();
    let file = releases.file(VERSION, "");
    let program = fs::read(&file).unwrap();
    fs::write(&file, &program[..program.len() - 1]).unwrap();
    expect(run(""), "the checksum of").await;
    fs::write(&file, b"not a program").unwrap();
    fs::write(&checksum, format!("{}  x\n", sha256(b"not a program"))).unwrap();
    expect(run(""), "the agent does not start").await;
    fs::remove_file(&checksum).unwrap();
    expect(run(""), &format!("the service has no /agent/{VERSION}/farhand-agent-{ARCH}")).await;
    assert_eq!(workspace.admin.get("/api/servers/").await.expect(200)["count"], 0);
}

/// Asserts that a script fails with a message in one line, after the line about its download, and
/// that it changes no file.
async fn expect_failure(host: &CleanHost, script: &str, message: &str, files: &[String]) {
    let ended = host.run(script).await;
    let lines: Vec<&str> =
        ended.text.lines().filter(|line| !line.contains("downloading the agent")).collect();
    assert!(ended.code == 1 && lines.len() == 1 && lines[0].contains(message), "{ended:?}");
    assert_eq!(host.files(), files, "{message}");
}

#[tokio::test]
async fn a_signed_release_is_verified() {
    let Some(host) = clean_host() else { return };
    let key = public_key();
    let releases = Releases::start(&[("FARHAND_RELEASE_KEY", &key)]).await;
    let workspace = &releases.workspace;
    let token = registration_token(workspace, json!({})).await;
    let line = script(workspace, &format!("FARHAND_REGISTRATION_TOKEN={token}"), "--name web-1");
    let program = fs::read(releases.file(VERSION, "")).unwrap();
    let unsigned = host.run(&line).await;
    assert!(unsigned.code == 1 && unsigned.text.contains("has no"), "{unsigned:?}");
    // Another version's signature, and a program with a good checksum only.
    releases.offer("99.0.0", &program);
    fs::copy(releases.file("99.0.0", ".sig"), releases.file(VERSION, ".sig")).unwrap();
    expect_failure(&host, &line, "the signature of", &[]).await;
    releases.offer(VERSION, b"#!/bin/sh\necho another program\n");
    let signature = fs::read(releases.file(VERSION, ".sig")).unwrap();
    releases.offer(VERSION, &program);
    fs::write(releases.file(VERSION, ".sig"), signature).unwrap();
    expect_failure(&host, &line, "the signature of", &[]).await;
    releases.offer(VERSION, &program);
    let ended = host.run(&line).await;
    assert!(ended.code == 0 && !ended.text.contains("warning"), "{ended:?}");
    record_key(&host);
    // Without an openssl that has Ed25519, nothing is installed.
    let Some(second) = clean_host() else { return };
    second.write("/usr/local/sbin/openssl", "#!/bin/sh\nexit 1\n", 0o755);
    let before = second.files();
    expect_failure(&second, &line, "this host cannot check it: this needs OpenSSL 3.0", &before)
        .await;
}

#[tokio::test]
async fn an_account_installs_without_root() {
    let releases = Releases::start(&[]).await;
    let workspace = &releases.workspace;
    let token = registration_token(workspace, json!({})).await;
    let home = tempfile::tempdir().unwrap();
    let mut setpriv = tokio::process::Command::new("setpriv");
    if own_account() == "root" {
        std::os::unix::fs::chown(home.path(), Some(65534), Some(65534)).unwrap();
        setpriv.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    }
    let line = script(workspace, "", "--user --foreground --name mine");
    setpriv
        .args(["sh", "-c", &line])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", home.path())
        .env("FARHAND_REGISTRATION_TOKEN", &token)
        .current_dir("/")
        .stdin(Stdio::null());
    let _agent = Process::spawn(setpriv.stdout(Stdio::null()).stderr(Stdio::null()));
    farhand_tests::eventually("the host to register", || async {
        let list = workspace.admin.get("/api/servers/").await.expect(200);
        (list["count"] == 1).then_some(())
    })
    .await;
    let id = only_server(workspace).await["id"].as_str().unwrap().to_owned();
    wait_until_connected(workspace, &id, true).await;
    let config = home.path().join(".config/farhand/agent.toml");
    let mut status = tokio::process::Command::new(setting("FARHAND_AGENT"));
    let status = end(status.args(["status", "--json", "--config"]).arg(&config)).await;
    let status: Value = serde_json::from_str(&status.text).unwrap();
    // The script became the agent, without the token.
    let read = |name: &str| fs::read(format!("/proc/{}/{name}", status["pid"])).unwrap();
    let program = home.path().join(".local/bin/farhand-agent");
    assert!(read("cmdline").starts_with(program.to_str().unwrap().as_bytes()));
    assert!(!String::from_utf8_lossy(&read("environ")).contains(&token));
    assert_eq!(fs::metadata(&config).unwrap().permissions().mode() & 0o777, 0o600);
    let unit = home.path().join(".config/systemd/user/farhand-agent.service");
    let unit = fs::read_to_string(unit).unwrap();
    let start = format!("ExecStart={} run --config {}\n", program.display(), config.display());
    assert!(unit.contains(&start), "{unit}");
    let text = fs::read_to_string(&config).unwrap();
    let key = text.lines().find_map(|line| line.strip_prefix("key = \"")).unwrap();
    secrets::record("key", key.trim_end_matches('"'));
}

#[tokio::test]
async fn the_downloads_use_the_proxy_of_the_environment() {
    let Some(host) = clean_host() else { return };
    let workspace = Workspace::new().await;
    let token = registration_token(&workspace, json!({})).await;
    let port: u16 = workspace.anonymous.url.rsplit(':').next().unwrap().parse().unwrap();
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy_url = format!("http://{}", proxy.local_addr().unwrap());
    let (sender, mut requests) = tokio::sync::mpsc::unbounded_channel();
    let _proxy = tokio::spawn(async move {
        while let Ok((client, _)) = proxy.accept().await {
            let _ = sender.send(forward(client, port).await);
        }
    });
    assert_eq!(
        host.run(&format!("curl -fsS {}/install.sh > /root/i", url(&workspace))).await.code,
        0
    );
    let line = format!("http_proxy={proxy_url} FARHAND_REGISTRATION_TOKEN={token} sh /root/i");
    let ended = host.run(&line).await;
    assert_eq!(ended.code, 0, "{}", ended.text);
    record_key(&host);
    for ending in [".sha256", ""] {
        let file = format!("{}/agent/{VERSION}/farhand-agent-{ARCH}{ending} ", url(&workspace));
        assert_eq!(requests.recv().await.unwrap(), format!("GET {file}HTTP/1.1"));
    }
}

/// Forwards a request to the service, as a proxy does. Returns the request line.
async fn forward(mut client: TcpStream, port: u16) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let (line, rest) = head.split_once("\r\n").unwrap();
    let path = &line[line.find("/agent/").unwrap()..];
    let mut service = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!("GET {path}\r\nConnection: close\r\n{rest}");
    service.write_all(request.as_bytes()).await.unwrap();
    tokio::spawn(async move { copy_bidirectional(&mut client, &mut service).await });
    line.to_owned()
}

#[tokio::test]
async fn wget_is_enough() {
    let Some(host) = clean_host() else { return };
    let releases = Releases::start(&[]).await;
    let workspace = &releases.workspace;
    let token = registration_token(workspace, json!({})).await;
    let line = |token: &str| {
        format!(
            "rm -f /usr/bin/curl; wget -qO- {}/install.sh | FARHAND_REGISTRATION_TOKEN={token} sh",
            url(workspace)
        )
    };
    let ended = host.run(&line(&token)).await;
    assert_eq!(ended.code, 0, "{}", ended.text);
    record_key(&host);
    fs::remove_file(releases.file(VERSION, ".sha256")).unwrap();
    let ended = host.run(&line(&token)).await;
    assert!(ended.code == 1 && ended.text.contains("the service has no /agent/"), "{ended:?}");
}

#[tokio::test]
async fn the_address_in_the_script_is_the_configured_one() {
    let workspace = Workspace::new().await;
    let configured = url(&workspace);
    let port = configured.rsplit(':').next().unwrap();
    for host in [format!("{}:666", workspace.admin.host), workspace.admin.host.to_uppercase()] {
        let api = workspace.anonymous.with_host(&host);
        let request = api.request("GET", "/install.sh").header("X-Forwarded-Host", "evil.example");
        let reply = api.send(request).await;
        assert_eq!(
            (reply.status, reply.header("Content-Type")),
            (200, "text/plain; charset=utf-8")
        );
        let line = format!("\nservice=http://{}.local.localhost:{port}\n", workspace.slug);
        assert!(reply.text.contains(&line), "{}", &reply.text[..400]);
        assert!(!reply.text.contains("666") && !reply.text.contains("evil"));
    }
    let evil = workspace.anonymous.with_host("unknown.local.localhost");
    evil.get("/install.sh").await.expect_detail(404, None);
    workspace.anonymous.call("POST", "/install.sh").await.expect_detail(405, None);
    // Only files of agents are served.
    for path in ["farhand-agent-riscv64", "index.html", "..%2f..%2fapi%2fdocs%2findex.html"] {
        let path = format!("/agent/{VERSION}/{path}");
        workspace.anonymous.get(&path).await.expect_detail(404, None);
    }
    workspace
        .anonymous
        .get(&format!("/agent/0.0.1/farhand-agent-{ARCH}"))
        .await
        .expect_detail(404, None);
}

#[tokio::test]
async fn no_configured_address_runs_as_shell_code() {
    let folder = tempfile::tempdir().unwrap();
    let (program, ran) = (folder.path().join("attack"), folder.path().join("ran"));
    fs::write(&program, format!("#!/bin/sh\ntouch {}\n", ran.display())).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    // A valid URL: its characters are allowed in paths.
    let address = "http://x/';attack;'$(attack)&attack;";
    let (instance, _state) = farhand_tests::Instance::new_with(&[("BASE_URL", address)]).await;
    let workspace = Workspace::create_with(&instance.operator(), "hosts").await;
    let script = workspace.anonymous.get("/install.sh").await;
    assert_eq!(script.status, 200);
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let shell = async |text: &str| {
        end(tokio::process::Command::new("/bin/sh").args(["-c", text]).env("PATH", &path)).await
    };
    let (assignments, _) = script.text.split_once("\nusage()").unwrap();
    let shown = shell(&format!("{assignments}\nprintf %s \"$service\"")).await;
    assert_eq!(shown.text, address);
    let help = shell(&script.text.replace("{ main \"$@\"; }", "main --help")).await;
    assert!(help.code == 0 && help.text.contains(address), "{help:?}");
    let server = workspace.server("web-1").await;
    let install = server["install"].as_str().unwrap();
    let arguments = install.strip_prefix(" curl -fsSL ").unwrap();
    let printed =
        shell(&format!("printf '%s\\n' {} cat", arguments.strip_suffix("sh").unwrap())).await;
    assert_eq!(printed.text, format!("{address}/install.sh\n"));
    assert!(!ran.exists());
}

#[tokio::test]
async fn a_private_release_key_is_not_published() {
    let private = "MC4CAQAwBQYDK2VwBCIEIAcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH";
    let (instance, _state) =
        farhand_tests::Instance::new_with(&[("FARHAND_RELEASE_KEY", private)]).await;
    let workspace = Workspace::create_with(&instance.operator(), "hosts").await;
    let reply = workspace.anonymous.get("/install.sh").await;
    assert!(!reply.text.contains(private), "{}", reply.text);
    reply.expect_detail(500, None);
}

#[tokio::test]
async fn a_script_that_was_cut_off_does_nothing() {
    let workspace = Workspace::new().await;
    let script = workspace.anonymous.get("/install.sh").await.text;
    let end_of_script = script.trim_end().len();
    let cuts =
        (0..40).map(|step| end_of_script * step / 40).chain(end_of_script - 20..end_of_script);
    for cut in cuts {
        let mut shell = tokio::process::Command::new("/bin/sh");
        shell.args(["-c", &script[..cut]]).env_clear().env("PATH", "/no/such/folder");
        let ended = end(&mut shell).await;
        assert!(!ended.text.contains("farhand:"), "{cut}: {ended:?}");
    }
    let whole = end(tokio::process::Command::new("/bin/sh")
        .args(["-c", &script])
        .env_clear()
        .env("PATH", "/nowhere"))
    .await;
    assert!(whole.code != 0 && whole.text.contains("farhand:"), "{whole:?}");
}
