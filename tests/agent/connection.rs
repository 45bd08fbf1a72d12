//! The connection of an agent (agent-protocol 5): what the API shows when the connection opens,
//! closes or breaks, and which of several sockets counts.

use std::process::{Command, Stdio};
use std::time::Duration;

use farhand_domain::time::Timestamp;
use farhand_tests::agents::{ScriptedAgent, credential, dial, own_account, wait_until_connected};
use farhand_tests::alpamon::{
    AgentBehaviour, AgentLog, Alpamon, BACKHAUL, CONTROL, CommandScript, SocketEnd,
};
use farhand_tests::client::unique;
use farhand_tests::commands::{wait_for_status, wait_until_ended_within};
use farhand_tests::processes::Process;
use farhand_tests::{Instance, RealAgent, Workspace, eventually, eventually_within};
use futures_util::future::join_all;
use futures_util::{SinkExt, StreamExt, stream};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

const PATH: &str = "/api/events/commands/";
/// Time limit for processes that take a minute or two. The service gives up a silent agent after
/// one minute.
const LONG_TIMEOUT: Duration = Duration::from_secs(240);

fn id(server: &Value) -> &str {
    server["id"].as_str().unwrap()
}

async fn read_server(workspace: &Workspace, server: &Value) -> Value {
    workspace.admin.get(&format!("/api/servers/servers/{}/", id(server))).await.expect(200)
}

fn time_of(shown: &Value, name: &str) -> Timestamp {
    Timestamp::parse(shown[name].as_str().unwrap_or_else(|| panic!("{name} is missing in {shown}")))
        .unwrap()
}

/// Waits with a long limit until `is_connected` of a server has a value. Returns the server.
async fn wait_for_connection(workspace: &Workspace, server: &Value, connected: bool) -> Value {
    eventually_within(LONG_TIMEOUT, "the server's connection", || async {
        Some(read_server(workspace, server).await)
            .filter(|shown| shown["is_connected"] == connected)
    })
    .await
}

/// Runs a command to its end.
async fn run(workspace: &Workspace, server: &Value, line: &str) -> Value {
    let body = json!({"server": server["id"], "line": line, "username": own_account()});
    let request = workspace.admin.request("POST", PATH).header("Prefer", "wait=30").json(&body);
    let done = workspace.admin.send(request).await.expect(201);
    assert!(done["handled_at"].is_string(), "{done}");
    done
}

#[tokio::test]
async fn the_api_shows_when_an_agent_was_connected() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let fresh = read_server(&workspace, &server).await;
    for name in ["connected_at", "last_seen_at", "remote_ip"] {
        assert_eq!(fresh[name], json!(null), "{name}");
    }
    let before = farhand_tests::now();
    let first = ScriptedAgent::connect(&workspace, &server).await;
    let connected = wait_for_connection(&workspace, &server, true).await;
    let connected_at = time_of(&connected, "connected_at");
    assert!(before <= connected_at && connected_at <= farhand_tests::now(), "{connected}");
    assert!(time_of(&connected, "last_seen_at") >= connected_at, "{connected}");
    assert_eq!(connected["remote_ip"], "127.0.0.1");

    // A clean close: the API still shows the time of the last connection.
    first.close().await;
    let gone = wait_for_connection(&workspace, &server, false).await;
    assert_eq!(
        (&gone["connected_at"], &gone["remote_ip"]),
        (&connected["connected_at"], &json!("127.0.0.1"))
    );
    workspace
        .admin
        .post(PATH, &json!({"server": "web-1", "line": "id"}))
        .await
        .expect_detail(503, Some("SERVER_NOT_CONNECTED"));

    // A broken connection, as after the agent's process is killed.
    let second = ScriptedAgent::connect(&workspace, &server).await;
    let again = wait_for_connection(&workspace, &server, true).await;
    assert!(time_of(&again, "connected_at") > connected_at, "{again}");
    drop(second);
    wait_for_connection(&workspace, &server, false).await;
}

#[tokio::test]
async fn a_killed_agent_is_disconnected_and_its_command_acked() {
    let workspace = Workspace::new().await;
    let server = workspace.server("here").await;
    let mut agent = RealAgent::start(&workspace, &server).await;
    // The command ends when the test removes this folder.
    let folder = tempfile::tempdir().unwrap();
    let line = format!("while test -e {}; do sleep 0.2; done", folder.path().display());
    let body = json!({"server": "here", "line": line, "username": own_account()});
    let made = workspace.admin.post(PATH, &body).await.expect(201);
    let path = format!("{PATH}{}/", made["id"].as_str().unwrap());
    let status =
        || async { workspace.admin.get(&path).await.expect(200)["status"]["text"].clone() };
    wait_for_status(&workspace.admin, made["id"].as_str().unwrap(), "Acked").await;
    agent.process.signal(Signal::SIGKILL);
    agent.process.wait_for_exit(LONG_TIMEOUT).await;
    wait_for_connection(&workspace, &server, false).await;
    assert_eq!(status().await, "Acked", "the command may still run, and its agent may come back");
    workspace.admin.post(PATH, &body).await.expect_detail(503, Some("SERVER_NOT_CONNECTED"));
}

/// Forwards connections to the service. It can listen on another address than the service, and it
/// can hold back all traffic.
struct Forwarder {
    port: u16,
    is_held: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Forwarder {
    async fn start(address: &str, to: u16) -> Self {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_held = watch::Sender::new(false);
        let silence = is_held.clone();
        let task = tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)).await else {
                    continue;
                };
                let ((near_in, near_out), (far_in, far_out)) =
                    (near.into_split(), far.into_split());
                tokio::spawn(forward(near_in, far_out, silence.subscribe()));
                tokio::spawn(forward(far_in, near_out, silence.subscribe()));
            }
        });
        Self { port, is_held, task }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Forwards one direction. While silent, it holds back data and the end of the stream.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut is_held: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        if is_held.wait_for(|is_held| !is_held).await.is_err() || read == 0 {
            break;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
    // The other direction may have ended already.
    to.shutdown().await.ok();
}

/// A network namespace with one link to the default namespace. Dropping it removes it.
struct Namespace {
    name: String,
    /// The address of the link in the default namespace.
    address: String,
}

/// Runs the `ip` program of iproute2.
fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("ip {arguments}: {error}; iproute2 is needed"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr)))
}

impl Namespace {
    fn new() -> Self {
        let name = unique("fh").replace('-', "");
        // The address block for network benchmarks (RFC 2544). The rest of the address is random,
        // because tests run concurrently.
        let octet = |at: usize| u8::from_str_radix(&name[at..at + 2], 16).unwrap();
        let prefix = format!("198.{}.{}", 18 + octet(2) % 2, octet(4));
        let first = octet(6) & !3;
        let namespace = Self { address: format!("{prefix}.{}", first | 1), name };
        let make = || {
            let (name, near, far) =
                (&namespace.name, namespace.link_name(), namespace.remote_link_name());
            ip(&format!("netns add {name}"))?;
            ip(&format!("link add {near} type veth peer name {far} netns {name}"))?;
            ip(&format!("addr add {}/30 dev {near}", namespace.address))?;
            ip(&format!("link set {near} up"))?;
            ip(&format!("-n {name} addr add {prefix}.{}/30 dev {far}", first | 2))?;
            ip(&format!("-n {name} link set {far} up"))?;
            ip(&format!("-n {name} link set lo up"))
        };
        make().unwrap_or_else(|error| {
            panic!("this test needs a network namespace, as root and with iproute2: {error}")
        });
        namespace
    }

    fn link_name(&self) -> String {
        format!("{}a", self.name)
    }

    fn remote_link_name(&self) -> String {
        format!("{}b", self.name)
    }

    /// Takes the remote end of the link down or up. Neither side is notified.
    fn set_link(&self, state: &str) {
        ip(&format!("-n {} link set {} {state}", self.name, self.remote_link_name())).unwrap();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Removing fails if creating failed. Deleting one end of the link deletes both.
        ip(&format!("link del {}", self.link_name())).ok();
        ip(&format!("netns del {}", self.name)).ok();
    }
}

/// The network between an agent and the service. It can be cut without notifying either side.
struct Network {
    forwarder: Forwarder,
    /// `None` without root rights. The forwarder holds back traffic instead.
    namespace: Option<Namespace>,
}

impl Network {
    async fn to(port: u16, is_root: bool) -> Self {
        let namespace = is_root.then(Namespace::new);
        let address = namespace.as_ref().map_or("127.0.0.1", |namespace| &namespace.address);
        Self { forwarder: Forwarder::start(address, port).await, namespace }
    }

    fn url(&self) -> String {
        let address = self.namespace.as_ref().map_or("127.0.0.1", |namespace| &namespace.address);
        format!("http://{address}:{}", self.forwarder.port)
    }

    /// A command that runs on the agent's side of the network.
    fn command(&self, program: &str) -> tokio::process::Command {
        let Some(namespace) = &self.namespace else { return tokio::process::Command::new(program) };
        let mut command = tokio::process::Command::new("ip");
        command.args(["netns", "exec", &namespace.name, program]);
        command
    }

    fn set_cut(&self, is_cut: bool) {
        match &self.namespace {
            Some(namespace) => namespace.set_link(if is_cut { "down" } else { "up" }),
            None => drop(self.forwarder.is_held.send_replace(is_cut)),
        }
    }
}

#[tokio::test]
async fn a_cut_network_is_noticed_and_survived() {
    // The agent is on another host, so both it and the service would otherwise require TLS.
    let (instance, _state) =
        Instance::new_with(&[("AGENT_PING_SECONDS", "2"), ("ALLOW_HTTP", "1")]).await;
    // This slug is the default workspace, which a bare address reaches. Host names do not resolve
    // in the namespace.
    let workspace = Workspace::create_with(&instance.operator(), "demo").await;
    let server = workspace.server("far-away").await;
    let network = Network::to(instance.port(), own_account() == "root").await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("agent.toml");
    let key = server["key"].as_str().unwrap();
    let settings = format!(
        "url = \"{}\"\nid = \"{}\"\nkey = \"{key}\"\nallow_plain_http = true\n",
        network.url(),
        id(&server)
    );
    std::fs::write(&config, settings).unwrap();
    let mut command = network.command(&farhand_tests::setting("FARHAND_AGENT"));
    command.args(["run", "--config"]).arg(&config);
    let _agent =
        Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
    let connected = wait_for_connection(&workspace, &server, true).await;
    assert_eq!(run(&workspace, &server, "echo before").await["result"], "before\n");

    // Runs during the whole test, and ends at the latest when the test removes the folder.
    let gate = folder.path().join("gate");
    std::fs::write(&gate, "").unwrap();
    let line =
        format!("echo begun; while test -e {}; do sleep 0.2; done; echo done", gate.display());
    let body = json!({"server": "far-away", "line": line, "username": own_account()});
    let running =
        workspace.admin.post(PATH, &body).await.expect(201)["id"].as_str().unwrap().to_owned();
    let status = |id: &str| {
        let path = format!("{PATH}{id}/");
        let workspace = &workspace;
        async move { workspace.admin.get(&path).await.expect(200)["status"]["text"].clone() }
    };
    wait_for_status(&workspace.admin, &running, "Acked").await;

    network.set_cut(true);
    // Neither side was notified. The service notices an unanswered ping.
    wait_for_connection(&workspace, &server, false).await;
    assert_eq!(status(&running).await, "Acked");
    std::fs::remove_file(&gate).unwrap();
    let body = json!({"server": "far-away", "line": "echo after", "username": own_account(), "on_offline": "queue"});
    let queued =
        workspace.admin.post(PATH, &body).await.expect(201)["id"].as_str().unwrap().to_owned();
    assert_eq!(status(&queued).await, "Queued");

    network.set_cut(false);
    for (id, result) in [(&running, "begun\ndone\n"), (&queued, "after\n")] {
        let done = wait_until_ended_within(LONG_TIMEOUT, &workspace.admin, id).await;
        assert_eq!((&done["status"]["text"], &done["result"]), (&json!("Success"), &json!(result)));
    }
    let back = wait_for_connection(&workspace, &server, true).await;
    assert!(time_of(&back, "connected_at") > time_of(&connected, "connected_at"), "{back}");
}

#[tokio::test]
async fn connections_lost_by_a_restart_are_noticed() {
    let variables = [("AGENT_PING_SECONDS", "20")];
    let (instance, state) = Instance::new_with(&variables).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let [returns, called, alarmed] = [
        workspace.server("returns").await,
        workspace.server("called").await,
        workspace.server("alarmed").await,
    ];
    let behaviour =
        AgentBehaviour { second: Duration::from_millis(200), ..AgentBehaviour::default() };
    let agent = Alpamon::connect(&workspace, &returns, behaviour).await;
    let others = [
        ScriptedAgent::connect(&workspace, &called).await,
        ScriptedAgent::connect(&workspace, &alarmed).await,
    ];
    for server in [&returns, &called, &alarmed] {
        wait_for_connection(&workspace, server, true).await;
    }
    let before = read_server(&workspace, &returns).await;
    agent.until_idle(LONG_TIMEOUT).await;

    let port = instance.port();
    instance.kill().await;
    drop(others);
    let _instance = Instance::restart_at(port, state.path(), &variables).await;
    // The service notices the lost socket when the object is called, or at the alarm of the next
    // ping.
    let body = json!({"server": "called", "line": "id"});
    workspace.admin.post(PATH, &body).await.expect_detail(503, Some("SERVER_NOT_CONNECTED"));
    wait_until_connected(&workspace, id(&called), false).await;
    wait_for_connection(&workspace, &alarmed, false).await;

    agent
        .until_within(LONG_TIMEOUT, "the agent's return", |log| {
            log.sockets_of(BACKHAUL).count() > 1 && log.is_open(BACKHAUL)
        })
        .await;
    let back = eventually_within(LONG_TIMEOUT, "the new connection", || async {
        let back = read_server(&workspace, &returns).await;
        let is_newer = time_of(&back, "connected_at") > time_of(&before, "connected_at");
        (back["is_connected"] == true && is_newer).then_some(back)
    })
    .await;
    assert!(time_of(&back, "last_seen_at") >= time_of(&back, "connected_at"), "{back}");
    assert_eq!(run(&workspace, &returns, "echo").await["result"], "echo\n");
    // Calls failed only because of the network, never because of a response.
    let log = agent.log();
    assert!(
        log.calls
            .iter()
            .all(|call| call.status.is_none_or(|status| status != 500 && status / 100 != 3))
    );
    assert_eq!((log.warnings, log.repeated), (vec![], vec![]));
}

#[tokio::test]
async fn a_hibernated_connection_receives_commands() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("sleepy").await;
    let runs = |order: &Value| CommandScript {
        is_held: true,
        ..CommandScript::writing([order["line"].as_str().unwrap()])
    };
    let behaviour = AgentBehaviour {
        second: Duration::from_millis(500),
        runs: Box::new(runs),
        ..AgentBehaviour::default()
    };
    let agent = Alpamon::connect(&workspace, &server, behaviour).await;
    // While a caller waits for the end of a command, the object is kept in memory.
    let awake = async {
        agent.until("the command", |log| log.delivered.len() == 1).await;
        eventually("the object to be in memory", || async {
            instance.has_objects_in_memory("ServerLink").then_some(())
        })
        .await;
        agent.release();
    };
    let (done, ()) = tokio::join!(run(&workspace, &server, "first"), awake);
    assert_eq!(done["result"], "first");
    agent.until_idle(LONG_TIMEOUT).await;
    for number in 0..2 {
        // The agent sends pings of the WebSocket protocol. The runtime answers them without loading
        // the object.
        eventually_within(LONG_TIMEOUT, "pings to be answered without the object", || async {
            instance.wait_until_objects_are_evicted("ServerLink").await;
            let before: Vec<u64> = agent.log().sockets.iter().map(|socket| socket.pongs).collect();
            agent
                .until_within(LONG_TIMEOUT, "answers to pings", |log| {
                    log.sockets.iter().zip(&before).all(|(socket, before)| socket.pongs > *before)
                })
                .await;
            (!instance.has_objects_in_memory("ServerLink")).then_some(())
        })
        .await;
        assert_eq!(read_server(&workspace, &server).await["is_connected"], true);
        let line = format!("woken {number}");
        assert_eq!(run(&workspace, &server, &line).await["result"], json!(line));
    }
    agent.until_idle(LONG_TIMEOUT).await;
    let log = agent.log();
    assert_eq!((log.delivered.len(), log.sockets.len()), (3, 2), "{log:?}");
    assert_eq!(log.complaints(), Vec::<String>::new());
}

/// The next message on a socket, with a long limit.
///
/// # Errors
/// The close code, if the service closed the socket.
async fn next_message(socket: &mut WebSocketStream<TcpStream>) -> Result<Value, Option<u16>> {
    loop {
        match tokio::time::timeout(LONG_TIMEOUT, socket.next()).await.expect("no message in time") {
            Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).unwrap()),
            Some(Ok(Message::Close(frame))) => return Err(frame.map(|frame| frame.code.into())),
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return Err(None),
        }
    }
}

#[tokio::test]
async fn pings_and_older_sockets_survive_hibernation() {
    // Longer than the runtime keeps an idle object in memory.
    let (instance, _state) = Instance::new_with(&[("AGENT_PING_SECONDS", "25")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let [alive, silent, replaced] = [
        workspace.server("alive").await,
        workspace.server("silent").await,
        workspace.server("replaced").await,
    ];
    let open = async |server: &Value| {
        dial(&workspace.anonymous.with_authorization(&credential(server)), BACKHAUL).await.unwrap()
    };
    let (mut alive_socket, mut silent_socket) = (open(&alive).await, open(&silent).await);
    // The two older sockets ignore the close frame, and the first keeps answering pings.
    let (mut older, closing, mut newest) =
        (open(&replaced).await, open(&replaced).await, open(&replaced).await);
    let ping = json!({"query": "ping"});
    let pong = Message::text(json!({"query": "pong", "timestamp": 1.5}).to_string());
    for socket in [&mut alive_socket, &mut silent_socket, &mut newest] {
        assert_eq!(next_message(socket).await, Ok(ping.clone()));
    }
    // The pings have been sent. Now the runtime evicts the objects.
    instance.wait_until_objects_are_evicted("ServerLink").await;
    alive_socket.send(pong.clone()).await.unwrap();
    older.send(pong.clone()).await.unwrap();
    drop(closing);
    let answering = async {
        loop {
            assert_eq!(next_message(&mut alive_socket).await, Ok(ping.clone()));
            alive_socket.send(pong.clone()).await.unwrap();
        }
    };
    // An agent that does not answer the ping is disconnected, even if messages arrived on its older
    // sockets.
    let wait_until_disconnected = async |mut socket: WebSocketStream<TcpStream>, server: &Value| {
        let code = loop {
            match next_message(&mut socket).await {
                Ok(message) => assert_eq!(message, ping),
                Err(code) => break code,
            }
        };
        assert_eq!(code, Some(1001));
        wait_for_connection(&workspace, server, false).await;
    };
    tokio::select! {
        () = answering => {}
        _ = futures_util::future::join(wait_until_disconnected(silent_socket, &silent), wait_until_disconnected(newest, &replaced)) => {}
    }
    assert_eq!(
        next_message(&mut older).await,
        Err(Some(1000)),
        "a replaced socket is closed without `quit`"
    );
    wait_for_connection(&workspace, &alive, true).await;
}

#[tokio::test]
async fn of_twenty_concurrent_connections_one_gets_commands() {
    const COMMANDS: usize = 5;
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let api = workspace.anonymous.with_authorization(&credential(&server));
    let agents = join_all((0..20).map(|_| ScriptedAgent::connect_to(&api, BACKHAUL))).await;
    let made = join_all((0..COMMANDS).map(|_| async {
        let body = json!({"server": "web-1", "line": "id"});
        workspace.admin.post(PATH, &body).await.expect(201)["id"].as_str().unwrap().to_owned()
    }))
    .await;
    // Only the newest connection receives commands. The service closes the other connections, and
    // does not send `quit` to them.
    let fates = join_all(agents.into_iter().map(async |mut agent| {
        let mut got = Vec::new();
        while got.len() < COMMANDS {
            match agent.next().await {
                // The service checks that a connection is alive before it replaces it.
                Ok(message) if message["query"] == "ping" => {}
                Ok(message) => {
                    assert_eq!(message["query"], "command", "{message}");
                    got.push(message["command"]["id"].as_str().unwrap().to_owned());
                }
                Err(code) => return (got, Some(code), agent),
            }
        }
        (got, None, agent)
    }))
    .await;
    let (open, closed): (Vec<_>, Vec<_>) =
        fates.into_iter().partition(|(_, closed, _)| closed.is_none());
    assert_eq!(open.len(), 1);
    for (got, code, _) in &closed {
        assert_eq!((got.len(), code), (0, &Some(Some(1000))));
    }
    let (mut got, _, mut agent) = open.into_iter().next().unwrap();
    let mut made = made;
    got.sort();
    made.sort();
    assert_eq!(got, made);

    // The late ends of older sockets change nothing. The newest connection gets the next commands.
    drop(closed);
    for id in &got {
        agent.fin(id, 0, "done").await;
    }
    for _ in 0..10 {
        let body = json!({"server": "web-1", "line": "id"});
        let made = workspace.admin.post(PATH, &body).await.expect(201);
        let id = made["id"].as_str().unwrap();
        assert_eq!(agent.next_command().await["id"], made["id"]);
        agent.fin(id, 0, "done").await;
        assert_eq!(
            workspace.admin.get(&format!("{PATH}{id}/")).await.expect(200)["status"]["text"],
            "Success"
        );
    }
    wait_for_connection(&workspace, &server, true).await;
    agent.close().await;
    wait_for_connection(&workspace, &server, false).await;
}

#[tokio::test]
async fn of_two_agents_with_one_key_the_older_stays_connected() {
    const ALL: usize = 60;
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let behaviour =
        || AgentBehaviour { second: Duration::from_millis(100), ..AgentBehaviour::default() };
    // Each agent reconnects immediately after the other one replaced its socket.
    let agents = [
        Alpamon::start(&workspace, &server, behaviour()),
        Alpamon::start(&workspace, &server, behaviour()),
    ];
    let both = |found: fn(&AgentLog) -> usize| -> usize {
        agents.iter().map(|agent| found(&agent.log())).sum()
    };
    eventually("the first refusals on both sockets", || async {
        (both(|log| log.refused.len()) > 1).then_some(())
    })
    .await;
    let creations = (0..ALL).map(|number| {
        let workspace = &workspace;
        async move {
            let body =
                json!({"server": "web-1", "line": format!("{number}"), "on_offline": "queue"});
            workspace.admin.post(PATH, &body).await.expect(201)["id"].as_str().unwrap().to_owned()
        }
    });
    let ids: Vec<String> = stream::iter(creations).buffered(4).collect().await;
    for (number, id) in ids.iter().enumerate() {
        let done = wait_until_ended_within(LONG_TIMEOUT, &workspace.admin, id).await;
        let expected = (&json!("Success"), &json!(format!("{number}\n")));
        assert_eq!((&done["status"]["text"], &done["result"]), expected, "{done}");
    }
    // The refused agent retries at growing intervals, without any effect on open sockets.
    let opened = both(|log| log.sockets.len());
    let refused = both(|log| log.refused.len());
    eventually_within(LONG_TIMEOUT, "four more refusals", || async {
        (both(|log| log.refused.len()) >= refused + 4).then_some(())
    })
    .await;
    assert_eq!(both(|log| log.sockets.len()), opened);
    assert!(opened <= 10, "{opened} sockets were opened, more than five of each kind");
    for path in [BACKHAUL, CONTROL] {
        assert_eq!(agents.iter().filter(|agent| agent.log().is_open(path)).count(), 1, "{path}");
    }
    let logs = agents.each_ref().map(Alpamon::log);
    assert!(
        logs.iter().all(|log| log.refused.iter().all(|status| *status == Some(503))),
        "{logs:?}"
    );
    let mut delivered: Vec<String> = logs.iter().flat_map(|log| log.ids()).collect();
    delivered.sort();
    let mut made = ids.clone();
    made.sort();
    assert_eq!(delivered, made, "each command was delivered to one of the two agents, once");
    assert!(logs.iter().all(|log| log.warnings.is_empty()), "{logs:?}");
    let ends: Vec<_> =
        logs.iter().flat_map(|log| &log.sockets).filter_map(|socket| socket.end).collect();
    assert!(ends.iter().all(|end| *end == SocketEnd::Closed(Some(1000))), "{ends:?}");

    // The API shows the conflict, and the audit log records it once a minute.
    let conflict = eventually("the conflict", || async {
        read_server(&workspace, &server).await["identity_conflict_at"].as_str().map(str::to_owned)
    })
    .await;
    assert!(Timestamp::parse(&conflict).is_ok());
    let events = "/api/audit/events/?action=server.conflict";
    let found = workspace.admin.get(events).await.expect(200);
    assert!(found["count"].as_u64() >= Some(1), "{found}");
    let event = &found["results"][0];
    assert_eq!(
        (&event["object"]["id"], &event["credential"]["type"]),
        (&server["id"], &json!("agent_key"))
    );
    let details = json!({"remote_ip": "127.0.0.1", "connected_remote_ip": "127.0.0.1"});
    assert_eq!((&event["details"], &event["outcome"]), (&details, &json!("success")));

    // When the connected agent leaves, the other one connects.
    let [first, second] = agents;
    let (leaves, stays) =
        if first.log().is_open(BACKHAUL) { (first, second) } else { (second, first) };
    leaves.leave().await;
    let is_open = |log: &AgentLog| log.is_open(BACKHAUL) && log.is_open(CONTROL);
    stays.until_within(LONG_TIMEOUT, "the other agent's sockets", is_open).await;
    wait_for_connection(&workspace, &server, true).await;
    assert_eq!(run(&workspace, &server, "alone").await["result"], "alone\n");
}

#[tokio::test]
async fn an_agent_that_reconnects_often_is_not_refused() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let api = workspace.anonymous.with_authorization(&credential(&server));
    // If older sockets close, each new connection is accepted immediately.
    for _ in 0..6 {
        let began = std::time::Instant::now();
        drop(dial(&api, BACKHAUL).await.unwrap());
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    }
    // If older sockets are lost silently, each new connection is accepted. From the fourth on, it
    // takes a few seconds.
    let mut lost = Vec::new();
    for _ in 0..5 {
        lost.push(dial(&api, BACKHAUL).await.unwrap());
    }
    let mut newest = ScriptedAgent::connect_to(&api, BACKHAUL).await;
    assert_eq!(read_server(&workspace, &server).await["identity_conflict_at"], json!(null));
    let made =
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": "id"})).await.expect(201);
    assert_eq!(newest.next_command().await["id"], made["id"]);
}

#[tokio::test]
async fn an_idle_fleet_causes_no_writes_and_no_requests() {
    const FLEET: usize = 20;
    let (instance, _state) =
        Instance::new_with(&[("AGENT_PING_SECONDS", "2"), ("AGENT_HEARTBEAT_SECONDS", "3600")])
            .await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let mut agents = Vec::new();
    for number in 0..FLEET {
        let server = workspace.server(&format!("web-{number}")).await;
        // This deadline is shorter than the test, so only the service's pings keep the sockets
        // open.
        let behaviour =
            AgentBehaviour { read_deadline: Duration::from_secs(20), ..AgentBehaviour::default() };
        agents.push(Alpamon::connect(&workspace, &server, behaviour).await);
    }
    let pings =
        |agent: &Alpamon| agent.log().sockets.iter().map(|socket| socket.pings).collect::<Vec<_>>();
    for agent in &agents {
        agent.until_idle(LONG_TIMEOUT).await;
    }
    // D1 has what the agents reported at their start.
    let pending_facts = "SELECT 'pending_facts' FROM server WHERE document ->> '$.facts.flushed' < document ->> '$.facts.revision'";
    eventually_within(LONG_TIMEOUT, "the outboxes to be empty", || async {
        instance.read_objects("ServerLink", pending_facts).is_empty().then_some(())
    })
    .await;
    let rows = "SELECT id, link_revision, is_connected, connected_at, last_seen_at, updated_at FROM servers ORDER BY id";
    let before = instance.d1(rows);
    assert_eq!(before.as_array().unwrap().len(), FLEET);
    // Excluded are health checks, the retention pass of the cron trigger, and the sealing of events
    // from the agents' start.
    let log = || {
        let text = std::fs::read_to_string(instance.state.join("worker.log")).unwrap();
        let is_other = |line: &&str| {
            !["/healthz", "retention", "sealed"].iter().any(|name| line.contains(name))
        };
        text.lines().filter(is_other).map(str::to_owned).collect::<Vec<_>>()
    };
    let calls = || agents.iter().map(|agent| agent.log().calls.len()).sum::<usize>();
    let (logged, called, pings_before) =
        (log(), calls(), agents.iter().map(pings).collect::<Vec<_>>());

    for (agent, pings_before) in agents.iter().zip(pings_before) {
        agent
            .until_within(LONG_TIMEOUT, "fifteen more pings on both sockets", |log| {
                log.sockets
                    .iter()
                    .zip(&pings_before)
                    .all(|(socket, pings_before)| socket.pings >= pings_before + 15)
            })
            .await;
    }

    assert_eq!(instance.d1(rows), before, "a pong is not written to D1");
    // Each unanswered ping has a timer.
    let timers = "SELECT key FROM server, json_each(document, '$.timers') timer WHERE timer.value IS NOT NULL";
    let due = || instance.read_objects("ServerLink", timers);
    eventually("only the pings' timers to be due", || async {
        (due() == vec!["ping"; FLEET]).then_some(())
    })
    .await;
    let due =
        instance.read_objects("ServerLink", "SELECT id FROM commands WHERE due_at IS NOT NULL");
    assert_eq!(due, Vec::<String>::new());
    // There were no HTTP requests and no errors.
    assert_eq!(log(), logged);
    assert_eq!(calls(), called);
    for agent in &agents {
        assert_eq!(agent.log().complaints(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn commands_are_delivered_only_on_the_newest_socket() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let runs = |_: &Value| CommandScript { is_held: true, ..CommandScript::writing(["x"]) };
    let agent = Alpamon::connect(
        &workspace,
        &server,
        AgentBehaviour { runs: Box::new(runs), ..AgentBehaviour::default() },
    )
    .await;
    let first =
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": "1"})).await.expect(201);
    agent.until("the command", |log| log.delivered.len() == 1).await;
    // Another connection replaces the agent's socket, and the agent reconnects.
    let mut other = ScriptedAgent::connect(&workspace, &server).await;
    assert_eq!(other.next().await, Err(Some(1000)));
    agent.until("the newer socket", |log| log.sockets_of(BACKHAUL).count() == 2).await;
    drop(other);
    let second =
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": "2"})).await.expect(201);
    agent.until("the second command", |log| log.delivered.len() == 2).await;
    agent.release();
    for made in [first, second] {
        let path = format!("{PATH}{}/?wait=30", made["id"].as_str().unwrap());
        assert_eq!(
            workspace.admin.get(&path).await.expect(200)["result"],
            "x",
            "the end of a socket does not end a command"
        );
    }
    let log = agent.log();
    assert_eq!(log.repeated, Vec::<String>::new());
    let ends: Vec<_> = log.sockets_of(BACKHAUL).map(|socket| socket.end).collect();
    assert_eq!(ends, [Some(SocketEnd::Closed(Some(1000))), None]);
}
