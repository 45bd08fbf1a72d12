//! The project's agent is killed at every step of a command. Two agents share a key.

use farhand_tests::eventually;
use futures_util::future::join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::cell::{AgentHost, Cell, CommandKind, Workload};
use super::proxy::{CutPoint, Direction, Proxy, Step};
use super::rounds;

/// The steps of a command on the wire, and how the command may end if its agent dies there. After
/// its restart, an agent reports the ends in its journal. It reports a command as failed if the
/// journal does not contain its end.
const STEPS: [(Step, &[&str]); 9] = [
    (
        step("order not received", Direction::ToAgent, "\"query\":\"command\"", CutPoint::Before),
        &["Stuck"],
    ),
    (
        step("order received", Direction::ToAgent, "\"query\":\"command\"", CutPoint::After),
        &["Stuck", "Failed"],
    ),
    (
        step("noted, not acknowledged", Direction::ToService, "/ack/ HTTP", CutPoint::Before),
        &["Failed", "Success"],
    ),
    (
        step("acknowledged", Direction::ToService, "/ack/ HTTP", CutPoint::Answered),
        &["Failed", "Success"],
    ),
    (
        step("output not sent", Direction::ToService, "/chunk/ HTTP", CutPoint::Before),
        &["Failed", "Success"],
    ),
    (
        step("output sent", Direction::ToService, "/chunk/ HTTP", CutPoint::After),
        &["Failed", "Success"],
    ),
    (
        step("ended, end not sent", Direction::ToService, "/fin/ HTTP", CutPoint::Before),
        &["Success"],
    ),
    (step("end sent", Direction::ToService, "/fin/ HTTP", CutPoint::After), &["Success"]),
    (step("end taken", Direction::ToService, "/fin/ HTTP", CutPoint::Answered), &["Success"]),
];

const fn step(
    name: &'static str,
    direction: Direction,
    pattern: &'static str,
    cut_point: CutPoint,
) -> Step {
    Step { name, direction, pattern, cut_point }
}

/// An agent that is connected through a proxy.
struct ProxiedAgent {
    server: Value,
    proxy: Proxy,
    host: AgentHost,
}

impl ProxiedAgent {
    async fn start(cell: &Cell, name: &str) -> Self {
        let server = cell.workload.workspace.server(name).await;
        let proxy = Proxy::start(cell.port()).await;
        let mut host = AgentHost::new(&cell.workload.workspace, &server, proxy.port);
        host.start();
        cell.wait_for_connections(&[(&server, true)]).await;
        Self { server, proxy, host }
    }

    /// Kills the agent when one of its commands reaches a step, and starts it again. Returns the
    /// ended command.
    async fn die_at(&mut self, cell: &Cell, step: Step) -> Value {
        let workload = &cell.workload;
        let (pid, before) = (self.host.pid(), self.proxy.triggered());
        self.proxy.arm(step, move || kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap());
        let (_, id) = workload.request(&self.server, CommandKind::Queued).await;
        self.proxy.wait_for_more_than(before).await;
        self.host.wait_for_exit().await;
        // Requested while the agent is down, so it is delivered after the restart.
        cell.wait_for_connections(&[(&self.server, false)]).await;
        let (_, next) = workload.request(&self.server, CommandKind::Queued).await;
        self.host.start();
        assert_eq!(
            workload.wait_until_ended(&next.unwrap()).await["status"]["text"],
            "Success",
            "{}",
            step.name
        );
        workload.wait_until_ended(&id.unwrap()).await
    }

    /// Like [`Self::die_at`], while the command runs. No message marks that point.
    async fn die_running(&mut self, workload: &Workload) -> Value {
        let (token, id) = workload.request(&self.server, CommandKind::Long).await;
        eventually("the command to run", || async { workload.has_run(&token).then_some(()) }).await;
        self.host.kill().await;
        self.host.start();
        workload.wait_until_ended(&id.unwrap()).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_may_be_killed_at_every_step() {
    let mut cell = Cell::start("agent killed at each step of a command", &[]).await;
    let agents = STEPS.iter().enumerate().map(|(number, _)| format!("step-{number}"));
    let agents = agents.map(async |name| ProxiedAgent::start(&cell, &name).await);
    let mut agents: Vec<ProxiedAgent> = join_all(agents).await;
    let mut running = ProxiedAgent::start(&cell, "running").await;
    for _ in rounds(1, 8) {
        let died = agents.iter_mut().zip(&STEPS).map(async |(agent, (step, ends))| {
            let done = agent.die_at(&cell, *step).await;
            let end = done["status"]["text"].as_str().unwrap();
            assert!(ends.contains(&end), "{}: {done}", step.name);
        });
        let (_, done) = tokio::join!(join_all(died), running.die_running(&cell.workload));
        assert_eq!(done["status"]["text"], "Failed", "{done}");
        for _ in 0..=STEPS.len() {
            cell.count_fault();
        }
        let all = agents.iter().chain([&running]).map(|agent| (&agent.server, true));
        cell.wait_for_connections(&all.collect::<Vec<_>>()).await;
        cell.check(&[]).await;
    }
    cell.settle_and_check(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_agents_may_share_one_key() {
    let mut cell = Cell::start("two agents with one key, one killed and back", &[]).await;
    let [server] = cell.create_servers(["shared"]).await;
    let mut hosts = [0; 2].map(|_| AgentHost::new(&cell.workload.workspace, &server, cell.port()));
    for host in &mut hosts {
        host.start();
    }
    cell.wait_for_connections(&[(&server, true)]).await;
    for round in rounds(2, 20) {
        let [one, other] = &mut hosts;
        let dies = if round % 2 == 0 { one } else { other };
        let (workload, servers) = (cell.workload.clone(), [&server]);
        tokio::join!(workload.run(&servers, 16), async {
            workload.wait_until_requested(round * 16 + 8).await;
            dies.kill().await;
            dies.start();
        });
        cell.count_fault();
        cell.check(&[]).await;
    }
    cell.wait_for_connections(&[(&server, true)]).await;
    cell.settle_and_check(&[]).await;
}
