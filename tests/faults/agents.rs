//! The project's agent is killed at every step of a command; two agents have one key.

use farhand_tests::eventually;
use futures_util::future::join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::cell::{Cell, Desk, Host, Kind};
use super::rounds;
use super::wire::{Moment, Step, Way, Wire};

/// The steps of a command as they go by on the wire, and how it may end when its agent dies there.
/// An end that was noted is told after the restart; a command that was noted and did not end has
/// failed.
const STEPS: [(Step, &[&str]); 9] = [
    (step("order not received", Way::ToAgent, "\"query\":\"command\"", Moment::Before), &["Stuck"]),
    (
        step("order received", Way::ToAgent, "\"query\":\"command\"", Moment::After),
        &["Stuck", "Failed"],
    ),
    (
        step("noted, not acknowledged", Way::ToService, "/ack/ HTTP", Moment::Before),
        &["Failed", "Success"],
    ),
    (step("acknowledged", Way::ToService, "/ack/ HTTP", Moment::Answered), &["Failed", "Success"]),
    (
        step("output not sent", Way::ToService, "/chunk/ HTTP", Moment::Before),
        &["Failed", "Success"],
    ),
    (step("output sent", Way::ToService, "/chunk/ HTTP", Moment::After), &["Failed", "Success"]),
    (step("ended, end not sent", Way::ToService, "/fin/ HTTP", Moment::Before), &["Success"]),
    (step("end sent", Way::ToService, "/fin/ HTTP", Moment::After), &["Success"]),
    (step("end taken", Way::ToService, "/fin/ HTTP", Moment::Answered), &["Success"]),
];

const fn step(name: &'static str, way: Way, sign: &'static str, moment: Moment) -> Step {
    Step { name, way, sign, moment }
}

/// An agent whose way to the service is watched.
struct Watched {
    server: Value,
    wire: Wire,
    host: Host,
}

impl Watched {
    async fn start(cell: &Cell, name: &str) -> Self {
        let server = cell.desk.workspace.server(name).await;
        let wire = Wire::to(cell.port()).await;
        let mut host = Host::new(&cell.desk.workspace, &server, wire.port);
        host.start();
        cell.connections_are(&[(&server, true)]).await;
        Self { server, wire, host }
    }

    /// Has the agent killed when a command of its comes to a step, and starts it again. Returns how
    /// that command ended.
    async fn die_at(&mut self, cell: &Cell, step: Step) -> Value {
        let desk = &cell.desk;
        let (pid, before) = (self.host.pid(), self.wire.times());
        self.wire.set(step, move || kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap());
        let (_, id) = desk.ask(&self.server, Kind::Queued).await;
        self.wire.until_more_than(before).await;
        self.host.dead().await;
        // One that comes while it is away is for the agent as it is afterwards.
        cell.connections_are(&[(&self.server, false)]).await;
        let (_, next) = desk.ask(&self.server, Kind::Queued).await;
        self.host.start();
        assert_eq!(desk.ended(&next.unwrap()).await["status"]["text"], "Success", "{}", step.name);
        desk.ended(&id.unwrap()).await
    }

    /// The same when the command runs, which no message tells.
    async fn die_running(&mut self, desk: &Desk) -> Value {
        let (token, id) = desk.ask(&self.server, Kind::Long).await;
        eventually("the command to run", || async { desk.has_run(&token).then_some(()) }).await;
        self.host.kill().await;
        self.host.start();
        desk.ended(&id.unwrap()).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_die_at_every_step() {
    let mut cell = Cell::start("agent killed at each step of a command", &[]).await;
    let agents = STEPS.iter().enumerate().map(|(number, _)| format!("step-{number}"));
    let agents = agents.map(async |name| Watched::start(&cell, &name).await);
    let mut agents: Vec<Watched> = join_all(agents).await;
    let mut running = Watched::start(&cell, "running").await;
    for _ in rounds(1, 8) {
        let died = agents.iter_mut().zip(&STEPS).map(async |(agent, (step, ends))| {
            let done = agent.die_at(&cell, *step).await;
            let end = done["status"]["text"].as_str().unwrap();
            assert!(ends.contains(&end), "{}: {done}", step.name);
        });
        let (_, done) = tokio::join!(join_all(died), running.die_running(&cell.desk));
        assert_eq!(done["status"]["text"], "Failed", "{done}");
        for _ in 0..=STEPS.len() {
            cell.fault();
        }
        let all = agents.iter().chain([&running]).map(|agent| (&agent.server, true));
        cell.connections_are(&all.collect::<Vec<_>>()).await;
        cell.look(&[]).await;
    }
    cell.settle(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_agents_have_one_key() {
    let mut cell = Cell::start("two agents with one key, one killed and back", &[]).await;
    let [server] = cell.servers(["shared"]).await;
    let mut hosts = [0; 2].map(|_| Host::new(&cell.desk.workspace, &server, cell.port()));
    for host in &mut hosts {
        host.start();
    }
    cell.connections_are(&[(&server, true)]).await;
    for round in rounds(2, 20) {
        let [one, other] = &mut hosts;
        let dies = if round % 2 == 0 { one } else { other };
        let (desk, servers) = (cell.desk.clone(), [&server]);
        tokio::join!(desk.load(&servers, 16), async {
            desk.until_asked(round * 16 + 8).await;
            dies.kill().await;
            dies.start();
        });
        cell.fault();
        cell.look(&[]).await;
    }
    cell.connections_are(&[(&server, true)]).await;
    cell.settle(&[]).await;
}
