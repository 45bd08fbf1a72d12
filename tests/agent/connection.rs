//! The state of a connection (agent-protocol 5): what the API shows when it comes, goes, or is cut,
//! and which socket counts.

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
/// How long a test waits for what takes a minute or two by itself: a silent agent is given up after
/// one.
const LONG: Duration = Duration::from_secs(240);

fn id(server: &Value) -> &str {
    server["id"].as_str().unwrap()
}

async fn shown(workspace: &Workspace, server: &Value) -> Value {
    workspace.admin.get(&format!("/api/servers/servers/{}/", id(server))).await.expect(200)
}

fn moment(shown: &Value, name: &str) -> Timestamp {
    Timestamp::parse(shown[name].as_str().unwrap_or_else(|| panic!("no {name} in {shown}")))
        .unwrap()
}

/// Waits until a server is shown as connected, or not, for longer than anything is waited for
/// elsewhere.
async fn connection_is(workspace: &Workspace, server: &Value, connected: bool) -> Value {
    eventually_within(LONG, "the server's connection", || async {
        Some(shown(workspace, server).await).filter(|shown| shown["is_connected"] == connected)
    })
    .await
}

/// ScriptChooser a command to its end.
async fn run(workspace: &Workspace, server: &Value, line: &str) -> Value {
    let body = json!({"server": server["id"], "line": line, "username": own_account()});
    let request = workspace.admin.request("POST", PATH).header("Prefer", "wait=30").json(&body);
    let done = workspace.admin.send(request).await.expect(201);
    assert!(done["handled_at"].is_string(), "{done}");
    done
}

#[tokio::test]
async fn the_moments_of_a_connection() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let fresh = shown(&workspace, &server).await;
    for name in ["connected_at", "last_seen_at", "remote_ip"] {
        assert_eq!(fresh[name], json!(null), "{name}");
    }
    let before = farhand_tests::now();
    let first = ScriptedAgent::connect(&workspace, &server).await;
    let connected = connection_is(&workspace, &server, true).await;
    let connected_at = moment(&connected, "connected_at");
    assert!(before <= connected_at && connected_at <= farhand_tests::now(), "{connected}");
    assert!(moment(&connected, "last_seen_at") >= connected_at, "{connected}");
    assert_eq!(connected["remote_ip"], "127.0.0.1");

    // A clean end: since when it was connected stays readable.
    first.close().await;
    let gone = connection_is(&workspace, &server, false).await;
    assert_eq!(
        (&gone["connected_at"], &gone["remote_ip"]),
        (&connected["connected_at"], &json!("127.0.0.1"))
    );
    workspace
        .admin
        .post(PATH, &json!({"server": "web-1", "line": "id"}))
        .await
        .expect_detail(503, Some("SERVER_NOT_CONNECTED"));

    // One that breaks off, like that of a process which is killed.
    let second = ScriptedAgent::connect(&workspace, &server).await;
    let again = connection_is(&workspace, &server, true).await;
    assert!(moment(&again, "connected_at") > connected_at, "{again}");
    drop(second);
    connection_is(&workspace, &server, false).await;
}

#[tokio::test]
async fn a_killed_agent_is_gone_and_its_command_stays_acked() {
    let workspace = Workspace::new().await;
    let server = workspace.server("here").await;
    let mut agent = RealAgent::start(&workspace, &server).await;
    // It ends with the test.
    let folder = tempfile::tempdir().unwrap();
    let line = format!("while test -e {}; do sleep 0.2; done", folder.path().display());
    let body = json!({"server": "here", "line": line, "username": own_account()});
    let made = workspace.admin.post(PATH, &body).await.expect(201);
    let path = format!("{PATH}{}/", made["id"].as_str().unwrap());
    let status =
        || async { workspace.admin.get(&path).await.expect(200)["status"]["text"].clone() };
    wait_for_status(&workspace.admin, made["id"].as_str().unwrap(), "Acked").await;
    agent.process.signal(Signal::SIGKILL);
    agent.process.wait_for_exit(LONG).await;
    connection_is(&workspace, &server, false).await;
    assert_eq!(status().await, "Acked", "it may still run, and its agent come back");
    workspace.admin.post(PATH, &body).await.expect_detail(503, Some("SERVER_NOT_CONNECTED"));
}

/// Carries connections to a service, from where the service does not listen itself, or so that they
/// can go silent.
struct Forwarder {
    port: u16,
    is_silent: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Forwarder {
    async fn start(address: &str, to: u16) -> Self {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_silent = watch::Sender::new(false);
        let silence = is_silent.clone();
        let task = tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)).await else { continue };
                let ((near_in, near_out), (far_in, far_out)) =
                    (near.into_split(), far.into_split());
                tokio::spawn(carry(near_in, far_out, silence.subscribe()));
                tokio::spawn(carry(far_in, near_out, silence.subscribe()));
            }
        });
        Self { port, is_silent, task }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Carries one direction; in silence it holds what it has, its end included.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut is_silent: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        if is_silent.wait_for(|is_silent| !is_silent).await.is_err() || read == 0 {
            break;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
    // The other direction may have ended already.
    to.shutdown().await.ok();
}

/// A network namespace with one link to this one. It goes with this.
struct Namespace {
    name: String,
    /// The address of this side.
    address: String,
}

/// ScriptChooser iproute2.
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
        // Of the block for tests of networks (RFC 2544); the rest is random, as tests run side by
        // side.
        let octet = |at: usize| u8::from_str_radix(&name[at..at + 2], 16).unwrap();
        let prefix = format!("198.{}.{}", 18 + octet(2) % 2, octet(4));
        let first = octet(6) & !3;
        let namespace = Self { address: format!("{prefix}.{}", first | 1), name };
        let make = || {
            let (name, near, far) = (&namespace.name, namespace.near(), namespace.far());
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

    fn near(&self) -> String {
        format!("{}a", self.name)
    }

    fn far(&self) -> String {
        format!("{}b", self.name)
    }

    /// Takes the far end of the link down, or up: neither side hears of it, and nothing passes.
    fn set_link(&self, state: &str) {
        ip(&format!("-n {} link set {} {state}", self.name, self.far())).unwrap();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // What was not made cannot be removed. The link goes with one of its ends.
        ip(&format!("link del {}", self.near())).ok();
        ip(&format!("netns del {}", self.name)).ok();
    }
}

/// The way from an agent to a service, which can be cut so that neither side is told.
struct Way {
    forwarder: Forwarder,
    /// As root. Others make do with a forwarder that goes silent.
    namespace: Option<Namespace>,
}

impl Way {
    async fn to(port: u16, is_root: bool) -> Self {
        let namespace = is_root.then(Namespace::new);
        let address = namespace.as_ref().map_or("127.0.0.1", |namespace| &namespace.address);
        Self { forwarder: Forwarder::start(address, port).await, namespace }
    }

    fn url(&self) -> String {
        let address = self.namespace.as_ref().map_or("127.0.0.1", |namespace| &namespace.address);
        format!("http://{address}:{}", self.forwarder.port)
    }

    /// A command that runs at the agent's end.
    fn command(&self, program: &str) -> tokio::process::Command {
        let Some(namespace) = &self.namespace else { return tokio::process::Command::new(program) };
        let mut command = tokio::process::Command::new("ip");
        command.args(["netns", "exec", &namespace.name, program]);
        command
    }

    fn set_cut(&self, is_cut: bool) {
        match &self.namespace {
            Some(namespace) => namespace.set_link(if is_cut { "down" } else { "up" }),
            None => drop(self.forwarder.is_silent.send_replace(is_cut)),
        }
    }
}

#[tokio::test]
async fn a_cut_network_is_noticed_and_survived() {
    // The agent's end of the link is another host, which the service and the agent ask to speak TLS
    // otherwise.
    let (instance, _state) =
        Instance::new_with(&[("AGENT_PING_SECONDS", "2"), ("ALLOW_HTTP", "1")]).await;
    // The workspace that a bare address stands for, as names do not lead out of the namespace.
    let workspace = Workspace::made_by(&instance.operator(), "demo").await;
    let server = workspace.server("far-away").await;
    let way = Way::to(instance.port(), own_account() == "root").await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("agent.toml");
    let key = server["key"].as_str().unwrap();
    let settings = format!(
        "url = \"{}\"\nid = \"{}\"\nkey = \"{key}\"\nallow_plain_http = true\n",
        way.url(),
        id(&server)
    );
    std::fs::write(&config, settings).unwrap();
    let mut command = way.command(&farhand_tests::setting("FARHAND_AGENT"));
    command.args(["run", "--config"]).arg(&config);
    let _agent =
        Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
    let connected = connection_is(&workspace, &server, true).await;
    assert_eq!(run(&workspace, &server, "echo before").await["result"], "before\n");

    // This one runs through it all, and ends with the test at the latest.
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

    way.set_cut(true);
    // Nobody was told. What finds it is a ping that is not answered.
    connection_is(&workspace, &server, false).await;
    assert_eq!(status(&running).await, "Acked");
    std::fs::remove_file(&gate).unwrap();
    let body = json!({"server": "far-away", "line": "echo after", "username": own_account(), "on_offline": "queue"});
    let queued =
        workspace.admin.post(PATH, &body).await.expect(201)["id"].as_str().unwrap().to_owned();
    assert_eq!(status(&queued).await, "Queued");

    way.set_cut(false);
    for (id, result) in [(&running, "begun\ndone\n"), (&queued, "after\n")] {
        let done = wait_until_ended_within(LONG, &workspace.admin, id).await;
        assert_eq!((&done["status"]["text"], &done["result"]), (&json!("Success"), &json!(result)));
    }
    let back = connection_is(&workspace, &server, true).await;
    assert!(moment(&back, "connected_at") > moment(&connected, "connected_at"), "{back}");
}

#[tokio::test]
async fn a_restart_of_the_runtime_is_noticed() {
    let variables = [("AGENT_PING_SECONDS", "20")];
    let (instance, state) = Instance::new_with(&variables).await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
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
        connection_is(&workspace, server, true).await;
    }
    let before = shown(&workspace, &returns).await;
    agent.until_idle(LONG).await;

    let port = instance.port();
    instance.kill().await;
    drop(others);
    let _instance = Instance::restart_at(port, state.path(), &variables).await;
    // A call finds that there is no socket any more, and so does the alarm of the next ping.
    let body = json!({"server": "called", "line": "id"});
    workspace.admin.post(PATH, &body).await.expect_detail(503, Some("SERVER_NOT_CONNECTED"));
    wait_until_connected(&workspace, id(&called), false).await;
    connection_is(&workspace, &alarmed, false).await;

    agent
        .until_within(LONG, "the agent's return", |log| {
            log.sockets_of(BACKHAUL).count() > 1 && log.is_open(BACKHAUL)
        })
        .await;
    let back = eventually_within(LONG, "the new connection", || async {
        let back = shown(&workspace, &returns).await;
        let is_newer = moment(&back, "connected_at") > moment(&before, "connected_at");
        (back["is_connected"] == true && is_newer).then_some(back)
    })
    .await;
    assert!(moment(&back, "last_seen_at") >= moment(&back, "connected_at"), "{back}");
    assert_eq!(run(&workspace, &returns, "echo").await["result"], "echo\n");
    // Only the network failed the agent; no answer did.
    let log = agent.log();
    assert!(
        log.calls
            .iter()
            .all(|call| call.status.is_none_or(|status| status != 500 && status / 100 != 3))
    );
    assert_eq!((log.warnings, log.repeated), (vec![], vec![]));
}

#[tokio::test]
async fn a_hibernated_connection_wakes_for_a_command() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
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
    // While somebody waits for a command's end the object is awake.
    let awake = async {
        agent.until("the command", |log| log.delivered.len() == 1).await;
        eventually("the object to be awake", || async {
            instance.has_objects_in_memory("ServerLink").then_some(())
        })
        .await;
        agent.release();
    };
    let (done, ()) = tokio::join!(run(&workspace, &server, "first"), awake);
    assert_eq!(done["result"], "first");
    agent.until_idle(LONG).await;
    for number in 0..2 {
        // The agent pings by the WebSocket's own means, and is answered without waking the object.
        eventually_within(LONG, "pings to be answered in the object's sleep", || async {
            instance.wait_until_objects_are_evicted("ServerLink").await;
            let before: Vec<u64> = agent.log().sockets.iter().map(|socket| socket.pongs).collect();
            agent
                .until_within(LONG, "answers to pings", |log| {
                    log.sockets.iter().zip(&before).all(|(socket, before)| socket.pongs > *before)
                })
                .await;
            (!instance.has_objects_in_memory("ServerLink")).then_some(())
        })
        .await;
        assert_eq!(shown(&workspace, &server).await["is_connected"], true);
        let line = format!("woken {number}");
        assert_eq!(run(&workspace, &server, &line).await["result"], json!(line));
    }
    agent.until_idle(LONG).await;
    let log = agent.log();
    assert_eq!((log.delivered.len(), log.sockets.len()), (3, 2), "{log:?}");
    assert_eq!(log.complaints(), Vec::<String>::new());
}

/// The next message on a socket, or the code with which the service closed it. Both may take more
/// than a minute.
async fn hear(socket: &mut WebSocketStream<TcpStream>) -> Result<Value, Option<u16>> {
    loop {
        match tokio::time::timeout(LONG, socket.next()).await.expect("nothing came") {
            Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).unwrap()),
            Some(Ok(Message::Close(frame))) => return Err(frame.map(|frame| frame.code.into())),
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return Err(None),
        }
    }
}

#[tokio::test]
async fn pings_and_older_sockets_survive_hibernation() {
    // Longer than an object needs to fall asleep.
    let (instance, _state) = Instance::new_with(&[("AGENT_PING_SECONDS", "25")]).await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
    let [alive, silent, replaced] = [
        workspace.server("alive").await,
        workspace.server("silent").await,
        workspace.server("replaced").await,
    ];
    let open = async |server: &Value| {
        dial(&workspace.anonymous.with(&credential(server)), BACKHAUL).await.unwrap()
    };
    let (mut alive_socket, mut silent_socket) = (open(&alive).await, open(&silent).await);
    // The two older ones of this server take no notice of being closed, and the first goes on
    // answering.
    let (mut older, closing, mut newest) =
        (open(&replaced).await, open(&replaced).await, open(&replaced).await);
    let ping = json!({"query": "ping"});
    let pong = Message::text(json!({"query": "pong", "timestamp": 1.5}).to_string());
    for socket in [&mut alive_socket, &mut silent_socket, &mut newest] {
        assert_eq!(hear(socket).await, Ok(ping.clone()));
    }
    // The question is out, and the objects fall asleep over it.
    instance.wait_until_objects_are_evicted("ServerLink").await;
    alive_socket.send(pong.clone()).await.unwrap();
    older.send(pong.clone()).await.unwrap();
    drop(closing);
    let answering = async {
        loop {
            assert_eq!(hear(&mut alive_socket).await, Ok(ping.clone()));
            alive_socket.send(pong.clone()).await.unwrap();
        }
    };
    // Those who did not answer are given up, whatever came on older sockets.
    let given_up = async |mut socket: WebSocketStream<TcpStream>, server: &Value| {
        let code = loop {
            match hear(&mut socket).await {
                Ok(message) => assert_eq!(message, ping),
                Err(code) => break code,
            }
        };
        assert_eq!(code, Some(1001));
        connection_is(&workspace, server, false).await;
    };
    tokio::select! {
        () = answering => {}
        _ = futures_util::future::join(given_up(silent_socket, &silent), given_up(newest, &replaced)) => {}
    }
    assert_eq!(hear(&mut older).await, Err(Some(1000)), "replaced, and not asked to quit");
    connection_is(&workspace, &alive, true).await;
}

#[tokio::test]
async fn of_twenty_racing_dials_one_gets_the_commands() {
    const COMMANDS: usize = 5;
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let api = workspace.anonymous.with(&credential(&server));
    let agents = join_all((0..20).map(|_| ScriptedAgent::over(&api, BACKHAUL))).await;
    let made = join_all((0..COMMANDS).map(|_| async {
        let body = json!({"server": "web-1", "line": "id"});
        workspace.admin.post(PATH, &body).await.expect(201)["id"].as_str().unwrap().to_owned()
    }))
    .await;
    // The last one is told by what it gets; the others are closed, and none is asked to quit.
    let fates = join_all(agents.into_iter().map(async |mut agent| {
        let mut got = Vec::new();
        while got.len() < COMMANDS {
            match agent.next().await {
                // It is asked whether it is alive before another one replaces it.
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

    // The others' ends come late, and change nothing: the last one gets what comes then.
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
    connection_is(&workspace, &server, true).await;
    agent.close().await;
    connection_is(&workspace, &server, false).await;
}

#[tokio::test]
async fn of_two_agents_with_one_key_the_older_stays() {
    const ALL: usize = 60;
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let behaviour =
        || AgentBehaviour { second: Duration::from_millis(100), ..AgentBehaviour::default() };
    // Each dials immediately when the other one has replaced its socket.
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
        let done = wait_until_ended_within(LONG, &workspace.admin, id).await;
        let expected = (&json!("Success"), &json!(format!("{number}\n")));
        assert_eq!((&done["status"]["text"], &done["result"]), expected, "{done}");
    }
    // More refusals come, later and later, and no socket is opened or closed by them.
    let opened = both(|log| log.sockets.len());
    let refused = both(|log| log.refused.len());
    eventually_within(LONG, "four more refusals", || async {
        (both(|log| log.refused.len()) >= refused + 4).then_some(())
    })
    .await;
    assert_eq!(both(|log| log.sockets.len()), opened);
    assert!(opened <= 10, "{opened} sockets: five of each kind are enough");
    for path in [BACKHAUL, CONTROL] {
        assert_eq!(agents.iter().filter(|agent| agent.log().is_open(path)).count(), 1, "{path}");
    }
    let ledgers = agents.each_ref().map(Alpamon::log);
    assert!(
        ledgers.iter().all(|log| log.refused.iter().all(|status| *status == Some(503))),
        "{ledgers:?}"
    );
    let mut came: Vec<String> = ledgers.iter().flat_map(|log| log.ids()).collect();
    came.sort();
    let mut made = ids.clone();
    made.sort();
    assert_eq!(came, made, "each to one of the two, once");
    assert!(ledgers.iter().all(|log| log.warnings.is_empty()), "{ledgers:?}");
    let ends: Vec<_> =
        ledgers.iter().flat_map(|log| &log.sockets).filter_map(|socket| socket.end).collect();
    assert!(ends.iter().all(|end| *end == SocketEnd::Closed(Some(1000))), "{ends:?}");

    // It is shown, and recorded once a minute.
    let conflict = eventually("the conflict", || async {
        shown(&workspace, &server).await["identity_conflict_at"].as_str().map(str::to_owned)
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

    // When the connected one has left, the other one connects.
    let [first, second] = agents;
    let (leaves, stays) =
        if first.log().is_open(BACKHAUL) { (first, second) } else { (second, first) };
    leaves.leave().await;
    let is_open = |log: &AgentLog| log.is_open(BACKHAUL) && log.is_open(CONTROL);
    stays.until_within(LONG, "the other agent's sockets", is_open).await;
    connection_is(&workspace, &server, true).await;
    assert_eq!(run(&workspace, &server, "alone").await["result"], "alone\n");
}

#[tokio::test]
async fn an_agent_that_reconnects_fast_is_not_refused() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let api = workspace.anonymous.with(&credential(&server));
    // Its older sockets break off: each new one is accepted immediately.
    for _ in 0..6 {
        let began = std::time::Instant::now();
        drop(dial(&api, BACKHAUL).await.unwrap());
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    }
    // Its older sockets are lost without a word: each new one is accepted, after a few seconds from
    // the fourth on.
    let mut lost = Vec::new();
    for _ in 0..5 {
        lost.push(dial(&api, BACKHAUL).await.unwrap());
    }
    let mut newest = ScriptedAgent::over(&api, BACKHAUL).await;
    assert_eq!(shown(&workspace, &server).await["identity_conflict_at"], json!(null));
    let made =
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": "id"})).await.expect(201);
    assert_eq!(newest.next_command().await["id"], made["id"]);
}

#[tokio::test]
async fn an_idle_fleet_costs_next_to_nothing() {
    const FLEET: usize = 20;
    let (instance, _state) =
        Instance::new_with(&[("AGENT_PING_SECONDS", "2"), ("AGENT_HEARTBEAT_SECONDS", "3600")])
            .await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
    let mut agents = Vec::new();
    for number in 0..FLEET {
        let server = workspace.server(&format!("web-{number}")).await;
        // Shorter than all that follows takes: only the service's pings keep the sockets open.
        let behaviour =
            AgentBehaviour { read_deadline: Duration::from_secs(20), ..AgentBehaviour::default() };
        agents.push(Alpamon::connect(&workspace, &server, behaviour).await);
    }
    let pings =
        |agent: &Alpamon| agent.log().sockets.iter().map(|socket| socket.pings).collect::<Vec<_>>();
    for agent in &agents {
        agent.until_idle(LONG).await;
    }
    // What they told at their start is in D1.
    let untold = "SELECT 'untold' FROM server WHERE document ->> '$.facts.flushed' < document ->> '$.facts.revision'";
    eventually_within(LONG, "the objects to have told all", || async {
        instance.read_objects("ServerLink", untold).is_empty().then_some(())
    })
    .await;
    let rows = "SELECT id, link_revision, is_connected, connected_at, last_seen_at, updated_at FROM servers ORDER BY id";
    let before = instance.d1(rows);
    assert_eq!(before.as_array().unwrap().len(), FLEET);
    // But for what asks whether the service is alive, for the clock, which has old commands looked
    // for, and for the sealing of what the agents' start wrote.
    let log = || {
        let text = std::fs::read_to_string(instance.state.join("worker.log")).unwrap();
        let is_other = |line: &&str| {
            !["/healthz", "retention", "sealed"].iter().any(|name| line.contains(name))
        };
        text.lines().filter(is_other).map(str::to_owned).collect::<Vec<_>>()
    };
    let calls = || agents.iter().map(|agent| agent.log().calls.len()).sum::<usize>();
    let (logged, called, heard) = (log(), calls(), agents.iter().map(pings).collect::<Vec<_>>());

    for (agent, heard) in agents.iter().zip(heard) {
        agent
            .until_within(LONG, "fifteen more pings on both sockets", |log| {
                log.sockets.iter().zip(&heard).all(|(socket, heard)| socket.pings >= heard + 15)
            })
            .await;
    }

    assert_eq!(instance.d1(rows), before, "a pong is no news for D1");
    // A ping that is not answered yet has a timer of its own.
    let timers = "SELECT key FROM server, json_each(document, '$.timers') timer WHERE timer.value IS NOT NULL";
    let due = || instance.read_objects("ServerLink", timers);
    eventually("pings to be all that is due", || async {
        (due() == vec!["ping"; FLEET]).then_some(())
    })
    .await;
    let due =
        instance.read_objects("ServerLink", "SELECT id FROM commands WHERE due_at IS NOT NULL");
    assert_eq!(due, Vec::<String>::new());
    // Nobody asked for anything over HTTP meanwhile, and nothing went wrong.
    assert_eq!(log(), logged);
    assert_eq!(calls(), called);
    for agent in &agents {
        assert_eq!(agent.log().complaints(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn an_agent_hears_of_a_command_on_the_newer_socket_only() {
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
    // Another one takes the agent's place for a moment, and the agent takes it back.
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
            "a socket's end is no command's end"
        );
    }
    let log = agent.log();
    assert_eq!(log.repeated, Vec::<String>::new());
    let ends: Vec<_> = log.sockets_of(BACKHAUL).map(|socket| socket.end).collect();
    assert_eq!(ends, [Some(SocketEnd::Closed(Some(1000))), None]);
}
